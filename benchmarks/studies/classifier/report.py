"""What is the classifier to keep worth? Beside its parts, the heads of the probe and SetFit, on five sets.

    python -m benchmarks.studies.classifier.report --data_dir DIR --model sentence-transformers/all-MiniLM-L6-v2
    python -m benchmarks.studies.classifier.report --data_dir DIR --model DIR_OR_NAME --methods setfit --sets dbpedia

DIR has the folders 20newsgroups, banking77, dbpedia and ecthr; docstrings are built in. With few labels, three draws
of them; all other training documents are unlabelled then, and words and TF-IDF read them too. Each method on each set
leaves a file in --work_dir, so that running again goes on; the results are rewritten whole after each set and number.
Intervals hold 95 % over test documents; differences to the classifier are on the same documents and draws.
"""

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks.studies.adaptation.sets import labelled
from docsplit.classifier import FEATURES, Classifier, fit_head, probabilities_of
from docsplit.data.copies import near_copy_groups
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads.base import HeadInput, HeadRun, head_runs
from docsplit.evaluation.heads.finetuning import FineTuningStart
from docsplit.evaluation.heads.setfit import setfit
from docsplit.evaluation.heads.table import HEADS
from docsplit.evaluation.results.bootstrap import ItemScores, interval, paired_bootstrap, resample
from docsplit.evaluation.results.markdown import Markdown, bold, markdown_table
from docsplit.modeling.loading import load_encoder
from docsplit.runtime.files import read_any_json, versions, write_text, write_whole

logger = logging.getLogger(__name__)

DRAWS, LABELS = 3, (5, 10, 20, None)  # labels a class; None: all
SETS = ("docstrings", "20newsgroups", "banking77", "dbpedia", "ecthr")
NAMES = {  # of methods, in a reader's words
    "classifier": "the classifier",
    "words_and_tfidf": "words and half a TF-IDF",
    "words": "words",
    "encoder_and_tfidf": "encoder and half a TF-IDF",
    "encoder": "encoder",
    "tfidf": "TF-IDF",
    "probe_linear": "probe: logistic regression, C chosen",
    "probe_mlp": "probe: MLP",
    "probe_knn": "probe: nearest neighbours",
    "setfit": "SetFit",
}
PARTS = ("words_and_tfidf", "words", "encoder_and_tfidf", "encoder", "tfidf")


@dataclass
class DataSet:
    """A set, and the features that the classifier fits on all of its training documents, labelled or not."""

    split: LabelledSplit
    model: str

    @cached_property
    def features(self) -> dict[str, tuple[csr_matrix, csr_matrix]]:
        """Training and test features by name; those of the classifier's and `words`."""
        classifier = Classifier(self.model)
        classifier.seconds_ = {}
        train, test = self.split.train_texts, self.split.test_texts
        features = {
            name: (rows, classifier.features_of(test, name))
            for name, rows in classifier.fit_features(train, train).items()
        }
        width = features["encoder"][0].shape[1]
        first, second = (rows[:, :width] for rows in features["words_and_tfidf"])
        return features | {"words": (first, second)}

    def by_classifier(self, names: tuple[str, ...], run: HeadRun) -> np.ndarray:
        """Return the probabilities (M, C) by the classifier's head on the best of these features."""
        classifier = Classifier()
        classifier.several_, classifier.classes_ = self.split.multi_label, np.arange(len(self.split.class_names))
        targets = self.split.train_labels[run.indices].astype(np.int64)
        groups = near_copy_groups([self.split.train_texts[row] for row in run.indices])
        classifier.choose({name: self.features[name][0][run.indices] for name in names}, targets, groups)
        train, test = self.features[classifier.features_]
        coefficients, intercepts = fit_head(train[run.indices], targets, len(classifier.classes_))
        return probabilities_of(
            test @ coefficients + intercepts, classifier.scale_, classifier.shift_, classifier.several_
        )

    def scores(self, method: str, runs: list[HeadRun], few: bool) -> np.ndarray:
        """Return the probabilities of each class (R, M, C) by a method in each run."""
        if method == "setfit":
            return setfit(FineTuningStart(lambda: load_encoder(self.model)), self.split, runs).scores
        if method.startswith("probe_"):
            train, test = (rows.toarray() for rows in self.features["encoder"])
            data = HeadInput(train, self.split.train_labels, runs, test, len(self.split.class_names), few)
            return HEADS[method.removeprefix("probe_")](data).scores
        names = tuple(FEATURES) if method == "classifier" else (method,)
        return np.stack([self.by_classifier(names, run) for run in runs])


def items_of(scores: np.ndarray, split: LabelledSplit) -> ItemScores:
    """Return what each test document adds to the accuracy, or with several labels to the micro-F1."""
    if not split.multi_label:
        right = (scores.argmax(axis=2) == split.test_labels).astype(np.float32)
        return ItemScores(right, np.ones_like(right))
    given, wanted = scores >= 0.5, split.test_labels.astype(bool)
    both = 2 * (given & wanted).sum(axis=2).astype(np.float32)
    return ItemScores(both, (given.sum(axis=2) + wanted.sum(axis=1)).astype(np.float32))


