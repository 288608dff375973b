"""The cells of a study: what makes one another one, and what a YAML may say."""

import shutil
from argparse import Namespace

import pytest

from benchmarks.engine.cells import run
from benchmarks.engine.results import Record, Results, read_results, write_results
from benchmarks.engine.study import RECORD, Study, resolve
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


def chain():
    """A start, two encoders trained from it, and what is measured of each."""
    return {
        "start": {"cases": [{"own": {"value": 1}}], "fields": {"data": "toy", "method": "a", "seed": None}},
        "trained": {
            "grid": {"seed": [0, 1]},
            "cases": [{"method": "b", "own": {"value": 2}}],
            "needs": {"origin": "start"},
        },
        "measured": {
            "grid": {"seed": [0, 1]},
            "cases": [{"own": {"value": 3, "wait": "{encoder}/out/results.json"}}],  # the toy waits for this file
            "needs": {"encoder": "trained"},
            "fields": {"data": "toy", "method": "c", "seed": "{seed}"},
        },
    }


def test_a_cell_needs_the_one_with_its_variables(study, tmp_path):
    study(chain())
    cells = {cell.name: cell for cell in study_of(tmp_path).cells()[0].values()}
    assert [*cells] == [
        "start",
        "trained seed=0 method=b",
        "trained seed=1 method=b",
        "measured seed=0",
        "measured seed=1",
    ]
    for seed in (0, 1):
        assert cells[f"measured seed={seed}"].needs["encoder"] == cells[f"trained seed={seed} method=b"]
        assert cells[f"trained seed={seed} method=b"].needs["origin"] == cells["start"]


def test_what_is_needed_is_part_of_the_key(study, tmp_path):
    study(chain())
    before = {cell.name: cell for cell in study_of(tmp_path).cells()[0].values()}
    groups = chain()
    groups["start"]["cases"] = [{"own": {"value": 9}}]
    study(groups)
    after = {cell.name: cell for cell in study_of(tmp_path).cells()[0].values()}
    assert before.keys() == after.keys()
    assert not {cell.key for cell in before.values()} & {cell.key for cell in after.values()}
    assert not {cell.content for cell in before.values()} & {cell.content for cell in after.values()}


def test_only_keeps_what_is_needed(study, tmp_path):
    study(chain())
    some = Study(
        tmp_path / "study.yaml", tmp_path / "work", {"data_file": str(tmp_path / "data.txt")}, only=["red*=1"]
    )
    names = [cell.name for cell in some.cells()[0].values()]
    assert names == ["start", "trained seed=1 method=b", "measured seed=1"]


def test_the_results_are_those_of_all_cells_whatever_runs(study, tmp_path):
    study({"all": {"cases": [*CASES, {"method": "c", "own": {"value": -1}}]}}, variables={"seed": 0})
    output = tmp_path / "results.json"

    def run_only(pattern):
        only = Study(tmp_path / "study.yaml", tmp_path / "work", {"data_file": str(tmp_path / "data.txt")}, output,
                     only=[pattern])  # fmt: skip
        return run(only, Namespace(output=output, jobs=1, nice=0, budget_hours=None, retry=False))

    assert [run_only(f"method={method}") for method in "cab"] == [1, 0, 0]  # what is left out fails nothing
    results = read_results(output)
    assert {record.name[-1]: record.status for record in results.cells.values()} == {
        "a": "done",
        "b": "done",
        "c": "failed",
    }
    assert (results.apart, results.not_run) == ({}, [])
    shutil.rmtree(tmp_path / "work")
    assert run_only("method=a") == 0
    assert read_results(output) == results


@pytest.mark.parametrize("needs", ["nothing", "measured"])
def test_a_group_that_is_needed_stands_above(study, tmp_path, needs):
    groups = chain()
    groups["trained"]["needs"] = {"origin": needs}
    study(groups)
    with pytest.raises(ValueError, match="of a group that stands above it"):
        study_of(tmp_path).cells()


def test_a_cell_waits_for_what_it_needs_and_a_lost_folder_is_made_again(study, tmp_path):
    start = study(chain())
    output, _ = start("--jobs", "2").communicate(timeout=60)
    started = [line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("started")]
    assert started[0] == "start"
    assert all(
        started.index(f"trained seed={seed} method=b") < started.index(f"measured seed={seed}") for seed in (0, 1)
    )
    assert len(read_results(tmp_path / "results.json").rows) == 5
    cells = {cell.name: cell for cell in study_of(tmp_path).cells()[0].values()}

    # The results alone are no encoder: what another cell needs is made again, and nothing else
    shutil.rmtree(tmp_path / "work" / cells["trained seed=1 method=b"].key)
    groups = chain()
    groups["measured"]["cases"][0]["own"]["value"] = 4
    output, _ = study(groups)().communicate(timeout=60)
    started = [line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("started")]
    assert "trained seed=1 method=b, which is lost: that one runs again" in output
    assert sorted(started) == ["measured seed=0", "measured seed=1", "trained seed=1 method=b"]


def test_weights_that_are_made_again_are_compared_with_what_others_read(study, tmp_path, monkeypatch):
    start = study(chain())
    start().communicate(timeout=60)
    cells = {cell.name: cell for cell in study_of(tmp_path).cells()[0].values()}
    records = {name: study_of(tmp_path).record(cell) for name, cell in cells.items()}
    assert records["measured seed=0"].read_weights == {"encoder": records["trained seed=0 method=b"].weights}
    assert records["trained seed=0 method=b"].read_weights == {"origin": records["start"].weights}
    assert len({record.weights for record in records.values()}) == 3  # those of two seeds are equal here

    def run_again(lost):
        for name in ("measured seed=1", *lost):  # one is to do, and needs what is lost
            shutil.rmtree(tmp_path / "work" / cells[name].key)
        results = read_results(tmp_path / "results.json")
        results.cells.pop(cells["measured seed=1"].key)
        write_results(results, tmp_path / "results.json")
        output, _ = start().communicate(timeout=60)
        measured = [cells[f"measured seed={seed}"] for seed in (0, 1)]
        return output, *[study_of(tmp_path).read_differently(some) for some in (measured, measured[:1])]

    lost = "trained seed=1 method=b", "start"
    output, by_both, by_first = run_again(lost)
    assert [f"{name} ran again, and its weights came out as before, bit for bit." in output for name in lost] == [1, 1]
    assert by_both == by_first == set()

    monkeypatch.setenv("TOY_LUCK", "another machine")
    output, by_both, by_first = run_again(lost)
    assert output.count("its weights came out otherwise than before") == 2
    assert by_both == {"start"}, "the first seed read the start as it was before"
    assert by_first == set(), "what all read from one start can be compared, whatever came later"

    # It was measured, and then trained again for another cell
    again, first = study_of(tmp_path), cells["measured seed=0"]
    record = again.record(first)
    record.read_weights["encoder"] = "those of before"
    record.write(again.folder(first) / RECORD)
    assert again.read_differently([first]) == {"trained seed=0 method=b"}


def test_nothing_begins_behind_a_cell_that_failed(study, tmp_path):
    groups = chain()
    groups["start"]["cases"] = [{"own": {"value": -1}}]
    process = study(groups)()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output.count("started") == 1
    assert "trained seed=0 method=b" in read_results(tmp_path / "results.json").not_run
