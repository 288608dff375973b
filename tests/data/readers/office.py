"""Small PDF, Word and Excel files, made here."""

import io
import zipfile
from xml.sax.saxutils import escape

TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
DOCUMENT = f"{OFFICE}/officeDocument"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
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
        "[Content_Types].xml": f'<Types xmlns="{TYPES}">'
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

    The first ones may be hidden.
    """
    sheets = {"First": rows, **sheets}
    part = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    names = range(1, len(sheets) + 1)
    files = {
        "[Content_Types].xml": f'<Types xmlns="{TYPES}">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{part}.sheet.main+xml"/>'
        + "".join(f'<Override PartName="/xl/{n}.xml" ContentType="{part}.worksheet+xml"/>' for n in names)
        + "</Types>",
        "_rels/.rels": f'<Relationships xmlns="{RELATIONS}">'
        f'<Relationship Id="r" Type="{DOCUMENT}" Target="xl/workbook.xml"/></Relationships>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{RELATIONS}">'
        + "".join(f'<Relationship Id="r{n}" Type="{OFFICE}/worksheet" Target="{n}.xml"/>' for n in names)
        + "</Relationships>",
        "xl/workbook.xml": f'<workbook xmlns="{SHEET}" xmlns:r="{OFFICE}"><sheets>'
        + "".join(
            f'<sheet name="{name}" sheetId="{n}" state="{"hidden" if n <= hidden else "visible"}" r:id="r{n}"/>'
            for n, name in zip(names, sheets)
        )
        + "</sheets></workbook>",
    }

    def cell(value):
        if value is None:
            return "<c/>"
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t>{escape(value)}</t></is></c>'
        return f"<c><v>{value}</v></c>"

    for n, of_sheet in zip(names, sheets.values()):
        data = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in of_sheet)
        files[f"xl/{n}.xml"] = (  # the dimension is wrong, as some programs write it
            f'<worksheet xmlns="{SHEET}"><dimension ref="A1"/><sheetData>{data}</sheetData></worksheet>'
        )
    return _zipped(files)


def _zipped(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, f'<?xml version="1.0"?>{text}'.encode(errors="replace"))
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
