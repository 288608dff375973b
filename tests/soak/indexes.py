"""SIGKILL at a random moment of a change of an index: the old one or the new one is left."""

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from docsplit.data.readers.base import Document
from docsplit.index.changes import add, build, delete
from docsplit.index.index import IndexReader
from tests.conftest import make_corpus
from tests.index.conftest import ENCODER, WORDS, answers
from tests.soak.engine import BrokenPromise, Case

DOCUMENTS = [
    Document(f"file {number}.txt", row["text"], f"Title {number}") for number, row in enumerate(make_corpus(120))
]
QUERIES = [document.text[:40] for document in DOCUMENTS[:6]]
OLD, NEW = DOCUMENTS[:60], DOCUMENTS[60:]


def _build(directory: Path) -> None:
    build(directory, DOCUMENTS, ENCODER, WORDS)


def _add(directory: Path) -> None:
    add(directory, NEW, ENCODER)


def _replace(directory: Path) -> None:
    add(directory, [Document(document.id, f"{document.text} Again.") for document in OLD[:20]], ENCODER, replace=True)


def _delete(directory: Path) -> None:
    delete(directory, [document.id for document in OLD[:30]])


def _add_one_by_one(directory: Path) -> None:
    for document in NEW[:10]:  # small segments, which are merged
        add(directory, [document], ENCODER)


VERBS: dict[str, tuple[Callable[[Path], None], list[int]]] = {  # with the numbers of documents that may be left
    "build": (_build, [0, 120]),
    "add": (_add, [60, 120]),
    "replace": (_replace, [60]),
    "delete": (_delete, [60, 30]),
    "add one by one": (_add_one_by_one, list(range(60, 71))),
}


def killed_verbs(count: int) -> Iterator[Case]:
    """Kill each verb in turn."""
    names = list(VERBS)
    for number in range(count):
        verb = names[number % len(names)]
        yield Case(f"{verb} {number}", lambda folder, verb=verb, number=number: _attack(verb, number, folder))


def _attack(verb: str, number: int, folder: Path) -> str:
    run, allowed = VERBS[verb]
    if verb != "build":
        build(folder / "old", OLD, ENCODER, WORDS)
    seconds = _seconds(run, folder)
    if verb != "build":
        os.rename(folder / "old", folder / "index")
    process = os.fork()
    if process == 0:  # in the child: nothing of the parent's ends with it
        with contextlib.suppress(BaseException):
            run(folder / "index")
        os._exit(0)
    time.sleep(random.Random(number).uniform(0, seconds))
    os.kill(process, signal.SIGKILL)
    killed = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    documents = check_and_finish(verb, folder)
    if not killed:
        return "ended before the kill"
    return "the new index" if documents == allowed[-1] and len(allowed) > 1 else "the old index, or between two verbs"


def documents_in(directory: Path) -> int:
    """Count the documents of an index; 0 where none was built to its end."""
    try:
        return len(IndexReader(directory))
    except ValueError as error:
        if "There is no index" in str(error) or "is not built to its end" in str(error):
            return 0
        raise


def _seconds(run: Callable[[Path], None], folder: Path) -> float:
    if (folder / "old").exists():
        shutil.copytree(folder / "old", folder / "timed")
    started = time.monotonic()
    run(folder / "timed")
    return time.monotonic() - started


def check_and_finish(verb: str, folder: Path) -> int:
    """Hold that the index is an old or a new one, do what is left of a verb, and compare with an untouched index.

    Returns: the documents that were in it at first.
    """
    run, allowed = VERBS[verb]
    documents = documents_in(folder / "index")
    if documents not in allowed:
        raise BrokenPromise(f"{documents} documents are left")
    if documents:
        answers(folder / "index", QUERIES, "hybrid")
    if documents != allowed[-1] or verb == "replace":
        run(folder / "index")
    if verb != "build":
        build(folder / "whole", OLD, ENCODER, WORDS)
    run(folder / "whole")
    for method in ("dense", "bm25"):
        if answers(folder / "index", QUERIES, method) != answers(folder / "whole", QUERIES, method):
            raise BrokenPromise(f"other answers by {method} than an index that nothing happened to")
    return documents
