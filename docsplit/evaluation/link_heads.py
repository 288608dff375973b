"""Every head on pairs of papers, linked or not: of an encoder's embeddings, and what needs no encoder.

The MLP reads a pair's two embeddings as they are and standardised: each number of [a; b] to mean 0 and deviation 1
over the training pairs.
"""

import logging
from collections.abc import Iterator
from dataclasses import astuple
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from docsplit.data.sets.citation_splits import PairPart
from docsplit.data.sets.citations import CitationPairs
from docsplit.evaluation import links
from docsplit.evaluation.heads.frozen import HeadOutput, Run, standardize
from docsplit.evaluation.heads.mlp import mlp
from docsplit.evaluation.heads.presets import LINK_BASELINES, PRESETS
from docsplit.evaluation.ranking import measures as ranking
from docsplit.evaluation.results.result import NO_ENCODER, Result, link_result

logger = logging.getLogger(__name__)


class LinkOptions(Protocol):
    """Which heads, and how often they are trained."""

    heads: list[str]
    probe_preset: str
    num_seeds: int
    seed: int


def link(
    name: str, embeddings: np.ndarray, info: dict[str, Any], pairs: CitationPairs, options: LinkOptions
) -> Iterator[Result]:
    """The heads on an encoder's embeddings."""
    papers, labels = links.num_papers(pairs.test), pairs.test.labels
    if "mlp" in options.heads:
        all_pairs = np.arange(len(pairs.train.labels))
        runs = [Run(all_pairs, options.seed + number) for number in range(options.num_seeds)]
        raw = [links.pair_features(embeddings, part) for part in (pairs.train, pairs.validation, pairs.test)]
        for features, parts in (("raw", raw), ("standardized", standardize(*raw))):
            output = mlp(
                parts[0],
                pairs.train.labels,
                runs,
                parts[2],
                num_classes=2,
                few_shot=False,
                validation=(parts[1], pairs.validation.labels),
                hidden=embeddings.shape[1],
                training=PRESETS[options.probe_preset].mlp,
            )
            own, preset = info | {"features": features}, options.probe_preset
            yield link_result(name, "mlp", output, labels, own, preset=preset, test_documents=papers)
    if "cosine" in options.heads:
        train, test = (links.cosine_scores(embeddings, part) for part in (pairs.train, pairs.test))
        threshold = links.best_threshold(train, pairs.train.labels)
        output = untrained(test, 0.0)
        yield link_result(name, "cosine", output, labels, info, threshold, test_documents=papers)


def untrained(scores: np.ndarray, seconds: float) -> HeadOutput:
    """Scores (M,) of the test pairs as a head of one run gives them."""
    return HeadOutput(scores[None, :, None].astype(np.float32), seconds, trainable_parameters=0)


def baselines(pairs: CitationPairs, options: LinkOptions) -> Iterator[Result]:
    """What needs no encoder."""
    for head in (head for head in options.heads if head in LINK_BASELINES):
        logger.info(f"Scoring the pairs by {head}")
        started, threshold = perf_counter(), 0.5
        if head == "bm25":
            both = PairPart(*map(np.concatenate, zip(astuple(pairs.train), astuple(pairs.test))))
            scores = ranking.bm25_scores(pairs.texts, both, show_progress=True)
            train, test = np.split(scores, [len(pairs.train.labels)])
            threshold = links.best_threshold(train, pairs.train.labels)
        else:
            test = links.popularity(pairs, options.seed)
        output = untrained(test, perf_counter() - started)
        papers, labels = links.num_papers(pairs.test), pairs.test.labels
        yield link_result(head, head, output, labels, NO_ENCODER, threshold, is_baseline=True, test_documents=papers)
