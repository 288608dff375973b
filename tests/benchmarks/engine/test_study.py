"""The cells of a study: what makes one another one, and what a YAML may say."""

import shutil

from benchmarks.engine.results import read_results
from benchmarks.engine.study import Study
from tests.benchmarks.engine.conftest import CASES


def study_of(folder, **given):
    """The study of the toy YAML in a folder."""
    return Study(folder / "study.yaml", folder / "work", {"data_file": str(folder / "data.txt")} | given)


def test_code_data_and_options_make_a_cell_another_one_and_places_do_not(study, tmp_path):
    study({"all": {"cases": CASES}}, variables={"seed": 0})

    def keys(file=tmp_path / "data.txt", **variables):
        return list(Study(tmp_path / "study.yaml", tmp_path / "work", {"data_file": str(file)} | variables).cells())

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
    cells = {cell.name: cell for cell in study_of(tmp_path).cells().values()}
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


def test_a_cell_waits_for_what_it_needs_and_a_lost_folder_is_made_again(study, tmp_path):
    start = study(chain())
    output, _ = start("--jobs", "2").communicate(timeout=60)
    started = [line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("started")]
    assert started[0] == "start"
    assert all(
        started.index(f"trained seed={seed} method=b") < started.index(f"measured seed={seed}") for seed in (0, 1)
    )
    assert len(read_results(tmp_path / "results.json").rows) == 5
    cells = {cell.name: cell for cell in study_of(tmp_path).cells().values()}

    # The results alone are no encoder: what another cell needs is made again, and nothing else
    shutil.rmtree(tmp_path / "work" / cells["trained seed=1 method=b"].key)
    groups = chain()
    groups["measured"]["cases"][0]["own"]["value"] = 4
    output, _ = study(groups)().communicate(timeout=60)
    started = [line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("started")]
    assert "trained seed=1 method=b, which is lost: that one runs again" in output
    assert sorted(started) == ["measured seed=0", "measured seed=1", "trained seed=1 method=b"]
