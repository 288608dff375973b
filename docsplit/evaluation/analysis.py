"""What embeddings look like: their geometry, and a map of them."""

import numpy as np
import torch.nn.functional as F
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor


def embedding_geometry(embeddings: Tensor) -> dict[str, Tensor]:
    """Cosines, alignment and uniformity of the views of a batch, (B, 2, H) -> scalars.

    With one document there are no negatives: `negative_cosine` and `uniformity` are nan then.
    """
    first, second = F.normalize(embeddings.float(), dim=-1).unbind(dim=1)  # (B, H) each
    cosines = first @ second.T  # (B, B)
    positive = cosines.diagonal().mean()

    def mean_of_negatives(values: Tensor) -> Tensor:  # by subtraction: to select them would wait for the device
        return (values.sum() - values.diagonal().sum()) / (len(values) * (len(values) - 1))

    return {
        "positive_cosine": positive,
        "negative_cosine": mean_of_negatives(cosines),
        "alignment": 2 - 2 * positive,  # mean squared distance of unit vectors
        "uniformity": mean_of_negatives((4 * cosines - 4).exp()).log(),
    }


def map_of(embeddings: np.ndarray, method: str) -> tuple[np.ndarray, str]:
    """Points (N, 2) with whole numbers from 0 to 1000, and what the page says of them."""
    start = PCA(min(50, *embeddings.shape), random_state=0).fit(embeddings)
    points = start.transform(embeddings)
    about = f"Two principal components, {start.explained_variance_ratio_[:2].sum():.0%} of the variance."
    if method == "tsne":
        perplexity = min(30, (len(points) - 1) / 3)
        points = TSNE(perplexity=perplexity, init="pca", random_state=0, n_jobs=-1).fit_transform(points)
        about = (
            f"t-SNE, perplexity {perplexity:.0f}: who is near to whom means something, how far apart groups are not."
        )
    points = points[:, :2] if points.shape[1] > 1 else np.pad(points, ((0, 0), (0, 1)))
    low, high = points.min(axis=0), points.max(axis=0)
    scaled = (points - (low + high) / 2) / max(float((high - low).max()), 1e-9) * 1000 + 500
    return scaled.round().astype(int), f"{about} Click, drag, scroll; double click for all."
