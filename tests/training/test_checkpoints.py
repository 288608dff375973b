"""A checkpoint counts only when it is whole."""

import os
import shutil

import pytest

from docsplit.release.records import MANIFEST, seal, why_incomplete
from docsplit.runtime.files import PARTIAL, FileRecord
from docsplit.runtime.sharing import Begun
from docsplit.training import checkpoints
from tests.conftest import write_checkpoint
from tests.disk import record_disk


@pytest.fixture
def output_dir(tmp_path):
    for step in (5, 10, 100):
        write_checkpoint(tmp_path / f"checkpoint-{step}")
        seal(tmp_path / f"checkpoint-{step}")
    return tmp_path


def names(output_dir):
    return [path.name for path in checkpoints.checkpoints(output_dir)]


def flip_bits_of(path, name):
    """One in each occurrence of the name."""
    content = path.read_bytes()
    assert name in content
    path.write_bytes(content.replace(name, name[:2] + bytes([name[2] ^ 1]) + name[3:]))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda directory: (directory / MANIFEST).unlink(), f"no {MANIFEST}"),
        (lambda directory: flip_bits_of(directory / MANIFEST, b'"written"'), "checksum"),
        (lambda directory: os.truncate(directory / "model.safetensors", 10), "10 bytes"),
        (lambda directory: flip_bits_of(directory / "optimizer.pt", b"state"), "optimizer.pt has changed"),
    ],
)
def test_damaged_ones_are_passed_over(output_dir, damage, reason, caplog):
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-100"
    damage(output_dir / "checkpoint-100")
    assert reason in why_incomplete(output_dir / "checkpoint-100")
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-10"
    assert reason in caplog.text
    with pytest.raises(ValueError, match="Cannot resume"):
        checkpoints.to_resume_from(output_dir, str(output_dir / "checkpoint-100"), overwrite=False)


def test_older_ones_go_only_when_the_new_one_is_on_the_disk(output_dir, monkeypatch):
    """A power cut keeps what was flushed: files, their folder, the manifest, the folder that names the checkpoint."""
    events = record_disk(monkeypatch)
    new = output_dir / "checkpoint-200"
    write_checkpoint(new)
    seal(new)
    checkpoints.rotate(output_dir, keep=1, best=None)
    files = {file for file in new.rglob("*") if file.name != MANIFEST}
    events = [event[:2] for event in events]
    named = events.index(("name", new / MANIFEST))
    assert {path for _, path in events[: named - 1]} == files | {new}
    assert events[named - 1][1].name.endswith(PARTIAL)
    assert events[named + 1 : named + 3] == [("flush", new), ("flush", output_dir)]
    removed = events[named + 3 :]
    assert {kind for kind, _ in removed} == {"remove"}
    assert len({path.relative_to(output_dir).parts[0] for _, path in removed}) == 3


def test_rotation_keeps_the_last_written_complete_ones_the_best_and_what_it_does_not_know(
    output_dir, tmp_path_factory, caplog
):
    (output_dir / "checkpoint-200").mkdir()  # a run was killed while it wrote this one
    checkpoints.rotate(output_dir, keep=1, best=str(output_dir / "checkpoint-5"))
    assert names(output_dir) == ["checkpoint-5", "checkpoint-100", "checkpoint-200"]
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-100"
    # A run resumed from checkpoint-5, since the later ones went wrong, writes checkpoint-7
    write_checkpoint(output_dir / "checkpoint-7")
    seal(output_dir / "checkpoint-7")
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-7"
    (output_dir / "checkpoint-5" / "1_Pooling" / "notes.txt").write_text("mine")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "checkpoint"
    (output_dir / "checkpoint-100").rename(elsewhere)
    (output_dir / "checkpoint-100").symlink_to(elsewhere)
    checkpoints.rotate(output_dir, keep=1, best=None)
    left = [path.relative_to(output_dir).as_posix() for path in (output_dir / "checkpoint-5").rglob("*.*")]
    assert left == ["checkpoint-5/1_Pooling/notes.txt"]
    assert "checkpoint-5 keeps files that are not of the checkpoint" in caplog.text
    assert why_incomplete(elsewhere) is None
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-7"


