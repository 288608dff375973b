"""The numbers of a training, step by step, to show that a change of the code changes none of them.

    # this code and that of a commit, trained side by side: the same losses and parameters, bit for bit
    python -m tests.trajectories --against main
    python -m tests.trajectories --against HEAD~3 docsplit lora

    # after a change that is meant to change the numbers
    python -m tests.trajectories --write

The code is driven through run_docsplit_pretraining.py and judged by what that leaves on the disk, since these outlast
the modules behind them.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
TRAJECTORIES = DATA / "trajectories.json"
ENCODER = DATA / "encoder"  # a checkpoint of this project: one layer, masked-LM head, mean pooling
DOCUMENTS = DATA / "documents.jsonl"

NUM_STEPS = 20
CLOCKS = re.compile(r"runtime|per_second|seconds|stall")  # names in the log of what no two runs have alike

TINY = (
    "hidden_size=16,num_hidden_layers=2,num_attention_heads=2,intermediate_size=32,max_position_embeddings=80,"
    "hidden_dropout_prob=0.1,attention_probs_dropout_prob=0.1"
)
TOKENIZER = ("--tokenizer_name", str(DATA / "tokenizer"))  # training one twice gives other ids
RANDOM_START = (*TOKENIZER, "--config_overrides", TINY)
LONGFORMER_START = (
    *TOKENIZER, "--model_type", "longformer", "--config_overrides", f"{TINY},attention_window=8",
)  # fmt: skip
GRAPH_START = (
    *TOKENIZER, "--model_type", "graph_document", "--config_overrides",
    f"{TINY},graph_hidden_size=16,graph_kind=section,graph_attention_dropout=0.1",
)  # fmt: skip
PRETRAINED_START = ("--model_name_or_path", str(ENCODER))
COMMON = (
    "--corpus", str(DOCUMENTS), "--max_seq_length", "64", "--micro_batch_tokens", "256",
    "--use_cpu", "--bf16", "False", "--seed", "42", "--per_device_train_batch_size", "10", "--learning_rate", "1e-3",
    "--logging_steps", "1", "--disable_tqdm", "True",
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One way to train.

    Attributes:
        options: of the script, beside `COMMON`.
        start: the options that say with which encoder and tokenizer to start.
        processes: more than 1: with torchrun.
    """

    options: str = ""
    start: tuple[str, ...] = RANDOM_START
    processes: int = 1


VARIANTS = {
    "docsplit": Variant(),
    "simcse": Variant("--view simcse --symmetric_loss --gradient_accumulation_steps 2"),
    "contrastive_tension": Variant("--view simcse --objective contrastive_tension --mlm_weight 0"),
    "momentum_contrast": Variant(
        "--view crop --objective momentum_contrast --momentum_queue_size 32 --momentum 0.9 --mlm_weight 0"
    ),
    "bregman": Variant("--view simcse --objective info_nce+bregman --bregman_subnetworks 4 --mlm_weight 0"),
    "lora": Variant("--lora_r 2 --learning_rate 1e-2", start=PRETRAINED_START),
    "longformer": Variant("--view half", start=LONGFORMER_START),
    "cached_gradients": Variant("--cache_gradients --pooling cls"),
    "neighbours": Variant(
        "--objective neighbour_distillation --view simcse --mlm_weight 0 --num_neighbours 5", start=PRETRAINED_START
    ),
    "graph": Variant("--view passages --passage_words 15 --symmetric_loss", start=GRAPH_START),
    "queries": Variant(
        "--view query_document --queries first_sentence --negatives bm25 self --negatives_per_query 2 --mlm_weight 0"
    ),
    "mlm": Variant("--contrastive_weight 0 --mlm_weight 1"),
    "streaming": Variant("--streaming --shuffle_buffer_size 20 --view passages --passage_words 15"),
    "evaluated": Variant(
        "--view ict --eval_strategy steps --eval_steps 10 --per_device_eval_batch_size 4 --probe_corpus {documents}"
    ),
    "two_processes": Variant("--per_device_train_batch_size 5", processes=2),
}


@dataclass(frozen=True)
class Trajectory:
    """The results of a run: an entry of the log a step, clocks left out, and tensors by file and key."""

    log: list[dict[str, Any]]
    tensors: dict[str, torch.Tensor]

    @property
    def losses(self) -> list[float]:
        return [entry["loss"] for entry in self.log if "loss" in entry]


def options_of(variant: Variant) -> list[str]:
    """The words of the command line, without those that say how long to train and where to write."""
    pooling = [] if "--pooling" in variant.options or variant.start == GRAPH_START else ["--pooling", "mean"]
    return [*COMMON, *pooling, *variant.start, *(word.format(documents=DOCUMENTS) for word in variant.options.split())]


def read_log(checkpoint: Path) -> list[dict[str, Any]]:
    history = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    return [{name: value for name, value in entry.items() if not CLOCKS.search(name)} for entry in history]


