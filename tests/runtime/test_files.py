"""Files are whole or not there, no change of a byte on disk is believed, and a damaged cache is built again."""

import errno
import hashlib
import itertools
import json
import math
import os
import random
import resource
import signal
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.multiprocessing.spawn import ProcessExitedException
from transformers import AutoTokenizer

from docsplit.data.readers.files import FORMATS, OPEN
from docsplit.runtime import files
from docsplit.runtime.files import (
    Damaged,
    FileRecord,
    add_texts,
    build_once,
    checked,
    flush_folder,
    hash_of_code,
    is_cached,
    map_once,
    move_aside,
    name_failed_writes,
    read_sealed,
    refuse_missing_path,
    seal_folder,
    why_folder_damaged,
    write_sealed,
    write_text,
    write_whole,
)
from tests.conftest import spawn
from tests.disk import record_disk
from tests.mutations import mutate
from tests.trajectories import DATA

WRITERS = {  # each library has an error of its own where a disk takes no more
    "safetensors": lambda path: save_file({"weights": torch.ones(1000)}, path),
    "torch": lambda path: torch.save({"state": torch.ones(1000)}, path),
    "torch, many tensors": lambda path: torch.save([torch.ones(20) for _ in range(50)], path),
    "numpy": lambda path: np.save(path, np.ones(1000)),
    "tokenizers": lambda path: AutoTokenizer.from_pretrained(DATA / "tokenizer").backend_tokenizer.save(str(path)),
    "Python": lambda path: path.write_text("a" * 10_000),
}


def write_on_a_full_disk_and_die(rank, folder):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    path = folder.with_name("others") / "file"
    for name, write in WRITERS.items():
        with pytest.raises(OSError, match="could not be written") as error, name_failed_writes(path):
            write(path)
        assert str(error.value).startswith(f"{path} could not be written: "), name
        assert "give the command again" in str(error.value), name
        assert "\n" not in str(error.value), name
    with pytest.raises(OSError, match="could not be written"):
        write_text(folder / "results.json", "new" * 1000)
    assert [path.name for path in folder.iterdir()] == ["results.json"]

    def half(temporary):
        temporary.write_text("new, but only ha")
        os.kill(os.getpid(), signal.SIGKILL)

    write_whole(folder / "results.json", half)


def test_a_full_disk_and_a_kill_leave_the_old_file(tmp_path):
    for name in ("folder", "others"):
        (tmp_path / name).mkdir()
    path = tmp_path / "folder" / "results.json"
    write_text(path, "old")
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        spawn(write_on_a_full_disk_and_die, args=(path.parent,))
    assert path.read_text() == "old"
    write_text(path, "storm \ud800")
    assert path.read_text(encoding="utf-8") == "storm ?"


def test_an_error_that_knows_its_file_keeps_it(tmp_path):
    full = OSError(errno.ENOSPC, "No space", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"/file could not be written: No space left"), name_failed_writes(tmp_path):
        raise full


def test_a_file_is_on_the_disk_before_it_takes_its_name_and_a_folder_from_its_files_up(tmp_path, monkeypatch):
    path, events = tmp_path / "results.json", record_disk(monkeypatch)
    write_text(path, "new")
    partial = path.with_name(f".results.json.{os.getpid()}.partial")
    assert [event[:2] for event in events] == [("flush", partial), ("name", path), ("flush", tmp_path)]
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/2", "a/b/3"):
        (tmp_path / name).write_text(name)
    events.clear()
    flush_folder(tmp_path / "a")
    assert [(kind, path.name) for kind, path, _ in events] == [("flush", name) for name in ("3", "b", "2", "a")]


def test_what_is_in_the_way_is_renamed_to_a_free_name(tmp_path):
    for name in ("a", "a.kept", "b"):
        (tmp_path / name).write_text(name)
    (tmp_path / "a.kept1").symlink_to("nowhere")
    assert move_aside(tmp_path / "a") == tmp_path / "a.kept2"
    assert move_aside(tmp_path / "b") == tmp_path / "b.kept"
    assert (tmp_path / "a.kept2").read_text() == "a"


def test_texts_are_hashed_with_their_ends():
    digests = set()
    for texts in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], ["\ud800"], []):
        digest = hashlib.blake2b(digest_size=8)
        add_texts(digest, texts)
        digests.add(digest.hexdigest())
    assert len(digests) == 7


