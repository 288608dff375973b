"""SIGKILL at a random moment of a training, then the same command again: the same parameters, bit for bit."""

import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

from tests.processes import Script, finish, start
from tests.soak.engine import BrokenPromise, Case
from tests.trajectories import VARIANTS, options_of

STEPS, SAVE_STEPS = 40, 2
KILLED = (
    "docsplit", "streaming", "two_processes", "lora", "momentum_contrast", "bregman", "graph", "queries", "neighbours",
)  # fmt: skip
UNATTENDED = ("--resume_from_checkpoint", "--overwrite_output_dir")  # both can be given from the beginning
MOST_KILLS = 3


def killed_trainings(count: int) -> Iterator[Case]:
    """Kill each variant in turn, up to `MOST_KILLS` times a training."""
    for number in range(count):
        variant = KILLED[number % len(KILLED)]
        yield Case(
            f"{variant} {number}", lambda folder, variant=variant, number=number: _attack(variant, number, folder)
        )


def _attack(variant: str, number: int, folder: Path) -> str:
    rng = random.Random(number)
    seconds, wanted = whole_run(variant)
    kills = 0
    for _ in range(rng.randint(1, MOST_KILLS)):
        scripts = start_training(variant, folder / "run", *UNATTENDED)
        deadline = time.monotonic() + rng.uniform(0, seconds)
        while time.monotonic() < deadline and any(script.returncode is None for script in scripts):
            time.sleep(0.005)
        kills += any(script.returncode is None for script in scripts)
        for script in scripts:
            kill_tree(script)
    scripts = start_training(variant, folder / "run", *UNATTENDED)
    last = finish(scripts)
    resumed = "Continuing from" in last.stdout + last.stderr
    if different := differences(wanted, tensors_of(folder / "run")):
        raise BrokenPromise(f"{different} after {kills} kills")
    if left := [path.name for path in (folder / "run").rglob("*.partial")]:
        raise BrokenPromise(f"half-written files stay: {left}")
    return "went on from a checkpoint" if resumed else "started from the beginning"


@cache
def whole_run(variant: str) -> tuple[float, dict[str, torch.Tensor]]:
    """Train a variant without kills; return the seconds it took and the tensors of its release."""
    with tempfile.TemporaryDirectory(prefix="docsplit-soak-") as folder:
        finish(start_training(variant, Path(folder) / "warm-up"))  # fills the caches
        started = time.monotonic()
        finish(start_training(variant, Path(folder) / "run"))
        return time.monotonic() - started, tensors_of(Path(folder) / "run")


def start_training(
    variant: str, output_dir: Path, *more: str, prefix: Sequence[object] = ("run_docsplit_pretraining.py",)
) -> list[Script]:
    """Start a training of `STEPS` steps; `prefix` begins the command, before the script's options."""
    words = [*options_of(VARIANTS[variant]), "--max_steps", STEPS, "--save_steps", SAVE_STEPS]
    words += ["--save_total_limit", 2, "--output_dir", output_dir, *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = VARIANTS[variant].processes
    return start(*prefix, *words, processes=processes, env=environment)


def kill_tree(script: Script) -> None:
    """SIGKILL a process and its children, and wait for its end."""
    try:
        process = psutil.Process(script.pid)
        for each in [process, *process.children(recursive=True)]:
            each.kill()
    except psutil.NoSuchProcess:
        pass
    script.wait()


def tensors_of(output_dir: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a release, by file and name."""
    return {f"{path.name}: {key}": value for path in sorted(output_dir.glob("*.safetensors"))
            for key, value in load_file(path).items()}  # fmt: skip


def differences(wanted: dict[str, torch.Tensor], got: dict[str, torch.Tensor]) -> str | None:
    """Name the first tensor that differs in a bit; None if there is none."""
    if wanted.keys() != got.keys():
        return f"other files: {sorted(wanted.keys() ^ got.keys())[:3]}"
    return next((f"{name} differs" for name in wanted if not torch.equal(wanted[name], got[name])), None)
