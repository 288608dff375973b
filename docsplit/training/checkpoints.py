"""Complete checkpoints: stock Trainer writes one file after another, and a kill can come in between.

A directory without a fitting manifest (`docsplit.release.records`) does not count: it is never resumed from, and
never kept in place of a complete one.
"""

import logging
import math
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE
from docsplit.modeling.settings import OF_VIEWS, current_settings
from docsplit.release.records import MANIFEST, digest_of, read_manifest, why_incomplete
from docsplit.runtime.files import Damaged, JsonObject, read_json, remove_empty
from docsplit.runtime.launching import Begun, restart_count

logger = logging.getLogger(__name__)

RESULTS = (
    *("all_results.json", "run.json", "evaluations/*/results.json", "evaluations/*/few_shot.png"),
    TRAINING_DOCUMENTS_FILE,  # belongs to the weights
)
NEWEST = "newest"  # --resume_from_checkpoint without a value
# Entries of config.json that say nothing about the model: Trainer and transformers write them.
NOT_OF_THE_MODEL = (
    "_name_or_path|architectures|auto_map|dtype|transformers_version|use_cache|_token_id$|keys_to_ignore"
)


def without_pickled_arguments(directory: Path) -> None:
    """Remove Trainer's training_args.bin, which only pickle reads, and nothing does."""
    (directory / "training_args.bin").unlink(missing_ok=True)