def test_the_hash_of_code_sees_names_and_contents_of_all_files(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ROOT", tmp_path)
    (tmp_path / "package" / "inner").mkdir(parents=True)
    (tmp_path / "alone.py").touch()
    hashes = []
    for path, text in (("a.py", "x = 1\ny = 2\n"), ("a.py", "x = 1\n"), ("b.py", "y = 2\n"), ("notes.txt", "no code")):
        (tmp_path / "package" / "inner" / path).write_text(text)
        hashes.append(hash_of_code("package", "alone.py"))
    (tmp_path / "alone.py").write_text("z = 4\n")
    hashes.append(hash_of_code("package", "alone.py"))
    assert hashes[2] == hashes[3]
    assert len({*hashes}) == 4


def test_a_name_that_can_only_be_a_path_is_refused_without_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for name in ("a/nosuch.csv.gz", "X.TXT", "outputs/nothing", "./x", "~/x", "/x", "a/b/c", "x/", "here/x"):
        with pytest.raises(ValueError, match=f"There is no {name}: name a folder."):
            refuse_missing_path(name, "a folder")
    for name in (
        *("bert-base-uncased", "intfloat/e5-base-v2", "user/all-mpnet-v1.5", "wikimedia/wikipedia:20231101.en"),
        *("user/data:a/b.csv", "here", "./here", "here/"),
    ):
        refuse_missing_path(name, "a folder")
    assert {*FORMATS, *OPEN} <= set(files.FILE_SUFFIXES)


# --- Damage ---

CONTENT = {"written": 12.5, "name": "ünïcode", "none": None, "files": {"a": {"size": 3, "xxh3": "0f"}}, "list": [1, 2]}


def test_what_is_sealed_is_read_and_every_flipped_bit_and_every_cut_is_seen(tmp_path):
    path, seen = tmp_path / "m.json", 0
    write_sealed(path, CONTENT)
    assert read_sealed(path) == CONTENT
    whole = path.read_bytes()
    damages = [whole[:place] for place in range(len(whole) - 1)]
    for place, bit in itertools.product(range(len(whole)), range(8)):
        damages.append(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
    for damaged in damages:
        path.write_bytes(damaged)
        try:
            assert read_sealed(path) == CONTENT  # a space that became another one changes nothing
        except Damaged:
            seen += 1
    assert seen > 0.95 * len(damages)
    with pytest.raises(ValueError, match="JSON compliant"):
        write_sealed(path, {"loss": float("nan")})
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "no.json")


@pytest.mark.parametrize("text", ["nonsense", "[1]", "[" * 100_000, '{"size": NaN, "checksum": "x"}', '{"a": 1}'])
def test_odd_json_is_one_line(tmp_path, text):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(Damaged, match=r"m\.json is damaged: it ") as error:
        read_sealed(tmp_path / "m.json")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(tmp_path)) + 200
    write_sealed(tmp_path / "m.json", {"files": {"a": {"size": True, "xxh3": ""}}})
    assert "m.json is damaged: files: a: size is True, expected int" in why_folder_damaged(tmp_path, "m.json")


def test_a_sealed_folder_finds_each_change(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "weights").write_bytes(random.Random(0).randbytes(3 * 2**20))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / ".half.1.partial").write_text("of a kill")
    seal_folder(tmp_path, "manifest.json", step=3)
    assert not (tmp_path / ".half.1.partial").exists()
    assert read_sealed(tmp_path / "manifest.json")["step"] == 3
    (tmp_path / "other").write_text("not recorded, not looked at")

    def why(most_bytes=math.inf):
        return why_folder_damaged(tmp_path, "manifest.json", most_bytes)

    assert why() is None
    content = bytearray((tmp_path / "inner" / "weights").read_bytes())
    content[2**21] ^= 4
    (tmp_path / "inner" / "weights").write_bytes(content)
    assert why() == why(3 * 2**20) == "inner/weights has changed since it was written"
    assert why(3 * 2**20 - 1) is None, "too large to be read"
    (tmp_path / "empty").write_bytes(b"1")
    assert why(1000) == "empty has 1 bytes, not 0"
    (tmp_path / "empty").unlink()
    assert why(1000) == "empty is missing"
    assert "cannot be read" in FileRecord(0, "0").why_damaged(tmp_path, "a\0")
    assert why_folder_damaged(tmp_path) == "files.json is missing"


@dataclass(frozen=True)
class Inner:
    name: str
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outer:
    count: int
    kind: Literal["a", "b"] = "a"
    inner: Inner | None = None
    several: list[Inner] = field(default_factory=list)
    rest: dict[str, Any] = field(default_factory=dict)


