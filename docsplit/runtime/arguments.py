"""Parse recipe and command line as one: `script.py [recipe] [--option value ...]`.

The recipe becomes command-line words and is parsed together with the overrides: types and choices are checked alike,
and the command line wins. A recipe has one option a line, any that the command line takes, without nesting;
`option: ???` leaves an option to the command line.

Scripts parse before they import anything heavy, so that `--help` and mistyped options are answered soon: the parser
itself, which needs transformers, is imported once `docsplit.runtime.help` has answered what it can.
"""

import logging
import math
import sys
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from docsplit.runtime.command_parser import did_you_mean, no_such
from docsplit.runtime.help import answer_help, asks_for_all, title_of, usage

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
