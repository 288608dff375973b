"""Cut text into words and their stems: one way for BM25 in evaluations, in training for ranking and in an index."""

import logging
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

import Stemmer
from tqdm.auto import tqdm

from docsplit.data.passages import HAN_AND_KANA

logger = logging.getLogger(__name__)

# bm25s's own pattern is \b\w\w+\b, which takes a clause of Chinese or Japanese for one word.
TOKEN_PATTERN = rf"(?u)[{HAN_AND_KANA}]|[^\W{HAN_AND_KANA}]{{2,}}"
RUNS = re.compile(TOKEN_PATTERN)
# Between the words of an identifier: get_user_by_id, parseHTMLResponse. The plural in PCRs begins no word.
BORDERS = re.compile(r"_+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
ENGLISH, WORDS = "english", "none"
NOT_CUT = ("hindi", "nepali", "tamil")  # whose vowel signs are no letters to `RUNS`
LANGUAGES = (WORDS, *(name for name in Stemmer.algorithms() if name not in NOT_CUT))


@cache
def stop_words() -> dict[str, frozenset[str]]:
    """Return the stop-words of each language that bm25s has them for; whole words leave out English ones."""
    from bm25s import stopwords  # --help needs none of what it imports

    known = {language: getattr(stopwords, f"STOPWORDS_{language.upper()}", ()) for language in LANGUAGES}
    known |= dict.fromkeys((ENGLISH, "porter", WORDS), stopwords.STOPWORDS_EN)
    return {language: frozenset(words) for language, words in known.items() if words}


class Stems(dict[str, tuple[str, ...]]):
    """What BM25 counts of a run of letters: its stem, and the stems of its parts where it is an identifier.

    `get_user_by_id` and `parseHTMLResponse` are counted whole and in parts. Stop-words of the language are left out.
    Han and kana stand alone; Thai, Lao, Khmer and Burmese put no spaces between words either, but a run of these stays
    one word.

    Args:
        language: one of Snowball's (https://snowballstem.org); `none`: whole words, without English stop-words.
    """

    def __init__(self, language: str = ENGLISH):
        super().__init__()
        self.stop_words = stop_words().get(language, frozenset())
        self.stem = str if language == WORDS else Stemmer.Stemmer(language).stemWord

    def __missing__(self, run: str) -> tuple[str, ...]:
        self[run] = stems = tuple(map(self.stem, self.words_of(run)))
        return stems

    def words_of(self, run: str) -> list[str]:
        """Return a run of letters and, of an identifier, its parts, in small letters and without stop-words."""
        parts = BORDERS.split(run)
        words = [run.lower(), *(part.lower() for part in parts if len(part) > 1)][: None if len(parts) > 1 else 1]
        return [word for word in words if word not in self.stop_words]

    def of(self, text: str) -> list[str]:
        """Return the stems of a text in their order."""
        return list(chain.from_iterable(map(self.__getitem__, RUNS.findall(composed(text)))))

    def telling(self, query: str) -> dict[str, str]:
        """Return the distinct words of a query and their stems, without words that say little: how, what, do.

        All are returned if no other is left. BM25 counts the others too; this is for people.
        """
        from bm25s.stopwords import STOPWORDS_EN_PLUS

        words = [word for run in RUNS.findall(composed(query)) for word in self.words_of(run)]
        telling = [word for word in words if word not in STOPWORDS_EN_PLUS]
        return {word: self.stem(word) for word in telling or words}


def composed(text: str) -> str:
    """Write an accent and its letter as one character (NFC), as documents are read."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def tokenize(texts: Sequence[str], language: str = WORDS, show_progress: bool = False) -> Any:
    """Cut texts into stems (`Stems`): bm25s's `Tokenized`, their numbers in each text and the vocabulary."""
    from bm25s.tokenization import Tokenized

    stems, numbers = Stems(language), []
    vocabulary = defaultdict[str, int]()
    vocabulary.default_factory = vocabulary.__len__  # a new stem has the next number
    for text in tqdm(texts, desc="Cutting into words", unit="text", leave=False, disable=not show_progress):
        numbers.append(list(map(vocabulary.__getitem__, stems.of(text))))
    return Tokenized(numbers, dict(vocabulary))


def warn_of_other_language(texts: Sequence[str], language: str) -> None:
    """Log one line if the stop-words of the first texts are mostly those of another language."""
    if language == WORDS or language not in stop_words():
        return
    runs = Counter(run.lower() for text in texts[:1000] for run in RUNS.findall(text))
    counts = {name: sum(runs[word] for word in words) for name, words in stop_words().items() if name != WORDS}
    likely = max(counts, key=lambda name: counts[name])
    if counts[likely] > max(2 * counts[language], 0.1 * runs.total()):
        logger.warning(f"Most texts look {likely.title()}, not {language.title()}: give --language {likely}.")


def tfidf_counter(**options: Any) -> Any:
    """Return scikit-learn's TF-IDF, unfitted, of whole words, also stop-words."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(token_pattern=TOKEN_PATTERN, sublinear_tf=True, **options)
