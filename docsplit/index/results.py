"""What the verbs of search.py give: dataclasses, which are printed as JSON or as lines for people."""

import re
import textwrap
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from docsplit.data.passages import split_sentences
from docsplit.data.words import ENGLISH, PIECES, WORDS, Stems
from docsplit.runtime.command import Style, shown
from docsplit.runtime.files import Damaged

if TYPE_CHECKING:
    from docsplit.index.index import Hit, IndexReader
    from docsplit.index.overview import Group, Pair

METHODS = ("hybrid", "dense", "bm25")  # of a search
PASSAGE_LINES, SHOWN_PAIRS = 3, 7
INDENT = " " * 5
OPERATORS = re.compile(r'(?<!\S)-[^\W\d_]\w*|"[^"]*\w[^"]*"')  # of other searches: a word to leave out, a phrase
PLAIN_STYLE = Style()


def counted(count: int, name: str) -> str:
    """Write a count with the name of what is counted: `1 document`, `1,200 documents`."""
    return f"{count:,} {name}{'s' * (count != 1)}"


@dataclass
class CommandResult:
    """A dataclass that a verb gives."""

    def lines(self, style: Style = PLAIN_STYLE) -> list[str]:
        """Write the result for people."""
        raise NotImplementedError


@dataclass
class Built(CommandResult):
    """How many documents and passages were written, and how many documents were left out since they have no text.

    Attributes:
        reading: what share of the documents' tokens the vectors read, as a sentence; None: all, or it is not known.
    """

    documents: int = 0
    passages: int = 0
    empty: int = 0
    reading: str | None = None

    def lines(self, style: Style = PLAIN_STYLE) -> list[str]:
        """Write the counts, and what share of the tokens is read where it is not all."""
        written = f"Indexed {counted(self.documents, 'document')} ({counted(self.passages, 'passage')})"
        return [f"{written}{_others({'without text, left out': self.empty})}.", *filter(None, [self.reading])]


@dataclass
class Added(Built):
    """How many documents were added; `documents` counts those that were replaced, too.

    Attributes:
        unread: those that stay, since their files cannot be read now.
    """

    replaced: int = 0
    unchanged: int = 0
    removed: int = 0
    unread: int = 0

    def lines(self, style: Style = PLAIN_STYLE) -> list[str]:
        """Write the counts; `info` says what share of the tokens is read."""
        written = f"Added {counted(self.documents - self.replaced, 'document')}"
        others = {"replaced": self.replaced, "removed": self.removed, "unchanged": self.unchanged}
        others |= {"kept, since unreadable now": self.unread, "without text, left out": self.empty}
        return [f"{written} ({counted(self.passages, 'passage')}){_others(others)}."]


def _others(counts: dict[str, int]) -> str:
    return "".join(f"; {name}: {count:,}" for name, count in counts.items() if count)


@dataclass
class Checked(CommandResult):
    """What `check` has read, and what is damaged.

    Attributes:
        documents: in the segments that are sound.
        bytes: of all files.
        faults: a line for each damaged thing, with its remedy.
    """

    documents: int = 0
    files: int = 0
    bytes: int = 0
    faults: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, directory: Path) -> "Checked":
        """Read an index whole, and list what is not as it was written.

        Raises:
            ValueError: if there is no index, or one that is not built to its end.
        """
        from docsplit.index.index import faults_in, map_data, read_manifest  # --help needs none of what it imports

        try:
            manifest = read_manifest(directory, is_built=True)
        except Damaged as error:
            return cls(faults=[str(error)])
        checked = cls(files=1 + (manifest.approximate is not None), bytes=manifest.length)
        try:
            data = map_data(directory, manifest)
            checked.faults = faults_in(directory, manifest, data)
            checked.documents = sum(entry.documents for entry in manifest.segments if entry.is_sound(data))
        except Damaged as error:
            checked.faults = [str(error)]
        if checked.faults and read_manifest(directory) != manifest:  # another process has changed the index meanwhile
            return cls.of(directory)
        return checked

    def lines(self, style: Style = PLAIN_STYLE) -> list[str]:
        """Write the faults, or that there is none."""
        read = f"{counted(self.files, 'file')} ({self.bytes / 1e6:,.1f} MB) with {counted(self.documents, 'document')}"
        return self.faults or [f"The index is sound: {read}, all as they were written."]


