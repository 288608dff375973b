"""Near copies against loops over sets of runs, and sketches against exact similarities."""

import itertools
import re
import unicodedata
import zlib

import numpy as np
import pytest

from docsplit.data import copies
from docsplit.data.copies import NO_HASH, jaccard_of_pairs, near_copy_groups, near_duplicates, resemblance, sketch
from tests.conftest import make_corpus

RNG = np.random.default_rng(0)
TEXTS = [row["text"] for row in make_corpus(300, seed=3)]
ODD = ["", "one two three four", "One two, three FOUR five", "Ünïcode, größer als ß und \ud800 mehr.", "word " * 40]


def runs_of(text):
    words = re.findall(r"\w+", text.lower()) or text.split()
    if 0 < len(words) < 5:
        words += [""] * (5 - len(words))  # one run
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}


def hash_of(run):
    value = 0
    for word in run:
        value = (value * 0x9E3779B97F4A7C15 + zlib.crc32(word.encode())) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return (value ^ value >> 31) >> 32


def jaccard(first, second):
    runs, others = runs_of(first), runs_of(second)
    return len(runs & others) / len(runs | others) if runs | others else float(first.split() == second.split())


def random_text(num_sentences, vocabulary=5_000):
    return ". ".join(" ".join(f"w{n}" for n in RNG.integers(vocabulary, size=12)) for _ in range(num_sentences))


def changed(text, share):
    """Return the text with that share of its words replaced, in one piece."""
    words = text.split()
    size = round(share * len(words))
    start = RNG.integers(len(words) - size + 1)
    return " ".join(words[:start] + [f"x{n}" for n in RNG.integers(10**6, size=size)] + words[start + size :])


def test_a_sketch_is_the_smallest_hashes_of_the_runs():
    texts = [*ODD, *TEXTS]
    for text, hashes in zip(texts, sketch(texts)):
        expected = sorted({hash_of(run) for run in runs_of(text)})[:8]
        assert hashes.tolist() == expected + [NO_HASH] * (8 - len(expected)), text
    assert sketch([]).shape == (0, 8)


def test_resemblance_estimates_the_jaccard_similarity():
    first = [random_text(10) for _ in range(200)]
    second = [changed(text, share) for text, share in zip(first, np.linspace(0, 0.9, 200))]
    exact = np.array([jaccard(*pair) for pair in zip(first, second)])
    error = resemblance(sketch(first), sketch(second)) - exact
    assert exact.min() < 0.1 < 0.9 < exact.max()
    assert abs(error.mean()) < 0.03  # the standard error is about 0.01
    assert np.sqrt((error**2).mean()) < 0.18
    few = [" ".join(text.split()[:7]) for text in first]  # three runs: nothing is left out of their sketches
    ends = [" ".join(text.split()[1:8]) for text in first]
    assert resemblance(sketch(few), sketch(ends)).tolist() == [jaccard(*pair) for pair in zip(few, ends)]
    same = sketch(["one word", "One, word!", "🍕🍕", "other word", "🍕", "", ""])
    assert resemblance(same[[0, 0, 2, 2, 5]], same[[1, 3, 2, 4, 6]]).tolist() == [1, 0, 1, 0, 0]


def test_near_duplicates_against_a_loop():
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(50)]
    references = [" ".join(rng.choice(words, 40)) for _ in range(20)]
    changed = references[3].split()
    changed[20] = "other"
    texts = [" ".join(rng.choice(words, 40)), " ".join(changed), references[7], " ".join(references[1].split()[:15])]
    expected = [max(jaccard(text, other) for other in references) >= 0.5 for text in texts]
    assert expected == [False, True, True, False]
    assert near_duplicates(texts, references).tolist() == expected


