"""Collections to measure search on: documents, queries, and judgments of which documents are relevant.

    load_collection    a folder, a data set of the Hub, or a corpus of which queries are made -> Ranking
    other_queries      those of another split, for the same documents
    Retrieved          what a search found
    make_folds         the queries divided to train on, to choose by and to report

Formats that are read, each with a row in `COLLECTION_FORMATS`; files may be compressed (gz, bz2, xz, zst):

    BEIR        corpus.jsonl, queries.jsonl, and qrels.tsv or qrels/SPLIT.tsv; or the same as a data set on the Hub
    MS MARCO    msmarco-docs.tsv, msmarco-docdev-queries.tsv, msmarco-docdev-qrels.tsv ...
    WIKIR       documents.csv or .jsonl; training, validation and test, each with queries.csv and qrels
    TREC        topics*, qrels*, and a folder documents/ of <DOC> files, as Robust04's

Of a corpus, the title, first sentence or first line of a document is a query for its rest. Such a query has two kinds
of relevant documents: the document it was taken from, with grade 2, and those that this document links to, with grade
1, where the corpus has links (WikIR: Frej et al., 2020). Every document loses its title, sentence or line, even if its
query is not asked. One author wrote query and text, so such collections are easier than judged ones: they tell which
of two encoders is better rather than how good one is.

Everything that is left out on the way is counted, and noted in one line.
"""

import hashlib
import html
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import datasets
import numpy as np

from docsplit.data.copies import document_id, fingerprint_of
from docsplit.data.corpora import PYTHON_DOCS, add_text, load_corpus, of_hub
from docsplit.data.passages import SECTION_BREAK, clean_text, heading_at
from docsplit.data.python_docs.parts import PART, PART_NAMES, split_references
from docsplit.data.readers.files import OPEN, File, read_fields
from docsplit.data.readers.rows import headings_of, id_of_cell, join_sections, rows_of_table, text_of_cell
from docsplit.data.segmentation import load_sentence_splitter
from docsplit.data.sets.set_arguments import RankingArguments
from docsplit.runtime.files import JsonObject, read_any_json

logger = logging.getLogger(__name__)

T = TypeVar("T")
CollectionRows = Iterable[tuple[str, str]]  # id and text
Judgments = Iterable[tuple[str, str, int]]  # query, document, grade

