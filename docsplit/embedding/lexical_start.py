"""A start that knows the words of a corpus: token embeddings in closed form, in place of random ones.

The vectors of `docsplit.embedding.closed_form`, scaled to a root mean square of 0.2: the mean over a document's tokens
is its vector there before the first step of training. It matters how long they are, for a frequent token is short.
Layer norms make all tokens equally long, unless their epsilon is far above the variance of an embedding; so it is 1.
Position and type embeddings are made small beside the tokens. Everything else stays as transformers initialises it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from scipy.sparse import csr_matrix
from torch import nn

from docsplit.embedding import closed_form
from docsplit.runtime.sharing import from_first
from docsplit.runtime.vectors import unit

MOST_DOCUMENTS = 50_000  # evenly spaced in a corpus; of a stream the first


@dataclass(frozen=True)
class LexicalFacts:
    """What token embeddings were made of; it stands in the log, in run.json and on the card."""

    documents: int  # of two tokens or more that others have
    tokens: int  # with a vector

    def sentence(self) -> str:
        """Say in one line what was made."""
        return f"closed form of {self.documents:,} documents of the corpus ({self.tokens:,} tokens)"


def epsilons(config: Any) -> dict[str, float]:
    """Return what an encoder's configuration has to say for its layer norms to keep the lengths of tokens."""
    return {name: 1.0 for name in ("layer_norm_eps", "norm_eps") if hasattr(config, name)}


def start_with_words(encoder: Any, documents: Dataset, special_ids: list[int]) -> LexicalFacts:
    """Give an encoder token embeddings of documents; the first process makes them, and all processes must call it.

    Args:
        encoder: whose embeddings are a table (`check_table`).
        documents: tokenised, with a column `input_ids`.
        special_ids: of tokens that keep their random embeddings.

    Raises:
        ValueError: if the documents are too few.
    """
    table = encoder.get_input_embeddings()
    size, width = table.weight.shape
    tokens, vectors, facts = from_first(lambda: token_vectors(_counts(sample(documents), size, special_ids), width))
    with torch.no_grad():
        for module in encoder.base_model.modules():
            if isinstance(module, nn.Embedding) and module.weight is not table.weight and module.weight.requires_grad:
                module.weight *= 0.1  # those without a gradient are angles (RoFormer)
        rows = 0.1 * table.weight[torch.from_numpy(tokens)]  # small in dimensions that no vector has
        rows[:, : vectors.shape[1]] = torch.from_numpy(vectors)
        table.weight[torch.from_numpy(tokens)] = rows
    return facts


def check_table(encoder: Any) -> None:
    """Refuse an encoder that embeds tokens in another way than by a table of vectors.

    Raises:
        ValueError: naming its kind.
    """
    if not isinstance(encoder.get_input_embeddings(), nn.Embedding):
        kind = encoder.config.model_type
        raise ValueError(f"--lexical_start fills a table of token embeddings, and {kind} has none: leave it out.")


def token_vectors(counts: csr_matrix, width: int) -> tuple[np.ndarray, np.ndarray, LexicalFacts]:
    """Return the tokens of two or more documents (P,), their embeddings (P, K) float32, and what they are made of.

    Args:
        counts: of the tokens of each document, (N, V).
        width: the most dimensions; K is lower where the halves of documents agree in fewer directions.

    Raises:
        ValueError: as `closed_form.fit`.
    """
    fitted = closed_form.fit(counts, width=width)
    # At a root mean square of 1 masked LM would learn slower, for its head is the same table
    vectors = fitted.table * np.float32(0.2 / np.sqrt(np.square(fitted.table).mean()))
    return fitted.tokens, vectors, LexicalFacts(fitted.halved, len(fitted.tokens))


def document_vectors(encoder: Any, documents: Dataset, special_ids: list[int]) -> np.ndarray:
    """Return the means of the token embeddings of documents, (N, H) of length one: before training, the closed form.

    Args: as those of `start_with_words`.
    """
    table = encoder.get_input_embeddings().weight.detach().cpu().numpy()
    return unit(_counts(documents, len(table), special_ids) @ table)


def sample(documents: Dataset) -> Dataset:
    """Return at most `MOST_DOCUMENTS`, evenly spaced.

    Raises:
        ValueError: if there are none.
    """
    if not len(documents):
        raise ValueError("--lexical_start needs documents, and no document is left to train on.")
    return documents.select(np.linspace(0, len(documents) - 1, min(len(documents), MOST_DOCUMENTS)).astype(int))


def _counts(documents: Dataset, size: int, special_ids: list[int]) -> csr_matrix:
    """Count the tokens of documents, (N, V) float32; special tokens do not count."""
    ids = documents.with_format("numpy")["input_ids"][:]
    ends, flat = np.cumsum([0, *map(len, ids)]), np.concatenate(ids).astype(np.int32)
    counts = csr_matrix(((~np.isin(flat, special_ids)).astype(np.float32), flat, ends), shape=(len(ids), size))
    counts.sum_duplicates()
    counts.eliminate_zeros()
    return counts
