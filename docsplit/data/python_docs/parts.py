"""The parts of `python_docs`: one division for every pretraining and every evaluation.

    train        for pretraining, and for training heads
    validation   for choosing checkpoints, the end of training, and settings of heads
    test         sealed: results are reported on it, and nothing else reads it

Similar documents stay together: always where they share `RESEMBLANCE` of their text, and as far as communities
(Louvain) allow where they list each other under "See Also". Each sub-package is divided in the same proportion. The
division follows from the documents alone; no seed of a run changes it. The price is a quarter of the corpus that no
pretraining reads.
"""

import logging
import re
from collections.abc import Sequence

import networkx
import numpy as np

from docsplit.data.copies import near_copy_groups
from docsplit.data.python_docs.corpus import DocstringSection, find_references
from docsplit.runtime.files import JsonObject

logger = logging.getLogger(__name__)

PART = "part"  # the column
PART_NAMES = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = PART_NAMES
PART_SHARES = (0.75, 0.1, 0.15)  # of the documents: train, validation, test
RESEMBLANCE = 0.3  # Jaccard similarity of documents that stay together: clear of the 0.5 of near-duplicates
NUM_STRATA = 40  # the largest sub-packages, which probes tell apart; all others are divided as one
SEE_ALSO_BLOCK = re.compile(r"^([ \t]*)\.\. seealso::.*(?:\n(?:\1[ \t]+\S.*|[ \t]*$))*", re.MULTILINE | re.IGNORECASE)


def divide_packages(rows: Sequence[JsonObject]) -> list[str]:
    """Choose the part of each document: `train`, `validation` or `test`.

    Args:
        rows: of `docsplit.data.python_docs.corpus.read_python_docs`.
    """
    _, see_also, _ = split_references(rows)
    groups = _groups(see_also, near_copy_groups([row["text"] for row in rows], RESEMBLANCE))
    names, labels, counts = np.unique([row["label"] for row in rows], return_inverse=True, return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:NUM_STRATA]
    parts = _fill_parts(groups, np.where(np.isin(labels, largest), labels, len(names)))
    return [PART_NAMES[part] for part in parts]


def undirected(links: np.ndarray) -> np.ndarray:
    """List each link once, (smaller, larger), without links of a paper to itself."""
    ordered = np.sort(np.asarray(links, dtype=np.int64).reshape(-1, 2), axis=1)
    return np.unique(ordered[ordered[:, 0] != ordered[:, 1]], axis=0)


def find_communities(links: np.ndarray, num_papers: int, seed: int) -> np.ndarray:
    """Find communities of densely linked papers (Louvain; Blondel et al., 2008): that of each, (num_papers,)."""
    graph = networkx.Graph()
    graph.add_edges_from(links.tolist())
    communities = np.zeros(num_papers, dtype=np.int64)  # papers without a link are in no pair
    # Many small communities, so that each part has many topics
    partition = networkx.community.louvain_communities(graph, resolution=10, seed=seed)
    for number, members in enumerate(partition):
        communities[sorted(members)] = number
    return communities


def _groups(see_also: np.ndarray, originals: np.ndarray) -> np.ndarray:
    """Find the group of each document, (N,): communities of links, with similar documents (N,) as one."""
    num_originals = originals.max(initial=-1) + 1
    links = undirected(originals[see_also])
    communities = find_communities(links, num_originals, seed=0)
    linked = np.isin(np.arange(num_originals), links)
    alone = communities.max(initial=0) + 1 + np.arange(num_originals)
    return np.unique(np.where(linked, communities, alone)[originals], return_inverse=True)[1]


def _fill_parts(groups: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """Choose the part of each document, (N,): the largest groups first, each where its strata lack most."""
    sizes = np.bincount(groups)
    members = np.split(np.argsort(groups, kind="stable"), np.cumsum(sizes)[:-1])
    wanted = np.array(PART_SHARES)[:, None] * np.bincount(strata)  # (parts, strata), documents
    filled = np.zeros_like(wanted)
    parts = np.zeros(len(groups), dtype=np.int64)
    for group in np.argsort(-sizes, kind="stable"):
        group_strata = strata[members[group]]
        part = int(np.argmax((1 - filled[:, group_strata] / wanted[:, group_strata]).sum(axis=1)))
        parts[members[group]] = part
        np.add.at(filled[part], group_strata, 1)
    return parts


def split_references(rows: Sequence[JsonObject]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Take documents for papers that cite each other, by their "See Also" lists.

    Returns: texts without these lists, the links of the lists (L, 2), and those of cross-references in the prose
        (K, 2); a link is repeated where two documents name each other.
    """
    positions = {row["id"]: position for position, row in enumerate(rows)}
    see_also: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    texts = []
    for position, row in enumerate(rows):
        text, names = _without_see_also(row["sections"])
        texts.append(text)
        for target in row["links"]:
            links = see_also if target.rpartition(".")[2] in names else others
            links.append((position, positions[target]))
    lists, prose = (np.array(links, dtype=np.int64).reshape(-1, 2) for links in (see_also, others))
    return texts, lists, prose


def _without_see_also(sections: list[DocstringSection]) -> tuple[str, set[str]]:
    """Join the other sections to one text, and collect the last components of the names in "See Also" lists."""
    references: set[str] = set()
    blocks = []
    for section in sections:
        if section["heading"].lower() == "see also":
            references |= find_references(section["text"], [section])
            continue
        for block in SEE_ALSO_BLOCK.finditer(section["text"]):
            references |= find_references(block[0], [])
        text = SEE_ALSO_BLOCK.sub("", section["text"])
        blocks.append("\n".join(part for part in (section["heading"], text) if part))
    return "\n\n".join(blocks), {name.rpartition(".")[2] for name in references}
