"""Speed and memory of training and encoding, beside the alternatives.

    python -m benchmarks.speed.training
    python -m benchmarks.speed.training --models small --contenders docsplit trainer_dynamic --rounds 5

`benchmarks/speed/contenders.py` says what is compared. Each contender has a process of its own, which stays
alive and sleeps while the others work. First all compute the loss of the same batch in full precision, and the run
ends if they differ: they do the same work. Then they take turns, round by round, forwards and backwards: a round is
one pass of a stock Trainer over the same documents. Ratios are medians over the rounds of the ratio within a round,
which a busy machine changes least.

- tokens/s: tokens of the views without padding, each counted once, although masked LM encodes a second copy of it.
- peak memory: of a process's training above what it had before the model; on a GPU what PyTorch allocated.
- padding: share of the tokens computed that are padding.
- loader stall: share of the time between one step and the next, most of it waiting for the batch.
- MFU: useful floating-point operations per second, divided by those of the fastest of some square matrix products
  (1024 to 4096; on a GPU 8192) measured in the same run and precision. Useful are those that real tokens need, the
  same number for each contender with the same loss: 6 N + 12 L H T for each encoded token, and 6 (H^2 + H V) for each
  masked token with masked LM, which also encodes each view a second time. N: parameters of the encoder's layers,
  without embeddings; L: layers; H: width; T: tokens of the view; V: vocabulary. (A product of matrices costs two
  operations a parameter and token, and its backward pass twice that; 12 L H T is attention. Encoding alone is a third
  of it.)

Models have random weights: `small` is a BERT of 4 layers of width 256, `base` is BERT-base. Attention dropout is 0 for
all contenders: with it PyTorch's attention on a CPU is several times slower. On a CPU a batch of `small` has 16 or 8
documents (with or without bf16) and not the published 36: the dense logits of 36 padded to 512 need more than 20 GB.
"""

import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from benchmarks.speed.contenders import CONTENDERS, serve
from benchmarks.speed.jobs import MODELS, Job, mean_length, write_model
from benchmarks.speed.meters import (
    add_device,
    in_process,
    make_parser,
    measure_peaks,
    native_precision,
    write_results,
)
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.runtime.files import versions
from docsplit.runtime.launching import hardware

STARTED = time.perf_counter()
TRAINING = [name for name in CONTENDERS if not name.endswith("_encode")]
# With equal losses, or vectors: (contenders, allowed relative difference).
EQUAL = (
    (("docsplit", "docsplit_cached", "trainer_pad512", "trainer_dynamic", "trainer_group_by_length"), 1e-4),
    (("docsplit_contrastive", "st_mnrl", "st_cached_mnrl"), 1e-4),
    (("docsplit_encode", "st_encode"), 1e-5),
)
RATIOS = {  # name: (contender, the other, what is divided)
    "train_vs_trainer_pad512": ("docsplit", "trainer_pad512", "tokens_per_second"),
    "train_vs_trainer_dynamic": ("docsplit", "trainer_dynamic", "tokens_per_second"),
    "train_vs_trainer_group_by_length": ("docsplit", "trainer_group_by_length", "tokens_per_second"),
    "train_vs_st_mnrl": ("docsplit_contrastive", "st_mnrl", "tokens_per_second"),
    "train_vs_st_cached_mnrl": ("docsplit_contrastive", "st_cached_mnrl", "tokens_per_second"),
    "encode_vs_st": ("docsplit_encode", "st_encode", "tokens_per_second"),
    "cached_step_vs_uncached": ("docsplit_cached", "docsplit", "seconds_per_step"),
    "memory_vs_trainer_dynamic": ("docsplit", "trainer_dynamic", "peak_memory_mb"),
}
COLUMNS = {  # of the table: (title, factor, format)
    "tokens_per_second": ("tokens/s", 1, ",.0f"),
    "seconds_per_step": ("s/step", 1, ".3f"),
    "peak_memory_mb": ("peak MB", 1, ",.0f"),
    "padding_share": ("padding %", 100, ".1f"),
    "loader_stall": ("stall %", 100, ".1f"),
    "mfu": ("MFU %", 100, ".1f"),
}
PLANS = {  # of a model and device: documents of a batch, steps of a round, rounds
    ("tiny", "cpu"): (4, 2, 1),
    ("small", "cpu"): (16, 4, 3),
    ("base", "cpu"): (8, 2, 2),
    ("tiny", "cuda"): (4, 2, 1),
    ("small", "cuda"): (36, 50, 5),
    ("base", "cuda"): (36, 25, 5),
}
WITHOUT_MUCH_WAITING = ["docsplit", "trainer_dynamic", "trainer_group_by_length", "docsplit_contrastive", "st_mnrl"]


