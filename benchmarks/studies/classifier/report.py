"""What is the classifier to keep worth? Beside its parts, other ways to read the pile, and SetFit, on five sets.

    python -m benchmarks.studies.classifier.report --data_dir DIR --model sentence-transformers/all-MiniLM-L6-v2
    python -m benchmarks.studies.classifier.report --data_dir DIR --model DIR_OR_NAME --methods setfit --labels 5

DIR has the folders 20newsgroups, banking77, dbpedia and ecthr; docstrings are built in. With few labels, three draws
of them; all other training documents are unlabelled then: words and TF-IDF read them, and the heads of methods that
read the pile. In a skewed set half of the classes are ten times rarer, in the pile (at least 10 documents) and in the
test. Each method on each set leaves a file in --work_dir, so that running again goes on; the results are rewritten
whole after each set and number. Intervals hold 95 % over test documents; differences to the classifier are on the same
documents and draws.
"""

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import softmax
from sklearn.metrics import f1_score

from benchmarks.studies.adaptation.sets import labelled
from docsplit.classifier import FEATURES, Classifier
from docsplit.data.copies import near_copy_groups
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.embedding.closed_form import NOTHING
from docsplit.evaluation.heads.base import HeadInput, HeadRun, head_runs
from docsplit.evaluation.heads.class_names import NamedClasses
from docsplit.evaluation.heads.finetuning import FineTuningStart
from docsplit.evaluation.heads.logistic import probabilities_of
from docsplit.evaluation.heads.setfit import setfit
from docsplit.evaluation.heads.table import HEADS
from docsplit.evaluation.results.bootstrap import ItemScores, interval, paired_bootstrap, resample
from docsplit.evaluation.results.markdown import Markdown, bold, markdown_table
from docsplit.modeling.loading import load_encoder
from docsplit.runtime.files import read_any_json, versions, write_text, write_whole
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

DRAWS, LABELS = 3, ("none", "2", "5", "10", "20", "all")  # labels a class
CLASS_NAMES = Path(__file__).with_name("class_names.json")  # of each set and class three wordings: label, name, about
SKEWED = "_skewed"  # after the name of a set
MOST_SKEWED = 10  # labels a class, for whose draws a rare class has documents enough
SETS = ("docstrings", "20newsgroups", "banking77", "dbpedia", "ecthr")
NAMES = {  # of methods, in a reader's words
    "classifier": "the classifier (reads the pile)",
    "nothing": "the same without an encoder (reads the pile)",
    "labelled": "the same, its head of labelled documents alone",
    "encoder": "encoder, logistic regression",
    "tfidf": "TF-IDF, logistic regression",
    "probe_linear": "encoder, logistic regression, C chosen",
    "class_means": "class means by EM (reads the pile)",
    "names": "the classifier with names of classes (reads the pile)",
    "nearest_name": "the nearest name",
    "setfit": "SetFit (trains the encoder)",
}
WITH_THEIR_OWN = ("nothing", "setfit")  # features
PARTS = ("labelled", "encoder", "tfidf")
CONCENTRATION, EM_ROUNDS = 20.0, 20  # of class means


