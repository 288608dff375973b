"""An encoder measured on labelled documents: heads on its frozen features, and heads that change it.

Embeddings are measured raw and standardised, in this order, with every head: a head of a fixed learning rate cannot
read an encoder whose vectors are all alike, and standardising can change the order of encoders.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads.finetuning import finetune
from docsplit.evaluation.heads.frozen import HeadOutput, standardize
from docsplit.evaluation.heads.mlp import mlp
from docsplit.evaluation.heads.presets import PRESETS, TFIDF, TFIDF_HEADS, TUNING_HEADS
from docsplit.evaluation.heads.setfit import setfit
from docsplit.evaluation.heads.table import HEADS, runs_of
from docsplit.evaluation.results.result import Result, classification_result

logger = logging.getLogger(__name__)


class ProbeOptions(Protocol):
    """What is trained, and how often."""

    heads: list[str]
    probe_preset: str
    shots: list[int]  # labels a class; the full training set always comes along
    num_draws: int
    num_seeds: int
    seed: int

    @property
    def finetuning(self) -> dict[str, Any]:
        """Options of `finetune`."""


def head_of(name: str, preset: str, is_sparse: bool = False) -> tuple[Callable[..., HeadOutput], str | None]:
    """A head's function, and the preset that it is trained by: None for those that no preset says anything about.

    Sparse features have logistic regression as linear head whatever the preset.
    """
    training = {"mlp": PRESETS[preset].mlp, "linear": PRESETS[preset].linear}.get(name)
    if training is not None and not is_sparse:
        return partial(mlp, training=training), preset
    return HEADS[name], "docsplit" if name == "linear" else None


def probe(
    name: str, features: dict[str, Any], info: dict[str, Any], split: LabelledSplit, options: ProbeOptions
) -> Iterator[Result]:
    """Train each head on frozen features: on each few-shot draw, and on the full data for each seed.

    Args:
        name: of the encoder, or `TFIDF`.
        features: (N, H) of each part of the split.
        info: what the rows of results say about the encoder.
    """
    is_tfidf = name == TFIDF
    heads = [head for head in options.heads if head in (TFIDF_HEADS if is_tfidf else HEADS)]
    kinds = {"raw": features}
    if heads and not is_tfidf:
        kinds["standardized"] = dict(zip(features, standardize(*features.values())))
    tasks = [(kind, head, shots) for kind in kinds for head in heads for shots in (*options.shots, None)]
    for kind, head, shots in (bar := tqdm(tasks, desc=f"Probing {name}", unit="head")):
        bar.set_postfix_str(f"{head}, {'full data' if shots is None else f'{shots} shots'}")
        parts = kinds[kind]
        validation: Any = (parts["validation"], split.validation_labels) if "validation" in parts else None
        train, preset = head_of(head, options.probe_preset, is_tfidf)
        output = train(
            parts["train"],
            split.train_labels,
            runs_of(split, shots, options.num_draws, options.num_seeds, options.seed),
            parts["test"],
            num_classes=len(split.class_names),
            few_shot=shots is not None,
            validation=validation,
        )
        own, seeds = info | {"features": kind}, None if is_tfidf else 1
        yield classification_result(name, head, shots, output, split, own, preset=preset, pretraining_seeds=seeds)


def tune(
    name: str,
    load: Callable[[], SentenceTransformer],
    info: dict[str, Any],
    split: LabelledSplit,
    options: ProbeOptions,
    show_progress: bool,
) -> Iterator[Result]:
    """Train the encoder itself, by all processes: on the full data (finetune) and on the draws (setfit).

    Args:
        load: gives a fresh encoder.
        info: what the rows of results say about the encoder; its prompt and dtype are used.
    """
    if name == TFIDF:
        return
    for head in (head for head in options.heads if head in TUNING_HEADS):
        for shots in [None] if head == "finetune" else options.shots:
            runs = runs_of(split, shots, options.num_draws, options.num_seeds, options.seed)
            data = "full data" if shots is None else f"{shots} shots"
            logger.info(f"{head} of {name}, {data}: {len(runs)} trainings")
            if head == "finetune":
                output = finetune(
                    load,
                    split,
                    runs,
                    prompt=info["prompt"],
                    **options.finetuning,
                    bf16=info["dtype"] == "bfloat16",
                    show_progress=show_progress,
                )
            else:
                output = setfit(load, split, runs, prompt=info["prompt"], show_progress=show_progress)
            own: dict[str, Any] = {"features": "raw", "embedding_seconds": None, "smooth_neighbours": 0}
            if info.get("long_documents") == "chunk_mean":  # a graph of passages stays one
                own["long_documents"] = "truncate"
            yield classification_result(name, head, shots, output, split, info | own, trains_encoder=True)
