"""A verdict says what the paired tests say, no more: one comparison with its interval, several by head."""

import numpy as np
import pytest

from docsplit.evaluation.results.bootstrap import Difference
from docsplit.evaluation.results.comparison import comparisons, rows
from docsplit.evaluation.results.records import Comparison, Measured, Report, Row
from docsplit.evaluation.results.task import CLASSIFICATION, LINKS, RANKING
from docsplit.evaluation.results.verdict import verdict
from tests.evaluation.results.examples import make_result


def row(task, encoder, head="linear", seeds=1):
    measures = {name: Measured(0.5, None) for name in task.measures}
    return Row(task, encoder, head, None, 1, measures, pretraining_seeds=seeds, test_items=1918)


def compared(a, b, points, head="linear", shots=5, seeds=(1, 1), **further):
    """A comparison of a difference with its interval, all in points."""
    difference = Difference(*(value / 100 for value in points), 0.01)
    return Comparison(head, shots, "raw", a, b, "accuracy", difference, seeds, **further)


def of(comparisons, encoders=("start", "adapted"), task=CLASSIFICATION, seeds=(1, 1)):
    table = [row(task, encoder, seeds=count) for encoder, count in zip(encoders, seeds)]
    return verdict(Report(task, table, comparisons))


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ((4.5, 2.4, 6.9), "adapted is ahead of start by 4.5 points (95 % interval 2.4 to 6.9; Accuracy, linear, 5 "
         "labels a class; one training run each)."),
        ((-4.5, -6.9, -2.4), "adapted is behind start by 4.5 points (95 % interval 2.4 to 6.9; Accuracy, linear, 5 "
         "labels a class; one training run each)."),
        ((0.2, -0.8, 1.2), "No difference between adapted and start can be told: +0.2 points (95 % interval -0.8 to "
         "+1.2; Accuracy, linear, 5 labels a class; one training run each)."),
    ],
)  # fmt: skip
def test_one_comparison_has_its_interval(points, expected, is_turned):
    """Whichever encoder the test takes first, the sentence is about the one that was named later."""
    if is_turned:
        one = compared("start", "adapted", (-points[0], -points[2], -points[1]))
    else:
        one = compared("adapted", "start", points)
    first, *rest = of([one])
    assert first == expected
    would_tell = "Where no difference can be told, more test documents would tell more (these are 1,918)"
    assert [sentence.startswith(would_tell) for sentence in rest] == ([True] if "No diff" in expected else [])


def test_comparisons_that_agree_are_one_span():
    ahead = [compared("adapted", "start", (4.5, 2.4, 6.9)), compared("adapted", "start", (3.0, 0.4, 7.2), shots=None)]
    assert of(ahead) == [
        "adapted is ahead of start in both comparisons by 3.0 to 4.5 points (95 % intervals from 0.4 to 7.2; "
        "Accuracy, linear, 5 and all labels a class; one training run each)."
    ]
    level = [compared("adapted", "start", (0.5, -0.4, 1.9)), compared("adapted", "start", (-1.0, -2.4, 0.2), "knn")]
    assert of(level)[0] == (
        "No difference between adapted and start can be told in any of 2 comparisons: -1.0 to +0.5 points (95 % "
        "intervals from -2.4 to +1.9; Accuracy, linear and knn, 5 labels a class; one training run each)."
    )


