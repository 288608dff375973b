"""Read the documents of a folder with files of any kinds, or of one file, each with an id and a title."""

import functools
import io
import itertools
import logging
import os
import re
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from email import message_from_string, policy
from pathlib import Path
from typing import Any

from lxml import etree

from docsplit.data.passages import UNSPACED, heading_at
from docsplit.data.readers.base import USUAL, Document, Problems, TableColumns, Unreadable, normalized
from docsplit.data.readers.files import (
    CONVERTED_SUFFIXES,
    FORMATS,
    HTML_SUFFIXES,
    SUFFIXES,
    File,
    FoundFiles,
    find_files,
)
from docsplit.data.readers.markup import front_matter_of, text_of_markdown, without_data
from docsplit.data.readers.rows import ids_of_rows, read_texts, text_of_scalar

logger = logging.getLogger(__name__)

MARKDOWN_SUFFIXES = (".md", ".markdown")
WITH_HEADINGS = (*MARKDOWN_SUFFIXES, ".rst", ".pptx")  # Word's title stands as a plain line before its headings
LONGEST_TITLE = 90  # characters
TITLE_IN = 2000  # characters of a text in which its title is looked for
Documents = str | Path | Mapping[str, str] | Iterable[str | Document]  # what the Python API takes for documents

# What stands before the title: the time of a message, or of printing, a name that links lead to, comments, labels.
_NO_TITLE = re.compile(
    r"(?i)\s*(?:\[?\d{1,4}[/.-]\d{1,2}[/.-]\d{1,4},?\s+\d{1,2}:\d\d(:\d\d)?(\s*[AP]M)?\b(\]|\s+-(?=\s))?"
    r"|\.\. .*|<!--.*|#!.*|#\+title:)"
)
# Titles in metadata that are a file's name, or what programs call a new file.
_UNTITLED = re.compile(
    r"(?i).*\.(?:docx?|odt|rtf|pages|wpd|pdf|pptx?|tex|dvi|e?ps|indd|qxd|xlsx?|txt|html?)"
    r"|microsoft \w+ - .*|untitled.*"
    r"|\W*(?:unbenannt|sans titre|anonymous|unknown|none|no title|title|word document)\W*\d*"
    r"|(?:\w+ (?:de )?)?powerpoint(?:[ -]\w+)?|(?:slide|folie|diapositiv[ae]) ?\d+|[^\W\d]+[-_]?\d+"
)
# The subject of a mail, after other lines of its header, which go on at white space.
_SUBJECT = re.compile(
    r"(?i)(?:From .*\n)?(?:(?!subject:)[a-z][\w-]+:.*\n(?:[ \t].*\n)*)*(subject:[ \t].*(?:\n[ \t].*)*)"
)
_LATEX_LINE = re.compile(r"\s*(?:\\[a-zA-Z@]|%)")
_LATEX_TITLE = re.compile(r"(?m)^[^%\n]*?\\(title|chapter|section)\*?\s*(?:\[[^\]\n]{0,200}\])?\s*\{")
_LATEX_COMMAND = re.compile(r"\\([&%$#_])|\\\\|\\[a-zA-Z@]+\*?[ \t]*|[{}~\n]|%.*")
_LATEX_LETTER = re.compile(r"\\(ss|[oO]|[lL]|ae|AE|oe|OE|aa|AA|i)(?![a-zA-Z])(?:[ ]+|\{\})?")
_LETTERS = dict(zip(("ss", "o", "O", "l", "L", "ae", "AE", "oe", "OE", "aa", "AA", "i"), "ßøØłŁæÆœŒåÅi"))
_LATEX_ACCENT = re.compile(r"""\\(["'`^~=.]|[cvuHkr](?![a-zA-Z]))[ ]*\{?(\w)\}?""")
_ACCENTS = dict(
    zip("\"'`^~=.cvuHkr", "\u0308\u0301\u0300\u0302\u0303\u0304\u0307\u0327\u030c\u0306\u030b\u0328\u030a")
)
# In Markdown: code and comments, the tags of HTML, pictures, links.
_FENCED = re.compile(r"(?ms)^(```|~~~).*?(?:^\1|\Z)|<!--.*?(?:-->|\Z)")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_HTML_HEADING = re.compile(r"(?i)<h[1-6]\b[^<>]*>\s*")
_PICTURE = re.compile(r"!\[[^\[\]\n]*\](?:\([^)\n]*\)|\[[^\]\n]*\])")
_LINK = re.compile(r"\[([^\[\]\n]*)\](?:\([^()\n]*\)|\[[^\[\]\n]*\])")
_HEADING = re.compile(r"#{1,6}[ \t].*\w")
# In Markdown an underline of any length makes a heading; a list or a quote before a ruler is none.
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*")
_UNDERLINED = re.compile(r"(?! {0,3}(?:[-*+>]|\d+[.)])[ \t]|>)(?=.*[^\W\d_])[^|]+")
_NO_TEXT = re.compile(r"<!-- Slide number: \d+ -->|!\[(?:\\.|[^\]\\])*\]\([^)\n]*\)")  # a slide's number, a picture
# The point of a list, a sign that stands for itself, and asterisks that begin or end what is bold.
_ESCAPED_OR_BOLD = re.compile(r"(?m)(^[ \t]*\*[ ])|\\([\\`*_{}\[\]()#+.!|<>~&-])|(?<=\S)\*+|\*+(?=\S)")
_NO_CHARACTER = re.compile(r"\(cid:\d+\)")  # a letter of a font that does not say which it is
_WORD = re.compile(rf"[{UNSPACED}]|[^\W\d_]+")
_OPEN_TITLE = re.compile(r"(?is)<title\b[^<>]*>(?!(?:(?!<title\b|</head\b|<body\b).){0,1000}?</title)[^<]*")
# What may follow a hyphen that stands for the rest of a compound.
_CONJUNCTION = re.compile("and|or|und|oder|bzw|sowie|y|e|o|u|et|ou|en|of|och|eller|og|i|a|и|или|та|і")
_HYPHENATED = re.compile(r"(?<![\w-])([\w-]*[^\W\d_])([-\u00ad\u2010])[ \t]*\n[ \t]*(?=[^\W\d_])(\w+)")