def test_jaccard_and_groups_against_sets_of_runs(monkeypatch):
    rng = np.random.default_rng(3)
    words = rng.choice(["ship", "sail", "bread", "butter", "tree", "storm"], size=(12, 30))
    words[6:] = words[:6]
    for row in range(6, 12):
        words[row, : 4 * (row - 6)] = "other"
    texts = [" ".join(row) for row in words]
    assert near_copy_groups(texts).tolist() == groups_by_a_loop(texts, 0.5)
    texts += ["a b", "a  b", "a c", "", f" {texts[3]}\n"]  # fewer than five words are equal or not; a copy
    all_pairs = np.array(list(itertools.product(range(17), repeat=2)))
    monkeypatch.setattr(copies, "CHUNK_RUNS", 100)  # a few pairs at a time
    slow = [jaccard(texts[first], texts[second]) for first, second in all_pairs]
    np.testing.assert_allclose(jaccard_of_pairs(texts, all_pairs), slow)
    assert jaccard_of_pairs(texts, all_pairs[:0]).tolist() == []


def groups_by_a_loop(texts, threshold):
    """Compare all pairs; a chain of copies is one group."""
    groups = list(range(len(texts)))
    for first, second in itertools.combinations(range(len(texts)), 2):
        if jaccard(texts[first], texts[second]) >= threshold:
            groups = [groups[first] if group == groups[second] else group for group in groups]
    return [list(dict.fromkeys(groups)).index(group) for group in groups]


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.9])
def test_groups_of_near_copies_are_those_of_all_pairs(threshold):
    """Chains of copies of which each changes a little more, below a sentence that all of them share."""
    rng = np.random.default_rng(4)
    texts = []
    for _ in range(40):
        words = rng.choice([f"word{number}" for number in range(200)], 30)
        for _ in range(5):
            texts.append(" ".join(words) + " Sent from my telephone, excuse errors of any kind.")
            words = words.copy()
            words[rng.integers(30, size=rng.integers(6))] = "other"
    rng.shuffle(texts)
    expected = groups_by_a_loop(texts, threshold)
    assert 41 < len(set(expected)) < 190 or threshold < 0.5
    assert near_copy_groups(texts, threshold).tolist() == expected
    assert near_copy_groups(["", "a", "", "a ", "b"], threshold).tolist() == [0, 1, 2, 1, 3]
    assert near_copy_groups([]).tolist() == []


@pytest.mark.parametrize(
    ("units", "joint", "changed"),
    [
        (" ".join("港务长保存泊位和已缴纳年度费用的船主名单船只免费停靠"), "", {17: "舟"}),
        (" ".join("港長は停泊場所と年会費を払った船主の名簿を管理する"), "", {15: "舟"}),
        ("พ รุ่ ง นี้ ฝ น ต ก ห นั ก ม า ก ห นั ง สื อ ใ ห ม่ ม า แ ล้ ว", "", {0: "ข"}),
        ("မ န က် ဖြ န် မိုး ရွာ မ ည်", "", {0: "က"}),
        ("मौसम विभाग ने कल भारी बारिश की चेतावनी दी है", " ", {0: "क्रिकेट"}),
        ("谢 谢", "", {}),
        ("谢 谢", "", {0: "多"}),
    ],
)
def test_near_copies_share_letters_where_words_have_no_spaces(units, joint, changed):
    units = units.split()
    other = [changed.get(place, unit) for place, unit in enumerate(units)]
    texts = [joint.join(units), unicodedata.normalize("NFD", joint.join(other)) + "。"]
    names = {unit: f"unit{number}" for number, unit in enumerate([*units, *other])}
    expected = jaccard(*(" ".join(map(names.__getitem__, words)) for words in (units, other)))
    assert (expected >= 0.5) == (len(units) > 2 or not changed)
    assert jaccard_of_pairs(texts, np.array([[0, 1]])).tolist() == [expected]
    assert near_duplicates(texts[:1], texts[1:]).tolist() == [expected >= 0.5]
    sketches = sketch(texts)
    assert resemblance(sketches[:1], sketches[1:])[0] == pytest.approx(expected, abs=0.25)
