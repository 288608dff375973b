"""The rows of one encoder: each measure with what its test items add."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.engine.results import SAMPLES
from benchmarks.studies.reproduction import measure
from benchmarks.studies.reproduction.hypotheses import Measured, place_of
from docsplit.evaluation.analysis.redundancy import content_words, redundancy_rows
from docsplit.evaluation.results.bootstrap import ItemScores
from docsplit.evaluation.results.result import CLASSIFICATION, MULTI_LABEL_CLASSIFICATION, Result


def result_of(task, items):
    others = {name: np.array([0.25, 0.75]) for name in task.measures if name != task.main}
    info, details = {"features": "raw", "num_parameters": 7}, {name: {} for name in task.details}
    measured = others | {task.main: items}
    return Result(encoder="a", head="mlp", task=task, measured=measured, info=info, details=details)


@pytest.mark.parametrize("task", [CLASSIFICATION, MULTI_LABEL_CLASSIFICATION], ids=["accuracy", "micro-F1"])
def test_items_come_back_out_of_the_rows(task):
    rng = np.random.default_rng(0)
    above = rng.integers(0, 3, (2, 9)).astype(np.float32)
    below = above + rng.integers(0, 3, (2, 9)) if task is MULTI_LABEL_CLASSIFICATION else np.ones_like(above)
    items = ItemScores(above, below.astype(np.float32))
    rows = [
        {"task": "x", "data": "y", "method": "a", "seed": 0} | row for row in measure.rows_of([result_of(task, items)])
    ]
    (main,) = [row for row in rows if row["metric"] == task.main]
    assert main["value"] == pytest.approx(items.of_runs().mean())
    found, seeds = Measured(rows).system(place_of(main))
    assert seeds == 1
    assert (found.numerators == items.numerators).all()
    assert (found.denominators == items.denominators).all()
    (other,) = [row for row in rows if row["metric"] == "macro_f1"]
    assert (other["value"], other["std"]) == (0.5, pytest.approx(np.std([0.25, 0.75], ddof=1)))
    assert SAMPLES not in other


def test_tfidf_and_svd_is_measured_like_an_encoder(corpus_file, tmp_path):
    words = ["--evaluation", "classification", "--model_name_or_path", measure.SVD, "--train_file", str(corpus_file)]
    words += [
        "--heads",
        "linear",
        "--shots",
        "5",
        "--num_draws",
        "2",
        "--num_seeds",
        "1",
        "--output_dir",
        str(tmp_path),
    ]
    measure.main(words)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {(row["features"], row["shots"]) for row in rows} == {
        (features, shots) for features in ("raw", "standardized") for shots in (5, None)
    }
    (accuracy,) = [row for row in rows if (row["metric"], row["features"], row["shots"]) == ("accuracy", "raw", 5)]
    assert accuracy["runs"] == 2
    assert np.mean(accuracy[SAMPLES]) == pytest.approx(accuracy["value"])
    assert accuracy["value"] > 0.6  # the topics have words of their own: chance is a third


@pytest.mark.parametrize("num_topics", [1, 10], ids=["shuffled words", "topics"])
def test_growth_beyond_the_null_is_none_where_length_alone_makes_words_recur(num_topics, tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 120, 150).tolist()
    texts = [[f"w{rng.integers(60)}of{number % num_topics}" for _ in range(n)] for number, n in enumerate(lengths)]
    tagged = [(lemmas, ["NOUN"] * len(lemmas)) for lemmas in texts]
    rows, growth = redundancy_rows(content_words(tagged, lengths))
    contents = {"redundancy": {"rows": rows, "growth": growth}}
    (tmp_path / "analysis.json").write_text(json.dumps(contents))
    split = SimpleNamespace(texts={"test": list(map(" ".join, texts))}, class_names=[])
    measured = list(measure.rows_of_analysis(SimpleNamespace(measured=[], split=split), tmp_path))
    (beyond,) = [row for row in measured if row["metric"] == measure.GROWTH]
    assert (beyond["low"] > 0) == (num_topics > 1)
    assert beyond["high"] > 0
    (documents,) = [row for row in measured if (row["head"], row["metric"]) == (measure.DATA_SETS, "documents")]
    assert documents["value"] == 150


def test_documents_of_all_parts_are_counted():
    split = SimpleNamespace(texts={"train": ["a b", "c"], "test": ["d e f g h"]}, class_names=["x", "y"])
    counted = {row["metric"]: row["value"] for row in measure.rows_of_texts(split)}
    assert counted == {"documents": 3, "classes": 2, "mean words": 8 / 3, "median words": 2, "max words": 5}
