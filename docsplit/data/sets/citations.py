"""Load citation pairs: does one paper cite the other, given the texts of both (AAN task of Long Range Arena)?

    load_citation_pairs                       the source that the options name, by one of these:
    load_long_range_arena, load_pair_files    pairs that others divided and labelled
    load_citations, python_docs_pairs         a list of links, of which `make_splits` makes the pairs

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
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from docsplit.data.corpora import PYTHON_DOCS, add_text, load_corpus
from docsplit.data.python_docs.parts import PART, split_references
from docsplit.data.readers.base import Problems
from docsplit.data.readers.files import File, lines_of
from docsplit.data.readers.rows import id_of_cell, text_of_cell
from docsplit.data.sets.arguments import CitationArguments
from docsplit.data.sets.citation_splits import PART_NAMES, PairPart, make_splits
from docsplit.runtime.files import add_texts

logger = logging.getLogger(__name__)

LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "False": 0, "True": 1}


@dataclass
class Papers:
    """Papers as they were read, each once, and what was dropped on the way."""

    ids: list[str]
    texts: list[str]
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def positions(self) -> dict[str, int]:
        """The number of each paper by its id."""
        return {paper: position for position, paper in enumerate(self.ids)}


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
        digest = hashlib.blake2b(digest_size=8)
        add_texts(digest, (*self.ids, *self.texts))
        for part in (self.train, self.validation, self.test):
            for column in (part.first, part.second, part.labels):
                digest.update(column.astype("<i8").tobytes())
        return digest.hexdigest()


def load_citation_pairs(options: CitationArguments, seed: int = 0) -> CitationPairs:
    """Load the pairs that the options name; without any the links of python_docs.

    Args:
        seed: seed of splits that are made here of citations; the splits of python_docs are fixed.

    Raises:
        ValueError: if they name two sources, or half of one.
    """
    pair_files: list[Any] = [options.train_pairs_file, options.validation_pairs_file, options.test_pairs_file]
    sources = [options.lra_dir, options.citations_file, any(pair_files)]
    if sum(bool(source) for source in sources) > 1 or (options.lra_dir and options.papers_file):
        raise ValueError("Give one of --lra_dir, --citations_file (with --papers_file), or the three pair files.")
    if options.lra_dir:
        return load_long_range_arena(options.lra_dir)
    if not options.papers_file:
        if any(sources):
            raise ValueError("Pairs and citations name papers by id: give their texts with --papers_file.")
        return python_docs_pairs()
    if options.citations_file:
        return load_citations(options.papers_file, options.citations_file, seed)
    if not all(pair_files):
        raise ValueError(
            "Beside --papers_file give --citations_file, or --train_pairs_file, --validation_pairs_file and "
            "--test_pairs_file."
        )
    return load_pair_files(options.papers_file, *pair_files)


def load_long_range_arena(directory: str | Path) -> CitationPairs:
    """Read the files of Long Range Arena (Tay et al., 2021): new_aan_pairs.{train,eval,test}.tsv, or {train,...}.tsv.

    A line is label, id1, id2, text1, text2, separated by tabs, without header or quoting; texts may be printed as
    bytes literals (b'...'). Each paper is kept once, as first met.

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
    return _assemble(Papers(list(positions), texts, counts), parts, made_here=False)


