"""What makes a script a command; imported by the scripts before all else, and without torch.

Threads that wait for others sleep: those that spin make a run ten times slower beside other work. OpenMP reads that
once, when torch is loaded.
"""

import linecache
import os
import sys
import traceback
from collections.abc import Callable
from types import FrameType

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
SHOW_TRACEBACK = "DOCSPLIT_TRACEBACK"  # a variable of the environment


def as_command(main: Callable[[], None]) -> Callable[[], None]:
    """A script's `main`, as its user calls it: an error that says what to do ends it in one line, with exit code 1.

    Such is what this project raises itself, by a `raise` in its code, and an OSError: no file, no model of that name,
    no space. Everything else is a bug and keeps its traceback, as do all with DOCSPLIT_TRACEBACK=1.
    """

    def command() -> None:
        try:
            main()
        except Exception as error:
            frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
            says_what_to_do = isinstance(error, OSError) or _is_raised_here(frame, line, main.__module__)
            if not says_what_to_do or os.environ.get(SHOW_TRACEBACK):
                raise
            rank = os.environ.get("RANK", "0")
            print(f"error{'' if rank == '0' else f' of process {rank}'}: {error}", file=sys.stderr)
            sys.exit(1)

    return command


def _is_raised_here(frame: FrameType, line: int, script: str) -> bool:
    """Whether the line is a `raise` of this project: not of a library, and not a failing call or subscript of ours."""
    room = frame.f_globals.get("__name__", "").split(".")[0]
    is_ours = room in (script.split(".")[0], "docsplit") or room.startswith("modeling_")
    return is_ours and linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("raise ")
