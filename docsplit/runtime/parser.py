"""The parser of options that are dataclasses, and the page of `--help all`. It imports transformers."""

import argparse
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from docsplit.runtime.options import COMMON, INHERITED, REDECLARED, CommandParser, groups_of, shown_default, title_of

METAVARS = {int: "N", float: "X", str: "TEXT", string_to_bool: "true|false"}


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help that keeps the lines of the script's docstring, and shows defaults, if any, and one spelling."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = "" if action.default is argparse.SUPPRESS else shown_default(action.default)
        if not shown or action.nargs == 0 or "Default:" in (action.help or ""):
            return action.help
        return f"{action.help or ''} Default: {shown}.".lstrip()

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)  # HfArgumentParser takes --learning-rate too
        shown.option_strings = [spelling for spelling in action.option_strings if "-" not in spelling.lstrip("-")]
        return super()._format_action_invocation(shown)


class Parser(HfArgumentParser, CommandParser):
    """Options in named groups: those of this project, those of each choice, then those of transformers."""

    def __init__(self, dataclass_types: Sequence[Any], choices: Mapping[str, Any], **kwargs: Any):
        super().__init__((), **kwargs)
        self.dataclass_types = list(dataclass_types)
        groups = [(*group, dtype) for dtype in dataclass_types for group in groups_of(dtype)]
        for title, names, dtype in groups:
            if title not in (REDECLARED, INHERITED):
                self._add_group(title, dtype, names)
        self._add_choices(choices)
        for last in (REDECLARED, INHERITED):
            for title, names, dtype in groups:
                if title == last:
                    self._add_group(title, dtype, names)
        for action in self._actions:
            # `--resume_from_checkpoint` with no value: from the newest complete checkpoint of --output_dir.
            if action.dest == "resume_from_checkpoint":
                action.nargs, action.const = "?", "newest"
            # A switch needs no value, also where its default is "as the checkpoint says".
            elif action.type is string_to_bool:
                action.nargs, action.const = "?", True
            # HfArgumentParser adds --no_SWITCH to a switch that is on by default.
            elif action.nargs == 0 and action.const is False:
                action.help = f"Turn off --{action.dest}."
            if action.choices is None and action.nargs != 0:
                action.metavar = METAVARS.get(action.type, "TEXT")

    def _hint(self, unexpected: list[str]) -> str:
        return " A recipe comes first, before all options." if unexpected[0].endswith((".yaml", ".yml")) else ""

    def _add_group(self, title: str, dtype: Any, names: Iterable[str], description: str | None = None) -> list[Any]:
        """Add these fields of a dataclass as options, and return the actions of argparse."""
        group: Any = self.add_argument_group(title, description)
        types, before = get_type_hints(dtype), len(self._actions)
        for field in fields(dtype):
            if field.name in names:
                declared: Any = copy.copy(field)
                declared.type = types[field.name]
                declared.metadata = {name: value for name, value in field.metadata.items() if name != COMMON}
                self._parse_dataclass_field(group, declared)
        return self._actions[before:]

    def _add_choices(self, choices: Mapping[str, Any]) -> None:
        """Add a group for each choice. Its options have no defaults: parsing gives those that were typed."""
        first: dict[str, str] = {}  # the choice with whose options it is shown
        for choice, dtype in choices.items():
            defaults = {field.name: field.default for field in fields(dtype)}
            others = [f"--{name} ({defaults[name]}; see {first[name]})" for name in defaults if name in first]
            names = [name for name in defaults if name not in first]
            first |= dict.fromkeys(names, choice)
            description = f"{title_of(dtype)}." + (f" And {', '.join(others)}." if others else "")
            for action in self._add_group(f"--objective {choice}", dtype, names, description):
                action.default, action.required = argparse.SUPPRESS, False
                if "Default:" not in (action.help or ""):
                    action.help = (
                        f"{action.help or ''} Default: the checkpoint's, else {defaults[action.dest]}.".lstrip()
                    )
