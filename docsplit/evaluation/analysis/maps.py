"""Embeddings in the plane, the same documents for all encoders (graph document model, Figures 3 and 4).

t-SNE of 50 principal components by openTSNE, with perplexity 30, a start from the principal components and a fixed
seed. The paper says none of this. Without openTSNE it is scikit-learn's t-SNE: the same method, and slower.
"""

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from docsplit.evaluation.analysis.report import Figure, literal, save_figure

logger = logging.getLogger(__name__)

PACKAGES = {"tsne": ("openTSNE", "openTSNE"), "umap": ("umap", "umap-learn")}  # module, and what pip calls it
PERPLEXITY, COMPONENTS = 30, 50
PANEL = 4.6  # inches
MARKERS = "os^D"


def check_method(method: str) -> None:
    """Warn if t-SNE will be the slow one, and refuse UMAP where it is not installed.

    Raises:
        ValueError: naming the remedy.
    """
    if method not in PACKAGES or is_installed(method):
        return
    package = PACKAGES[method][1]
    if method == "umap":
        raise ValueError(f"--map_method umap needs UMAP: pip install {package}, or take the default, tsne.")
    logger.warning(
        f"{package} is not installed (pip install {package}): maps are scikit-learn's t-SNE, which is slower."
    )


def is_installed(method: str) -> bool:
    """Whether the package of a method is installed; for t-SNE that is openTSNE."""
    return importlib.util.find_spec(PACKAGES[method][0]) is not None


def check_size(num_documents: int) -> None:
    """Refuse a map of very few documents.

    Raises:
        ValueError: for fewer than four documents.
    """
    if num_documents < 4:
        raise ValueError(f"{num_documents} test documents are no map: give four or more, or leave map out.")


def project(vectors: np.ndarray, method: str = "tsne", seed: int = 0) -> tuple[np.ndarray, str]:
    """Project vectors (N, H) of three documents or more to points (N, 2), and say by which method."""
    width = min(COMPONENTS, *vectors.shape)
    components = PCA(width, random_state=seed).fit_transform(vectors)
    start = components[:, :2] if width > 1 else np.pad(components, ((0, 0), (0, 1)))
    if method == "pca":
        return start, "two principal components"
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    start = (start / max(float(start[:, 0].std()), 1e-12) * 1e-4).astype(np.float64)
    if method == "umap":
        import umap

        points = umap.UMAP(random_state=seed, n_neighbors=min(15, len(vectors) - 1)).fit_transform(components)
        return np.asarray(points), "UMAP"
    if is_installed("tsne"):
        import openTSNE

        points = openTSNE.TSNE(perplexity=perplexity, initialization=start, random_state=seed).fit(components)
        return np.asarray(points), f"openTSNE, perplexity {perplexity:.0f}"
    from sklearn.manifold import TSNE

    points = TSNE(perplexity=perplexity, init=start, random_state=seed).fit_transform(components)
    return points, f"scikit-learn's t-SNE, perplexity {perplexity:.0f}"


@dataclass(frozen=True)
class MappedDocuments:
    """The test documents that all maps show, and their classes."""

    rows: np.ndarray  # (N,) which test documents they are
    classes: np.ndarray  # (N,) indices into the names; -1: several classes, or none
    class_names: Sequence[str]


def plot_maps(maps: dict[str, np.ndarray], documents: MappedDocuments, path: Path, how: str) -> Figure:
    """Draw a panel for each encoder: colours and markers by class, the number of a class where its documents lie.

    Args:
        maps: points (N, 2) by encoder, of the same documents.
        how: the method, for the caption.
    """
    import matplotlib.pyplot as plt

    classes, class_names, rows = documents.classes, documents.class_names, documents.rows
    columns = min(len(maps), 3)
    lines = -(-len(maps) // columns)
    present = [int(number) for number in np.unique(classes)]
    legend_columns = -(-len(present) // 20)
    size = (PANEL * columns + 1.8 * legend_columns, max(PANEL * lines, 0.24 * min(len(present), 20) + 0.4))
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(maps) :]:
        axis.axis("off")
    for axis, (name, points) in zip(axes.flat, maps.items()):
        for number in present:
            members = points[classes == number]
            axis.scatter(*members.T, label=_label(number, class_names), **_style(number))
            if number >= 0:
                axis.text(
                    *np.median(members, axis=0), str(number + 1), fontsize=8, weight="bold", ha="center", va="center",
                    bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.6},
                )  # fmt: skip
        axis.set_title(literal(name), fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside right upper", ncols=legend_columns, fontsize=8, frameon=False, markerscale=2
    )
    cells: list[list[Any]] = [
        [name, int(row), "" if number < 0 else class_names[number], *(f"{value:.5g}" for value in point)]
        for name, points in maps.items()
        for row, number, point in zip(rows, classes, points)
    ]
    caption = (
        f"The same {len(rows):,} test documents, {how}: who is near to whom means something, how far apart groups are "
        "does not."
    )
    return save_figure(figure, path, caption, ["encoder", "test_document", "class", "x", "y"], cells)


def _label(number: int, class_names: Sequence[str]) -> str:
    return "several classes, or none" if number < 0 else f"{number + 1} {literal(class_names[number])}"


def _style(number: int) -> dict[str, Any]:
    """Choose one of twenty colours, and another marker for each further twenty classes."""
    import matplotlib

    if number < 0:
        return {"color": "0.7", "marker": ".", "s": 8, "linewidths": 0}
    color = matplotlib.colormaps["tab20"](number % 20)
    return {"color": color, "marker": MARKERS[number // 20 % len(MARKERS)], "s": 9, "linewidths": 0, "alpha": 0.8}
