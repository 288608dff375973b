"""What a recipe of a reproduction would do, without doing it: each command parsed, each name looked at, the hours."""

import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.engine.cells import command_of
from benchmarks.engine.study import Study, resolve
from benchmarks.studies.reproduction import measure
from benchmarks.studies.reproduction.plan import (
    DATA_OPTIONS,
    FAMILIES,
    NOT_HERE,
    Options,
    Plan,
    facts_of,
    options_of,
)
from docsplit.runtime.files import refuse_missing_path
from docsplit.runtime.options import find_recipe, parse_arguments

PLACEHOLDER = "not-made-yet"  # of a folder that a cell will write
ON_THE_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")
SPLITS = ("split", "selection_split", "train_split", "validation_split", "test_split")
NAMES = ("model_name_or_path", "corpus", "dataset_name", "tokenizer_name", "probe_corpus")


def problems(study: Study, recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the commands of a study: a line for each distinct step that its script refuses."""
    seen = set()
    for cell in study.cells().values():
        variables = dict.fromkeys((*cell.needs, "folder"), PLACEHOLDER) | study.paths
        for step in cell.steps:
            resolved = resolve(step, variables)
            stated = _with_names_of_the_hub(resolved)
            words = tuple(command_of(stated))
            if (program := re.sub(r"(output_dir|seed) \S+", "", " ".join(words))) in seen:
                continue
            seen.add(program)
            if problem := _problem(stated, list(words)) or data_problem(recipe, options_of(resolved)):
                yield f"{cell.name}: {problem}"


def _with_names_of_the_hub(step: Options) -> Options:
    """Put in place of files that are not here what is no path; and five folds for a file of them."""
    options = {}
    for name, value in step["options"].items():
        is_absent = isinstance(value, str) and value.startswith(f"{NOT_HERE}/")
        absent = value.replace("/", "-").replace(".", "-") if is_absent else value
        options[name] = "5" if name == "folds" and is_absent else absent
    return step | {"options": options}


def data_problem(recipe: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """Return what the data that are not here have not, by the table: a file, a split, a column."""
    places = [str(options[name]) for name in (*DATA_OPTIONS, "folds", "citations_file") if options.get(name)]
    places = [place for place in places if not place.isdigit() and not Path(place).exists()]
    for place in places:
        try:
            facts = facts_of(recipe, place)
        except ValueError as error:
            return str(error)
        file = "/".join(place.split("/")[2:]) if place.startswith(f"{NOT_HERE}/") else ""
        asked = {"files": [file] if file else []}
        asked["splits"] = [options[name] for name in SPLITS if options.get(name)]
        columns = options.get("text_column", [])
        asked["fields"] = [columns] if isinstance(columns, str) else [*columns]
        asked["fields"] += [options["label_column"]] if "label_column" in options else []
        for kind, names in asked.items():
            if unknown := set(names) - set(facts.get(kind, [])):
                return f"{place} has no {kind} {', '.join(sorted(unknown))}; it has {', '.join(facts.get(kind, []))}."
    return None


def _problem(step: Options, words: list[str]) -> str | None:
    """Return why a step cannot run; None if nothing is wrong."""
    errors = StringIO()
    try:
        with redirect_stderr(errors):
            if step.get("recipe"):
                find_recipe(step["recipe"])
            _parse(step, words)
            _check_names(options_of(step))
    except SystemExit:
        return errors.getvalue().strip().splitlines()[-1]
    except (ValueError, OSError) as error:
        return str(error)
    return None


def _parse(step: Options, words: list[str]) -> None:
    """Parse a command as its program does."""
    program = step.get("script") or step["module"]
    place = next(place for place, word in enumerate(words) if word.endswith(program)) + 1
    if program == "run_docsplit_pretraining.py":
        from docsplit.training.models import random_config
        from docsplit.training.options import ModelArguments
        from docsplit.training.run_arguments import ARGUMENTS, OBJECTIVES

        parsed = parse_arguments(ARGUMENTS, "", words[place:], chosen_by=OBJECTIVES)
        (model_args,) = [part for part in parsed if isinstance(part, ModelArguments)]
        if model_args.config_overrides:
            random_config(model_args)
    elif program == measure.__name__:
        measure.parse(words[place:])
    else:
        script, before = importlib.import_module(program.removesuffix(".py")), sys.argv
        try:
            sys.argv = words[place - 1 :]
            script.parse_options()
        finally:
            sys.argv = before


def _check_names(options: Mapping[str, Any]) -> None:
    """Refuse names of models and data that are neither files here nor names that the Hub can have."""
    for option in NAMES:
        values = options.get(option) or []
        for value in values if isinstance(values, list) else values.rpartition("=")[2].split(","):
            if not ON_THE_HUB.fullmatch(value) and not Path(value).exists():
                raise ValueError(f"--{option} {value} is neither here nor a name that the Hub can have.")
            refuse_missing_path(value, "what is here, or a name on the Hub")


def projection(study: Study, plan: Plan, jobs: int) -> str:
    """Return a line a family, and one for all: the hours of cells at the same time; a finished one has its own."""
    sums = {family: [0.0, 0.0, 0.0] for family in (*FAMILIES, "all")}  # cells, hours, and those that are left
    for cell in study.cells().values():
        record, hours = study.record(cell), plan.costs[cell.group].hours(plan.recipe["speed"])
        done = record is not None and record.status == "done"
        took = record.seconds / 3600 if record is not None and done else hours
        for total in (sums[plan.family_of[cell.group]], sums["all"]):
            total[:] = total[0] + 1, total[1] + took, total[2] + (0 if done else hours)
    lines = [
        f"{family:10}{cells:5.0f} cells{hours / jobs:9.2f} hours, of which {left / jobs:.2f} are left"
        for family, (cells, hours, left) in sums.items()
        if cells or family == "all"
    ]
    seeds = len(plan.recipe["seeds"])
    return "\n".join(lines) + f"; {jobs} at a time, on {plan.recipe['hardware']} ({seeds} pretraining seeds)"


def what_cells_read(study: Study, plan: Plan) -> str:
    """Return a line a group: its cells, and the documents (each as often as it is read), tokens and hours of one."""
    lines = []
    for group, cells in Counter(cell.group for cell in study.cells().values()).items():
        cost = plan.costs[group]
        read = f"{cost.documents:14,.0f} documents{cost.tokens:10.2g} tokens"
        lines.append(f"{cells:4} x{read}{cost.hours(plan.recipe['speed']):8.2f} hours  {group}")
    return "\n".join(lines)


def about_speed(recipe: Mapping[str, Any]) -> str:
    """Say what the recipe is made for, and what the hours are projected from."""
    speed = recipe["speed"]
    return (
        f"The recipe is made for {recipe['hours']} hours of {recipe['hardware']}.\n"
        f"Speed: {speed['flops_per_second']:.2g} operations/s, {speed['seconds_a_step']:g} s a step at least, "
        f"{speed['seconds_a_process']:g} s to start a process; {speed['hardware']}; {speed['source'].strip()}."
    )
