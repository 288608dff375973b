"""Where this project keeps what it built once, and how it gets there whole: beside the place, then renamed."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import datasets


def cache_directory() -> Path:
    """Beside the caches of `datasets` (HF_HOME, HF_DATASETS_CACHE)."""
    return Path(datasets.config.HF_DATASETS_CACHE) / "docsplit"


def build_once(directory: Path, build: Callable[[Path], object]) -> Path:
    """Fill a directory if it does not exist; a kill leaves nothing half-written, and of two builders one wins."""
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
        try:
            build(temporary)
            temporary.rename(directory)
        except OSError:
            if not directory.exists():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return directory
