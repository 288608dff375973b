"""Read PDF, Word and PowerPoint files as text, which markitdown converts where it is installed."""

import functools
import io
import logging
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from docsplit.data.readers.base import Document, Unreadable
from docsplit.data.readers.files import File
from docsplit.data.readers.text import as_document

CONVERTED_SUFFIXES = (".pdf", ".docx", ".pptx")
REMEDY = 'pip install "markitdown[pdf,docx,pptx]"'
_NO_TEXT = re.compile(r"<!-- Slide number: \d+ -->|!\[(?:\\.|[^\]\\])*\]\([^)\n]*\)")  # a slide's number, a picture
_ESCAPED = re.compile(r"\\([\\`*_{}\[\]()#+.!|<>~-])")


def read_converted(file: File) -> Document:
    """Convert a file to Markdown, as one document.

    Raises:
        Unreadable: if it is damaged, or markitdown is not installed.
    """
    content = file.read()
    try:
        converter, stream_info = _markitdown()
    except ImportError as error:
        raise _needs_markitdown(file) from error
    try:
        markdown = converter.convert_stream(
            io.BytesIO(content), stream_info=stream_info(extension=file.suffix)
        ).markdown
    except Exception as error:  # of any library below: a damaged file must not end a build of thousands
        if "MissingDependencyException" in str(error):  # markitdown without [pdf], [docx] or [pptx]
            raise _needs_markitdown(file) from error
        cause = " ".join(str(error).split())
        raise Unreadable("that cannot be converted", f"{file.path} cannot be converted: {cause}") from error
    text = _NO_TEXT.sub("", markdown.encode(errors="replace").decode())
    if file.suffix == ".docx":  # the only one whose text comes out as escaped Markdown
        text = _ESCAPED.sub(r"\1", text)
    return as_document(file, text.strip())


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


def _needs_markitdown(file: File) -> Unreadable:
    return Unreadable.for_lack_of("markitdown", REMEDY, file.path)
