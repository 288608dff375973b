"""Citation links, each tested once, by classifiers that saw neither of its papers.

Papers lie in five groups of whole communities. The links between groups i and j are judged by an MLP that was trained
on the pairs of papers in the other three groups, and those inside i by the one without i and i + 1: 10 MLPs judge all
links. Each reads as many pairs as the one that has the fewest, so that all are trained at once. Negatives are those of
`docsplit.data.sets.citations`, made within each block of links, so that popularity says nothing.
"""

from itertools import combinations

import numpy as np

from docsplit.data.python_docs.parts import undirected
from docsplit.data.sets.citations import (
    CitationPairs,
    PairPart,
    divide_communities,
    read_citations,
    rewire_negatives,
)
from docsplit.embedding.encoder import Encoder
from docsplit.evaluation.heads.base import HeadInput, HeadOutput, HeadRun
from docsplit.evaluation.heads.frozen import standardize
from docsplit.evaluation.heads.mlp import mlp
from docsplit.evaluation.links import Links, pair_features
from docsplit.evaluation.results.result import Facts, Result, link_result

GROUPS = 5


def blocks(links: np.ndarray, num_papers: int, seed: int) -> tuple[PairPart, np.ndarray, np.ndarray]:
    """Make the pairs of all blocks, linked and not.

    Args:
        links: (L, 2), distinct.

    Returns: the pairs; the number of the MLP that judges each, (P,); and the pairs that each MLP reads, (10, n).
    """
    generator = np.random.default_rng(seed)
    groups = divide_communities(links, num_papers, [1 / GROUPS] * GROUPS, generator, seed)
    forbidden = set((links[:, 0] * num_papers + links[:, 1]).tolist())
    of_links, left_out = np.sort(groups[links], axis=1), list(combinations(range(GROUPS), 2))
    parts, judges = [], []
    for block in [*left_out, *((group, group) for group in range(GROUPS))]:
        positives = links[(of_links == block).all(axis=1)]
        positives = np.where(generator.random((len(positives), 1)) < 0.5, positives, positives[:, ::-1])
        seconds, matched = rewire_negatives(positives, num_papers, forbidden, generator)
        first, second = positives[matched].T
        parts.append((np.tile(first, 2), np.concatenate([second, seconds[matched]]), np.repeat([1, 0], len(first))))
        group, other = block if block in left_out else sorted((block[0], (block[0] + 1) % GROUPS))
        judges.append(np.full(2 * len(first), left_out.index((group, other))))
    pairs = PairPart(*map(np.concatenate, zip(*parts)))
    theirs = groups[np.stack([pairs.first, pairs.second])]  # (2, P)
    known = [np.flatnonzero(~np.isin(theirs, both).any(axis=0)) for both in left_out]
    fewest = min(map(len, known))
    return pairs, np.concatenate(judges), np.stack([generator.permutation(some)[:fewest] for some in known])


class RotatedLinks(Links):
    """The paper's MLP on all links of a list of citations."""

    def load(self, show_progress: bool) -> None:
        """Read papers and links."""
        texts, links, counts = read_citations(str(self.data_args.papers_file), str(self.data_args.citations_file))
        distinct = undirected(links)
        pairs, self.judges, self.known = blocks(distinct, len(texts), self.args.seed)
        counts |= {"links": len(distinct), "links_without_negative_dropped": len(distinct) - int(pairs.labels.sum())}
        self.pairs = CitationPairs([*texts.values()], [*texts], pairs, pairs, pairs, counts, made_here=True)

    def measure(self, name: str, encoder: Encoder | None, is_main: bool) -> list[Result]:
        """Embed each paper once, and train the MLPs on raw and on standardised pairs."""
        assert encoder is not None
        embeddings, info = encoder.embed_all(self.pairs.texts, self.pairs.test_documents, is_main)
        encoder.rest()
        results, labels = [], self.pairs.test.labels
        raw = pair_features(embeddings, self.pairs.test)
        runs = [HeadRun(known, self.args.seed + number) for number, known in enumerate(self.known)]
        for features, values in (("raw", raw), ("standardized", standardize(raw)[0])):
            output = mlp(HeadInput(values, labels, runs, values, 2, few_shot=False), hidden=embeddings.shape[1])
            scores = output.scores[self.judges, np.arange(len(labels))][None]
            about: Facts = {"encoder": name, "head": "mlp", "info": info | {"features": features}}
            judged = HeadOutput(scores, output.seconds * len(runs), output.trainable_parameters)
            results.append(link_result(judged, labels, **about, test_documents=len(self.pairs.test_documents)))
        return results

    def finish(self) -> None:
        """Compare with nothing else."""
