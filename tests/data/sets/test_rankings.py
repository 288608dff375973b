"""Rankings are read as their makers write them, or made of a corpus; what does not fit is counted, or refused."""

import gzip
import json

import datasets
import numpy as np
import pytest

from docsplit.data.passages import split_sections, to_passages
from docsplit.data.readers.rows import headings_of, join_sections
from docsplit.data.sets import rankings
from docsplit.data.sets.rankings import CollectionRow, Ranking, Retrieved, load_collection, make_folds
from docsplit.data.sets.set_arguments import RankingArguments


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
    assert (ranking.judgments, ranking.relevant_documents) == ({"1": {"a": 3, "c": 0}}, ["ships sail ."])
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
def test_each_defect_has_one_count_and_one_line(tmp_path, change, count, note):
    judgments = ["1\ta\t1", "2\tb\t1", *change.get("judgments", [])]
    ranking = load_collection(RankingArguments(write(tmp_path, **change | {"judgments": judgments})))
    assert {name: number for name, number in ranking.counts.items() if number} == {count: 1}
    (line,) = ranking.notes
    assert note in line
    assert ranking.query_ids == ["1", "2"]


@pytest.mark.parametrize(
    ("judgments", "change", "message"),
    [
        (["1\tz\t1"], {}, r"judges document z for query 1.*do the files belong together"),
        (["1\ta\t0"], {}, r"of 2 queries 0 with a text and a relevant document"),
        (["1\ta\t1"], {"documents": [{"_id": "a", "title": "", "text": "x"}]}, "two texts of the id a"),
        (["1\ta\t1"], {"queries": [{"_id": "1", "text": "x"}]}, "two texts of the id 1"),
        (["1\ta\t1"], {"queries": [{"id": "1", "text": "sail"}]}, "row 3: _id is None"),
        (["1\ta\t1"], {"queries": ["sail"]}, r"queries\.jsonl, line 3 cannot be read, .*no JSON objects"),
        (["1\ta\tyes"], {}, "has the grade 'yes'"),
        (["1\ta\t0.5"], {}, "has the grade '0.5'"),
        (["1 a 1"], {}, "has 1 fields, expected 3"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, judgments, change, message):
    with pytest.raises(ValueError, match=message):
        load_collection(RankingArguments(write(tmp_path, judgments, **change)))


def test_missing_files_and_splits_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"should hold corpus\.jsonl"):
        load_collection(RankingArguments(str(tmp_path)))
    folder = write(tmp_path, ["1\ta\t1"], "qrels/dev.tsv")
    write(tmp_path, ["2\tb\t1"], "qrels/train.tsv")
    with pytest.raises(ValueError, match="found dev, train: name one"):
        load_collection(RankingArguments(folder))
    dev = load_collection(RankingArguments(folder, split="dev"))
    others = rankings.other_queries(dev, RankingArguments(folder, "train"), 0)
    assert (dev.query_ids, others.query_ids, others.documents) == (["1"], ["2"], dev.documents)
    with pytest.raises(ValueError, match="is a file: name a folder"):
        load_collection(RankingArguments(f"{folder}/corpus.jsonl"))


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
            rankings.other_queries(ranking, RankingArguments(folder, split), 0)
    assert len(rankings.other_queries(ranking, RankingArguments(folder, "dev", max_queries=4), 0).query_ids) == 4
    assert ranking.notes[-1] == "4 of 9 queries are drawn (--selection_split dev)."


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
    for split, message in ((None, "found dev, dl19: name one"), ("train", "--split train, found dev, dl19")):
        with pytest.raises(ValueError, match=message):
            load_collection(RankingArguments(str(tmp_path), split=split))


def test_wikir(tmp_path):
    (tmp_path / "documents.csv").write_text('id_right,text_right\n0012,"ships, and ""sails"""\n5,NA\n')
    for folder, query in {"training": "1", "validation": "2", "test": "3"}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "queries.csv").write_text(f"id_left,text_left\n{query},query {query}\n")
        (tmp_path / folder / "qrels").write_text(f"{query}\t0\t0012\t2\n{query}\t0\t5\t1\n")
    ranking = load_collection(RankingArguments(str(tmp_path)))
    assert dict(zip(ranking.document_ids, ranking.documents)) == {"0012": 'ships, and "sails"', "5": "NA"}
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
<doc><docno>LA-1</docno><text>Café.</text><text>Two.</text></doc>
<DOC><DOCNO>X</DOCNO>No text &lt; here.</DOC>
"""


TOPICS = """<top>
<num> Number: 301
<title> International Organized
 Crime