def test_a_record_is_read_as_it_was_written():
    whole = Outer(3, "b", Inner("i", {"z": 1.0}), [Inner("j"), Inner("k", {"l": 0.5})], {"m": [{}]})
    assert checked(json.loads(json.dumps(asdict(whole))), Outer, "f.json") == whole
    assert checked({"count": 1, "unknown": 5}, Outer, "f.json") == Outer(1)
    assert checked([1, 2.5], list[float], "x") == [1, 2.5]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"f.json is \[\], expected Outer."),
        ({}, "f.json lacks count."),
        ({"count": True}, r"f.json: count is True, expected int."),
        ({"count": 1, "kind": ["c"]}, r"f.json: kind is \['c'\], expected .*Literal\['a', 'b'\]."),
        ({"count": 1, "several": [{"name": "a", "shares": {"b": "c"}}]},
         r"f.json: several\[0\]: shares: b is 'c', expected float."),
        ({"count": 1, "several": "ab"}, r"f.json: several is 'ab', expected list"),
        ({"count": 1, "rest": "x" * 999}, r"f.json: rest is 'x{59}, expected dict"),
    ],
)  # fmt: skip
def test_another_type_is_named_with_file_and_key(values, message):
    with pytest.raises(ValueError, match=rf"^{message}"):
        checked(values, Outer, "f.json")


# --- The cache ---


class Builder:
    """Writes two files, and counts how often."""

    def __init__(self):
        self.times = 0

    def __call__(self, directory):
        (directory / "part").write_text("whole")
        (directory / "inner").mkdir()
        (directory / "inner" / "rows").write_bytes(b"0123456789")
        self.times += 1


def test_a_directory_is_built_once_and_whole_and_of_two_that_build_one_wins(tmp_path):
    def fail(directory):
        (directory / "part").write_text("ha")
        raise OSError("No such disk")

    build, folder = Builder(), tmp_path / "corpus"
    with pytest.raises(OSError, match="No such disk"):
        build_once(folder, fail)
    assert list(tmp_path.iterdir()) == []
    build_once(folder, lambda temporary: Builder()(temporary) or build_once(folder, build))
    assert (build_once(folder, build) / "part").read_text() == "whole"
    assert build.times == 1
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
    assert is_cached(folder)
    assert not is_cached(tmp_path / "other")


@pytest.mark.skipif(os.name == "nt", reason="no modes")
@pytest.mark.parametrize("mask", [0o002, 0o022])
@pytest.mark.parametrize(
    ("above", "writers"), [(0o770, 0o020), (0o2775, 0o020), (0o777, 0o022), (0o1777, 0), (0o755, 0), (0o700, 0)]
)
def test_who_may_write_into_hf_home_may_write_into_the_cache(tmp_path, request, mask, above, writers):
    """And read it; what is as open as /tmp gives nobody a way to change the cache of others."""
    request.addfinalizer(partial(os.umask, os.umask(mask)))
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(above)
    entry = build_once(tmp_path / "home" / "datasets" / "docsplit" / "corpus", Builder())
    for folder in (entry, *list(entry.parents)[:2]):
        assert folder.stat().st_mode & 0o022 == (0o022 & ~mask) | writers
        assert folder.stat().st_mode & 0o055 == 0o055
    assert {file.stat().st_mode & 0o044 for file in entry.rglob("*") if file.is_file()} == {0o044}


@pytest.mark.parametrize(("name", "content"), [("part", None), ("inner/rows", b"{}"), ("files.json", b"{}")])
def test_a_damaged_directory_is_built_again(tmp_path, caplog, name, content):
    build, folder = Builder(), tmp_path / "corpus"
    build_once(folder, build)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    for _ in range(2):
        build_once(folder, build)
        assert build.times == 2
    assert len(caplog.records) == 1
    assert caplog.records[0].message.startswith(f"The cache {folder} is damaged (")
    assert name in caplog.records[0].message
    assert (folder / "inner" / "rows").read_bytes() == b"0123456789"
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def double(batch):
    return {"number": [2 * number for number in batch["number"]]}


def test_rows_are_mapped_once_and_no_damaged_ones_are_read(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    numbers = datasets.Dataset.from_dict({"number": list(range(100)), "text": ["some words"] * 100})
    assert map_once(numbers, double, "of-memory", batched=True).cache_files == []
    numbers.save_to_disk(tmp_path / "numbers")
    numbers = datasets.load_from_disk(tmp_path / "numbers")

    def doubled(function=double):
        return map_once(numbers, function, "doubled", batched=True, num_proc=2, remove_columns=["text"])

    rows = doubled()
    assert rows[:] == {"number": list(range(0, 200, 2))}
    files = [Path(entry["filename"]) for entry in rows.cache_files]
    assert len(files) == 2
    assert doubled(function=None)[:] == rows[:]
    assert doubled(function=None)._fingerprint == rows._fingerprint == "doubled"
    rows.select([3, 1]).flatten_indices()  # `datasets` writes beside them
    assert len(list(files[0].parent.glob("*.arrow"))) == 3
    assert not caplog.records
    for seed, file in enumerate([*files, files[0].with_name("files.json")]):
        how = mutate(file, seed)
        caplog.clear()
        assert doubled()[:] == {"number": list(range(0, 200, 2))}, how
        assert len([record for record in caplog.records if "is made again" in record.message]) == 1, how
