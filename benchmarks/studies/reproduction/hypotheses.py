"""The papers' claims, judged: shown, level, refuted or open.

A hypothesis is a few comparisons, each with one other method by one head and one number of labels, of the mean over
the sets that were measured. The p-values of a family are corrected for their number (Holm, 1979); without `family` a
hypothesis is one by itself. Other heads, and single sets, are secondary: tables show them, and nothing judges them.

    shown      the difference has the sign of the claim, after Holm
    refuted    it has the other sign, likewise
    level      neither, and it is smaller than `margin`, after Holm (two one-sided tests: Schuirmann, 1987)
    open       too little is known

A hypothesis is shown, or level, if all its comparisons are, refuted if one of them is, and open else. A comparison
without measurements is open, and says what is missing: "shown" is never said of a part.

    python -m benchmarks.studies.reproduction.hypotheses recipes/reproduction/small.yaml \
        benchmarks/results/reproduction/small/cells.json      # judges cells anew, after the fact

Most tests are a bootstrap over test items and independent pretraining seeds (`paired_bootstrap`). Where each seed has
a start of its own, from which both methods go on (kind `paired`), it is Student's t over the starts.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.stats import ttest_1samp

from benchmarks.engine.results import SAMPLES, Row, read_results
from benchmarks.studies.reproduction.measure import DENOMINATORS, refuse_doubles
from docsplit.evaluation.results.bootstrap import Difference, ItemScores, Resampled, holm, paired_bootstrap, resample
from docsplit.evaluation.results.markdown import inline, markdown_table
from docsplit.runtime.files import ROOT

FILE = ROOT / "recipes" / "reproduction" / "hypotheses.yaml"
SHOWN, REFUTED, LEVEL, OPEN = "shown", "refuted", "level", "open"
ALPHA = 0.05
NUM_SAMPLES = 20_000  # the least p is 2 in so many; Holm multiplies it with the tests of a family
FEW = -1  # labels a class: the smallest number that a set was measured with
KINDS = {  # the words that a hypothesis of each kind has, beside family, says, source, kind, evaluation and a
    "greater": {"b", "shots", "head", "head_of_b", "metric"},
    "paired": {"b", "shots", "head", "margin", "starts"},
    "equal": {"b", "shots", "head", "margin"},
    "interaction": {"b", "head"},
    "positive": {"metric"},
}
Hypothesis = Mapping[str, Any]
Place = tuple[str, str, str, str, int | None]  # evaluation, data, method, head with features, labels a class


@dataclass
class Comparison:
    """A method against another one, by one head."""

    name: str
    favoured: Mapping[str, str] = field(default_factory=dict)  # of each set the method that the claim is in favour of
    shots: int | None = None  # labels a class; None: all
    found: Difference | None = None
    corrected: float | None = None  # p after Holm; None: its interval decides
    equal: float | None = None  # p of two one-sided tests, then the same after Holm
    is_equality: bool = False  # what the hypothesis claims
    lacks: str | None = None  # what was not measured

    @property
    def verdict(self) -> str:
        """What was found, of this comparison alone."""
        if self.lacks is not None or self.found is None:
            return OPEN
        is_level = self.equal is not None and self.equal < ALPHA
        if self.is_equality:
            return SHOWN if is_level else OPEN
        if (self.corrected is None or self.corrected < ALPHA) and (self.found.low > 0 or self.found.high < 0):
            return SHOWN if self.found.low > 0 else REFUTED
        return LEVEL if is_level else OPEN


@dataclass
class Judged:
    """A hypothesis and its comparisons."""

    name: str
    stated: Hypothesis
    comparisons: list[Comparison]

    @property
    def verdict(self) -> str:
        """Shown or level if all comparisons are, refuted if one is, else open."""
        return combined([comparison.verdict for comparison in self.comparisons])


def combined(verdicts: Sequence[str]) -> str:
    """Return the verdict on several comparisons together."""
    if REFUTED in verdicts:
        return REFUTED
    return verdicts[0] if len(set(verdicts)) == 1 else OPEN


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
    named: Callable[[str, str, str], str]  # what a name stands for in an evaluation of a set

    def __post_init__(self) -> None:
        refuse_doubles(self.rows)
        self.rows = [row for row in self.rows if row["task"] != "pretraining"]
        self.items: dict[Place, dict[int | None, ItemScores]] = defaultdict(dict)
        self.values: dict[tuple[Place, str], list[Row]] = defaultdict(list)
        self.labels: dict[tuple[str, str], set[int]] = defaultdict(set)
        below = {(place_of(row), row["seed"], row["metric"].removesuffix(DENOMINATORS)): _as_runs(row)
                 for row in self.rows if row["metric"].endswith(DENOMINATORS)}  # fmt: skip
        for row in sorted(self.rows, key=lambda row: -1 if row["seed"] is None else row["seed"]):
            place = place_of(row)
            self.values[place, row["metric"]].append(row)
            if SAMPLES in row and not row.get("drawn") and not row["metric"].endswith(DENOMINATORS):
                above = _as_runs(row)
                denominators = below.get((place, row["seed"], row["metric"]), np.ones_like(above))
                self.items[place][row["seed"]] = ItemScores(above, denominators)
                if row["shots"] is not None:
                    self.labels[row["task"], row["data"]].add(row["shots"])

    def sets_of(self, evaluation: str) -> list[str]:
        """Return the data sets that an evaluation measured."""
        return list(dict.fromkeys(row["data"] for row in self.rows if row["task"] == evaluation))

    def of_metric(self, place: Place, metric: str) -> Resampled | None:
        """Return a number that is no sum over items, of all seeds: on drawn documents where a row has such samples.

        Without samples the seeds alone vary.
        """
        rows = self.values.get((place, metric))
        if not rows:
            return None
        scores = np.array([row["value"] for row in rows])
        samples = np.stack([np.array(row.get(SAMPLES, [row["value"]])) for row in rows], axis=1)
        if len(rows) > 1 or len(samples) == 1:  # each set of documents with several draws of the seeds
            samples = np.tile(samples, (max(NUM_SAMPLES // len(samples), 1), 1))
        return Resampled(scores, samples, len(rows))

    def systems(
        self, places: Sequence[Place], sets: Sequence[str], metric: str | None = None
    ) -> tuple[list[Resampled], str | None]:
        """Return the systems of some places, their means over sets on the same drawn items; or say what is missing."""
        known = self.items if metric is None else {place for place, name in self.values if name == metric}
        of_sets = [[self.place(place, data) for place in places] for data in sets]
        if lacking := [f"{place[2]} not measured with {place[3]} on {place[1]}"
                       for some in of_sets for place in some if place not in known]:  # fmt: skip
            return [], "; ".join(dict.fromkeys(lacking))
        if metric is not None:
            drawn = [[system for place in some if (system := self.of_metric(place, metric))] for some in of_sets]
        else:
            drawn = [
                resample([ItemScores.joined(list(self.items[place].values())) for place in some], NUM_SAMPLES,
                         pretraining_seeds=[len(self.items[place]) for place in some])
                for some in of_sets
            ]  # fmt: skip
        scores, samples = (
            [np.mean([getattr(one, name) for one in each], axis=0) for each in zip(*drawn)]
            for name in ("scores", "samples")
        )
        seeds = [one.seeds for one in drawn[0]]
        return [Resampled(*of_system) for of_system in zip(scores, samples, seeds)], None

    def place(self, place: Place, data: str) -> Place:
        """Return a place of this set, with its own method, and the smallest number of its labels in place of `FEW`."""
        evaluation, _, name, head, shots = place
        few = min(self.labels[evaluation, data], default=0)
        return (evaluation, data, self.named(name, evaluation, data), head, few if shots == FEW else shots)


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
    measured = Measured(rows, named or (lambda name, evaluation, data: name))
    judged = [Judged(name, stated, list(_comparisons(stated, measured))) for name, stated in hypotheses.items()]
    families = defaultdict[str, list[Comparison]](list)
    for one in judged:
        families[one.stated.get("family", one.name)] += one.comparisons
    for comparisons in families.values():
        correct(comparisons)
    return judged


def correct(comparisons: Iterable[Comparison]) -> None:
    """Correct the p-values of a family for the number of its tests, those of differences and of equality alike."""
    tested = [one for one in comparisons if one.found is not None and not np.isnan(one.found.p_value)]
    for one, corrected in zip(tested, holm([one.found.p_value for one in tested if one.found is not None])):
        one.corrected = corrected
    both = [(one, one.equal) for one in tested if one.equal is not None]
    for (one, _), corrected in zip(both, holm([p_value for _, p_value in both])):
        one.equal = corrected


def _comparisons(stated: Hypothesis, measured: Measured) -> Iterator[Comparison]:
    if not (sets := measured.sets_of(stated["evaluation"])):
        yield Comparison(stated["evaluation"], lacks="not measured")
    elif stated["kind"] == "positive":
        for data in sets:
            yield _positive(stated, data, measured)
    else:
        for other in stated["b"]:
            for which in stated.get("shots", ["few v all"]):
                yield _comparison(stated, sets, other, which, measured)


def _comparison(stated: Hypothesis, sets: Sequence[str], other: str, which: str, measured: Measured) -> Comparison:
    """Compare two methods with few labels, with all, or the gain with few and with all."""
    kind, heads = stated["kind"], (stated["head"], stated.get("head_of_b", stated["head"]))
    shots: list[int | None] = [FEW, None] if which == "few v all" else [FEW if which == "few" else None]
    favoured = {data: measured.named(stated["a"], stated["evaluation"], data) for data in sets}
    name = f"{stated['a']} v {other}, {' and '.join(sets)}, {which} labels"
    comparison = Comparison(name, favoured, shots[0])
    comparison.is_equality = kind == "equal"
    places: list[Place] = [(stated["evaluation"], "", method, head, labels)
                           for labels in shots for method, head in zip((stated["a"], other), heads)]  # fmt: skip
    if kind == "paired":
        of_sets = [[measured.items.get(measured.place(place, data), {}) for place in places] for data in sets]
        seeds = set.intersection(*(set(found) for some in of_sets for found in some))
        scores = [[[one[seed].of_runs().mean() for one in some] for some in of_sets] for seed in seeds]
        pairs = np.mean(scores, axis=1) if seeds else np.empty((0, 2))  # (S, 2)
        if len(pairs) < stated["starts"]:  # no verdict before all that was planned is there
            comparison.lacks = f"{len(pairs)} of {stated['starts']} starts"
        if len(pairs) > 1:
            comparison.found, comparison.equal = over_starts(pairs, stated["margin"])
        return comparison
    systems, comparison.lacks = measured.systems(places, sets, stated.get("metric"))
    if comparison.lacks is None and kind == "interaction":
        few_a, few_b, all_a, all_b = map(_over_runs, systems)
        gains = few_a.scores - few_b.scores - all_a.scores + all_b.scores  # seeds are paired by their number
        drawn = few_a.samples - few_b.samples - all_a.samples + all_b.samples
        comparison.found = above_zero(Resampled(gains, drawn, len(gains)))
    elif comparison.lacks is None:
        a, b = systems
        comparison.found = paired_bootstrap(a, b)
        if margin := stated.get("margin"):
            shifted = [Resampled(b.scores + by, b.samples + by, b.seeds) for by in (margin, -margin)]
            is_within = abs(comparison.found.difference) < margin
            comparison.equal = max(paired_bootstrap(a, one).p_value for one in shifted) / 2 if is_within else 1.0
    return comparison


def _over_runs(system: Resampled) -> Resampled:
    """Return the means of each seed over its runs."""
    scores = system.scores.reshape(system.seeds, -1).mean(axis=1)
    return Resampled(scores, system.samples.reshape(len(system.samples), system.seeds, -1).mean(axis=2), system.seeds)


def over_starts(pairs: np.ndarray, margin: float) -> tuple[Difference, float]:
    """Compare two methods that went on from the same starts; the test items stay as they are.

    Args:
        pairs: (S, 2), the scores of both from each start, S of 2 or more.
        margin: of the two one-sided tests.

    Returns: a - b with its 95 % interval and p, by Student's t; and p of a difference smaller than the margin.
    """
    differences = pairs[:, 0] - pairs[:, 1]
    found = ttest_1samp(differences, 0)
    above = ttest_1samp(differences, -margin, alternative="greater")
    below = ttest_1samp(differences, margin, alternative="less")
    low, high = found.confidence_interval(0.95)
    difference = Difference(float(differences.mean()), float(low), float(high), float(found.pvalue))
    return difference, max(float(above.pvalue), float(below.pvalue))


def above_zero(system: Resampled) -> Difference:
    """Compare a number with 0."""
    return paired_bootstrap(system, Resampled(np.zeros(1), np.zeros((len(system.samples), 1))))


def _positive(stated: Hypothesis, data: str, measured: Measured) -> Comparison:
    """Compare a number with 0; one that has an interval alone counts by that, and is no part of Holm's correction."""
    metric, evaluation = stated["metric"], stated["evaluation"]
    method = measured.named(stated["a"], evaluation, data)
    comparison = Comparison(f"{metric} of {method}, {data}", {data: method})
    places = [place for place, name in measured.values if (*place[:3], name) == (evaluation, data, method, metric)]
    if len(places) != 1:
        comparison.lacks = f"{metric} of {method} measured by {len(places)} heads, not one"
        return comparison
    rows = measured.values[places[0], metric]
    if "low" in rows[0]:
        lows, highs = [row["low"] for row in rows], [row["high"] for row in rows]
        comparison.found = Difference(float(np.mean([row["value"] for row in rows])), min(lows), max(highs), np.nan)
    elif system := measured.of_metric(places[0], metric):
        comparison.found = above_zero(system)
    return comparison


