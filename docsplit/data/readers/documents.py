"""Read the documents of a folder with files of any kinds, or of one file, each with an id and a title."""

import functools
import io
import logging
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lxml import etree

from docsplit.data.passages import heading_at
from docsplit.data.readers.base import USUAL, Columns, Document, Problems, Unreadable
from docsplit.data.readers.files import File, FoundFiles, find_files
from docsplit.data.readers.rows import ids_of_rows, read_texts

logger = logging.getLogger(__name__)

TEXT_SUFFIXES = (".txt", ".md", ".markdown", ".rst", ".tex")
HTML_SUFFIXES = (".html", ".htm", ".xhtml")
CONVERTED_SUFFIXES = (".pdf", ".docx", ".pptx")
ROW_SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow")
SUFFIXES = (*TEXT_SUFFIXES, *HTML_SUFFIXES, *CONVERTED_SUFFIXES, *ROW_SUFFIXES)
WITH_HEADINGS = (".md", ".markdown", ".rst", ".docx", ".pptx")
LONGEST_TITLE = 90  # characters
TITLE_IN = 2000  # characters of a text in which its title is looked for
Documents = str | Path | Mapping[str, str] | Iterable[str | Document]  # what the Python API takes for documents

_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)\n---[ \t]*(?:\n|$)", re.DOTALL)  # of YAML, before a Markdown text
_TITLE_IN_YAML = re.compile(r"""^title:[ \t]*(["']?)(.*\w.*?)\1[ \t]*$""", re.MULTILINE)
# What stands before the title: the time at which a page was printed, a name that links lead to, and comments.
_NO_TITLE = re.compile(r"\d{1,4}[/.-]\d{1,2}[/.-]\d{1,4},?\s+\d{1,2}:\d\d(:\d\d)?(\s*[AP]M)?\b|\.\. .*|<!--.*")
_HEADER_LINE = re.compile(r"[A-Za-z][\w-]+: ")
_SUBJECT = re.compile(r"(?im)^subject:[ \t]*(.*\w.*)")
_NO_TEXT = re.compile(r"<!-- Slide number: \d+ -->|!\[(?:\\.|[^\]\\])*\]\([^)\n]*\)")  # a slide's number, a picture
_ESCAPED = re.compile(r"\\([\\`*_{}\[\]()#+.!|<>~-])")
_OPEN_TITLE = re.compile(r"(?is)<title\b[^<>]*>(?!(?:(?!<title\b|</head\b|<body\b).){0,1000}?</title)[^<]*")
_HYPHENATED = re.compile(r"(?<![\w-])([\w-]*[^\W\d_])([-\u00ad\u2010])[ \t]*\n[ \t]*(?=[^\W\d_])(\w+)")


# --- Folders and files ---


def find_documents(path: Path) -> FoundFiles:
    """Find the files that can be read; also `_temporary/part-0.parquet`, as other programs leave it, is hidden.

    Raises:
        ValueError: if there is no such path.
    """
    return find_files(path, SUFFIXES, hidden_by_underscore=ROW_SUFFIXES)


def read_documents(path: Path, columns: Columns = USUAL) -> Iterator[Document]:
    """Read the documents of a folder, or of one file.

    A text file (.txt, .md, .rst, .tex, .html) and a converted one (.pdf, .docx, .pptx) is one document; its id is its
    path within the folder. A data file (.json, .jsonl, .csv, .tsv, .parquet, .arrow) has a document in each row, see
    `docsplit.data.readers.rows.ids_of_rows`. All may be compressed. Hidden files are left out. In a folder, a file
    that cannot be read is skipped, and so is a row that cannot be read; the log counts both by suffix and reason.

    Raises:
        ValueError: if there is nothing to read, if the one file cannot be read, or without that column of ids.
    """
    found = find_documents(path)
    yield from documents_in(found, columns)
    found.problems.log()


def documents_in(found: FoundFiles, columns: Columns) -> Iterator[Document]:
    """Read all documents, file after file; `found` then has what could not be read.

    Raises:
        ValueError: as `read_documents`.
    """
    if found.is_folder and any(file.suffix in ROW_SUFFIXES for file in found.files):
        logger.info("The ids of rows begin with the name of their file, such as `papers.csv#12`.")
    num_read = 0
    for file in found.files:
        of_file, before = Problems(), num_read
        try:
            if file.suffix in ROW_SUFFIXES:
                id_of = ids_of_rows(file, columns.id, found.is_folder, of_file)
                for number, row, text in read_texts(file, columns, of_file):
                    title = row.get("title")
                    is_title = isinstance(title, str | int | float) and not isinstance(title, bool) and title == title
                    yield Document(id_of(number, row), text, str(title).strip() * is_title or title_of(text))
                    num_read += 1
            else:
                yield read_file(file, of_file, columns.encoding)
                num_read += 1
        except Unreadable as error:
            if not (found.is_folder or num_read):
                raise
            found.problems.add("file", f"{file.suffix} {error.reason}", file.name)
            found.unread.add(file.name)
        if of_file.number_of("row"):
            found.unread.add(file.name)
        if num_read > before:  # those of a file without any row that can be read are in its error
            found.problems.merge(of_file)
    if not num_read:
        there = ". ".join(found.problems.warnings()) or "There is no file in it"
        of_files = ", ".join(TEXT_SUFFIXES + HTML_SUFFIXES + CONVERTED_SUFFIXES)
        expected = f"{of_files}, or {', '.join(ROW_SUFFIXES)} with a text in each row"
        raise ValueError(f"{found.path} has no documents that can be read. {there}. Expected {expected}.")