# --- Folders and files ---


def read_documents(path: Path, columns: TableColumns = USUAL) -> Iterator[Document]:
    """Read the documents of a folder, or of one file.

    A text file (.txt, .md, .rst, .tex, .html) and a converted one (.pdf, .docx, .pptx) is one document; its id is its
    path within the folder. A data file (`FORMATS`) has a document in each row, see
    `docsplit.data.readers.rows.ids_of_rows`. All may be compressed. Hidden files are left out. In a folder, a file
    that cannot be read is skipped, and so is a row that cannot be read; the log counts both by suffix and reason.

    Raises:
        ValueError: if there is nothing to read, if the one file cannot be read, or without that column of ids.
    """
    found = find_files(path)
    yield from documents_in(found, columns)
    found.problems.log()


def documents_in(found: FoundFiles, columns: TableColumns) -> Iterator[Document]:
    """Read all documents, file after file; `found` then has what could not be read.

    Raises:
        ValueError: as `read_documents`.
    """
    if found.is_folder and any(file.suffix in FORMATS for file in found.files):
        logger.info("The ids of rows begin with the name of their file, such as `papers.csv#12`.")

    def read(file: File, problems: Problems) -> Iterator[Document]:
        if file.suffix not in FORMATS:
            yield read_document_file(file, problems, columns.encoding)
            return
        id_of = ids_of_rows(file, columns.id, found.is_folder, problems)
        for number, row, text in read_texts(file, columns, problems):
            title = row.get("title")
            is_title = isinstance(title, str | int | float) and not isinstance(title, bool) and title == title
            given = text_of_scalar(title).strip() if is_title else ""
            yield Document(id_of(number, row), text, given or title_of(text))

    num_read = 0
    for num_read, document in enumerate(found.read(read), start=1):  # noqa: B007
        yield document
    if not num_read:
        there = ". ".join(found.problems.warnings()) or "There is no file in it"
        of_files = ", ".join(suffix for suffix in SUFFIXES if suffix not in FORMATS)
        expected = f"{of_files}, or {', '.join(FORMATS)} with a text in each row"
        raise ValueError(f"{found.path} has no documents that can be read. {there}. Expected {expected}.")


