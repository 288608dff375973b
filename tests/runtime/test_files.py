"""Files are whole or not there, and hashes see what they should."""

import errno
import hashlib
import os
import resource
import signal
import subprocess

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.multiprocessing.spawn import ProcessExitedException
from transformers import AutoTokenizer

from docsplit.data.corpora import LOADERS
from docsplit.data.readers.files import COMPRESSIONS
from docsplit.runtime import files
from docsplit.runtime.files import (
    ROOT,
    NotWritten,
    add_texts,
    commit_of_code,
    flush_folder,
    hash_of_code,
    name_failed_writes,
    refuse_missing_path,
    versions,
    why_not_written,
    write_text,
    write_whole,
)
from tests.conftest import spawn
from tests.trajectories import DATA


def write_and_die(rank, path):
    def half(temporary):
        temporary.write_text("new, but only ha")
        os.kill(os.getpid(), signal.SIGKILL)

    write_whole(path, half)


def test_a_kill_leaves_the_old_file(tmp_path):
    path = tmp_path / "results.json"
    write_text(path, "old")
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        spawn(write_and_die, args=(path,))
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"


def write_to_a_full_disk(rank, path):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        write_text(path, "new" * 1000)
    except OSError:
        os._exit(7)


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "results.json"
    write_text(path, "old")
    with pytest.raises(ProcessExitedException) as end:
        spawn(write_to_a_full_disk, args=(path,))
    assert end.value.exit_code == 7
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


WRITERS = {  # each library has an error of its own where a disk takes no more
    "safetensors": lambda path: save_file({"weights": torch.ones(1000)}, path),
    "torch": lambda path: torch.save({"state": torch.ones(1000)}, path),
    "torch, many tensors": lambda path: torch.save([torch.ones(20) for _ in range(50)], path),
    "numpy": lambda path: np.save(path, np.ones(1000)),
    "tokenizers": lambda path: AutoTokenizer.from_pretrained(DATA / "tokenizer").backend_tokenizer.save(str(path)),
    "Python": lambda path: path.write_text("a" * 10_000),
}


def write_with_each_library(rank, path):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    for name, write in WRITERS.items():
        with pytest.raises(NotWritten) as error, name_failed_writes(path):
            write(path)
        assert str(error.value).startswith(f"{path} could not be written: "), name
        assert "give the command again" in str(error.value), name
        assert "\n" not in str(error.value), name


def test_a_failed_write_of_any_library_names_the_file(tmp_path):
    spawn(write_with_each_library, args=(tmp_path / "file.npy",))


def test_errors_that_are_no_failed_writes_stay():
    for error in (
        *(ValueError("shapes differ"), RuntimeError("PytorchStreamReader failed reading zip archive")),
        *(FileNotFoundError(errno.ENOENT, "No such file", "a.txt"), PermissionError(errno.EACCES, "denied", "b")),
        Exception("No such file or directory (os error 2)"),
    ):
        assert why_not_written(error) is None
        with pytest.raises(type(error)) as raised, name_failed_writes(ROOT):
            raise error
        assert raised.value is error


def test_an_error_that_knows_its_file_keeps_it_and_the_innermost_name_counts(tmp_path):
    full, full_file = OSError(errno.ENOSPC, "No space"), OSError(errno.ENOSPC, "No space", str(tmp_path / "file"))
    outer, inner = name_failed_writes(tmp_path / "outer"), name_failed_writes(tmp_path / "inner")
    remedy = (
        r" could not be written: No space left on device\. Make room there, and .* again \([\d,.]+ MB are free\)\.$"
    )
    with pytest.raises(NotWritten, match=f"file{remedy}"), outer:
        raise full_file
    with pytest.raises(NotWritten, match=f"inner{remedy}"), name_failed_writes(tmp_path), inner:
        raise full


def test_what_utf_8_cannot_hold_is_replaced(tmp_path):
    write_text(tmp_path / "text", "storm \ud800")
    assert (tmp_path / "text").read_text(encoding="utf-8") == "storm ?"