def checkpoints(output_dir: Path) -> list[Path]:
    """List the directories checkpoint-N, complete or not, oldest step first."""
    paths = [path for path in output_dir.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((path for path in paths if path.is_dir()), key=lambda path: int(path.name.split("-")[1]))


def _written(directory: Path) -> float:
    """Read when a directory was sealed: not the order of steps, where a run went back to an older checkpoint."""
    try:
        return read_manifest(directory)[0]
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


def is_sealed(path: Path) -> bool:
    """Whether this is the folder of a checkpoint that a run wrote."""
    return re.fullmatch(r"checkpoint-\d+", path.name) is not None and _written(path) < float("inf")


def rotate(output_dir: Path, keep: int, best: str | None) -> None:
    """Delete sealed checkpoints but the `keep` written last and the best.

    Those without a manifest, or with one that cannot be read, do not count and stay.
    """
    sealed = [path for path in sorted(checkpoints(output_dir), key=_written) if _written(path) < float("inf")]
    kept = {path.resolve() for path in sealed[-keep:]} | ({Path(best).resolve()} if best else set())
    for path in sealed:
        if path.resolve() not in kept and not path.is_symlink():
            files = [path / name for name in read_manifest(path)[1]]
            (path / MANIFEST).unlink()  # first, so that a kill in between leaves nothing that counts as complete
            for file in files:
                file.unlink(missing_ok=True)
                remove_empty(file.parent, output_dir)
            if path.exists():
                logger.warning(f"{path} keeps files that are not of the checkpoint.")


def is_newest(choice: str | None) -> bool:
    """Whether --resume_from_checkpoint asks for the newest complete checkpoint; in a recipe the option has a value."""
    return choice in (NEWEST, "True", "true")


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
    choice = NEWEST if is_newest(choice) else choice
    checkpoint = newest_complete(output_dir) if choice == NEWEST else Path(choice) if choice else None
    if checkpoint is not None:
        if choice != NEWEST and (reason := why_incomplete(checkpoint)):
            raise ValueError(f"Cannot resume from {checkpoint}: {reason}.")
        if not (checkpoint / "optimizer.pt").exists():
            raise ValueError(
                f"{checkpoint} has no optimizer state (--save_only_model): start a new run from it with "
                "--model_name_or_path."
            )
        return checkpoint
    existing = checkpoints(output_dir)
    if choice == NEWEST and existing and not overwrite:
        reasons = "".join(f"\n  {path}: {why_incomplete(path)}" for path in existing)
        raise ValueError(
            f"--resume_from_checkpoint finds no complete checkpoint in --output_dir {output_dir}, and removes none of "
            f"these:{reasons}\nMend them (from a copy, say), start a new run from what weights they have with "
            "--model_name_or_path and another --output_dir, or add --overwrite_output_dir: it removes them and starts "
            "from the beginning."
        )
    if choice == NEWEST:
        logger.warning(f"No complete checkpoint in {output_dir}: starting from the beginning.")
        return None
    if existing and not overwrite:
        raise ValueError(
            f"--output_dir {output_dir} has {existing[-1].name} of an earlier run: continue it with "
            "--resume_from_checkpoint, remove it with --overwrite_output_dir, or choose another folder."
        )
    return None


def refuse_damaged_best(best: str | None) -> None:
    """Stop before weights are released that were loaded from a checkpoint which is not as it was written.

    Args:
        best: the checkpoint that Trainer loads at the end, if there is one.

    Raises:
        ValueError: naming the remedy.
    """
    if best is not None and (reason := why_incomplete(Path(best))):
        raise ValueError(
            f"The best checkpoint, {best}, cannot be released: {reason}. Mend it from a copy, or add "
            "--resume_from_checkpoint --load_best_model_at_end false, which releases the last weights."
        )


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
        ValueError: naming what differs, or the file that is damaged.
    """
    saved = read_json(checkpoint / "config.json")
    if "docsplit" in saved:
        saved["docsplit"] = current_settings(saved["docsplit"])
        if "view" not in saved["docsplit"]:  # of an earlier version, which did not record it
            here = config.get("docsplit") or {}
            saved["docsplit"] |= {name: here[name] for name in OF_VIEWS if name in here}
    names = of_the_model(saved | config)
    different = {name: (saved.get(name), config.get(name)) for name in names if saved.get(name) != config.get(name)}
    if different:
        there, here = ((values.get("docsplit") or {}).get("mlm_weight") for values in (saved, config))
        head = f" --mlm_weight {there} needs --new_mlm_head where the start has no masked-LM head." if there else ""
        raise ValueError(
            f"The model differs from that of {checkpoint} (there, here): {different}. Use its options."
            f"{head if here == 0 else ''}"
        )


def of_the_model(config: JsonObject) -> JsonObject:
    """Return the entries of a config.json that say something about the model."""
    return {name: value for name, value in config.items() if not re.search(NOT_OF_THE_MODEL, name)}


def copy_parts(checkpoint: Path, directory: Path, names: Sequence[str]) -> None:
    """Copy these files and folders of a checkpoint to another directory, as far as it has them."""
    for name in names:
        if (checkpoint / name).is_dir():
            shutil.copytree(checkpoint / name, directory / name, dirs_exist_ok=True)
        elif (checkpoint / name).exists():
            shutil.copy2(checkpoint / name, directory / name)


@dataclass(frozen=True)
class Chosen:
    """The checkpoint that the first process resumes from, for the other processes to compare with their own.

    Attributes:
        host: of the first process.
        name: of the folder; None for a new run.
        is_inside: whether `name` is relative to the output folder, which may be another on each machine.
        digest: of its manifest.
        newer_since: a complete checkpoint in the output folder that was written from this time on (seconds since 1970)
            would have been chosen instead; None where that does not matter.
    """

    host: str
    name: str | None = None
    is_inside: bool = False
    digest: str | None = None
    newer_since: float | None = None

    @classmethod
    def of(cls, checkpoint: Path | None, output_dir: Path, newest: bool, since: float = 0) -> "Chosen":
        """Describe what was chosen.

        Args:
            newest: whether the newest complete checkpoint of the output folder was to be chosen.
            since: seconds since 1970: older ones did not count.
        """
        host = socket.gethostname()
        if checkpoint is None:
            return cls(host, newer_since=since if newest else None)
        is_inside = checkpoint.resolve().parent == output_dir.resolve()
        later = math.nextafter(_written(checkpoint), math.inf)
        name = checkpoint.name if is_inside else str(checkpoint)
        return cls(host, name, is_inside, digest_of(checkpoint), later if newest else None)

    def path_in(self, output_dir: Path) -> Path | None:
        """Return where this process finds the checkpoint; None for a new run."""
        return None if self.name is None else output_dir / self.name if self.is_inside else Path(self.name)

    def refuse_another(self, output_dir: Path) -> None:
        """Stop if this process would not resume from the same checkpoint.

        Raises:
            ValueError: if it cannot read it, if its content is another, or if there is a newer one here.
        """
        if reason := self._why_another(output_dir):
            raise ValueError(
                f"{reason}. Put --output_dir on a file system that all machines share, or copy the checkpoint to "
                "resume from to the same place on each machine, and leave no newer one on any."
            )

    def _why_another(self, output_dir: Path) -> str | None:
        checkpoint, first = self.path_in(output_dir), f"rank 0 on {self.host}"
        if checkpoint is not None:
            reason = why_incomplete(checkpoint) if checkpoint.is_dir() else "it is not there"
            if reason is not None:
                return f"cannot resume from {checkpoint}, as {first} does: {reason}"
            if digest_of(checkpoint) != self.digest:
                return f"{checkpoint} is another than that of {first}, which resumes from it"
        newer = None if self.newer_since is None else newest_complete(output_dir, self.newer_since)
        if newer is not None:
            there = "finds no checkpoint" if self.name is None else f"resumes from {self.name}"
            return f"{newer} is here, and {first} {there}"
        return None
