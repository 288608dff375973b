"""One parser for recipe and command line: `script.py [recipe] [--option value ...]`.

The recipe becomes command-line words and is parsed together with the overrides: types and choices are checked alike,
and the command line wins. A recipe has one option a line, any that the command line takes, without nesting;
`option: ???` leaves an option to the command line.

Scripts parse before they import anything heavy, so that `--help` and mistyped options are answered soon.
"""

import argparse
import copy
import logging
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from inspect import get_annotations
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

logger = logging.getLogger(__name__)

Options = dict[str, Any]  # values by the names of options, whichever these are
TO_BE_GIVEN = "???"  # in a recipe, the value of an option that the command line has to give
REDECLARED = "TrainingArguments with defaults of this project"
INHERITED = "Inherited from transformers' TrainingArguments"


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Help that keeps the lines of the script's docstring, and shows defaults, if any, and one spelling."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)  # HfArgumentParser takes --learning-rate too
        shown.option_strings = [spelling for spelling in action.option_strings if "-" not in spelling.lstrip("-")]
        return super()._format_action_invocation(shown)


class _Parser(HfArgumentParser):
    """Options in named groups: those of this project, those of each choice, then those of transformers."""

    def __init__(self, dataclass_types: Sequence[Any], choices: Mapping[str, Any], **kwargs: Any):
        super().__init__((), **kwargs)
        self.dataclass_types = list(dataclass_types)
        groups = [(*group, dtype) for dtype in dataclass_types for group in _groups(dtype)]
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

    def _add_group(self, title: str, dtype: Any, names: Iterable[str], description: str | None = None) -> list[Any]:
        """Add these fields of a dataclass as options, and return the actions of argparse."""
        group: Any = self.add_argument_group(title, description)
        types, before = get_type_hints(dtype), len(self._actions)
        for field in fields(dtype):
            if field.name in names:
                field.type = types[field.name]
                self._parse_dataclass_field(group, field)
        return self._actions[before:]

    def _add_choices(self, choices: Mapping[str, Any]) -> None:
        """Add a group for each choice. Its options have no defaults: parsing gives those that were typed."""
        first: dict[str, str] = {}  # the choice with whose options it is shown
        for choice, dtype in choices.items():
            defaults = {field.name: field.default for field in fields(dtype)}
            others = [f"--{name} ({defaults[name]}; see {first[name]})" for name in defaults if name in first]
            names = [name for name in defaults if name not in first]
            first |= dict.fromkeys(names, choice)
            description = f"{_title(dtype)}." + (f" And {', '.join(others)}." if others else "")
            for action in self._add_group(f"--objective {choice}", dtype, names, description):
                action.default, action.required = argparse.SUPPRESS, False
                if "Default:" not in (action.help or ""):
                    action.help = (
                        f"{action.help or ''} Default: the checkpoint's, else {defaults[action.dest]}.".lstrip()
                    )


def _title(dtype: Any) -> str:
    """Take the first line of a docstring, without its full stop."""
    return str(dtype.__doc__).partition("\n")[0].rstrip(".")


def _groups(dtype: Any) -> Iterator[tuple[str, set[str]]]:
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
            yield _title(declaring), names - of_transformers
            yield REDECLARED, names & of_transformers


def parse_arguments(
    dataclass_types: Sequence[Any],
    description: str,
    argv: list[str] | None = None,
    chosen_by: Mapping[str, Any] | None = None,
    positional: Mapping[str, str] | None = None,
) -> tuple[Any, ...]:
    """Parse into one instance of each dataclass.

    Args:
        description: the script's docstring. Its first paragraph begins the text of --help, the others end it.
        argv: the words after the script's name; None reads `sys.argv`.
        chosen_by: a dataclass of options for each value of --objective. They have no defaults here: the last element
            returned is a dictionary of the options that recipe or command line give. Only their types are checked;
            the caller knows which value was chosen.
        positional: names and helps of words that come first, in place of a recipe. The last element returned is a
            dictionary of them.

    Raises:
        ValueError: if the recipe is missing or is no flat mapping of options.
        SystemExit: from argparse, for an unknown option or a wrong value.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    recipe = words.pop(0) if not positional and words and not words[0].startswith("-") else None
    first_paragraph, _, examples = description.partition("\n\n")
    parser = _Parser(
        dataclass_types,
        chosen_by or {},
        description=first_paragraph,
        epilog=examples,
        usage=f"%(prog)s {' '.join(map(str.upper, positional or ['[recipe]']))} [--option value ...]",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,  # `given_options` records what was written
    )
    for name, help_text in (positional or {}).items():
        parser.add_argument(name, metavar=name.upper(), help=help_text)
    typed = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    of_script = {action.dest for action in parser._actions}
    words = (_recipe_words(recipe, typed, of_script) if recipe else []) + words
    # HfArgumentParser would otherwise read a file SCRIPT.args that happens to lie beside the script.
    *parsed, unknown = parser.parse_args_into_dataclasses(
        args=words, look_for_args_file=False, return_remaining_strings=True
    )
    if unknown:
        parser.error(f"unknown option {' '.join(unknown)}; --help lists all")
    instances, others = parsed[: len(dataclass_types)], parsed[len(dataclass_types) :]
    if positional:
        return (*instances, dict(vars(others[0])))
    if chosen_by is None:
        return tuple(instances)
    given = dict(vars(others[0])) if others else {}
    if "objective" in typed:
        given = _without_those_of_the_recipe(given, typed, chosen_by, *instances)
    return (*instances, given)


def _without_those_of_the_recipe(
    given: Options, typed: set[str], chosen_by: Mapping[str, Any], *instances: Any
) -> Options:
    """Leave out the recipe's options for its --objective, with a warning, where the command line has another."""
    (objective,) = [instance.objective for instance in instances if hasattr(instance, "objective")]
    taken = {field.name for field in fields(chosen_by[objective])} | typed
    if dropped := {name: value for name, value in given.items() if name not in taken}:
        logger.warning(f"--objective {objective} has no {', '.join(dropped)}: the recipe's are left out.")
    return {name: value for name, value in given.items() if name in taken}


