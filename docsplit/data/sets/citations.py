"""Load citation pairs: does one paper cite the other, given the texts of both (AAN task of Long Range Arena)?

    load_citation_pairs                       the source that the options name, by one of these:
    load_long_range_arena, load_pair_files    pairs that others divided and labelled
    read_citations, python_docs_pairs         a list of links, of which `make_splits` makes the pairs

Pairs of others are taken as they are. Where their negatives are free, a much-cited paper is a reason to say yes; where
papers are in several splits, ids can be learnt. `docsplit.evaluation.links.popularity` measures both.

Pairs made here share no paper between splits. Their negatives are the positives with second papers exchanged: each
paper is as often in a negative pair as in a positive one. That alone is not enough, for linked papers resemble each
other in their number of links: boosted trees on two degrees told 60 to 66 % of such pairs of `python_docs` apart. So
pairs exchange their papers only where degrees are equal, which keeps the joint degrees of a pair's two papers. A link
that finds no such exchange is dropped.

The price is links lost between the splits. Papers are divided by communities (Louvain), which keeps 81 % of AAN's
links and 98 % of those of `python_docs` (`docsplit.data.python_docs.parts`). Papers divided at random 80/10/10 keep
66 %, of which a test part gets 1 %: 60 to 110 links. So test papers are on other topics than training papers.
"""

import ast
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from docsplit.data.copies import fingerprint_of
from docsplit.data.corpora import PYTHON_DOCS, load_corpus
from docsplit.data.python_docs.parts import PART, PART_NAMES, find_communities, split_references, undirected
from docsplit.data.readers.files import read_fields
from docsplit.data.readers.rows import id_of_cell, join_sections, rows_of_table, text_of_cell
from docsplit.data.sets.set_arguments import CitationArguments

logger = logging.getLogger(__name__)

CHUNK_PAIRS = 4096  # multiplied at a time: bounds the memory
LINK_SHARES = (0.8, 0.1, 0.1)  # of the links inside communities: train, validation, test


@dataclass
class PairPart:
    """The pairs of one split."""

    first: np.ndarray  # (P,) int64, indices of papers
    second: np.ndarray  # (P,) int64
    labels: np.ndarray  # (P,) int64, 1 where one cites the other, else 0


