"""Cut text into words: one way for BM25, TF-IDF, names of groups, near copies, an index and the page's script.

A word is two or more letters, digits and marks, or one digit, or one Hangul syllable. Han and kana stand alone. Thai,
Lao, Tibetan, Burmese and Khmer put no spaces between words either: each two neighbouring letters with their marks
stand for one, as in Lucene's CJKAnalyzer, and so does a letter that has marks. No dictionary is needed for that.

BM25 counts more of a text (`Stems`): identifiers, U.S.A., AT&T, C++, Wi-Fi, 5mg and 1,250,000 are counted whole and in
parts, so that whoever asks for usa, wifi, 5 mg or 1250000 finds them.
"""

import logging
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import Any

import regex
import Stemmer
from tqdm.auto import tqdm

from docsplit.data.passages import HAN_AND_KANA, UNSPACED

logger = logging.getLogger(__name__)

CUT = 4  # how words are cut, which an index and a classifier record: raise it with each change
# The page's script compiles these patterns, too.
# Left out is what nobody sees (soft hyphens, spaces without width), and what few write: Hebrew points, Arabic harakat
# and tatweel, Syriac vowels, the stress of Cyrillic words, and the signs that Armenian puts on a vowel for a question
# or a call. A U+200C stays after an Arabic letter: it parts a Persian word from its ending.
HIDDEN = regex.compile(
    r"[\p{DI}\u0300\u0301\u0307\u055b\u055c\u055e\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640"
    r"\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0730-\u074a]"
    r"(?<![\u0600-\u06ff]\u200c|[^i]\u0307|[^\u0400-\u052f][\u0300\u0301])"
)
# Fractions, and the signs of numbers and trade marks, which NFKC would join to the number or word before them.
APART = re.compile(r"[\u00bc-\u00be\u2116\u2120\u2122\u2150-\u215f]")
# Letters that few tell apart: those of Persian and Urdu keyboards and of Arabic ones, ligatures, apostrophes.
LETTERS = {
    **{"\u06a9": "\u0643", "\u06cc": "\u064a", "\u06c0": "\u0647", "\u06c1": "\u0647", "\u06c2": "\u0647"},
    **{"\u0153": "oe", "\u0152": "oe", "\u00e6": "ae", "\u00c6": "ae"},
    **{"\u02bc": "'", "\u2019": "'", "\u05f3": "'"},
}
DIGIT = regex.compile(r"(?![0-9])\p{Nd}")  # of another script than 0-9; each has its ten in a row
_PAIRED = UNSPACED.removeprefix(HAN_AND_KANA)
_MARKS = r"\p{Mn}\p{Mc}\u055b\u055c\u055e"  # and the signs of Armenian, which stand within a word
_HOLDING = (
    r"\u0400-\u052f\u05d0-\u05ea"  # letters of Cyrillic and Hebrew: an apostrophe between two is one of their word
)
_APOSTROPHE = rf"(?<=[{_HOLDING}])['\u2019\u02bc\u05f3](?=[{_HOLDING}])"
_START, _REST = rf"(?![{UNSPACED}])[\p{{L}}\p{{N}}_]", rf"(?![{UNSPACED}\u200c])[\p{{L}}\p{{N}}{_MARKS}\p{{DI}}_]"
RUNS = regex.compile(
    rf"[{HAN_AND_KANA}][{_MARKS}\p{{DI}}]*|[{_PAIRED}][{_PAIRED}{_MARKS}\p{{DI}}]*|{_START}(?:{_REST}|{_APOSTROPHE})+"
    r"|[\p{Nd}\uac00-\ud7a3]"
)
LETTER = regex.compile(rf"[{_PAIRED}][{_MARKS}]*")
_UNITS = regex.compile(rf"[{UNSPACED}][{_MARKS}]*|{_START}(?:{_REST})*")
# All but Latin, Greek, Cyrillic, Armenian and Hangul letters, punctuation and symbols: in a text without these nothing
# is hidden and no letter has marks, and `re` cuts it in a third of the time.
_INTRICATE = re.compile(
    r"[^\0-\xac\xae-\u02ff\u0370-\u0482\u048a-\u055a\u055d\u055f-\u058f\u1e00-\u1fff\u2010-\u2027\u2030-\u205e"
    r"\u20a0-\u20cf\u2100-\u2c7f\uac00-\ud7a3]"
)
_ASCII = bytes(range(128))
_OTHER_LETTERS, _HOLDS = re.compile(f"[{''.join(LETTERS)}]"), re.compile(_APOSTROPHE)
_PLAIN_RUNS, _PLAIN_UNITS = re.compile(r"\w{2,}|[\d\uac00-\ud7a3]"), re.compile(r"\w+")
# Between the words of an identifier: get_user_by_id, parseHTMLResponse. The plural in PCRs begins no word.
BORDERS = re.compile(r"_+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")


