"""The contenders of `benchmarks.speed.training`: each lives in a process of its own and sleeps until it is asked.

    docsplit                 DocSplitForContrastivePretraining in a stock Trainer
    docsplit_cached          the same with `cache_gradients`
    trainer_pad512           the plain way: BertForMaskedLM in a stock Trainer, all views padded to 512 tokens
    trainer_dynamic          the same, padded to the longest view of the batch
    trainer_group_by_length  the same, with batches of documents of similar length
    docsplit_contrastive     docsplit without masked LM, to compare with the two below, which have none
    st_mnrl                  sentence-transformers' MultipleNegativesRankingLoss
    st_cached_mnrl           sentence-transformers' CachedMultipleNegativesRankingLoss
    docsplit_encode          docsplit.embedding.encode
    st_encode                SentenceTransformer.encode

All train on the same documents from the same weights with the same loss: InfoNCE at temperature 0.05 in one direction,
plus 0.1 times masked LM where there is any. Documents are random (`benchmarks/speed/jobs.py`); encoding has the
built-in corpus.
"""

import functools
import multiprocessing
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.utils.data import BatchSampler, SequentialSampler
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from benchmarks.speed.jobs import (
    MAX_LENGTH,
    PAD,
    SEED,
    Document,
    Job,
    View,
    collate,
    draw_documents,
    layer_flops,
    load_sentence_transformer,
    longest,
    num_tokens,
    useful_flops,
)
from benchmarks.speed.meters import Memory, seconds_of
from docsplit.modeling.encoding import default_training_tokens
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
    counts_tokens = True  # by a hook, which a compiled encoder must not have

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

    def train(self, documents: list[Document], untimed_steps: int = 0, *callbacks: TrainerCallback) -> Clock:
        """Train one pass over the documents, with a new Trainer and optimizer that are gone afterwards."""
        clock = Clock(self.job.device, self.job.precision, untimed_steps)
        trainer = self.trainer(documents, self.arguments())
        trainer.remove_callback(PrinterCallback)
        for callback in (clock, *callbacks):
            trainer.add_callback(callback)
        handles = []
        if self.counts_tokens:
            handles = [self.encoder.embeddings.register_forward_pre_hook(clock.count, with_kwargs=True)]
        trainer.train()
        for handle in handles:
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
    """A loss of sentence-transformers, trained by its own Trainer.

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

    def choose(self) -> None:
        """Keep the mini-batches, by rows or by tokens, with which two steps are fastest."""
        if self.cached:
            budgets = (512, 1024, 4096) if self.job.device == "cpu" else (4096, 16384, 65536)
            choices = [{"mini_batch_size": 32}, *({"mini_batch_num_tokens": budget} for budget in budgets)]
            self.settings = min(choices, key=self.seconds_with)

    def seconds_with(self, settings: dict[str, Any]) -> float:
        """Return the seconds of the second of two steps with these settings."""
        self.settings = settings
        return self.train(self.documents(0)[: 2 * self.job.batch_size], untimed_steps=1).seconds

    def trainer(self, documents: list[Document], arguments: dict[str, Any]) -> Trainer:
        """Return the library's trainer, with the texts of the views in two columns, tokenised batch by batch."""
        rows = [dict(zip(("first", "second"), (view.text for view in row["views"]))) for row in documents]
        loss = self.make_loss(**self.settings)
        from datasets import Dataset
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

        args = SentenceTransformerTrainingArguments(**arguments, batch_sampler=in_order)
        return SentenceTransformerTrainer(self.model, args, Dataset.from_list(rows), loss=loss)

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


def in_order(dataset: Any, batch_size: int, drop_last: bool, **options: Any) -> Any:
    """Batches of neighbours, in the form that sentence-transformers' Trainer wants of a `batch_sampler`."""
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def check_same_ids(input_ids: Tensor, views: list[View]) -> None:
    """Check that the tokenizer turns the made-up words back into the ids that they stand for."""
    for row, view in zip(input_ids.tolist(), views):
        if row != view.ids.tolist() + [PAD] * (len(row) - len(view.ids)):
            raise ValueError(f"The tokenizer turns {view.text[:50]!r} ... into other ids than those of the view.")


