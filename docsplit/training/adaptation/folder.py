"""The folder that adapting an encoder writes, whole or not at all, and the training that may come before."""

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from docsplit.data.seen_documents import MOST_SKETCHES, TrainingDocuments, document_id, sketch, training_documents_of
from docsplit.embedding.lexical_ridge import distinct, save_static, save_with_words
from docsplit.embedding.loading import has_words, save_plain
from docsplit.release.model_card import write_card
from docsplit.release.records import Adaptation
from docsplit.runtime.files import (
    PARTIAL,
    ROOT,
    flush,
    flush_folder,
    move_aside,
    refuse_missing_path,
    why_not_written,
)
from docsplit.runtime.sharing import LOCK, RECORD, OutputFolder, from_first, on_all
from docsplit.training.adaptation.candidates import Variant
from docsplit.training.adaptation.options import AdaptOptions
from docsplit.training.guard import folder_of, put_back

logger = logging.getLogger(__name__)

COMMAND = "adapt.py"
# What tells a process of its launcher; a training of one process is not to know.
OF_THE_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Folder:
    """A folder to be written, and a working folder beside it, which is removed at the end.

    Args:
        output: does not exist, or is empty.
        is_first: whether this process writes.

    Raises:
        ValueError: if there is something at `output`.
        OSError: if nothing can be written beside it, on entering; a ValueError if another run writes it.
    """

    def __init__(self, output: Path, is_first: bool = True):
        self.given, self.output, self.is_first = output, output.resolve(), is_first
        if output.is_file() or (output.is_dir() and any(output.iterdir())):
            raise ValueError(f"{output} exists and is not empty: name another OUTPUT, or remove it.")
        self.work = self.output.with_name(f".{self.output.name}{PARTIAL}")
        self.taken = OutputFolder(self.work, COMMAND, "OUTPUT")

    def __enter__(self) -> "Folder":
        if self.is_first:
            self.taken.take()
            if self._empty():
                logger.info(f"{self.work} was left by a killed run: it is emptied.")
        return self

    def _empty(self) -> int:
        """Empty the working folder but for what says whose it is; return how many files and folders went."""
        paths = [path for path in self.work.iterdir() if path.name not in (LOCK, RECORD)]
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        return len(paths)

    def __exit__(self, *_: object) -> None:
        if self.is_first:
            self._empty()
            self.taken.close()
            with contextlib.suppress(OSError):  # another run has it already
                self.work.rmdir()

    def write(self, variant: Variant, record: Adaptation, texts: Sequence[str], is_changed: bool) -> None:
        """Write what was chosen, its record and its card.

        Args:
            texts: that words were fitted on.
            is_changed: whether options change how the start embeds, so that its files cannot be taken as they are.

        Raises:
            OSError: if that fails, by a full disk, say.
        """
        new = self.work / "output"
        try:
            new.mkdir()
            if variant.kind == "plain":
                _save_without_words(variant, new, is_changed)
            else:
                _save_words(variant, new)
                _training_documents(variant.side.place, texts).save(new)
            (new / "README.md").unlink(missing_ok=True)
            record.write(new)
            write_card(new, record.hub_model_id or self.output.name)
            if self.output.is_dir() and not any(self.output.iterdir()):
                self.output.rmdir()
            elif self.output.exists():
                aside = move_aside(self.output)
                logger.warning(f"{self.output} was made while this run was on: what is in it is kept as {aside.name}.")
            flush_folder(new)
            new.rename(self.output)
            flush(self.output.parent)
        except Exception as error:
            if isinstance(error, OSError) or why_not_written(error):
                cause = " ".join(str(error).split())
                raise OSError(f"{self.given} cannot be written, and nothing is left of it: {cause}") from error
            raise


def _save_words(variant: Variant, folder: Path) -> None:
    assert variant.ridge is not None
    if variant.weight is None:
        save_static(variant.ridge.words, folder)
    else:
        save_with_words(variant.side.model, variant.ridge.words, variant.weight, folder)


def _save_without_words(variant: Variant, folder: Path, is_changed: bool) -> None:
    """Copy the files of an encoder where they load as a SentenceTransformer, as it is now; else save it."""
    place = variant.side.place
    files = None if is_changed or has_words(place) else folder_of(place)
    if files is not None and (files / "modules.json").exists() and any(files.glob("model*.safetensors")):
        put_back(files, folder)
    else:
        save_plain(variant.side.model, folder)


def _training_documents(place: str, texts: Sequence[str]) -> TrainingDocuments:
    """Return the record of documents that an encoder was trained on, and its words fitted."""
    before = training_documents_of(place)
    record = TrainingDocuments(is_complete=False) if before is None else before.for_next_run()
    fitted = [texts[row] for row in distinct(texts)[0]]
    sketches = sketch(fitted) if len(fitted) <= MOST_SKETCHES else None
    record.run.add(np.array([document_id(text) for text in fitted], dtype=np.int64), sketches)
    return record


def train(name: str, model: Any, texts: Sequence[str], options: AdaptOptions, folder: Folder) -> str:
    """Train an encoder by the recipe of the options, in a process of its own, whose log is seen; return its folder.

    Args:
        name: of the encoder.
        model: the same, loaded; it is trained with its prompt, and without words.

    Raises:
        ValueError: if the training fails, or if another process does not see its folder.
    """
    place = str(from_first(lambda: _train(name, model, texts, options, folder.work)))
    shared = "an OUTPUT on a file system that all machines share"
    on_all(lambda: None if folder.is_first else refuse_missing_path(place, shared))
    return place


def _train(name: str, model: Any, texts: Sequence[str], options: AdaptOptions, work: Path) -> Path:
    start, corpus, output = name, work / "documents.jsonl", work / "trained"
    if options.prompt is not None or has_words(name):
        start = str(work / "start")
        save_plain(model, Path(start))
    with corpus.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": texts[row]}) + "\n" for row in distinct(texts)[0])
    given: dict[str, Any] = {"model_name_or_path": start, "corpus": corpus, "output_dir": output}
    given |= {"pooling": options.pooling, "max_seq_length": options.max_seq_length}
    given |= {"bf16": {"float32": False, "bfloat16": True}.get(options.dtype)}
    words = [word for option, value in given.items() if value is not None for word in (f"--{option}", str(value))]
    command = [sys.executable, str(ROOT / "run_docsplit_pretraining.py"), options.recipe, *words]
    environment = {variable: value for variable, value in os.environ.items() if variable not in OF_THE_LAUNCHER}
    if torch.cuda.device_count() > 1:
        environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    logger.info(f"Training by the recipe {options.recipe} on {len(texts):,} documents")
    code = subprocess.run(command, env=environment).returncode
    if code:
        raise ValueError(f"The training ended with exit code {code}: its last lines, above, say why.")
    logger.info(f"The training is done. {output} is for this run alone and goes at its end.")
    return output
