"""Options of scripts: a recipe, then the command line over it, parsed and checked as one.

`script.py [recipe] [--option value ...]`. A recipe is YAML, one option a line, any that the command line takes;
`option: ???` leaves an option to the command line. Options are declared as fields of dataclasses and become arguments
by transformers' HfArgumentParser, or are added to a `CommandParser`. An option says which numbers it takes (`Bound`).

Nothing heavy is imported here, so that `--help` and mistyped options are answered soon.
"""

import argparse
import copy
import logging
import math
import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, replace
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import yaml

from docsplit.runtime.bounds import COMMON, DECIDES, Bound, bounds_of
from docsplit.runtime.command import end_with, running_command, with_installed_commands
from docsplit.runtime.plugins import load_plugin

logger = logging.getLogger(__name__)

Options = dict[str, Any]  # values by the names of options, whichever these are
TOKEN_REFUSED = (
    "a token in a recipe or on the command line shows in process lists, in logs and in a launcher's traceback: log in "
    "with `hf auth login`, or set HF_TOKEN, and make a new token in place of the one that was typed."
)
RECIPE = "YAML file of options, or the name of one that comes with the project; options override it"


def check_choices(option: str, values: Iterable[str], choices: Iterable[str]) -> None:
    """Check the values of an option that takes several.

    Raises:
        ValueError: naming the first that is none of the choices.
    """
    known = list(choices)
    for value in values:
        if value not in known:
            raise ValueError(f"--{option} has no {no_such(value, known)}")


