"""The sentence under the tables."""

from docsplit.evaluation.results.contamination import contamination_note
from docsplit.evaluation.results.records import Row
from docsplit.evaluation.results.task import CLASSIFICATION


def row(encoder, *shares, num_parameters=10):
    names = ("seen_in_pretraining_share", "near_duplicate_share")
    facts = {"num_parameters": num_parameters} | dict(zip(names, shares))
    return Row(CLASSIFICATION, encoder, "linear", None, 1, {}, facts=facts)


def test_each_encoder_stands_once_and_baselines_do_not():
    rows = [row("a", 0.5, 0.625), row("a", 0.5, 0.625), row("b", 0.0, None), row("c", None, None)]
    rows += [row("tfidf", None, None, num_parameters=0), row("bm25", None, None, num_parameters=None)]
    note = contamination_note(rows)
    assert note.endswith(": a 50.0 % (62.5 %); b 0.0 % (unknown); c unknown.")


def test_rows_without_shares_have_no_sentence():
    assert contamination_note([row("a"), row("tfidf", None, None, num_parameters=0)]) == ""
    assert contamination_note([]) == ""
