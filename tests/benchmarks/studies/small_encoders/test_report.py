"""The comparison of small encoders: its committed tables and picture show what was measured."""

import pytest
from matplotlib import pyplot as plt

from benchmarks.studies.small_encoders import report
from docsplit.release.card_results import read_json, rows_of_file


@pytest.mark.parametrize("name", report.FILES)
def test_tables_show_the_results(name):
    contents = read_json(report.RESULTS / f"{name}.json")
    text = (report.RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert text == report.markdown(contents)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    encoders = {line.split(" | ")[0].strip("| ") for line in lines}
    assert {"random_start", "MLM_alone", "SimCSE_long", "DocSplit"} <= encoders
    assert sum(" - " in line.split(" | ")[0] for line in lines) == len(contents["comparisons"])


def test_the_picture_has_a_dot_for_each_encoder_and_number_of_labels(tmp_path, monkeypatch):
    _, rows = rows_of_file(read_json(report.RESULTS / f"{report.PLOTTED}.json"))
    drawn: list[plt.Figure] = []
    monkeypatch.setattr("benchmarks.engine.figures.plt.close", drawn.append)
    report.plot(rows, tmp_path / "plot.png")
    (axis,) = drawn[0].axes
    assert [label.get_text() for label in axis.get_yticklabels()][-2:] == ["DocSplit", "TF-IDF"]
    shown = sorted(round(float(mean)) for line in axis.containers for mean in line[0].get_xdata())
    linear = [row for row in rows if (row.head, row.features) == ("linear", "raw")]
    assert shown == sorted(round(100 * row.main.mean) for row in linear)
    assert "2.8 times" in axis.get_title(loc="right")
    plt.close(drawn[0])
