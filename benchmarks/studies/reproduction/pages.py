"""A report as blocks, and the blocks as Markdown and as one HTML file that opens offline.

The HTML leads to files in the folders of cells. The Markdown does not: it may be kept without them, beside cells.json,
which has each cell under its key.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from docsplit.evaluation.results.markdown import Markdown, code, inline, markdown_table

STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1500px;padding:0 1em;color:#222}
table{border-collapse:collapse;display:block;overflow-x:auto;margin:.8em 0}
td,th{border:1px solid #ccc;padding:.25em .5em;text-align:right;white-space:nowrap}
td:first-child,th:first-child{text-align:left;position:sticky;left:0;background:#fff}
.paper{color:#777}.lacks{color:#999;font-size:85%}code{font-size:85%;overflow-wrap:anywhere}:target{background:#ffc}"""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: our number or why there is none, the paper's, and where ours is from."""

    text: str
    link: str | None = None  # "#anchor", or a file in the folder of a cell
    paper: str | None = None
    is_number: bool = True


@dataclass(frozen=True)
class Heading:
    """A heading, of level 1 to 3."""

    level: int
    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table; cells that are no `Cell` are text."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]


@dataclass(frozen=True)
class Source:
    """What a number is from: cells, their files where they are here, and the commands of the first one."""

    anchor: str
    title: str
    cells: Mapping[str, str | None]  # by key: its JSON, beside the report
    commands: Sequence[str]


Block = Heading | Text | Table | Source
CELLS = "cells.json"


def as_markdown(blocks: Iterable[Block]) -> str:
    """Return the blocks as Markdown; what others wrote is escaped."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {inline(block.text)}"
    if isinstance(block, Text):
        return inline(block.text)
    if isinstance(block, Table):
        return markdown_table(block.header, [[_markdown_cell(cell) for cell in row] for row in block.rows])
    keys = ", ".join(map(str, map(code, block.cells)))
    lines = [f'<a id="{block.anchor}"></a>{inline(block.title)}: {keys} in [{CELLS}]({CELLS})']
    return "\n".join([*lines, *(f"- {code(command)}" for command in block.commands)])


def _markdown_cell(cell: Cell | str) -> Markdown:
    if isinstance(cell, str):
        return inline(cell)
    text = str(inline(cell.text))
    if cell.link:
        text = f"[{text}]({cell.link})" if cell.link.startswith("#") else str(code(cell.link))
    paper = f" (paper {inline(cell.paper)})" if cell.paper is not None else ""
    return Markdown(text + paper)


def as_html(title: str, blocks: Iterable[Block]) -> str:
    """Return one HTML page without anything from elsewhere; what others wrote is escaped."""
    body = "\n".join(map(_html, blocks))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{html.escape(block.text)}</h{block.level}>"
    if isinstance(block, Text):
        return f"<p>{html.escape(block.text)}</p>"
    if isinstance(block, Table):
        header = "".join(f"<th>{html.escape(name)}</th>" for name in block.header)
        rows = "\n".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in block.rows)
        return f"<table><tr>{header}</tr>\n{rows}</table>"
    links = [(key, file or CELLS) for key, file in block.cells.items()]
    files = ", ".join(f'<a href="{html.escape(file)}">{html.escape(key)}</a>' for key, file in links)
    commands = "".join(f"<li><code>{html.escape(command)}</code></li>" for command in block.commands)
    return f'<p id="{html.escape(block.anchor)}">{html.escape(block.title)}: {files}</p><ul>{commands}</ul>'


def _html_cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return f"<td>{html.escape(cell)}</td>"
    text = html.escape(cell.text)
    text = f'<a href="{html.escape(cell.link)}">{text}</a>' if cell.link else text
    text = text if cell.is_number else f'<span class="lacks">{text}</span>'
    paper = f' <span class="paper">(paper {html.escape(cell.paper)})</span>' if cell.paper is not None else ""
    return f"<td>{text}{paper}</td>"
