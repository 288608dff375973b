"""Texts to vectors, in bulk: each text once, in micro-batches of similar length, pooled as the checkpoint says.

    encode            an encoder in memory whose config has our settings (probes during training)
    load_encoder      any AutoModel encoder or SentenceTransformer directory, as a SentenceTransformer
    embed_documents   such a model over any texts: cached on disk, long texts in pieces
    EncoderArguments  the options of scripts that compare encoders, and what they do with them

Texts are read, tokenised, sorted and cached in chunks of `CHUNK_TEXTS`, which bounds the memory and what a kill costs;
with several processes each takes every so-many-th chunk, so that results do not depend on their number. A corpus of
fewer chunks than processes leaves some of them idle.
"""

import hashlib
import io
import itertools
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import sentence_transformers
import torch
import torch.distributed as dist
import transformers
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling as PoolingModule
from sentence_transformers.models import Transformer
from sentence_transformers.util import is_sentence_transformer_model, load_file_path
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import AutoConfig, LongformerModel, PreTrainedModel, PreTrainedTokenizerBase

import modeling_docsplit
from docsplit import longformer_attention, tokenization
from docsplit.caching import build_once, cache_directory
from docsplit.longformer_attention import use_blocked_attention, use_transformers_attention
from docsplit.tokenization import cut_into_chunks
from modeling_docsplit import (
    DEFAULT_SETTINGS,
    LONGFORMER_MODULE,
    Pooling,
    attend_as_documents_need,
    has_pooler,
    length_multiple,
    max_positions,
    micro_batches,
    pool,
)

logger = logging.getLogger(__name__)

CHUNK_TEXTS = 1024

LongDocuments = Literal["truncate", "chunk_mean"]
T = TypeVar("T")
Advance = Callable[[float], None]  # told which share of a chunk is done
Prepare = Callable[[list[str]], Callable[[Advance], np.ndarray]]  # tokenises a chunk; the result embeds it, (texts, H)
MicroBatch = tuple[Tensor, dict[str, Tensor]]  # which rows (R,), their features (R, T)


# --- An encoder in memory ------------------------------------------------------------------------------------------


@torch.inference_mode()
def encode(
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    micro_batch_tokens: int | None = None,
    show_progress: bool = False,
    output_file: Path | None = None,
) -> np.ndarray:
    """Embed texts with an encoder whose config has the settings of `DocSplitForContrastivePretraining`.

    With several processes (`torch.distributed`) all must call it, with the same weights, texts and options; each
    computes its share of the chunks, and all return the whole.

    Args:
        encoder: what `AutoModel.from_pretrained(checkpoint, add_pooling_layer=False)` gives, or the
            `encoder.base_model` of a `DocSplitForContrastivePretraining`; used in eval mode and left as it was.
        texts: any sequence, such as a column of a `datasets.Dataset`; one chunk at a time is brought into memory.
        micro_batch_tokens: bound on texts x longest text of one forward pass. Default: `default_micro_batch_tokens`.
        show_progress: on the first process.
        output_file: .npy file that the embeddings are written to as they come, on a file system of all processes; it
            appears under this name once it is whole.

    Returns: (len(texts), H) float32, in the order of the texts; truncated to the checkpoint's `max_seq_length` tokens,
        not normalised. In memory, or `output_file`, memory-mapped and read-only.

    Raises:
        ValueError: if the config has no such settings, or an embedding is not finite.
        RuntimeError: if another process failed.
    """
    settings = getattr(encoder.config, "docsplit", None)
    if settings is None:
        raise ValueError(
            f"The config of {encoder.config._name_or_path!r} says nothing about pooling: load the encoder through "
            "DocSplitForContrastivePretraining.from_pretrained(..., pooling=..., max_seq_length=...)."
        )

    def forward(features: dict[str, Tensor]) -> Tensor:
        mask = features["attention_mask"]
        hidden_states = encoder(input_ids=features["input_ids"], attention_mask=mask)[0]
        return pool(hidden_states, mask, settings["pooling"])

    def prepare(chunk: list[str]) -> Callable[[Advance], np.ndarray]:
        batches = _padded_batches(
            tokenizer, chunk, settings["max_seq_length"], budget, "right", length_multiple(encoder)
        )
        return partial(_embed_chunk, forward, encoder.device, batches)

    budget = micro_batch_tokens or default_micro_batch_tokens(encoder.device)
    shape = (len(texts), encoder.config.hidden_size)
    was_training = encoder.training
    own_forward = vars(encoder).get("forward")  # already so, or compiled
    is_to_be_blocked = type(encoder) is LongformerModel
    try:
        encoder.eval()
        if own_forward is None:
            attend_as_documents_need(encoder)
        if is_to_be_blocked:
            use_blocked_attention(encoder)
        return _collect(_in_chunks(texts, prepare, show_progress), shape, output_file)[0]
    finally:
        if own_forward is None:
            vars(encoder).pop("forward", None)
            if encoder.config.model_type == "big_bird":
                cast(Any, encoder).set_attention_type(encoder.config.attention_type)
        if is_to_be_blocked:
            use_transformers_attention(encoder)
        encoder.train(was_training)