def test_a_file_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    path, steps = tmp_path / "results.json", []
    sync, replace = os.fsync, os.replace

    def recorded_sync(number):
        steps.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{number}'))}")
        sync(number)

    def recorded_replace(old, new):
        steps.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    write_text(path, "new")
    temporary = f".results.json.{os.getpid()}.partial"
    assert steps == [f"sync {temporary}", "rename", f"sync {tmp_path.name}"]


def test_a_folder_is_on_the_disk_from_its_files_up(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("1", "a/2", "a/b/3"):
        (tmp_path / name).write_text(name)
    flushed = []
    monkeypatch.setattr(files, "flush", lambda path: flushed.append(path.relative_to(tmp_path).as_posix()))
    flush_folder(tmp_path)
    assert flushed == ["a/b/3", "a/b", "a/2", "a", "1", "."]


def test_texts_are_hashed_with_their_ends():
    digests = set()
    for texts in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], ["\ud800"], []):
        digest = hashlib.blake2b(digest_size=8)
        add_texts(digest, texts)
        digests.add(digest.hexdigest())
    assert len(digests) == 7


def test_the_hash_of_code_sees_every_file_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ROOT", tmp_path)
    folder = tmp_path / "package" / "inner"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("x = 1\ny = 2\n")
    (tmp_path / "alone.py").write_text("z = 3\n")
    hashes = [hash_of_code("package", "alone.py")]
    assert hash_of_code("package", "alone.py") == hashes[0]
    (folder / "a.py").write_text("x = 1\n")
    (folder / "b.py").write_text("y = 2\n")  # the same code in another file
    hashes.append(hash_of_code("package", "alone.py"))
    (tmp_path / "alone.py").write_text("z = 4\n")
    hashes.append(hash_of_code("package", "alone.py"))
    (folder / "notes.txt").write_text("no code")
    assert hash_of_code("package", "alone.py") == hashes[-1]
    assert len(set(hashes)) == 3


def test_versions_name_what_is_not_installed(monkeypatch):
    monkeypatch.setattr(files, "PACKAGES", ("torch", "no-such-package"))
    installed = versions()
    assert set(installed) == {"python", "torch", "no-such-package"}
    assert installed["torch"]
    assert installed["no-such-package"] is None


def test_only_a_checkout_of_this_project_has_a_commit(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "file.py").write_text("one\n")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "-m", "First")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(files, "ROOT", tmp_path / "folder")
    assert commit_of_code() is None  # a folder of another project's checkout
    monkeypatch.setattr(files, "ROOT", tmp_path)
    commit = commit_of_code()
    assert len(commit) == 40
    (tmp_path / "file.py").write_text("two\n")
    assert commit_of_code() == f"{commit}-dirty"


@pytest.mark.parametrize(
    "name",
    [
        "nosuch.jsonl",
        "a/nosuch.csv.gz",
        "X.TXT",
        "outputs/nothing",
        "./x",
        "../x/y",
        "~/x",
        "/x",
        "a/b/c",
        "x/",
        "here/x",
    ],
)
def test_a_name_that_can_only_be_a_path_is_refused_without_one(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(ValueError, match="There is no") as failure:
        refuse_missing_path(name, "a folder")
    assert str(failure.value) == f"There is no {name}: name a folder."


@pytest.mark.parametrize(
    "name",
    [
        *("bert-base-uncased", "intfloat/e5-base-v2", "user/all-mpnet-v1.5", "wikimedia/wikipedia:20231101.en"),
        *("python_docs", "user/data:a/b.csv", "here", "here/file.jsonl", "./here", "here/", "tfidf"),
    ],
)
def test_names_of_the_hub_and_paths_that_exist_pass(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file.jsonl").touch()
    refuse_missing_path(name, "a folder")


def test_all_suffixes_of_data_files_are_known():
    assert {*LOADERS, *COMPRESSIONS} <= set(files.FILE_SUFFIXES)
