"""Rows of results as Markdown tables, which also line up on screen.

Which measures a table shows, under which titles and in which layout, is what the `Task` of the rows states.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from docsplit.embedding.arguments import stated_in
from docsplit.evaluation.results.markdown import Markdown, bold, inline, markdown_table
from docsplit.evaluation.results.paper_numbers import paper_column
from docsplit.evaluation.results.records import Comparison, Json, Row, TextStatistics
from docsplit.evaluation.results.task import Task

LONGEST_NAME = 24  # characters of an encoder's name, in tables and pictures, before it is shortened
_OF_SEVERAL = re.compile(r"[^/\\,=]+=.*,")
FEW_ITEMS = 100  # test items below which tables say so
ONE_CLASS = "†"  # beside numbers of a head that gives nearly all test items one class


def short_names(names: Iterable[str], longest: int = LONGEST_NAME) -> dict[str, str]:
    """Names for tables and pictures: long ones by their last path component, or by as many as keep them distinct."""
    unique = list(dict.fromkeys(names))
    if all(len(name) <= longest for name in unique):
        return {name: name for name in unique}

    def tail(name: str, depth: int) -> str:
        parts = name.strip("/").split("/")
        return "/".join(parts[-depth:]) if depth < len(parts) else name

    depths = dict.fromkeys(unique, 1)
    while True:
        short = {name: tail(name, depth) for name, depth in depths.items()}
        shown = list(short.values())
        clashing = [name for name in unique if shown.count(short[name]) > 1 and short[name] != name]
        if not clashing:
            return short
        for name in clashing:
            depths[name] += 1


def encoder_names(members_of: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Choose names for tables: a short one for an encoder, for PATH@mean too; for a group NAME of NAME=PATH,PATH.

    Args:
        members_of: each encoder, as it was typed, and the members of a group of seeds; none of an encoder alone, and
            none of NAME=PATH,PATH, where those are measured on different folds.
    """
    of_folds = [name for name, members in members_of.items() if not members and _OF_SEVERAL.match(name)]
    groups = [*of_folds, *(name for name, members in members_of.items() if members)]
    names = short_names(name for name in members_of if name not in groups)
    for group in groups:
        encoders = stated_in(group).encoders
        others = len(members_of[group] or encoders.split(",")) - 1
        stated = re.match(r"([^/\\,=]+)=", encoders)
        first = encoders.split(",")[0].rstrip("/").rpartition("/")[2]
        label = stated[1] if stated else group  # as cards have it already
        if not stated and "," in encoders:
            label = f"{first} and {others} more"
        elif not stated and not others:
            label = f"{first}{group.removeprefix(encoders)}"  # with its pooling and prompt
        names[group] = group if label in names.values() else label
    return {name: names[name] for name in members_of}


def names_of(rows: Iterable[Row]) -> dict[str, str]:
    """`encoder_names` of the encoders of rows."""
    return encoder_names({row.encoder: row.members for row in rows})


def _cell(row: Row | None, name: str) -> tuple[float, str] | None:
    """62.1 to compare, and 62.1 ± 1.3 to show, or only 62.1 where there was one run; † for one class alone."""
    if row is None:
        return None
    measured = row.measures[name]
    mean = round(100 * measured.mean, 1)
    spread = f" ± {100 * measured.std:.1f}" if row.runs > 1 and measured.std is not None else ""
    return mean, f"{mean:.1f}{spread}{f' {ONE_CLASS}' if row.warning else ''}"


@dataclass(frozen=True)
class Table:
    """A table before it is written: titles of its columns, cells line after line."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()  # line and column of the cells in bold

    def markdown(self) -> str:
        """Write the table without its title."""
        cells = [
            [bold(cell) if (line, column) in self.best else cell for column, cell in enumerate(row)]
            for line, row in enumerate(self.rows)
        ]
        return markdown_table(self.header, cells)


def _texts(cells: list[list[tuple[float, str] | None]]) -> list[list[str]]:
    return [["" if cell is None else cell[1] for cell in line] for line in cells]


def _best(cells: list[list[tuple[float, str] | None]], first_column: int) -> frozenset[tuple[int, int]]:
    """Line and column of the best cells: what is shown alike is equally good."""
    highest = [max((cell[0] for cell in column if cell), default=None) for column in zip(*cells)]
    return frozenset(
        (line, first_column + column)
        for line, row in enumerate(cells)
        for column, (cell, top) in enumerate(zip(row, highest))
        if cell is not None and cell[0] == top
    )


def unique(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order of first appearance."""
    return list(dict.fromkeys(values))


def _shots(shots: int | None) -> str:
    return "all" if shots is None else str(shots)


