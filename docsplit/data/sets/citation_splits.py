"""Make pairs of papers for training and testing that share no paper, and in which popularity says nothing."""

from dataclasses import dataclass
from typing import Any

import networkx
import numpy as np
import scipy.sparse

SHARES = (0.8, 0.1, 0.1)  # of the links inside communities: train, validation, test
COMMUNITY_RESOLUTION = 10  # many small communities, so that each split has many topics
TRIES = 200  # to find a pair to exchange papers with, for each pair
PART_NAMES = ("train", "validation", "test")
CHUNK_PAIRS = 4096  # multiplied at a time: bounds the memory


@dataclass
class PairPart:
    """The pairs of one split."""

    first: np.ndarray  # (P,) int64, indices of papers
    second: np.ndarray  # (P,) int64
    labels: np.ndarray  # (P,) int64, 1 where one cites the other, else 0


def pair_products(left: Any, right: Any, part: PairPart) -> np.ndarray:
    """Compute the scalar products of rows `first` of `left` and rows `second` of `right`, dense or both sparse."""
    products = np.empty(len(part.first), dtype=np.float32)
    for start in range(0, len(products), CHUNK_PAIRS):
        chunk = slice(start, start + CHUNK_PAIRS)
        first_rows, second_rows = left[part.first[chunk]], right[part.second[chunk]]
        product = first_rows.multiply(second_rows) if scipy.sparse.issparse(first_rows) else first_rows * second_rows
        products[chunk] = np.asarray(product.sum(axis=1)).ravel()
    return products


def make_splits(
    links: np.ndarray,
    num_papers: int,
    seed: int = 0,
    never_negative: np.ndarray | None = None,
    split_of: np.ndarray | None = None,
) -> tuple[list[PairPart], dict[str, int]]:
    """Make train, validation and test pairs that share no paper; half of them are links, and popularity says nothing.

    A link has no direction: which of its papers comes first is drawn. Within a split each paper is as often first,
    and as often second, in the negatives as in the positives. No negative is a link or repeats another.

    Args:
        links: (L, 2), indices of papers; repeated links and links of a paper to itself are dropped.
        never_negative: (K, 2), further pairs that may not become negatives.
        split_of: (num_papers,), the number of each paper's split, where that is settled; None: communities are drawn.

    Returns: the three parts, each in an order that is drawn, and the counts of links kept and lost.

    Raises:
        ValueError: if a split is left without pairs.
    """
    generator = np.random.default_rng(seed)
    distinct = undirected(links)
    if split_of is None:
        communities = find_communities(distinct, num_papers, seed)
        inside = communities[distinct[:, 0]] == communities[distinct[:, 1]]
        sizes = np.bincount(communities[distinct[inside, 0]], minlength=communities.max(initial=0) + 1)
        split_of = _fill_splits(sizes, generator)[communities]
    within = split_of[distinct[:, 0]] == split_of[distinct[:, 1]]
    forbidden = distinct if never_negative is None else np.concatenate([distinct, undirected(never_negative)])
    forbidden_keys = set((forbidden[:, 0] * num_papers + forbidden[:, 1]).tolist())
    parts, unmatched = [], 0
    for split, name in enumerate(PART_NAMES):
        positives = distinct[within & (split_of[distinct[:, 0]] == split)]
        positives = np.where(generator.random((len(positives), 1)) < 0.5, positives, positives[:, ::-1])
        seconds, matched = rewire_negatives(positives, num_papers, forbidden_keys, generator)
        if not matched.any():
            raise ValueError(
                f"Of {len(distinct)} links between {len(np.unique(distinct))} papers none is left for the {name} "
                f"split: {len(positives)} lie within it, and none of these has a negative. Give more citations."
            )
        unmatched += int((~matched).sum())
        parts.append(_balanced_part(positives[matched], seconds[matched], generator))
    counts = {
        "links": len(distinct),
        "links_repeated_or_to_itself_dropped": len(links) - len(distinct),
        "links_between_splits_dropped": int((~within).sum()),
        "links_without_negative_dropped": unmatched,
    }
    return parts, counts


