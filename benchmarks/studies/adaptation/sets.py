"""The sets of the studies of adaptation and of the classifier: texts to adapt on and to embed, and a metric.

Each set has one metric, fixed before anything was measured. The texts to adapt on have no labels and no tested
document, except those of the searches: they are the collection that is searched.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks.studies.search.sets import SETS as SEARCHES
from docsplit.data.bm25 import BM25
from docsplit.data.fusion import LOWEST, WEIGHT
from docsplit.data.sets.citations import load_pair_files
from docsplit.data.sets.labelled import LabelledSplit, load_labelled, stratified_sample
from docsplit.data.sets.rankings import Retrieved
from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.evaluation.heads.base import HeadInput, head_runs
from docsplit.evaluation.heads.frozen import linear
from docsplit.evaluation.links import cosine_scores
from docsplit.evaluation.ranking import Candidates, measure_retrieved, top_of_scores
from docsplit.evaluation.results.bootstrap import micro_f1_items
from docsplit.evaluation.results.result import predictions

DRAWN = {"docstrings": "", "20newsgroups": "parquet", "banking77": "jsonl", "dbpedia": "jsonl"}  # of more documents
WHOLE = {"aan": "papers", "ecthr": "judgments"}  # small enough to be taken as they are
LIMITS = {"banking77": (3000, 1500)}  # training and test documents; of others 2,000 and 1,000
SEARCHED = ("cranfield", "docstrings", "wikipedia_titles")  # of the study of search
DEPTH = 100  # of a ranking
Rows = np.ndarray  # of test items, drawn with replacement


@dataclass
class Measured:
    """A metric as a function of test items, for the bootstrap, and numbers that have no items."""

    metric: str
    of_items: Callable[[Rows], float]
    num_items: int
    others: dict[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The value on the test items as they are."""
        return self.of_items(np.arange(self.num_items))


@dataclass
class DataSet:
    """Texts, of which some are adapted on, and a measure of vectors of all of them."""

    corpus: list[str]
    texts: list[str]
    measure: Callable[[Any], Measured]  # of features (len(texts), H), rows of length one, dense or sparse
    num_queries: int = 0  # the last texts are queries
    beside_bm25: Callable[..., Measured] | None = None  # of features: the sum of search.py; of None: BM25 alone
    labels: list[str] = field(default_factory=list)  # of the corpus


def labelled(name: str, data_dir: Path, draw: int = 0, limits: tuple[int, int] | None = None) -> LabelledSplit:
    """Load a set with labels; of court judgments validation documents are tested too.

    Args:
        limits: training and test documents; None: those of the studies.
    """
    train, test = limits or LIMITS.get(name, (2000, 1000))
    if name == "docstrings":  # the first draw is python_docs' own, others are of all its training documents
        split = load_labelled(LabelledArguments(max_train_samples=None if draw else train, max_test_samples=test))
        if not draw:
            return split
        rows = stratified_sample(split.train_labels, train, draw)
        texts = [split.train_texts[row] for row in rows]
        return replace(split, train_texts=texts, train_labels=split.train_labels[rows])
    parts = ("train", "validation", "test") if name == "ecthr" else ("train", "test")
    files: Any = {f"{part}_file": str(data_dir / name / f"{part}.{DRAWN.get(name, 'parquet')}") for part in parts}
    column, strip = "labels" if name == "ecthr" else "label", ["headers", "footers", "quotes"]
    options: Any = {"label_column": column, "strip_newsgroups": strip if name == "20newsgroups" else []}
    options |= {"max_train_samples": train, "max_test_samples": test}
    split = load_labelled(LabelledArguments(**options, **files), draw)
    if split.validation_texts and split.validation_labels is not None:
        split.test_texts = [*split.validation_texts, *split.test_texts]
        split.test_labels = np.concatenate([split.validation_labels, split.test_labels])
        split.validation_texts = split.validation_labels = None
    return split


