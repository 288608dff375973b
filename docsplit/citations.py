"""Citation pairs: does one paper cite the other, given the texts of both (Long Range Arena's AAN task)?

    load_long_range_arena, load_pairs    pairs that others divided and labelled
    load_citations, python_docs_pairs    a list of links, from which `make_splits` makes the pairs
    cosine_scores, bm25_scores           what needs no training but a threshold
    popularity                           what the ids alone give away: no text is read

Pairs of others are taken as they are. Where their negatives are free, a much-cited paper is a reason to say yes, and
where papers are in several splits, the ids can be learnt; `popularity` measures both. Pairs of ours share no paper
between splits, and the negatives are the positives with their second papers exchanged, so that each paper is as often
in a negative pair as in a positive one. That alone is not enough: linked papers resemble each other in their number
of links (those that list each other under "See also" have about equal numbers), and boosted trees on two degrees told
60 to 66 % of such pairs apart on `python_docs`. So pairs exchange their papers only where degrees are equal, which
keeps the degrees of a pair's two papers jointly as they were; a link that finds no such exchange is dropped.

The price of sharing no paper is links lost between the splits. Papers are divided by communities (Louvain), which
keeps 81 % of AAN's links and 99 % of those of `python_docs`, where papers divided at random 80/10/10 keep 66 %, of
which a test part gets 1 %: 60 to 110 links. So the test papers are on other topics than the training papers.
"""

import ast
import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bm25s
import networkx
import numpy as np
import pandas
import scipy.sparse
from datasets import Dataset
from scipy.stats import binomtest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.preprocessing import normalize

from docsplit.corpora import PYTHON_DOCS, add_text, load_corpus, warn_of_swallowed_rows
from docsplit.python_docs import find_references

logger = logging.getLogger(__name__)

SHARES = (0.8, 0.1, 0.1)  # of the links: train, validation, test
COMMUNITY_RESOLUTION = 10  # many small communities, so that each split has many topics
TRIES = 200  # to find a pair to exchange papers with, for each pair
CHUNK_PAIRS = 4096  # scored at a time: bounds the memory
LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "False": 0, "True": 1}
PART_NAMES = ("train", "validation", "test")
SEE_ALSO_BLOCK = re.compile(r"^([ \t]*)\.\. seealso::.*(?:\n(?:\1[ \t]+\S.*|[ \t]*$))*", re.MULTILINE | re.IGNORECASE)


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


# --- Pairs of others -----------------------------------------------------------------------------------------------


def load_long_range_arena(directory: str | Path) -> CitationPairs:
    """Read the files of Long Range Arena (Tay et al., 2021): new_aan_pairs.{train,eval,test}.tsv, or {train,...}.tsv.

    They have neither header nor quoting; a line is label, id1, id2, text1, text2, separated by tabs, and texts may be
    printed as bytes literals (b'...'). They are read line by line, and each paper is kept once, as first met.

    Raises:
        ValueError: if a file is missing, or naming file and line where one cannot be understood.
    """
    files = [_long_range_arena_file(Path(directory), name) for name in ("train", "eval", "test")]
    positions: dict[str, int] = {}
    texts: list[str] = []
    hashes: list[int] = []
    other_texts: set[str] = set()
    parts = []
    for file in files:
        pairs = []
        for number, (label, *ids, text1, text2) in _read_lines(file):
            for paper, text in zip(ids, (text1, text2)):
                if paper not in positions:
                    positions[paper] = len(texts)
                    texts.append(_decode(text))
                    hashes.append(hash(text))
                elif hashes[positions[paper]] != hash(text):
                    other_texts.add(paper)
            pairs.append((positions[ids[0]], positions[ids[1]], _label(label, f"{file}, line {number}")))
        parts.append(_part(pairs))
    counts = {"papers_with_other_texts_later": len(other_texts)}
    return _assemble(texts, list(positions), parts, counts, made_here=False)


