"""How embeddings lie in space: cosines, use of dimensions, hubs, clusters."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import skew
from torch import Tensor

from docsplit.evaluation.analysis.report import ReportSection, ResultsTable, with_deviation
from docsplit.evaluation.results.report import Json, encoder_names
from docsplit.runtime.vectors import unit


def embedding_geometry(embeddings: Tensor) -> dict[str, Tensor]:
    """Measure cosines, alignment and uniformity of the views of a batch, (B, 2, H) -> scalars.

    A single document has no negatives: it has no `negative_cosine` and no `uniformity`.
    """
    first, second = F.normalize(embeddings.float(), dim=-1).unbind(dim=1)  # (B, H) each
    cosines = first @ second.T  # (B, B)
    positive = cosines.diagonal().mean()
    of_positives = {
        "positive_cosine": positive,
        "alignment": 2 - 2 * positive,
    }  # mean squared distance of unit vectors
    if len(cosines) == 1:
        return of_positives

    def mean_of_negatives(values: Tensor) -> Tensor:  # by subtraction: to select them would wait for the device
        return (values.sum() - values.diagonal().sum()) / (len(values) * (len(values) - 1))

    return of_positives | {
        "negative_cosine": mean_of_negatives(cosines),
        "uniformity": mean_of_negatives((4 * cosines - 4).exp()).log(),
    }


def spread(vectors: np.ndarray) -> dict[str, float]:
    """Measure on unit vectors whether embeddings (N, H) of documents use their dimensions, or have collapsed.

    `dimension_std`: mean standard deviation of a dimension; 1 / sqrt(H) where nothing collapsed.
    `dimension_correlation`: mean absolute correlation of two dimensions that vary; 0 where only one does.
    `effective_rank`: see `effective_rank`; N - 1 at most.
    """
    directions = unit(vectors)
    std = directions.std(axis=0)
    standardised = (directions - directions.mean(axis=0))[:, std > 1e-7] / std[std > 1e-7]
    size = standardised.shape[1]
    correlations = np.abs(standardised.T @ standardised / len(directions))
    off_diagonal = float(correlations.sum() - correlations.trace())
    return {
        "dimension_std": float(std.mean()),
        "dimension_correlation": off_diagonal / max(size * (size - 1), 1),
        "effective_rank": effective_rank(directions),
    }


def usage(counts: np.ndarray) -> dict[str, float]:
    """Measure how evenly counts (K,) are used: `active`, the share above 0; `entropy` in nats, at most log K."""
    shares = counts[counts > 0] / counts.sum()
    return {"active": float((counts > 0).mean()), "entropy": float(-(shares * np.log(shares)).sum())}


def effective_rank(vectors: np.ndarray) -> float:
    """Exponentiate the entropy of the principal components' shares of the variance of vectors (N, H).

    It is H where all directions vary alike, and 1 where a single one does (Roy and Vetterli 2007, on the covariance).
    """
    variances = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False).astype(np.float64) ** 2
    shares = variances[variances > 0] / variances.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def hubness(neighbours: np.ndarray) -> dict[str, float]:
    """Measure whether some documents are the neighbours of very many (Radovanovic et al. 2010).

    N_k counts the documents that have a document among their k nearest; its mean is k. `hubness` is the skewness of
    N_k (0 without hubs), `largest_hub` its maximum over k, `antihubs` the share of documents that are nobody's
    neighbours.

    Args:
        neighbours: (N, k) rows of the nearest others of each document.
    """
    counts = np.bincount(neighbours.ravel(), minlength=len(neighbours))
    return {
        "hubness": float(skew(counts)) if np.ptp(counts) else 0.0,
        "largest_hub": float(counts.max() / neighbours.shape[1]),
        "antihubs": float((counts == 0).mean()),
    }


def mean_cosine(vectors: np.ndarray) -> float:
    """Average the cosine over all pairs of vectors (N, H): near 1 where all point the same way."""
    directions = unit(vectors)
    total = np.square(directions.sum(axis=0, dtype=np.float64)).sum() - np.square(directions, dtype=np.float64).sum()
    return float(total / (len(directions) * (len(directions) - 1)))


def geometry(documents: np.ndarray, halves: np.ndarray, neighbours: np.ndarray) -> dict[str, float]:
    """Measure how documents lie in space: alignment and uniformity, use of the dimensions, hubs.

    Args:
        documents: (N, H).
        halves: (B, 2, H), the two halves of documents, as `embedding_geometry` takes them; two documents or more.
        neighbours: (N, k) as `hubness` takes them.
    """
    of_halves = embedding_geometry(torch.from_numpy(halves))
    width, measured = documents.shape[1], spread(documents) | hubness(neighbours)
    measured["dimension_std"] *= width**0.5
    measured |= {name: float(of_halves[name]) for name in ("alignment", "uniformity")}
    return measured | {"mean_cosine": mean_cosine(documents), "width": float(width)}


def geometry_analysis(
    rows: Sequence[Json], num_documents: int, num_halved: int, num_neighbours: int
) -> tuple[Json, ReportSection]:
    """Return what analysis.json says of how the embeddings lie in space, and its table.

    Args:
        rows: of each encoder, of `docsplit.evaluation.analysis.report.mean_row`.
    """
    about = {"documents": num_documents, "halved": num_halved, "neighbours": num_neighbours}
    names = encoder_names({row["encoder"]: row["members"] for row in rows})
    columns = {"alignment": "alignment of halves", "uniformity": "uniformity", "mean_cosine": "mean cosine",
               "effective_rank": "effective rank", "width": "width", "dimension_std": "deviation x sqrt(width)",
               "dimension_correlation": "correlation of dimensions", "hubness": "hubness",
               "largest_hub": "largest hub", "antihubs": "antihubs"}  # fmt: skip
    cells = [[names[row["encoder"]], *(with_deviation(row, name, 0 if name == "width" else 3) for name in columns)]
             for row in rows]  # fmt: skip
    note = f"{num_documents:,} test documents; random halves of {num_halved:,} of them; the {num_neighbours} nearest."
    return {"rows": rows, **about}, ReportSection(
        "Geometry", [note], [ResultsTable(["encoder", *columns.values()], cells)]
    )
