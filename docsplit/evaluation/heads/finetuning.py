"""Fine-tuning, the ceiling of the frozen probes: a head that changes the encoder.

Each run starts from a fresh encoder, so nothing of a run reaches the next one or the probes; that is why it costs a
training of the encoder for each seed, where a probe costs one embedding of the documents for all of them. Only the
training documents' labels are ever seen (and the validation part's, to choose an epoch). Documents are truncated to
the encoder's maximum length: there is no averaging over chunks here. Of a graph document model, which reads passages,
the length is `TRAIN_PASSAGES` and `TEST_PASSAGES`. `docsplit.evaluation.heads.setfit` has the few-shot counterpart.
"""

import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from torch import Tensor, nn
from transformers import (
    EvalPrediction,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from docsplit.data.readers.base import normalized
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads.base import HeadOutput, HeadRun
from docsplit.evaluation.heads.presets import FineTuning
from docsplit.evaluation.results.result import class_measures
from docsplit.modeling.loading import without_words
from docsplit.runtime.launching import accelerator

logger = logging.getLogger(__name__)

DROPOUT, WARMUP = 0.1, 0.1  # WARMUP: a share of the steps
FINETUNING_MEASURES = ("accuracy", "macro_f1")  # of an epoch, on the validation part
TRAIN_PASSAGES, TEST_PASSAGES = 50, 100  # of a document, the first ones (graph document model, section 3.2)


class TextClassifier(nn.Module):
    """A sentence encoder and a linear layer on its embedding, trained together."""

    accepts_loss_kwargs = False  # the loss is a mean over the batch: see Trainer about `**kwargs` and "labels"

    def __init__(self, body: SentenceTransformer, width: int, num_classes: int, multi_label: bool):
        super().__init__()
        self.body = body
        self.dropout = nn.Dropout(DROPOUT)
        self.classifier = nn.Linear(width, num_classes)
        self.multi_label = multi_label

    def forward(self, labels: Tensor | None = None, **features: Any) -> dict[str, Tensor]:
        """Classify a batch.

        Args:
            labels: (B,) class indices, or (B, C) multi-hot.
            features: what `SentenceTransformer.preprocess` gave for B texts.

        Returns: "logits" (B, C) in fp32 and, where labels are given, "loss": cross-entropy, or binary cross-entropy
            over all labels of all documents.
        """
        embeddings = self.body(features)["sentence_embedding"]  # (B, H)
        logits = self.classifier(self.dropout(embeddings)).float()  # (B, C)
        if labels is None:
            return {"logits": logits}
        if self.multi_label:
            return {"loss": F.binary_cross_entropy_with_logits(logits, labels.float()), "logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class _BestEpoch(TrainerCallback):
    """Keep the weights of the epoch with the best measure on the validation part (the first of equals), in memory.

    Trainer's own way, a checkpoint an epoch, would write the optimizer as well, need a directory that all processes
    see, and fail for encoders with tied weights (T5).
    """

    def __init__(self, measure: str) -> None:
        self.measure, self.best = measure, -math.inf
        self.weights: dict[str, Tensor] = {}
        self.curve: list[dict[str, float]] = []  # of all epochs

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note what was measured, and copy the weights if no epoch before was as good."""
        measured = {name: float(kwargs["metrics"][f"eval_{name}"]) for name in FINETUNING_MEASURES}
        self.curve.append({"epoch": float(state.epoch or 0), "step": state.global_step, **measured})
        if measured[self.measure] > self.best:
            self.best = measured[self.measure]
            self.weights = {name: value.to("cpu", copy=True) for name, value in kwargs["model"].state_dict().items()}


@dataclass(frozen=True)
class FineTuningStart:
    """The encoder that each training starts from, and how it reads a text."""

    load: Callable[[], SentenceTransformer]  # gives a fresh encoder, its pooling and maximum length set
    prompt: str | None = None  # put before each text, as `SentenceTransformer.encode` does
    bf16: bool = False  # autocast in training; the weights stay in fp32


def finetune(
    start: FineTuningStart,
    split: LabelledSplit,
    runs: Sequence[HeadRun],
    settings: FineTuning,
    show_progress: bool = False,
) -> HeadOutput:
    """Train the whole encoder and a linear layer on its embedding, once a run: the ceiling of the frozen probes.

    AdamW, linear decay after a warm-up over a tenth of the steps. `Normalize` modules at the end of an encoder are
    left out: on vectors of length one a linear layer hardly learns at the learning rate of an encoder. Where there is
    a validation part, the epoch with the best `settings.select_by` on it counts, else the last one.

    Returns: probabilities (R, M, C), the same in all processes; mean seconds of training and prediction; and for each
        run with a validation part `FINETUNING_MEASURES` on it after each epoch.

    Raises:
        FloatingPointError: if a prediction is not finite.
        ValueError: if several GPUs are visible to one process or the processes cannot share the batch.
    """
    check_batch_size(settings.batch_size)
    if split.validation_texts is None:
        logger.info("finetune: no validation part, so the last epoch counts and no curve is drawn. --validation_file?")
    outputs = [_finetune_once(start, split, run, settings, show_progress) for run in runs]
    scores, seconds, trainable, curves = zip(*outputs)
    return HeadOutput(np.stack(scores), sum(seconds) / len(runs), trainable[-1], list(filter(None, curves)))


def _finetune_once(
    start: FineTuningStart, split: LabelledSplit, run: HeadRun, settings: FineTuning, show_progress: bool
) -> tuple[np.ndarray, float, int, list[dict[str, float]]]:
    """Return scores (M, C), seconds, the number of trained parameters and the curve of one run of `finetune`."""
    documents_per_process = check_batch_size(settings.batch_size)
    # Load the encoder without `Normalize`, and put a linear layer on it
    set_seed(int(run.seed))
    body, width = fresh_body(start, split)
    for name, module in list(body.named_children()):
        if isinstance(module, Normalize):
            delattr(body, name)
    model = TextClassifier(body, width, len(split.class_names), split.multi_label)
    # Prepare the documents; those to predict stand longest first
    texts = [split.train_texts[index] for index in run.indices]
    train = _labelled_dataset(texts, TRAIN_PASSAGES, split.train_labels[run.indices])
    validation = None
    if split.validation_texts is not None:
        validation = _labelled_dataset(split.validation_texts, TEST_PASSAGES, split.validation_labels)
    longest_first = np.argsort([-len(text) for text in split.test_texts], kind="stable")
    test = _labelled_dataset([split.test_texts[index] for index in longest_first], TEST_PASSAGES)
    with tempfile.TemporaryDirectory(prefix="docsplit-finetuning-") as directory:  # Trainer wants one
        best_epoch = _BestEpoch(settings.select_by or "macro_f1")
        trainer = Trainer(
            model,
            TrainingArguments(
                output_dir=directory,
                seed=int(run.seed),
                learning_rate=settings.learning_rate,
                num_train_epochs=settings.num_epochs,
                per_device_train_batch_size=documents_per_process,
                per_device_eval_batch_size=2 * documents_per_process,
                lr_scheduler_type="linear",
                warmup_steps=WARMUP,
                weight_decay=0.01,
                train_sampling_strategy="group_by_length",
                # With accelerate's default each process shuffles a length-grouped sampler by a state of its own.
                accelerator_config={"use_seedable_sampler": False},
                ddp_find_unused_parameters=False,
                remove_unused_columns=False,
                bf16=start.bf16,
                use_cpu=accelerator().type == "cpu",
                eval_strategy="no" if validation is None else "epoch",
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=not show_progress,
            ),
            data_collator=_Collator(body, start.prompt),
            train_dataset=train,
            eval_dataset=validation,
            compute_metrics=None if validation is None else _measures,
            callbacks=[best_epoch],
        )
        trainer.remove_callback(PrinterCallback)
        # Train, take the best epoch, predict
        started = time.perf_counter()
        trainer.train()
        if best_epoch.weights:
            model.load_state_dict(best_epoch.weights)
        trainer.args.train_sampling_strategy = "random"  # "group_by_length" would shuffle what is predicted, too
        logits = torch.from_numpy(np.asarray(trainer.predict(test).predictions))  # (M, C), longest text first
        seconds = time.perf_counter() - started
        trainer.accelerator.free_memory()
    # Put the predictions in the order of the texts
    check_finite(logits, "prediction of fine-tuning")
    in_order = torch.empty_like(logits, dtype=torch.float32)
    in_order[longest_first] = (logits.sigmoid() if split.multi_label else logits.softmax(dim=-1)).float()
    return in_order.numpy(), seconds, num_trainable(model), best_epoch.curve


def check_batch_size(batch_size: int) -> int:
    """Return how many documents a process takes in a step.

    Raises:
        ValueError: if the processes cannot share such a batch, or one process sees several GPUs, which Trainer would
            take in silence (DataParallel) with larger batches.
    """
    processes = int(os.environ.get("WORLD_SIZE", 1))  # set by torchrun and by accelerate launch
    if torch.cuda.device_count() > 1 and processes == 1:
        raise ValueError("Start with `accelerate launch`, or choose one GPU with CUDA_VISIBLE_DEVICES=0.")
    if batch_size < 1 or batch_size % processes:
        raise ValueError(f"{processes} processes cannot share a batch of {batch_size} documents.")
    return batch_size // processes


def _labelled_dataset(texts: Sequence[str], max_passages: int, labels: np.ndarray | None = None) -> Dataset:
    """Columns "text", "length" (characters, to group batches by), "max_passages" and, where given, "labels"."""
    columns: dict[str, Any] = {"text": list(map(normalized, texts)), "length": [len(text) for text in texts]}
    columns["max_passages"] = [max_passages] * len(texts)
    if labels is not None:
        columns["labels"] = labels.tolist()
    return Dataset.from_dict(columns)


class _Collator:
    """Rows of `_labelled_dataset` to what `TextClassifier.forward` takes, tokenised as the encoder's `encode` does."""

    def __init__(self, body: SentenceTransformer, prompt: str | None):
        self.body, self.prompt = body, prompt

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        module: Any = self.body[0]
        if hasattr(module, "max_passages"):  # a graph document model, which cuts texts into passages itself
            module.max_passages = rows[0]["max_passages"]
        batch = dict(self.body.preprocess([row["text"] for row in rows], prompt=self.prompt))
        if "labels" in rows[0]:
            batch["labels"] = torch.tensor([row["labels"] for row in rows])
        return batch


def fresh_body(start: FineTuningStart, split: LabelledSplit) -> tuple[SentenceTransformer, int]:
    """Load an encoder in fp32, without words, and freeze what an embedding does not depend on, such as poolers.

    DDP waits for a gradient from each parameter that asks for one, so one backward pass finds out which get one.

    Returns: the encoder and the width H of its embeddings.
    """
    # A checkpoint kept in half precision would lose the small steps of a low learning rate.
    body = without_words(start.load().float())
    features = body.preprocess([normalized(text)[:200] for text in split.train_texts[:2]], prompt=start.prompt)
    features = {name: value.to(body.device) if torch.is_tensor(value) else value for name, value in features.items()}
    embeddings = body.eval()(features)["sentence_embedding"]  # (2, H)
    embeddings.sum().backward()
    for parameter in body.parameters():
        parameter.requires_grad_(parameter.grad is not None)
        parameter.grad = None
    return body, embeddings.shape[-1]


def num_trainable(model: nn.Module) -> int:
    """How many parameters ask for a gradient."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _measures(prediction: EvalPrediction) -> dict[str, float]:
    """Measure logits (N, C) against class indices (N,) or multi-hot labels (N, C); probability 0.5 is a yes."""
    logits, labels = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
    predicted = logits.argmax(axis=-1) if labels.ndim == 1 else (logits >= 0).astype(np.int64)
    measured = class_measures(predicted, labels.astype(np.int64))
    return {name: measured[name] for name in FINETUNING_MEASURES}


def check_finite(values: Tensor | float, what: str) -> None:
    """Raise a FloatingPointError that names what is not finite, and the remedy."""
    if not bool(torch.as_tensor(values).isfinite().all()):
        raise FloatingPointError(f"A {what} is not finite: lower --finetune_learning_rate, or leave out this head.")
