"""What the paired tests of an evaluation say, in a few sentences, for people who read no table.

Each encoder is compared with the first one that was named. Nothing is tested here: differences, intervals and
corrected p-values are those of the report's comparisons (`docsplit.evaluation.results.comparison`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from docsplit.evaluation.results.records import Comparison, Report
from docsplit.evaluation.results.tables import names_of
from docsplit.evaluation.results.task import Task

AHEAD, BEHIND, LEVEL = "ahead", "behind", "level"


@dataclass(frozen=True)
class _Finding:
    """A comparison as the first of two encoders would tell it; numbers in points."""

    head: str
    features: str
    shots: int | None
    difference: float
    low: float
    high: float
    says: str  # ahead, behind, or level: no difference can be told


@dataclass(frozen=True)
class _Pair:
    """All findings on two encoders, with what sentences name."""

    subject: str
    reference: str
    findings: Sequence[_Finding]
    task: Task
    runs: str  # of pretraining

    def that_say(self, word: str) -> list[_Finding]:
        """Return the findings of a kind."""
        return [finding for finding in self.findings if finding.says == word]


def verdict(report: Report) -> list[str]:
    """Return a sentence for each encoder against the first one, and one on what would tell more.

    A baseline without an encoder is what encoders are compared with, wherever it was named. Without comparisons there
    are no sentences.
    """
    pairs = _pairs(report)
    sentences = [" ".join(_sentence(pair).split()) for pair in pairs]
    if any(pair.that_say(LEVEL) for pair in pairs):
        tested = report.rows[0].test_items
        sentences.append(
            f"Where no difference can be told, more test {report.task.items} would tell more"
            f"{f' (these are {tested:,})' if tested else ''}, and so would several training runs of a method "
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
            seeds = dict(zip((compared[0].a, compared[0].b), compared[0].pretraining_seeds))
            runs = _runs([seeds[encoder] for encoder in (subject, reference)])
            pairs.append(_Pair(names[subject], names[reference], findings, report.task, runs))
    return pairs


def _seen_from(encoder: str, comparison: Comparison) -> _Finding:
    is_first, measured = comparison.a == encoder, comparison.difference
    sign = 100 if is_first else -100
    low, high = (measured.low, measured.high) if is_first else (measured.high, measured.low)
    heads = comparison.heads or (comparison.head, comparison.head)
    difference = sign * measured.difference
    says = LEVEL if not comparison.is_clear else AHEAD if difference > 0 else BEHIND
    kind = (heads[0] if is_first else heads[1], comparison.features, comparison.shots)
    return _Finding(*kind, difference, sign * low, sign * high, says)


def _runs(seeds: Sequence[int | None]) -> str:
    """Say how many pretraining runs stand behind two encoders; "" where nothing was pretrained."""
    known = [count for count in seeds if count is not None]
    counts = list(dict.fromkeys(known))
    if len(counts) == 2:
        return f"{counts[0]} against {counts[1]} training runs"
    if not counts:
        return ""
    runs = "one training run" if counts[0] == 1 else f"{counts[0]} training runs"
    return f"{runs} each" if len(known) > 1 else runs


def _sentence(pair: _Pair) -> str:
    """Say who is ahead, by how much, and in how many comparisons; the word `ahead` leads only where most say so."""
    a, b, number = pair.subject, pair.reference, len(pair.findings)
    ahead, behind, level = (pair.that_say(word) for word in (AHEAD, BEHIND, LEVEL))
    lead = {AHEAD: f"{a} is ahead of {b}", BEHIND: f"{a} is behind {b}"}
    # All say the same
    if len(level) == number:
        where = "" if number == 1 else f" in any of {number} comparisons"
        return f"No difference between {a} and {b} can be told{where}: {_span(level, pair)}."
    for word, those in ((AHEAD, ahead), (BEHIND, behind)):
        if len(those) == number:
            where = "" if number == 1 else f" in {'both' if number == 2 else f'all {number}'} comparisons"
            return f"{lead[word]}{where} by {_span(those, pair)}."
    # They differ: most are level, some are ahead and some behind, or some are level
    clear = {word: those for word, those in ((AHEAD, ahead), (BEHIND, behind)) if those}
    parts = [f"{word} in {len(those)}, by {_points(those)} points" for word, those in clear.items()]
    untold = f"in {len(level)} no difference can be told"
    if 2 * len(level) > number:
        told = f"In most comparisons ({len(level)} of {number}) no difference between {a} and {b} can be told; "
        told += f"{a} is {', and '.join(parts)}"
    elif len(clear) == 2:
        told = f"The {number} comparisons of {a} with {b} disagree: {a} is {', and '.join(parts)}"
        told += f"; {untold}" if level else ""
    else:
        ((word, those),) = clear.items()
        told = f"{lead[word]} in {len(those)} of {number} comparisons, by {_points(those)} points; {untold}"
    details = "; ".join(filter(None, [pair.task.measures[pair.task.main], pair.runs]))
    return f"{told} ({details}). {_who_says_what(pair)}"


def _span(findings: Sequence[_Finding], pair: _Pair) -> str:
    """Return differences and intervals of findings that agree, and what they are of; signs only where they differ."""
    known = [one for one in findings if math.isfinite(one.low + one.high)]  # correlations of equal values have none
    low, high = min((one.low for one in known), default=0), max((one.high for one in known), default=0)
    if findings[0].says == LEVEL:
        ends = f"{_signed(low)} to {_signed(high)}"
    else:
        low, high = sorted((abs(low), abs(high)))
        ends = f"{low:.1f} to {high:.1f}"
    intervals = f"95 % {'interval' if len(findings) == 1 else 'intervals from'} {ends}" if known else "no interval"
    of = [pair.task.measures[pair.task.main], _listed(one.head for one in findings)]
    if any(one.features != "raw" for one in findings):
        of.append(f"{_listed(one.features for one in findings)} features")
    if pair.task.has_training:
        of.append(_labels([one.shots for one in findings]))
    details = "; ".join(filter(None, [intervals, ", ".join(of), pair.runs]))
    return f"{_points(findings)} points ({details})"


def _points(findings: Sequence[_Finding]) -> str:
    """Return a difference, or the least and the largest; without signs where all are on one side."""
    values = [one.difference for one in findings]
    if findings[0].says == LEVEL:
        shown = [_signed(value) for value in sorted(values)]
    else:
        shown = [f"{value:.1f}" for value in sorted(map(abs, values))]
    return shown[0] if len(set(shown)) == 1 else f"{shown[0]} to {shown[-1]}"


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
        words = {word: sum(one.says == word for one in findings) for word in (AHEAD, LEVEL, BEHIND)}
        shown = [f"{word} in {count}" if count < len(findings) else word for word, count in words.items() if count]
        said.append(f"{name}: {', '.join(shown)}")
    return f"By {pair.task.head_title}: {'; '.join(said)}." if said else ""
