"""The contenders of `benchmarks.training`: each lives in a process of its own and sleeps until it is asked.

    docsplit                 DocSplitForContrastivePretraining in a stock Trainer
    docsplit_cached          the same with `cache_gradients`
    trainer_pad512           what one would write: BertForMaskedLM in a stock Trainer, all views padded to 512 tokens
    trainer_dynamic          the same, padded to the longest view of the batch
    trainer_group_by_length  the same, with batches of documents of similar length
    docsplit_contrastive     docsplit without masked LM, to compare with the two below, which have none
    st_mnrl                  sentence-transformers' MultipleNegativesRankingLoss
    st_cached_mnrl           sentence-transformers' CachedMultipleNegativesRankingLoss
    docsplit_encode          docsplit.embedding.encode
    st_encode                SentenceTransformer.encode

All train on the same documents from the same weights with the same loss: InfoNCE at temperature 0.05 in one direction,
plus 0.1 times masked LM where there is any. Documents are random ids, so nothing need be downloaded; each id has a
made-up word, so that sentence-transformers can be given texts. (Encoding has the built-in corpus.) Needs torch,
transformers and accelerate, sentence-transformers for the contenders that begin with `st_`, and for encoding all of
requirements.txt. Contenders that need a package that is not installed are unavailable, and said to be.
"""

import ctypes
import functools
import gc
import importlib.util
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils.data import BatchSampler, SequentialSampler
from transformers import BertConfig, BertForMaskedLM, BertTokenizer, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback, TrainerCallback
from transformers.trainer_pt_utils import get_length_grouped_indices

from docsplit.modeling.settings import IGNORED
from modeling_docsplit import DocSplitForContrastivePretraining

TEMPERATURE, MLM_WEIGHT, MLM_PROBABILITY, MAX_LENGTH, SEED = 0.05, 0.1, 0.15, 512, 0
PAD, UNK, CLS, SEP, MASK = 0, 100, 101, 102, 103  # BERT's
SPECIAL_TOKENS = {PAD: "[PAD]", UNK: "[UNK]", CLS: "[CLS]", SEP: "[SEP]", MASK: "[MASK]"}

# Lengths of views are log-normal, clipped to 8 ... 512 tokens: mean 200, median 159, 7 % of them 512. The two halves
# of a document of twenty sentences differ in length by about a fifth, which is this correlation of their logarithms.
LENGTH_MU, LENGTH_SIGMA, LENGTH_CORRELATION = 5.068, 0.8, 0.9
POOL_BATCHES = 50  # among so many batches Trainer's group_by_length sorts
UNTIMED_STEPS = {"cpu": 1, "cuda": 3}  # at the beginning of each round, with its longest documents

