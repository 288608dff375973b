"""No change of a byte on disk is believed: it is one line that names the file."""

import json
import random

import pytest

from docsplit.runtime.files import (
    Damaged,
    FileRecord,
    read_json,
    read_sealed,
    records_in,
    seal_folder,
    why_damaged,
    why_folder_damaged,
    write_sealed,
)

CONTENT = {"written": 12.5, "name": "ünïcode", "none": None, "files": {"a": {"size": 3, "xxh3": "0f"}}, "list": [1, 2]}


def test_what_is_written_is_read(tmp_path):
    write_sealed(tmp_path / "m.json", CONTENT)
    assert read_sealed(tmp_path / "m.json") == CONTENT
    indented = json.dumps(json.loads((tmp_path / "m.json").read_text()), indent=8, sort_keys=True)
    (tmp_path / "m.json").write_text(indented)  # an editor that only moves things changes nothing
    assert read_sealed(tmp_path / "m.json") == CONTENT
    with pytest.raises(ValueError, match="JSON compliant"):
        write_sealed(tmp_path / "m.json", {"loss": float("nan")})
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "no.json")


def test_every_flipped_bit_and_every_cut_is_seen(tmp_path):
    path, seen = tmp_path / "m.json", 0
    write_sealed(path, CONTENT)
    whole = path.read_bytes()
    damages = [whole[:place] for place in range(len(whole) - 1)]
    damages += [
        whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :]
        for place in range(len(whole))
        for bit in range(8)
    ]
    for damaged in damages:
        path.write_bytes(damaged)
        try:
            content = read_sealed(path)  # a space that became another one changes nothing
        except Damaged as error:
            content, message = None, str(error)
        if content is None:
            assert str(path) in message
            assert "\n" not in message
            seen += 1
        else:
            assert content == CONTENT
    assert seen > 0.95 * len(damages)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[1]",
        "null",
        "[" * 100_000,
        '{"a": ' * 100_000,
        '{"size": 1e400, "checksum": "x"}',
        '{"size": NaN, "checksum": "x"}',
        '{"a": 1, "a": 1, "checksum": "x"}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": 1}',
    ],
)
def test_odd_json_is_one_line(tmp_path, text):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(Damaged) as error:
        read_sealed(tmp_path / "m.json")
    assert str(tmp_path / "m.json") in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(tmp_path)) + 200


def test_plain_json_may_hold_what_python_writes(tmp_path):
    (tmp_path / "config.json").write_text('{"limit": [0.0, Infinity]}')
    assert read_json(tmp_path / "config.json") == {"limit": [0.0, float("inf")]}
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{\x00}\x00")
    with pytest.raises(Damaged, match="holds no JSON"):
        read_json(tmp_path / "config.json")
    with pytest.raises(Damaged, match="cannot be read: Is a directory"):
        read_json(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "names no files"),
        ({}, "names no files"),
        ({"a": None}, "does not say size"),
        ({"a": {"size": 1}}, "does not say size"),
        ({"a": [1]}, "does not say size"),
        ({"a": {"size": -1, "xxh3": ""}}, "gives no size"),
        ({"a": {"size": 1.0, "xxh3": ""}}, "gives no size"),
        ({"a": {"size": True, "xxh3": ""}}, "gives no size"),
        ({"a": {"size": 1, "xxh3": 7}}, "gives no size"),
        ({"../a": {"size": 1, "xxh3": ""}}, "not in its folder"),
        ({"/a": {"size": 1, "xxh3": ""}}, "not in its folder"),
        ({"": {"size": 1, "xxh3": ""}}, "not in its folder"),
    ],
)
def test_records_are_checked_before_they_are_used(tmp_path, files, message):
    with pytest.raises(Damaged, match=message):
        records_in({"files": files}, tmp_path / "m.json")


def test_a_sealed_folder_finds_each_change(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "weights").write_bytes(random.Random(0).randbytes(3 * 2**20))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / ".half.1.partial").write_text("of a kill")
    seal_folder(tmp_path, "manifest.json", step=3)
    assert not (tmp_path / ".half.1.partial").exists()
    assert read_sealed(tmp_path / "manifest.json")["step"] == 3
    assert why_folder_damaged(tmp_path, "manifest.json") is None
    (tmp_path / "other").write_text("not recorded, not looked at")
    assert why_folder_damaged(tmp_path, "manifest.json") is None
    with (tmp_path / "inner" / "weights").open("r+b") as file:
        file.seek(2**21)
        byte = file.read(1)
        file.seek(2**21)
        file.write(bytes([byte[0] ^ 4]))
    assert why_folder_damaged(tmp_path, "manifest.json") == "inner/weights has changed since it was written"
    assert why_folder_damaged(tmp_path, "manifest.json", most_bytes=1000) is None, "too large to be read"
    (tmp_path / "empty").unlink()
    assert why_folder_damaged(tmp_path, "manifest.json", most_bytes=1000) == "empty is missing"
    (tmp_path / "empty").mkdir()
    records = {"empty": FileRecord((tmp_path / "empty").stat().st_size, "0")}
    assert why_damaged(tmp_path, records) == "empty cannot be read: Is a directory"
    assert why_folder_damaged(tmp_path) == "files.json is missing"