@dataclass
class Deleted(CommandResult):
    """How many documents were taken out."""

    deleted: int

    def lines(self, style: Style = PLAIN_STYLE) -> list[str]:
        """Write the count."""
        return [f"Deleted {counted(self.deleted, 'document')}."]


@dataclass
class Info(CommandResult):
    """What an index holds, and which encoder it needs.

    Attributes:
        words: where words come from that the vectors carry, as a sentence; None: they carry none.
        reading: as in `Built`.
        sources: folders and files that documents come from.
        language: of the stems that a search by words counts.
    """

    documents: int
    passages: int
    encoder: str
    words: str | None
    passage_words: int
    max_seq_length: int | None
    reading: str | None
    sources: list[str]
    language: str = ENGLISH

    @classmethod
    def of(cls, index: "IndexReader") -> "Info":
        """Describe an index."""
        about = index.manifest
        return cls(
            documents=len(index),
            passages=index.num_passages(),
            encoder=about.encoder["name"],
            words="Documents carry the words that the encoder brings." if about.has_words else None,
            passage_words=about.passage_words,
            max_seq_length=about.encoder["max_seq_length"],
            reading=index.reading(),
            sources=[*filter(None, about.sources)],
            language=about.language,
        )

    def lines(self, style: Style = PLAIN_STYLE) -> list[str]:
        """Write what it holds, what the encoder reads, and where documents come from."""
        passages = f"{counted(self.passages, 'passage')} of about {counted(self.passage_words, 'word')}"
        reads = f"up to {self.max_seq_length:,} tokens" if self.max_seq_length else "whole texts"
        stems = "whole words" if self.language == WORDS else f"{self.language.title()} stems"
        lines = [
            f"{counted(self.documents, 'document')} in {passages}, and {stems}.",
            f"Encoder: {self.encoder}, reads {reads}.",
        ]
        lines += [line for line in (self.reading, self.words) if line]
        return lines + [f"From {shown(source)}" for source in self.sources]


@dataclass
class Exported(CommandResult):
    """How many passages the collection of a database holds, and how many texts were cut."""

    passages: int
    cut: int

    def lines(self, style: Style = PLAIN_STYLE) -> list[str]:
        """Write both counts."""
        cut = _others({"texts that were cut, since a field of the database holds no more": self.cut})
        return [f"The collection holds {counted(self.passages, 'passage')}{cut}."]


