"""Find the words, lemmas and parts of speech of texts, with any spaCy pipeline that is installed.

Only the components that parts of speech and lemmas need are run: no parser, no named entities. spaCy's tokenizer takes
quadratic time in the length of a word, so words of 500 letters and more are blanked out. It refuses lone
surrogates, which become question marks. Neither moves another character.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from docsplit.data.segmentation import LONG_WORD, bounded_vocabulary

if TYPE_CHECKING:
    from spacy.language import Language

logger = logging.getLogger(__name__)

NEEDED = ("tok2vec", "transformer", "tagger", "morphologizer", "attribute_ruler", "lemmatizer", "trainable_lemmatizer")
LONGEST_TEXT = 50_000_000  # letters, of one document; spaCy's own limit is for parsers, which take more memory
BATCH_TEXTS = 64


@dataclass(frozen=True)
class TaggedText:
    """The words of a text, in order; white space is no word."""

    lemmas: list[str]  # lower-cased; a word without a lemma stands for itself
    parts_of_speech: list[str]  # universal: NOUN, VERB, PROPN ...
    spans: np.ndarray  # (W, 2) where each word begins and ends, in letters
    has_lemmas: bool  # whether some word has one


def load_tagger(name: str) -> "Language":
    """Load a spaCy pipeline by name or folder, and switch off all that parts of speech and lemmas do not need.

    Raises:
        ValueError: naming the remedy, if there is no such pipeline, or if it tags nothing.
    """
    import spacy  # slow to import

    try:
        nlp = spacy.load(name)
    except OSError as error:
        raise ValueError(
            f"--spacy_pipeline {name!r} is not installed, and redundancy and attention need parts of speech: "
            f"`python -m spacy download {name}`, name another pipeline, or leave these two out of --analyses."
        ) from error
    if not {"tagger", "morphologizer", "attribute_ruler"} & set(nlp.pipe_names):
        raise ValueError(
            f"--spacy_pipeline {name!r} has no tagger, morphologizer or attribute_ruler, but {nlp.pipe_names}: give "
            "one that sets parts of speech, en_core_web_sm for example."
        )
    for pipe in nlp.pipe_names:
        if pipe not in NEEDED:
            nlp.disable_pipe(pipe)
    nlp.max_length = LONGEST_TEXT
    return nlp


def describe_tagger(nlp: "Language") -> str:
    """Name a pipeline by its language, name and version."""
    return f"{nlp.meta['lang']}_{nlp.meta['name']} {nlp.meta['version']}"


def tag(nlp: "Language", texts: Sequence[str]) -> Iterator[TaggedText]:
    """Tag each text, in order.

    Raises:
        ValueError: if no word of the first batch gets a part of speech.
    """
    blanked = 0
    for start in range(0, len(texts), BATCH_TEXTS):
        valid = [text.encode("utf-8", "replace").decode() for text in texts[start : start + BATCH_TEXTS]]
        batch = [LONG_WORD.sub(lambda match: " " * len(match[0]), text) for text in valid]
        blanked += sum(cut != text for cut, text in zip(batch, valid))
        with bounded_vocabulary(nlp):
            tagged = [_words_of(doc) for doc in nlp.pipe(batch, batch_size=BATCH_TEXTS)]
        if start == 0 and not any(part for text in tagged for part in text.parts_of_speech):
            raise ValueError(
                f"The spaCy pipeline {describe_tagger(nlp)} gave no word a part of speech: name another one."
            )
        if start == 0 and not any(text.has_lemmas for text in tagged):
            logger.warning(f"{describe_tagger(nlp)} sets no lemmas: words are told apart by their forms.")
        yield from tagged
    if blanked:
        logger.warning(f"Words of 500 letters and more were left out of the tagging, in {blanked:,} documents.")


def _words_of(doc: Any) -> TaggedText:
    words = [token for token in doc if not token.is_space]
    lemmas = [(token.lemma_ or token.text).lower() for token in words]
    spans = np.array([(token.idx, token.idx + len(token)) for token in words], dtype=np.int64).reshape(-1, 2)
    return TaggedText(lemmas, [token.pos_ for token in words], spans, any(token.lemma_ for token in words))
