"""An output folder: who writes into it, over what, and what is remembered after a kill."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from docsplit.runtime.files import ALL, LOCK, NUMBER, RECORD, OutputFolder, Record, Writer

WRITER = Writer("train.py", "--output_dir", ("README.md", "model*.bin", f"step-{NUMBER}/{ALL}", "parts/*/part.json"))
NOBODY = 2**22 + 1  # the number of no process: the largest of Linux is 2**22
OTHER = Writer("export.py", "OUT", ("README.md",))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


def fill(folder, *names, text="mine"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def contents(folder):
    """All files and links of a folder but those of its record and lock, with what is in them."""
    paths = (path for path in sorted(folder.rglob("*")) if not path.is_dir() or path.is_symlink())
    shown = {path.relative_to(folder).as_posix(): path for path in paths if path.name not in (RECORD, LOCK)}
    return {name: os.readlink(path) if path.is_symlink() else path.read_text() for name, path in shown.items()}


def run(folder, *names, writer=WRITER):
    """A whole run."""
    taken = OutputFolder(folder, writer).take()
    fill(folder, *names, text="written")
    taken.close()


def refusal(folder, writer=WRITER):
    """What a run is refused with, which changes nothing."""
    before = contents(folder), (folder / RECORD).exists() and (folder / RECORD).read_bytes()
    with pytest.raises(ValueError, match="choose another") as refused:
        OutputFolder(folder, writer).take()
    assert (contents(folder), (folder / RECORD).exists() and (folder / RECORD).read_bytes()) == before
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_what_a_run_wrote_is_recorded_and_replaced_and_nothing_else(folder):
    run(folder, "README.md", "model-1.bin", "step-10/a/b.txt")
    fill(folder, "notes.txt", "step-10-copy/a.txt", "parts/mine.txt")
    assert Record.read(folder).files == {"train.py": ["README.md", "model-1.bin", "step-10/a/b.txt"]}
    taken = OutputFolder(folder, WRITER).take()
    taken.remove(WRITER.writes)
    fill(folder, "model-2.bin", text="written")
    taken.close()
    theirs = dict.fromkeys(["notes.txt", "parts/mine.txt", "step-10-copy/a.txt"], "mine")
    assert contents(folder) == theirs | {"model-2.bin": "written"}
    assert not (folder / "step-10").exists()
    assert Record.read(folder) == Record({"train.py": ["model-2.bin"]})


@pytest.mark.parametrize("name", ["README.md", "model7.bin", "step-3/x/y", "parts/a/part.json", "step-10/notes.txt"])
def test_a_file_of_a_user_stops_the_run_before_anything_changes(folder, name):
    run(folder, "model-1.bin", "step-10/a.txt")
    fill(folder, name)
    expected = f"{folder / name} is of no run of this project, and this run would write over it or remove it: "
    assert refusal(folder) == f"{expected}choose another --output_dir, or move it away."
    (folder / name).rename(folder / "moved")
    run(folder, "model-1.bin")


def test_a_file_that_the_user_put_in_place_of_a_removed_one_is_not_ours(folder):
    run(folder, "README.md", "model.bin")
    (folder / "README.md").unlink()
    run(folder, "model.bin")
    fill(folder, "README.md")
    assert "README.md is of no run" in refusal(folder)


@pytest.mark.parametrize("place", ["README.md", "step-10", "step-10/a", "parts", "parts/x"])
@pytest.mark.parametrize("leads", ["somewhere", "nowhere"])
def test_nothing_is_written_through_a_link(folder, tmp_path, place, leads):
    elsewhere = tmp_path / "elsewhere"
    if leads == "somewhere":
        fill(elsewhere, "part.json", "x/part.json", "a.txt")
    run(folder, "model.bin", "step-11/a.txt")
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).symlink_to(elsewhere)
    if (leads, place) == ("nowhere", "parts/x"):  # nothing of a run's has this name
        return run(folder)
    assert refusal(folder).startswith(f"{folder / place} is a symbolic link, and this run")
    assert not elsewhere.exists() or contents(elsewhere) == dict.fromkeys(
        ["a.txt", "part.json", "x/part.json"], "mine"
    )


def test_a_recorded_file_that_became_a_link_is_not_followed(folder, tmp_path):
    run(folder, "model.bin")
    (folder / "model.bin").rename(tmp_path / "big")
    (folder / "model.bin").symlink_to(tmp_path / "big")
    assert "model.bin is a symbolic link" in refusal(folder)


def test_folders_and_files_in_place_of_each_other_stop_the_run(folder):
    fill(folder, "README.md/notes.txt")
    assert "README.md is a folder" in refusal(folder)
    (folder / "README.md").rename(folder / "mine")
    fill(folder, "parts")
    assert "parts is no folder" in refusal(folder)


def test_files_of_another_command_are_not_replaced(folder):
    run(folder, "README.md")
    assert "README.md is of train.py, and this run would" in refusal(folder, OTHER)
    run(folder / "new", "README.md", writer=OTHER)
    assert Record.read(folder / "new").files == {"export.py": ["README.md"]}


def test_a_file_that_appears_meanwhile_is_kept_beside(folder, caplog):
    phases = Writer("train.py", "--output_dir", ("README.md", "log"), writes_first=("log",))
    fill(folder, "README.md.kept", text="older")
    taken = OutputFolder(folder, phases).take()
    fill(folder, "README.md")
    taken.intend(["README.md"])
    fill(folder, "README.md", text="written")
    taken.close()
    assert contents(folder) == {"README.md": "written", "README.md.kept": "older", "README.md.kept1": "mine"}
    assert "what was there is kept as README.md.kept1" in caplog.text


def test_a_file_that_appears_meanwhile_is_not_removed(folder, caplog):
    taken = OutputFolder(folder, Writer("train.py", "--output_dir", ("README.md",), writes_first=())).take()
    fill(folder, "README.md")
    taken.remove(["README.md"])
    assert contents(folder)["README.md"] == "mine"
    assert "README.md stays" in caplog.text
    taken.close()


def test_after_a_kill_what_was_about_to_be_written_is_ours_and_no_more(folder):
    phases = Writer("train.py", "--output_dir", ("README.md", "model.bin"), writes_first=("model.bin",))
    killed_run(folder, phases, "open('model.bin', 'w').write('half')")
    fill(folder, "README.md")
    assert "README.md is of no run" in refusal(folder, phases)
    (folder / "README.md").unlink()
    run(folder, "model.bin", writer=phases)
    assert contents(folder) == {"model.bin": "written"}


def killed_run(folder, writer, code, wait=True):
    """Start a process that takes the folder, runs code in it and waits; kill it unless `wait` is False."""
    script = f"""
