"""Is an encoder from nothing, in closed form, ahead of TF-IDF and LSA? Classes of few labels, and searches.

    python -m benchmarks.studies.closed_form.choices --data_dir DIR    # once: how each method is made
    python -m benchmarks.studies.closed_form.report --data_dir DIR --model sentence-transformers/all-MiniLM-L6-v2

DIR has the folders 20newsgroups, dbpedia, aan, banking77, cacm, cranfield and scifact; docstrings are built in. What
is fitted reads training documents without labels, or the documents that are searched. Classes: accuracy with 5 labels
a class, logistic regression, ten draws of labels. Classes of papers are communities of their citations. Named before
anything was measured: the closed form less LSA, with 5 labels a class, on first paragraphs and on communities of
papers, Holm over the two. Each method on each set leaves a file in --work_dir, so that running again goes on; the
results are rewritten whole after each set.
"""

import argparse
import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import networkx
import numpy as np
from scipy.sparse import vstack

from benchmarks.studies.adaptation.sets import DataSet, labelled, load
from benchmarks.studies.closed_form.choices import OUTPUT as CHOICES
from benchmarks.studies.closed_form.choices import Features, features_of, right
from docsplit.data.fusion import WEIGHT
from docsplit.data.sets.citations import read_citations
from docsplit.data.sets.labelled import NUM_DRAWS, SHOTS, LabelledSplit, stratified_sample
from docsplit.evaluation.results.bootstrap import ItemScores, holm, interval, paired_bootstrap, resample
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.modeling.loading import load_encoder
from docsplit.runtime.files import read_any_json, versions, write_text, write_whole
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

CLASSES = {  # in a reader's words
    "20newsgroups": "posts, 20 (chosen on others of them)",
    "docstrings": "docstrings, 40 (chosen on others of them)",
    "dbpedia": "first paragraphs, 14",
    "aan": "papers, communities",
    "banking77": "questions, 77",
}
SEARCHES = ("cacm", "cranfield", "scifact")
PRIMARY = ("dbpedia", "aan")
SIZE, SIZES, TESTED = 2000, (200, 500, 1000, 2000, 5000, 10_000), 1000  # documents
FEWEST_PAPERS = 40  # of a community
NAMES = {
    "tfidf": "TF-IDF",
    "lsa 128": "LSA, 128 dimensions",
    "lsa 500": "LSA, 500 dimensions",
    "lsa": "LSA",
    "closed form": "closed form",
    "halves of tokens": "closed form, halves of tokens",
    "halves of sentences": "closed form, halves of sentences",
    "halves of none": "closed form, no halves",
    "encoder": "encoder",
    "bm25": "BM25",
    "closed form + bm25": "closed form and BM25",
    "encoder + bm25": "encoder and BM25",
}
WITH_BM25 = " + bm25"  # at a weight of its own, or at search.py's
NAMES |= {f"closed form{WITH_BM25} {weight}": f"closed form and BM25, weight {weight}" for weight in (0.3, 0.4, 0.5)}
AGAINST = {"lsa": "LSA", "halves of none": "that without halves"}


