"""A checkpoint counts only when it is whole."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from docsplit.modeling.settings import current_settings
from docsplit.release.records import MANIFEST, seal, why_incomplete
from docsplit.runtime.files import PARTIAL, FileRecord
from docsplit.runtime.launching import Begun
from docsplit.training import checkpoints
from tests.conftest import write_checkpoint
from tests.mutations import mutated_copy


@pytest.fixture
def output_dir(tmp_path):
    for step in (5, 10, 100):
        write_checkpoint(tmp_path / f"checkpoint-{step}")
        seal(tmp_path / f"checkpoint-{step}")
    return tmp_path


def test_the_newest_is_the_one_written_last(output_dir):
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-100"


def flip_bits_of(path, name):
    """One in each occurrence of the name."""
    content = path.read_bytes()
    assert name in content
    path.write_bytes(content.replace(name, name[:2] + bytes([name[2] ^ 1]) + name[3:]))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda directory: (directory / MANIFEST).unlink(), f"no {MANIFEST}"),
        (lambda directory: (directory / MANIFEST).write_text('{"files": {"mod'), "holds no JSON"),
        (lambda directory: flip_bits_of(directory / MANIFEST, b'"written"'), "checksum"),
        (lambda directory: flip_bits_of(directory / MANIFEST, b'"checksum"'), "checksum"),
        (lambda directory: (directory / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda directory: os.truncate(directory / "model.safetensors", 10), "10 bytes"),
        (lambda directory: (directory / "1_Pooling" / "config.json").unlink(), "config.json is missing"),
    ],
)
def test_damaged_ones_are_passed_over(output_dir, damage, reason, caplog):
    assert why_incomplete(output_dir / "checkpoint-100") is None
    damage(output_dir / "checkpoint-100")
    assert reason in why_incomplete(output_dir / "checkpoint-100")
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-10"
    assert reason in caplog.text
    with pytest.raises(ValueError, match="Cannot resume"):
        checkpoints.to_resume_from(output_dir, str(output_dir / "checkpoint-100"), overwrite=False)


def test_no_damage_is_believed_and_none_is_more_than_one_line(tmp_path, caplog):
    """30 of each, half of them in the manifest."""
    whole, damaged = tmp_path / "whole", tmp_path / "run" / "checkpoint-2"
    write_checkpoint(tmp_path / "run" / "checkpoint-1")
    seal(tmp_path / "run" / "checkpoint-1")
    write_checkpoint(whole)
    seal(whole)
    manifest = json.loads((whole / MANIFEST).read_text())
    for seed in range(30):
        how = mutated_copy(whole, damaged, seed, MANIFEST if seed % 2 else None)
        reason = why_incomplete(damaged)
        if reason is None:  # a line's end that is gone
            assert json.loads((damaged / MANIFEST).read_text()) == manifest, how
        else:
            assert "\n" not in reason
            assert len(reason) < 300, how
            assert checkpoints.newest_complete(damaged.parent).name == "checkpoint-1", how
            assert reason in caplog.text
            with pytest.raises(ValueError, match="Cannot resume") as refusal:
                checkpoints.to_resume_from(damaged.parent, str(damaged), overwrite=False)
            assert "\n" not in str(refusal.value)
        checkpoints.rotate(damaged.parent, keep=2, best=None)  # keeps what it does not understand
        shutil.rmtree(damaged)
        caplog.clear()


def test_older_ones_go_only_when_the_new_one_is_on_the_disk(output_dir, monkeypatch):
    """A power cut keeps what was flushed: files, their folder, the manifest, the folder that names the checkpoint."""
    events, fsync, replace, unlink = [], os.fsync, os.replace, Path.unlink

    def note(kind, path):
        events.append((kind, os.path.relpath(path, output_dir)))

    def note_fsync(number):
        note("flush", os.readlink(f"/proc/self/fd/{number}"))
        fsync(number)

    def note_replace(source, target):
        note("name", target)
        replace(source, target)

    def note_unlink(path, **options):
        if "checkpoint-200" not in str(path):  # a half-written file of its own is no loss
            note("remove", path)
        unlink(path, **options)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    monkeypatch.setattr(Path, "unlink", note_unlink)
    new = output_dir / "checkpoint-200"
    write_checkpoint(new)
    seal(new)
    checkpoints.rotate(output_dir, keep=1, best=None)
    files = {str(file.relative_to(output_dir)) for file in new.rglob("*") if file.name != MANIFEST}
    named = events.index(("name", f"checkpoint-200/{MANIFEST}"))
    assert {path for _, path in events[: named - 1]} == files | {"checkpoint-200"}
    assert events[named - 1][1].endswith(PARTIAL)
    assert events[named + 1 : named + 3] == [("flush", "checkpoint-200"), ("flush", ".")]
    removed = events[named + 3 :]
    assert [kind for kind, _ in removed] == ["remove"] * len(removed)
    assert len({path.split("/")[0] for _, path in removed}) == 3


def test_weights_of_a_damaged_checkpoint_are_not_released(output_dir):
    best = output_dir / "checkpoint-10"
    checkpoints.refuse_damaged_best(None)
    checkpoints.refuse_damaged_best(str(best))
    flip_bits_of(best / "optimizer.pt", b"state")
    with pytest.raises(ValueError, match=r"checkpoint-10, cannot be released: optimizer\.pt has changed"):
        checkpoints.refuse_damaged_best(str(best))


def test_rotation_keeps_the_newest_complete_ones_and_the_best(output_dir):
    (output_dir / "checkpoint-200").mkdir()  # a run was killed while it wrote this one
    checkpoints.rotate(output_dir, keep=1, best=str(output_dir / "checkpoint-5"))
    assert [path.name for path in checkpoints.checkpoints(output_dir)] == [
        "checkpoint-5",
        "checkpoint-100",
        "checkpoint-200",
    ]
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-100"


def test_a_manifest_that_cannot_be_read_takes_no_place_in_the_rotation(output_dir):
    (output_dir / "checkpoint-5" / MANIFEST).write_text("[]")
    checkpoints.rotate(output_dir, keep=1, best=None)
    assert [path.name for path in checkpoints.checkpoints(output_dir)] == ["checkpoint-5", "checkpoint-100"]
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-100"


def test_a_new_run_does_not_mix_with_an_earlier_one(output_dir):
    with pytest.raises(ValueError, match="--resume_from_checkpoint"):
        checkpoints.to_resume_from(output_dir, None, overwrite=False)
    assert checkpoints.to_resume_from(output_dir, None, overwrite=True) is None
    assert len(checkpoints.checkpoints(output_dir)) == 3  # nothing is removed before the new run can start


def test_rotation_removes_the_files_of_the_manifest_alone(output_dir, tmp_path, caplog):
    (output_dir / "checkpoint-5" / "1_Pooling" / "notes.txt").write_text("mine")
    (output_dir / "checkpoint-10").rename(tmp_path / "elsewhere")
    (output_dir / "checkpoint-10").symlink_to(tmp_path / "elsewhere")
    checkpoints.rotate(output_dir, keep=1, best=None)
    left = [path.relative_to(output_dir).as_posix() for path in (output_dir / "checkpoint-5").rglob("*.*")]
    assert left == ["checkpoint-5/1_Pooling/notes.txt"]
    assert "checkpoint-5 keeps files that are not of the checkpoint" in caplog.text
    assert checkpoints.why_incomplete(tmp_path / "elsewhere") is None


def test_after_going_back_the_newest_is_the_one_written_last(output_dir):
    """A run resumed from checkpoint-5, since the later ones went wrong, writes checkpoint-7."""
    write_checkpoint(output_dir / "checkpoint-7")
    seal(output_dir / "checkpoint-7")
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-7"
    checkpoints.rotate(output_dir, keep=2, best=None)
    assert [path.name for path in checkpoints.checkpoints(output_dir)] == ["checkpoint-7", "checkpoint-100"]


def test_a_checkpoint_without_optimizer_cannot_be_resumed(output_dir):
    (output_dir / "checkpoint-100" / "optimizer.pt").unlink()
    seal(output_dir / "checkpoint-100")
    with pytest.raises(ValueError, match="save_only_model"):
        checkpoints.to_resume_from(output_dir, "newest", overwrite=False)


def test_true_in_a_recipe_is_the_newest(output_dir):
    newest = checkpoints.newest_complete(output_dir)
    assert newest is not None
    assert checkpoints.to_resume_from(output_dir, "True", overwrite=False) == newest


def test_where_none_is_complete_nothing_is_removed_unless_told(output_dir, monkeypatch, caplog):
    for directory in checkpoints.checkpoints(output_dir):
        flip_bits_of(directory / "optimizer.pt", b"state")
    (output_dir / "checkpoint-5" / MANIFEST).unlink()  # as of stock Trainer
    with pytest.raises(ValueError, match="--overwrite_output_dir") as refusal:
        checkpoints.to_resume_from(output_dir, "newest", overwrite=False)
    assert "checkpoint-5: it has no" in str(refusal.value)
    assert "checkpoint-100: optimizer.pt has changed" in str(refusal.value)
    assert len(checkpoints.checkpoints(output_dir)) == 3
    assert checkpoints.to_resume_from(output_dir, "newest", overwrite=True) is None
    assert "starting from the beginning" in caplog.text

    def unreadable(file):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FileRecord, "of", unreadable)
    with pytest.raises(ValueError, match=r"checkpoint-10: \S+ cannot be read: Input/output error"):
        checkpoints.to_resume_from(output_dir, "newest", overwrite=False)


def test_resuming_where_nothing_is_complete_starts_from_the_beginning(tmp_path, caplog):
    assert checkpoints.to_resume_from(tmp_path / "nowhere", "newest", overwrite=False) is None
    assert "starting from the beginning" in caplog.text


def test_a_restarted_run_goes_on_from_its_own_newest_checkpoint(output_dir, caplog):
    written = {path: checkpoints._written(path) for path in checkpoints.checkpoints(output_dir)}
    newest, start = max(written, key=written.get), min(written, key=written.get)
    assert checkpoints.to_go_on_from(output_dir, Begun(written[newest], str(start))) == newest
    after = written[newest] + 1  # the run wrote none: all are of earlier ones
    assert checkpoints.to_go_on_from(output_dir, Begun(after, str(start))) == start
    assert checkpoints.to_go_on_from(output_dir, Begun(after, None)) is None
    assert "no complete checkpoint yet, and starts from the beginning" in caplog.text
    assert len(checkpoints.checkpoints(output_dir)) == len(written)


class Elsewhere:
    """Another machine, which has copies of these checkpoints, and what it says to a choice of the first process."""

    def __init__(self, folder, checkpoints):
        self.folder = folder
        for checkpoint in checkpoints:
            shutil.copytree(checkpoint, folder / checkpoint.name)

    def says(self, chosen):
        try:
            chosen.refuse_another(self.folder)
        except ValueError as error:
            return str(error)
        return None


def test_the_same_checkpoint_at_another_place_is_resumed_from(output_dir, tmp_path):
    newest = checkpoints.newest_complete(output_dir)
    elsewhere = Elsewhere(tmp_path / "elsewhere", [newest])
    for choice, is_newest in ((newest, True), (newest, False)):
        chosen = checkpoints.Chosen.of(choice, output_dir, is_newest)
        assert elsewhere.says(chosen) is None
        assert chosen.path_in(elsewhere.folder) == elsewhere.folder / newest.name
        assert chosen.path_in(output_dir) == newest
    outside = checkpoints.Chosen.of(newest, tmp_path / "other", False)
    assert outside.path_in(elsewhere.folder) == newest  # named by its path, which is the same everywhere
    assert elsewhere.says(checkpoints.Chosen.of(None, output_dir, False)) is None  # --overwrite_output_dir


def test_another_checkpoint_elsewhere_is_refused(output_dir, tmp_path):
    """One that is missing, damaged or other, and a newer one: the machines may have changed places."""
    five, ten, hundred = (output_dir / f"checkpoint-{step}" for step in (5, 10, 100))
    chosen = checkpoints.Chosen.of(ten, output_dir, True)
    said = Elsewhere(tmp_path / "none", [five]).says(chosen)
    assert re.search(r"cannot resume from \S+checkpoint-10, as rank 0 on \S+ does: it is not there\. Put", said)
    damaged = Elsewhere(tmp_path / "damaged", [ten])
    flip_bits_of(damaged.folder / "checkpoint-10" / "optimizer.pt", b"state")
    assert "optimizer.pt has changed since" in damaged.says(chosen)
    other = Elsewhere(tmp_path / "other", [ten])
    seal(other.folder / "checkpoint-10")
    assert "checkpoint-10 is another than that of rank 0 on " in other.says(chosen)
    newer = Elsewhere(tmp_path / "newer", [five, ten, hundred])
    assert "checkpoint-100 is here, and rank 0 on " in (said := newer.says(chosen))
    assert "resumes from checkpoint-10. Put --output_dir on a file system" in said
    assert newer.says(checkpoints.Chosen.of(ten, output_dir, False)) is None  # the user named it
    for is_newest, expected in ((True, "finds no checkpoint"), (False, None)):
        said = newer.says(checkpoints.Chosen.of(None, output_dir, is_newest))
        assert said is None if expected is None else expected in said
    after = checkpoints._written(hundred) + 1  # of a run that was restarted before its first checkpoint
    assert newer.says(checkpoints.Chosen.of(None, output_dir, True, since=after)) is None


def test_a_run_is_not_resumed_with_another_view(tmp_path):
    """Checkpoints of earlier versions do not tell theirs, and are resumed as before."""

    def saved(**settings):
        (tmp_path / "config.json").write_text(
            json.dumps({"docsplit": current_settings({"pooling": "mean"} | settings)})
        )

    def config(**settings):
        return {"docsplit": current_settings({"pooling": "mean"} | settings)}

    saved(view="passages", passage_words=25)
    checkpoints.check_same_model(tmp_path, config(view="passages", passage_words=25))
    for other in ({"view": "docsplit"}, {"view": "passages", "passage_words": 100}):
        with pytest.raises(ValueError, match=r"The model differs.*'view': 'passages', 'passage_words': 25"):
            checkpoints.check_same_model(tmp_path, config(**other))
    saved()
    checkpoints.check_same_model(tmp_path, config(view="passages", passage_words=25))
    with pytest.raises(ValueError, match="'pooling': 'max'"):
        checkpoints.check_same_model(tmp_path, config(view="simcse", pooling="max"))
