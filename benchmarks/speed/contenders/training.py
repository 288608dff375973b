"""The contenders of `benchmarks.speed.training` that train: docsplit, a stock Trainer and sentence-transformers.

Each builds its own model from the same weights, and measures rounds of training with a Trainer. sentence-transformers
is imported where it is used, since the others run without it. `benchmarks/speed/contenders/table.py` says what
is compared.
"""

import functools
import importlib.util
import time
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.utils.data import BatchSampler, SequentialSampler
from transformers import BertForMaskedLM, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from benchmarks.speed.jobs import (
    PAD,
    Document,
    Job,
    View,
    collate,
    draw_documents,
    load_sentence_transformer,
    longest,
    num_tokens,
    useful_flops,
)
from benchmarks.speed.meters import Memory, fastest
from docsplit.runtime.launching import default_training_tokens
from modeling_docsplit import DocSplitForContrastivePretraining

TEMPERATURE, MLM_WEIGHT = 0.05, 0.1
UNTIMED_STEPS = {"cpu": 1, "cuda": 3}  # at the beginning of each round, with its longest documents


class Clock(TrainerCallback):
    """Time the steps of a Trainer after the first `untimed_steps`, and count the tokens that the encoder gets."""

    def __init__(self, device: str, precision: str, untimed_steps: int):
        self.device, self.precision, self.untimed_steps = device, precision, untimed_steps
        self.started = self.step_ended = self.seconds = self.waiting = 0.0
        self.tokens: Any = 0
        self.computed_tokens = 0

    def start(self) -> None:
        """Begin to time and to count, once the GPU has done what it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.waiting, self.tokens, self.computed_tokens = 0.0, 0, 0
        self.started = self.step_ended = time.perf_counter()

    def count(self, module: nn.Module, args: Any, inputs: dict[str, Any]) -> None:
        """Count tokens before each forward pass of the encoder, recomputed ones included."""
        if torch.is_autocast_enabled(self.device) != (self.precision == "bf16"):
            raise RuntimeError(f"The encoder does not run in {self.precision}.")
        self.tokens = self.tokens + (inputs["input_ids"] != PAD).sum()
        self.computed_tokens += inputs["input_ids"].numel()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before the first batch is drawn."""
        self.start()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the time since the last step: it went on waiting for this batch."""
        self.waiting += time.perf_counter() - self.step_ended

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After the optimizer; after the last untimed step everything is counted anew."""
        self.step_ended = time.perf_counter()
        if state.global_step == self.untimed_steps:
            self.start()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock after the last step, once the GPU is done: `seconds` of all timed steps."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.started


