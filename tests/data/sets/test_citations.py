"""Invariants of the citation pairs: what is read, what the splits share, and what popularity can know of them."""

import json

import bm25s
import numpy as np
import pandas
import pytest
import scipy.sparse
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from docsplit.data.bm25 import bm25_scores
from docsplit.data.sets import citation_splits, citations
from docsplit.data.sets.arguments import CitationArguments
from docsplit.data.sets.citation_splits import PART_NAMES, PairPart
from docsplit.data.sets.citations import CitationPairs
from docsplit.evaluation import links
from tests.data.sets.test_citation_splits import families, unordered

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


def test_bytes_that_are_no_utf8_are_replaced_and_placed(tmp_path, caplog):
    file = write_arena(tmp_path) / "new_aan_pairs.test.tsv"
    file.write_bytes(file.read_bytes().replace(b"three", b"caf\xe9 noir"))
    assert "caf\ufffd noir" in citations.load_long_range_arena(tmp_path).texts
    assert f"1 lines are not UTF-8, the first is {file}, line 1: " in caplog.text
    caplog.clear()
    (tmp_path / "papers.csv").write_bytes(b"id,text\nA,one\nB,caf\xe9 noir\n")
    assert citations._read_table(tmp_path / "papers.csv")["text"][:] == ["one", "caf\ufffd noir"]
    assert f"1 lines are not UTF-8, the first is {tmp_path / 'papers.csv'}, line 3: " in caplog.text


@pytest.mark.parametrize(("prefix", "end"), [("new_aan_pairs.", "\n"), ("", "\r\n")])
def test_long_range_arena_is_read_with_each_paper_once(tmp_path, prefix, end):
    pairs = citations.load_long_range_arena(write_arena(tmp_path, prefix=prefix, end=end))
    texts = dict(zip(pairs.ids, pairs.texts))
    assert texts == {
        "A00-1": 'It\'s a "quote"\nand café',
        "0012": 'plain "text, unbalanced',
        "X": "don't �",
        "V1": "b'a' and 'b'",
        "V2": "two",
        "V3": "a\rb c",
        "T1": "three",
    }
    assert len(pairs.ids) == 7
    read = {
        name: [
            (label, pairs.ids[first], pairs.ids[second])
            for label, first, second in zip(part.labels, part.first, part.second)
        ]
        for name, part in zip(PART_NAMES, (pairs.train, pairs.validation, pairs.test))
    }
    assert read == {
        name: [(int(float(label)), one, two) for label, one, two, *_ in LINES[file]]
        for name, file in zip(PART_NAMES, LINES)
    }
    assert pairs.counts["papers_with_other_texts_later"] == 3  # X, 0012 and A00-1, in the test file
    assert pairs.counts["test_papers_seen_in_training"] == 3
    assert pairs.counts["test_pairs_seen_in_training"] == 1  # (0012, A00-1) and (A00-1, 0012)
    assert not pairs.made_here


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (("1", "a", "b", "text"), r"new_aan_pairs\.eval\.tsv, line 3 has 4 fields .* expected 5"),
        (("1", "a", "b", "text", "tab", "in it"), "line 3 has 6 fields"),
        (("2", "a", "b", "text", "text"), r"new_aan_pairs\.eval\.tsv, line 3: the label is '2'"),
        (("label", "id1", "id2", "text1", "text2"), "the label is 'label', expected 0 or 1"),
    ],
)
def test_lines_that_cannot_be_understood_are_named(tmp_path, line, message):
    write_arena(tmp_path, LINES | {"eval": [*LINES["eval"], line]})
    with pytest.raises(ValueError, match=message):
        citations.load_long_range_arena(tmp_path)


