"""Make collections of a corpus: the title, first sentence or first line of a document is a query for its rest.

A query has two kinds of relevant documents: the document it was taken from, with grade 2, and those that this document
links to, with grade 1, where the corpus has links (WikIR: Frej et al., 2020). Every document loses its title, sentence
or line, even if its query is not asked. One author wrote query and text, so such collections are easier than judged
ones: they tell which of two encoders is better rather than how good one is.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from datasets import Dataset

from docsplit.data.corpora import PYTHON_DOCS, add_text, load_corpus
from docsplit.data.passages import SECTION_BREAK, heading_at
from docsplit.data.preparation import document_id
from docsplit.data.python_docs.parts import PART, split_references
from docsplit.data.readers.rows import headings_of
from docsplit.data.segmentation import clean_text, load_sentence_splitter
from docsplit.data.sets.citation_splits import PART_NAMES
from docsplit.data.sets.ranking_files import Source

logger = logging.getLogger(__name__)

COLUMNS = ("id", "title", "text", "links", "sections")
SOURCE, LINKED = 2, 1  # grades: of the document that a query was taken from, and of those that it links to
BEGINNING = 4000  # characters that are searched for the first sentence
ALL = "all"
TRAIN, VALIDATION, TEST = PART_NAMES
HELD_OUT = (VALIDATION, TEST)  # a tenth of the queries each; the others are for training


@dataclass
class Row:
    """A document of the corpus, of which a query is made."""

    id: str
    title: str
    text: str  # its sections with `docsplit.data.passages.SECTION_BREAK` between them
    whole: str  # the text as a pretraining may have read it
    links: list[str] = field(default_factory=list)  # ids or titles
    headings: list[str] = field(default_factory=list)  # of its sections


def by_title(row: Row) -> tuple[str, str]:
    """Take the title, and remove it from the beginning of the text."""
    return row.title, row.text.removeprefix(row.title) if row.title else row.text


def by_first_sentence(row: Row) -> tuple[str, str]:
    """Take the first sentence that is no heading, and leave the text around it: headings and sections stay."""
    parts = [clean_text(part) for part in row.text.strip().split(SECTION_BREAK)]
    text, readable = SECTION_BREAK.join(parts), " ".join(parts)  # equally long: a place in one is one in the other
    start = after_headings(readable, [row.title, *row.headings])
    first = next(iter(load_sentence_splitter("rules")(readable[start : start + BEGINNING])), "")
    place = readable.find(first, start)
    if not first or readable[start:place].strip():
        return "", text
    return first, f"{text[:place]}{text[place + len(first) :].lstrip(' ')}"


def by_first_line(row: Row) -> tuple[str, str]:
    """Take the first line, the summary of a docstring, and leave the text after it."""
    first, _, rest = row.text.strip().partition("\n")
    return first, rest


def after_headings(text: str, known: Sequence[str]) -> int:
    """Return where a clean text begins after its headings.

    Those are lines that look like one (`docsplit.data.passages.heading_at`), and first paragraphs that are among the
    known titles and headings. A `BEGINNING` of headings alone has nothing after them.
    """
    lines = text[:BEGINNING].split("\n")
    titles = {" ".join(title.split()) for title in known} - {""}
    number = 0
    while number < len(lines):
        if not lines[number].strip():
            number += 1
            continue
        paragraph = list(takewhile(str.strip, lines[number:]))
        is_title = " ".join(" ".join(paragraph).split()) in titles
        height = len(paragraph) if is_title else heading_at(lines, number)
        if not height:
            return sum(len(line) + 1 for line in lines[:number])
        number += height
    return len(text)


QUERIES: dict[str, Callable[[Row], tuple[str, str]]] = {
    "title": by_title,
    "first_sentence": by_first_sentence,
    "first_line": by_first_line,
}


def build(corpus: str, queries: str, split: str | None) -> Source:
    """Make a collection of the documents of a corpus.

    Queries that are equal up to case and white space are one, with the relevant documents of all.

    Args:
        corpus: as `docsplit.data.corpora.load_corpus` takes it, with the columns text (or sections), title for titles
            and, where there are any, id and links (ids or titles). Of python_docs the part `split` is the collection,
            without its "See also" lists, which quote other documents' first lines.
        queries: one of `QUERIES`.
        split: of the queries, by a hash of their documents: train (80 %), validation, test or all. Default: test.

    Raises:
        ValueError: if a column is missing, or there is no such split.
    """
    if split not in (None, *PART_NAMES, ALL):
        raise ValueError(f"--split is {split!r}: the queries of a corpus are {', '.join(PART_NAMES)} or {ALL}.")
    notes: list[str] = []
    rows = _python_docs(split or TEST) if corpus == PYTHON_DOCS else _rows(load_corpus(corpus), corpus, queries, notes)
    distinct: dict[str, tuple[str, str]] = {}  # each query in lower case -> the id and text of its first
    documents, judgments, without = [], [], 0
    id_of = {row.id: row.id for row in rows}  # links name ids or titles
    id_of |= {row.title: row.id for row in rows if row.title not in id_of}
    chosen, unknown = 0, Counter[bool]()
    for row in rows:
        query, rest = QUERIES[queries](row)
        query = " ".join(query.split())
        if not query or not rest.strip():
            without += 1
            documents.append((row.id, row.text))
            continue
        documents.append((row.id, rest.strip()))
        if corpus != PYTHON_DOCS and split != ALL and split_of(row.whole) != (split or TEST):
            continue
        chosen += 1
        name, _ = distinct.setdefault(query.lower(), (row.id, query))
        judgments.append((name, row.id, SOURCE))
        targets = [id_of.get(link) for link in row.links]
        unknown.update(target is None for target in targets)
        judgments += [(name, target, LINKED) for target in targets if target is not None and target != row.id]
    if without:
        notes.append(f"{without:,} documents have no {queries.replace('_', ' ')} and text beside: they ask nothing.")
    if chosen > len(distinct):
        notes.append(f"{chosen - len(distinct):,} queries equal another one: the relevant documents of both count.")
    if unknown[True]:
        notes.append(f"{unknown[True]:,} of {unknown.total():,} links lead out of the collection.")
    if corpus != PYTHON_DOCS and split != ALL:
        notes.append(
            f"{chosen:,} of {len(rows) - without:,} documents ask: --split {split or TEST}; all: --split all."
        )
    whole = {row.id: row.whole for row in rows}
    return Source(f"{corpus}, {queries}", documents, list(distinct.values()), judgments, whole, notes)


def split_of(text: str) -> str:
    """Choose the split of a document's query: a tenth each for validation and testing, else training."""
    number = document_id(text) % 10
    return HELD_OUT[number] if number < len(HELD_OUT) else TRAIN