def result_tables(rows: Sequence[Row], task: Task, data: str = "") -> str:
    """Return the tables of `tables_of_rows` in Markdown, under headings."""
    tables = tables_of_rows(rows, task, data)
    return "\n\n".join(f"## {inline(table.title)}\n\n{table.markdown()}" for table in tables)


def tables_of_rows(rows: Sequence[Row], task: Task, data: str = "") -> list[Table]:
    """Return the columns of a task, in its layout.

    A grid has encoders x heads for the full training set (DocSplit v2, Table 1) and for each number of labels (Table
    2), and a line for raw and for standardised features of each encoder. Lines have one for each encoder, head and
    features, and the interval of the main measure. The last columns are the papers', where they have these data.

    Args:
        data: what was measured on, in words; "" for no columns of the papers.
    """
    names = names_of(rows)
    if task.layout == "lines":
        return [_line_table(" ".join(task.heading.split()), rows, task, names, data)]
    tables = []
    for shots in sorted({row.shots for row in rows}, key=lambda shots: shots or 0):  # the full set first
        title = "Full training set" if shots is None else f"{shots} labels per class"
        tables.append(_grid_table(title, [row for row in rows if row.shots == shots], task, names, data))
    return tables


def _with_columns(table: Table, columns: Iterable[Sequence[str]]) -> Table:
    """Add columns at the end, each with its title first; one without cells adds nothing."""
    for title, *cells in filter(None, columns):
        lines = [[*line, cell] for line, cell in zip(table.rows, cells)]
        table = replace(table, header=[*table.header, title], rows=lines)
    return table


def _grid_table(title: str, rows: Sequence[Row], task: Task, names: dict[str, str], data: str) -> Table:
    row_of = {(row.encoder, row.features, row.head_title): row for row in rows}
    columns = [(head, measure) for head in unique(row.head_title for row in rows) for measure in task.columns]
    kinds = unique(row.features for row in rows)
    encoders = unique(row.encoder for row in rows)
    lines = [(name, kind) for name in encoders for kind in kinds if any(key[:2] == (name, kind) for key in row_of)]
    cells = [[_cell(row_of.get((*line, head)), measure) for head, measure in columns] for line in lines]
    seeds = {row.encoder: _seeds(row) for row in rows} if _has_groups(rows) else None
    header = ["encoder", *(["features"] if len(kinds) > 1 else []), *(["seeds"] if seeds else [])]
    body = [
        [names[name], *([kind] if len(kinds) > 1 else []), *([seeds[name]] if seeds else []), *line]
        for (name, kind), line in zip(lines, _texts(cells))
    ]
    best = _best(cells, first_column=len(header))
    titles = [f"{head}: {task.measures[measure]}" for head, measure in columns]
    table = Table(title, [*header, *titles], body, best)
    rows_of = {head: [row_of.get((*line, head)) for line in lines] for head, _ in columns}
    return _with_columns(table, (paper_column(rows_of[head], names, data, f"{head}: ") for head in rows_of))


def _has_groups(rows: Iterable[Row]) -> bool:
    """Whether a row is of several pretraining seeds."""
    return any(len(row.members) > 1 for row in rows)


def _seeds(row: Row) -> str:
    """Return the number of pretraining seeds; nothing for what was not pretrained."""
    return str(row.pretraining_seeds or "")


def _line_table(title: str, rows: Sequence[Row], task: Task, names: dict[str, str], data: str) -> Table:
    """Return a line for each row. DocSplit v1, Table 3, is such a table with accuracy alone."""
    cells = [[_cell(row, measure) for measure in task.columns] for row in rows]
    has_kinds = len({row.features for row in rows}) > 1
    body = [
        [
            names[row.encoder],
            row.head_title,
            *([row.features] if has_kinds else []),
            *line,
            _seeds(row),
            _interval(row),
        ]
        for row, line in zip(rows, _texts(cells))
    ]
    first = ["encoder", task.head_title, *(["features"] if has_kinds else [])]
    measures = [task.measures[measure] for measure in task.columns]
    header = [*first, *measures, "seeds", f"{task.measures[task.main]}, 95 % interval"]
    table = Table(title, header, body, _best(cells, first_column=len(first)))
    return _with_columns(table, [paper_column(rows, names, data)])


def _interval(row: Row) -> str:
    """Return the interval of the main measure, in percent."""
    low, high = row.main.low, row.main.high
    return "" if low is None or high is None else f"[{100 * low:.1f}, {100 * high:.1f}]"


