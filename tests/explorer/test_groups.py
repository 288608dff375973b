"""Groups of the map: all documents are in one, and words name those that have them."""

import numpy as np
import pytest

from docsplit.data.group_names import name_groups
from docsplit.data.words import tokenize
from docsplit.explorer.groups import groups_of

TOPICS = ["harbour ship anchor", "oven bread flour", "orchard apple ladder"]


def topic_texts(size, seed=0):
    rng = np.random.default_rng(seed)
    topics = rng.integers(0, 3, size)
    texts = [f"The {TOPICS[topic]} of 1999, common{' apples' if topic == 2 and row % 3 else ''}, x{row}"
             for row, topic in enumerate(topics)]  # fmt: skip
    return texts, topics, rng


def test_groups_are_where_documents_lie_and_have_their_words():
    texts, topics, rng = topic_texts(90)
    points = topics[:, None] * 100 + rng.normal(size=(90, 2))
    groups = groups_of(points, texts)
    assert sorted(np.concatenate([group.rows for group in groups])) == list(range(90))
    assert [len(group.rows) for group in groups] == sorted((len(group.rows) for group in groups), reverse=True)
    for group in groups:
        assert len(set(topics[group.rows])) == 1
        centre = points[group.rows].mean(axis=0)
        distances = np.linalg.norm(points[group.rows] - centre, axis=1)
        assert distances[0] == distances.min()


def test_names_are_those_of_words_counted_one_by_one():
    """A plain loop over the words of each document."""
    texts, topics, rng = topic_texts(20)
    texts[0] += " lantern" * 5  # in one document alone
    points = topics[:, None] * 100 + rng.normal(size=(20, 2))
    groups = groups_of(points, texts)
    cut = tokenize(texts, return_ids=False)
    words = sorted({word for several in cut for word in several})
    totals = [[sum(cut[row].count(word) for row in group.rows) for group in groups] for word in words]
    documents = [[sum(word in cut[row] for row in group.rows) for group in groups] for word in words]
    expected = name_groups(
        words, np.array(totals), np.array(documents), np.array([len(group.rows) for group in groups])
    )
    for group, names in zip(groups, expected):
        assert group.words == names[:3]
        topic = TOPICS[topics[group.rows[0]]].split()
        assert {word.removesuffix("s") for word in group.words} == set(topic)


@pytest.mark.parametrize("texts", [["1 2", "3", "4"], ["the", "and", "of"]])
def test_texts_without_words_have_groups_without_names(texts):
    groups = groups_of(np.eye(3)[:, :2] * 10, texts)
    assert [group.words for group in groups] == [[]] * len(groups)
    assert sum(len(group.rows) for group in groups) == 3
