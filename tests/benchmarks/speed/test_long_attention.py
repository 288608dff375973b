"""The benchmark of long attention compares equal states and says nothing where it cannot. No time is asserted."""

import argparse
import json
import sys

import pytest
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import long_attention


def test_it_compares_equal_states_and_ends_with_the_ratio(forked, run_here, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(long_attention, "LENGTH_OF_RATIO", 1024)
    output = tmp_path / "long.json"
    options = (
        "--model tiny --lengths 1024 --contenders blocked longformer --rounds 1 --steps 1 --device cpu "
        f"--precision fp32 --window 64 --output {output}"
    )
    run_here(long_attention.main, *options.split())
    printed = capsys.readouterr().out
    results = json.loads(output.read_text())
    seconds = {(row["contender"], row["length"]): row["seconds"] for row in results["rows"]}
    assert set(seconds) == {("blocked", 1024), ("longformer", 1024)}
    assert 0 < results["largest_difference"] < 1e-4
    assert all(row["forward"] < row["seconds"] for row in results["rows"])
    assert all(row["memory_mb"] > 0 for row in results["rows"])
    ratio = seconds["longformer", 1024] / seconds["blocked", 1024]
    assert printed.splitlines()[-1] == f"forward+backward at 1024: ratio {ratio:.2f}"
    assert output.with_suffix(".md").read_text() in printed
    assert output.with_suffix(".png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("difference", "message"), [(0.5, r"differ by 5.0e-01"), (0.0, "no ratio: at 100 tokens")], ids=["unequal", "none"]
)
def test_it_refuses_what_says_nothing(monkeypatch, tmp_path, difference, message):
    monkeypatch.setattr(long_attention, "LENGTH_OF_RATIO", 100)
    monkeypatch.setattr(long_attention, "largest_difference", lambda job: difference)
    monkeypatch.setattr(long_attention, "measure_all", lambda job, options: ([], ["blocked at 100"]))
    options = ["--model", "tiny", "--lengths", "100", "--output", str(tmp_path / "x.json")]
    monkeypatch.setattr(sys, "argv", ["long_attention", *options])
    with pytest.raises(ValueError, match=message):
        long_attention.main()
    assert not list(tmp_path.iterdir())


def test_lengths_that_would_take_too_long_are_left_out_and_named(monkeypatch):
    monkeypatch.setattr(long_attention, "run", lambda name, job: {"seconds": job["length"] ** 2, "memory_mb": 1.0})
    options = argparse.Namespace(
        lengths=[1, 2, 4, 8], contenders=["bert"], rounds=1, batch_size=1, longest_step=17, device="cpu"
    )
    rows, left_out = long_attention.measure_all({}, options)
    assert [row["length"] for row in rows] == [1, 2, 4]
    assert left_out == ["bert at 8"]
    monkeypatch.setattr(long_attention, "run", lambda name, job: None)  # out of memory
    assert long_attention.measure_all({}, options) == ([], ["bert at 1", "bert at 2", "bert at 4", "bert at 8"])


def test_needed_flops_are_those_of_dense_attention_where_the_window_holds_all():
    job = {"model": "tiny", "length": 64, "batch_size": 2, "window": 200, "device": "cpu", "dropout": 0.0}
    model = long_attention.make("bert", job)
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        model(**long_attention.inputs_of("bert", job))[0].sum().backward()
    pooler = 2 * job["batch_size"] * 32 * 32  # which gets no gradient
    assert long_attention.needed_flops(job) == pytest.approx(counter.get_total_flops() - pooler, rel=0.01)
