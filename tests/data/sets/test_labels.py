"""Labels: what is one class, what is none, and what a text with several has."""

import math

import numpy as np
import pandas
import pytest

from docsplit.data.sets.labels import LabelColumn, classes_of, majority_labels, read_labels


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["b", None, "a", " ", math.nan, pandas.NA], ["b", None, "a", None, None, None]),
        (["sea", " sea\n", "sea\u00a0", "\ufeffsea", "s\u00adea"], ["sea"] * 5),
        (["New  York", "New\tYork", "Cafe\u0301", "Caf\u00e9"], ["New York", "New York", "Caf\u00e9", "Caf\u00e9"]),
        (["Sea", "sea", "01", "1"], ["Sea", "sea", "01", "1"]),
        (np.array([2, 0, 1]), [2, 0, 1]),
        (pandas.Series([1.0, None, 3.0], index=[7, 8, 9]), [1, None, 3]),  # a column of whole numbers with gaps
        (pandas.Series(["a", "b"], dtype="category"), ["a", "b"]),
        ([2**63 + 1, 2**63 + 3, 5], [2**63 + 1, 2**63 + 3, 5]),
        ([1, "1", 1.0, "1.0"], ["1", "1", "1", "1.0"]),
        ([True, np.False_], [True, False]),
        (["1", 2, True], ["1", "2", "True"]),
        ([True, 1, 0], ["True", "1", "0"]),
        ([["b", "a"], (), {3}, ["a", "a ", "b"], None], [("a", "b"), (), ("3",), ("a", "b"), None]),
        ([[0, 1, 1], [1, 0, 0], None], [(1, 2), (0,), None]),
        ([[0.0, 1.0], [np.True_, 1]], [(1,), (0, 1)]),
        (np.array([[1, 0], [0, 1]]), [(0,), (1,)]),  # the rows of an array are no sets
        ([[0, 1], [0, 1], [1]], [(0, 1), (0, 1), (1,)]),
        (["nan", "#N/A", "\u200b", "None", "[B]"], [None, None, None, "None", "[B]"]),
        (['["a", "b\\u00e9"]', "['b\u00e9']", "[]", " [2]", ""], [("a", "b\u00e9"), ("b\u00e9",), (), ("2",), None]),
        (["[1, 0, 0]", "[0.0, 1.0, 1.0]"], [(0,), (1, 2)]),
        (["{'море', 'a, b'}", " {'море'}\n", "set()", '{"it\'s"}'], [("a, b", "море"), ("море",), (), ("it's",)]),
        (["('law',)", "('sea', 'law')", "()", "(2, 3)"], [("law",), ("law", "sea"), (), ("2", "3")]),
        (["frozenset({'b', 'a'})", "frozenset()", "['c']"], [("a", "b"), (), ("c",)]),
        (["(1, 0, 0)", "(0, 1, 1)"], [(0,), (1, 2)]),
        (["('law')", "(sea, law)", "{sea}", "{'a': 1}", "(1)"], ["('law')", "(sea, law)", "{sea}", "{'a': 1}", "(1)"]),
    ],
)
def test_labels_are_written_the_same_whoever_wrote_them(labels, expected):
    several = any(isinstance(label, tuple) for label in expected)
    wanted = [label if several or label is None else (label,) for label in expected]
    assert read_labels(LabelColumn(labels)) == ([wanted], several)
    kinds = [[type(label) for label in of_row or ()] for of_row in read_labels(LabelColumn(labels))[0][0]]
    assert kinds == [[type(label) for label in of_row or ()] for of_row in wanted]  # True is no 1


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "b\ufffd"], r"row 1 \(from 0\) of the file is 'b\ufffd': .*--encoding"),
        (["a\x00"], r"row 0 .* is 'a\\x00': .*--encoding"),
        (["a\x96b"], "--encoding"),  # a dash of cp1252, read as latin-1
        ([1, 0.5], "row 1 .* is 0.5: labels are texts, whole numbers or bools"),
        (["1.5", "2"], "Labels are numbers, such as 1.5"),
        ([2.0**53], "above 2\\^53 a float is no exact number"),
        ([{"name": "a"}], "row 0 .* is {'name': 'a'}: labels are texts"),
        ([np.datetime64("2020-01-01")], "row 0 .* labels are texts"),
        ([["a"], "b"], "row 1 .* all documents have one label, or all have a list"),
        ([["a", None]], "row 0 .* labels are texts"),
        ([[1, 0], [0, 1], []], r"The lists of the file are \[1, 0\] and \[0, 1\] alone"),
        ([[True, False], [False, True]], "alone, which are vectors or name both classes"),
        (["['a' 'b']", "['a']"], "row 0 .* it seems to be a list: write it as JSON"),  # as NumPy writes it
        (["[1 0 0]", "[0 1 0]"], "row 0 .* it seems to be a list"),
        (['["a"]', "b"], "row 1 .* all documents have one label, or all have a list"),
        ([[1, 1, 0], [0, 2, 1]], "row 0 .* vectors of 0 and 1 have one length"),
    ],
)
def test_what_is_no_label_is_named(labels, message):
    with pytest.raises(ValueError, match=message) as failure:
        read_labels(LabelColumn(labels, source="the file"))
    assert "\n" not in str(failure.value)


def test_numbers_of_classes_have_their_names_and_minus_one_is_hidden():
    train, test = LabelColumn([0, 1, -1], ["sea", "land"]), LabelColumn([1, 0], ["land", "sea"])
    assert read_labels(train, test) == ([[("sea",), ("land",), None], [("sea",), ("land",)]], False)
    vectors = LabelColumn([[1, 1], [0, 1]], ["sea", "land"])
    assert read_labels(vectors) == ([[("land", "sea"), ("land",)]], True)
    with pytest.raises(ValueError, match=r"row 0 .* is 2: the classes are 0 to 1"):
        read_labels(LabelColumn([2], ["sea", "land"]))


def test_the_majority_is_that_of_a_loop(caplog):
    generator = np.random.default_rng(0)
    ids, labels = generator.integers(40, size=150).tolist(), [("ab"[n],) for n in generator.integers(2, size=150)]
    expected = {}
    for identity in set(ids):
        counts = {label: sum(pair == (identity, label) for pair in zip(ids, labels)) for label in (("a",), ("b",))}
        if all(counts.values()):
            most = [label for label, count in counts.items() if count == max(counts.values())]
            expected[identity] = most[0] if len(most) == 1 else None
    assert majority_labels(ids, labels) == expected
    ties = sum(label is None for label in expected.values())
    assert 0 < ties < len(expected)
    assert f"{len(expected)} texts had several labels: {len(expected) - ties} took the majority's, {ties} left" in (
        caplog.text
    )
    assert majority_labels([1, 1, 2], [("a", "b"), ("a", "b"), ("c",)]) == {}


def test_classes_are_sorted_and_those_of_one_spelling_or_of_nothing_are_told(caplog):
    assert classes_of([("10",), ("9",)], "") == ["9", "10"]
    assert classes_of([(False,), (True,)], "") == [False, True]
    assert "case" not in caplog.text
    assert classes_of([("sea", "Sea"), ("land",)], "the file") == ["Sea", "land", "sea"]
    assert "Classes that differ by case alone: Sea, sea." in caplog.text
    assert "may mean" not in caplog.text
    assert classes_of([("N/A",), ("land",)], "the file") == ["N/A", "land"]
    assert "may mean that there is no label: N/A." in caplog.text
    for labels in ([("a",)], [], [("a", "b")] * 3):
        with pytest.raises(ValueError, match=r"one class in the file|Every document of the file"):
            classes_of(labels, "the file")
