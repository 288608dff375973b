"""An encoder from nothing, in closed form: what DocSplit would train a linear encoder to be, without training.

    x       unit rows of (1 + ln c) idf^2 of the tokens that two documents have, (P,)
    z       x V, (D,): V are the first D right singular vectors of the documents' rows (latent semantic analysis)
    a, b    z of two random halves of a document's tokens, each less the mean of all halves
    C, B    (a'a + b'b) / 2n and (a'b + b'a) / 2n, the covariance of halves and the cross-covariance of two of one
            document, (D, D); R = C + r mean(diag C) I
    q, w    B q = w R q, q'Rq = 1: the directions in which two halves of one document agree, and how much
    e(t)    idf_t^2 V_t Q w^p - m, the vector of a token t; m is the mean over documents of the mean of their tokens
    f       unit(mean of e(t) over the tokens of a document)

Why. The contrastive loss in its spectral form (HaoChen et al. 2021) of an encoder f = Wz is

    -2 E[f(a)'f(b)] + E[(f(u)'f(v))^2] = -2 tr(W B W') + |W R W'|^2,    u and v halves of any two documents,

with the ridge in the second moment. For G = R^1/2 W' it is |GG' - R^-1/2 B R^-1/2|^2 up to a constant, which is least
where GG' keeps the largest eigenvalues w and eigenvectors (Eckart and Young 1936): W' = Q w^1/2, up to a rotation.
That is p = 1/2. A sharper p, 1.5 here, gives less weight to directions in which halves hardly agree: it is no optimum
of the loss, and better with few labels. Without the ridge, w are the canonical correlations of two halves (Hotelling
1936; the ridge: Vinod 1976). Kin are eigenwords (Dhillon, Foster and Ungar 2015), whose two views are a word and its
context, and probabilistic linear discriminant analysis (Ioffe 2006), with a document as the class of its halves.

A token goes to either half with probability 1/2, as a sentence does in `docsplit.data.views.docsplit`; so counts of
tokens are all that is read, of documents of one sentence too, and no sentences have to be found. C and B are sums over
documents: these are read some at a time.

f is a mean of token vectors, so that sentence-transformers computes it without this project (`StaticEmbedding`); no
logarithm of counts fits into a mean. Directions are found on dampened counts all the same, in which a few frequent
tokens decide less. The square of the idf, the halves, r, p and K were chosen on validation documents. With as many
settings to choose from, latent semantic analysis comes to the same, and so does this without halves
(docs/closed_form.md).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.sparse import csr_matrix
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import randomized_svd

from docsplit.data.readers.base import normalized
from docsplit.data.tokenization import train_pieces
from docsplit.embedding.lexical_ridge import BLOCK, FEWEST_DOCUMENTS, count_tokens, distinct, tfidf
from docsplit.modeling.encoder_with_words import Words
from docsplit.runtime.vectors import unit

NOTHING = "none"  # in place of an encoder's name
DIMENSIONS = 1000  # D, of the space in which halves are compared
BASIS_DOCUMENTS = 50_000  # that V is made of, evenly spaced; pieces too
FEW_DOCUMENTS = 2000
LEAST = 1e-6  # share of the largest variance, below which a direction is rounding
PIECES = 30_000
DRAWS = 2  # of two halves, of each document
RIDGE, POWER, WIDTH = 3.0, 1.5, 128  # r, p and K: benchmarks/results/closed_form_choices.json


@dataclass(frozen=True)
class ClosedForm:
    """A map from counts of tokens to vectors.

    Attributes:
        tokens: that have a vector, (P,).
        table: their vectors, e, (P, K) float32.
        halved: documents that were halved, those of two tokens or more that others have.
    """

    tokens: np.ndarray
    table: np.ndarray
    halved: int

    def vectors(self, counts: csr_matrix) -> np.ndarray:
        """Return the vectors of documents, (N, K) float32, of length one; of one without known tokens it is zero.

        Args:
            counts: of the tokens of each document, (N, V).
        """
        return unit(counts[:, self.tokens] @ self.table)


@dataclass(frozen=True)
class ClosedFormFacts:
    """What an encoder was made of; it stands in the log and on the card."""

    documents: int
    empty: int  # documents left out, without text
    duplicates: int  # documents left out, copies of others
    too_short: int  # documents that have fewer than two tokens that others have
    pieces: int  # tokens with a vector

    def sentence(self) -> str:
        """Say in one line what was made."""
        left_out = {"empty": self.empty, "copies": self.duplicates, "too short to halve": self.too_short}
        line = f"Halves of {self.documents:,} documents: {self.pieces:,} tokens with a vector"
        return line + "".join(f"; {name}: {count:,}" for name, count in left_out.items() if count)


def fit_to_texts(texts: Sequence[str]) -> tuple[Words, ClosedFormFacts]:
    """Cut documents into pieces, and fit the map to these.

    Args:
        texts: N documents. Empty ones and copies are left out and counted.

    Returns: token vectors, which `docsplit.embedding.lexical_ridge.save_static` writes.

    Raises:
        ValueError: for fewer than 20 distinct documents with two words that others have too.
    """
    kept, document_of = distinct(texts)
    documents = [normalized(texts[row]) for row in kept]
    tokenizer = train_pieces(documents[:: -(-max(1, len(documents)) // BASIS_DOCUMENTS)], PIECES)
    fitted = fit(count_tokens(tokenizer, documents))
    facts = ClosedFormFacts(
        documents=len(kept),
        empty=int((document_of < 0).sum()),
        duplicates=int((document_of >= 0).sum()) - len(kept),
        too_short=len(kept) - fitted.halved,
        pieces=len(fitted.tokens),
    )
    return Words(tokenizer, torch.from_numpy(fitted.tokens), torch.from_numpy(fitted.table)), facts


def fit(
    counts: csr_matrix, ridge: float = RIDGE, power: float = POWER, width: int = WIDTH, seed: int = 0
) -> ClosedForm:
    """Fit a map to the counts of the tokens of documents, (N, V).

    Args:
        ridge: r, above 0.
        power: p.
        width: the most dimensions, K; there are no more than directions in which halves agree.
        seed: of the halves.

    Raises:
        ValueError: for fewer than 20 documents with two tokens that others have, or halves that agree in nothing.
    """
    _, tokens, weigher = tfidf(counts)
    scale = np.square(weigher.idf_).astype(np.float32)
    counts = counts[:, tokens]
    counts = counts[np.asarray(counts.sum(axis=1)).ravel() >= 2]
    if counts.shape[0] < FEWEST_DOCUMENTS:
        raise ValueError(
            f"{counts.shape[0]} documents have two words or more that other documents have too: give "
            f"{FEWEST_DOCUMENTS} or more, better some hundreds."
        )
    basis = basis_of(dampened(counts, scale))
    halves = (
        [dampened(half, scale) @ basis for half in halves_of_tokens(counts[start : start + BLOCK], generator)]
        for draw in range(DRAWS)
        for start in range(0, counts.shape[0], BLOCK)
        for generator in [np.random.default_rng((seed, draw, start))]
    )
    agreements, directions = agreeing(*moments(halves), ridge)
    agreements, directions = agreements[:width], directions[:, :width]
    if not len(agreements):
        raise ValueError(f"The halves of {counts.shape[0]} documents agree in nothing: are these texts of words?")
    table = scale[:, None] * (basis @ (directions * agreements**power)).astype(np.float32)
    table *= np.sign(table[np.abs(table).argmax(axis=0), np.arange(table.shape[1])])  # eigenvectors have no sign
    table -= np.asarray(normalize(counts, "l1").mean(axis=0), dtype=np.float32).ravel() @ table
    return ClosedForm(tokens, table, counts.shape[0])


def dampened(counts: csr_matrix, scale: np.ndarray) -> csr_matrix:
    """Return x, (N, P) float32.

    Args:
        counts: of the tokens of each document, (N, P).
        scale: idf^2, (P,).
    """
    rows = csr_matrix((1 + np.log(counts.data), counts.indices, counts.indptr), shape=counts.shape, dtype=np.float32)
    rows.data *= scale[rows.indices]
    return normalize(rows)


def basis_of(features: csr_matrix) -> np.ndarray:
    """Return V, (P, D) float32, of the rows of documents, (N, P); D is `DIMENSIONS`, or as many as there are."""
    sample = features[:: -(-features.shape[0] // BASIS_DOCUMENTS)].astype(np.float32)
    number = min(DIMENSIONS, *sample.shape)
    if sample.shape[0] <= FEW_DOCUMENTS:  # their products are a small matrix: twenty times as fast
        values, vectors = eigh((sample @ sample.T).toarray().astype(np.float64), driver="evd")
        kept = values > LEAST * values[-1]
        kept[:-number] = False
        return np.asarray(sample.T @ (vectors[:, kept] / np.sqrt(values[kept])), dtype=np.float32)[:, ::-1].copy()
    components = randomized_svd(sample, number, n_iter=4, random_state=0)[2]
    return np.ascontiguousarray(components.T, dtype=np.float32)


def halves_of_tokens(counts: csr_matrix, generator: np.random.Generator) -> tuple[csr_matrix, csr_matrix]:
    """Put each token of each document into one of two halves at random; neither is empty.

    Args:
        counts: of the tokens of each document, (N, P); two or more of each.

    Returns: counts of the halves, (N, P) each, which add up to `counts`.
    """
    totals = np.asarray(counts.sum(axis=1)).ravel()
    assert totals.min(initial=2) >= 2, "a document of one token has no two halves"
    first = counts.astype(np.float32)
    again = np.ones(len(first.data), dtype=bool)
    while again.any():
        first.data[again] = generator.binomial(counts.data[again].astype(np.int64), 0.5)
        drawn = np.add.reduceat(first.data, counts.indptr[:-1])
        again = np.repeat((drawn == 0) | (drawn == totals), np.diff(counts.indptr))
    second = (counts - first).tocsr().astype(np.float32)
    for half in (first, second):
        half.eliminate_zeros()
    return first, second


def moments(halves: Iterable[Iterable[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return C and B, (D, D) float64 each, of the halves of documents.

    Args:
        halves: of some documents at a time, the first and the second half, (n, D) each; not centred.
    """
    # Of s = a + b and d = a - b: a'a + b'b = (s's + d'd) / 2, a'b + b'a = (s's - d'd) / 2
    sums = differences = total = 0.0  # (D, D), (D, D), (D,)
    count = 0
    for first, second in halves:
        both, apart = first + second, first - second
        sums = sums + (both.T @ both).astype(np.float64)
        differences = differences + (apart.T @ apart).astype(np.float64)
        total = total + both.sum(axis=0, dtype=np.float64)
        count += len(both)
    mean = total / (2 * count)
    squares = np.outer(mean, mean)
    return (sums + differences) / (4 * count) - squares, (sums - differences) / (4 * count) - squares


def agreeing(covariance: np.ndarray, cross: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Solve B q = w (C + r mean(diag C) I) q.

    Args:
        covariance, cross: C and B, (D, D).
        ridge: r.

    Returns: w above zero, (K,), the largest first, and Q, (D, K).
    """
    penalty = ridge * covariance.trace() / len(covariance)
    values, vectors = eigh(cross, covariance + penalty * np.eye(len(covariance)))
    order = np.argsort(-values)[: int((values > 0).sum())]
    return values[order], vectors[:, order]
