"""Where adapting may fail: other corpora to adapt on, and another question."""

from benchmarks.studies.adaptation.limits import COPIES, CORPORA, LIMITS, drawn, near_duplicates
from tests.benchmarks.studies.adaptation.vectors import vectors_of
from tests.conftest import make_corpus


def test_limits_change_what_is_adapted_on():
    texts = ["First one. Second two. Third three.", "Alone"] + [row["text"] for row in make_corpus(30)]
    copies = near_duplicates(texts[:2], None, 10)
    assert sorted(copies) == ["Alone", "First one. Second two.", "First one. Third three.", "Second two. Third three."]
    assert len(near_duplicates(texts[2:], None, 30)) <= 30 // COPIES * COPIES
    assert CORPORA["20news, 100 documents"](texts * 9, None, 2000) == drawn(texts * 9, 100)


def test_a_smaller_draw_is_part_of_a_larger_one_and_no_beginning():
    ordered = [str(number) for number in range(1000)]
    few = drawn(ordered, 100)
    assert len(set(few)) == 100
    assert drawn(ordered, 300)[:100] == few
    assert min(map(int, few)) < 100 < 900 < max(map(int, few))


def test_limits_of_real_data(real_data):
    asking = LIMITS["20news, asking or not"](real_data, "test", 200)
    measured = asking.measure(vectors_of(len(asking.texts)))
    assert measured.metric == "5shot_accuracy"
    assert 0.3 < measured.value < 0.7  # of random vectors and two classes
    mixed = LIMITS["20news, five fields mixed"](real_data, "test", 200)
    assert len(mixed.corpus) > len(set(mixed.corpus) & set(asking.corpus)) > 0
    assert mixed.texts == asking.texts