def test_a_missing_or_doubled_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"one file \*train\.tsv, found none"):
        citations.load_long_range_arena(tmp_path)
    write_arena(tmp_path)
    (tmp_path / "old_train.tsv").write_text("")
    with pytest.raises(ValueError, match=r"found new_aan_pairs\.train\.tsv, old_train\.tsv"):
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
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
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
    [(".csv", ".tsv", str), (".jsonl", ".csv", str), (".parquet", ".jsonl", int), (".jsonl", ".parquet", float)],
)
def test_a_table_of_papers_and_pairs_of_ids(tmp_path, papers_suffix, pairs_suffix, number, caplog):
    papers = write_table(tmp_path / f"papers{papers_suffix}", PAPERS)
    pairs = citations.load_pair_files(papers, *write_pairs(tmp_path, pairs_suffix, number=number))
    assert dict(zip(pairs.ids, pairs.texts)) == {
        "0012": "T12\n\nA12\n\nbody 12",
        "12": "body 0",
        "x": "Tx\n\nAx",
        "y": "Ty\n\nsays NA",
    }
    assert [(pairs.ids[a], pairs.ids[b]) for a, b in zip(pairs.train.first, pairs.train.second)] == [
        ("0012", "12"),
        ("12", "x"),
    ]
    assert pairs.train.labels.tolist() == [1, 0]
    assert pairs.counts == {
        "papers_with_repeated_id_dropped": 1,
        "papers_without_text": 1,
        "pairs_without_text_dropped": 1,
        "papers_without_pair_dropped": 2,
        "test_papers_seen_in_training": 3,
        "test_pairs_seen_in_training": 1,
    }
    assert "Dropped 1 pairs" in caplog.text


def test_sections_are_the_text_where_there_is_none(tmp_path):
    rows = [{"id": name, "title": name, "sections": [{"heading": "H", "text": "words"}]} for name in "abcd"]
    papers = write_table(tmp_path / "papers.parquet", rows)
    files = write_pairs(tmp_path, ".tsv", {name: [("1", "a", "b"), ("0", "c", "d")] for name in PART_NAMES})
    assert citations.load_pair_files(papers, *files).texts[0] == "a\n\nH\n\nwords"


@pytest.mark.parametrize(
    ("papers", "pairs", "message"),
    [
        (PAPERS, PAIRS | {"test": [("1", "0012", "nobody"), ("0", "q", "x")]}, r"test\.tsv names 2 ids .* nobody, q"),
        (PAPERS, PAIRS | {"test": [("1", "0012", "x"), ("3", "12", "x")]}, r"test\.tsv, pair 2: the label is '3'"),
        (PAPERS, PAIRS | {"validation": [("1", "0012", "x")]}, r"validation split has 1 pairs with the labels \[1\]"),
        ([{"id": "a", "body": "b"}], PAIRS, "needs a column id, and title, abstract, text or sections"),
        ([{"name": "a", "text": "b"}], PAIRS, "needs a column id"),
    ],
)
def test_tables_that_do_not_fit_are_named(tmp_path, papers, pairs, message):
    files = [write_table(tmp_path / "papers.jsonl", papers), *write_pairs(tmp_path, ".tsv", pairs)]
    with pytest.raises(ValueError, match=message):
        citations.load_pair_files(*files)


def test_missing_files_and_columns_are_named(tmp_path):
    papers = write_table(tmp_path / "papers.jsonl", PAPERS)
    with pytest.raises(ValueError, match=r"no file .*nothing\.tsv"):
        citations.load_citations(papers, tmp_path / "nothing.tsv")
    links = write_table(tmp_path / "links.tsv", [{"from": "x", "to": "y"}])
    with pytest.raises(ValueError, match=r"needs columns citing, cited; \['cited', 'citing'\] not in"):
        citations.load_citations(papers, links)
    (tmp_path / "void.tsv").write_text("")
    with pytest.raises(ValueError, match=r"Cannot read .*void\.tsv"):
        citations.load_citations(papers, tmp_path / "void.tsv")


# --- Pairs of ours -------------------------------------------------------------------------------------------------


