"""Texts to vectors, in bulk: each text once, in micro-batches of similar length, pooled as the checkpoint says.

    encode            an encoder in memory whose config has our settings (probes during training)
    load_encoder      any AutoModel encoder or SentenceTransformer directory, as a SentenceTransformer
    embed_documents   such a model over a list of texts: cached on disk, sharded over processes, long texts in chunks
    EncoderArguments  the options of scripts that compare encoders, and what they do with them

Texts are tokenised, sorted and cached in chunks of `CHUNK_TEXTS`: a kill costs one chunk at most.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sentence_transformers
import torch
import torch.distributed as dist
import transformers
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling as PoolingModule
from sentence_transformers.models import Transformer
from sentence_transformers.util import is_sentence_transformer_model
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

import modeling_docsplit
from docsplit.caching import build_once, cache_directory
from docsplit.tokenization import cut_into_chunks
from modeling_docsplit import DEFAULT_SETTINGS, Pooling, has_pooler, max_positions, micro_batches, pool

logger = logging.getLogger(__name__)

CHUNK_TEXTS = 1024  # tokenised, sorted by length and cached together: bounds the memory and what a kill costs

LongDocuments = Literal["truncate", "chunk_mean"]


# --- An encoder in memory ------------------------------------------------------------------------------------------


@torch.inference_mode()
def encode(
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    micro_batch_tokens: int = 4096,
    show_progress: bool = False,
) -> np.ndarray:
    """Embed texts with an encoder whose config has the settings of `DocSplitForContrastivePretraining`.

    Args:
        encoder: what `AutoModel.from_pretrained(checkpoint, add_pooling_layer=False)` gives, or the
            `encoder.base_model` of a `DocSplitForContrastivePretraining`; used in eval mode and left as it was.
        micro_batch_tokens: bound on texts x longest text of one forward pass.

    Returns: (len(texts), H) float32, in the order of the texts; truncated to the checkpoint's `max_seq_length` tokens,
        not normalised.

    Raises:
        ValueError: if the config has no such settings, or an embedding is not finite.
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

    was_training = encoder.training
    encoder.eval()
    chunks = []
    with tqdm(total=len(texts), desc="Embedding", unit="text", disable=not show_progress) as progress:
        for start in range(0, len(texts), CHUNK_TEXTS):
            chunk = _valid_unicode(texts[start : start + CHUNK_TEXTS])
            encoded = tokenizer(chunk, truncation=True, max_length=settings["max_seq_length"], verbose=False)
            embeddings = np.empty((len(chunk), encoder.config.hidden_size), dtype=np.float32)
            batches = _padded_batches(
                tokenizer, dict(encoded), micro_batch_tokens, encoder.device, padding_side="right"
            )
            for rows, features in batches:
                embeddings[rows] = forward(features).float().cpu().numpy()
                progress.update(len(rows))
            chunks.append(embeddings)
    encoder.train(was_training)
    return _joined(chunks, encoder.config.hidden_size)


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
    report = _LoadReport()
    logs.addFilter(report)
    try:
        if is_sentence_transformer_model(name_or_path):
            if pooling is not None:
                logger.info(f"{name_or_path} brings its own pooling: --pooling {pooling} is not used for it.")
            model = SentenceTransformer(name_or_path, device=device)
        else:
            config = AutoConfig.from_pretrained(name_or_path)
            arguments = {"add_pooling_layer": False} if has_pooler(config) else {}
            transformer = Transformer(name_or_path, model_kwargs=arguments)
            width = transformer.get_embedding_dimension()
            pooler = PoolingModule(width, pooling_mode=pooling or DEFAULT_SETTINGS["pooling"])
            model = SentenceTransformer(modules=[transformer, pooler], device=device)
            model.max_seq_length = min(DEFAULT_SETTINGS["max_seq_length"], model.max_seq_length or 512)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ValueError(
            f"{name_or_path!r} cannot be loaded as an encoder: name a model of the Hub or a folder with config.json, "
            f"weights and tokenizer. The cause: {' '.join(str(error).split())}"
        ) from error
    finally:
        logs.removeFilter(report)
    if report.missing:
        raise ValueError(
            f"{name_or_path!r} lacks {len(report.missing)} weights of its own architecture, such as "
            f"{sorted(report.missing)[:3]}: they would be random. Is it the checkpoint of another model?"
        )
    if report.random_pooler:  # of no use here, and other weights at each loading
        first: Any = model[0]
        first.model.pooler = None
    model.float().eval()
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


class _LoadReport(logging.Filter):
    """Reads what transformers logs about a checkpoint: weights that were not used are no news, missing ones are."""

    def __init__(self) -> None:
        super().__init__()
        self.missing: set[str] = set()
        self.random_pooler = False

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "LOAD REPORT" not in text:
            return True
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