def no_such(value: str, choices: Iterable[Any]) -> str:
    """Name a value that is none of the choices, the choice that was probably meant, and all of them."""
    known = [str(choice) for choice in choices]
    return f"{value}.{did_you_mean(value, known)} Choose among {', '.join(known)}."


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return " Did you mean X?" with the first known names that contain this one, or the nearest; else nothing."""
    names, wanted = list(dict.fromkeys(known)), name.lower()
    near = [other for other in names if len(wanted) > 3 and wanted in other][:2]
    near = near or get_close_matches(wanted, names, n=1, cutoff=0.65)
    return f" Did you mean {' or '.join(prefix + other for other in near)}?" if near else ""


def type_title(dtype: Any) -> str:
    """Take the first line of a docstring, without its full stop."""
    return str(dtype.__doc__).partition("\n")[0].rstrip(".")


def first_lines(choices: Mapping[str, Any]) -> str:
    """List each of the choices with the first line of its docstring, for a help text."""
    return " ".join(f"{name}: {type_title(choice)}." for name, choice in choices.items()).replace("%", "%%")


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line, and name the option or the choice that was probably meant.

    Options are written in full: the beginning of a name is refused, since a later option may begin with it too.

    Args:
        docstring: the script's. Its first paragraph begins the help, and the others end it, as they are written.
    """

    def __init__(self, docstring: str | None = None, **kwargs: Any):
        if docstring is not None:
            kwargs["description"], _, kwargs["epilog"] = with_installed_commands(docstring).partition("\n\n")
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("prog", running_command())
        super().__init__(**kwargs, allow_abbrev=False)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse as argparse does, but refuse what is unknown first."""
        self._words = words = list(sys.argv[1:] if args is None else args)
        has_verbs = any(isinstance(action, argparse._SubParsersAction) for action in self._actions)
        ours = takewhile(lambda word: word.startswith("-") if has_verbs else word != "--", words)
        names = [word.partition("=")[0] for word in ours if word.startswith("--")]
        if not {"--hub_token", "--hub-token", "--token"}.isdisjoint(names):
            self.error(TOKEN_REFUSED)
        for name in names:
            if name not in self._option_string_actions and " " not in name:
                known = [option[2:] for option in self._option_string_actions if "-" not in option[2:]]
                self.error(f"unknown option {name}.{did_you_mean(name[2:].replace('-', '_'), known, '--')}")
        parsed, unexpected = super().parse_known_args(words, namespace)
        if unexpected:
            is_recipe = unexpected[0].endswith((".yaml", ".yml"))
            hint = " A recipe comes first, before all options." if is_recipe else ""
            self.error(f"unexpected {' '.join(unexpected)!r}.{hint}")
        if "plugin" in parsed:
            load_plugin(parsed.plugin)
        return parsed, unexpected

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            label = f"{action.option_strings[0]} has no" if action.option_strings else f"there is no {action.metavar}"
            self.error(f"{label} {no_such(str(value), action.choices)}")

    def error(self, message: str) -> NoReturn:
        """Print what is wrong in one line, and exit with code 2."""
        message = message.removeprefix("argument ") + ("" if message.endswith((".", "?")) else ".")
        end_with(f"{message}{self._how_to_write_a_dash()} `{self.prog} --help` shows the options.", code=2)

    def _how_to_write_a_dash(self) -> str:
        """Say how a name that begins with `-`, such as an id, is told from an option, if one was probably typed."""
        before = ""
        for word in takewhile(lambda word: word != "--", self._words):
            if re.match("-.", word) and not re.match(r"-[0-9.]+$|--[\w-]+(=|$)|.* ", word):
                if before in self._option_string_actions and self._option_string_actions[before].nargs != 0:
                    return f" If {word} is no option, write {before}={shlex.quote(word)}."
                return f" If {word} is no option, write -- before it, behind all options."
            before = word
        return ""


def parser_of(dataclass_types: Sequence[Any], chosen_by: Mapping[str, Any], **kwargs: Any) -> CommandParser:
    """Make a parser of options that are dataclasses, in groups: ours, those of each choice, those of transformers.

    Args:
        chosen_by: of `parse_arguments`. An option of several choices is shown with the first of them.
    """
    parser, inherited = CommandParser(**kwargs), []
    add_plugin(parser)
    for dtype in dataclass_types:
        bases = [base for base in dtype.__mro__ if base.__module__.startswith("transformers.")]
        theirs = {name for base in bases for name in vars(base).get("__annotations__", ())}
        _add_options(parser, type_title(dtype), dtype, {field.name for field in fields(dtype)} - theirs)
        inherited.append((dtype, theirs))
    shown: set[str] = set()
    for choice, row in chosen_by.items():
        dtype = row.Options
        names = {field.name for field in fields(dtype)}
        group = _add_options(parser, f"--objective {choice}", dtype, names - shown, f"{type_title(dtype)}.")
        shown |= names
        for action in group:  # without a default: parsing gives those that were typed
            action.default, action.required = argparse.SUPPRESS, False
            action.help = re.sub(r"Default: (?!the checkpoint)", "Default: the checkpoint's, else ", action.help or "")
    for dtype, theirs in inherited:
        if theirs:
            _add_options(parser, "Of transformers' TrainingArguments", dtype, theirs)
    return parser


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """Add --plugin. Parsing loads what it names."""
    help_text = "Python file of yours that adds views, objectives, heads or families: see examples/"
    parser.add_argument("--plugin", metavar="FILE", default=argparse.SUPPRESS, help=help_text)


def _add_options(
    parser: CommandParser, title: str, dtype: Any, names: Iterable[str], description: str | None = None
) -> list[argparse.Action]:
    """Add a group with these fields of a dataclass, and return the actions of argparse."""
    from transformers import HfArgumentParser
    from transformers.hf_argparser import string_to_bool

    group: Any = parser.add_argument_group(title, description)
    types, bounds, before = get_type_hints(dtype), bounds_of(dtype), len(parser._actions)
    for original in fields(dtype):
        if original.name in names:
            declared: Any = copy.copy(original)
            declared.type = types[original.name]
            declared.metadata = {
                name: value for name, value in original.metadata.items() if name not in (COMMON, DECIDES)
            }
            declared.metadata["help"] = _help_of(original)
            HfArgumentParser._parse_dataclass_field(group, declared)
            if (action := parser._actions[-1]).type in (int, float):
                action.type = replace(bounds.get(original.name, Bound()), kind=action.type)
    for action in parser._actions[before:]:
        # HfArgumentParser takes --learning-rate too: it works, and is not shown
        action.option_strings = [spelling for spelling in action.option_strings if "-" not in spelling[2:]]
        if action.dest == "resume_from_checkpoint":  # with no value: from the newest complete one of --output_dir
            action.nargs, action.const = "?", "newest"
        elif action.type is string_to_bool:  # a switch needs no value, also where its default is None
            action.nargs, action.const = "?", True
        kinds: Any = {int: "N", float: "X", string_to_bool: "true|false"}
        if action.choices is None and action.nargs != 0:
            action.metavar = kinds.get(getattr(action.type, "kind", action.type), "TEXT")
        if action.nargs != 0:
            action.help = _with_default(action.help or "", action.default)
    return parser._actions[before:]


def _with_default(help_text: str, default: Any) -> str:
    """Add a default to a help text that names none, but for None, an empty one, off, and -1 (no limit)."""
    shown = " ".join(map(str, default)) if isinstance(default, list) else str(default)
    if default is None or default is False or default == -1 or not shown or "Default:" in help_text:
        return help_text
    return f"{help_text} Default: {shown}.".lstrip()


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
        chosen_by: a class for each value of --objective, with a dataclass of options as `Options`. They have no
            defaults here: the last element returned is a dictionary of the options that recipe or command line give.
            Only their types are checked; the caller knows which value was chosen.
        positional: names and helps of words that come first, in place of a recipe. The last element returned is a
            dictionary of them.

    Raises:
        ValueError: if the recipe is missing, has an unknown option or is no flat mapping of options.
        SystemExit: for an unknown option or a wrong value.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    answer_help(dataclass_types, description, words, positional)
    recipe, words = (None, words) if positional else _divide(words)
    _load_named_plugin(recipe, words)  # before its rows are choices
    usage = f"%(prog)s {' '.join(positional or ['[recipe]']).upper()} [--option value ...]"
    parser = parser_of(dataclass_types, chosen_by or {}, docstring=description, usage=usage)
    for name, help_text in (positional or {}).items():
        parser.add_argument(name, metavar=name.upper(), help=help_text)
    if not {"--help", "-h"}.isdisjoint(words):
        parser.print_help()
        sys.exit(0)
    from_recipe = _recipe_words(recipe, words, [action.dest for action in parser._actions])
    given: Options = vars(parser.parse_args([*from_recipe, *words]))
    given.pop("plugin", None)
    instances = [
        dtype(**{field.name: given.pop(field.name) for field in fields(dtype) if field.init})
        for dtype in dataclass_types
    ]
    typed = _names_in(words)
    if chosen_by and "objective" in typed:  # the options of the recipe's objective do not fit
        (objective,) = [instance.objective for instance in instances if hasattr(instance, "objective")]
        taken = {field.name for field in fields(chosen_by[objective].Options)} | typed
        if dropped := given.keys() - taken:
            logger.warning(f"--objective {objective} has no {', '.join(sorted(dropped))}: the recipe's are left out.")
        given = {name: value for name, value in given.items() if name in taken}
    return (*instances, given) if chosen_by is not None or positional else tuple(instances)


def _load_named_plugin(recipe: str | None, words: Sequence[str]) -> None:
    """Load the plug-in that the command line names, else the one of the recipe; what is wrong is told later."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--plugin", nargs="?")
    if path := parser.parse_known_args([*_recipe_words(recipe, words, ()), *words])[0].plugin:
        load_plugin(path)


