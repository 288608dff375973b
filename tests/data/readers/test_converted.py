"""PDF, Word and PowerPoint files."""

import gzip

import pytest

from docsplit.data.readers.base import Document, Unreadable
from docsplit.data.readers.converted import converter_version, read_converted
from docsplit.data.readers.files import File
from tests.data.readers.office import make_docx, make_pdf, make_pptx

NEEDS = r'a\.\w+ needs markitdown: pip install "markitdown\[pdf,docx,pptx\]"'


@pytest.fixture
def read(write):
    def read(name, content):
        return read_converted(File(write(name, content), name))

    return read


def test_a_converted_file_is_a_document(read, markitdown):
    """Compressed or not; without what stands for slides and pictures, and without marks of escaping."""
    assert read("a.pdf", b"ok # A ship\n\nIt sank.") == Document("a.pdf", "# A ship\n\nIt sank..pdf", "A ship")
    assert read("b.docx.gz", gzip.compress(b"ok snake\\_case ![a\\]](b.png)")).text == "snake_case .docx"
    assert read("c.pptx", b"ok <!-- Slide number: 1 -->\n![a](b.jpg)\n# C").text == "# C.pptx"
    assert read("d.pdf", b"ok a\\_b").text == "a\\_b.pdf"


def test_a_damaged_file_cannot_be_converted(read, markitdown):
    with pytest.raises(Unreadable, match=r"a\.pdf cannot be converted: .* Pdf threw Damage") as caught:
        read("a.pdf", b"Damage")
    assert caught.value.reason == "that cannot be converted"
    with pytest.raises(Unreadable, match="cannot be opened"):
        read("a.pdf.gz", b"ok no gzip")


def test_without_markitdown_or_a_part_of_it_the_command_is_named(read, markitdown, request):
    with pytest.raises(Unreadable, match=NEEDS):  # markitdown is there, what reads pdf is not
        read("a.pdf", b"MissingDependencyException")
    request.getfixturevalue("no_markitdown")
    with pytest.raises(Unreadable, match=NEEDS):
        read("a.docx", make_docx("Sails", "..."))


def test_real_files_are_converted(read):
    pytest.importorskip("markitdown")
    text = "A torn sail &amp; a [rope], snake_case."
    assert read("a.docx", make_docx("Sails", text)) == Document(
        "a.docx", "# Sails\n\nA torn sail & a [rope], snake_case.", "Sails"
    )
    pdf = make_pdf(["Storms at sea", "A ship sank."])
    assert read("b.pdf", pdf) == Document("b.pdf", "Storms at sea\nA ship sank.", "Storms at sea")
    assert read("c.pptx", make_pptx("Harbours", "Boats\nCranes")) == Document(
        "c.pptx", "# Harbours\nBoats\nCranes", "Harbours"
    )
    assert converter_version()


@pytest.mark.parametrize(
    "content",
    [b"", b"%PDF", b"A plain text.", make_docx("a", "b")[:100], make_pdf(["a"])[:150]],
    ids=["empty", "only a head", "text", "half a docx", "half a pdf"],  # a docx has its time in it
)
@pytest.mark.parametrize("suffix", [".pdf", ".docx", ".pptx"])
def test_real_damaged_files_are_not_read_as_plain_text(read, content, suffix):
    pytest.importorskip("markitdown")
    with pytest.raises(Unreadable, match="cannot be converted"):
        read(f"a{suffix}", content)