def _long_range_arena_file(directory: Path, name: str) -> Path:
    files = sorted(directory.glob(f"*{name}.tsv"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise ValueError(
            f"--lra_dir {directory} should have one file *{name}.tsv, found {names}. Long Range Arena calls it "
            f"new_aan_pairs.{name}.tsv."
        )
    return files[0]


def _read_lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    # newline="\n": a carriage return within a text ends no line. No csv module: a field may be longer than its limit.
    opened, problems = File(file, str(file)), Problems()
    if (encoding := opened.encoding()).is_detected:
        problems.note("detected", f"{file} as {encoding.name}")
    with opened.open() as content:
        for line in lines_of(content, encoding, newline="\n"):
            if line.is_mended:
                problems.note("mended", f"{file}, line {line.number}")
            if not (text := line.text.rstrip("\r\n")):
                continue
            fields = text.split("\t")
            if len(fields) != 5:
                raise ValueError(
                    f"{file}, line {line.number} has {len(fields)} fields between tabs, expected 5: label, id1, id2, "
                    "text1, text2. For a table of papers and pairs of ids use --papers_file and --train_pairs_file."
                )
            yield line.number, [fields[0], _decode(fields[1]), _decode(fields[2]), *fields[3:]]
    for warning in problems.warnings():
        logger.warning(warning)


def _decode(text: str) -> str:
    """Decode a bytes literal that Python printed; other text is left as it is."""
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


def load_pair_files(
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
    papers = _load_papers(papers_file)
    parts = []
    for file in (train_pairs_file, validation_pairs_file, test_pairs_file):
        table = _read_columns(file, ("label", "id1", "id2"))
        labels = [_label(label, f"{file}, pair {number}") for number, label in enumerate(table["label"], start=1)]
        first, second = _positions([table["id1"], table["id2"]], papers.positions, file, papers_file)
        parts.append(_part(list(zip(first, second, labels))))
    return _assemble(papers, parts, made_here=False)


def _load_papers(file: str | Path) -> Papers:
    """Read a table of papers; where two have one id, the first is kept."""
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
    for row, (paper, cells) in enumerate(zip(table["id"][:], values), start=1):
        place = f"{file}, row {row}"
        parts = [text_of_cell(cell, f"{place}: {column}").strip() for column, cell in zip(used, cells)]
        texts.setdefault(id_of_cell(paper, f"{place}: id"), "\n\n".join(part for part in parts if part))
    return Papers(list(texts), list(texts.values()), {"papers_with_repeated_id_dropped": len(table) - len(texts)})


def _read_table(file: str | Path) -> Dataset:
    if not Path(file).exists():
        raise ValueError(f"There is no file {str(file)!r}.")
    return load_corpus(str(file))


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


def _assemble(papers: Papers, parts: list[PairPart], made_here: bool) -> CitationPairs:
    """Drop pairs with a paper without text, then papers without a pair; count what training and test share."""
    empty = np.array([not text.strip() for text in papers.texts], dtype=bool)
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
    train, validation, test = (
        PairPart(np.searchsorted(used, part.first), np.searchsorted(used, part.second), part.labels) for part in parts
    )
    shared = np.isin(np.union1d(test.first, test.second), np.union1d(train.first, train.second))
    counts = papers.counts | {
        "papers_without_text": int(empty.sum()),
        "pairs_without_text_dropped": dropped,
        "papers_without_pair_dropped": len(papers.texts) - len(used),
        "test_papers_seen_in_training": int(shared.sum()),
        "test_pairs_seen_in_training": int(np.isin(_keys(test, len(used)), _keys(train, len(used))).sum()),
    }
    if dropped:
        logger.warning(f"Dropped {dropped:,} pairs with one of {empty.sum():,} papers that have no text.")
    logger.info(f"{len(used):,} papers, pairs: {[len(part.labels) for part in parts]}; {counts}")
    texts, ids = [papers.texts[paper] for paper in used], [papers.ids[paper] for paper in used]
    return CitationPairs(texts, ids, train, validation, test, counts, made_here)


def _keys(part: PairPart, num_papers: int) -> np.ndarray:
    """Make a key of each pair, (a, b) and (b, a) alike."""
    return np.minimum(part.first, part.second) * num_papers + np.maximum(part.first, part.second)


def load_citations(papers_file: str | Path, citations_file: str | Path, seed: int = 0) -> CitationPairs:
    """Read a table of papers (as in `load_pair_files`) and the links among them, columns citing and cited.

    Raises:
        ValueError: naming what is missing: a column, or papers that links name.
    """
    papers = _load_papers(papers_file)
    table = _read_columns(citations_file, ("citing", "cited"))
    columns = _positions([table["citing"], table["cited"]], papers.positions, citations_file, papers_file)
    return _split_links(papers, np.array(columns, dtype=np.int64).T, seed)


def python_docs_pairs() -> CitationPairs:
    """Make pairs of the built-in corpus, its "See also" lists as citations: 6,700 links among 4,200 documents.

    The lists often repeat how the other document begins, so they are removed from the texts, and names of documents
    are not added: only the prose tells of a link. Cross-references in the prose are neither citations nor negatives.
    The splits are the parts of `docsplit.data.python_docs.parts`; the pairs follow from the documents alone.
    """
    rows = load_corpus(PYTHON_DOCS).to_list()
    texts, see_also, others = split_references(rows)
    split_of = np.array([PART_NAMES.index(row[PART]) for row in rows])
    papers = Papers([row["id"] for row in rows], texts)
    pairs = _split_links(papers, see_also, seed=0, never_negative=others, split_of=split_of)
    text_of = {row["id"]: row["text"] for row in rows}
    return dataclasses.replace(pairs, documents=[text_of[paper] for paper in pairs.ids])


def _split_links(
    papers: Papers,
    links: np.ndarray,
    seed: int,
    never_negative: np.ndarray | None = None,
    split_of: np.ndarray | None = None,
) -> CitationPairs:
    """Make pairs of the links (L, 2) between papers with a text; the other arguments as in `make_splits`."""
    has_text = np.array([bool(text.strip()) for text in papers.texts], dtype=bool)
    kept = links[has_text[links].all(axis=1)]
    parts, counts = make_splits(kept, len(papers.texts), seed, never_negative, split_of)
    counts = papers.counts | {"links_without_text_dropped": len(links) - len(kept)} | counts
    return _assemble(dataclasses.replace(papers, counts=counts), parts, made_here=True)