class Contender:
    """A process with one contender in it, of `CONTENDERS` or a class like them."""

    def __init__(self, name: Any, job: Job):
        self.name = getattr(name, "__name__", name)
        context = multiprocessing.get_context("spawn")
        self.connection, child_end = context.Pipe()
        self.process = context.Process(target=serve, args=(name, job, child_end))
        self.process.start()
        child_end.close()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the contender and return its answer.

        Raises:
            ModuleNotFoundError: if it needs a package that is not installed.
            RuntimeError: if it fails or is killed.
        """
        self.connection.send((method, *arguments))
        try:
            status, value = self.connection.recv()
        except EOFError as error:
            self.process.join()
            raise RuntimeError(
                f"{self.name} was ended from outside (exit code {self.process.exitcode}), perhaps for want of memory: "
                "lower --batch_size, or leave it out with --contenders."
            ) from error
        if status == "unavailable":
            raise ModuleNotFoundError(value)
        if status == "failed":
            raise RuntimeError(f"{self.name} failed:\n{value}")
        return value

    def close(self) -> None:
        """End the process: asked to, and after 30 seconds without being asked."""
        with contextlib.suppress(OSError):  # it may be gone already
            self.connection.send(None)
        self.process.join(timeout=30)
        self.process.kill()


def check_equal(values: dict[str, Any]) -> None:
    """Compare the losses, or vectors, of contenders that should have the same.

    Raises:
        ValueError: if they differ by more than `EQUAL` allows, relative to the largest number.
    """
    for names, tolerance in EQUAL:
        present = [name for name in names if name in values]
        for name in present[1:]:
            reference, value = np.asarray(values[present[0]]), np.asarray(values[name])
            difference = np.abs(value - reference).max() / np.abs(reference).max()
            if not difference <= tolerance:  # not a number is no agreement
                raise ValueError(
                    f"{name} does not compute what {present[0]} does: their results on the same input differ by a "
                    f"share of {difference:.1e}, and {tolerance:.0e} is allowed. Their speeds cannot be compared."
                )


def measure_model(job: Job, names: list[str]) -> dict[str, Any]:
    """Return rows and ratios of one model."""
    peaks = in_process(measure_peaks, job.device, sorted({"fp32", job.precision}))
    constants = {}
    rounds: dict[str, list[dict[str, float]]] = {}
    processes = {name: Contender(name, job) for name in names}
    try:
        values = {name: contender.ask("prepare") for name, contender in processes.items()}
        check_equal(values)
        losses = {name: value for name, value in values.items() if name in TRAINING}
        say(f"  equal losses: {', '.join(f'{name} {loss:.5f}' for name, loss in losses.items())}")
        for name in values:
            constants[name] = processes[name].ask("warm_up")
            rounds[name] = []
        for number in range(job.rounds):
            for name in values if number % 2 == 0 else reversed(values):
                measures = processes[name].ask("measure", number)
                peak = peaks[job.precision if name in TRAINING else "fp32"]
                measures["mfu"] = measures.pop("flops_per_second") / peak
                measures["peak_memory_mb"] = constants[name]["peak_memory_mb"]
                rounds[name].append(measures)
                say(f"  round {number + 1} of {job.rounds}, {name}: {measures['tokens_per_second']:,.0f} tokens/s")
    finally:
        for contender in processes.values():
            contender.close()
    rows = {}
    for name, measured in rounds.items():
        speeds = [measures["tokens_per_second"] for measures in measured]
        rows[name] = {key: statistics.median(measures[key] for measures in measured) for key in measured[0]}
        rows[name] |= {"tokens_per_second_min": min(speeds), "tokens_per_second_max": max(speeds)}
        rows[name] |= {"settings": constants[name]["settings"]}
    ratios = {
        ratio: [ours[key] / theirs[key] for ours, theirs in zip(rounds[name], rounds[other])]
        for ratio, (name, other, key) in RATIOS.items()
        if name in rounds and other in rounds
    }
    return {
        "rows": rows,
        "ratios": {name: statistics.median(values) for name, values in ratios.items()},
        "ratio_ranges": {name: [min(values), max(values)] for name, values in ratios.items()},
        "losses": losses,
        "peak_flops": peaks,
        "batch_size": job.batch_size,
        "documents": job.batch_size * job.steps,
        "rounds": job.rounds,
        "tokens_per_view": mean_length(job),
    }


def markdown(results: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    packages = ", ".join(f"{name} {version or 'none'}" for name, version in results["versions"].items())
    lines = [f"{results['hardware']}; {results['precision']}; {packages}"]
    for model, measured in results["models"].items():
        peaks = ", ".join(f"{name} {peak / 1e9:,.0f}" for name, peak in measured["peak_flops"].items())
        rows = []
        for name, row in measured["rows"].items():
            spread = f"{row['tokens_per_second_min']:,.0f} ... {row['tokens_per_second_max']:,.0f}"
            shown = (
                format(row[key] * factor, form) if key in row else "" for key, (_, factor, form) in COLUMNS.items()
            )
            rows.append([name, spread, *shown])
        ratios = [
            [name, f"{ratio:.2f}", "{:.2f} ... {:.2f}".format(*measured["ratio_ranges"][name])]
            for name, ratio in measured["ratios"].items()
        ]
        lines += [
            "",
            f"**{model}**: batches of {measured['batch_size']} documents, {measured['rounds']} rounds of "
            f"{measured['documents']}, {measured['tokens_per_view']:.0f} tokens a view; matrix products: {peaks} "
            "GFLOP/s",
            "",
            markdown_table(["contender", "min ... max", *(title for title, _, _ in COLUMNS.values())], rows),
            "",
            markdown_table(["ratio", "median", "min ... max"], ratios),
        ]
    return "\n".join(lines) + "\n"


def say(line: str) -> None:
    """Print a line of progress after the seconds since the start."""
    print(f"{time.perf_counter() - STARTED:6.0f} s  {line}", flush=True)


def prepare_environment(device: str) -> None:
    """Set what the processes of the contenders read."""
    os.environ |= {"TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "true"}
    if device == "cuda":
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # Trainer would use all that it sees
    transformers.utils.logging.disable_progress_bar()


def main() -> None:
    """Measure the models one after another, then write and print the results."""
    parser = make_parser(__doc__, "latest.json")
    add_device(parser)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["small", "base"])
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), help="default: all; base on a CPU: five")
    parser.add_argument("--rounds", type=int, help="timed rounds (default: 1 to 5)")
    parser.add_argument("--documents", type=int, help="of a round, whole batches (default: 8 to 1,800)")
    parser.add_argument("--batch_size", type=int, help="documents of a batch (default: 4 to 16 on a CPU, 36 on a GPU)")
    parser.add_argument("--micro_batch_tokens", type=int, help="of docsplit (default: the pretraining script's)")
    options = parser.parse_args()
    precision = options.precision or native_precision(options.device)
    prepare_environment(options.device)
    models = {}
    for model in options.models:
        batch_size, steps, rounds = PLANS[model, options.device]
        batch_size = options.batch_size or (batch_size // 2 if precision == "fp32" and model != "tiny" else batch_size)
        steps = options.documents // batch_size if options.documents else steps
        if batch_size < 2 or steps < 1:
            parser.error("--batch_size must be 2 or more, and --documents at least as many.")
        few = model == "base" and options.device == "cpu"
        names = options.contenders or (WITHOUT_MUCH_WAITING if few else list(CONTENDERS))
        with tempfile.TemporaryDirectory() as folder:
            config = write_model(model, Path(folder))
            say(f"{model}: {config.num_hidden_layers} layers, {config.hidden_size} wide, {precision}")
            rounds, tokens = options.rounds or rounds, options.micro_batch_tokens
            job = Job(Path(folder), options.device, precision, batch_size, steps, rounds, tokens)
            models[model] = measure_model(job, names)
    first = models[options.models[0]]
    results = {"hardware": hardware(options.device), "versions": versions(), "precision": precision}
    results |= {"peak_flops": first["peak_flops"], "models": models, "ratios": first["ratios"], "rows": first["rows"]}
    tables = markdown(results)
    write_results(options.output, results, tables)
    print(f"\n{tables}")
    say(f"done, results are in {options.output} and {options.output.with_suffix('.md')}")


if __name__ == "__main__":
    main()