@dataclass
class CitationPairs:
    """Papers, each once, and the pairs of three splits."""

    texts: list[str]
    ids: list[str]
    train: PairPart
    validation: PairPart
    test: PairPart
    counts: dict[str, int]  # what was dropped and why, and what the splits share
    made_here: bool  # by `make_splits`
    documents: list[str] | None = None  # whole texts, where `texts` leave a part out

    @property
    def test_documents(self) -> list[str]:
        """The papers of the test pairs, whole, as a pretraining may have read them."""
        whole = self.documents or self.texts
        return [whole[paper] for paper in np.union1d(self.test.first, self.test.second)]

    @property
    def parts(self) -> dict[str, PairPart]:
        """The three splits by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def fingerprint(self) -> str:
        """Hash all texts, ids and pairs, in order: 16 hexadecimal digits, equal for equal data."""
        columns = [column for part in self.parts.values() for column in (part.first, part.second, part.labels)]
        return fingerprint_of([*self.ids, *self.texts, *(column.astype("<i8").tobytes() for column in columns)])


def load_citation_pairs(options: CitationArguments, seed: int = 0) -> CitationPairs:
    """Load the pairs that the options name; without any the links of python_docs.

    Args:
        seed: seed of splits that are made here of citations; the splits of python_docs are fixed.

    Raises:
        ValueError: if they name two sources, or half of one.
    """
    given = {name: value for name, value in vars(options).items() if value}
    pair_files = [f"{name}_pairs_file" for name in PART_NAMES]
    if not given:
        return python_docs_pairs()
    if given.keys() == {"lra_dir"}:
        return load_long_range_arena(given["lra_dir"])
    if given.keys() == {"papers_file", "citations_file"}:
        return _pairs_of_links(*read_citations(given["papers_file"], given["citations_file"]), seed)
    if given.keys() == {"papers_file", *pair_files}:
        return load_pair_files(given["papers_file"], *(given[name] for name in pair_files))
    raise ValueError(
        f"{', '.join(f'--{name}' for name in given)} do not name one source: give --lra_dir alone, or --papers_file "
        f"(the texts) with --citations_file, or with {', '.join(f'--{name}' for name in pair_files)}."
    )


def load_long_range_arena(directory: str | Path) -> CitationPairs:
    """Read the files of Long Range Arena (Tay et al., 2021): new_aan_pairs.{train,eval,test}.tsv, or {train,...}.tsv.

    A line is label, id1, id2, text1, text2, separated by tabs, without header or quoting; texts may be printed as
    bytes literals (b'...'). Each paper is kept once, as first met.

    Raises:
        ValueError: if a file is missing, or naming file and line where one cannot be understood.
    """
    texts: dict[str, str] = {}
    pairs: dict[Path, list[tuple[str, str, str]]] = {}
    for name in ("train", "eval", "test"):
        files = sorted(Path(directory).glob(f"*{name}.tsv"))
        if len(files) != 1:
            raise ValueError(
                f"--lra_dir {directory} should have one file *{name}.tsv (new_aan_pairs.{name}.tsv), found "
                f"{', '.join(file.name for file in files) or 'none'}."
            )
        pairs[files[0]] = []
        for label, id1, id2, *both in read_fields(files[0], 5, "\t"):
            ids = _decode(id1), _decode(id2)
            pairs[files[0]].append((label, *ids))
            for paper, text in zip(ids, both):
                if paper not in texts:
                    texts[paper] = _decode(text)
    parts = [_pair_part(file, rows, texts) for file, rows in pairs.items()]
    return _assemble(texts, parts, {}, made_here=False)


def _decode(text: str) -> str:
    """Decode a bytes literal that Python printed; other text is left as it is."""
    if text[:2] not in ("b'", 'b"') or len(text) < 3 or text[-1] != text[1]:
        return text
    try:
        return ast.literal_eval(text).decode("utf-8", errors="replace")
    except (SyntaxError, ValueError, AttributeError):  # text that only looks like a literal: b'a' and 'b'
        return text


def load_pair_files(papers_file: str | Path, *pair_files: str | Path) -> CitationPairs:
    """Read a table of papers and three files of pairs: to train on, to validate and to test.

    Args:
        papers_file: json, jsonl, csv, tsv or parquet, with columns id and at least one of title, abstract, text and
            sections [{heading, text}]; a paper's text is all of these, sections only where there is no text.
        pair_files: columns label, id1, id2; ids are compared as strings.

    Raises:
        ValueError: naming what is missing: a column, or papers that pairs name.
    """
    texts, counts = _load_papers(papers_file)
    parts = [_pair_part(file, _read_columns(file, "label", "id1", "id2"), texts) for file in pair_files]
    return _assemble(texts, parts, counts, made_here=False)


def read_citations(
    papers_file: str | Path, citations_file: str | Path
) -> tuple[dict[str, str], np.ndarray, dict[str, int]]:
    """Read a table of papers (as in `load_pair_files`) and the links among them, columns citing and cited.

    Returns: the texts by id, the links (L, 2) as numbers of texts, and what was dropped.

    Raises:
        ValueError: naming what is missing: a column, or papers that links name.
    """
    texts, counts = _load_papers(papers_file)
    return texts, _numbers(citations_file, _read_columns(citations_file, "citing", "cited"), texts), counts


def python_docs_pairs() -> CitationPairs:
    """Make pairs of the built-in corpus, its "See also" lists as citations: 6,700 links among 4,200 documents.

    The lists often repeat how the other document begins, so they are removed from the texts, and names of documents
    are not added: only the prose tells of a link. Cross-references in the prose are neither citations nor negatives.
    The splits are the parts of `docsplit.data.python_docs.parts`; the pairs follow from the documents alone.
    """
    rows = load_corpus(PYTHON_DOCS).to_list()
    without_lists, see_also, others = split_references(rows)
    texts = {row["id"]: text for row, text in zip(rows, without_lists)}
    split_of = np.array([PART_NAMES.index(row[PART]) for row in rows])
    pairs = _pairs_of_links(texts, see_also, {}, 0, others, split_of)
    text_of = {row["id"]: row["text"] for row in rows}
    return dataclasses.replace(pairs, documents=[text_of[paper] for paper in pairs.ids])


def _load_papers(file: str | Path) -> tuple[dict[str, str], dict[str, int]]:
    """Read the texts of a table of papers by their ids, and count what is dropped; of one id the first is kept."""
    texts: dict[str, str] = {}
    repeated = 0
    for place, row in rows_of_table(file):
        if "id" not in row or not row.keys() & {"title", "abstract", "text", "sections"}:
            raise ValueError(f"{place} needs a column id, and title, abstract, text or sections; found {[*row]}.")
        cells = {name: row.get(name) for name in ("title", "abstract")} | {"text": row.get("text", join_sections(row))}
        parts = [text_of_cell(cell, f"{place}: {name}").strip() for name, cell in cells.items()]
        paper = id_of_cell(row["id"], f"{place}: id")
        repeated += paper in texts
        texts.setdefault(paper, "\n\n".join(filter(None, parts)))
    return texts, {"papers_with_repeated_id_dropped": repeated}


def _read_columns(file: str | Path, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Read these columns of a table, row by row."""
    for place, row in rows_of_table(file):
        if not row.keys() >= {*columns}:
            raise ValueError(f"{place} needs the columns {', '.join(columns)}; found {[*row]}.")
        yield tuple(row[column] for column in columns)


