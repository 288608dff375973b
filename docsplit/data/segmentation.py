"""Text to sentences, the units that views are made of.

Views need units that are mostly right at a speed that never limits training, so the default splitter is rules: a
regular expression proposes boundaries, lists of English abbreviations veto some. It knows nothing about grammar: after
an abbreviation that may also end a sentence (`Inc.`, `U.S.`, an initial) it splits only before a frequent first word
such as `The`, and it never splits before a lower-case letter unless the paragraph has no capital at all. spaCy
pipelines are there for what rules cannot see and for other languages; `benchmarks/segmentation.py` compares them.

Every pattern takes linear time on every input: bulk corpora contain megabytes of dots, digits and base64.
"""

import contextlib
import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spacy.language import Language
SentenceSplitter = Callable[[str], list[str]]
DEFAULT_SPLITTER = "rules"
# Control characters but \t, \n and \r, and lone surrogates. One character class, which is what `re` searches fastest.
_UNCLEAN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
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
# none); CJK stops need no white space. The look-behind starts each run of stops only once: a run that was
# tried again from each of its characters would take quadratic time.
_CJK_STOPS = "。！？｡"
_STOP = re.compile(
    rf"""[.!?…؟۔।] (?<! [.!?…؟۔।]{{2}}) [.!?…؟۔।]* ["'”’»)\]}}*_`]* \s+ (?= [^\s.,;:!?…)\]}}] | :[a-z]{{3}} )
      | [{_CJK_STOPS}]+ [」』”’）】"']*""",
    re.VERBOSE,
)
_OPENING = "\"'“‘«„(<[{*_`¿¡"


def _words(words: str) -> frozenset[str]:
    return frozenset(words.split())


# What stands before a full stop, in any case. The words of the first set introduce what follows and never end a
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
# spaCy's tokenizer takes quadratic time in the length of a word, and refuses or exhausts memory on huge texts, so
# longer words go to the rules and longer paragraphs are cut at white space. Price: a boundary on both sides of such a
# word (base64, a ruler of dashes, Chinese) and one in each 100,000 characters without a blank line. Its vocabulary
# keeps every word it meets (400 MB a million); past the limit it forgets new ones after each text, which is slower.
_SPACY_WORD_LIMIT = 500
_SPACY_TEXT_LIMIT = 100_000
_SPACY_VOCABULARY_LIMIT = 1_000_000
_LONG_WORD = re.compile(rf"(?<!\S)(\S{{{_SPACY_WORD_LIMIT},}})")
_SPACY_TEXT = re.compile(rf".{{1,{_SPACY_TEXT_LIMIT}}}(?!\S)", re.DOTALL)


def clean_text(text: str) -> str:
    """Replaces what tokenizers choke on (control characters, lone surrogates) by spaces, and CRLF by LF."""
    return _UNCLEAN.sub(" ", text.replace("\r\n", "\n"))


@functools.lru_cache
def load_sentence_splitter(name: str = DEFAULT_SPLITTER) -> SentenceSplitter:
    """Returns the function that cuts a text into its sentences.

    Every splitter takes text that went through `clean_text`, cuts at blank lines first, returns stripped, non-empty
    sentences with their inner line breaks, and loses nothing but white space.

    Args:
        name: "rules", "sentencizer" (spaCy, splits at `.!?`, needs no download) or an installed spaCy pipeline.

    Raises:
        ValueError: If there is no such pipeline, or it does not set sentence boundaries.
    """
    split_paragraph = _split_by_rules if name == "rules" else functools.partial(_split_by_spacy, _load_spacy(name))

    def split(text: str) -> list[str]:
        paragraphs = _PARAGRAPH_BREAK.split(text)
        pieces = (piece.strip() for paragraph in paragraphs for piece in split_paragraph(paragraph.strip()))
        return [piece for piece in pieces if piece]

    return split


def _split_by_rules(paragraph: str) -> list[str]:
    """Cuts a paragraph where its lines begin something new, and these pieces where a full stop ends a sentence."""
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


@functools.lru_cache(maxsize=1024)  # a text with millions of full stops is a repetitive one
def _ends_sentence(before: str, stop: str, after: str, has_capitals: bool) -> bool:
    """Whether a full stop ends a sentence, given up to 12 characters of the sentence before it and 20 after it."""
    line = before.rpartition("\n")[2].rstrip()
    if (stop == ".." and not line) or line.endswith(("(", "[", "“")):  # `... x = 1`, `.. note::`; `word (!)`, `[...]`
        return False
    after = after.lstrip(_OPENING)
    if has_capitals and after[:1].islower() and stop[0] not in _CJK_STOPS:
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


def _split_by_spacy(nlp: "Language", paragraph: str) -> list[str]:
    """Cuts a paragraph by a spaCy pipeline, and overlong words in it by the rules."""
    sentences = []
    for index, stretch in enumerate(_LONG_WORD.split(paragraph)):
        if index % 2:  # what the group in the pattern matched
            sentences += _split_by_rules(stretch)
            continue
        for text in _SPACY_TEXT.findall(stretch):
            full = len(nlp.vocab.strings) > _SPACY_VOCABULARY_LIMIT
            with nlp.memory_zone() if full else contextlib.nullcontext():
                sentences += [sentence.text for sentence in nlp(text).sents]
    return sentences


def _load_spacy(name: str) -> "Language":
    """Loads a spaCy pipeline and switches off all that sentence boundaries do not need."""
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
        if pipe in needed:
            nlp.enable_pipe(pipe)
        else:
            nlp.disable_pipe(pipe)
    return nlp
