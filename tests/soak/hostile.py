"""What others wrote: model folders and documents; and options that are wrong."""

import builtins
import contextlib
import io
import itertools
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from unittest import mock

from docsplit.data.tokenization import load_tokenizer
from tests import hostile_folders
from tests.data.readers.fuzzed_documents import READERS, failure_of, fuzzed_documents
from tests.modeling.test_pretrained import embed, start_training
from tests.runtime import wrong_options
from tests.soak.engine import BrokenPromise, Case
from tests.trajectories import DATA


def hostile_models(count: int) -> Iterator[Case]:
    """Load each hostile folder to embed, and to train."""
    pairs = itertools.product(hostile_folders.CASES, (embed, start_training))
    for case, use in itertools.islice(pairs, count):
        name = f"{case.kind}: {case.name}: {use.__name__}"
        yield Case(name, lambda folder, case=case, use=use: _load(case, use, folder))


def _load(case: hostile_folders.Case, use: object, scratch: Path) -> str:
    tokenizer = load_tokenizer(str(DATA / "tokenizer"))
    ((_, folder),) = hostile_folders.folders(tokenizer, scratch, [case])
    with (
        mock.patch.object(builtins, "input", _asked),
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            use(str(folder))  # type: ignore[operator]
            outcome = "loads"
        except ValueError as error:
            if "\n" in str(error) or folder.name not in str(error):
                raise BrokenPromise(f"not one line that names the folder: {error}") from error
            outcome = "one line"
    if hostile_folders.has_run(folder):
        raise BrokenPromise("its code was run")
    return outcome


def _asked(*_: object) -> NoReturn:
    raise BrokenPromise("it asks on the terminal")


def fuzzed_files(count: int) -> Iterator[Case]:
    """Read each fuzzed document in each way in which documents are read."""
    logging.disable(logging.ERROR)
    for name, content in fuzzed_documents(count, seed=11):
        yield Case(name, lambda folder, name=name, content=content: _read(folder / name, content))


def _read(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    for reader in READERS:
        if failure := failure_of(reader, path):
            raise BrokenPromise(f"as {reader}: {failure}")
    return "read, counted or one line"


def wrong_combinations(count: int) -> Iterator[Case]:
    """Run scripts with options that cannot go together, up to where their work would begin."""
    for number, case in enumerate(wrong_options.cases(count, seed=13)):
        yield Case(f"{number} {case.script} {case.words}", lambda _, case=case: _refuse(case))


def _refuse(case: wrong_options.Case) -> str:
    for problem in wrong_options.unrefused([case]):
        raise BrokenPromise(problem)
    return "one line before any work"