def _divide(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Divide a command line into the recipe, None if it has none, and the words after it."""
    has_recipe = bool(words) and not words[0].startswith("-")
    return words[0] if has_recipe else None, list(words[has_recipe:])


def _names_in(words: Iterable[str]) -> set[str]:
    return {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}


def _recipe_words(recipe: str | None, words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Read a recipe as words of the command line.

    Args:
        words: of the command line, which has to have what the recipe leaves to it.
        known: the names of options that the script has; empty: any.
    """
    if recipe is None:
        return []
    path, read = find_recipe(recipe), []
    try:
        options = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader) or {}  # texts: `no` is no false
        if any(isinstance(value, dict) for value in options.values()):
            raise ValueError("it has groups")
    except (yaml.YAMLError, ValueError, AttributeError) as error:  # no YAML, no UTF-8, no mapping
        reason = " ".join(str(error).split())
        raise ValueError(f"The recipe {path} should be lines of `option: value`: {reason}.") from error
    for name, value in options.items():
        if known and name.replace("-", "_") not in known:
            raise ValueError(f"The recipe {path}: this script has no option {name}.{did_you_mean(name, known)}")
        if value == "???" and name not in _names_in(words):
            raise ValueError(f"The recipe {path} leaves --{name} to you: give it on the command line.")
        if value not in ("", "null", "???"):
            read += [f"--{name}", *(value if isinstance(value, list) else [value])]
    return read


def find_recipe(name: str) -> Path:
    """Find a recipe: a file, else one that comes with the project, by its name with or without .yaml.

    Raises:
        ValueError: if there is neither.
    """
    package = Path(__file__).parents[1]
    places = (package / "recipes", package.parent / "recipes")  # of an installation, else of a clone
    known = {path.stem: path for path in sorted(next(filter(Path.is_dir, places)).glob("*.yaml"))}
    path = Path(name) if Path(name).is_file() else known.get(name.removesuffix(".yaml"))
    if path is None:
        meant = did_you_mean(Path(name).stem, known)
        raise ValueError(f"There is no recipe {name!r}.{meant} Name a file, or one of: {', '.join(known)}.")
    return path


