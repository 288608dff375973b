"""Geometry of documents against loops, and their maps."""

import csv
import math
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.stats import skew

from docsplit.evaluation.analysis.geometry import geometry, hubness, spread, usage
from docsplit.evaluation.analysis.maps import map_analysis, project

GENERATOR = np.random.default_rng(0)


def neighbours_of(vectors, count):
    cosines = vectors @ vectors.T / np.outer(*[np.linalg.norm(vectors, axis=1)] * 2)
    np.fill_diagonal(cosines, -2)
    return np.argsort(-cosines, axis=1)[:, :count]


def test_hubs_against_counting():
    neighbours = neighbours_of(GENERATOR.normal(size=(50, 6)), 5)
    counts = Counter(neighbours.ravel().tolist())
    of_each = [counts[document] for document in range(50)]
    found = hubness(neighbours)
    assert found["hubness"] == pytest.approx(skew(of_each))
    assert found["largest_hub"] == pytest.approx(max(of_each) / 5)
    assert found["antihubs"] == pytest.approx(of_each.count(0) / 50)


def test_geometry_against_loops():
    vectors = np.random.default_rng(0).normal(size=(40, 5)) * [1, 1, 0.3, 2, 0]
    vectors[:, 1] += vectors[:, 0]
    vectors, halves = vectors.astype(np.float32), GENERATOR.normal(size=(20, 2, 5)).astype(np.float32)
    unit, first, second = (one / np.linalg.norm(one, axis=1)[:, None] for one in (vectors, halves[:, 0], halves[:, 1]))
    ours = spread(vectors)
    pairs = [abs(np.corrcoef(unit[:, i], unit[:, j])[0, 1]) for i in range(4) for j in range(i)]  # one is constant
    assert ours["dimension_correlation"] == pytest.approx(np.mean(pairs))
    assert ours["dimension_std"] == pytest.approx(np.mean([np.std(column) for column in unit.T]))
    shares = np.linalg.eigvalsh(np.cov(unit.T))[1:] / np.trace(np.cov(unit.T))
    assert ours["effective_rank"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-4)
    found, others = geometry(vectors, halves, neighbours_of(vectors, 10)), ~np.eye(40, dtype=bool)
    assert found["dimension_std"] == pytest.approx(5**0.5 * ours["dimension_std"])
    assert found["mean_cosine"] == pytest.approx((unit @ unit.T)[others].mean(), rel=1e-4)
    assert found["alignment"] == pytest.approx(((first - second) ** 2).sum(axis=1).mean(), rel=1e-4)
    distances = ((first[:, None] - second) ** 2).sum(axis=2)[~np.eye(20, dtype=bool)]
    assert found["uniformity"] == pytest.approx(np.log(np.exp(-2 * distances).mean()), rel=1e-4)
    collapsed = spread(np.ones((6, 4), dtype=np.float32))
    assert collapsed == pytest.approx({"dimension_std": 0, "dimension_correlation": 0, "effective_rank": 1}, abs=1e-6)
    assert usage(np.array([0, 3, 0, 3])) == pytest.approx({"active": 0.5, "entropy": math.log(2)})


GENERATOR = np.random.default_rng(0)
LABELS = np.repeat(np.arange(3), 20)
VECTORS = (5 * np.eye(3)[LABELS] @ GENERATOR.normal(size=(3, 30)) + GENERATOR.normal(size=(60, 30))).astype(np.float32)


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_neighbours_in_the_plane_are_of_one_class(method):
    points, how = project(VECTORS, method)
    assert points.shape == (60, 2)
    distances = ((points[:, None] - points) ** 2).sum(axis=2) + 1e9 * np.eye(60)
    assert (LABELS[distances.argmin(axis=1)] == LABELS).mean() > 0.9
    assert ("components" in how) == (method == "pca")
    again, _ = project(VECTORS, method)
    np.testing.assert_allclose(again, points)


def test_forty_classes_are_told_apart_and_numbered(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(plt, "close", shown.append)
    classes, rows = np.repeat(np.arange(-1, 40), 3), np.arange(123)
    names = [r"$\from $10", *(f"class {number}" for number in range(1, 40))]  # dollars are dollars, no formula
    spread = GENERATOR.normal(size=(2, 123, 2))
    made = {"a": (spread[0], "by hand"), "b$$": (spread[1] + classes[:, None], "by hand")}
    contents, section = map_analysis(made, dict(zip(made, made)), rows, classes, names, " Of one seed.", tmp_path)
    assert (contents["documents"], contents["method"]) == (123, "by hand")
    assert section.notes == ["A number stands at the median of its class, unless it would hide another. Of one seed."]
    # Who is nearest to whom, by all distances; -1 is no class
    shares, own = [], classes[3:]
    for points, _ in made.values():
        distances = np.linalg.norm(points[3:, None] - points[3:], axis=2) + np.diag(np.full(120, np.inf))
        shares.append(100 * (own[distances.argmin(axis=1)] == own).mean())
    titles = [axis.get_title().replace("\\", "") for axis in shown[0].axes]
    assert titles == [f"{name}: {share:.0f} % beside their class" for name, share in zip(made, shares)]
    assert section.figures[0].message == f"b$$ puts {shares[1]:.0f} % of the documents beside one of their class"
    panel = shown[0].axes[0]
    styles = {(one.get_paths()[0].vertices.tobytes(), one.get_facecolor().tobytes()) for one in panel.collections}
    assert len(styles) == len(shown[0].legends[0].get_texts()) == 41
    assert [text.get_text() for text in panel.texts[:2]] == ["1", "2"]
    places = np.array([text.get_position() for text in panel.texts]) / np.ptp(made["a"][0], axis=0)
    assert all(np.abs(places[:place] - places[place]).max(axis=1).min() > 0.04 for place in range(1, len(places)))
    with open(section.figures[0].picture.with_suffix(".csv")) as file:
        cells = list(csv.DictReader(file))
    assert len(cells) == 2 * 123
    assert (cells[0]["encoder"], cells[0]["test_document"], cells[3]["class"]) == ("a", "0", names[0])
    assert float(cells[0]["x"]) == pytest.approx(made["a"][0][0, 0], rel=1e-3)
