"""Encoders side by side: rows as a data frame, a paired test for each two encoders, and the report of both.

The report says first, for each encoder, whether it is ahead of the first that was named; then one table. results.md
has every table, results.json every number. What a table shows, under which titles, is what the `Task` states.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from docsplit.data.seen_documents import SHARES
from docsplit.embedding.encoder_arguments import parse_encoder_argument
from docsplit.evaluation.results import bootstrap
from docsplit.evaluation.results.bootstrap import ItemScores, is_clear
from docsplit.evaluation.results.markdown import bold, bullets, inline, markdown_table, one_line
from docsplit.evaluation.results.result import Facts, Result, Task
from docsplit.runtime.files import checked, versions, write_text

Json = dict[str, Any]
LONGEST_NAME = 24  # characters of an encoder's name, in tables and pictures, before it is shortened
FEW_ITEMS = 100  # test items below which reports say so
ONE_CLASS = "†"  # beside numbers of a head that gives nearly all test items one class
COLUMNS: Json = {  # of a row of results.json, as far as it has them, and their types; further ones are facts
    "encoder": str, "head": str, "shots": int | None, "features": str, "preset": str | None, "runs": int,
    "pretraining_seeds": int | None, "test_documents": int | None, "warning": str | None, "members": list[str],
    "seconds": float, "trainable_parameters": int, "trainable_share": float | None, "max_seq_length": int | None,
    "num_parameters": int | None, **dict.fromkeys(SHARES, float | None),
}  # fmt: skip


# --- Rows ---


def rows(results: Sequence[Result]) -> pd.DataFrame:
    """Make a row of each result: means and standard deviations (of a sample: ddof 1), as results.json has them.

    Where the test items are known, a measure has the 95 % bootstrap interval over test items (and pretraining seeds)
    of the mean over runs. The deviation is over runs, None for a single one. With several pretraining seeds it is over
    these, `NAME_std_runs` is over the runs within one, and `NAME_of_seeds` has the mean of each of the `members`.
    Details are means over those runs that have the label, None where none has. Where a task trains nothing, each mean
    also stands under the bare name of its measure.

    Args:
        results: of one task.

    Raises:
        ValueError: if the results are of different test items.
    """
    if not results:
        return pd.DataFrame()
    task = results[0].task
    listed: list[Json] = []
    for result in results:
        num_items = result.items(task.main).size
        documents = num_items if task.items == "documents" else result.test_documents or num_items
        row: Json = {"encoder": result.encoder, "head": result.head, "shots": result.shots}
        row |= {"features": result.features, "preset": result.preset, "pretraining_seeds": result.pretraining_seeds}
        row |= {"runs": result.runs, "test_documents": documents, f"test_{task.items}": num_items}
        row["warning"] = result.warning
        for measure in task.measures:
            row |= _spread(result, measure)
        row |= {"members": list(result.members)} if result.members else {}
        row |= {"seconds": result.seconds, "trainable_parameters": result.trainable_parameters}
        row["trainable_share"] = _trainable_share(result)
        row |= {"validation_curves": result.curves} if result.curves else {}
        facts = dict.fromkeys(SHARES) | result.info  # a baseline was not pretrained
        row |= {name: value for name, value in facts.items() if name not in row}
        for name, of_labels in result.details.items():
            known = {label: values[np.isfinite(values)] for label, values in of_labels.items()}
            row[name] = {label: float(values.mean()) if len(values) else None for label, values in known.items()}
        if not task.has_training:
            row |= {measure: row[f"{measure}_mean"] for measure in task.measures}
        listed.append(row)
    # The intervals, of all results on the same drawn items
    seeds = [result.pretraining_seeds or 1 for result in results]
    for measure in (name for name in task.measures if isinstance(results[0].measured[name], ItemScores)):
        items = [result.items(measure) for result in results]
        for row, system in zip(listed, bootstrap.resample(items, pretraining_seeds=seeds)):
            row |= dict(zip((f"{measure}_low", f"{measure}_high"), bootstrap.interval(system)))
    return pd.DataFrame(plain(listed), dtype=object)


def _spread(result: Result, measure: str) -> Json:
    """Return the mean and the deviation over runs; or of several pretraining seeds that over and that within them."""
    values = result.of_runs(measure)
    row: Json = {f"{measure}_mean": float(values.mean()), f"{measure}_std": bootstrap.sample_deviation(values)}
    if len(result.members) > 1:
        of_seeds = values.reshape(len(result.members), -1)
        means = of_seeds.mean(axis=1)
        within = float(np.sqrt(of_seeds.var(axis=1, ddof=1).mean())) if of_seeds.shape[1] > 1 else None
        row |= over_seeds(measure, means) | {f"{measure}_std_runs": within}
    return row


def over_seeds(name: str, values: np.ndarray) -> Json:
    """Return the columns of a number's spread over several members, NAME_std and NAME_of_seeds; none of one."""
    if len(values) < 2:
        return {}
    return {f"{name}_std": bootstrap.sample_deviation(values), f"{name}_of_seeds": values.tolist()}


