"""Rankings are read as their makers write them, or made of a corpus; what does not fit is counted, or refused."""

import gzip
import json

import datasets
import numpy as np
import pytest

from docsplit.data.passages import split_sections, to_passages
from docsplit.data.readers.rows import headings_of, join_sections
from docsplit.data.sets import rankings
from docsplit.data.sets.arguments import RankingArguments
from docsplit.data.sets.rankings import (
    Ranking,
    Retrieved,
    Row,
    build,
    by_first_sentence,
    divide,
    load_collection,
    make_folds,
    other_queries,
    split_of,
)


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


@pytest.mark.parametrize(
    ("judgments", "change", "message"),
    [
        (["1\tz\t1"], {}, r"judges document z for query 1.*do the files belong together"),
        (["1\ta\t0"], {}, r"of 2 queries 0 with a text and a relevant document"),
        (
            ["1\ta\t1"],
            {"documents": [{"_id": "a", "title": "", "text": "x"}]},
            "two texts of the id a",
        ),
        (["1\ta\t1"], {"queries": [{"_id": "1", "text": "x"}]}, "two texts of the id 1"),
        (["1\ta\tyes"], {}, "has the grade 'yes'"),
        (["1\ta\t0.5"], {}, "has the grade '0.5'"),
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
    with pytest.raises(ValueError, match="is a file: name a folder"):
        load_collection(RankingArguments(f"{folder}/corpus.jsonl"))
    (tmp_path / "queries.jsonl").write_text('{"id": "1", "text": "sail"}\n')
    with pytest.raises(ValueError, match="row 1: _id is None"):
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


def test_damaged_files_of_a_collection_are_named(tmp_path, caplog):
    folder = write(tmp_path, ["1\ta\t1"])
    (tmp_path / "queries.jsonl").write_bytes(b'{"_id": "1", "text": "caf\xe9"}\n')
    assert load_collection(RankingArguments(folder)).queries == ["café"]
    assert "cp1252, it seems" in caplog.text
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "sail"}\n{"_id"')
    with pytest.raises(ValueError, match=r"queries\.jsonl, line 2 .*that are no JSON: Expecting ':'"):
        load_collection(RankingArguments(folder))
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "sail"}\n')
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


# --- Formats of others ---


def test_ms_marco(tmp_path):
    with gzip.open(tmp_path / "msmarco-docs.tsv.gz", "wt") as file:
        file.write('D1\thttp://a\tShips\tA "ship sails.\nD2\thttp://b\t\tBread\n')
    (tmp_path / "msmarco-docdev-queries.tsv").write_text("7\twhat sails\n8\tnot judged\n")
    (tmp_path / "msmarco-docdev-qrels.tsv").write_text("7 0 D1 1\n")
    (tmp_path / "msmarco-test2019-queries.tsv").write_text("9\tbread\n")
    (tmp_path / "2019qrels-docs.txt").write_text("9 Q0 D2 3\n9 Q0 D1 0\n")
    dev = load_collection(RankingArguments(str(tmp_path), split="dev"))
    assert dev.documents == ['Ships\n\nA "ship sails.', "Bread"]
    assert dict(zip(dev.query_ids, dev.queries)) == {"7": "what sails"}
    assert dev.counts["queries_without_judgment"] == 1
    assert load_collection(RankingArguments(str(tmp_path), split="dl19")).judgments == {"9": {"D2": 3, "D1": 0}}
    with pytest.raises(ValueError, match="found dev, dl19: name one"):
        load_collection(RankingArguments(str(tmp_path)))
    with pytest.raises(ValueError, match="--split train, found dev, dl19"):
        load_collection(RankingArguments(str(tmp_path), split="train"))
    (tmp_path / "msmarco-docdev-qrels.tsv").write_text("7 0 D1 1\n7 0 D1\n")
    with pytest.raises(ValueError, match=r"docdev-qrels\.tsv, line 2 has 3 fields, expected 4"):
        load_collection(RankingArguments(str(tmp_path), split="dev"))


def test_wikir(tmp_path):
    (tmp_path / "documents.csv").write_text('id_right,text_right\n0012,"ships, and ""sails"""\n5,NA\n')
    for folder, query in {"training": "1", "validation": "2", "test": "3"}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "queries.csv").write_text(f"id_left,text_left\n{query},query {query}\n")
        (tmp_path / folder / "qrels").write_text(f"{query}\t0\t0012\t2\n{query}\t0\t5\t1\n")
    ranking = load_collection(RankingArguments(str(tmp_path)))
    assert ranking.document_ids == ["0012", "5"]
    assert ranking.documents == ['ships, and "sails"', "NA"]
    assert ranking.judgments == {"3": {"0012": 2, "5": 1}}
    assert load_collection(RankingArguments(str(tmp_path), split="train")).queries == ["query 1"]
    assert ranking.notes == ["documents.csv has no sections: documents.jsonl can have them (docs/datasets.md)."]
    (tmp_path / "documents.csv").unlink()
    sections = [{"heading": "Ships", "text": "They sail."}, {"heading": "Use", "text": "Trade."}]
    rows = [{"id_right": "0012", "sections": sections}, {"id_right": "5", "text_right": "NA"}]
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ranking = load_collection(RankingArguments(str(tmp_path)))
    assert split_sections(ranking.documents[0]) == ["Ships\n\nThey sail.\n\n", "Use\n\nTrade."]
    assert (ranking.documents[1], ranking.notes) == ("NA", [])
    (tmp_path / "documents.jsonl").write_text('{"id_right": "5"}\n')
    with pytest.raises(ValueError, match="needs the column text_right"):
        load_collection(RankingArguments(str(tmp_path)))


