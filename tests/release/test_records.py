"""Records are read as they were written, without secrets or places of this machine; a manifest fits its files."""

import json
import sys
from dataclasses import replace

import pytest

from docsplit.embedding.lexical_ridge import RidgeFacts
from docsplit.release import model_card
from docsplit.release.model_card import write_run
from docsplit.release.records import (
    Adaptation,
    Candidate,
    RunRecord,
    StartRecord,
    start_of,
)

RUN = RunRecord(hardware="a CPU", processes=2, commit="0123abc", recipe="small.yaml", options={"lora_r": "8"})
FACTS = RidgeFacts(
    documents=1234, empty=3, duplicates=0, without_pieces=2, pieces=5678, penalty=0.3, neighbours=20, sublinear=True,
    shares_explained={0.1: 0.4, 0.3: 0.456},
)  # fmt: skip
ADAPTED = Adaptation(
    kind="words", kept="words", weight=1.0, encoder="user/encoder", documents="notes.jsonl", documents_are_local=True,
    start=StartRecord("user/encoder", ["en", "de"], "mit"), facts=FACTS, seconds={"embed": 12.34}, hardware="a CPU",
    versions={"torch": "2", "spacy": None}, commit="abc", candidates=[],
)  # fmt: skip
CANDIDATES = [
    Candidate(name, weight, {"5shot_accuracy": 0.5, "accuracy": 0.25}, {"5shot_accuracy": 0.4321, "accuracy": 0.8765})
    for name, weight in (("start", None), ("words", 1.0), ("words", 0.5), ("static", None))
]


def card(folder, **values):
    (folder / "README.md").write_text(
        "".join(["---\n", *(f"{key}: {text}\n" for key, text in values.items()), "---\n"])
    )


@pytest.mark.parametrize(
    "record",
    [
        RUN,
        replace(
            RUN, start=StartRecord(None, "en", "other", "odd", "LICENSE"), local=["corpus"], versions={"spacy": None}
        ),
        ADAPTED,
        replace(ADAPTED, kind="plain", facts=None, start=StartRecord(), probe="labelled", candidates=CANDIDATES),
    ],
)
def test_a_record_is_read_as_it_was_written(record, tmp_path):
    assert type(record).read(tmp_path) is None
    record.write(tmp_path)
    assert type(record).read(tmp_path) == record


# --- Where weights come from ---


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"base_model": "user/first", "license": "other", "license_name": "odd"},
         StartRecord("user/first", None, "other", "odd")),
        ({"license": "mit", "language": "[en, deu]"}, StartRecord(None, ["en", "deu"], "mit")),
        ({"license": "true", "language": "[en, no]", "base_model": 7}, StartRecord(None, None, "unknown")),
        ({"license": "' '", "license_link": "l"}, StartRecord(None, None, "unknown", None, "l")),
    ],
)  # fmt: skip
def test_a_folder_has_the_base_model_language_and_licence_of_its_card(stated, expected, tmp_path, caplog):
    card(tmp_path, **stated)
    assert start_of(str(tmp_path)) == expected
    assert ("states no licence" in caplog.text) == (expected.license == "unknown")


def test_secrets_and_places_stay_on_this_machine(tmp_path, monkeypatch):
    corpus, start = tmp_path / "secret" / "news.jsonl", tmp_path / "secret" / "encoder"
    start.mkdir(parents=True)
    corpus.touch()
    words = ["--corpus", str(corpus), "--model_name_or_path", str(start), "--output_dir", str(tmp_path)]
    words += ["--view", "crop", "--learning_rate=1e-4"]
    words += ["--hub_token", "hf_secret", "--push_to_hub", "--resume_from_checkpoint"]
    monkeypatch.setattr(sys, "argv", ["run_docsplit_pretraining.py", *words])
    record = RunRecord.of_this_run("cpu", 2, "user/name")
    record.write(tmp_path)
    assert record.options == {
        "corpus": "news.jsonl", "model_name_or_path": "encoder", "view": "crop", "learning_rate": "1e-4",
    }  # fmt: skip
    assert set(record.local) == {"corpus", "model_name_or_path"}
    assert record.start == StartRecord(license="unknown")
    assert (record.recipe, record.processes, record.hub_model_id) == (None, 2, "user/name")
    assert record.versions["torch"]
    assert "secret" not in (tmp_path / "run.json").read_text()


@pytest.mark.parametrize("kept_start", [False, True])
def test_files_lie_beside_the_checkpoint_and_a_start_keeps_its_card(tmp_path, monkeypatch, kept_start):
    cards = []
    monkeypatch.setattr(model_card, "write_card", cards.append)
    results = {"kept_start": kept_start, "global_step": 3}
    write_run(tmp_path, results, [], RUN, "contrastive")
    assert json.loads((tmp_path / "all_results.json").read_text()) == results
    assert RunRecord.read(tmp_path) == RUN
    assert (tmp_path / "training.png").exists()
    assert cards == ([] if kept_start else [tmp_path])
