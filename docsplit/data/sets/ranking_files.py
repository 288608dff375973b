"""Read collections in the formats that others publish them in; each has a row in `FORMATS`.

    BEIR        corpus.jsonl, queries.jsonl, and qrels.tsv or qrels/SPLIT.tsv; or the same as a data set on the Hub
    MS MARCO    msmarco-docs.tsv, msmarco-docdev-queries.tsv, msmarco-docdev-qrels.tsv ...
    WIKIR       documents.csv or .jsonl; training, validation and test, each with queries.csv and qrels
    TREC        topics*, qrels*, and a folder documents/ of <DOC> files, as Robust04's

A reader gives rows as they stand in the files, which may be compressed (gz, bz2, xz, zst). It checks single lines;
`docsplit.data.sets.rankings` checks that they fit together.
"""

import html
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import datasets
import pandas

from docsplit.data.corpora import load_corpus
from docsplit.data.readers.base import Problems
from docsplit.data.readers.files import DAMAGED, File, lines_of
from docsplit.data.readers.rows import id_of_cell, join_sections, read_line_rows, text_of_cell
from docsplit.runtime.files import JsonObject, refuse_missing_path

logger = logging.getLogger(__name__)

T = TypeVar("T")
Rows = Iterable[tuple[str, str]]  # id and text
Judgments = Iterable[tuple[str, str, int]]  # query, document, grade