@dataclass
class Answer(CommandResult):
    """The best documents for a query, and the milliseconds that embedding it and searching took.

    Attributes:
        query: the question, or the id of the document that others are like.
        similarity: what vectors are compared by, cosine or dot; None: they are not.
        words: of the query; without those that say little.
        language: of the stems by which words match.
        fits: whether a hit of a hybrid is near the question or has its rare words; None: it is not known.
        notes: what is to be known of the hits as a whole, each as a sentence.
    """

    query: str
    method: str
    rows: "list[Hit]"
    encoding_ms: float
    search_ms: float
    similarity: str | None = None
    words: list[str] = field(default_factory=list)
    language: str = WORDS
    fits: bool | None = None
    notes: list[str] = field(default_factory=list)

    def lines(self, style: Style = PLAIN_STYLE) -> list[str]:
        """Write the notes, and each hit in three lines or more: rank, title and id; why it was found; the passage."""
        lines, room, stems = [shown(note) for note in self.notes], style.width - len(INDENT), Stems(self.language)
        for rank, hit in enumerate(self.rows, start=1):
            lines.append(style.document(hit.id, hit.title, f"{rank:3}  ", copies_of(hit)))
            if reasons := self.reasons(hit):
                lines.append(INDENT + style.dim(textwrap.shorten(reasons, room, placeholder=" …")))
            if hit.passage:
                matched = {*stems.of(" ".join(hit.words))}
                part = shown(shown_part(hit.passage, hit.title, matched, stems, PASSAGE_LINES * room))
                wrapped = textwrap.wrap(part, room, max_lines=PASSAGE_LINES, placeholder=" …")
                lines += [INDENT + marked(style, line, matched, stems) for line in wrapped]
        return lines if self.rows else [*lines, "Nothing was found."]

    def reasons(self, hit: "Hit") -> str:
        """Give the score of a hit and what it is made of: similarities, BM25 and the words that its document has."""
        reasons = []
        if hit.similarity is not None:
            whole = "" if hit.document_similarity is None else f" passage, {hit.document_similarity:.2f} document"
            reasons.append(
                f"{'dot product' if self.similarity == 'dot' else self.similarity} {hit.similarity:.2f}{whole}"
            )
        if self.words and self.method != "dense":
            some = f": {', '.join(hit.words)}" if hit.words and len(hit.words) < len(self.words) else ""
            weight = "" if hit.bm25 is None else f"BM25 {hit.bm25:.1f}, "
            reasons.append(f"{weight}{len(hit.words)} of {counted(len(self.words), 'word')}{some}")
        score = f"score {hit.score:#.3g}: " if self.method == "hybrid" and reasons else ""
        return score + "; ".join(reasons)


def copies_of(hit: "Hit") -> str:
    """Count the copies of a hit: ` and 7 copies`; nothing if there is none."""
    return f" and {len(hit.copies):,} cop{'y' if len(hit.copies) == 1 else 'ies'}" if hit.copies else ""


def notes_on(question: str) -> list[str]:
    """Say of a question that means operators by some of its signs that there are none."""
    meant = OPERATORS.findall(question)
    return [f"There are no operators: all words of {', '.join(meant)} count."] if meant else []


@dataclass
class Duplicates(CommandResult):
    """Pairs of documents with at least this similarity."""

    threshold: float
    rows: "list[Pair]"

    def lines(self, style: Style = PLAIN_STYLE) -> list[str]:
        """Write the first pairs, a document a line, and how many there are."""
        lines = []
        for pair in self.rows[:SHOWN_PAIRS]:
            shared = "same text" if pair.same_words == 1 else f"{100 * pair.same_words:.0f} % same wording"
            before = f"similarity {pair.score:.3f}, {shared}:"
            first = style.document(pair.id, pair.title, INDENT)
            lines += [before, first, style.document(pair.other, pair.other_title, INDENT)]
        more = _others({"not shown, --json has all": max(len(self.rows) - SHOWN_PAIRS, 0)})
        pairs = f"{counted(len(self.rows), 'pair')} of documents with a similarity of {self.threshold:g} or more"
        return [*lines, f"{pairs}{more}."]


@dataclass
class Clusters(CommandResult):
    """Groups of documents."""

    rows: "list[Group]"

    def lines(self, style: Style = PLAIN_STYLE) -> list[str]:
        """Write each group: size and words, and the documents nearest to the centre."""
        lines, most = [], 3 if len(self.rows) < 7 else 1  # documents of a group: a screen holds ten groups
        for group in self.rows:
            names = ", ".join(group.words) or "(no word tells these documents from others)"
            lines.append(f"{counted(group.size, 'document')}: {names}")
            first: dict[str, str] = {}  # by title: of copies one is enough
            for document_id, title in zip(group.ids, group.titles):
                first.setdefault(title or document_id, document_id)
            nearest = islice(first.items(), most)
            lines += [style.document(document_id, title, INDENT) for title, document_id in nearest]
        return lines or ["There are no documents, and so no groups."]


