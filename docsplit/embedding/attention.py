"""The attention behind an embedding: the last layer's weights, in a separate forward pass.

attention_to_tokens   of an encoder of tokens: what the embedding is read from attends to
document_attention    of a graph document model: passages attend to each other and to the document

Fast attention (sdpa, tiles) never has the weights, so the encoder is switched to transformers' eager implementation,
for texts of at most `MAX_TOKENS` tokens (the DocSplit paper's length): its cost grows with the square of the length.
Weights are the mean over heads, of the row that the embedding is read from:

    cls                     the row of the first token
    lasttoken               the row of the last token
    mean, max and others    the mean over the rows of all tokens, for all of them are pooled
    Longformer              the row of the first token's global attention, however it is pooled
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from docsplit.data.passages import Passage
from docsplit.data.readers.base import normalized
from docsplit.embedding.encode import CHUNK_TEXTS, Layout, tokenized_batches
from docsplit.modeling.families.table import family_of
from docsplit.modeling.loading import has_graph_attention, pooling_of, without_words

logger = logging.getLogger(__name__)

MAX_TOKENS = 512
CHUNK_DOCUMENTS = 32  # of `document_attention`
FIRST, LAST, ALL, GLOBAL = "[CLS]", "last token", "mean over tokens", "global row of the first token"


@dataclass(frozen=True)
class TokenWeights:
    """The attention to the tokens of a text, special ones and the prompt's included; it sums to 1."""

    weights: np.ndarray  # (T,)
    offsets: np.ndarray  # (T, 2) letters of the text, end exclusive; (0, 0) for tokens that are none of it


def describe_attention(model: Any) -> dict[str, str | int]:
    """Describe what `attention_to_tokens` reads, for the rows of results: which rows, and of how many tokens."""
    first: Any = without_words(model)[0]
    rows = {"cls": FIRST, "lasttoken": LAST}.get(pooling_of(model), ALL)
    return {
        "attended_from": GLOBAL if family_of(first.model.config).has_global_token else rows,
        "max_tokens": min(model.max_seq_length or MAX_TOKENS, MAX_TOKENS),
    }


def check_attention(name: str, model: Any, text: str) -> None:
    """Try to read the attention to one text, so that errors come before any long work.

    Raises:
        ValueError: naming the encoder.
    """
    try:
        next(attention_to_tokens(model, [text], "", MAX_TOKENS))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


@torch.no_grad()
def attention_to_tokens(
    model: Any, texts: Sequence[str], prompt: str, micro_batch_tokens: int
) -> Iterator[TokenWeights]:
    """Yield the last layer's attention for each text, in order, in float32.

    Args:
        model: of `load_encoder`, for this alone: it is left with eager attention. Words that it adds have none.
        micro_batch_tokens: bound on texts x longest text of one forward pass.

    Raises:
        ValueError: if the encoder returns no attention weights, or its tokenizer no places.
    """
    model = without_words(model)
    transformer, tokenizer = model[0], getattr(model[0], "processor", None)
    is_transformer = isinstance(transformer, Transformer)
    if not (is_transformer and isinstance(tokenizer, PreTrainedTokenizerBase) and tokenizer.is_fast):
        raise ValueError(
            "The analysis attention needs an encoder that begins with a transformer and has a fast tokenizer "
            "(tokenizer.json): leave attention out of --analyses, or the encoder out of --model_name_or_path."
        )
    encoder: Any = transformer.model
    family = family_of(encoder.config)
    family.return_attention(encoder)
    described: dict[str, Any] = describe_attention(model)
    source, limit = described.values()
    layout = Layout(limit, micro_batch_tokens, family.length_multiple(encoder))
    for start in range(0, len(texts), CHUNK_TEXTS):
        chunk = [prompt + normalized(text) for text in texts[start : start + CHUNK_TEXTS]]
        encoded = tokenizer(chunk, truncation=True, max_length=limit, return_offsets_mapping=True, verbose=False)
        weights: dict[int, np.ndarray] = {}
        for rows, features in tokenized_batches(tokenizer, chunk, layout):
            features = {name: value.to(model.device) for name, value in features.items()}
            attention = _weights(encoder, features, source).float().cpu().numpy()  # (rows, T)
            weights |= dict(zip(rows.tolist(), attention))
        for row, offsets in enumerate(encoded["offset_mapping"]):
            spans = np.array(offsets, dtype=np.int64).reshape(-1, 2) - len(prompt)
            spans[(spans[:, 1] <= np.maximum(spans[:, 0], 0)) | (spans[:, 1] <= 0)] = 0  # special ones, and the prompt
            yield TokenWeights(weights[row][: len(spans)], np.maximum(spans, 0))


