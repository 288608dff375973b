"""Vectors as points on the map of a page, and the line that says how they got there."""

import numpy as np

from docsplit.evaluation.analysis.maps import has_open_tsne, project

SIDE = 10_000  # of the square that holds all points
LARGEST_SLOW_TSNE = 5000  # documents: scikit-learn's takes more than ten minutes for 20,000


def default_method(num_documents: int) -> str:
    """Choose t-SNE where it takes minutes at most, else principal components."""
    return "tsne" if has_open_tsne() or num_documents <= LARGEST_SLOW_TSNE else "pca"


def map_of(vectors: np.ndarray, method: str | None) -> tuple[np.ndarray, str]:
    """Project vectors to points (N, 2) of whole numbers from 0 to `SIDE`, and write the line under the map.

    Args:
        vectors: (N, H), of three documents or more.
        method: `tsne` or `pca`; None: `default_method`.
    """
    chosen = method or default_method(len(vectors))
    points, how = project(vectors, chosen)
    low, high = points.min(axis=0), points.max(axis=0)
    scaled = (points - (low + high) / 2) / max(float((high - low).max()), 1e-9) * SIDE + SIDE / 2
    if chosen == "pca":
        share = points.var(axis=0).sum() / max(float(vectors.var(axis=0).sum()), 1e-12)
        about = f"The map shows two principal components, {100 * share:.0f} % of the variance."
        if method is None:
            about += (
                f" With openTSNE installed, more than {LARGEST_SLOW_TSNE:,} documents get a map of neighbours, too."
            )
    else:
        about = f"Map by {how}: documents that lie close are alike; distances between groups say little."
    return scaled.round().astype(int), about
