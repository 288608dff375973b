"""Names of groups: each property that they have, and their scores against a loop."""

import math
from collections import Counter

import numpy as np
import pytest

from docsplit.data import group_names
from docsplit.data.group_names import name_groups

HARBOUR = ["harbour ship anchor", "ship harbour ships", "harbour boat ship storm", "anchor boat"]
KITCHEN = ["kettle butter", "butter kettle kettles storm", "kettle oven", "oven butter 250 use x y_z"]


def matrices(groups):
    """Words, and for each group how often it has each and in how many documents."""
    words = sorted({word for texts in groups for text in texts for word in text.split()})
    totals = np.array([[sum(text.split().count(word) for text in texts) for texts in groups] for word in words])
    having = np.array([[sum(word in text.split() for text in texts) for texts in groups] for word in words])
    return words, totals, having, np.array(list(map(len, groups)))


def test_scores_against_a_loop():
    rng = np.random.default_rng(0)
    letters = "abcdefghijklmnop"
    sizes = (7, 1, 72)
    groups = [[" ".join(rng.choice([*letters[3 * g :]], 9)) for _ in range(size)] for g, size in enumerate(sizes)]
    groups[2][:3] = ["rareword"] * 3  # in less than a twentieth
    words, totals, having, counts = matrices(groups)
    scores = group_names._scores(totals, having, counts)
    assert (scores > 0).sum() > 4
    for row, word in enumerate(words):
        for group, texts in enumerate(groups):
            others = [text for number, other in enumerate(groups) if number != group for text in other]
            inside = [text.split() for text in texts if word in text.split()]
            outside = sum(word in text.split() for text in others)
            ratio = ((len(inside) + 0.5) / (len(texts) + 1)) / ((outside + 0.5) / (len(others) + 1))
            expected = 0.0
            fewest = min(len(texts), max(group_names.FEWEST_DOCUMENTS, group_names.LEAST_SHARE * len(texts)))
            if len(inside) >= fewest and inside and ratio >= group_names.FEWEST_TIMES_AS_FREQUENT:
                times = sum(Counter(text)[word] for text in inside) / len(inside)
                expected = len(inside) / len(texts) * (1 + math.log(times)) * math.log(ratio)
            assert scores[row, group] == pytest.approx(expected), (word, group)


def test_names_tell_groups_apart():
    harbour, kitchen = name_groups(*matrices([HARBOUR, KITCHEN]))
    assert harbour == ["harbour", "ship", "anchor", "boat"]  # no `ships`; `storm` is in both
    assert kitchen == ["butter", "kettle", "oven"]


def test_a_word_names_the_group_that_has_it_most_and_is_shared_only_in_need():
    rest = [["tree"]] * 4
    groups = [["ship sail"] * 4, ["ship mast rope"] * 2 + ["mast rope"] * 2, *rest * 5]
    first, second = name_groups(*matrices(groups))[:2]
    assert sorted(first) == ["sail", "ship"]
    assert sorted(second) == ["mast", "rope"]
    one, other = name_groups(*matrices([["ship"] * 3, ["ship"] * 3, *rest, *rest, *rest]))[:2]
    assert one == other == ["ship"]  # nothing else names either


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "ship ships body bodies class classes box axis axes virus",
            ["axes", "bodies", "box", "class", "ship", "virus"],
        ),
        ("größe 船 250 x ab the http a_b v2", ["größe", "船"]),
        (" ".join(f"{letter}word" for letter in "abcdefghij"), [f"{letter}word" for letter in "abcdef"]),
    ],
)
def test_no_group_has_too_many_names_and_none_is_a_number_code_or_plural_of_another(text, names):
    assert name_groups(*matrices([[text] * 3, ["tree"] * 3])) == [names, ["tree"]]
    assert name_groups([], np.empty((0, 2)), np.empty((0, 2)), np.array([1, 1])) == [[], []]


def test_words_with_marks_and_characters_name_groups_and_numbers_do_not():
    texts = ["मौसम बारिश 2024", "बारिश 2024", "किताब पुस्तकें", "किताब 5"]
    names = group_names.name_groups_of_texts(texts, [0, 0, 1, 1], 2)
    assert names == [["बारिश"], ["किताब"]]