def table_notes(rows: Sequence[Row], task: Task) -> list[str]:
    """Return the notes under the tables: test items, pretraining runs, and heads that learnt nothing.

    Rows of older files say less, and so do the notes.
    """
    notes = [
        *_notes_on_items(rows, task),
        *_notes_on_lengths({row.facts.get("max_seq_length") for row in rows if _is_truncated(row)}),
        *_notes_on_seeds(rows),
    ]
    names = names_of(rows)
    for row in (row for row in rows if row.warning):
        shots = "" if task.layout == "lines" else f", {_shots(row.shots)} labels"
        notes.append(f"{ONE_CLASS} {names[row.encoder]}, {row.head_name}{shots}: {row.warning}.")
    return notes


def _notes_on_items(rows: Sequence[Row], task: Task) -> list[str]:
    """How many test items there are, and whether these are few."""
    items = sorted({row.test_items or 0 for row in rows})
    documents = sorted({row.test_documents or 0 for row in rows})
    if not items or not items[-1]:
        return []
    of = "" if task.items == "documents" or items == documents else f" of {documents[-1]:,} documents"
    note = f"Test: {items[-1]:,} {task.items}{of}."
    if documents[-1] < FEW_ITEMS or items[-1] < FEW_ITEMS:
        note += (
            f" Fewer than {FEW_ITEMS}: one of the {task.items} is {100 / items[-1]:.1f} points, and differences "
            "of a few of them are chance."
        )
    return [note]


def _is_truncated(row: Row) -> bool:
    return row.facts.get("long_documents") == "truncate"


def _notes_on_lengths(lengths: set[int | None]) -> list[str]:
    """Whether encoders read texts to different lengths."""
    known = sorted(length for length in lengths if length)
    if len(known) < 2:
        return []
    shown = " or ".join(f"{length:,}" for length in known)
    return [
        f"The encoders read the first {shown} tokens of a text: differences may come from that. --max_seq_length "
        "sets one length for all."
    ]


def _notes_on_seeds(rows: Sequence[Row]) -> list[str]:
    """Say what intervals and deviations are over."""
    notes: list[str] = []
    has_groups = _has_groups(rows)
    if any(row.pretraining_seeds == 1 for row in rows):
        notes.append(
            Markdown(
                "A single pretraining run each"
                + (", where `seeds` is 1" if has_groups else "")
                + ": intervals and tests are over test items and runs of the head. Another pretraining seed may lie "
                "outside of them and turn an order round; give several, NAME=PATH,PATH,PATH."
            )
        )
    if has_groups:
        notes.append(
            Markdown(
                "Where `seeds` is 2 or more: mean over pretraining seeds, ± the standard deviation over them, "
                "intervals over seeds and test items."
            )
        )
    return notes


def difference_table(comparisons: Sequence[Comparison], task: Task, names: dict[str, str]) -> str:
    """All pairs of encoders, in points, with interval and p; in bold where one is ahead, of several seeds each.

    Args:
        names: of encoders, as `encoder_names` has them.
    """
    body = []
    for row in comparisons:
        measured = row.difference
        text = f"{100 * measured.difference:+.1f} [{100 * measured.low:+.1f}, {100 * measured.high:+.1f}]"
        verdict = names[row.ahead] if row.ahead else "one run says" if row.is_clear else ""
        counts = " / ".join("-" if count is None else str(count) for count in row.pretraining_seeds)
        labels = [_shots(row.shots)] if task.has_training else []
        corrected = [] if row.p_holm is None else [f"{row.p_holm:.3f}"]
        shown = bold(text) if row.ahead else text
        first = [f"{names[row.a]} - {names[row.b]}", row.head_name, *labels, task.measures[row.measure]]
        body.append([*first, shown, counts, f"{measured.p_value:.3f}", *corrected, verdict])
    header = ["encoders", task.head_title, *(["labels per class"] if task.has_training else []), "measure"]
    header += ["difference [95 % interval]", "seeds", "p"]
    header += [*(["p, Holm"] if any(row.p_holm is not None for row in comparisons) else []), "ahead"]
    return markdown_table(header, body)


def detail_table(rows: Sequence[Row], detail: str) -> str:
    """Return the table of a detail of each label with the full training set; "" without such rows.

    Labels are lines, or columns where there are fewer of them.

    Args:
        detail: one that the task of the rows names, such as `per_label_f1`.
    """
    chosen = [row for row in rows if row.shots is None]
    if not chosen:
        return ""
    names, labels = names_of(rows), list(chosen[0].details[detail])

    def cell(label: str, row: Row) -> str:
        value = row.details[detail][label]
        return "" if value is None else f"{100 * value:.1f}"

    titles = [f"{names[row.encoder]}: {row.head_name}" for row in chosen]
    if len(labels) < len(chosen):
        return markdown_table(["", *labels], [[title, *(cell(label, row) for label in labels)]
                                              for title, row in zip(titles, chosen)])  # fmt: skip
    return markdown_table(["label", *titles], [[label, *(cell(label, row) for row in chosen)] for label in labels])


