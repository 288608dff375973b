"""Words of whole documents to vectors of an encoder: lexical ridge regression, fitted in closed form without labels.

    x(d)    TF-IDF of the encoder's own tokens over the whole document, of length one; counts are dampened to 1 + ln c
    t(d)    the encoder's vector of the document, averaged with those of its neighbours
    W       argmin |XW - T|^2 + penalty |W|^2, without an intercept, for all H targets at once
    r(d)    unit(x(d) W), the direction of a sum of token vectors: idf_t W_t of each token t

The vector of a document is then unit(e(d) + r(d)), in the encoder's own space; r(d) of plain counts is a static
encoder. Kin: model2vec's distillation, which reads no documents; a la carte embeddings (Khodak et al. 2018); SPAR
(Chen et al. 2022).

Three ways give the same W: for few documents XX' + penalty, (N, N), is factored, for few features X'X + penalty,
(P, P); for many of both block conjugate gradients run on the sparse X.

Leave-one-out needs no refitting (Allen 1974; Hastie, Tibshirani and Friedman, section 7.10): the residual of document
i, by a W fitted without it, is its residual by the common W divided by 1 - h_i, where
h = diag X (X'X + penalty)^-1 X'. By C = XX' + penalty, that quotient is (C^-1 T)_i / (C^-1)_ii.

SentenceTransformer loads the folders that `save_with_words` and `save_static` write.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from scipy.linalg import cho_factor, cho_solve, eigh
from scipy.sparse import csr_matrix, vstack
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from sklearn.feature_extraction.text import TfidfTransformer
from tokenizers import Tokenizer, models
from torch import Tensor

from docsplit.data.copies import document_id
from docsplit.data.readers.base import normalized
from docsplit.embedding.neighbours import smooth, word_vectors
from docsplit.modeling.checked_files import MODEL_FILE, MODULES
from docsplit.modeling.encoder_with_words import TEXTS_AT_ONCE, Words, token_count, token_ids
from docsplit.modeling.loading import fast_tokenizer, tokenizer_of, with_words, without_words
from docsplit.runtime.files import JsonObject
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0)
FEWEST_DOCUMENTS = 20
DUAL_DOCUMENTS = 4096  # above, the (N, N) matrix takes minutes
PRIMAL_FEATURES = 6000
RIDGE_FOLDS = 5  # that take the place of leave-one-out there
MOST_ITERATIONS = 1000  # a penalty of 0.1 or more needs 50 to 150
BLOCK = 2048  # rows at a time
LEAST = 1e-12  # that is divided by


@dataclass(frozen=True)
class RidgeSettings:
    """How words are fitted.

    Attributes:
        penalty: of W, above 0; None: chosen among `PENALTIES` by leave-one-out on the encoder's own vectors.
        neighbours: that a target is averaged with, in two rounds (`docsplit.embedding.neighbours.smooth`); 0: none.
        sublinear: a token that a document has c times counts 1 + ln c times; False: c times, as in a static encoder.
    """

    penalty: float | None = None
    neighbours: int = 20
    sublinear: bool = True


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
        """Whether words say as little of the encoder's vectors as of vectors drawn at random: they would add noise."""
        return self.share_explained < 0.01

    @property
    def weight(self) -> float:
        """The weight of the words beside the encoder: 1, or less where they explain less than a fifth of the variance.

        Words that were fitted on few documents explain little of others, and would add noise to their vectors. The
        fifth was chosen on validation documents (docs/adaptation.md).
        """
        return round(min(1.0, max(0.0, self.share_explained) / 0.2), 2)

    def sentence(self) -> str:
        """Say in one line what was fitted."""
        tried = ", ".join(f"{penalty:g}: {100 * share:.1f} %" for penalty, share in self.shares_explained.items())
        counts = "dampened" if self.sublinear else "plain"
        line = f"Words of {self.documents:,} documents: {self.pieces:,} tokens, {counts} counts, ridge penalty "
        line += f"{self.penalty:g} (variance explained, leave-one-out: {tried})"
        if self.weight < 1:
            line += f"; they explain little, which makes their weight {self.weight:g}"
        left_out = {"empty": self.empty, "copies": self.duplicates, "without a token of others": self.without_pieces}
        return line + "".join(f"; {name}: {count:,}" for name, count in left_out.items() if count)


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