TREC = """<DOC>
<DOCNO> FT911-3 </DOCNO>
<HEADLINE>FT  14 MAY 91 / Ships &amp; sails</HEADLINE>
<TEXT>
<P>A <F P=102>ship</F> sails.</P>  <!-- PJG 0012 frnewline -->
</TEXT>
</DOC>
<doc><docno>LA-1</docno><text>One.</text><text>Two.</text></doc>
<DOC><DOCNO>X</DOCNO>No text &lt; here.</DOC>
"""


TOPICS = """<top>
<num> Number: 301
<title> International Organized
 Crime

<desc> Description:
Identify organizations.
</top>
<top>
<num> Number: 302
<title> Topic: Polio
</top>
"""


def test_trec(tmp_path):
    (tmp_path / "documents" / "ft").mkdir(parents=True)
    (tmp_path / "documents" / "ft" / "ft911").write_bytes(TREC.replace("One", "Café").encode("latin-1"))
    (tmp_path / "documents" / "readme").write_text("Read me.")
    (tmp_path / "topics.robust04.txt").write_text(TOPICS)
    (tmp_path / "qrels.robust04.txt").write_text("301 0 FT911-3 1\n301 0 LA-1 0\n302 0 X 2\n")
    ranking = load_collection(RankingArguments(str(tmp_path)))
    texts = ["FT 14 MAY 91 / Ships & sails\n\nA ship sails.", "Café.\n\nTwo.", "No text < here."]
    assert dict(zip(ranking.document_ids, ranking.documents)) == dict(zip(["FT911-3", "LA-1", "X"], texts))
    assert dict(zip(ranking.query_ids, ranking.queries)) == {"301": "International Organized Crime", "302": "Polio"}
    assert ranking.judgments == {"301": {"FT911-3": 1, "LA-1": 0}, "302": {"X": 2}}
    assert [note.split(",")[0] for note in ranking.notes] == [
        f"1 files of {tmp_path / 'documents'} have no <DOC> and are not read",
        f"1 documents of {tmp_path / 'documents'} have no <TEXT>: all that they have is read.",
    ]
    with pytest.raises(ValueError, match="no --split dev"):
        load_collection(RankingArguments(str(tmp_path), split="dev"))


