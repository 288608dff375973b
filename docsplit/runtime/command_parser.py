"""The command line of a script: a mistake is answered in one line, with what was probably meant."""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, NoReturn

from docsplit.runtime.bounds import BOUNDS, Bound, refusals
from docsplit.runtime.ending import end_with
from docsplit.runtime.names import as_typed, running_command

NUMBERS = {"int": "a whole number", "float": "a number"}
TOKEN_OPTIONS = {"--hub_token", "--hub-token", "--token"}
TOKEN_REFUSED = (
    "a token in a recipe or on the command line shows in process lists, in logs and in a launcher's traceback: log in "
    "with `hf auth login`, or set HF_TOKEN, and make a new token in place of the one that was typed."
)
SHORT = 4  # letters: in so short a name a wrong letter is a larger share, and longer names contain it by chance


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return " Did you mean X?" with the known name that is nearest, or the first that contain it; else nothing."""
    names = list(dict.fromkeys(known))
    near = get_close_matches(name.lower(), names, n=1, cutoff=0.75 if len(name) > SHORT else 0.6)
    if not near and len(name) >= SHORT:
        near = [other for other in names if name.lower() in other][:2]
    return f" Did you mean {' or '.join(prefix + name for name in near)}?" if near else ""


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line, and name the option or the choice that was probably meant.

    Options are written in full: the beginning of a name is refused, since a later option may begin with it too.

    Args:
        docstring: the script's. Its first paragraph begins the help, and the others end it, as they are written.
        bounds: the numbers that options take, by their names.
    """

    def __init__(self, docstring: str | None = None, bounds: Mapping[str, Bound] = BOUNDS, **kwargs: Any):
        self.bounds = bounds
        if docstring is not None:
            kwargs["description"], _, kwargs["epilog"] = as_typed(docstring).partition("\n\n")
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("prog", running_command())
        super().__init__(**kwargs, allow_abbrev=False)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse as argparse does, but refuse what is unknown first, and numbers that are out of bounds last."""
        words = list(sys.argv[1:] if args is None else args)
        if not TOKEN_OPTIONS.isdisjoint(self._names_in(words)):
            self.error(TOKEN_REFUSED)
        if unknown := [name for name in self._names_in(words) if name not in self._option_string_actions]:
            self.error(" ".join(map(self._no_such_option, unknown)))
        parsed, unexpected = super().parse_known_args(words, namespace)
        if unexpected:
            self.error(f"unexpected {' '.join(unexpected)!r}.{self._hint(unexpected)}")
        for refusal in refusals(vars(parsed), self.bounds):
            self.error(refusal)
        return parsed, unexpected

    def _names_in(self, words: list[str]) -> Iterator[str]:
        """Yield the options that are typed; of a script with verbs, those before the verb."""
        if any(isinstance(action, argparse._SubParsersAction) for action in self._actions):
            words = list(takewhile(lambda word: word.startswith("-"), words))
        for word in takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in name:
                yield name

    def _no_such_option(self, typed: str) -> str:
        known = (name[2:] for name in self._option_string_actions if name.startswith("--") and "-" not in name[2:])
        return f"unknown option {typed}.{did_you_mean(typed[2:].replace('-', '_'), known, '--')}"

    def _hint(self, unexpected: list[str]) -> str:
        """Say more of words that are neither options nor values; a subclass may."""
        return ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            label = f"{action.option_strings[0]} has no" if action.option_strings else f"there is no {action.metavar}"
            self.error(f"{label} {no_such([str(value)], map(str, action.choices))}")

    def error(self, message: str) -> NoReturn:
        """Print what is wrong in one line, and exit with code 2."""
        message = re.sub(r"(--\w+)/--[\w-]+", r"\1", message)  # HfArgumentParser takes --learning-rate too
        message = re.sub(r"^argument (\S+): invalid (\w+) value: (.*)", _wrong_type, message)
        message = re.sub(r"^argument (\S+): expected .*", r"\1 needs a value", message)
        message = re.sub(r"^argument (\S+: )", r"\1", message)
        message = re.sub(r"^the following arguments are required: ", "missing: ", message)
        stop = "" if message.endswith((".", "?")) else "."
        end_with(f"{message}{stop} `{self.prog} --help` shows the options.", code=2)


def no_such(values: Iterable[str], choices: Iterable[str]) -> str:
    """Name values that are none of the choices, the choice that was probably meant, and all of them."""
    given, known = list(values), list(choices)
    if meant := did_you_mean(given[0], known):
        return f"{', '.join(given)}.{meant} Choose among {', '.join(known)}."
    return f"{', '.join(given)}: choose among {', '.join(known)}."


def _wrong_type(match: re.Match[str]) -> str:
    return f"{match[1]} is {match[3]}, expected {NUMBERS.get(match[2], match[2])}"