def encoder_table(rows: Sequence[Row]) -> str:
    """Return the table of encoders: full name, pooling, length and size."""
    columns = {
        "pooling": "pooling",
        "max_seq_length": "maximum length",
        "long_documents": "long documents",
        "num_parameters": "parameters",
        "dtype": "dtype",
        "embedding_seconds": "seconds to embed",
    }
    lines = unique((row.encoder, *(_fact(row, name) for name in columns)) for row in rows)
    return markdown_table(["encoder", *columns.values()], lines)


def _fact(row: Row, name: str) -> str:
    """Return a fact of a row's encoder; a replaced pooling names the one that the encoder brought."""
    brought = row.facts.get("pooling_of_checkpoint")
    if name == "pooling" and brought is not None:
        return f"{row.facts['pooling']} (it brings {brought})"
    return _value(row.facts.get(name))


def cost_table(rows: Sequence[Row]) -> str:
    """Training time and trained parameters of each head, as Table 2 of the Bregman paper gives them."""
    names = names_of(rows)
    all_shots = sorted({row.shots for row in rows}, key=lambda shots: shots or 0)
    body = []
    for encoder, head in unique((row.encoder, row.head_name) for row in rows):
        row_of = {row.shots: row for row in rows if (row.encoder, row.head_name) == (encoder, head)}
        seconds = [f"{row_of[shots].seconds:.2f}" if shots in row_of else "" for shots in all_shots]
        row = next(iter(row_of.values()))
        share = "" if row.trainable_share is None else f"{100 * row.trainable_share:.3g} %"
        body.append([names[encoder], head, *seconds, _value(row.trainable_parameters), share])
    labels = [f"seconds, {_shots(shots)}" for shots in all_shots]
    return markdown_table(["encoder", "head", *labels, "trained parameters", "share"], body)


def statistics_table(statistics: Sequence[TextStatistics]) -> str:
    """Size and length of each part of the data."""
    columns = {"part": "part", "documents": "documents", "classes": "classes", "mean_words": "mean words"}
    columns |= {"median_words": "median words", "max_words": "maximum words"}
    body = [[part.dataset, *(_value(getattr(part, name)) for name in columns)] for part in statistics]
    return markdown_table(["data set", *columns.values()], body)


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def table_of_probe(results: Json) -> Table:
    """Return the probe's accuracies: random start, after pretraining, TF-IDF."""
    selected = "probe_validation_documents" in results  # runs of before had C = 1, and no validation documents
    body = []
    for name, prefix in (
        ("before pretraining", "probe_before"),
        ("after pretraining", "probe_after"),
        ("TF-IDF", "tfidf"),
    ):
        few, spread = results[f"{prefix}_5shot_accuracy"], results[f"{prefix}_5shot_accuracy_std"]
        chosen = [f"{results[f'{prefix}_5shot_c']:g}, {results[f'{prefix}_c']:g}"] if selected else []
        body.append((name, f"{few:.3f} ± {spread:.3f}", f"{results[f'{prefix}_accuracy']:.3f}", *chosen))
    header = ["logistic regression on", "5 labels a class", "all labels", *(["C of these"] if selected else [])]
    return Table("The frozen encoder before and after", header, body)


def probe_table(results: Json) -> str:
    """Return a Markdown table of the probe, and what is to be known of it."""
    if "probe_after_accuracy" not in results:
        return "No probe was asked for (--probe_corpus)."
    table = table_of_probe(results).markdown()
    spread_of = "± is the standard deviation over 10 draws of the labels."
    test = f"Accuracy over {results['probe_classes']} classes on {results['probe_test_documents']:,}"
    if "probe_validation_documents" not in results:
        return f"{table}\n\n{test} test documents; {spread_of}"
    return (
        f"{table}\n\n{test} sealed test documents, which neither training nor selection reads; "
        f"{spread_of} Selection, of C and of checkpoints if asked for, is on "
        f"{results['probe_validation_documents']:,} validation documents.{_seen_text(results)}"
    )


def _seen_text(results: Json) -> str:
    """Say how many test documents of the probe were seen in training; "" where nothing is known."""
    if "probe_seen_in_pretraining_share" not in results:
        return ""
    shares = (results[f"probe_{name}"] for name in ("seen_in_pretraining_share", "near_duplicate_share"))
    seen, near = ("unknown" if share is None else f"{100 * share:.1f} %" for share in shares)
    return f" Test documents seen in pretraining: {seen}; with near-duplicates: {near}."
