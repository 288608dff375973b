"""The engine of bulk embedding: chunks of texts, shared among processes, cached, collected in memory or in a file.

Texts are read, tokenised, sorted and cached in chunks of `CHUNK_TEXTS`, which bounds the memory and what a kill costs;
with several processes each takes every so-many-th chunk, so that results do not depend on their number. A corpus of
fewer chunks than processes leaves some of them idle.
"""

import hashlib
import io
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from docsplit.data.readers.documents import refuse_table
from docsplit.modeling.encoding import MICRO_BATCH_OVERHEAD, micro_batches
from docsplit.modeling.packed_attention import packed_inputs
from docsplit.modeling.packing import Packing, groups_that_fit
from docsplit.runtime.files import add_texts, build_once, is_cached
from docsplit.runtime.sharing import refuse_differences

T = TypeVar("T")

CHUNK_TEXTS = 1024
Advance = Callable[[float], None]  # told which share of a chunk is done
Finish = Callable[[list[str], np.ndarray], np.ndarray]  # texts and their embeddings (N, H) to embeddings (N, H)
MicroBatch = tuple[Tensor, dict[str, Any]]  # which rows (R,), their features (R, T) or (1, N)


@dataclass(frozen=True)
class Layout:
    """How texts are cut, put together and padded."""

    max_length: int | None  # tokens of a text, special ones included; None: all
    micro_batch_tokens: int  # bound on texts x longest text
    multiple: int = 1  # what the encoder pads the longest text to
    overhead: int = MICRO_BATCH_OVERHEAD  # of one more micro-batch, in tokens
    packing: Packing | None = None  # put texts into packs, without padding


class Embedder(Protocol):
    """Embed a chunk of texts in two steps: the next chunk is prepared while this one is embedded."""

    def tokenize(self, texts: list[str]) -> Any:
        """Return whatever `embed` takes; a background thread calls it."""

    def embed(self, tokenized: Any, advance: Advance) -> np.ndarray:
        """Return the embeddings (texts, H), in the order of the texts."""


def in_chunks(
    texts: Sequence[str],
    embedder: Embedder,
    show_progress: bool,
    cache_dir: Path | None = None,
    finish: Finish | None = None,
) -> Iterator[tuple[np.ndarray, float]]:
    """Embed chunks of texts, in rounds of one a process.

    A background thread tokenises a process's next chunk while this one embeds.

    Args:
        finish: changes the embeddings of a chunk's texts; what is kept in `cache_dir` is from before.

    Yields: on each process the embeddings (texts of the chunk, H) of all chunks in order, and the seconds they took.

    Raises:
        ValueError: if an embedding is not finite, or the processes have different texts.
        RuntimeError: if another process failed.
    """
    refuse_table(texts)
    refuse_differences(lambda: {"the texts to embed": _hash_of_texts(texts)})
    rank, world_size = _rank_and_world_size()
    in_a_round = CHUNK_TEXTS * world_size

    def tokenize(start: int) -> tuple[Path | None, Any]:
        chunk = _valid_unicode(texts[start : start + CHUNK_TEXTS])
        path = cache_dir / _hash_of_texts(chunk) if cache_dir else None
        return path, None if path is not None and is_cached(path) else embedder.tokenize(chunk)

    def advance(first: int, share: float) -> None:
        progress.update(first + int(share * min(in_a_round, len(texts) - first)) - progress.n)

    def embed_share(first: int) -> tuple[np.ndarray, float] | None:
        start = first + rank * CHUNK_TEXTS
        if start >= len(texts):
            return None
        embeddings, seconds = embed(first, start)
        if finish is not None:
            embeddings = finish(_valid_unicode(texts[start : start + CHUNK_TEXTS]), embeddings)
        return embeddings, seconds

    def embed(first: int, start: int) -> tuple[np.ndarray, float]:
        started = time.perf_counter()
        path, tokenized = next(ahead)
        if tokenized is None:
            with np.load(f"{path}/embeddings.npz") as stored:
                return stored["embeddings"], float(stored["seconds"])
        embeddings = embedder.embed(tokenized, partial(advance, first)).astype(np.float32, copy=False)
        bad = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
        if len(bad):
            raise ValueError(
                f"{len(bad)} of {len(embeddings)} embeddings are not finite, the first of text {start + bad[0]}: the "
                "encoder is broken, or needs --dtype float32."
            )
        seconds = time.perf_counter() - started
        if path is not None:
            build_once(path, lambda to: np.savez(to / "embeddings.npz", embeddings=embeddings, seconds=seconds))
        return embeddings, seconds

    ahead = _one_ahead(tokenize, range(rank * CHUNK_TEXTS, len(texts), in_a_round))
    hidden = not show_progress or rank > 0
    with tqdm(total=len(texts), desc="Embedding", unit="text", disable=hidden, leave=None) as progress:
        for first in range(0, len(texts), in_a_round):
            yield from filter(None, _on_all(partial(embed_share, first)))
            advance(first, 1.0)


def collect(
    chunks: Iterable[tuple[np.ndarray, float]], shape: tuple[int, int], output_file: Path | None
) -> tuple[np.ndarray, float]:
    """Return all rows as one array, and the sum of the seconds; the first process may write the rows to a file."""
    seconds, filled = 0.0, 0
    if output_file is None:
        embeddings = np.empty(shape, dtype=np.float32)
        for rows, its_seconds in chunks:
            embeddings[filled : filled + len(rows)] = rows
            filled += len(rows)
            seconds += its_seconds
        return embeddings, seconds
    is_first = _rank_and_world_size()[0] == 0
    unfinished = output_file.with_name(f"{output_file.name}.partial")

    def write(content: bytes, mode: str = "ab") -> None:
        if is_first:
            with open(unfinished, mode) as file:
                file.write(content)

    header = io.BytesIO()
    description = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    _on_all(lambda: output_file.parent.mkdir(parents=True, exist_ok=True))
    _on_all(partial(write, header.getvalue(), "wb"))
    for rows, its_seconds in chunks:
        _on_all(partial(write, rows.tobytes()))
        seconds += its_seconds
    _on_all(lambda: unfinished.replace(output_file) if is_first else None)
    return np.load(output_file, mmap_mode="r"), seconds