def test_heads_that_disagree_are_named():
    """The word "ahead" leads only where at least half of the comparisons say it."""
    linear = [compared("adapted", "start", (4.5, 2.4, 6.9), shots=shots) for shots in (5, None)]
    level = compared("adapted", "start", (0.2, -0.8, 1.2), "knn")
    assert of([*linear, level])[0] == (
        "adapted is ahead of start in 2 of 3 comparisons, by 4.5 points; in 1 no difference can be told (Accuracy; "
        "one training run each). By head: linear: ahead; knn: level."
    )
    assert of([linear[0], level, level])[0] == (
        "In most comparisons (2 of 3) no difference between adapted and start can be told; adapted is ahead in 1, by "
        "4.5 points (Accuracy; one training run each). By head: linear: ahead; knn: level."
    )
    behind = compared("adapted", "start", (-1.5, -2.0, -1.0), "knn")
    assert of([*linear, behind])[0] == (
        "The 3 comparisons of adapted with start disagree: adapted is ahead in 2, by 4.5 points, and behind in 1, by "
        "1.5 points (Accuracy; one training run each). By head: linear: ahead; knn: behind."
    )
    by_labels = [linear[0], compared("adapted", "start", (0.2, -0.8, 1.2), shots=None)]
    assert of(by_labels)[0].endswith("By head: 5 labels a class: ahead; all labels: level.")


def test_each_encoder_meets_the_first_and_baselines_are_what_is_compared_with():
    encoders, seeds = ("start", "adapted", "tfidf"), (1, 3, None)
    ahead = compared("start", "adapted", (-4.5, -6.9, -2.4), seeds=(1, 3))
    others = [
        compared("start", "tfidf", (-8.0, -9.0, -7.0), seeds=(1, None)),
        compared("adapted", "tfidf", (2.0, 1.0, 3.0), seeds=(3, None)),  # not against the first
    ]
    sentences = of([ahead, *others], encoders, seeds=seeds)
    assert len(sentences) == 2
    assert sentences[0].startswith("adapted is ahead of start by 4.5 points")
    assert sentences[0].endswith("3 against 1 training runs).")
    assert sentences[1].startswith("start is behind tfidf by 8.0 points")
    assert sentences[1].endswith("; one training run).")
    assert of([]) == []


def test_rankings_name_the_method_and_take_the_corrected_p():
    further = {"heads": ("dense", "bm25"), "seeds": (1, None)}
    clear = compared("mine", "bm25", (4.5, 2.4, 6.9), "dense", None, p_holm=0.01, **further)
    not_corrected = compared("mine", "bm25", (4.5, 2.4, 6.9), "dense", None, p_holm=0.2, **further)
    within = compared("mine", "mine", (1.0, 0.5, 1.5), "hybrid", None, heads=("hybrid", "dense"))
    (sentence,) = of([clear, within], ("mine", "bm25"), RANKING, (1, None))
    assert (
        sentence == "mine is ahead of bm25 by 4.5 points (95 % interval 2.4 to 6.9; nDCG@10, dense; one training run)."
    )
    assert of([not_corrected], ("mine", "bm25"), RANKING, (1, None))[0].startswith(
        "No difference between mine and bm25"
    )


def test_what_results_say_is_what_their_tests_say():
    """A signal that is there is ahead, noise is level; links have their baselines; groups their seeds."""
    results = [make_result("noise", 0.0), make_result("other noise", 0.0, seed=7), make_result("signal", 4.0)]
    level, ahead, more = verdict(Report(CLASSIFICATION, rows(results), comparisons(results)))
    assert level.startswith("No difference between other noise and noise can be told")
    measured = comparisons([results[0], results[2]])[0].difference
    points = [f"{abs(100 * value):.1f}" for value in (measured.difference, measured.high, measured.low)]
    assert ahead.startswith(
        f"signal is ahead of noise by {points[0]} points (95 % interval {points[1]} to {points[2]};"
    )
    assert "(these are 90)" in more
    links = [make_result("mine", 3.0, "links", head="mlp"), make_result("bm25", 0.0, "links", head="bm25")]
    (sentence,) = verdict(Report(LINKS, rows(links), comparisons(links)))
    assert sentence.startswith("mine is ahead of bm25 by")


def test_a_difference_without_an_interval_is_level_and_does_not_break():
    """Correlations of equal values have none."""
    one = compared("adapted", "start", (1.0, np.nan, np.nan))
    assert of([one])[0].startswith(
        "No difference between adapted and start can be told: +1.0 points (no interval; Accuracy"
    )
