"""Maps: what is near stays near, the same documents for all encoders, a legend that is legible, methods by name."""

import csv
import importlib.util
import logging

import matplotlib.pyplot as plt
import numpy as np
import pytest

from docsplit.evaluation.analysis.maps import check_method, check_size, map_analysis, project

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


def test_few_documents_and_narrow_vectors_have_a_map():
    assert project(VECTORS[:5])[0].shape == (5, 2)
    assert project(VECTORS[:, :1], "pca")[0].shape == (60, 2)
    assert project(VECTORS[:3])[0].shape == (3, 2)
    check_size(4)
    with pytest.raises(ValueError, match="3 test documents are no map: give four or more"):
        check_size(3)


def test_what_is_not_installed_is_said(monkeypatch, caplog):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install umap-learn"):
        check_method("umap")
    with caplog.at_level(logging.WARNING):
        check_method("tsne")
        check_method("pca")
    assert caplog.text.count("pip install openTSNE") == 1


def test_forty_classes_are_told_apart_and_numbered(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(plt, "close", shown.append)
    classes = np.repeat(np.arange(-1, 40), 3)
    names = [r"$\from $10", *(f"class {number}" for number in range(1, 40))]  # dollars are dollars, no formula
    points = {name: GENERATOR.normal(size=(len(classes), 2)) for name in ("a", "b$$")}
    made = {name: (own, "by hand") for name, own in points.items()}
    rows = np.arange(len(classes))
    contents, section = map_analysis(made, dict(zip(made, made)), rows, classes, names, " Of one seed.", tmp_path)
    assert (contents["documents"], contents["method"]) == (123, "by hand")
    assert section.notes == ["123 test documents, by hand. Numbers stand at the median of a class. Of one seed."]
    (figure,) = section.figures
    (drawn,) = shown
    panel = drawn.axes[0]
    styles = {(one.get_paths()[0].vertices.tobytes(), one.get_facecolor().tobytes()) for one in panel.collections}
    assert len(styles) == 41
    assert [text.get_text() for text in panel.texts] == [str(number) for number in range(1, 41)]
    assert len(drawn.legends[0].get_texts()) == 41
    with open(figure.numbers) as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 123
    assert [row["test_document"] for row in rows if row["encoder"] == "a"] == [
        row["test_document"] for row in rows if row["encoder"] == "b$$"
    ]
    assert rows[3]["class"] == names[0]
    assert float(rows[0]["x"]) == pytest.approx(points["a"][0, 0], rel=1e-3)