def skewed(split: LabelledSplit) -> LabelledSplit:
    """Leave a tenth of the documents of half of the classes, of training documents at least 10."""
    generator = np.random.default_rng(0)
    rare = generator.permutation(len(split.class_names))[::2]
    parts: dict[str, Any] = {}
    for part, keep in (("train", MOST_SKEWED), ("test", 1)):
        labels = split.labels[part]
        left = np.ones(len(labels), dtype=bool)
        for of_class in rare:
            rows = generator.permutation(np.flatnonzero(labels == of_class))
            left[rows[max(keep, len(rows) // 10) :]] = False
        texts = [split.texts[part][row] for row in np.flatnonzero(left)]
        parts |= {f"{part}_texts": texts, f"{part}_labels": labels[left]}
    return replace(split, validation_texts=None, validation_labels=None, **parts)


def class_means(train: np.ndarray, targets: np.ndarray, pile: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return the probabilities of classes by EM: a mixture of directions, one a class, whose labelled documents stay.

    Args:
        train, pile, test: rows of length one, (N, F), (U, F) and (M, F).
        targets: class indices, (N,).
    """
    given = np.eye(targets.max() + 1)[targets]
    means, shares = unit(given.T @ train), given.mean(axis=0)
    for _ in range(EM_ROUNDS):
        guessed = softmax(CONCENTRATION * pile @ means.T + np.log(shares), axis=1)
        means = unit(given.T @ train + guessed.T @ pile)
        shares = (guessed.sum(axis=0) + 1) / (len(pile) + len(shares))
    return softmax(CONCENTRATION * test @ means.T + np.log(shares), axis=1)


@dataclass
class DataSet:
    """A set, and the features that the classifier fits on all of its training documents, labelled or not."""

    split: LabelledSplit
    model: str
    wordings: dict[str, list[str]] | None = None  # of the names of classes

    def __post_init__(self) -> None:
        self.classifier = Classifier(self.model)
        self.classifier.seconds_ = {}

    @cached_property
    def features(self) -> dict[str, tuple[csr_matrix, csr_matrix]]:
        """Training and test features by name; those of the classifier."""
        train, test = self.split.train_texts, self.split.test_texts
        features = self.classifier.fit_features(train)
        return {name: (rows, self.classifier.features_of(test, name)) for name, rows in features.items()}

    @cached_property
    def name_vectors(self) -> dict[str, np.ndarray]:
        """Vectors of the names, (W, C, H) of W wordings, by features."""
        width = self.features["encoder"][0].shape[1]  # the classifier is fitted
        assert self.wordings is not None
        by_wording = [*zip(*(self.wordings[name] for name in self.split.class_names))]
        return {
            of: np.stack(
                [unit(self.classifier.features_of([*names], of)[:, :width].toarray()) for names in by_wording]
            )
            for of in ("encoder", "words_and_tfidf")
        }

    def by_classifier(
        self, names: tuple[str, ...], run: HeadRun, pile: np.ndarray, wording: int | None = None
    ) -> np.ndarray:
        """Return the probabilities (M, C) by the classifier's head on the best of these features.

        Args:
            pile: training documents that the head reads without their labels.
            wording: of names that it reads.
        """
        classifier = Classifier()
        classifier.several_, classifier.classes_ = self.split.multi_label, np.arange(len(self.split.class_names))
        groups = near_copy_groups([self.split.train_texts[row] for row in run.indices])
        rows = np.concatenate([run.indices, pile])
        targets = self.split.train_labels[run.indices].astype(np.int64)
        of_rows = {name: self.features[name][0][rows] for name in names if name in self.features}
        named = None
        if wording is not None:
            vectors = self.name_vectors[names[0]][wording]
            named = NamedClasses.of(of_rows[names[0]][:, : vectors.shape[1]].toarray(), vectors)
        classifier.fit_heads(of_rows, targets, groups, named)
        scores = self.features[classifier.features_][1] @ classifier.coefficients_ + classifier.intercepts_
        return probabilities_of(scores, classifier.scale_, classifier.shift_, classifier.several_)

    def scores(self, method: str, runs: list[HeadRun], few: bool) -> np.ndarray:
        """Return the probabilities of each class (R, M, C) by a method in each run."""
        train, test = self.features["encoder"] if method not in WITH_THEIR_OWN else (None, None)
        if method == "nothing":
            return DataSet(self.split, NOTHING).scores("classifier", runs, few)
        if method == "setfit":
            return setfit(FineTuningStart(lambda: load_encoder(self.model)), self.split, runs).scores
        if method.startswith("probe_"):
            data = HeadInput(
                train.toarray(), self.split.train_labels, runs, test.toarray(), len(self.split.class_names), few
            )
            return HEADS[method.removeprefix("probe_")](data).scores
        if method == "nearest_name":
            return np.stack([test @ names.T for names in self.name_vectors["encoder"]])
        piles = [np.setdiff1d(np.arange(len(self.split.train_texts)), run.indices) for run in runs]
        if method == "class_means":
            width = train.shape[1]
            train, test = (unit(rows[:, :width].toarray()) for rows in self.features["words_and_tfidf"])
            labels = self.split.train_labels
            return np.stack(
                [
                    class_means(train[run.indices], labels[run.indices], train[pile], test)
                    for run, pile in zip(runs, piles)
                ]
            )
        if method == "names":
            return np.stack(
                [
                    self.by_classifier(("words_and_tfidf",), run, pile, wording)
                    for wording, (run, pile) in enumerate(zip(runs, piles))
                ]
            )
        names = tuple(FEATURES) if method in ("classifier", "labelled") else (method,)
        none = np.zeros(0, dtype=np.int64)
        return np.stack(
            [
                self.by_classifier(names, run, pile if method == "classifier" else none)
                for run, pile in zip(runs, piles)
            ]
        )


def items_of(scores: np.ndarray, split: LabelledSplit) -> ItemScores:
    """Return what each test document adds to the accuracy, or with several labels to the micro-F1."""
    if not split.multi_label:
        right = (scores.argmax(axis=2) == split.test_labels).astype(np.float32)
        return ItemScores(right, np.ones_like(right))
    given, wanted = scores >= 0.5, split.test_labels.astype(bool)
    both = 2 * (given & wanted).sum(axis=2).astype(np.float32)
    return ItemScores(both, (given.sum(axis=2) + wanted.sum(axis=1)).astype(np.float32))


def can_measure(data: DataSet, labels: str, method: str) -> bool:
    """Tell whether a method is one for so many labels."""
    if labels == "none":
        return method in ("names", "nearest_name") and data.wordings is not None
    if labels == "all":  # without a pile; SetFit would take hours
        return method not in ("labelled", "class_means", "names", "nearest_name", "setfit")
    return method != "nearest_name" and not data.split.multi_label and (method != "names" or data.wordings is not None)


def measure(data: DataSet, labels: str, method: str, path: Path) -> None:
    """Write what a method brings on a set, unless it is there: the mean of draws of labels or wordings of names."""
    if path.exists() or not can_measure(data, labels, method):
        return
    try:
        if labels == "none":
            runs = [HeadRun(np.zeros(0, dtype=np.int64), wording) for wording in range(DRAWS)]
        else:
            runs = head_runs(data.split, None if labels == "all" else int(labels), DRAWS, 1)
    except ValueError as error:  # too few documents of a class
        logger.info(f"{path.stem}: {error}")
        return
    if method not in WITH_THEIR_OWN:
        data.features  # noqa: B018 (made before the clock starts)
    started = time.process_time()
    scores = data.scores(method, runs, labels != "all")
    items = items_of(scores, data.split)
    seconds = (time.process_time() - started) / len(runs)
    logger.info(f"{path.stem}: {100 * items.of_runs().mean():.1f} %, {seconds:.1f} s a run")
    arrays = {"above": items.numerators, "below": items.denominators, "seconds": np.array(seconds)}
    if not data.split.multi_label:
        guesses, given = scores.argmax(axis=2), data.split.test_labels
        of_runs = [f1_score(given, guess, labels=np.unique(given), average="macro") for guess in guesses]
        arrays["macro_f1"] = np.array(np.mean(of_runs))

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
            found: dict[str, tuple[ItemScores, dict[str, float]]] = {}
            for method in NAMES:
                if (path := work_dir / f"{name}-{labels}-{method}.npz").exists():
                    with np.load(path) as stored:
                        others = {
                            key: round(float(stored[key]), 4) for key in ("macro_f1", "seconds") if key in stored
                        }
                        found[method] = ItemScores(stored["above"], stored["below"]), others
            drawn = dict(zip(found, resample([items for items, _ in found.values()])))
            for method, (items, others) in found.items():
                low, high = interval(drawn[method])
                row = {"data": name, "labels": labels, "method": method, "metric": metric}
                row |= {"value": float(items.of_runs().mean()), "low": low, "high": high}
                row |= others | {"draws": items.runs, "documents": items.size}
                if method != "classifier" and "classifier" in found:
                    compared = paired_bootstrap(drawn[method], drawn["classifier"])
                    row["to_classifier"] = {"value": compared.difference, "low": compared.low, "high": compared.high}
                rows.append(row)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return a table for each number of labels: percent, the best part in bold, and seconds of SetFit."""
    lines = ["Percent, mean of draws; in brackets the 95 % interval over test documents, then the macro-F1. Bold: the "
             "best of all. Heads that read the pile learn from all training documents, others from labelled ones. "
             "Words and TF-IDF read all of them.", ""]  # fmt: skip
    for labels in sorted({row["labels"] for row in rows}, key=LABELS.index):
        of_labels = {(row["data"], row["method"]): row for row in rows if row["labels"] == labels}
        sets = list(dict.fromkeys(data for data, _ in of_labels))
        best = {data: max(row["value"] for (other, _), row in of_labels.items() if other == data) for data in sets}

        def cell(row: dict[str, Any] | None, best: dict[str, float] = best) -> str | Markdown:
            if row is None:
                return ""
            text = f"{100 * row['value']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})"
            text += f", F1 {100 * row['macro_f1']:.1f}" if "macro_f1" in row else ""
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
        titles = {"all": "All labels", "none": "No labels: three wordings of the names of classes"}
        title = titles.get(labels, f"{labels} labels a class")
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
    all_sets = [*SETS, *(name + SKEWED for name in SETS if name != "ecthr")]
    add("--sets", nargs="+", choices=all_sets, default=all_sets)
    add("--labels", nargs="+", choices=LABELS, default=LABELS, help="a class")
    add("--methods", nargs="+", choices=list(NAMES), default=list(NAMES)[:-1], help="SetFit has to be named")
    add("--work_dir", type=Path, default=Path("outputs/classifier_study"))
    add("--output", type=Path, default=Path("benchmarks/results/classifier.json"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.work_dir.mkdir(parents=True, exist_ok=True)
    metrics = {name: "micro-F1" if name == "ecthr" else "accuracy" for name in SETS}
    metrics |= {name + SKEWED: "accuracy" for name, metric in metrics.items() if metric == "accuracy"}
    for name in options.sets:
        split = labelled(name.removesuffix(SKEWED), options.data_dir)
        wordings = read_any_json(CLASS_NAMES).get(name.removesuffix(SKEWED))
        data = DataSet(skewed(split) if name.endswith(SKEWED) else split, options.model, wordings)
        for labels in options.labels:
            if name.endswith(SKEWED) and labels != "none" and (labels == "all" or int(labels) > MOST_SKEWED):
                continue
            for method in options.methods:
                measure(data, labels, method, options.work_dir / f"{name}-{labels}-{method}.npz")
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