def _long_range_arena_file(directory: Path, name: str) -> Path:
    files = sorted(directory.glob(f"*{name}.tsv"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise ValueError(
            f"--lra_dir {directory} should have one file *{name}.tsv, found {found}. Long Range Arena calls it "
            f"new_aan_pairs.{name}.tsv."
        )
    return files[0]


def _read_lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    # newline="\n": a carriage return within a text ends no line. No csv module: a field may be longer than its limit.
    with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            if not (line := line.rstrip("\r\n")):
                continue
            fields = line.split("\t")
            if len(fields) != 5:
                raise ValueError(
                    f"{file}, line {number} has {len(fields)} fields between tabs, expected 5: label, id1, id2, "
                    "text1, text2. For a table of papers and pairs of ids use --papers_file and --train_pairs_file."
                )
            yield number, [fields[0], _decode(fields[1]), _decode(fields[2]), *fields[3:]]


def _decode(text: str) -> str:
    """The text of a bytes literal that Python printed; other text is left as it is."""
    if text[:2] not in ("b'", 'b"') or len(text) < 3 or text[-1] != text[1]:
        return text
    try:
        return ast.literal_eval(text).decode("utf-8", errors="replace")
    except (SyntaxError, ValueError, AttributeError):  # text that only looks like a literal: b'a' and 'b'
        return text


def _label(label: Any, place: str) -> int:
    if str(label) not in LABELS:
        raise ValueError(f"{place}: the label is {label!r}, expected 0 or 1 (1: one paper cites the other).")
    return LABELS[str(label)]


def load_pairs(
    papers_file: str | Path,
    train_pairs_file: str | Path,
    validation_pairs_file: str | Path,
    test_pairs_file: str | Path,
) -> CitationPairs:
    """Read a table of papers and three files of pairs.

    Args:
        papers_file: json, jsonl, csv, tsv or parquet, with columns id and at least one of title, abstract, text and
            sections [{heading, text}]; a paper's text is all of these, sections only where there is no text.
        train_pairs_file: columns label, id1, id2; ids are compared as strings.

    Raises:
        ValueError: naming what is missing: a column, or papers that pairs name.
    """
    ids, texts, counts = _load_papers(papers_file)
    positions = {paper: position for position, paper in enumerate(ids)}
    parts = []
    for file in (train_pairs_file, validation_pairs_file, test_pairs_file):
        table = _read_columns(file, ("label", "id1", "id2"))
        labels = [_label(label, f"{file}, pair {number}") for number, label in enumerate(table["label"], start=1)]
        first, second = _positions([table["id1"], table["id2"]], positions, file, papers_file)
        parts.append(_part(list(zip(first, second, labels))))
    return _assemble(texts, ids, parts, counts, made_here=False)


def _load_papers(file: str | Path) -> tuple[list[str], list[str], dict[str, int]]:
    """Ids (strings) and texts; of papers with one id the first is kept."""
    table = _read_table(file)
    columns = set(table.column_names)
    if "id" not in columns or not columns & {"title", "abstract", "text", "sections"}:
        raise ValueError(
            f"--papers_file {file} needs a column id, and title, abstract, text or sections; found {sorted(columns)}."
        )
    if columns & {"text", "sections"}:
        table = add_text(table, "text")
    used = [column for column in ("title", "abstract", "text") if column in table.column_names]
    values = zip(*(table[column][:] for column in used))
    texts: dict[str, str] = {}
    for paper, parts in zip(table["id"][:], values):
        texts.setdefault(str(paper), "\n\n".join(part.strip() for part in parts if part and part.strip()))
    return list(texts), list(texts.values()), {"papers_with_repeated_id_dropped": len(table) - len(texts)}


def _read_table(file: str | Path) -> Dataset:
    """Any table; what csv and tsv have are strings, so that the id 0012 is not read as 12."""
    if not Path(file).exists():
        raise ValueError(f"There is no file {str(file)!r}.")
    separator = {".csv": ",", ".tsv": "\t"}.get(Path(file).suffix.lower())
    if separator is None:
        return load_corpus(str(file))
    try:
        table = Dataset.from_pandas(pandas.read_csv(file, sep=separator, dtype=str, keep_default_na=False))
        if separator == "\t":
            warn_of_swallowed_rows(table, file)
        return table
    except ValueError as error:
        raise ValueError(f"Cannot read {file} as a table with a header: {error}") from error


def _read_columns(file: str | Path, columns: tuple[str, ...]) -> dict[str, list[Any]]:
    table = _read_table(file)
    if missing := set(columns) - set(table.column_names):
        raise ValueError(f"{file} needs columns {', '.join(columns)}; {sorted(missing)} not in {table.column_names}.")
    return {column: table[column][:] for column in columns}


def _positions(
    columns: list[list[Any]], positions: dict[str, int], file: str | Path, papers_file: str | Path
) -> list[list[int]]:
    names = [list(map(str, column)) for column in columns]
    if unknown := sorted(set().union(*names) - positions.keys()):
        raise ValueError(
            f"{file} names {len(unknown)} ids that {papers_file} does not have, such as {', '.join(unknown[:5])}: "
            "add these papers, or remove the lines."
        )
    return [[positions[name] for name in column] for column in names]


def _part(pairs: list[tuple[int, int, int]]) -> PairPart:
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 3)
    return PairPart(columns[:, 0], columns[:, 1], columns[:, 2])


def _assemble(
    texts: list[str], ids: list[str], parts: list[PairPart], counts: dict[str, int], made_here: bool
) -> CitationPairs:
    """Drop pairs with a paper without text and papers without a pair, and count what training and test share."""
    empty = np.array([not text.strip() for text in texts], dtype=bool)
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
    used = np.unique(np.concatenate([papers for part in parts for papers in (part.first, part.second)]))
    train, validation, test = (
        PairPart(np.searchsorted(used, part.first), np.searchsorted(used, part.second), part.labels) for part in parts
    )
    shared = np.isin(np.union1d(test.first, test.second), np.union1d(train.first, train.second))
    counts = counts | {
        "papers_without_text": int(empty.sum()),
        "pairs_without_text_dropped": dropped,
        "papers_without_pair_dropped": len(texts) - len(used),
        "test_papers_seen_in_training": int(shared.sum()),
        "test_pairs_seen_in_training": int(np.isin(_keys(test, len(used)), _keys(train, len(used))).sum()),
    }
    if dropped:
        logger.warning(f"Dropped {dropped:,} pairs with one of {empty.sum():,} papers that have no text.")
    logger.info(f"{len(used):,} papers, pairs: {[len(part.labels) for part in parts]}; {counts}")
    used_texts, used_ids = [texts[paper] for paper in used], [ids[paper] for paper in used]
    return CitationPairs(used_texts, used_ids, train, validation, test, counts, made_here)


def fingerprint(pairs: CitationPairs) -> str:
    """A hash of all texts, ids and pairs, in order: equal for equal data, 16 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=8)
    for text in (*pairs.ids, *pairs.texts):
        encoded = text.encode(errors="surrogatepass")
        digest.update(f"{len(encoded)};".encode() + encoded)
    for part in (pairs.train, pairs.validation, pairs.test):
        for column in (part.first, part.second, part.labels):
            digest.update(column.astype("<i8").tobytes())
    return digest.hexdigest()


def _keys(part: PairPart, num_papers: int) -> np.ndarray:
    """A number for each pair, the same for (a, b) and (b, a)."""
    return np.minimum(part.first, part.second) * num_papers + np.maximum(part.first, part.second)


# --- Pairs of ours -------------------------------------------------------------------------------------------------


def load_citations(papers_file: str | Path, citations_file: str | Path, seed: int = 0) -> CitationPairs:
    """Read a table of papers (as in `load_pairs`) and the links among them, columns citing and cited.

    Raises:
        ValueError: naming what is missing: a column, or papers that links name.
    """
    ids, texts, counts = _load_papers(papers_file)
    positions = {paper: position for position, paper in enumerate(ids)}
    table = _read_columns(citations_file, ("citing", "cited"))
    columns = _positions([table["citing"], table["cited"]], positions, citations_file, papers_file)
    return _split_links(texts, ids, np.array(columns, dtype=np.int64).T, None, counts, seed)


def python_docs_pairs(seed: int = 0) -> CitationPairs:
    """The built-in corpus with its "See Also" lists as citations, about 6,700 links among 4,200 documents.

    These lists, which often repeat what the other document begins with, are removed from the texts, and documents'
    names are not added to them: what is left of a link is what the prose says. Documents that a cross-reference in
    the prose names are no citations, but neither are they taken for negatives.
    """
    rows = load_corpus(PYTHON_DOCS).to_list()
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
    return _split_links(texts, list(positions), np.array(see_also), np.array(others).reshape(-1, 2), {}, seed)


def _without_see_also(sections: list[dict[str, str]]) -> tuple[str, set[str]]:
    """The other sections as one text, and the last components of the names that the See Also lists have."""
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


def _split_links(
    texts: list[str], ids: list[str], links: np.ndarray, others: np.ndarray | None, counts: dict[str, int], seed: int
) -> CitationPairs:
    has_text = np.array([bool(text.strip()) for text in texts], dtype=bool)
    kept = links[has_text[links].all(axis=1)]
    parts, split_counts = make_splits(kept, len(texts), seed, never_negative=others)
    counts = counts | {"links_without_text_dropped": len(links) - len(kept)} | split_counts
    return _assemble(texts, ids, parts, counts, made_here=True)


def make_splits(
    links: np.ndarray,
    num_papers: int,
    seed: int = 0,
    shares: tuple[float, float, float] = SHARES,
    never_negative: np.ndarray | None = None,
) -> tuple[list[PairPart], dict[str, int]]:
    """Make train, validation and test pairs that share no paper, half of them links, so that popularity says nothing.

    A link has no direction; which of its papers comes first is drawn. Within a split each paper is as often first,
    and as often second, in the negatives as in the positives, and no negative is a link or repeats another.

    Args:
        links: (L, 2), indices of papers; repeated links and links of a paper to itself are dropped.
        shares: of the links inside communities, for train, validation and test.
        never_negative: (K, 2), further pairs that may not become negatives.

    Returns: the three parts, in an order that is drawn, and the counts of links kept and lost.

    Raises:
        ValueError: if a split is left without pairs.
    """
    generator = np.random.default_rng(seed)
    distinct = _undirected(links)
    communities = _communities(distinct, num_papers, seed)
    inside = communities[distinct[:, 0]] == communities[distinct[:, 1]]
    sizes = np.bincount(communities[distinct[inside, 0]], minlength=communities.max(initial=0) + 1)
    split_of = _fill_splits(sizes, shares, generator)[communities]
    within = split_of[distinct[:, 0]] == split_of[distinct[:, 1]]
    forbidden = distinct if never_negative is None else np.concatenate([distinct, _undirected(never_negative)])
    forbidden_keys = set((forbidden[:, 0] * num_papers + forbidden[:, 1]).tolist())
    parts, unmatched = [], 0
    for split, name in enumerate(PART_NAMES):
        positives = distinct[within & (split_of[distinct[:, 0]] == split)]
        positives = np.where(generator.random((len(positives), 1)) < 0.5, positives, positives[:, ::-1])
        seconds, matched = _exchange_seconds(positives, num_papers, forbidden_keys, generator)
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


def _undirected(links: np.ndarray) -> np.ndarray:
    """Each link once, (smaller, larger), without those of a paper to itself."""
    ordered = np.sort(np.asarray(links, dtype=np.int64).reshape(-1, 2), axis=1)
    return np.unique(ordered[ordered[:, 0] != ordered[:, 1]], axis=0)


def _communities(links: np.ndarray, num_papers: int, seed: int) -> np.ndarray:
    """(num_papers,): which community of densely linked papers (Louvain; Blondel et al., 2008) each is in."""
    graph = networkx.Graph()
    graph.add_edges_from(links.tolist())
    communities = np.zeros(num_papers, dtype=np.int64)  # papers without a link are in no pair
    found = networkx.community.louvain_communities(graph, resolution=COMMUNITY_RESOLUTION, seed=seed)
    for number, members in enumerate(found):
        communities[sorted(members)] = number
    return communities


def _fill_splits(sizes: np.ndarray, shares: tuple[float, float, float], generator: np.random.Generator) -> np.ndarray:
    """The split of each community: in random order each goes where the largest part of the share is still missing."""
    filled = np.zeros(3)
    splits = np.zeros(len(sizes), dtype=np.int64)
    for community in generator.permutation(len(sizes)):
        splits[community] = np.argmin(filled / np.array(shares))
        filled[splits[community]] += sizes[community]
    return splits


def _exchange_seconds(
    positives: np.ndarray, num_papers: int, forbidden: set[int], generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Turn positives into negatives: pairs exchange their second papers until no pair is a link.

    Two pairs may exchange if their first papers, or their second ones, have equal degrees: this keeps the joint
    distribution of the degrees of linked papers (the 2K-preserving rewiring of Mahadevan et al., 2006). A pair that
    finds none to exchange with still has its own second paper, so that dropping it among positives and negatives
    alike leaves both balanced.

    Args:
        positives: (P, 2).
        forbidden: smaller index x num_papers + larger index, of the pairs that no negative may be.

    Returns: second papers (P,), and for which pairs there is a negative (P,).
    """

    def key(one: int, other: int) -> int:
        return min(one, other) * num_papers + max(one, other)

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
        low, other_low = (np.searchsorted(by_degree[:, side], degrees[pair, side]) for side in (0, 1))
        high, other_high = (np.searchsorted(by_degree[:, side], degrees[pair, side], "right") for side in (0, 1))
        equal_first, equal_second = order[low:high, 0], order[other_low:other_high, 1]
        for draw in generator.integers(len(equal_first) + len(equal_second), size=TRIES).tolist():
            is_first = draw < len(equal_first)
            other = int(equal_first[draw] if is_first else owners[equal_second[draw - len(equal_first)]])
            own, others = papers[slots[pair]], papers[slots[other]]
            new, others_new = key(firsts[pair], others), key(firsts[other], own)
            if firsts[pair] == others or firsts[other] == own or new == others_new:
                continue
            if any(made in forbidden or made in negatives for made in (new, others_new)):
                continue
            if matched[other]:
                negatives.remove(key(firsts[other], others))
            negatives |= {new, others_new}
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


# --- Features and baselines ----------------------------------------------------------------------------------------


def pair_features(embeddings: np.ndarray, part: PairPart) -> np.ndarray:
    """The two embeddings of a pair, one after the other, (P, 2H): what DocSplit's MLP reads (its section 4.4)."""
    return np.concatenate([embeddings[part.first], embeddings[part.second]], axis=1)


def cosine_scores(embeddings: Any, part: PairPart) -> np.ndarray:
    """Cosine similarity of the two papers of each pair, (P,) float32.

    Args:
        embeddings: (N, H), dense or sparse; a row of zeros is similar to nothing.
    """
    return _pair_products(normalize(embeddings), normalize(embeddings), part)


def _pair_products(left: Any, right: Any, part: PairPart) -> np.ndarray:
    """Scalar products of rows `first` of `left` and rows `second` of `right`, dense or both sparse."""
    products = np.empty(len(part.first), dtype=np.float32)
    for start in range(0, len(products), CHUNK_PAIRS):
        chunk = slice(start, start + CHUNK_PAIRS)
        one, other = left[part.first[chunk]], right[part.second[chunk]]
        product = one.multiply(other) if scipy.sparse.issparse(one) else one * other
        products[chunk] = np.asarray(product.sum(axis=1)).ravel()
    return products


def bm25_scores(texts: Sequence[str], part: PairPart, show_progress: bool = False) -> np.ndarray:
    """BM25 (bm25s, its defaults, English stop-words) of each paper as a query for the other, averaged, (P,) float32.

    The term weights of the index are those of `bm25s`; only the scores of the pairs asked for are added up.

    Args:
        texts: all papers: they are the collection in which terms are rare or frequent.
        part: the pairs; reading the texts is what takes long, so join the splits' pairs and score them at once.
    """
    tokens = bm25s.tokenize(list(texts), stopwords="en", show_progress=show_progress, leave=False)
    retriever = bm25s.BM25()
    retriever.index(tokens, show_progress=show_progress, leave_progress=False)
    index = retriever.scores
    num_terms = len(index["indptr"]) - 1
    weights = scipy.sparse.csc_matrix(
        (index["data"], index["indices"], index["indptr"]), shape=(len(texts), num_terms)
    ).tocsr()  # (N, V): what a term adds for a document that has it
    starts = np.cumsum([0, *map(len, tokens.ids)])
    terms = np.fromiter((term for ids in tokens.ids for term in ids), dtype=np.int32, count=starts[-1])
    queries = scipy.sparse.csr_matrix((np.ones(len(terms), dtype=np.float32), terms, starts), weights.shape)
    queries.sum_duplicates()  # (N, V): how often a query has each term
    return (_pair_products(queries, weights, part) + _pair_products(weights, queries, part)) / 2


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
