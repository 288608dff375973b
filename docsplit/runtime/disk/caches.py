"""Folders in the cache of this project: built once, whole or not at all, and built again if they are damaged."""

import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docsplit.runtime.disk.sealed import READ_WHEN_OPENED, seal_folder, why_folder_damaged
from docsplit.runtime.files import name_failed_writes

if TYPE_CHECKING:
    from datasets import Dataset

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


def map_once(dataset: "Dataset", function: Callable[..., Any], key: str, **options: Any) -> "Dataset":
    """Map the rows of a data set into a folder of the cache, once, or in memory if that is where they are.

    Args:
        key: a hash of all that the new rows depend on, and their fingerprint.
        options: of `datasets.Dataset.map`, whose own cache nobody verifies.
    """
    from datasets import Dataset, concatenate_datasets

    if not dataset.cache_files:
        return dataset.map(function, new_fingerprint=key, **options)

    def build(directory: Path) -> None:
        file = str(directory / "rows.arrow")
        dataset.map(function, new_fingerprint=key, cache_file_name=file, load_from_cache_file=False, **options)

    directory = build_once(cache_directory() / f"rows-{key}", build)
    rows = concatenate_datasets([Dataset.from_file(str(file)) for file in sorted(directory.glob("rows*.arrow"))])
    rows._fingerprint = key
    return rows


def build_once(directory: Path, build: Callable[[Path], object]) -> Path:
    """Fill a folder unless it is there: a kill leaves nothing half-written, and one of two builders wins.

    Its files are recorded (`docsplit.runtime.disk.sealed`). A folder that no longer fits its record is built again.

    Raises:
        NotWritten: naming the folder, if its disk is full or fails.
    """
    if not is_cached(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
        try:
            with name_failed_writes(directory):
                build(temporary)
                seal_folder(temporary)
                temporary.rename(directory)
        except OSError:
            if not directory.exists():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return directory