def test_topics_keep_their_own_titles(tmp_path):
    """One without a title does not take the next one's; tags may be closed; a byte order mark is no part of an id."""
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "one").write_text("<DOC><DOCNO>A</DOCNO><TEXT>Text.</TEXT></DOC>")
    (tmp_path / "topics").write_text(
        "<top><num> Number: 1 <desc> No title.</top><top><num>2</num><title>Two</title></top>"
    )
    (tmp_path / "qrels").write_text("2 0 A 1\n1 0 A 1\n", encoding="utf-8-sig")
    ranking = load_collection(RankingArguments(str(tmp_path)))
    assert dict(zip(ranking.query_ids, ranking.queries)) == {"2": "Two"}
    assert ranking.notes == ["1 judgments are of queries that are not there and left out, such as 1 A."]


BEIR = [
    {"config_name": part, "data_files": [{"split": part, "path": f"{part}.jsonl"}]} for part in ("corpus", "queries")
]


OWN_QRELS = {"config_name": "default", "data_files": [{"split": "test", "path": "qrels/test.jsonl"}]}


@pytest.mark.parametrize("qrels_apart", [True, False])
def test_the_hub(tmp_path, monkeypatch, qrels_apart):
    """`user/name`, as it is there: a card that names configurations. The names lead to folders here."""
    folder, apart = tmp_path / "name", tmp_path / "name-qrels"
    (folder / "qrels").mkdir(parents=True)
    apart.mkdir()
    (folder / "corpus.jsonl").write_text('{"_id": "a", "title": "Ships", "text": "They sail."}\n')
    (folder / "queries.jsonl").write_text('{"_id": "1", "text": "what sails"}\n')
    place = apart / "test.jsonl" if qrels_apart else folder / "qrels" / "test.jsonl"
    place.write_text('{"query-id": "1", "corpus-id": "a", "score": 1.0}\n')
    configurations = BEIR if qrels_apart else [*BEIR, OWN_QRELS]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configurations)}\n---\n")
    for function in ("load_dataset", "get_dataset_config_names", "get_dataset_split_names"):
        real = getattr(datasets, function)

        def local(name, *words, real=real, **options):
            return real(
                str(tmp_path / name.removeprefix("user/")) if name.startswith("user/") else name, *words, **options
            )

        monkeypatch.setattr(datasets, function, local)
    ranking = load_collection(RankingArguments("user/name"))
    assert (ranking.documents, ranking.queries) == (["Ships\n\nThey sail."], ["what sails"])
    assert ranking.judgments == {"1": {"a": 1}}
    with pytest.raises(ValueError, match="--split dev, found test"):
        load_collection(RankingArguments("user/name", split="dev"))


# --- Queries of a corpus ---


ROWS = [
    {"id": "a", "title": "Ship", "text": "Ship. A ship sails. It has masts.", "links": ["b", "Bread", "a", "nowhere"]},
    {"id": "b", "title": "Sail", "text": "A sail is cloth. It is torn.", "links": []},
    {"id": "c", "title": "Bread", "text": "Bread is baked. It is good.", "links": ["a"]},
    {"id": "d", "title": "ship", "text": "A film. It is long.", "links": None},
    {"id": "e", "title": "", "text": "Nothing but a sentence.", "links": None},
]


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(tmp_path / "corpus.jsonl")


def test_titles_ask_for_their_own_and_linked_documents(corpus):
    ranking = load_collection(RankingArguments(corpus, "all", "title"))
    assert dict(zip(ranking.query_ids, ranking.queries)) == {"a": "Ship", "b": "Sail", "c": "Bread"}
    assert ranking.judgments["a"] == {"a": 2, "b": 1, "c": 1, "d": 2}  # d has the same title
    assert ranking.judgments["c"] == {"c": 2, "a": 1}
    assert ranking.documents[0] == ". A ship sails. It has masts."
    assert ranking.relevant_documents == [row["text"] for row in ROWS[:4]]  # as a pretraining reads them
    assert ranking.notes == [
        "1 documents have no title and text beside: they ask nothing.",
        "1 queries equal another one: the relevant documents of both count.",
        "1 of 5 links lead out of the collection.",
    ]


