"""Embeddings in the plane, the same documents for all encoders (graph document model, Figures 3 and 4).

t-SNE of 50 principal components by openTSNE, with perplexity 30, a start from the principal components and a fixed
seed. The paper says none of this. Without openTSNE it is scikit-learn's t-SNE: the same method, and slower.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from scipy.spatial import KDTree
from sklearn.decomposition import PCA

from docsplit.evaluation.analysis.report import ReportSection, literal, save_figure
from docsplit.evaluation.results.report import Json

PERPLEXITY, COMPONENTS = 30, 50
PANEL = 4.6  # inches


def has_open_tsne() -> bool:
    """Whether openTSNE is installed, which is faster than scikit-learn's t-SNE."""
    return importlib.util.find_spec("openTSNE") is not None


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
    if has_open_tsne():
        import openTSNE

        points = openTSNE.TSNE(perplexity=perplexity, initialization=start, random_state=seed).fit(components)
        return np.asarray(points), f"openTSNE, perplexity {perplexity:.0f}"
    from sklearn.manifold import TSNE

    points = TSNE(perplexity=perplexity, init=start, random_state=seed).fit_transform(components)
    return points, f"scikit-learn's t-SNE, perplexity {perplexity:.0f}"


def map_analysis(
    maps: Mapping[str, tuple[np.ndarray, str]], names: Mapping[str, str], rows: np.ndarray, classes: np.ndarray,
    class_names: Sequence[str], note: str, folder: Path,
) -> tuple[Json, ReportSection]:  # fmt: skip
    """Return what analysis.json says, and figures 3 and 4 of the graph document model's paper: a panel an encoder.

    Colours and markers are by class, the number of a class stands where its documents lie.

    Args:
        maps: of `project`, by encoder, of the same documents.
        names: of encoders.
        rows: (N,) which test documents they are.
        classes: (N,) indices into the names; -1: several classes, or none.
        note: ends that of the section.
    """
    how = next(iter(maps.values()))[1]
    labelled, titles = classes >= 0, {encoder: literal(names[encoder]) for encoder in maps}
    message = "Close points are similar documents"
    if labelled.sum() > 1:
        shares = dict[str, float]()
        for encoder, (points, _) in maps.items():
            nearest = KDTree(points[labelled]).query(points[labelled], 2)[1][:, 1]
            shares[encoder] = float((classes[labelled][nearest] == classes[labelled]).mean())
            titles[encoder] += f": {100 * shares[encoder]:.0f} % beside their class"
        best = max(shares, key=lambda encoder: shares[encoder])
        message = f"{names[best]} puts {100 * shares[best]:.0f} % of the documents beside one of their class"
    columns = min(len(maps), 2)
    lines = -(-len(maps) // columns)
    present = [int(number) for number in np.unique(classes)]
    legend_columns = -(-len(present) // 20)
    size = (PANEL * columns + 1.8 * legend_columns, max(PANEL * lines, 0.24 * min(len(present), 20) + 0.4))
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.6}
    for axis in axes.flat[len(maps) :]:
        axis.axis("off")
    for axis, (encoder, (points, _)) in zip(axes.flat, maps.items()):
        numbered = list[np.ndarray]()
        for number in present:
            members = points[classes == number]
            look: dict[str, Any] = {"color": "0.7", "marker": ".", "s": 8, "label": "several classes, or none"}
            if number >= 0:  # one of twenty colours, and another marker for each further twenty classes
                color, marker = matplotlib.colormaps["tab20"](number % 20), "os^D"[number // 20 % 4]
                look = {"color": color, "marker": marker, "s": 9, "alpha": 0.8}
                look["label"] = f"{number + 1} {literal(class_names[number])}"
                middle = np.median(members, axis=0)
                if all((abs(middle - other) > 0.04 * np.ptp(points, axis=0)).any() for other in numbered):
                    numbered.append(middle)
                    axis.text(*middle, str(number + 1), fontsize=8, weight="bold", ha="center", va="center", bbox=box)
            axis.scatter(*members.T, linewidths=0, **look)
        axis.set_title(titles[encoder], fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    handles = axes[0][0].get_legend_handles_labels()
    look = {"fontsize": 8, "frameon": False, "markerscale": 2}
    figure.legend(*handles, loc="outside right center", ncols=legend_columns, **look)
    cells = [
        [names[encoder], int(row), "" if number < 0 else class_names[number], *(f"{value:.5g}" for value in point)]
        for encoder, (points, _) in maps.items()
        for row, number, point in zip(rows, classes, points)
    ]
    caption = f"{len(rows):,} test documents, {how}. Distances between groups mean little."
    header = ["encoder", "test_document", "class", "x", "y"]
    saved = save_figure(figure, folder / "map.png", message, caption, header, cells)
    notes = [f"A number stands at the median of its class, unless it would hide another.{note}"]
    points_of = {encoder: points for encoder, (points, _) in maps.items()}
    contents = {"documents": len(rows), "method": how, "note": note, "rows": rows, "points": points_of}
    return contents, ReportSection("Map", notes, figures=[saved])
