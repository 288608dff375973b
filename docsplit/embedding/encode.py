"""Texts to vectors, in bulk: each text once, in micro-batches of similar length, pooled as the checkpoint says.

embed_documents   any encoder, as `docsplit.modeling.loading` gives it: cached on disk, long texts in pieces
embed_queries     the same for queries, with the prompt and on the route that an encoder has for them

One engine embeds all: `Embedder` says how a chunk of texts becomes vectors, `embed_in_chunks` does it chunk by chunk.
Texts are read, tokenised, sorted and cached in chunks of `CHUNK_TEXTS`, which bounds the memory and what a kill costs;
with several processes each takes every so-many-th chunk, so that results do not depend on their number. A corpus of
fewer chunks than processes leaves some of them idle.
"""

import contextlib
import hashlib
import io
import itertools
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from docsplit.data.readers.base import normalized
from docsplit.data.readers.documents import refuse_other_than_texts
from docsplit.data.tokenization import cut_into_chunks
from docsplit.embedding.encoder_arguments import LongDocuments
from docsplit.modeling.checked_files import share_among_threads
from docsplit.modeling.encoder_with_words import add_words
from docsplit.modeling.encoding import MICRO_BATCH_OVERHEAD, Rows, micro_batches, overhead_on, pool_texts
from docsplit.modeling.families.graph_document_transformer import GraphDocumentTransformer, rows_of
from docsplit.modeling.families.table import FAMILIES, family_of
from docsplit.modeling.loading import (
    evaluating,
    fast_tokenizer,
    has_routes,
    is_graph_encoder,
    prompts_of,
    tokenizer_of,
    tokens_read,
    without_words,
    words_of,
)
from docsplit.modeling.packing import Packing, groups_that_fit, pack_encoders, packed_inputs, reading_pack
from docsplit.runtime.files import JsonObject, add_texts, build_once, canonical_json, hash_of_code, is_cached
from docsplit.runtime.launching import default_dtype, default_micro_batch_tokens
from docsplit.runtime.sharing import on_all, rank_and_size, refuse_differences

logger = logging.getLogger(__name__)

