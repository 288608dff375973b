"""The study of the Bregman ensemble: its cells, the rows of its probes, and what its tables say."""

import json

import pytest
import yaml

from benchmarks.engine.study import Study
from benchmarks.studies.bregman import report as bregman
from benchmarks.studies.bregman import step as bregman_step
from docsplit.data.sets.arguments import LabelledArguments
from docsplit.data.sets.labelled import load_labelled

PAPER = json.loads(bregman.PAPER.read_text())


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
    of_table_4 = {(factor, level) for factor, own in PAPER["table_4"].items() for level in own}
    centre = {(factor, level) for factor, level in bregman.CENTRES.items() if factor in PAPER["table_4"]}
    assert sum(map(len, PAPER["table_4"].values())) == 24
    assert len(of_table_4 - centre) == 19  # and the centre: 20 cells
    assert of_table_4 - centre <= levels
    for cell in cells.values():
        options = cell.steps[1]["options"]
        assert options["max_steps"] == options["save_steps"] <= 200
        assert options["max_seq_length"] == 512


def row(encoder, head, features="raw", shots=None, **values):
    return {
        "encoder": encoder,
        "head": head,
        "features": features,
        "shots": shots,
        "test_documents": 9,
        "trainable_share": 0.1,
        "embedding_seconds": 2.0,
    } | values


def test_rows_of_a_probe(tmp_path):
    probe = {
        "rows": [row("x", "mlp", micro_f1_mean=0.5, micro_f1_std=0.1, macro_f1_mean=0.4, macro_f1_std=0.2),
                 row("x", "mlp", "standardized", micro_f1_mean=0.6, micro_f1_std=0.1),
                 row("x", "mlp", shots=5, micro_f1_mean=0.1, micro_f1_std=0.1)],
        "comparisons": [{"a": "A=1,2", "b": "B=3,4", "head": "mlp", "features": "raw", "measure": "micro_f1",
                         "difference": 0.1, "low": 0.05, "high": 0.2, "ahead": "A=1,2"}],
    }  # fmt: skip
    (tmp_path / "checkpoint-3").mkdir()
    log = [{"step": 1, "alignment": 1.0}, {"step": 2, "alignment": 0.5, "effective_rank": 7.0}, {"train_loss": 1.0}]
    (tmp_path / "checkpoint-3" / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    probe["rows"].append(row("x", "setfit", shots=8, micro_f1_mean=0.7, micro_f1_std=0.1, seconds=3.0))
    of_one = {one["metric"]: one["value"] for one in bregman_step.rows_of(probe, tmp_path)}
    assert of_one == {
        "mlp micro_f1": 0.5, "mlp macro_f1": 0.4, "mlp, standardized, micro_f1": 0.6, "alignment": 0.5,
        "effective_rank": 7.0, "setfit, 8 shots, micro_f1": 0.7,
    }  # fmt: skip
    (alignment,) = (one for one in bregman_step.rows_of(probe, tmp_path) if one["metric"] == "alignment")
    assert alignment["history"] == [[1, 1.0], [2, 0.5]]
    seconds = [one for one in bregman_step.rows_of(probe, None) if one["metric"].endswith(" seconds")]
    assert [(one["metric"], one["value"]) for one in seconds] == [("setfit, 8 shots, seconds", 5.0)]
    assert [bregman_step.name_of(encoder) for encoder in ("o/start", "tfidf", "A=o/1,o/2")] == ["start", "tfidf", "A"]
    *_, compared = bregman_step.rows_of(probe, None)
    assert [compared[name] for name in ("method", "value", "low", "ahead")] == ["A - B", 0.1, 0.05, "A"]
    probe["rows"] = [row("A=1,2", "mlp", micro_f1_mean=0.5, micro_f1_std=0.1, seconds=3.0, pretraining_seeds=2)]
    of_group = {one["metric"]: one["value"] for one in bregman_step.rows_of(probe, None)}
    assert of_group["mlp seconds"] == 4.0  # half of what embedding with both took


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
    cells = {"a": {"name": "confirmed", "status": "done"}, "b": {"name": "paper", "status": "done"}}
    results = {"rows": rows, "not_run": [], "waiting": {}, "cells": cells}
    lines = bregman.markdown(results).replace(" ", "").splitlines()
    assert any(line.startswith(f"|g|2|{'35.0/35.0|' * 4}74.1/64.3|") for line in lines)
    assert any(line.startswith(f"|batchnorm|without|{'20.0†/20.0†|' * 4}72.5/63.1|") for line in lines)
    assert any(line.startswith(f"|centre||{'30.0/30.0|' * 4}75.2/67.7|") for line in lines)
    assert "|mlp|start|50.0±1.0|||12|0.5%|61.4/47.8|" in lines
    assert "|mlp|start|60.0±1.0||||0.5%|61.4/47.8|" in lines
    assert "|setfit,8shots|start|50.0||||0.5%||" in lines
    assert "|A-B|mlpmicro_f1,difference|+2.0|-1.0to+5.0||" in lines
    bregman.plots(results, tmp_path / "plot.png")
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("plot.png", "plot_collapse.png"))


@pytest.mark.parametrize("data", ["20news", "ecthr"])
def test_files_of_a_set_share_no_document(real_data, tmp_path, data):
    bregman_step.write_parts(bregman_step.parts_of(data, real_data, 200, "test"), tmp_path)
    texts = {name: [json.loads(line)["text"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
             for name in ("train", "validation", "test", "corpus")}  # fmt: skip
    assert texts["corpus"] == texts["train"]
    assert len({*texts["train"], *texts["validation"], *texts["test"]}) == sum(
        len(texts[n]) for n in ("train", "validation", "test")
    )
    files = {f"{name}_file": str(tmp_path / f"{name}.jsonl") for name in ("train", "validation", "test")}
    assert load_labelled(LabelledArguments(**files)).multi_label is (data == "ecthr")
    searched = bregman_step.parts_of(data, real_data, 200, "validation")
    assert searched["test"][0] == texts["validation"]


def test_pieces_are_whole_train_documents_of_every_set(real_data, tmp_path):
    path = tmp_path / "new" / "pieces.jsonl"
    bregman_step.write_pieces(real_data, 200, path)
    pieces = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    words = " ".join(pieces).split()
    parts = [bregman_step.parts_of(data, real_data, 200, "test") for data in bregman_step.SETS]
    assert words == " ".join(text for one in parts for text in one["train"][0]).split()
    assert len(pieces) > 2 * sum(len(one["train"][0]) for one in parts)  # most judgments are long
