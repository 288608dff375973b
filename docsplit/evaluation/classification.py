"""An encoder measured on labelled documents: heads on its frozen features, and heads that change it.

Embeddings are measured raw and standardised, in this order, with every head: a head of a fixed learning rate cannot
read an encoder whose vectors are all alike, and standardising can change the order of encoders.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from docsplit.data.copies import near_copy_groups
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.evaluation.compare import TFIDF_FACTS, LabelledEvaluation
from docsplit.evaluation.heads.base import Head, HeadInput, head_runs
from docsplit.evaluation.heads.finetuning import FineTuningStart, check_batch_size, finetune
from docsplit.evaluation.heads.frozen import TFIDF, standardize, tfidf_features
from docsplit.evaluation.heads.mlp import mlp
from docsplit.evaluation.heads.presets import PRESETS
from docsplit.evaluation.heads.setfit import check_setfit, setfit
from docsplit.evaluation.heads.table import HEADS, TFIDF_HEADS, TUNING_HEADS
from docsplit.evaluation.results.plots import plot_convergence, plot_few_shot
from docsplit.evaluation.results.result import Facts, Result, classification_result
from docsplit.evaluation.task_arguments import ProbeArguments

logger = logging.getLogger(__name__)


class Classification(LabelledEvaluation):
    """Heads on frozen embeddings of labelled documents, and heads that train the encoder."""

    title, card_title = "Probes", "Classification"
    not_encoders = (TFIDF,)
    args: ProbeArguments

    def settings(self) -> Facts:
        """Return the fingerprint of the documents, what was left out, and the options of fine-tuning."""
        finetuning = {name: value for name, value in asdict(self.args.finetuning).items() if value is not None}
        return super().settings() | {"finetuning": finetuning}

    def sample(self) -> list[str]:
        """Two training documents."""
        return self.split.train_texts[:2]

    def check(self, encoder_args: EncoderArguments) -> None:
        """Check the draws, and refuse heads that do not fit them or TF-IDF."""
        args = self.args
        for shots in args.shots:
            self.split.draws(shots, args.num_draws, args.seed)
        if "finetune" in args.heads:
            check_batch_size(args.finetuning.batch_size)
        if "setfit" in args.heads:
            for shots in args.shots:
                check_setfit(self.split, head_runs(self.split, shots, args.num_draws, args.num_seeds, args.seed))
        if TFIDF in encoder_args.model_name_or_path and not set(args.heads) & set(TFIDF_HEADS):
            raise ValueError(f"tfidf has the heads {', '.join(TFIDF_HEADS)}: add one of them to --heads.")

    def measure(self, name: str, encoder: Encoder | None, is_main: bool) -> list[Result]:
        """Train and measure every head.

        All processes embed and tune; the first one alone trains heads on frozen features.
        """
        if encoder is None:
            features = dict(zip(self.split.texts, tfidf_features(*self.split.texts.values())))
            return list(probe(name, features, TFIDF_FACTS, self.split, self.args)) if is_main else []
        vectors, info = encoder.embed_parts(self.split.texts, is_main)
        encoder.rest()
        frozen = list(probe(name, vectors, info, self.split, self.args)) if is_main else []
        return [*frozen, *tune(encoder, info, self.split, self.args, show_progress=is_main)]

    def write_further(self, frame: pd.DataFrame, folder: Path) -> list[str]:
        """Draw the few-shot curve and that of fine-tuning."""
        task, plots = self.results[0].task, {"few_shot.png": plot_few_shot, "convergence.png": plot_convergence}
        return [name for name, plot in plots.items() if plot(frame, task, folder / name)]


def head_of(name: str, preset: str, is_sparse: bool = False, max_epochs: int | None = None) -> tuple[Head, str | None]:
    """Return a head's function and the preset that it is trained by; None where presets do not name the head.

    Sparse features have logistic regression as linear head whatever the preset.

    Args:
        max_epochs: with all labels, in place of the preset's.
    """
    training = {"mlp": PRESETS[preset].mlp, "linear": PRESETS[preset].linear}.get(name)
    if training is not None and not is_sparse:
        return partial(mlp, training=replace(training, max_epochs=max_epochs or training.max_epochs)), preset
    return HEADS[name], "docsplit" if name == "linear" else None


def probe(
    name: str, features: Mapping[str, Any], info: Facts, split: LabelledSplit, options: ProbeArguments
) -> Iterator[Result]:
    """Train each head on frozen features: on each few-shot draw, and on the full data for each seed.

    Args:
        name: of the encoder, or `TFIDF`.
        features: (N, H) of each part of the split.
        info: the encoder's facts.
    """
    is_tfidf = name == TFIDF
    heads = [head for head in options.heads if head in (TFIDF_HEADS if is_tfidf else HEADS)]
    groups = near_copy_groups(split.train_texts)
    if copies := len(groups) - len(np.unique(groups)):
        logger.info(
            f"{copies:,} of {len(groups):,} training documents are near copies of others, in whose fold they are."
        )
    kinds = {"raw": features}
    if heads and not is_tfidf:
        kinds["standardized"] = dict(zip(features, standardize(*features.values())))
    tasks = [(kind, head, shots) for kind in kinds for head in heads for shots in (*options.shots, None)]
    for kind, head, shots in (bar := tqdm(tasks, desc=f"Probing {name}", unit="head")):
        bar.set_postfix_str(f"{head}, {'full data' if shots is None else f'{shots} shots'}")
        parts = kinds[kind]
        validation: Any = (parts["validation"], split.validation_labels) if "validation" in parts else None
        train, preset = head_of(head, options.probe_preset, is_tfidf, options.probe_epochs)
        runs = head_runs(split, shots, options.num_draws, options.num_seeds, options.seed)
        about = {"num_classes": len(split.class_names), "few_shot": shots is not None, "validation": validation}
        about |= {"groups": groups}
        output = train(HeadInput(parts["train"], split.train_labels, runs, parts["test"], **about))
        about = {"encoder": name, "head": head, "shots": shots, "info": info | {"features": kind}, "preset": preset}
        yield classification_result(output, split, **about, pretraining_seeds=None if is_tfidf else 1)


def tune(
    encoder: Encoder, info: Facts, split: LabelledSplit, options: ProbeArguments, show_progress: bool
) -> Iterator[Result]:
    """Train the encoder itself, by all processes: on the full data (finetune) and on the draws (setfit).

    Args:
        info: what the rows of results say about the encoder; its prompt and dtype are used.
    """
    name, start = encoder.name, FineTuningStart(encoder.copy, info["prompt"], bf16=info["dtype"] == "bfloat16")
    for head in (head for head in options.heads if head in TUNING_HEADS):
        for shots in [None] if head == "finetune" else options.shots:
            runs = head_runs(split, shots, options.num_draws, options.num_seeds, options.seed)
            data = "full data" if shots is None else f"{shots} shots"
            logger.info(f"{head} of {name}, {data}: {len(runs)} trainings")
            if head == "finetune":
                output = finetune(start, split, runs, options.finetuning, show_progress)
            else:
                output = setfit(start, split, runs, show_progress)
            facts: Facts = info | {"features": "raw", "embedding_seconds": None, "smooth_neighbours": 0}
            if info.get("long_documents") == "chunk_mean":  # a graph of passages stays one
                facts["long_documents"] = "truncate"
            facts.pop("words", None)  # which training leaves out
            about = {"encoder": name, "head": head, "shots": shots, "info": facts}
            yield classification_result(output, split, **about, trains_encoder=True)
