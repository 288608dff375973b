"""What was begun is known after a restart, and to nobody else."""

from pathlib import Path

import pytest
import torch.distributed as dist

from docsplit.runtime.launching import Begun, begun_before, note_begin, restart_count


@pytest.fixture
def launcher(monkeypatch):
    """Make this process one of a launcher with a store."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    values = {"RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    for name, value in (values | {"TORCHELASTIC_MAX_RESTARTS": 2, "TORCHELASTIC_RESTART_COUNT": 0}).items():
        monkeypatch.setenv(name, str(value))
    return store


def test_what_was_begun_first_is_known_after_a_restart(launcher, tmp_path, monkeypatch):
    note_begin(tmp_path, Path("checkpoint-4"))
    assert begun_before(tmp_path) is None  # that is this start
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert restart_count() == 1
    begun = begun_before(tmp_path)
    assert begun == Begun(begun.time, "checkpoint-4")
    note_begin(tmp_path, Path("checkpoint-8"))
    assert begun_before(tmp_path / "." / "sub" / "..") == begun
    assert begun_before(tmp_path / "other") is None
    note_begin(tmp_path / "other", None)
    assert begun_before(tmp_path / "other").checkpoint is None


@pytest.mark.parametrize("missing", ["TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", "RANK"])
def test_without_a_launcher_that_restarts_nothing_is_noted(launcher, tmp_path, monkeypatch, missing):
    """The training that `adapt.py --train` starts has the launcher's variables, and no rank."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.delenv(missing)
    note_begin(tmp_path, None)
    assert begun_before(tmp_path) is None
    assert launcher.num_keys() <= 1  # the store counts its workers
