"""What processes did before the launcher started them again (`torchrun --max-restarts`).

It is noted in the launcher's store, which lives as long as the launcher. So nothing is left of it in a folder, and
another launch does not take an earlier run for its own.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any


@dataclass
class Begun:
    """A training that this launcher's processes began.

    Attributes:
        time: of its begin, in seconds since 1970.
        checkpoint: that it began from; None for a new run.
    """

    time: float
    checkpoint: str | None


def restart_count() -> int:
    """Return how often the launcher has started its processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def note_begin(output_dir: Path, checkpoint: Path | None) -> None:
    """Note that a training begins to write into a folder, unless one of an earlier start has; one process calls it."""
    store = _store_of_launcher()
    if store is not None and not store.check([_key(output_dir)]):
        begun = Begun(time.time(), None if checkpoint is None else str(checkpoint))
        store.set(_key(output_dir), json.dumps(asdict(begun)))


def begun_before(output_dir: Path) -> Begun | None:
    """Return what an earlier start of these processes began in a folder; None where there was none."""
    store = _store_of_launcher() if restart_count() else None
    if store is None or not store.check([_key(output_dir)]):
        return None
    return Begun(**json.loads(store.get(_key(output_dir))))


def _key(output_dir: Path) -> str:
    return f"docsplit/begun/{output_dir.resolve()}"


def _store_of_launcher() -> Any:
    """Return the store of a launcher that may start this process again; None without one."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if restarts == "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or "RANK" not in os.environ:
        return None
    from torch.distributed import TCPStore

    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(*address, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))