def _trainable_share(result: Result) -> float | None:
    """Trained parameters / those of encoder and head together; None where there are none, or none are known."""
    encoder = result.info.get("num_parameters")
    if encoder is None:
        return None
    head = 0 if result.trains_encoder else result.trainable_parameters
    total = max(encoder + head, result.trainable_parameters)
    return result.trainable_parameters / total if total else None


def records(frame: pd.DataFrame) -> list[Json]:
    """Return the rows of a data frame as dictionaries, each without the columns that it does not have."""
    return [
        {name: value for name, value in row.items() if not (isinstance(value, float) and value != value)}
        for row in frame.to_dict("records")
    ]


def read_result_rows(contents: Json) -> tuple[Task, pd.DataFrame]:
    """Return the task and the rows of a results.json.

    Raises:
        ValueError: naming the key, if what a table needs is missing or of another type.
    """
    task = Task.from_json(contents)
    listed = checked(contents.get("rows"), list[dict[str, Any]], "rows")
    needed = ["encoder", "head", "runs", *(f"{measure}_mean" for measure in dict.fromkeys([*task.columns, task.main]))]
    kinds = COLUMNS | {f"test_{task.items}": int | None} | dict.fromkeys(task.details, dict[str, float | None])
    for measure in task.measures:
        kinds |= {f"{measure}_mean": float, f"{measure}_of_seeds": list[float]}
        kinds |= dict.fromkeys((f"{measure}_{end}" for end in ("std", "low", "high")), float | None)
    for number, row in enumerate(listed):
        if missing := [name for name in needed if name not in row]:
            raise ValueError(f"rows[{number}] has no {missing[0]}.")
        for name in (name for name in row if name in kinds):
            checked(row[name], kinds[name], f"rows[{number}]: {name}")
        listed[number] = {"shots": None, "features": "raw", "warning": None} | row
    return task, pd.DataFrame(listed, dtype=object)


def head_title(row: Json) -> str:
    """Return the head of a row, and its preset where it is not the default one."""
    return row["head"] if row.get("preset") in (None, "docsplit") else f"{row['head']} ({row['preset']})"


def head_name(row: Json) -> str:
    """Return the head with its preset, and the features that it was trained on, where these are not raw."""
    return head_title(row) if row["features"] == "raw" else f"{head_title(row)}, {row['features']}"


# --- Paired tests ---