import os, sys, time
from pathlib import Path
from docsplit.runtime.files import OutputFolder, Writer
writer = Writer({writer.name!r}, "", {writer.writes!r}, {writer.writes_first!r})
taken = OutputFolder(Path({str(folder)!r}), writer).take()
os.chdir({str(folder)!r})
{code}
lives, says = os.pipe()
if os.fork() == 0:  # a worker that outlives the run, and has given the lock up once it runs
    os.write(says, b"1")
    time.sleep(20)
    os._exit(0)
os.read(lives, 1)
print("ready", flush=True)
time.sleep(20)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    if wait:
        kill(process)
    return process


def kill(process):
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_second_run_names_the_first_which_leaves_no_lock_when_it_is_killed(folder):
    first = killed_run(folder, WRITER, "", wait=False)
    try:
        expected = f"{folder} is in use by process {first.pid} on {socket.gethostname()}: wait until it has ended, or "
        assert refusal(folder) == f"{expected}choose another --output_dir."
        assert refusal(folder, OTHER).startswith(f"{folder} is in use by process {first.pid}")
        kill(first)
        run(folder, "README.md")  # though a worker of the first one lives
        assert contents(folder) == {"README.md": "written"}
    finally:
        os.killpg(first.pid, signal.SIGKILL)


def test_a_call_that_failed_does_not_keep_the_next_one_of_its_process_out(folder):
    OutputFolder(folder, WRITER).take()
    run(folder, "README.md")


def test_a_run_that_wrote_nothing_leaves_nothing(tmp_path):
    OutputFolder(tmp_path / "a" / "b", WRITER).take().close()
    assert not list(tmp_path.iterdir())
    (tmp_path / "a").mkdir()
    OutputFolder(tmp_path / "a", WRITER).take().close()
    assert not list((tmp_path / "a").iterdir())


