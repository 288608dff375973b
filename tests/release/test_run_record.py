"""The record of a run: what is written is read again, and older records are read too."""

import json

import pytest

from docsplit.release.run_record import RUN_FILE, Licence, RunRecord, Start

RUN = {"hardware": "a CPU", "processes": 2, "commit": "0123abc"}
STARTS = {
    "random": (Start(), {}),
    "hub": (Start("user/name", Licence("mit")), {"base_model": "user/name", "license": "mit"}),
    "folder": (
        Start(None, Licence("other", "odd", "LICENSE")),
        {"base_model": None, "license": "other", "license_name": "odd", "license_link": "LICENSE"},
    ),
}


@pytest.mark.parametrize("start", STARTS)
def test_a_record_is_read_as_it_was_written(tmp_path, start):
    start, written = STARTS[start]
    options = {"corpus": "c/d", "lora_r": "8"}
    record = RunRecord(
        **RUN, recipe="small.yaml", options=options, start=start, local=["corpus"], versions={"spacy": None}
    )
    (tmp_path / RUN_FILE).write_text(record.to_json())
    assert RunRecord.read(tmp_path) == record
    values = json.loads(record.to_json())
    assert values["start"] == written
    assert list(values) == [
        *("recipe", "options", "start", "local", "hardware", "processes", "versions", "commit", "hub_model_id"),
    ]  # fmt: skip


def test_a_folder_without_a_record_has_none(tmp_path):
    assert RunRecord.read(tmp_path) is None


def test_a_record_of_before_starts_were_kept_has_none(tmp_path):
    (tmp_path / RUN_FILE).write_text(json.dumps(RUN | {"options": {"view": "crop"}, "of_another_version": 1}))
    record = RunRecord.read(tmp_path)
    assert record == RunRecord(**RUN, options={"view": "crop"})
    assert record.start is None


def test_a_licence_is_false_where_none_is_stated():
    assert not Licence()
    assert not Licence.stated_in({"license": None, "tags": ["x"]})
    assert Licence.stated_in({"license": "mit", "tags": ["x"]}) == Licence("mit")
