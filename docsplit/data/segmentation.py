"""Cut text into sentences, the units that views are made of.

Views need units that are mostly right, at a speed that never limits training: the default splitter is the rules of
`docsplit.data.passages`. spaCy pipelines see more than rules and know other languages;
`benchmarks/speed/segmentation.py` compares them. Each splitter takes linear time on every input.
"""

import functools
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from docsplit.data.passages import clean_text, split_by_rules, split_sentences  # noqa: F401 (imported from here)

if TYPE_CHECKING:
    from spacy.language import Language

SentenceSplitter = Callable[[str], list[str]]
DEFAULT_SPLITTER = "rules"
# spaCy's tokenizer takes quadratic time in the length of a word, and refuses or exhausts memory on huge texts, so
# longer words go to the rules and longer paragraphs are cut at white space. Price: a boundary on both sides of such a
# word (base64, a ruler of dashes, Chinese) and one in each 100,000 characters without a blank line. Its vocabulary
# keeps every word it meets (400 MB a million); past the limit it forgets new ones after each text, which is slower.
LONG_WORD = re.compile(r"(?<!\S)(\S{500,})")
_SPACY_TEXT = re.compile(r".{1,100000}(?!\S)", re.DOTALL)


@functools.lru_cache
def load_sentence_splitter(name: str = DEFAULT_SPLITTER) -> SentenceSplitter:
    """Return the function that cuts a text into its sentences.

    Every splitter takes text that went through `clean_text`, cuts at blank lines first, returns stripped, non-empty
    sentences with their inner line breaks, of `LONGEST_SENTENCE` words at most, and loses nothing but white space.

    Args:
        name: "rules", "sentencizer" (spaCy, splits at `.!?`, needs no download) or an installed spaCy pipeline.

    Raises:
        ValueError: if there is no such pipeline, or it does not set sentence boundaries.
    """
    if name == "rules":
        return split_sentences
    return functools.partial(split_sentences, split_paragraph=functools.partial(_split_by_spacy, _load_spacy(name)))


def _split_by_spacy(nlp: "Language", paragraph: str) -> list[str]:
    """Cut a paragraph by a spaCy pipeline, and overlong words in it by the rules."""
    sentences = []
    for index, stretch in enumerate(LONG_WORD.split(paragraph)):
        if index % 2:  # a long word, which the group of the pattern matched
            sentences += split_by_rules(stretch)
            continue
        for text in _SPACY_TEXT.findall(stretch):
            with bounded_vocabulary(nlp):
                sentences += [sentence.text for sentence in nlp(text).sents]
    return sentences


def bounded_vocabulary(nlp: "Language") -> AbstractContextManager[Any]:
    """Return the context of some texts, after which a pipeline that knows a million words forgets new ones."""
    return nlp.memory_zone() if len(nlp.vocab.strings) > 1_000_000 else nullcontext()


def _load_spacy(name: str) -> "Language":
    """Load a spaCy pipeline and switch off all that sentence boundaries do not need."""
    import spacy  # slow to import, and not needed by the default

    if name == "sentencizer":
        nlp = spacy.blank("en")
        nlp.add_pipe("sentencizer")
        return nlp
    try:
        nlp = spacy.load(name)
    except OSError as error:
        raise ValueError(
            f"--sentence_splitter {name!r} is not an installed spaCy pipeline: install it with "
            f"`python -m spacy download {name}`, or choose 'rules' or 'sentencizer', which need no download"
        ) from error
    # The senter is trained for boundaries alone, much faster than the parser, and shipped disabled.
    segmenters = [pipe for pipe in ("senter", "parser", "sentencizer") if pipe in nlp.component_names]
    if not segmenters:
        raise ValueError(f"--sentence_splitter {name!r} has no senter, parser or sentencizer: {nlp.component_names}")
    needed = {"tok2vec", "transformer", segmenters[0]}
    for pipe in nlp.component_names:
        (nlp.enable_pipe if pipe in needed else nlp.disable_pipe)(pipe)
    return nlp
