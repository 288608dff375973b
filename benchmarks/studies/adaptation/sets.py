"""The data sets of `benchmarks.studies.adaptation.report`: texts to adapt on and to embed, and a metric.

Each set has one metric, fixed before anything was searched. The texts to adapt on have no labels and no tested
document, except Cranfield's: they are the collection that is searched.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from docsplit.data.bm25 import BM25, bm25_scores
from docsplit.data.corpora import add_text, load_corpus
from docsplit.data.sets.arguments import LabelledArguments, RankingArguments
from docsplit.data.sets.citations import load_pair_files
from docsplit.data.sets.labelled import LabelledSplit, load_labelled, stratified_sample
from docsplit.data.sets.rankings import Retrieved, load_collection
from docsplit.evaluation.heads.base import HeadInput, runs_of
from docsplit.evaluation.heads.frozen import linear
from docsplit.evaluation.links import cosine_scores
from docsplit.evaluation.ranking import Candidates, cross_validated, measure_retrieved, top_of_scores
from docsplit.evaluation.results.result import micro_f1_items, predictions

MAX_DOCUMENTS, MAX_TEST = 2000, 1000
DEPTH = 100  # of a ranking
FOLDS = 5  # of queries, where the weight of BM25 is chosen
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

    task: str
    corpus: list[str]
    texts: list[str]
    measure: Callable[[Any], Measured]  # of features (len(texts), H), rows of length one, dense or sparse
    bm25: Callable[[], Measured] | None = None
    num_queries: int = 0  # the last texts are queries
    beside_bm25: Callable[[Any], Measured] | None = None  # of features: ranked by them and by BM25


def load(name: str, data_dir: Path, max_documents: int = MAX_DOCUMENTS) -> DataSet:
    """Return a set by its name.

    Raises:
        ValueError: if there is no such set.
    """
    if name not in SETS:
        raise ValueError(f"There is no data set {name!r}, expected one of {', '.join(SETS)}.")
    return SETS[name](data_dir, max_documents)


def news(data_dir: Path, size: int, seed: int = 0) -> LabelledSplit:
    """20 Newsgroups without headers: at most so many training documents, and half as many, or 1,000, to test on."""
    files = {f"{name}_file": str(data_dir / "20newsgroups" / f"{name}.parquet") for name in ("train", "test")}
    limits = {"max_train_samples": size, "max_test_samples": min(MAX_TEST, size // 2)}
    options = LabelledArguments(strip_newsgroups=["headers", "footers", "quotes"], **files, **limits)  # type: ignore[arg-type]
    return load_labelled(options, seed)


def judgments(data_dir: Path) -> LabelledSplit:
    """Return ECtHR, which has a validation part."""
    files = {f"{n}_file": str(data_dir / "ecthr" / f"{n}.parquet") for n in ("train", "validation", "test")}
    return load_labelled(LabelledArguments(label_column="labels", **files))  # type: ignore[arg-type]


def _of_items(values: np.ndarray) -> Callable[[Rows], float]:
    return lambda rows: float(values[rows].mean())


def classes_of(split: LabelledSplit) -> DataSet:
    """Measure accuracy with 5 labels a class (logistic regression, ten draws), and with all labels."""

    def measure(features: Any) -> Measured:
        train, test = features[: len(split.train_texts)], features[len(split.train_texts) :]

        def right(chosen: np.ndarray) -> np.ndarray:
            classifier = LogisticRegression(max_iter=1000).fit(train[chosen], split.train_labels[chosen])
            return classifier.predict(test) == split.test_labels

        few = np.mean([right(draw) for draw in split.draws()], axis=0)
        others = {"accuracy": float(right(np.arange(len(split.train_labels))).mean())}
        return Measured("5shot_accuracy", _of_items(few), len(split.test_labels), others)

    return DataSet("classification", split.train_texts, [*split.train_texts, *split.test_texts], measure)


def docstrings(size: int, seed: int = 0) -> LabelledSplit:
    """Return the docstrings of python_docs, labelled by sub-package, as many as of `news`.

    Args:
        seed: 0: the training documents that python_docs itself draws; others are drawn from all.
    """
    options = LabelledArguments(max_train_samples=None if seed else size, max_test_samples=min(MAX_TEST, size // 2))
    split = load_labelled(options)
    if not seed:
        return split
    rows = stratified_sample(split.train_labels, size, seed)
    return replace(split, train_texts=[split.train_texts[row] for row in rows], train_labels=split.train_labels[rows])


def _aan(data_dir: Path, size: int) -> DataSet:
    """Measure ROC-AUC of the cosine of linked and other papers; adapt on papers of no test pair."""
    folder = data_dir / "aan"
    pairs = load_pair_files(
        folder / "papers.parquet", *(folder / f"{n}_pairs.tsv" for n in ("train", "validation", "test"))
    )
    tested = set(pairs.test.first) | set(pairs.test.second)
    corpus = [text for row, text in enumerate(pairs.texts) if row not in tested][:size]

    def figure_of(scores: np.ndarray) -> Measured:
        labels = pairs.test.labels
        return Measured("roc_auc", lambda rows: float(roc_auc_score(labels[rows], scores[rows])), len(labels))

    def measure(features: Any) -> Measured:
        return figure_of(cosine_scores(features, pairs.test))

    return DataSet("links", corpus, pairs.texts, measure, lambda: figure_of(bm25_scores(pairs.texts, pairs.test)))


def _cranfield(data_dir: Path, size: int) -> DataSet:
    return _ranking(RankingArguments(str(data_dir / "cranfield")), size)


def _python_docs_search(data_dir: Path, size: int) -> DataSet:
    """Search the sealed docstrings for the first lines that were taken out of them."""
    return _ranking(RankingArguments())


def _wikipedia_titles(data_dir: Path, size: int) -> DataSet:
    """Search articles for titles; queries are those of a hash, the other titles are not asked."""
    rows = load_corpus(str(data_dir / "wikipedia" / "train.parquet"))
    rows = add_text(rows.select(range(min(MAX_DOCUMENTS, len(rows)))), "text")
    with tempfile.TemporaryDirectory() as folder:
        articles = Path(folder) / "articles.jsonl"
        articles.write_text("".join(json.dumps({"title": row["title"], "text": row["text"]}) + "\n" for row in rows))
        return _ranking(RankingArguments(str(articles), queries="title"))


def _ranking(options: RankingArguments, size: int | None = None) -> DataSet:
    """Measure nDCG@10 of documents ranked by cosine with the query; the corpus is the collection."""
    ranking = load_collection(options)
    count = len(ranking.documents)

    def figure_of(retrieved: Retrieved) -> Measured:
        values = measure_retrieved(retrieved, ranking)["ndcg_at_10"].numerators[0]
        return Measured("ndcg_at_10", _of_items(values), len(values))

    def dense(features: Any) -> np.ndarray:
        scores = features[count:] @ features[:count].T
        return scores.toarray() if issparse(scores) else scores

    def ranked(features: Any) -> Retrieved:
        return top_of_scores(dense(features), DEPTH)

    def measure(features: Any) -> Measured:
        return figure_of(ranked(features))

    @cache
    def index() -> BM25:
        return BM25(ranking.documents)

    @cache
    def by_words() -> Retrieved:
        return index().retrieve(ranking.queries, DEPTH)

    def beside_bm25(features: Any) -> Measured:
        """Mix both by the weight that is best for the queries of the other four fifths."""
        scores = partial(np.take_along_axis, dense(features), axis=1)
        union = Candidates.of((ranked(features), by_words()), scores, partial(index().scores, ranking.queries), -1)
        folds = np.array_split(np.random.default_rng(0).permutation(len(ranking.queries)), FOLDS)
        return figure_of(union.ranked(cross_validated(union, ranking, folds, "ndcg_at_10"), DEPTH))

    texts = [*ranking.documents, *ranking.queries]
    corpus, bm25 = ranking.documents[:size], lambda: figure_of(by_words())
    return DataSet("ranking", corpus, texts, measure, bm25, len(ranking.queries), beside_bm25)


def _ecthr(data_dir: Path, size: int) -> DataSet:
    """Measure micro-F1 of the articles: logistic regression on all training documents, tested on both other parts."""
    split = judgments(data_dir)
    train, tested = len(split.train_texts), [*(split.validation_texts or []), *split.test_texts]
    parts = [split.test_labels] if split.validation_labels is None else [split.validation_labels, split.test_labels]
    labels = np.concatenate(parts)

    def measure(features: Any) -> Measured:
        runs, classes = runs_of(split, None, 1, 1), len(split.class_names)
        data = HeadInput(features[:train], split.train_labels, runs, features[train:], classes, few_shot=False)
        output = linear(data)
        items = micro_f1_items(predictions(output.scores, True), labels)
        above, below = items.numerators[0], items.denominators[0]
        return Measured("micro_f1", lambda rows: float(above[rows].sum() / max(below[rows].sum(), 1)), len(labels))

    return DataSet("multi-label", split.train_texts[:size], [*split.train_texts, *tested], measure)


def few(data: DataSet, count: int) -> DataSet:
    """Draw some documents of a corpus, which may be ordered by class; a smaller draw is part of a larger one."""
    rows = np.random.default_rng(0).permutation(len(data.corpus))[:count]
    return replace(data, corpus=[data.corpus[row] for row in rows])


Loader = Callable[[Path, int], DataSet]  # of the data's folder and the number of documents to adapt on
SETS: dict[str, Loader] = {
    "20news": lambda data_dir, size: classes_of(news(data_dir, size)),
    "python_docs": lambda data_dir, size: classes_of(docstrings(size)),
    "aan": _aan,
    "cranfield": _cranfield,
    "ecthr": _ecthr,
    "python_docs_search": _python_docs_search,
    "wikipedia_titles": _wikipedia_titles,
}


def _other_documents(name: str) -> dict[str, Loader]:
    """Return a set with other documents to adapt on: fewer, of fewer classes, drawn anew, or of another field."""
    load_set = SETS[name]

    def of_first_classes(data_dir: Path, size: int) -> DataSet:
        data = load_set(data_dir, size)  # whose corpus is ordered by class: 11 of 20, say
        return replace(data, corpus=data.corpus[:1000])

    def of_another_field(data_dir: Path, size: int) -> DataSet:
        return replace(load_set(data_dir, size), corpus=_aan(data_dir, size).corpus)

    def of_draw(seed: int) -> Loader:
        if name == "20news":
            return lambda data_dir, size: classes_of(news(data_dir, size, seed))
        return lambda data_dir, size: classes_of(docstrings(size, seed))

    def of_size(count: int) -> Loader:
        return lambda data_dir, size: few(load_set(data_dir, size), count)

    return {
        **{f"{name}, {count} documents": of_size(count) for count in (100, 300, 1000)},
        **{f"{name}, draw {seed}": of_draw(seed) for seed in (1, 2)},
        f"{name}, 1000 documents of the first classes": of_first_classes,
        f"{name}, documents of another field": of_another_field,
    }


SETS |= _other_documents("20news") | _other_documents("python_docs")
