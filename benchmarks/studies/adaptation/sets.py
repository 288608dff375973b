"""The data sets of `benchmarks.studies.adaptation.report`: texts to adapt on and to embed, and a metric.

Each set has one metric, fixed before anything was searched. The texts to adapt on have no labels and no tested
document, except Cranfield's: they are the collection that is searched.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from benchmarks.studies.ranking.step import write_collection
from docsplit.data.bm25 import BM25, bm25_scores
from docsplit.data.sets.arguments import LabelledArguments, RankingArguments
from docsplit.data.sets.citations import load_pair_files
from docsplit.data.sets.labelled import LabelledSplit, load_labelled, stratified_sample
from docsplit.data.sets.rankings import Retrieved, load_collection
from docsplit.embedding.neighbours import nearest
from docsplit.evaluation.analysis.geometry import effective_rank, kmeans_nmi
from docsplit.evaluation.heads.base import HeadInput, runs_of
from docsplit.evaluation.heads.frozen import linear
from docsplit.evaluation.links import cosine_scores
from docsplit.evaluation.ranking.fusion import cross_validated, union_of
from docsplit.evaluation.ranking.measures import measure_retrieved, top_of_scores
from docsplit.evaluation.results.result import micro_f1_items, predictions

MAX_DOCUMENTS, MAX_TEST = 2000, 1000
DEPTH = 100  # of a ranking
FOLDS = 5  # of queries, where the weight of BM25 is chosen
VALIDATION_SHARE = 0.3  # of the training documents, where something is chosen
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


def load(name: str, data_dir: Path, part: str = "test", max_documents: int = MAX_DOCUMENTS) -> DataSet:
    """Return a set by its name.

    Args:
        part: "test", or "validation": a part of the training documents, in place of the test documents.

    Raises:
        ValueError: if there is no such set, or it has no validation part here.
    """
    if name not in SETS:
        raise ValueError(f"There is no data set {name!r}, expected one of {', '.join(SETS)}.")
    if part == "validation" and name not in ("20news", "python_docs"):
        raise ValueError(f"{name} has no validation part here: search on 20news or python_docs.")
    return SETS[name](data_dir, part, max_documents)


def news(data_dir: Path, size: int, seed: int = 0) -> LabelledSplit:
    """20 Newsgroups without headers: at most so many training documents, and half as many, or 1,000, to test on."""
    files = {f"{name}_file": str(data_dir / "20newsgroups" / f"{name}.parquet") for name in ("train", "test")}
    limits = {"max_train_samples": size, "max_test_samples": min(MAX_TEST, size // 2)}
    options = LabelledArguments(strip_newsgroup_headers=True, **files, **limits)  # type: ignore[arg-type]
    return load_labelled(options, seed)


def judgments(data_dir: Path) -> LabelledSplit:
    """Return ECtHR, which has a validation part."""
    files = {f"{n}_file": str(data_dir / "ecthr" / f"{n}.parquet") for n in ("train", "validation", "test")}
    return load_labelled(LabelledArguments(label_column="labels", **files))  # type: ignore[arg-type]


def with_validation(split: LabelledSplit) -> LabelledSplit:
    """Return the split itself if it has a validation part, else one whose validation part is taken from its train
    part.
    """
    if split.validation_texts is not None:
        return split
    texts, labels = split.train_texts, split.train_labels
    train, held_out = train_test_split(
        np.arange(len(texts)), test_size=VALIDATION_SHARE, stratify=labels, random_state=0
    )
    parts = {"train": train, "validation": held_out}
    return replace(
        split,
        **{f"{name}_texts": [texts[row] for row in rows] for name, rows in parts.items()},  # type: ignore[arg-type]
        **{f"{name}_labels": labels[rows] for name, rows in parts.items()},
    )


def _of_items(values: np.ndarray) -> Callable[[Rows], float]:
    return lambda rows: float(values[rows].mean())


def classes_of(split: LabelledSplit, part: str) -> DataSet:
    """Measure accuracy with 5 labels a class (logistic regression, ten draws) and all labels; clusters; neighbours."""
    texts = split.train_texts
    if part == "validation":
        split = with_validation(split)
        assert split.validation_texts is not None
        assert split.validation_labels is not None
        split = replace(split, test_texts=split.validation_texts, test_labels=split.validation_labels)

    def measure(features: Any) -> Measured:
        train, test = features[: len(split.train_texts)], features[len(split.train_texts) :]

        def right(chosen: np.ndarray) -> np.ndarray:
            classifier = LogisticRegression(max_iter=1000).fit(train[chosen], split.train_labels[chosen])
            return classifier.predict(test) == split.test_labels

        few = np.mean([right(draw) for draw in split.draws()], axis=0)
        others = {"accuracy": float(right(np.arange(len(split.train_labels))).mean())}
        if not issparse(test):
            others |= {"kmeans_nmi": kmeans_nmi(test, split.test_labels), **_geometry(test)}
            labels = split.test_labels
            others |= {"neighbour_purity": float((labels[nearest(test, 10)[0]] == labels[:, None]).mean())}
        return Measured("5shot_accuracy", _of_items(few), len(split.test_labels), others)

    return DataSet("classification", texts, [*split.train_texts, *split.test_texts], measure)


def _geometry(vectors: np.ndarray) -> dict[str, float]:
    """Return mean cosine, uniformity (Wang and Isola 2020, equation 2) and effective rank of unit vectors (N, H)."""
    vectors = vectors[:1000]
    cosines = (vectors @ vectors.T)[~np.eye(len(vectors), dtype=bool)].astype(np.float64)
    return {
        "mean_cosine": float(cosines.mean()),
        "uniformity": float(np.log(np.exp(4 * cosines - 4).mean())),
        "effective_rank": effective_rank(vectors),
    }


def _20news(data_dir: Path, part: str, size: int) -> DataSet:
    return classes_of(news(data_dir, size), part)


def _python_docs(data_dir: Path, part: str, size: int) -> DataSet:
    return classes_of(docstrings(size), part)


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


def _aan(data_dir: Path, part: str, size: int) -> DataSet:
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
        measured = figure_of(cosine_scores(features, pairs.test))
        measured.others |= {} if issparse(features) else _geometry(features)
        return measured

    return DataSet("links", corpus, pairs.texts, measure, lambda: figure_of(bm25_scores(pairs.texts, pairs.test)))


def _cranfield(data_dir: Path, part: str, size: int) -> DataSet:
    return _ranking(RankingArguments(str(data_dir / "cranfield")), size)


def _python_docs_search(data_dir: Path, part: str, size: int) -> DataSet:
    """Search the sealed docstrings for the first lines that were taken out of them."""
    return _ranking(RankingArguments())


def _wikipedia_titles(data_dir: Path, part: str, size: int) -> DataSet:
    """Search articles for titles; queries are those of a hash, the other titles are not asked."""
    with tempfile.TemporaryDirectory() as folder:
        articles = Path(folder) / "articles.jsonl"
        write_collection(str(data_dir / "wikipedia" / "train.parquet"), MAX_DOCUMENTS, articles)
        return _ranking(RankingArguments(str(articles), queries="title"))


def _ranking(options: RankingArguments, size: int | None = None) -> DataSet:
    """Measure nDCG@10 of documents ranked by cosine with the query; the corpus is the collection."""
    ranking = load_collection(options)
    count = len(ranking.documents)

    def figure_of(retrieved: Retrieved) -> Measured:
        values = measure_retrieved(retrieved, ranking)["ndcg_at_10"].numerators[0]
        return Measured("ndcg_at_10", _of_items(values), len(values))

    def ranked(features: Any) -> Retrieved:
        scores = features[count:] @ features[:count].T
        return top_of_scores(scores.toarray() if issparse(scores) else scores, DEPTH)

    def measure(features: Any) -> Measured:
        measured = figure_of(ranked(features))
        measured.others |= {} if issparse(features) else _geometry(features[:count])
        return measured

    @cache
    def by_words() -> Retrieved:
        return BM25(ranking.documents).retrieve(ranking.queries, DEPTH)

    def beside_bm25(features: Any) -> Measured:
        """Mix both by the weight that is best for the queries of the other four fifths."""
        union = union_of(ranked(features), by_words())
        folds = np.array_split(np.random.default_rng(0).permutation(len(ranking.queries)), FOLDS)
        return figure_of(union.ranked(cross_validated(union, ranking, folds, "ndcg_at_10"), DEPTH))

    texts = [*ranking.documents, *ranking.queries]
    corpus, bm25 = ranking.documents[:size], lambda: figure_of(by_words())
    return DataSet("ranking", corpus, texts, measure, bm25, len(ranking.queries), beside_bm25)


def _ecthr(data_dir: Path, part: str, size: int) -> DataSet:
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
        others = {} if issparse(features) else _geometry(features)
        return Measured(
            "micro_f1", lambda rows: float(above[rows].sum() / max(below[rows].sum(), 1)), len(labels), others
        )

    return DataSet("multi-label", split.train_texts[:size], [*split.train_texts, *tested], measure)


SETS = {
    "20news": _20news,
    "python_docs": _python_docs,
    "aan": _aan,
    "cranfield": _cranfield,
    "ecthr": _ecthr,
}
SEARCH_SETS = {  # of words alone
    "python_docs_search": _python_docs_search,
    "wikipedia_titles": _wikipedia_titles,
}
