"""Read the text of a web page."""

import re
from html.parser import HTMLParser
from typing import Any

_WHITE_SPACE = re.compile(r"\s+")


def text_of_page(content: str) -> tuple[str, str]:
    """Return the title of a page and its visible text: blocks with an empty line between, headings after `##`."""
    parser = _Text()
    parser.feed(_without_unclosed(content))
    parser.close()
    blocks = (" ".join(block.split()) for block in "".join(parser.parts).split("\n\n"))
    return " ".join(parser.title.split()), "\n\n".join(block for block in blocks if block.strip("# "))


def _without_unclosed(content: str) -> str:
    """Leave out the marks of comments and tags that nothing closes: the parser seeks the end of each to the last one.

    A damaged page of 100 kB would take half a minute.
    """
    for mark, end in (("<!--", "-->"), ("<", ">")):
        closed = content.rfind(end) + len(end) if end in content else 0
        content = content[:closed] + content[closed:].replace(mark, " ")
    return content


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

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """Take `<![x` for a comment, as browsers do; the standard library raises an AssertionError."""
        return self.parse_bogus_comment(i)

    def handle_data(self, data: str) -> None:
        if self.in_title:
            self.title += data
        elif not self.unseen:
            self.parts.append(_WHITE_SPACE.sub(" ", data))