def communities(data_dir: Path) -> LabelledSplit:
    """Return papers with the community of their citations (Louvain) as the class; half of each are tested."""
    texts, links, counts = read_citations(data_dir / "aan" / "papers.parquet", data_dir / "aan" / "citations.tsv")
    graph = networkx.Graph()
    graph.add_edges_from(links.tolist())
    found = [sorted(members) for members in networkx.community.louvain_communities(graph, seed=0)]
    found = [members for members in found if len(members) >= FEWEST_PAPERS]
    papers = np.concatenate(found)
    labels = np.repeat(np.arange(len(found)), [len(members) for members in found])
    train = stratified_sample(labels, len(labels) // 2, 0)
    test, all_texts = np.setdiff1d(np.arange(len(labels)), train), [*texts.values()]
    parts = {name: [all_texts[paper] for paper in papers[rows]] for name, rows in (("train", train), ("test", test))}
    names = [str(number) for number in range(len(found))]
    return LabelledSplit.of_parts(parts, {"train": labels[train], "test": labels[test]}, names, counts)


class Task:
    """A set of so many training documents, and the features of its texts; or a search.

    Raises:
        ValueError: if the set, or a class, has too few documents.
    """

    def __init__(self, name: str, size: int, data_dir: Path, choices: dict[str, dict[str, Any]], model: str | None):
        self.choices, self.model = choices, model
        self.split: LabelledSplit | None = None
        if name in SEARCHES:
            self.search: DataSet = load(f"search: {name}", data_dir)
            texts, count = self.search.texts, len(self.search.corpus)
            self.train, self.others = texts[:count], texts[count:]
        else:
            self.split = communities(data_dir) if name == "aan" else labelled(name, data_dir, limits=(size, TESTED))
            self.train, self.others = self.split.train_texts, self.split.test_texts
            self.draws = self.split.draws(SHOTS, NUM_DRAWS)
            if size > SIZE and len(self.train) < 0.9 * size:
                raise ValueError(f"the set has {len(self.train):,} for training.")
        self._features: Features | None = None

    def features(self, method: str) -> tuple[Any, Any]:
        """Return the features of training and other documents, or of documents and queries."""
        if method == "encoder":
            assert self.model is not None
            model = load_encoder(self.model)
            return unit(model.encode_document(self.train)), unit(model.encode_query(self.others))
        self._features = self._features or Features(self.train, self.others)
        return features_of(self._features, self.choices[method])

    def items(self, method: str) -> np.ndarray:
        """Return what each draw of labels finds of each test document, or nDCG@10 of each query, (R, M)."""
        if self.split is not None:
            return right(self.features(method), self.split, self.draws)
        if method == "bm25":
            measured = self.search.beside_bm25(None)  # type: ignore[misc]
        else:
            alone, with_bm25, weight = method.partition(WITH_BM25)
            train, others = self.features(alone)
            stack = np.concatenate if isinstance(train, np.ndarray) else vstack
            features = stack([train, others])
            if with_bm25:
                measured = self.search.beside_bm25(features, float(weight or WEIGHT))  # type: ignore[misc]
            else:
                measured = self.search.measure(features)
        return np.array([[measured.of_items(np.array([query])) for query in range(measured.num_items)]])


def measure(task: Task, method: str, path: Path) -> None:
    """Write what a method brings on a set."""
    found = task.items(method).astype(np.float32)
    logger.info(f"{path.stem}: {100 * found.mean():.1f} %")

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, found=found, documents=len(task.train))

    write_whole(path, write)


