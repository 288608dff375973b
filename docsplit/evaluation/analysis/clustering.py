"""Clusters of embeddings beside the classes: k-means fitted on the training documents, assigned on the test documents.

As "Contrastive Document Representation Learning with Graph Attention Networks" (section 3.2, Table 1) does it; it
leaves open k (here the number of classes), the start (k-means++, the best of `STARTS`) and the mean of the NMI (all
three).
"""

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, v_measure_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.preprocessing import normalize

from docsplit.evaluation.results.items import ItemScores
from docsplit.evaluation.results.metrics import accuracy_items
from docsplit.evaluation.results.result import Result
from docsplit.evaluation.results.task import CLUSTERING

STARTS = 10
SVD_WIDTH = 100  # of TF-IDF
HEAD = "k-means"
_MEANS = {"nmi": "arithmetic", "nmi_sqrt": "geometric", "nmi_max": "max"}


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
    measured: dict[str, ItemScores | np.ndarray] = {
        name: np.array([normalized_mutual_info_score(labels, run, average_method=mean) for run in clusters])
        for name, mean in _MEANS.items()
    }
    measured["purity"] = purity_items(clusters, labels)
    measured["v_measure"] = np.array([v_measure_score(labels, run) for run in clusters])
    measured["ari"] = np.array([adjusted_rand_score(labels, run) for run in clusters])
    return measured


def cluster(
    train: np.ndarray, test: np.ndarray, num_clusters: int, num_seeds: int, seed: int = 0
) -> tuple[np.ndarray, float]:
    """Clusters (R, M) of the test documents in R runs, and the seconds that a run took.

    Raises:
        ValueError: if there are fewer training documents than clusters.
    """
    if len(train) < num_clusters:
        raise ValueError(f"{len(train)} training documents cannot make {num_clusters} clusters.")
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


def check_labels(train: np.ndarray, test: np.ndarray) -> None:
    """Refuse labels that clusters cannot be compared with.

    Raises:
        ValueError: if no test document has exactly one label, or those of the training documents are fewer than two.
    """
    classes, tested = len(np.unique(one_label(train)[1])), len(one_label(test)[1])
    if classes < 2 or not tested:
        raise ValueError(
            f"Clusters need documents with exactly one label: {classes} classes have some in train, and {tested} "
            "documents are such in test. Leave clustering out of --analyses."
        )


def clusterings(
    encoder: str,
    kinds: dict[str, dict[str, np.ndarray]],
    labels: dict[str, np.ndarray],
    info: dict[str, Any],
    num_seeds: int,
    seed: int,
    pretraining_seeds: int | None = 1,
) -> Iterator[Result]:
    """Yield a result for each kind of features, as they are and of length one.

    Args:
        kinds: of each kind (`raw`, say) train and test, (N, H).
        labels: of both parts, (N,) or multi-hot; documents with several labels or none are left out.
    """
    rows = {part: one_label(of_part) for part, of_part in labels.items()}
    for kind, features in kinds.items():
        for name, change in (
            (kind, np.asarray),
            ("normalized" if kind == "raw" else f"{kind}, normalized", normalize),
        ):
            train, test = (change(features[part][rows[part][0]]) for part in ("train", "test"))
            true = rows["test"][1]
            clusters, seconds = cluster(train, test, len(np.unique(rows["train"][1])), num_seeds, seed)
            yield Result(
                task=CLUSTERING,
                encoder=encoder,
                head=HEAD,
                measured=cluster_measures(clusters, true),
                seconds=seconds,
                info=info | {"features": name},
                pretraining_seeds=pretraining_seeds,
            )