class PlainModel(nn.Module):
    """DocSplit's loss, written plainly around a masked language model: two dense forward passes."""

    def __init__(self, encoder: BertForMaskedLM, masked_lm: bool = True):
        super().__init__()
        self.encoder, self.masked_lm = encoder, masked_lm

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        mlm_input_ids: Tensor,
        mlm_targets: Tensor,
        document_ids: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the joint loss; all arguments are (B, 2, T)."""
        mask = attention_mask.flatten(0, 1)
        hidden_states = self.encoder.base_model(input_ids=input_ids.flatten(0, 1), attention_mask=mask)[0]
        first, second = F.normalize(hidden_states[:, 0].float(), dim=-1).unflatten(0, (-1, 2)).unbind(1)
        contrastive = F.cross_entropy(first @ second.T / TEMPERATURE, torch.arange(len(first), device=first.device))
        if not self.masked_lm:
            return {"loss": contrastive}
        targets = mlm_targets.flatten(0, 1)
        mlm = self.encoder(input_ids=mlm_input_ids.flatten(0, 1), attention_mask=mask, labels=targets).loss
        return {"loss": contrastive + MLM_WEIGHT * mlm}


class TrainingContender:
    """A model and its Trainer. Subclasses set `model`, and `encoder`, the BERT in it.

    Args:
        mlm: whether its loss has a masked-LM part.
        grouped: whether its batches are of documents of similar length.
    """

    model: Any
    encoder: Any
    settings: dict[str, Any]

    def __init__(self, job: Job, mlm: bool = True, grouped: bool = False, pad_to: int | None = None):
        self.job, self.mlm, self.grouped = job, mlm, grouped
        self.collate = functools.partial(collate, pad_to=pad_to)
        self.settings = {}
        self.memory = Memory(job.device)

    def prepare(self) -> float:
        """Return the loss of the first batch, in full precision and without dropout."""
        documents = draw_documents(self.job, 0, self.encoder.config.vocab_size)[: self.job.batch_size]
        self.model.to(self.job.device).eval()
        with torch.no_grad():
            loss = float(self.loss(documents))
        self.memory.release()
        return loss

    def choose(self) -> None:
        """Choose the contender's settings, if it has any."""

    def warm_up(self) -> dict[str, Any]:
        """Train two steps; return their peak of memory and the settings."""
        self.choose()
        self.memory.start()
        self.train(self.documents(0)[: 2 * self.job.batch_size])
        self.memory.stop()
        return {"peak_memory_mb": self.memory.peak / 2**20, "settings": self.settings}

    def measure(self, round_number: int) -> dict[str, float]:
        """Time a round: speed, shares of padding and waiting, and useful floating-point operations a second."""
        documents = self.documents(round_number)
        untimed_steps = UNTIMED_STEPS[self.job.device]
        if self.job.keep_freed_memory:
            self.memory.reserve()
        clock = self.train(longest(documents, self.job.batch_size) * untimed_steps + documents, untimed_steps)
        self.memory.release()
        return {
            "tokens_per_second": num_tokens(documents) / clock.seconds,
            "seconds_per_step": clock.seconds / self.job.steps,
            "padding_share": 1 - int(clock.tokens) / clock.computed_tokens,
            "loader_stall": clock.waiting / clock.seconds,
            "flops_per_second": useful_flops(self.encoder, documents, self.mlm) / clock.seconds,
        }

    def documents(self, round_number: int) -> list[Document]:
        """Return the documents of a round, in the order in which this contender trains on them."""
        return draw_documents(self.job, round_number, self.encoder.config.vocab_size, self.grouped)

    def train(self, documents: list[Document], untimed_steps: int = 0) -> Clock:
        """Train one pass over the documents, with a new Trainer and optimizer that are gone afterwards."""
        clock = Clock(self.job.device, self.job.precision, untimed_steps)
        trainer = self.trainer(documents, self.arguments())
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(clock)
        handle = self.encoder.embeddings.register_forward_pre_hook(clock.count, with_kwargs=True)
        trainer.train()
        handle.remove()
        self.model.zero_grad()
        return clock

    def arguments(self) -> dict[str, Any]:
        """Return what the Trainer is told."""
        return {
            "output_dir": str(self.job.folder / "trainer"),
            "use_cpu": self.job.device == "cpu",
            "bf16": self.job.precision == "bf16",
            "per_device_train_batch_size": self.job.batch_size,
            "num_train_epochs": 1,
            "learning_rate": 5e-5,
            "train_sampling_strategy": "sequential",  # the order is that of `draw_documents`
            "remove_unused_columns": False,
            "logging_nan_inf_filter": False,
            "dataloader_pin_memory": self.job.device == "cuda",
            "disable_tqdm": True,
            "logging_strategy": "no",
            "save_strategy": "no",
            "report_to": "none",
        }

    def trainer(self, documents: list[Document], arguments: dict[str, Any]) -> Trainer:
        """Return a Trainer of `model` with the loss that its forward pass returns."""
        return Trainer(self.model, TrainingArguments(**arguments), self.collate, documents)  # type: ignore[arg-type]

    def loss(self, documents: list[Document]) -> Tensor:
        """Return the loss () of one batch, with the masks that its views have."""
        return self.model(**send_to_device(self.collate(documents), self.job.device))["loss"]


class DocSplit(TrainingContender):
    """This project's model; its micro-batches are as large as its script makes them, unless the job says otherwise."""

    def __init__(self, job: Job, cache_gradients: bool = False, **options: Any):
        super().__init__(job, **options)
        self.model = DocSplitForContrastivePretraining.from_pretrained(
            job.folder, contrastive_temperature=TEMPERATURE, mlm_weight=MLM_WEIGHT if self.mlm else 0.0
        )
        self.encoder = self.model.encoder.base_model
        default = default_training_tokens(torch.device(job.device))
        self.model.micro_batch_tokens = job.micro_batch_tokens or default
        self.model.cache_gradients = cache_gradients
        self.settings = {"micro_batch_tokens": self.model.micro_batch_tokens}


class Plain(TrainingContender):
    """`PlainModel`, padded and with documents in the order that the options say."""

    def __init__(self, job: Job, **options: Any):
        super().__init__(job, **options)
        self.model = PlainModel(BertForMaskedLM.from_pretrained(job.folder), self.mlm)
        self.encoder = self.model.encoder.base_model


