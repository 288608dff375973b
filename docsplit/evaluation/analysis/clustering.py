"""Clusters of embeddings beside the classes: k-means fitted on the training documents, assigned on the test documents.

As "Contrastive Document Representation Learning with Graph Attention Networks" (section 3.2, Table 1) does it; it
leaves open k (here the number of classes), the start (k-means++, the best of `STARTS`) and the mean of the NMI (all
three).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, v_measure_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.preprocessing import normalize

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.analysis.report import ReportSection
from docsplit.evaluation.results.bootstrap import ItemScores, accuracy_items
from docsplit.evaluation.results.report import Json, comparisons, difference_table, names_of, rows, table_of
from docsplit.evaluation.results.result import CLUSTERING, Facts, Result

STARTS = 10
SVD_WIDTH = 100  # of TF-IDF


def tfidf_svd(parts: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """TF-IDF features (N, V) of each part as (N, `SVD_WIDTH`): latent semantic analysis, fitted on train."""
    if parts["train"].shape[1] == 1:  # which scikit-learn does not reduce
        return {name: part.toarray().astype(np.float32) for name, part in parts.items()}
    width = max(min(SVD_WIDTH, min(parts["train"].shape) - 1), 1)
    svd = TruncatedSVD(width, random_state=seed).fit(parts["train"])
    return {name: svd.transform(part).astype(np.float32) for name, part in parts.items()}


def purity_items(clusters: np.ndarray, labels: np.ndarray) -> ItemScores:
    """1 for each document of the most frequent class of its cluster: their mean is the purity (Manning et al. 2008).

    Args:
        clusters: (R, M) of R runs.
        labels: (M,).
    """
    majority = []
    for run in clusters:
        _, numbers = np.unique(run, return_inverse=True)
        majority.append(np.unique(labels)[contingency_matrix(labels, run).argmax(axis=0)][numbers])
    return accuracy_items(np.stack(majority), labels)


def cluster_measures(clusters: np.ndarray, labels: np.ndarray) -> dict[str, ItemScores | np.ndarray]:
    """NMI with arithmetic, geometric and largest mean, purity, V-measure, adjusted Rand index of R runs, (R, M)."""
    of_runs: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
        name: partial(normalized_mutual_info_score, average_method=mean)
        for name, mean in {"nmi": "arithmetic", "nmi_sqrt": "geometric", "nmi_max": "max"}.items()
    }
    of_runs |= {"v_measure": v_measure_score, "ari": adjusted_rand_score}
    measured = {name: np.array([measure(labels, run) for run in clusters]) for name, measure in of_runs.items()}
    return measured | {"purity": purity_items(clusters, labels)}


def cluster(
    train: np.ndarray, test: np.ndarray, num_clusters: int, num_seeds: int, seed: int = 0
) -> tuple[np.ndarray, float]:
    """Clusters (R, M) of the test documents in R runs, and the seconds that a run took."""
    start, runs = perf_counter(), []
    for number in range(num_seeds):
        runs.append(KMeans(num_clusters, n_init=STARTS, random_state=seed + number).fit(train).predict(test))
    return np.stack(runs), (perf_counter() - start) / num_seeds


def one_label(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the documents with exactly one label, all where labels are (N,), and their classes."""
    if labels.ndim == 1:
        return np.arange(len(labels)), labels
    rows = np.flatnonzero(labels.sum(axis=1) == 1)
    return rows, labels[rows].argmax(axis=1)


def clusterings(
    name: str, kinds: Mapping[str, Mapping[str, np.ndarray]], split: LabelledSplit, num_seeds: int, seed: int,
    info: Facts, pretraining_seeds: int | None = 1,
) -> list[Result]:  # fmt: skip
    """Return a result for each kind of features, as they are and of length one.

    Args:
        kinds: of each kind (`raw`, say) train and test, (N, H); documents with several labels or none are left out.
        num_seeds, seed: of k-means.
        info: what a row says of the encoder.
    """
    (train_rows, train_labels), (test_rows, labels) = one_label(split.train_labels), one_label(split.test_labels)
    results = []
    for kind, features in kinds.items():
        as_one = "normalized" if kind == "raw" else f"{kind}, normalized"
        for title, change in ((kind, np.asarray), (as_one, normalize)):
            train, test = change(features["train"][train_rows]), change(features["test"][test_rows])
            clusters, seconds = cluster(train, test, len(np.unique(train_labels)), num_seeds, seed)
            about: Facts = {"encoder": name, "head": "k-means", "info": info | {"features": title}, "seconds": seconds}
            measured = cluster_measures(clusters, labels)
            results.append(Result(task=CLUSTERING, measured=measured, pretraining_seeds=pretraining_seeds, **about))
    return results


def clustering_analysis(results: Sequence[Result], split: LabelledSplit) -> tuple[Json, ReportSection]:
    """Return what analysis.json says, and Table 1 of the graph document model's paper with every mean of the NMI."""
    frame, compared = rows(results), comparisons(results)
    train, test = (one_label(labels)[1] for labels in (split.train_labels, split.test_labels))
    left_out = len(split.train_texts) + len(split.test_texts) - len(train) - len(test)
    left_out_text = f" Left out: {left_out:,} documents with several labels or none." if left_out else ""
    largest = float(np.bincount(test).max() / len(test))
    contents = {"rows": frame, "comparisons": compared, "train_documents": len(train), "test_documents": len(test)}
    contents |= {"clusters": len(np.unique(train)), "largest_class": largest, "left_out": left_out_text}
    tables = [replace(table_of(frame, CLUSTERING), title="Percent; ± is over seeds of k-means or of pretraining.")]
    tables.append(replace(difference_table(compared, CLUSTERING, names_of(frame)), title="Paired tests, in points."))
    notes = [
        f"k-means of {len(train):,} training documents, {len(np.unique(train))} clusters, to which {len(test):,} test "
        f"documents are assigned.{left_out_text} No purity is below {largest:.3f}, the share of the largest class.",
        CLUSTERING.note,
    ]
    return contents, ReportSection("Clusters", notes, tables)