def measure(data: DataSet, labels: int | None, method: str, path: Path) -> None:
    """Write what a method brings on a set, unless it is there."""
    if path.exists() or (method == "setfit" and not labels):  # which would take hours
        return
    try:
        runs = head_runs(data.split, labels, DRAWS, 1)
    except ValueError as error:  # too few documents of a class
        logger.info(f"{path.stem}: {error}")
        return
    if method != "setfit":
        data.features  # noqa: B018 (made before the clock starts)
    started = time.process_time()
    items = items_of(data.scores(method, runs, labels is not None), data.split)
    seconds = (time.process_time() - started) / len(runs)
    logger.info(f"{path.stem}: {100 * items.of_runs().mean():.1f} %, {seconds:.1f} s a run")
    arrays = {"above": items.numerators, "below": items.denominators, "seconds": np.array(seconds)}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)

    write_whole(path, write)


def rows_of(work_dir: Path, sets: dict[str, str]) -> list[dict[str, Any]]:
    """Return a row for each method on each set that was measured, with the difference to the classifier.

    Args:
        sets: the metric of each.
    """
    rows = []
    for name, metric in sets.items():
        for labels in LABELS:
            found: dict[str, tuple[ItemScores, float]] = {}
            for method in NAMES:
                if (path := work_dir / f"{name}-{labels or 'all'}-{method}.npz").exists():
                    with np.load(path) as stored:
                        found[method] = ItemScores(stored["above"], stored["below"]), float(stored["seconds"])
            drawn = dict(zip(found, resample([items for items, _ in found.values()])))
            for method, (items, seconds) in found.items():
                low, high = interval(drawn[method])
                row = {"data": name, "labels": labels or "all", "method": method, "metric": metric}
                row |= {"value": float(items.of_runs().mean()), "low": low, "high": high}
                row |= {"seconds": round(seconds, 2), "draws": items.runs, "documents": items.size}
                if method != "classifier" and "classifier" in found:
                    compared = paired_bootstrap(drawn[method], drawn["classifier"])
                    row["to_classifier"] = {"value": compared.difference, "low": compared.low, "high": compared.high}
                rows.append(row)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return a table for each number of labels: percent, the best part in bold, and seconds of SetFit."""
    lines = ["Percent, mean of draws; in brackets the 95 % interval over test documents. Bold: the best of all.", ""]
    for labels in dict.fromkeys(row["labels"] for row in sorted(rows, key=lambda row: LABELS.index(
            None if row["labels"] == "all" else row["labels"]))):  # fmt: skip
        of_labels = {(row["data"], row["method"]): row for row in rows if row["labels"] == labels}
        sets = list(dict.fromkeys(data for data, _ in of_labels))
        best = {data: max(row["value"] for (other, _), row in of_labels.items() if other == data) for data in sets}

        def cell(row: dict[str, Any] | None, best: dict[str, float] = best) -> str | Markdown:
            if row is None:
                return ""
            text = f"{100 * row['value']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})"
            return bold(text) if row["value"] == best[row["data"]] else text

        metrics = {data: row["metric"] for (data, _), row in of_labels.items()}
        body = [[name, *(cell(of_labels.get((data, method))) for data in sets)] for method, name in NAMES.items()]
        below = []
        for data in sets:
            parts = {method: of_labels[data, method]["value"] for method in PARTS if (data, method) in of_labels}
            whole = of_labels.get((data, "classifier"))
            below.append(f"{100 * (whole['value'] - max(parts.values())):+.1f}" if whole and parts else "")
        body.append(["the classifier less the best of its parts", *below])
        taken = [f"{data}: {NAMES[method]} {row['seconds']:.0f}" for (data, method), row in of_labels.items()
                 if method in ("classifier", "setfit")]  # fmt: skip
        title = "All labels" if labels == "all" else f"{labels} labels a class"
        lines += [f"## {title}", "", markdown_table(["", *(f"{data}, {metrics[data]}" for data in sets)],
                                                    [line for line in body if any(line[1:])])]  # fmt: skip
        lines += ["", f"Seconds of processor time a draw, without those of embedding: {'; '.join(taken)}.", ""]
    return "\n".join(lines)


def main() -> None:
    """Measure what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Callable[..., Any] = parser.add_argument
    add("--data_dir", type=Path, required=True, help="folder with a folder of each set")
    add("--model", required=True, help="the encoder: a SentenceTransformer, here or on the Hub")
    add("--sets", nargs="+", choices=SETS, default=SETS)
    add("--labels", nargs="+", type=int, default=[label or 0 for label in LABELS], help="a class; 0: all")
    add("--methods", nargs="+", choices=list(NAMES), default=list(NAMES)[:-1], help="SetFit has to be named")
    add("--work_dir", type=Path, default=Path("outputs/classifier_study"))
    add("--output", type=Path, default=Path("benchmarks/results/classifier.json"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.work_dir.mkdir(parents=True, exist_ok=True)
    metrics = {name: "micro-F1" if name == "ecthr" else "accuracy" for name in SETS}
    for name in options.sets:
        data = DataSet(labelled(name, options.data_dir), options.model)
        for labels in options.labels:
            for method in options.methods:
                measure(data, labels or None, method, options.work_dir / f"{name}-{labels or 'all'}-{method}.npz")
            rows = rows_of(options.work_dir, metrics)
            before = read_any_json(options.output)["rows"] if options.output.exists() else []
            key = ("data", "labels", "method")
            new = {tuple(row[part] for part in key) for row in rows}
            rows += [row for row in before if tuple(row[part] for part in key) not in new]
            lines = ",\n".join(json.dumps(row) for row in rows)
            write_text(options.output, f'{{"versions": {json.dumps(versions())},\n"rows": [\n{lines}\n]}}\n')
            write_text(options.output.with_suffix(".md"), markdown(rows))


if __name__ == "__main__":
    main()