class SentenceTransformersLoss(TrainingContender):
    """A loss of sentence-transformers, trained by its own Trainer, or by the stock one where that lacks `datasets`.

    The loss that caches gradients has several settings: the warm-up tries each and keeps the fastest.
    """

    attention: str | None = None  # of transformers; None: PyTorch's

    def __init__(self, job: Job, cached: bool):
        from sentence_transformers.sentence_transformer import losses

        super().__init__(job, mlm=False)
        self.model = load_sentence_transformer(
            job, **({"attn_implementation": self.attention} if self.attention else {})
        )
        self.encoder = self.model[0].model
        self.cached = cached
        kind: Any = losses.CachedMultipleNegativesRankingLoss if cached else losses.MultipleNegativesRankingLoss
        self.make_loss = functools.partial(kind, self.model, scale=1 / TEMPERATURE)
        self.own_trainer = importlib.util.find_spec("datasets") is not None

    def choose(self) -> None:
        """Keep the mini-batches, by rows or by tokens, with which two steps are fastest."""
        if self.cached:
            budgets = (512, 1024, 4096) if self.job.device == "cpu" else (4096, 16384, 65536)
            choices = [{"mini_batch_size": 32}, *({"mini_batch_num_tokens": budget} for budget in budgets)]
            self.settings = fastest(choices, self.seconds_with)

    def seconds_with(self, settings: dict[str, Any]) -> float:
        """Return the seconds of the second of two steps with these settings."""
        self.settings = settings
        return self.train(self.documents(0)[: 2 * self.job.batch_size], untimed_steps=1).seconds

    def trainer(self, documents: list[Document], arguments: dict[str, Any]) -> Trainer:
        """Return the library's trainer, with the texts of the views in two columns, tokenised batch by batch."""
        rows = [dict(zip(("first", "second"), (view.text for view in row["views"]))) for row in documents]
        loss = self.make_loss(**self.settings)
        if not self.own_trainer:
            return self.stock_trainer(rows, loss, arguments)
        from datasets import Dataset
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

        args = SentenceTransformerTrainingArguments(**arguments, batch_sampler=in_order)
        return SentenceTransformerTrainer(self.model, args, Dataset.from_list(rows), loss=loss)

    def stock_trainer(self, rows: list[dict[str, str]], loss: nn.Module, arguments: dict[str, Any]) -> Trainer:
        """Return a stock Trainer with the collator of sentence-transformers; autocast is around the encoder as in its
        own.
        """
        from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

        forward = type(self.model).forward.__get__(self.model)
        self.model.forward = torch.autocast(self.job.device, self.job.dtype, self.job.precision == "bf16")(forward)
        collator = SentenceTransformerDataCollator(self.model.preprocess)
        return Trainer(LossOfColumns(loss), TrainingArguments(**arguments | {"bf16": False}), collator, rows)  # type: ignore[arg-type]

    def loss(self, documents: list[Document]) -> Tensor:
        """Return the loss () of one batch, whose texts are checked to have the ids that the others are given."""
        from sentence_transformers.util import batch_to_device

        features = []
        for index in range(2):
            views = [document["views"][index] for document in documents]
            encoded = self.model.preprocess([view.text for view in views])
            check_same_ids(encoded["input_ids"], views)
            features.append(batch_to_device(encoded, torch.device(self.job.device)))
        return self.make_loss()(features, None)


class LossOfColumns(nn.Module):
    """A loss of sentence-transformers as the model of a stock Trainer."""

    def __init__(self, loss: nn.Module):
        super().__init__()
        self.loss = loss

    def forward(self, **columns: Tensor) -> dict[str, Tensor]:
        """Columns `first_input_ids`, `second_input_ids` and so on, (B, T) each; the loss ()."""
        features = [
            {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}
            for prefix in ("first_", "second_")
        ]
        return {"loss": self.loss(features, None)}


def in_order(dataset: Any, batch_size: int, drop_last: bool, **options: Any) -> Any:
    """Batches of neighbours, in the form that sentence-transformers' Trainer wants of a `batch_sampler`."""
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def check_same_ids(input_ids: Tensor, views: list[View]) -> None:
    """Check that the tokenizer turns the made-up words back into the ids that they stand for."""
    for row, view in zip(input_ids.tolist(), views):
        if row != view.ids.tolist() + [PAD] * (len(row) - len(view.ids)):
            raise ValueError(f"The tokenizer turns {view.text[:50]!r} ... into other ids than those of the view.")
