"""The start is a candidate too: where training did not make the encoder better, the run releases the start."""

import filecmp
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE
from docsplit.embedding.loading import has_words, load_encoder, save_plain
from docsplit.modeling.objectives.table import prepared_files
from docsplit.modeling.saving import TRAINING_STATE_FILE
from docsplit.release.hub import RELEASE
from docsplit.release.records import MANIFEST
from docsplit.runtime.files import move_aside
from docsplit.runtime.sharing import RECORD, from_first, remove
from docsplit.training.arguments import PretrainingArguments
from docsplit.training.checkpoints import RESULTS
from docsplit.training.probe import ProbeCallback

logger = logging.getLogger(__name__)

METRIC = "probe_5shot_accuracy"
OF_A_MODEL = (  # what a loader may read, and what is said of the model
    *("*.json", "*.txt", "*.model", "*.safetensors", "*.bin", "*.py", "README.md", "LICENSE*"),
    *("[0-9]*_*/*", "adapter/*"),
)
OF_A_RUN = {*RESULTS, MANIFEST, *prepared_files(), "trainer_state.json", RECORD} - {TRAINING_DOCUMENTS_FILE}


def folder_of(start: str | None) -> Path | None:
    """Find the files of an encoder that was loaded by its name: its folder, or that in the cache of the Hub.

    To be called before training: the Hub's files of that name may change meanwhile. None where there is no start, or
    where the cache does not have it, which is logged.
    """
    if start is None or Path(start).is_dir():
        return None if start is None else Path(start)
    config = try_to_load_from_cache(start, "config.json")
    if not isinstance(config, str):
        logger.warning(f"The files of {start} are not in the Hub's cache: the start cannot be kept if it is better.")
        return None
    return Path(config).parent


def keeps_start(probe: ProbeCallback | None, start: Path | None, args: PretrainingArguments) -> bool:
    """Tell whether nothing beat the start on the probe's validation documents, so that its files are released.

    All processes must call it, with the weights that would be saved. The metric is the one that chose the best
    checkpoint, if that is the probe's, else the accuracy with 5 labels a class.

    Args:
        start: of `folder_of`.
    """
    if probe is None or from_first(lambda: start is None):
        return False
    chosen = (args.metric_for_best_model or "").removeprefix("eval_")
    metric = chosen if chosen.startswith("probe_") else METRIC
    before, after = probe.history()[0][metric], probe.measure()[metric]
    if after > before:
        return False
    documents = len(probe.split.validation_texts or [])
    comparison = f"{metric} on {documents} validation documents was {before:.4f} before training and is {after:.4f}"
    if not args.keep_better_start:
        logger.warning(f"{comparison}; the trained weights are saved all the same, for --keep_better_start is false.")
        return False
    if probe.trainer.is_world_process_zero():
        assert start is not None
        with _without_words(start) as plain:
            count = put_back(plain, Path(str(args.output_dir)))
        kept = "the start, unchanged" if plain == start else "the encoder inside the start, without its words"
        logger.warning(
            f"Keep what you had: {comparison}. {args.output_dir} holds the {count} files of {kept} "
            "(--keep_better_start false would save the trained weights)."
        )
    return True


@contextmanager
def _without_words(start: Path) -> Iterator[Path]:
    """Give the folder of a start; of an encoder with words one with the encoder inside, which was trained."""
    if not has_words(str(start)):
        yield start
        return
    with tempfile.TemporaryDirectory() as folder:
        save_plain(load_encoder(str(start), device="cpu"), Path(folder))
        yield Path(folder)


def files_of(start: Path) -> list[str]:
    """List the names of an encoder's files in a folder, config.json last: nothing loads without it."""
    paths = {path.relative_to(start).as_posix(): path for pattern in OF_A_MODEL for path in start.glob(pattern)}
    names = [name for name, path in paths.items() if path.is_file() and name not in OF_A_RUN]
    return sorted(names, key=lambda name: Path(name).name == "config.json")


def put_back(start: Path, output_dir: Path) -> int:
    """Fill a folder with the files of an encoder, in place of a release that is there; return how many.

    A file of another name that is in the way, and may be the user's, is renamed.
    """
    names = files_of(start)
    remove(output_dir, (*RELEASE, TRAINING_STATE_FILE))
    for name in names:
        path = output_dir / name
        if path.exists() and not filecmp.cmp(start / name, path, shallow=False):
            logger.warning(f"{path} is in the way of the start's: it is kept as {move_aside(path).name}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(start / name, path)
    return len(names)