def comparisons(results: Sequence[Result]) -> pd.DataFrame:
    """Return a paired test for each two encoders with the same head, number of labels and features.

    The measure is the main one of the task. Baselines, which are heads without an encoder, are compared with the head
    `baseline_opponent` of every encoder; and where the task names `head_pairs`, so are these, of one encoder or with a
    baseline. Intervals are the paired bootstrap's. So is p, unless the task asks for randomisation, which is corrected
    for the number of comparisons (Holm). `ahead` is the better encoder where the difference is clear and neither is a
    single pretraining run: another seed may turn it round, and the test items know nothing of it.

    Raises:
        ValueError: if the results are of different test items.
    """
    if not results:
        return pd.DataFrame()
    task, seeds = results[0].task, [result.pretraining_seeds for result in results]
    items = [result.items(task.main) for result in results]
    resampled = bootstrap.resample(items, pretraining_seeds=[count or 1 for count in seeds])
    compared: list[Json] = []
    for first, second in combinations(range(len(results)), 2):
        pair = (results[second].head, results[first].head)
        if pair in task.head_pairs or (results[first].is_baseline and not results[second].is_baseline):
            first, second = second, first  # as the task names them, the encoder first
        a, b = results[first], results[second]
        if not _are_compared(a, b):
            continue
        row: Json = {"head": a.head, "shots": a.shots, "features": a.features, "a": a.encoder, "b": b.encoder}
        row |= {"measure": task.main, **asdict(bootstrap.paired_bootstrap(resampled[first], resampled[second]))}
        if task.paired_test == "randomisation":
            row["p_value"] = bootstrap.paired_randomisation(items[first], items[second])
        row |= {"heads": [a.head, b.head]} if task.head_pairs or a.head != b.head else {}
        compared.append(row | {"pretraining_seeds": [seeds[first], seeds[second]]})
    if task.paired_test == "randomisation":
        for row, corrected in zip(compared, bootstrap.holm([row["p_value"] for row in compared])):
            row["p_holm"] = corrected
    for row in compared:
        clear = is_clear(row["low"], row["high"], row.get("p_holm")) and 1 not in row["pretraining_seeds"]
        row["ahead"] = (row["a"] if row["difference"] > 0 else row["b"]) if clear else None
    return pd.DataFrame(plain(compared), dtype=object)


def _are_compared(a: Result, b: Result) -> bool:
    if a.shots != b.shots:
        return False
    if (a.head, b.head) in a.task.head_pairs and (b.is_baseline or a.encoder == b.encoder):
        return True
    against_baseline = a.head == a.task.baseline_opponent and b.is_baseline
    return ((a.head, a.features) == (b.head, b.features) or against_baseline) and a.encoder != b.encoder


# --- Names ---


def short_names(names: Iterable[str], longest: int = LONGEST_NAME) -> dict[str, str]:
    """Names for tables and pictures: long ones by their last path component, or by as many as keep them distinct."""
    unique = list(dict.fromkeys(names))

    def shortened(name: str) -> str:
        parts = name.strip("/").split("/")
        for end in ("/".join(parts[-depth:]) for depth in range(1, len(parts))):
            if sum(f"/{other.strip('/')}".endswith(f"/{end}") for other in unique) == 1:
                return end
        return name

    is_short = all(len(name) <= longest for name in unique)
    return {name: name if is_short else shortened(name) for name in unique}


