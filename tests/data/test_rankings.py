"""Rankings are read as BEIR writes them, and what does not fit together is named."""

import json

import pytest

from docsplit.data.rankings import load_ranking


def write(folder, judgments, qrels="qrels.tsv"):
    documents = [
        {"_id": "a", "title": "ships", "text": "ships sail ."},
        {"_id": "b", "title": "Bread", "text": "Flour."},
        {"_id": "c", "title": "", "text": "Salt."},
    ]
    queries = [{"_id": "1", "text": "sail"}, {"_id": "2", "text": "oven"}]
    for name, rows in {"corpus": documents, "queries": queries}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / qrels).parent.mkdir(exist_ok=True)
    (folder / qrels).write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{row}\n" for row in judgments))


@pytest.mark.parametrize("qrels", ["qrels.tsv", "qrels/test.tsv"])
def test_documents_queries_and_grades(tmp_path, qrels):
    write(tmp_path, ["1\ta\t3", "1\tc\t0", "2\tb\t0"], qrels)
    ranking = load_ranking(tmp_path)
    assert ranking.documents == ["ships sail .", "Bread\n\nFlour.", "Salt."]
    assert (ranking.query_ids, ranking.queries) == (["1"], ["sail"])  # nothing is relevant to the other
    assert ranking.judgments == {"1": {"a": 3, "c": 0}}


def test_a_judgment_of_nothing_and_a_missing_file_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"should hold corpus\.jsonl"):
        load_ranking(tmp_path)
    write(tmp_path, ["1\tz\t1"])
    with pytest.raises(ValueError, match="judges document z for query 1"):
        load_ranking(tmp_path)
