"""Run the papers' tables from one recipe, and write ours beside the papers' as one report.

    # two CPU cores, about five hours, three pretraining seeds; killed anywhere, the same command goes on
    python reproduce.py recipes/reproduction/small.yaml --dry_run
    python reproduce.py recipes/reproduction/small.yaml --data_dir data

    # the recipes; what one consists of (with --only: its cells); a part of it with all that this needs
    python reproduce.py --list
    python reproduce.py recipes/reproduction/small.yaml --list
    python reproduce.py recipes/reproduction/small.yaml --only "classification python_docs: DocSplit *"

    # from an encoder of yours, on a folder of your documents
    python reproduce.py recipes/reproduction/small.yaml --model_name_or_path my/encoder --corpus notes/

    # one GPU, about an hour; the papers' weights and data: docsplit, paper (eight GPUs), docsplit_day (one)
    python reproduce.py recipes/reproduction/medium.yaml --output_dir outputs/reproduction_medium
    python reproduce.py recipes/reproduction/docsplit.yaml --fetch     # what may be fetched of its data

The rows of all methods start from ONE masked language model, which is trained first, unless the recipe or
--model_name_or_path names encoders. A cell trains or measures one encoder of one seed. It is kept under the hash of
the code, data and options that it uses. Cells whose data are not in --data_dir say what they need (docs/datasets.md).

OUTPUT_DIR gets report.md and report.html, results.json, cells.json, and cells/KEY/encoder with each trained encoder
and its card. docs/results.md says how to read the report, and what judges the papers' claims.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import argparse
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from docsplit.runtime.bounds import Bound
from docsplit.runtime.files import ROOT
from docsplit.runtime.options import CommandParser


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandParser(__doc__)
    parser.add_argument("recipe", nargs="?", help="a YAML of recipes/reproduction, or one of yours")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/reproduction"),
                        help="folder of the report and of the cells (default: outputs/reproduction)")  # fmt: skip
    parser.add_argument("--data_dir", type=Path, default=Path("data"),
                        help="folder with the papers' data, of docs/datasets.md (default: data)")  # fmt: skip
    parser.add_argument("--corpus", help="what trainings read, in place of the recipe's: a file, folder or Hub name")
    parser.add_argument("--model_name_or_path", help="encoder to start from, in place of a masked LM trained first")
    parser.add_argument("--only", nargs="+", metavar="PATTERN",
                        help="cells whose name has this in it (* for anything), and those that they need")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the recipes, or count the cells of one")
    parser.add_argument("--fetch", action="store_true",
                        help="download what may be fetched into --data_dir")  # fmt: skip
    parser.add_argument("--dry_run", action="store_true", help="say what each cell reads, and the hours; run nothing")
    parser.add_argument("--jobs", type=Bound(1), help="cells at a time (default: the recipe's)")
    parser.add_argument("--retry", action="store_true", help="run failed cells again")
    parser.add_argument("--any_code", action="store_true", help="count cells that other code made as finished")
    parser.add_argument("--finished", type=Path, metavar="CELLS_JSON",
                        help="cells.json of another machine: its finished cells count here")  # fmt: skip
    options = parser.parse_args()
    if options.recipe is None and not options.list:
        parser.error("name a recipe: --list lists them.")
    return options


def go_to_the_code(options: argparse.Namespace) -> None:
    """Make the folder of the code the current one, as cells have it, and keep what options named."""
    if Path.cwd().samefile(ROOT):
        return
    for name in ("recipe", "output_dir", "data_dir", "corpus", "model_name_or_path", "finished"):
        given = getattr(options, name)
        if given is not None and (name.endswith("_dir") or Path(given).exists()):
            setattr(options, name, type(given)(Path(given).resolve()))
    os.chdir(ROOT)


def main() -> None:
    """List, project, or run the cells of a recipe and write the report."""
    options = parse_options()
    if options.recipe is None:
        for path in sorted((ROOT / "recipes" / "reproduction").glob("*.yaml")):
            if title := yaml.safe_load(path.read_text(encoding="utf-8")).get("title"):
                print(f"{path.relative_to(ROOT)}  {title}")
        return
    go_to_the_code(options)
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from benchmarks.engine.cells import run, show
    from benchmarks.studies.reproduction.hypotheses import read_hypotheses
    from benchmarks.studies.reproduction.measured_cards import add_measured
    from benchmarks.studies.reproduction.plan import make_plan, read_recipe
    from benchmarks.studies.reproduction.report import write_report
    from docsplit.runtime.files import refuse_missing_path
    from docsplit.runtime.sharing import OutputFolder

    for name in (options.corpus, options.model_name_or_path):
        if name is not None:
            refuse_missing_path(name, "what is here, or a name on the Hub")
    if options.finished is not None and not options.finished.is_file():
        raise FileNotFoundError(f"There is no file {options.finished}: --finished names the cells.json of a run.")
    recipe = read_recipe(Path(options.recipe))
    hypotheses = read_hypotheses(recipe)
    if options.corpus is not None:
        recipe["corpus"] = "{given_corpus}"
    plan = make_plan(recipe, options.data_dir, options.model_name_or_path is not None)
    if options.fetch:
        from benchmarks.studies.reproduction.fetching import fetch_all

        for line in fetch_all(plan, options.data_dir):
            print(line, flush=True)
        return
    jobs = options.jobs or recipe.get("jobs", 1)
    if options.dry_run:
        dry_run(plan, options, jobs)
        return
    study = open_study(plan, options)
    if options.list:
        cells = show(study, is_active=is_running(options.output_dir))
        if options.only is not None:
            print(cells)
            return
        kinds = Counter(re.sub("^train .*|:.*", "", cell.name) or "train" for cell in study.cells().values())
        print("\n".join([*(f"{count:5}  {kind}" for kind, count in kinds.items()), cells.splitlines()[-1]]))
        print_missing(plan)
        return
    with OutputFolder(options.output_dir, "reproduce.py", "--output_dir"):
        running = argparse.Namespace(output=options.output_dir / "cells.json", jobs=jobs, nice=0, retry=options.retry)
        code = run(study, running)
        everything = open_study(plan, options, whole=True)
        print(write_report(everything, plan, hypotheses, options))
        print(add_measured(everything))
    sys.exit(code)


def is_running(folder: Path) -> bool:
    """Whether a run has an output folder; nothing is written there to find out."""
    from filelock import FileLock, Timeout

    from docsplit.runtime.sharing import LOCK

    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):  # a kill left it
            return False
    except Timeout:
        return True


def open_study(plan: Any, options: argparse.Namespace, whole: bool = False, data_dir: str | None = None) -> Any:
    """Open the study of a plan in the output folder; `whole`: also what --only leaves out."""
    from benchmarks.engine.study import Study

    given = {"data_dir": data_dir or str(options.data_dir)}
    for name, value in (("given_start", options.model_name_or_path), ("given_corpus", options.corpus)):
        given |= {} if value is None else {name: value}
    results, only = options.output_dir / "cells.json", None if whole else options.only
    return Study(plan.study, options.output_dir / "cells", given, results, options.any_code, only, options.finished)


def dry_run(plan: Any, options: argparse.Namespace, jobs: int) -> None:
    """Print what each cell reads, and the hours, after all commands were parsed, those of sets that are not here too.

    Raises:
        ValueError: if a script refuses its command.
    """
    from benchmarks.studies.reproduction.dry_run import about_speed, problems, projection, what_cells_read
    from benchmarks.studies.reproduction.plan import NOT_HERE, make_plan

    everything = make_plan(plan.recipe, options.data_dir, options.model_name_or_path is not None, with_all_data=True)
    study = open_study(everything, options, data_dir=NOT_HERE)
    if wrong := list(problems(study, plan.recipe)):
        raise ValueError("These commands are refused:\n" + "\n".join(wrong))
    print(f"{plan.recipe['title']}: every command parses, those of data that are not here too.")
    print(about_speed(plan.recipe))
    print(f"\nWhat each cell reads, of data that are not here too:\n{what_cells_read(study, everything)}")
    print(f"\nWith the data that are here:\n{projection(open_study(plan, options), plan, jobs)}")
    if plan.missing:
        print(f"\nWith all data:\n{projection(study, everything, jobs)}\n")
        print_missing(plan)


def print_missing(plan: Any) -> None:
    """Print what is not here, each set once."""
    for needs, file in dict.fromkeys((missing.needs, missing.file) for missing in plan.missing):
        print(f"{needs} ({file})")


command = as_command(main)
if __name__ == "__main__":
    command()
