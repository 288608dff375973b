"""Rankings are read as BEIR writes them; what does not fit together is counted and said, or refused."""

import json
import time

import numpy as np
import pytest

from docsplit.data.sets.arguments import RankingArguments
from docsplit.data.sets.ranking_files import Source
from docsplit.data.sets.rankings import Retrieved, assemble, load_collection, other_queries


def write(folder, judgments, qrels="qrels.tsv", documents=(), queries=()):
    documents = [
        {"_id": "a", "title": "ships", "text": "ships sail ."},
        {"_id": "b", "title": "Bread", "text": "Flour."},
        {"_id": "c", "title": "", "text": "Salt."},
        *documents,
    ]
    queries = [{"_id": "1", "text": "sail"}, {"_id": "2", "text": "oven"}, *queries]
    for name, rows in {"corpus": documents, "queries": queries}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / qrels).parent.mkdir(exist_ok=True)
    (folder / qrels).write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{row}\n" for row in judgments))
    return str(folder)


@pytest.mark.parametrize("qrels", ["qrels.tsv", "qrels/test.tsv", "qrels/dev.tsv"])
def test_documents_queries_and_grades(tmp_path, qrels):
    ranking = load_collection(RankingArguments(write(tmp_path, ["1\ta\t3", "1\tc\t0", "2\tb\t0"], qrels)))
    assert ranking.documents == ["ships sail .", "Bread\n\nFlour.", "Salt."]
    assert (ranking.query_ids, ranking.queries) == (["1"], ["sail"])  # nothing is relevant to the other
    assert ranking.judgments == {"1": {"a": 3, "c": 0}}
    assert ranking.relevant_documents == ["ships sail ."]
    assert ranking.counts["queries_without_relevant_document"] == 1
    assert ranking.notes == ["1 queries have no relevant document and are left out, such as 2."]


@pytest.mark.parametrize(
    ("change", "count", "note"),
    [
        ({"judgments": ["1\tz\t1"]}, "judgments_of_unknown_documents", "such as 1 z"),
        ({"judgments": ["9\ta\t1"]}, "judgments_of_unknown_queries", "such as 9 a"),
        ({"judgments": ["1\ta\t2"]}, "judgments_contradicted", "such as 1 a"),
        ({"queries": [{"_id": "3", "text": " "}], "judgments": ["3\ta\t1"]}, "queries_empty", "such as 3"),
        ({"queries": [{"_id": "3", "text": "x"}]}, "queries_without_judgment", "such as 3"),
        ({"queries": [{"_id": "2", "text": "oven"}]}, "queries_repeated", "such as 2"),
        ({"documents": [{"_id": "d", "title": "", "text": ""}]}, "documents_empty", "such as d"),
        ({"documents": [{"_id": "c", "title": "", "text": "Salt."}]}, "documents_repeated", "such as c"),
    ],
)
def test_each_defect_has_one_count_and_one_line(tmp_path, caplog, change, count, note):
    change = dict(change)
    judgments = ["1\ta\t1", "2\tb\t1", *change.pop("judgments", [])]
    ranking = load_collection(RankingArguments(write(tmp_path, judgments, **change)))
    assert {name for name, number in ranking.counts.items() if number} == {count}
    assert ranking.counts[count] == len(ranking.notes) == 1
    assert note in ranking.notes[0]
    assert caplog.text.count(ranking.notes[0]) == 1
    assert ranking.query_ids == ["1", "2"]


def test_what_is_judged_and_not_there_stays_relevant(tmp_path):
    ranking = load_collection(RankingArguments(write(tmp_path, ["1\ta\t1", "1\tz\t3", "1\ta\t2"])))
    assert ranking.judgments == {"1": {"a": 2, "z": 3}}
    assert ranking.relevant_documents == ["ships sail ."]


