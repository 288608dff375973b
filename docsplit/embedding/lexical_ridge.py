"""Words of whole documents to vectors of an encoder: lexical ridge regression, fitted in closed form without labels.

    x(d)    TF-IDF of the encoder's own tokens over the whole document, of length one; counts are dampened to 1 + ln c
    t(d)    the encoder's vector of the document, averaged with those of its neighbours
    W       argmin |XW - T|^2 + penalty |W|^2, without an intercept (`docsplit.embedding.ridge`)
    r(d)    unit(x(d) W), the direction of a sum of token vectors: idf_t W_t of each token t

The vector of a document is then unit(e(d) + r(d)), in the encoder's own space; r(d) of plain counts is a static
encoder. Kin: model2vec's distillation, which reads no documents; a la carte embeddings (Khodak et al. 2018); SPAR
(Chen et al. 2022).
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, vstack
from sklearn.preprocessing import normalize
from tokenizers import Tokenizer, models

from docsplit.data.seen_documents import document_id
from docsplit.embedding.neighbours import smooth, word_vectors
from docsplit.embedding.project_modules import without_words
from docsplit.embedding.ridge import DUAL_DOCUMENTS, Decomposed, explained, leave_one_out, weights
from docsplit.modeling.encoder_with_words import CHUNK_TEXTS, Words, token_count, token_ids
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0)
FEWEST_DOCUMENTS = 20
LEAST_SHARE = 0.01  # of the variance; words of vectors that were drawn at random explain less
FULL_SHARE = 0.2  # from which on words have weight 1; chosen on validation documents (docs/adaptation.md)


@dataclass(frozen=True)
class RidgeSettings:
    """How words are fitted.

    Attributes:
        penalty: of W; None: chosen among `PENALTIES` by leave-one-out on the encoder's own vectors.
        neighbours: that a target is averaged with, in two rounds (`docsplit.embedding.neighbours.smooth`); 0: none.
        sublinear: a token that a document has c times counts 1 + ln c times; False: c times, as in a static encoder.

    Raises:
        ValueError: for a value out of range.
    """

    penalty: float | None = None
    neighbours: int = 20
    sublinear: bool = True

    def __post_init__(self) -> None:
        if self.penalty is not None and not 0 < self.penalty < np.inf:
            raise ValueError(f"The ridge penalty is {self.penalty}: expected a number above 0, such as 1.")
        if self.neighbours < 0:
            raise ValueError(f"The number of neighbours is {self.neighbours}: expected 0 (none) or more.")


DEFAULTS = RidgeSettings()


@dataclass(frozen=True)
class RidgeFacts:
    """What was fitted, and on what; it stands in the log and on the card."""

    documents: int
    empty: int  # documents left out, without text
    duplicates: int  # documents left out, copies of others
    without_pieces: int  # documents without any token that another document has
    pieces: int  # tokens with a vector
    penalty: float
    neighbours: int
    sublinear: bool  # counts are dampened, else plain
    shares_explained: dict[float, float]  # of the variance of the encoder's vectors, leave-one-out, by penalty

    @property
    def share_explained(self) -> float:
        """The share of the variance of the encoder's vectors that words explain out of sample."""
        return self.shares_explained[self.penalty]

    @property
    def explains_nothing(self) -> bool:
        """Whether words say next to nothing of the encoder's vectors, so that adding them would only add noise."""
        return self.share_explained < LEAST_SHARE

    @property
    def weight(self) -> float:
        """The weight of the words beside the encoder: 1, or less where they explain less than a fifth of the variance.

        Words that were fitted on few documents explain little of others, and would add noise to their vectors.
        """
        return round(min(1.0, max(0.0, self.share_explained) / FULL_SHARE), 2)

    def sentence(self) -> str:
        """Say in one line what was fitted."""
        copies = "copy" if self.duplicates == 1 else "copies"
        left_out = " and ".join(
            f"{count:,} {name}" for name, count in (("empty", self.empty), (copies, self.duplicates)) if count
        )
        tried = ", ".join(f"{penalty:g}: {100 * share:.1f} %" for penalty, share in self.shares_explained.items())
        return (
            f"Words of {self.documents:,} documents{f' (without {left_out})' if left_out else ''}: "
            f"{self.pieces:,} tokens, {'dampened' if self.sublinear else 'plain'} counts, "
            f"ridge penalty {self.penalty:g} (variance explained, leave-one-out: {tried})"
            + (f"; they explain little, which makes their weight {self.weight:g}" if self.weight < 1 else "")
            + (f"; {self.without_pieces:,} documents share no token with another" if self.without_pieces else "")
        )


