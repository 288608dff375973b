"""Text to passages of about a hundred words, the rows of a graph document model, and to sentences by rules.

A passage is a run of sentences of one section. It is closed at the end of the sentence that is nearest to `words`
words (white-space tokens, and characters of scripts that put no spaces between words), so that passages are alike in
length; the price is that short sections make short ones. A sentence that is longer than a passage may be is cut at
line breaks, else at white space, else between characters: transcripts, logs and some scripts have no full stops.

Sentences are found by rules: a regular expression proposes boundaries, lists of English abbreviations veto some. They
know nothing about grammar: after an abbreviation that may also end a sentence (`Inc.`, `U.S.`, an initial) they split
only before a frequent first word such as `The`, and never before a lower-case letter unless the paragraph has no
capital at all.

A checkpoint carries this file, so it imports the standard library alone. Everything takes linear time on every input:
bulk corpora contain megabytes of dots, digits and base64.
"""

import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

# Between sections, where they are known: ASCII's group separator, which `clean_text` takes for white space.
SECTION_BREAK = "\x1d"
LONGEST_PASSAGE = 1.5  # of the wanted number of words; a sentence that would lead beyond it begins a new passage
SHORTEST_PASSAGE = 0.2  # a shorter passage is joined to its neighbour in the section
STUB = 0.1  # of the wanted number of words; a section with fewer is joined to the next one
LONGEST_HEADING = 100  # characters
LONGEST_SENTENCE = 200  # words; what is longer is hardly one: a transcript, a log, a table
LONGEST_WORD = 12  # characters; base64 and scripts that are not in UNSPACED have longer ones
_ANCHOR = re.compile(r"[ \t]*\.\. _[^\n]*:[ \t]*")  # a name that links lead to, in reStructuredText
_HEADING_MARK = re.compile(r"#{1,6}[ \t]+")
# Control characters but \t, \n and \r, and lone surrogates. One character class, which is what `re` searches fastest.
_UNCLEAN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
HAN_AND_KANA = r"\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# Scripts that put no spaces between words: these, and Thai, Lao, Tibetan, Burmese and Khmer, without digits and stops.
UNSPACED = (
    HAN_AND_KANA + r"\uff66-\uff9f\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecd\u0edc-\u0edf\u0f00\u0f40-\u0fbc"
    r"\u1000-\u103f\u104c-\u108f\u1780-\u17d3"
)
_UNSPACED = re.compile(f"[{UNSPACED}]")
_LINES, _TOKENS = re.compile(r"[^\n]+"), re.compile(r"\S+")
_PARAGRAPH_BREAK = re.compile(r"\n\s*\n")
# A line break ends a sentence only where the layout says so. Each alternative stays within its line.
_LINE_UNIT_BREAK = re.compile(
    r"""\n (?:
        (?= [ \t]* (?:
            (?: [-*•‣–] | \d{1,3}[.)] | \(\w{1,3}\) | [a-z]\) | >>> | \.\. ) [ \t]  # list item, `.. note::`
          | [*]{0,2} [^\W\d][\w.-]* (?:,[ ][\w*]+)* (?:[ ]+\([^\n]*\))? [ ]? : (?!\S)  # `x : int`, `x (int): ..`
          | :[a-z][^:\n]*:[ ]  # `:param x: ..`
        ) )
      | (?<= --- \n | === \n | ~~~ \n | \^\^\^ \n )  # after an underlined heading
    )""",
    re.VERBOSE,
)
# Full stops with the quotes and brackets they close, then white space and anything but more punctuation (`:func:` is
# none); some stops need no white space. The look-behind starts each run of stops only once: a run that was tried again
# from each of its characters would take quadratic time. All stops come first, in one class: `re` looks for a class in
# less than half the time that it needs for two alternatives.
_STOPS = ".!?…؟۔।॥։"
_UNSPACED_STOPS = "。！？｡።፧፨။។៕།༎"  # Chinese and Japanese, Ethiopic, Burmese, Khmer, Tibetan
_STOP = re.compile(
    rf"""[{_STOPS}{_UNSPACED_STOPS}] (?:
        (?<= [{_STOPS}] ) (?<! [{_STOPS}]{{2}} ) [{_STOPS}]* ["'”’»)\]}}*_`]* \s+ (?= [^\s.,;:!?…)\]}}] | :[a-z]{{3}} )
      | (?<= [{_UNSPACED_STOPS}] ) (?: [ ]? [{_UNSPACED_STOPS}] )* [」』”’»）】"']* )""",
    re.VERBOSE,
)
_OPENING = "\"'“‘«„(<[{*_`¿¡"


