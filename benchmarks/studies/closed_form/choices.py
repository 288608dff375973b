"""Choose how the closed form is made, once, on validation documents that are parts of training documents.

    python -m benchmarks.studies.closed_form.choices --data_dir DIR

DIR has the folder 20newsgroups; docstrings are built in. What decides was written down before anything was run:

- Data: posts and docstrings, three draws of 2,000 training documents each. 1,400 of a draw are what is fitted on, and
  what labels are drawn from; 600 are validation documents. No test document is read.
- Measure: accuracy with 5 labels a class, logistic regression (C 10), three draws of labels; the mean of both sets.
- Each method takes the setting with the highest mean; of those within `LEVEL` of it the narrowest, of these the best.
  LSA has its weight of singular values, its power of the idf, its form and its tokens chosen as the closed form has
  its own, and the first also at 128 and at 500 dimensions; TF-IDF its power of the idf and its tokens.
- The closed form is a mean of token vectors, unless that is more than `NEAR` below rows of dampened counts.
- Halves of tokens are taken if they are within `NEAR` of halves of sentences, each with its own setting.

Three choices came before, whose methods the report has measured on test documents too. The first had five draws, and
the idf itself on rows of dampened counts for all methods: r 1, p 1.5, 128 dimensions, 53.9 (LSA 50.7). The second had
the square of the idf too, one draw, and weights of LSA up to 1, at which its best was: r 10, p 1, 128 dimensions, 58.7
(LSA 57.2). The third had powers of the idf up to 4 and p up to 2: all methods took the third power, 59.3 (LSA 59.9),
and lost 3 to 6 points on first paragraphs by it. So there are none above the second; p 2 is level with 1.5.

Each draw leaves a file in --work_dir, so that running again goes on.
"""

import argparse
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import normalize

from benchmarks.studies.adaptation.sets import labelled
from docsplit.data.segmentation import clean_text, split_sentences
from docsplit.data.sets.labelled import SHOTS, LabelledSplit, stratified_sample
from docsplit.data.tokenization import train_pieces
from docsplit.data.views import docsplit
from docsplit.data.words import whole_words
from docsplit.embedding.closed_form import DRAWS, PIECES, agreeing, basis_of, dampened, halves_of_tokens, moments
from docsplit.embedding.lexical_ridge import count_tokens, tfidf
from docsplit.evaluation.heads.logistic import fit_head, in_row_space
from docsplit.runtime.files import read_any_json, write_text
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

SETS, CORPORA, FITTED, LABEL_DRAWS = ("20newsgroups", "docstrings"), 3, 1400, 3
LEVEL, NEAR = 0.002, 0.005  # of accuracy
RIDGES, POWERS, WIDTHS = (1.0, 3.0, 10.0, 30.0), (0.5, 1.0, 1.5), (64, 128, 250)
IDFS = (1, 2)  # powers of the idf
WEIGHTS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0)  # powers of the singular values that LSA's dimensions are weighted by
HALVES = ("tokens", "sentences", "none")
FORMS = ("mean", "dampened")  # of token vectors; unit rows of dampened counts
TOKENS = ("words", "pieces")
OUTPUT = Path("benchmarks/results/closed_form_choices.json")


class Counted:
    """Counts of tokens that two training documents have, and rows of them: fitted without labels."""

    def __init__(self, count: Callable[[list[str]], Any], train: list[str], others: list[str]):
        counts = count(train)
        _, tokens, weigher = tfidf(counts)
        self.of = lambda texts: count(texts)[:, tokens]
        self.train, self.others, self.idf = counts[:, tokens], self.of(others), weigher.idf_.astype(np.float32)

    @cache  # noqa: B019 (one of a draw)
    def basis(self, idf: int) -> np.ndarray:
        """Return V, (P, D)."""
        return basis_of(dampened(self.train, self.idf**idf))

    @cache  # noqa: B019
    def rows(self, idf: int, form: str) -> tuple[np.ndarray, np.ndarray]:
        """Return z of the training documents and of the others, (N, D), less the mean of the former."""
        rows = [
            (
                dampened(counts, self.idf**idf)
                if form == "dampened"
                else normalize(counts, "l1").multiply(self.idf**idf)
            )
            @ self.basis(idf)
            for counts in (self.train, self.others)
        ]
        return rows[0] - rows[0].mean(axis=0), rows[1] - rows[0].mean(axis=0)