# --- Any encoder ---------------------------------------------------------------------------------------------------


def load_encoder(
    name_or_path: str, pooling: Pooling | None = None, max_seq_length: int | None = None, device: str | None = None
) -> SentenceTransformer:
    """Load an encoder, frozen or not, with the pooling, prompts and maximum length that it was made with.

    Args:
        name_or_path: on the Hub or here, a SentenceTransformer (checkpoints of this project are such) or any
            `AutoModel`.
        pooling: of an `AutoModel` whose checkpoint says nothing about it; default `cls`, the DocSplit paper's.
        max_seq_length: tokens of a text, special ones included. Default: the checkpoint's; where it says nothing,
            512 or what the encoder has positions for.

    Raises:
        ValueError: if there is no encoder at this name, or `max_seq_length` is more than it has positions for.
    """
    logs = logging.getLogger("transformers.modeling_utils")
    level, report = logs.level, _LoadReport(logs.getEffectiveLevel())
    logs.addFilter(report)
    logs.setLevel(logging.WARNING)  # it is read even where nobody wants to see warnings
    try:
        is_assembled = not is_sentence_transformer_model(name_or_path) or _is_own_longformer(name_or_path)
        if not is_assembled:
            if pooling is not None:
                logger.info(f"{name_or_path} brings its own pooling: --pooling {pooling} is not used for it.")
            model = SentenceTransformer(name_or_path, device=device)
        else:
            config = AutoConfig.from_pretrained(name_or_path)
            settings = getattr(config, "docsplit", {"pooling": pooling or DEFAULT_SETTINGS["pooling"]})
            if pooling not in (None, settings["pooling"]):
                logger.info(f"{name_or_path} brings its own pooling: --pooling {pooling} is not used for it.")
            arguments = {"add_pooling_layer": False} if has_pooler(config) else {}
            transformer = Transformer(name_or_path, model_kwargs=arguments)
            pooler = PoolingModule(transformer.get_embedding_dimension(), pooling_mode=settings["pooling"])
            model = SentenceTransformer(modules=[transformer, pooler], device=device)
            default = min(DEFAULT_SETTINGS["max_seq_length"], model.max_seq_length or 512)
            model.max_seq_length = settings.get("max_seq_length", default)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ValueError(
            f"{name_or_path!r} cannot be loaded as an encoder: name a model of the Hub or a folder with config.json, "
            f"weights and tokenizer. The cause: {' '.join(str(error).split())}"
        ) from error
    finally:
        logs.removeFilter(report)
        logs.setLevel(level)
    if report.missing:
        raise ValueError(
            f"{name_or_path!r} lacks {len(report.missing)} weights of its own architecture, such as "
            f"{sorted(report.missing)[:3]}: they would be random. Is it the checkpoint of another model?"
        )
    if report.random_pooler:  # of no use here, and other weights at each loading
        first: Any = model[0]
        first.model.pooler = None
    model.float().eval()
    if isinstance(model[0], Transformer) and (is_assembled or model[0].config.model_type != "longformer"):
        attend_as_documents_need(model[0].model)  # a SentenceTransformer with a Longformer was made as it is
    if isinstance(model[0], Transformer) and type(model[0].model) is LongformerModel:
        use_blocked_attention(model[0].model)
    positions = max_positions(model[0].config) if isinstance(model[0], Transformer) else None
    if max_seq_length is not None:
        if positions is not None and max_seq_length > positions:
            raise ValueError(
                f"--max_seq_length is {max_seq_length}, but {name_or_path} has positions for {positions} tokens: "
                "lower it; --long_documents chunk_mean reads longer documents all the same."
            )
        model.max_seq_length = max_seq_length
    elif positions is not None and (model.max_seq_length is None or model.max_seq_length > positions):
        model.max_seq_length = positions
    return model