def _numbers(file: str | Path, pairs: Iterable[tuple[Any, ...]], texts: dict[str, str]) -> np.ndarray:
    """Find the numbers of the papers of pairs, (P, 2), by their ids."""
    positions = {paper: position for position, paper in enumerate(texts)}
    names = [(str(first), str(second)) for first, second in pairs]
    if unknown := sorted({name for pair in names for name in pair} - positions.keys()):
        raise ValueError(
            f"{file} names {len(unknown)} ids that --papers_file does not have, such as {', '.join(unknown[:5])}: "
            "add these papers, or remove the lines."
        )
    return np.array([(positions[first], positions[second]) for first, second in names], dtype=np.int64).reshape(-1, 2)


def _pair_part(file: str | Path, rows: Iterable[tuple[Any, ...]], texts: dict[str, str]) -> PairPart:
    """Make a part of rows of label, id1 and id2."""
    labels, *ids = list(zip(*rows)) or ((), (), ())
    known = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "False": 0, "True": 1}
    for number, label in enumerate(labels, start=1):
        if str(label) not in known:
            raise ValueError(
                f"{file}, pair {number}: the label is {label!r}, expected 0 or 1 (1: one paper cites the other)."
            )
    first, second = _numbers(file, zip(*ids), texts).T
    return PairPart(first, second, np.array([known[str(label)] for label in labels], dtype=np.int64))


def _pairs_of_links(
    texts: dict[str, str],
    links: np.ndarray,
    counts: dict[str, int],
    seed: int,
    never_negative: np.ndarray | None = None,
    split_of: np.ndarray | None = None,
) -> CitationPairs:
    """Make pairs of the links (L, 2) between papers with a text; the other arguments as in `make_splits`."""
    has_text = np.array([bool(text.strip()) for text in texts.values()], dtype=bool)
    kept = links[has_text[links].all(axis=1)]
    parts, lost = make_splits(kept, len(texts), seed, never_negative, split_of)
    counts = counts | {"links_without_text_dropped": len(links) - len(kept)} | lost
    return _assemble(texts, parts, counts, made_here=True)


