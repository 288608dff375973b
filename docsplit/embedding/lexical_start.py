"""A start that knows the words of a corpus: token embeddings in closed form, in place of random ones.

    X = U S V'    TF-IDF of the tokens of documents, as of `docsplit.embedding.lexical_ridge`; truncated to the width H
    e(t)          idf_t S V_t = idf_t (X'U)_t of a token t, (H,), scaled to a root mean square of 0.2

A token is the sum of the documents that have it, in the space of latent semantic analysis (Deerwester et al. 1990), so
that the mean over a document's tokens is close to its place there before the first step of training. Position and type
embeddings are made small beside them. Everything else stays as transformers initialises it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from scipy.sparse import csr_matrix
from sklearn.utils.extmath import randomized_svd
from torch import nn

from docsplit.embedding.lexical_ridge import tfidf
from docsplit.runtime.sharing import from_first

MOST_DOCUMENTS = 50_000  # evenly spaced in a corpus; of a stream the first


@dataclass(frozen=True)
class LexicalFacts:
    """What token embeddings were made of; it stands in the log, in run.json and on the card."""

    documents: int
    tokens: int  # with a vector
    share_explained: float  # of the squares of X

    def sentence(self) -> str:
        """Say in one line what was made."""
        of_tokens = f"{self.tokens:,} tokens, {100 * self.share_explained:.0f} % of TF-IDF"
        return f"latent semantic analysis of {self.documents:,} documents of the corpus ({of_tokens})"


def start_with_words(encoder: Any, documents: Dataset, special_ids: list[int]) -> LexicalFacts:
    """Give an encoder token embeddings of documents; the first process makes them, and all processes must call it.

    Args:
        encoder: whose embeddings are a table (`check_table`).
        documents: tokenised, with a column `input_ids`.
        special_ids: of tokens that keep their random embeddings.

    Raises:
        ValueError: if the documents, or their tokens, are fewer than the width of the table.
    """
    table = encoder.get_input_embeddings()
    size, width = table.weight.shape
    tokens, vectors, facts = from_first(lambda: token_vectors(_counts(documents, size, special_ids), width))
    with torch.no_grad():
        for module in encoder.base_model.modules():
            if isinstance(module, nn.Embedding) and module.weight is not table.weight and module.weight.requires_grad:
                module.weight *= 0.1  # those without a gradient are angles (RoFormer)
        table.weight[torch.from_numpy(tokens)] = torch.from_numpy(vectors)
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
    """Return the tokens of two or more documents (P,), their embeddings (P, H) float32, and what they are made of.

    Args:
        counts: of the tokens of each document, (N, V).
        width: H.

    Raises:
        ValueError: if there are fewer than H documents or tokens.
    """
    features, tokens, weigher = tfidf(counts)
    if min(features.shape) < width:
        raise ValueError(
            f"--lexical_start makes embeddings of {width} dimensions, and the corpus has {features.shape[0]:,} "
            f"documents with {features.shape[1]:,} tokens that two of them have: give more, or lower the width."
        )
    _, singular, components = randomized_svd(features, width, random_state=0)
    vectors = weigher.idf_[:, None] * components.T * singular
    share = float(np.square(singular).sum() / np.square(features.data).sum())
    facts = LexicalFacts(features.shape[0], features.shape[1], share)
    # At a root mean square of 1 masked LM would learn slower, for its head is the same table
    return tokens, (vectors * (0.2 / np.sqrt(np.square(vectors).mean()))).astype(np.float32), facts


def _counts(documents: Dataset, size: int, special_ids: list[int]) -> csr_matrix:
    """Count the tokens of at most `MOST_DOCUMENTS` documents, (N, V) float32; special tokens do not count."""
    if not len(documents):
        raise ValueError("--lexical_start needs documents, and no document is left to train on.")
    rows = np.linspace(0, len(documents) - 1, min(len(documents), MOST_DOCUMENTS)).astype(int)
    ids = documents.select(rows).with_format("numpy")["input_ids"][:]
    ends, flat = np.cumsum([0, *map(len, ids)]), np.concatenate(ids).astype(np.int32)
    counts = csr_matrix(((~np.isin(flat, special_ids)).astype(np.float32), flat, ends), shape=(len(ids), size))
    counts.sum_duplicates()
    counts.eliminate_zeros()
    return counts