MODELS: dict[str, dict[str, int]] = {  # BERT-base, but for ...
    "tiny": {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 200,
    },
    "small": {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    "base": {},
}


@dataclass(frozen=True)
class Job:
    """What is the same for all contenders of a model."""

    folder: Path  # config, weights and tokenizer
    device: str
    precision: str
    batch_size: int
    steps: int  # of a round
    rounds: int
    micro_batch_tokens: int | None
    keep_freed_memory: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else torch.float32


# --- Model and documents -------------------------------------------------------------------------------------------


def write_model(name: str, folder: Path) -> BertConfig:
    """A random BERT without attention dropout, and a tokenizer with a word for each of its ids."""
    config = BertConfig(attention_probs_dropout_prob=0.0, max_position_embeddings=MAX_LENGTH)
    config.update(MODELS[name])
    # With the usual spread of weights all texts get about the same vector, and equal losses would say little.
    config.initializer_range = 1.6 / config.hidden_size**0.5
    torch.manual_seed(SEED)
    BertForMaskedLM(config).save_pretrained(folder)
    vocabulary = {SPECIAL_TOKENS.get(index, f"w{index}"): index for index in range(config.vocab_size)}
    BertTokenizer(vocab=vocabulary, model_max_length=MAX_LENGTH).save_pretrained(folder)
    return config


@dataclass(frozen=True)
class View:
    """A half of a document: ids (T,), the same ids masked (T,), and the MLM targets (T,)."""

    ids: np.ndarray
    masked: np.ndarray
    targets: np.ndarray

    @property
    def text(self) -> str:
        return " ".join(f"w{index}" for index in self.ids[1:-1])


Document = dict[str, Any]  # {"views": (View, View), "document_id": int}


def draw_documents(job: Job, round_number: int, vocab_size: int, grouped: bool = False) -> list[Document]:
    """The documents of a round, the same for all contenders, in the order in which they are trained on.

    Trainer's group_by_length sorts 50 batches at a time, far more than a round can have. So the lengths of that many
    are drawn and sorted as Trainer does, and the round is every n-th of these batches: `grouped` takes them as they
    are, which is as good as grouping gets in a long training, and the others get the same documents shuffled.
    """
    rng = np.random.default_rng((SEED, round_number))
    num_batches = max(POOL_BATCHES, job.steps)
    normal = rng.standard_normal((num_batches * job.batch_size, 1)) * LENGTH_CORRELATION**0.5
    normal = normal + rng.standard_normal((len(normal), 2)) * (1 - LENGTH_CORRELATION) ** 0.5
    lengths = np.exp(LENGTH_MU + LENGTH_SIGMA * normal).round().clip(8, MAX_LENGTH).astype(int)
    generator = torch.Generator().manual_seed(round_number)
    order = get_length_grouped_indices(lengths.max(axis=1).tolist(), job.batch_size, num_batches, generator)
    offset = ((round_number + job.rounds // 2) % job.rounds + 0.5) / job.rounds  # the first is in the middle
    chosen = ((np.arange(job.steps) + offset) * num_batches / job.steps).astype(int)
    rows = np.array(order).reshape(num_batches, job.batch_size)[chosen].ravel()
    documents = [
        {"views": tuple(draw_view(length, vocab_size, rng) for length in lengths[row]), "document_id": int(row)}
        for row in rows
    ]
    return documents if grouped else [documents[index] for index in rng.permutation(len(documents))]


def draw_view(length: int, vocab_size: int, rng: np.random.Generator) -> View:
    ids = np.r_[CLS, rng.integers(MASK + 1, vocab_size, length - 2), SEP]
    chosen = rng.random(length) < MLM_PROBABILITY
    chosen[[0, -1]] = False
    return View(ids, np.where(chosen, MASK, ids), np.where(chosen, ids, IGNORED))


def collate(documents: list[Document], pad_to: int | None = None) -> dict[str, Tensor]:
    """A batch of `DocSplitForContrastivePretraining`, padded to its longest view or to `pad_to`."""
    views = [view for document in documents for view in document["views"]]
    longest = pad_to or max(len(view.ids) for view in views)

    def padded(rows: list[np.ndarray], value: int) -> Tensor:
        batch = np.full((len(rows), longest), value, dtype=np.int64)
        for row, ids in zip(batch, rows):
            row[: len(ids)] = ids
        return torch.from_numpy(batch).view(-1, 2, longest)

    return {
        "input_ids": padded([view.ids for view in views], PAD),
        "attention_mask": padded([np.ones(len(view.ids)) for view in views], 0),
        "mlm_input_ids": padded([view.masked for view in views], PAD),
        "mlm_targets": padded([view.targets for view in views], IGNORED),
        "document_ids": torch.tensor([document["document_id"] for document in documents]),
    }


def mean_length(job: Job) -> float:
    """Tokens of a view, over all rounds."""
    rounds = [draw_documents(job, number, MASK + 2) for number in range(job.rounds)]
    return sum(map(num_tokens, rounds)) / (2 * job.rounds * job.steps * job.batch_size)


def num_tokens(documents: list[Document]) -> int:
    return sum(len(view.ids) for document in documents for view in document["views"])


def longest(documents: list[Document], count: int) -> list[Document]:
    return sorted(documents, key=lambda document: -max(len(view.ids) for view in document["views"]))[:count]


def layer_flops(encoder: Any, lengths: np.ndarray) -> float:
    """Of the encoder's forward and backward pass on rows of so many tokens (R,); see `benchmarks.training`."""
    parameters = sum(parameter.numel() for parameter in encoder.encoder.parameters())
    attention = 12 * encoder.config.num_hidden_layers * encoder.config.hidden_size
    return (6 * parameters * lengths + attention * lengths**2).sum()


def useful_flops(encoder: Any, documents: list[Document], mlm: bool) -> float:
    """Of forward and backward pass on all tokens but padding; see `benchmarks.training`."""
    config = encoder.config
    views = [view for document in documents for view in document["views"]]
    flops = layer_flops(encoder, np.array([len(view.ids) for view in views], dtype=float))
    if not mlm:
        return flops
    masked = sum((view.targets != IGNORED).sum() for view in views)
    return 2 * flops + 6 * (config.hidden_size**2 + config.hidden_size * config.vocab_size) * masked


# --- Memory --------------------------------------------------------------------------------------------------------


class Memory:
    """Peak memory of this process above what it had before the model; Linux only.

    The allocator is the system's, as a stock Trainer has it. On a CPU it maps large tensors anew for each use, and the
    kernel clears every page: for dense logits that can be half of a step. With `keep_freed_memory` timed steps get
    their memory before, and keep what they free, as a GPU's allocator does and a tuned one on a CPU can. That takes
    more memory than need be, so the peak is in any case that of some steps before, under the usual rules.
    """

    FRAGMENTED = 1.75  # the heap may grow to this multiple of the peak

    def __init__(self, device: str):
        self.device = device
        self.libc = ctypes.CDLL(None)
        self.release()
        self.before = 0 if device == "cuda" else kilobytes("/proc/self/status", "VmRSS") * 1024
        self.peak = 0

    def start(self) -> None:
        self.release()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew

    def stop(self) -> None:
        """Remember the peak, in bytes, since `start`."""
        if self.device == "cuda":
            self.peak = torch.cuda.max_memory_allocated()
        else:
            self.peak = kilobytes("/proc/self/status", "VmHWM") * 1024 - self.before
        self.release()

    def reserve(self) -> None:
        """From now on keep what is freed, until `release`, beginning with as much as will be needed."""
        if self.device == "cpu":
            trim_threshold, mmap_max = -1, -4  # of mallopt(3)
            self.libc.mallopt(mmap_max, 0)
            self.libc.mallopt(trim_threshold, -1)
            available = kilobytes("/proc/meminfo", "MemAvailable") * 1024
            torch.ones(int(min(self.FRAGMENTED * self.peak, 0.7 * available)), dtype=torch.uint8)

    def release(self) -> None:
        """Give everything that is not in use to the other contenders."""
        gc.collect()
        self.libc.malloc_trim(0)
        if self.device == "cuda":
            torch.cuda.empty_cache()


def kilobytes(file: str, name: str) -> int:
    """A line of such a file of Linux's: VmRSS, the memory of this process, VmHWM, its peak, or MemAvailable."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"{file} says nothing about {name}.")


# --- Training ------------------------------------------------------------------------------------------------------


class Clock(TrainerCallback):
    """Times the steps of a Trainer after the first `untimed_steps`, and counts the tokens that the encoder gets."""

    def __init__(self, device: str, precision: str, untimed_steps: int):
        self.device, self.precision, self.untimed_steps = device, precision, untimed_steps
        self.started = self.step_ended = self.seconds = self.waiting = 0.0
        self.tokens: Any = 0
        self.computed_tokens = 0

    def start(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.waiting, self.tokens, self.computed_tokens = 0.0, 0, 0
        self.started = self.step_ended = time.perf_counter()

    def count(self, module: nn.Module, args: Any, inputs: dict[str, Any]) -> None:
        """Before each forward pass of the encoder, the recomputed ones too."""
        if torch.is_autocast_enabled(self.device) != (self.precision == "bf16"):
            raise RuntimeError(f"The encoder does not run in {self.precision}.")
        self.tokens = self.tokens + (inputs["input_ids"] != PAD).sum()
        self.computed_tokens += inputs["input_ids"].numel()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.start()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.waiting += time.perf_counter() - self.step_ended

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step_ended = time.perf_counter()
        if state.global_step == self.untimed_steps:
            self.start()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.started


class PlainModel(nn.Module):
    """DocSplit's loss as one would write it around a masked language model: two dense forward passes."""

    def __init__(self, encoder: BertForMaskedLM):
        super().__init__()
        self.encoder = encoder

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        mlm_input_ids: Tensor,
        mlm_targets: Tensor,
        document_ids: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """All (B, 2, T)."""
        mask = attention_mask.flatten(0, 1)
        hidden_states = self.encoder.base_model(input_ids=input_ids.flatten(0, 1), attention_mask=mask)[0]
        first, second = F.normalize(hidden_states[:, 0].float(), dim=-1).unflatten(0, (-1, 2)).unbind(1)
        contrastive = F.cross_entropy(first @ second.T / TEMPERATURE, torch.arange(len(first), device=first.device))
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
        """The loss of the first batch, in full precision and without dropout."""
        documents = draw_documents(self.job, 0, self.encoder.config.vocab_size)[: self.job.batch_size]
        self.model.to(self.job.device).eval()
        with torch.no_grad():
            loss = float(self.loss(documents))
        self.memory.release()
        return loss

    def choose(self) -> None:
        """Choose settings, where there is a choice."""

    def warm_up(self) -> dict[str, Any]:
        """Two steps, and what they say about memory."""
        self.choose()
        self.memory.start()
        self.train(self.documents(0)[: 2 * self.job.batch_size])
        self.memory.stop()
        return {"peak_memory_mb": self.memory.peak / 2**20, "settings": self.settings}

    def measure(self, round_number: int) -> dict[str, float]:
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
        return draw_documents(self.job, round_number, self.encoder.config.vocab_size, self.grouped)

    def train(self, documents: list[Document], untimed_steps: int = 0) -> Clock:
        """One pass over the documents, with a Trainer and an optimizer of its own that are gone afterwards."""
        arguments = {
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
        clock = Clock(self.job.device, self.job.precision, untimed_steps)
        trainer = self.trainer(documents, arguments)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(clock)
        handle = self.encoder.embeddings.register_forward_pre_hook(clock.count, with_kwargs=True)
        trainer.train()
        handle.remove()
        self.model.zero_grad()
        return clock

    def trainer(self, documents: list[Document], arguments: dict[str, Any]) -> Trainer:
        return Trainer(self.model, TrainingArguments(**arguments), self.collate, documents)  # type: ignore[arg-type]

    def loss(self, documents: list[Document]) -> Tensor:
        batch = {name: tensor.to(self.job.device) for name, tensor in self.collate(documents).items()}
        return self.model(**batch)["loss"]


class DocSplit(TrainingContender):
    def __init__(self, job: Job, cache_gradients: bool = False, **options: Any):
        super().__init__(job, **options)
        self.model = DocSplitForContrastivePretraining.from_pretrained(
            job.folder, contrastive_temperature=TEMPERATURE, mlm_weight=MLM_WEIGHT if self.mlm else 0.0
        )
        self.encoder = self.model.encoder.base_model
        self.model.micro_batch_tokens = job.micro_batch_tokens or default_micro_batch_tokens(job.device)
        self.model.cache_gradients = cache_gradients
        self.settings = {"micro_batch_tokens": self.model.micro_batch_tokens}


def default_micro_batch_tokens(device: str) -> int:
    return 1024 if device == "cpu" else 4096  # run_docsplit_pretraining.py's


class Plain(TrainingContender):
    def __init__(self, job: Job, **options: Any):
        super().__init__(job, **options)
        self.model = PlainModel(BertForMaskedLM.from_pretrained(job.folder))
        self.encoder = self.model.encoder.base_model


class SentenceTransformersLoss(TrainingContender):
    """A loss of sentence-transformers, trained by its own Trainer, or by the stock one where that lacks `datasets`.

    The loss that caches gradients has several settings: the warm-up tries each and keeps the fastest.
    """

    def __init__(self, job: Job, cached: bool):
        from sentence_transformers.sentence_transformer import losses

        super().__init__(job, mlm=False)
        self.model = load_sentence_transformer(job)
        self.encoder = self.model[0].model
        self.cached = cached
        kind: Any = losses.CachedMultipleNegativesRankingLoss if cached else losses.MultipleNegativesRankingLoss
        self.make_loss = functools.partial(kind, self.model, scale=1 / TEMPERATURE)
        self.own_trainer = importlib.util.find_spec("datasets") is not None

    def choose(self) -> None:
        if self.cached:
            budgets = (512, 1024, 4096) if self.job.device == "cpu" else (4096, 16384, 65536)
            choices = [{"mini_batch_size": 32}, *({"mini_batch_num_tokens": budget} for budget in budgets)]
            self.settings = fastest(choices, self.seconds_with)

    def seconds_with(self, settings: dict[str, Any]) -> float:
        self.settings = settings
        return self.train(self.documents(0)[: 2 * self.job.batch_size], untimed_steps=1).seconds

    def trainer(self, documents: list[Document], arguments: dict[str, Any]) -> Trainer:
        rows = [dict(zip(("first", "second"), (view.text for view in row["views"]))) for row in documents]
        loss = self.make_loss(**self.settings)
        if not self.own_trainer:
            return self.stock_trainer(rows, loss, arguments)
        from datasets import Dataset
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

        args = SentenceTransformerTrainingArguments(**arguments, batch_sampler=in_order)
        return SentenceTransformerTrainer(self.model, args, Dataset.from_list(rows), loss=loss)

    def stock_trainer(self, rows: list[dict[str, str]], loss: nn.Module, arguments: dict[str, Any]) -> Trainer:
        """With the stock collator of sentence-transformers, and autocast around the encoder as its Trainer has it."""
        from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

        forward = type(self.model).forward.__get__(self.model)
        self.model.forward = torch.autocast(self.job.device, self.job.dtype, self.job.precision == "bf16")(forward)
        collator = SentenceTransformerDataCollator(self.model.preprocess)
        return Trainer(LossOfColumns(loss), TrainingArguments(**arguments | {"bf16": False}), collator, rows)  # type: ignore[arg-type]

    def loss(self, documents: list[Document]) -> Tensor:
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
        features = [
            {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}
            for prefix in ("first_", "second_")
        ]
        return {"loss": self.loss(features, None)}


def in_order(dataset: Any, batch_size: int, drop_last: bool, **options: Any) -> Any:
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def load_sentence_transformer(job: Job) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    transformer = Transformer(str(job.folder), model_kwargs={"add_pooling_layer": False})
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="cls")
    model = SentenceTransformer(modules=[transformer, pooling], device=job.device)
    model.max_seq_length = MAX_LENGTH
    return model


def check_same_ids(input_ids: Tensor, views: list[View]) -> None:
    """The tokenizer must turn the made-up words back into the ids that they stand for."""
    for row, view in zip(input_ids.tolist(), views):
        if row != view.ids.tolist() + [PAD] * (len(row) - len(view.ids)):
            raise ValueError(f"The tokenizer turns {view.text[:50]!r} ... into other ids than those of the view.")


# --- Encoding ------------------------------------------------------------------------------------------------------


class EncodingContender:
    """Embeds texts in float32. Subclasses set `encoder`, the BERT, and `encode`.

    The texts are whole documents of the built-in corpus, with a vocabulary trained on it: words of one length would
    show sentence-transformers, which sorts by characters, how many tokens a text has.
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
        raise NotImplementedError

    def texts(self, round_number: int) -> list[str]:
        """Four times as many as a round of training has views: it is faster, and sorting needs something to sort."""
        rng = np.random.default_rng((SEED, round_number))
        rows = rng.integers(len(self.corpus), size=4 * 2 * self.job.steps * self.job.batch_size)
        return [self.corpus[row] for row in rows]

    def prepare(self) -> np.ndarray:
        """Vectors of some texts."""
        return self.encode(self.texts(0)[:64])

    def choose(self) -> None:
        """Choose settings, where there is a choice."""

    def warm_up(self) -> dict[str, Any]:
        self.choose()
        self.memory.start()
        self.encode(self.texts(0))
        self.memory.stop()
        return {"peak_memory_mb": self.memory.peak / 2**20, "settings": self.settings}

    def measure(self, round_number: int) -> dict[str, float]:
        texts = self.texts(round_number)
        lengths = [len(ids) for ids in self.tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]]
        if self.job.keep_freed_memory:
            self.memory.reserve()
        self.encode(texts[:64])
        seconds = seconds_of(self.encode, texts)
        self.memory.release()
        return {
            "tokens_per_second": sum(lengths) / seconds,
            "flops_per_second": layer_flops(self.encoder, np.array(lengths, dtype=float)) / 3 / seconds,  # no backward
        }


class DocSplitEncode(EncodingContender):
    def __init__(self, job: Job):
        from docsplit.embedding.encode import encode

        super().__init__(job)
        model = DocSplitForContrastivePretraining.from_pretrained(job.folder).to(job.device)
        self.encoder = model.encoder.base_model
        self.encode = functools.partial(encode, self.encoder, self.tokenizer)  # type: ignore[method-assign]


class SentenceTransformerEncode(EncodingContender):
    def __init__(self, job: Job):
        import sentence_transformers  # noqa: F401  before the memory is measured

        super().__init__(job)
        self.model = load_sentence_transformer(job)
        self.model[0].processor = self.tokenizer
        self.encoder = self.model[0].model
        self.settings = {"batch_size": 32}

    def encode(self, texts: list[str]) -> np.ndarray:
        return self.model.encode(texts, show_progress_bar=False, **self.settings)

    def choose(self) -> None:
        self.settings = fastest([{"batch_size": size} for size in (8, 16, 32, 64)], self.seconds_with)

    def seconds_with(self, settings: dict[str, Any]) -> float:
        self.settings = settings
        return seconds_of(self.encode, self.texts(0)[: len(self.texts(0)) // 4])


def fastest(choices: list[dict[str, Any]], seconds: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    return min(choices, key=seconds)


def seconds_of(function: Any, *args: Any) -> float:
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


# --- The peak ------------------------------------------------------------------------------------------------------


class MatrixProducts:
    """The most that this machine computes: the fastest square matrix product, of three sizes for a second each."""

    def __init__(self, job: Job):
        self.device = job.device

    def measure(self, dtype: torch.dtype) -> float:
        """Floating-point operations per second."""
        peak = 0.0
        for size in (1024, 2048, 4096):
            left, right, product = (torch.randn(size, size, device=self.device).to(dtype) for _ in range(3))
            until = time.perf_counter() + 1
            while (start := time.perf_counter()) < until:
                torch.mm(left, right, out=product)
                if self.device == "cuda":
                    torch.cuda.synchronize()
                peak = max(peak, 2 * size**3 / (time.perf_counter() - start))
        return peak


# --- A process -----------------------------------------------------------------------------------------------------

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


def serve(name: str, job: Job, connection: Connection) -> None:
    """Answer requests (method, *arguments) with (done | unavailable | failed, value or reason), until one is None."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    contender: Any = None
    while (request := connection.recv()) is not None:
        method, *arguments = request
        try:
            contender = contender or (CONTENDERS | {"matrix_products": MatrixProducts})[name](job)
            connection.send(("done", getattr(contender, method)(*arguments)))
        except ModuleNotFoundError as error:
            connection.send(("unavailable", f"{error.name} is not installed"))
        except Exception:
            connection.send(("failed", traceback.format_exc()))