# --- What is counted whole beside its parts ---


class Compounds:
    """Finds U.S.A., AT&T, I/O, C++, C#, Wi-Fi and 1,250,000 in a text, but not dog's, and/or, and 192.168.100.200.

    Few words have such a sign: it is looked for first, and then what it joins.

    Args:
        engine: `re`, or `regex` for letters with marks.
        letter, part: patterns of a letter, and of what a word has, a digit too.
    """

    def __init__(self, engine: Any, letter: str, part: str):
        dash = r"[-\u2010\u2011]"
        address = r"[0-9]{1,3}(?:\.(?:1[0-9]{2}|2[0-4][0-9]|25[0-5])){3}(?!\.?[0-9])"  # of a machine
        numbers = "|".join(  # 1,250,000
            rf"(?<![0-9]{sign})(?<![0-9]){but}[0-9]{{1,3}}(?:{sign}[0-9]{{3}}){{2,}}(?!{sign}?[0-9])"
            for sign, but in ((",", ""), ("'", ""), (" ", ""), (r"\.", f"(?!{address})"))
        )
        joined = "|".join(
            [
                rf"(?<![.]|{part}){letter}(?:\.{letter})+(?!{part})\.?",  # U.S.A.
                rf"(?<![&/]|{part})(?:{letter}[&/]{part}+|{part}+[&/]{letter})(?![&/]|{part})",  # AT&T, I/O
                rf"(?<!{part}){letter}{part}*(?:\+\+(?!\+)|#(?!#|{part}))",  # C++, C#
                # Wi-Fi, COVID-19: few write two long words as one, and these are found by their parts
                rf"(?<!{dash}|{part})(?:{letter}{{1,3}}{dash}{part}+|{letter}+{dash}{part}{{1,3}})(?!{dash}|{part})",
            ]
        )
        self.joined, self.numbers = engine.compile(joined), engine.compile(numbers)
        self.sign = engine.compile(
            rf"[-\u2010\u2011&/+#.](?:(?<={part}[-\u2010\u2011&/])(?={part})|(?<={part}[+])(?=\+)"
            rf"|(?<={part}#)(?!{part})|(?<={letter}[.])(?<!{part}{part}[.])(?={letter}(?!{part})))"
        )
        self.part_before = engine.compile(rf"{part}+\Z")
        self.digit = engine.compile(r"[0-9](?<![0-9]{2})(?=[0-9]{0,2}[,.' ][0-9]{3}[,.' ][0-9]{3})")

    def of(self, text: str) -> Iterator[str]:
        """Yield the compounds of a text of `normal`: those with letters in their order, then numbers."""
        end = 0
        for sign in self.sign.finditer(text):
            before = self.part_before.search(text, max(end, sign.start() - LONGEST_PART), sign.start())
            if before and (found := self.joined.match(text, before.start())):
                end = found.end()
                yield found[0]
        for digit in self.digit.finditer(text):
            if found := self.numbers.match(text, digit.start()):
                yield found[0]


