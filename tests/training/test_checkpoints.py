"""A checkpoint counts only when it is whole."""

import os

import pytest

from docsplit.runtime.restarts import Begun
from docsplit.training import checkpoints


@pytest.fixture
def output_dir(tmp_path):
    for step in (5, 10, 100):
        directory = tmp_path / f"checkpoint-{step}"
        (directory / "1_Pooling").mkdir(parents=True)
        (directory / "model.safetensors").write_bytes(os.urandom(1000))
        (directory / "1_Pooling" / "config.json").write_text("{}")
        (directory / "optimizer.pt").write_bytes(b"state")
        checkpoints.seal(directory)
    return tmp_path


def test_the_newest_is_the_one_written_last(output_dir):
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-100"


def test_what_a_kill_left_half_written_is_no_part_of_a_checkpoint(output_dir):
    left = output_dir / "checkpoint-5" / f".training_state.safetensors.4242{checkpoints.PARTIAL}"
    left.write_bytes(b"half")
    checkpoints.seal(left.parent)
    assert not left.exists()
    assert checkpoints.why_incomplete(left.parent) is None


def flip_bits_of(path, name):
    """One in each occurrence of the name."""
    content = path.read_bytes()
    assert name in content
    path.write_bytes(content.replace(name, name[:2] + bytes([name[2] ^ 1]) + name[3:]))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda directory: (directory / checkpoints.MANIFEST).unlink(), f"no {checkpoints.MANIFEST}"),
        (lambda directory: (directory / checkpoints.MANIFEST).write_text('{"files": {"mod'), "cannot be understood"),
        (lambda directory: (directory / checkpoints.MANIFEST).write_text("[]"), "cannot be understood"),
        (
            lambda directory: (directory / checkpoints.MANIFEST).write_text('{"written": 1, "files": {"a": 1}}'),
            "TypeE",
        ),
        (lambda directory: flip_bits_of(directory / checkpoints.MANIFEST, b'"size"'), "cannot be understood"),
        (lambda directory: flip_bits_of(directory / checkpoints.MANIFEST, b'"written"'), "cannot be understood"),
        (lambda directory: (directory / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda directory: os.truncate(directory / "model.safetensors", 10), "10 bytes"),
        (lambda directory: (directory / "1_Pooling" / "config.json").unlink(), "config.json is missing"),
    ],
)
def test_damaged_ones_are_passed_over(output_dir, damage, reason, caplog):
    assert checkpoints.why_incomplete(output_dir / "checkpoint-100") is None
    damage(output_dir / "checkpoint-100")
    assert reason in checkpoints.why_incomplete(output_dir / "checkpoint-100")
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-10"
    assert reason in caplog.text
    with pytest.raises(ValueError, match="Cannot resume"):
        checkpoints.to_resume_from(output_dir, str(output_dir / "checkpoint-100"), overwrite=False)


def test_one_flipped_bit_is_noticed(output_dir):
    file = output_dir / "checkpoint-100" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[500] ^= 1
    file.write_bytes(content)
    assert "has changed" in checkpoints.why_incomplete(file.parent)


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
    (output_dir / "checkpoint-5" / checkpoints.MANIFEST).write_text("[]")
    checkpoints.rotate(output_dir, keep=1, best=None)
    assert [path.name for path in checkpoints.checkpoints(output_dir)] == ["checkpoint-5", "checkpoint-100"]
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-100"


def test_a_new_run_does_not_mix_with_an_earlier_one(output_dir):
    with pytest.raises(ValueError, match="--resume_from_checkpoint"):
        checkpoints.to_resume_from(output_dir, None, overwrite=False)
    assert checkpoints.to_resume_from(output_dir, None, overwrite=True) is None
    assert len(checkpoints.checkpoints(output_dir)) == 3  # nothing is removed before the new run can start
    checkpoints.remove_earlier_run(output_dir)
    assert checkpoints.checkpoints(output_dir) == []


def test_results_of_weights_that_change_go_and_nothing_else(tmp_path):
    ours = ["all_results.json", "run.json", "evaluations/news/results.json", "evaluations/news/few_shot.png"]
    ours += ["training_documents.safetensors"]
    theirs = ["README.md", "notes.txt", "evaluations/mine.txt", "evaluations/news/comments.md"]
    for name in ours + theirs:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    checkpoints.remove_results(tmp_path)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")) == sorted(theirs)


def test_after_going_back_the_newest_is_the_one_written_last(output_dir):
    """A run resumed from checkpoint-5, since the later ones went wrong, writes checkpoint-7."""
    (output_dir / "checkpoint-7").mkdir()
    (output_dir / "checkpoint-7" / "optimizer.pt").write_bytes(b"state")
    checkpoints.seal(output_dir / "checkpoint-7")
    assert checkpoints.newest_complete(output_dir).name == "checkpoint-7"
    checkpoints.rotate(output_dir, keep=2, best=None)
    assert [path.name for path in checkpoints.checkpoints(output_dir)] == ["checkpoint-7", "checkpoint-100"]


def test_a_checkpoint_without_optimizer_cannot_be_resumed(output_dir):
    (output_dir / "checkpoint-100" / "optimizer.pt").unlink()
    checkpoints.seal(output_dir / "checkpoint-100")
    with pytest.raises(ValueError, match="save_only_model"):
        checkpoints.to_resume_from(output_dir, "newest", overwrite=False)


def test_true_in_a_recipe_is_the_newest(output_dir):
    newest = checkpoints.newest_complete(output_dir)
    assert newest is not None
    assert checkpoints.to_resume_from(output_dir, "True", overwrite=False) == newest


def test_where_none_is_complete_nothing_is_removed_unless_told(output_dir, monkeypatch, caplog):
    for directory in checkpoints.checkpoints(output_dir):
        flip_bits_of(directory / "optimizer.pt", b"state")
    (output_dir / "checkpoint-5" / checkpoints.MANIFEST).unlink()  # as of stock Trainer
    with pytest.raises(ValueError, match="--overwrite_output_dir") as refusal:
        checkpoints.to_resume_from(output_dir, "newest", overwrite=False)
    assert "checkpoint-5: it has no" in str(refusal.value)
    assert "checkpoint-100: optimizer.pt has changed" in str(refusal.value)
    assert len(checkpoints.checkpoints(output_dir)) == 3
    assert checkpoints.to_resume_from(output_dir, "newest", overwrite=True) is None
    assert "starting from the beginning" in caplog.text

    def unreadable(file):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoints, "_digest", unreadable)
    with pytest.raises(ValueError, match=r"checkpoint-10: it cannot be read .*Input/output error"):
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
