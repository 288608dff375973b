"""The attention behind an embedding: the last layer's weights, in a separate forward pass.

Fast attention (sdpa, tiles) never has the weights, so the encoder is switched to transformers' eager implementation,
for texts of at most `MAX_TOKENS` tokens (the DocSplit paper's length): its cost grows with the square of the length.
Weights are the mean over heads, of the row that the embedding is read from:

    cls                     the row of the first token
    lasttoken               the row of the last token
    mean, max and others    the mean over the rows of all tokens, for all of them are pooled
    Longformer              the row of the first token's global attention, however it is pooled
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Transformer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from docsplit.embedding.chunks import CHUNK_TEXTS, Layout, tokenized_batches
from docsplit.embedding.loading import describe_encoder
from docsplit.embedding.project_modules import plain_encoder, without_words
from docsplit.modeling.families.table import family_of

MAX_TOKENS = 512
FIRST, LAST, ALL, GLOBAL = "[CLS]", "last token", "mean over tokens", "global row of the first token"
_OF_POOLING = {"cls": FIRST, "lasttoken": LAST}


@dataclass(frozen=True)
class TokenWeights:
    """The attention to the tokens of a text, special ones and the prompt's included; it sums to 1."""

    weights: np.ndarray  # (T,)
    offsets: np.ndarray  # (T, 2) letters of the text, end exclusive; (0, 0) for tokens that are none of it


def attended_from(model: SentenceTransformer) -> str:
    """Which rows of the attention are read: `FIRST`, `LAST`, `ALL` or `GLOBAL`."""
    first: Any = without_words(model)[0]
    if family_of(first.model.config).has_global_token:
        return GLOBAL
    return _OF_POOLING.get(describe_encoder(model).pooling, ALL)


def describe_attention(model: SentenceTransformer) -> dict[str, str | int]:
    """Describe what `attention_to_tokens` reads, for the rows of results."""
    return {"attended_from": attended_from(model), "max_tokens": _limit(model)}


def _limit(model: SentenceTransformer) -> int:
    return min(model.max_seq_length or MAX_TOKENS, MAX_TOKENS)


def check_attention(name: str, model: SentenceTransformer, text: str) -> None:
    """Try to read the attention to one text, so that errors come before any long work.

    Raises:
        ValueError: naming the encoder.
    """
    try:
        next(attention_to_tokens(model, [text], "", MAX_TOKENS))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _check_tokenizer(model: SentenceTransformer) -> None:
    first: Any = model[0]
    is_fast = isinstance(first, Transformer) and getattr(first.processor, "is_fast", False)
    if not (is_fast and isinstance(first.processor, PreTrainedTokenizerBase)):
        raise ValueError(
            "The analysis attention needs an encoder that begins with a transformer and has a fast tokenizer "
            "(tokenizer.json): leave attention out of --analyses, or the encoder out of --model_name_or_path."
        )


@torch.no_grad()
def attention_to_tokens(
    model: SentenceTransformer, texts: Sequence[str], prompt: str, micro_batch_tokens: int
) -> Iterator[TokenWeights]:
    """Yield the last layer's attention for each text, in order, in float32.

    Args:
        model: of `load_encoder`, for this alone: it is left with eager attention. Words that it adds have none.
        micro_batch_tokens: bound on texts x longest text of one forward pass.

    Raises:
        ValueError: if the encoder returns no attention weights, or its tokenizer no places.
    """
    model = plain_encoder(model, "Attention")
    _check_tokenizer(model)
    transformer: Any = model[0]
    family = family_of(transformer.model.config)
    family.return_attention(transformer.model)
    tokenizer, source = transformer.processor, attended_from(model)
    limit = _limit(model)
    for start in range(0, len(texts), CHUNK_TEXTS):
        chunk = [prompt + text.encode("utf-8", "replace").decode() for text in texts[start : start + CHUNK_TEXTS]]
        encoded = tokenizer(chunk, truncation=True, max_length=limit, return_offsets_mapping=True, verbose=False)
        multiple = family.length_multiple(transformer.model)
        batches = tokenized_batches(tokenizer, chunk, Layout(limit, micro_batch_tokens, multiple))
        weights: dict[int, np.ndarray] = {}
        for rows, features in batches:
            features = {name: value.to(model.device) for name, value in features.items()}
            attention = _weights(transformer.model, features, source).float().cpu().numpy()  # (rows, T)
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
