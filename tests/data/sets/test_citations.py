"""Invariants of the citation pairs: what is read, what the splits share, and what popularity can know of them."""

from collections import Counter

import numpy as np
import pandas
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from docsplit.data.python_docs.parts import PART_NAMES
from docsplit.data.sets import citations
from docsplit.data.sets.set_arguments import CitationArguments

# --- Pairs of others -----------------------------------------------------------------------------------------------

LINES = {
    "train": [
        ("1.0", "A00-1", "0012", """b'It\\'s a "quote"\\nand caf\\xc3\\xa9'""", 'plain "text, unbalanced'),
        ("0.0", "A00-1", "X", """b'It\\'s a "quote"\\nand caf\\xc3\\xa9'""", """b"don't \\xff\""""),
    ],
    "eval": [("1", "V1", "V2", "b'a' and 'b'", "two"), ("0", "V1", "V3", "b'a' and 'b'", "a\rb c")],
    "test": [("0", "T1", "X", "three", "another text"), ("1", "0012", "A00-1", "plain", "b'other'")],
}


def write_arena(directory, lines=LINES, prefix="new_aan_pairs.", end="\n"):
    for name, rows in lines.items():
        text = "".join("\t".join(row) + end for row in rows)
        (directory / f"{prefix}{name}.tsv").write_bytes(text.encode())
    return directory


@pytest.mark.parametrize(("prefix", "end"), [("new_aan_pairs.", "\n"), ("", "\r\n")])
def test_long_range_arena_is_read_with_each_paper_once(tmp_path, prefix, end):
    pairs = citations.load_long_range_arena(write_arena(tmp_path, prefix=prefix, end=end))
    texts = {"A00-1": 'It\'s a "quote"\nand café', "0012": 'plain "text, unbalanced', "X": "don't �", "T1": "three",
             "V1": "b'a' and 'b'", "V2": "two", "V3": "a\rb c"}  # fmt: skip
    assert (dict(zip(pairs.ids, pairs.texts)), len(pairs.ids)) == (texts, 7)
    for part, rows in zip(pairs.parts.values(), LINES.values()):
        read = [(pairs.ids[first], pairs.ids[second]) for first, second in zip(part.first, part.second)]
        assert read == [(left, right) for _, left, right, *_ in rows]
        assert part.labels.tolist() == [int(float(label)) for label, *_ in rows]
    assert pairs.counts["test_papers_seen_in_training"] == 3
    assert pairs.counts["test_pairs_seen_in_training"] == 1  # (0012, A00-1) and (A00-1, 0012)
    assert not pairs.made_here
    write_arena(tmp_path, LINES | {"eval": [*LINES["eval"], ("label", "id1", "id2", "text1", "text2")]}, prefix, end)
    with pytest.raises(ValueError, match=r"eval\.tsv, pair 3: the label is 'label', expected 0"):
        citations.load_long_range_arena(tmp_path)


PAPERS = [
    {"id": "0012", "title": "T12", "abstract": "A12", "text": "body 12"},
    {"id": "12", "title": " ", "abstract": "", "text": "body 0"},
    {"id": "x", "title": "Tx", "abstract": "Ax", "text": ""},
    {"id": "empty", "title": "", "abstract": " ", "text": ""},
    {"id": "y", "title": "Ty", "abstract": "", "text": "says NA"},
    {"id": "unused", "title": "U", "abstract": "", "text": ""},
    {"id": "x", "title": "again", "abstract": "", "text": ""},
]
PAIRS = {
    "train": [("1", "0012", "12"), ("0", "12", "x"), ("1", "empty", "x")],
    "validation": [("1", "x", "y"), ("0", "y", "0012")],
    "test": [("0", "12", "0012"), ("1", "y", "x")],
}


def write_table(path, rows):
    table = pandas.DataFrame(rows)
    if path.suffix == ".parquet":
        table.to_parquet(path)
    elif path.suffix == ".jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_csv(path, sep={".csv": ",", ".tsv": "\t"}[path.suffix], index=False)
    return path


def write_pairs(directory, suffix, pairs=PAIRS, number=str):
    columns = ("label", "id1", "id2")
    return [
        write_table(directory / f"{name}{suffix}", [dict(zip(columns, (number(row[0]), *row[1:]))) for row in rows])
        for name, rows in pairs.items()
    ]


