"""Scripts as commands: their names, and how they end. They import this before torch, which reads OMP_WAIT_POLICY once.

Waiting threads sleep: threads that spin make a run ten times slower beside other work.
"""

import contextlib
import hashlib
import json
import linecache
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from docsplit.runtime.files import ROOT

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
SHOW_TRACEBACK = "DOCSPLIT_TRACEBACK"  # a variable of the environment
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # set by torchrun and accelerate: where a process says why it failed
PATIENCE = 5.0  # seconds in which the first process of a machine may say what another one would
COMMANDS = {  # the installed command of each script, as in pyproject.toml
    "run_docsplit_pretraining.py": "docsplit-pretrain",
    "run_probe_classification.py": "docsplit-probe",
    "run_aan_retrieval.py": "docsplit-links",
    "run_document_retrieval.py": "docsplit-rank",
    "run_embedding_analysis.py": "docsplit-analyse",
    "convert_to_longformer.py": "docsplit-convert-to-longformer",
    "export_onnx.py": "docsplit-export-onnx",
    "explore.py": "docsplit-explore",
    "search.py": "docsplit-search",
    "adapt.py": "docsplit-adapt",
}


def command_name(script: str) -> str:
    """Return what a person types to run a script: `python search.py` in a clone, `docsplit-search` where installed."""
    is_clone = not (ROOT / "docsplit" / "recipes").is_dir()  # in a clone they lie beside the package
    runs_installed = Path(sys.argv[0]).name in COMMANDS.values()
    return f"python {script}" if is_clone and not runs_installed else COMMANDS[script]


def running_command() -> str:
    """Return what was typed to run this program."""
    name = Path(sys.argv[0]).name
    return command_name(name) if name in COMMANDS else name


def as_typed(text: str) -> str:
    """Return a script's text with its examples as they are typed here: installed commands and recipes have names."""
    if command_name("search.py").startswith("python "):
        return text
    scripts = "|".join(map(re.escape, COMMANDS))
    text = re.sub(rf"(accelerate launch(?: --?\S+(?: \d+)?)*) ({scripts})\b", lambda m: f"{m[1]} -m {m[2][:-3]}", text)
    text = re.sub(rf"(?:python )?\b({scripts})\b", lambda match: COMMANDS[match[1]], text)
    return re.sub(r"\brecipes/(\w+)\.yaml", r"\1", text)


def as_command(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap a script's `main`: an error that tells its user what to do ends it in one line, with exit code 1.

    Those are errors that a `raise` of this project raises, and OSErrors: no file, no model of that name, no space.
    All others are bugs and keep their traceback. DOCSPLIT_TRACEBACK=1 keeps every traceback. Ctrl-C ends a script in
    one line too, with exit code 130.
    """

    def command() -> None:
        try:
            main()
        except KeyboardInterrupt:
            if os.environ.get(SHOW_TRACEBACK):
                raise
            end_with("stopped by Ctrl-C", code=130)
        except Exception as error:
            frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
            says_what_to_do = isinstance(error, OSError) or _is_raised_here(frame, line, main.__module__)
            if not says_what_to_do or os.environ.get(SHOW_TRACEBACK):
                raise
            end_with(str(error))

    return command


def end_with(message: str, code: int = 1) -> NoReturn:
    """Print an error and exit. Of several processes of a launcher with the same error, one prints it.

    Raises:
        SystemExit: with this code.
    """
    if _is_first_to_say(message):
        rank = os.environ.get("RANK", "0")
        print(f"error{'' if rank == '0' else f' of process {rank}'}: {message}", file=sys.stderr)
    sys.exit(code)


def _is_first_to_say(message: str) -> bool:
    """Whether this process has to print an error: no other process of this machine does; the first one goes first.

    Processes of one launch share a folder. The launcher also reads the error from there, for its own report.
    """
    if not (error_file := os.environ.get(ERROR_FILE)):
        return True
    mine = Path(error_file)
    said = mine.parents[1] / hashlib.blake2b(message.encode(errors="replace"), digest_size=12).hexdigest()
    if os.environ.get("LOCAL_RANK", "0") != "0":
        end = time.monotonic() + PATIENCE
        while not said.exists() and time.monotonic() < end:
            time.sleep(0.05)
    try:
        said.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # the launcher is gone, and its folder with it
        return True
    report = {"message": {"message": f"error: {message}", "extraInfo": {"timestamp": int(time.time())}}}
    with contextlib.suppress(OSError):
        mine.write_text(json.dumps(report))
    return True


def _is_raised_here(frame: FrameType, line: int, script: str) -> bool:
    """Whether the line is a `raise` of this project, and not a library's or a failing expression of ours."""
    room = frame.f_globals.get("__name__", "").split(".")[0]
    is_ours = room in (script.split(".")[0], "docsplit") or room.startswith("modeling_")
    return is_ours and linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("raise ")