@pytest.mark.parametrize(
    ("judgments", "change", "message"),
    [
        (["1\tz\t1"], {}, r"judges document z for query 1.*do the files belong together"),
        (["1\ta\t0"], {}, r"of 2 queries 0 with a text and a relevant document"),
        (
            ["1\ta\t1"],
            {"documents": [{"_id": "a", "title": "", "text": "x"}]},
            "a document whose id another text",
        ),
        (["1\ta\t1"], {"queries": [{"_id": "1", "text": "x"}]}, "a query whose id another text"),
        (["1\ta\tyes"], {}, "has the grade 'yes'"),
        (["1\ta\t0.5"], {}, "has the grade '0.5'"),
        (["1\ta\tinf"], {}, "has the grade 'inf'"),
        (["1 a 1"], {}, "has 1 fields, expected 3"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, judgments, change, message):
    folder = write(tmp_path, judgments, **change)
    with pytest.raises(ValueError, match=message):
        load_collection(RankingArguments(folder))


def test_missing_files_columns_and_splits_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"should hold corpus\.jsonl"):
        load_collection(RankingArguments(str(tmp_path)))
    folder = write(tmp_path, ["1\ta\t1"], "qrels/dev.tsv")
    write(tmp_path, ["2\tb\t1"], "qrels/train.tsv")
    with pytest.raises(ValueError, match="found dev, train: name one"):
        load_collection(RankingArguments(folder))
    dev = load_collection(RankingArguments(folder, split="dev"))
    assert dev.query_ids == ["1"]
    others = other_queries(dev, RankingArguments(folder, "train"), 0)
    assert (others.query_ids, others.documents) == (["2"], dev.documents)
    with pytest.raises(ValueError, match="is a file: give the folder"):
        load_collection(RankingArguments(f"{folder}/corpus.jsonl"))
    (tmp_path / "queries.jsonl").write_text('{"id": "1", "text": "sail"}\n')
    with pytest.raises(ValueError, match="needs the column _id"):
        load_collection(RankingArguments(folder, split="dev"))


def test_queries_are_drawn_with_the_seed(tmp_path):
    queries = [{"_id": f"q{number}", "text": f"word {number}"} for number in range(40)]
    folder = write(tmp_path, [f"q{number}\ta\t1" for number in range(40)], queries=queries)
    drawn = [load_collection(RankingArguments(folder, max_queries=10), seed=seed) for seed in (0, 0, 1)]
    assert drawn[0].query_ids == drawn[1].query_ids != drawn[2].query_ids
    assert all(len(ranking.query_ids) == len(ranking.queries) == len(ranking.judgments) == 10 for ranking in drawn)
    assert drawn[0].notes[-1] == "10 of 40 queries are drawn (--max_queries)."
    assert drawn[0].fingerprint() == drawn[1].fingerprint() != drawn[2].fingerprint()


def test_a_weight_is_never_chosen_on_what_is_reported(tmp_path):
    """Under whatever name: without --split the reported ones are those of test."""
    queries = [{"_id": f"q{number}", "text": f"word {number}"} for number in range(10)]
    folder = write(tmp_path, ["1\ta\t1", "q0\ta\t1"], "qrels/test.tsv", queries=queries)
    write(tmp_path, [f"q{number}\ta\t1" for number in range(10)], "qrels/train.tsv", queries=queries)
    write(tmp_path, [f"q{number}\ta\t1" for number in range(1, 10)], "qrels/dev.tsv", queries=queries)
    ranking = load_collection(RankingArguments(folder))
    for split, count in (("test", 2), ("train", 1)):
        with pytest.raises(ValueError, match=f"{split} has {count} of the queries that are reported"):
            other_queries(ranking, RankingArguments(folder, split), 0)
    assert len(other_queries(ranking, RankingArguments(folder, "dev", max_queries=4), 0).query_ids) == 4
    assert ranking.notes[-1] == "4 of 9 queries are drawn (--selection_split dev)."


def test_many_queries_take_linear_time():
    names = [str(number) for number in range(20_000)]
    source = Source("many", [("d", "text")], [(name, name) for name in names], [(name, "d", 1) for name in names])
    started = time.process_time()
    assert assemble(source).query_ids == names
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"title": 1984}, "1984\n\nText."),
        ({"title": None}, "Text."),
        ({"title": ["Two", "lines"]}, "Two\nlines\n\nText."),
        ({"text": 5, "title": ""}, "5"),
        ({"text": None, "title": "T"}, "T"),
        ({"text": "a \ud800 ship"}, "a   ship"),
    ],
)
def test_titles_and_texts_of_other_types_are_texts(tmp_path, row, text):
    row = {"_id": 7, "text": "Text."} | row
    ranking = load_collection(RankingArguments(write(tmp_path, ["1\t7\t1"], documents=[row])))
    assert dict(zip(ranking.document_ids, ranking.documents))["7"] == text


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"title": {"a": 1}}, r"corpus\.jsonl, row 4: title is {'a': 1}, expected a text"),
        ({"title": float("nan")}, r"corpus\.jsonl, row 4: title is nan"),
        *(({"_id": value}, r"corpus\.jsonl, row 4: _id is ") for value in (None, "", 1.5, [1], True)),
        (5, r"corpus\.jsonl, line 4 is no JSON objects: found int"),
    ],
)
def test_a_row_that_cannot_be_taken_is_named(tmp_path, row, message):
    row = {"_id": "d", "text": "Text."} | row if isinstance(row, dict) else row
    with pytest.raises(ValueError, match=message):
        load_collection(RankingArguments(write(tmp_path, ["1\ta\t1"], documents=[row])))