CHUNK_TEXTS = 1024
SAMPLE = 200  # texts whose tokens are counted before they are embedded
LONG = 2048  # tokens that take long on a CPU
LONGEST_TRIED = 512  # tokens of a text in the trial of packs
SIMILARITIES = ("cosine", "dot")  # that documents are ranked by
UNREAD = ("transformers_version", "architectures", "dtype", "auto_map")  # of a config: they change no vector
CODE = ("docsplit/embedding", "docsplit/modeling", "docsplit/data", "modeling_graph_document.py")  # of embeddings
Features = dict[str, Any]  # of a micro-batch: tokens (R, T) of padded texts, or (1, N) of a pack
TextBatch = tuple[Tensor, Features]  # which rows (R,), and their features
Finish = Callable[[list[str], np.ndarray], np.ndarray]  # texts and their embeddings (N, H) to embeddings (N, H)


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

    With several processes (`torch.distributed`) all must call it, with the same weights, texts and options; each
    computes its share of the chunks, and all return the whole.

    Args:
        model: of `load_encoder`, or the `body` of a model in training; it is left as it was.
        texts: any sequence, such as a column of a `datasets.Dataset`; one chunk at a time is brought into memory.
        prompt: put before each text. Default: the model's own for documents, else its default prompt.
        long_documents: what is beyond the model's maximum length is cut off (`truncate`), or a text is embedded in
            pieces of that length and the embeddings averaged, weighted by their numbers of tokens (`chunk_mean`).
        dtype: of the encoder's matrix products; None: `default_dtype`. Weights that are not float32 have their own.
            The embeddings are float32 in any case.
        micro_batch_tokens: bound on texts x longest text of one forward pass. Default: `default_micro_batch_tokens`.
        cache_dir: where embeddings are kept, under a key of weights, pooling, length, prompt and texts; None: nowhere.
        show_progress: show a progress bar, on the first process.
        output_file: .npy file that the first process writes the embeddings to as they come, on a file system of all;
            it appears under this name once it is whole, and is returned memory-mapped and read-only.

    Returns: embeddings (len(texts), H) float32 in the order of the texts, and the seconds that computing them took all
        processes together (then, if they came from the cache).

    Raises:
        ValueError: if an embedding is not finite, or the model cannot be cut into pieces.
    """
    share_among_threads(tokenizer_of(model))
    dtype = dtype or default_dtype(model.device)
    if model.dtype != torch.float32:  # it computes as its weights are
        dtype = torch.float32
    micro_batch_tokens = micro_batch_tokens or default_micro_batch_tokens(model.device)
    prompt = prompts_of(model)[0] if prompt is None else prompt
    plain, add = without_words(model), None
    if words_of(model) is not None:
        plain.truncate_dim = None  # its vectors are kept whole in the cache, whatever the words
        add = partial(add_words_of_texts, model)

    first = plain[0]
    reads_tokens = isinstance(first, Transformer) and isinstance(first.processor, PreTrainedTokenizerBase)
    if reads_tokens and not has_routes(plain):
        embedder: Any = _transformer_embedder(plain, prompt, long_documents, dtype, micro_batch_tokens)
    elif is_graph_encoder(plain):
        if long_documents == "chunk_mean":
            logger.info("A graph document model reads whole documents: --long_documents chunk_mean changes nothing.")
        packing = packing_on(plain.device, family_of(first.config).token_encoder(first.model), dtype)
        layout = Layout(first.max_seq_length, micro_batch_tokens, packing=packing)
        embedder = _graph_embedder(first.model, first.tokenizer, layout, prompt, dtype, plain.truncate_dim)
    elif long_documents == "chunk_mean":
        raise ValueError(
            f"--long_documents chunk_mean needs a transformer as first module, and one route, not {plain}."
        )
    else:
        embedder = _WholeModelEmbedder(plain, prompt)

    if cache_dir is not None:
        key = _fingerprint(plain, prompt, str(dtype), micro_batch_tokens, long_documents)
        cache_dir = cache_dir / f"embeddings-{key}"
    shape = (len(texts), model.truncate_dim or plain.get_embedding_dimension() or 0)
    with evaluating(model):
        return embed_in_chunks(texts, embedder, shape, show_progress, cache_dir, add, output_file)


def add_words_of_texts(model: Any, texts: list[str], vectors: np.ndarray) -> np.ndarray:
    """Add the words of texts to the plain encoder's vectors (N, H), and cut these as an encoder with words does."""
    words: Any = words_of(model)
    features = {name: value.to(model.device) for name, value in words.preprocess(texts).items()}
    directions = words(**features).cpu()
    return add_words(torch.from_numpy(vectors), directions, model[-1].weight).numpy()[:, : model.truncate_dim]


