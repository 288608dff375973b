"""Checkpoints of earlier code: they resume to the same losses, and load without this project."""

import json
import shutil

import pytest
import torch

from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE, TrainingDocuments, contamination
from docsplit.release.records import MANIFEST
from docsplit.runtime.files import read_sealed
from run_docsplit_pretraining import main
from tests.old_checkpoints import CHECKPOINTS, EXPECTED, LAST_STEP, STEP, embed, losses_after, words_of

KINDS = json.loads(EXPECTED.read_text())
TOLERANCE = 1e-4  # relative: another machine sums in another order


def test_all_kinds_are_there_and_hold_no_place_of_this_machine():
    assert {path.name for path in CHECKPOINTS.iterdir() if path.is_dir()} == KINDS.keys()
    for file in CHECKPOINTS.rglob("*.json"):
        assert str(CHECKPOINTS.parent) not in file.read_text(), file


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="the dropout was drawn by MKL: others draw another")
@pytest.mark.parametrize("kind", KINDS)
def test_an_old_run_goes_on_as_it_would_have(kind, run_here, tmp_path):
    shutil.copytree(CHECKPOINTS / kind, tmp_path / f"checkpoint-{STEP}")
    run_here(main, *words_of(kind), "--output_dir", tmp_path, "--resume_from_checkpoint")
    checkpoint = tmp_path / f"checkpoint-{LAST_STEP}"
    files = {file.relative_to(checkpoint).as_posix() for file in checkpoint.rglob("*") if file.is_file()}
    assert read_sealed(checkpoint / MANIFEST)["files"].keys() == files - {MANIFEST}  # adapter, queue: whatever resumes
    losses = losses_after(checkpoint)
    assert losses == pytest.approx(KINDS[kind]["losses"], rel=TOLERANCE)
    # else the old checkpoint was passed over, and the run began anew
    state = json.loads((tmp_path / f"checkpoint-{LAST_STEP}" / "trainer_state.json").read_text())
    old = json.loads((CHECKPOINTS / kind / "trainer_state.json").read_text())
    assert state["log_history"][:STEP] == old["log_history"]
    record = TrainingDocuments.load(tmp_path / f"checkpoint-{LAST_STEP}" / TRAINING_DOCUMENTS_FILE)
    assert len(record.run) > 0
    assert not record.is_complete  # nobody knows what the old steps saw


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_checkpoint_loads_whole_and_embeds_as_it_did(kind):
    embedding, loading = embed(CHECKPOINTS / kind)
    assert not loading["missing_keys"]
    assert embedding == pytest.approx(KINDS[kind]["embedding"], rel=TOLERANCE, abs=1e-5)
    assert set(contamination(str(CHECKPOINTS / kind), ["A text."]).values()) == {None}
