"""Folders in the cache of this project: built once, whole or not at all, and built again if they are damaged."""

import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from docsplit.runtime.sealed import READ_WHEN_OPENED, seal_folder, why_folder_damaged

logger = logging.getLogger(__name__)


def cache_directory() -> Path:
    """Name the folder of this project beside the caches of `datasets` (HF_HOME, HF_DATASETS_CACHE)."""
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "docsplit"


def is_cached(directory: Path) -> bool:
    """Whether `build_once` has filled a folder that is still sound. One that is damaged is removed, with a warning."""
    if not directory.exists():
        return False
    reason = why_folder_damaged(directory, most_bytes=READ_WHEN_OPENED)
    if reason is None:
        return True
    logger.warning(f"The cache {directory} is damaged ({reason}): it is made again.")
    damaged = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
    try:
        directory.rename(damaged / "damaged")  # another process may have done it
    except FileNotFoundError:
        pass
    finally:
        shutil.rmtree(damaged, ignore_errors=True)
    return False


def build_once(directory: Path, build: Callable[[Path], object]) -> Path:
    """Fill a folder unless it is there: a kill leaves nothing half-written, and one of two builders wins.

    Its files are recorded (`docsplit.runtime.sealed`). A folder that no longer fits its record is built again.
    """
    if not is_cached(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
        try:
            build(temporary)
            seal_folder(temporary)
            temporary.rename(directory)
        except OSError:
            if not directory.exists():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return directory