def read_file(file: File, problems: Problems, encoding: str | None = None) -> Document:
    """Read a file as one document; its id is its name.

    Its title is that of the page, of a PDF's or a Markdown file's metadata, the first heading or the first line.

    Raises:
        Unreadable: if the file cannot be opened or converted, is binary, or is of an encoding that is unknown.
    """
    if file.suffix in CONVERTED_SUFFIXES:
        title, text = _converted(file, file.read())
    else:
        is_page = file.suffix in HTML_SUFFIXES
        title, text = "", file.text(problems, encoding, is_page)
        if is_page:
            title, text = text_of_page(text)
    title = title or title_of(text, has_headings=file.suffix in WITH_HEADINGS)
    return Document(file.name, text, title or file.stem)


def documents_of(documents: Documents) -> Iterator[Document]:
    """Yield the documents that a Python call is given.

    Args:
        documents: a path, whose files `read_documents` reads; texts by id; or texts or `Document`s. The id of a text
            without one is its number, from 0; its title is its first line.

    Raises:
        ValueError: as `read_documents`, or for a table and whatever else is no text.
    """
    refuse_table(documents)
    if isinstance(documents, str | Path):
        yield from read_documents(Path(documents))
        return
    by_id = documents.items() if isinstance(documents, Mapping) else enumerate(documents)
    for number_or_id, item in by_id:
        if not isinstance(item, str | Document):
            raise ValueError(
                f"Document {number_or_id!r} is a {type(item).__name__}: give texts (strings), or a folder or file."
            )
        yield item if isinstance(item, Document) else Document(str(number_or_id), item, title_of(item))


def refuse_table(documents: object) -> None:
    """Refuse a table (pandas, polars, Arrow, datasets), of which a loop gives the names of columns, or rows.

    Raises:
        ValueError: naming a column.
    """
    for attribute in ("column_names", "columns"):
        names = getattr(documents, attribute, None)
        if names is not None and len(names):
            names = list(names)
            column = "text" if "text" in names else names[0]
            raise ValueError(
                f"The documents are a {type(documents).__name__} with the columns {names}: give one of them, such as "
                f"documents[{column!r}]."
            )


# --- Titles ---


def title_of(text: str, has_headings: bool = False) -> str:
    """Take the title of a YAML front matter, of the first heading, the subject of a mail, or the first line of words.

    Names that links lead to, comments and the time of printing are no title.
    """
    if front := _FRONT_MATTER.match(text):
        if named := _TITLE_IN_YAML.search(front[1]):
            return _shortened(named[2])
        text = text[front.end() :]
    text = text[:TITLE_IN]
    lines = text.splitlines()
    header = text.lstrip().partition("\n\n")[0]
    if _HEADER_LINE.match(header) and (subject := _SUBJECT.search(header)):
        lines = [subject[1]]
    elif has_headings:
        begins = (number for number, line in enumerate(lines) if line and not (number and lines[number - 1].strip()))
        lines = lines[next((number for number in begins if heading_at(lines, number)), 0) :]
    for line in lines:
        line = _NO_TITLE.sub("", line.lstrip("# \t"), count=1) if _NO_TITLE.match(line.lstrip()) else line
        if any(character.isalpha() for character in line):
            return _shortened(line.lstrip("# \t"))
    return ""


def _shortened(title: str) -> str:
    title = " ".join(title.split())
    return title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 1]}…"


# --- Plain text and web pages ---


def text_of_page(content: str) -> tuple[str, str]:
    """Return the title of a page and its visible text: blocks with an empty line between, headings after `##`.

    A title or comment that is never closed would be all of the rest: it ends at the next mark.
    """
    closed = content.rfind("-->") + 1
    content = content[:closed] + content[closed:].replace("<!--", " ")
    content = _OPEN_TITLE.sub(r"\g<0></title>", content)
    parser = etree.HTMLParser(target=_Page(), encoding="utf-8", huge_tree=True)
    parser.feed(b"<html>" + content.encode(errors="replace"))
    page = parser.close()
    blocks = ("\n".join(" ".join(line.split()) for line in block.split("\n")) for block in page.text.split("\n\n"))
    return " ".join(page.title.split()), "\n\n".join(block.strip() for block in blocks if block.strip("# \n"))


