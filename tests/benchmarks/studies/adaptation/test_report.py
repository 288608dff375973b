"""The study of adaptation: its cells, and what its tables and pages say."""

import json
import re

import pytest
import yaml
from matplotlib import pyplot as plt

from benchmarks.engine.results import SAMPLES, Record, read_results
from benchmarks.engine.study import Study
from benchmarks.studies.adaptation import report as adaptation
from benchmarks.studies.adaptation.limits import LIMITS
from benchmarks.studies.adaptation.sets import SEARCH_SETS, SETS
from benchmarks.studies.adaptation.words import MORE_SETS
from tests.benchmarks.studies.results import results_of
from tests.processes import ROOT


def test_the_study_has_the_sets_and_cells_that_were_agreed(tmp_path):
    content = yaml.safe_load(adaptation.STUDY.read_text())
    (tmp_path / "files").mkdir()
    for name in ("20newsgroups", "aan", "cranfield", "ecthr", "wikipedia"):
        (tmp_path / "files" / name).mkdir()
        (tmp_path / "files" / name / "data.txt").write_text(name)
    given = {"data_dir": str(tmp_path / "files"), "model": "all-MiniLM-L6-v2", "masked_lm": "bert-base-uncased"}
    given |= {"weak_start": "bert-base-uncased", "model2vec": "static"}
    cells, waiting = Study(adaptation.STUDY, tmp_path, given).cells()
    searched = [cell for cell in cells.values() if cell.group.startswith("search")]
    assert len(searched) + waiting["search"] == 27
    assert sorted({cell.fields["data"] for cell in searched if cell.group != "search_words_too"}) == ["20news"]
    assert (
        waiting["adapt"]
        == waiting["adapt_without_words"]
        == waiting["docsplit"] + waiting["docsplit_again"]
        == len(SETS) * 3
    )
    assert waiting["limits"] + waiting["limits_again"] == len(LIMITS) * 3
    grids = [group.get("grid", {}) for group in content["groups"].values()]
    known = {*SETS, *LIMITS, *SEARCH_SETS, *MORE_SETS}
    assert all(set(grid.get("data", [])) <= known for grid in grids)
    for cell in cells.values():  # nothing but places is left open
        assert "{" not in json.dumps(cell.steps).replace("{folder}", "").replace("{data_dir}", "").replace('{"', ""), (
            cell
        )


