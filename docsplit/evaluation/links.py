"""Pairs of papers, linked or not: heads on embeddings, untrained scores, and a baseline of popularity alone.

The MLP reads a pair's two embeddings as they are and standardised: each number of [a; b] to mean 0 and deviation 1
over the training pairs.
"""

import logging
from collections.abc import Iterator
from dataclasses import astuple
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.preprocessing import normalize

from docsplit.data.bm25 import bm25_scores
from docsplit.data.sets.citations import CitationPairs, PairPart, load_citation_pairs, pair_products
from docsplit.data.sets.set_arguments import CitationArguments
from docsplit.data.words import warn_of_other_language
from docsplit.embedding.encoder import Encoder
from docsplit.evaluation.compare import Evaluation
from docsplit.evaluation.heads.base import HeadInput, HeadOutput, HeadRun
from docsplit.evaluation.heads.frozen import standardize
from docsplit.evaluation.heads.mlp import mlp
from docsplit.evaluation.heads.presets import PRESETS
from docsplit.evaluation.results.report import Json, text_statistics
from docsplit.evaluation.results.result import NO_ENCODER, Facts, Result, link_result
from docsplit.evaluation.task_arguments import LINK_BASELINES, LINK_HEADS, LinkArguments

logger = logging.getLogger(__name__)


class Links(Evaluation):
    """Heads on pairs of papers."""

    title = card_title = "Citation links"
    reports_each = False
    data_args: CitationArguments
    args: LinkArguments
    pairs: CitationPairs

    def load(self, show_progress: bool) -> None:
        """Read papers and links."""
        self.pairs = load_citation_pairs(self.data_args, self.args.seed)

    def statistics(self) -> list[Json]:
        """Return size and length of the papers in each split's pairs."""
        papers = {name: np.union1d(part.first, part.second) for name, part in self.pairs.parts.items()}
        texts = {name: [self.pairs.texts[row] for row in rows] for name, rows in papers.items()}
        return text_statistics(self.source(), texts, None)

    def settings(self) -> Facts:
        """Return notes on the pairs and on what was left out."""
        return {
            "pairs": {name: len(part.labels) for name, part in self.pairs.parts.items()},
            "counts": self.pairs.counts,
            "data_fingerprint": self.pairs.fingerprint(),
            "splits_made_here": self.pairs.made_here,
        }

    def sample(self) -> list[str]:
        """Two papers."""
        return self.pairs.texts[:2]

    def names(self, given: list[str]) -> list[str]:
        """Return all encoders, or none where only baselines are asked for."""
        return given if set(self.args.heads) & set(LINK_HEADS) else []

    def measure(self, name: str, encoder: Encoder | None, is_main: bool) -> list[Result]:
        """Embed each paper once, by all processes; the first one trains and measures the heads."""
        assert encoder is not None
        embeddings, facts = encoder.embed_all(self.pairs.texts, self.pairs.test_documents, is_main)
        encoder.rest()
        return list(link(name, embeddings, facts, self.pairs, self.args)) if is_main else []

    def finish(self) -> None:
        """Measure what needs no encoder."""
        self.results += baselines(self.pairs, self.args)

    def notes(self, frame: pd.DataFrame) -> list[str]:
        """Warn where popularity alone is better than chance."""
        labels = self.pairs.test.labels
        chance = max(labels.mean(), 1 - labels.mean())
        for accuracy in frame[frame["head"] == "popularity"]["accuracy_mean"]:
            if note := popularity_warning(accuracy, len(labels), chance):
                logger.warning(note)
                return [note]
        return []


def link(
    name: str, embeddings: np.ndarray, info: Facts, pairs: CitationPairs, options: LinkArguments
) -> Iterator[Result]:
    """Train and measure the heads on an encoder's embeddings."""
    papers, labels = len(pairs.test_documents), pairs.test.labels
    if "mlp" in options.heads:
        all_pairs = np.arange(len(pairs.train.labels))
        runs = [HeadRun(all_pairs, options.seed + number) for number in range(options.num_seeds)]
        raw = [pair_features(embeddings, part) for part in (pairs.train, pairs.validation, pairs.test)]
        for features, parts in (("raw", raw), ("standardized", standardize(*raw))):
            validation = (parts[1], pairs.validation.labels)
            data = HeadInput(parts[0], pairs.train.labels, runs, parts[2], 2, few_shot=False, validation=validation)
            output = mlp(data, hidden=embeddings.shape[1], training=PRESETS[options.probe_preset].mlp)
            about: Facts = {"encoder": name, "head": "mlp", "info": info | {"features": features}}
            yield link_result(output, labels, **about, preset=options.probe_preset, test_documents=papers)
    if "cosine" in options.heads:
        train, test = (cosine_scores(embeddings, part) for part in (pairs.train, pairs.test))
        threshold = best_threshold(train, pairs.train.labels)
        about = {"encoder": name, "head": "cosine", "info": info}
        yield link_result(untrained(test, 0.0), labels, threshold, **about, test_documents=papers)


def untrained(scores: np.ndarray, seconds: float) -> HeadOutput:
    """Return the scores (M,) of the test pairs as the output of a head with one run."""
    return HeadOutput(scores[None, :, None].astype(np.float32), seconds, trainable_parameters=0)