def test_what_to_resume_from(output_dir, tmp_path_factory, monkeypatch, caplog):
    newest, empty = output_dir / "checkpoint-100", tmp_path_factory.mktemp("empty")
    for choice in checkpoints.NEWEST:
        assert checkpoints.to_resume_from(output_dir, choice, overwrite=False) == newest
    assert checkpoints.to_resume_from(output_dir, str(output_dir / "checkpoint-5"), False).name == "checkpoint-5"
    with pytest.raises(ValueError, match="has checkpoint-100 of an earlier run: continue it with --resume_from"):
        checkpoints.to_resume_from(output_dir, None, overwrite=False)
    assert checkpoints.to_resume_from(output_dir, None, overwrite=True) is None
    assert checkpoints.to_resume_from(empty, None, overwrite=False) is None
    assert caplog.text == ""
    assert checkpoints.to_resume_from(empty, "newest", overwrite=False) is None
    assert "starting from the beginning" in caplog.text
    (newest / "optimizer.pt").unlink()
    seal(newest)
    with pytest.raises(ValueError, match="has no optimizer state"):
        checkpoints.to_resume_from(output_dir, "newest", overwrite=False)
    # Where none is complete nothing is removed unless told
    (newest / MANIFEST).unlink()  # as of stock Trainer
    flip_bits_of(output_dir / "checkpoint-5" / "optimizer.pt", b"state")
    flip_bits_of(output_dir / "checkpoint-10" / "optimizer.pt", b"state")
    with pytest.raises(ValueError, match="--overwrite_output_dir") as refusal:
        checkpoints.to_resume_from(output_dir, "newest", overwrite=False)
    assert "checkpoint-100: it has no" in str(refusal.value)
    assert "checkpoint-5: optimizer.pt has changed" in str(refusal.value)
    assert checkpoints.to_resume_from(output_dir, "newest", overwrite=True) is None
    assert len(names(output_dir)) == 3

    def unreadable(file):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FileRecord, "of", unreadable)
    with pytest.raises(ValueError, match=r"checkpoint-10: \S+ cannot be read: Input/output error"):
        checkpoints.to_resume_from(output_dir, "newest", overwrite=False)


def test_a_restarted_run_goes_on_from_its_own_newest_checkpoint(output_dir, caplog):
    written = {path: checkpoints._written(path) for path in checkpoints.checkpoints(output_dir)}
    newest, start = max(written, key=written.get), min(written, key=written.get)
    assert checkpoints.to_go_on_from(output_dir, Begun(written[newest], str(start))) == newest
    after = written[newest] + 1  # the run wrote none: all are of earlier ones
    assert checkpoints.to_go_on_from(output_dir, Begun(after, str(start))) == start
    assert checkpoints.to_go_on_from(output_dir, Begun(after, None)) is None
    assert "starting from the beginning" in caplog.text
    assert len(names(output_dir)) == len(written)


def test_a_start_is_not_removed(output_dir):
    checkpoints.refuse_to_remove(output_dir, [None, "bert-base-uncased", str(output_dir.parent)])
    with pytest.raises(ValueError, match="checkpoint-5, which it is to start from: choose another --output_dir"):
        checkpoints.refuse_to_remove(output_dir, [None, str(output_dir / "checkpoint-5" / "1_Pooling")])
    with pytest.raises(ValueError, match="writes over its start: choose another folder"):
        checkpoints.refuse_to_remove(output_dir, [str(output_dir)])


def test_another_checkpoint_on_another_machine_is_refused(output_dir, tmp_path_factory):
    """One that is missing, damaged or other; a copy at another place is the same."""
    manifest = FileRecord.of(output_dir / "checkpoint-10" / MANIFEST)
    copy = tmp_path_factory.mktemp("elsewhere") / "checkpoint-10"
    with pytest.raises(
        ValueError, match=r"cannot resume from \S+checkpoint-10, as rank 0 does: it is not there\. Put"
    ):
        checkpoints.refuse_another(copy, manifest)
    shutil.copytree(output_dir / "checkpoint-10", copy)
    checkpoints.refuse_another(copy, manifest)
    flip_bits_of(copy / "optimizer.pt", b"state")
    with pytest.raises(ValueError, match=r"optimizer\.pt has changed"):
        checkpoints.refuse_another(copy, manifest)
    seal(copy)
    with pytest.raises(ValueError, match="its content is another"):
        checkpoints.refuse_another(copy, manifest)
