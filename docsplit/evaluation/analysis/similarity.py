"""Are sentences of one document more similar than sentences of two (DocSplit's first version, A.2, Table 5)?

    inner         cosines of all pairs of sentences of a document, their mean, and the mean over documents
    inter         of pairs from two documents: two documents at random, a sentence of each at random
    same_class    the same of two documents that share a class

Cosines of an anisotropic encoder are all high, so that they do not compare across encoders: the differences
inner - inter and inner - same_class, and AUC, the probability that a same-document pair is more similar than a pair of
two (documents count alike), stand beside them. Intervals are over documents: a pair of two documents is in a set of
documents as often as the product of their numbers (which a bootstrap of pairs as items would not know).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import normalize

from docsplit.evaluation.analysis import report
from docsplit.evaluation.results.bootstrap import NUM_SAMPLES, Resampled, item_draws
from docsplit.evaluation.results.report import Json, names_of, records
from docsplit.runtime.vectors import unit

NUM_PAIRS = 100_000  # of two documents
MAX_SENTENCES = 50  # of a document
MIN_WORDS = 3  # of a sentence
BINS = 500  # of cosines, in the intervals of the AUC; its value is exact
PAIRS_AT_ONCE = 2**14  # vectors of as many pairs at a time
CHUNK_SETS = 64  # of documents
SIMILARITY_MEASURES = {
    "inner": "inner",
    "inter": "inter",
    "same_class": "inter, same class",
    "inner_minus_inter": "inner - inter",
    "inner_minus_same_class": "inner - same class",
    "auc": "AUC inner v inter",
    "auc_same_class": "AUC inner v same class",
}
AUC_OF = {"inter": "auc", "same_class": "auc_same_class"}  # of each kind of pairs


@dataclass(frozen=True)
class Sentences:
    """Distinct sentences of documents, and the pairs that every encoder is measured on."""

    texts: list[str]  # S, document after document
    documents: np.ndarray  # (S,) the document of each, ascending
    num_documents: int  # D, those without a sentence included
    inter: np.ndarray  # (P, 2) rows of sentences of two documents
    same_class: np.ndarray  # (Q, 2) of two documents that share a class; none if no two do
    counts: dict[str, int]


def choose_sentences(sentences: Sequence[Sequence[str]], classes: np.ndarray, seed: int = 0) -> Sentences:
    """Choose the sentences and draw the pairs.

    Sentences of fewer than `MIN_WORDS` words, and all but the first of those that are equal but for white space, in
    whichever document, are left out (they would have a cosine of 1) and counted; of longer documents `MAX_SENTENCES`
    are drawn.

    Args:
        sentences: of each document, D.
        classes: (D,) class indices, or (D, C) multi-hot.

    Raises:
        ValueError: if no document has two sentences, or a single one has any.
    """
    generator, seen = np.random.default_rng((seed, 6)), set[str]()
    counts = dict.fromkeys(("sentences", "short", "duplicates", "beyond_the_cap", "documents_without_pair"), 0)
    chosen: list[list[str]] = []  # of each document
    for own in sentences:
        distinct = []
        for sentence in own:
            key = " ".join(words := sentence.split())
            if len(words) < MIN_WORDS:
                counts["short"] += 1
            elif key in seen:
                counts["duplicates"] += 1
            else:
                seen.add(key)
                distinct.append(sentence)
        if len(distinct) > MAX_SENTENCES:
            counts["beyond_the_cap"] += len(distinct) - MAX_SENTENCES
            distinct = [distinct[row] for row in np.sort(generator.permutation(len(distinct))[:MAX_SENTENCES])]
        chosen.append(distinct)
    texts, sizes = list(chain.from_iterable(chosen)), np.array([len(distinct) for distinct in chosen])
    counts |= {"sentences": len(texts), "documents_without_pair": int((sizes < 2).sum())}
    if (sizes > 0).sum() < 2 or sizes.max() < 2:
        raise ValueError(
            f"There is nothing to compare: one document needs two sentences of {MIN_WORDS} or more words, and another "
            "one at least one. Leave similarity out of --analyses."
        )
    documents = np.repeat(np.arange(len(sizes)), sizes)
    return Sentences(texts, documents, len(sizes), *_draw_pairs(documents, classes, generator), counts)


def _draw_pairs(
    documents: np.ndarray, classes: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """`NUM_PAIRS` pairs (P, 2) of any two documents, and of two that share a class; each document counts alike."""
    present, starts, sizes = np.unique(documents, return_index=True, return_counts=True)

    def sentences_of(rows: np.ndarray) -> np.ndarray:  # one at random of each of these documents
        return starts[rows] + (generator.random(len(rows)) * sizes[rows]).astype(np.int64)

    first = generator.integers(len(present), size=NUM_PAIRS)
    second = (first + generator.integers(1, len(present), size=NUM_PAIRS)) % len(present)
    inter = np.stack([sentences_of(first), sentences_of(second)], axis=1)
    # Which others share a class with each document, (documents, documents)
    own = classes[present] if classes.ndim == 1 else classes[present].astype(np.float32)
    shared = own[:, None] == own if own.ndim == 1 else own @ own.T > 0
    np.fill_diagonal(shared, False)
    mates = shared.sum(axis=1)
    if not mates.any():
        return inter, np.empty((0, 2), dtype=np.int64)
    first = generator.choice(np.flatnonzero(mates), NUM_PAIRS)
    place = (generator.random(NUM_PAIRS) * mates[first]).astype(np.int64)  # which of its mates
    columns = np.nonzero(shared)[1]  # the mates of the first document, then those of the second ...
    second = columns[(np.cumsum(mates) - mates)[first] + place]
    return inter, np.stack([sentences_of(first), sentences_of(second)], axis=1)


def similarity(vectors: Any, sentences: Sentences, num_samples: int = NUM_SAMPLES) -> dict[str, Resampled]:
    """Each of `SIMILARITY_MEASURES`, those of the same class only where two documents share one.

    Args:
        vectors: (S, H) of the sentences, of any length; dense or sparse.
    """
    directions = normalize(vectors.tocsr()) if issparse(vectors) else unit(vectors)
    inner, of_documents, weights = _inner_cosines(directions, sentences)
    kinds = {"inter": sentences.inter} | ({"same_class": sentences.same_class} if len(sentences.same_class) else {})
    cosines = {kind: _cosines(directions, pairs) for kind, pairs in kinds.items()}
    quantiles = np.quantile(np.concatenate([inner, *cosines.values()]), np.linspace(0, 1, BINS + 1)[1:-1])
    edges, num_documents = np.unique(quantiles), sentences.num_documents
    inner_bins = np.zeros((num_documents, len(edges) + 1))  # weights of the inner pairs of each document
    np.add.at(inner_bins, (of_documents, edges.searchsorted(inner)), weights)
    inner_sums = np.bincount(of_documents, weights * inner, num_documents)
    present = np.bincount(of_documents, weights, num_documents)  # 1 where a document has a pair

    def of_sets(times: np.ndarray) -> dict[str, np.ndarray]:
        """Each measure in sets of documents, (N,), given how often each of these is in it, (N, D)."""
        with np.errstate(invalid="ignore"):  # a set of very few documents may have no pair
            found = {"inner": (times @ inner_sums) / (times @ present)}
            for kind, pairs in kinds.items():
                bins = edges.searchsorted(cosines[kind])
                means = _of_pairs(times, sentences.documents[pairs], cosines[kind], bins, times @ inner_bins)
                found |= dict(zip((kind, AUC_OF[kind]), means))
                found[f"inner_minus_{kind}"] = found["inner"] - found[kind]
        return found

    drawn = [of_sets(times) for times in item_draws(num_documents, num_samples)]
    values = {name: float(value[0]) for name, value in of_sets(np.ones((1, num_documents), np.float32)).items()}
    exact = dict(values)
    for kind, own in cosines.items():  # without bins
        truth, weight = np.repeat([1, 0], [len(inner), len(own)]), np.concatenate([weights, np.ones(len(own))])
        exact[AUC_OF[kind]] = float(roc_auc_score(truth, np.concatenate([inner, own]), sample_weight=weight))
    measured = {}
    for name in (name for name in SIMILARITY_MEASURES if name in values):
        samples = np.concatenate([own[name] for own in drawn])
        samples = np.where(np.isfinite(samples), samples, values[name]) + exact[name] - values[name]
        measured[name] = Resampled(np.array([exact[name]]), samples[:, None])
    return measured


def _of_pairs(
    times: np.ndarray, documents: np.ndarray, cosines: np.ndarray, bins: np.ndarray, inner: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean cosine of pairs, and AUC of inner pairs above them, in each of N sets of documents, (N,) each.

    Args:
        times: (N, D) how often each document is in a set.
        documents: (P, 2) of the pairs.
        inner: (N, B) weights of inner pairs in each bin.
    """
    num_bins, means, areas = inner.shape[1], [], []
    sums = csr_matrix((np.ones(len(bins), np.float32), (bins, np.arange(len(bins)))), shape=(num_bins, len(bins)))
    for start in range(0, len(times), CHUNK_SETS):
        own, own_inner = times[start : start + CHUNK_SETS], inner[start : start + CHUNK_SETS]
        weights = own[:, documents[:, 0]] * own[:, documents[:, 1]]  # (n, P)
        total = weights.sum(axis=1, dtype=np.float64)
        means.append(weights @ cosines / total)
        below = (sums @ weights.T).T.astype(np.float64)  # (n, B)
        beaten = np.cumsum(below, axis=1) - below / 2  # within a bin a half
        areas.append((own_inner * beaten).sum(axis=1) / own_inner.sum(axis=1) / total)
    return np.concatenate(means), np.concatenate(areas)