@pytest.mark.parametrize(
    ("papers_suffix", "pairs_suffix", "number"),
    [(".csv", ".tsv", str), (".parquet", ".jsonl", int), (".jsonl", ".parquet", float)],
)
def test_a_table_of_papers_and_pairs_of_ids(tmp_path, papers_suffix, pairs_suffix, number, caplog):
    papers = write_table(tmp_path / f"papers{papers_suffix}", PAPERS)
    pairs = citations.load_pair_files(papers, *write_pairs(tmp_path, pairs_suffix, number=number))
    texts = {"0012": "T12\n\nA12\n\nbody 12", "12": "body 0", "x": "Tx\n\nAx", "y": "Ty\n\nsays NA"}
    assert dict(zip(pairs.ids, pairs.texts)) == texts
    read = [(pairs.ids[first], pairs.ids[second]) for first, second in zip(pairs.train.first, pairs.train.second)]
    assert (read, pairs.train.labels.tolist()) == ([("0012", "12"), ("12", "x")], [1, 0])
    assert pairs.counts == {
        "papers_with_repeated_id_dropped": 1,
        "papers_without_text": 1,
        "pairs_without_text_dropped": 1,
        "papers_without_pair_dropped": 2,
        "test_papers_seen_in_training": 3,
        "test_pairs_seen_in_training": 1,
    }
    assert "Dropped 1 pairs" in caplog.text


@pytest.mark.parametrize(
    ("papers", "pairs", "message"),
    [
        (PAPERS, PAIRS | {"test": [("1", "0012", "nobody"), ("0", "q", "x")]}, r"test\.tsv names 2 ids .* nobody, q"),
        (PAPERS, PAIRS | {"test": [("1", "0012", "x"), ("3", "12", "x")]}, r"test\.tsv, pair 2: the label is '3'"),
        (PAPERS, PAIRS | {"validation": [("1", "0012", "x")]}, r"validation split has 1 pairs with the labels \[1\]"),
        ([{"name": "a", "text": "b"}], PAIRS, "needs a column id"),
    ],
)
def test_tables_that_do_not_fit_are_named(tmp_path, papers, pairs, message):
    files = [write_table(tmp_path / "papers.jsonl", papers), *write_pairs(tmp_path, ".tsv", pairs)]
    with pytest.raises(ValueError, match=message):
        citations.load_pair_files(*files)


# --- Pairs of ours -------------------------------------------------------------------------------------------------