def test_first_sentences_are_taken_out(corpus):
    ranking = load_collection(RankingArguments(corpus, "all", "first_sentence"))
    assert ranking.queries == ["Ship.", "A sail is cloth.", "Bread is baked.", "A film."]
    assert ranking.documents == [
        *("A ship sails. It has masts.", "It is torn.", "It is good.", "It is long.", "Nothing but a sentence."),
    ]


SECTIONS = [
    {"heading": "", "text": "A ship sails. It has masts."},
    {"heading": "History", "text": "Ships are old. They were rafts."},
    {"heading": "Today", "text": "They are large."},
]


@pytest.mark.parametrize("queries", ["title", "first_sentence"])
def test_sections_stay_where_a_query_is_taken_out(queries, tmp_path):
    """As many passages, in the same sections, as the whole document has: only the query is gone."""
    row = {"title": "Ship", "sections": SECTIONS}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(row) + "\n")
    ranking = load_collection(RankingArguments(str(tmp_path / "corpus.jsonl"), "all", queries))
    (document,), (whole,) = ranking.documents, ranking.whole.values()
    for text in (whole, document):
        assert {passage.section for passage in to_passages(text, 5)} == {0, 1, 2}
    if queries == "first_sentence":
        assert ranking.queries == ["A ship sails."]
        expected = ["It has masts.", "History Ships are old. They were rafts.", "Today They are large."]
        assert [passage.text for passage in to_passages(document, 10)] == expected


@pytest.mark.parametrize(
    ("title", "text", "sections", "query", "rest"),
    [
        ("Ship", None, [{"heading": "Use", "text": "It sails. It rots."}], "It sails.", "Use\n\nIt rots."),
        ("Ship", "Ship\n\nIt sails. It rots.", None, "It sails.", "Ship\n\nIt rots."),
        ("", "# A\n\n## B\nIt sails.\n\n## C\nIt rots.", None, "It sails.", "# A\n\n## B\n\n\n## C\nIt rots."),
        ("", "Ship\n====\n\nIt sails. It rots.", None, "It sails.", "Ship\n====\n\nIt rots."),
        ("Other", "Ship\n\nIt sails.", None, "Ship", "It sails."),  # nothing says that this is a heading
        ("", "It\x07 sails.\r\nIt rots.", None, "It sails.", "It rots."),
    ],
)  # fmt: skip
def test_a_heading_asks_nothing_and_stays(title, text, sections, query, rest):
    headings = headings_of({"sections": sections})
    whole = text if text is not None else join_sections({"sections": sections})
    found, left = by_first_sentence(Row("a", title, whole, whole, headings=headings))
    assert (" ".join(found.split()), left.strip()) == (query, rest)