class Features:
    """Features of training and other documents: fitted on the training documents, without labels."""

    def __init__(self, train: list[str], others: list[str]):
        pieces, words = train_pieces(train, PIECES), CountVectorizer(analyzer=whole_words, dtype=np.float32).fit(train)
        self.counted = {
            "words": Counted(words.transform, train, others),
            "pieces": Counted(lambda texts: count_tokens(pieces, texts), train, others),
        }
        self.sentences = [split_sentences(clean_text(text)) for text in train]

    def halves(self, of: str, idf: int) -> Iterator[list[np.ndarray]]:
        """Yield the rows of two halves of each document: of its tokens, or of its sentences where it has two."""
        counted = self.counted["pieces"]
        counts = counted.train[np.asarray(counted.train.sum(axis=1)).ravel() >= 2]
        basis, scale = counted.basis(idf), counted.idf**idf
        for draw in range(1 if of == "none" else DRAWS):
            generator = np.random.default_rng((0, draw, 0))
            if of == "none":
                pairs: Any = counts, counts
            elif of == "tokens":
                pairs = halves_of_tokens(counts, generator)
            else:
                drawn = zip(*filter(None, (self._half(sentences, generator) for sentences in self.sentences)))
                pairs = [counted.of([*half]) for half in drawn]
            yield [dampened(half, scale) @ basis for half in pairs]

    @staticmethod
    def _half(sentences: list[str], generator: np.random.Generator) -> tuple[str, str] | None:
        """Return two halves of sentences, or of words where a document has one sentence."""
        words = np.array(" ".join(sentences).split(), dtype=object)
        if len(words) < 2:
            return None
        lengths = np.array([len(sentence.split()) for sentence in sentences if sentence.split()])
        first, second = docsplit(lengths if len(lengths) > 1 else np.ones(len(words), dtype=int), generator)
        return " ".join(words[first]), " ".join(words[second])

    @cache  # noqa: B019
    def moments(self, halves: str, idf: int) -> tuple[np.ndarray, np.ndarray]:
        """Return C and B; without halves a document is both of its halves."""
        return moments(self.halves(halves, idf))

    @cache  # noqa: B019
    def directions(self, halves: str, ridge: float, idf: int) -> tuple[np.ndarray, np.ndarray]:
        """Return w and Q."""
        return agreeing(*self.moments(halves, idf), ridge)

    def closed_form(
        self, halves: str, ridge: float, power: float, width: int, idf: int, form: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return f of the training documents and of the others."""
        agreements, directions = self.directions(halves, ridge, idf)
        table = directions[:, :width] * agreements[:width] ** power
        rows, others = self.counted["pieces"].rows(idf, form)
        return unit(rows @ table), unit(others @ table)

    def lsa(self, tokens: str, weight: float, width: int, idf: int, form: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the first dimensions of latent semantic analysis, centred and weighted."""
        rows, others = self.counted[tokens].rows(idf, form)
        scale = np.maximum(np.linalg.norm(rows, axis=0)[:width], 1e-12) ** (weight - 1)
        return unit(rows[:, :width] * scale), unit(others[:, :width] * scale)

    def tfidf(self, tokens: str, idf: int) -> tuple[Any, Any]:
        """Return unit rows of dampened counts."""
        counted = self.counted[tokens]
        return dampened(counted.train, counted.idf**idf), dampened(counted.others, counted.idf**idf)


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
    for tokens, idf in product(TOKENS, IDFS):
        yield "tfidf", {"tokens": tokens, "idf": idf}
    for tokens, weight, width, idf, form in product(TOKENS, WEIGHTS, (*WIDTHS, 500), IDFS, FORMS):
        yield "lsa", {"tokens": tokens, "weight": weight, "width": width, "idf": idf, "form": form}
    for halves, ridge, power, width, idf, form in product(HALVES, RIDGES, POWERS, WIDTHS, IDFS, FORMS):
        if form == "mean":
            name = f"halves of {halves}"
        elif halves == "tokens":
            name = "dampened"
        else:
            continue
        setting = {"halves": halves, "ridge": ridge, "power": power, "width": width, "idf": idf, "form": form}
        yield name, setting


def features_of(features: Features, setting: dict[str, Any]) -> tuple[Any, Any]:
    """Return the features of a method, by its setting."""
    given = {name: value for name, value in setting.items() if name not in ("method", "accuracy")}
    if "halves" in given:
        return features.closed_form(**given)
    return features.lsa(**given) if "weight" in given else features.tfidf(**given)


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
    tokens, sentences = choices["halves of tokens"], choices["halves of sentences"]
    taken = tokens if tokens["accuracy"] >= sentences["accuracy"] - NEAR else sentences
    is_near = taken["accuracy"] >= choices["dampened"]["accuracy"] - NEAR
    return choices | {"closed form": taken if is_near else choices["dampened"]}


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