def _python_docs(part: str) -> list[Row]:
    """Take the documents of a part, without "See also" lists, and with the links among them."""
    rows = load_corpus(PYTHON_DOCS).to_list()
    texts, _, _ = split_references(rows)
    chosen = [(row, text) for row, text in zip(rows, texts) if part in (ALL, row[PART])]
    names = {row["id"] for row, _ in chosen}
    return [
        Row(row["id"], row["title"], text, row["text"], [link for link in row["links"] if link in names])
        for row, text in chosen
    ]


def _rows(dataset: Dataset, corpus: str, queries: str, notes: list[str]) -> list[Row]:
    """Read the documents of a corpus; a missing id is the row's number."""
    dataset = add_text(dataset, "text")
    columns = dataset.column_names
    if queries == "title" and "title" not in columns:
        raise ValueError(f"--queries title needs a corpus with the column title; {corpus} has {columns}.")
    if "links" not in columns:
        notes.append("The corpus has no column links: a query's own document alone is relevant.")
    rows = []
    record: Any
    for number, record in enumerate(dataset.select_columns([name for name in COLUMNS if name in columns])):
        text = record["text"] if isinstance(record["text"], str) else ""
        links = [str(link) for link in record.get("links") or ()]
        title, headings = record.get("title") or "", headings_of(record)
        name = record.get("id")
        rows.append(Row(str(number if name in (None, "") else name), title, text, text, links, headings))
    return rows