@torch.inference_mode()
def embed_documents(
    model: SentenceTransformer,
    texts: Sequence[str],
    prompt: str | None = None,
    long_documents: LongDocuments = "truncate",
    dtype: torch.dtype | None = None,
    micro_batch_tokens: int = 4096,
    cache_dir: Path | None = None,
    show_progress: bool = False,
) -> tuple[np.ndarray, float]:
    """Embed texts with any encoder, as `model.encode` would, each once.

    With several processes each computes its share of the micro-batches and all return the whole. The micro-batches
    themselves do not depend on the number of processes, so neither do the results.

    Args:
        model: of `load_encoder`.
        prompt: put before each text. Default: the model's own default prompt.
        long_documents: what is beyond the model's maximum length is cut off (`truncate`), or a text is embedded in
            chunks of that length and the embeddings averaged, weighted by their numbers of tokens (`chunk_mean`).
        dtype: of the encoder's matrix products; None: `default_dtype`. The embeddings are float32 in any case.
        micro_batch_tokens: bound on texts x longest text of one forward pass.
        cache_dir: where embeddings are kept, under a key of weights, pooling, length, prompt and texts; None: nowhere.

    Returns: embeddings (len(texts), H) float32 in the order of the texts, and the seconds that computing them took
        (then, if they came from the cache).

    Raises:
        ValueError: if an embedding is not finite, or the model cannot be cut into chunks.
    """
    dtype = dtype or default_dtype(model.device)
    prompt = resolve_prompt(model, prompt)
    own_batches = isinstance(model[0], Transformer) and isinstance(model[0].processor, PreTrainedTokenizerBase)
    texts = _valid_unicode(texts)
    weights, owners = np.empty(0), np.empty(0)
    if long_documents == "chunk_mean":
        if not own_batches:
            raise ValueError(f"--long_documents chunk_mean needs a transformer as first module, not {model[0]}.")
        pieces, weights, owners = _chunks(model, texts, prompt)
    else:
        pieces = texts
    key = _fingerprint(model, prompt, dtype, micro_batch_tokens) if cache_dir else ""

    def embed(chunk: list[str]) -> np.ndarray:
        if own_batches:
            return _embed_chunk(model, chunk, prompt, dtype, micro_batch_tokens, progress)
        return _embed_chunk_as_it_likes(model, chunk, prompt)

    chunks, seconds = [], 0.0
    with tqdm(total=len(pieces), desc="Embedding", unit="text", disable=not show_progress) as progress:
        for start in range(0, len(pieces), CHUNK_TEXTS):
            chunk = pieces[start : start + CHUNK_TEXTS]
            path = cache_dir / f"embeddings-{key}" / _hash_of_texts(chunk) if cache_dir else None
            embeddings, its_seconds = _cached(path, partial(embed, chunk))
            chunks.append(embeddings)
            seconds += its_seconds
            progress.n = min(start + CHUNK_TEXTS, len(pieces))
            progress.refresh()
    embeddings = _joined(chunks, _width(model))
    if long_documents == "chunk_mean":
        embeddings = _weighted_mean(embeddings, weights, owners, len(texts))
    return embeddings, seconds


def _embed_chunk(
    model: SentenceTransformer,
    texts: list[str],
    prompt: str,
    dtype: torch.dtype,
    micro_batch_tokens: int,
    progress: Any,
) -> np.ndarray:
    """What `model.encode` gives, in micro-batches of bounded numbers of tokens, this process's share of them."""
    modules: list[Any] = list(model)
    tokenizer = modules[0].processor
    limit = {"truncation": True, "max_length": model.max_seq_length} if model.max_seq_length else {}
    encoded = tokenizer([prompt + text for text in texts], verbose=False, **limit)
    embeddings = torch.zeros(len(texts), _width(model), device=model.device)
    rank, world_size = _rank_and_world_size()
    batches = _padded_batches(tokenizer, dict(encoded), micro_batch_tokens, model.device, rank=rank, step=world_size)
    for rows, features in batches:
        if prompt:
            features["prompt_length"] = _prompt_length(tokenizer, prompt)
        with torch.autocast(model.device.type, dtype=dtype, enabled=dtype != torch.float32):
            features = modules[0](features)
        # Pooling and what follows in full precision: a bfloat16 sum over hundreds of tokens would not be one.
        features = {name: value.float() if _is_half(value) else value for name, value in features.items()}
        for module in modules[1:]:
            features = module(features)
        embeddings[torch.from_numpy(rows)] = features["sentence_embedding"][:, : model.truncate_dim].float()
        progress.update(len(rows) * world_size)
    if world_size > 1:
        dist.all_reduce(embeddings)  # the rows of the others are zero here, so the sum is exact
    return embeddings.cpu().numpy()


def _embed_chunk_as_it_likes(model: SentenceTransformer, texts: list[str], prompt: str) -> np.ndarray:
    """Through `model.encode`, for models that do not begin with a transformer and its tokenizer (static ones, say)."""
    rank, world_size = _rank_and_world_size()
    embeddings = torch.zeros(len(texts), _width(model), device=model.device)
    if mine := texts[rank::world_size]:
        embeddings[rank::world_size] = model.encode(
            mine, prompt=prompt or None, convert_to_tensor=True, show_progress_bar=False
        ).float()
    if world_size > 1:
        dist.all_reduce(embeddings)
    return embeddings.cpu().numpy()


