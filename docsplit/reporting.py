"""What a run shows: the table, the plot, `all_results.json` and the README.md of the checkpoint."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen needed; before pyplot is imported
import matplotlib.pyplot as plt

from docsplit.arguments import given_options
from docsplit.comparison import versions
from docsplit.launching import hardware
from docsplit.model_card import RESULTS_FILE, RUN_FILE, probe_table, without_folders, write_card

ROOT = Path(__file__).parent.parent
NOT_RECORDED = re.compile(
    r"output_dir|overwrite_output_dir|resume_from_checkpoint|disable_tqdm|.*token|push_.*|hub_.*"
)


def write_results(
    output_dir: Path, results: dict[str, Any], log_history: list[dict[str, float]], run: dict[str, Any]
) -> None:
    """Write all_results.json, run.json, training.png and the card beside the checkpoint, and print the table."""
    for name, values in ((RESULTS_FILE, results), (RUN_FILE, run)):
        (output_dir / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    plot_training(log_history, results, output_dir / "training.png")
    write_card(output_dir)
    print(f"\n{probe_table(results)}\n")
    print(
        f"Checkpoint, card, plot and results are in {output_dir}: SentenceTransformer({str(output_dir)!r}) loads it."
    )


def describe_run(device: str, num_processes: int, hub_model_id: str | None) -> dict[str, Any]:
    """What the card says of a run beside its results: options given, hardware, versions, commit.

    Secrets and places on this machine stay here, as far as names of files and of their folders do not tell them.

    Args:
        device: "cpu" or "cuda".
    """
    recipe, options = given_options()
    kept = {name: without_folders(value) for name, value in options.items() if not NOT_RECORDED.fullmatch(name)}
    return {
        "recipe": without_folders(recipe) if recipe else None,
        "options": kept,
        "local": [name for name in set(options) & {"model_name_or_path", "corpus"} if Path(options[name]).exists()],
        "hardware": hardware(device),
        "processes": num_processes,
        "versions": versions(),
        "commit": _commit(),
        "hub_model_id": hub_model_id,
    }


def _commit() -> str | None:
    """Of the code, marked if it has changed since; None where it is no git checkout."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def plot_training(log_history: list[dict[str, float]], results: dict[str, Any], path: Path) -> None:
    """Loss parts over steps and, where measured, probe accuracy beside TF-IDF, as PNG."""
    probed = [entry for entry in log_history if "probe_accuracy" in entry]
    figure, axes = plt.subplots(1, 2 if probed else 1, figsize=(10 if probed else 5.5, 3.8), squeeze=False)
    losses = axes[0, 0]
    for name, label in (("contrastive_loss", "contrastive (InfoNCE)"), ("mlm_loss", "masked LM")):
        points = [(entry["step"], entry[name]) for entry in log_history if name in entry]
        if points:
            losses.plot(*zip(*points), label=label)
    losses.set(xlabel="step", ylabel="loss", title="Training loss", ylim=(0, None))
    if losses.lines:  # none where the run was shorter than --logging_steps
        losses.legend()
    if probed:
        axis = axes[0, 1]
        for name, label, color in (("5shot_accuracy", "5 labels a class", "C2"), ("accuracy", "all labels", "C3")):
            spreads = [entry.get(f"probe_{name}_std", 0.0) for entry in probed]
            axis.errorbar(
                [entry["step"] for entry in probed],
                [entry[f"probe_{name}"] for entry in probed],
                yerr=spreads if any(spreads) else None,
                fmt="o-",
                capsize=3,
                color=color,
                label=f"{label} (± std over draws)" if any(spreads) else label,
            )
            if f"tfidf_{name}" in results:
                axis.axhline(results[f"tfidf_{name}"], color=color, linestyle=":", label=f"TF-IDF, {label}")
        axis.set(xlabel="step", ylabel="accuracy", title="Probe of the frozen encoder", ylim=(0, 1))
        axis.legend(fontsize="small", loc="lower right")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