def _one_ahead(function: Callable[[int], T], items: Sequence[int]) -> Iterator[T]:
    """Yield `function(item)` for each item, in order; a background thread computes the next one meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        ahead = None
        for item in items:
            ready, ahead = ahead, thread.submit(function, item)
            if ready is not None:
                yield ready.result()
        if ahead is not None:
            yield ahead.result()


def _on_all(work: Callable[[], T]) -> list[T]:
    """Return what `work` returns on each process, in their order; if it raises on one, all raise and none waits."""
    _, world_size = _rank_and_world_size()
    if world_size == 1:
        return [work()]
    result: Any = None
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:
        failure = error
    results: list[Any] = [None] * world_size
    dist.all_gather_object(results, (result, failure and repr(failure)))
    if failure is not None:
        raise failure
    for number, (_, message) in enumerate(results):
        if message is not None:
            raise RuntimeError(f"Process {number} failed: {message}")
    return [result for result, _ in results]


def tokenized_batches(tokenizer: PreTrainedTokenizerBase, texts: list[str], layout: Layout) -> list[MicroBatch]:
    """Texts of similar length together, tokenised, and padded to the longest of them or in packs."""
    limit = {"truncation": True, "max_length": layout.max_length} if layout.max_length else {}
    features: dict[str, list[Tensor]] = defaultdict(list)
    for start in range(0, len(texts), CHUNK_TEXTS):  # there are more pieces than that
        for name, values in tokenizer(texts[start : start + CHUNK_TEXTS], verbose=False, **limit).items():
            features[name] += [torch.tensor(value, dtype=torch.long) for value in values]
    padding = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": tokenizer.pad_token_type_id}
    for row, ids in enumerate(features["input_ids"]):
        if not len(ids):  # an empty text, where the tokenizer adds no special tokens: read as one token of padding
            for name in features:
                features[name][row] = torch.tensor([1 if name == "attention_mask" else padding.get(name, 0)])

    def pad(name: str, rows: list[int]) -> Tensor:  # as `tokenizer.pad`, which is slower
        values = [features[name][row] for row in rows]
        return pad_sequence(values, True, padding.get(name, 0))

    lengths = torch.tensor([len(ids) for ids in features["input_ids"]])
    if layout.packing is not None:
        return _packed(features["input_ids"], lengths, layout.packing, layout.micro_batch_tokens)
    groups = [rows for rows, _ in micro_batches(lengths, layout.micro_batch_tokens, layout.multiple, layout.overhead)]
    return [(rows, {name: pad(name, rows.tolist()) for name in features}) for rows in groups]


def _packed(texts: list[Tensor], lengths: Tensor, packing: Packing, max_tokens: int) -> list[MicroBatch]:
    """Put texts (T,) into packs, the longest first: `unpack` pads to the longest of each."""
    order = lengths.argsort(descending=True, stable=True)
    batches = []
    for group in groups_that_fit(lengths[order].numpy(), max_tokens):
        rows = order[group]
        sizes = lengths[rows].numpy()
        _, positions, borders, longest = packing.lay_out(sizes, sizes, 1, max_tokens)
        ids = torch.cat([texts[row] for row in rows.tolist()])
        features = {"input_ids": ids[None], "attention_mask": None, "position_ids": torch.from_numpy(positions)[None]}
        batches.append((rows, features | packed_inputs(torch.from_numpy(borders).int(), longest)))
    return batches


def unpack(states: Tensor, features: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Turn the states (1, N, H) of a pack into those of padded texts (R, T, H), and their mask (R, T)."""
    starts, lengths = features["cu_seq_lens_q"][:-1].long(), features["cu_seq_lens_q"].diff()
    offsets = torch.arange(features["max_length_q"], device=states.device)
    places = (starts[:, None] + offsets).clamp(max=states.shape[1] - 1)
    return states[0, places], (offsets < lengths[:, None]).long()


def embed_chunk(
    forward: Callable[[dict[str, Tensor]], Tensor], device: torch.device, batches: list[MicroBatch], advance: Advance
) -> np.ndarray:
    """Return the embeddings (texts, H) float32, in the order of the texts."""
    outputs, done = [], 0
    total = sum(features["input_ids"].numel() for _, features in batches)
    for _, features in batches:
        # Nothing waits for a GPU before the end, so that it always has the next batch.
        features = {name: _move(value, device) for name, value in features.items()}
        outputs.append(forward(features).float())
        done += features["input_ids"].numel()
        advance(done / max(total, 1))
    order = torch.cat([rows for rows, _ in batches])
    return torch.cat(outputs)[order.argsort().to(device)].cpu().numpy()


def _move(value: Any, device: torch.device) -> Any:
    return value.to(device, non_blocking=device.type == "cuda") if isinstance(value, Tensor) else value


def _valid_unicode(texts: Sequence[str]) -> list[str]:
    """Replace lone surrogates, which would make the tokenizer raise; it reads all else as it is."""
    return [text.encode("utf-8", "replace").decode() for text in texts]


def _rank_and_world_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _hash_of_texts(texts: Sequence[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(texts), CHUNK_TEXTS):
        add_texts(digest, texts[start : start + CHUNK_TEXTS])
    return digest.hexdigest()