def families(sizes, seed):
    """Papers in families that all cite each other, as See Also lists do, and some citations between families."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(sizes)
    links = [(a, b) for end, size in zip(ends, sizes) for a in range(end - size, end) for b in range(a + 1, end)]
    links += rng.integers(ends[-1], size=(len(links) // 10, 2)).tolist()
    return rng.permutation([pair[:: rng.choice([1, -1])] for pair in links]), int(ends[-1])


def unordered(pairs):
    return {frozenset(pair) for pair in np.asarray(pairs).tolist()}


@settings(max_examples=5, deadline=None, derandomize=True)  # shares are bounded of these examples, not of any
@given(st.lists(st.integers(3, 7), min_size=60, max_size=90), st.integers(0, 2**20))
def test_splits_share_no_paper_and_negatives_are_no_links(sizes, seed):
    links, num_papers = families(sizes, seed)
    never = np.random.default_rng(seed).integers(num_papers, size=(200, 2))
    parts, counts = citations.make_splits(links, num_papers, seed, never_negative=never)
    true = {link for link in unordered(links) if len(link) == 2}
    papers, kept = [], 0
    for part in parts:
        pairs = np.stack([part.first, part.second], axis=1)
        positives, negatives = pairs[part.labels == 1], pairs[part.labels == 0]
        papers.append(set(pairs.ravel().tolist()))
        kept += len(positives)
        assert unordered(positives) <= true
        assert len(unordered(positives)) == len(positives) == len(unordered(negatives)) == len(negatives) > 0
        assert not unordered(negatives) & (true | unordered(never))
        assert all(len(pair) == 2 for pair in unordered(negatives))  # no paper with itself
        for side in (0, 1):
            assert Counter(positives[:, side].tolist()) == Counter(negatives[:, side].tolist())
    assert len(set.union(*papers)) == sum(map(len, papers))
    assert counts["links"] == len(true)
    assert counts["links_repeated_or_to_itself_dropped"] == len(links) - len(true)
    dropped = counts["links_between_splits_dropped"] + counts["links_without_negative_dropped"]
    assert kept == len(true) - dropped > 0.8 * len(true)
    assert all(0.02 < len(part.labels) / 2 / kept < 0.25 for part in parts[1:])


@pytest.mark.parametrize(
    "links", [np.empty((0, 2), dtype=int), [(0, number) for number in range(1, 30)], [(0, 0), (1, 2), (3, 4)]]
)
def test_too_few_links_are_an_error(links):
    with pytest.raises(ValueError, match="Give more citations"):
        citations.make_splits(np.array(links), 30)


def test_citations_become_pairs_of_papers_with_text(tmp_path):
    links, num_papers = families([5] * 60, 0)
    rows = [{"id": f"p{paper}", "text": f"paper {paper}" if paper != 7 else ""} for paper in range(num_papers)]
    table = [{"citing": f"p{a}", "cited": f"p{b}"} for a, b in links]
    files = write_table(tmp_path / "papers.parquet", rows), write_table(tmp_path / "links.tsv", table)
    options = CitationArguments(papers_file=str(files[0]), citations_file=str(files[1]))
    pairs = citations.load_citation_pairs(options, seed=3)
    assert pairs.made_here
    assert "p7" not in pairs.ids
    assert pairs.texts == [f"paper {name[1:]}" for name in pairs.ids]
    assert pairs.counts["links_without_text_dropped"] == (links == 7).any(axis=1).sum()
    assert pairs.counts["test_papers_seen_in_training"] == pairs.counts["pairs_without_text_dropped"] == 0
    linked = unordered([[f"p{a}", f"p{b}"] for a, b in links])
    for part in pairs.parts.values():
        for first, second, label in zip(part.first, part.second, part.labels):
            assert ({pairs.ids[first], pairs.ids[second]} in linked) == bool(label)


def test_see_also_lists_are_links_and_not_text(monkeypatch):
    rows = []
    for family in range(60):
        names = [f"kit.mod{family}.target{family}_{member}" for member in range(4)]
        outside = f"kit.mod{(family + 1) % 60}.target{(family + 1) % 60}_0"
        for name in names:
            others = [right for right in names if right != name]
            listed = "\n".join(f"{right.rpartition('.')[2]} : What it says first." for right in others[:-1])
            sections = [
                {"heading": "", "text": f"Prose, see :func:`{outside}`.\n\n.. seealso::\n\n    :func:`{others[-1]}`"},
                {"heading": "See Also", "text": listed},
                {"heading": "Notes", "text": "The end."},
            ]
            rows.append({"id": name, "sections": sections, "links": sorted({*others, outside} - {name})})
            rows[-1] |= {"part": PART_NAMES[0 if family < 40 else 1 + family % 2]}
            rows[-1] |= {"text": "\n\n".join(section["text"] for section in sections)}
    monkeypatch.setattr(citations, "load_corpus", lambda corpus: Dataset.from_list(rows))
    pairs = citations.python_docs_pairs()
    again = citations.load_citation_pairs(CitationArguments(), seed=7)  # no seed draws other documents or pairs
    assert pairs.fingerprint() == again.fingerprint()
    assert (pairs.counts["links"], len(pairs.ids)) == (60 * 6, 240)
    for name, text in zip(pairs.ids, pairs.texts):
        assert f"target{name.split('_')[0].rpartition('target')[2]}_" not in text
        assert "What it says" not in text
        assert text.startswith("Prose, see")
        assert text.endswith("Notes\nThe end.")
    # What a pretraining has read are the documents with their lists: of these the record of an encoder knows.
    assert set(pairs.test_documents) == {row["text"] for row in rows if row["part"] == "test"}
    part_of = {row["id"]: row["part"] for row in rows}
    listed = {(row["id"], target) for row in rows for target in row["links"]}
    for part_name, part in pairs.parts.items():
        for first, second, label in zip(part.first, part.second, part.labels):
            left, right = pairs.ids[first], pairs.ids[second]
            assert part_of[left] == part_of[right] == part_name
            if label:
                assert left.split(".")[1] == right.split(".")[1]
            else:  # what the prose refers to is neither
                assert not {(left, right), (right, left)} & listed
