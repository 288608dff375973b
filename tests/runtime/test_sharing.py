"""An output folder has one writer, whose command wrote all that is in it; and what the processes of a run agree on."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from docsplit.runtime.launching import connect
from docsplit.runtime.sharing import (
    LOCK,
    RECORD,
    OutputFolder,
    begun_before,
    first_on_machine,
    from_first,
    on_all,
    refuse_differences,
    remove,
)
from tests.processes import ROOT, free_port, spawn

# --- An output folder ---


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


def output(folder, command="train.py"):
    return OutputFolder(folder, command, "--output_dir", ("README.md", "model*"), lambda path: path.name == "step-4")


def fill(folder, *names, text="mine"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def contents(folder):
    """All files and links of a folder but its record and lock."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    return {path.relative_to(folder).as_posix() for path in paths} - {RECORD, LOCK}


def run(folder, *names, command="train.py", has_results=True):
    with output(folder, command) as taken:
        if has_results:
            taken.begin_results()
        fill(folder, *names)


def refusal(folder, command="train.py"):
    """What a run is refused with, which changes nothing."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"choose another --output_dir(\.|, or move it away\.)$") as refused:
        output(folder, command).take()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_folder_of_the_same_command_is_taken_again_and_no_other(folder):
    run(folder, "README.md", "step-10/a")
    run(folder, "README.md")
    assert contents(folder) == {"README.md", "step-10/a"}
    assert not (folder / LOCK).exists()
    assert refusal(folder, "export.py").startswith(f"{folder} is of train.py, and")
    (folder / RECORD).unlink()
    assert "is of no run of train.py, and a run might write over it" in refusal(folder)
    fill(folder / "new", "notes.txt")
    assert f"{folder / 'new' / 'notes.txt'} is of no run of train.py" in refusal(folder / "new")


def test_what_only_the_command_writes_may_lie_there_without_a_record(folder):
    fill(folder, "step-4/weights")
    run(folder)
    assert (folder / RECORD).exists()


def test_before_its_results_what_is_named_like_one_is_the_users(folder):
    run(folder, "step-10/a", has_results=False)  # it was killed
    fill(folder, "notes.txt")
    run(folder, has_results=False)
    fill(folder, "model-1.bin")
    assert f"{folder / 'model-1.bin'} is of no run of train.py" in refusal(folder)
    (folder / "model-1.bin").unlink()
    run(folder, "model-1.bin")
    run(folder, has_results=False)  # and stays the command's


def test_nothing_is_written_or_removed_through_a_link(folder, tmp_path):
    fill(tmp_path / "elsewhere", "a.txt")
    run(folder, "model.bin")
    (folder / "step-10").symlink_to(tmp_path / "elsewhere")
    assert refusal(folder).startswith(f"{folder / 'step-10'} is a symbolic link, and")
    remove(folder, ["step-*/*", "step-*"])
    assert contents(folder) == {"model.bin"}
    assert contents(tmp_path / "elsewhere") == {"a.txt"}


def test_what_fits_is_removed_with_folders_that_are_empty_then(folder):
    fill(folder, "a.bin", "parts/x/part.json", "parts/y/part.json", "parts/y/notes.txt", "b.txt")
    remove(folder, ["*.bin", "parts/*/part.json", "parts", "missing/*"])
    assert contents(folder) == {"b.txt", "parts/y/notes.txt"}
    assert not (folder / "parts" / "x").exists()


def test_a_run_that_wrote_nothing_leaves_nothing(folder):
    run(folder)
    assert not folder.exists()
    folder.mkdir()
    run(folder)
    assert not list(folder.iterdir())


def test_a_call_that_failed_does_not_keep_the_next_one_of_its_process_out(folder):
    failed = output(folder).take()
    run(folder, "README.md")
    failed.close()
    assert contents(folder) == {"README.md"}


def test_what_was_begun_first_is_known_after_a_restart_and_to_no_other_launch(folder, monkeypatch):
    def start(restarts, checkpoint):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        with output(folder) as taken:
            before = begun_before(folder)
            taken.note_begin(checkpoint)
            fill(folder, "step-4/weights")  # of a run that wrote nothing, nothing is left
        return before and before.checkpoint, begun_before(folder)

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert begun_before(folder) is None
    first, second = start("0", Path("checkpoint-4")), start("1", Path("checkpoint-8"))
    assert (first[0], second) == (None, ("checkpoint-4", first[1]))
    assert abs(first[1].time - time.time()) < 60
    with monkeypatch.context() as patch:
        patch.setenv("MASTER_PORT", "29501")  # another launch, whose first start died before it took the folder
        assert start("1", None)[0] is None
    assert start("0", None)[0] is None
    assert start("1", Path("checkpoint-8"))[1].checkpoint is None
    monkeypatch.delenv("RANK")  # the training that `adapt.py --train` starts has the launcher's variables
    assert start("1", None)[0] is None


def test_a_path_that_cannot_be_written_is_one_line(tmp_path):
    fill(tmp_path, "file")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=r"cannot be written: choose another --output_dir\. The cause: ") as refused:
            output(path).take()
        assert "\n" not in str(refused.value)


def test_a_damaged_record_stops_the_run(folder):
    run(folder, "README.md")
    (folder / RECORD).write_text("{")
    with pytest.raises(ValueError, match=rf"{RECORD} is damaged"):
        output(folder).take()
    assert contents(folder) == {"README.md"}


def started(folder):
    """Start a process that takes the folder, and waits beside a worker that outlives it."""
    script = f"""
