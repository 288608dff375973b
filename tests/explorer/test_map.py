"""The map fits its frame, and the line under it says how it was made."""

import numpy as np
import pytest

from docsplit.explorer import map as map_module
from docsplit.explorer.map import SIDE, default_method, map_of


@pytest.mark.parametrize("method", ["pca", "tsne"])
@pytest.mark.parametrize("shape", [(3, 8), (30, 2), (60, 16)])
def test_the_map_fits_its_frame(method, shape):
    points, about = map_of(np.random.default_rng(0).normal(size=shape).astype(np.float32), method)
    assert points.shape == (shape[0], 2)
    assert points.min() >= 0
    assert points.max() == SIDE
    assert len(np.unique(points, axis=0)) > 1
    assert ("principal components" in about) == (method == "pca")
    assert "perplexity" in about or method == "pca"


def test_the_slow_tsne_is_for_few_documents(monkeypatch):
    monkeypatch.setattr(map_module, "is_installed", lambda method: False)
    assert [default_method(size) for size in (20, 5000, 5001)] == ["tsne", "tsne", "pca"]
    monkeypatch.setattr(map_module, "LARGEST_SLOW_TSNE", 3)
    _, about = map_of(np.eye(8, dtype=np.float32), None)
    assert "openTSNE" in about
    monkeypatch.setattr(map_module, "is_installed", lambda method: True)
    assert default_method(20_000) == "tsne"