def _is_own_longformer(name_or_path: str) -> bool:
    """Whether sentence-transformers would want the module in the checkpoint, which `load_encoder` does without."""
    path = load_file_path(name_or_path, "modules.json")
    return path is not None and LONGFORMER_MODULE in Path(path).read_text(encoding="utf-8")


class _LoadReport(logging.Filter):
    """Reads what transformers logs about a checkpoint: weights that were not used are no news, missing ones are."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level  # of what is shown
        self.missing: set[str] = set()
        self.random_pooler = False

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "LOAD REPORT" not in text:
            return record.levelno >= self.level
        for line in text.splitlines():
            key, *status = line.split("|")
            if status and ("MISSING" in status[0] or "MISMATCH" in status[0]):
                if "pooler" in key:
                    self.random_pooler = True
                else:
                    self.missing.add(key.strip())
        return False


def describe_encoder(model: SentenceTransformer) -> dict[str, Any]:
    """What decides its embeddings, for the rows of results: pooling, maximum length, number of parameters."""
    poolers = [module for module in model if isinstance(module, PoolingModule)]
    modes = [poolers[0].pooling_mode] if poolers and isinstance(poolers[0].pooling_mode, str) else None
    modes = modes or [mode for pooler in poolers for mode in pooler.pooling_mode]
    return {
        "pooling": "+".join(modes) or type(model[-1]).__name__,
        "max_seq_length": model.max_seq_length,
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def resolve_prompt(model: SentenceTransformer, prompt: str | None) -> str:
    """What `model.encode(texts, prompt=prompt)` puts before each text: the model's default prompt if None is given."""
    return (model.prompts.get(model.default_prompt_name or "") or "") if prompt is None else prompt


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the hardware multiplies it natively, else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    capable = device.type == "cpu" and any(
        torch.cpu.get_capabilities().get(name) for name in ("avx512_bf16", "amx_bf16")
    )
    return torch.bfloat16 if capable else torch.float32


def default_micro_batch_tokens(device: torch.device) -> int:
    """Texts x longest text of one forward pass: enough to keep the device busy, with a few per cent of padding."""
    return 2048 if device.type == "cpu" else 16384


@torch.no_grad()  # in inference mode autocast would cast all weights anew for each micro-batch
def embed_documents(
    model: SentenceTransformer,
    texts: Sequence[str],
    prompt: str | None = None,
    long_documents: LongDocuments = "truncate",
    dtype: torch.dtype | None = None,
    micro_batch_tokens: int | None = None,
    cache_dir: Path | None = None,
    show_progress: bool = False,
    output_file: Path | None = None,
) -> tuple[np.ndarray, float]:
    """Embed texts with any encoder, as `model.encode` would, each once.

    Several processes, `texts`, `micro_batch_tokens`, `show_progress` and `output_file` are as in `encode`.

    Args:
        model: of `load_encoder`.
        prompt: put before each text. Default: the model's own default prompt.
        long_documents: what is beyond the model's maximum length is cut off (`truncate`), or a text is embedded in
            pieces of that length and the embeddings averaged, weighted by their numbers of tokens (`chunk_mean`).
        dtype: of the encoder's matrix products; None: `default_dtype`. The embeddings are float32 in any case.
        cache_dir: where embeddings are kept, under a key of weights, pooling, length, prompt and texts; None: nowhere.

    Returns: embeddings (len(texts), H) float32 in the order of the texts, and the seconds that computing them took all
        processes together (then, if they came from the cache).

    Raises:
        ValueError: if an embedding is not finite, or the model cannot be cut into pieces.
        RuntimeError: if another process failed.
    """
    dtype = dtype or default_dtype(model.device)
    micro_batch_tokens = micro_batch_tokens or default_micro_batch_tokens(model.device)
    prompt = resolve_prompt(model, prompt)
    if isinstance(model[0], Transformer) and isinstance(model[0].processor, PreTrainedTokenizerBase):
        prepare = _prepare_micro_batches(model, prompt, long_documents, dtype, micro_batch_tokens)
    elif long_documents == "chunk_mean":
        raise ValueError(f"--long_documents chunk_mean needs a transformer as first module, not {model[0]}.")
    else:  # those that do not begin with a transformer and its tokenizer (static ones, say) batch as they like

        def prepare(chunk: list[str]) -> Callable[[Advance], np.ndarray]:
            return lambda advance: model.encode(chunk, prompt=prompt or None, show_progress_bar=False)

    if cache_dir is not None:
        key = _fingerprint(model, prompt, str(dtype), micro_batch_tokens, long_documents)
        cache_dir = cache_dir / f"embeddings-{key}"
    shape = (len(texts), model.truncate_dim or model.get_embedding_dimension() or 0)
    return _collect(_in_chunks(texts, prepare, show_progress, cache_dir), shape, output_file)


