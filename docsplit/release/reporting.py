"""The files of a pretraining run: `all_results.json`, `run.json`, the plot, and the README.md of its checkpoint."""

import json
import re
from pathlib import Path

from docsplit.evaluation.results.data_names import without_folders
from docsplit.evaluation.results.plots import plot_training
from docsplit.release.card_results import RESULTS_FILE
from docsplit.release.front_matter import start_of
from docsplit.release.model_card import write_card
from docsplit.release.run_record import RUN_FILE, RunRecord, Start
from docsplit.runtime.files import JsonObject, commit_of_code, versions, write_text
from docsplit.runtime.launching import hardware
from docsplit.runtime.options import given_options

NOT_RECORDED = re.compile(
    r"output_dir|overwrite_output_dir|resume_from_checkpoint|disable_tqdm|.*token|push_.*|hub_.*"
)


def write_run(
    output_dir: Path, results: JsonObject, log_history: list[dict[str, float]], run: RunRecord, loss_name: str
) -> None:
    """Write all_results.json, run.json, training.png and the card beside the checkpoint.

    A checkpoint that is the start, unchanged, keeps the start's card.
    """
    write_text(output_dir / RESULTS_FILE, json.dumps(results, indent=2) + "\n")
    write_text(output_dir / RUN_FILE, run.to_json())
    plot_training(log_history, results, output_dir / "training.png", loss_name)
    if not results["kept_start"]:
        write_card(output_dir)


def describe_run(device: str, num_processes: int, hub_model_id: str | None) -> RunRecord:
    """Describe this run for its card: options given, start, hardware, versions, commit.

    Secrets are left out, and files are named without the folders they are in.

    Args:
        device: "cpu" or "cuda".
    """
    recipe, options = given_options()
    kept = {name: without_folders(value) for name, value in options.items() if not NOT_RECORDED.fullmatch(name)}
    return RunRecord(
        recipe=without_folders(recipe) if recipe else None,
        options=kept,
        start=start_of(options["model_name_or_path"]) if "model_name_or_path" in options else Start(),
        local=[name for name in set(options) & {"model_name_or_path", "corpus"} if Path(options[name]).exists()],
        hardware=hardware(device),
        processes=num_processes,
        versions=versions(),
        commit=commit_of_code(),
        hub_model_id=hub_model_id,
    )