def marked(style: Style, text: str, wanted: set[str], stems: Stems) -> str:
    """Make the words of a text bold that have one of these stems, if the style has marks."""
    return "".join(style.bold(part) if is_match else part for part, is_match in matching_parts(text, wanted, stems))


def matching_parts(text: str, wanted: set[str], stems: Stems) -> list[tuple[str, bool]]:
    """Cut a text before and after its words that have one of these stems: each part, and whether it is such a word."""
    parts, end = [], 0
    for run in PIECES.finditer(text) if wanted else ():
        if not wanted.isdisjoint(stems.of(run[0])):
            parts += [(text[end : run.start()], False), (run[0], True)]
            end = run.end()
    return [*parts, (text[end:], False)]


# Code, as it is; text of a link, or of a picture; what is bold. A target may have parentheses, and a title after it.
_MARKS = re.compile(
    r"""(?P<ticks>`+)(?!`) (?P<code>.+?) (?<!`)(?P=ticks)(?!`) | `{3,}
    | (?<![\w\])]) !?\[ (?P<text>(?:[^\[\]]|!\[[^\[\]]*\]\([^()]*\))*) \]
      \( (?:[^()\s]|\([^()\s]*\))* (?:\s+"[^"]*")? \s* \)
    | (?<![\w*]) \*\*(?=[^\s*]) (?P<bold>.+?) (?<=[^\s*])\*\* (?![\w*])""",
    re.VERBOSE | re.DOTALL,
)
_RULER = re.compile(r"(?<!\S)[-=~^*_]{3,}(?!\S)|\|(?:\s*:?-+:?\s*\|)+")
_LINE_MARKS = re.compile(r"^(?:\s*(?:#{1,6}|>+|[-*+])(?=\s))+|(?<!\S)#{2,6}(?=\s)|(?<=[:.!?] )>+(?=\s)", re.MULTILINE)
_FIRST_ITEM = re.compile(r"(?:^|(?<=:))\s*([-*+])\s")


def without_marks(passage: str) -> str:
    """Write what is bold, code, a link or a picture in Markdown as it reads."""
    return _MARKS.sub(
        lambda match: match["code"] or without_marks(match["text"] or match["bold"] or ""), passage
    )  # fmt: skip


def _plain(sentence: str) -> str:
    """Write a sentence in one line without lines below headings, and the marks of headings, lists and tables."""
    is_row = re.match(r"\s*\|\s", sentence) or re.search(r"\|\s*:?-+:?\s*\||\|\s*---", sentence)
    if item := _FIRST_ITEM.search(sentence):  # a passage has the further ones in the same line, as rows of a table
        further = re.sub(rf"(?<=\S)\s+\{item[1]}\s+(?=[^\W\d])", " · ", sentence[item.end() :])
        sentence = f"{sentence[: item.start()]} {further}"
    sentence = _LINE_MARKS.sub(" ", _RULER.sub(" ", sentence))
    if is_row:
        sentence = " · ".join(filter(str.strip, re.split(r"(?<!\S)\|(?!\S)", sentence)))
    return " ".join(sentence.split())


def shown_part(passage: str, title: str, wanted: set[str], stems: Stems, characters: int) -> str:
    """Return a passage from the sentence on that has most of these stems within so many characters after it.

    A first sentence that is the title is left out, and so are the marks of Markdown: people read it.
    """
    sentences = [_plain(sentence) for sentence in split_sentences(without_marks(passage))]
    starts = range(int(len(sentences) > 1 and sentences[0] == title), len(sentences))
    rests = {start: " ".join(sentences[start:]) for start in starts}
    best = max(starts, key=lambda start: len(wanted.intersection(stems.of(rests[start][:characters]))), default=0)
    return f"… {rests[best]}" if best > starts.start else rests.get(best, "")
