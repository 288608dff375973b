"""A training step on a GPU: speed, share of the peak, waits and memory, beside what one would use instead.

    python -m benchmarks.speed.gpu_step --documents 36 192 --budget 4096 16384 --output outputs/gpu/step.json
    python -m benchmarks.speed.gpu_step --documents 1536 --cache_gradients --packed --compile --beside
    python -m benchmarks.speed.gpu_step --device cpu --model tiny --documents 4 --steps 2 --rounds 1 --beside st

Ours is `DocSplitForContrastivePretraining`, padded or packed, compiled or not, in micro-batches of `--budget` tokens.
Beside it:

    trainer_dynamic  the plain way: BertForMaskedLM, padded to the longest view of the batch
    st_flash         sentence-transformers' MultipleNegativesRankingLoss with flash attention 2, where flash_attn is
                     installed; it has no masked LM, so compare it with `--contrastive_only`
    st               the same with PyTorch's attention

All are trained by a stock Trainer with AdamW, from the same random weights, on the same random documents, new ones in
each step. Views have log-normal lengths of 8 to 512 tokens, 200 in the mean; or all have `--view_tokens`. The loss of
the first batch must agree before anything is timed. A row is a process of its own. It trains `--rounds` times
`--steps` steps, after some that are not timed; with three rounds or more the table has the median.

- tokens/s: tokens of the views, without padding, each once, although masked LM encodes a masked copy too.
- share of the nominal peak, and of the measured one: useful operations a second (`benchmarks.speed.training`, MFU)
  over 989 x 10^12, which NVIDIA says of H100 and H200 in bfloat16 without sparsity, and over those of products of
  matrices of 8,192, measured before. Recomputed operations are not useful.
- waits: operations a step that make the host wait for the device, as `torch.cuda.set_sync_debug_mode` sees them, in
  steps that are not timed. A CPU has none to count.
- memory: the most that PyTorch allocated for tensors, and reserved for itself. On a CPU it is the process's peak.

Rows of earlier runs with the same hardware, versions and output stay in the table, unless they are measured again.
"""

import argparse
import collections
import dataclasses
import functools
import importlib.util
import json
import os
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig
from transformers.trainer_callback import TrainerCallback

from benchmarks.speed import contenders, jobs
from benchmarks.speed.meters import (
    add_device,
    in_process,
    make_parser,
    measure_peaks,
    native_precision,
    write_results,
)
from benchmarks.speed.training import Contender, prepare_environment, say
from docsplit.data.collators import Batch, DocSplitCollator, MaskedRow
from docsplit.data.tokenization import load_tokenizer
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.runtime.files import versions
from docsplit.runtime.launching import default_training_tokens, hardware

NOMINAL_PEAK = 989e12  # operations a second of H100 SXM and H200 in bfloat16, dense: NVIDIA's data sheets
WAIT = "synchronizing CUDA operation"  # in the warnings of `set_sync_debug_mode`
COUNTED_STEPS = 3  # of waits, after two others
AGREE = {"fp32": 1e-4, "bf16": 2e-2}  # largest relative difference of losses
MB = 2**20


@dataclasses.dataclass(frozen=True)
class StepJob(jobs.Job):
    """The settings of a row; those of `Job`, and how the step is made."""

    compile: bool = False
    packed: bool = False
    cache_gradients: bool = False
    masked_lm: bool = True
    view_tokens: int | None = None


class WaitCounter(TrainerCallback):
    """Note how many warnings there have been at the end of each step."""

    def __init__(self, caught: list[Any]):
        self.caught = caught
        self.ends: list[int] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """After the optimizer."""
        self.ends.append(len(self.caught))


