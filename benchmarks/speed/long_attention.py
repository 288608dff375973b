"""Attention to long documents: a Longformer as docsplit computes it, beside the alternatives.

    python -m benchmarks.speed.long_attention
    python -m benchmarks.speed.long_attention --model base --device cuda --batch_size 4 --lengths 1024 4096

Forward and backward pass of the encoder alone, all with random weights and of as many layers of one width (`--model
small`: 2 layers, 512 wide; `base`: Longformer-base), in training mode, on the same random ids without padding:

    blocked      a Longformer with docsplit.modeling.families.longformer
    longformer   the same weights as transformers computes them
    bigbird      block-sparse, its own defaults: blocks of 64, 3 random ones
    modernbert   sdpa; the first of three layers attends to all tokens, the others to a window like Longformer's; its
                 gated feed-forward layers have half as many weights again
    bert         sdpa, every layer attends to all tokens

First the two Longformers must have the same hidden states. Then every contender runs in a process of its own, one at a
time, at 4,096 tokens in rounds, so that a slower machine is slower for all; the fastest step counts. Memory is the
allocator's peak during a step, above weights and gradients. A contender's longer documents are left out once a step
failed, or is expected to take longer than `--longest_step`, if its cost goes on growing as it did. (At 704 tokens or
fewer transformers computes full attention for bigbird.) The last line is the ratio that others read.
"""

import argparse
import statistics
import time
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch
from transformers import AutoConfig, AutoModel

from benchmarks.speed.meters import (
    add_device,
    fastest_product,
    in_process,
    make_parser,
    native_precision,
    write_results,
)
from benchmarks.speed.scaling import peak_memory
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.modeling.families.longformer import use_blocked_attention
from docsplit.runtime.files import versions
from docsplit.runtime.launching import hardware, use_all_cores

MODELS = {
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    "small": {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 2048},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
CONTENDERS = {
    "blocked": "longformer",
    "longformer": "longformer",
    "bigbird": "big_bird",
    "modernbert": "modernbert",
    "bert": "bert",
}
VOCABULARY = 1000
LENGTH_OF_RATIO = 4096
EQUAL = {"fp32": 1e-4, "bf16": 0.1}  # of hidden states, which have a standard deviation of 1


def make(name: str, job: dict[str, Any]) -> Any:
    """Return a contender on its device, in training mode."""
    model_type = CONTENDERS[name]
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "vocab_size": VOCABULARY}
    sizes = MODELS[job["model"]] | {"max_position_embeddings": job["length"] + 2}
    config = AutoConfig.for_model(model_type, **ids, **sizes)
    config.update({"hidden_dropout_prob": job["dropout"], "attention_probs_dropout_prob": job["dropout"]})
    if model_type == "longformer":
        config.update({"attention_window": job["window"]})
    elif model_type == "modernbert":
        config.update({"local_attention": job["window"], "cls_token_id": 0, "sep_token_id": 2})
        config.update({"attention_dropout": job["dropout"], "mlp_dropout": job["dropout"]})
    torch.manual_seed(0)
    model = AutoModel.from_config(config)
    if name == "blocked":
        use_blocked_attention(model)
    return model.to(job["device"]).train()