def read_document_file(file: File, problems: Problems, encoding: str | None = None) -> Document:
    """Read a file as one document; its id is its name.

    Its title is that of the page, of the metadata of a PDF, Word, PowerPoint or Markdown file, the first heading or
    the first line.

    Raises:
        Unreadable: if the file cannot be opened or converted, is binary, or is of an encoding that is unknown.
    """
    if file.suffix in CONVERTED_SUFFIXES:
        title, text = _converted(file, file.read(), problems)
    else:
        is_page = file.suffix in HTML_SUFFIXES
        title, text = "", file.text(problems, encoding, is_page)
        if is_page:
            title, text = text_of_page(text)
        text = without_data(text, problems, file.name)
    title = title or title_of(text, has_headings=file.suffix in WITH_HEADINGS)
    text = text_of_markdown(text) if file.suffix in MARKDOWN_SUFFIXES else text
    return Document(file.name, text, title or file.stem)


def documents_of(documents: Documents) -> Iterator[Document]:
    """Yield the documents that a Python call is given.

    Args:
        documents: a path, whose files `read_documents` reads; texts by id; or texts or `Document`s. The id of a text
            without one is its number, from 0; its title is its first line.

    Raises:
        ValueError: as `read_documents`, or for a table, paths, and whatever else is no text.
    """
    if isinstance(documents, str | Path):
        yield from read_documents(Path(documents))
        return
    refuse_other_than_texts(documents)
    by_id = documents.items() if isinstance(documents, Mapping) else enumerate(values_of(documents))
    for number_or_id, item in by_id:
        if not isinstance(item, str | Document):
            raise ValueError(
                f"Document {number_or_id!r} is a {type(item).__name__}: give texts (strings), or a folder or file."
            )
        yield item if isinstance(item, Document) else Document(str(number_or_id), item, title_of(item))


def values_of(column: Iterable[Any]) -> Iterator[Any]:
    """Yield the values of a list, a generator, or a column of any library: those of Arrow as Python has them."""
    for value in column:
        yield value.as_py() if hasattr(value, "as_py") else value


def refuse_other_than_texts(documents: object) -> None:
    """Refuse paths, sets, and tables (pandas, polars, Arrow, datasets), of which a loop gives column names or rows.

    Raises:
        ValueError: naming a column, or a path.
    """
    if isinstance(documents, set | frozenset):
        raise ValueError("The documents are a set, which has another order in each process: give a list.")
    for attribute in ("column_names", "columns"):
        names = getattr(documents, attribute, None)
        if names is not None and len(names):
            names = list(names)
            column = "text" if "text" in names else names[0]
            raise ValueError(
                f"The documents are a {type(documents).__name__} with the columns {names}: give one of them, such as "
                f"documents[{column!r}]."
            )
    listed: Any = [documents] if isinstance(documents, Path) else documents
    listed = listed.values() if isinstance(listed, Mapping) else listed
    # A few show what all are, where the others are still in a file
    first = list(itertools.islice(listed, 5)) if hasattr(listed, "__len__") else []
    if first and all(map(_is_path, first)):
        raise ValueError(
            f"The documents are paths, such as {first[0]}: give their texts, which "
            "docsplit.data.readers.documents.read_documents reads."
        )


def _is_path(document: object) -> bool:
    """Whether this is a path, or a text that names a file here by a folder or a suffix; "." is a text."""
    if isinstance(document, str) and (os.sep in document or "." in document):
        return bool(document.strip(f".{os.sep}")) and os.path.exists(document)
    return isinstance(document, Path)


# --- Titles ---


def title_of(text: str, has_headings: bool = False) -> str:
    """Take the title of a front matter, of LaTeX, of the first heading, of a mail, or the first line of words.

    Names that links lead to, comments and the time of printing are no title.
    """
    text = text.replace("\r\n", "\n")
    front, text = front_matter_of(text)
    if any(map(str.isalnum, front.get("title", ""))):
        return _shortened(front["title"])
    is_latex = bool(_LATEX_LINE.match(text) and re.search(r"\\[a-z]+\{", text[:TITLE_IN]))
    if is_latex and (title := _title_of_latex(text)):
        return title
    if mail := _SUBJECT.match(text.lstrip()):
        header = message_from_string(normalized(mail[1][:TITLE_IN]), policy=policy.default)
        if header["subject"]:
            return _shortened(header["subject"])
    if has_headings:
        text = _FENCED.sub("", text[: 3 * TITLE_IN])
        text = _TAG.sub("", _HTML_HEADING.sub("\n\n# ", text))
        text = _LINK.sub(r"\1", _PICTURE.sub("", text))
    lines = text[:TITLE_IN].splitlines()
    if has_headings:
        begins = (number for number, line in enumerate(lines) if line and not (number and lines[number - 1].strip()))
        is_heading = (
            number
            for number in begins
            if _HEADING.match(lines[number])
            or heading_at(lines, number)
            or (_UNDERLINE.fullmatch("".join(lines[number + 1 : number + 2])) and _UNDERLINED.fullmatch(lines[number]))
        )
        lines = lines[next(is_heading, 0) :]
    for line in lines:
        line = _NO_TITLE.sub("", line.lstrip(), count=1) if _NO_TITLE.match(line.lstrip()) else line
        if any(map(str.isalpha, line)) and not (is_latex and _LATEX_LINE.match(line)):
            line = _without_marks(re.sub(r"\s#+\s*$", "", line)) if has_headings else line
            return _shortened(line.lstrip("#%").strip("=*| \t"))
    return ""