def test_damaged_files_of_a_collection_are_named(tmp_path, caplog):
    folder = write(tmp_path, ["1\ta\t1"])
    (tmp_path / "queries.jsonl").write_bytes(b'{"_id": "1", "text": "caf\xe9"}\n')
    assert load_collection(RankingArguments(folder)).queries == ["caf\N{REPLACEMENT CHARACTER}"]
    assert "no UTF-8: 1, the first is " in caplog.text
    assert "queries.jsonl, line 1." in caplog.text
    (tmp_path / "queries.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"queries\.jsonl has no rows"):
        load_collection(RankingArguments(folder))
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "sail"}\n{"_id"')
    with pytest.raises(ValueError, match=r"queries\.jsonl, line 2 is no JSON: Expecting ':'"):
        load_collection(RankingArguments(folder))
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "sail"}\n')
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t1e300\n")
    with pytest.raises(ValueError, match=r"has the grade '1e300'"):
        load_collection(RankingArguments(folder))
    (tmp_path / "qrels.tsv").rename(tmp_path / "qrels.tsv.gz")
    with pytest.raises(ValueError, match=r"qrels\.tsv\.gz cannot be opened: Not a gzipped file"):
        load_collection(RankingArguments(folder))


def test_a_query_that_is_a_document_of_the_collection_knows_its_row(tmp_path):
    """As in ArguAna and Quora: id and text agree, with the title or without it; of Cranfield only ids agree."""
    queries = [
        {"_id": "a", "text": "ships  sail ."},  # its title begins its text
        {"_id": "b", "text": "Flour."},
        {"_id": "c", "text": "Bread"},  # the id of another text
        {"_id": "d", "text": "Rye\n\nAnd  water."},
        {"_id": "e", "text": "Oats."},  # judged relevant to itself
        {"_id": "f", "text": "Salt."},  # the text of another id
    ]
    documents = [
        {"_id": "d", "title": "Rye", "text": "And water."},
        {"_id": "e", "title": "Porridge", "text": "Oats."},
    ]
    folder = write(tmp_path, [f"{query}\tc\t1" for query in "abdf"] + ["c\ta\t1", "e\te\t1", "b\tb\t0"],
                   queries=queries, documents=documents)  # fmt: skip
    ranking = load_collection(RankingArguments(folder))
    assert (ranking.query_ids, ranking.own.tolist()) == ([*"abcdef"], [0, 1, -1, 3, -1, -1])
    assert ranking.with_queries([3, 2, 0]).own.tolist() == [3, -1, 0]
    assert ranking.counts["own_documents_left_out"] == 3
    assert "3 queries do not find the document of their own id and text, such as a." in ranking.notes
    as_beir = load_collection(RankingArguments(folder, ignore_identical_ids=True))
    assert as_beir.own.tolist() == [0, 1, 2, 3, 4, -1]
    assert as_beir.counts["own_documents_judged_relevant"] == 1
    assert as_beir.fingerprint() != ranking.fingerprint()


def test_a_document_is_left_out_of_the_list_of_a_query_as_by_a_loop():
    rng = np.random.default_rng(0)
    rows = np.stack([rng.permutation(9)[:7] for _ in range(30)])
    rows[4, 3:] = rows[5] = -1
    scores, own = -np.sort(-rng.normal(size=rows.shape), axis=1), rng.integers(-1, 9, len(rows))
    for depth in (3, 7):
        left = Retrieved(rows, scores).without(own, depth)
        for query, (document, found, values) in enumerate(zip(own, rows.tolist(), scores.tolist())):
            kept = [(row, score) for row, score in zip(found, values) if row < 0 or row != document]
            assert list(zip(left.rows[query], left.scores[query])) == [*kept, (-1, -np.inf)][:depth]
