"""Collections made of a corpus: a document's title, first sentence or first line is a query for the rest of it.

Relevant to a query is its own document, with grade 2, and the documents that this one links to, with grade 1, where
the corpus has links (WikIR: Frej et al., 2020). What is a query is taken out of the document, of every document and
not of those alone that are asked for. Who has written both words of a title and of a text decides what is found: such
collections are easier than judged ones, and say which of two encoders is better rather than how good one is.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from datasets import Dataset

from docsplit.data.corpora import PYTHON_DOCS, add_text, load_corpus
from docsplit.data.preparation import document_id
from docsplit.data.python_docs.parts import PART, split_references
from docsplit.data.segmentation import clean_text, load_sentence_splitter
from docsplit.data.sets.citation_splits import PART_NAMES
from docsplit.data.sets.ranking_files import Source

logger = logging.getLogger(__name__)

COLUMNS = ("id", "title", "text", "links")
OWN, LINKED = 2, 1  # grades
BEGINNING = 4000  # characters, in which the first sentence is looked for
ALL = "all"
TRAIN, VALIDATION, TEST = PART_NAMES
SHARE_OF_SPLITS = (VALIDATION, TEST)  # a tenth of the queries each; the others are for training


def by_title(title: str, text: str) -> tuple[str, str]:
    """The title, and the text without a title at its beginning."""
    return title, text.removeprefix(title) if title else text


def by_first_sentence(title: str, text: str) -> tuple[str, str]:
    """The first sentence, and the text after it."""
    text = clean_text(text).strip()
    first = next(iter(load_sentence_splitter("rules")(text[:BEGINNING])), "")
    return (first, text[len(first) :]) if text.startswith(first) else ("", text)


def by_first_line(title: str, text: str) -> tuple[str, str]:
    """The first line, and the text after it: of a docstring its summary."""
    first, _, rest = text.strip().partition("\n")
    return first, rest


QUERIES: dict[str, Callable[[str, str], tuple[str, str]]] = {
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
    first_with: dict[str, tuple[str, str]] = {}  # of each distinct query the first id and text
    documents, judgments, without = [], [], 0
    positions = {row["id"]: row["id"] for row in rows}
    positions |= {row["title"]: row["id"] for row in rows if row["title"] not in positions}
    chosen, unknown = 0, Counter[bool]()
    for row in rows:
        query, rest = QUERIES[queries](row["title"], row["text"])
        query = " ".join(query.split())
        if not query or not rest.strip():
            without += 1
            documents.append((row["id"], row["text"]))
            continue
        documents.append((row["id"], rest.strip()))
        if corpus != PYTHON_DOCS and split != ALL and split_of(row["whole"]) != (split or TEST):
            continue
        chosen += 1
        name, _ = first_with.setdefault(query.lower(), (row["id"], query))
        judgments.append((name, row["id"], OWN))
        targets = [positions.get(link) for link in row["links"]]
        unknown.update(target is None for target in targets)
        judgments += [(name, target, LINKED) for target in targets if target not in (None, row["id"])]
    if without:
        notes.append(f"{without:,} documents have no {queries.replace('_', ' ')} and text beside: they ask nothing.")
    if chosen > len(first_with):
        notes.append(f"{chosen - len(first_with):,} queries equal another one: the relevant documents of both count.")
    if unknown[True]:
        notes.append(f"{unknown[True]:,} of {unknown.total():,} links lead out of the collection.")
    if corpus != PYTHON_DOCS and split != ALL:
        notes.append(
            f"{chosen:,} of {len(rows) - without:,} documents ask: --split {split or TEST}; all: --split all."
        )
    whole = {row["id"]: row["whole"] for row in rows}
    return Source(f"{corpus}, {queries}", documents, list(first_with.values()), judgments, whole, notes)


def split_of(text: str) -> str:
    """The split of a document's query: a tenth of all is for validation, a tenth for testing, the rest to train on."""
    number = document_id(text) % 10
    return SHARE_OF_SPLITS[number] if number < len(SHARE_OF_SPLITS) else TRAIN


def _python_docs(part: str) -> list[dict[str, Any]]:
    rows = load_corpus(PYTHON_DOCS).to_list()
    texts, _, _ = split_references(rows)
    kept = [row | {"text": text, "whole": row["text"]} for row, text in zip(rows, texts) if part in (ALL, row[PART])]
    names = {row["id"] for row in kept}
    return [row | {"links": [link for link in row["links"] if link in names]} for row in kept]


def _rows(dataset: Dataset, corpus: str, queries: str, notes: list[str]) -> list[dict[str, Any]]:
    """Rows of id, title, text, whole and links, all strings."""
    dataset = add_text(dataset, "text")
    columns = dataset.column_names
    if queries == "title" and "title" not in columns:
        raise ValueError(f"--queries title needs a corpus with the column title; {corpus} has {columns}.")
    if "links" not in columns:
        notes.append("The corpus has no column links: a query's own document alone is relevant.")
    found = []
    for number, row in enumerate(dataset.select_columns([n for n in COLUMNS if n in columns])):
        text = row["text"] if isinstance(row["text"], str) else ""
        links = [str(link) for link in row.get("links") or ()]
        own = {"id": str(row.get("id", number)), "title": row.get("title") or "", "links": links}
        found.append(own | {"text": text, "whole": text})
    return found
