"""What the paired tests of an evaluation say, in a few sentences, for people who read no table.

Each encoder is compared with the first one that was named. Nothing is tested here: differences, intervals and p-values
are those of the report's comparisons (`docsplit.evaluation.results.comparison`). Only rankings correct p for the
number of comparisons; where another task has several, a sentence that tells a difference says that it does not.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from docsplit.evaluation.results.bootstrap import is_clear
from docsplit.evaluation.results.records import Comparison, Report
from docsplit.evaluation.results.tables import names_of
from docsplit.evaluation.results.task import Task

AHEAD, BEHIND = "ahead", "behind"  # as `Comparison.ahead` has it
MORE, LESS = "more", "less"  # the interval leaves 0 out, but a single training run is compared
UNTOLD = "not told"


@dataclass(frozen=True)
class _Finding:
    """A comparison as the first of two encoders would tell it; numbers in points."""

    head: str
    features: str
    shots: int | None
    difference: float
    low: float
    high: float
    says: str  # ahead, behind, more, less or not told
    refused_by: float | None  # the corrected p, where it alone refuses a difference


@dataclass(frozen=True)
class _Pair:
    """All findings on two encoders, with what sentences name."""

    subject: str
    reference: str
    findings: Sequence[_Finding]
    seeds: Sequence[int | None]  # training runs of both; None where nothing was trained
    report: Report  # which has them

    @property
    def task(self) -> Task:
        """Return the task that the report measured."""
        return self.report.task

    def that_say(self, word: str) -> list[_Finding]:
        """Return the findings of a kind."""
        return [finding for finding in self.findings if finding.says == word]

    @property
    def runs(self) -> str:
        """How many training runs stand behind the two encoders; "" where nothing was trained."""
        known = ["one" if count == 1 else str(count) for count in self.seeds if count is not None]
        if not known:
            return ""
        runs = f"{known[0]} training run{'' if known[0] == 'one' else 's'}"
        if len(known) == 1:
            return runs
        return f"{runs} each" if known[0] == known[1] else f"{runs} against {known[1]}"

    @property
    def has_several_runs(self) -> bool:
        """Whether intervals are over training seeds too."""
        return any((count or 1) > 1 for count in self.seeds)

    @property
    def correction(self) -> str:
        """Say that a claim is one of several comparisons, where p is not corrected for these; else ""."""
        compared = self.report.comparisons
        if len(compared) == 1 or any(one.p_holm is not None for one in compared):
            return ""
        has_claim = any(finding.says != UNTOLD for finding in self.findings)
        return f"not corrected for {len(compared)} comparisons" if has_claim else ""


def verdict(report: Report) -> list[str]:
    """Return a sentence for each encoder against the first one, and what would tell more.

    A baseline without an encoder is what encoders are compared with, wherever it was named. An encoder that was
    trained elsewhere is one training run, as in the tables. Without comparisons there are no sentences.
    """
    pairs = _pairs(report)
    sentences = [" ".join(_sentence(pair).split()) for pair in pairs]
    if untold := [pair for pair in pairs if pair.that_say(UNTOLD)]:
        tested = report.rows[0].test_items
        more_runs = ", and so would more training runs" if any(pair.has_several_runs for pair in untold) else ""
        sentences.append(
            f"Where no difference can be told, more test {report.task.items} would tell more"
            f"{f' (these are {tested:,})' if tested else ''}{more_runs}."
        )
    if any(1 in pair.seeds for pair in pairs):
        sentences.append(
            "One training run says nothing of other seeds: several runs of a method would tell more "
            "(NAME=PATH,PATH,PATH)."
        )
    return sentences


def _pairs(report: Report) -> list[_Pair]:
    names, baselines = names_of(report.rows), {row.encoder for row in report.rows if row.pretraining_seeds is None}
    encoders = list(dict.fromkeys(row.encoder for row in report.rows))
    pairs = []
    for other in encoders[1:]:
        subject, reference = other, encoders[0]
        if subject in baselines and reference not in baselines:
            subject, reference = reference, subject
        compared = [one for one in report.comparisons if {one.a, one.b} == {subject, reference}]
        if compared:
            findings = [_seen_from(subject, one) for one in compared]
            of_each = dict(zip((compared[0].a, compared[0].b), compared[0].pretraining_seeds))
            seeds = [of_each[encoder] for encoder in (subject, reference)]
            pairs.append(_Pair(names[subject], names[reference], findings, seeds, report))
    return pairs


def _seen_from(encoder: str, comparison: Comparison) -> _Finding:
    is_first, measured = comparison.a == encoder, comparison.difference
    sign = 100 if is_first else -100
    low, high = (measured.low, measured.high) if is_first else (measured.high, measured.low)
    heads = comparison.heads or (comparison.head, comparison.head)
    kind = (heads[0] if is_first else heads[1], comparison.features, comparison.shots)
    points = (sign * measured.difference, sign * low, sign * high)
    refused_by = comparison.p_holm if is_clear(measured.low, measured.high) and not comparison.is_clear else None
    return _Finding(*kind, *points, _says(encoder, comparison), refused_by)


def _says(encoder: str, comparison: Comparison) -> str:
    if not comparison.is_clear:
        return UNTOLD
    if comparison.ahead is not None:
        return AHEAD if comparison.ahead == encoder else BEHIND
    is_first, is_positive = comparison.a == encoder, comparison.difference.difference > 0
    return MORE if is_first == is_positive else LESS


def _sentence(pair: _Pair) -> str:
    """Say who is ahead, by how much, and in how many comparisons; a claim leads only where most say so."""
    a, b, number = pair.subject, pair.reference, len(pair.findings)
    untold = pair.that_say(UNTOLD)
    claims = {word: those for word in (AHEAD, BEHIND, MORE, LESS) if (those := pair.that_say(word))}
    # All say the same
    if not claims:
        where = "" if number == 1 else f" in any of {number} comparisons"
        return f"No difference between {a} and {b} can be told{where}: {_points(untold)} ({_details(untold, pair)})."
    if not untold and len(claims) == 1:
        ((word, those),) = claims.items()
        where = "" if number == 1 else f" in {'both' if number == 2 else f'all {number}'} comparisons"
        return f"{_claim(word, those, pair)}{where} ({_details(those, pair)})."
    # They differ: most tell nothing, some say more and some less, or some tell nothing
    runs, parts = pair.runs, [_part(word, those) for word, those in claims.items()]
    not_told = f"in {len(untold)} no difference can be told"
    if 2 * len(untold) > number:
        told = f"In most comparisons ({len(untold)} of {number}) no difference between {a} and {b} can be told; "
        told += f"{a} {', and '.join(parts)}"
    elif len(claims) > 1:
        told = f"The {number} comparisons of {a} with {b} disagree: {a} {', and '.join(parts)}"
        told += f"; {not_told}" if untold else ""
    else:
        ((word, those),) = claims.items()
        told = f"{_claim(word, those, pair)} in {len(those)} of {number} comparisons; {not_told}"
        runs = _runs_beside(word, pair)
    details = "; ".join(filter(None, [pair.task.measures[pair.task.main], runs, pair.correction]))
    return f"{told} ({details}). {_who_says_what(pair)}"


def _claim(word: str, findings: Sequence[_Finding], pair: _Pair) -> str:
    """Return the main clause; a difference of a single training run says first that it is one."""
    if word in (AHEAD, BEHIND):
        return f"{pair.subject} is {word} {'of ' if word == AHEAD else ''}{pair.reference} by {_points(findings)}"
    return f"In {pair.runs}, {pair.subject} scored {_points(findings)} {word} than {pair.reference}"


def _part(word: str, findings: Sequence[_Finding]) -> str:
    """Return what an encoder is or scored in some of the comparisons."""
    claim = f"is {word} by {_points(findings)}" if word in (AHEAD, BEHIND) else f"scored {_points(findings)} {word}"
    return f"{claim} in {len(findings)}"


def _runs_beside(word: str, pair: _Pair) -> str:
    """Return the number of training runs, unless the claim led with it."""
    return "" if word in (MORE, LESS) else pair.runs


def _details(findings: Sequence[_Finding], pair: _Pair) -> str:
    """Return intervals of findings that agree, and what they are of; signs only where these differ."""
    of = [pair.task.measures[pair.task.main], _listed(one.head for one in findings)]
    if any(one.features != "raw" for one in findings):
        of.append(f"{_listed(one.features for one in findings)} features")
    if pair.task.has_training:
        of.append(_labels([one.shots for one in findings]))
    runs = _runs_beside(findings[0].says, pair)
    parts = [_intervals(findings, pair), _refusal(findings, pair), ", ".join(of), runs, pair.correction]
    return "; ".join(filter(None, parts))


def _intervals(findings: Sequence[_Finding], pair: _Pair) -> str:
    known = [one for one in findings if math.isfinite(one.low + one.high)]  # correlations of equal values have none
    if not known:
        return "no interval"
    low, high = min(one.low for one in known), max(one.high for one in known)
    if findings[0].says == UNTOLD:
        ends = f"{_signed(low)} to {_signed(high)}"
    else:
        low, high = sorted((abs(low), abs(high)))
        ends = f"{low:.1f} to {high:.1f}"
    over = f"over {'seeds and ' if pair.has_several_runs else ''}test {pair.task.items}"
    return f"95 % interval {over} {ends}" if len(findings) == 1 else f"95 % intervals {over} from {ends}"


def _refusal(findings: Sequence[_Finding], pair: _Pair) -> str:
    """Return the corrected p of findings whose interval leaves 0 out; "" where there are none."""
    refused = sorted(one.refused_by for one in findings if one.refused_by is not None)
    if not refused:
        return ""
    shown = list(dict.fromkeys(f"{p:.2f}" for p in (refused[0], refused[-1])))
    return f"p after correction for {len(pair.report.comparisons)} comparisons {' to '.join(shown)}"


def _points(findings: Sequence[_Finding]) -> str:
    """Return a difference, or the least and the largest; without signs where all are on one side."""
    values = [one.difference for one in findings]
    if findings[0].says == UNTOLD:
        shown = [_signed(value) for value in sorted(values)]
    else:
        shown = [f"{value:.1f}" for value in sorted(map(abs, values))]
    return f"{shown[0] if len(set(shown)) == 1 else f'{shown[0]} to {shown[-1]}'} points"


def _labels(shots: Sequence[int | None]) -> str:
    shown = _listed("all" if count is None else str(count) for count in shots)
    return "all labels" if shown == "all" else f"{shown} labels a class"


def _listed(names: Iterable[str]) -> str:
    """Return each name once: a, b and c."""
    *others, last = dict.fromkeys(names)
    return f"{', '.join(others)} and {last}" if others else last


def _signed(points: float) -> str:
    return f"{round(points, 1) + 0.0:+.1f}"  # no -0.0


def _who_says_what(pair: _Pair) -> str:
    """Say what each head says, or what each number of labels says where there is one head."""
    by_head: dict[str, list[_Finding]] = {}
    for finding in pair.findings:
        name = finding.head if finding.features == "raw" else f"{finding.head}, {finding.features}"
        by_head.setdefault(name, []).append(finding)
    if len(by_head) == 1 and pair.task.has_training:
        by_head = {}
        for finding in pair.findings:
            by_head.setdefault(_labels([finding.shots]), []).append(finding)
    said = []
    for name, findings in by_head.items():
        words = {word: sum(one.says == word for one in findings) for word in (AHEAD, MORE, UNTOLD, LESS, BEHIND)}
        shown = [f"{word} in {count}" if count < len(findings) else word for word, count in words.items() if count]
        said.append(f"{name}: {', '.join(shown)}")
    return f"By {pair.task.head_title}: {'; '.join(said)}." if said else ""
