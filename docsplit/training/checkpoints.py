"""Complete checkpoints: stock Trainer writes one file after another, and a kill can come in between.

After everything else is on disk, `seal` writes a manifest of all files with their sizes and digests, through a
rename. A directory without a fitting manifest does not count: it is never resumed from and never kept in place of a
complete one.
"""

import hashlib
import json
import logging
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE
from docsplit.modeling.settings import current_settings
from docsplit.runtime.files import PARTIAL, JsonObject, write_text
from docsplit.runtime.restarts import Begun, restart_count

logger = logging.getLogger(__name__)

MANIFEST = "checkpoint_manifest.json"
RESULTS = (
    *("all_results.json", "run.json", "evaluations/*/results.json", "evaluations/*/few_shot.png"),
    TRAINING_DOCUMENTS_FILE,  # belongs to the weights
)
# Entries of config.json that say nothing about the model: Trainer and transformers write them.
NOT_OF_THE_MODEL = (
    "_name_or_path|architectures|auto_map|dtype|transformers_version|use_cache|_token_id$|keys_to_ignore"
)


def seal(directory: Path) -> None:
    """Mark a directory as complete: name, size and SHA-256 of each file in it. Files half-written at a kill go."""
    for file in directory.rglob(f".*{PARTIAL}"):
        file.unlink()
    files = {
        str(file.relative_to(directory)): {"size": file.stat().st_size, "sha256": _digest(file)}
        for file in sorted(directory.rglob("*"))
        if file.is_file() and file.name != MANIFEST
    }
    manifest = {"written": time.time(), "files": files}
    write_text(directory / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def without_pickled_arguments(directory: Path) -> None:
    """Remove Trainer's training_args.bin, which only pickle reads, and nothing does."""
    (directory / "training_args.bin").unlink(missing_ok=True)


def why_incomplete(directory: Path) -> str | None:
    """Tell why a directory is no complete checkpoint, None if it is one; reads each file once."""
    if not (directory / MANIFEST).exists():
        return f"it has no {MANIFEST}: its run was stopped while writing it, or was none of this project"
    try:
        for name, size, digest in _read_manifest(directory)[1]:
            file = directory / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes, not {size}"
            if _digest(file) != digest:
                return f"{name} has changed since it was written"
    except ValueError as error:
        return f"its {MANIFEST} cannot be understood ({error})"
    except OSError as error:
        return f"it cannot be read ({error})"
    return None


def _read_manifest(directory: Path) -> tuple[float, list[tuple[str, int, str]]]:
    """Read when a directory was sealed, and name, size and SHA-256 of each file.

    Raises:
        OSError: if there is none, or it cannot be read.
        ValueError: if it is something else: a bit may have flipped in it.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        files = [(name, int(entry["size"]), str(entry["sha256"])) for name, entry in manifest["files"].items()]
        return float(manifest["written"]), files
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def checkpoints(output_dir: Path) -> list[Path]:
    """List the directories checkpoint-N, complete or not, oldest step first."""
    paths = [path for path in output_dir.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((path for path in paths if path.is_dir()), key=lambda path: int(path.name.split("-")[1]))


def _written(directory: Path) -> float:
    """Read when a directory was sealed: not the order of steps, where a run went back to an older checkpoint."""
    try:
        return _read_manifest(directory)[0]
    except (OSError, ValueError):
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


def rotate(output_dir: Path, keep: int, best: str | None) -> None:
    """Delete sealed checkpoints but the `keep` written last and the best.

    Those without a manifest, or with one that cannot be read, do not count and stay.
    """
    sealed = [path for path in sorted(checkpoints(output_dir), key=_written) if _written(path) < float("inf")]
    kept = {path.resolve() for path in sealed[-keep:]} | ({Path(best).resolve()} if best else set())
    for path in sealed:
        if path.resolve() not in kept:
            (path / MANIFEST).unlink()  # first, so that a kill in between leaves nothing that counts as complete
            shutil.rmtree(path)


def to_resume_from(output_dir: Path, choice: str | None, overwrite: bool) -> Path | None:
    """Choose the checkpoint to continue from; None for a new run.

    Args:
        choice: "newest" for the newest complete one of `output_dir`, a directory, or None for a new run.
        overwrite: whether a new run may remove the checkpoints in `output_dir` (it does so when it starts to train),
            with "newest" where none is complete.

    Raises:
        ValueError: for a directory that is no complete checkpoint or cannot be resumed from, if there are checkpoints
            but none is complete, or if a new run would mix with an earlier one's.
    """
    choice = "newest" if choice in ("True", "true") else choice  # in a recipe, where an option has a value
    checkpoint = newest_complete(output_dir) if choice == "newest" else Path(choice) if choice else None
    if checkpoint is not None:
        if choice != "newest" and (reason := why_incomplete(checkpoint)):
            raise ValueError(f"Cannot resume from {checkpoint}: {reason}.")
        if not (checkpoint / "optimizer.pt").exists():
            raise ValueError(
                f"{checkpoint} has no optimizer state (--save_only_model): start a new run from it with "
                "--model_name_or_path."
            )
        return checkpoint
    existing = checkpoints(output_dir)
    if choice == "newest" and existing and not overwrite:
        reasons = "".join(f"\n  {path}: {why_incomplete(path)}" for path in existing)
        raise ValueError(
            f"--resume_from_checkpoint finds no complete checkpoint in --output_dir {output_dir}, and removes none of "
            f"these:{reasons}\nMend them (from a copy, say), start a new run from what weights they have with "
            "--model_name_or_path and another --output_dir, or add --overwrite_output_dir: it removes them and starts "
            "from the beginning."
        )
    if choice == "newest":
        logger.warning(f"No complete checkpoint in {output_dir}: starting from the beginning.")
        return None
    if existing and not overwrite:
        raise ValueError(
            f"--output_dir {output_dir} has {existing[-1].name} of an earlier run: continue it with "
            "--resume_from_checkpoint, remove it with --overwrite_output_dir, or choose another folder."
        )
    return None


def to_go_on_from(output_dir: Path, begun: Begun) -> Path | None:
    """Choose the checkpoint to continue from where the launcher starts processes again: the newest of this run.

    None was complete: the checkpoint that the run began from. A new run starts from the beginning (None), and what it
    wrote into its folder is removed when it starts to train.
    """
    checkpoint = newest_complete(output_dir, since=begun.time)
    if checkpoint is None and begun.checkpoint is not None:
        checkpoint = Path(begun.checkpoint)
    again = f"The launcher started the processes again (restart {restart_count()}):"
    if checkpoint is None:
        logger.warning(f"{again} the run has no complete checkpoint yet, and starts from the beginning.")
        return None
    logger.info(f"{again} continuing from {checkpoint}.")
    return to_resume_from(output_dir, str(checkpoint), overwrite=False)


def refuse_to_remove(output_dir: Path, names: Sequence[str | None]) -> None:
    """Stop if one of these is a checkpoint that a new run in `output_dir` would remove, or would write over.

    Raises:
        ValueError: naming the remedy.
    """
    for name in names:
        if name is not None and Path(name).resolve() == output_dir.resolve():
            raise ValueError(f"A new run in --output_dir {output_dir} writes over its start: choose another folder.")
        for path in checkpoints(output_dir):
            if name is not None and Path(name).resolve().is_relative_to(path.resolve()):
                raise ValueError(
                    f"A new run in --output_dir {output_dir} removes {path}, which it is to start from: choose "
                    "another --output_dir, or move the checkpoint."
                )


def check_same_model(checkpoint: Path, config: JsonObject) -> None:
    """Refuse to resume with another model: many settings change no weight's shape, and would load without a word.

    Args:
        config: of the model that is about to be resumed, as it would be saved.

    Raises:
        ValueError: naming what differs.
    """
    saved = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if "docsplit" in saved:
        saved["docsplit"] = current_settings(saved["docsplit"])
    names = {name for name in saved | config if not re.search(NOT_OF_THE_MODEL, name)}
    different = {name: (saved.get(name), config.get(name)) for name in names if saved.get(name) != config.get(name)}
    if different:
        there, here = ((values.get("docsplit") or {}).get("mlm_weight") for values in (saved, config))
        head = f" --mlm_weight {there} needs --new_mlm_head where the start has no masked-LM head." if there else ""
        raise ValueError(
            f"The model differs from that of {checkpoint} (there, here): {different}. Use its options."
            f"{head if here == 0 else ''}"
        )


def make_room(output_dir: Path, parts: Sequence[str], resumes: bool) -> None:
    """Delete the results of an earlier run, and unless this one resumes it, its checkpoints and these parts."""
    remove_results(output_dir)
    if not resumes:
        remove_earlier_run(output_dir, parts)


def remove_earlier_run(output_dir: Path, parts: Sequence[str] = ()) -> None:
    """Delete the checkpoints of an earlier run, and these parts: a new one is about to train."""
    for path in [*checkpoints(output_dir), *(output_dir / name for name in parts)]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remove_results(output_dir: Path) -> None:
    """Delete the results and cards' records of weights that are about to change."""
    for path in [path for pattern in RESULTS for path in output_dir.glob(pattern)]:
        path.unlink()


def copy_parts(checkpoint: Path, directory: Path, names: Sequence[str]) -> None:
    """Copy these files and folders of a checkpoint to another directory, as far as it has them."""
    for name in names:
        if (checkpoint / name).is_dir():
            shutil.copytree(checkpoint / name, directory / name, dirs_exist_ok=True)
        elif (checkpoint / name).exists():
            shutil.copy2(checkpoint / name, directory / name)
