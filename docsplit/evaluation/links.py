"""Pairs of papers, linked or not: features, untrained scores, and what popularity alone gives away."""

from typing import Any

import numpy as np
import scipy.sparse
from scipy.stats import binomtest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.preprocessing import normalize

from docsplit.data.sets.citation_splits import PairPart
from docsplit.data.sets.citations import CitationPairs

CHUNK_PAIRS = 4096  # scored at a time: bounds the memory


def pair_features(embeddings: np.ndarray, part: PairPart) -> np.ndarray:
    """The two embeddings of a pair, one after the other, (P, 2H): what DocSplit's MLP reads (its section 4.4)."""
    return np.concatenate([embeddings[part.first], embeddings[part.second]], axis=1)


def num_papers(part: PairPart) -> int:
    """How many distinct papers are in the pairs of a part."""
    return len(np.union1d(part.first, part.second))


def cosine_scores(embeddings: Any, part: PairPart) -> np.ndarray:
    """Cosine similarity of the two papers of each pair, (P,) float32.

    Args:
        embeddings: (N, H), dense or sparse; a row of zeros is similar to nothing.
    """
    return pair_products(normalize(embeddings), normalize(embeddings), part)


def pair_products(left: Any, right: Any, part: PairPart) -> np.ndarray:
    """Scalar products of rows `first` of `left` and rows `second` of `right`, dense or both sparse."""
    products = np.empty(len(part.first), dtype=np.float32)
    for start in range(0, len(products), CHUNK_PAIRS):
        chunk = slice(start, start + CHUNK_PAIRS)
        one, other = left[part.first[chunk]], right[part.second[chunk]]
        product = one.multiply(other) if scipy.sparse.issparse(one) else one * other
        products[chunk] = np.asarray(product.sum(axis=1)).ravel()
    return products


def best_threshold(scores: np.ndarray, labels: np.ndarray) -> float:
    """The threshold at or above which "linked" is right most often, between two scores, in O(P log P).

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
    """What is known of a pair without a text and without its label, (P, 14), logarithms of counts.

    Of either paper: how often it is first, second, and either, among the pairs of the part, and how often in linked
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
    one, other = counts[part.first], counts[part.second]
    degrees = one[:, 2], other[:, 2]
    joint = [abs(degrees[0] - degrees[1]), np.minimum(*degrees), np.maximum(*degrees), degrees[0] * degrees[1]]
    return np.concatenate([one, other, np.stack(joint, axis=1)], axis=1)


def popularity(pairs: CitationPairs, seed: int = 0) -> np.ndarray:
    """Probability that the papers of each test pair are linked, from ids and degrees only, (P,) float32.

    Boosted trees on `popularity_features`, fitted on the validation pairs: these relate to the training pairs as the
    test pairs do, which the training pairs themselves do not.
    """
    trees = HistGradientBoostingClassifier(
        max_iter=50, max_leaf_nodes=8, min_samples_leaf=20, early_stopping=False, random_state=seed
    )
    trees.fit(popularity_features(pairs.validation, pairs.train), pairs.validation.labels)
    return trees.predict_proba(popularity_features(pairs.test, pairs.train))[:, 1].astype(np.float32)


def popularity_warning(accuracy: float, num_pairs: int, chance: float = 0.5) -> str | None:
    """What to say where popularity alone is better than chance: the 99 % interval (Wilson) of its accuracy is above.

    Args:
        accuracy: of `popularity`, on `num_pairs` test pairs.
        chance: the share of the more frequent label.
    """
    low = binomtest(round(accuracy * num_pairs), num_pairs).proportion_ci(0.99, method="wilson").low
    if low <= chance:
        return None
    return (
        f"With popularity alone, without a text, {accuracy:.1%} of {num_pairs:,} test pairs are right ({chance:.1%} "
        "by chance), so scores on these pairs say less about text; make splits with --citations_file."
    )