def read_trajectory(output_dir: Path) -> Trajectory:
    """Read the folder of a run of `NUM_STEPS` steps."""
    tensors = {
        f"{file.relative_to(output_dir)}: {key}": value
        for file in sorted(output_dir.rglob("*.safetensors"))
        for key, value in load_file(file).items()
    }
    return Trajectory(read_log(output_dir / f"checkpoint-{NUM_STEPS}"), tensors)


def start_run(code: Path, words: Sequence[str], folder: Path, processes: int = 1) -> subprocess.Popen[str]:
    """Start the script of a checkout in a folder of its own, which gets `run`, the log and a cache of data.

    Not one cache for all: it would hide what another code makes of the same documents.
    """
    folder.mkdir(parents=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] * (processes > 1)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    environment |= {"OMP_WAIT_POLICY": "PASSIVE", "HF_DATASETS_CACHE": str(folder / "cache")}
    with (folder / "log.txt").open("w") as log:
        command = [sys.executable, *launcher, str(code / "run_docsplit_pretraining.py"), *words, "--output_dir", "run"]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)


def finish_run(process: subprocess.Popen[str], folder: Path) -> Path:
    """Wait for a run of `start_run`, and return its output folder.

    Raises:
        RuntimeError: if it failed, with the end of its log.
    """
    if process.wait():
        raise RuntimeError("\n".join((folder / "log.txt").read_text().splitlines()[-30:]))
    return folder / "run"


def train_side_by_side(name: str, codes: Sequence[Path], folder: Path) -> list[Trajectory]:
    """Train a variant with each of these checkouts at once."""
    variant, steps = VARIANTS[name], ["--max_steps", str(NUM_STEPS), "--save_steps", str(NUM_STEPS)]
    folders = [folder / f"{name}-{index}" for index in range(len(codes))]
    processes = []
    try:
        for index, code in enumerate(codes):
            words = [*options_of(variant), *steps]
            processes.append(start_run(code, words, folders[index], variant.processes))
        return [read_trajectory(finish_run(*run)) for run in zip(processes, folders)]
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def first_difference(ours: Trajectory, theirs: Trajectory) -> str | None:
    """Where two trajectories part, in the order in which it happened; None if every bit is the same.

    What only ours logs is no difference.
    """
    for mine, other in zip(ours.log, theirs.log):
        for name in other:
            if mine.get(name) != other.get(name):
                return f"step {mine['step']}: {name} is {mine.get(name)}, was {other.get(name)}"
    if len(ours.log) != len(theirs.log):
        return f"the log has {len(ours.log)} entries, had {len(theirs.log)}"
    if only := sorted(ours.tensors.keys() ^ theirs.tensors.keys()):
        return f"{len(only)} tensors are on one side only, such as {only[0]}"
    for key, mine in ours.tensors.items():
        other = theirs.tensors[key]
        if mine.dtype != other.dtype or mine.shape != other.shape:
            return f"{key} is {mine.dtype} {tuple(mine.shape)}, was {other.dtype} {tuple(other.shape)}"
        if not torch.equal(mine.flatten().view(torch.uint8), other.flatten().view(torch.uint8)):
            return f"{key} differs, by {(mine.double() - other.double()).abs().max():.1e} at most"
    return None


@contextlib.contextmanager
def checkout(commit: str, folder: Path) -> Iterator[Path]:
    """The code of a commit, in a worktree that is there as long as this lasts."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def compare(commit: str, names: Sequence[str]) -> bool:
    """Train with this code and with that of a commit, and print a line a variant; whether all are equal."""
    all_equal = True
    with tempfile.TemporaryDirectory() as folder, checkout(commit, Path(folder) / "code") as code:
        for name in names:
            ours, theirs = train_side_by_side(name, (ROOT, code), Path(folder))
            difference = first_difference(ours, theirs)
            all_equal = all_equal and difference is None
            equal = f"equal ({len(ours.losses)} losses, {len(ours.tensors)} tensors)"
            print(f"{name:20} {equal if difference is None else 'DIFFERENT: ' + difference}", flush=True)
    return all_equal


def write_trajectories(names: Sequence[str]) -> None:
    """Replace the losses of these variants in the file that the tests compare with."""
    losses = json.loads(TRAJECTORIES.read_text()) if TRAJECTORIES.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            losses[name] = train_side_by_side(name, (ROOT,), Path(folder))[0].losses
    lines = [f"{json.dumps(name)}: {json.dumps(losses[name])}" for name in VARIANTS if name in losses]
    TRAJECTORIES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--against", metavar="COMMIT", help="compare with the code of this commit")
    action.add_argument("--write", action="store_true", help=f"write {TRAJECTORIES.relative_to(ROOT)}")
    parser.add_argument("variants", nargs="*", metavar="variant", help=f"default: all of {', '.join(VARIANTS)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.variants) - set(VARIANTS):
        parser.error(f"no variant is called {', '.join(sorted(unknown))}")
    names = arguments.variants or list(VARIANTS)
    if arguments.write:
        write_trajectories(names)
    else:
        sys.exit(not compare(arguments.against, names))


if __name__ == "__main__":
    main()
