"""The cost of cutting a batch into micro-batches, beside a training step.

    python -m benchmarks.speed.micro_batches
    python -m benchmarks.speed.micro_batches --cuts 72:1024 72:2048 --repeats 50
    python -m benchmarks.speed.micro_batches --step_rows 0

Lengths are log-normal, clipped to 8 ... 512 tokens, with a mean of 200, and drawn anew for each repeat;
`docsplit.modeling.encoding.micro_batches` cuts them on one core, and the median counts. Batches of at most --step_rows
rows are also trained on: forward and backward pass of a BERT of 2 layers, 128 wide, without masked LM, of which the
fastest counts, since other work on the machine slows a step more than a cut. The smaller a model, the larger the share
of cutting: this one is as small as any that is worth training.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import BertConfig

from benchmarks.speed.jobs import CLS, LENGTH_MU, LENGTH_SIGMA, MASK, MAX_LENGTH
from benchmarks.speed.meters import seconds_of
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.modeling.encoding import micro_batches
from docsplit.runtime.files import versions, write_text
from docsplit.runtime.launching import hardware
from modeling_docsplit import DocSplitForContrastivePretraining

CUTS = ["72:1024", "72:4096", "3072:4096", "3072:16384", "76800:16384"]
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}


def random_lengths(rows: int, seed: int) -> Tensor:
    """Draw the number of tokens of each row, (R,) int64."""
    normal = np.random.default_rng(seed).normal(LENGTH_MU, LENGTH_SIGMA, rows)
    return torch.from_numpy(np.exp(normal).round().clip(8, MAX_LENGTH).astype(np.int64))


def measure_cut(rows: int, budget: int, repeats: int) -> dict[str, Any]:
    """Measure the milliseconds of cutting, the number of micro-batches and the share of padding: medians."""
    milliseconds, counts, padding = [], [], []
    for seed in range(repeats):
        lengths = random_lengths(rows, seed)
        milliseconds.append(1000 * seconds_of(lambda: list(micro_batches(lengths, budget))))  # noqa: B023
        groups = list(micro_batches(lengths, budget))
        counts.append(len(groups))
        padding.append(1 - int(lengths.sum()) / sum(len(order) * longest for order, longest in groups))
    return {
        "rows": rows,
        "budget": budget,
        "milliseconds": statistics.median(milliseconds),
        "micro_batches": statistics.median(counts),
        "padding_share": statistics.median(padding),
    }


def measure_step(rows: int, budget: int, steps: int) -> float:
    """Measure the milliseconds of forward and backward pass on the CPU: the fastest after one to warm up."""
    torch.manual_seed(0)
    config = BertConfig(attention_probs_dropout_prob=0.0, **SMALL)  # type: ignore[arg-type]
    model = DocSplitForContrastivePretraining(config, max_seq_length=MAX_LENGTH, mlm_weight=0.0).train()
    model.micro_batch_tokens = budget

    def step(batch: dict[str, Tensor]) -> None:
        model(**batch).loss.backward()

    milliseconds = []
    for seed in range(steps + 1):
        lengths = random_lengths(rows, seed)
        mask = torch.arange(int(lengths.max())) < lengths[:, None]  # (R, T)
        ids = torch.randint(MASK + 1, config.vocab_size, mask.shape) * mask
        ids[:, 0] = CLS
        batch = {"input_ids": ids, "attention_mask": mask.long()}
        batch = {name: value.unflatten(0, (-1, 2)) for name, value in batch.items()}  # (B, 2, T)
        model.zero_grad()
        milliseconds.append(1000 * seconds_of(step, batch))
    return min(milliseconds[1:])


def table(results: dict[str, Any]) -> str:
    """Return a table with a line for each batch and budget; the step is empty where none was timed."""
    lines = [
        [
            f"{row['rows']:,}",
            f"{row['budget']:,}",
            f"{row['micro_batches']:,.0f}",
            f"{100 * row['padding_share']:.2f}",
            f"{row['milliseconds']:.2f}",
            f"{row['step_milliseconds']:,.0f}" if "step_milliseconds" in row else "",
            f"{100 * row['share_of_step']:.3f}" if "share_of_step" in row else "",
        ]
        for row in results["cuts"]
    ]
    header = ["rows", "budget", "micro-batches", "padding %", "ms to cut", "ms of a step", "cutting, % of it"]
    return f"{results['hardware']}\n\n{markdown_table(header, lines)}"


def parse_cut(text: str) -> tuple[int, int]:
    """Read 72:1024 as rows and tokens of a micro-batch.

    Raises:
        ArgumentTypeError: if it is something else.
    """
    rows, _, budget = text.partition(":")
    if not (rows.isdecimal() and budget.isdecimal()) or int(rows) < 4 or int(rows) % 2 or int(budget) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected ROWS:TOKENS, as 72:1024, with an even number of rows: two for each document."
        )
    return int(rows), int(budget)


def main() -> None:
    """Cut batches of all sizes, time steps of the small ones, then write JSON and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cuts",
        nargs="+",
        type=parse_cut,
        default=[parse_cut(cut) for cut in CUTS],
        metavar="ROWS:TOKENS",
        help=f"views of a batch, and tokens of a micro-batch (default: {' '.join(CUTS)})",
    )
    parser.add_argument(
        "--repeats", type=int, default=20, help="times each batch is cut; the median counts (default: 20)"
    )
    parser.add_argument("--steps", type=int, default=20, help="timed steps; the fastest counts (default: 20)")
    parser.add_argument("--step_rows", type=int, default=72, help="largest batch with timed steps (default: 72)")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/micro_batches.json"), help="JSON file to write"
    )
    options = parser.parse_args()

    cuts = []
    for rows, budget in tqdm(options.cuts, unit="cut"):
        row = measure_cut(rows, budget, options.repeats)
        if rows <= options.step_rows:
            row["step_milliseconds"] = measure_step(rows, budget, options.steps)
            row["share_of_step"] = row["milliseconds"] / row["step_milliseconds"]
        cuts.append(row)
    results = {"hardware": hardware("cpu"), "versions": versions(), "threads": torch.get_num_threads(), "cuts": cuts}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.output, json.dumps(results, indent=2) + "\n")
    print(f"{table(results)}\n\nWritten: {options.output}")


if __name__ == "__main__":
    main()