def _assemble(texts: dict[str, str], parts: list[PairPart], counts: dict[str, int], made_here: bool) -> CitationPairs:
    """Drop pairs with a paper without text, then papers without a pair; count what training and test share."""
    empty = np.array([not text.strip() for text in texts.values()], dtype=bool)
    dropped = 0
    for name, part in zip(PART_NAMES, parts):
        kept = ~(empty[part.first] | empty[part.second])
        dropped += int((~kept).sum())
        part.first, part.second, part.labels = part.first[kept], part.second[kept], part.labels[kept]
        if len(np.unique(part.labels)) < 2:
            raise ValueError(
                f"The {name} split has {len(part.labels)} pairs with the labels {np.unique(part.labels).tolist()}: "
                "it needs pairs that are linked and pairs that are not."
            )
    used = np.unique(np.concatenate([column for part in parts for column in (part.first, part.second)]))
    for part in parts:
        part.first, part.second = np.searchsorted(used, part.first), np.searchsorted(used, part.second)
    train, validation, test = parts
    papers = [np.union1d(part.first, part.second) for part in (test, train)]
    pairs = [
        np.minimum(part.first, part.second) * len(used) + np.maximum(part.first, part.second)
        for part in (test, train)  # (a, b) and (b, a) are one
    ]
    counts = counts | {
        "papers_without_text": int(empty.sum()),
        "pairs_without_text_dropped": dropped,
        "papers_without_pair_dropped": len(texts) - len(used),
        "test_papers_seen_in_training": int(np.isin(papers[0], papers[1]).sum()),
        "test_pairs_seen_in_training": int(np.isin(pairs[0], pairs[1]).sum()),
    }
    if dropped:
        logger.warning(f"Dropped {dropped:,} pairs with one of {empty.sum():,} papers that have no text.")
    shown = "".join(f", {count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    logger.info(f"{len(used):,} papers, {' + '.join(f'{len(part.labels):,}' for part in parts)} pairs{shown}")
    ids, all_texts = list(texts), list(texts.values())
    chosen = [all_texts[paper] for paper in used]
    return CitationPairs(chosen, [ids[paper] for paper in used], train, validation, test, counts, made_here)


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
        split_of = divide_communities(distinct, num_papers, LINK_SHARES, generator, seed)
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
        first, second = positives[matched].T
        order = generator.permutation(2 * len(first))
        seconds = np.concatenate([second, seconds[matched]])
        parts.append(PairPart(np.tile(first, 2)[order], seconds[order], np.repeat([1, 0], len(first))[order]))
    counts = {
        "links": len(distinct),
        "links_repeated_or_to_itself_dropped": len(links) - len(distinct),
        "links_between_splits_dropped": int((~within).sum()),
        "links_without_negative_dropped": unmatched,
    }
    return parts, counts


def divide_communities(
    links: np.ndarray, num_papers: int, shares: Sequence[float], generator: np.random.Generator, seed: int
) -> np.ndarray:
    """Divide papers so that the links inside communities have these shares: the number of each one's part, (N,)."""
    communities = find_communities(links, num_papers, seed)
    inside = communities[links[:, 0]] == communities[links[:, 1]]
    sizes = np.bincount(communities[links[inside, 0]], minlength=communities.max(initial=0) + 1)
    # In random order, each community goes where the largest part of the share is missing.
    filled, parts = np.zeros(len(shares)), np.zeros(len(sizes), dtype=np.int64)
    for community in generator.permutation(len(sizes)):
        parts[community] = np.argmin(filled / np.array(shares))
        filled[parts[community]] += sizes[community]
    return parts[communities]


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
        for draw in generator.integers(len(equal_first) + len(equal_second), size=200).tolist():
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
