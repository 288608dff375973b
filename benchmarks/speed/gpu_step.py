"""A training step on a GPU: speed, share of the peak, waits and memory, beside what one would use instead.

`benchmarks.gpu` has the rows. Ours is `DocSplitForContrastivePretraining`, padded or packed, compiled or not. Beside
it:

    TrainerStep    the plain way: BertForMaskedLM, padded to the longest view of the batch, whose masked LM scores
                   the tokens of all positions
    GroupedStep    the same, with batches of documents of similar length, as Trainer's group_by_length makes them
    StStep         sentence-transformers' MultipleNegativesRankingLoss with PyTorch's attention (sdpa); it has no
                   masked LM, so compare it with ours without
    FlashStep      the same with flash attention 2, where flash_attn is installed
    CachedStStep   sentence-transformers' CachedMultipleNegativesRankingLoss, sdpa

All are trained by a stock Trainer with AdamW, from the same random weights, on the same random documents, new ones in
each step. Views have log-normal lengths of 8 to 512 tokens, 200 in the mean; or all have `view_tokens`. No attention
has dropout. Contenders with the same loss must agree on the first batch before anything is timed. They share a process
and take turns, round by round; those that wait lie in the memory of the host. A line has the medians of its rounds. It
is reported anew after each, so that a row that meets its limit keeps what it has. The model of a stock Trainer is
compiled for all lengths, ours for the one of its packs.

- tokens/s: tokens of the views, without padding, each once, although masked LM encodes a masked copy too.
- share of the nominal peak, and of the measured one: useful operations a second (`benchmarks.speed.training`, MFU)
  over those that NVIDIA says of the card in bfloat16 without sparsity, and over those of products of large matrices.
  Recomputed operations are not useful.
- waits: operations a step that make the host wait for the device, as `torch.cuda.set_sync_debug_mode` sees them, in
  steps that are not timed. A CPU has none to count.
- memory: the most that PyTorch allocated for tensors. On a CPU it is the process's peak.
"""

import collections
import contextlib
import dataclasses
import functools
import importlib.util
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import TrainerCallback

from benchmarks.speed import contenders, jobs
from docsplit.data.collators import Batch, DocSplitCollator, MaskedRow
from docsplit.data.tokenization import load_tokenizer

WAIT = "synchronizing CUDA operation"  # in the warnings of `set_sync_debug_mode`
COUNTED_STEPS = 3  # of waits, after two others
AGREE = {"fp32": 1e-4, "bf16": 2e-2}  # largest relative difference of losses
BACKENDS = {"cuda": "inductor", "cpu": "eager"}  # of torch.compile; a CPU tries how graphs are cut, not their code
MB = 2**20


@dataclasses.dataclass(frozen=True)
class StepJob(jobs.Job):
    """The settings of a contender; those of `Job`, and how the step is made."""

    compile: bool = False
    packed: bool = False
    cache_gradients: bool = False
    masked_lm: bool = True
    view_tokens: int | None = None
    cudnn_first: bool = False  # among the kernels of attention; docsplit has it last


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
    note = ""

    def prepare(self) -> float:
        """Return the loss of the first batch in the precision of the job, without dropout."""
        self.model.to(self.job.device).eval()
        documents = sorted(self.documents(0), key=lambda document: document["document_id"])  # the same of all
        with torch.no_grad(), torch.autocast(self.job.device, self.job.dtype, self.job.precision == "bf16"):
            loss = float(self.loss(documents[: self.job.batch_size]))
        self.memory.release()
        return loss

    def documents(self, round_number: int) -> list[jobs.Document]:
        """Return the documents of a round, a new batch for each step."""
        vocab_size, length = self.encoder.config.vocab_size, self.job.view_tokens
        if length is None:
            return jobs.draw_documents(self.job, round_number, vocab_size, self.grouped)
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
        documents = self.documents(round_number)
        untimed_steps = min(contenders.UNTIMED_STEPS[self.job.device], self.job.steps)
        self.memory.start()
        clock = self.train(jobs.longest(documents, self.job.batch_size) * untimed_steps + documents, untimed_steps)
        self.memory.stop()
        return {
            "memory_mb": self.memory.peak / MB,
            "seconds": clock.seconds / self.job.steps,
            "tokens_per_second": jobs.num_tokens(documents) / clock.seconds,
            "flops_per_second": jobs.useful_flops(self.encoder, documents, self.job.masked_lm) / clock.seconds,
        }

    def count_waits(self) -> dict[str, float]:
        """Count operations a step that make the host wait, by the line of code."""
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
            self.model.compile(backend=BACKENDS[self.job.device])


class TrainerStep(Step, contenders.Plain):
    """BertForMaskedLM in the plain way."""

    def __init__(self, job: StepJob, grouped: bool = False):
        super().__init__(job, mlm=job.masked_lm, grouped=grouped)
        self.note = "its masked LM scores all positions" if job.masked_lm else ""

    def choose(self) -> None:
        """Compile the model, if the job says so."""
        if self.job.compile:
            self.model.forward = torch.compile(self.model.forward, dynamic=True, backend=BACKENDS[self.job.device])


class GroupedStep(TrainerStep):
    """The same with Trainer's group_by_length."""

    def __init__(self, job: StepJob):
        super().__init__(job, grouped=True)


