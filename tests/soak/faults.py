"""Make the Nth change of a folder fail, as a disk does that is full, broken or read-only.

Python tells audit hooks of each file that is opened, renamed or removed, before it happens; an exception of a hook
takes its place. Hooks cannot be removed: install them in a process that ends. What native libraries write themselves
(torch.save, safetensors) passes by Python and is failed where it begins.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Faults:
    """Counts the changes of a folder from now on in this process, and fails one of them.

    Args:
        fails: the number of the change that fails, counted from 0; None: none does.
        code: what it fails with, `errno.ENOSPC` for example.
    """

    def __init__(self, folder: Path, fails: int | None = None, code: int = 0):
        self.folder, self.fails, self.code, self.count = os.path.abspath(folder), fails, code, 0
        sys.addaudithook(self._hook)
        self._wrap_fsync()
        self._wrap_native_writers()

    def change(self, path: object) -> None:
        """Count a change of a path in the folder.

        Raises:
            OSError: if it is the one to fail.
        """
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.path.abspath(os.fsdecode(path))
        if name != self.folder and not name.startswith(self.folder + os.sep):
            return
        self.count += 1
        if self.count - 1 == self.fails:
            raise OSError(self.code, os.strerror(self.code), name)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if (isinstance(mode, str) and set(mode) & set("wax+")) or (mode is None and flags & WRITES):
                self.change(path)
        elif event in CHANGES:
            self.change(args[1] if event == "os.rename" else args[0])

    def _wrap_fsync(self) -> None:
        sync = os.fsync

        def fsync(number: int) -> None:
            self.change(os.readlink(f"/proc/self/fd/{number}"))
            sync(number)

        os.fsync = fsync

    def _wrap_native_writers(self) -> None:
        import safetensors.torch
        import torch

        self._wrap(safetensors.torch, "serialize_file", 1)
        self._wrap(torch._C, "PyTorchFileWriter", 0)

    def _wrap(self, module: Any, name: str, place: int) -> None:
        """Count a call of a function as a change of the path that is its argument at `place`."""
        function: Callable[..., Any] = getattr(module, name)

        def counted(*args: Any, **options: Any) -> Any:
            if len(args) > place:
                self.change(args[place])
            return function(*args, **options)

        setattr(module, name, counted)
