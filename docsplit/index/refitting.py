"""Words of documents that are fitted anew as an index grows, on the index's own documents.

An encoder with words brings words that were fitted once, on documents of then. When an addition leaves an index with a
tenth more documents than when its words came into use, they are fitted on all of its texts, and all vectors are made
again: from the encoder's plain vectors, which the segments keep. Everything is written beside what is there; the
manifest, which is replaced after that, makes it the index.

    D/words-K/    words that were fitted on the index; without it, the words are those that the encoder brings
"""

import dataclasses
import logging
import uuid
from pathlib import Path

import numpy as np

from docsplit.data.passages import to_passages
from docsplit.embedding import lexical_ridge
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.lexical_ridge import LexicalRidge, RidgeSettings
from docsplit.embedding.loading import weight_of_words, words_of
from docsplit.index.arguments import Refit
from docsplit.index.manifest import Manifest, SegmentEntry, WordsEntry
from docsplit.index.segments import Segment, open_segment, renew_segment, seal_segment, segment_folder
from docsplit.index.vectors import Vectors, texts_to_embed
from docsplit.modeling.encoder_with_words import Words
from docsplit.runtime.files import flush_folder, seal_folder

logger = logging.getLogger(__name__)


def refit_if_due(directory: Path, manifest: Manifest, encoder: Encoder | None, refit: Refit = "auto") -> Manifest:
    """Fit the words of an index anew if it has grown by a tenth, and write all vectors with them.

    Args:
        manifest: of all documents, perhaps not written yet.
        encoder: of the index, with words; None: it adds none.
        refit: `always` asks not whether the index has grown; `never` fits nothing.

    Returns: the manifest to write; the given one if nothing was fitted.

    Raises:
        ValueError: for `always`, if words cannot be fitted; `auto` says so, and keeps those in use.
    """
    if encoder is None or manifest.words is None:
        return manifest
    before, documents = manifest.words.documents, sum(entry.documents for entry in manifest.segments)
    has_grown = 10 * documents >= 11 * before
    growth = f"the index has grown from {before:,} to {documents:,} documents"
    if refit == "never" or (refit == "auto" and not has_grown):
        if has_grown:
            logger.info(f"The words stay as they are, though {growth} (--refit never).")
        return manifest
    reason = growth if has_grown else "--refit always says so"
    logger.info(f"Words are fitted anew on {documents:,} documents: {reason}.")
    segments = [open_segment(directory, entry) for entry in manifest.segments]
    for segment in segments:
        segment.verify()
    try:
        ridge = _fit(encoder, segments)
    except ValueError as error:
        if refit == "always":
            raise
        logger.warning(f"The words stay as they are: {error}")
        return manifest
    folder = directory / f"words-{uuid.uuid4().hex[:8]}"
    _save(ridge.words, folder)
    encoder = encoder.with_words(ridge.words)
    entries = [
        _renew(directory, entry, segment, encoder, manifest.passage_words)
        for entry, segment in zip(manifest.segments, segments)
    ]
    logger.info(f"All {documents:,} documents have vectors with the new words.")
    if (weight := weight_of_words(encoder.model)) != ridge.facts.weight:
        logger.info(
            f"The words keep the encoder's weight, {weight:g}; by this fit it would be {ridge.facts.weight:g}."
        )
    return dataclasses.replace(manifest, segments=entries, words=WordsEntry(folder.name, documents), approximate=None)


def _fit(encoder: Encoder, segments: list[Segment]) -> LexicalRidge:
    """Fit words as those of the encoder were, on all documents of some segments, whose texts are in memory meanwhile.

    Raises:
        ValueError: as `docsplit.embedding.lexical_ridge.fit`, if there are too few, for example.
    """
    if not segments:
        raise ValueError("The index has no documents: there is nothing to fit words on.")
    texts = [segment.texts[row] for segment in segments for row in np.flatnonzero(segment.alive)]
    plain = np.concatenate([segment.plain_vectors().documents[segment.alive] for segment in segments])
    before = words_of(encoder.model)
    assert before is not None
    settings = RidgeSettings(neighbours=before.neighbours, sublinear=before.sublinear)
    return lexical_ridge.fit(encoder.model, texts, plain, settings)


def _save(words: Words, folder: Path) -> None:
    """Write words into a new folder.

    Raises:
        OSError: if they cannot be written; the libraries that write them have errors of their own.
    """
    folder.mkdir()
    try:
        words.save(folder)
        seal_folder(folder)
        flush_folder(folder)
    except Exception as error:
        raise OSError(f"The words cannot be written to {folder}: {error}") from error


def _renew(
    directory: Path, entry: SegmentEntry, segment: Segment, encoder: Encoder, passage_words: int
) -> SegmentEntry:
    """Write a segment again with the words of an encoder, the rest of it shared."""
    texts = list(segment.texts)
    passages = [[passage.text for passage in to_passages(text, passage_words)] for text in texts]
    counts = list(map(len, passages))
    embedded = encoder.add_words(texts_to_embed(texts, passages), segment.plain_vectors().together(counts))
    folder = segment_folder(directory, uuid.uuid4().hex)
    folder.mkdir()
    renew_segment(folder, segment, entry.deleted, Vectors.of(embedded, counts))
    seal_segment(folder)
    return dataclasses.replace(entry, name=folder.name)