def _chunks(model: SentenceTransformer, texts: list[str], prompt: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """All chunks of all texts, the number of tokens of each (K,), and which text each is of (K,)."""
    tokenizer: Any = model[0].processor
    if not model.max_seq_length or not tokenizer.is_fast:
        raise ValueError(
            "--long_documents chunk_mean needs a length to cut at (--max_seq_length) and a fast tokenizer "
            "(tokenizer.json), which says where in the text a token is."
        )
    room = model.max_seq_length - len(tokenizer(prompt)["input_ids"])  # special tokens and prompt
    if room < 1:
        raise ValueError(f"The prompt leaves no room within {model.max_seq_length} tokens: raise --max_seq_length.")
    pieces: list[str] = []
    lengths: list[int] = []
    owners: list[int] = []
    for owner, (chunks, sizes) in enumerate(cut_into_chunks(tokenizer, texts, room)):
        pieces += chunks
        lengths += sizes
        owners += [owner] * len(chunks)
    return pieces, np.array(lengths), np.array(owners)


def _weighted_mean(embeddings: np.ndarray, weights: np.ndarray, owners: np.ndarray, num_texts: int) -> np.ndarray:
    """(K, H) embeddings of chunks to (N, H) of texts."""
    weights = np.maximum(weights, 1).astype(np.float64)  # a text without tokens still has one chunk
    total = np.zeros((num_texts, embeddings.shape[1]))
    np.add.at(total, owners, embeddings * weights[:, None])
    return (total / np.bincount(owners, weights, minlength=num_texts)[:, None]).astype(np.float32)


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
        metadata={"help": "Texts x longest text of one forward pass: speed and memory. Default: 4096 (GPU 65536)."},
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
            micro_batch_tokens=self.embedding_tokens or (4096 if model.device.type == "cpu" else 65536),
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


def _padded_batches(
    tokenizer: PreTrainedTokenizerBase,
    encoded: dict[str, list[list[int]]],
    micro_batch_tokens: int,
    device: torch.device,
    rank: int = 0,
    step: int = 1,
    **padding: Any,
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Rows of similar length, and their features padded to the longest; every `step`-th batch from `rank` on."""
    lengths = torch.tensor([len(ids) for ids in encoded["input_ids"]])
    for number, (rows, _) in enumerate(micro_batches(lengths, micro_batch_tokens)):
        if number % step == rank:
            chosen = {name: [values[row] for row in rows] for name, values in encoded.items()}
            yield rows.numpy(), dict(tokenizer.pad(chosen, return_tensors="pt", **padding).to(device))


def _joined(chunks: list[np.ndarray], width: int) -> np.ndarray:
    """All chunks as one array.

    Raises:
        ValueError: if a value is not finite.
    """
    embeddings = np.concatenate(chunks) if chunks else np.empty((0, width), dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{len(bad)} of {len(embeddings)} embeddings are not finite, the first of text {bad[0]}: the encoder is "
            "broken, or needs --dtype float32."
        )
    return embeddings


def _valid_unicode(texts: Sequence[str]) -> list[str]:
    """A lone surrogate would make the tokenizer raise; all else is left to it, as SentenceTransformer does."""
    return [text.encode("utf-8", "replace").decode() for text in texts]


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)


def _prompt_length(tokenizer: PreTrainedTokenizerBase, prompt: str) -> int:
    """Tokens that a pooling without the prompt leaves out: the prompt's and the special ones before it."""
    ids = tokenizer(prompt)["input_ids"]
    return len(ids) - (ids[-1] in tokenizer.all_special_ids)


def _width(model: SentenceTransformer) -> int:
    return model.truncate_dim or model.get_embedding_dimension() or 0


def _rank_and_world_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _fingerprint(model: SentenceTransformer, prompt: str, dtype: torch.dtype, micro_batch_tokens: int) -> str:
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
    settings = [prompt, str(dtype), model.max_seq_length, model.truncate_dim, micro_batch_tokens, model.device.type]
    versions = [torch.__version__, transformers.__version__, sentence_transformers.__version__]
    digest.update(json.dumps([state, modules, settings, versions], default=str).encode())
    for code in (__file__, str(modeling_docsplit.__file__)):
        digest.update(Path(code).read_bytes())
    return digest.hexdigest()


def _hash_of_texts(texts: list[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def _cached(path: Path | None, compute: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    """Embeddings and the seconds they took, from the disk or computed and put there by the first process."""
    rank, world_size = _rank_and_world_size()
    known = [path is not None and path.exists()]
    if world_size > 1:  # one answer for all: those that compute wait for each other
        known = known * world_size
        dist.all_gather_object(known, path is not None and path.exists())
    if path is not None and all(known):
        with np.load(path / "embeddings.npz") as stored:
            return stored["embeddings"], float(stored["seconds"])
    started = time.perf_counter()
    embeddings = compute()
    seconds = time.perf_counter() - started
    if path is not None and rank == 0:
        build_once(path, lambda folder: np.savez(folder / "embeddings.npz", embeddings=embeddings, seconds=seconds))
    return embeddings, seconds
