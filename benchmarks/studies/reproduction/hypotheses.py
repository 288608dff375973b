"""The papers' claims, judged: shown, refuted or open, by a bootstrap over pretraining seeds and test items.

A hypothesis is several comparisons, each of one data set, one number of labels and one other method. A comparison is
made with each head. Its two-sided p-values are corrected for the number of tests of the family (Holm, 1979).

    shown      with every head the difference has the sign of the claim, and its interval leaves 0 out after Holm
    refuted    with every head it has the other sign, likewise
    open       else: too little is known, or the heads disagree

A hypothesis is shown if all its comparisons are, refuted if one of them is, and open else. A comparison without
measurements is open, and says what is missing: "shown" is never said of a part.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.engine.results import SAMPLES, Row
from benchmarks.studies.reproduction.measure import DENOMINATORS, refuse_doubles
from docsplit.evaluation.results.bootstrap import Difference, ItemScores, Resampled, holm, paired_bootstrap, resample
from docsplit.runtime.files import ROOT

FILE = ROOT / "recipes" / "reproduction" / "hypotheses.yaml"
SHOWN, REFUTED, OPEN = "shown", "refuted", "open"
LEVEL = 0.05
NUM_SAMPLES = 20_000  # the least p is 2 in so many; Holm multiplies it with the tests of a family, some 300
ALL, FEW = "all", "few"
KINDS = {  # the words that a hypothesis of each kind has, beside family, says, source, kind, evaluation and a
    "greater": {"b", "shots", "heads", "heads_of_b", "metric"},
    "equal": {"b", "shots", "heads", "margin"},
    "interaction": {"b", "heads"},
    "positive": {"metric"},
}
Hypothesis = Mapping[str, Any]
Place = tuple[str, str, str, str, int | None]  # evaluation, data, method, head with features, labels a class


@dataclass
class HeadTest:
    """A comparison by one head."""

    head: str
    difference: Difference
    corrected: float | None = None  # p after Holm
    margin: float | None = None  # of a test of equality
    by_interval: bool = False  # an interval of each seed decides, and no p is corrected

    @property
    def sign(self) -> int:
        """1 if the claim is clear, -1 if its opposite is, else 0."""
        if not self.by_interval and (self.corrected is None or self.corrected >= LEVEL):
            return 0
        if self.margin is not None:
            return 1 if abs(self.difference.difference) < self.margin else -1
        low, high = self.difference.low, self.difference.high
        return 1 if low > 0 else -1 if high < 0 else 0


@dataclass
class Comparison:
    """A method against another one on one set."""

    name: str
    data: str | None = None
    method: str | None = None  # that the claim is in favour of
    shots: int | None = None  # labels a class; None: all
    tests: list[HeadTest] = field(default_factory=list)
    lacks: str | None = None  # what was not measured

    @property
    def verdict(self) -> str:
        """Whether all heads agree, and on what."""
        signs = {test.sign for test in self.tests}
        if self.lacks is not None or not self.tests:
            return OPEN
        return SHOWN if signs == {1} else REFUTED if signs == {-1} else OPEN

    @property
    def heads_disagree(self) -> bool:
        """Whether one head is clear and another one is not, or says the opposite."""
        return len({test.sign for test in self.tests}) > 1

    @property
    def heads(self) -> str:
        """How many heads are clear, and on what: `heads: 3 for, 1 unclear`."""
        counts = {"for": 1, "against": -1, "unclear": 0}
        numbers = {side: sum(test.sign == sign for test in self.tests) for side, sign in counts.items()}
        return "heads: " + ", ".join(f"{number} {side}" for side, number in numbers.items() if number)


@dataclass
class Judged:
    """A hypothesis and its comparisons."""

    name: str
    stated: Hypothesis
    comparisons: list[Comparison]

    @property
    def verdict(self) -> str:
        """Shown if all comparisons are, refuted if one is, else open."""
        return combined([comparison.verdict for comparison in self.comparisons])


def combined(verdicts: Sequence[str]) -> str:
    """Return the verdict on several comparisons together: shown if all are, refuted if one is, else open."""
    if REFUTED in verdicts:
        return REFUTED
    return SHOWN if verdicts and set(verdicts) == {SHOWN} else OPEN


def read_hypotheses(recipe: Mapping[str, Any], path: Path = FILE) -> dict[str, Hypothesis]:
    """Read the recipe's own hypotheses, or else those of the papers, and check their words.

    Methods that the recipe lacks are left for the report to say.

    Raises:
        ValueError: if one has a kind or a word that there is not.
    """
    hypotheses = recipe.get("hypotheses") or yaml.safe_load(path.read_text(encoding="utf-8"))
    shared = {"family", "says", "source", "kind", "evaluation", "a"}
    for name, stated in hypotheses.items():
        if stated["kind"] not in KINDS:
            raise ValueError(f"{path}: {name} is of kind {stated['kind']!r}, expected one of {', '.join(KINDS)}.")
        if unknown := stated.keys() - shared - KINDS[stated["kind"]]:
            raise ValueError(f"{path}: {name} has {', '.join(sorted(unknown))}, which {stated['kind']} has not.")
    return hypotheses


@dataclass
class Measured:
    """The rows of a run, by place and pretraining seed."""

    rows: Sequence[Row]

    def __post_init__(self) -> None:
        refuse_doubles(self.rows)
        self.items: dict[Place, dict[int | None, ItemScores]] = defaultdict(dict)
        self.values: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
        self.labels: dict[tuple[str, str], set[int]] = defaultdict(set)
        below: dict[tuple[Place, int | None, str], np.ndarray] = {}
        self.drawn: dict[tuple[Place, str], dict[int | None, Row]] = defaultdict(dict)
        for row in self.rows:
            if row.get("drawn"):
                self.drawn[place_of(row), row["metric"]][row["seed"]] = row
        sampled = [row for row in self.rows if SAMPLES in row and not row.get("drawn")]
        for row in sampled:
            if row["metric"].endswith(DENOMINATORS):
                metric = row["metric"].removesuffix(DENOMINATORS)
                below[place_of(row), row["seed"], metric] = _as_runs(row)
        for row in sampled:
            if not row["metric"].endswith(DENOMINATORS):
                above = _as_runs(row)
                denominators = below.get((place_of(row), row["seed"], row["metric"]), np.ones_like(above))
                self.items[place_of(row)][row["seed"]] = ItemScores(above, denominators)
                if row["shots"] is not None:
                    self.labels[row["task"], row["data"]].add(row["shots"])
        for row in self.rows:
            self.values[row["task"], row["data"], row["method"], row["metric"]].append(row)

    def sets_of(self, evaluation: str) -> list[str]:
        """Return the data sets that an evaluation measured."""
        return list(dict.fromkeys(row["data"] for row in self.rows if row["task"] == evaluation))

    def system(self, place: Place) -> tuple[ItemScores, int] | None:
        """Return the items of all seeds, (S x R, M), and S; None where nothing was measured."""
        seeds = self.items.get(place)
        if not seeds:
            return None
        ordered = [seeds[seed] for seed in sorted(seeds, key=lambda seed: -1 if seed is None else seed)]
        return ItemScores.joined(ordered), len(ordered)  # type: ignore[return-value]

    def drawn_system(self, place: Place, metric: str) -> Resampled | None:
        """Return a number that has values on drawn documents, of all seeds; None where it was not measured."""
        seeds = self.drawn.get((place, metric))
        if not seeds:
            return None
        rows = [seeds[seed] for seed in sorted(seeds, key=lambda seed: -1 if seed is None else seed)]
        samples = np.stack([np.array(row[SAMPLES]) for row in rows], axis=1)
        if len(rows) > 1:  # each set of documents with several draws of the seeds
            samples = np.tile(samples, (max(NUM_SAMPLES // len(samples), 1), 1))
        return Resampled(np.array([row["value"] for row in rows]), samples, len(rows))

    def pair(self, places: Sequence[Place], metric: str | None = None) -> tuple[list[Resampled], list[str]]:
        """Return the systems of some places on the same drawn items, and the methods that were not measured."""
        if metric is not None:
            drawn = [self.drawn_system(place, metric) for place in places]
            lacking = [place[2] for place, system in zip(places, drawn) if system is None]
            return [system for system in drawn if system is not None], lacking
        systems = [self.system(place) for place in places]
        lacking = [place[2] for place, system in zip(places, systems) if system is None]
        known = [system for system in systems if system is not None]
        if lacking:
            return [], lacking
        items, seeds = zip(*known)
        return resample(items, NUM_SAMPLES, pretraining_seeds=seeds), []


def place_of(row: Row) -> Place:
    """Return what identifies the samples of a row but for its seed."""
    return (row["task"], row["data"], row["method"], f"{row['head']} {row['features']}", row["shots"])


def _as_runs(row: Row) -> np.ndarray:
    return np.array(row[SAMPLES], dtype=np.float32).reshape(row["runs"], -1)


def judge(
    hypotheses: Mapping[str, Hypothesis], rows: Sequence[Row], named: Callable[[str, str, str], str] | None = None
) -> list[Judged]:
    """Judge all hypotheses; p-values are corrected within each family.

    Args:
        named: gives the method that a hypothesis's name stands for in an evaluation of a data set.
    """
    measured = Measured(rows)
    named = named or (lambda name, evaluation, data: name)
    judged = [Judged(name, stated, list(_comparisons(stated, measured, named))) for name, stated in hypotheses.items()]
    for family in {one.stated["family"] for one in judged}:
        correct([comparison for one in judged if one.stated["family"] == family for comparison in one.comparisons])
    return judged


def correct(comparisons: Iterable[Comparison]) -> None:
    """Correct the p-values of all tests of a family for their number."""
    tests = [test for comparison in comparisons for test in comparison.tests if not test.by_interval]
    for test, corrected in zip(tests, holm([test.difference.p_value for test in tests])):
        test.corrected = corrected


def _comparisons(
    stated: Hypothesis, measured: Measured, named: Callable[[str, str, str], str]
) -> Iterator[Comparison]:
    evaluation, sets = stated["evaluation"], measured.sets_of(stated["evaluation"])
    if not sets:
        yield Comparison(evaluation, lacks="not measured")
    for data in sets:
        a = named(stated["a"], evaluation, data)
        if stated["kind"] == "positive":
            yield _positive(stated, data, a, measured)
            continue
        few = min(measured.labels[evaluation, data], default=None)
        for other in (named(name, evaluation, data) for name in stated["b"]):
            if stated["kind"] == "interaction":
                yield _interaction(stated, data, (a, other), few, measured)
                continue
            for which in stated["shots"]:
                if which == ALL or few is not None:
                    yield _comparison(stated, data, (a, other), None if which == ALL else few, measured)


def _comparison(
    stated: Hypothesis, data: str, methods: tuple[str, str], shots: int | None, measured: Measured
) -> Comparison:
    """Compare two methods with each head."""
    labels = "all labels" if shots is None else f"{shots} labels a class"
    comparison = Comparison(f"{' v '.join(methods)}, {data}, {labels}", data, methods[0], shots)
    without: dict[str, list[str]] = defaultdict(list)  # the heads that a method has no number with
    for heads in zip(stated["heads"], stated.get("heads_of_b", stated["heads"])):
        places = [(stated["evaluation"], data, method, head, shots) for method, head in zip(methods, heads)]
        systems, lacking = measured.pair(places, stated.get("metric"))
        if lacking:
            for name, head in zip(methods, heads):
                if name in lacking:
                    without[name].append(head)
            continue
        a, b = systems
        comparison.tests.append(compared(heads[0], a, b, stated.get("margin")))
    if without:
        comparison.lacks = "; ".join(f"{name} not measured with {', '.join(on)}" for name, on in without.items())
    return comparison


def compared(head: str, a: Resampled, b: Resampled, margin: float | None = None) -> HeadTest:
    """Compare two systems: is a better; with a margin, do they differ by less than that?

    Equality is two one-sided tests (Schuirmann, 1987), a - b below the margin and above its opposite; p is the larger
    of the two. Where a and b differ by the margin or more, p is that of a difference beyond the margin.
    """
    difference = paired_bootstrap(a, b)
    if margin is None:
        return HeadTest(head, difference)
    upper, lower = (
        paired_bootstrap(a, Resampled(b.scores + shift, b.samples + shift, b.seeds)).p_value
        for shift in (margin, -margin)
    )
    if abs(difference.difference) < margin:
        p_value = max(upper, lower) / 2
    else:
        p_value = upper if difference.difference > 0 else lower
    return HeadTest(head, replace(difference, p_value=p_value), None, margin)


def _interaction(
    stated: Hypothesis, data: str, methods: tuple[str, str], few: int | None, measured: Measured
) -> Comparison:
    """Compare the gain with few labels with the gain with all; seeds are paired by their number."""
    name = f"gain of {' over '.join(methods)}, {data}, {few} labels a class v all"
    comparison = Comparison(name, data, methods[0], few)
    without = []
    for head in stated["heads"]:
        places = [(stated["evaluation"], data, method, head, shots) for shots in (few, None) for method in methods]
        systems, lacking = measured.pair(places)
        if few is None or lacking:
            without.append(head)
        elif len({system.seeds for system in systems}) > 1:
            comparison.lacks = f"other numbers of pretraining seeds with {head}"
        else:
            comparison.tests.append(HeadTest(head, growth_of_gain(*systems)))
    if without:
        comparison.lacks = f"few or all labels not measured with {', '.join(without)}"
    return comparison


def growth_of_gain(few_a: Resampled, few_b: Resampled, all_a: Resampled, all_b: Resampled) -> Difference:
    """Return (a - b with few labels) - (a - b with all), of each seed its mean over runs: S values of one system."""

    def of_seeds(system: Resampled) -> tuple[np.ndarray, np.ndarray]:
        return (system.scores.reshape(system.seeds, -1).mean(axis=1),
                system.samples.reshape(len(system.samples), system.seeds, -1).mean(axis=2))  # fmt: skip

    (few, few_drawn), (less, less_drawn), (all_, all_drawn), (rest, rest_drawn) = map(
        of_seeds, (few_a, few_b, all_a, all_b)
    )
    scores, samples = few - less - all_ + rest, few_drawn - less_drawn - all_drawn + rest_drawn
    growth = Resampled(scores, samples, len(scores))
    nothing = Resampled(np.zeros(1), np.zeros((len(samples), 1)))
    return paired_bootstrap(growth, nothing)


def _positive(stated: Hypothesis, data: str, method: str, measured: Measured) -> Comparison:
    """Compare a number with 0; one that has an interval alone counts by that, and is no part of Holm's correction."""
    metric, evaluation = stated["metric"], stated["evaluation"]
    comparison = Comparison(f"{metric} of {method}, {data}", data, method)
    rows = measured.values[evaluation, data, method, metric]
    if not rows:
        comparison.lacks = f"{metric} of {method} not measured"
    elif len({place_of(row) for row in rows}) > 1:
        raise ValueError(f"{metric} of {method}, {data}, is measured by several heads: one of them has to be named.")
    elif rows[0].get("drawn"):
        system = measured.drawn_system(place_of(rows[0]), metric)
        assert system is not None
        nothing = Resampled(np.zeros(1), np.zeros((len(system.samples), 1)))
        comparison.tests.append(HeadTest("all seeds", paired_bootstrap(system, nothing)))
    else:
        lows, highs = [row["low"] for row in rows], [row["high"] for row in rows]
        found = Difference(float(np.mean([row["value"] for row in rows])), min(lows), max(highs), np.nan)
        comparison.tests.append(HeadTest("its interval", found, by_interval=True))
    return comparison