import os, time
from pathlib import Path
from docsplit.runtime.sharing import OutputFolder
taken = OutputFolder(Path({str(folder)!r}), "train.py", "--output_dir").take()
if os.fork() == 0:
    taken.close()  # which is not the worker's to do
    print("ready", flush=True)
    time.sleep(20)
    os._exit(0)
time.sleep(20)
"""
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)


def test_the_second_run_names_the_first_which_leaves_no_lock_when_it_is_killed(folder):
    first = started(folder)
    try:
        assert first.stdout.readline() == "ready\n"
        who = f"process {first.pid} on {socket.gethostname()}"
        expected = f"{folder} is in use by {who}: wait until it has ended, or choose another --output_dir."
        assert refusal(folder) == refusal(folder, "export.py") == expected
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        first.stdout.close()
    run(folder, "README.md")


def test_what_a_kill_left_half_written_goes(folder):
    run(folder, "README.md", ".README.md.12345.partial", "step-1/.a.1.partial")
    run(folder)
    assert contents(folder) == {"README.md", "step-1/.a.1.partial"}


# --- Three processes, of which the last is on another machine and sees other folders ---

SIZE = 3


def build(folder: Path) -> int:
    """Build what is not there, as a cache does; return how many had to, at this folder, when this process came."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [*folder.glob("built-*")]
    if not made:
        time.sleep(0.3)  # another would come meanwhile
        (folder / f"built-{dist.get_rank()}").touch()
    return len(made)


def fail_on(rank: int, error: Exception) -> int:
    if dist.get_rank() == rank:
        raise error
    return dist.get_rank()


def message_of(rank: int, error: Exception) -> str:
    try:
        return str(on_all(lambda: fail_on(rank, error)))
    except (ValueError, RuntimeError) as raised:
        return f"{type(raised).__name__}: {raised}"


def worker(rank: int, port: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": str(SIZE), "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    connect(on_cpu=True, timeout=60)
    here = folder / ("own" if rank == 2 else "shared")
    seen = {}
    with first_on_machine():
        seen["found"] = build(here / "cache")
    taken = output(here / "out").take_for_all()
    seen["seen_by"] = taken.seen_by
    seen["all"] = on_all(lambda: rank * 10)
    seen["from_first"] = from_first(lambda: fail_on(1, ValueError("not asked")))
    seen["errors"] = [message_of(2, ValueError("no room")), message_of(0, OSError("no room"))]
    refuse_differences(lambda: {"the model": "small"})
    try:
        refuse_differences(lambda: {"the model": "small", "--seed": str(rank // 2)})
    except ValueError as raised:
        seen["different"] = str(raised)
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    spawn(worker, (free_port(), folder), nprocs=SIZE)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(SIZE)]


def test_processes_agree_on_what_one_did_or_saw(seen):
    assert [each["found"] for each in seen] == [0, 1, 0]  # the first of each machine builds alone
    host = socket.gethostname()
    for each in seen:
        assert each["seen_by"] == [True, True, False]
        assert (each["all"], each["from_first"]) == ([0, 10, 20], 0)
        assert each["errors"] == [f"ValueError: rank 2 on {host}: no room", "ValueError: no room"]
        assert each["different"].startswith(f"rank 2 on {host} differs from rank 0 on {host} in --seed: give all")


def test_one_process_waits_for_no_other():
    with first_on_machine():
        assert on_all(lambda: 3) == [3]
    with pytest.raises(OSError, match="no room"):
        from_first(lambda: (_ for _ in ()).throw(OSError("no room")))
    refuse_differences(lambda: pytest.fail("nothing to compare"))
