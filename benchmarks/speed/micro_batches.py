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

import statistics
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import BertConfig

from benchmarks.speed.jobs import CLS, LENGTH_MU, LENGTH_SIGMA, MASK, MAX_LENGTH, tokenizer_of_ids
from benchmarks.speed.meters import make_parser, seconds_of, write_results
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.modeling.encoding import micro_batches
from docsplit.runtime.files import versions
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
    medians = {"milliseconds": milliseconds, "micro_batches": counts, "padding_share": padding}
    return {"rows": rows, "budget": budget} | {name: statistics.median(values) for name, values in medians.items()}


def measure_step(rows: int, budget: int, steps: int) -> float:
    """Measure the milliseconds of forward and backward pass on the CPU: the fastest after one to warm up."""
    torch.manual_seed(0)
    config = BertConfig(attention_probs_dropout_prob=0.0, **SMALL)  # type: ignore[arg-type]
    model = DocSplitForContrastivePretraining.from_config(
        config, tokenizer_of_ids(config.vocab_size), max_seq_length=MAX_LENGTH, mlm_weight=0.0
    ).train()
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
    lines = []
    for row in results["cuts"]:
        cut = [f"{row[name]:,.0f}" for name in ("rows", "budget", "micro_batches")]
        cut += [f"{100 * row['padding_share']:.2f}", f"{row['milliseconds']:.2f}"]
        if "step_milliseconds" in row:
            lines.append([*cut, f"{row['step_milliseconds']:,.0f}", f"{100 * row['share_of_step']:.3f}"])
        else:
            lines.append([*cut, "", ""])
    header = ["rows", "budget", "micro-batches", "padding %", "ms to cut", "ms of a step", "cutting, % of it"]
    return f"{results['hardware']}\n\n{markdown_table(header, lines)}"


def main() -> None:
    """Cut batches of all sizes, time steps of the small ones, then write JSON and print a table."""
    parser = make_parser(__doc__, "micro_batches.json")
    parser.add_argument("--cuts", nargs="+", default=CUTS, metavar="ROWS:TOKENS",
                        help="views of a batch, and tokens of a micro-batch")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=20, help="times each batch is cut; the median counts")
    parser.add_argument("--steps", type=int, default=20, help="timed steps; the fastest counts (default: 20)")
    parser.add_argument("--step_rows", type=int, default=72, help="largest batch with timed steps (default: 72)")
    options = parser.parse_args()
    cuts = []
    for rows, budget in tqdm([map(int, cut.split(":")) for cut in options.cuts], unit="cut"):
        row = measure_cut(rows, budget, options.repeats)
        if rows <= options.step_rows:
            row["step_milliseconds"] = measure_step(rows, budget, options.steps)
            row["share_of_step"] = row["milliseconds"] / row["step_milliseconds"]
        cuts.append(row)
    results = {"hardware": hardware("cpu"), "versions": versions(), "threads": torch.get_num_threads(), "cuts": cuts}
    write_results(options.output, results)
    print(f"{table(results)}\n\nWritten: {options.output}")


if __name__ == "__main__":
    main()
