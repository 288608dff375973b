"""One step of the cells of the study of claims: write a set and random encoders, or the rows of an analysis.

python -m benchmarks.studies.claims.step --data python_docs --data_dir DIR --write folder [--masked_lm NAME]
python -m benchmarks.studies.claims.step --analysis analysis.json --rows rows.json --masked_lm NAME --model NAME
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.engine.results import Row
from benchmarks.studies.adaptation.sets import judgments
from benchmarks.studies.bregman.step import Parts, label_names, write_parts
from docsplit.data.sets.arguments import LabelledArguments
from docsplit.data.sets.labelled import LabelledSplit, load_labelled
from docsplit.evaluation.analysis.redundancy import LENGTH_CLASSES
from docsplit.runtime.files import write_text

SEEDS = range(3)
HEADINGS, FEWEST_WORDS = 20, 40  # sections of Wikipedia: of the most frequent headings, and not shorter
NOT_PROSE = {"References", "External links", "See also", "Notes", "Further reading", "Bibliography"}
COMPARED = "noun_to_uniform"  # between encoders, on the same documents
MEASURES = {  # what the report shows of each analysis
    "similarity": ("inner", "inter", "same_class", "auc", "auc_same_class"),
    "attention": (
        *(f"{part}_to_uniform" for part in ("noun", "noun_frequent", "noun_rare", "verb", "adjective", "other")),
        "special_share",
    ),
    "clustering": ("nmi", "purity"),
    "geometry": ("alignment", "uniformity", "mean_cosine", "effective_rank", "hubness"),
}
Analyses = dict[str, Any]  # analysis.json


def sections(data_dir: Path) -> Parts:
    """Read sections of Wikipedia articles, labelled with their headings; two fifths of the articles are the test."""
    import pyarrow.parquet as pq

    articles = pq.read_table(data_dir / "wikipedia" / "train.parquet", columns=["sections"]).to_pylist()
    prose = [
        [
            section
            for section in article["sections"]
            if section["heading"] and len(section["text"].split()) >= FEWEST_WORDS
        ]
        for article in articles
    ]
    counts = Counter(
        section["heading"] for article in prose for section in article if section["heading"] not in NOT_PROSE
    )
    headings = {heading for heading, _ in counts.most_common(HEADINGS)}
    parts: Parts = {"train": ([], []), "test": ([], [])}
    for number, article in enumerate(prose):
        texts, labels = parts["test" if number % 5 < 2 else "train"]
        kept = [section for section in article if section["heading"] in headings]
        texts += [section["text"] for section in kept]
        labels += [section["heading"] for section in kept]
    return parts


def news(data_dir: Path, strip: bool) -> LabelledSplit:
    """Read 20 Newsgroups, with headers or without."""
    files = {f"{name}_file": str(data_dir / "20newsgroups" / f"{name}.parquet") for name in ("train", "test")}
    return load_labelled(LabelledArguments(strip_newsgroup_headers=strip, **files))  # type: ignore[arg-type]


def parts_of(data: str, data_dir: Path, size: int) -> Parts:
    """Return texts and labels of at most so many documents, three fifths of them "train", the others "test".

    Raises:
        ValueError: if there is no such set.
    """
    if data == "wikipedia sections":
        parts = sections(data_dir)
    else:
        loaders = {
            "python_docs": lambda: load_labelled(LabelledArguments()),
            "20news": lambda: news(data_dir, strip=True),
            "20news, with headers": lambda: news(data_dir, strip=False),
            "ecthr": lambda: judgments(data_dir),
        }
        if data not in loaders:
            raise ValueError(f"There is no data set {data!r}, expected wikipedia sections or {', '.join(loaders)}.")
        split = loaders[data]()
        parts = {
            "train": (split.train_texts, label_names(split, split.train_labels)),
            "test": (split.test_texts, label_names(split, split.test_labels)),
        }
    sizes = {"train": size * 3 // 5, "test": size * 2 // 5}
    parts = {name: _spread(texts, labels, sizes[name]) for name, (texts, labels) in parts.items()}
    known = {json.dumps(label) for label in _single(parts["train"][1])}
    kept = [row for row, label in enumerate(parts["test"][1]) if {*map(json.dumps, _single([label]))} <= known]
    if len(kept) < len(parts["test"][0]):
        print(f"{len(parts['test'][0]) - len(kept)} test documents have a class that no training document has.")
    return parts | {"test": tuple([column[row] for row in kept] for column in parts["test"])}  # type: ignore[dict-item]


def _single(labels: list[Any]) -> list[Any]:
    return [value for label in labels for value in (label if isinstance(label, list) else [label])]


def _spread(texts: list[str], labels: list[Any], size: int) -> tuple[list[str], list[Any]]:
    """Take `size` documents at equal distances."""
    rows = [row * len(texts) // size for row in range(size)] if size < len(texts) else range(len(texts))
    return [texts[row] for row in rows], [labels[row] for row in rows]


def write_random_encoders(masked_lm: str, folder: Path) -> None:
    """Write encoders like that one with random weights, one a seed."""
    import torch
    from transformers import AutoModel

    from docsplit.data.tokenization import load_tokenizer
    from docsplit.modeling.pretrained import read_config

    for seed in SEEDS:
        torch.manual_seed(seed)
        AutoModel.from_config(read_config(masked_lm)).save_pretrained(folder / f"random-{seed}")
        load_tokenizer(masked_lm).save_pretrained(folder / f"random-{seed}")


def rows_of(analyses: Analyses, names: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row for each number that the report shows: metric, method, value, low and high.

    Args:
        analyses: what analysis.json holds.
        names: what to call encoders that were given no name.
    """

    def name_of(encoder: str) -> str:
        return names.get(encoder, encoder.partition("=")[0].rstrip("/").rpartition("/")[2])

    if "redundancy" in analyses:
        yield from _redundancy(analyses["redundancy"])
    for analysis, measures in MEASURES.items():
        for row in analyses.get(analysis, {}).get("rows", []):
            if row.get("features", "raw") == "raw":
                method = name_of(row["encoder"])
                yield from (_row(name, method, row, name) for name in measures if f"{name}_mean" in row)
    for row in analyses.get("attention", {}).get("differences", []):
        if row["measure"] == COMPARED:
            values = {"value": row["ratio"], "low": row["ratio_low"], "high": row["ratio_high"]}
            method = f"{name_of(row['a'])} / {name_of(row['b'])}"
            yield {"metric": f"{COMPARED}, ratio", "method": method} | values