class EncodingContender:
    """Embeds texts in float32. Subclasses set `encoder`, the BERT, and `encode`.

    The texts are whole documents of the built-in corpus, with a vocabulary trained on it. With words of one
    length sentence-transformers, which sorts by characters, would sort by tokens.
    """

    encoder: Any
    settings: dict[str, Any]

    def __init__(self, job: Job):
        from docsplit.data.corpora import load_corpus
        from docsplit.data.tokenization import train_wordpiece
        from docsplit.runtime.files import cache_directory

        corpus = load_corpus("python_docs")
        vocab_size = BertConfig.from_pretrained(job.folder).vocab_size
        self.tokenizer = train_wordpiece(corpus, "text", vocab_size, cache_directory())
        self.tokenizer.model_max_length = MAX_LENGTH
        self.corpus: list[str] = corpus["text"][:]
        self.job, self.settings = job, {}
        self.memory = Memory(job.device)

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return the vectors (N, H) of N texts, in their order, float32."""
        raise NotImplementedError

    def texts(self, round_number: int) -> list[str]:
        """Four times as many as a round of training has views: it is faster, and sorting needs something to sort."""
        rng = np.random.default_rng((SEED, round_number))
        rows = rng.integers(len(self.corpus), size=4 * 2 * self.job.steps * self.job.batch_size)
        return [self.corpus[row] for row in rows]

    def prepare(self) -> np.ndarray:
        """Return the vectors of some texts."""
        return self.encode(self.texts(0)[:64])

    def choose(self) -> None:
        """Choose the contender's settings, if it has any."""

    def warm_up(self) -> dict[str, Any]:
        """Encode the texts of the first round; return the peak of memory and the settings."""
        self.choose()
        self.memory.start()
        self.encode(self.texts(0))
        self.memory.stop()
        return {"peak_memory_mb": self.memory.peak / 2**20, "settings": self.settings}

    def measure(self, round_number: int) -> dict[str, float]:
        """Time a round: tokens, without padding, and useful floating-point operations a second."""
        texts = self.texts(round_number)
        lengths = [len(ids) for ids in self.tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]]
        self.encode(texts[:64])
        seconds = seconds_of(self.encode, texts)
        self.memory.release()
        return {
            "tokens_per_second": sum(lengths) / seconds,
            "flops_per_second": layer_flops(self.encoder, np.array(lengths, dtype=float)) / 3 / seconds,  # no backward
        }


class DocSplitEncode(EncodingContender):
    """This project's bulk embedding, with its defaults."""

    def __init__(self, job: Job):
        from docsplit.embedding.encode import embed_documents
        from docsplit.modeling.loading import load_encoder, replace_tokenizer

        super().__init__(job)
        model = load_encoder(str(job.folder), device=job.device)
        self.encoder = model[0].model
        replace_tokenizer(model, self.tokenizer)
        self.encode = lambda texts: embed_documents(model, texts, dtype=torch.float32)[0]  # type: ignore[method-assign]


class SentenceTransformerEncode(EncodingContender):
    """The same encoder with the same tokenizer, read by sentence-transformers."""

    def __init__(self, job: Job):
        import sentence_transformers  # noqa: F401  before the memory is measured

        super().__init__(job)
        self.model = load_sentence_transformer(job)
        self.model[0].processor = self.tokenizer
        self.encoder = self.model[0].model
        self.settings = {"batch_size": 32}

    def encode(self, texts: list[str]) -> np.ndarray:
        """Embed by sentence-transformers, which sorts by characters and pads batch by batch."""
        return self.model.encode(texts, show_progress_bar=False, **self.settings)

    def choose(self) -> None:
        """Keep the batch size, of four, with which a quarter of the texts is fastest."""
        self.settings = min([{"batch_size": size} for size in (8, 16, 32, 64)], key=self.seconds_with)

    def seconds_with(self, settings: dict[str, Any]) -> float:
        """Return the seconds that the first quarter of the texts takes with these settings."""
        self.settings = settings
        return seconds_of(self.encode, self.texts(0)[: len(self.texts(0)) // 4])


CONTENDERS: dict[str, Any] = {
    "docsplit": DocSplit,
    "docsplit_cached": functools.partial(DocSplit, cache_gradients=True),
    "trainer_pad512": functools.partial(Plain, pad_to=MAX_LENGTH),
    "trainer_dynamic": Plain,
    "trainer_group_by_length": functools.partial(Plain, grouped=True),
    "docsplit_contrastive": functools.partial(DocSplit, mlm=False),
    "st_mnrl": functools.partial(SentenceTransformersLoss, cached=False),
    "st_cached_mnrl": functools.partial(SentenceTransformersLoss, cached=True),
    "docsplit_encode": DocSplitEncode,
    "st_encode": SentenceTransformerEncode,
}


def serve(name: Any, job: Job, connection: Connection) -> None:
    """Answer requests (method, *arguments) with (done | unavailable | failed, value or reason), until one is None.

    Args:
        name: of `CONTENDERS`; or a class like them.
    """
    multiprocessing.set_start_method("fork", force=True)  # of loaders' workers, as in a script; this one was spawned
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    contender: Any = None
    while (request := connection.recv()) is not None:
        method, *arguments = request
        try:
            contender = contender or CONTENDERS.get(name, name)(job)
            connection.send(("done", getattr(contender, method)(*arguments)))
        except ModuleNotFoundError as error:
            connection.send(("unavailable", f"{error.name} is not installed"))
        except Exception:
            connection.send(("failed", traceback.format_exc()))