def test_splits_share_no_query_and_are_the_same_each_time(tmp_path):
    rows = [{"title": f"Title {number}", "text": f"Text of {number}."} for number in range(300)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = {
        split: build(str(tmp_path / "corpus.jsonl"), "title", split) for split in ("train", "validation", "test")
    }
    queries = {split: {query for query, _ in source.queries} for split, source in sources.items()}
    assert sum(map(len, queries.values())) == len(set.union(*queries.values())) == 300
    assert all(15 < len(queries[split]) < 50 for split in ("validation", "test"))
    assert all(
        split_of(rows[int(query)]["text"]) == split for split, query_ids in queries.items() for query in query_ids
    )
    assert all(len(source.documents) == 300 for source in sources.values())
    assert load_collection(RankingArguments(str(tmp_path / "corpus.jsonl"), queries="title")).query_ids == [
        q for q, _ in sources["test"].queries
    ]


def test_python_docs_are_their_sealed_part_without_first_lines_and_see_also_lists(monkeypatch):
    see_also = {"heading": "See Also", "text": "other : Sails a ship."}
    rows = [
        {"id": "m.ship", "title": "ship", "text": "Sails a ship.\n\nMore of it.", "links": ["m.other", "m.old"],
         "sections": [{"heading": "", "text": "Sails a ship.\n\nMore of it."}, see_also], "part": "test"},
        {"id": "m.other", "title": "other", "text": "Bakes\n\nbread.", "links": [], "part": "test",
         "sections": [{"heading": "", "text": "Bakes\n\nbread."}]},
        {"id": "m.old", "title": "old", "text": "Old.\n\nText.", "links": [], "part": "train",
         "sections": [{"heading": "", "text": "Old.\n\nText."}]},
    ]  # fmt: skip
    monkeypatch.setattr(rankings, "load_corpus", lambda name: type("Rows", (), {"to_list": lambda self: rows})())
    ranking = load_collection(RankingArguments())
    assert dict(zip(ranking.document_ids, ranking.documents)) == {"m.ship": "More of it.", "m.other": "bread."}
    assert ranking.queries == ["Sails a ship.", "Bakes"]
    assert ranking.judgments == {"m.ship": {"m.ship": 2, "m.other": 1}, "m.other": {"m.other": 2}}
    assert ranking.relevant_documents == [rows[0]["text"], rows[1]["text"]]
    assert load_collection(RankingArguments("python_docs", split="train")).query_ids == ["m.old"]


# --- Folds ---


QUERIES = 40


NAMES = [f"q{number}" for number in range(QUERIES)]


def test_each_fold_is_reported_once_and_read_by_nothing_else():
    names = [f"q{number}" for number in range(17)]
    ranking = Ranking([], [], names, names, {})
    reported = []
    for number in range(5):
        train, chosen, reported_fold = divide(ranking, "5", number)
        assert sorted([*train, *chosen, *reported_fold]) == list(range(17))
        assert len(train) > len(chosen)
        np.testing.assert_array_equal(chosen, divide(ranking, "5", (number + 1) % 5)[2])
        reported += reported_fold.tolist()
    assert sorted(reported) == list(range(17))
    for folds, number, message in (
        ("2", 0, "expected 3 or more"),
        ("5", 5, "expected 0 to 4"),
        ("5", -1, "count from 0"),
    ):
        with pytest.raises(ValueError, match=message):
            divide(ranking, folds, number)


def test_folds_share_no_query_and_have_them_all(tmp_path):
    ranking = Ranking([], [], NAMES, NAMES, {})
    folds = make_folds(ranking, "3", seed=0)
    assert sorted(np.concatenate(folds)) == list(range(QUERIES))
    assert sorted(map(len, folds)) == [13, 13, 14]
    assert any((one != other_fold).any() for one, other_fold in zip(folds[1:], make_folds(ranking, "3", seed=1)[1:]))
    file = tmp_path / "folds.json"
    file.write_text(
        json.dumps([[f"q{q}" for q in range(number, QUERIES, 2)] + ["left out"] * (number == 0) for number in (0, 1)])
    )
    assert [fold.tolist() for fold in make_folds(ranking, str(file), 0)] == [
        list(range(n, QUERIES, 2)) for n in (0, 1)
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1", "expected 2 to 40"),
        ("41", "expected 2 to 40"),
        ([["q0", "q1"], ["q2"]], "not in any: q3, q4"),
        ([["q0", "q1"], ["q0"]], "has query q0 in two folds"),
        ({"a": ["q0"]}, "should be two or more lists"),
        ([[f"q{number}" for number in range(40)], ["left out"]], "has 1 folds of the queries"),
    ],
)
def test_folds_that_cannot_be_are_refused(tmp_path, content, message):
    ranking = Ranking([], [], NAMES, NAMES, {})
    if not isinstance(content, str):
        (tmp_path / "folds.json").write_text(json.dumps(content))
        content = str(tmp_path / "folds.json")
    with pytest.raises(ValueError, match=message):
        make_folds(ranking, content, 0)
