"""Texts to vectors, in bulk: each text once, in micro-batches of similar length, pooled as the checkpoint says.

encode            an encoder in memory whose config has our settings (probes during training)
embed_documents   any encoder, as `docsplit.embedding.loading` gives it: cached on disk, long texts in pieces
embed_queries     the same for queries, with the prompt and on the route that an encoder has for them
"""

import hashlib
import itertools
import json
import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Transformer
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from docsplit.data.tokenization import cut_into_chunks, share_among_threads
from docsplit.embedding.arguments import LongDocuments
from docsplit.embedding.chunks import (
    Advance,
    Embedder,
    Layout,
    MicroBatch,
    collect,
    embed_chunk,
    in_chunks,
    tokenized_batches,
    unpack,
)
from docsplit.embedding.graphs import GraphEmbedder, is_graph_encoder
from docsplit.embedding.loading import resolve_prompt, resolve_query_prompt
from docsplit.embedding.project_modules import without_words, words_of
from docsplit.modeling.after_pooling import embedding_width, finish
from docsplit.modeling.encoder_with_words import add_words
from docsplit.modeling.encoding import overhead_on
from docsplit.modeling.families.table import family_of
from docsplit.modeling.micro_batches import pool
from docsplit.modeling.packed_attention import reading_pack
from docsplit.modeling.packing import Packing, pack_encoders
from docsplit.modeling.sentence_transformers_files import prompt_of
from docsplit.runtime.files import JsonObject, hash_of_code
from docsplit.runtime.launching import default_dtype, default_micro_batch_tokens

logger = logging.getLogger(__name__)

_IN_MEMORY = threading.RLock()  # of `encode`
CODE = ("docsplit/embedding", "docsplit/modeling", "docsplit/data", "modeling_graph_document.py")  # of embeddings
LONGEST_TRIED = 512  # tokens of a text in the trial of packs
SIMILARITIES = ("cosine", "dot")  # that documents are ranked by


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

    A graph document model embeds them whole, all others up to their maximum length.

    With several processes (`torch.distributed`) all must call it, with the same weights, texts and options; each
    computes its share of the chunks, and all return the whole.

    Args:
        encoder: what `AutoModel.from_pretrained(checkpoint, add_pooling_layer=False)` gives, or the
            `encoder.base_model` of a `DocSplitForContrastivePretraining`; used in eval mode and left as it was.
        texts: any sequence, such as a column of a `datasets.Dataset`; one chunk at a time is brought into memory.
        micro_batch_tokens: bound on texts x longest text of one forward pass. Default: `default_micro_batch_tokens`.
        show_progress: show a progress bar, on the first process.
        output_file: .npy file that the embeddings are written to as they come, on a file system of all processes; it
            appears under this name once it is whole.

    Returns: (len(texts), H) float32, in the order of the texts: with the checkpoint's prompt for documents, truncated
        to its `max_seq_length` tokens, normalised if it says so. In memory, or `output_file`, memory-mapped and
        read-only.

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

    share_among_threads(tokenizer)
    budget = micro_batch_tokens or default_micro_batch_tokens(encoder.device)
    embedder: Embedder = _EncoderEmbedder(encoder, tokenizer, budget)
    family = family_of(encoder.config)
    if family.rows == "passages":
        graph: Any = encoder
        layout = Layout(settings["max_seq_length"], budget)
        embedder = GraphEmbedder(graph, tokenizer, layout, prompt_of(settings), torch.float32)
    shape = (len(texts), embedding_width(encoder.config))
    with _IN_MEMORY, family.attending(encoder):  # one thread at a time, for this changes the encoder
        was_training = encoder.training
        try:
            encoder.eval()
            return collect(in_chunks(texts, embedder, show_progress), shape, output_file)[0]
        finally:
            encoder.train(was_training)