def _inner_cosines(unit: Any, sentences: Sentences) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for all pairs i < j of a document, cosines, the document, and 1 / the number of its pairs, (K,) each."""
    ends = np.cumsum(np.bincount(sentences.documents, minlength=sentences.num_documents))
    cosines, documents, weights = [], [], []
    for document, (start, end) in enumerate(zip([0, *ends], ends)):
        if end - start < 2:
            continue
        own = unit[start:end] @ unit[start:end].T
        own = own.toarray() if issparse(own) else own
        values = own[np.triu_indices(end - start, 1)].astype(np.float64)
        cosines.append(values)
        documents.append(np.full(len(values), document))
        weights.append(np.full(len(values), 1 / len(values)))
    return np.concatenate(cosines), np.concatenate(documents), np.concatenate(weights)


def _cosines(unit: Any, pairs: np.ndarray) -> np.ndarray:
    """(P,) of pairs (P, 2) of rows."""
    found = []
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        a, b = (unit[rows] for rows in pairs[start : start + PAIRS_AT_ONCE].T)
        found.append(np.asarray(a.multiply(b).sum(axis=1)).ravel() if issparse(a) else np.einsum("ph,ph->p", a, b))
    return np.concatenate(found).astype(np.float64)


def similarity_analysis(
    measured: Sequence[report.Estimates], sentences: Sentences, splitter: str, folder: Path
) -> tuple[Json, report.ReportSection]:
    """Return what analysis.json says, and Table 5 of DocSplit's first version, with what compares across encoders."""
    frame = report.table_rows(measured)
    compared = report.differences(measured, ("inner_minus_inter", "auc", "auc_same_class"))
    listed, names, counts = records(frame), names_of(frame), sentences.counts
    contents = {"rows": frame, "differences": compared, "documents": sentences.num_documents, "counts": counts}
    contents |= {"inter_pairs": len(sentences.inter), "same_class_pairs": len(sentences.same_class)}
    contents["splitter"] = splitter
    shown = [name for name in SIMILARITY_MEASURES if f"{name}_mean" in frame]
    cells = [[names[row["encoder"]], *(report.with_interval(row, name, 3) for name in shown)] for row in listed]
    title = f"Cosines of sentences. {report.BETWEEN}"
    table = report.ResultsTable(["encoder", *(SIMILARITY_MEASURES[name] for name in shown)], cells, title=title)
    left_out = counts["short"] + counts["duplicates"] + counts["beyond_the_cap"]
    notes = [
        f"{counts['sentences']:,} sentences of {sentences.num_documents:,} test documents ({splitter!r} splits them). "
        f"{left_out:,} are left out: short ones, exact duplicates, all beyond {MAX_SENTENCES} of a document."
    ]
    bars = {"auc": "of any two documents", "auc_same_class": "of two of one class"}
    caption = "Probability that two sentences of one document are the more similar; 95 % interval over documents."
    best = max(listed, key=lambda row: row["auc_mean"])
    told = f"best tells sentences of one document from those of two (AUC {best['auc_mean']:.2f})"
    message = f"{names[best['encoder']]} {told}"
    figure = report.plot_bars(frame, names, bars, "AUC", folder / "similarity.png", message, caption, line=0.5)
    tables = [table, report.differences_table(compared, names, SIMILARITY_MEASURES)]
    return contents, report.ReportSection("Sentences of one document and of two", notes, tables, [figure])
