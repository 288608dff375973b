"""Documents to search: the files of a folder, or the rows of data files, each with an id and a title."""

import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from docsplit.data.corpora import COMPRESSIONS, LOADERS, add_text, join_paragraphs, load_corpus

logger = logging.getLogger(__name__)

TEXT_FILES = (".txt", ".md", ".markdown", ".rst", ".tex")
HTML_FILES = (".html", ".htm", ".xhtml")
ROW_FILES = tuple(suffix for suffix in LOADERS if suffix != ".txt")
ID_COLUMNS = ("id", "_id", "doc_id")
LONGEST_TITLE = 90  # characters
_WHITE_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Document:
    """A text with its id and title."""

    id: str
    text: str
    title: str = ""


def read_documents(path: Path, text_column: str = "text", id_column: str | None = None) -> Iterator[Document]:
    """Read the documents of a folder, or of one file.

    A text file (.txt, .md, .rst, .tex, .html) is a document; its id is its path within the folder. A data file (.json,
    .jsonl, .csv, .tsv, .parquet, .arrow, also compressed) has a document in each row; its id is that of `id_column`,
    by default the first of id, _id and doc_id, or else the file's path and the row. Hidden files are not read. Other
    files are counted, by suffix, in the log.

    Args:
        text_column: of data files; see `docsplit.data.corpora.add_text`.

    Raises:
        ValueError: if there is nothing to read, or a column is missing.
    """
    if not path.exists():
        raise ValueError(f"There is no {path}: name a folder of documents, or a file.")
    root = path if path.is_dir() else path.parent
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    passed_over, mended, num_read = Counter[str](), 0, 0
    for file in files:
        name = file.relative_to(root)
        if any(part.startswith(".") for part in name.parts):
            continue
        suffixes = [suffix.lower() for suffix in file.suffixes]
        plain = [suffix for suffix in suffixes if suffix not in COMPRESSIONS][-1:] or [""]
        if suffixes[-1:] == plain and plain[0] in TEXT_FILES + HTML_FILES:
            content = file.read_bytes().decode(errors="replace")
            mended += "�" in content
            title, text = _of_html(content) if plain[0] in HTML_FILES else ("", content)
            yield Document(_printable(name.as_posix()), text, title or _first_line(text) or _printable(name.stem))
            num_read += 1
        elif plain[0] in ROW_FILES:
            yield from _of_rows(file, _printable(name.as_posix()), text_column, id_column)
            num_read += 1
        else:
            passed_over[plain[0] or "no suffix"] += 1
    if not num_read:
        others = ", ".join(f"{count} {suffix}" for suffix, count in passed_over.items()) or "nothing"
        raise ValueError(
            f"{path} has no documents that can be read, but {others}: expected {', '.join(TEXT_FILES + HTML_FILES)}, "
            f"or {', '.join(ROW_FILES)} with a text in each row. (PDF: pdftotext makes .txt of it.)"
        )
    if passed_over:
        logger.warning(f"Passed over, by suffix: {dict(passed_over)}.")
    if mended:
        logger.warning(f"{mended} files have bytes that are no UTF-8, read as question marks.")


def _of_rows(file: Path, name: str, text_column: str, id_column: str | None) -> Iterator[Document]:
    dataset = add_text(load_corpus(str(file)), text_column)
    columns = [id_column] if id_column else [column for column in ID_COLUMNS if column in dataset.column_names][:1]
    if id_column and id_column not in dataset.column_names:
        raise ValueError(f"--id_column is {id_column!r}, but the columns of {file} are {dataset.column_names}.")
    row: Any
    for number, row in enumerate(dataset):
        text = join_paragraphs(row[text_column]) or ""
        document_id = str(row[columns[0]]) if columns else f"{name}#{number}"
        yield Document(document_id, text, str(row.get("title") or _first_line(text)))


def _printable(name: str) -> str:
    """Write a file's name in UTF-8, as an index needs it: other bytes as their codes."""
    return name.encode(errors="backslashreplace").decode()


def _first_line(text: str) -> str:
    """Take the first line with a letter in it as a title: without the marks of a heading, shortened."""
    for line in text[:2000].splitlines():
        if any(character.isalpha() for character in line):
            title = " ".join(line.lstrip("# \t").split())
            return title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 1]}…"
    return ""


class _Text(HTMLParser):
    """The visible text of a page, block by block, and its title."""

    BLOCKS = frozenset(("p", "div", "li", "ul", "ol", "tr", "table", "section", "article", "blockquote", "pre", "dd"))
    BLOCKS |= {"dt", "br", "hr"}
    HEADINGS = frozenset(f"h{level}" for level in range(1, 7))
    UNSEEN = frozenset(("script", "style", "noscript", "template"))

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.title = ""
        self.unseen = 0
        self.in_title = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.unseen += tag in self.UNSEEN
        self.in_title |= tag == "title"
        if tag in self.BLOCKS | self.HEADINGS:
            self.parts.append("\n\n## " if tag in self.HEADINGS else "\n\n")

    def handle_endtag(self, tag: str) -> None:
        self.unseen -= tag in self.UNSEEN and self.unseen > 0
        self.in_title &= tag != "title"
        if tag in self.BLOCKS | self.HEADINGS:
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if self.in_title:
            self.title += data
        elif not self.unseen:
            self.parts.append(_WHITE_SPACE.sub(" ", data))


def _of_html(content: str) -> tuple[str, str]:
    parser = _Text()
    parser.feed(content)
    parser.close()
    blocks = (" ".join(block.split()) for block in "".join(parser.parts).split("\n\n"))
    return " ".join(parser.title.split()), "\n\n".join(block for block in blocks if block.strip("# "))