def fit(
    model: Any, texts: Sequence[str], embeddings: np.ndarray, settings: RidgeSettings | None = None
) -> LexicalRidge:
    """Fit words to the vectors of an encoder.

    Args:
        model: a SentenceTransformer, for its tokenizer; words that it brings are left out.
        texts: N documents without labels. Empty ones and copies are left out and counted.
        embeddings: e, (N, H): the vectors of `texts` by the plain encoder.

    Raises:
        ValueError: for fewer than 20 distinct documents, for vectors that are not finite, all equal or not as many as
            texts, for an encoder without a fast tokenizer, or if no token is in two documents.
    """
    settings = settings or RidgeSettings()
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
        raise ValueError(
            "The encoder's vectors are not finite: it is broken, or needs float32 (--dtype, where there is one)."
        )
    if np.ptp(vectors, axis=0).max() < 1e-6:
        raise ValueError(f"The encoder gives one vector for all {len(kept)} documents: there is nothing to learn.")
    documents = [normalized(texts[row]) for row in kept]

    # Features
    tokenizer = whole_text_tokenizer(model)
    features, pieces, weigher = tfidf(count_tokens(tokenizer, documents), settings.sublinear)

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
    table = torch.from_numpy(coefficients * weigher.idf_[:, None].astype(np.float32))
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
            place_of[row] = places.setdefault(document_id(text), len(kept))
            if place_of[row] == len(kept):
                kept.append(row)
    return kept, place_of


def whole_text_tokenizer(model: Any) -> Tokenizer:
    """Return a copy of an encoder's tokenizer that reads texts whole: without truncation, padding or special tokens.

    Raises:
        ValueError: if the encoder has no fast tokenizer (tokenizer.json).
    """
    plain = without_words(model)
    backend = fast_tokenizer(plain)
    if not isinstance(backend, Tokenizer):
        raise ValueError(
            f"The encoder's tokenizer is a {type(tokenizer_of(plain)).__name__}, which has no fast form "
            "(tokenizer.json): words cannot be kept with it. Choose an encoder with a fast tokenizer."
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
    if isinstance(tokenizer.model, models.Unigram):
        unknown = json.loads(tokenizer.to_str())["model"]["unk_id"]
    else:
        unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "")
    if unknown is not None:
        left_out[unknown] = True
    parts = []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        ids = [
            text_ids[~left_out[text_ids]] for text_ids in token_ids(tokenizer, texts[start : start + TEXTS_AT_ONCE])
        ]
        ends, flat = np.cumsum([0, *map(len, ids)]), np.concatenate(ids)
        counted = csr_matrix((np.ones(len(flat), dtype=np.float32), flat, ends), shape=(len(ids), size))
        counted.sum_duplicates()
        parts.append(counted)
    return vstack(parts, format="csr")


def tfidf(counts: csr_matrix, sublinear: bool = True) -> tuple[csr_matrix, np.ndarray, TfidfTransformer]:
    """Weigh the tokens that two documents have, with a smooth idf of at least 1; rows are of length one.

    Args:
        counts: of tokens, (N, V).
        sublinear: as `RidgeSettings` has it.

    Returns: TF-IDF (N, P), the tokens (P,), and what weighs their counts in other documents; it has `idf_`, (P,).

    Raises:
        ValueError: if there is no such token.
    """
    tokens = np.flatnonzero(np.bincount(counts.indices, minlength=counts.shape[1]) >= 2)
    if not len(tokens):
        raise ValueError(f"No token is in two of the {counts.shape[0]} documents: there are no words to learn from.")
    weigher = TfidfTransformer(sublinear_tf=sublinear)
    features = weigher.fit_transform(counts[:, tokens])
    return features, tokens, weigher


