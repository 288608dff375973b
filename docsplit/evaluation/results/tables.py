"""Rows of results as Markdown tables, which also line up on screen.

Which measures a table shows, under which titles and in which layout, is what the `Task` of the rows states.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from docsplit.evaluation.results.metrics import is_clear
from docsplit.evaluation.results.task import Task

LONGEST_NAME = 24  # characters of an encoder's name, in tables and pictures, before it is shortened
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


def encoder_names(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """What tables call the encoders of rows: a short name, or NAME of NAME=PATH and NAME=PATH,PATH."""
    seeds = {row["encoder"]: len(row.get("members", ())) for row in rows}
    names = short_names(name for name, count in seeds.items() if not count)
    for group in (name for name, count in seeds.items() if count):
        stated, paths = re.match(r"([^/\\,=]+)=", group), group.split(",")
        label = stated[1] if stated else group  # as cards have it already
        if not stated and len(paths) > 1:
            label = f"{paths[0].rstrip('/').rpartition('/')[2]} and {seeds[group] - 1} more"
        names[group] = group if label in names.values() else label
    return {name: names[name] for name in seeds}


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
    """62.1 for comparing, and 62.1 ± 1.3 to show, or only 62.1 where there was one run; † for one class alone."""
    mean = round(100 * row[f"{name}_mean"], 1)
    spread = f" ± {100 * row[f'{name}_std']:.1f}" if row["runs"] > 1 and row[f"{name}_std"] is not None else ""
    return mean, f"{mean:.1f}{spread}{f' {ONE_CLASS}' if row.get('warning') else ''}"


def _cell(row: dict[str, Any] | None, measure: str) -> tuple[float, str] | None:
    return None if row is None else _percent(row, measure)


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
            [f"**{cell}**" if (line, column) in self.best else cell for column, cell in enumerate(row)]
            for line, row in enumerate(self.rows)
        ]
        return markdown_table(self.header, cells)


def _texts(cells: list[list[tuple[float, str] | None]]) -> list[list[str]]:
    return [["" if cell is None else cell[1] for cell in line] for line in cells]


def _best(cells: list[list[tuple[float, str] | None]], first_column: int) -> frozenset[tuple[int, int]]:
    """The places of the best cells of each column: equal as shown, equally good."""
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


def _head(row: dict[str, Any]) -> str:
    """The head, and its preset where it is not the default one."""
    return row["head"] if row.get("preset") in (None, "docsplit") else f"{row['head']} ({row['preset']})"


def head_name(row: dict[str, Any]) -> str:
    """The head, its preset and the features that it was trained on, where these are not the default, or raw."""
    return _head(row) if row["features"] == "raw" else f"{_head(row)}, {row['features']}"


def _shots(shots: int | None) -> str:
    return "all" if shots is None else str(shots)


def result_tables(rows: Sequence[dict[str, Any]], task: Task) -> str:
    """The tables of `tables_of_rows` in Markdown, under headings."""
    return "\n\n".join(f"## {table.title}\n\n{table.markdown()}" for table in tables_of_rows(rows, task))


def tables_of_rows(rows: Sequence[dict[str, Any]], task: Task) -> list[Table]:
    """The columns of a task, in its layout.

    A grid has encoders x heads for the full training set (DocSplit, Table 1) and for each number of labels (Table 2),
    and a line for raw and for standardised features of each encoder. Lines have one for each encoder, head and
    features, and the interval of the main measure.
    """
    names = encoder_names(rows)
    if task.layout == "lines":
        return [_line_table(" ".join(task.heading.split()), rows, task, names)]
    tables = []
    for shots in sorted({row["shots"] for row in rows}, key=lambda shots: shots or 0):  # the full set first
        title = "Full training set" if shots is None else f"{shots} labels per class"
        tables.append(_grid_table(title, [row for row in rows if row["shots"] == shots], task, names))
    return tables


def _several(rows: Sequence[dict[str, Any]], name: str) -> bool:
    return len({row[name] for row in rows}) > 1


def _grid_table(title: str, rows: Sequence[dict[str, Any]], task: Task, names: dict[str, str]) -> Table:
    row_of = {(row["encoder"], row["features"], _head(row)): row for row in rows}
    columns = [(head, measure) for head in unique(_head(row) for row in rows) for measure in task.columns]
    encoders = unique(row["encoder"] for row in rows)
    kinds = unique(row["features"] for row in rows)
    lines = [(name, kind) for name in encoders for kind in kinds if any(key[:2] == (name, kind) for key in row_of)]
    cells = [[_cell(row_of.get((*line, head)), measure) for head, measure in columns] for line in lines]
    several = _several(rows, "features")
    seeds = {row["encoder"]: _seeds(row) for row in rows} if _has_groups(rows) else None
    header = ["encoder", *(["features"] if several else []), *(["seeds"] if seeds else [])]
    body = [
        [names[name], *([kind] if several else []), *([seeds[name]] if seeds else []), *line]
        for (name, kind), line in zip(lines, _texts(cells))
    ]
    best = _best(cells, first_column=len(header))
    return Table(title, [*header, *(f"{head}: {task.measures[measure]}" for head, measure in columns)], body, best)


def _has_groups(rows: Iterable[dict[str, Any]]) -> bool:
    """Whether one of the rows is of several pretraining seeds."""
    return any(len(row.get("members", ())) > 1 for row in rows)


def _seeds(row: dict[str, Any]) -> str:
    """From how many pretraining seeds; nothing for what was not pretrained."""
    return str(row.get("pretraining_seeds") or "")


def _line_table(title: str, rows: Sequence[dict[str, Any]], task: Task, names: dict[str, str]) -> Table:
    """DocSplit v1, Table 3, is such a table with accuracy alone."""
    cells = [[_cell(row, measure) for measure in task.columns] for row in rows]
    several = _several(rows, "features")
    body = [
        [
            *(names[row["encoder"]], _head(row), *([row["features"]] if several else []), *line, _seeds(row)),
            f"[{100 * row[f'{task.main}_low']:.1f}, {100 * row[f'{task.main}_high']:.1f}]",
        ]
        for row, line in zip(rows, _texts(cells))
    ]
    first = ["encoder", task.head_title, *(["features"] if several else [])]
    measures = [task.measures[measure] for measure in task.columns]
    header = [*first, *measures, "seeds", f"{task.measures[task.main]}, 95 % interval"]
    return Table(title, header, body, _best(cells, first_column=len(first)))


def table_notes(rows: Sequence[dict[str, Any]], task: Task) -> list[str]:
    """What has to stand under the tables: test items, pretraining runs, and heads that learnt nothing.

    Rows of older files say less, and so do the notes.
    """
    notes = []
    items, documents = (sorted({row.get(f"test_{kind}") or 0 for row in rows}) for kind in (task.items, "documents"))
    if items and items[-1]:
        of = "" if task.items == "documents" or items == documents else f" of {documents[-1]:,} documents"
        notes.append(f"Test: {items[-1]:,} {task.items}{of}.")
        if documents[-1] < FEW_ITEMS or items[-1] < FEW_ITEMS:
            notes[-1] += (
                f" Fewer than {FEW_ITEMS}: one of the {task.items} is {100 / items[-1]:.1f} points, and differences "
                "of a few of them are chance."
            )
    lengths = {row.get("max_seq_length") or 0 for row in rows if row.get("long_documents") == "truncate"} - {0}
    if len(lengths) > 1:
        shown = " or ".join(f"{length:,}" for length in sorted(lengths))
        notes.append(
            f"The encoders read the first {shown} tokens of a text: differences may come from that. --max_seq_length "
            "sets one length for all."
        )
    if any(row.get("pretraining_seeds") == 1 for row in rows):
        notes.append(
            "A single pretraining run each"
            + (", where `seeds` is 1" if _has_groups(rows) else "")
            + ": intervals and tests are over test items and runs of the head. Another pretraining seed may lie "
            "outside of them and turn an order round; give several, NAME=PATH,PATH,PATH."
        )
    if _has_groups(rows):
        notes.append(
            "Where `seeds` is 2 or more: mean over pretraining seeds, ± the standard deviation over them, intervals "
            "over seeds and test items."
        )
    names = encoder_names(rows)
    for row in rows:
        if row.get("warning"):
            shots = "" if task.layout == "lines" else f", {_shots(row['shots'])} labels"
            notes.append(f"{ONE_CLASS} {names[row['encoder']]}, {head_name(row)}{shots}: {row['warning']}.")
    return notes


def difference_table(differences: Sequence[dict[str, Any]], task: Task, names: dict[str, str]) -> str:
    """All pairs of encoders, in points, with interval and p; in bold where one is ahead, of several seeds each.

    Args:
        names: of encoders, as `encoder_names` has them.
    """
    body = []
    for row in differences:
        text = f"{100 * row['difference']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
        ahead = row.get("ahead")
        verdict = names[ahead] if ahead else "one run says" if is_clear(row) else ""
        counts = " / ".join("-" if count is None else str(count) for count in row.get("pretraining_seeds", ("?", "?")))
        encoders = f"{names[row['a']]} - {names[row['b']]}"
        measure, p_value = task.measures[row["measure"]], f"{row['p_value']:.3f}"
        shown = f"**{text}**" if ahead else text
        heads = " - ".join(unique(row["heads"])) if row.get("heads") else head_name(row)
        labels = [_shots(row["shots"])] if task.has_training else []
        corrected = [f"{row['p_holm']:.3f}"] if "p_holm" in row else []
        body.append([encoders, heads, *labels, measure, shown, counts, p_value, *corrected, verdict])
    header = ["encoders", task.head_title, *(["labels per class"] if task.has_training else []), "measure"]
    header += ["difference [95 % interval]", "seeds", "p"]
    header += [*(["p, Holm"] if any("p_holm" in row for row in differences) else []), "ahead"]
    return markdown_table(header, body)


def detail_table(rows: Sequence[dict[str, Any]], detail: str) -> str:
    """A detail of each label with the full training set, of each encoder and head; "" without such rows.

    Labels are lines, or columns where there are fewer of them.

    Args:
        detail: one that the task of the rows names, such as `per_label_f1`.
    """
    chosen = [row for row in rows if row["shots"] is None]
    if not chosen:
        return ""
    names, labels = encoder_names(rows), list(chosen[0][detail])

    def cell(label: str, row: dict[str, Any]) -> str:
        value = row[detail][label]
        return "" if value is None else f"{100 * value:.1f}"

    titles = [f"{names[row['encoder']]}: {head_name(row)}" for row in chosen]
    if len(labels) < len(chosen):
        return markdown_table(["", *labels], [[title, *(cell(label, row) for label in labels)]
                                              for title, row in zip(titles, chosen)])  # fmt: skip
    return markdown_table(["label", *titles], [[label, *(cell(label, row) for row in chosen)] for label in labels])


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
    lines = unique((row["encoder"], *(_value(_facts(row).get(name)) for name in columns)) for row in rows)
    return markdown_table(["encoder", *columns.values()], lines)


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    """The row, with the pooling that the encoder brought where another one was used."""
    brought = row.get("pooling_of_checkpoint")
    return row if brought is None else row | {"pooling": f"{row['pooling']} (it brings {brought})"}


def cost_table(rows: Sequence[dict[str, Any]]) -> str:
    """Training time and trained parameters of each head, as Table 2 of the Bregman paper gives them."""
    names = encoder_names(rows)
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
    """Size and length of each part of the data: the rows of `docsplit.evaluation.results.report.text_statistics`."""
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


def table_of_probe(results: dict[str, Any]) -> Table:
    """The probe's accuracies: random start, after pretraining, TF-IDF."""
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


def probe_table(results: dict[str, Any]) -> str:
    """A Markdown table of the probe, and what is to be known of it."""
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


def _seen_text(results: dict[str, Any]) -> str:
    """What the probe's table says of test documents that the encoder was trained on; "" for runs of before."""
    if "probe_seen_in_pretraining_share" not in results:
        return ""
    shares = (results[f"probe_{name}"] for name in ("seen_in_pretraining_share", "near_duplicate_share"))
    seen, near = ("unknown" if share is None else f"{100 * share:.1f} %" for share in shares)
    return f" Test documents seen in pretraining: {seen}; with near-duplicates: {near}."