def _prepare_micro_batches(
    model: SentenceTransformer, prompt: str, long_documents: LongDocuments, dtype: torch.dtype, micro_batch_tokens: int
) -> Prepare:
    """What `model.encode` gives, but in micro-batches of bounded numbers of tokens.

    Raises:
        ValueError: if the model cannot be cut into pieces.
    """
    modules: list[Any] = list(model)
    tokenizer, device, limit = modules[0].processor, model.device, model.max_seq_length
    multiple = length_multiple(modules[0].model)
    prompt_ids = tokenizer(prompt)["input_ids"]
    room = (limit or 0) - len(prompt_ids)  # for a piece, beside prompt and special tokens
    if long_documents == "chunk_mean" and not (limit and tokenizer.is_fast):
        raise ValueError(
            "--long_documents chunk_mean needs a length to cut at (--max_seq_length) and a fast tokenizer "
            "(tokenizer.json), which says where in the text a token is."
        )
    if long_documents == "chunk_mean" and room < 1:
        raise ValueError(f"The prompt leaves no room within {limit} tokens: raise --max_seq_length.")
    # A pooling without the prompt leaves out its tokens and the special ones before it.
    extra = {"prompt_length": len(prompt_ids) - (prompt_ids[-1] in tokenizer.all_special_ids)} if prompt else {}

    def forward(features: dict[str, Any]) -> Tensor:
        features = modules[0](features | extra)
        # Pooling and what follows in full precision: a bfloat16 sum over hundreds of tokens would not be one.
        features = {name: value.float() if _is_half(value) else value for name, value in features.items()}
        with torch.autocast(device.type, enabled=False):
            for module in modules[1:]:
                features = module(features)
        return features["sentence_embedding"][:, : model.truncate_dim]

    def embed(batches: list[MicroBatch], advance: Advance) -> np.ndarray:
        # Around all micro-batches: each weight is cast once.
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            return _embed_chunk(forward, device, batches, advance)

    def batches_of(texts: Iterable[str]) -> list[MicroBatch]:
        prompted = [prompt + text for text in texts]
        return _padded_batches(tokenizer, prompted, limit, micro_batch_tokens, tokenizer.padding_side, multiple)

    def prepare(chunk: list[str]) -> Callable[[Advance], np.ndarray]:
        if long_documents == "truncate":
            return partial(embed, batches_of(chunk))
        pieces, sizes = zip(*cut_into_chunks(tokenizer, chunk, room))
        batches = batches_of(itertools.chain.from_iterable(pieces))
        return lambda advance: _weighted_means(embed(batches, advance), sizes)

    return prepare


def _weighted_means(embeddings: np.ndarray, sizes: Sequence[list[int]]) -> np.ndarray:
    """(K, H) embeddings of pieces to (N, H) of texts, given the numbers of tokens of each text's pieces."""
    counts = [len(its_sizes) for its_sizes in sizes]
    weights = np.maximum(np.concatenate(sizes), 1).astype(np.float64)  # a text without tokens still has one piece
    starts = np.cumsum([0, *counts[:-1]])
    totals = np.add.reduceat(embeddings * weights[:, None], starts)
    return (totals / np.add.reduceat(weights, starts)[:, None]).astype(np.float32)


# --- Several encoders side by side ---------------------------------------------------------------------------------


