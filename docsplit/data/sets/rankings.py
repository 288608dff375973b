"""Load collections to measure search on: documents, queries, and judgments of which documents are relevant.

`load_collection` reads any of the forms of `docsplit.data.sets.ranking_files`, or makes a collection of a corpus
(`docsplit.data.sets.built_rankings`). Everything that is left out on the way is counted, and noted in one line.
"""

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from docsplit.data.corpora import PYTHON_DOCS
from docsplit.data.seen_documents import document_id
from docsplit.data.sets.arguments import RankingArguments
from docsplit.data.sets.built_rankings import QUERIES, build
from docsplit.data.sets.ranking_files import Rows, Source, read_folder, read_hub
from docsplit.runtime.files import add_texts

logger = logging.getLogger(__name__)


@dataclass
class Ranking:
    """A collection of documents with judged queries."""

    document_ids: list[str]
    documents: list[str]
    query_ids: list[str]
    queries: list[str]
    judgments: dict[str, dict[str, int]]  # query -> document -> grade, above 0 where relevant
    counts: dict[str, int] = field(default_factory=dict)  # left out, or kept although it cannot be found
    notes: list[str] = field(default_factory=list)  # one line for each count
    whole: dict[str, str] = field(default_factory=dict)  # documents before a query was taken out of them
    ignore_identical_ids: bool = False  # `own` goes by ids alone

    @cached_property
    def own(self) -> np.ndarray:
        """Return for each query the row of its own document, which is left out of its list, (Q,); -1: it has none.

        Such a query is a document of the collection, as in ArguAna and Quora: ids agree, and texts up to white space
        and the title. If the document is judged relevant it stays, for it is an answer. By ids alone all go.
        """
        row_of = {name: row for row, name in enumerate(self.document_ids)}
        rows = [row_of.get(name, -1) for name in self.query_ids]
        if not self.ignore_identical_ids:
            for number, (query, text, row) in enumerate(zip(self.query_ids, self.queries, rows)):
                if row >= 0 and (
                    self.judgments[query].get(query, 0) > 0 or not _is_text_of(text, self.documents[row])
                ):
                    rows[number] = -1
        return np.array(rows, dtype=np.int32)

    @property
    def relevant_documents(self) -> list[str]:
        """Return the documents that are relevant to a query, whole, as a pretraining may have read them."""
        relevant = {name for grades in self.judgments.values() for name, grade in grades.items() if grade > 0}
        return [
            self.whole.get(name, text) for name, text in zip(self.document_ids, self.documents) if name in relevant
        ]

    def fingerprint(self) -> str:
        """Hash all ids, texts and judgments: 16 hexadecimal digits, equal for equal collections."""
        digest = hashlib.blake2b(digest_size=8)
        add_texts(digest, (*self.document_ids, *self.documents, *self.query_ids, *self.queries))
        for query in self.query_ids:
            add_texts(digest, (f"{name} {grade}" for name, grade in sorted(self.judgments[query].items())))
        add_texts(digest, ("ignore_identical_ids",) if self.ignore_identical_ids else ())
        return digest.hexdigest()

    def with_queries(self, rows: Iterable[int]) -> "Ranking":
        """Copy the collection with some of its queries, in the order of `rows`."""
        ids = [self.query_ids[row] for row in rows]
        texts = dict(zip(self.query_ids, self.queries))
        return replace(
            self, query_ids=ids, queries=[texts[q] for q in ids], judgments={q: self.judgments[q] for q in ids}
        )


@dataclass
class Retrieved:
    """The documents found for each query, the best first."""

    rows: np.ndarray  # (Q, K) int32, of the collection; -1 where fewer were found
    scores: np.ndarray  # (Q, K) float32, descending

    @classmethod
    def best(cls, rows: np.ndarray, scores: np.ndarray, depth: int) -> "Retrieved":
        """Sort rows (Q, M) by their scores and keep the best; of equal scores the lower row comes first."""
        order = np.lexsort((rows, -scores))[:, :depth]
        rows, scores = np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)
        return cls(rows.astype(np.int32), scores.astype(np.float32))

    def without(self, own: np.ndarray, depth: int) -> "Retrieved":
        """Leave a document of each query, (Q,), out of its list, -1: none, and keep the `depth` best of the others.

        Lists that are one longer than `depth` lose nothing else.
        """
        is_own = (self.rows == own[:, None]) & (self.rows >= 0)
        order = np.argsort(is_own, axis=1, kind="stable")[:, :depth]
        rows, scores = np.where(is_own, -1, self.rows), np.where(is_own, -np.inf, self.scores)
        return Retrieved(np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1))

    def divided(self, count: int) -> tuple["Retrieved", "Retrieved"]:
        """Divide into the results of the first `count` queries and those of the others."""
        return Retrieved(self.rows[:count], self.scores[:count]), Retrieved(self.rows[count:], self.scores[count:])