def encoder_names(members_of: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Choose names for tables: a short one for an encoder, for PATH@mean too; for a group NAME of NAME=PATH,PATH.

    Args:
        members_of: each encoder, as it was typed, and the members of a group of seeds; none of an encoder alone, and
            none of NAME=PATH,PATH, where those are measured on different folds.
    """
    groups = [name for name, members in members_of.items() if members or re.match(r"[^/\\,=]+=.*,", name)]
    names = short_names(name for name in members_of if name not in groups)
    for group in groups:
        encoders = parse_encoder_argument(group).encoders
        stated, first = re.match(r"([^/\\,=]+)=", encoders), encoders.split(",")[0].rstrip("/").rpartition("/")[2]
        label = stated[1] if stated else group  # as cards have it already
        if not stated and "," in encoders:
            label = f"{first} and {encoders.count(',')} more"
        elif not stated and len(members_of[group]) == 1:
            label = f"{first}{group.removeprefix(encoders)}"  # with its pooling and prompt
        names[group] = group if label in names.values() else label
    return {name: names[name] for name in members_of}


def names_of(frame: pd.DataFrame) -> dict[str, str]:
    """`encoder_names` of the encoders of rows."""
    return encoder_names({row["encoder"]: row.get("members", []) for row in records(frame)})


# --- The table ---


@dataclass(frozen=True)
class ResultsTable:
    """A table before it is written: titles of its columns, cells line after line."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()  # line and column of the cells in bold
    title: str = ""

    def markdown(self) -> str:
        """Write the table without its title."""
        cells = [
            [bold(cell) if (line, column) in self.best else cell for column, cell in enumerate(row)]
            for line, row in enumerate(self.rows)
        ]
        return markdown_table(self.header, cells)

    def text(self) -> str:
        """Write the table for a screen."""
        lines = [[one_line(cell) for cell in line] for line in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def table_of(frame: pd.DataFrame, task: Task, brief: bool = False) -> ResultsTable:
    """Return the table of rows: a line an encoder, head and kind of features, for each number of labels its measures.

    The main measure has its 95 % interval.

    Args:
        brief: for a screen: of raw features, without intervals, the main measure alone where there are several
            numbers of labels, else the first three.
    """
    listed, names = records(frame), names_of(frame)
    if brief:
        listed = [row for row in listed if row["features"] == "raw"]
    all_shots = sorted({row["shots"] for row in listed}, key=lambda shots: math.inf if shots is None else shots)
    measures = task.columns if not brief else task.columns[:3] if len(all_shots) == 1 else [task.main]
    lines: dict[tuple[str, ...], dict[int | None, Json]] = {}
    for row in listed:
        lines.setdefault((row["encoder"], head_title(row), row["features"]), {})[row["shots"]] = row
    # The columns that say what was measured
    several_kinds = len({row["features"] for row in listed}) > 1
    has_groups = any(len(row.get("members", [])) > 1 for row in listed)
    header = ["encoder", task.head_title, *["features"][:several_kinds], *["seeds"][:has_groups]]
    cells = []
    for (encoder, head, kind), of_shots in lines.items():
        seeds = str(next(iter(of_shots.values())).get("pretraining_seeds") or "")
        cells.append([names[encoder], head, *[kind][:several_kinds], *[seeds][:has_groups]])
    # The measures with each number of labels; what is shown alike is equally good
    best = set()
    for shots in all_shots:
        of_lines = [of_shots.get(shots) for of_shots in lines.values()]
        labels = "" if all_shots == [None] else ", all" if shots is None else f", {shots} labels"
        for measure in measures:
            shown = [None if row is None else round(100 * row[f"{measure}_mean"], 1) for row in of_lines]
            highest = max((value for value in shown if value is not None), default=None)
            best |= {(line, len(header)) for line, value in enumerate(shown) if value is not None and value == highest}
            header.append(task.measures[measure] + labels)
            for line, own in zip(cells, of_lines):
                line.append(_percent(own, measure))
            if measure == task.main and not brief:
                header.append(f"95 % interval{labels}")
                for line, own in zip(cells, of_lines):
                    line.append(_interval(own, measure))
    return ResultsTable(header, cells, frozenset(best))


def _percent(row: Json | None, measure: str) -> str:
    """62.1 ± 1.3, or only 62.1 where there was one run; † for one class alone."""
    if row is None:
        return ""
    std = row.get(f"{measure}_std")
    spread = f" ± {100 * std:.1f}" if row["runs"] > 1 and std is not None else ""
    return f"{100 * row[f'{measure}_mean']:.1f}{spread}{f' {ONE_CLASS}' if row['warning'] else ''}"


def _interval(row: Json | None, measure: str) -> str:
    if row is None or row.get(f"{measure}_low") is None:
        return ""
    return f"[{100 * row[f'{measure}_low']:.1f}, {100 * row[f'{measure}_high']:.1f}]"


def facts_table(listed: Iterable[Json], columns: Mapping[str, str]) -> ResultsTable:
    """Return a table of those columns of rows that any of them has, under other titles, each line once."""
    listed = list(listed)
    columns = {name: title for name, title in columns.items() if any(row.get(name) is not None for row in listed)}
    lines = dict.fromkeys(tuple(_value(row.get(name)) for name in columns) for row in listed)
    return ResultsTable([*columns.values()], list(lines))


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


STATISTICS = {"part": "part", "documents": "documents", "classes": "classes", "mean_words": "mean words",
              "median_words": "median words", "max_words": "maximum words"}  # fmt: skip
ENCODER_FACTS = {"encoder": "encoder", "pooling": "pooling", "pooling_of_checkpoint": "its own pooling",
                 "max_seq_length": "maximum length", "long_documents": "long documents",
                 "num_parameters": "parameters", "dtype": "dtype",
                 "embedding_seconds": "seconds to embed"}  # fmt: skip


def text_statistics(name: str, parts: Mapping[str, Sequence[str]], num_classes: int | None) -> list[Json]:
    """Count documents, classes and words of each part, as in Table 1 of the DocSplit paper (v1).

    Words are split at white space.
    """
    statistics = []
    for part, texts in parts.items():
        words = [len(text.split()) for text in texts] or [0]
        lengths = (float(np.mean(words)), float(np.median(words)), max(words))
        statistics.append(dict(zip(STATISTICS, (part, len(texts), num_classes, *lengths)), dataset=name))
    return statistics


def difference_table(compared: pd.DataFrame, task: Task, names: Mapping[str, str]) -> ResultsTable:
    """All paired tests, in points, with interval and p; in bold where one is ahead, of several seeds each."""
    body, best = [], set()
    has_holm = "p_holm" in compared
    for line, row in enumerate(records(compared)):
        heads = " - ".join(dict.fromkeys(row["heads"])) if "heads" in row else head_name(row)
        labels = ["all" if row["shots"] is None else str(row["shots"])] if task.has_training else []
        points = f"{100 * row['difference']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
        clear = is_clear(row["low"], row["high"], row.get("p_holm"))
        ahead = names[row["ahead"]] if row["ahead"] else "one run says" if clear else ""
        counts = " / ".join("-" if count is None else str(count) for count in row["pretraining_seeds"])
        tests = [f"{row[name]:.3f}" for name in ("p_value", "p_holm") if row.get(name) is not None]
        first = [f"{names[row['a']]} - {names[row['b']]}", heads, *labels]
        body.append([*first, points, counts, *tests, ahead])
        best |= {(line, len(first))} if row["ahead"] else set()
    header = ["encoders", task.head_title, *(["labels per class"] if task.has_training else [])]
    header += [f"{task.measures[task.main]} [95 % interval]", "seeds", "p", *["p, Holm"][:has_holm], "ahead"]
    return ResultsTable(header, body, frozenset(best))


# --- What a reader is told ---


@dataclass(frozen=True)
class Report:
    """All that results.json and results.md say of one evaluation."""

    task: Task
    rows: pd.DataFrame
    comparisons: pd.DataFrame
    settings: Facts = field(default_factory=dict)  # options and data, an open set
    statistics: Sequence[Json] = ()
    heading: str = "Results"
    data: str = ""  # of `docsplit.evaluation.results.data_names.describe_data`; it ends the title
    notes: Sequence[str] = ()

    @property
    def title(self) -> str:
        """The heading, and what was measured on."""
        return f"{self.heading}: {self.data}" if self.data else self.heading

    def to_json(self) -> Json:
        """Return the contents of results.json, but for the versions of packages."""
        return {
            "title": self.title,
            "data": self.data,
            "task": self.task.to_json(),
            "rows": records(self.rows),
            "comparisons": records(self.comparisons),
            "statistics": list(self.statistics),
            "settings": self.settings,
            "notes": list(self.notes),
        }


def verdict(report: Report) -> list[str]:
    """Say in a line for each encoder whether it is ahead of the first that was named, on one primary figure.

    The figure is with few labels if there are some (the fewest), by the first of the heads that both have, on raw
    features. `words: +3.5 points [2.0, 5.0] against start (93.2, 89.7; accuracy, 5 labels a class, linear; 600
    documents)`. Nothing is tested here: differences are those of `comparisons`.
    """
    names, listed = names_of(report.rows), records(report.rows)
    order = report.settings.get("heads") or report.settings.get("methods") or [row["head"] for row in listed]
    first, *others = [*names] or [""]
    lines = []
    for other in others:
        found = list[Any]()
        for number, row in enumerate(records(report.comparisons)):
            if {row["a"], row["b"]} == {first, other}:
                heads = dict(zip((row["a"], row["b"]), row.get("heads") or [row["head"]] * 2))
                place = min((order.index(head) for head in heads.values() if head in order), default=len(order))
                shots = math.inf if row["shots"] is None else row["shots"]
                found.append((row["features"] != "raw", shots, place, number, row, heads))
        if found:
            *_, row, heads = min(found)
            sides = [(other, heads[other]), (first, heads[first])]
            lines.append(_verdict_line(row, sides, listed, report.task, names))
    return lines


def _verdict_line(
    row: Json, both: Sequence[tuple[str, str]], listed: Sequence[Json], task: Task, names: Mapping[str, str]
) -> str:
    """Say what a paired test says of two encoders with their heads, seen from the first of `both`."""
    measured = []
    for encoder, head in both:  # a baseline has raw features alone
        own = [one for one in listed if (one["encoder"], one["head"], one["shots"]) == (encoder, head, row["shots"])]
        measured.append(next((one for one in own if one["features"] == row["features"]), own[0]))
    # What was measured, and on how much
    title, shots = task.measures[task.main], row["shots"]
    figure = [title.lower() if task.main == "accuracy" else title]
    if task.has_training:
        figure.append("all labels" if shots is None else f"{shots} label{'s' * (shots != 1)} a class")
    figure += [" against ".join(dict.fromkeys(head for _, head in both))]
    figure += [] if row["features"] == "raw" else [row["features"]]
    values = ", ".join(f"{100 * one[f'{task.main}_mean']:.1f}" for one in measured)
    tested = measured[0].get(f"test_{task.items}", measured[0]["test_documents"])
    about = f"({values}; {', '.join(figure)}; {tested:,} {task.items})"
    # The difference
    name, other = (names[encoder] for encoder, _ in both)
    sign = 100 if row["a"] == both[0][0] else -100
    points, low, high = (round(sign * row[end], 1) + 0.0 for end in ("difference", "low", "high"))  # no -0.0
    between = f"{points:+.1f} points [{min(low, high):.1f}, {max(low, high):.1f}]"
    if is_clear(row["low"], row["high"], row.get("p_holm")):
        return f"{name}: {between} against {other} {about}"
    corrected = f", p {row['p_holm']:.2f} after Holm's correction" if is_clear(row["low"], row["high"]) else ""
    return f"{name}: no clear difference against {other}, {between}{corrected} {about}"


def notes_of(frame: pd.DataFrame, task: Task) -> list[str]:
    """Return what may change a reader's mind, a line each."""
    listed, names = records(frame), names_of(frame)
    notes = []
    tested = [row.get(f"test_{task.items}") or row.get("test_documents") for row in listed]
    if (items := min(filter(None, tested), default=FEW_ITEMS)) < FEW_ITEMS:
        notes.append(f"Only {items:,} test {task.items}: one of them is {100 / items:.1f} points.")
    read = {row["encoder"]: row["max_seq_length"] for row in listed if row.get("long_documents") == "truncate"}
    if len({length for length in read.values() if length is not None}) > 1:
        shown = ", ".join(
            f"{names[encoder]} {'whole texts' if length is None else f'the first {length:,} tokens'}"
            for encoder, length in read.items()
        )
        notes.append(f"Encoders read different lengths: {shown}; --max_seq_length sets one for all.")
    for encoder, name in names.items():
        own = [row for row in listed if row["encoder"] == encoder]
        seen, near = (own[0].get(share) for share in SHARES)
        if seen is not None and round(100 * max(seen, near or 0), 1) > 0:
            copies = "" if near is None else f" ({100 * near:.1f} % with near-duplicates)"
            notes.append(f"{name} saw {100 * seen:.1f} % of the test documents in training{copies}.")
        if kept := own[0].get("kept_start"):  # of several seeds those that did
            members = short_names(own[0].get("members", []), longest=0)  # a card shows no folders
            which = name if kept is True else f"{', '.join(members[member] for member in kept)} of {name}"
            notes.append(
                f"The start stands for {which}: training did not beat it on --probe_corpus (kept_start in "
                "all_results.json)."
            )
    # The record of training documents is what this project writes: it knows how many runs those trainings were
    single = [row["encoder"] for row in listed if row.get("pretraining_seeds") == 1 and row.get(SHARES[0]) is not None]
    if single and len(names) > 1:
        shown = ", ".join(names[encoder] for encoder in dict.fromkeys(single))
        notes.append(f"One training run of {shown}: another seed may turn the order round (NAME=PATH,PATH,PATH).")
    warned = [f"{names[row['encoder']]}, {head_name(row)}" for row in listed if row["warning"]]
    if warned:
        shown = "; ".join(dict.fromkeys(warned))
        notes.append(f"{ONE_CLASS} gives nearly all test {task.items} one class: {shown}.")
    return notes


def write_comparison(output_dir: str | Path, report: Report, further: Sequence[str] = ()) -> str:
    """Write results.json and results.md, each whole or not at all.

    Numbers in the JSON are not rounded; NaN and infinity, which JSON does not have, become null. What its columns mean
    stands beside them, as `task`.

    Args:
        further: names of other files that were written, for the screen.

    Returns: what to print: who is ahead, the table, and what may change a reader's mind.
    """
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    contents = report.to_json() | {"versions": versions()}
    write_text(folder / "results.json", json.dumps(plain(contents), indent=2, allow_nan=False) + "\n")
    write_text(folder / "results.md", _markdown(report))
    raw = report.rows[report.rows["features"] == "raw"] if len(report.rows) else report.rows
    parts = [
        "\n".join([report.title, *verdict(report)]),
        table_of(report.rows, report.task, brief=True).text(),
        "\n".join([*notes_of(raw, report.task), *report.notes]),
        f"In {folder}: {', '.join(['results.md (all tables)', 'results.json', *further])}.",
    ]
    return "\n" + "\n\n".join(filter(None, map(_printable, parts)))


def _printable(text: str) -> str:
    return "\n".join(one_line(line) if "  " not in line else line for line in text.split("\n"))


def _markdown(report: Report) -> str:
    """Return results.md: every table, and how to read it."""
    task, frame = report.task, report.rows
    listed, names = records(frame), names_of(frame)
    parts = [f"# {inline(report.title)}"]
    if lines := verdict(report):
        parts.append(f"## In short\n\n{bullets(lines)}")
    if lines := [*notes_of(frame, task), *report.notes]:
        parts.append(f"## Notes\n\n{bullets(lines)}")
    if report.statistics:
        parts.append(f"## Data\n\n{facts_table(report.statistics, STATISTICS).markdown()}")
    tested = {row.get(f"test_{task.items}", 0) for row in listed}
    caption = (
        f"{max(tested, default=0):,} test {task.items}. In percent; ± is the standard deviation over {task.runs}, and "
        "over pretraining seeds where there are several (`seeds`). The best of a column is bold, which is not to say "
        f"that it is better: see the tests. {task.note}"
    )
    parts.append(f"## Results\n\n{table_of(frame, task).markdown()}\n\n{caption.rstrip()}")
    for detail, heading in task.details.items():
        chosen = {f"{names[row['encoder']]}: {head_name(row)}": row[detail] for row in listed if row["shots"] is None}
        cells = [[label, *("" if own[label] is None else f"{100 * own[label]:.1f}" for own in chosen.values())]
                 for label in next(iter(chosen.values()), [])]  # fmt: skip
        parts.append(f"## {inline(heading)}\n\n{markdown_table(['label', *chosen], cells)}")
    if len(report.comparisons):
        shown = difference_table(report.comparisons, task, names).markdown()
        parts.append(f"## Differences\n\n{_explained(len(report.comparisons), task)}\n\n{shown}")
    parts.append(f"## Encoders\n\n{facts_table(listed, ENCODER_FACTS).markdown()}")
    return "\n\n".join(parts) + "\n"


def _explained(num_tests: int, task: Task) -> str:
    """Say what the table of differences has, and what its p-values are worth."""
    corrected = "not corrected for their number: one in twenty is below 0.05 where nothing differs"
    if task.paired_test == "randomisation":
        corrected = f"of a paired randomisation test over {task.items}, corrected for their number (Holm)"
    return (
        f"Points, first minus second. Intervals: paired bootstrap over test {task.items}, runs and pretraining seeds. "
        f"The {num_tests} p-values are {corrected}. Ahead, in bold, is who differs clearly over several pretraining "
        "seeds; of a single one, `one run says` so, and the next seed may say otherwise."
    )


def plain(value: Any) -> Any:
    """Turn a value into what JSON can hold: no numpy, NaN or infinity; anything else as text."""
    if isinstance(value, pd.DataFrame):
        return plain(records(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
