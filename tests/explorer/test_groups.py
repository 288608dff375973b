"""Groups of the map: all documents are in one, and words name those that have them."""

import numpy as np
import pytest

from docsplit.explorer.groups import groups_of, naming_words

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


def test_words_are_those_of_class_based_tf_idf():
    """A plain loop over the definition."""
    rng = np.random.default_rng(3)
    vocabulary = ["lemon", "copper", "violin", "granite", "meadow", "saddle"]
    groups = np.arange(60) % 3
    texts = [
        " ".join(rng.choice(vocabulary, 3, p=np.roll([0.4, 0.2, 0.1, 0.1, 0.1, 0.1], 2 * group))) for group in groups
    ]
    counts = {word: [sum(word in text.split() for text in np.array(texts)[groups == group]) for group in range(3)]
              for word in vocabulary}  # fmt: skip
    sizes = [sum(counts[word][group] for word in vocabulary) for group in range(3)]

    def weight(word, group):
        return counts[word][group] / sizes[group] * np.log(1 + np.mean(sizes) / sum(counts[word]))

    expected = [[], [], []]
    for word in vocabulary:
        group = max(range(3), key=lambda group: weight(word, group))
        expected[group].append(word)
    expected = [sorted(words, key=lambda word: -weight(word, group))[:3] for group, words in enumerate(expected)]
    assert naming_words(texts, groups) == expected


def test_no_word_names_two_groups_and_no_plural_stands_beside_its_singular():
    texts, topics, _ = topic_texts(60)
    names = naming_words(texts, topics, count=9)
    flat = [word for words in names for word in words]
    assert len(flat) == len(set(flat))
    assert ("apple" in flat) + ("apples" in flat) == 1
    assert not {"the", "1999"} & set(flat)
    for topic, words in enumerate(names):
        assert {word.removesuffix("s") for word in words} >= set(TOPICS[topic].split())


def test_a_word_of_one_document_names_no_group_of_several():
    groups = np.array([0, 0, 1])
    assert naming_words(["lemon copper", "lemon", "granite"], groups) == [["lemon"], ["granite"]]


@pytest.mark.parametrize("texts", [["1 2", "3", "4"], ["the", "and", "of"]])
def test_texts_without_words_have_groups_without_names(texts):
    groups = groups_of(np.eye(3)[:, :2] * 10, texts)
    assert [group.words for group in groups] == [[]] * len(groups)
    assert sum(len(group.rows) for group in groups) == 3