class LossOfFeatures(nn.Module):
    """A loss of sentence-transformers as a model that a stock Trainer trains; its own Trainer needs datasets."""

    def __init__(self, loss: nn.Module):
        super().__init__()
        self.loss_of = loss

    def forward(self, features: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return the loss of both views, each a batch as the encoder's `preprocess` makes it."""
        return {"loss": self.loss_of(features, None)}


class StStep(Step, contenders.SentenceTransformersLoss):
    """sentence-transformers with PyTorch's attention."""

    cached = False

    def __init__(self, job: StepJob):
        super().__init__(dataclasses.replace(job, masked_lm=False), cached=self.cached)

    def features_of(self, documents: list[jobs.Document]) -> dict[str, Any]:
        """Tokenise the texts of both views, as sentence-transformers' collator does."""
        texts = zip(*((view.text for view in document["views"]) for document in documents))
        return {"features": [dict(self.model.preprocess(list(of_view))) for of_view in texts]}

    def trainer(self, documents: list[jobs.Document], arguments: dict[str, Any]) -> Trainer:
        """Return a stock Trainer of the library's loss."""
        loss = LossOfFeatures(self.make_loss(**self.settings))
        return Trainer(loss, TrainingArguments(**arguments), self.features_of, documents)  # type: ignore[arg-type]


class FlashStep(StStep):
    """sentence-transformers with flash attention 2."""

    attention = "flash_attention_2"

    def __init__(self, job: StepJob):
        if importlib.util.find_spec("flash_attn") is None:
            raise ModuleNotFoundError("the strongest peer was not run: flash_attn is not installed", name="flash_attn")
        super().__init__(job)


class CachedStStep(StStep):
    """sentence-transformers with cached gradients, in mini-batches of the fastest of three sizes."""

    cached = True

    def choose(self) -> None:
        """Keep the size with which two steps are fastest."""
        self.settings = min(({"mini_batch_size": size} for size in (32, 128, 512)), key=self.seconds_with)


def measure_in_turns(kinds: dict[str, tuple[Any, StepJob]], report: Callable[[dict[str, Any]], None]) -> None:
    """Measure contenders of one process, round by round, and report the line of each after each round.

    A contender that fails has a line with the end of its error under `failed`; the others go on.

    Args:
        kinds: a class and its job, by what the line says.

    Raises:
        ValueError: if two with the same loss have another one on the first batch.
    """
    steps: dict[str, Step] = {}
    kinds = dict(kinds)

    def ask(name: str, method: str, *arguments: Any) -> Any:
        """Call a method of a contender, alone on the device; without an answer it is out."""
        kind, job = kinds[name]
        try:
            if name not in steps:
                steps[name] = kind(job)
            with attention_of(job):
                return getattr(steps[name], method)(*arguments)
        except Exception as error:  # out of memory, or of any library: the others go on
            report({"what": name, "documents": job.batch_size, "failed": end_of(error)})
            del kinds[name]
            steps.pop(name, None)
        finally:
            if name in steps:
                steps[name].model.to("cpu")
                steps[name].memory.release()

    losses = {name: ask(name, "prepare") for name in list(kinds)}
    check_losses({name: losses[name] for name in kinds}, kinds)
    for name in list(kinds):
        ask(name, "warm_up")
    rounds: dict[str, list[dict[str, float]]] = collections.defaultdict(list)
    most = max((job.rounds for _, job in kinds.values()), default=0)

    def report_line(name: str, **more: Any) -> None:
        """Report what the rounds so far have in the median."""
        measured, step = rounds[name], steps[name]
        speeds = [of_round["tokens_per_second"] for of_round in measured]
        line = {key: statistics.median(of_round[key] for of_round in measured) for key in measured[0]}
        line |= {"tokens_per_second_min": min(speeds), "tokens_per_second_max": max(speeds), "loss": losses[name]}
        missing = f"{len(measured)} of {most} rounds" if len(measured) < most else ""
        line |= {"settings": step.settings, "note": "; ".join(filter(None, (step.note, missing)))}
        report({"what": name, "documents": step.job.batch_size} | line | more)

    for number in range(most):
        for name in list(kinds) if number % 2 == 0 else reversed(list(kinds)):
            measured = ask(name, "measure", number)
            if name in kinds:
                rounds[name].append(measured)
                report_line(name)
    for name in [name for name, (_, job) in kinds.items() if job.device == "cuda"]:
        sites = ask(name, "count_waits")
        if name in kinds:
            report_line(name, waits=sum(sites.values()), wait_sites=sites)


def attention_of(job: StepJob) -> Any:
    """Return a context in which cuDNN's attention comes before the other kernels, where the job says so."""
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(order, set_priority=True) if job.cudnn_first else contextlib.nullcontext()


def check_losses(losses: dict[str, float], kinds: dict[str, tuple[Any, StepJob]]) -> None:
    """Compare the losses of the first batch of contenders that have the same documents and the same loss.

    Raises:
        ValueError: if they differ by more than `AGREE` allows.
    """
    first: dict[Any, str] = {}
    for name, loss in losses.items():
        job = kinds[name][1]
        other = first.setdefault((job.batch_size, job.view_tokens, job.masked_lm), name)
        if not abs(loss - losses[other]) <= AGREE[job.precision] * abs(losses[other]):  # not a number is no agreement
            raise ValueError(
                f"{name} has the loss {loss:.5f} and {other} {losses[other]:.5f} on the same documents: they do not "
                "do the same work, and cannot be compared."
            )


def end_of(error: BaseException) -> str:
    """Return the last line of an error, up to 300 characters."""
    text = f"{type(error).__name__}: {error}".strip()
    return text.splitlines()[-1][-300:] if "out of memory" not in text else "out of memory"
