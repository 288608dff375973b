"""Fixtures that tests of several modules share."""

import pytest

from tests.conftest import make_corpus
from tests.data.sets.tables import write


@pytest.fixture
def files(tmp_path):
    """Options that name a train, a validation and a test file of 120, 30 and 30 documents."""
    rows = make_corpus(180)
    parts = {"train": rows[:120], "validation": rows[120:150], "test": rows[150:]}
    return {f"{part}_file": write(tmp_path / f"{part}.jsonl", part_rows) for part, part_rows in parts.items()}