def _redundancy(analysis: Analyses) -> Iterator[Row]:
    """Yield R and R over its null by length, for nouns and verbs, and the correlation of each with length."""
    for row in analysis["rows"]:
        if row["variant"] == "nouns_verbs" and row["n"] and row["length"] in LENGTH_CLASSES:
            for name in ("r", "r_to_null"):
                yield _row(f"redundancy {name}, {row['length']} words", "", row, name) | {"n": row["n"]}
    (growth,) = (row for row in analysis["growth"] if row["variant"] == "nouns_verbs")
    for name in ("r", "r_null", "r_to_null"):
        yield {"metric": f"rank correlation of length and {name}", "method": "", "value": growth[name]}


def _row(metric: str, method: str, row: Row, name: str) -> Row:
    values = {"value": row[f"{name}_mean"], "low": row.get(f"{name}_low"), "high": row.get(f"{name}_high")}
    return {"metric": metric, "method": method, "std": row.get(f"{name}_std")} | values


def main() -> None:
    """Write files or rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="20news; 20news, with headers; python_docs; ecthr; wikipedia sections")
    parser.add_argument("--data_dir", type=Path)
    parser.add_argument("--max_documents", type=int, default=2500)
    parser.add_argument("--masked_lm", help="encoder whose form the random encoders have")
    parser.add_argument("--model", help="another encoder")
    parser.add_argument("--write", type=Path, help="folder for train.jsonl, test.jsonl, corpus.jsonl and encoders")
    parser.add_argument("--analysis", type=Path, help="analysis.json")
    parser.add_argument("--rows", type=Path, help="file to write")
    options = parser.parse_args()
    if options.write is not None:
        write_parts(parts_of(options.data, options.data_dir, options.max_documents), options.write)
        if options.masked_lm is not None:
            write_random_encoders(options.masked_lm, options.write)
        return
    analyses = json.loads(options.analysis.read_text(encoding="utf-8"))
    names = {options.masked_lm: "masked LM", options.model: "model"}
    write_text(options.rows, json.dumps(list(rows_of(analyses, names)), indent=1) + "\n")


if __name__ == "__main__":
    main()