def undirected(links: np.ndarray) -> np.ndarray:
    """List each link once, (smaller, larger), without links of a paper to itself."""
    ordered = np.sort(np.asarray(links, dtype=np.int64).reshape(-1, 2), axis=1)
    return np.unique(ordered[ordered[:, 0] != ordered[:, 1]], axis=0)


def find_communities(links: np.ndarray, num_papers: int, seed: int) -> np.ndarray:
    """Find communities of densely linked papers (Louvain; Blondel et al., 2008): that of each, (num_papers,)."""
    graph = networkx.Graph()
    graph.add_edges_from(links.tolist())
    communities = np.zeros(num_papers, dtype=np.int64)  # papers without a link are in no pair
    partition = networkx.community.louvain_communities(graph, resolution=COMMUNITY_RESOLUTION, seed=seed)
    for number, members in enumerate(partition):
        communities[sorted(members)] = number
    return communities


def _fill_splits(sizes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Give each community a split: in random order, each goes where the largest part of the share is missing."""
    filled = np.zeros(3)
    splits = np.zeros(len(sizes), dtype=np.int64)
    for community in generator.permutation(len(sizes)):
        splits[community] = np.argmin(filled / np.array(SHARES))
        filled[splits[community]] += sizes[community]
    return splits


def rewire_negatives(
    positives: np.ndarray, num_papers: int, forbidden: set[int], generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Turn positives into negatives: pairs exchange their second papers until no pair is a link.

    Two pairs may exchange if their first papers, or their second ones, have equal degrees: this keeps the joint
    distribution of the degrees of linked papers (the 2K-preserving rewiring of Mahadevan et al., 2006). A pair that
    finds no partner keeps its second paper, so dropping it from positives and negatives leaves both balanced.

    Args:
        positives: (P, 2).
        forbidden: smaller index x num_papers + larger index, of the pairs that no negative may be.

    Returns: second papers (P,), and whether each pair has a negative (P,).
    """

    def key(first: int, second: int) -> int:
        return min(first, second) * num_papers + max(first, second)

    degrees = np.bincount(positives.ravel(), minlength=num_papers)[positives]  # (P, 2)
    order = np.argsort(degrees, axis=0, kind="stable")
    by_degree = np.take_along_axis(degrees, order, axis=0)
    firsts, papers = positives.T.tolist()
    slots = list(range(len(positives)))  # which of `papers` each pair has as its second
    owners = list(slots)  # and which pair has each of `papers`
    matched = np.zeros(len(positives), dtype=bool)
    negatives: set[int] = set()
    for pair in generator.permutation(len(positives)).tolist():
        if matched[pair]:
            continue
        # Candidates: the pairs whose first, or whose second, paper has the degree of this pair's.
        low, other_low = (np.searchsorted(by_degree[:, side], degrees[pair, side]) for side in (0, 1))
        high, other_high = (np.searchsorted(by_degree[:, side], degrees[pair, side], "right") for side in (0, 1))
        equal_first, equal_second = order[low:high, 0], order[other_low:other_high, 1]
        for draw in generator.integers(len(equal_first) + len(equal_second), size=TRIES).tolist():
            is_first = draw < len(equal_first)
            other = int(equal_first[draw] if is_first else owners[equal_second[draw - len(equal_first)]])
            paper, other_paper = papers[slots[pair]], papers[slots[other]]
            negative, other_negative = key(firsts[pair], other_paper), key(firsts[other], paper)
            # Refuse an exchange that pairs a paper with itself, makes one negative twice, or makes a link.
            if firsts[pair] == other_paper or firsts[other] == paper or negative == other_negative:
                continue
            if any(made in forbidden or made in negatives for made in (negative, other_negative)):
                continue
            if matched[other]:
                negatives.remove(key(firsts[other], other_paper))
            negatives |= {negative, other_negative}
            slots[pair], slots[other] = slots[other], slots[pair]
            owners[slots[pair]], owners[slots[other]] = pair, other
            matched[pair] = matched[other] = True
            break
    return positives[slots, 1], matched


def _balanced_part(positives: np.ndarray, seconds: np.ndarray, generator: np.random.Generator) -> PairPart:
    order = generator.permutation(2 * len(positives))
    return PairPart(
        np.tile(positives[:, 0], 2)[order],
        np.concatenate([positives[:, 1], seconds])[order],
        np.repeat([1, 0], len(positives))[order],
    )
