"""Complete checkpoints: stock Trainer writes one file after another, and a kill can come in between.

A directory without a fitting manifest (`docsplit.release.records`) does not count: it is never resumed from, and
never kept in place of a complete one.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE
from docsplit.release.records import MANIFEST, why_incomplete
from docsplit.runtime.files import Damaged, FileRecord, JsonObject, read_sealed, remove_empty
from docsplit.runtime.sharing import Begun

logger = logging.getLogger(__name__)

RESULTS = (
    *("all_results.json", "run.json", "evaluations/*/results.json", "evaluations/*/few_shot.png"),
    TRAINING_DOCUMENTS_FILE,  # belongs to the weights
)
NEWEST = ("newest", "True", "true")  # --resume_from_checkpoint without a value; in a recipe it has one
# Entries of config.json that say nothing about the model: Trainer and transformers write them.
NOT_OF_THE_MODEL = (
    "_name_or_path|architectures|auto_map|dtype|transformers_version|use_cache|_token_id$|keys_to_ignore"
)


def checkpoints(output_dir: Path) -> list[Path]:
    """List the directories checkpoint-N, complete or not, oldest step first."""
    paths = [path for path in output_dir.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((path for path in paths if path.is_dir()), key=lambda path: int(path.name.split("-")[1]))


def _written(directory: Path) -> float:
    """Read when a directory was sealed: not the order of steps, where a run went back to an older checkpoint."""
    try:
        return read_sealed(directory / MANIFEST)["written"]
    except (OSError, Damaged):
        return float("inf")  # looked at first, and passed over


def newest_complete(output_dir: Path, since: float = 0) -> Path | None:
    """Find the complete checkpoint that was written last; each one passed over is logged with the reason.

    Args:
        since: seconds since 1970: older ones do not count.
    """
    written = [path for path in checkpoints(output_dir) if _written(path) >= since]
    for checkpoint in sorted(written, key=_written, reverse=True):
        reason = why_incomplete(checkpoint)
        if reason is None:
            return checkpoint
        logger.warning(f"Passing over {checkpoint}: {reason}.")
    return None


def newest_sealed(output_dir: Path) -> Path | None:
    """Find the checkpoint that was written last, without reading whether it is complete."""
    return max(filter(is_sealed, checkpoints(output_dir)), key=_written, default=None)


def is_sealed(path: Path) -> bool:
    """Whether this is the folder of a checkpoint that a run wrote."""
    return re.fullmatch(r"checkpoint-\d+", path.name) is not None and _written(path) < float("inf")


def rotate(output_dir: Path, keep: int, best: str | None) -> None:
    """Delete sealed checkpoints but the `keep` written last and the best.

    Those without a manifest, or with one that cannot be read, do not count and stay.
    """
    sealed = [path for path in sorted(checkpoints(output_dir), key=_written) if is_sealed(path)]
    kept = {path.resolve() for path in sealed[-keep:]} | ({Path(best).resolve()} if best else set())
    for path in sealed:
        if path.resolve() not in kept and not path.is_symlink():
            files = [path / name for name in read_sealed(path / MANIFEST)["files"]]
            (path / MANIFEST).unlink()  # first, so that a kill in between leaves nothing that counts as complete
            for file in files:
                file.unlink(missing_ok=True)
                remove_empty(file.parent, output_dir)
            if path.exists():
                logger.warning(f"{path} keeps files that are not of the checkpoint.")


def to_resume_from(output_dir: Path, choice: str | None, overwrite: bool) -> Path | None:
    """Choose the checkpoint to continue from; None for a new run.

    Args:
        choice: one of `NEWEST` for the newest complete one of `output_dir`, a directory, or None for a new run.
        overwrite: whether a new run may remove the checkpoints in `output_dir` (it does so when it starts to train),
            with "newest" where none is complete.

    Raises:
        ValueError: for a directory that is no complete checkpoint or cannot be resumed from, if there are checkpoints
            but none is complete, or if a new run would mix with an earlier one's.
    """
    checkpoint = newest_complete(output_dir) if choice in NEWEST else Path(choice) if choice else None
    if checkpoint is not None:
        if choice not in NEWEST and (reason := why_incomplete(checkpoint)):
            raise ValueError(f"Cannot resume from {checkpoint}: {reason}.")
        if not (checkpoint / "optimizer.pt").exists():
            raise ValueError(f"{checkpoint} has no optimizer state: start a new run from it (--model_name_or_path).")
        return checkpoint
    existing = [] if overwrite else checkpoints(output_dir)
    if existing and choice in NEWEST:
        reasons = "".join(f"\n  {path}: {why_incomplete(path)}" for path in existing)
        raise ValueError(
            f"--resume_from_checkpoint finds no complete checkpoint in --output_dir {output_dir}:{reasons}\nMend one "
            "(from a copy, say), or add --overwrite_output_dir, which removes them and starts from the beginning."
        )
    if existing:
        raise ValueError(
            f"--output_dir {output_dir} has {existing[-1].name} of an earlier run: continue it with "
            "--resume_from_checkpoint, remove it with --overwrite_output_dir, or choose another folder."
        )
    if choice in NEWEST:
        logger.warning(f"No complete checkpoint in {output_dir}: starting from the beginning.")
    return None


def to_go_on_from(output_dir: Path, begun: Begun) -> Path | None:
    """Choose the checkpoint to continue from where the launcher starts processes again: the newest of this run.

    None was complete: the checkpoint that the run began from. A new run starts from the beginning (None), and what it
    wrote into its folder is removed when it starts to train.
    """
    checkpoint = newest_complete(output_dir, since=begun.time)
    if checkpoint is None and begun.checkpoint is not None:
        checkpoint = Path(begun.checkpoint)
    if checkpoint is None:
        logger.warning("The launcher started the processes again before a checkpoint: starting from the beginning.")
        return None
    logger.info(f"The launcher started the processes again: continuing from {checkpoint}.")
    return to_resume_from(output_dir, str(checkpoint), overwrite=False)


def refuse_another(checkpoint: Path, manifest: FileRecord) -> None:
    """Stop if this process cannot read the checkpoint that the first one resumes from, or its content is another.

    Args:
        manifest: that the first one reads, which has the digest of each file.

    Raises:
        ValueError: naming the remedy.
    """
    reason = why_incomplete(checkpoint) if checkpoint.is_dir() else "it is not there"
    if reason is None and FileRecord.of(checkpoint / MANIFEST) != manifest:
        reason = "its content is another"
    if reason is not None:
        raise ValueError(
            f"cannot resume from {checkpoint}, as rank 0 does: {reason}. Put --output_dir on a file system that all "
            "machines share, or copy the checkpoint to resume from to the same place on each machine."
        )


def refuse_to_remove(output_dir: Path, names: Sequence[str | None]) -> None:
    """Stop if one of these is a checkpoint that a new run in `output_dir` would remove, or would write over.

    Raises:
        ValueError: naming the remedy.
    """
    for start in [Path(name).resolve() for name in names if name is not None]:
        if start == output_dir.resolve():
            raise ValueError(f"A new run in --output_dir {output_dir} writes over its start: choose another folder.")
        for path in checkpoints(output_dir):
            if start.is_relative_to(path.resolve()):
                raise ValueError(f"A new run removes {path}, which it is to start from: choose another --output_dir.")


def of_the_model(config: JsonObject) -> JsonObject:
    """Return the entries of a config.json that say something about the model."""
    return {name: value for name, value in config.items() if not re.search(NOT_OF_THE_MODEL, name)}