def _title_of_latex(text: str) -> str:
    """Take what stands between the braces of `\\title`, or of the first chapter or section, without commands."""
    starts = {match[1]: match.end() for match in reversed([*_LATEX_TITLE.finditer(text[: 50 * TITLE_IN])])}
    start = next((starts[command] for command in ("title", "chapter", "section") if command in starts), len(text))
    title, depth = "", 1
    for letter in text[start : start + TITLE_IN]:
        depth += (letter == "{") - (letter == "}")
        if not depth:
            break
        title += letter
    title = re.sub(r"\\(?:thanks|footnote)\b.*", "", title, flags=re.DOTALL)
    title = _LATEX_LETTER.sub(lambda match: _LETTERS[match[1]], title)
    title = _LATEX_ACCENT.sub(lambda match: match[2] + _ACCENTS[match[1]], title)
    return _shortened(_LATEX_COMMAND.sub(lambda match: match[1] or " ", title))


def _without_marks(markdown: str) -> str:
    """Take what is bold, and what a backslash stands before, as it reads: a word of which a part is bold is one."""
    return _ESCAPED_OR_BOLD.sub(lambda match: match[1] or match[2] or "", markdown)


def _shortened(title: str) -> str:
    """Cut a long title; white space is one space, and marks of the direction of writing are not at its ends."""
    title = " ".join(title.split()).strip(
        "\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
    )
    return title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 1]}…"


# --- Plain text and web pages ---


def text_of_page(content: str) -> tuple[str, str]:
    """Return the title of a page and its visible text: blocks with an empty line between, headings after `##`.

    A title or comment that is never closed would be all of the rest: it ends at the next mark. A page with words in
    `<noscript>` alone is read as without scripts.
    """
    closed = content.rfind("-->") + 1
    content = content[:closed] + content[closed:].replace("<!--", " ")
    content = _OPEN_TITLE.sub(r"\g<0></title>", content)
    for without_scripts in (False, True):
        parser = etree.HTMLParser(target=_Page(without_scripts), encoding="utf-8", huge_tree=True)
        parser.feed(b"<html>" + content.encode(errors="replace"))
        page = parser.close()
        if any(map(str.isalnum, page.text)):
            break
    blocks = ("\n".join(" ".join(line.split()) for line in block.split("\n")) for block in page.text.split("\n\n"))
    return _shortened(page.title), "\n\n".join(block.strip() for block in blocks if block.strip("# \n"))


