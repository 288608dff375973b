"""The short page of `--help`: examples and the common options, without importing anything heavy.

An option is common where its field has the metadata `COMMON`. Its line is the first sentence of its help text, so that
there is one text; `--help all` shows the whole of it, from `docsplit.runtime.parser`.
"""

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from inspect import get_annotations
from itertools import pairwise
from typing import Any

from docsplit.runtime.names import as_typed, running_command

COMMON = "common"  # in the metadata of a field: the short page shows it
REDECLARED = "TrainingArguments with defaults of this project"
INHERITED = "Inherited from transformers' TrainingArguments"
WIDTH = 119  # columns of the page
RECIPE = "YAML file of options, or the name of one that comes with the project; options override it"


def title_of(dtype: Any) -> str:
    """Take the first line of a docstring, without its full stop."""
    return str(dtype.__doc__).partition("\n")[0].rstrip(".")


def groups_of(dtype: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield a title and the names of its fields for each class that declares some."""
    of_transformers = {
        name for base in dtype.__mro__ if base.__module__.startswith("transformers.") for name in get_annotations(base)
    }
    seen: set[str] = set()
    for declaring in dtype.__mro__[:-1]:
        names = set(get_annotations(declaring)) - seen
        seen |= names
        if declaring.__module__.startswith("transformers."):
            yield INHERITED, names
        else:
            yield title_of(declaring), names - of_transformers
            yield REDECLARED, names & of_transformers


def answer_help(
    dataclass_types: Sequence[Any],
    description: str,
    argv: Sequence[str] | None = None,
    positional: Mapping[str, str] | None = None,
) -> None:
    """Print the short page and exit, if the command line asks for it: `--help` or `-h` without `all` after it.

    Args: as those of `docsplit.runtime.arguments.parse_arguments`.

    Raises:
        SystemExit: with code 0, after printing.
    """
    words = sys.argv[1:] if argv is None else argv
    if asks_for_help(words) and not asks_for_all(words):
        print(short_page(dataclass_types, description, positional or {}))
        sys.exit(0)


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether a command line asks for help."""
    return not {"--help", "-h"}.isdisjoint(words)


def asks_for_all(words: Sequence[str]) -> bool:
    """Whether a command line asks for all of the help: `--help all`."""
    return any(pair in (("--help", "all"), ("-h", "all")) for pair in pairwise(words))


def usage(positional: Sequence[str]) -> str:
    """Write the usage behind the name of the script."""
    return f"{' '.join(map(str.upper, positional or ['[recipe]']))} [--option value ...]"


def short_page(dataclass_types: Sequence[Any], description: str, positional: Mapping[str, str]) -> str:
    """Write usage, the script's docstring, and a line for each common option."""
    common = [field for dtype in dataclass_types for field in fields(dtype) if field.metadata.get(COMMON)]
    rows = [(name.upper(), f"{help_text}.") for name, help_text in (positional or {"[recipe]": RECIPE}).items()]
    rows += [(f"--{field.name}", _line(field)) for field in common]
    width = max(len(name) for name, _ in rows) + 2
    lines = [
        textwrap.fill(text, WIDTH, initial_indent=f"  {name:<{width}}", subsequent_indent=" " * (width + 2))
        for name, text in rows
    ]
    command = running_command()
    return "\n".join(
        [
            f"usage: {command} {usage(list(positional))}",
            "",
            as_typed(description).strip(),
            "",
            "Common options:",
            *lines,
            "",
            f"All options: {command} --help all",
        ]
    )


def _line(field: "Field[Any]") -> str:
    """Write the first sentence of an option's help, and its default: as the help says it, else the field's."""
    first, *others = re.split(r"(?<!\.)\. ", str(field.metadata["help"]).rstrip("."))  # not at "a, b ... c"
    stated = [f" {sentence}." for sentence in others if sentence.startswith("Default")]
    sentence = f"{first}.{''.join(stated)}"
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    if default is MISSING:
        return f"{sentence} Required."
    shown = shown_default(default)
    return sentence if stated or not shown else f"{sentence} Default: {shown}."


def shown_default(default: Any) -> str:
    """Write a default as one types it; nothing for one that says little: None, an empty one, off, or -1 (no limit)."""
    if default is None or default is False or default == -1:
        return ""
    return " ".join(map(str, default)) if isinstance(default, list) else str(default)