class Step(contenders.TrainingContender):
    """A contender whose steps are timed and looked at, without a hook in the encoder, which may be compiled."""

    job: StepJob
    counts_tokens = False

    def prepare(self) -> float:
        """Return the loss of the first batch in the precision of the job, without dropout."""
        self.model.to(self.job.device).eval()
        with torch.no_grad(), torch.autocast(self.job.device, self.job.dtype, self.job.precision == "bf16"):
            loss = float(self.loss(self.documents(0)[: self.job.batch_size]))
        self.memory.release()
        return loss

    def documents(self, round_number: int) -> list[jobs.Document]:
        """Return the documents of a round, a new batch for each step."""
        vocab_size, length = self.encoder.config.vocab_size, self.job.view_tokens
        if length is None:
            return jobs.draw_documents(self.job, round_number, vocab_size)
        rng = np.random.default_rng((round_number, length))
        return [
            {"views": tuple(jobs.draw_view(length, vocab_size, rng) for _ in range(2)), "document_id": number}
            for number in range(self.job.steps * self.job.batch_size)
        ]

    def arguments(self) -> dict[str, Any]:
        """Return what the Trainer is told: on a GPU with workers, as our script has them."""
        return super().arguments() | {"dataloader_num_workers": 4 if self.job.device == "cuda" else 0}

    def measure(self, round_number: int) -> dict[str, float]:
        """Time a round: tokens and useful operations a second, and memory in MB."""
        documents, untimed_steps = self.documents(round_number), contenders.UNTIMED_STEPS[self.job.device]
        self.memory.start()
        clock = self.train(jobs.longest(documents, self.job.batch_size) * untimed_steps + documents, untimed_steps)
        reserved = {"reserved_mb": torch.cuda.max_memory_reserved() / MB} if self.job.device == "cuda" else {}
        self.memory.stop()
        return reserved | {
            "allocated_mb": self.memory.peak / MB,
            "seconds_per_step": clock.seconds / self.job.steps,
            "tokens_per_second": jobs.num_tokens(documents) / clock.seconds,
            "flops_per_second": jobs.useful_flops(self.encoder, documents, self.job.masked_lm) / clock.seconds,
        }

    def count_waits(self) -> dict[str, float]:
        """Count operations a step that make the host wait, by the line of code; on a CPU there are none to count."""
        if self.job.device != "cuda":
            return {}
        steps = 2 + COUNTED_STEPS
        documents = (self.documents(0) * steps)[: steps * self.job.batch_size]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            counter = WaitCounter(caught)
            torch.cuda.set_sync_debug_mode("warn")
            try:
                self.train(documents, 0, counter)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits = [warning for warning in caught[counter.ends[1] : counter.ends[-1]] if WAIT in str(warning.message)]
        sites = collections.Counter(f"{Path(wait.filename).name}:{wait.lineno}" for wait in waits)
        return {site: number / COUNTED_STEPS for site, number in sites.most_common()}


class DrawnViews(DocSplitCollator):
    """The project's collator, whose views were drawn before."""

    def __call__(self, features: list[jobs.Document]) -> Batch:
        """Make a batch of documents, which are of one unit each as far as the collator looks."""
        return super().__call__([feature | {"unit_lengths": [1]} for feature in features])

    def draw(self, feature: jobs.Document) -> list[MaskedRow]:
        """Return both views of a document."""
        return [(view.ids, view.masked, view.targets) for view in feature["views"]]


class OurStep(Step, contenders.DocSplit):
    """DocSplitForContrastivePretraining, with the project's collator."""

    def __init__(self, job: StepJob):
        super().__init__(job, cache_gradients=job.cache_gradients, mlm=job.masked_lm)
        collator = DrawnViews(load_tokenizer(str(job.folder)), mlm=job.masked_lm)
        self.collate = functools.partial(collator)
        if job.packed:
            self.model.pack_sequences(job.dtype)

    def choose(self) -> None:
        """Compile the encoder, if the job says so."""
        if self.job.compile:
            self.model.compile()


class TrainerStep(Step, contenders.Plain):
    """BertForMaskedLM in the plain way."""

    def __init__(self, job: StepJob):
        super().__init__(job, mlm=job.masked_lm)


class StStep(Step, contenders.SentenceTransformersLoss):
    """sentence-transformers with PyTorch's attention."""

    def __init__(self, job: StepJob):
        super().__init__(dataclasses.replace(job, masked_lm=False), cached=False)


class FlashStep(StStep):
    """sentence-transformers with flash attention 2."""

    attention = "flash_attention_2"

    def __init__(self, job: StepJob):
        if importlib.util.find_spec("flash_attn") is None:
            raise ModuleNotFoundError("no flash attention", name="flash_attn")
        super().__init__(job)


BESIDE: dict[str, Any] = {"trainer_dynamic": TrainerStep, "st_flash": FlashStep, "st": StStep}


