"""How a script ends with an error: in one line, which one process prints."""

import contextlib
import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import NoReturn

from docsplit.runtime.display import shown_lines

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # set by torchrun and accelerate: where a process says why it failed
TOKEN = r"hf_\w{16,}"  # of the Hub
PATIENCE = 5.0  # seconds in which one process of a machine may say what another one would


def end_with(message: str, code: int = 1, about: str | None = None) -> NoReturn:
    """Print an error and exit. Of several processes of a launcher with the same error, one prints it.

    Args:
        about: of `say`.

    Raises:
        SystemExit: with this code.
    """
    say(message, about)
    sys.exit(code)


def say(message: str, about: str | None = None) -> None:
    """Print an error, once for all processes of a launcher on this machine.

    Control characters in it, and a token of the Hub that was typed in the wrong place, are not printed.

    Args:
        about: what the error is about, where processes have different words for it; whoever is first prints it. None:
            the first process prints it if it has the same error.
    """
    message = shown_lines(re.sub(TOKEN, "hf_...", message))
    rank = os.environ.get("RANK", "0")
    said = _file_of(about or message)
    if said is None or _is_first_to_say(said, message, 0 if about else PATIENCE):
        print(f"error{'' if rank == '0' else f' of process {rank}'}: {message}", file=sys.stderr, flush=True)
        if said is not None:
            with contextlib.suppress(OSError):
                said.write_text("printed")


def _file_of(about: str) -> Path | None:
    """Name the file that stands for an error in the folder that the processes of a launch share; None without one."""
    if not (error_file := os.environ.get(ERROR_FILE)):
        return None
    return Path(error_file).parents[1] / hashlib.blake2b(about.encode(errors="replace"), digest_size=12).hexdigest()


def _is_first_to_say(said: Path, message: str, patience: float) -> bool:
    """Whether this process has to print an error: no other process of this machine does; the first one goes first.

    The launcher also reads the error from the folder, for its own report.

    Args:
        said: is made by who prints the error, and filled once it is printed.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        end = time.monotonic() + patience
        while not said.exists() and time.monotonic() < end:
            time.sleep(0.05)
    try:
        said.touch(exist_ok=False)
    except FileExistsError:
        return not _is_printed(said)
    except OSError:  # the launcher is gone, and its folder with it
        return True
    report = {"message": {"message": f"error: {message}", "extraInfo": {"timestamp": int(time.time())}}}
    with contextlib.suppress(OSError):
        Path(os.environ[ERROR_FILE]).write_text(json.dumps(report))
    return True


def _is_printed(said: Path) -> bool:
    """Wait until another process has printed an error; it may be killed before, by the launcher for example."""
    end = time.monotonic() + PATIENCE
    with contextlib.suppress(OSError):
        while not said.stat().st_size:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True
    return False