@dataclass
class EncoderArguments:
    """The encoders to compare and how they embed."""

    model_name_or_path: list[str] = field(
        metadata={
            "help": "Encoders on the Hub or here, side by side: SentenceTransformers or any AutoModel; in the "
            "classification script also tfidf."
        }
    )
    pooling: Pooling | None = field(
        default=None,
        metadata={"help": "Token states to embedding, for encoders that say nothing about it. Default: cls."},
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Tokens of a text, with special ones. Default: the checkpoint's, else 512 (the paper's)."},
    )
    long_documents: LongDocuments = field(
        default="truncate",
        metadata={"help": "Of longer texts: the beginning alone, or the mean over chunks of that length."},
    )
    prompt: str | None = field(
        default=None, metadata={"help": "Put before each text (INSTRUCTOR, E5). Default: the checkpoint's own."}
    )
    dtype: Literal["auto", "float32", "bfloat16"] = field(
        default="auto", metadata={"help": "Of the matrix products. auto: bfloat16 where the hardware has it."}
    )
    embedding_tokens: int | None = field(
        default=None,
        metadata={"help": "Texts x longest text of one forward pass: speed and memory. Default: 2048 (GPU 16384)."},
    )

    def __post_init__(self) -> None:
        if self.max_seq_length is not None and self.max_seq_length < 3:
            raise ValueError(f"--max_seq_length is {self.max_seq_length}: a token needs room beside the special ones.")
        if self.embedding_tokens is not None and self.embedding_tokens < 1:
            raise ValueError(f"--embedding_tokens is {self.embedding_tokens}: expected 1 or more.")

    def load(self, name: str) -> SentenceTransformer:
        return load_encoder(name, self.pooling, self.max_seq_length)

    def resolve_dtype(self, device: torch.device) -> torch.dtype:
        return default_dtype(device) if self.dtype == "auto" else getattr(torch, self.dtype)

    def embed(
        self, model: SentenceTransformer, texts: Sequence[str], cached: bool = True, show_progress: bool = False
    ) -> tuple[np.ndarray, float]:
        """`embed_documents` with these options."""
        return embed_documents(
            model,
            texts,
            prompt=self.prompt,
            long_documents=self.long_documents,
            dtype=self.resolve_dtype(model.device),
            micro_batch_tokens=self.embedding_tokens,
            cache_dir=cache_directory() if cached else None,
            show_progress=show_progress,
        )

    def check(self, name: str, texts: Sequence[str]) -> None:
        """Load an encoder and embed a few texts, so that what cannot work fails before any long work.

        Raises:
            ValueError: naming the encoder.
        """
        model = self.load(name)
        try:
            self.embed(model, texts, cached=False)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    def embed_all(self, name: str, texts: Sequence[str], show_progress: bool) -> tuple[np.ndarray, dict[str, Any]]:
        """Embed each distinct text once.

        Returns: (len(texts), H) float32, and what a row of results says about them.
        """
        model = self.load(name)
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        logger.info(f"Embedding {len(rows):,} texts with {name} on {model.device}")
        embeddings, seconds = self.embed(model, list(rows), show_progress=show_progress)
        dtype = str(self.resolve_dtype(model.device)).removeprefix("torch.")
        info = {"long_documents": self.long_documents, "dtype": dtype, "embedding_seconds": seconds}
        info["prompt"] = resolve_prompt(model, self.prompt)
        return embeddings[[rows[text] for text in texts]], describe_encoder(model) | info


# --- What all share -----------------------------------------------------------------------------------------------


def _in_chunks(
    texts: Sequence[str], prepare: Prepare, show_progress: bool, cache_dir: Path | None = None
) -> Iterator[tuple[np.ndarray, float]]:
    """Embed chunks of texts, in rounds of one a process.

    A background thread, the only user of the tokenizer, prepares a process's next chunk while this one embeds.

    Yields: on each process the embeddings (texts of the chunk, H) of all chunks in order, and the seconds they took.

    Raises:
        ValueError: if an embedding is not finite.
        RuntimeError: if another process failed.
    """
    rank, world_size = _rank_and_world_size()
    in_a_round = CHUNK_TEXTS * world_size

    def prepare_chunk(start: int) -> tuple[Path | None, Callable[[Advance], np.ndarray] | None]:
        chunk = _valid_unicode(texts[start : start + CHUNK_TEXTS])
        path = cache_dir / _hash_of_texts(chunk) if cache_dir else None
        return path, None if path is not None and path.exists() else prepare(chunk)

    def advance(first: int, share: float) -> None:
        progress.update(first + int(share * min(in_a_round, len(texts) - first)) - progress.n)

    def embed_own(first: int) -> tuple[np.ndarray, float] | None:
        start = first + rank * CHUNK_TEXTS
        if start >= len(texts):
            return None
        started = time.perf_counter()
        path, embed = next(prepared)
        if embed is None:
            with np.load(f"{path}/embeddings.npz") as stored:
                return stored["embeddings"], float(stored["seconds"])
        embeddings = embed(partial(advance, first)).astype(np.float32, copy=False)
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

    prepared = _one_ahead(prepare_chunk, range(rank * CHUNK_TEXTS, len(texts), in_a_round))
    with tqdm(total=len(texts), desc="Embedding", unit="text", disable=not show_progress or rank > 0) as progress:
        for first in range(0, len(texts), in_a_round):
            yield from filter(None, _on_all(partial(embed_own, first)))
            advance(first, 1.0)


