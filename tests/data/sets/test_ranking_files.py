"""Collections in the forms of MS MARCO, WIKIR, TREC and the Hub, each written here as its makers write it."""

import gzip
import json

import datasets
import pytest

from docsplit.data.passages import split_sections
from docsplit.data.sets.arguments import RankingArguments
from docsplit.data.sets.rankings import load_collection


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


def test_beir_has_sections_in_place_of_texts(tmp_path):
    sections = [{"heading": "", "text": "They sail."}, {"heading": "Use", "text": "Trade."}]
    row = {"_id": "d", "title": "Ships", "sections": sections}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "sailing"}) + "\n")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    (document,) = load_collection(RankingArguments(str(tmp_path))).documents
    assert [part.split() for part in split_sections(document)] == [["Ships", "They", "sail."], ["Use", "Trade."]]


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
    (tmp_path / "documents" / "fr94.Z").write_bytes(b"\x1f\x9d")
    with pytest.raises(ValueError, match="uncompress the documents first"):
        load_collection(RankingArguments(str(tmp_path)))
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


def test_what_is_nowhere_is_named():
    with pytest.raises(ValueError, match="'no/collection' is neither python_docs, nor a folder here"):
        load_collection(RankingArguments("no/collection"))