class _Page:
    """Takes the elements of a page from lxml, and gathers its title and its text.

    Blocks stand apart; words on both sides of `<b>` are one; between all other elements, such as cells, is a space.
    """

    HEADINGS = frozenset(f"h{level}" for level in range(1, 7))
    BLOCKS = HEADINGS | frozenset(
        "address article aside blockquote body br caption center dd details dialog div dl dt fieldset figcaption "
        "figure footer form head header hgroup hr legend li main menu nav ol p pre search section summary table tbody "
        "tfoot thead tr ul".split()
    )
    INLINE = frozenset(
        "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd mark nobr q rb ruby s samp small span "
        "strike strong sub sup time tt u var wbr".split()
    )
    UNSEEN = frozenset(("script", "style", "noscript", "template", "title"))

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.title = self.text = ""
        self.is_title = False
        self.unseen = self.in_svg = self.in_pre = 0  # open elements

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin an element."""
        self.is_title = tag == "title" and not (self.title or self.unseen or self.in_svg)
        if self.unseen or tag in self.UNSEEN or "hidden" in attributes:
            self.unseen += 1
            return
        self.in_svg += tag == "svg"
        self.in_pre += tag == "pre"
        self._separate(tag, "## " if tag in self.HEADINGS else "")

    def end(self, tag: str) -> None:
        """End an element."""
        self.is_title = False
        if self.unseen:
            self.unseen -= 1
            return
        self.in_svg -= tag == "svg"
        self.in_pre -= tag == "pre"
        self._separate(tag)

    def _separate(self, tag: str, mark: str = "") -> None:
        if tag not in self.INLINE:
            self.parts.append(f"\n\n{mark}" if tag in self.BLOCKS else " ")

    def data(self, data: str) -> None:
        """Take a text, or a part of one."""
        if self.is_title:
            self.title += data
        elif not self.unseen:
            self.parts.append(data if self.in_pre else re.sub(r"\s+", " ", data))

    def close(self) -> "_Page":
        """End the page."""
        self.text = "".join(self.parts)
        return self


# --- PDF, Word and PowerPoint ---


def _converted(file: File, content: bytes) -> tuple[str, str]:
    """Convert a file to Markdown by markitdown; return the title of its metadata, for PDF, and its text."""
    remedy = 'pip install "markitdown[pdf,docx,pptx]"'
    missing = Unreadable(f"for lack of markitdown: {remedy}", f"{file.path} needs markitdown: {remedy}")
    try:
        converter, stream_info = _markitdown()
    except ImportError as error:
        raise missing from error
    try:
        stream = io.BytesIO(content)
        markdown = converter.convert_stream(stream, stream_info=stream_info(extension=file.suffix)).markdown
    except Exception as error:  # of any library below: a damaged file must not end a build of thousands
        if "MissingDependencyException" in str(error):  # markitdown without [pdf], [docx] or [pptx]
            raise missing from error
        cause = " ".join(str(error).split())
        raise Unreadable("that cannot be converted", f"{file.path} cannot be converted: {cause}") from error
    text = _NO_TEXT.sub("", markdown)
    if file.suffix == ".docx":  # the only one whose text comes out as escaped Markdown
        text = _ESCAPED.sub(r"\1", text)
    if file.suffix == ".pdf":
        return _title_of_pdf(content), text_of_pdf(text).strip()
    return "", text.strip()


def text_of_pdf(text: str) -> str:
    """Write ligatures as letters (NFKC), and words that a hyphen divides at the end of a line as one.

    A compound that is somewhere else in the text with its hyphen keeps it.
    """
    text = unicodedata.normalize("NFKC", text)
    compounds = {word for word in re.findall(r"[\w-]+", text) if "-" in word}

    def joined(match: re.Match[str]) -> str:
        compound = f"{match[1]}-{match[3]}"
        keeps = match[2] != "\u00ad" and (not match[3][0].islower() or compound in compounds)
        return compound if keeps else match[1] + match[3]

    return _HYPHENATED.sub(joined, text)


def _title_of_pdf(content: bytes) -> str:
    """Read the title in a PDF's metadata, by what markitdown reads it with; a name of a file is none."""
    try:
        from pdfminer.pdfdocument import PDFDocument
        from pdfminer.pdfparser import PDFParser
        from pdfminer.utils import decode_text

        title = decode_text(PDFDocument(PDFParser(io.BytesIO(content))).info[0]["Title"])
    except Exception:  # without metadata, or a title in them
        return ""
    is_name = re.search(r"(?i)\.\w{2,4}$|^microsoft \w+ - |^untitled", title.strip())
    return "" if is_name or not any(map(str.isalpha, title)) else _shortened(unicodedata.normalize("NFKC", title))


def converter_version() -> str | None:
    """Return the version of markitdown, or None. Files that another version converted are converted anew."""
    try:
        return version("markitdown")
    except PackageNotFoundError:
        return None


@functools.cache
def _markitdown() -> tuple[Any, Any]:
    """Make a converter of these three kinds only: with others, a damaged file would be read as plain text."""
    from markitdown import MarkItDown, StreamInfo
    from markitdown.converters import DocxConverter, PdfConverter, PptxConverter

    logging.getLogger("pdfminer").setLevel(logging.ERROR)  # it warns of the fonts of every other file
    converter = MarkItDown(enable_builtins=False)
    for kind in (DocxConverter, PdfConverter, PptxConverter):
        converter.register_converter(kind())
    return converter, StreamInfo