@dataclass(frozen=True)
class LexicalRidge:
    """Words fitted to the vectors of an encoder, and the documents that they were fitted on.

    Attributes:
        words: token vectors, a module that turns any text into r(d).
        document_of: for each of the N given texts its row below; -1 for one without text.
        features: X, (D, P).
        targets: T, (D, H) of length one.
        coefficients: W, (P, H).
    """

    words: Words
    facts: RidgeFacts
    document_of: np.ndarray
    features: csr_matrix
    targets: np.ndarray
    coefficients: np.ndarray

    def fitted(self) -> np.ndarray:
        """Return r of the given texts, (N, H), by the W that was fitted on them: for documents that are searched."""
        return self._of_texts(self.features @ self.coefficients)

    def leave_one_out(self) -> np.ndarray:
        """Return r of the given texts, (N, H), each by a W fitted without it: comparable with new documents.

        The idf and the neighbours are those of all. Where there are very many documents, a fifth is left out at once.
        """
        return self._of_texts(leave_one_out(self.features, self.targets, self.facts.penalty))

    def _of_texts(self, directions: np.ndarray) -> np.ndarray:
        has_pieces = np.diff(self.features.indptr) > 0
        rows = unit(directions) * has_pieces[:, None]
        return np.concatenate([rows, np.zeros_like(rows[:1])])[self.document_of]


def fit(model: Any, texts: Sequence[str], embeddings: np.ndarray, settings: RidgeSettings = DEFAULTS) -> LexicalRidge:
    """Fit words to the vectors of an encoder.

    Args:
        model: a SentenceTransformer, for its tokenizer; words that it brings are left out.
        texts: N documents without labels. Empty ones and copies are left out and counted.
        embeddings: e, (N, H): the vectors of `texts` by the plain encoder.

    Raises:
        ValueError: for fewer than 20 distinct documents, for vectors that are not finite, all equal or not as many as
            texts, for an encoder without a fast tokenizer, or if no token is in two documents.
    """
    # Distinct documents, and vectors that words can be learnt from
    if np.ndim(embeddings) != 2 or len(embeddings) != len(texts):
        raise ValueError(f"{len(texts)} texts came with vectors {np.shape(embeddings)}: expected one vector a text.")
    kept, document_of = distinct(texts)
    if len(kept) < FEWEST_DOCUMENTS:
        raise ValueError(
            f"{len(kept)} distinct documents with text, of {len(texts)}, are too few to learn words from: give "
            f"{FEWEST_DOCUMENTS} or more, better some hundreds."
        )
    vectors = unit(np.asarray(embeddings)[kept])
    if not np.isfinite(vectors).all():
        raise ValueError("The encoder's vectors are not finite: it is broken, or needs --dtype float32.")
    if np.ptp(vectors, axis=0).max() < 1e-6:
        raise ValueError(f"The encoder gives one vector for all {len(kept)} documents: there is nothing to learn.")
    documents = [texts[row] for row in kept]

    # Features: the tokens that two documents have
    tokenizer = whole_text_tokenizer(model)
    counts = count_tokens(tokenizer, documents)
    frequencies = np.bincount(counts.indices, minlength=counts.shape[1])
    pieces = np.flatnonzero(frequencies >= 2)
    if not len(pieces):
        raise ValueError(f"No token is in two of the {len(kept)} documents: there are no words to learn from.")
    idf = inverse_frequencies(frequencies[pieces], len(kept))
    features = tf_idf(counts[:, pieces], idf, settings.sublinear)

    # Targets, the penalty, and W
    targets = vectors
    if settings.neighbours:
        targets = smooth(vectors, settings.neighbours, words=word_vectors(documents))
    shares = shares_explained(features, vectors, PENALTIES if settings.penalty is None else (settings.penalty,))
    penalty = max(shares, key=lambda tried: shares[tried])
    coefficients = weights(features, targets, penalty)
    facts = RidgeFacts(
        documents=len(kept),
        empty=int((document_of < 0).sum()),
        duplicates=int((document_of >= 0).sum()) - len(kept),
        without_pieces=int((np.diff(features.indptr) == 0).sum()),
        pieces=len(pieces),
        penalty=penalty,
        neighbours=settings.neighbours,
        sublinear=settings.sublinear,
        shares_explained=shares,
    )
    logger.info(facts.sentence())
    table = torch.from_numpy(coefficients * idf[:, None])
    words = Words(tokenizer, torch.from_numpy(pieces), table, settings.sublinear, settings.neighbours)
    return LexicalRidge(words, facts, document_of, features, targets, coefficients)


