"""Collections made of a corpus: what is asked stands nowhere in the documents, and each split has its own queries."""

import json

import pytest
from docsplit.data.readers.columns import headings_of, join_sections

from docsplit.data.passages import to_passages
from docsplit.data.sets import built_rankings
from docsplit.data.sets.arguments import RankingArguments
from docsplit.data.sets.built_rankings import Row, build, by_first_sentence, split_of
from docsplit.data.sets.rankings import load_collection

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


def test_ids_of_a_table_are_texts_and_a_missing_one_is_the_row(tmp_path):
    (tmp_path / "corpus.csv").write_text("id,title,text\n007,1984,A ship.\n,NA,A sail.\n1.0,true,A storm.\n")
    ranking = load_collection(RankingArguments(str(tmp_path / "corpus.csv"), "all", "title"))
    assert dict(zip(ranking.query_ids, ranking.queries)) == {"007": "1984", "1": "NA", "1.0": "true"}


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
        assert [passage.text for passage in to_passages(document, 100)] == expected


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
    whole = text if text is not None else join_sections({"sections": sections}, "text")["text"]
    found, left = by_first_sentence(Row("a", title, whole, whole, headings=headings))
    assert (" ".join(found.split()), left.strip()) == (query, rest)


def test_headings_alone_ask_nothing_in_linear_time():
    for text in ("# Ship\n\n## Sail", "Ship", "", "\n" * 200_000, "## A\n\n" * 100_000):
        assert by_first_sentence(Row("a", "Ship", text, text))[0] == ""


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
    monkeypatch.setattr(built_rankings, "load_corpus", lambda name: type("Rows", (), {"to_list": lambda self: rows})())
    ranking = load_collection(RankingArguments())
    assert dict(zip(ranking.document_ids, ranking.documents)) == {"m.ship": "More of it.", "m.other": "bread."}
    assert ranking.queries == ["Sails a ship.", "Bakes"]
    assert ranking.judgments == {"m.ship": {"m.ship": 2, "m.other": 1}, "m.other": {"m.other": 2}}
    assert ranking.relevant_documents == [rows[0]["text"], rows[1]["text"]]
    assert load_collection(RankingArguments("python_docs", split="train")).query_ids == ["m.old"]


def test_what_is_missing_is_named(corpus, tmp_path):
    (tmp_path / "bare.jsonl").write_text('{"text": "A text. Another."}\n')
    with pytest.raises(ValueError, match="needs a corpus with the column title"):
        build(str(tmp_path / "bare.jsonl"), "title", None)
    with pytest.raises(ValueError, match="--split is 'dev'"):
        build(corpus, "title", "dev")
    with pytest.raises(ValueError, match="--queries has no heading"):
        load_collection(RankingArguments(corpus, queries="heading"))