def given_options(argv: list[str] | None = None) -> tuple[str | None, dict[str, str]]:
    """Find the recipe and the options given by it or the command line, as text; the command line wins.

    Args:
        argv: as `parse_arguments` takes it, which has accepted it.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    recipe = words.pop(0) if words and not words[0].startswith("-") else None
    options: dict[str, list[str]] = {}
    name = ""
    typed = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    for word in (_recipe_words(recipe, typed) if recipe else []) + words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            name = name.replace("-", "_")
            options[name] = [value] if value else []
        else:
            options[name].append(word)
    return recipe, {name: " ".join(values) or "true" for name, values in options.items()}


def check_choices(option: str, values: Iterable[str], choices: Iterable[str]) -> None:
    """Check the values of an option that takes several.

    Raises:
        ValueError: naming those that are none of the choices.
    """
    known = list(choices)
    if unknown := [value for value in values if value not in known]:
        raise ValueError(f"--{option} has no {', '.join(unknown)}: choose among {', '.join(known)}.")


def first_lines(choices: Mapping[str, Any]) -> str:
    """List each of the choices with the first line of its docstring, for a help text."""
    return " ".join(f"{name}: {_title(choice)}." for name, choice in choices.items()).replace("%", "%%")


def find_recipe(name: str, options: Container[str] | None = None) -> Path:
    """Find a recipe: a file, else one that comes with the project, by its name with or without .yaml.

    Args:
        options: of the script; the error names only the recipes that fit them.

    Raises:
        ValueError: if there is neither.
    """
    if Path(name).is_file():
        return Path(name)
    package = Path(__file__).parents[1]
    folder = package / "recipes"  # of an installation; those of a clone lie beside the package
    folder = folder if folder.is_dir() else package.parent / "recipes"
    known = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if (path := known.get(name.removesuffix(".yaml"))) is None:
        fitting = [stem for stem, path in known.items() if options is None or all(o in options for o in _read(path))]
        raise ValueError(
            f"There is no recipe {name!r}: no file of that name, and those that come with the project for this script "
            f"are {', '.join(fitting or known)}."
        )
    return path


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def _recipe_words(recipe: str, typed: Container[str], of_script: Container[str] | None = None) -> list[str]:
    path = find_recipe(recipe, of_script)
    options = _read(path)
    if not isinstance(options, dict):
        raise ValueError(f"The recipe {path} should be lines of `option: value`.")
    words = []
    if missing := [f"--{name}" for name, value in options.items() if value == TO_BE_GIVEN and name not in typed]:
        raise ValueError(f"The recipe {path} leaves {' and '.join(missing)} to you: give it on the command line.")
    for name, value in options.items():
        if isinstance(value, dict):
            raise ValueError(f"The recipe {path} nests options under {name!r}; write one option a line.")
        if value is None or value == TO_BE_GIVEN:
            continue
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *map(str, values)]
    return words


def parse_config_overrides(model_type: str, overrides: str | None) -> Options:
    """Parse `hidden_size=128,hidden_act=relu` into values of the types that the configuration has.

    The caller makes the configuration with them: some (ModernBERT's) derive other values from them.

    Raises:
        ValueError: for a name that this configuration does not have, or text that is no `name=value`.
    """
    if not overrides:
        return {}
    if not all(pair.count("=") == 1 for pair in overrides.split(",")):
        raise ValueError(f"--config_overrides is {overrides!r}, expected name=value,name=value.")
    from transformers import AutoConfig

    config = AutoConfig.for_model(model_type)
    config.update_from_string(overrides)
    return {name: getattr(config, name) for name in (pair.split("=")[0] for pair in overrides.split(","))}