def _collect(
    chunks: Iterable[tuple[np.ndarray, float]], shape: tuple[int, int], output_file: Path | None
) -> tuple[np.ndarray, float]:
    """All rows as one array, in memory or in a file that the first process writes, and the sum of the seconds."""
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
    """`function` of each item, in order; a background thread computes the next one meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        ahead = None
        for item in items:
            ready, ahead = ahead, thread.submit(function, item)
            if ready is not None:
                yield ready.result()
        if ahead is not None:
            yield ahead.result()


def _on_all(work: Callable[[], T]) -> list[T]:
    """What `work` returns on each process, in their order; if it raises on one, all raise and none waits for it."""
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


def _padded_batches(
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    max_length: int | None,
    micro_batch_tokens: int,
    padding_side: str,
    multiple: int,
) -> list[MicroBatch]:
    """Texts of similar length together, tokenised and padded to the longest of them."""
    limit = {"truncation": True, "max_length": max_length} if max_length else {}
    features: dict[str, list[Tensor]] = defaultdict(list)
    for start in range(0, len(texts), CHUNK_TEXTS):  # there are more pieces than that
        for name, values in tokenizer(texts[start : start + CHUNK_TEXTS], verbose=False, **limit).items():
            features[name] += [torch.tensor(value, dtype=torch.long) for value in values]
    padding = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": tokenizer.pad_token_type_id}

    def pad(name: str, rows: list[int]) -> Tensor:  # as `tokenizer.pad`, which is slower
        values = [features[name][row] for row in rows]
        return pad_sequence(values, True, padding.get(name, 0), padding_side)

    lengths = torch.tensor([len(ids) for ids in features["input_ids"]])
    groups = [rows for rows, _ in micro_batches(lengths, micro_batch_tokens, multiple)]
    return [(rows, {name: pad(name, rows.tolist()) for name in features}) for rows in groups]


def _embed_chunk(
    forward: Callable[[dict[str, Tensor]], Tensor], device: torch.device, batches: list[MicroBatch], advance: Advance
) -> np.ndarray:
    """(texts, H) float32, in the order of the texts."""
    outputs, done = [], 0
    total = sum(features["input_ids"].numel() for _, features in batches)
    for _, features in batches:
        # Nothing waits for a GPU before the end, so that it always has the next batch.
        features = {name: value.to(device, non_blocking=device.type == "cuda") for name, value in features.items()}
        outputs.append(forward(features).float())
        done += features["input_ids"].numel()
        advance(done / max(total, 1))
    order = torch.cat([rows for rows, _ in batches])
    return torch.cat(outputs)[order.argsort().to(device)].cpu().numpy()


def _valid_unicode(texts: Sequence[str]) -> list[str]:
    """A lone surrogate would make the tokenizer raise; all else is left to it, as SentenceTransformer does."""
    return [text.encode("utf-8", "replace").decode() for text in texts]


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)


def _rank_and_world_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _fingerprint(model: SentenceTransformer, *settings: object) -> str:
    """A key of what the embeddings of given texts depend on: weights, modules, tokenizer, length, precision, code."""
    digest = hashlib.blake2b(digest_size=12)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    tokenizer: Any = getattr(model[0], "processor", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    state: dict[str, Any] = json.loads(backend.to_str()) if backend is not None else {}
    state |= {"truncation": None, "padding": None}  # of the last call
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        state |= {"padding_side": tokenizer.padding_side, "pad_token_id": tokenizer.pad_token_id}
        state |= {"vocabulary": sorted(tokenizer.get_vocab().items()) if backend is None else None}
    config = getattr(model[0], "config", None)
    if config is not None:
        state |= {"config": config.to_dict() | {"_name_or_path": None}}
        state |= {"attention": getattr(config, "_attn_implementation", None)}
    modules = [f"{type(module).__qualname__} {getattr(module, 'get_config_dict', dict)()}" for module in model]
    own = [model.max_seq_length, model.truncate_dim, model.device.type]
    versions = [torch.__version__, transformers.__version__, sentence_transformers.__version__]
    digest.update(json.dumps([state, modules, own, settings, versions], default=str).encode())
    for code in (__file__, modeling_docsplit.__file__, longformer_attention.__file__, tokenization.__file__):
        digest.update(Path(str(code)).read_bytes())
    return digest.hexdigest()


def _hash_of_texts(texts: list[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()