def test_a_path_that_cannot_be_written_is_one_line(tmp_path):
    fill(tmp_path, "file")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=r"cannot be written: choose another --output_dir\. The cause: ") as refused:
            OutputFolder(path, WRITER).take()
        assert "\n" not in str(refused.value)
    assert contents(tmp_path) == {"file": "mine"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable_is_one_line(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o555)
    for path in (tmp_path / "closed", tmp_path / "closed" / "below"):
        with pytest.raises(OSError, match=r"cannot be written: choose another --output_dir"):
            OutputFolder(path, WRITER).take()


def test_a_damaged_record_stops_the_run(folder):
    run(folder, "README.md")
    for text in ("{", "[]", json.dumps({"files": {}}), (folder / RECORD).read_text().replace("README", "NOTICE")):
        (folder / RECORD).write_text(text)
        assert refusal(folder).endswith(f"It says what runs wrote into {folder}: choose another folder.")


def test_files_that_no_record_names_are_ours_where_the_command_says_so(folder):
    fill(folder, "README.md", "model.bin")
    knows = Writer("train.py", "--output_dir", WRITER.writes, unrecorded=lambda folder: [folder / "model.bin"])
    assert "README.md is of no run" in refusal(folder, knows)
    (folder / "README.md").unlink()
    run(folder, "model.bin", writer=knows)
    assert Record.read(folder).files == {"train.py": ["model.bin"]}


def test_another_folder_is_not_looked_at(folder, caplog):
    """Names that only look like those of a run are nobody's concern."""
    fill(folder, "step-a/x", "step-1x/x", "step-/x", "a/README.md", "model/x", "parts/part.json")
    with caplog.at_level(logging.WARNING):
        taken = OutputFolder(folder, WRITER).take()
        taken.remove(WRITER.writes)
        taken.close()
    assert set(contents(folder).values()) == {"mine"}
    assert not caplog.text
    assert not (folder / LOCK).exists()


def test_half_written_files_of_a_kill_go_and_others_stay(folder):
    ours = (f".README.md.{NOBODY}.partial", f"parts/a/.part.json.{NOBODY}.partial", f".{RECORD}.{NOBODY}.partial")
    users = (
        *(f".notes.txt.{NOBODY}.partial", ".README.md.partial", ".README.md.x.partial"),
        *(f"README.md.{NOBODY}.partial", f"a/.b.{NOBODY}.partial", f"{RECORD}.{NOBODY}.partial"),
        *(f"a/.{RECORD}.{NOBODY}.partial", f".{RECORD}.partial"),
    )
    fill(folder, *ours, *users)
    (folder / f".model.bin.{NOBODY}.partial").symlink_to(folder / "a" / f".b.{NOBODY}.partial")
    run(folder)
    assert contents(folder).keys() == {*users, f".model.bin.{NOBODY}.partial"}


def test_what_a_living_process_writes_stays_until_it_has_ended(folder):
    """Its number alone says nothing: after a kill, it may be that of a process that began later."""
    half = (f".README.md.{os.getppid()}.partial", f".{RECORD}.{os.getppid()}.partial")
    fill(folder, *half)
    run(folder)
    assert contents(folder).keys() == {*half}
    for name in half:
        os.utime(folder / name, (0, 0))
    run(folder)
    assert contents(folder) == {}


def test_a_record_that_a_kill_left_half_written_goes(folder):
    """As SIGKILL leaves it: the process dies while it writes."""
    killed = f"""
import os, signal
from pathlib import Path
from docsplit.runtime import files
from docsplit.runtime.files import OutputFolder, Writer
files.flush = lambda path: os.kill(os.getpid(), signal.SIGKILL)
OutputFolder(Path({str(folder)!r}), Writer("train.py", "", ("README.md",))).take()
"""
    ended = subprocess.run([sys.executable, "-c", killed], cwd=Path(__file__).parents[3], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [name for name in contents(folder) if name.endswith(".partial")]
    run(folder, "README.md")
    assert contents(folder) == {"README.md": "written"}