def baselines(pairs: CitationPairs, options: LinkArguments) -> Iterator[Result]:
    """Measure what needs no encoder."""
    for head in (head for head in options.heads if head in LINK_BASELINES):
        started, threshold = perf_counter(), 0.5
        if head == "bm25":
            both = PairPart(*map(np.concatenate, zip(astuple(pairs.train), astuple(pairs.test))))
            warn_of_other_language(pairs.texts, options.language)
            scores = bm25_scores(pairs.texts, both, options.language, show_progress=True)
            train, test = np.split(scores, [len(pairs.train.labels)])
            threshold = best_threshold(train, pairs.train.labels)
        else:
            test = popularity(pairs, options.seed)
        output = untrained(test, perf_counter() - started)
        about = {"encoder": head, "head": head, "info": NO_ENCODER, "is_baseline": True, "pretraining_seeds": None}
        yield link_result(output, pairs.test.labels, threshold, **about, test_documents=len(pairs.test_documents))


def pair_features(embeddings: np.ndarray, part: PairPart) -> np.ndarray:
    """Join the two embeddings of each pair, (P, 2H), for DocSplit's MLP (first version, section 3.5)."""
    return np.concatenate([embeddings[part.first], embeddings[part.second]], axis=1)


def cosine_scores(embeddings: Any, part: PairPart) -> np.ndarray:
    """Return the cosine similarity of the two papers of each pair, (P,) float32.

    Args:
        embeddings: (N, H), dense or sparse; a row of zeros is similar to nothing.
    """
    return pair_products(normalize(embeddings), normalize(embeddings), part)


def best_threshold(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the threshold at or above which "linked" is right most often, between two scores, in O(P log P).

    Raises:
        ValueError: if a score is not finite.
    """
    if not np.isfinite(scores).all():
        raise ValueError(f"{(~np.isfinite(scores)).sum()} of {len(scores)} scores are not finite.")
    order = np.argsort(scores, kind="stable")
    ordered = scores[order].astype(np.float64)
    linked = np.concatenate([[0], np.cumsum(labels[order])])  # among the k lowest, k = 0 ... P
    correct = np.arange(len(linked)) - linked + linked[-1] - linked
    correct[1:-1][ordered[1:] == ordered[:-1]] = -1  # no threshold separates equal scores
    cut = int(np.argmax(correct))
    below = ordered[cut - 1] if cut > 0 else ordered[0] - 1
    above = ordered[cut] if cut < len(ordered) else ordered[-1] + 1
    middle = (below + above) / 2
    return float(middle if middle > below else above)


def popularity_features(part: PairPart, train: PairPart) -> np.ndarray:
    """Return features of each pair without text and label, (P, 14): logarithms of counts.

    For either paper, how often it is first, second, and either, among the pairs of the part, and how often in linked
    and in unlinked pairs of the training part. Then the distance, minimum, maximum and product of the two papers'
    frequencies in the part: differences between them matter, and trees find them badly.

    Args:
        part: validation or test, not the training part itself: its own labels are in the counts, and leaving the pair
            out of them would tell the label where each paper is in as many linked as unlinked pairs.
    """
    size = 1 + max(papers.max() for papers in (part.first, part.second, train.first, train.second))
    first, second = (np.bincount(papers, minlength=size) for papers in (part.first, part.second))
    linked, unlinked = (
        np.bincount(np.concatenate([train.first[chosen], train.second[chosen]]), minlength=size)
        for chosen in (train.labels == 1, train.labels == 0)
    )
    counts = np.log1p(np.stack([first, second, first + second, linked, unlinked], axis=1))  # (N, 5)
    first_counts, second_counts = counts[part.first], counts[part.second]
    degrees = first_counts[:, 2], second_counts[:, 2]
    joint = [abs(degrees[0] - degrees[1]), np.minimum(*degrees), np.maximum(*degrees), degrees[0] * degrees[1]]
    return np.concatenate([first_counts, second_counts, np.stack(joint, axis=1)], axis=1)


def popularity(pairs: CitationPairs, seed: int = 0) -> np.ndarray:
    """Return the probability that each test pair is linked, from ids and degrees only, (P,) float32.

    Boosted trees on `popularity_features`, fitted on the validation pairs: these relate to the training pairs as the
    test pairs do, which the training pairs themselves do not.
    """
    trees = HistGradientBoostingClassifier(
        max_iter=50, max_leaf_nodes=8, min_samples_leaf=20, early_stopping=False, random_state=seed
    )
    trees.fit(popularity_features(pairs.validation, pairs.train), pairs.validation.labels)
    return trees.predict_proba(popularity_features(pairs.test, pairs.train))[:, 1].astype(np.float32)


def popularity_warning(accuracy: float, num_pairs: int, chance: float = 0.5) -> str | None:
    """Return a warning if popularity alone beats chance: the 99 % interval (Wilson) of its accuracy is above.

    Args:
        accuracy: of `popularity`, on `num_pairs` test pairs.
        chance: the share of the more frequent label.
    """
    low = binomtest(round(accuracy * num_pairs), num_pairs).proportion_ci(0.99, method="wilson").low
    if low <= chance:
        return None
    right = f"{100 * accuracy:.1f} % of {num_pairs:,} test pairs are right ({100 * chance:.1f} % by chance)"
    return f"With popularity alone, without a text, {right}: make splits with --citations_file."
