"""How a script ends with an error: in one line, which one process prints."""

import contextlib
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # set by torchrun and accelerate: where a process says why it failed
PATIENCE = 5.0  # seconds in which the first process of a machine may say what another one would


def end_with(message: str, code: int = 1) -> NoReturn:
    """Print an error and exit. Of several processes of a launcher with the same error, one prints it.

    Raises:
        SystemExit: with this code.
    """
    say(message)
    sys.exit(code)


def say(message: str, patience: float | None = None) -> None:
    """Print an error, once for all processes of a launcher on this machine.

    Args:
        patience: seconds in which the first process goes first, 0 where it may be the one that is lost; None:
            `PATIENCE`.
    """
    if _is_first_to_say(message, PATIENCE if patience is None else patience):
        rank = os.environ.get("RANK", "0")
        print(f"error{'' if rank == '0' else f' of process {rank}'}: {message}", file=sys.stderr, flush=True)


def _is_first_to_say(message: str, patience: float) -> bool:
    """Whether this process has to print an error: no other process of this machine does; the first one goes first.

    Processes of one launch share a folder. The launcher also reads the error from there, for its own report.
    """
    if not (error_file := os.environ.get(ERROR_FILE)):
        return True
    mine = Path(error_file)
    said = mine.parents[1] / hashlib.blake2b(message.encode(errors="replace"), digest_size=12).hexdigest()
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
