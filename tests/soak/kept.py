"""What runs keep on the disk for later runs: caches, targets, negatives, tables, records of studies.

Each function reads what is in a folder, and makes it first where it is a cache or the folder is not there. Sources,
which are not damaged, lie in `place`. The functions that make and read are those that scripts call.
"""

import contextlib
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch

from benchmarks.engine.results import Record, Results, read_results, write_results
from docsplit.data import streaming
from docsplit.data.corpora import stream_corpus
from docsplit.data.preparation import Segmentation
from docsplit.data.streaming import DocumentStream, StreamLayout
from docsplit.data.tokenization import load_tokenizer
from docsplit.embedding import chunks
from docsplit.modeling.encoder_with_words import Words
from docsplit.modeling.objectives.neighbour_distillation import Targets
from docsplit.runtime.files import build_once, map_once
from docsplit.training.negatives import FILE, NOTE, NegativesCallback
from docsplit.training.options import QueryArguments
from tests.trajectories import DATA

RNG_SEED = 7
TEXTS = [f"Document number {number} is here. It has a second sentence." for number in range(40)]


class _Encoder:
    def tokenize(self, texts: list[str]) -> list[str]:
        return texts

    def embed(self, tokenized: list[str], advance: object) -> np.ndarray:
        return np.random.default_rng(len(tokenized)).normal(size=(len(tokenized), 40))


def _embeddings(place: Path, folder: Path) -> Any:
    with mock.patch.object(chunks, "CHUNK_TEXTS", 4):
        parts = chunks.in_chunks(["a", "b", "c", "d", "e"], _Encoder(), False, folder)  # type: ignore[arg-type]
        return np.concatenate([part for part, _ in parts]).tolist()


def _tokenised_corpus(place: Path, folder: Path) -> Any:
    source = place / "source"
    if not source.exists():
        datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(str(source))
    tokenizer = load_tokenizer(str(DATA / "tokenizer"))
    rows = datasets.load_from_disk(str(source))
    with mock.patch.object(datasets.config, "HF_DATASETS_CACHE", str(folder)):
        options: dict[str, Any] = {"batched": True, "remove_columns": ["text"]}
        tokenised = map_once(rows, lambda batch: dict(tokenizer(batch["text"])), "tokenised", **options)
        return tokenised[:]


def _sizes_of_shards(place: Path, folder: Path) -> Any:
    corpus = place / "all.parquet"
    if not corpus.exists():
        pa.parquet.write_table(pa.table({"text": TEXTS}), corpus, row_group_size=6)
    with mock.patch.object(streaming, "cache_directory", return_value=folder):
        tokenizer, layout = load_tokenizer(str(DATA / "tokenizer")), StreamLayout(batch_size=4, buffer_size=10, seed=3)
        stream = DocumentStream(stream_corpus(str(corpus)), tokenizer, Segmentation(), layout, frozenset())
        documents = stream.documents(0, 1, 100)
        return [str(next(documents)["document_id"]) for _ in range(20)]


def _targets(place: Path, folder: Path) -> Any:
    file, ids = folder / "targets.safetensors", torch.tensor([40, 7, 2**62, 11, 3])
    if not folder.exists():
        folder.mkdir()
        vectors = torch.randn(5, 32, generator=torch.Generator().manual_seed(RNG_SEED))
        Targets.write(file, ids, vectors, {"options": "{}"})
    return Targets(file).of(ids).tolist()


def _negatives(place: Path, folder: Path) -> Any:
    if not folder.exists():
        rows = np.arange(400, dtype=np.int32).reshape(40, 10)
        build_once(folder / "negatives" / "key", lambda to: np.save(to / FILE, rows))
    (place / "checkpoint-3").mkdir(exist_ok=True)
    (place / "checkpoint-3" / NOTE).write_text(json.dumps({"phase": 1, "file": f"key/{FILE}"}))
    collator = SimpleNamespace(negatives=None)
    arguments = SimpleNamespace(output_dir=str(folder), process_index=0)
    trainer: Any = SimpleNamespace(
        args=arguments, model=None, processing_class=None, data_collator=collator, train_dataset=None
    )
    callback = NegativesCallback(trainer, QueryArguments(negatives=["self"]), place / "checkpoint-3")
    callback.on_train_begin(None, SimpleNamespace(num_train_epochs=2), None)  # type: ignore[arg-type]
    return collator.negatives.tolist()  # type: ignore[attr-defined]


def _words(place: Path, folder: Path) -> Any:
    if not folder.exists():
        folder.mkdir()
        vectors = torch.randn(30, 8, generator=torch.Generator().manual_seed(RNG_SEED))
        Words(load_tokenizer(str(DATA / "tokenizer")).backend_tokenizer, torch.arange(30), vectors).save(folder)
    words = Words.load(str(folder / "words.safetensors"), str(folder / "tokenizer.json"))
    return [words(**words.preprocess(TEXTS[:2])).tolist(), words.pieces.tolist()]


def _record() -> Record:
    samples = np.random.default_rng(RNG_SEED).normal(size=100).round(5).tolist()
    rows = [{"cell": "a", "metric": "accuracy", "value": 0.1, "samples": samples}]
    return Record("first", "done", "a", "x", "commit", 1.5, rows)


def _study_cell(place: Path, folder: Path) -> Any:
    if not folder.exists():
        folder.mkdir()
        _record().write(folder / "cell.json")
    return Record.read(folder / "cell.json")


def _study_samples(place: Path, folder: Path) -> Any:
    if not folder.exists():
        write_results(Results({}, [], {"a": _record()}, {}), folder / "study.json")
    return read_results(folder / "study.json")


KINDS: dict[str, Callable[[Path, Path], Any]] = {
    "embeddings": _embeddings,
    "tokenised corpus": _tokenised_corpus,
    "sizes of shards": _sizes_of_shards,
    "distillation targets": _targets,
    "mined negatives": _negatives,
    "word table": _words,
    "study cell": _study_cell,
    "study samples": _study_samples,
}
DAMAGED = {"study samples": "study.npz"}  # the only file with a checksum: people and git keep the JSON. Else any file


def warnings_of(function: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Call a function; return its result and the warnings that it logs, though another part has switched logs off."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    root, disabled = logging.getLogger(), logging.root.manager.disable
    logging.disable(logging.NOTSET)
    root.addHandler(handler)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return function(), said
    finally:
        root.removeHandler(handler)
        logging.disable(disabled)
