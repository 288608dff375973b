"""The table of a probe says what was measured, and what of it was seen in training."""

from docsplit.release.probe_table import probe_table, table_of_probe

RESULTS = {"probe_classes": 3, "probe_test_documents": 1200}
for _prefix, _accuracy in (("probe_before", 0.25), ("probe_after", 0.5), ("tfidf", 0.375)):
    RESULTS |= {f"{_prefix}_5shot_accuracy": _accuracy, f"{_prefix}_5shot_accuracy_std": 0.01}
    RESULTS |= {f"{_prefix}_accuracy": 2 * _accuracy, f"{_prefix}_5shot_c": 10.0, f"{_prefix}_c": 1.0}


def test_rows_are_before_after_and_words():
    table = table_of_probe(RESULTS)
    assert [row[0] for row in table.rows] == ["before pretraining", "after pretraining", "TF-IDF"]
    assert table.rows[1][1:] == ("0.500 ± 0.010", "1.000")
    assert "C of these" not in table.header  # older runs did not choose it
    chosen = table_of_probe(RESULTS | {"probe_validation_documents": 300})
    assert chosen.header[-1] == "C of these"
    assert chosen.rows[0][-1] == "10, 1"


def test_a_table_says_what_its_numbers_rest_on():
    assert "No probe was asked for" in probe_table({})
    assert "over 3 classes on 1,200 test documents; ±" in probe_table(RESULTS)
    selected = RESULTS | {"probe_validation_documents": 300}
    assert "is on 300 validation documents." in probe_table(selected)
    assert "seen in pretraining" not in probe_table(selected)
    seen = {"probe_seen_in_pretraining_share": 0.125, "probe_near_duplicate_share": None}
    assert probe_table(selected | seen).endswith("seen in pretraining: 12.5 %; with near-duplicates: unknown.")
