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
PATIENCE = 5.0  # seconds in which the first process of a machine may say what another one would


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
    if _is_first_to_say(about or message, message, 0 if about else PATIENCE):
        rank = os.environ.get("RANK", "0")
        print(f"error{'' if rank == '0' else f' of process {rank}'}: {message}", file=sys.stderr, flush=True)


def _is_first_to_say(about: str, message: str, patience: float) -> bool:
    """Whether this process has to print an error: no other process of this machine does; the first one goes first.

    Processes of one launch share a folder. The launcher also reads the error from there, for its own report.
    """
    if not (error_file := os.environ.get(ERROR_FILE)):
        return True
    mine = Path(error_file)
    said = mine.parents[1] / hashlib.blake2b(about.encode(errors="replace"), digest_size=12).hexdigest()
    if os.environ.get("LOCAL_RANK", "0") != "0":
        end = time.monotonic() + patience
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
