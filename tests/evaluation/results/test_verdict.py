"""A verdict says what the paired tests say, no more: one comparison with its interval, several by head."""

import numpy as np
import pytest

from docsplit.evaluation.results.bootstrap import Difference
from docsplit.evaluation.results.comparison import comparisons, rows
from docsplit.evaluation.results.records import Comparison, Measured, Report, Row
from docsplit.evaluation.results.task import CLASSIFICATION, LINKS, RANKING
from docsplit.evaluation.results.verdict import verdict
from tests.evaluation.results.examples import make_group, make_result

MORE_RUNS = (
    "One training run says nothing of other seeds: several runs of a method would tell more (NAME=PATH,PATH,PATH)."
)


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
    ("points", "seeds", "expected"),
    [
        ((4.5, 2.4, 6.9), (1, 1), "In one training run each, adapted scored 4.5 points more than start (95 % interval "
         "over test documents 2.4 to 6.9; Accuracy, linear, 5 labels a class)."),
        ((-4.5, -6.9, -2.4), (1, 1), "In one training run each, adapted scored 4.5 points less than start (95 % "
         "interval over test documents 2.4 to 6.9; Accuracy, linear, 5 labels a class)."),
        ((4.5, 2.4, 6.9), (3, 3), "adapted is ahead of start by 4.5 points (95 % interval over seeds and test "
         "documents 2.4 to 6.9; Accuracy, linear, 5 labels a class; 3 training runs each)."),
        ((-4.5, -6.9, -2.4), (3, 3), "adapted is behind start by 4.5 points (95 % interval over seeds and test "
         "documents 2.4 to 6.9; Accuracy, linear, 5 labels a class; 3 training runs each)."),
        ((0.2, -0.8, 1.2), (1, 1), "No difference between adapted and start can be told: +0.2 points (95 % interval "
         "over test documents -0.8 to +1.2; Accuracy, linear, 5 labels a class; one training run each)."),
    ],
)  # fmt: skip
def test_one_comparison_has_its_interval(points, seeds, expected, is_turned):
    """Whichever encoder the test takes first, the sentence is about the one that was named later."""
    if is_turned:
        one = compared("start", "adapted", (-points[0], -points[2], -points[1]), seeds=seeds)
    else:
        one = compared("adapted", "start", points, seeds=seeds)
    first, *rest = of([one], seeds=seeds)
    assert first == expected
    would_tell = "Where no difference can be told, more test documents would tell more (these are 1,918)."
    assert rest == [would_tell] * ("No diff" in expected) + [MORE_RUNS] * (1 in seeds)


@pytest.mark.parametrize("seeds", [(1, 1), (3, 1), (1, None), (3, 5), (3, None), (None, None)])
@pytest.mark.parametrize("points", [(4.5, 2.4, 6.9), (-4.5, -6.9, -2.4), (0.2, -0.8, 1.2)])
def test_ahead_is_what_the_comparison_says(points, seeds):
    """The table beside a sentence and results.json have the same: a single training run is ahead of nothing."""
    one = compared("adapted", "start", points, seeds=seeds)
    first, *rest = of([one], seeds=seeds)
    told = {
        "adapted": ("adapted is ahead of start", "start is behind adapted"),
        "start": ("adapted is behind start", "start is ahead of adapted"),
    }
    for encoder, claims in told.items():
        assert first.startswith(claims) == (one.ahead == encoder)
    assert (" scored " in first) == (one.is_clear and one.ahead is None)
    assert (MORE_RUNS in rest) == (1 in seeds)


