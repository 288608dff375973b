"""Scripts as commands. They import this before torch and tqdm, which read the environment once, when they are loaded.

Waiting threads sleep: threads that spin make a run ten times slower beside other work. Bars in a file, which cannot be
redrawn, get a line every half minute.
"""

import linecache
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from docsplit.runtime.display import protect_logs
from docsplit.runtime.ending import end_with
from docsplit.runtime.files import why_not_written

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")  # the first since torch 2.9
NVIDIA = Path("/dev/nvidiactl")  # is there where a driver of NVIDIA has a GPU, on Linux


def memory_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that makes torch's blocks of GPU memory grow; none where the user says how it allocates.

    Batches differ in length, and blocks of a fixed size are left with gaps: memory runs out while much of it is free
    (https://docs.pytorch.org/docs/stable/notes/cuda.html, `expandable_segments`).
    """
    is_said = any(name in environment for name in ALLOCATOR)
    return {} if is_said or not NVIDIA.exists() else {ALLOCATOR[0]: "expandable_segments:True"}


os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if not sys.stderr.isatty():
    for interval in ("TQDM_MININTERVAL", "TQDM_MAXINTERVAL"):
        os.environ.setdefault(interval, "30")  # seconds
os.environ |= memory_settings(os.environ)
SHOW_TRACEBACK = "DOCSPLIT_TRACEBACK"  # a variable of the environment
LOST = (
    "Another process of this run has ended, and its last lines say why; or it is stopped, or works alone for longer "
    "than --ddp_timeout: then raise that."
)


def as_command(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap a script's `main`: an error that tells its user what to do ends it in one line, with exit code 1.

    Those are errors that a `raise` of this project raises, OSErrors (no file, no model of that name, no space), and
    errors of libraries that mean a failed write (`docsplit.runtime.files.why_not_written`).
    A step that processes take together, and another process has left, ends in a line too. All others are bugs and keep
    their traceback. DOCSPLIT_TRACEBACK=1 keeps every traceback. Ctrl-C ends a script in one line too, with exit code
    130. Control characters of documents and names come neither into logs nor into errors.
    """

    def command() -> None:
        protect_logs()
        try:
            main()
        except KeyboardInterrupt:
            if os.environ.get(SHOW_TRACEBACK):
                raise
            end_with("stopped by Ctrl-C", code=130)
        except Exception as error:
            frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
            if os.environ.get(SHOW_TRACEBACK):
                raise
            if isinstance(error, OSError) or _is_raised_here(frame, line, main.__module__):
                end_with(str(error))
            if reason := why_not_written(error):
                end_with(f"A file could not be written: {reason}.")
            if _is_of_a_common_step(error):
                end_with(LOST, about=LOST)
            raise

    return command


def _is_of_a_common_step(error: Exception) -> bool:
    dist: Any = sys.modules.get("torch.distributed")
    is_of_gloo = isinstance(error, RuntimeError) and "gloo" in str(error)
    return is_of_gloo or (dist is not None and isinstance(error, dist.DistError))


def _is_raised_here(frame: FrameType, line: int, script: str) -> bool:
    """Whether the line is a `raise` of this project, and not a library's or a failing expression of ours."""
    room = frame.f_globals.get("__name__", "").split(".")[0]
    is_ours = room in (script.split(".")[0], "docsplit", "benchmarks") or room.startswith("modeling_")
    return is_ours and linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("raise ")
