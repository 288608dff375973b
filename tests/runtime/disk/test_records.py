"""A record is what its JSON says, or an error that names file and key."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pytest

from docsplit.runtime.files import checked, record_of


@dataclass(frozen=True)
class Inner:
    name: str
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outer:
    count: int
    kind: Literal["a", "b"] = "a"
    names: str | list[str] | None = None
    inner: Inner | None = None
    several: list[Inner] = field(default_factory=list)
    rest: dict[str, Any] = field(default_factory=dict)


WHOLE = Outer(3, "b", ["x", "y"], Inner("i", {"z": 1.0}), [Inner("j"), Inner("k", {"l": 0.5})], {"m": [{}]})


def test_a_record_is_read_as_it_was_written():
    assert record_of(Outer, json.loads(json.dumps(asdict(WHOLE))), "f.json") == WHOLE
    assert record_of(Outer, {"count": 1, "unknown": 5}, "f.json") == Outer(1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"f.json is \[\], expected an object."),
        ({}, r"f.json has no count."),
        ({"count": "3"}, r"f.json: count is '3', expected a whole number."),
        ({"count": True}, r"f.json: count is True, expected a whole number."),
        ({"count": 2.5}, r"f.json: count is 2.5, expected a whole number."),
        ({"count": 1, "kind": "c"}, r"f.json: kind is 'c', expected one of \('a', 'b'\)."),
        ({"count": 1, "kind": ["c"]}, r"f.json: kind is \['c'\], expected one of"),
        ({"count": 1, "names": 5}, r"f.json: names is 5, expected text or a list or null."),
        ({"count": 1, "names": ["a", 5]}, r"f.json: names\[1\] is 5, expected text."),
        ({"count": 1, "inner": {"shares": {}}}, r"f.json: inner has no name."),
        ({"count": 1, "inner": 5}, r"f.json: inner is 5, expected an object or null."),
        ({"count": 1, "several": [{"name": "a", "shares": {"b": "c"}}]},
         r"f.json: several\[0\]: shares: b is 'c', expected a number."),
        ({"count": 1, "rest": "x" * 999}, r"f.json: rest is 'x{59} ..., expected an object."),
    ],
)  # fmt: skip
def test_another_type_is_named_with_file_and_key(values, message):
    with pytest.raises(ValueError, match=rf"^{message}"):
        record_of(Outer, values, "f.json")


def test_whole_numbers_are_numbers():
    assert checked(3, float, "x") == 3
    assert checked([1, 2.5], list[float], "x") == [1, 2.5]
