"""The map of a page: vectors as points, and groups of documents on it, each named by the words that set it apart."""

from collections.abc import Sequence

import numpy as np
from sklearn.cluster import KMeans

from docsplit.data.group_names import name_groups_of_texts
from docsplit.evaluation.analysis.maps import has_open_tsne, project

SIDE = 10_000  # of the square that holds all points
LARGEST_SLOW_TSNE = 5000  # documents: scikit-learn's takes more than ten minutes for 20,000
MOST_GROUPS = 40


def map_of(vectors: np.ndarray, method: str | None) -> tuple[np.ndarray, str]:
    """Project vectors to points (N, 2) of whole numbers from 0 to `SIDE`, and write the line under the map.

    Args:
        vectors: (N, H), of three documents or more.
        method: `tsne` or `pca`; None: t-SNE where it takes minutes at most, else principal components.
    """
    is_soon = len(vectors) <= LARGEST_SLOW_TSNE or has_open_tsne()
    chosen = method or ("tsne" if is_soon else "pca")
    points, how = project(vectors, chosen)
    low, high = points.min(axis=0), points.max(axis=0)
    scaled = (points - (low + high) / 2) / max(float((high - low).max()), 1e-9) * SIDE + SIDE / 2
    if chosen == "pca":
        share = points.var(axis=0).sum() / max(float(vectors.var(axis=0).sum()), 1e-12)
        about = f"The map shows two principal components, {100 * share:.0f} % of the variance."
        if method is None:
            about += f" With openTSNE installed, {LARGEST_SLOW_TSNE:,} documents and more get a map of neighbours."
    else:
        about = f"Map by {how}: documents that lie close are alike; distances between groups say little."
    return scaled.round().astype(int), about


def groups_of(points: np.ndarray, texts: Sequence[str]) -> list[dict[str, list]]:
    """Group documents by k-means of their points (N, 2) on the map; the largest group comes first.

    There are 2/3 of the square root of N groups, at least 3 and at most `MOST_GROUPS`. `docsplit.data.group_names`
    says how words are chosen.

    Returns: of each group `words`, three at most that name it, and `rows`, its documents, the nearest to the centre
        first. Where nothing sets a group apart, it has no words.
    """
    count = int(np.clip(round(np.sqrt(len(texts)) / 1.5), min(3, len(texts)), MOST_GROUPS))
    means = KMeans(min(count, len(np.unique(points, axis=0))), n_init=4, random_state=0).fit(points)
    groups = []
    for number, words in enumerate(name_groups_of_texts(texts, means.labels_, means.n_clusters)):
        rows = np.flatnonzero(means.labels_ == number)
        distances = np.linalg.norm(points[rows] - means.cluster_centers_[number], axis=1)
        groups.append({"words": words[:3], "rows": rows[distances.argsort(kind="stable")].tolist()})
    return sorted(groups, key=lambda group: -len(group["rows"]))
