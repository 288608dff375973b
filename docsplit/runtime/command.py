"""Scripts as commands. They import this before torch and tqdm, which read the environment once, when they are loaded.

Waiting threads sleep: threads that spin make a run ten times slower beside other work. Bars in a file, which cannot be
redrawn, get a line every half minute.
"""

import linecache
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if not sys.stderr.isatty():
    for interval in ("TQDM_MININTERVAL", "TQDM_MAXINTERVAL"):
        os.environ.setdefault(interval, "30")  # seconds
SHOW_TRACEBACK = "DOCSPLIT_TRACEBACK"  # a variable of the environment


def as_command(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap a script's `main`: an error that tells its user what to do ends it in one line, with exit code 1.

    Those are errors that a `raise` of this project raises, and OSErrors: no file, no model of that name, no space.
    All others are bugs and keep their traceback. DOCSPLIT_TRACEBACK=1 keeps every traceback.
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
    """Whether the line is a `raise` of this project, and not a library's or a failing expression of ours."""
    room = frame.f_globals.get("__name__", "").split(".")[0]
    is_ours = room in (script.split(".")[0], "docsplit") or room.startswith("modeling_")
    return is_ours and linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("raise ")


def command_line(script: str, *words: object) -> str:
    """Return the line that calls another script of this project, as a user of the running one would type it.

    That is `python SCRIPT.py` where the running script has it beside it, else the installed command.
    """
    beside = Path(sys.argv[0]).with_name(f"{script}.py")
    installed = [entry.name for entry in entry_points(group="console_scripts") if entry.value == f"{script}:command"]
    call = ["python", str(beside)] if beside.exists() else installed[:1] or ["python", f"{script}.py"]
    return shlex.join([*call, *map(str, words)])
