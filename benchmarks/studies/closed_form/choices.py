"""Choose how the closed form is made, once, on validation documents that are parts of training documents.

    python -m benchmarks.studies.closed_form.choices --data_dir DIR

DIR has the folder 20newsgroups; docstrings are built in. What decides was written down before anything was run:

- Data: posts and docstrings, five draws of 2,000 training documents each. 1,400 of a draw are what is fitted on, and
  what labels are drawn from; 600 are validation documents. No test document is read.
- Measure: accuracy with 5 labels a class, logistic regression (C 10), five draws of labels; the mean of both sets.
- Each method takes the setting with the highest mean; of those within `LEVEL` of it the narrowest, of these the best.
  LSA has its weight of singular values chosen at 128 and at 500 dimensions too.
- Halves of words are taken if they are within `NEAR` of halves of sentences, each with its own setting.

Each draw leaves a file in --work_dir, so that running again goes on.
"""

import argparse
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.feature_extraction.text import CountVectorizer

from benchmarks.studies.adaptation.sets import labelled
from docsplit.data.segmentation import clean_text, split_sentences
from docsplit.data.sets.labelled import SHOTS, LabelledSplit, stratified_sample
from docsplit.data.views import docsplit
from docsplit.data.words import whole_words
from docsplit.embedding.closed_form import DRAWS, agreeing, basis_of, halves_of_words, moments
from docsplit.embedding.lexical_ridge import tfidf
from docsplit.evaluation.heads.logistic import fit_head, in_row_space
from docsplit.runtime.files import read_any_json, write_text
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

SETS, CORPORA, FITTED, LABEL_DRAWS = ("20newsgroups", "docstrings"), 5, 1400, 5
LEVEL, NEAR = 0.002, 0.005  # of accuracy
RIDGES, POWERS, WIDTHS = (0.3, 1.0, 3.0, 10.0, 30.0), (0.5, 1.0, 1.5), (128, 250, 500, 1000)
WEIGHTS = (0.0, 0.5, 1.0)  # powers of the singular values that LSA's dimensions are weighted by
HALVES = ("words", "sentences", "none")
OUTPUT = Path("benchmarks/results/closed_form_choices.json")