def load(name: str, data_dir: Path, draw: int = 0) -> DataSet:
    """Return a set by its name; "search: NAME" is one of the study of search."""
    if name.startswith("search: "):
        return _searched(name.removeprefix("search: "), data_dir)
    return _papers(data_dir) if name == "aan" else _classes(labelled(name, data_dir, draw))


def _classes(split: LabelledSplit) -> DataSet:
    """Measure accuracy with 5 labels a class (logistic regression, ten draws) and with all; of several labels F1."""

    def measure(features: Any) -> Measured:
        train, test = features[: len(split.train_texts)], features[len(split.train_texts) :]

        def right(chosen: np.ndarray) -> np.ndarray:
            classifier = LogisticRegression(max_iter=1000).fit(train[chosen], split.train_labels[chosen])
            return classifier.predict(test) == split.test_labels

        few = np.mean([right(draw) for draw in split.draws()], axis=0)
        others = {"accuracy": float(right(np.arange(len(split.train_labels))).mean())}
        return Measured("5shot_accuracy", lambda rows: float(few[rows].mean()), len(few), others)

    def measure_several(features: Any) -> Measured:
        runs, train = head_runs(split, None, 1, 1), len(split.train_texts)
        output = linear(HeadInput(features[:train], split.train_labels, runs, features[train:],
                                  len(split.class_names), few_shot=False))  # fmt: skip
        items = micro_f1_items(predictions(output.scores, True), split.test_labels)
        above, below = items.numerators[0], items.denominators[0]
        return Measured("micro_f1", lambda rows: float(above[rows].sum() / max(below[rows].sum(), 1)), len(above))

    texts = [*split.train_texts, *split.test_texts]
    if split.multi_label:
        return DataSet(split.train_texts, texts, measure_several)
    return DataSet(split.train_texts, texts, measure, labels=[split.class_names[k] for k in split.train_labels])


def _papers(data_dir: Path) -> DataSet:
    """Measure ROC-AUC of the cosine of linked and other papers; adapt on papers of no test pair."""
    folder = data_dir / "aan"
    pairs = load_pair_files(
        folder / "papers.parquet", *(folder / f"{n}_pairs.tsv" for n in ("train", "validation", "test"))
    )
    tested = set(pairs.test.first) | set(pairs.test.second)
    corpus = [text for row, text in enumerate(pairs.texts) if row not in tested]

    def measure(features: Any) -> Measured:
        scores, labels = cosine_scores(features, pairs.test), pairs.test.labels
        return Measured("roc_auc", lambda rows: float(roc_auc_score(labels[rows], scores[rows])), len(labels))

    return DataSet(corpus, pairs.texts, measure)


def _searched(name: str, data_dir: Path) -> DataSet:
    """Measure nDCG@10 by the cosine with the query, and by the sum with BM25; adapt on all documents."""
    ranking = SEARCHES[name].load(data_dir)
    count, index = len(ranking.documents), BM25(ranking.documents, "english")

    def figure_of(retrieved: Retrieved) -> Measured:
        values = measure_retrieved(retrieved.without(ranking.own, DEPTH), ranking)["ndcg_at_10"].numerators[0]
        return Measured("ndcg_at_10", lambda rows: float(values[rows].mean()), len(values))

    def similarities(features: Any) -> np.ndarray:
        products = features[count:] @ features[:count].T
        return products.toarray() if issparse(products) else products

    def ranked(features: Any) -> Retrieved:
        return top_of_scores(similarities(features), DEPTH + 1)

    def beside_bm25(features: Any, weight: float = WEIGHT) -> Measured:
        words = index.retrieve(ranking.queries, DEPTH + 1)
        if features is None:
            return figure_of(words)
        cosines = partial(np.take_along_axis, similarities(features), axis=1)
        both = Candidates.of(
            (ranked(features), words), cosines, partial(index.scores, ranking.queries), LOWEST["cosine"]
        )
        return figure_of(both.ranked(np.full(len(ranking.queries), weight), DEPTH + 1))

    texts = [*ranking.documents, *ranking.queries]
    measure = lambda features: figure_of(ranked(features))  # noqa: E731
    return DataSet(ranking.documents, texts, measure, len(ranking.queries), beside_bm25)