LONGEST_PART = 60  # characters of a compound before its first sign
COMPOUNDS = Compounds(  # no letters of scripts without spaces, which may stand beside them
    regex, *(rf"(?:(?![{UNSPACED}])[{letters}])" for letters in (r"\p{L}\p{M}", r"\p{L}\p{M}\p{N}_"))
)
PLAIN_COMPOUNDS = Compounds(re, r"[^\W\d_]", r"\w")
PIECES = regex.compile("|".join(pattern.pattern for pattern in (COMPOUNDS.joined, COMPOUNDS.numbers, RUNS)))
JOINTS = re.compile("[-\u2010\u2011./,' ]")  # of a compound, which is counted without them
NUMBERED = regex.compile(r"([0-9]+)(\p{L}{1,4})|(\p{L}{2,})([0-9]+)")  # 5mg, Python3: the parts are words, too
ENGLISH, TURKISH, WORDS = "english", "turkish", "none"
LANGUAGES = (WORDS, *Stemmer.algorithms())


def normal(text: str) -> tuple[str, bool]:
    """Write a text as its words are counted: NFKC, with the digits 0-9, and without what is `HIDDEN`.

    Returns: the text, and whether `re` cuts it as `regex` does.
    """
    if text.isascii():
        return text, True
    text = text.replace("\xa0", " ")  # of most texts all that NFKC would change
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", APART.sub(" ", text))
    # Bytes lose their ASCII in a quarter of the time that `re` takes to pass over it
    others = text.encode(errors="surrogatepass").translate(None, _ASCII).decode(errors="surrogatepass")
    if _OTHER_LETTERS.search(others):
        for letter, usual in LETTERS.items():
            text = text.replace(letter, usual)
    if not _INTRICATE.search(others) and not ("'" in text and _HOLDS.search(text)):
        return text, True
    # Twice, for an accent may have stood behind what is left out
    text = unicodedata.normalize("NFKC", HIDDEN.sub("", text))
    return DIGIT.sub(lambda digit: str(unicodedata.digit(digit[0])), text), False


def runs_of(text: str) -> list[str]:
    """Cut a text into its words, in the letters that it has."""
    return _cut(*normal(text))


def whole_words(text: str) -> list[str]:
    """Cut a text into its words, in small letters."""
    text, is_plain = normal(text)
    return _cut(small(text), is_plain)


def units_of(text: str) -> list[str]:
    """Cut a text into what near copies share runs of: words, and single letters of scripts without spaces.

    All words count, of one letter as well. A text without words has its signs.
    """
    text, is_plain = normal(text)
    units = (_PLAIN_UNITS if is_plain else _UNITS).findall(small(text))
    return units or text.encode(errors="replace").decode().split()


def small(text: str) -> str:
    """Write a text in small letters, an İ as an i: the dot of its own small letter is a mark."""
    return text.replace("İ", "i").lower()


def _cut(text: str, is_plain: bool) -> list[str]:
    if is_plain:
        return _PLAIN_RUNS.findall(text)
    return [word for run in RUNS.findall(text) for word in (_pairs(run) if LETTER.match(run) else (run,))]


def _pairs(run: str) -> list[str]:
    letters = LETTER.findall(run)
    return [*map("".join, pairwise(letters)), *(letter for letter in letters if len(letter) > 1)]


@cache
def stop_words() -> dict[str, frozenset[str]]:
    """Return the stop-words of each language that bm25s has them for; whole words leave out English ones."""
    from bm25s import stopwords  # --help needs none of what it imports

    known = {language: getattr(stopwords, f"STOPWORDS_{language.upper()}", ()) for language in LANGUAGES}
    known |= dict.fromkeys((ENGLISH, "porter", WORDS), stopwords.STOPWORDS_EN)
    return {language: frozenset(normal(word)[0] for word in words) for language, words in known.items() if words}


