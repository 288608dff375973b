"""The step of the study of claims: which documents and rows it writes."""

import pytest

from benchmarks.studies.claims import step
from docsplit.evaluation.analysis.redundancy import LENGTH_CLASSES


def summary(*names):
    return {f"{name}_{end}": value for name in names for end, value in (("mean", 0.5), ("low", 0.4), ("high", 0.6))}


def test_rows_are_those_that_the_report_shows():
    encoders = {"x": "masked LM"}
    length = next(iter(LENGTH_CLASSES))
    redundancy = [{"variant": variant, "length": length, "n": n} | summary("r", "r_null", "r_to_null")
                  for variant, n in (("nouns_verbs", 9), ("nouns_verbs", 0), ("all_words", 9))]  # fmt: skip
    growth = [{"variant": "nouns_verbs", "r": 0.1, "r_null": 0.2, "r_to_null": 0.3}]
    ratios = [{"measure": measure, "a": "out/A=1,2", "b": "x", "ratio": 2.0, "ratio_low": 1.0, "ratio_high": 3.0}
              for measure in (step.COMPARED, "verb_to_uniform")]  # fmt: skip
    analyses = {
        "redundancy": {"rows": redundancy, "growth": growth},
        "similarity": {"rows": [{"encoder": "A=1,2"} | summary("auc", "inner_minus_inter")]},
        "attention": {"rows": [{"encoder": "out/adapted/"} | summary("special_share")], "differences": ratios},
        "clustering": {"rows": [{"encoder": "x", "features": kind} | summary("nmi") for kind in ("raw", "unit")]},
        "geometry": {"rows": [{"encoder": "x", "uniformity_mean": -1.0, "uniformity_std": 0.1}]},
    }
    rows = {(row["metric"], row["method"]): row for row in step.rows_of(analyses, encoders)}
    assert rows.keys() == {
        *((f"redundancy {name}, {length} words", "") for name in ("r", "r_to_null")),
        *((f"rank correlation of length and {name}", "") for name in ("r", "r_null", "r_to_null")),
        *(("auc", "A"), ("special_share", "adapted"), ("nmi", "masked LM"), ("uniformity", "masked LM")),
        ("noun_to_uniform, ratio", "A / masked LM"),
    }
    assert rows["auc", "A"] == {"metric": "auc", "method": "A", "std": None, "value": 0.5, "low": 0.4, "high": 0.6}
    assert rows["uniformity", "masked LM"]["std"] == 0.1
    assert rows["noun_to_uniform, ratio", "A / masked LM"]["high"] == 3


def test_documents_are_taken_at_equal_distances():
    texts = [str(number) for number in range(10)]
    assert step._spread(texts, texts, 4) == (["0", "2", "5", "7"],) * 2
    assert step._spread(texts, texts, 99) == (texts, texts)


def test_parts_share_no_document_and_every_class_is_trained_on(real_data):
    parts = step.parts_of("python_docs", real_data, 100)
    assert (len(parts["train"][0]), len(parts["test"][0])) == (60, pytest.approx(40, abs=10))
    assert not set(parts["train"][0]) & set(parts["test"][0])
    assert set(parts["test"][1]) <= set(parts["train"][1])
    with pytest.raises(ValueError, match="no data set 'no'"):
        step.parts_of("no", real_data, 100)