def test_citations_become_pairs_of_papers_with_text(tmp_path, caplog):
    links, num_papers = families([5] * 60, 0)
    rows = [{"id": f"p{paper}", "text": f"paper {paper}" if paper != 7 else ""} for paper in range(num_papers)]
    table = [{"citing": f"p{a}", "cited": f"p{b}"} for a, b in links]
    files = write_table(tmp_path / "papers.parquet", rows), write_table(tmp_path / "links.tsv", table)
    pairs = citations.load_citations(*files, seed=3)
    assert pairs.made_here
    assert "p7" not in pairs.ids
    assert pairs.texts == [f"paper {name[1:]}" for name in pairs.ids]
    assert pairs.counts["links_without_text_dropped"] == (links == 7).any(axis=1).sum()
    assert pairs.counts["test_papers_seen_in_training"] == pairs.counts["pairs_without_text_dropped"] == 0
    linked = unordered([[f"p{a}", f"p{b}"] for a, b in links])
    for part in (pairs.train, pairs.validation, pairs.test):
        for first, second, label in zip(part.first, part.second, part.labels):
            assert ({pairs.ids[first], pairs.ids[second]} in linked) == bool(label)


def test_see_also_lists_are_links_and_not_text(monkeypatch):
    rows = []
    for family in range(60):
        names = [f"kit.mod{family}.target{family}_{member}" for member in range(4)]
        outside = f"kit.mod{(family + 1) % 60}.target{(family + 1) % 60}_0"
        for name in names:
            others = [other for other in names if other != name]
            listed = "\n".join(f"{other.rpartition('.')[2]} : What it says first." for other in others[:-1])
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
    assert (
        pairs.fingerprint() == citations.load_citation_pairs(CitationArguments(), seed=7).fingerprint()
    )  # no seed draws other documents or pairs
    part_of = {row["id"]: row["part"] for row in rows}
    for name, part in pairs.parts.items():
        assert {part_of[pairs.ids[paper]] for paper in [*part.first, *part.second]} == {name}
    assert pairs.counts["links"] == 60 * 6
    assert len(pairs.ids) == 240
    listed = {(row["id"], target) for row in rows for target in row["links"]}
    for name, text in zip(pairs.ids, pairs.texts):
        family = int(name.split("_")[0].removeprefix("kit.mod").split(".")[0])
        assert f"target{family}_" not in text
        assert "What it says" not in text
        assert "Prose, see" in text
        assert text.endswith("Notes\nThe end.")
    # What a pretraining has read are the documents with their lists: of these the record of an encoder knows.
    tested = {row["text"] for row in rows if row["part"] == "test"}
    assert set(pairs.test_documents) == tested
    assert not tested & set(pairs.texts)
    for part in (pairs.train, pairs.validation, pairs.test):
        for first, second, label in zip(part.first, part.second, part.labels):
            one, other = pairs.ids[first], pairs.ids[second]
            if label:
                assert one.split(".")[1] == other.split(".")[1]
            else:  # what the prose refers to is neither
                assert (one, other) not in listed
                assert (other, one) not in listed


# --- Popularity ----------------------------------------------------------------------------------------------------


def accuracy(scores, labels):
    return float(np.mean((scores >= 0.5) == labels))


def as_pairs(parts):
    return CitationPairs([], [], *parts, counts={}, made_here=True)