@torch.no_grad()  # in inference mode autocast would cast all weights anew for each micro-batch
def embed_documents(  # noqa: PLR0913 (as `SentenceTransformer.encode` has them)
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
    """Embed texts with any encoder, as `model.encode_document` would, each once.

    Several processes, `texts`, `micro_batch_tokens`, `show_progress` and `output_file` are as in `encode`.

    Args:
        model: of `load_encoder`.
        prompt: put before each text. Default: the model's own for documents, else its default prompt.
        long_documents: what is beyond the model's maximum length is cut off (`truncate`), or a text is embedded in
            pieces of that length and the embeddings averaged, weighted by their numbers of tokens (`chunk_mean`).
        dtype: of the encoder's matrix products; None: `default_dtype`. Weights that are not float32 have their own.
            The embeddings are float32 in any case.
        cache_dir: where embeddings are kept, under a key of weights, pooling, length, prompt and texts; None: nowhere.

    Returns: embeddings (len(texts), H) float32 in the order of the texts, and the seconds that computing them took all
        processes together (then, if they came from the cache).

    Raises:
        ValueError: if an embedding is not finite, or the model cannot be cut into pieces.
        RuntimeError: if another process failed.
    """
    share_among_threads(getattr(model[0], "processor", None))
    dtype = dtype or default_dtype(model.device)
    if model.dtype != torch.float32:  # it computes as its weights are
        dtype = torch.float32
    micro_batch_tokens = micro_batch_tokens or default_micro_batch_tokens(model.device)
    prompt = resolve_prompt(model, prompt)
    plain, finish = without_words(model), None
    if words_of(model) is not None:
        plain.truncate_dim = None  # its vectors are kept whole in the cache, whatever the words
        finish = partial(add_words_of_texts, model)
    embedder = _embedder(plain, prompt, long_documents, dtype, micro_batch_tokens)
    if cache_dir is not None:
        key = _fingerprint(plain, prompt, str(dtype), micro_batch_tokens, long_documents)
        cache_dir = cache_dir / f"embeddings-{key}"
    shape = (len(texts), model.truncate_dim or plain.get_embedding_dimension() or 0)
    return collect(in_chunks(texts, embedder, show_progress, cache_dir, finish), shape, output_file)


def add_words_of_texts(model: Any, texts: list[str], vectors: np.ndarray) -> np.ndarray:
    """Add the words of texts to the plain encoder's vectors (N, H), and cut these as an encoder with words does."""
    words: Any = words_of(model)
    features = {name: value.to(model.device) for name, value in words.preprocess(texts).items()}
    directions = words(**features).cpu()
    return add_words(torch.from_numpy(vectors), directions, model[-1].weight).numpy()[:, : model.truncate_dim]


def _embedder(
    model: SentenceTransformer, prompt: str, long_documents: LongDocuments, dtype: torch.dtype, micro_batch_tokens: int
) -> Embedder:
    """Choose how an encoder without words embeds."""
    if isinstance(model[0], Transformer) and isinstance(model[0].processor, PreTrainedTokenizerBase):
        return _DocumentEmbedder(model, prompt, long_documents, dtype, micro_batch_tokens)
    if is_graph_encoder(model):
        if long_documents == "chunk_mean":
            logger.info("A graph document model reads whole documents: --long_documents chunk_mean changes nothing.")
        first: Any = model[0]
        packing = packing_on(first.model.device, family_of(first.config).token_encoder(first.model), dtype)
        layout = Layout(first.max_seq_length, micro_batch_tokens, packing=packing)
        return GraphEmbedder(first.model, first.tokenizer, layout, prompt, dtype)
    if long_documents == "chunk_mean":
        raise ValueError(f"--long_documents chunk_mean needs a transformer as first module, not {model[0]}.")
    return _WholeModelEmbedder(model, prompt)


def packing_on(device: torch.device, encoder: Any, dtype: torch.dtype, longest: int | None = None) -> Packing | None:
    """Let the part of an encoder that reads tokens read packs, where it can and is faster; None: its texts are padded.

    Args:
        longest: tokens of a text that it reads; None: all.
    """
    if device.type != "cuda" or dtype == torch.float32:
        return None
    try:
        return pack_encoders([encoder], min(longest or LONGEST_TRIED, LONGEST_TRIED), dtype)
    except ValueError as error:
        logger.info(f"Texts are padded. {error}")
        return None


@dataclass(frozen=True)
class QueryFacts:
    """Facts about the vectors of queries, for rows of results."""

    query_prompt: str
    similarity: str  # of `SIMILARITIES`: how they and documents are to be compared


def embed_queries(
    model: SentenceTransformer, queries: Sequence[str], prompt: str | None = None, **options: Any
) -> tuple[np.ndarray, QueryFacts]:
    """Embed queries, as `model.encode_query` would: with the prompt for queries, on the route for queries.

    Args:
        model: of `load_encoder`.
        prompt: put before each query. Default: the model's own for queries, else its default prompt.
        options: `dtype`, `micro_batch_tokens`, `cache_dir` and `show_progress` of `embed_documents`.

    Returns: (Q, H) float32, and the prompt and the similarity.
    """
    prompt = resolve_query_prompt(model, prompt)
    similarity = str(model.similarity_fn_name)
    if similarity not in SIMILARITIES:
        logger.warning(f"This encoder compares by {similarity} distance; documents are ranked by cosine here.")
        similarity = "cosine"
    model = without_words(model)
    if isinstance(model[0], Transformer):
        vectors, _ = embed_documents(model, queries, prompt, **options)
    else:  # it has its own ways, a route for queries, say
        vectors = model.encode_query(list(queries), prompt=prompt, show_progress_bar=False)
    return np.asarray(vectors, dtype=np.float32), QueryFacts(prompt, similarity)


class _EncoderEmbedder:
    """Embed with an encoder in memory; pool its token states as its config says."""

    def __init__(self, encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, micro_batch_tokens: int):
        self.encoder, self.tokenizer, self.micro_batch_tokens = encoder, tokenizer, micro_batch_tokens
        self.settings = encoder.config.docsplit
        self.prompt = prompt_of(self.settings)

    def tokenize(self, texts: list[str]) -> list[MicroBatch]:
        texts = [self.prompt + text for text in texts]
        multiple = family_of(self.encoder.config).length_multiple(self.encoder)
        layout = Layout(self.settings["max_seq_length"], self.micro_batch_tokens, multiple)
        return tokenized_batches(self.tokenizer, texts, layout)

    def embed(self, tokenized: list[MicroBatch], advance: Advance) -> np.ndarray:
        return embed_chunk(self._forward, self.encoder.device, tokenized, advance)

    def _forward(self, features: dict[str, Tensor]) -> Tensor:
        mask = features["attention_mask"]
        hidden_states = self.encoder(input_ids=features["input_ids"], attention_mask=mask)[0]
        return finish(self.encoder, pool(hidden_states, mask, self.settings["pooling"]), self.settings)


class _DocumentEmbedder:
    """Embed as `model.encode` does, but in micro-batches of a bounded number of tokens; long texts may be cut.

    Raises:
        ValueError: if the model cannot be cut into pieces.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        prompt: str,
        long_documents: LongDocuments,
        dtype: torch.dtype,
        micro_batch_tokens: int,
    ):
        self.model, self.prompt, self.dtype, self.micro_batch_tokens = model, prompt, dtype, micro_batch_tokens
        self.modules: list[Any] = list(model)
        encoder = self.modules[0].model
        self.packing = packing_on(
            model.device, encoder, dtype, min(model.max_seq_length or LONGEST_TRIED, LONGEST_TRIED)
        )
        self.tokenizer, self.in_pieces = self.modules[0].processor, long_documents == "chunk_mean"
        prompt_ids = self.tokenizer(prompt)["input_ids"]
        self.room = (model.max_seq_length or 0) - len(prompt_ids)  # for a piece, beside prompt and special tokens
        if self.in_pieces and not (model.max_seq_length and self.tokenizer.is_fast):
            raise ValueError(
                "--long_documents chunk_mean needs a length to cut at (--max_seq_length) and a fast tokenizer "
                "(tokenizer.json), which says where in the text a token is."
            )
        if self.in_pieces and self.room < 1:
            raise ValueError(
                f"The prompt leaves no room within {model.max_seq_length} tokens: raise --max_seq_length."
            )
        # A pooling without the prompt leaves out its tokens and the special ones before it.
        is_special = prompt_ids[-1:] and prompt_ids[-1] in self.tokenizer.all_special_ids
        self.extra_features = {"prompt_length": len(prompt_ids) - bool(is_special)} if prompt else {}

    def tokenize(self, texts: list[str]) -> tuple[list[MicroBatch], Sequence[list[int]] | None]:
        """Return batches of the texts, or of their pieces with the number of tokens of each."""
        if not self.in_pieces:
            return self._batches(texts), None
        pieces, sizes = zip(*cut_into_chunks(self.tokenizer, texts, self.room))
        return self._batches(itertools.chain.from_iterable(pieces)), sizes

    def embed(self, tokenized: tuple[list[MicroBatch], Sequence[list[int]] | None], advance: Advance) -> np.ndarray:
        batches, sizes = tokenized
        # Around all micro-batches: each weight is cast once.
        with torch.autocast(self.model.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            embeddings = embed_chunk(self._forward, self.model.device, batches, advance)
        return embeddings if sizes is None else _weighted_means(embeddings, sizes)

    def _batches(self, texts: Iterable[str]) -> list[MicroBatch]:
        prompted = [self.prompt + text for text in texts]
        encoder = self.modules[0].model
        multiple = family_of(encoder.config).length_multiple(encoder)
        overhead = overhead_on(self.model.device)
        layout = Layout(self.model.max_seq_length, self.micro_batch_tokens, multiple, overhead, self.packing)
        return tokenized_batches(self.tokenizer, prompted, layout)

    def _forward(self, inputs: dict[str, Any]) -> Tensor:
        features = (
            self._read_pack(inputs) if self.packing is not None else self.modules[0](inputs | self.extra_features)
        )
        # Pooling and what follows in the precision of the weights, float32 as a rule: a bfloat16 sum over hundreds of
        # tokens would not be one.
        weights = self.model.dtype
        features = {name: value.to(weights) if _is_half(value) else value for name, value in features.items()}
        with torch.autocast(self.model.device.type, enabled=False):
            for module in self.modules[1:]:
                features = module(features)
        return features["sentence_embedding"][:, : self.model.truncate_dim]

    def _read_pack(self, features: dict[str, Any]) -> dict[str, Any]:
        """Return what the first module would of the same texts, padded."""
        pack = {name: value for name, value in features.items() if name not in self.extra_features}
        with reading_pack():
            states, mask = unpack(self.modules[0].model(**pack)[0], pack)
        return {"token_embeddings": states, "attention_mask": mask} | self.extra_features


class _WholeModelEmbedder:
    """Embed with a model that has no transformer in front (a static one, say): the model makes the batches."""

    def __init__(self, model: SentenceTransformer, prompt: str):
        self.model, self.prompt = model, prompt

    def tokenize(self, texts: list[str]) -> list[str]:
        return texts

    def embed(self, tokenized: list[str], advance: Advance) -> np.ndarray:
        return self.model.encode_document(tokenized, prompt=self.prompt or None, show_progress_bar=False)


def _weighted_means(embeddings: np.ndarray, sizes: Sequence[list[int]]) -> np.ndarray:
    """Average the embeddings of pieces (K, H) to those of texts (N, H), weighted by their numbers of tokens."""
    counts = [len(its_sizes) for its_sizes in sizes]
    weights = np.maximum(np.concatenate(sizes), 1).astype(np.float64)  # a text without tokens still has one piece
    starts = np.cumsum([0, *counts[:-1]])
    totals = np.add.reduceat(embeddings * weights[:, None], starts)
    return (totals / np.add.reduceat(weights, starts)[:, None]).astype(np.float32)


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)


def identity(model: SentenceTransformer) -> str:
    """Return a hash of what makes an encoder: weights, modules, tokenizers, maximum length, similarity."""
    digest = hashlib.blake2b(digest_size=12)
    if (words := words_of(model)) is not None:
        digest.update(words.tokenizer.to_str().encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    first: Any = model[0]
    tokenizer = getattr(first, "processor", None) or getattr(first, "tokenizer", None)
    backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    state: JsonObject = json.loads(backend.to_str()) if backend is not None else {}
    state |= {"truncation": None, "padding": None}  # of the last call
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        state |= {"truncation_side": tokenizer.truncation_side, "pad_token_id": tokenizer.pad_token_id}
        state |= {"vocabulary": sorted(tokenizer.get_vocab().items()) if backend is None else None}
    modules = [*without_words(model), *([model[-1]] if words is not None else [])]
    described = [f"{type(module).__qualname__} {getattr(module, 'get_config_dict', dict)()}" for module in modules]
    settings = [model.max_seq_length, model.truncate_dim, model.similarity_fn_name]
    digest.update(json.dumps([state, described, settings], default=str).encode())
    return digest.hexdigest()


def _fingerprint(model: SentenceTransformer, *settings: object) -> str:
    """Return a key of all that embeddings depend on, except the texts: encoder, precision, device, libraries, code."""
    config = getattr(model[0], "config", None)
    state = {} if config is None else config.to_dict() | {"_name_or_path": None}
    state |= {"attention": getattr(config, "_attn_implementation", None)}
    versions = [torch.__version__, transformers.__version__, sentence_transformers.__version__]
    digest = hashlib.blake2b(identity(model).encode(), digest_size=12)
    digest.update(json.dumps([state, model.device.type, settings, versions], default=str).encode())
    digest.update(hash_of_code(*CODE).encode())
    return digest.hexdigest()