def test_comparisons_that_agree_are_one_span():
    points = [((4.5, 2.4, 6.9), 5), ((3.0, 0.4, 7.2), None)]
    more = [compared("adapted", "start", measured, shots=shots) for measured, shots in points]
    assert of(more) == [
        "In one training run each, adapted scored 3.0 to 4.5 points more than start in both comparisons (95 % "
        "intervals over test documents from 0.4 to 7.2; Accuracy, linear, 5 and all labels a class; not corrected for "
        "2 comparisons).",
        MORE_RUNS,
    ]
    ahead = [compared("adapted", "start", measured, shots=shots, seeds=(3, 2)) for measured, shots in points]
    assert of(ahead) == [
        "adapted is ahead of start by 3.0 to 4.5 points in both comparisons (95 % intervals over seeds and test "
        "documents from 0.4 to 7.2; Accuracy, linear, 5 and all labels a class; 3 training runs against 2; not "
        "corrected for 2 comparisons)."
    ]
    untold = [compared("adapted", "start", (0.5, -0.4, 1.9)), compared("adapted", "start", (-1.0, -2.4, 0.2), "knn")]
    assert of(untold)[0] == (
        "No difference between adapted and start can be told in any of 2 comparisons: -1.0 to +0.5 points (95 % "
        "intervals over test documents from -2.4 to +1.9; Accuracy, linear and knn, 5 labels a class; one training "
        "run each)."
    )


def test_heads_that_disagree_are_named():
    """A claim leads only where at least half of the comparisons make it."""

    def several(points, head="linear", shots=5):
        return compared("adapted", "start", points, head, shots, seeds=(3, 3))

    linear = [several((4.5, 2.4, 6.9), shots=shots) for shots in (5, None)]
    untold = several((0.2, -0.8, 1.2), "knn")
    details = "(Accuracy; 3 training runs each; not corrected for 3 comparisons)"
    assert of([*linear, untold])[0] == (
        "adapted is ahead of start by 4.5 points in 2 of 3 comparisons; in 1 no difference can be told "
        f"{details}. By head: linear: ahead; knn: not told."
    )
    assert of([linear[0], untold, untold])[0] == (
        "In most comparisons (2 of 3) no difference between adapted and start can be told; adapted is ahead by 4.5 "
        f"points in 1 {details}. By head: linear: ahead; knn: not told."
    )
    assert of([*linear, several((-1.5, -2.0, -1.0), "knn")])[0] == (
        "The 3 comparisons of adapted with start disagree: adapted is ahead by 4.5 points in 2, and is behind by 1.5 "
        f"points in 1 {details}. By head: linear: ahead; knn: behind."
    )
    by_labels = [linear[0], several((0.2, -0.8, 1.2), shots=None)]
    assert of(by_labels)[0].endswith("By head: 5 labels a class: ahead; all labels: not told.")


def test_heads_that_disagree_in_one_run_are_ahead_of_nothing():
    linear = [compared("adapted", "start", (4.5, 2.4, 6.9), shots=shots) for shots in (5, None)]
    untold = compared("adapted", "start", (0.2, -0.8, 1.2), "knn")
    assert of([*linear, untold])[0] == (
        "In one training run each, adapted scored 4.5 points more than start in 2 of 3 comparisons; in 1 no "
        "difference can be told (Accuracy; not corrected for 3 comparisons). By head: linear: more; knn: not told."
    )
    assert of([*linear, compared("adapted", "start", (-1.5, -2.0, -1.0), "knn")])[0] == (
        "The 3 comparisons of adapted with start disagree: adapted scored 4.5 points more in 2, and scored 1.5 points "
        "less in 1 (Accuracy; one training run each; not corrected for 3 comparisons). By head: linear: more; knn: "
        "less."
    )


def test_each_encoder_meets_the_first_and_baselines_are_what_is_compared_with():
    encoders, seeds = ("start", "adapted", "tfidf"), (1, 3, None)
    more = compared("start", "adapted", (-4.5, -6.9, -2.4), seeds=(1, 3))
    others = [
        compared("start", "tfidf", (-8.0, -9.0, -7.0), seeds=(1, None)),
        compared("adapted", "tfidf", (2.0, 1.0, 3.0), seeds=(3, None)),  # not against the first
    ]
    sentences = of([more, *others], encoders, seeds=seeds)
    assert len(sentences) == 3
    assert sentences[0].startswith("In 3 training runs against one, adapted scored 4.5 points more than start (")
    assert sentences[1].startswith("In one training run, start scored 8.0 points less than tfidf (")
    assert all(sentence.endswith("; not corrected for 3 comparisons).") for sentence in sentences[:2])
    assert of([]) == []