class Features:
    """Features of training and other documents: fitted on the training documents, without labels."""

    def __init__(self, train: list[str], others: list[str]):
        self.sentences = [[whole_words(sentence) for sentence in split_sentences(clean_text(text))] for text in train]
        self.counter = CountVectorizer(analyzer=whole_words, dtype=np.float32)
        self.counts = self.counter.fit_transform(train)
        self.tfidf, self.tokens, self.weigher = tfidf(self.counts)
        self.other_tfidf = self.weigher.transform(self.counter.transform(others)[:, self.tokens])
        self.basis = basis_of(self.tfidf)
        self.rows, self.other_rows = self.tfidf @ self.basis, self.other_tfidf @ self.basis
        self.mean = self.rows.mean(axis=0)
        self.moments: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.solved: dict[tuple[str, float], tuple[np.ndarray, np.ndarray]] = {}

    def halves(self, of: str) -> Iterator[list[np.ndarray]]:
        """Yield the rows of two halves of each document: of its words, or of its sentences where it has two."""
        if of == "none":
            yield [self.rows, self.rows]
            return
        counts = self.counts[:, self.tokens]
        for draw in range(DRAWS):
            generator = np.random.default_rng((0, draw, 0))
            if of == "words":
                pairs = halves_of_words(counts[np.asarray(counts.sum(axis=1)).ravel() >= 2], generator)
            else:
                drawn = [self._half(sentences, generator) for sentences in self.sentences]
                counter = CountVectorizer(analyzer=list, vocabulary=self.counter.vocabulary_, dtype=np.float32)
                first, second = zip(*filter(None, drawn))
                pairs = tuple(counter.transform(half)[:, self.tokens] for half in (first, second))
            yield [self.weigher.transform(half) @ self.basis for half in pairs]

    @staticmethod
    def _half(sentences: list[list[str]], generator: np.random.Generator) -> tuple[list[str], list[str]] | None:
        words = np.array([word for sentence in sentences for word in sentence], dtype=object)
        lengths = np.array([len(sentence) for sentence in sentences if sentence])
        if len(words) < 2:
            return None
        first, second = docsplit(lengths if len(lengths) > 1 else np.ones(len(words), dtype=int), generator)
        return list(words[first]), list(words[second])

    def directions(self, halves: str, ridge: float) -> tuple[np.ndarray, np.ndarray]:
        """Return w and Q; without halves a document is both of its halves."""
        if halves not in self.moments:
            self.moments[halves] = moments(self.halves(halves))
        if (halves, ridge) not in self.solved:
            self.solved[halves, ridge] = agreeing(*self.moments[halves], ridge)
        return self.solved[halves, ridge]

    def closed_form(self, halves: str, ridge: float, power: float, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return f of the training documents and of the others."""
        agreements, directions = self.directions(halves, ridge)
        table = directions[:, :width] * agreements[:width] ** power
        return unit((self.rows - self.mean) @ table), unit((self.other_rows - self.mean) @ table)

    def lsa(self, weight: float, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first dimensions of latent semantic analysis, centred and weighted."""
        scale = np.linalg.norm(self.rows, axis=0)[:width] ** (weight - 1)
        rows, others = ((rows - self.mean)[:, :width] * scale for rows in (self.rows, self.other_rows))
        return unit(rows), unit(others)


def right(features: tuple[Any, Any], split: LabelledSplit, draws: list[np.ndarray]) -> np.ndarray:
    """Return which test documents a head finds, of each draw of labels, (R, M) float32."""
    train, test = features
    found = []
    for draw in draws:
        few, others = train[draw], test
        if issparse(few):
            few, others = in_row_space(few, others)
        elif few.shape[0] < few.shape[1]:  # a rotation into the space of the labelled, which the penalty does not feel
            rotation = np.linalg.qr(few.T)[0]
            few, others = few @ rotation, others @ rotation
        coefficients, intercepts = fit_head(few, split.train_labels[draw], len(split.class_names))
        found.append((others @ coefficients + intercepts).argmax(axis=1) == split.test_labels)
    return np.array(found, dtype=np.float32)


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each method with each of its settings."""
    yield "tfidf", {}
    for weight, width in product(WEIGHTS, WIDTHS):
        yield "lsa", {"weight": weight, "width": width}
    for halves, ridge, power, width in product(HALVES, RIDGES, POWERS, WIDTHS):
        yield f"halves of {halves}", {"halves": halves, "ridge": ridge, "power": power, "width": width}


def features_of(features: Features, setting: dict[str, Any]) -> tuple[Any, Any]:
    """Return the features of a method, by its setting."""
    if "width" not in setting:
        return features.tfidf, features.other_tfidf
    if "weight" in setting:
        return features.lsa(setting["weight"], setting["width"])
    return features.closed_form(*(setting[key] for key in ("halves", "ridge", "power", "width")))


def validation_of(name: str, data_dir: Path, draw: int) -> LabelledSplit:
    """Divide a draw of training documents; its validation documents are the test part of what is returned."""
    split = labelled(name, data_dir, draw)
    fitted = stratified_sample(split.train_labels, FITTED, draw)
    held = np.setdiff1d(np.arange(len(split.train_texts)), fitted)
    texts = [[split.train_texts[row] for row in rows] for rows in (fitted, held)]
    labels = [split.train_labels[rows] for rows in (fitted, held)]
    return replace(split, train_texts=texts[0], train_labels=labels[0], test_texts=texts[1], test_labels=labels[1])


def measure(split: LabelledSplit) -> list[dict[str, Any]]:
    """Return the accuracy of each method with each setting."""
    features = Features(split.train_texts, split.test_texts)
    draws = split.draws(SHOTS, LABEL_DRAWS)
    return [
        {
            "method": method,
            **setting,
            "accuracy": float(right(features_of(features, setting), split, draws).mean()),
        }
        for method, setting in settings()
    ]


def chosen(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Choose for each method by the means of all sets and draws, as this page says.

    Args:
        rows: with `method`, a setting and `accuracy`.
    """

    def best(method: str, width: int | None = None) -> dict[str, Any]:
        tried = [row for row in rows if row["method"] == method and width in (None, row.get("width"))]
        level = [row for row in tried if row["accuracy"] >= max(one["accuracy"] for one in tried) - LEVEL]
        narrowest = min(row.get("width", 0) for row in level)
        return max((row for row in level if row.get("width", 0) == narrowest), key=lambda row: row["accuracy"])

    choices = {method: best(method) for method in dict.fromkeys(row["method"] for row in rows)}
    choices |= {f"lsa {width}": best("lsa", width) for width in (128, 500)}
    words, sentences = choices["halves of words"], choices["halves of sentences"]
    choices["closed form"] = words if words["accuracy"] >= sentences["accuracy"] - NEAR else sentences
    return choices


def means(parts: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the rows of all draws as one, with the mean accuracy."""
    return [{**of_one[0], "accuracy": float(np.mean([row["accuracy"] for row in of_one]))} for of_one in zip(*parts)]


def main() -> None:
    """Measure what is not there yet, and choose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Callable[..., Any] = parser.add_argument
    add("--data_dir", type=Path, required=True, help="folder with a folder of each set")
    add("--work_dir", type=Path, default=Path("outputs/closed_form_study"))
    add("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.work_dir.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in SETS}
    for draw, name in product(range(1, CORPORA + 1), SETS):
        path = options.work_dir / f"choices-{name}-{draw}.json"
        if not path.exists():
            write_text(path, json.dumps(measure(validation_of(name, options.data_dir, draw))))
        parts[name].append(read_any_json(path))
        logger.info(f"{path.stem}: done")
    of_sets = {name: means(of_set) for name, of_set in parts.items()}
    choices = chosen(means([*of_sets.values()]))
    rows = [
        {**row, "accuracy": round(row["accuracy"], 4)}
        | {name: round(of_set[place]["accuracy"], 4) for name, of_set in of_sets.items()}
        for place, row in enumerate(means([*of_sets.values()]))
    ]
    lines = ",\n".join(json.dumps(row) for row in rows)
    write_text(options.output, f'{{"chosen": {json.dumps(choices, indent=1)},\n"rows": [\n{lines}\n]}}\n')
    for method, choice in choices.items():
        logger.info(f"{method}: {choice}")


if __name__ == "__main__":
    main()