def _words(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Words before a full stop, in any case. The words of the first set introduce what follows and never end a
# sentence; those of the second are abbreviations only before a number (`No. 5`, `Jan. 3`); those of the third end a
# sentence now and then, as do initials and `U.S.`: only if a frequent first word comes next.
_NEVER_LAST = _words(
    "mr mrs ms messrs dr drs prof rev fr hon gen col maj capt cpt cmdr lt sgt cpl pvt adm gov sen rep pres supt "
    "mme mlle vs v cf e.g eg i.e ie viz approx ca fig figs eq eqs tab ref refs thm def resp"
)
_BEFORE_NUMBER = _words("no nos pp p art arts ex op etc jan feb mar apr jun jul aug sep sept oct nov dec b c d fl n")
_SELDOM_LAST = _words(
    "inc ltd co cos corp bros jr sr esq st mt ft ave blvd rd dept univ inst assn assoc bldg ph ph.d al est ed eds rev "
    "trans cit ibid esp incl max min avg vol vols ch chap sec secs para paras pt"
)
_INITIALS = re.compile(r"[^\W\d_a-z]|[^\W\d_](?:[.-]+[^\W\d_])+")  # `J`, `J.-P`, `U.S`, `a.m`
_ENUMERATOR = re.compile(r"\d{1,3}(?:\.\d{1,3})*|[^\W\d_]|[IVXLivxl]{1,5}")  # `12`, `2.1`, `a`, `iv`
_WORD = re.compile(r"[^\W\d_]+(?![\w.])")
_FIRST_WORDS = _words(
    "the a an this that these those there then it its he his she her they their we our i you my in on at by for from "
    "with to as after before during since until when while where what who why how if but and or so yet because "
    "although though however moreover furthermore therefore thus also some many most all each both other one two not"
)


def clean_text(text: str) -> str:
    """Replace what tokenizers choke on (control characters, lone surrogates) by spaces, and CRLF by LF; write NFC."""
    text = _UNCLEAN.sub(" ", text.replace("\r\n", "\n"))
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def split_by_rules(paragraph: str) -> list[str]:
    """Cut a paragraph where its lines begin something new, and these pieces where a full stop ends a sentence."""
    sentences = []
    for piece in _LINE_UNIT_BREAK.split(paragraph):
        has_capitals = not piece.islower()
        start = 0
        for match in _STOP.finditer(piece):
            stop, end = match.span()
            before = piece[start if stop - start < 12 else stop - 12 : stop]
            if _ends_sentence(before, piece[stop : stop + 2], piece[end : end + 20], has_capitals):
                sentences.append(piece[start:end])
                start = end
        sentences.append(piece[start:])
    return sentences


@lru_cache(maxsize=1024)  # a text with millions of full stops is a repetitive one
def _ends_sentence(before: str, stop: str, after: str, has_capitals: bool) -> bool:
    """Whether a full stop ends a sentence, given up to 12 characters of the sentence before it and 20 after it."""
    line = before.rpartition("\n")[2].rstrip()
    if (stop == ".." and not line) or line.endswith(("(", "[", "“")):  # `... x = 1`, `.. note::`; `word (!)`, `[...]`
        return False
    after = after.lstrip(_OPENING)
    if has_capitals and after[:1].islower() and stop[0] not in _UNSPACED_STOPS:
        return False
    words = before.split()
    if stop[0] != "." or stop == ".." or not words:
        return True
    word = words[-1].lstrip(_OPENING)
    key = word.lower()
    if key in _NEVER_LAST or (len(words) == 1 and _ENUMERATOR.fullmatch(word)):
        return False
    if key in _SELDOM_LAST or _INITIALS.fullmatch(word):
        first_word = _WORD.match(after)
        return first_word is not None and first_word[0].lower() in _FIRST_WORDS
    return key not in _BEFORE_NUMBER or after[:1].isupper()


def split_sentences(text: str, split_paragraph: Callable[[str], list[str]] = split_by_rules) -> list[str]:
    """Cut a clean text into sentences, at blank lines, then by `split_paragraph`; `cut_long` cuts what is too long.

    Sentences are stripped and not empty, and keep their inner line breaks; nothing but white space is lost.
    """
    paragraphs = _PARAGRAPH_BREAK.split(text)
    sentences: list[str] = []
    for paragraph in paragraphs:
        for sentence in split_paragraph(paragraph.strip()):
            sentence = sentence.strip()
            if _is_longer(sentence, LONGEST_SENTENCE):
                sentences += cut_long(sentence, 100)
            elif sentence:
                sentences.append(sentence)
    return sentences


def cut_long(text: str, words: int) -> list[str]:
    """Cut what is longer than a passage of `words` words may be into pieces of about that length.

    It is cut at line breaks; what is still too long, a long line, at white space; a long word between its characters,
    which keep their combining marks. Pieces are stripped and not empty.
    """
    pieces, most = [text], LONGEST_PASSAGE * words
    if _is_longer(text, most):
        for cut in (partial(_cut_between, _LINES), partial(_cut_between, _TOKENS), _cut_word):
            cut_pieces = (cut(piece, words) if _is_longer(piece, most) else [piece] for piece in pieces)
            pieces = [part for parts in cut_pieces for part in parts]
    return pieces


def _is_longer(text: str, words: float) -> bool:
    """Whether a text has more words than this; most sentences are so short that none need be counted.

    A word takes two bytes: a character and a space, or a character of a script without spaces, which has three.
    """
    return len(text.encode(errors="replace")) > 2 * words and count_words(text) > words


def _cut_between(atoms: re.Pattern[str], text: str, words: int) -> list[str]:
    """Cut between lines or tokens where passages of sentences as long as these would end."""
    spans = [match.span() for match in atoms.finditer(text)]
    pieces, first = [], 0
    for size in passage_sizes([count_words(text[start:end]) for start, end in spans], words):
        pieces.append(text[spans[first][0] : spans[first + size - 1][1]].strip())
        first += size
    return list(filter(None, pieces))


def _cut_word(text: str, words: int) -> list[str]:
    """Cut into equal pieces: none is so short that a passage would hold two of them."""
    count, ends = math.ceil(count_words(text) / words), [0]
    for number in range(1, count):
        end = max(ends[-1], len(text) * number // count)
        while end < len(text) and _is_attached(text[end - 1], text[end]):
            end += 1
        ends.append(end)
    pieces = (text[start:end].strip() for start, end in itertools.pairwise([*ends, len(text)]))
    return list(filter(None, pieces))


def _is_attached(before: str, character: str) -> bool:
    """Whether a character is written as one with that before it: a mark, a vowel (Thai, Lao), or after a virama."""
    return (
        unicodedata.category(character)[0] == "M"
        or character in "\u200d\u0e33\u0eb3"
        or before == "\u200d"
        or unicodedata.combining(before) == 9
    )


class Passage(NamedTuple):
    """A stretch of a text, and the number of the section that it is in, from 0."""

    text: str
    section: int


def to_passages(text: str, words: int = 100, split: Callable[[str], list[str]] = split_sentences) -> list[Passage]:
    """Cut a text into passages of about `words` words; see `segment`.

    A passage is its sentences, joined by spaces. An empty text has none.
    """
    return [
        Passage(" ".join(sentences), number)
        for number, section in enumerate(segment(text, words, split))
        for sentences in section
    ]


def segment(text: str, words: int, split: Callable[[str], list[str]]) -> list[list[list[str]]]:
    """Cut a text into sections, these into passages, and these into sentences.

    The graph document model (section 3.1 there) has passages of about 100 words; how a text is cut is decided here. A
    section that is hardly a text (an anchor, a heading alone, a few words) begins the next one, or ends the last one.

    Args:
        text: need not be clean. Its sections begin as in `split_sections`.
        words: wanted in a passage, as `count_words` counts them; see `passage_sizes`.
        split: gives the sentences of a clean text; `cut_long` cuts those that are longer than a passage may be.

    Raises:
        ValueError: if `words` is below 1.
    """
    if words < 1:
        raise ValueError(f"{words} words make no passage: expected 1 or more.")
    units: list[list[str]] = []  # sentences of each section
    joins = False  # whether the last section is a stub
    for section in split_sections(text):
        if sentences := [piece for sentence in split(section) for piece in cut_long(sentence, words)]:
            if joins:
                units[-1] += sentences
            else:
                units.append(sentences)
            joins = _is_stub(section, words)
    if joins and len(units) > 1:
        units[-2:] = [units[-2] + units[-1]]
    sections = []
    for sentences in units:
        ends, passages = 0, []
        for size in passage_sizes([count_words(sentence) for sentence in sentences], words):
            passages.append(sentences[ends : ends + size])
            ends += size
        if passages:
            sections.append(passages)
    return sections


def _is_stub(section: str, words: int) -> bool:
    """Whether a section has but a heading, or fewer words than a passage may have alone; anchors do not count."""
    lines = [line for line in section.split("\n") if line.strip() and not _ANCHOR.fullmatch(line)]
    height = heading_at(lines, 0) if lines else 0
    return len(lines) == height or (len(section) < 200 * words and count_words("\n".join(lines)) < STUB * words)


def count_words(text: str) -> int:
    """White-space tokens, and characters of scripts without spaces: an encoder reads either as one token or a few.

    A text of overlong words, such as base64, has more: one every `LONGEST_WORD` characters.
    """
    count = len(text.split()) + (0 if text.isascii() else len(_UNSPACED.findall(text)))
    return max(count, len(text) // LONGEST_WORD)


def passage_sizes(num_words: Sequence[int], words: int) -> list[int]:
    """Count the sentences of each passage of a section, given the words of each sentence.

    A passage ends at the boundary nearest to `words` (of two equally near ones the later), and before a sentence that
    would take it past `LONGEST_PASSAGE`; but none is shorter than `SHORTEST_PASSAGE` unless the section is: a heading
    stays with a long sentence after it, and a short remnant joins the passage before it.
    """
    sizes: list[int] = []
    size, total = 0, 0  # of the open passage: sentences, words
    for more in num_words:
        too_long = total + more > LONGEST_PASSAGE * words
        is_nearest = total + more > words and words - total < total + more - words
        if total >= SHORTEST_PASSAGE * words and (too_long or is_nearest):
            sizes.append(size)
            size, total = 0, 0
        size, total = size + 1, total + more
    if sizes and total < SHORTEST_PASSAGE * words:
        sizes[-1] += size
    elif size:
        sizes.append(size)
    return sizes


def split_sections(text: str) -> list[str]:
    """Cut a text where a section begins, and clean it.

    That is after each `SECTION_BREAK` and before each heading: `## Title`, or a title underlined with `---` or `===`
    of its length, at the beginning of a line and after an empty one. What may be a comment in code, or the ruler of
    a table, is no heading. Headings that follow one another without a text between them begin one section.
    """
    sections = []
    for part in text.split(SECTION_BREAK):
        lines = clean_text(part).split("\n")
        starts = [0, *_section_starts(lines), len(lines)]
        sections += ["\n".join(lines[start:end]) for start, end in itertools.pairwise(starts)]
    return sections


def _section_starts(lines: list[str]) -> list[int]:
    """Find the numbers of the lines that begin a section, without the first section."""
    starts, number = [], 0
    has_text, is_code, may_begin = False, False, True  # since the last start; within ```; after an empty line
    while number < len(lines):
        line = lines[number]
        if not line or line.isspace():
            may_begin, number = True, number + 1
        elif may_begin and not is_code and (height := heading_at(lines, number)):
            starts += [number] if has_text else []
            has_text, number = False, number + height
        else:
            is_code ^= line.startswith("```")
            has_text, may_begin, number = True, False, number + 1
    return starts


def heading_at(lines: list[str], number: int) -> int:
    """Count the lines of the heading that begins at this one, after an empty one; 0: none does."""
    line, following = lines[number], lines[number + 1 : number + 3]
    if mark := _HEADING_MARK.match(line):
        title = line[mark.end() :].rstrip()
        # Below a `# Load it` that is a comment stands the code that it is about.
        stands_alone = line.startswith("##") or not following or not following[0].strip()
        is_comment = title[:1].islower() or title.endswith((".", ",", ";"))
        return int(stands_alone and not is_comment and _is_title(title))
    if len(following) == 2 and _is_ruler(line) and _underlines(following[1], following[0]):
        return 3
    return 2 if following and _underlines(following[0], line) else 0


def _underlines(ruler: str, title: str) -> bool:
    ruler, title = ruler.rstrip(), title.rstrip()
    return _is_ruler(ruler) and abs(len(ruler) - len(title)) <= 2 and _is_title(title)


def _is_ruler(line: str) -> bool:
    line = line.rstrip()
    return line[:3] in ("---", "===") and line == line[0] * len(line)


def _is_title(line: str) -> bool:
    return (
        len(line) <= LONGEST_HEADING
        and not line[:1].isspace()
        and "|" not in line
        and any(character.isalpha() for character in line)
    )