<desc> Description:
Identify organizations.
</top>
<top><num> Number: 1 <desc> No title, which is not that of the next one.</top>
<top><num>302</num><title> Topic: Polio</title></top>
"""


def test_trec(tmp_path):
    (tmp_path / "documents" / "ft").mkdir(parents=True)
    (tmp_path / "documents" / "ft" / "ft911").write_bytes(TREC.encode("latin-1"))
    (tmp_path / "documents" / "readme").write_text("Read me.")
    (tmp_path / "topics.robust04.txt").write_text(TOPICS)
    qrels = "301 0 FT911-3 1\n301 0 LA-1 0\n302 0 X 2\n1 0 X 1\n"
    (tmp_path / "qrels.robust04.txt").write_text(qrels, encoding="utf-8-sig")
    ranking = load_collection(RankingArguments(str(tmp_path)))
    texts = ["FT 14 MAY 91 / Ships & sails\n\nA ship sails.", "Café.\n\nTwo.", "No text < here."]
    assert dict(zip(ranking.document_ids, ranking.documents)) == dict(zip(["FT911-3", "LA-1", "X"], texts))
    assert dict(zip(ranking.query_ids, ranking.queries)) == {"301": "International Organized Crime", "302": "Polio"}
    assert ranking.judgments == {"301": {"FT911-3": 1, "LA-1": 0}, "302": {"X": 2}}
    assert [note.split(",")[0] for note in ranking.notes] == [
        f"1 files of {tmp_path / 'documents'} have no <DOC> and are not read",
        f"1 documents of {tmp_path / 'documents'} have no <TEXT>: all that they have is read.",
        "1 judgments are of queries that are not there and left out",
    ]
    with pytest.raises(ValueError, match="no --split dev"):
        load_collection(RankingArguments(str(tmp_path), split="dev"))


BEIR = [
    {"config_name": name, "data_files": [{"split": split, "path": f"{path}.jsonl"}]}
    for name, split, path in (
        ("corpus", "corpus", "corpus"),
        ("queries", "queries", "queries"),
        ("default", "test", "qrels/test"),
    )
]


@pytest.mark.parametrize("qrels_apart", [True, False])
def test_the_hub(tmp_path, monkeypatch, qrels_apart):
    """`user/name`, as it is there: a card that names configurations. The names lead to folders here."""
    folder = tmp_path / "name"
    place = tmp_path / "name-qrels" / "test.jsonl" if qrels_apart else folder / "qrels" / "test.jsonl"
    place.parent.mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    place.write_text('{"query-id": "1", "corpus-id": "a", "score": 1.0}\n')
    (folder / "corpus.jsonl").write_text('{"_id": "a", "title": "Ships", "text": "They sail."}\n')
    (folder / "queries.jsonl").write_text('{"_id": "1", "text": "what sails"}\n')
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(BEIR[: 3 - qrels_apart])}\n---\n")
    for function in ("load_dataset", "get_dataset_config_names", "get_dataset_split_names"):
        real = getattr(datasets, function)

        def local(name, *words, real=real, **options):
            return real(name.replace("user", str(tmp_path)) if name.startswith("user/") else name, *words, **options)

        monkeypatch.setattr(datasets, function, local)
    ranking = load_collection(RankingArguments("user/name"))
    assert (ranking.documents, ranking.queries) == (["Ships\n\nThey sail."], ["what sails"])
    assert ranking.judgments == {"1": {"a": 1}}
    with pytest.raises(ValueError, match="--split dev, found test"):
        load_collection(RankingArguments("user/name", split="dev"))
    with pytest.raises(ValueError, match=r"'user/other' is neither .*, nor a data set that the Hub gave: "):
        load_collection(RankingArguments("user/other"))


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


def test_titles_ask_for_their_own_and_linked_documents_and_first_sentences_are_taken_out(corpus):
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
    ranking = load_collection(RankingArguments(corpus, "all", "first_sentence"))
    assert ranking.queries == ["Ship.", "A sail is cloth.", "Bread is baked.", "A film."]
    rest = ["A ship sails. It has masts.", "It is torn.", "It is good.", "It is long.", "Nothing but a sentence."]
    assert ranking.documents == rest


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
    found, left = rankings.by_first_sentence(CollectionRow("a", title, whole, whole, headings=headings))
    assert (" ".join(found.split()), left.strip()) == (query, rest)


def test_splits_share_no_query_and_are_the_same_each_time(tmp_path):
    rows = [{"title": f"Title {number}", "text": f"Text of {number}."} for number in range(300)]
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = []
    for split, fewest, most in (("train", 200, 270), ("validation", 15, 50), ("test", 15, 50)):
        source = rankings.build_ranking(str(file), "title", split)
        names = [query for query, _ in source.queries]
        assert fewest < len(names) < most
        assert {rankings.split_of(rows[int(name)]["text"]) for name in names} == {split}
        assert len(source.documents) == 300
        asked += names
    assert len(asked) == len({*asked}) == 300
    assert load_collection(RankingArguments(str(file), queries="title")).query_ids == names


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


NAMES = [f"q{number}" for number in range(40)]


def test_each_fold_is_reported_once_and_read_by_nothing_else(tmp_path):
    ranking = Ranking([], [], NAMES, NAMES, {})
    reported = []
    for number in range(3):
        train, chosen, reported_fold = rankings.divide_queries(ranking, "3", number)
        assert sorted([*train, *chosen, *reported_fold]) == list(range(40))
        np.testing.assert_array_equal(chosen, rankings.divide_queries(ranking, "3", (number + 1) % 3)[2])
        assert len(reported_fold) in (13, 14)
        reported += reported_fold.tolist()
    assert sorted(reported) == list(range(40))
    assert any((one != other).any() for one, other in zip(*(make_folds(ranking, "4", seed) for seed in (0, 1))))
    (tmp_path / "folds.json").write_text(json.dumps([[*NAMES[::2], "left out"], NAMES[1::2]]))
    folds = make_folds(ranking, str(tmp_path / "folds.json"), 0)
    assert [fold.tolist() for fold in folds] == [list(range(0, 40, 2)), list(range(1, 40, 2))]


@pytest.mark.parametrize(
    ("folds", "number", "message"),
    [
        ("1", 0, "expected 2 to 40"),
        ("41", 0, "expected 2 to 40"),
        ("2", 0, "expected 3 or more"),
        ("5", 5, "expected 0 to 4"),
        ("5", -1, "count from 0"),
        ([["q0", "q1"], ["q2"]], 0, "not in any: q3, q4"),
        ([["q0", "q1"], ["q0"]], 0, "has query q0 in two folds"),
        ({"a": ["q0"]}, 0, "should be two or more lists"),
        ([NAMES, ["left out"]], 0, "has 1 folds of the queries"),
    ],
)
def test_folds_that_cannot_be_are_refused(tmp_path, folds, number, message):
    if not isinstance(folds, str):
        (tmp_path / "folds.json").write_text(json.dumps(folds))
        folds = str(tmp_path / "folds.json")
    with pytest.raises(ValueError, match=message):
        rankings.divide_queries(Ranking([], [], NAMES, NAMES, {}), folds, number)