def verdict_rows(judged: Iterable[Judged]) -> Iterator[list[str]]:
    """Yield the cells of `VERDICTS`, a row a comparison: differences in hundredths."""
    for one in judged:
        for comparison in one.comparisons:
            found, values = comparison.found, ["", "", "", ""]
            if found is not None:
                values = [f"{100 * found.difference:+.1f}", f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"]
                values += ["" if p is None else f"{p:.3f}" for p in (comparison.corrected, comparison.equal)]
            yield [one.name, comparison.name, *values, comparison.lacks or comparison.verdict]


VERDICTS = ["", "comparison", "difference x 100", "95 %", "p, Holm", "p level, Holm", "verdict"]


def main() -> None:
    """Print the verdicts on finished cells as Markdown."""
    from benchmarks.studies.reproduction.plan import method_named, read_recipe

    recipe, cells = read_recipe(Path(sys.argv[1])), read_results(Path(sys.argv[2]))
    judged = judge(read_hypotheses(recipe), cells.rows, partial(method_named, recipe))
    rows = [[inline(one.name), inline(one.verdict), inline(one.stated["says"])] for one in judged]
    print(markdown_table(["", "verdict", "claim"], rows), "", sep="\n")
    print(markdown_table(VERDICTS, [[inline(cell) for cell in row] for row in verdict_rows(judged)]))


if __name__ == "__main__":
    main()
