"""Checkpoints that earlier code left behind, in tests/data/checkpoints: what users have on their disks.

    # a kind that is new; those that are there stay as the code of their time wrote them
    python -m tests.old_checkpoints KIND

Each is checkpoint-2 of a run of four steps, as it was written, with all that resuming needs. Beside them,
`expected.json` says how those runs went on, and what `AutoModel` makes of one sentence.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from tests.trajectories import CHECKPOINTS, ROOT, VARIANTS, finish_run, options_of, read_log, start_run

EXPECTED = CHECKPOINTS / "expected.json"
SENTENCE = "The captain of the ship was on the wharf with bread and butter."
STEP = 2
LAST_STEP = 4


def words_of(kind: str) -> list[str]:
    """The options of the run that a checkpoint is of, and of the one that goes on with it: one layer, small files."""
    words = [word.replace("num_hidden_layers=2", "num_hidden_layers=1") for word in options_of(VARIANTS[kind])]
    return [*words, "--max_steps", str(LAST_STEP), "--save_steps", str(STEP)]


def losses_after(checkpoint: Path) -> list[float]:
    """The losses of the steps after `STEP`, from a later checkpoint of the run."""
    return [entry["loss"] for entry in read_log(checkpoint) if "loss" in entry and entry["step"] > STEP]


def embed(checkpoint: Path) -> tuple[list[float], dict[str, Any]]:
    """The first numbers of the mean-pooled `SENTENCE`, and what transformers says of the weights it loaded."""
    model, loading = AutoModel.from_pretrained(checkpoint, add_pooling_layer=False, output_loading_info=True)
    batch = AutoTokenizer.from_pretrained(checkpoint)(SENTENCE, return_tensors="pt")
    with torch.no_grad():
        states = model.eval()(**batch).last_hidden_state
    return [round(value, 6) for value in states[0].mean(dim=0)[:6].tolist()], loading


def write(kind: str) -> None:
    """Train with this code, interrupt nothing, and keep the checkpoint of the middle."""
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / kind
        run = finish_run(start_run(ROOT, words_of(kind), folder), folder)
        shutil.copytree(run / f"checkpoint-{STEP}", CHECKPOINTS / kind)  # fails where there is one
        losses = losses_after(run / f"checkpoint-{LAST_STEP}")
    expected[kind] = {"losses": losses, "embedding": embed(CHECKPOINTS / kind)[0]}
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    for kind in sys.argv[1:]:
        write(kind)
