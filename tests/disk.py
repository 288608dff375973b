"""What reaches the disk, and in which order."""

import os
from pathlib import Path

import pytest


def record_disk(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path, int]]:
    """Return a list to which each flush, new name and removal of a file is added: the kind, its path, and its size."""
    events: list[tuple[str, Path, int]] = []
    sync, replace, unlink = os.fsync, os.replace, Path.unlink

    def note_sync(number):
        events.append(("flush", Path(os.readlink(f"/proc/self/fd/{number}")), os.fstat(number).st_size))
        sync(number)

    def note_replace(old, new):
        events.append(("name", Path(new), Path(old).stat().st_size))
        replace(old, new)

    def note_unlink(path, **options):
        if path.exists():
            events.append(("remove", path, 0))
        unlink(path, **options)

    for owner, name, noted in ((os, "fsync", note_sync), (os, "replace", note_replace), (Path, "unlink", note_unlink)):
        monkeypatch.setattr(owner, name, noted)
    return events
