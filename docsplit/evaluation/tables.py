"""Rows of results as Markdown tables, which also line up on screen.

Which measures a table shows, under which titles and in which layout, is what the `Task` of the rows states.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from docsplit.evaluation.tasks import Task

LONGEST_NAME = 24  # characters of an encoder's name, in tables and pictures, before it is shortened


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


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose columns also line up on screen; numbers, after the first column, to the right."""
    lines = [[" ".join(str(cell).split()).replace("|", "\\|") for cell in line] for line in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    rule = ["-" * width if index == 0 else "-" * (width - 1) + ":" for index, width in enumerate(widths)]
    padded = [
        [
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths))
        ]
        for line in lines
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in (padded[0], rule, *padded[1:]))


def _percent(row: dict[str, Any], name: str) -> tuple[float, str]:
    """62.1 for comparing, and 62.1 ± 1.3 to show, or only 62.1 where there was one run."""
    mean = round(100 * row[f"{name}_mean"], 1)
    return mean, f"{mean:.1f} ± {100 * row[f'{name}_std']:.1f}" if row["runs"] > 1 else f"{mean:.1f}"


def _bold_best(cells: list[list[tuple[float, str] | None]]) -> list[list[str]]:
    """Cells of `_percent` as text, the best of a column in bold: equal as shown, equally bold."""
    best = [max((cell[0] for cell in column if cell), default=None) for column in zip(*cells)]
    return [
        ["" if cell is None else f"**{cell[1]}**" if cell[0] == top else cell[1] for cell, top in zip(line, best)]
        for line in cells
    ]


