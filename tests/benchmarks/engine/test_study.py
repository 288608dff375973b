"""The cells of a study: what makes one another one, and what a YAML may say."""

import pytest

from benchmarks.engine.results import Record, Results, write_results
from benchmarks.engine.study import Study, resolve
from tests.benchmarks.engine.conftest import CASES


def study_of(folder, **given):
    """The study of the toy YAML in a folder."""
    return Study(folder / "study.yaml", folder / "work", {"data_file": str(folder / "data.txt")} | given)


def test_code_data_and_options_make_a_cell_another_one_and_places_do_not(study, tmp_path):
    study({"all": {"cases": CASES}}, variables={"seed": 0})

    def keys(file=tmp_path / "data.txt", **variables):
        return list(Study(tmp_path / "study.yaml", tmp_path / "work", {"data_file": str(file)} | variables).cells()[0])

    first = keys()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data.txt").write_text("one")
    assert keys(tmp_path / "elsewhere" / "data.txt") == first
    assert not set(keys(seed=1)) & set(first)
    (tmp_path / "data.txt").write_text("two")
    assert not set(keys()) & set(first)
    (tmp_path / "data.txt").write_text("one")
    assert keys() == first
    study({"all": {"cases": CASES}}, variables={"seed": 0}, code=["benchmarks/engine/study.py"])
    assert not set(keys()) & set(first)


@pytest.mark.parametrize("change", [{"matrix": {}}, {"steps": [{"scripts": "a.py"}]}])
def test_a_word_that_is_not_understood_is_named(study, tmp_path, change):
    study({"all": {"cases": CASES} | change})
    with pytest.raises(ValueError, match=r"which a study does not know"):
        Study(tmp_path / "study.yaml", tmp_path / "work", {})


def test_a_name_alone_keeps_its_type_and_unknown_ones_stay():
    variables = {"own": {"a": "{b}"}, "b": 3}
    assert resolve(["{own}", "x{b}", "{folder}/{b}", 1.5], variables) == [{"a": 3}, "x3", "{folder}/3", 1.5]


def test_a_moved_module_is_the_same_content(study, tmp_path):
    def cell_of(module, **more):
        step = {"module": module, "options": {"value": 1}}
        study(
            {"all": {"steps": [step], "cases": CASES[:1]}}, variables={"seed": 0}, code=["benchmarks/engine"], **more
        )
        (cell,) = study_of(tmp_path).cells()[0].values()
        return cell

    before = cell_of("benchmarks.old")
    assert cell_of("benchmarks.new").content != before.content
    moved = cell_of("benchmarks.new", formerly={"benchmarks.new": "benchmarks.old"})
    assert (moved.content, moved.key) == (before.content, before.key)
    assert moved.steps[0]["module"] == "benchmarks.new"


def test_cells_in_the_results_are_known_by_key_and_on_request_by_content(study, tmp_path):
    study({"all": {"cases": CASES}}, variables={"seed": 0})
    first, second = study_of(tmp_path).cells()[0].values()
    row = {"cell": first.key, "metric": "score", "value": 1.0, "samples": [0.5, 0.25]}
    same = Record(first.name, "done", first.key, first.content, rows=[row])
    other_code = Record(second.name, "done", "other", second.content, rows=[row | {"cell": "other"}])
    path = tmp_path / "results.json"
    write_results(Results(cells={first.key: same}, apart={"other": other_code}), path)
    for any_code, recorded in ((False, None), (True, other_code)):
        later = Study(
            tmp_path / "study.yaml", tmp_path / "work", {"data_file": str(tmp_path / "data.txt")}, path, any_code
        )
        assert later.record(first) == same
        assert later.record(second) == recorded
        results = later.results()
        assert results.not_run == ([] if any_code else [second.name])
        assert results.cells | results.apart == {first.key: same, "other": other_code}
        assert list(results.apart) == ([] if any_code else ["other"])
