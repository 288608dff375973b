"""Parse recipe and command line as one: `script.py [recipe] [--option value ...]`.

The recipe becomes command-line words and is parsed together with the overrides: types and choices are checked alike,
and the command line wins. A recipe has one option a line, any that the command line takes, without nesting;
`option: ???` leaves an option to the command line.

Scripts parse before they import anything heavy, so that `--help` and mistyped options are answered soon: the parser
itself, which needs transformers, is imported once `docsplit.runtime.options` has answered what it can.
"""

import argparse
import logging
import math
import re
import sys
import textwrap
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from inspect import get_annotations
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NoReturn

import yaml

from docsplit.runtime.bounds import BOUNDS, Bound, refusals
from docsplit.runtime.command import as_typed, end_with, running_command

logger = logging.getLogger(__name__)

Options = dict[str, Any]  # values by the names of options, whichever these are
TO_BE_GIVEN = "???"  # in a recipe, the value of an option that the command line has to give


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
        ValueError: if the recipe is missing, has an unknown option or is no flat mapping of options.
        SystemExit: for an unknown option or a wrong value.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    answer_help(dataclass_types, description, words, positional)
    from docsplit.runtime.parser import HelpFormatter, Parser

    recipe = words.pop(0) if not positional and words and not words[0].startswith("-") else None
    parser = Parser(
        dataclass_types,
        chosen_by or {},
        docstring=description,
        usage=f"%(prog)s {usage(list(positional or ()))}",
        formatter_class=HelpFormatter,
    )
    for name, help_text in (positional or {}).items():
        parser.add_argument(name, metavar=name.upper(), help=help_text)
    if asks_for_all(words):
        parser.print_help()
        sys.exit(0)
    typed = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    of_script = {action.dest for action in parser._actions}
    words = (_recipe_words(recipe, typed, of_script) if recipe else []) + words
    # HfArgumentParser would otherwise read a file SCRIPT.args that happens to lie beside the script.
    parsed = parser.parse_args_into_dataclasses(args=words, look_for_args_file=False)
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
        raise ValueError(f"--{option} has no {no_such(unknown, known)}")


def first_lines(choices: Mapping[str, Any]) -> str:
    """List each of the choices with the first line of its docstring, for a help text."""
    return " ".join(f"{name}: {title_of(choice)}." for name, choice in choices.items()).replace("%", "%%")


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
            f"There is no recipe {name!r}.{did_you_mean(Path(name).stem, fitting or known)} Name a file, or a recipe "
            f"that comes with the project for this script: {', '.join(fitting or known)}."
        )
    return path


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(
            f"The recipe {path} should be lines of `option: value`: {' '.join(str(error).split())}."
        ) from error


def _recipe_words(recipe: str, typed: Container[str], of_script: Collection[str] | None = None) -> list[str]:
    path = find_recipe(recipe, of_script)
    options = _read(path)
    if not isinstance(options, dict):
        raise ValueError(f"The recipe {path} should be lines of `option: value`.")
    words = []
    if unknown := [str(name) for name in options if of_script and str(name).replace("-", "_") not in of_script]:
        meant = did_you_mean(unknown[0], of_script or ())
        raise ValueError(f"The recipe {path} has what this script has no option for: {', '.join(unknown)}.{meant}")
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
        ValueError: for an unknown architecture, a name that its configuration does not have, a value of another type,
            or text that is no `name=value`.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    if model_type not in CONFIG_MAPPING:
        raise ValueError(
            f"--model_type is {model_type}, expected an architecture of transformers such as bert."
            f"{did_you_mean(model_type, CONFIG_MAPPING.keys())}"
        )
    if not overrides:
        return {}
    if not all(pair.count("=") == 1 for pair in overrides.split(",")):
        raise ValueError(f"--config_overrides is {overrides!r}, expected name=value,name=value.")
    config, names = AutoConfig.for_model(model_type), [pair.split("=")[0] for pair in overrides.split(",")]
    for name in names:
        if not hasattr(config, name):
            meant = did_you_mean(name, config.to_dict())
            raise ValueError(f"--config_overrides: a configuration of {model_type} has no {name}.{meant}")
    try:
        config.update_from_string(overrides)
    except (ValueError, TypeError) as error:
        raise ValueError(f"--config_overrides is {overrides!r}, and a value is of the wrong type: {error}.") from error
    values, defaults = {name: getattr(config, name) for name in names}, AutoConfig.for_model(model_type)
    if hasattr(config, "check"):  # one of ours, which knows what each may be
        config.check()
        return values
    for name, value in values.items():
        if not _can_be(name, value, getattr(defaults, name)):
            raise ValueError(f"--config_overrides {name}={value}: no such number can be here.")
    return values


def _can_be(name: str, value: Any, default: Any) -> bool:
    """Whether a number is finite, and stays at least 1 where the default is a count, at least 0 where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    is_count = isinstance(value, int) and isinstance(default, int) and default > 0 and not name.endswith("_id")
    least = 1 if is_count else 0 if isinstance(default, int | float) and default >= 0 else -math.inf
    return math.isfinite(value) and value >= least


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

    Args: as those of `docsplit.runtime.options.parse_arguments`.

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
