"""The map fits its frame, and the line under it says how it was made."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from docsplit.explorer import map as map_module
from docsplit.explorer.map import SIDE, groups_of, map_of


@pytest.mark.parametrize(("method", "shape"), [("pca", (3, 8)), ("pca", (60, 16)), ("tsne", (30, 2))])
def test_the_map_fits_its_frame(method, shape):
    vectors = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    points, about = map_of(vectors, method)
    assert points.shape == (shape[0], 2)
    assert points.min() >= 0
    assert points.max() == SIDE
    assert len(np.unique(points, axis=0)) > 1
    share = 100 * PCA(2).fit(vectors).explained_variance_ratio_.sum()
    assert (f"two principal components, {share:.0f} % of the variance" in about) == (method == "pca")
    assert "perplexity" in about or method == "pca"


@pytest.mark.parametrize(
    ("has_open_tsne", "size", "about"),
    [(False, 9, "With openTSNE"), (False, 8, "perplexity"), (True, 9, "perplexity")],
)
def test_the_slow_tsne_is_for_few_documents(has_open_tsne, size, about, monkeypatch):
    monkeypatch.setattr(map_module, "has_open_tsne", lambda: has_open_tsne)
    monkeypatch.setattr(map_module, "LARGEST_SLOW_TSNE", 8)
    monkeypatch.setattr(map_module, "project", lambda vectors, method: (vectors[:, :2], f"{method}, perplexity 1"))
    assert about in map_of(np.eye(size, dtype=np.float32), None)[1]


TOPICS = ["harbour ship anchor", "oven bread flour", "orchard apple ladder"]


def topic_texts(size, seed=0):
    rng = np.random.default_rng(seed)
    topics = rng.integers(0, 3, size)
    texts = [f"The {TOPICS[topic]} of 1999, common{' apples' if topic == 2 and row % 3 else ''}, x{row}"
             for row, topic in enumerate(topics)]  # fmt: skip
    return texts, topics, rng


def test_groups_are_where_documents_lie_and_have_their_words():
    texts, topics, rng = topic_texts(90)
    points = topics[:, None] * 100 + rng.normal(size=(90, 2))
    groups = groups_of(points, texts)
    assert sorted(np.concatenate([group["rows"] for group in groups])) == list(range(90))
    assert [len(group["rows"]) for group in groups] == sorted((len(group["rows"]) for group in groups), reverse=True)
    for group in groups:
        assert len(set(topics[group["rows"]])) == 1
        centre = points[group["rows"]].mean(axis=0)
        distances = np.linalg.norm(points[group["rows"]] - centre, axis=1)
        assert distances[0] == distances.min()
        named = {word.removesuffix("s") for word in group["words"]}
        assert named <= set(TOPICS[topics[group["rows"][0]]].split())
    assert groups_of(np.eye(3)[:, :2] * 10, ["the", "and", "of"])[0]["words"] == []
