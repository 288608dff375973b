"""SetFit, a few-shot comparison: a head that changes the encoder by contrasting pairs of labelled documents.

Each run starts from a fresh encoder and sees its own draw of training documents alone, truncated to the encoder's
maximum length: there is no averaging over chunks here.
"""

import importlib.util
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from transformers import PrinterCallback, ProgressCallback, set_seed

from docsplit.data.readers.base import normalized
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads import finetuning
from docsplit.evaluation.heads.base import HeadOutput, HeadRun
from docsplit.evaluation.heads.finetuning import FineTuningStart

# Everything else about SetFit is the library's default.
SETFIT_ITERATIONS = 20  # positive and negative pairs a document (Tunstall et al., 2022: R = 20)
SETFIT_BATCH_SIZE = 16


def setfit(
    start: FineTuningStart, split: LabelledSplit, runs: Sequence[HeadRun], show_progress: bool = False
) -> HeadOutput:
    """Train by SetFit (Tunstall et al., 2022): contrast pairs of labelled documents, then fit a logistic regression.

    For few-shot runs, with the `setfit` library and its defaults but for the number of pairs, which is the paper's. In
    multi-label data a pair is positive if the documents share a label, and there is one regression a label.

    Returns: probabilities (R, M, C), the same in all processes; mean seconds of training and prediction.

    Raises:
        FloatingPointError: if training breaks the encoder.
        ImportError: if `setfit` is not installed.
        ValueError: if a run has no positive or no negative pair, or the processes do not fit.
    """
    documents_per_process = check_setfit(split, runs)
    from setfit import SetFitModel
    from setfit import Trainer as SetFitTrainer
    from setfit import TrainingArguments as SetFitArguments
    from setfit import logging as setfit_logging

    setfit_logging.set_verbosity_warning()
    test_texts = list(map(normalized, split.test_texts))
    scores, seconds, trainable_parameters = [], 0.0, 0
    for run in runs:
        set_seed(int(run.seed))
        body, width = finetuning.fresh_body(start, split)
        body.prompts, body.default_prompt_name = {"document": start.prompt or ""}, "document"  # for its own `encode`
        head: Any = LogisticRegression(max_iter=1000)
        model = SetFitModel(
            model_body=body,
            model_head=OneVsRestClassifier(head) if split.multi_label else head,
            multi_target_strategy="one-vs-rest" if split.multi_label else None,
        )
        texts = [normalized(split.train_texts[index]) for index in run.indices]
        labels = split.train_labels[run.indices]
        with tempfile.TemporaryDirectory(prefix="docsplit-setfit-") as directory:
            args = SetFitArguments(
                output_dir=directory,
                seed=int(run.seed),
                batch_size=documents_per_process,
                num_iterations=SETFIT_ITERATIONS,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                show_progress_bar=show_progress,
            )
            trainer = SetFitTrainer(model, args)
            trainer.st_trainer.data_collator.prompts = start.prompt
            trainer.remove_callback(PrinterCallback)
            if not show_progress:
                trainer.remove_callback(ProgressCallback)
            started = time.perf_counter()
            trainer.train_embeddings(texts, labels.tolist(), args=args)
            for parameter in body.parameters():
                finetuning.check_finite(parameter, "parameter after SetFit")
            trainer.train_classifier(texts, labels.tolist(), args=args)
        probabilities = np.asarray(model.predict_proba(test_texts, as_numpy=True, show_progress_bar=show_progress))
        seconds += time.perf_counter() - started
        columns = np.arange(len(split.class_names)) if split.multi_label else model.model_head.classes_
        trainable_parameters = finetuning.num_trainable(body) + (width + 1) * len(split.class_names)
        scores.append(np.zeros((len(test_texts), len(split.class_names)), dtype=np.float32))
        scores[-1][:, columns] = probabilities  # a class that the run has no document of is never predicted
        trainer.st_trainer.accelerator.free_memory()
    return HeadOutput(np.stack(scores), seconds / len(runs), trainable_parameters)


def check_setfit(split: LabelledSplit, runs: Sequence[HeadRun]) -> int:
    """Check what `setfit` needs, before any long work.

    Returns: documents a process and step.

    Raises: as `setfit`.
    """
    if importlib.util.find_spec("setfit") is None:
        raise ImportError("The head setfit needs a library: pip install setfit")
    for run in runs:
        labels = split.train_labels[run.indices]
        alike = labels @ labels.T.astype(np.int64) > 0 if labels.ndim == 2 else labels[:, None] == labels  # (N, N)
        if alike.all() or not alike.any():
            raise ValueError("SetFit needs pairs of documents with and without a common label: give more --shots.")
    return finetuning.check_batch_size(SETFIT_BATCH_SIZE)