def load_collection(options: RankingArguments, seed: int = 0) -> Ranking:
    """Load a collection with its judged queries.

    Args:
        options: `collection` is a folder in a form of `docsplit.data.sets.ranking_files`, a data set of the Hub in
            BEIR's, or python_docs (also if None), whose queries are first lines. With `queries`, a name of
            `docsplit.data.sets.built_rankings.QUERIES`, it is a corpus for `load_corpus`, whose documents become
            queries. The default `split` of the queries is test, or the only one; of python_docs test is the sealed
            part.
        seed: seed of the `max_queries` that are drawn.

    Raises:
        ValueError: if there is no such collection, or in it something contradicts itself, naming the remedy.
    """
    ranking = assemble(_read(options), options.ignore_identical_ids)
    return _drawn(ranking, options.max_queries, seed, "--max_queries")


def other_queries(ranking: Ranking, options: RankingArguments, seed: int) -> Ranking:
    """Load the queries of another split for the documents of a collection that was loaded.

    Args:
        options: of the collection, with the other split, and how many of its queries at most are drawn with `seed`; a
            note of `ranking` says so.

    Raises:
        ValueError: as `load_collection`; if a query is one of those that were loaded.
    """
    source = _read(options)
    source.documents = zip(ranking.document_ids, ranking.documents)
    others = assemble(source, options.ignore_identical_ids)
    if both := sorted({*others.query_ids} & {*ranking.query_ids}):
        raise ValueError(
            f"--selection_split {options.split} has {len(both):,} of the queries that are reported, such as "
            f"{both[0]}: name another split."
        )
    drawn = _drawn(others, options.max_queries, seed, f"--selection_split {options.split}")
    ranking.notes += drawn.notes[len(others.notes) :]
    return drawn


def _drawn(ranking: Ranking, count: int | None, seed: int, option: str) -> Ranking:
    """Draw at most so many of the queries, with a note; None: all."""
    if count is None or count >= len(ranking.queries):
        return ranking
    drawn = np.random.default_rng(seed).permutation(len(ranking.queries))[:count]
    note = f"{count:,} of {len(ranking.queries):,} queries are drawn ({option})."
    return replace(ranking.with_queries(sorted(drawn.tolist())), notes=[*ranking.notes, note])


def _read(options: RankingArguments) -> Source:
    collection, queries, split = options.collection, options.queries, options.split
    if queries is not None and queries not in QUERIES:
        raise ValueError(f"--queries has no {queries}: choose among {', '.join(QUERIES)}.")
    if collection is None or collection == PYTHON_DOCS:
        return build(PYTHON_DOCS, queries or "first_line", split)
    if queries is not None:
        return build(collection, queries, split)
    if Path(collection).is_file():
        raise ValueError(
            f"--collection {collection} is a file: give the folder of a collection, or with --queries title or "
            "first_sentence a corpus, of which queries are made."
        )
    return read_folder(Path(collection), split) if Path(collection).is_dir() else read_hub(collection, split)


