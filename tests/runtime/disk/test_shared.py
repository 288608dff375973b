"""Three processes, of which the first and the last see one folder: who goes first, and what all hear of an error."""

import json
import socket
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from docsplit.runtime.sharing import first_in, first_that_sees, from_first, on_all, refuse_differences
from tests.processes import free_port, spawn

SIZE, FOLDERS = 3, ("shared", "own", "shared")


def build(folder: Path) -> int:
    """Build what is not there, as a cache does; return how many had to, at this folder, when this process came."""
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
    place = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=SIZE)
    here = folder / FOLDERS[rank] / "cache"
    seen = {"first": first_that_sees(here)}
    with first_in(here):
        seen["found"] = build(here)
    seen["left"] = sorted(path.name for path in here.iterdir())
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


def test_each_folder_has_a_first_process_which_builds_alone(seen):
    assert [each["first"] for each in seen] == [0, 1, 0]
    assert [each["found"] for each in seen] == [0, 0, 1]
    assert [each["left"] for each in seen] == [["built-0"], ["built-1"], ["built-0"]]  # no marks


def test_all_hear_what_one_did_and_what_stopped_it(seen):
    for each in seen:
        assert each["all"] == [0, 10, 20]
        assert each["from_first"] == 0
        assert each["errors"] == [f"ValueError: rank 2 on {socket.gethostname()}: no room", "ValueError: no room"]


def test_all_hear_who_differs_in_what(seen):
    host = socket.gethostname()
    for each in seen:
        assert each["different"].startswith(f"rank 2 on {host} differs from rank 0 on {host} in --seed: give all")


def test_one_process_asks_nobody(tmp_path):
    with first_in(tmp_path / "missing"):
        assert not (tmp_path / "missing").exists()
    assert first_that_sees(tmp_path) == 0
    assert on_all(lambda: 3) == [3]
    with pytest.raises(OSError, match="no room"):
        from_first(lambda: (_ for _ in ()).throw(OSError("no room")))