def _weights(encoder: Any, features: dict[str, Tensor], source: str) -> Tensor:
    """Return the mean over heads of the rows that are read, (B, T)."""
    output = encoder(**features, output_attentions=True)
    mask = features["attention_mask"].float()  # (B, T)
    layers = output.global_attentions if source == GLOBAL else output.attentions
    if not layers or layers[-1] is None:
        raise ValueError(
            f"{type(encoder).__name__} returns no attention weights: leave attention out of --analyses, or the "
            "encoder out of --model_name_or_path."
        )
    last = layers[-1].float()  # (B, heads, T, T), a Longformer's (B, heads, T, global tokens)
    if source == GLOBAL:
        return last[:, :, : mask.shape[1], 0].mean(dim=1)
    if source in (FIRST, LAST):
        rows = mask.sum(dim=1).long() - 1 if source == LAST else 0  # padding is on the right
        return last[torch.arange(len(last), device=last.device), :, rows].mean(dim=1)
    return (last.mean(dim=1) * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)


# --- Between the nodes of a document's graph ---


@dataclass(frozen=True)
class DocumentAttention:
    """The attention between the nodes of a document's graph."""

    passages: list[Passage]
    weights: np.ndarray  # (n + 1, n + 1) of the last layer, the mean over heads; node 0 is the document


@dataclass(frozen=True)
class GraphReadings:
    """One document as an encoder reads it in several kinds of graphs, by the same weights."""

    passages: list[str]
    kind: str  # of the graph that the encoder was trained with
    weights: dict[str, np.ndarray]  # for each kind (n + 1, n + 1); node 0 is the document


@torch.no_grad()
def document_attention(model: Any, texts: Sequence[str], kind: str | None = None) -> Iterator[DocumentAttention]:
    """Yield the graph attention in each text, in order.

    Args:
        model: from `load_encoder`, with `has_graph_attention(model)`.
        kind: the kind of graph, in place of the one it was trained with.
    """
    module: Any = without_words(model)[0]
    trained = module.config.graph_kind
    for start in range(0, len(texts), CHUNK_DOCUMENTS):
        chunk = list(map(normalized, texts[start : start + CHUNK_DOCUMENTS]))
        features = {name: value.to(model.device) for name, value in module.preprocess(chunk).items()}
        module.config.graph_kind = kind or trained
        try:
            layers = module.model.eval()(**features, output_attentions=True).attentions
        finally:
            module.config.graph_kind = trained
        for passages, weights in zip(module.passages(chunk), layers):
            yield DocumentAttention(passages, weights[-1].mean(dim=0).float().cpu().numpy())


def attention_by_kind(model: Any, name: str, text: str) -> GraphReadings | None:
    """Read the attention of a text's passages in a full graph and in one of sections.

    Returns: None for an encoder without graph attention, after a message.
    """
    if not has_graph_attention(model):
        logger.info(f"{name} has no graph attention: graph_attention reports the others.")
        return None
    trained = model[0].config.graph_kind
    readings = {kind: next(document_attention(model, [text], kind)) for kind in ("full", "section", trained)}
    passages = [passage.text for passage in readings[trained].passages]
    return GraphReadings(passages, trained, {kind: reading.weights for kind, reading in readings.items()})
