"""Take out of a text what is none: data in addresses, and in Markdown front matter and the addresses of pictures.

All take linear time on every input. Code keeps what it shows, but for data.
"""

import json
import re
from contextlib import suppress

from docsplit.data.readers.base import Problems

LEAST_DATA = 100  # characters; a shorter address may be an example in a text about such addresses
# base64 may go on in lines of its own, of which the last is short. Without base64 a media type shows what it is.
_DATA = re.compile(
    r"""\bdata: (?:
        (?:[\w.+-]+/[\w.+-]+)? (?:;[\w.+-]+(?:=[\w.+"-]*)?)* ;base64, [\w+/=%-]*
            (?:\r?\n[ \t]* [\w+/-]{40,}=*)* (?:\r?\n[ \t]* [\w+/-]+=* (?=[)"'>] | (?<==)\s | (?<==)\Z))?
      | [\w.+-]+/[\w.+-]+ (?:;[\w.+-]+(?:=[\w.+"-]*)?)* , [\w%+/=.,~!$&*:;@?\#-]+
    )""",
    re.VERBOSE | re.ASCII,
)
# Of YAML and TOML
_FRONT_MATTER = re.compile(r"(?ms)(---|\+\+\+)[ \t]*\r?\n(.*?)^(?:\1|\.\.\.)[ \t]*(?:(?:\r?\n)+|\Z)")
_KEY = re.compile(r"""["']?([\w@/.-]+(?:[ ][\w@/.-]+){0,3})["']?[ \t]*(?::(?=\s|$)|=)[ \t]*(.*)""")
_FIELDS = ("title", "subtitle", "description", "summary", "abstract", "tags", "keywords")  # texts for readers
_BLOCK = re.compile(r"[|>][-+\d]{0,2}[ \t]*(?:#.*)?\n")
_ITEM = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|[^,\[\]"\'\s][^,\[\]\n]*', re.DOTALL)
_QUOTED = re.compile(r"""("{3}|'{3}|"|')(.*)\1(?:[ \t]+\#.*)?""", re.DOTALL)
# Code, which stays; pictures of Markdown, with an address or the name of one, and of HTML
_CODE = r"^[ \t]*(?P<fence>`{3,}(?!`)(?![^\n]*`)|~{3,}).*?(?:^[ \t]*(?P=fence)|\Z)|(?<!`)`[^`\n]+`"
_PICTURE = re.compile(
    rf"(?ms){_CODE}"
    r"|!\[(?P<alt>(?:[^\[\]\n]|\n(?!\s*\n)|\[[^\[\]\n]*\])*)\]"
    r"(?:\((?P<target>[^()\n]*(?:\([^()\n]*\)[^()\n]*)*)\)|\[(?P<name>[^\[\]\n]*)\])"
    r"|<img\b(?P<attributes>[^<>]*)>"
)
_CAPTION = re.compile(r"""[ \t](?:"([^"]*)"|'([^']*)')[ \t]*$""")
_ALT = re.compile(r"""(?i)(?<![\w-])alt=(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_DEFINITION = re.compile(rf"(?ms){_CODE}|^ {{0,3}}\[(?P<name>[^\[\]\n]+)\]:[^\n]*\n?")


def without_data(text: str, problems: Problems, place: str) -> str:
    """Take the addresses out that hold data themselves, such as pictures; a text with such is counted."""
    if "data:" not in text:
        return text
    cut = _DATA.sub(lambda match: match[0] if len(match[0]) < LEAST_DATA else "", text)
    if cut != text:
        problems.add("text", "with pictures or files in data: addresses, which are left out", place)
    return cut


def front_matter_of(text: str) -> tuple[dict[str, str], str]:
    """Read the texts in the front matter of a text, by their keys, and the text after it; without one nothing is read.

    A ruler, prose and a ruler are none: each line has a key, or goes on with a value.
    """
    front = _FRONT_MATTER.match(text)
    values: dict[str, list[str]] = {}
    key, is_open = "", False  # in a value of TOML between lines of quotes
    for line in front[2].splitlines() if front else []:
        if (named := _KEY.match(line)) and not is_open:
            key, line = named[1].lower(), named[2]
            values[key] = []
        elif line.startswith("[") and not is_open:  # a table of TOML
            key = ""
        elif line.strip() and line[0] not in " \t-#]}\"'" and not is_open:
            return {}, text
        is_open ^= bool((line.count('"""') + line.count("'''")) % 2)
        values.setdefault(key, []).append(line)
    if front is None or not values.keys() - {""}:
        return {}, text
    texts = {name: _text_of_value("\n".join(values[name]).strip()) for name in _FIELDS if name in values}
    return {name: value for name, value in texts.items() if value}, text[front.end() :]


def _text_of_value(value: str) -> str:
    """Write a string, or a list of some, as YAML or TOML have it, as a text in one line."""
    if block := _BLOCK.match(value):
        return " ".join(value[block.end() :].split())
    items = [value]
    if value.startswith("["):
        items = _ITEM.findall(value)
    elif value.startswith("- "):
        items = re.split(r"(?m)^[ \t]*- ", value)
    texts = []
    for item in map(str.strip, items):
        if quoted := _QUOTED.fullmatch(item):
            item = quoted[2].replace("''", "'") if quoted[1] == "'" else quoted[2]
            with suppress(ValueError):  # escapes, which JSON has as well
                item = json.loads(f'"{item}"', strict=False) if quoted[1] == '"' else item
        else:
            item = re.sub(r"[ \t]#[ \t].*", "", item)  # a comment
        texts.append(" ".join(item.split()))
    return ", ".join(filter(None, texts))


def text_of_markdown(text: str) -> str:
    """Write front matter as the texts in it, and pictures as what stands in their place, and below them."""
    fields, text = front_matter_of(text)
    names = set[str]()

    def words(match: re.Match[str]) -> str:
        if match["attributes"] is not None:
            alt = _ALT.search(match["attributes"])
            return next(filter(None, alt.groups()), "") if alt else ""
        if match["alt"] is None:
            return match[0]
        if match["target"] is None:
            names.add((match["name"] or match["alt"]).casefold())
        caption = _CAPTION.search(match["target"] or "")
        return " ".join(filter(None, (match["alt"], *(caption.groups() if caption else ()))))

    if ("!" in text and "![" in text) or ("<" in text and "<img" in text):  # one character is found much faster
        text = _PICTURE.sub(words, text)
    if names:
        text = _DEFINITION.sub(lambda match: "" if (match["name"] or "").casefold() in names else match[0], text)
    return "\n\n".join([*fields.values(), text])
