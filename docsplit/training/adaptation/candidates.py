"""What adapting could write, measured on labelled documents: the best on validation documents is written.

    start      the plain encoder                   trained    the same after neighbour distillation
    words      the encoder and words, of the weight that the fit gives (at most 1), half and twice that
    static     words alone, fitted with plain counts, for their vector is a mean of token vectors

The vectors of labelled documents that words were fitted on are those by words fitted without them.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from docsplit.data.seen_documents import document_id
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.embedding.lexical_ridge import LexicalRidge
from docsplit.evaluation.heads.quick_probe import probe_accuracy
from docsplit.modeling.encoder_with_words import Words, add_words
from docsplit.release.records import Candidate, label_of

logger = logging.getLogger(__name__)

FACTORS = (1.0, 0.5, 2.0)  # of the weight that the fit gives; where several are as good, the first
CHUNK_TEXTS = 1024


@dataclass
class Side:
    """An encoder, its vectors, and the words that were fitted to it.

    Attributes:
        name: start, or trained.
        place: that it was loaded from.
        model: the plain SentenceTransformer.
        vectors: of the documents, (N, H).
        probe: for each part of the labelled documents its vectors (M, H).
        ridges: words that were fitted, by the kind of what they are for: words, static. Without those that explain
            nothing of the encoder.
    """

    name: str
    place: str
    model: Any
    vectors: np.ndarray
    probe: dict[str, np.ndarray]
    device: str = "cpu"  # that embedded them
    ridges: dict[str, LexicalRidge] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """What could be written.

    Attributes:
        weight: of the words beside the encoder; None for an encoder without words, and for words alone.
    """

    side: Side
    kind: str  # "words", "static" or "plain"
    weight: float | None = None

    @property
    def ridge(self) -> LexicalRidge | None:
        """Return the words that are written; None without."""
        return self.side.ridges.get(self.kind)

    @property
    def name(self) -> str:
        """Return what the table calls it: start, words, static, trained, trained + words or static of trained."""
        is_start = self.side.name == "start"
        if self.kind == "plain":
            return self.side.name
        if self.kind == "static":
            return "static" if is_start else "static of trained"
        return "words" if is_start else "trained + words"

    @property
    def label(self) -> str:
        """Return the name, with a weight that is not 1."""
        return label_of(self.name, self.weight)


def variants_of(sides: Sequence[Side]) -> list[Variant]:
    """List all that could be written: of what is equally good, the earlier is taken."""
    variants = []
    for side in sides:
        variants.append(Variant(side, "plain"))
        if "words" in side.ridges:
            weight = side.ridges["words"].facts.weight
            variants += [Variant(side, "words", round(factor * weight, 2)) for factor in FACTORS]
        if "static" in side.ridges:
            variants.append(Variant(side, "static"))
    return variants


def measure(variants: Sequence[Variant], split: LabelledSplit, texts: Sequence[str]) -> list[Candidate]:
    """Measure each variant by logistic regression on labelled documents, with 5 labels a class and with all.

    Args:
        texts: that words were fitted on.
    """
    rows_of_parts = _rows_among(texts, split)
    num_fitted = sum(int((rows >= 0).sum()) for rows in rows_of_parts.values())
    logger.info(f"{num_fitted:,} labelled training documents are among the documents: their words are leave-one-out.")
    directions: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    candidates = []
    for variant in variants:
        side, words = variant.side, (variant.side.name, variant.kind)
        if variant.ridge is not None and words not in directions:
            directions[words] = _words_of_parts(variant.ridge, split, rows_of_parts)
        features = {part: _features(variant, part, directions.get(words, {})) for part in side.probe}
        accuracies = probe_accuracy(split, features)
        candidates.append(Candidate(variant.name, variant.weight, accuracies["validation"], accuracies["test"]))
    return candidates


def _rows_among(texts: Sequence[str], split: LabelledSplit) -> dict[str, np.ndarray]:
    """Return for each part the rows (M,) that its documents have among texts; -1 for one that is not among them."""
    row_of = {document_id(text): row for row, text in enumerate(texts)}
    return {
        part: np.array([row_of.get(document_id(text), -1) for text in labelled])
        for part, labelled in split.texts.items()
    }


def _words_of_parts(
    ridge: LexicalRidge, split: LabelledSplit, rows_of_parts: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return r (M, H) of each part; of documents that words were fitted on, by words fitted without them."""
    left_out, parts = ridge.leave_one_out(), {}
    for part, rows in rows_of_parts.items():
        parts[part] = words_of_texts(ridge.words, split.texts[part])
        parts[part][rows >= 0] = left_out[rows[rows >= 0]]
    return parts


@torch.no_grad()
def words_of_texts(words: Words, texts: Sequence[str]) -> np.ndarray:
    """Return r of texts, (M, H)."""
    parts = []
    for start in range(0, len(texts), CHUNK_TEXTS):
        chunk = [text.encode("utf-8", "replace").decode() for text in texts[start : start + CHUNK_TEXTS]]
        parts.append(words(**words.preprocess(chunk)).numpy())
    return np.concatenate(parts)


def _features(variant: Variant, part: str, directions: dict[str, np.ndarray]) -> np.ndarray:
    if variant.kind == "static":
        return directions[part]
    vectors = variant.side.probe[part]
    if variant.weight is None:
        return vectors
    return add_words(torch.from_numpy(vectors), torch.from_numpy(directions[part]), variant.weight).numpy()


def best(variants: Sequence[Variant], candidates: Sequence[Candidate]) -> Variant:
    """Choose by the accuracy on validation documents: with 5 labels a class, then with all labels, then the first."""
    scores = [(candidate.validation["5shot_accuracy"], candidate.validation["accuracy"]) for candidate in candidates]
    return variants[scores.index(max(scores))]
