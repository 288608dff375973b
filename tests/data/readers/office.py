"""Small PDF, Word and Excel files, made here."""

import io
import re
import zipfile

from openpyxl import Workbook
from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
DOCUMENT = f"{OFFICE}/officeDocument"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
WORD_TYPE = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"

CORE = (
    '<cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/core-properties" '
    'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{}</dc:title></cp:coreProperties>'
)


def make_docx(heading, paragraph, title=None):
    """A Word file of a heading and a paragraph, perhaps with a title in its properties."""
    properties = {} if title is None else {"docProps/core.xml": CORE.format(title)}
    files = {
        "[Content_Types].xml": f'<?xml version="1.0"?><Types xmlns="{TYPES}">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/word/document.xml" ContentType="{WORD_TYPE}"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{RELATIONS}">'
        f'<Relationship Id="r" Type="{DOCUMENT}" Target="word/document.xml"/></Relationships>',
        "word/document.xml": f'<w:document xmlns:w="{WORD}"><w:body>'
        f'<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>{heading}</w:t></w:r></w:p>'
        f"<w:p><w:r><w:t>{paragraph}</w:t></w:r></w:p></w:body></w:document>",
        **properties,
    }
    return _zipped(files)


def make_xlsx(rows, hidden=0, **sheets):
    """A workbook with a sheet of these rows, and others by name: numbers and texts, nothing where a cell is None.

    The first ones may be hidden. The dimensions are wrong, as some programs write them.
    """
    book, content, changed = Workbook(), io.BytesIO(), {}
    book.remove(book.active)
    for number, (name, of_sheet) in enumerate({"First": rows, **sheets}.items()):
        sheet = book.create_sheet(name)
        sheet.sheet_state = "hidden" if number < hidden else "visible"
        for row in of_sheet:
            sheet.append([_writable(cell) if isinstance(cell, str) else cell for cell in row])
    book.active = hidden
    book.save(content)
    with zipfile.ZipFile(content) as archive:
        for name in archive.namelist():
            changed[name] = re.sub(rb'dimension ref="[^"]*"', b'dimension ref="A1"', archive.read(name))
    return _zipped(changed)


def _writable(text):
    return ILLEGAL_CHARACTERS_RE.sub("", text.encode(errors="replace").decode())


def _zipped(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def make_pdf(lines):
    """A PDF of one page."""
    stream = f"BT /F1 12 Tf 72 720 Td 14 TL {' '.join(f'({line}) Tj T*' for line in lines)} ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        "/Resources << /Font << /F1 5 0 R >> >> >>",
        f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    content, places = "%PDF-1.4\n", []
    for number, text in enumerate(objects, start=1):
        places.append(f"{len(content):010} 00000 n \n")
        content += f"{number} 0 obj\n{text}\nendobj\n"
    table = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{''.join(places)}"
    trailer = f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(content)}\n%%EOF"
    return (content + table + trailer).encode()