def distinct(texts: Sequence[str]) -> tuple[list[int], np.ndarray]:
    """Return the rows of the first copies of all texts that are not empty, and for each text its place among these.

    The place is -1 for an empty text.
    """
    places: dict[int, int] = {}
    kept: list[int] = []
    place_of = np.full(len(texts), -1)
    for row, text in enumerate(texts):
        if text.strip():
            key = document_id(text)
            if key not in places:
                places[key] = len(kept)
                kept.append(row)
            place_of[row] = places[key]
    return kept, place_of


def whole_text_tokenizer(model: Any) -> Tokenizer:
    """Return a copy of an encoder's tokenizer that reads texts whole: without truncation, padding or special tokens.

    Raises:
        ValueError: if the encoder has no fast tokenizer (tokenizer.json).
    """
    first = without_words(model)[0]
    tokenizer = getattr(first, "processor", None) or getattr(first, "tokenizer", None)
    backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ValueError(
            f"The encoder's tokenizer is a {type(tokenizer).__name__}, which has no fast form (tokenizer.json): words "
            "cannot be kept with it. Choose an encoder with a fast tokenizer."
        )
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def count_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> csr_matrix:
    """Count the tokens of each text, (N, V) float32; special tokens and the unknown one do not count."""
    size = token_count(tokenizer)
    left_out = np.zeros(size, dtype=bool)
    left_out[[number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special]] = True
    if (unknown := _unknown_token(tokenizer)) is not None:
        left_out[unknown] = True
    parts = []
    for start in range(0, len(texts), CHUNK_TEXTS):
        ids = [text_ids[~left_out[text_ids]] for text_ids in token_ids(tokenizer, texts[start : start + CHUNK_TEXTS])]
        ends, flat = np.cumsum([0, *map(len, ids)]), np.concatenate(ids)
        counted = csr_matrix((np.ones(len(flat), dtype=np.float32), flat, ends), shape=(len(ids), size))
        counted.sum_duplicates()
        parts.append(counted)
    return vstack(parts, format="csr")


def _unknown_token(tokenizer: Tokenizer) -> int | None:
    """Return the id of the token that stands for all that a tokenizer does not know; None if it has none."""
    if isinstance(tokenizer.model, models.Unigram):
        return json.loads(tokenizer.to_str())["model"]["unk_id"]
    return tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "")


def inverse_frequencies(frequencies: np.ndarray, documents: int) -> np.ndarray:
    """Return the smooth idf of tokens that so many of the documents have, (P,) float32: at least 1."""
    return (np.log((1 + documents) / (1 + frequencies)) + 1).astype(np.float32)


def tf_idf(counts: csr_matrix, idf: np.ndarray, sublinear: bool) -> csr_matrix:
    """Weigh counts c (N, P), or 1 + ln c, by the idf (P,), and scale rows to length one."""
    if sublinear:
        counts = counts.copy()
        counts.data = 1 + np.log(counts.data)
    return normalize(counts.multiply(idf).tocsr(), copy=False)


def shares_explained(features: csr_matrix, vectors: np.ndarray, penalties: Sequence[float]) -> dict[float, float]:
    """Return for each penalty the share of the variance of plain vectors that leave-one-out directions explain.

    Averaged targets would flatter small penalties, for a document is in its neighbours' targets. Rows of length one
    make a penalty mean the same for any number of documents, so that 4,096 of them, evenly spaced, are enough.
    """
    step = -(-features.shape[0] // DUAL_DOCUMENTS)
    features, vectors = features[::step], vectors[::step]
    decomposed = Decomposed.of(features)
    return {penalty: explained(vectors, unit(decomposed.leave_one_out(vectors, penalty))) for penalty in penalties}