MARCO_SPLITS = {  # queries and judgments beside msmarco-docs.tsv
    "train": ("msmarco-doctrain-queries.tsv", "msmarco-doctrain-qrels.tsv"),
    "dev": ("msmarco-docdev-queries.tsv", "msmarco-docdev-qrels.tsv"),
    "dl19": ("msmarco-test2019-queries.tsv", "2019qrels-docs.txt"),
    "dl20": ("msmarco-test2020-queries.tsv", "2020qrels-docs.txt"),
}
TREC_DOCUMENT = re.compile(r"<DOC>(.*?)</DOC>", re.DOTALL | re.IGNORECASE)
TREC_ID = re.compile(r"<DOCNO>\s*(.*?)\s*</DOCNO>", re.DOTALL | re.IGNORECASE)
TREC_TITLE = re.compile(r"<(HEADLINE|TITLE|TI|DOCTITLE)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
TREC_TEXT = re.compile(r"<TEXT>(.*?)</TEXT>", re.DOTALL | re.IGNORECASE)
TREC_TOPIC = re.compile(
    r"<num>\s*(?:Number:)?\s*([^\s<]+)(?:(?!<num>).)*?<title>\s*(?:Topic:)?\s*([^<]*)", re.DOTALL | re.IGNORECASE
)
BEGINNING = 4000  # characters that are searched for the first sentence
FOLD_SEED = 0  # of folds that are drawn: an encoder must not have been trained on the queries that it is measured on


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

        def is_own(query: str, text: str) -> bool:
            if query not in row_of or self.ignore_identical_ids:
                return query in row_of
            document = self.documents[row_of[query]]
            ids = document_id(document), document_id(document.partition("\n\n")[2])
            return document_id(text) in ids and self.judgments[query].get(query, 0) <= 0

        rows = [row_of[name] if is_own(name, text) else -1 for name, text in zip(self.query_ids, self.queries)]
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
        grades = [item for query in self.query_ids for item in sorted(self.judgments[query].items())]
        pieces = [*self.document_ids, *self.documents, *self.query_ids, *self.queries]
        pieces += [f"{name} {grade}" for name, grade in grades]
        return fingerprint_of(pieces + ["ignore_identical_ids"] * self.ignore_identical_ids)

    def in_order_of_hash(self) -> "Ranking":
        """Copy the collection with its documents in the order of a hash of their ids.

        Documents with equal scores are ranked by their rows: so neither the file nor a name decides among them.
        """

        def hash_of(document: tuple[str, str]) -> bytes:
            return hashlib.blake2b(document[0].encode("utf-8", "surrogatepass"), digest_size=8).digest()

        ids, texts = zip(*sorted(zip(self.document_ids, self.documents), key=hash_of))
        return replace(self, document_ids=list(ids), documents=list(texts))

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


@dataclass
class CollectionSource:
    """A collection as it stands in files, unchecked."""

    name: str
    documents: CollectionRows
    queries: CollectionRows
    judgments: Judgments
    whole: dict[str, str] = field(default_factory=dict)  # documents before a query was taken out of them
    notes: list[str] = field(default_factory=list)


def load_collection(options: RankingArguments, seed: int = 0) -> Ranking:
    """Load a collection with its judged queries.

    Args:
        options: `collection` is a folder in one of `COLLECTION_FORMATS`, a data set of the Hub in BEIR's, or
            python_docs (also if None), whose queries are first lines. With `queries`, a name of `QUERIES`, it is a
            corpus for `load_corpus`, whose documents become queries. The default `split` of the queries is test, or
            the only one; of python_docs test is the sealed part.
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


def _read(options: RankingArguments) -> CollectionSource:
    collection, queries, split = options.collection or PYTHON_DOCS, options.queries, options.split
    if queries is not None or collection == PYTHON_DOCS:
        return build_ranking(collection, queries or "first_line", split)
    if Path(collection).is_file():
        raise ValueError(
            f"--collection {collection} is a file: name a folder, or make its queries by --queries title."
        )
    return read_folder(Path(collection), split) if Path(collection).is_dir() else read_hub(collection, split)


def assemble(source: CollectionSource, ignore_identical_ids: bool = False) -> Ranking:
    """Check a collection, leave out what cannot be measured, and count it.

    Documents without text stay. Judgments of documents that are not there stay too, and count as missed, as in
    trec_eval; so do those of a document that is left out by its id alone, as in BEIR. A query needs a text and a
    relevant document.

    Raises:
        ValueError: if an id stands for two texts, or no document, no query or no judged document is left.
    """
    counts: dict[str, int] = {}
    notes: list[str] = []

    def count(name: str, problem: str, examples: list[str]) -> None:
        counts[name] = len(examples)
        if examples:
            notes.append(f"{len(examples):,} {problem}, such as {examples[0]}.")
            logger.warning(f"{source.name}: {notes[-1]}")

    def texts_by_id(rows: CollectionRows, kind: str) -> dict[str, str]:
        texts: dict[str, str] = {}
        repeated = []
        for name, text in rows:
            if (known := texts.setdefault(name, text)) is not text:
                if known != text:
                    raise ValueError(f"{source.name} has two texts of the id {name}: give each text its own id.")
                repeated.append(name)
        count(f"{kind}_repeated", f"{kind} repeat an id and its text and count once", repeated)
        return texts

    # Documents and queries by id, and the grades of known queries: query -> document -> grade
    documents = texts_by_id(source.documents, "documents")
    empty = [name for name, text in documents.items() if not text.strip()]
    count("documents_empty", "documents are empty and stay: no word finds them, an encoder may", empty)
    queries = texts_by_id(source.queries, "queries")
    judgments: dict[str, dict[str, int]] = {query: {} for query in queries}
    unknown, contradicted = [], []
    for query, document, grade in source.judgments:
        if query not in queries:
            unknown.append(f"{query} {document}")
            continue
        known = judgments[query].setdefault(document, grade)
        if known != grade and not source.whole:
            contradicted.append(f"{query} {document}")
        judgments[query][document] = max(grade, known)
    count("judgments_of_unknown_queries", "judgments are of queries that are not there and left out", unknown)
    count("judgments_contradicted", "judgments contradict another one: the higher grade counts", contradicted)
    judged = [(query, document) for query, grades in judgments.items() for document in grades]
    missed = [f"{query} {document}" for query, document in judged if document not in documents]
    if judged and len(missed) == len(judged):
        raise ValueError(
            f"{source.name} judges document {judged[0][1]} for query {judged[0][0]}, and no document that it judges "
            f"is there, but {next(iter(documents), 'none')}: do the files belong together?"
        )
    problem = "judgments are of documents that are not there, and count as not found if relevant"
    count("judgments_of_unknown_documents", problem, missed)
    # Queries that have a text, a judgment, and a relevant document
    asked = [query for query, text in queries.items() if text.strip()]
    count(
        "queries_empty", "queries are empty and left out", [query for query in queries if not queries[query].strip()]
    )
    unjudged = [query for query in asked if not judgments[query]]
    count("queries_without_judgment", "queries have no judgment here and are left out", unjudged)
    kept = [query for query in asked if max(judgments[query].values(), default=0) > 0]
    hopeless = [query for query in asked if judgments[query] and max(judgments[query].values()) <= 0]
    count("queries_without_relevant_document", "queries have no relevant document and are left out", hopeless)
    if len(empty) == len(documents) or not kept:
        raise ValueError(
            f"{source.name} has {len(documents) - len(empty):,} documents with a text, and of {len(queries):,} "
            f"queries {len(kept):,} with a text and a relevant document: {counts}."
        )
    logger.info(f"{source.name}: {len(documents):,} documents, {len(kept):,} queries")
    ranking = Ranking(
        list(documents),
        list(documents.values()),
        kept,
        [queries[query] for query in kept],
        {query: judgments[query] for query in kept},
        counts,
        whole=source.whole,
        ignore_identical_ids=ignore_identical_ids,
    )
    # Queries that are documents of the collection
    own = [query for query, row in zip(kept, ranking.own) if row >= 0]
    agree = "id" if ignore_identical_ids else "id and text"
    count("own_documents_left_out", f"queries do not find the document of their own {agree}", own)
    count(
        "own_documents_judged_relevant",
        "of these documents are judged relevant to the query of their id, and count as not found, as in BEIR",
        [query for query in own if judgments[query].get(query, 0) > 0],
    )
    ranking.notes = [*source.notes, *notes]
    return ranking


# --- Formats of others ---


def read_folder(folder: Path, split: str | None) -> CollectionSource:
    """Read a folder in the format whose first file it has.

    Args:
        split: of the queries. Default: test, or the only one.

    Raises:
        ValueError: if it is in none of them, a file or split is missing, or a line cannot be understood.
    """
    for marker, read in COLLECTION_FORMATS.values():
        if any(folder.glob(marker)):
            return read(folder, split)
    raise ValueError(
        f"{folder} should hold corpus.jsonl, queries.jsonl and one qrels.tsv, or qrels/NAME.tsv (BEIR); or the files "
        f"of {', '.join(name for name in COLLECTION_FORMATS if name != 'BEIR')}, see docs/datasets.md."
    )


def read_beir(folder: Path, split: str | None) -> CollectionSource:
    """Read BEIR's layout. A document is title, blank line and text; or the text alone if it begins with its title."""
    files = [path for path in sorted(folder.glob("qrels/*.tsv*")) if path.suffix in (".tsv", *OPEN)]
    judged = {path.name.split(".")[0]: path for path in files}
    if len(judged) < len(files):
        raise ValueError(f"{folder / 'qrels'} has two files of one split: {', '.join(path.name for path in files)}.")
    if alone := sorted(folder.glob("qrels.tsv*")):
        if len(alone) + len(judged) > 1:
            raise ValueError(f"{folder} should hold one qrels.tsv, or qrels/NAME.tsv, and not both.")
        judged["test"] = alone[0]
    file = choose_split(judged, split, f"{folder}: one qrels.tsv, or qrels/NAME.tsv")
    documents, queries = (_table(rows_of_table(_only(folder, f"{part}.jsonl*"))) for part in ("corpus", "queries"))
    return CollectionSource(str(folder), documents, queries, _judgments(file, 3))


def read_hub(name: str, split: str | None) -> CollectionSource:
    """Read BEIR's layout from the Hub: configurations corpus and queries; judgments in qrels, default or NAME-qrels.

    Raises:
        ValueError: if the Hub does not give them.
    """
    configurations = of_hub(name, lambda path, _: datasets.get_dataset_config_names(path))
    judged = next((f"{name}:{part}" for part in ("qrels", "default") if part in configurations), f"{name}-qrels")

    def load(part: str, wanted: str | None) -> Any:
        splits = datasets.get_dataset_split_names(*part.split(":"))
        return load_corpus(part, choose_split({split: split for split in splits}, wanted, part))

    documents, queries = (
        _table((f"{part}, row {number}", row) for number, row in enumerate(load(part, None)))
        for part in (f"{name}:corpus", f"{name}:queries")
    )
    rows, columns = load(judged, split), ("query-id", "corpus-id", "score")
    if missing := {*columns} - {*rows.column_names}:
        raise ValueError(f"{judged} needs the column {' and '.join(sorted(missing))}, found {rows.column_names}.")
    return CollectionSource(
        name, documents, queries, _grades(((row[name] for name in columns) for row in rows), judged)
    )


def read_ms_marco(folder: Path, split: str | None) -> CollectionSource:
    """Read MS MARCO's documents (id, url, title, body; no urls) and a split's queries; dl19 and dl20 are TREC's."""
    known = {
        name: files for name, files in MARCO_SPLITS.items() if all(any(folder.glob(f"{file}*")) for file in files)
    }
    queries, qrels = (_only(folder, f"{file}*") for file in choose_split(known, split, str(folder)))

    def documents() -> Iterator[tuple[str, str]]:
        for document, _, title, body in read_fields(_only(folder, "msmarco-docs.tsv*"), 4, "\t"):
            yield document, joined(title, body)

    rows = ((query, text) for query, text in read_fields(queries, 2, "\t"))
    return CollectionSource(str(folder), documents(), rows, _judgments(qrels, 4))


def read_wikir(folder: Path, split: str | None) -> CollectionSource:
    """Read WIKIR's documents.csv (id_right, text_right), and a split's queries.csv (id_left, text_left) and qrels.

    A table has no sections. In its place documents.jsonl may have them: id_right, and text_right or sections.
    """
    splits = {"train": "training", "validation": "validation", "test": "test"}
    known = {name: folder / part for name, part in splits.items() if (folder / part).is_dir()}
    part = choose_split(known, split, str(folder))
    file = _only(folder, "documents.[cj]s*")
    documents = _table(rows_of_table(file), ("id_right", "text_right"))
    queries = _table(rows_of_table(_only(part, "queries.csv*")), ("id_left", "text_left"))
    source = CollectionSource(str(folder), documents, queries, _judgments(_only(part, "qrels*"), 4))
    if ".csv" in file.suffixes:
        source.notes.append(f"{file.name} has no sections: documents.jsonl can have them (docs/datasets.md).")
    return source


def read_trec(folder: Path, split: str | None) -> CollectionSource:
    """Read TREC's files: titles of topics, qrels, and headline and text of documents in SGML."""
    if split not in (None, "test"):
        raise ValueError(f"{folder} has one set of topics and no --split {split}: divide it by --folds.")
    topics = TREC_TOPIC.findall(_text_of(_only(folder, "topics*")))
    queries = [(number, " ".join(title.split())) for number, title in topics]
    source = CollectionSource(str(folder), (), queries, _judgments(_only(folder, "qrels*"), 4))
    source.documents = _trec_documents(folder / "documents", source.notes)
    return source


COLLECTION_FORMATS: dict[str, tuple[str, Callable[[Path, str | None], CollectionSource]]] = {
    "BEIR": ("corpus.jsonl*", read_beir),
    "MS MARCO": ("msmarco-docs.tsv*", read_ms_marco),
    "WIKIR": ("documents.[cj]s*", read_wikir),
    "TREC": ("topics*", read_trec),
}


def choose_split(known: Mapping[str, T], split: str | None, place: str) -> T:
    """Choose what belongs to a split. Default: to test, or to the only one.

    Raises:
        ValueError: if there is no such split, or it has to be named.
    """
    if split is None:
        split = "test" if "test" in known else next(iter(known)) if len(known) == 1 else None
    if split is None or split not in known:
        raise ValueError(
            f"{place}: expected with --split {split or 'NAME'}, found {', '.join(known) or 'none'}"
            + (": name one of them." if known else ".")
        )
    return known[split]


def joined(title: str, text: str) -> str:
    """Join title and text by a blank line, unless the text begins with the title."""
    return text if text.startswith(title) else f"{title}\n\n{text}".strip()


def _only(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise ValueError(f"{folder} should hold one file {pattern.rstrip('*')}, found {names}.")
    return files[0]


def _table(rows: Iterable[tuple[str, JsonObject]], columns: tuple[str, str] = ("_id", "text")) -> CollectionRows:
    """Take ids, texts or in their place `sections`, and, where there are any, titles, of rows with their places."""
    id_column, text_column = columns
    for place, row in rows:
        if text_column not in row:
            if "sections" not in row:
                raise ValueError(f"{place} needs the column {text_column}, or sections; found {[*row]}.")
            row = row | {text_column: join_sections(row)}
        text = text_of_cell(row[text_column], f"{place}: {text_column}")
        title = text_of_cell(row.get("title"), f"{place}: title")
        yield id_of_cell(row.get(id_column), f"{place}: {id_column}"), joined(title, text)


def _judgments(file: Path, columns: int) -> Judgments:
    """Read judgments: the 3 columns of BEIR, with a header, or the 4 of TREC, of which the second says nothing."""
    lines = read_fields(file, columns, "\t" if columns == 3 else None)
    if columns == 3 and (header := next(lines, [])) != ["query-id", "corpus-id", "score"]:
        raise ValueError(f"{file} should begin with the columns query-id, corpus-id and score, found {header}.")
    yield from _grades(((line[0], *line[-2:]) for line in lines), str(file))


def _grades(rows: Iterable[Iterable[Any]], place: str) -> Judgments:
    """Take query, document and grade, a whole number, of rows."""
    for query, document, grade in rows:
        try:
            number = float(grade)
        except (ValueError, TypeError, OverflowError):  # a word, nothing, an integer of 400 digits
            number = math.nan
        if not number.is_integer() or abs(number) >= 2**31:
            raise ValueError(f"{place} has the grade {grade!r}, expected a whole number, 0 where not relevant.")
        yield str(query), str(document), int(number)


def _text_of(file: Path) -> str:
    """Read a file as UTF-8, else as Latin-1, which TREC's disks have."""
    content = File(file, file.name).read()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _trec_documents(folder: Path, notes: list[str]) -> Iterator[tuple[str, str]]:
    others, without_text = [], 0
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        documents = TREC_DOCUMENT.findall(_text_of(file))
        others += [] if documents else [file.name]
        for document in documents:
            name = TREC_ID.search(document)
            if name is None:
                raise ValueError(f"{file} has a <DOC> without <DOCNO>.")
            texts = TREC_TEXT.findall(document)
            without_text += not texts
            titles = [match[1] for match in TREC_TITLE.findall(TREC_TEXT.sub(" ", document))]
            texts = texts or [TREC_TITLE.sub(" ", TREC_ID.sub(" ", document))]
            yield name[1], joined(_plain(" ".join(titles)), "\n\n".join(map(_plain, texts)))
    if others:
        notes.append(f"{len(others):,} files of {folder} have no <DOC> and are not read, such as {others[0]}.")
    if without_text:
        notes.append(f"{without_text:,} documents of {folder} have no <TEXT>: all that they have is read.")


def _plain(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<!--.*?-->|<[^<>]*>", " ", text, flags=re.DOTALL)).split())


# --- Queries of a corpus ---


@dataclass
class CollectionRow:
    """A document of the corpus, of which a query is made."""

    id: str
    title: str
    text: str  # its sections with `docsplit.data.passages.SECTION_BREAK` between them
    whole: str  # the text as a pretraining may have read it
    links: list[str] = field(default_factory=list)  # ids or titles
    headings: list[str] = field(default_factory=list)  # of its sections


def by_title(row: CollectionRow) -> tuple[str, str]:
    """Take the title, and remove it from the beginning of the text."""
    return row.title, row.text.removeprefix(row.title) if row.title else row.text


def by_first_sentence(row: CollectionRow) -> tuple[str, str]:
    """Take the first sentence that is no heading, and leave the text around it: headings and sections stay."""
    parts = [clean_text(part) for part in row.text.strip().split(SECTION_BREAK)]
    text, readable = SECTION_BREAK.join(parts), " ".join(parts)  # equally long: a place in one is one in the other
    start = after_headings(readable, [row.title, *row.headings])
    first = next(iter(load_sentence_splitter("rules")(readable[start : start + BEGINNING])), "")
    place = readable.find(first, start)
    if not first or readable[start:place].strip():
        return "", text
    return first, f"{text[:place]}{text[place + len(first) :].lstrip(' ')}"


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


QUERIES: dict[str, Callable[[CollectionRow], tuple[str, str]]] = {
    "title": by_title,
    "first_sentence": by_first_sentence,
    "first_line": lambda row: row.text.strip().partition("\n")[::2],  # the summary of a docstring, and the rest
}


def build_ranking(corpus: str, queries: str, split: str | None) -> CollectionSource:
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
    split = split or "test"
    if split not in (*PART_NAMES, "all"):
        raise ValueError(f"--split is {split!r}: the queries of a corpus are {', '.join(PART_NAMES)} or all.")
    notes: list[str] = []
    rows = _python_docs(split) if corpus == PYTHON_DOCS else _rows(corpus, queries, notes)
    is_divided_here = corpus != PYTHON_DOCS and split != "all"
    distinct: dict[str, tuple[str, str]] = {}  # each query in lower case -> the id and text of its first
    documents, judgments = [], []
    without = chosen = links = unknown = 0
    id_of = {row.id: row.id for row in rows}  # links name ids or titles
    id_of |= {row.title: row.id for row in rows if row.title not in id_of}
    for row in rows:
        query, rest = QUERIES[queries](row)
        query = " ".join(query.split())
        if not query or not rest.strip():
            without += 1
            documents.append((row.id, row.text))
            continue
        documents.append((row.id, rest.strip()))
        if is_divided_here and split_of(row.whole) != split:
            continue
        chosen += 1
        name, _ = distinct.setdefault(query.lower(), (row.id, query))
        judgments.append((name, row.id, 2))
        targets = [id_of.get(link) for link in row.links]
        links, unknown = links + len(targets), unknown + targets.count(None)
        judgments += [(name, target, 1) for target in targets if target is not None and target != row.id]
    if without:
        notes.append(f"{without:,} documents have no {queries.replace('_', ' ')} and text beside: they ask nothing.")
    if chosen > len(distinct):
        notes.append(f"{chosen - len(distinct):,} queries equal another one: the relevant documents of both count.")
    if unknown:
        notes.append(f"{unknown:,} of {links:,} links lead out of the collection.")
    if is_divided_here:
        notes.append(f"{chosen:,} of {len(rows) - without:,} documents ask: --split {split}; all: --split all.")
    whole = {row.id: row.whole for row in rows}
    return CollectionSource(f"{corpus}, {queries}", documents, list(distinct.values()), judgments, whole, notes)


def split_of(text: str) -> str:
    """Choose the split of a document's query: a tenth each for validation and testing, else training."""
    return {0: "validation", 1: "test"}.get(document_id(text) % 10, "train")


def _python_docs(part: str) -> list[CollectionRow]:
    """Take the documents of a part, without "See also" lists, and with the links among them."""
    rows = load_corpus(PYTHON_DOCS).to_list()
    texts, _, _ = split_references(rows)
    chosen = [(row, text) for row, text in zip(rows, texts) if part in ("all", row[PART])]
    names = {row["id"] for row, _ in chosen}
    return [
        CollectionRow(row["id"], row["title"], text, row["text"], [link for link in row["links"] if link in names])
        for row, text in chosen
    ]


def _rows(corpus: str, queries: str, notes: list[str]) -> list[CollectionRow]:
    """Read the documents of a corpus; a missing id is the row's number."""
    dataset = add_text(load_corpus(corpus), "text")
    if queries == "title" and "title" not in dataset.column_names:
        raise ValueError(f"--queries title needs a corpus with the column title; {corpus} has {dataset.column_names}.")
    if "links" not in dataset.column_names:
        notes.append("The corpus has no column links: a query's own document alone is relevant.")
    columns = [name for name in ("id", "title", "text", "links", "sections") if name in dataset.column_names]
    rows = []
    record: Any
    for number, record in enumerate(dataset.select_columns(columns)):
        text = record["text"] if isinstance(record["text"], str) else ""
        name = number if record.get("id") in (None, "") else record["id"]
        links = [str(link) for link in record.get("links") or ()]
        rows.append(CollectionRow(str(name), record.get("title") or "", text, text, links, headings_of(record)))
    return rows


# --- Folds ---


def make_folds(ranking: Ranking, folds: str, seed: int) -> list[np.ndarray]:
    """Return the numbers of the queries in each fold.

    Args:
        folds: how many, drawn with `seed`; or a JSON file with the query ids of each, [["301", ...], ...], as others
            give Robust04's. Ids of queries that were left out may be among them.

    Raises:
        ValueError: if there are fewer than two, or a query is in none of them or in two.
    """
    count = len(ranking.query_ids)
    if folds.isdigit():
        if not 2 <= int(folds) <= count:
            raise ValueError(f"--folds is {folds}: expected 2 to {count}, the number of queries.")
        return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(count), int(folds))]
    lists = read_any_json(Path(folds))
    if not isinstance(lists, list) or not all(isinstance(entry, list) for entry in lists):
        raise ValueError(f"--folds {folds} should be two or more lists of query ids: [[id, id, ...], [id, ...]].")
    fold_of: dict[str, int] = {}
    for number, ids in enumerate(lists):
        for query in map(str, ids):
            if fold_of.setdefault(query, number) != number:
                raise ValueError(f"--folds {folds} has query {query} in two folds.")
    numbers = np.array([fold_of.get(query, -1) for query in ranking.query_ids])
    parts = [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
    if numbers.min() < 0 or len(parts) < 2:
        missing = ", ".join(query for query in ranking.query_ids[:99] if query not in fold_of)
        raise ValueError(
            f"--folds {folds} has {len(parts)} folds of the queries, expected 2 or more; not in any: {missing}"
        )
    return parts


def divide_queries(ranking: Ranking, folds: str, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide queries into rows to train on, to choose by and to report: fold `number` (from 0) is reported.

    The fold after it is for choosing. Training and evaluation call this with the same collection, and get the same
    parts.

    Args:
        folds: as `make_folds` takes it.

    Raises:
        ValueError: if there are fewer than three folds, or none of this number.
    """
    parts = make_folds(ranking, folds, FOLD_SEED)
    if len(parts) < 3:
        raise ValueError(f"--folds {folds} gives {len(parts)} folds, expected 3 or more: to train, choose and report.")
    if not 0 <= number < len(parts):
        raise ValueError(f"--fold is {number}, expected 0 to {len(parts) - 1}: the {len(parts)} folds count from 0.")
    chosen = (number + 1) % len(parts)
    others = [part for place, part in enumerate(parts) if place not in (number, chosen)]
    return np.sort(np.concatenate(others)), parts[chosen], parts[number]


def describe_fold(folds: str, number: int) -> str:
    """Describe a fold that is reported, for notes of results."""
    return f"The queries of fold {number} (--folds {folds}) alone; what is chosen is chosen on those of the next fold."
