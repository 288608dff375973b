"""The benchmark of micro-batches: its lengths, what it counts, and the cuts it takes. No time is asserted."""

import argparse
import json

import pytest

from benchmarks.speed import micro_batches


def test_lengths_are_those_of_the_benchmark_of_training():
    lengths = micro_batches.random_lengths(20_000, 0)
    assert (lengths.min(), lengths.max()) == (8, 512)
    assert lengths.double().mean() == pytest.approx(200, rel=0.03)
    assert not lengths.equal(micro_batches.random_lengths(20_000, 1))


def test_a_smaller_budget_cuts_more_and_pads_less():
    small, large = (micro_batches.measure_cut(72, budget, 3) for budget in (512, 8192))
    assert small["padding_share"] < large["padding_share"] < 1
    assert small["micro_batches"] > large["micro_batches"] >= 1


@pytest.mark.parametrize("text", ["72", "72:", "x:1024", "71:1024", "2:1024", "72:0"])
def test_what_is_no_cut_is_refused(text):
    assert micro_batches.parse_cut("72:1024") == (72, 1024)
    with pytest.raises(argparse.ArgumentTypeError, match="expected ROWS:TOKENS"):
        micro_batches.parse_cut(text)


def test_steps_are_timed_for_small_batches_alone(run_here, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(micro_batches, "SMALL", {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1})
    options = ["--cuts", "4:1024", "200:1024", "--repeats", 1, "--steps", 1, "--step_rows", 4]
    run_here(micro_batches.main, *options, "--output", tmp_path / "cuts.json")
    results = json.loads((tmp_path / "cuts.json").read_text())
    small, large = results["cuts"]
    assert small["share_of_step"] == pytest.approx(small["milliseconds"] / small["step_milliseconds"])
    assert "step_milliseconds" not in large
    assert micro_batches.table(results) in capsys.readouterr().out