def inputs_of(name: str, job: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the same ids (B, T) for all, none of them padding; a Longformer's first token attends to all."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (job["batch_size"], job["length"]), generator=generator).to(job["device"])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if CONTENDERS[name] == "longformer":
        inputs["global_attention_mask"] = torch.zeros_like(ids)
        inputs["global_attention_mask"][:, 0] = 1
    return inputs


def measure(name: str, job: dict[str, Any]) -> dict[str, float]:
    """Measure seconds of the fastest step, forward and backward, and peak memory in MB; runs in a separate process."""
    use_all_cores(torch.device(job["device"]), world_size=1)
    model, inputs = make(name, job), inputs_of(name, job)
    direction = torch.randn(model.config.hidden_size, device=job["device"])  # the sum of a layer norm has no gradient

    def step() -> tuple[float, float]:
        def now() -> float:
            if job["device"] == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter()

        start = now()
        with torch.autocast(job["device"], torch.bfloat16, enabled=job["precision"] == "bf16"):
            states = model(**inputs)[0]
        middle = now()
        (states.float() @ direction).sum().backward()
        return now() - start, middle - start

    step()  # gradients are there from here on
    memory = peak_memory(step, torch.device(job["device"])) / 2**20
    seconds, forward = min(step() for _ in range(job["steps"]))
    return {"seconds": seconds, "forward": forward, "memory_mb": memory}


def run(name: str, job: dict[str, Any]) -> dict[str, float] | None:
    """Return a contender's measurements; None, with a line, if it failed, most likely for lack of memory."""
    try:
        return in_process(measure, name, job)
    except (BrokenProcessPool, RuntimeError) as error:
        print(f"{name} at {job['length']}: {type(error).__name__}: {str(error).splitlines()[0]}")
        return None


def largest_difference(job: dict[str, Any]) -> float:
    """Return the largest difference between the hidden states of the two Longformers, in eval mode."""
    states = []
    for name in ("blocked", "longformer"):
        with torch.no_grad(), torch.autocast(job["device"], torch.bfloat16, enabled=job["precision"] == "bf16"):
            states.append(make(name, job).eval()(**inputs_of(name, job))[0].float())
    return float((states[0] - states[1]).abs().max())


def needed_flops(job: dict[str, Any]) -> float:
    """Count operations of a Longformer's forward and backward pass: matrix products, and scores inside the windows."""
    size = MODELS[job["model"]]
    hidden, layers = size["hidden_size"], size["num_hidden_layers"]
    linear = 4 * hidden**2 + 2 * hidden * size["intermediate_size"]
    attention = 2 * min(job["window"] + 2, job["length"]) * hidden
    return 3 * 2.0 * layers * (linear + attention) * job["length"] * job["batch_size"]


def peak_flops(job: dict[str, Any]) -> float:
    """Measure the operations a second of a large matrix product."""
    dtype = torch.bfloat16 if job["precision"] == "bf16" else torch.float32
    return fastest_product(8192 if job["device"] == "cuda" else 2048, dtype, job["device"])


def measure_all(job: dict[str, Any], options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """Measure all contenders and lengths; return their rows, and the reason for each that was left out."""
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    stopped: set[str] = set()
    last: dict[str, float] = {}
    for length in options.lengths:
        names = [name for name in options.contenders if name not in stopped]
        parts: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(options.rounds if length == LENGTH_OF_RATIO else 1):
            for name in names:
                print(f"{name} at {length}", flush=True)
                part = run(name, job | {"length": length}) if name not in stopped else None
                parts[name] += [part] if part else []
                stopped |= set() if part else {name}
        for name in options.contenders:
            if name in stopped:
                left_out.append(f"{name} at {length}")
                continue
            best = min(parts[name], key=lambda part: part["seconds"])
            memory = statistics.median(part["memory_mb"] for part in parts[name])
            tokens = length * options.batch_size
            rows.append(
                {"contender": name, "length": length, **best, "memory_mb": memory}
                | {"tokens_per_second": tokens / best["seconds"]}
            )
            # It goes on growing as it grew last; before that is known, as attention of quadratic cost does.
            growth = best["seconds"] / last[name] if name in last else 4
            last[name] = best["seconds"]
            if best["seconds"] * growth > options.longest_step:
                stopped.add(name)
    return rows, left_out


def table(results: dict[str, Any]) -> str:
    """Return what was compared, the Markdown table of all rows, and what was left out."""
    rows = [
        [f"{row['length']:,}", row["contender"], f"{row['seconds']:.3f}", f"{row['forward']:.3f}",
         f"{row['tokens_per_second']:,.0f}", f"{row['memory_mb']:,.0f}"]
        for row in results["rows"]
    ]  # fmt: skip
    lines = [
        f"{results['hardware']}; {results['precision']}, {results['model']} model, batch {results['batch_size']}, "
        f"window {results['window']}, dropout {results['dropout']:g}; hidden states of the two Longformers differ by "
        f"{results['largest_difference']:.1e}",
        "",
        markdown_table(["tokens", "contender", "seconds", "of it forward", "tokens/s", "MB"], rows),
    ]
    if results["left_out"]:
        lines += [
            "",
            f"Left out, because expected to be too slow or too large, or failed: {', '.join(results['left_out'])}.",
        ]
    lines += ["", f"Blocked, share of the measured peak of matrix products: {results['share_of_peak']:.0%}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compare the two Longformers, measure all contenders, then write JSON and table."""
    parser = make_parser(__doc__, "long_attention.json")
    add_device(parser)
    lengths = [512, 1024, 2048, 4096, 8192, 16384, 32768]
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths, help="tokens of a text")
    parser.add_argument("--window", type=int, default=512, help="attended to, half to either side (default: 512)")
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.0, help="default: 0; checkpoints have 0.1")
    parser.add_argument("--rounds", type=int, default=3, help=f"rounds at {LENGTH_OF_RATIO} tokens (default: 3)")
    parser.add_argument("--steps", type=int, default=3, help="timed steps a round; the fastest counts")
    parser.add_argument("--longest_step", type=float, default=60, help="most seconds of a step (default: 60)")
    options = parser.parse_args()
    if not {"blocked", "longformer"} <= set(options.contenders) or LENGTH_OF_RATIO not in options.lengths:
        parser.error(f"the ratio needs blocked and longformer among --contenders and {LENGTH_OF_RATIO} in --lengths.")
    options.lengths.sort()

    use_all_cores(torch.device(options.device), world_size=1)
    precision = options.precision or native_precision(options.device)
    job = {name: getattr(options, name) for name in ("model", "device", "window", "batch_size", "dropout", "steps")}
    job["precision"] = precision
    difference = largest_difference(job | {"length": LENGTH_OF_RATIO})
    if not difference < EQUAL[precision]:
        raise ValueError(f"The hidden states of the two Longformers differ by {difference:.1e}.")
    rows, left_out = measure_all(job, options)
    at_ratio = {row["contender"]: row["seconds"] for row in rows if row["length"] == LENGTH_OF_RATIO}
    if not {"blocked", "longformer"} <= set(at_ratio):
        raise ValueError(
            f"There is no ratio: at {LENGTH_OF_RATIO} tokens a Longformer was left out. Raise --longest_step."
        )
    ratio = at_ratio["longformer"] / at_ratio["blocked"]
    share = needed_flops(job | {"length": LENGTH_OF_RATIO}) / at_ratio["blocked"] / peak_flops(job)
    results = {"hardware": hardware(options.device), "versions": versions(), **job}
    results |= {"largest_difference": difference, "rows": rows, "left_out": left_out}
    results |= {"share_of_peak": share, "ratio": ratio}
    write_results(options.output, results, table(results))
    print(f"\n{table(results)}\nWritten: {options.output}\nforward+backward at {LENGTH_OF_RATIO}: ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
