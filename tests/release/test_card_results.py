"""What cards say of measurements: tables, the model index, names without paths."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from docsplit.evaluation.results.report import read_rows, records, rows
from docsplit.evaluation.results.result import CLASSIFICATION
from docsplit.release.card_results import (
    CardEvaluation,
    evaluation_text,
    model_index,
    read_evaluations,
    read_json,
    tables_of_results,
    without_paths,
)
from tests.evaluation.results.examples import make_group, make_result

CARDS = Path(__file__).parents[2] / "model_cards"


def evaluation_of(results, encoder):
    return CardEvaluation("Probes", "news, two parts", CLASSIFICATION, rows(results), encoder)


@pytest.fixture(scope="module")
def group():
    return make_group("A=a1,a2", ["a1", "a2"], 2.0)


def test_the_text_of_a_shipped_card_is_made_from_its_files():
    """Tables and notes, word for word, are those of the card that stands there."""
    folder = CARDS / "bregman_small"
    (evaluation,) = read_evaluations(folder)
    card = (folder / "README.md").read_text()
    for table in tables_of_results({}, [evaluation]):
        assert table.markdown() in card
    assert evaluation_text(read_json(folder / "all_results.json"), [evaluation]) in card
    (path,) = folder.glob("evaluations/*/results.json")
    assert evaluation.to_json() == json.loads(path.read_text())


def test_an_evaluation_is_read_as_it_was_written(group, tmp_path):
    evaluation = evaluation_of([group[0], make_result("tfidf", 1.0)], "a1")
    folder = tmp_path / "evaluations" / "news"
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(evaluation.to_json()))
    (read,) = read_evaluations(tmp_path)
    assert read.to_json() == evaluation.to_json()
    assert evaluation_text({}, [read]) == evaluation_text({}, [evaluation])
    task, frame = read_rows(evaluation.to_json())
    assert task == CLASSIFICATION
    assert frame["encoder"].tolist() == ["A=a1,a2", "tfidf"]
    (folder / "few_shot.png").touch()
    assert read_evaluations(tmp_path)[0].plot == "evaluations/news/few_shot.png"


def test_the_model_index_has_the_numbers_of_this_seed_and_not_of_the_group(group):
    merged, (first, second) = group
    for number, result in enumerate((first, second)):
        entries = model_index({}, {}, [evaluation_of([merged, make_result("tfidf", 1.0)], f"a{number + 1}")])
        assert [entry.metric_name for entry in entries] == ["accuracy (linear)", "macro_f1 (linear)"]
        assert entries[0].metric_value == round(float(result.of_runs("accuracy").mean()), 4)
        assert (entries[0].dataset_name, entries[0].task_type) == ("news, two parts", "text-classification")
    alone_too = evaluation_of([merged, first], "a1")
    assert len(model_index({}, {}, [alone_too])) == 2  # once each
    few = evaluation_of([replace(first, shots=5)], "a1")
    assert model_index({}, {}, [few])[0].metric_name == "accuracy (linear, 5 labels a class)"


def test_the_text_says_which_row_is_this_model(group):
    assert "A is the mean over seeds of which this model is one" in evaluation_text(
        {}, [evaluation_of(group[:1], "a1")]
    )
    assert "a1 is this model" in evaluation_text({}, [evaluation_of(group[1], "a1")])
    named = replace(group[0], encoder="A=a1", members=["a1"])  # one encoder with a name
    assert "A is this model" in evaluation_text({}, [evaluation_of([named], "a1")])
    assert evaluation_text({}, []) == "Nothing was measured."


def test_local_encoders_are_named_without_their_paths(tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    members = [str(folder) for folder in folders]
    merged, results = make_group(",".join(members), members, 1.0)
    shown, names = without_paths(rows([merged, *results, make_result("someone/model", 1.0)]))
    assert shown["encoder"].tolist() == ["first and 1 more", "first", "second", "someone/model"]
    assert shown["members"][0] == ["first", "second"]
    assert names == {members[0]: "first", members[1]: "second"}
    assert str(tmp_path) not in json.dumps(records(shown))