def mixed_graph(seed):
    """Families of all sizes, in which degrees resemble each other, and hubs that many papers of one field cite."""
    rng = np.random.default_rng(seed)
    links, num_papers = families(rng.integers(3, 11, size=120).tolist(), seed)
    fields = []
    for _ in range(40):
        fields += [(num_papers + rng.integers(1 + paper // 4), num_papers + paper) for paper in range(1, 15)]
        num_papers += 15
    return np.concatenate([links, fields]), num_papers


def popularity_over_seeds(num_seeds):
    right = number = 0
    for seed in range(num_seeds):
        pairs = as_pairs(citation_splits.make_splits(*mixed_graph(seed), seed)[0])
        right += round(accuracy(links.popularity(pairs, seed), pairs.test.labels) * len(pairs.test.labels))
        number += len(pairs.test.labels)
    return right / number, number


def permuted_seconds(positives, num_papers, forbidden, generator):
    return generator.permutation(positives[:, 1]), np.ones(len(positives), dtype=bool)


def test_popularity_is_at_chance_on_splits_made_here(monkeypatch):
    share, number = popularity_over_seeds(6)
    margin = norm.ppf(0.9995) / 2 / np.sqrt(number)
    assert number > 2000
    assert abs(share - 0.5) < margin
    # Not so if second papers are permuted whatever their degrees: each still is in as many negatives as positives.
    monkeypatch.setattr(citation_splits, "rewire_negatives", permuted_seconds)
    share, _ = popularity_over_seeds(3)
    assert share > 0.5 + 2 * margin


def hub_pairs(seed, num_papers=400, num_pairs=600):
    """Positives that cite popular papers, negatives of any two, and papers in all three splits."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, num_papers + 1)
    parts = []
    for size in (num_pairs, num_pairs // 2, num_pairs // 2):
        cited = rng.choice(num_papers, size, p=weights / weights.sum())
        labels = np.repeat([1, 0], [size // 2, size - size // 2])
        second = np.where(labels == 1, cited, rng.integers(num_papers, size=size))
        parts.append(PairPart(rng.integers(num_papers, size=size), second, labels))
    return as_pairs(parts)


def test_popularity_sees_hubs_where_negatives_are_free():
    pairs = hub_pairs(0)
    found = accuracy(links.popularity(pairs), pairs.test.labels)
    assert found > 0.65
    assert "make splits with --citations_file" in links.popularity_warning(found, len(pairs.test.labels))
    np.testing.assert_array_equal(links.popularity(pairs, seed=1), links.popularity(pairs, seed=1))


def test_popularity_learns_ids_that_are_in_several_splits():
    """Each paper is in pairs of one label only, and all are equally frequent: only the training labels tell."""
    rng = np.random.default_rng(0)
    parts = []
    for _ in PART_NAMES:
        linked, unlinked = rng.permutation(200).reshape(2, 100), 200 + rng.permutation(200).reshape(2, 100)
        parts.append(PairPart(*np.concatenate([linked, unlinked], axis=1), np.repeat([1, 0], 100)))
    pairs = as_pairs(parts)
    assert accuracy(links.popularity(pairs), pairs.test.labels) == 1.0


def test_popularity_features_are_counts_and_no_labels_of_the_part():
    pairs = hub_pairs(1, num_pairs=60)
    part, train = pairs.test, pairs.train
    features = links.popularity_features(part, train)
    train_pairs = list(zip(train.first, train.second, train.labels))
    for row, pair in zip(features, zip(part.first, part.second)):
        expected = []
        for paper in pair:
            first, second = (part.first == paper).sum(), (part.second == paper).sum()
            seen = [sum((a == paper) + (b == paper) for a, b, y in train_pairs if y == label) for label in (1, 0)]
            expected += [first, second, first + second, *seen]
        np.testing.assert_allclose(row[:10], np.log1p(expected))
        one, other = row[2], row[7]
        np.testing.assert_allclose(row[10:], [abs(one - other), min(one, other), max(one, other), one * other])
    flipped = PairPart(part.first, part.second, 1 - part.labels)
    np.testing.assert_array_equal(features, links.popularity_features(flipped, train))


@pytest.mark.parametrize(
    ("share", "number", "chance", "warned"),
    [
        (0.5, 1000, 0.5, False),
        (0.53, 1000, 0.5, False),
        (0.55, 1000, 0.5, True),
        (0.55, 100, 0.5, False),
        (0.7, 1000, 0.7, False),
        (0.4, 1000, 0.5, False),
    ],
)
def test_the_warning_needs_more_than_noise(share, number, chance, warned):
    assert bool(links.popularity_warning(share, number, chance)) == warned


# --- Cosine, BM25, thresholds --------------------------------------------------------------------------------------


@pytest.fixture
def part():
    rng = np.random.default_rng(0)
    first, second = rng.integers(30, size=(2, 50))
    return PairPart(first, second, rng.integers(2, size=50))


def test_cosine_of_dense_and_sparse_embeddings(part, monkeypatch):
    monkeypatch.setattr(citation_splits, "CHUNK_PAIRS", 7)
    embeddings = np.random.default_rng(1).standard_normal((30, 8)).astype(np.float32)
    embeddings[part.first[0]] = 0
    expected = []
    for a, b in zip(embeddings[part.first].astype(np.float64), embeddings[part.second].astype(np.float64)):
        norms = np.linalg.norm(a) * np.linalg.norm(b)
        expected.append(a @ b / norms if norms else 0.0)
    np.testing.assert_allclose(links.cosine_scores(embeddings, part), expected, atol=1e-6)
    np.testing.assert_allclose(links.cosine_scores(scipy.sparse.csr_matrix(embeddings), part), expected, atol=1e-6)


def test_bm25_is_that_of_each_paper_as_a_query_for_the_other(part, corpus, monkeypatch):
    monkeypatch.setattr(citation_splits, "CHUNK_PAIRS", 7)
    texts = [*corpus["text"][:28], "the of and", "?"]  # the last two have no term
    part.first[:2], part.second[2:4] = 28, 29
    scores = bm25_scores(texts, part)
    retriever = bm25s.BM25()
    words = bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)
    retriever.index(words, show_progress=False)
    by_query = [retriever.get_scores(query) if query else np.zeros(30) for query in words]
    expected = [(by_query[a][b] + by_query[b][a]) / 2 for a, b in zip(part.first, part.second)]
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    assert np.std(scores) > 0
    np.testing.assert_array_equal(scores, bm25_scores(texts, PairPart(part.second, part.first, part.labels)))


@given(st.lists(st.tuples(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 0.5000001, 3.0]), st.integers(0, 1)), min_size=1))
def test_no_threshold_is_better_than_the_best(pairs):
    scores, labels = np.array([score for score, _ in pairs]), np.array([label for _, label in pairs])
    found = np.mean((scores >= links.best_threshold(scores, labels)) == labels)
    assert found == max(np.mean((scores >= bound) == labels) for bound in [*scores, np.inf])


def test_scores_that_are_no_numbers_have_no_threshold():
    with pytest.raises(ValueError, match="1 of 2 scores"):
        links.best_threshold(np.array([0.1, np.nan]), np.array([0, 1]))


def test_pair_features_are_both_embeddings_in_order(part):
    embeddings = np.arange(60.0).reshape(30, 2)
    for row, a, b in zip(links.pair_features(embeddings, part), part.first, part.second):
        assert row.tolist() == [2 * a, 2 * a + 1, 2 * b, 2 * b + 1]


# --- Real papers ---------------------------------------------------------------------------------------------------


def test_popularity_is_at_chance_on_real_citations(real_data):
    papers, links = real_data / "aan" / "papers.parquet", real_data / "aan" / "citations.tsv"
    given_pairs = citations.load_pair_files(papers, *(real_data / "aan" / f"{name}_pairs.tsv" for name in PART_NAMES))
    for pairs in (given_pairs, citations.load_citations(papers, links, seed=0)):
        found = accuracy(links.popularity(pairs), pairs.test.labels)
        assert links.popularity_warning(found, len(pairs.test.labels)) is None
        assert pairs.counts["test_papers_seen_in_training"] == 0
        assert len(pairs.test.labels) > 800
    assert pairs.counts["links_between_splits_dropped"] < 0.25 * pairs.counts["links"]