def measure_row(kind: Any, job: StepJob) -> dict[str, Any]:
    """Measure one contender in a process of its own; a row that cannot be measured says why under `failed`."""
    process = Contender(kind, job)
    try:
        loss = process.ask("prepare")
        process.ask("warm_up")
        rounds = [process.ask("measure", number) for number in range(job.rounds)]
        sites = process.ask("count_waits")
    except ModuleNotFoundError as error:
        return {"failed": str(error)}
    except RuntimeError as error:
        if "OutOfMemoryError" not in str(error):
            raise
        return {"failed": "out of memory"}
    finally:
        process.close()
    speeds = [measured["tokens_per_second"] for measured in rounds]
    row = {name: statistics.median(measured[name] for measured in rounds) for name in rounds[0]}
    row |= {"tokens_per_second_min": min(speeds), "tokens_per_second_max": max(speeds), "loss": loss}
    return row | ({"waits_per_step": sum(sites.values()), "wait_sites": sites} if job.device == "cuda" else {})


def settings_of(name: str, job: StepJob, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a row is measured with, by which it is found again."""
    ours = name == "ours"
    return {
        "contender": name,
        "model": options.model,
        "documents": job.batch_size,
        "view_tokens": job.view_tokens,
        "masked_lm": job.masked_lm and not name.startswith("st"),
        "dropout": options.dropout,
        "cudnn_first": job.device == "cuda" and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "0",
        "budget": job.micro_batch_tokens if ours else None,
        "packed": ours and job.packed,
        "compile": ours and job.compile,
        "cache_gradients": ours and job.cache_gradients,
    }


def check_losses(rows: list[dict[str, Any]], precision: str) -> None:
    """Compare the losses of the first batch, of rows with the same documents and the same loss.

    Raises:
        ValueError: if they differ by more than `AGREE` allows.
    """
    first: dict[Any, dict[str, Any]] = {}
    for row in rows:
        if "loss" in row:
            other = first.setdefault((row["documents"], row["view_tokens"], row["masked_lm"]), row)
            difference = abs(row["loss"] - other["loss"]) / abs(other["loss"])
            if not difference <= AGREE[precision]:  # not a number is no agreement
                raise ValueError(
                    f"{row['contender']} has the loss {row['loss']:.5f} and {other['contender']} {other['loss']:.5f} "
                    "on the same documents: they do not do the same work, and cannot be compared."
                )


def earlier_rows(path: Path, about: dict[str, Any], rows: list[dict[str, Any]], keys: list[str]) -> list[Any]:
    """Return the rows of an earlier run on the same machine, without those that were measured again."""
    if not path.exists():
        return []
    earlier = json.loads(path.read_text())
    if {name: earlier.get(name) for name in about} != about:
        print(f"{path} is of other hardware or versions: it is replaced.")
        return []
    again = [[row[key] for key in keys] for row in rows]
    kept = [row for row in earlier["rows"] if [row.get(key) for key in keys] not in again]
    print(f"{len(kept)} rows of earlier runs stay in {path}.")
    return kept


def markdown(results: dict[str, Any]) -> str:
    """Return the table, with a sentence about what was measured on what."""

    def number(row: dict[str, Any], name: str, form: str = ",.0f", factor: float = 1) -> str:
        return format(row[name] * factor, form) if row.get(name) is not None else "-"

    products, lines = results["peak_flops"], []
    for row in results["rows"]:
        how = [name for name in ("packed", "compile", "cache_gradients") if row[name]]
        how += [f"{row['budget']:,} tokens"] if row["budget"] else []
        how += ["cuDNN first"] * row["cudnn_first"]
        how += [] if row["masked_lm"] else ["no masked LM"]
        start = [row["contender"], f"{row['documents']:,}", ", ".join(how), str(row["view_tokens"] or "8 ... 512")]
        if "failed" in row:
            lines.append([*start, row["failed"], *[""] * 7])
            continue
        spread = f"{number(row, 'tokens_per_second_min')} ... {number(row, 'tokens_per_second_max')}"
        shares = [number(row, name, ".1f", 100) for name in ("share_of_nominal", "share_of_products")]
        parts = [number(row, "seconds_per_step", ".3f"), *shares, number(row, "waits_per_step", ".1f")]
        memory = [number(row, "allocated_mb"), number(row, "reserved_mb")]
        lines.append([*start, number(row, "tokens_per_second"), spread, *parts, *memory])
    header = ["step", "documents", "how", "tokens a view", "tokens/s", "min ... max", "s/step", "of 989 TFLOP/s, %"]
    header += ["of products, %", "waits/step", "allocated MB", "reserved MB"]
    about = f"{results['hardware']}; {results['precision']}; products of matrices: {products / 1e12:,.1f} TFLOP/s; "
    about += ", ".join(f"{name} {version or 'none'}" for name, version in results["versions"].items())
    return f"{about}\n\n{markdown_table(header, lines)}\n"


def parse_options() -> argparse.Namespace:
    """Return the command line's options, checked."""
    parser = make_parser(__doc__, "gpu_step.json")
    add_device(parser)
    parser.add_argument("--model", choices=list(jobs.MODELS), default="base", help="size of the BERT (default: base)")
    parser.add_argument("--documents", type=int, nargs="+", default=[36], help="documents of a step (default: 36)")
    parser.add_argument("--budget", type=int, nargs="+", help="most tokens of a micro-batch (default: the script's)")
    parser.add_argument("--compile", action="store_true", help="compile ours with torch.compile")
    parser.add_argument("--packed", action="store_true", help="pack the sequences of ours in place of padding")
    parser.add_argument("--cache_gradients", action="store_true", help="ours keeps one micro-batch's activations")
    parser.add_argument("--contrastive_only", action="store_true", help="no masked LM, for all")
    parser.add_argument("--dropout", type=float, default=0.1, help="default: 0.1; packs have none in attention")
    parser.add_argument("--view_tokens", type=int, help="tokens of each view, 8 to 512 (default: log-normal)")
    parser.add_argument("--beside", nargs="*", choices=list(BESIDE), default=["trainer_dynamic", "st_flash"])
    parser.add_argument("--steps", type=int, help="timed steps of a round (default: 20; CPU 2)")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds; the median counts (default: 3)")
    options = parser.parse_args()
    if min(options.documents) < 2 or options.rounds < 1 or not 0 <= options.dropout < 1:
        parser.error("--documents must be 2 or more, --rounds 1 or more, and --dropout from 0 to below 1.")
    if options.view_tokens is not None and not 8 <= options.view_tokens <= 512:
        parser.error("--view_tokens must be 8 to 512.")
    options.precision = options.precision or native_precision(options.device)
    options.steps = options.steps or (20 if options.device == "cuda" else 2)
    options.budget = options.budget or [default_training_tokens(torch.device(options.device))]
    return options


def measure_all(options: argparse.Namespace, job: StepJob, peak: float) -> list[dict[str, Any]]:
    """Measure all rows, ours first for each number of documents; each is printed when it is done."""
    rows = []
    for documents in options.documents:
        of_size = dataclasses.replace(job, batch_size=documents)
        kinds = [
            ("ours", OurStep, dataclasses.replace(of_size, micro_batch_tokens=budget)) for budget in options.budget
        ]
        kinds += [(name, BESIDE[name], of_size) for name in options.beside]
        for name, kind, its_job in kinds:
            row = settings_of(name, its_job, options) | {"steps": job.steps, "rounds": job.rounds}
            row |= measure_row(kind, its_job)
            if "flops_per_second" in row:
                row["share_of_nominal"] = row["flops_per_second"] / NOMINAL_PEAK if job.device == "cuda" else None
                row["share_of_products"] = row["flops_per_second"] / peak
            said = row.get("failed") or f"{row['tokens_per_second']:,.0f} tokens/s"
            say(f"{name}, {documents:,} documents, budget {row['budget'] or 'none'}: {said}")
            rows.append(row)
    return rows


def main() -> None:
    """Measure, compare the losses, and write JSON and table."""
    options = parse_options()
    prepare_environment(options.device)
    about = {"hardware": hardware(options.device), "versions": versions(), "precision": options.precision}
    with tempfile.TemporaryDirectory() as folder:
        jobs.write_model(options.model, Path(folder))
        config = BertConfig.from_pretrained(folder)
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = options.dropout
        config.save_pretrained(folder)
        job = StepJob(
            Path(folder), options.device, options.precision, max(options.documents), options.steps, options.rounds,
            micro_batch_tokens=None, compile=options.compile, packed=options.packed, view_tokens=options.view_tokens,
            cache_gradients=options.cache_gradients, masked_lm=not options.contrastive_only,
        )  # fmt: skip
        peak = in_process(measure_peaks, options.device, [options.precision])[options.precision]
        rows = measure_all(options, job, peak)
    check_losses(rows, options.precision)
    keys = list(settings_of("ours", job, options))
    results = about | {"peak_flops": peak, "rows": [*earlier_rows(options.output, about, rows, keys), *rows]}
    tables = markdown(results)
    write_results(options.output, results, tables)
    print(f"\n{tables}\nWritten to {options.output} and {options.output.with_suffix('.md')}.")


if __name__ == "__main__":
    main()