class _Page:
    """Takes the elements of a page from lxml, and gathers its title and its text.

    Blocks stand apart; words on both sides of `<b>` are one; between all other elements, such as cells, and between
    links that follow one another is a space.
    """

    HEADING = re.compile("h[1-6]")
    BLOCK = re.compile(
        "h[1-6]|address|article|aside|blockquote|body|br|caption|center|dd|details|dialog|div|dl|dt|fieldset|figcaption|"
        "figure|footer|form|head|header|hgroup|hr|legend|li|main|menu|nav|ol|p|pre|search|section|summary|table|tbody|"
        "tfoot|thead|tr|ul"
    )
    INLINE = re.compile(
        "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|mark|nobr|q|rb|ruby|s|samp|small|span|"
        "strike|strong|sub|sup|time|tt|u|var|wbr"
    )
    LINK_END = ""

    def __init__(self, without_scripts: bool) -> None:
        self.invisible = {"script", "style", "template", "title", *(["noscript"] if not without_scripts else [])}
        self.parts: list[str] = []
        self.title = self.text = ""
        self.is_title = False
        self.unseen = self.in_svg = self.in_pre = self.in_heading = 0  # open elements

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin an element."""
        self.is_title = tag == "title" and not (self.title or self.unseen or self.in_svg)
        is_shown = attributes.get("hidden", "until-found").lower() == "until-found"
        is_shown &= tag not in self.invisible or (tag == "template" and "shadowrootmode" in attributes)
        if self.unseen or not is_shown:
            self.unseen += 1
            return
        self.in_heading += bool(self.HEADING.fullmatch(tag))
        self.in_svg += tag == "svg"
        self.in_pre += tag == "pre"
        if tag == "a" and self.parts[-1:] == [self.LINK_END]:
            self.parts.append(" ")
        self._separate(tag, "## " if self.HEADING.fullmatch(tag) else "")

    def end(self, tag: str) -> None:
        """End an element."""
        self.is_title = False
        if self.unseen:
            self.unseen -= 1
            return
        self.in_svg -= tag == "svg"
        self.in_pre -= tag == "pre"
        self.in_heading -= bool(self.HEADING.fullmatch(tag))
        if tag == "a":
            self.parts.append(self.LINK_END)
        self._separate(tag)

    def _separate(self, tag: str, mark: str = "") -> None:
        if not self.INLINE.fullmatch(tag):
            is_block = self.BLOCK.fullmatch(tag) and not (tag == "br" and self.in_heading)
            self.parts.append(f"\n\n{mark}" if is_block else " ")

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


def _converted(file: File, content: bytes, problems: Problems) -> tuple[str, str]:
    """Convert a file to Markdown by markitdown; return the title of its metadata, and its text.

    Raises:
        Unreadable: if it cannot be converted; for a PDF with fewer than two words a page, such as a scan, or one whose
            fonts do not say which characters they have.
    """
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
        text = _without_marks(text)
    if file.suffix == ".pdf":
        text, unnamed = _NO_CHARACTER.subn("", text)
        numbers = "with (cid:1) and the like in place of letters: OCR first, such as ocrmypdf --force-ocr"
        if len(set(_WORD.findall(text))) < 2 * (text.strip().count("\f") + 1):
            flaw = numbers if unnamed else "without text, such as scans: OCR first, such as ocrmypdf"
            raise Unreadable(flaw, f"{file.path} is one of the files {flaw}")
        if unnamed:
            problems.add("text", f"{numbers}; what can be read is read", file.name)
        return _title_of_pdf(content), text_of_pdf(text).strip()
    return _title_of_office(content), text.strip()


def text_of_pdf(text: str) -> str:
    """Write ligatures as letters (NFKC), and words that a hyphen divides at the end of a line as one.

    A compound that is somewhere else in the text with its hyphen keeps it, and so does a part of a compound before an
    "and": in- and outputs.
    """
    text = unicodedata.normalize("NFKC", text)
    compounds = {word for word in re.findall(r"[\w-]+", text) if "-" in word}
    words = set(re.findall(r"\w+", text))

    def joined(match: re.Match[str]) -> str:
        compound = f"{match[1]}-{match[3]}"
        if match[2] != "\u00ad" and _CONJUNCTION.fullmatch(match[3]) and match[1] + match[3] not in words:
            return f"{match[1]}- {match[3]}"
        keeps = match[2] != "\u00ad" and (not match[3][0].islower() or compound in compounds)
        return compound if keeps else match[1] + match[3]

    return _HYPHENATED.sub(joined, text)


def _title_of_pdf(content: bytes) -> str:
    """Read the title in a PDF's metadata, by what markitdown reads it with."""
    try:
        from pdfminer.pdfdocument import PDFDocument
        from pdfminer.pdfparser import PDFParser
        from pdfminer.utils import decode_text

        title = decode_text(PDFDocument(PDFParser(io.BytesIO(content))).info[0]["Title"])
    except Exception:  # without metadata, or a title in them
        return ""
    return _given_title(unicodedata.normalize("NFKC", title))


def _title_of_office(content: bytes) -> str:
    """Read the title in the properties of a Word or PowerPoint file."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open("docProps/core.xml") as file:
            properties = file.read(2**20)
        title = etree.fromstring(properties, etree.XMLParser(resolve_entities=False)).findtext("{*}title")
    except Exception:  # without properties, or damaged
        return ""
    return _given_title(title or "")


def _given_title(title: str) -> str:
    """Return the title of a file's metadata, or nothing if it is a file's name or that of a new document."""
    title = " ".join(title.split())
    is_title = any(map(str.isalpha, title)) and not _UNTITLED.fullmatch(title)
    return _shortened(title) if is_title else ""


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