def reading_of(
    model: Any, texts: Sequence[str], long_documents: LongDocuments = "truncate", can_change: bool = True
) -> str:
    """Say how many tokens of a text an encoder reads, and how many of these texts are longer, by a sample.

    Args:
        model: of `load_encoder`.
        can_change: whether the command has --max_seq_length.
    """
    plain = without_words(model)
    length, tokenizer = tokens_read(plain), tokenizer_of(plain)
    if length is None or not isinstance(tokenizer, PreTrainedTokenizerBase):
        return "it reads whole texts"
    if is_graph_encoder(plain):
        return f"it reads up to {length:,} tokens of every passage"
    reading = f"it reads up to {length:,} tokens of a text"
    if long_documents == "chunk_mean":
        reading = f"it reads texts in pieces of up to {length:,} tokens"
    prompt, sample = prompts_of(plain)[0], [texts[row] for row in range(0, len(texts), -(-len(texts) // SAMPLE) or 1)]
    if sample:
        ids = tokenizer([normalized(prompt + text) for text in sample], verbose=False)["input_ids"]
        share = np.mean([len(of_text) > length for of_text in ids])
        those = "all" if len(sample) == len(texts) else f"a sample of {len(sample):,} documents"
        reading += f", and {100 * share:.0f} % of {those} are longer"
    if can_change and length > LONG and plain.device.type == "cpu":
        reading += "; on a CPU --max_seq_length 512 is faster, and reads less"
    return reading


@dataclass(frozen=True)
class QueryFacts:
    """Facts about the vectors of queries, for rows of results."""

    query_prompt: str
    similarity: str  # of `SIMILARITIES`: how they and documents are to be compared


def embed_queries(model: SentenceTransformer, queries: Sequence[str], **options: Any) -> tuple[np.ndarray, QueryFacts]:
    """Embed queries, as `model.encode_query` would: with the prompt for queries, on the route for queries.

    Args:
        model: of `load_encoder`.
        options: `dtype`, `micro_batch_tokens`, `cache_dir` and `show_progress` of `embed_documents`.

    Returns: (Q, H) float32, and the prompt and the similarity.
    """
    _, prompt = prompts_of(model)
    similarity = str(model.similarity_fn_name)
    if similarity not in SIMILARITIES:
        logger.warning(f"This encoder compares by {similarity} distance; documents are ranked by cosine here.")
        similarity = "cosine"
    model = without_words(model)
    if isinstance(model[0], Transformer) and not has_routes(model):
        vectors, _ = embed_documents(model, queries, prompt, **options)
    else:  # it has its own ways, a route for queries, say
        vectors = model.encode_query(list(map(normalized, queries)), prompt=prompt, show_progress_bar=False)
    return np.asarray(vectors, dtype=np.float32), QueryFacts(prompt, similarity)


# --- Chunk by chunk: one thread ahead, several processes, a cache, a file ---


def embed_in_chunks(
    texts: Sequence[str],
    embedder: Any,
    shape: tuple[int, int],
    show_progress: bool = False,
    cache_dir: Path | None = None,
    finish: Finish | None = None,
    output_file: Path | None = None,
) -> tuple[np.ndarray, float]:
    """Embed texts in rounds of one chunk a process; a background thread tokenises a process's next chunk meanwhile.

    Args:
        embedder: an `Embedder`, or anything with its two methods.
        shape: of all embeddings, (len(texts), H).
        finish: changes the embeddings of a chunk's texts; what is kept in `cache_dir` is from before.

    Returns: on each process all embeddings, in memory or memory-mapped from `output_file`, and the seconds they took.

    Raises:
        ValueError: on all processes, if an embedding is not finite or the processes have different texts.
    """
    refuse_other_than_texts(texts)
    refuse_differences(lambda: {"the texts to embed": _hash_of_texts(texts)})
    rank, world_size = rank_and_size()
    in_a_round = CHUNK_TEXTS * world_size
    ahead: Any = None  # the next chunk, in the thread

    def tokenize(start: int) -> tuple[list[str], Path | None, Any]:
        chunk = list(map(normalized, texts[start : start + CHUNK_TEXTS]))
        path = cache_dir / _hash_of_texts(chunk) if cache_dir else None
        return chunk, path, None if path is not None and is_cached(path) else embedder.tokenize(chunk)

    def ahead_of(start: int) -> Any:
        return thread.submit(tokenize, start) if start < len(texts) else None

    def advance(first: int, share: float) -> None:
        progress.update(first + int(share * min(in_a_round, len(texts) - first)) - progress.n)

    def embed_share(first: int) -> tuple[np.ndarray, float] | None:
        nonlocal ahead
        start = first + rank * CHUNK_TEXTS
        if start >= len(texts):
            return None
        started = time.perf_counter()
        ready, ahead = ahead, ahead_of(start + in_a_round)
        chunk, path, tokenized = ready.result()
        if tokenized is None:
            with np.load(f"{path}/embeddings.npz") as stored:
                vectors, seconds = stored["embeddings"], float(stored["seconds"])
        else:
            vectors = embedder.embed(tokenized, partial(advance, first)).astype(np.float32, copy=False)
            bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
            if len(bad):
                raise ValueError(
                    f"{len(bad)} of {len(vectors)} embeddings are not finite, the first of text {start + bad[0]}: the "
                    "encoder is broken, or needs float32 (--dtype, where there is one)."
                )
            seconds = time.perf_counter() - started
            if path is not None:
                build_once(path, lambda to: np.savez(to / "embeddings.npz", embeddings=vectors, seconds=seconds))
        return vectors if finish is None else finish(chunk, vectors), seconds

    def write(content: bytes, mode: str = "ab") -> None:
        if rank == 0:
            with open(unfinished, mode) as file:
                file.write(content)

    # Where the rows go: into memory, or into a file that has its name once it is whole
    if output_file is None:
        embeddings = np.empty(shape, dtype=np.float32)
    else:
        unfinished, header = output_file.with_name(f"{output_file.name}.partial"), io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        on_all(partial(write, header.getvalue(), "wb"))

    total_seconds, filled, hidden = 0.0, 0, not show_progress or rank > 0
    # The thread ends here, and not in a generator that is collected later: a collection within the start of another
    # thread would wait for it for ever.
    with (
        ThreadPoolExecutor(max_workers=1) as thread,
        tqdm(total=len(texts), desc="Embedding", unit="text", disable=hidden, leave=None) as progress,
    ):
        ahead = ahead_of(rank * CHUNK_TEXTS)
        for first in range(0, len(texts), in_a_round):
            for rows, seconds in filter(None, on_all(partial(embed_share, first))):
                if output_file is None:
                    embeddings[filled : filled + len(rows)] = rows
                else:
                    on_all(partial(write, rows.tobytes()))
                filled += len(rows)
                total_seconds += seconds
            advance(first, 1.0)
    if output_file is None:
        return embeddings, total_seconds
    on_all(lambda: unfinished.replace(output_file) if rank == 0 else None)
    return np.load(output_file, mmap_mode="r"), total_seconds


# --- One chunk: pieces of texts, micro-batches, vectors ---


@dataclass(frozen=True)
class Layout:
    """How texts are cut, put together and padded."""

    max_length: int | None  # tokens of a text, special ones included; None: all
    micro_batch_tokens: int  # bound on texts x longest text
    multiple: int = 1  # what the encoder pads the longest text to
    overhead: int = MICRO_BATCH_OVERHEAD  # of one more micro-batch, in tokens
    packing: Packing | None = None  # put texts into packs, without padding


@dataclass(frozen=True)
class Embedder:
    """Embed a chunk of texts in two steps: the next chunk is tokenised while this one is embedded.

    Attributes:
        forward: the features of a micro-batch to its vectors (R, H).
        prompt: before each piece.
        dtype: of matrix products; None: as the caller's.
        cut: texts to pieces, and what `join` needs to know of them. Default: a text is one piece.
        join: the vectors (P, H) of all pieces to those of texts (N, H).
    """

    forward: Callable[[Features], Tensor]
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    layout: Layout
    prompt: str
    dtype: torch.dtype | None = None
    cut: Callable[[list[str]], tuple[Any, Any]] = lambda texts: (texts, None)
    join: Callable[[np.ndarray, Any], np.ndarray] = lambda vectors, _: vectors

    def tokenize(self, texts: list[str]) -> tuple[list[TextBatch], Any]:
        """Return what `embed` takes; a background thread calls it."""
        pieces, parts = self.cut(texts)
        return tokenized_batches(self.tokenizer, [self.prompt + piece for piece in pieces], self.layout), parts

    def embed(self, tokenized: tuple[list[TextBatch], Any], advance: Callable[[float], None]) -> np.ndarray:
        """Return the embeddings (texts, H), in the order of the texts; `advance` is told which share is done."""
        batches, parts = tokenized
        autocast: Any = contextlib.nullcontext()
        if self.dtype is not None:  # around all micro-batches: each weight is cast once
            autocast = torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)
        outputs, done, is_cuda = [], 0, self.device.type == "cuda"
        total = sum(features["input_ids"].numel() for _, features in batches)
        with autocast:
            for _, features in batches:
                # Nothing waits for a GPU before the end, so that it always has the next batch
                on_device: Features = {
                    name: value.to(self.device, non_blocking=is_cuda) if isinstance(value, Tensor) else value
                    for name, value in features.items()
                }
                outputs.append(self.forward(on_device).float())
                done += features["input_ids"].numel()
                advance(done / max(total, 1))
        order = torch.cat([rows for rows, _ in batches]).argsort()
        return self.join(torch.cat(outputs)[order.to(self.device)].cpu().numpy(), parts)


class _WholeModelEmbedder:
    """Embed with a model that has no transformer in front (a static one, say): the model makes the batches."""

    def __init__(self, model: SentenceTransformer, prompt: str):
        self.tokenize = list
        self.embed = lambda texts, _: model.encode_document(texts, prompt=prompt, show_progress_bar=False)


def _transformer_embedder(
    model: Any, prompt: str, long_documents: LongDocuments, dtype: torch.dtype, micro_batch_tokens: int
) -> Embedder:
    """Embed as `model.encode` does, but in micro-batches of a bounded number of tokens; long texts may be cut.

    Raises:
        ValueError: if the model cannot be cut into pieces.
    """
    transformer, *others = model
    encoder, tokenizer, length = transformer.model, transformer.processor, model.max_seq_length
    packing = packing_on(model.device, encoder, dtype, length)
    prompt_ids = tokenizer(prompt)["input_ids"]
    # A pooling without the prompt leaves out its tokens and the special ones before it
    is_special = prompt_ids[-1:] and prompt_ids[-1] in tokenizer.all_special_ids
    of_prompt = {"prompt_length": len(prompt_ids) - bool(is_special)} if prompt else {}

    def forward(inputs: Features) -> Tensor:
        if packing is None:
            features = transformer(inputs | of_prompt)
        else:
            with reading_pack():
                states, mask = unpack(encoder(**inputs)[0], inputs)
            features = {"token_embeddings": states, "attention_mask": mask} | of_prompt
        # Pooling and what follows in the precision of the weights, float32 as a rule: a bfloat16 sum over hundreds of
        # tokens would not be one.
        for name, value in features.items():
            if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16):
                features[name] = value.to(model.dtype)
        with torch.autocast(model.device.type, enabled=False):
            for module in others:
                features = module(features)
        return features["sentence_embedding"][:, : model.truncate_dim]

    def cut(texts: list[str]) -> tuple[Iterator[str], Any]:
        pieces, sizes = zip(*cut_into_chunks(tokenizer, texts, room))
        return itertools.chain.from_iterable(pieces), sizes

    def join(vectors: np.ndarray, sizes: Sequence[list[int]]) -> np.ndarray:  # means, weighted by numbers of tokens
        weights = np.maximum(np.concatenate(sizes), 1).astype(np.float64)  # a text without tokens has one piece
        starts = np.cumsum([0, *map(len, sizes[:-1])])
        totals = np.add.reduceat(vectors * weights[:, None], starts)
        return (totals / np.add.reduceat(weights, starts)[:, None]).astype(np.float32)

    multiple = family_of(encoder.config).length_multiple(encoder)
    layout = Layout(length, micro_batch_tokens, multiple, overhead_on(model.device), packing)
    if long_documents == "truncate":
        return Embedder(forward, tokenizer, model.device, layout, prompt, dtype)
    if not (length and tokenizer.is_fast):
        raise ValueError(
            "--long_documents chunk_mean needs a length to cut at (--max_seq_length) and a fast tokenizer "
            "(tokenizer.json), which says where in the text a token is."
        )
    room = length - len(prompt_ids)  # for a piece, beside prompt and special tokens
    if room < 1:
        raise ValueError(f"The prompt leaves no room within {length} tokens: raise --max_seq_length.")
    return Embedder(forward, tokenizer, model.device, layout, prompt, dtype, cut, join)


def _graph_embedder(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    layout: Layout,
    prompt: str,
    dtype: torch.dtype,
    dimension: int | None = None,
) -> Embedder:
    """Embed as `GraphDocumentTransformer` does: the pieces of a document are its passages.

    The passages of all documents of a chunk are sorted by length together; the graphs follow, in full precision.

    Args:
        model: a `GraphDocumentModel`.
        dimension: numbers of an embedding that are kept; None: all.
    """
    assert layout.max_length is not None
    transformer = GraphDocumentTransformer(model, tokenizer, layout.max_length)

    def forward(features: Features) -> Tensor:
        if layout.packing is None:
            return model.encode_passages(features["input_ids"], features["attention_mask"])
        starts = features["cu_seq_lens_q"].long()
        with reading_pack():
            return model.encode_passages(
                **features, pool=lambda states, pooling: pool_texts(states[0], starts, states.shape[1], pooling)
            )

    def cut(texts: list[str]) -> tuple[Iterator[str], Rows]:
        documents = transformer.passages(texts)
        rows = rows_of(documents)
        pieces = (passage.text for passages in documents for passage in passages)
        return pieces, Rows(view=torch.zeros_like(rows["document"]), **rows)

    def join(vectors: np.ndarray, rows: Rows) -> np.ndarray:
        with torch.autocast(model.device.type, enabled=False):
            documents = model.combine(torch.from_numpy(vectors).to(model.device, model.dtype), rows)
        return documents[:, :dimension].float().cpu().numpy()

    return Embedder(forward, tokenizer, model.device, layout, prompt, dtype, cut, join)


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


def tokenized_batches(tokenizer: PreTrainedTokenizerBase, texts: list[str], layout: Layout) -> list[TextBatch]:
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
    lengths = torch.tensor([len(ids) for ids in features["input_ids"]])
    if layout.packing is not None:
        return _packed(features["input_ids"], lengths, layout.packing, layout.micro_batch_tokens)

    def pad(name: str, rows: list[int]) -> Tensor:  # as `tokenizer.pad`, which is slower
        return pad_sequence([features[name][row] for row in rows], True, padding.get(name, 0))

    groups = [rows for rows, _ in micro_batches(lengths, layout.micro_batch_tokens, layout.multiple, layout.overhead)]
    return [(rows, {name: pad(name, rows.tolist()) for name in features}) for rows in groups]


def _packed(texts: list[Tensor], lengths: Tensor, packing: Packing, max_tokens: int) -> list[TextBatch]:
    """Put texts (T,) into packs, the longest first: `unpack` pads to the longest of each."""
    order = lengths.argsort(descending=True, stable=True)
    batches = []
    for group in groups_that_fit(lengths[order].numpy(), max_tokens):
        rows = order[group]
        sizes = lengths[rows].numpy()
        _, positions, borders, longest = packing.arrange(sizes, sizes, 1, max_tokens)
        ids = torch.cat([texts[row] for row in rows.tolist()])
        features = {"input_ids": ids[None], "attention_mask": None, "position_ids": torch.from_numpy(positions)[None]}
        batches.append((rows, features | packed_inputs(torch.from_numpy(borders).int(), longest)))
    return batches


def unpack(states: Tensor, features: Features) -> tuple[Tensor, Tensor]:
    """Turn the states (1, N, H) of a pack into those of padded texts (R, T, H), and their mask (R, T)."""
    starts, lengths = features["cu_seq_lens_q"][:-1].long(), features["cu_seq_lens_q"].diff()
    offsets = torch.arange(features["max_length_q"], device=states.device)
    places = (starts[:, None] + offsets).clamp(max=states.shape[1] - 1)
    return states[0, places], (offsets < lengths[:, None]).long()


# --- Keys: what an embedding depends on ---


def identity(model: SentenceTransformer) -> str:
    """Return a hash of what makes an encoder: weights, config, modules, tokenizers, maximum length, similarity.

    Prompts are no part of it: an index and a classifier keep theirs.
    """
    digest = hashlib.blake2b(digest_size=12)
    modules, words = list(without_words(model)), words_of(model)
    if words is not None:
        digest.update(words.tokenizer.to_str().encode())
        modules.append(model[-1])
    for name, tensor in sorted(model.state_dict().items()):
        if "pooler." in name and not tensor.any():  # which may be there or not
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    tokenizer, backend = tokenizer_of(model), fast_tokenizer(model)
    state: JsonObject = json.loads(backend.to_str()) if backend is not None else {}
    state |= {"truncation": None, "padding": None}  # of the last call
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        state |= {"truncation_side": tokenizer.truncation_side, "pad_token_id": tokenizer.pad_token_id}
        state |= {"vocabulary": sorted(tokenizer.get_vocab().items()) if backend is None else None}
    config = getattr(modules[0], "config", None)
    # Defaults are left out, for releases of transformers add some; a save adds what is `UNREAD`
    of_config = {} if config is None else config.to_diff_dict()
    state |= {"config": {name: value for name, value in of_config.items() if name not in UNREAD}}
    if (family := getattr(config, "model_type", "")) in FAMILIES.origins:
        state |= {"plugin": FAMILIES.origins[family]}
    described: Any = [[type(module).__qualname__, getattr(module, "get_config_dict", dict)()] for module in modules]
    settings = [model.max_seq_length, model.truncate_dim, model.similarity_fn_name]
    digest.update(canonical_json([state, described, settings], default=_text_of))
    return digest.hexdigest()


def _text_of(value: Any) -> Any:
    """Write what JSON has no form for; a set in an order of its own."""
    return sorted(map(str, value)) if isinstance(value, Set) else str(value)


def _fingerprint(model: SentenceTransformer, *settings: object) -> str:
    """Return a key of all that embeddings depend on, except the texts: encoder, precision, device, libraries, code."""
    attention = getattr(getattr(model[0], "config", None), "_attn_implementation", None)
    versions = [torch.__version__, transformers.__version__, sentence_transformers.__version__]
    digest = hashlib.blake2b(identity(model).encode(), digest_size=12)
    digest.update(canonical_json([attention, model.device.type, settings, versions], default=_text_of))
    digest.update(hash_of_code(*CODE).encode())
    return digest.hexdigest()


def _hash_of_texts(texts: Sequence[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(texts), CHUNK_TEXTS):
        add_texts(digest, texts[start : start + CHUNK_TEXTS])
    return digest.hexdigest()
