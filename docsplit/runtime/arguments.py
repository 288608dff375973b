"""One parser for recipe and command line: `script.py [recipe.yaml] [--option value ...]`.

The recipe is turned into command-line words and parsed together with the overrides, so that types and choices are
checked alike and the command line wins. A recipe may hold what the command line may, one option a line, no nesting.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig, HfArgumentParser
from transformers.hf_argparser import string_to_bool


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the lines of the script's docstring, and shows defaults."""


def parse_arguments(
    dataclass_types: Sequence[Any], description: str, argv: list[str] | None = None
) -> tuple[Any, ...]:
    """Parse into one instance of each dataclass.

    Args:
        description: shown by --help.
        argv: the words after the script's name; None reads `sys.argv`.

    Raises:
        ValueError: if the recipe is missing or is no flat mapping of options.
        SystemExit: from argparse, for an unknown option or a wrong value.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    recipe = words.pop(0) if words and not words[0].startswith("-") else None
    parser = HfArgumentParser(
        dataclass_types,
        description=description,
        usage="%(prog)s [recipe.yaml] [--option value ...]",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,  # `given_options` records what was written
    )
    for action in parser._actions:
        # `--resume_from_checkpoint` with no value: from the newest complete checkpoint of --output_dir.
        if action.dest == "resume_from_checkpoint":
            action.nargs, action.const = "?", "newest"
        # A switch needs no value, also where its default is "as the checkpoint says".
        elif action.type is string_to_bool:
            action.nargs, action.const = "?", True
    words = (_recipe_words(Path(recipe)) if recipe else []) + words
    # HfArgumentParser would otherwise read a file SCRIPT.args that happens to lie beside the script.
    *parsed, unknown = parser.parse_args_into_dataclasses(
        args=words, look_for_args_file=False, return_remaining_strings=True
    )
    if unknown:
        parser.error(f"unknown option {' '.join(unknown)}; --help lists all")
    return tuple(parsed)


def given_options(argv: list[str] | None = None) -> tuple[str | None, dict[str, str]]:
    """The recipe, and each option that it or the command line gives, as text; of both the command line's.

    Args:
        argv: as `parse_arguments` takes it, which has accepted it.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    recipe = words.pop(0) if words and not words[0].startswith("-") else None
    options: dict[str, list[str]] = {}
    name = ""
    for word in (_recipe_words(Path(recipe)) if recipe else []) + words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            name = name.replace("-", "_")
            options[name] = [value] if value else []
        else:
            options[name].append(word)
    return recipe, {name: " ".join(values) or "true" for name, values in options.items()}


def _recipe_words(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"There is no recipe {str(path)!r}; see recipes/ for those that come with the project.")
    options = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if not isinstance(options, dict):
        raise ValueError(f"The recipe {path} should be lines of `option: value`.")
    words = []
    for name, value in options.items():
        if isinstance(value, dict):
            raise ValueError(f"The recipe {path} nests options under {name!r}; write one option a line.")
        if value is None:
            continue
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *map(str, values)]
    return words


def parse_config_overrides(model_type: str, overrides: str | None) -> dict[str, Any]:
    """`hidden_size=128,hidden_act=relu` as values of the types that the configuration has.

    They are returned rather than set: some configurations (ModernBERT's) derive others from them when they are made.

    Raises:
        ValueError: for a name that this configuration does not have, or text that is no `name=value`.
    """
    if not overrides:
        return {}
    if not all(pair.count("=") == 1 for pair in overrides.split(",")):
        raise ValueError(f"--config_overrides is {overrides!r}, expected name=value,name=value.")
    config = AutoConfig.for_model(model_type)
    config.update_from_string(overrides)
    return {name: getattr(config, name) for name in (pair.split("=")[0] for pair in overrides.split(","))}