HIGHEST_GRADE = 2**31
CSV_ROWS = 10_000  # read at a time
MARCO_SPLITS = {  # queries and judgments beside msmarco-docs.tsv
    "train": ("msmarco-doctrain-queries.tsv", "msmarco-doctrain-qrels.tsv"),
    "dev": ("msmarco-docdev-queries.tsv", "msmarco-docdev-qrels.tsv"),
    "dl19": ("msmarco-test2019-queries.tsv", "2019qrels-docs.txt"),
    "dl20": ("msmarco-test2020-queries.tsv", "2020qrels-docs.txt"),
}
WIKIR_DOCUMENTS = "documents.[cj]s*"  # .csv or .jsonl
WIKIR_SPLITS = {"train": "training", "validation": "validation", "test": "test"}
TREC_DOCUMENT = re.compile(r"<DOC>(.*?)</DOC>", re.DOTALL | re.IGNORECASE)
TREC_ID = re.compile(r"<DOCNO>\s*(.*?)\s*</DOCNO>", re.DOTALL | re.IGNORECASE)
TREC_TITLE = re.compile(r"<(HEADLINE|TITLE|TI|DOCTITLE)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
TREC_TEXT = re.compile(r"<TEXT>(.*?)</TEXT>", re.DOTALL | re.IGNORECASE)
TREC_TOPIC = re.compile(
    r"<num>\s*(?:Number:)?\s*([^\s<]+)(?:(?!<num>).)*?<title>\s*(?:Topic:)?\s*([^<]*)", re.DOTALL | re.IGNORECASE
)
TREC_MARKUP = re.compile(r"<!--.*?-->|<[^<>]*>", re.DOTALL)


@dataclass
class Source:
    """A collection as it stands in files, unchecked."""

    name: str
    documents: Rows
    queries: Rows
    judgments: Judgments
    whole: dict[str, str] = field(default_factory=dict)  # documents before a query was taken out of them
    notes: list[str] = field(default_factory=list)


def read_folder(folder: Path, split: str | None) -> Source:
    """Read a folder in the format whose first file it has.

    Args:
        split: of the queries. Default: test, or the only one.

    Raises:
        ValueError: if it is in none of them, a file or split is missing, or a line cannot be understood.
    """
    for marker, read in FORMATS.values():
        if any(folder.glob(marker)):
            return read(folder, split)
    raise ValueError(
        f"{folder} should hold corpus.jsonl, queries.jsonl and one qrels.tsv, or qrels/NAME.tsv (BEIR); or the files "
        f"of {', '.join(name for name in FORMATS if name != 'BEIR')}, see docs/datasets.md."
    )


def read_beir(folder: Path, split: str | None) -> Source:
    """Read BEIR's layout. A document is title, blank line and text; or the text alone if it begins with its title."""
    judged = {path.name.split(".")[0]: path for path in sorted(folder.glob("qrels/*.tsv*"))}
    if alone := sorted(folder.glob("qrels.tsv*")):
        if len(alone) + len(judged) > 1:
            raise ValueError(f"{folder} should hold one qrels.tsv, or qrels/NAME.tsv, and not both.")
        judged["test"] = alone[0]
    file = choose_split(judged, split, f"{folder}: one qrels.tsv, or qrels/NAME.tsv")
    documents, queries = _lines_of(folder, "corpus.jsonl"), _lines_of(folder, "queries.jsonl")
    return Source(str(folder), documents, queries, _judgments_of_tsv(file))


def read_hub(name: str, split: str | None) -> Source:
    """Read BEIR's layout from the Hub: configurations corpus and queries; judgments in qrels, default or NAME-qrels.

    Raises:
        ValueError: if the Hub does not give them.
    """
    refuse_missing_path(name, "a folder that is there, a data set of the Hub (USER/NAME), or python_docs")
    try:
        configurations = datasets.get_dataset_config_names(name)
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        raise ValueError(
            f"--collection {name!r} is neither python_docs, nor a folder here, nor a data set that the Hub gave: "
            f"{' '.join(str(error).split())}"
        ) from error
    if missing := {"corpus", "queries"} - {*configurations}:
        raise ValueError(
            f"--collection {name!r} has no configuration {' and '.join(sorted(missing))}, as BEIR's have, but "
            f"{configurations}; a corpus with titles needs --queries title."
        )
    judged = next((f"{name}:{part}" for part in ("qrels", "default") if part in configurations), f"{name}-qrels")

    def load(part: str, wanted: str | None) -> Any:
        splits = datasets.get_dataset_split_names(*part.split(":"))
        return load_corpus(part, choose_split({split: split for split in splits}, wanted, part))

    documents, queries = (
        _table(
            ((f"{name}:{part}, row {number}", row) for number, row in enumerate(load(f"{name}:{part}", None))), part
        )
        for part in ("corpus", "queries")
    )
    rows = load(judged, split)
    return Source(name, documents, queries, _judgments_of_rows(rows, judged))


def read_ms_marco(folder: Path, split: str | None) -> Source:
    """Read MS MARCO's documents (id, url, title, body; no urls) and a split's queries; dl19 and dl20 are TREC's."""
    known = {
        name: files for name, files in MARCO_SPLITS.items() if all(any(folder.glob(f"{file}*")) for file in files)
    }
    queries, qrels = (_only(folder, f"{file}*") for file in choose_split(known, split, str(folder)))

    def documents() -> Iterator[tuple[str, str]]:
        for document, _, title, body in _fields(_only(folder, "msmarco-docs.tsv*"), 4, "\t"):
            yield document, joined(title, body)

    rows = ((query, text) for query, text in _fields(queries, 2, "\t"))
    return Source(str(folder), documents(), rows, _judgments_of_trec(qrels))


def read_wikir(folder: Path, split: str | None) -> Source:
    """Read WIKIR's documents.csv (id_right, text_right), and a split's queries.csv (id_left, text_left) and qrels.

    A table has no sections. In its place documents.jsonl may have them: id_right, and text_right or sections.
    """
    known = {name: folder / part for name, part in WIKIR_SPLITS.items() if (folder / part).is_dir()}
    part = choose_split(known, split, str(folder))
    file = _only(folder, WIKIR_DOCUMENTS)
    is_table = ".csv" in file.suffixes
    documents = _csv(file) if is_table else _lines_of(folder, "documents.jsonl", ("id_right", "text_right"))
    source = Source(
        str(folder), documents, _csv(_only(part, "queries.csv*")), _judgments_of_trec(_only(part, "qrels*"))
    )
    if is_table:
        source.notes.append(f"{file.name} has no sections: documents.jsonl can have them (docs/datasets.md).")
    return source


def read_trec(folder: Path, split: str | None) -> Source:
    """Read TREC's files: titles of topics, qrels, and headline and text of documents in SGML."""
    if split not in (None, "test"):
        raise ValueError(f"{folder} has one set of topics and no --split {split}: divide it by --folds.")
    topics = TREC_TOPIC.findall(_text_of(_only(folder, "topics*")))
    queries = [(number, " ".join(title.split())) for number, title in topics]
    source = Source(str(folder), (), queries, _judgments_of_trec(_only(folder, "qrels*")))
    source.documents = _trec_documents(folder / "documents", source.notes)
    return source


FORMATS: dict[str, tuple[str, Callable[[Path, str | None], Source]]] = {
    "BEIR": ("corpus.jsonl*", read_beir),
    "MS MARCO": ("msmarco-docs.tsv*", read_ms_marco),
    "WIKIR": (WIKIR_DOCUMENTS, read_wikir),
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


def _lines_of(folder: Path, name: str, columns: tuple[str, str] = ("_id", "text")) -> Rows:
    """Read a .jsonl file; `columns` are those of ids and texts."""
    file = _only(folder, f"{name}*")
    opened = File(file, str(file))
    if opened.suffix != ".jsonl":
        raise ValueError(f"{folder} should hold {name}, which may be compressed, found {file.name}.")

    def rows() -> Iterator[tuple[str, JsonObject]]:
        problems = Problems(refuses_rows=True)
        for number, row in read_line_rows(opened, problems):
            yield f"{file}, row {number + 1}", row
        _say(problems)

    return _table(rows(), str(file), columns)


def _say(problems: Problems) -> None:
    for warning in problems.warnings():
        logger.warning(warning)


def _table(rows: Iterable[tuple[str, JsonObject]], place: str, columns: tuple[str, str] = ("_id", "text")) -> Rows:
    """Take ids, texts or in their place `sections`, and, where there are any, titles, of rows with their places."""
    (id_column, text_column), is_empty = columns, True
    for row_place, row in rows:
        has_sections = text_column not in row and "sections" in row
        if is_empty and (missing := {*columns} - {*row} - ({text_column} if has_sections else set())):
            raise ValueError(f"{place} needs the column {' and '.join(sorted(missing))}, found {[*row]}.")
        is_empty = False
        text = join_sections(row, text_column)[text_column] if has_sections else row.get(text_column)
        title, text = (
            text_of_cell(value, f"{row_place}: {name}")
            for name, value in (("title", row.get("title")), (text_column, text))
        )
        yield id_of_cell(row.get(id_column), f"{row_place}: {id_column}"), joined(title, text)
    if is_empty:
        raise ValueError(f"{place} has no rows.")


def _text_of(file: Path) -> str:
    """Read a file as UTF-8, else as Latin-1, which TREC's disks have."""
    if file.suffix in (".Z", ".z", ".0z", ".1z", ".2z"):
        raise ValueError(f"{file} is compressed as Python cannot read it: uncompress the documents first (gzip -d).")
    content = File(file, file.name).read()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _fields(file: Path, count: int, separator: str | None) -> Iterator[list[str]]:
    """Split each line that is not empty into its fields; there is no quoting."""
    opened, problems, number = File(file, str(file)), Problems(), 0
    if (encoding := opened.encoding()).is_detected:
        problems.note("detected", f"{file} as {encoding.name}")
    with opened.open() as content:
        try:
            for line in lines_of(content, encoding, newline="\n"):
                number = line.number
                if not line.text.strip():
                    continue
                if line.is_mended:
                    problems.note("mended", f"{file}, line {number}")
                fields = line.text.rstrip("\r\n").split(separator)
                if len(fields) != count:
                    found = f"{len(fields)} fields, expected {count}: {line.text[:80]!r}"
                    raise ValueError(f"{file}, line {number} has {found}.")
                yield fields
        except DAMAGED as error:
            raise ValueError(f"{file} is damaged after line {number}: {' '.join(str(error).split())}") from error
    _say(problems)


def _csv(file: Path) -> Iterator[tuple[str, str]]:
    """Read the first two columns of a table with a header."""
    options: dict[str, Any] = {"dtype": str, "keep_default_na": False, "usecols": [0, 1], "index_col": False}
    try:
        for rows in pandas.read_csv(file, chunksize=CSV_ROWS, **options):
            yield from zip(rows.iloc[:, 0], rows.iloc[:, 1])
    except (ValueError, *DAMAGED) as error:
        raise ValueError(f"Cannot read {file} as a table of ids and texts with a header: {error}") from error


def _judgments_of_tsv(file: Path) -> Judgments:
    lines = _fields(file, 3, "\t")
    header = next(lines, [])
    if header != ["query-id", "corpus-id", "score"]:
        raise ValueError(f"{file} should begin with the columns query-id, corpus-id and score, found {header}.")
    for query, document, grade in lines:
        yield query, document, _grade(grade, str(file))


def _judgments_of_trec(file: Path) -> Judgments:
    for query, _, document, grade in _fields(file, 4, None):
        yield query, document, _grade(grade, str(file))


def _judgments_of_rows(rows: Any, place: str) -> Judgments:
    if missing := {"query-id", "corpus-id", "score"} - {*rows.column_names}:
        raise ValueError(f"{place} needs the column {' and '.join(sorted(missing))}, found {rows.column_names}.")
    return ((str(row["query-id"]), str(row["corpus-id"]), _grade(row["score"], place)) for row in rows)


def _grade(value: Any, place: str) -> int:
    try:
        if float(value) == int(float(value)) and abs(float(value)) < HIGHEST_GRADE:
            return int(float(value))
    except (ValueError, TypeError, OverflowError):  # a word, nothing, infinity
        pass
    raise ValueError(f"{place} has the grade {value!r}, expected a whole number, 0 where not relevant.")


def _trec_documents(folder: Path, notes: list[str]) -> Iterator[tuple[str, str]]:
    others, without_text = [], 0
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder} with TREC's <DOC> files.")
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
    return " ".join(html.unescape(TREC_MARKUP.sub(" ", text)).split())
