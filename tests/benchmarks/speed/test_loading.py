"""The benchmark of loading measures all three parts of a small corpus. No time is asserted."""

import json

import pytest

from benchmarks.speed import loading
from tests.conftest import make_corpus


def test_what_it_writes(run_here, wordpiece, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loading, "BATCH_SIZE", 4)
    monkeypatch.setattr(loading.os, "sched_getaffinity", lambda pid: {0}, raising=False)
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_corpus(60)))
    wordpiece.save_pretrained(tmp_path / "tokenizer")
    run_here(
        loading.main, "--corpus", tmp_path / "corpus.jsonl", "--tokenizer_name", tmp_path / "tokenizer",
        "--documents", 30, "--rounds", 1, "--output", tmp_path / "loading.json",
    )  # fmt: skip
    results = json.loads((tmp_path / "loading.json").read_text())
    drawing = results["drawing"]
    assert drawing["documents"] == 30
    assert drawing["ratio"] == pytest.approx(drawing["split_and_tokenise_us"] / drawing["draw_us"])
    assert results["preprocessing"].keys() == {"1"}
    assert results["preprocessing"]["1"]["gain"] == 1
    assert results["resuming"].keys() == {"cached", "stream"}
    for row in results["resuming"].values():
        assert row["ratio"] == pytest.approx(row["at_99_percent_s"] / row["at_1_percent_s"])
    assert "resuming (stream)" in capsys.readouterr().out