def test_rankings_name_the_method_and_take_the_corrected_p():
    def against_bm25(p, head="dense", seeds=(3, None)):
        return compared("mine", "bm25", (4.5, 2.4, 6.9), head, None, p_holm=p, heads=(head, "bm25"), seeds=seeds)

    within = compared("mine", "mine", (1.0, 0.5, 1.5), "hybrid", None, heads=("hybrid", "dense"), p_holm=0.01)
    (sentence,) = of([against_bm25(0.01), within], ("mine", "bm25"), RANKING, (3, None))
    assert sentence == (
        "mine is ahead of bm25 by 4.5 points (95 % interval over seeds and test queries 2.4 to 6.9; nDCG@10, dense; "
        "3 training runs)."
    )
    (sentence, *_) = of([against_bm25(0.01, seeds=(1, None))], ("mine", "bm25"), RANKING, (1, None))
    assert sentence.startswith("In one training run, mine scored 4.5 points more than bm25 (")
    assert of([against_bm25(0.2), within], ("mine", "bm25"), RANKING, (3, None))[0] == (
        "No difference between mine and bm25 can be told: +4.5 points (95 % interval over seeds and test queries +2.4 "
        "to +6.9; p after correction for 2 comparisons 0.20; nDCG@10, dense; 3 training runs)."
    )
    refused = [against_bm25(0.5), against_bm25(0.2, "hybrid"), within]
    assert "; p after correction for 3 comparisons 0.20 to 0.50; " in of(refused, ("mine", "bm25"), RANKING)[0]


def test_what_results_say_is_what_their_tests_say():
    """A signal that is there scores more, and is ahead in several runs; noise is not told; links have baselines."""
    results = [make_result("noise", 0.0), make_result("other noise", 0.0, seed=7), make_result("signal", 4.0)]
    untold, more, *rest = verdict(Report(CLASSIFICATION, rows(results), comparisons(results)))
    assert untold.startswith("No difference between other noise and noise can be told")
    measured = comparisons([results[0], results[2]])[0].difference
    points = [f"{abs(100 * value):.1f}" for value in (measured.difference, measured.high, measured.low)]
    assert more.startswith(
        f"In one training run each, signal scored {points[0]} points more than noise (95 % interval over test "
        f"documents {points[1]} to {points[2]};"
    )
    assert "(these are 90)" in rest[0]
    assert rest[1:] == [MORE_RUNS]
    two_runs = [make_group("noise", "ab", 0.0)[0], make_group("signal", "cd", 4.0)[0]]
    *_, more = verdict(Report(CLASSIFICATION, rows(two_runs), comparisons(two_runs)))
    assert more.endswith("would tell more (these are 90), and so would more training runs.")
    groups = [make_group("noise", "abc", 0.0)[0], make_group("signal", "def", 4.0)[0]]
    (ahead,) = verdict(Report(CLASSIFICATION, rows(groups), comparisons(groups)))
    assert ahead.startswith("signal is ahead of noise by")
    assert "; 3 training runs each" in ahead
    links = [make_result("mine", 3.0, "links", head="mlp"), make_result("bm25", 0.0, "links", head="bm25")]
    (sentence, *_) = verdict(Report(LINKS, rows(links), comparisons(links)))
    assert sentence.startswith("In one training run, mine scored")
    assert " points more than bm25 (95 % interval over test pairs" in sentence


def test_a_difference_without_an_interval_is_not_told_and_does_not_break():
    """Correlations of equal values have none."""
    one = compared("adapted", "start", (1.0, np.nan, np.nan))
    assert of([one])[0].startswith(
        "No difference between adapted and start can be told: +1.0 points (no interval; Accuracy"
    )
