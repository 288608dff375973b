"""The study of the Bregman ensemble: its cells, the rows of its probes, and what its tables say."""

import yaml

from benchmarks.engine.study import Study
from benchmarks.studies.bregman import report as bregman
from docsplit.evaluation.results.paper_numbers import read_paper
from tests.benchmarks.studies.results import results_of

TABLE_4 = [tuple(name.rsplit(" ", 1)) for name in read_paper("bregman").table("4").rows]  # factor, level


def test_the_grid_is_the_papers_and_more(tmp_path):
    content = yaml.safe_load(bregman.STUDY.read_text())
    (tmp_path / "start").mkdir()
    for name in ("20newsgroups", "ecthr", "start"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "data.txt").write_text(name)
    cells, waiting = Study(
        bregman.STUDY, tmp_path, {"data_dir": str(tmp_path), "start": str(tmp_path / "start")}
    ).cells()
    assert waiting == {"confirmed": 1, "confirmed_ecthr": 1}
    cases = content["groups"]["grid"]["cases"]
    assert content["groups"]["grid"]["selection"]["metric"] == bregman.CHOSEN
    assert len(cells) == len(cases) + 3  # no two are the same; the paper's choice, and TF-IDF on both sets
    cells = {key: cell for key, cell in cells.items() if cell.group == "grid"}
    levels = {(case["factor"], str(case["level"])) for case in cases}
    shares = {steps: share for share, steps in bregman.STEPS.items()}
    of_table_4 = {(factor, shares.get(level, level)) for factor, level in TABLE_4}
    centre = set(bregman.CENTRES.items()) & of_table_4
    assert len(TABLE_4) == 24
    assert len(of_table_4 - centre) == 19  # and the centre: 20 cells
    assert of_table_4 - centre <= levels
    for cell in cells.values():
        options = cell.steps[1]["options"]
        assert options["max_steps"] == options["save_steps"] <= 200
        assert options["max_seq_length"] == 512


def test_tables_put_the_papers_numbers_beside(tmp_path):
    def cell(method, value, warning=None):
        names = [f"{head} {metric}" for head in bregman.HEADS for metric in ("micro_f1", "macro_f1")]
        return [{"data": "20news", "method": method, "seed": 0, "metric": name, "value": value,
                 "warning": warning} for name in names]  # fmt: skip

    final = {"data": "ecthr", "seed": None, "method": "start", "metric": "mlp micro_f1", "value": 0.5, "std": 0.01}
    final |= {"trained_share": 0.005}
    spent = final | {"metric": "mlp seconds", "value": 12.3, "std": None}
    tuned = final | {"metric": "setfit, 8 shots, micro_f1", "std": None}
    difference = {"data": "ecthr", "seed": None, "method": "A - B", "metric": "mlp micro_f1, difference"}
    difference |= {"value": 0.02, "low": -0.01, "high": 0.05, "ahead": None}
    rows = [
        *cell("centre ", 0.3),
        *cell("g 2", 0.35),
        *cell("batch norm without", 0.2, "predicts one class"),
        final,
        spent,
        tuned,
        difference,
    ]
    rows.append(rows[0] | {"metric": "alignment", "history": [[1, 1.0], [2, 0.5]]})
    again = final | {"cell": "b", "value": 0.6}  # of another run: a table of its own
    rows = [{"cell": "a"} | row for row in [*rows, again]]
    results = results_of(rows)
    lines = bregman.markdown(results).replace(" ", "").splitlines()
    assert any(line.startswith(f"|g|2|{'35.0/35.0|' * 4}74.1/64.3|") for line in lines)
    assert any(line.startswith(f"|batchnorm|without|{'20.0†/20.0†|' * 4}72.5/63.1|") for line in lines)
    assert any(line.startswith(f"|centre||{'30.0/30.0|' * 4}75.2/67.7|") for line in lines)
    assert bregman.ablation_of_the_paper("steps", "3/5") == "75.6 / 63.5"
    assert bregman.ablation_of_the_paper("pooling", "max") == "77.6 / 69.5"
    assert bregman.ablation_of_the_paper("trunk", "shared") == ""
    assert bregman.scores_of_the_paper("linear", "SimCSE + Bregman", "ecthr") == "73.3 / 59.5"
    assert "|mlp|start|50.0±1.0|||12|0.5%|61.4/47.8|" in lines
    assert "|mlp|start|60.0±1.0||||0.5%|61.4/47.8|" in lines
    assert "|setfit,8shots|start|50.0||||0.5%||" in lines
    assert "|A-B|mlpmicro_f1,difference|+2.0|-1.0to+5.0||" in lines
    bregman.plots(results, tmp_path / "plot.png")
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("plot.png", "plot_collapse.png"))