class Stems(dict[str, tuple[str, ...]]):
    """What BM25 counts of a word of `runs_of`: its stem, and the stems of its parts where it has any.

    `get_user_by_id`, `parseHTMLResponse` and `5mg` are counted whole and in parts. Stop-words of the language are left
    out.

    Args:
        language: one of Snowball's (https://snowballstem.org); `none`: whole words, without English stop-words.
    """

    def __init__(self, language: str = ENGLISH):
        super().__init__()
        self.stop_words = stop_words().get(language, frozenset())
        self.stem = str if language == WORDS else Stemmer.Stemmer(language).stemWord
        self.is_turkish = language == TURKISH

    def __missing__(self, run: str) -> tuple[str, ...]:
        self[run] = stems = tuple(map(self.stem, self.words_of(run)))
        return stems

    def words_of(self, run: str) -> list[str]:
        """Return a word and, of an identifier, its parts, in small letters and without stop-words."""
        numbered = NUMBERED.fullmatch(run)
        parts = list(filter(None, numbered.groups())) if numbered else BORDERS.split(run)
        if self.is_turkish:  # its small I has no dot
            run, parts = run.replace("I", "ı"), [part.replace("I", "ı") for part in parts]
        count = len(parts) if len(parts) > 1 else 0
        words = [small(run), *(small(part) for part in parts[:count] if len(part) > 1 or part.isdigit())]
        return [word for word in words if word not in self.stop_words]

    def of_runs(self, text: str) -> list[str]:
        """Return the stems of the words of a text, in their order."""
        return list(chain.from_iterable(map(self.__getitem__, runs_of(text))))

    def of(self, text: str) -> list[str]:
        """Return the stems of the words of a text, in their order, and of what is counted whole beside them."""
        text, is_plain = normal(text)
        words = chain.from_iterable(map(self.__getitem__, _cut(text, is_plain)))
        return [*words, *map(self.stem, self._compounds(text, is_plain))]

    def words_in(self, text: str) -> list[str]:
        """Return the words of which `of` returns the stems."""
        text, is_plain = normal(text)
        words = chain.from_iterable(map(self.words_of, _cut(text, is_plain)))
        return [*words, *self._compounds(text, is_plain)]

    def _compounds(self, text: str, is_plain: bool) -> Iterator[str]:
        """Yield what is counted whole of a text of `normal`, in small letters and without what joins its parts."""
        for compound in (PLAIN_COMPOUNDS if is_plain else COMPOUNDS).of(text):
            word = small(JOINTS.sub("", compound.replace("I", "ı") if self.is_turkish else compound))
            if word not in self.stop_words:
                yield word

    def content_words(self, query: str) -> dict[str, str]:
        """Return the distinct words of a query and their stems, without words that say little: how, what, do.

        All are returned if no other is left. BM25 counts the others too; this is for people.
        """
        from bm25s.stopwords import STOPWORDS_EN_PLUS

        words = self.words_in(query)
        content = [word for word in words if word not in STOPWORDS_EN_PLUS]
        return {word: self.stem(word) for word in content or words}


def stem_tokens(texts: Sequence[str], language: str = WORDS, show_progress: bool = False) -> Any:
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
    runs = Counter(word for text in texts[:1000] for word in whole_words(text))
    counts = {name: sum(runs[word] for word in words) for name, words in stop_words().items() if name != WORDS}
    likely = max(counts, key=lambda name: counts[name])
    if counts[likely] > max(2 * counts[language], 0.1 * runs.total()):
        logger.warning(f"Most texts look {likely.title()}, not {language.title()}: give --language {likely}.")


def tfidf_counter(**options: Any) -> Any:
    """Return scikit-learn's TF-IDF, unfitted, of whole words, also stop-words."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(analyzer=whole_words, sublinear_tf=True, **options)