def unique(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order of first appearance."""
    return list(dict.fromkeys(values))


def head_name(row: dict[str, Any]) -> str:
    """The head, and the features that it was trained on where they are not the raw ones."""
    return row["head"] if row["features"] == "raw" else f"{row['head']} ({row['features']})"


def _shots(shots: int | None) -> str:
    return "all" if shots is None else str(shots)


def result_tables(rows: Sequence[dict[str, Any]], task: Task) -> str:
    """The columns of a task, under headings, in its layout.

    A grid has encoders x heads for the full training set (DocSplit, Table 1) and for each number of labels (Table 2).
    Lines have one for each encoder and head, and the interval of the main measure.
    """
    names = short_names(row["encoder"] for row in rows)
    if task.layout == "lines":
        return f"## {' '.join(task.heading.split())}\n\n{_line_table(rows, task, names)}"
    sections = []
    for shots in sorted({row["shots"] for row in rows}, key=lambda shots: shots or 0):  # the full set first
        title = "Full training set" if shots is None else f"{shots} labels per class"
        grid = _grid_table([row for row in rows if row["shots"] == shots], task, names)
        sections.append(f"## {title}\n\n{grid}")
    return "\n\n".join(sections)


def _grid_table(rows: Sequence[dict[str, Any]], task: Task, names: dict[str, str]) -> str:
    row_of = {(row["encoder"], head_name(row)): row for row in rows}
    encoders, heads = (unique(part) for part in zip(*row_of))
    columns = [(head, measure) for head in heads for measure in task.columns]
    cells = [
        [_percent(row_of[encoder, head], measure) if (encoder, head) in row_of else None for head, measure in columns]
        for encoder in encoders
    ]
    header = ["encoder", *(f"{head}: {task.measures[measure]}" for head, measure in columns)]
    return markdown_table(header, [[names[encoder], *line] for encoder, line in zip(encoders, _bold_best(cells))])


def _line_table(rows: Sequence[dict[str, Any]], task: Task, names: dict[str, str]) -> str:
    """DocSplit v1, Table 3, is such a table with accuracy alone."""
    cells = _bold_best([[_percent(row, measure) for measure in task.columns] for row in rows])
    intervals = [f"[{100 * row[f'{task.main}_low']:.1f}, {100 * row[f'{task.main}_high']:.1f}]" for row in rows]
    body = [
        [names[row["encoder"]], head_name(row), *line, interval] for row, line, interval in zip(rows, cells, intervals)
    ]
    titles = [task.measures[measure] for measure in task.columns]
    return markdown_table(["encoder", "head", *titles, f"{task.measures[task.main]}, 95 % interval"], body)


def difference_table(differences: Sequence[dict[str, Any]], task: Task) -> str:
    """All pairs of encoders, in points, with interval and p; intervals without 0 in bold."""
    names = short_names(name for row in differences for name in (row["a"], row["b"]))
    body = []
    for row in differences:
        text = f"{100 * row['difference']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
        text = f"**{text}**" if row["low"] > 0 or row["high"] < 0 else text
        encoders = f"{names[row['a']]} - {names[row['b']]}"
        measure, p_value = task.measures[row["measure"]], f"{row['p_value']:.3f}"
        body.append([encoders, head_name(row), _shots(row["shots"]), measure, text, p_value])
    return markdown_table(["encoders", "head", "labels per class", "measure", "difference [95 % interval]", "p"], body)


def detail_table(rows: Sequence[dict[str, Any]], detail: str) -> str:
    """A detail of each label with the full training set, one column for each encoder and head; "" without such rows.

    Args:
        detail: one that the task of the rows names, such as `per_label_f1`.
    """
    chosen = [row for row in rows if row["shots"] is None]
    if not chosen:
        return ""
    names = short_names(row["encoder"] for row in rows)

    def cell(label: str, row: dict[str, Any]) -> str:
        value = row[detail][label]
        return "" if value is None else f"{100 * value:.1f}"

    header = ["label", *(f"{names[row['encoder']]}: {head_name(row)}" for row in chosen)]
    return markdown_table(header, [[label, *(cell(label, row) for row in chosen)] for label in chosen[0][detail]])


def encoder_table(rows: Sequence[dict[str, Any]]) -> str:
    """What was measured: the full name, pooling, length and size of each encoder."""
    columns = {
        "pooling": "pooling",
        "max_seq_length": "maximum length",
        "long_documents": "long documents",
        "num_parameters": "parameters",
        "dtype": "dtype",
        "embedding_seconds": "seconds to embed",
    }
    lines = unique((row["encoder"], *(_value(row.get(name)) for name in columns)) for row in rows)
    return markdown_table(["encoder", *columns.values()], lines)


def cost_table(rows: Sequence[dict[str, Any]]) -> str:
    """Training time and trained parameters of each head, as Table 2 of the Bregman paper gives them."""
    names = short_names(row["encoder"] for row in rows)
    all_shots = sorted({row["shots"] for row in rows}, key=lambda shots: shots or 0)
    body = []
    for encoder, head in unique((row["encoder"], head_name(row)) for row in rows):
        own = {row["shots"]: row for row in rows if (row["encoder"], head_name(row)) == (encoder, head)}
        seconds = [f"{own[shots]['seconds']:.2f}" if shots in own else "" for shots in all_shots]
        row = next(iter(own.values()))
        share = "" if row["trainable_share"] is None else f"{100 * row['trainable_share']:.3g} %"
        body.append([names[encoder], head, *seconds, _value(row["trainable_parameters"]), share])
    labels = [f"seconds, {_shots(shots)}" for shots in all_shots]
    return markdown_table(["encoder", "head", *labels, "trained parameters", "share"], body)


def statistics_table(statistics: Sequence[dict[str, Any]]) -> str:
    """Size and length of each part of the data: the rows of `docsplit.evaluation.report.text_statistics`."""
    columns = {"part": "part", "documents": "documents", "classes": "classes", "mean_words": "mean words"}
    columns |= {"median_words": "median words", "max_words": "maximum words"}
    body = [[row["dataset"], *(_value(row[name]) for name in columns)] for row in statistics]
    return markdown_table(["data set", *columns.values()], body)


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def probe_table(results: dict[str, Any]) -> str:
    """A Markdown table of the probe: random start, after pretraining, TF-IDF."""
    if "probe_after_accuracy" not in results:
        return "No probe was asked for (--probe_corpus)."
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
    spread_of = "± is the standard deviation over 10 draws of the labels."
    test = f"Accuracy over {results['probe_classes']} classes on {results['probe_test_documents']:,}"
    if not selected:
        return f"{markdown_table(header, body)}\n\n{test} test documents; {spread_of}"
    return (
        f"{markdown_table(header, body)}\n\n{test} sealed test documents, which neither training nor selection reads; "
        f"{spread_of} Selection, of C and of checkpoints if asked for, is on "
        f"{results['probe_validation_documents']:,} validation documents."
    )