def given_options(argv: list[str] | None = None) -> tuple[str | None, Options]:
    """Find the recipe and the options given by it or the command line, as text; the command line wins.

    Args:
        argv: as `parse_arguments` takes it, which has accepted it.
    """
    recipe, words = _divide(sys.argv[1:] if argv is None else argv)
    options: dict[str, list[str]] = {}
    name = ""
    for word in [*_recipe_words(recipe, words, ()), *words]:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            name = name.replace("-", "_")
            options[name] = [value] if value else []
        else:
            options[name].append(word)
    return recipe, {name: " ".join(values) or "true" for name, values in options.items()}


def answer_help(
    dataclass_types: Sequence[Any],
    description: str,
    argv: Sequence[str] | None = None,
    positional: Mapping[str, str] | None = None,
) -> None:
    """Print the short page and exit, if the command line asks for it: `--help` or `-h` without `all` after it.

    The page has usage, the script's docstring, and a line for each common option.

    Raises:
        SystemExit: with code 0, after printing.
    """
    words = sys.argv[1:] if argv is None else argv
    if "all" in words or {"--help", "-h"}.isdisjoint(words):
        return
    command = running_command()
    rows = [(name.upper(), f"{help_text}.") for name, help_text in (positional or {"[recipe]": RECIPE}).items()]
    usage = " ".join([*(name for name, _ in rows), "[--option value ...]"])
    for common in (each for dtype in dataclass_types for each in fields(dtype) if each.metadata.get(COMMON)):
        first, *others = re.split(r"(?<!\.)\. ", _help_of(common).rstrip("."))  # not at "a, b ... c"
        text = ". ".join([first, *(sentence for sentence in others if sentence.startswith("Default"))]) + "."
        default = common.default if common.default_factory is MISSING else common.default_factory()
        rows.append((f"--{common.name}", f"{text} Required." if default is MISSING else _with_default(text, default)))
    width = max(len(name) for name, _ in rows) + 2
    print(f"usage: {command} {usage}\n\n{with_installed_commands(description).strip()}\n\nCommon options:")
    for name, text in rows:
        print(textwrap.fill(text, 119, initial_indent=f"  {name:<{width}}", subsequent_indent=" " * (width + 2)))
    print(f"\nAll options: {command} --help all")
    sys.exit(0)


def _help_of(field: "Field[Any]") -> str:
    """Return the help of an option; one that lists the rows of a table is a function, for plug-ins add rows."""
    text = field.metadata.get("help", "")
    return str(text() if callable(text) else text)


def parse_config_overrides(model_type: str, overrides: str | None) -> Options:
    """Parse `hidden_size=128,hidden_act=relu` into values of the types that the configuration has.

    The caller makes the configuration with them: some (ModernBERT's) derive other values from them.

    Raises:
        ValueError: for an unknown architecture, a name that its configuration does not have, a value of another type,
            text that is no `name=value`, and a number that trains wrongly: not finite, or a count below 1.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    if model_type not in CONFIG_MAPPING:
        meant = did_you_mean(model_type, CONFIG_MAPPING.keys())
        raise ValueError(f"--model_type {model_type} is no architecture of transformers, such as bert.{meant}")
    if not overrides:
        return {}
    config, defaults = AutoConfig.for_model(model_type), AutoConfig.for_model(model_type)
    try:
        config.update_from_string(overrides)
        values = {name: getattr(config, name) for name in dict(pair.split("=") for pair in overrides.split(","))}
    except (ValueError, TypeError) as error:
        raise ValueError(f"--config_overrides {overrides}: expected name=value,name=value ({error}).") from error
    for name, value in values.items():
        default = getattr(defaults, name)
        is_number = isinstance(value, int | float) and isinstance(default, int | float) and not isinstance(value, bool)
        is_count = isinstance(default, int) and default > 0 and not (name.endswith("_id") or hasattr(config, "check"))
        if is_number and not Bound(1 if is_count else 0 if default >= 0 else -math.inf).holds(value):
            raise ValueError(f"--config_overrides {name}={value}: no such number can be here.")
    if hasattr(config, "check"):  # one of ours, which knows what each count may be
        config.check()
    return values