def shares_explained(features: csr_matrix, vectors: np.ndarray, penalties: Sequence[float]) -> dict[float, float]:
    """Return for each penalty the share of the variance of plain vectors that leave-one-out directions explain.

    Averaged targets would flatter small penalties, for a document is in its neighbours' targets. Rows of length one
    make a penalty mean the same for any number of documents, so that 4,096 of them, evenly spaced, are enough. X X' is
    decomposed once for all penalties.
    """
    step = -(-features.shape[0] // DUAL_DOCUMENTS)
    features, vectors = features[::step], vectors[::step]
    values, basis = eigh(_gram(features), overwrite_a=True, check_finite=False)
    shares = {}
    for penalty in penalties:
        inverse = 1 / (np.maximum(values, 0) + penalty)
        dual = basis @ (inverse[:, None] * (basis.T @ vectors))
        directions = vectors - dual / (np.square(basis) @ inverse)[:, None]
        shares[penalty] = explained(vectors, unit(directions))
    return shares


def explained(vectors: np.ndarray, directions: np.ndarray) -> float:
    """Return the share of the variance of vectors (N, H) that directions (N, H) explain, scaled and shifted at best.

    It is the squared correlation of both around their means: a direction that all documents share counts for nothing.
    Its sign is that of the correlation.
    """
    vectors, directions = (rows - rows.mean(axis=0) for rows in (vectors, directions))
    scale = np.square(vectors).sum() * np.square(directions).sum()
    correlation = float((vectors * directions).sum() / np.sqrt(max(scale, LEAST)))
    return correlation * abs(correlation)


# --- Ridge regression ---


def weights(features: csr_matrix, targets: np.ndarray, penalty: float) -> np.ndarray:
    """Return W (P, H) float32, by the way that fits the size.

    Args:
        features: X, (N, P).
        targets: T, (N, H).
        penalty: above 0.
    """
    documents, pieces = features.shape
    if documents <= DUAL_DOCUMENTS:
        dual = cho_solve(_factor(features, penalty), targets, check_finite=False)
        return np.asarray(features.T @ dual, dtype=np.float32)
    if pieces <= PRIMAL_FEATURES:
        right = features.T.astype(np.float64) @ targets
        return cho_solve(_factor(features.T, penalty), right, check_finite=False).astype(np.float32)
    return conjugate_gradients(features, targets, penalty)


def leave_one_out(features: csr_matrix, targets: np.ndarray, penalty: float) -> np.ndarray:
    """Return (N, H): what a W fitted without a document gives for it.

    Exact up to `DUAL_DOCUMENTS`. Above, a document is left out together with a fifth of all, drawn with a fixed seed.
    """
    documents = features.shape[0]
    if documents <= DUAL_DOCUMENTS:
        inverse = cho_solve(_factor(features, penalty), np.eye(documents), overwrite_b=True, check_finite=False)
        return targets - (inverse @ targets) / inverse.diagonal()[:, None]
    outputs = np.empty(targets.shape, dtype=np.float32)
    fold_of = np.random.default_rng(0).permutation(documents) % RIDGE_FOLDS
    for fold in range(RIDGE_FOLDS):
        outside, inside = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        outputs[inside] = features[inside] @ weights(features[outside], targets[outside], penalty)
    return outputs


def _factor(rows: csr_matrix, penalty: float) -> tuple[np.ndarray, bool]:
    """Factor rows rows' + penalty in double precision, for solving with it."""
    gram = _gram(rows)
    gram[np.diag_indices_from(gram)] += penalty
    return cho_factor(gram, overwrite_a=True, check_finite=False)


def _gram(rows: csr_matrix) -> np.ndarray:
    """Return rows rows', (M, M), summed in double precision: sums over many documents lose their digits in single.

    Beside it there is one block of its lines at a time, and `rows` twice in double precision.
    """
    rows = rows.tocsr().astype(np.float64)
    columns, gram = rows.T.tocsr(), np.empty((rows.shape[0], rows.shape[0]))
    for start in range(0, len(gram), BLOCK):
        gram[start : start + BLOCK] = (rows[start : start + BLOCK] @ columns).toarray()
    return gram


def conjugate_gradients(
    features: csr_matrix, targets: np.ndarray, penalty: float, tolerance: float = 1e-4
) -> np.ndarray:
    """Return W (P, H) by conjugate gradients on the normal equations, each target with its own step.

    The diagonal of X'X is the preconditioner: frequent features would slow it down otherwise. Some targets at a time,
    whose vectors fit into the cache. A warning says where the residuals are still above `tolerance` of the right side
    after `MOST_ITERATIONS`.
    """
    rows, columns = features.astype(np.float32), features.T.tocsr().astype(np.float32)  # both products go by rows
    squares = np.bincount(rows.indices, np.square(rows.data), minlength=rows.shape[1]).astype(np.float32)
    scale = torch.from_numpy(1 / (squares[:, None] + np.float32(penalty)))  # (P, 1)
    least = torch.finfo(torch.float32).tiny  # a target may be a dead dimension of the encoder, all near 0
    solutions, worst = np.empty((features.shape[1], targets.shape[1]), dtype=np.float32), 0.0
    for start in range(0, targets.shape[1], 64):
        block = slice(start, start + 64)
        right = _product(columns, torch.from_numpy(np.ascontiguousarray(targets[:, block], dtype=np.float32)))
        residuals, solution, direction = right.clone(), torch.zeros_like(right), scale * right  # (P, h)
        length = (residuals * direction).sum(dim=0)
        sizes = right.norm(dim=0).clamp(min=LEAST)
        for _ in range(MOST_ITERATIONS):
            product = _product(columns, _product(rows, direction)).add_(direction, alpha=penalty)  # by X'X + penalty
            step = length / (direction * product).sum(dim=0).clamp(min=least)
            solution += step * direction
            residuals -= step * product
            if bool((residuals.norm(dim=0) <= tolerance * sizes).all()):
                break
            preconditioned = scale * residuals
            next_length = (residuals * preconditioned).sum(dim=0)
            direction = preconditioned.addcmul_(direction, next_length / length.clamp(min=least))
            length = next_length
        solutions[:, block] = solution.numpy()
        worst = max(worst, float((residuals.norm(dim=0) / sizes).max()))
    if worst > tolerance:
        logger.warning(
            f"Words are fitted up to a residual of {worst:.1e}, not {tolerance:.0e}: conjugate gradients stopped "
            f"after {MOST_ITERATIONS:,} steps. A penalty above {penalty:g} needs fewer."
        )
    return solutions


def _product(sparse: csr_matrix, dense: Tensor) -> Tensor:
    """Multiply (M, N) by (N, h) as a sum over embeddings: several times as fast as scipy, on all threads."""
    indices, starts, values = map(torch.from_numpy, (sparse.indices, sparse.indptr, sparse.data))
    return F.embedding_bag(indices, dense, starts, mode="sum", per_sample_weights=values, include_last_offset=True)


# --- Folders ---


def save_with_words(model: Any, words: Words, weight: float, folder: Path) -> None:
    """Write an encoder with words; `AutoModel` loads the plain encoder from the same folder."""
    with_words(model, words, weight).save(str(folder), create_model_card=False)


def static_encoder(words: Words) -> SentenceTransformer:
    """Return the words alone as an encoder: the vector of a text is the mean of its token vectors, of length one."""
    return SentenceTransformer(modules=[StaticEmbedding(words.tokenizer, _whole_table(words)), Normalize()])


def save_static(words: Words, folder: Path) -> None:
    """Write the words alone as a static encoder: sentence-transformers and model2vec load it, without this project.

    The vector of a text is the mean of its token vectors, of length one; of a text without any of them it is zero.

    Raises:
        ValueError: for words that dampen counts, which no mean does.
    """
    if words.sublinear:
        raise ValueError("A static encoder is a mean of token vectors: fit its words with plain counts.")
    table = _whole_table(words)
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": f"sentence_transformers.sentence_transformer.modules.{name}",
        }
        for number, (name, path) in enumerate((("StaticEmbedding", ""), ("Normalize", "1_Normalize")))
    ]
    files: JsonObject = {
        MODULES: modules,
        MODEL_FILE: {"model_type": "SentenceTransformer", "prompts": {}, "similarity_fn_name": "cosine"},
        "config.json": {"model_type": "model2vec", "normalize": True, "hidden_dim": table.shape[1]},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "1_Normalize").mkdir()
    Normalize().save(str(folder / "1_Normalize"))  # the Hub keeps no empty folder
    words.tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"embeddings": table}, folder / "model.safetensors", metadata={"format": "pt"})


def _whole_table(words: Words) -> Tensor:
    """Return the vectors of all tokens of the tokenizer, (V, H)."""
    table = torch.zeros(token_count(words.tokenizer), words.vectors().shape[1])
    table[words.pieces] = words.vectors().detach().cpu()
    return table