def assemble(source: Source, ignore_identical_ids: bool = False) -> Ranking:
    """Check a collection, leave out what cannot be measured, and count it.

    Documents without text stay. Judgments of documents that are not there stay too, and count as missed, as in
    trec_eval; so do those of a document that is left out by its id alone, as in BEIR. A query needs a text and a
    relevant document.

    Raises:
        ValueError: if an id stands for two texts, or no document, no query or no judged document is left.
    """
    left_out = _LeftOut(source)
    # Documents and queries by id, and what is judged.
    documents = left_out.texts(source.documents, "document")
    empty = [name for name, text in documents.items() if not text.strip()]
    left_out.say("documents_empty", "documents are empty and stay: no word finds them, an encoder may", empty)
    all_queries = left_out.texts(source.queries, "query")
    judgments = _judgments(source, left_out, all_queries)
    judged = {name for grades in judgments.values() for name in grades}
    if judged and not judged & documents.keys():
        raise ValueError(
            f"{source.name} judges document {min(judged)} for query {next(iter(judgments))}, and no document that it "
            f"judges is there, but {next(iter(documents), 'none')}: do the files belong together?"
        )
    left_out.say(
        "judgments_of_unknown_documents",
        "judgments are of documents that are not there, and count as not found if relevant",
        [f"{query} {name}" for query, grades in judgments.items() for name in grades if name not in documents],
    )
    # Queries that have a text, a judgment, and a relevant document.
    silent = [query for query, text in all_queries.items() if not text.strip()]
    left_out.say("queries_empty", "queries are empty and left out", silent)
    asked = [query for query, text in all_queries.items() if text.strip()]
    left_out.say(
        "queries_without_judgment",
        "queries have no judgment here and are left out",
        [query for query in asked if query not in judgments],
    )
    asked = [query for query in asked if query in judgments]
    kept = [query for query in asked if max(judgments[query].values()) > 0]
    hopeless = [query for query in asked if max(judgments[query].values()) <= 0]
    left_out.say("queries_without_relevant_document", "queries have no relevant document and are left out", hopeless)
    if len(empty) == len(documents) or not kept:
        raise ValueError(
            f"{source.name} has {len(documents) - len(empty):,} documents with a text, and of {len(all_queries):,} "
            f"queries {len(kept):,} with a text and a relevant document: {left_out.counts}."
        )
    logger.info(f"{source.name}: {len(documents):,} documents, {len(kept):,} queries")
    ranking = Ranking(
        list(documents),
        list(documents.values()),
        kept,
        [all_queries[query] for query in kept],
        {query: judgments[query] for query in kept},
        left_out.counts,
        whole=source.whole,
        ignore_identical_ids=ignore_identical_ids,
    )
    # Queries that are documents of the collection
    own = [query for query, row in zip(kept, ranking.own) if row >= 0]
    agree = "id" if ignore_identical_ids else "id and text"
    left_out.say("own_documents_left_out", f"queries do not find the document of their own {agree}", own)
    left_out.say(
        "own_documents_judged_relevant",
        "of these documents are judged relevant to the query of their id, and count as not found, as in BEIR",
        [query for query in own if judgments[query].get(query, 0) > 0],
    )
    ranking.notes = [*source.notes, *left_out.notes]
    return ranking


def _is_text_of(query: str, document: str) -> bool:
    """Tell whether a query is the text of a document, with its title or without it, up to white space."""
    return document_id(query) in map(document_id, (document, document.partition("\n\n")[2]))


class _LeftOut:
    """Counts of what is left out, with a line in the log and the notes for each kind."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.counts: dict[str, int] = {}
        self.notes: list[str] = []

    def say(self, count: str, problem: str, examples: list[str]) -> None:
        """Note how many there are, and name the first."""
        self.counts[count] = len(examples)
        if examples:
            self.notes.append(f"{len(examples):,} {problem}, such as {examples[0]}.")
            logger.warning(f"{self.name}: {self.notes[-1]}")

    def texts(self, rows: Rows, kind: str) -> dict[str, str]:
        """Collect texts by id; an id that comes again with the same text counts once."""
        texts: dict[str, str] = {}
        repeated: list[str] = []
        other: list[str] = []
        for name, text in rows:
            if texts.setdefault(name, text) is not text:
                (repeated if texts[name] == text else other).append(name)
        if other:
            raise ValueError(
                f"{self.name} has {len(other):,} times a {kind} whose id another text has already, such as "
                f"{other[0]}: give each {kind} its own id."
            )
        plural = "documents" if kind == "document" else "queries"
        self.say(f"{plural}_repeated", f"{plural} repeat an id and its text and count once", repeated)
        return texts


def _judgments(source: Source, left_out: _LeftOut, queries: dict[str, str]) -> dict[str, dict[str, int]]:
    """Collect the grades of known queries, query -> document -> grade; of two grades the higher."""
    judgments: dict[str, dict[str, int]] = {}
    unknown, contradicted = [], []
    for query, document, grade in source.judgments:
        if query not in queries:
            unknown.append(f"{query} {document}")
            continue
        grades = judgments.setdefault(query, {})
        if grades.get(document, grade) != grade and not source.whole:
            contradicted.append(f"{query} {document}")
        grades[document] = max(grade, grades.get(document, grade))
    left_out.say("judgments_of_unknown_queries", "judgments are of queries that are not there and left out", unknown)
    left_out.say("judgments_contradicted", "judgments contradict another one: the higher grade counts", contradicted)
    return judgments