@pytest.mark.parametrize("masked_lm", [(), ("--masked_lm", "bert-base-uncased")])
def test_without_a_masked_lm_its_cells_are_no_part_of_the_study(run_here, tmp_path, capsys, masked_lm):
    for name in ("20newsgroups", "aan", "cranfield", "ecthr", "wikipedia"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.txt").write_text(name)
    options = ["--data_dir", tmp_path, "--model", "x", *masked_lm, "--list", "--work_dir", tmp_path / "work"]
    with pytest.raises(SystemExit) as end:
        run_here(adaptation.main, *options, "--output", tmp_path / "results.json")
    assert end.value.code == 0
    assert ("masked_lm" in capsys.readouterr().out) is bool(masked_lm)
    assert not (tmp_path / "results.json").exists()


def test_tables_pool_seeds_and_items(tmp_path):
    def row(data, method, seed, difference, **more):
        compared = {"difference": difference, "low": 0, "high": 0, SAMPLES: [difference - 0.01, difference + 0.01]}
        return {"cell": f"{method}{seed}", "data": data, "task": "t", "method": method, "seed": seed,
                "part": "test", "metric": "acc", "value": 0.5 + difference} | compared | more  # fmt: skip

    rows = [row("a", "start", None, 0.0), row("a", "adapt", 0, 0.02), row("a", "adapt", 1, 0.04)]
    for number, (accuracy, cosine) in enumerate([(0.1, 0.5), (0.2, 0.4), (0.3, 0.3)]):
        rows.append(
            row("20news", f"search {number}", 0, accuracy, part="validation")
            | {"metric": "5shot_accuracy", "value": accuracy}
        )
        rows.append(
            {
                "cell": f"search {number}0",
                "data": "20news",
                "method": "s",
                "part": "validation",
                "metric": "mean_cosine",
                "value": cosine,
            }
        )
    rows += [row("a", "adapt, 5 steps", 0, 0.1), row("a, small", "adapt", 0, -0.1)]
    rows += [row("a", "adapt", 0, 0.2, metric="acc, smoothed"), row("a", "masked LM, adapt", 0, 0.3)]
    results = results_of(rows, not_run=["z"], waiting={"g": 3})
    results.cells["x"] = Record("y", "failed", "x", "x")
    summary = adaptation.summaries(rows)["a", "adapt"]
    assert (summary.value, summary.difference, summary.seeds) == (pytest.approx(0.53), pytest.approx(0.03), 2)
    assert 0.01 <= summary.low < 0.02 < 0.04 < summary.high <= 0.05
    assert adaptation.signs(rows)["mean_cosine"] == (pytest.approx(-1), 3)
    text = adaptation.markdown(results)
    assert "| start | 50.0 |" in text
    assert re.search(r"\| adapt \| 53\.0 \(\+3\.0; \+1\.\d to \+4\.\d, 2 seeds\) \|", text)
    assert "| adapt, smoothed | 70.0 (+20.0;" in text
    assert "| masked LM, adapt | 80.0 (" in text.partition("From the masked LM")[2].partition("By the number")[0]
    assert "| a, acc | 60.0 (+10.0;" in text.partition("By the number of steps")[2]
    assert "| a, small, acc | 40.0 (-10.0;" in text.partition("Other documents to adapt on")[2]
    assert "| mean_cosine | -1.00 | 3 |" in text
    assert "Cells not run: z, 3 cells of g. Failed: y." in text
    named = results_of([row | {"data": "aan"} for row in rows if row["data"] == "a"])
    assert "| trained on the documents | **53.0** (+3.0) |" in adaptation.markdown(named)
    adaptation.plot(named, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_the_figure_counts_gains_and_shows_each_difference(tmp_path, monkeypatch):
    drawn: list[plt.Figure] = []
    monkeypatch.setattr("benchmarks.engine.figures.plt.close", drawn.append)
    adaptation.plot(read_results(ROOT / "benchmarks" / "results" / "adaptation.json"), tmp_path / "plot.png")
    title = drawn[0].get_suptitle()
    assert title == "Clearly better: words on 5 of 5 sets, training on 3 of 5 sets, TF-IDF on 2 of 5 sets"
    panels = [axis for axis in drawn[0].axes if axis.axison]
    assert len(panels) == len(adaptation.SETS)
    page = (ROOT / "benchmarks" / "results" / "adaptation.md").read_text()
    for column, axis in enumerate(panels):
        *values, _ = (text.get_text() for text in axis.texts)  # the last one names the measure
        assert len(values) == len(adaptation.COLOURS)
        words = re.search(r"\| adapted \(words, no training\) \|(.*)\|\n", page)[1].split(" | ")[column]
        assert f"({values[-1]})" in words


@pytest.mark.parametrize("page", ["README.md", "docs/adaptation.md"])
def test_pages_show_the_results(page):
    generated = adaptation.markdown(read_results(ROOT / "benchmarks" / "results" / "adaptation.json"))
    assert (ROOT / "benchmarks" / "results" / "adaptation.md").read_text() == generated
    text = (ROOT / page).read_text()
    shown = re.search(r"<!-- from [./]*benchmarks/results/adaptation\.json -->\n\n((?:\|.*\n)+)", text)[1].splitlines()
    assert len(shown) > 4

    def cells(line):
        return [cell.strip() for cell in line.strip("|\n").split("|")]

    start = generated.index("|  | newsgroup posts, accuracy")  # the table that pages show, whole or in part
    heading, _, *rows = [cells(line) for line in generated[start:].partition("\n\n")[0].splitlines()]
    table = {row[0]: dict(zip(heading, row, strict=True)) for row in rows}
    names = cells(shown[0])
    assert len(names) > 3
    for line in shown[2:]:
        row = cells(line)
        assert row == [table[row[0]][name] for name in names]


def test_two_methods_are_compared_on_the_same_drawn_items():
    def row(method, seed, difference, samples):
        return {"data": "aan", "part": "test", "method": method, "seed": seed, "metric": "acc",
                "difference": difference, SAMPLES: samples}  # fmt: skip

    rows = [
        row("words", None, 0.05, [0.04, 0.06]),
        row("adapt", 0, 0.01, [0.0, 0.02]),
        row("adapt", 1, 0.03, [0.03] * 2),
    ]
    assert adaptation.against(rows, "words", "adapt")[1] == ["aan", "+3.0", "+1.2 to +4.0"]
    assert adaptation.against(rows, "words", "tsdae") == []
