"""A folder of the cache is built once, whole, and again when it is damaged."""

from pathlib import Path

import datasets
import pytest

from docsplit.runtime.files import build_once, is_cached, map_once
from tests.mutations import mutate


class Builder:
    """Writes two files, and counts how often."""

    def __init__(self):
        self.times = 0

    def __call__(self, directory):
        (directory / "part").write_text("whole")
        (directory / "inner").mkdir()
        (directory / "inner" / "rows").write_bytes(b"0123456789")
        self.times += 1


def test_a_directory_is_built_once_and_whole(tmp_path):
    def fail(directory):
        (directory / "part").write_text("ha")
        raise OSError("No space left on device")

    build = Builder()
    with pytest.raises(OSError, match="No space"):
        build_once(tmp_path / "corpus", fail)
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        assert (build_once(tmp_path / "corpus", build) / "part").read_text() == "whole"
    assert build.times == 1
    assert is_cached(tmp_path / "corpus")
    assert not is_cached(tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("part", b"wholf", "part has changed"),
        ("inner/rows", b"012345678", r"inner/rows has 9 bytes, not 10"),
        ("inner/rows", None, r"inner/rows is missing"),
        ("files.json", b"{}", "files.json has no checksum"),
        ("files.json", None, "files.json is missing"),
    ],
)
def test_a_damaged_directory_is_built_again(tmp_path, caplog, name, content, reason):
    build, folder = Builder(), tmp_path / "corpus"
    build_once(folder, build)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    build_once(folder, build)
    assert build.times == 2
    assert caplog.records[0].message.startswith(f"The cache {folder} is damaged (")
    assert reason in caplog.records[0].message
    assert (folder / "inner" / "rows").read_bytes() == b"0123456789"
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
    build_once(folder, build)
    assert build.times == 2
    assert len(caplog.records) == 1


def double(batch):
    return {"number": [2 * number for number in batch["number"]]}


@pytest.mark.parametrize("num_proc", [None, 2])
def test_rows_are_mapped_once_and_no_damaged_ones_are_read(tmp_path, monkeypatch, caplog, num_proc):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    numbers = datasets.Dataset.from_dict({"number": list(range(100)), "text": ["some words"] * 100})
    assert map_once(numbers, double, "of-memory", batched=True).cache_files == []
    numbers.save_to_disk(tmp_path / "numbers")
    numbers = datasets.load_from_disk(tmp_path / "numbers")

    def doubled(function=double):
        return map_once(
            numbers, function, f"doubled-{num_proc}", batched=True, num_proc=num_proc, remove_columns=["text"]
        )

    rows = doubled()
    assert rows[:] == {"number": list(range(0, 200, 2))}
    files = [Path(entry["filename"]) for entry in rows.cache_files]
    assert len(files) == (num_proc or 1)
    assert doubled(function=None)[:] == rows[:]
    assert doubled(function=None)._fingerprint == rows._fingerprint == f"doubled-{num_proc}"
    rows.select([3, 1]).flatten_indices()  # `datasets` writes beside them
    assert len(list(files[0].parent.glob("*.arrow"))) == len(files) + 1
    assert not caplog.records
    for seed in range(60 if num_proc is None else 3):
        how = mutate([*files, files[0].with_name("files.json")][seed % (len(files) + 1)], seed)
        caplog.clear()
        assert doubled()[:] == {"number": list(range(0, 200, 2))}, how
        assert len([record for record in caplog.records if "is made again" in record.message]) == 1, how
