"""A manifest says whether a checkpoint is as it was written; tests/training/test_checkpoints.py damages many."""

import json
import time

import pytest

from docsplit.release.manifest import MANIFEST, read_manifest, seal, why_incomplete
from docsplit.runtime.files import PARTIAL
from tests.conftest import write_checkpoint


def test_what_a_kill_left_half_written_is_no_part_of_a_checkpoint(tmp_path):
    write_checkpoint(tmp_path / "checkpoint-5")
    left = tmp_path / "checkpoint-5" / f".training_state.safetensors.4242{PARTIAL}"
    left.write_bytes(b"half")
    seal(left.parent)
    assert not left.exists()
    assert why_incomplete(left.parent) is None


@pytest.mark.parametrize("left_out", ["model.safetensors", "config.json", "trainer_state.json"])
def test_a_manifest_must_name_what_each_checkpoint_has(tmp_path, left_out):
    write_checkpoint(tmp_path)
    (tmp_path / left_out).unlink()
    seal(tmp_path)
    assert why_incomplete(tmp_path) == (f"{tmp_path / MANIFEST} names no {left_out}, which each checkpoint has")


def test_a_manifest_without_its_checksum_does_not_count(tmp_path):
    write_checkpoint(tmp_path)
    seal(tmp_path)
    assert read_manifest(tmp_path)[0] == pytest.approx(time.time(), abs=60)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    del manifest["checksum"]
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert why_incomplete(tmp_path) == f"{tmp_path / MANIFEST} is damaged: it does not fit its checksum"
