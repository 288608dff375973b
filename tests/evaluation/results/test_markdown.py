"""Text of others is shown as it is, by a renderer."""

import html
import re

import pytest
from markdown_it import MarkdownIt

from docsplit.evaluation.results.markdown import (
    Markdown,
    bold,
    bullets,
    code,
    image,
    inline,
    markdown_table,
    one_line,
    python_literal,
)
from tests.release.hostile_cards import PAYLOADS, raw_html

TEXTS = [
    *PAYLOADS.values(),
    "plain",
    "max_seq_length",
    "[62.1, 63.0]",
    "A & B",
    "_a_ b_",
    "C#",
    "1) x",
    "`",
    "``",
    "|",
]
RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def shown(markdown):
    """The text that a reader sees."""
    return html.unescape(re.sub(r"<[^>]*>", "", RENDERER.render(markdown))).strip()


@pytest.mark.parametrize("text", TEXTS)
def test_a_reader_sees_the_text(text):
    assert shown(inline(text)) == one_line(text)
    assert shown(f"before {inline(text)} after") == f"before {one_line(text)} after"
    assert shown(bullets([text])) == one_line(text)
    assert RENDERER.render(inline(text)).count("<") == 2  # a paragraph
    assert shown(code(text)) == one_line(text)
    assert raw_html(inline(text)) == raw_html(code(text)) == []


@pytest.mark.parametrize("write", [str, inline, code, bold])
def test_tables_keep_their_cells(write):
    page = RENDERER.render(markdown_table(["a", "b"], [[write(text), "1"] for text in TEXTS]))
    rows = re.findall(r"<tr>\n<td>(.*?)</td>\n<td[^>]*>1</td>\n</tr>", page)
    assert [html.unescape(re.sub(r"</?(code|strong)>", "", row)) for row in rows] == [one_line(text) for text in TEXTS]


def test_what_is_markdown_stays_and_usual_names_too():
    for text in ("max_seq_length", "[62.1, 63.0]", "A & B", "62.1 ± 1.3", "nDCG@10", "user/model-2.0", "a > b"):
        assert inline(text) == text
    assert inline(Markdown("`a`")) == "`a`"
    assert inline(inline("*a*")) == r"\*a\*"
    assert code("a `b`\nc") == "`` a `b` c ``"
    assert bold("a*") == r"**a\***"


def test_pictures_and_literals_end_where_they_should():
    page = RENDERER.render(image("a [b](c) ![d", "x (1)<y>.png"))
    assert page.count("<img") == 1
    assert "<a" not in page
    for text in TEXTS:
        literal = python_literal(text)
        assert eval(literal) == one_line(text)
        assert "`" not in literal
        assert "\n" not in literal
