"""The manifest of a checkpoint: a record of all its files, written after everything else is on the disk."""

import hashlib
import time
from pathlib import Path

from docsplit.modeling.saving import WEIGHTS_FILE
from docsplit.runtime.files import (
    Damaged,
    FileRecord,
    flush,
    flush_folder,
    read_sealed,
    records_in,
    seal_folder,
    why_damaged,
)

MANIFEST = "checkpoint_manifest.json"
IN_EACH = ({WEIGHTS_FILE, f"{WEIGHTS_FILE}.index.json"}, {"config.json"}, {"trainer_state.json"})  # one of each


def seal(directory: Path) -> None:
    """Mark a directory as complete, once it is on the disk, by a record of each file in it.

    When this returns the mark is on the disk too: older checkpoints may go.
    """
    flush_folder(directory)
    seal_folder(directory, MANIFEST, written=time.time())
    flush(directory.parent)


def why_incomplete(directory: Path) -> str | None:
    """Tell why a directory is no complete checkpoint, None if it is one; reads each file once."""
    try:
        return why_damaged(directory, read_manifest(directory)[1])
    except FileNotFoundError:
        return f"it has no {MANIFEST}: its run was stopped while writing it, or was none of this project"
    except Damaged as error:
        return str(error).removesuffix(".")


def digest_of(directory: Path) -> str:
    """Hash the manifest of a directory: it names the digest of each file, so two checkpoints with one hash are equal.

    Raises:
        OSError: if it cannot be read.
    """
    return hashlib.blake2b((directory / MANIFEST).read_bytes(), digest_size=16).hexdigest()


def read_manifest(directory: Path) -> tuple[float, dict[str, FileRecord]]:
    """Read when a directory was sealed, and the records of its files.

    Raises:
        FileNotFoundError: if there is no manifest.
        Damaged: if it is not what `seal` wrote, or records no checkpoint.
    """
    path = directory / MANIFEST
    content = read_sealed(path)
    records = records_in(content, path)
    if not isinstance(written := content.get("written"), float):
        raise Damaged(f"{path} is damaged: it does not say when it was written.")
    for names in IN_EACH:
        if not names & records.keys():
            raise Damaged(f"{path} names no {min(names)}, which each checkpoint has.")
    return written, records
