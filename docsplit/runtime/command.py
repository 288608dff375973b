"""Scripts as commands. They import this before torch and tqdm, which read the environment once, when they are loaded.

Waiting threads sleep: threads that spin make a run ten times slower beside other work. Bars in a file, which cannot be
redrawn, get a line every half minute.
"""

import linecache
import os
import sys
import traceback
from collections.abc import Callable
from types import FrameType

from docsplit.runtime.display import protect_logs
from docsplit.runtime.ending import end_with
from docsplit.runtime.watchdog import LOST, explain

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if not sys.stderr.isatty():
    for interval in ("TQDM_MININTERVAL", "TQDM_MAXINTERVAL"):
        os.environ.setdefault(interval, "30")  # seconds
SHOW_TRACEBACK = "DOCSPLIT_TRACEBACK"  # a variable of the environment


def as_command(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap a script's `main`: an error that tells its user what to do ends it in one line, with exit code 1.

    Those are errors that a `raise` of this project raises, and OSErrors: no file, no model of that name, no space.
    An error of a step that processes take together ends in a line too, that names the process which is lost. All
    others are bugs and keep their traceback. DOCSPLIT_TRACEBACK=1 keeps every traceback. Ctrl-C ends a script in
    one line too, with exit code 130. Control characters of documents and names come neither into logs nor into errors.
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
            if lost := explain(error):
                end_with(lost, about=LOST)
            raise

    return command


def _is_raised_here(frame: FrameType, line: int, script: str) -> bool:
    """Whether the line is a `raise` of this project, and not a library's or a failing expression of ours."""
    room = frame.f_globals.get("__name__", "").split(".")[0]
    is_ours = room in (script.split(".")[0], "docsplit", "benchmarks") or room.startswith("modeling_")
    return is_ours and linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("raise ")
