"""What the verbs of search.py give: dataclasses, which are printed as JSON or as lines for people."""

import shutil
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docsplit.index.index import Hit
    from docsplit.index.overview import Group, Pair

PASSAGE_LINES = 3
SHOWN_PAIRS, SHOWN_IDS = 50, 3


@dataclass
class Result:
    """A dataclass that a verb gives; by default all its fields are numbers."""

    def lines(self) -> list[str]:
        """Write the result for people."""
        return [", ".join(f"{name}: {value:,}" for name, value in vars(self).items())]


@dataclass
class Built(Result):
    """How many documents and passages were written, and how many documents were left out since they have no text."""

    documents: int = 0
    passages: int = 0
    empty: int = 0


@dataclass
class Added(Built):
    """How many documents were added; `documents` counts those that were replaced, too."""

    replaced: int = 0
    unchanged: int = 0


@dataclass
class Deleted(Result):
    """How many documents were taken out."""

    deleted: int


@dataclass
class Info(Result):
    """What an index holds, the encoder that it needs, and where words come from that its vectors carry."""

    documents: int
    passages: int
    encoder: str
    words: str | None

    def lines(self) -> list[str]:
        """Write the counts and the encoder, and a line on words if there are any."""
        counts = f"documents: {self.documents:,}, passages: {self.passages:,}, encoder: {self.encoder}"
        return [counts, *([self.words] if self.words else [])]


@dataclass
class Exported(Result):
    """How many passages the collection of a database holds, and how many texts were cut."""

    passages: int
    cut: int


@dataclass
class Answer(Result):
    """The best documents for a query, and the time that it took."""

    query: str
    method: str
    rows: "list[Hit]"
    encoding_ms: float
    search_ms: float

    def lines(self) -> list[str]:
        """Write each hit in two lines or more: rank, score, title, id; and the passage."""
        width = max(shutil.get_terminal_size((100, 24)).columns, 40)
        indent, lines = " " * 5, []
        for rank, hit in enumerate(self.rows, start=1):
            name = hit.title if hit.title in ("", hit.id) else f"{hit.title}  "
            line = f"{rank:3}  {hit.score:.4f}  {name}[{hit.id}]"
            lines.append(line if len(line) <= width else f"{line[: width - 1]}…")
            if hit.passage:
                passage = " ".join(hit.passage.split())
                wrapper = textwrap.TextWrapper(width, initial_indent=indent, subsequent_indent=indent)
                wrapper.max_lines, wrapper.placeholder = PASSAGE_LINES, " …"
                lines += wrapper.wrap(passage)
        return lines or ["Nothing was found."]


@dataclass
class Duplicates(Result):
    """Pairs of documents with at least this similarity."""

    threshold: float
    rows: "list[Pair]"

    def lines(self) -> list[str]:
        """Write the first pairs, and how many there are."""
        lines = [
            f"{pair.score:.3f}  {pair.same_words:4.0%} of the words  {pair.id}  =  {pair.other}"
            for pair in self.rows[:SHOWN_PAIRS]
        ]
        more = len(self.rows) - SHOWN_PAIRS
        return [*lines, f"{len(self.rows)} pairs{f', {more} more than shown: --json has all' if more > 0 else ''}."]


@dataclass
class Clusters(Result):
    """Groups of documents."""

    rows: "list[Group]"

    def lines(self) -> list[str]:
        """Write each group in two lines: size and words; the ids nearest to the centre."""
        lines = []
        for group in self.rows:
            lines += [f"{group.size:6,}  {', '.join(group.words)}", f"        {'  '.join(group.ids[:SHOWN_IDS])}"]
        return lines
