"""The report of a run: files beside the checkpoint, and no secrets or places of this machine in them."""

import json
import sys

import pytest

from docsplit.release import reporting
from docsplit.release.reporting import describe_run, write_run
from docsplit.release.run_record import RUN_FILE, Licence, RunRecord, Start

RESULTS = {"kept_start": False, "global_step": 3, "probe_before_5shot_accuracy": 0.25}


@pytest.fixture
def shown(monkeypatch):
    """Stand-ins for plot and card; returns the folders that got a card."""
    cards = []
    monkeypatch.setattr(reporting, "plot_training", lambda history, results, path, loss_name: path.write_bytes(b"png"))
    monkeypatch.setattr(reporting, "write_card", cards.append)
    return cards


def test_secrets_and_places_stay_on_this_machine(tmp_path, monkeypatch):
    corpus, start = tmp_path / "secret" / "news.jsonl", tmp_path / "secret" / "encoder"
    start.mkdir(parents=True)
    corpus.touch()
    words = ["--corpus", str(corpus), "--model_name_or_path", str(start), "--output_dir", str(tmp_path)]
    words += ["--view", "crop", "--learning_rate=1e-4"]
    words += ["--hub_token", "hf_secret", "--push_to_hub", "--resume_from_checkpoint"]
    monkeypatch.setattr(sys, "argv", ["run_docsplit_pretraining.py", *words])
    record = describe_run("cpu", 2, "user/name")
    assert record.options == {
        "corpus": "news.jsonl", "model_name_or_path": "encoder", "view": "crop", "learning_rate": "1e-4",
    }  # fmt: skip
    assert set(record.local) == {"corpus", "model_name_or_path"}
    assert record.start == Start(None, Licence("unknown"))
    assert (record.recipe, record.processes, record.hub_model_id) == (None, 2, "user/name")
    assert "secret" not in record.to_json()


def test_a_run_from_random_weights_has_an_empty_start(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run_docsplit_pretraining.py", "quickstart"])
    record = describe_run("cpu", 1, None)
    assert record.recipe == "quickstart"
    assert record.start == Start()
    assert "torch" in record.versions


@pytest.mark.parametrize("kept_start", [False, True])
def test_files_lie_beside_the_checkpoint_and_a_start_keeps_its_card(tmp_path, shown, kept_start):
    record = RunRecord(hardware="a CPU", processes=1, commit=None, start=Start())
    results = RESULTS | {"kept_start": kept_start}
    write_run(tmp_path, results, [], record, "contrastive")
    assert json.loads((tmp_path / "all_results.json").read_text()) == results
    assert (tmp_path / RUN_FILE).read_text() == record.to_json()
    assert (tmp_path / "training.png").exists()
    assert shown == ([] if kept_start else [tmp_path])