def rows_of(work_dir: Path) -> list[dict[str, Any]]:
    """Return a row for each method on each set that was measured, with the difference to LSA on the same items."""
    rows = []
    for name, size in product([*CLASSES, *SEARCHES], SIZES):
        found: dict[str, ItemScores] = {}
        documents = 0
        for method in NAMES:
            if (path := work_dir / f"{name}-{size}-{method}.npz").exists():
                with np.load(path) as stored:
                    found[method] = ItemScores(stored["found"], np.ones_like(stored["found"]))
                    documents = int(stored["documents"])
        drawn = dict(zip(found, resample([*found.values()])))
        for method, items in found.items():
            low, high = interval(drawn[method])
            row: dict[str, Any] = {"data": name, "size": size, "documents": documents, "method": method}
            row |= {"metric": "nDCG@10" if name in SEARCHES else "accuracy", "value": float(items.of_runs().mean())}
            row |= {"low": low, "high": high, "draws": items.runs, "items": items.size}
            for other in AGAINST:
                if method != other and other in found:
                    row[f"to_{other}"] = asdict(paired_bootstrap(drawn[method], drawn[other]))
            rows.append(row)
    primary = [row for row in rows if (row["method"], row["size"]) == ("closed form", SIZE) and row["data"] in PRIMARY]
    primary = [row for row in primary if "to_lsa" in row]
    for first, p_holm in zip(primary, holm([row["to_lsa"]["p_value"] for row in primary])):
        first["to_lsa"]["p_holm"] = p_holm
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return a table of classes, one of searches, and one of numbers of documents: percent."""
    at = {(row["data"], row["size"], row["method"]): row for row in rows}

    def cell(row: dict[str, Any] | None) -> str:
        return f"{100 * row['value']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})" if row else ""

    def less(other: str, name: str, size: int) -> str:
        less_other = at.get((name, size, "closed form"), {}).get(f"to_{other}")
        if less_other is None:
            return ""
        value, low, high = (100 * less_other[key] for key in ("difference", "low", "high"))
        text = f"{value:+.1f} ({low:+.1f} to {high:+.1f})"
        return text + (f", p {less_other['p_holm']:.3f}" if "p_holm" in less_other else "")

    lines = ["Percent, with 95 % intervals over test documents or queries; differences over draws of labels too. p: "
             "of the two comparisons that were named before, by Holm.", ""]  # fmt: skip
    for title, names in (("5 labels a class", [*CLASSES]), ("nDCG@10", [*SEARCHES])):
        measured = [name for name in names if any(row["data"] == name and row["size"] == SIZE for row in rows)]
        body = [[words, *(cell(at.get((name, SIZE, method))) for name in measured)] for method, words in NAMES.items()]
        for other, words in AGAINST.items():
            body.append([f"closed form less {words}", *(less(other, name, SIZE) for name in measured)])
        if measured:
            heads = [CLASSES.get(name, name) for name in measured]
            lines += [f"## {title}", "", markdown_table(["", *heads], [line for line in body if any(line[1:])]), ""]
    several = {name: [size for size in SIZES if (name, size, "closed form") in at] for name in CLASSES}
    for name, sizes in several.items():
        if len(sizes) > 1:
            body = [
                [NAMES[method], *(cell(at.get((name, size, method))) for size in sizes)]
                for method in ("tfidf", "lsa", "closed form", "halves of none", "encoder")
            ]
            for other, words in AGAINST.items():
                body.append([f"closed form less {words}", *(less(other, name, size) for size in sizes)])
            heads = ["documents", *(f"{at[name, size, 'closed form']['documents']:,}" for size in sizes)]
            lines += [f"## {CLASSES[name]}", "", markdown_table(heads, [line for line in body if any(line[1:])]), ""]
    return "\n".join(lines)


def main() -> None:
    """Measure what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Callable[..., Any] = parser.add_argument
    add("--data_dir", type=Path, required=True, help="folder with a folder of each set")
    add("--model", help="an encoder beside it: a SentenceTransformer, here or on the Hub")
    add("--sets", nargs="+", choices=[*CLASSES, *SEARCHES], default=[*CLASSES, *SEARCHES])
    add("--sizes", nargs="+", type=int, choices=SIZES, default=[SIZE], help="training documents of a set with classes")
    add("--work_dir", type=Path, default=Path("outputs/closed_form_study"))
    add("--choices", type=Path, default=CHOICES)
    add("--output", type=Path, default=Path("benchmarks/results/closed_form.json"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.work_dir.mkdir(parents=True, exist_ok=True)
    choices = read_any_json(options.choices)["chosen"]
    for name, size in product(options.sets, options.sizes):
        if size != SIZE and name in ("aan", *SEARCHES):
            continue  # they are taken whole
        methods = [method for method in NAMES if options.model is not None or not method.startswith("encoder")]
        methods = [method for method in methods if name in SEARCHES or "bm25" not in method]
        paths = {method: options.work_dir / f"{name}-{size}-{method}.npz" for method in methods}
        if missing := [method for method in methods if not paths[method].exists()]:
            try:
                task = Task(name, size, options.data_dir, choices, options.model)
            except ValueError as error:  # too few documents of the set, or of a class
                logger.info(f"{name}, {size:,} documents: {error}")
                continue
            for method in missing:
                measure(task, method, paths[method])
        rows = rows_of(options.work_dir)
        lines = ",\n".join(json.dumps(row) for row in rows)
        write_text(options.output, f'{{"versions": {json.dumps(versions())},\n"rows": [\n{lines}\n]}}\n')
        write_text(options.output.with_suffix(".md"), markdown(rows))


if __name__ == "__main__":
    main()
