"""The papers' figures, as tables of our numbers; and the settings of fine-tuning, the graph paper's Table 6."""

from collections.abc import Iterator

from benchmarks.studies.reproduction.measure import DRAWN
from benchmarks.studies.reproduction.pages import Block, Cell, Heading, Table, Text
from benchmarks.studies.reproduction.plan import evaluation_group
from benchmarks.studies.reproduction.reported import Reported, anchor_of
from benchmarks.studies.reproduction.tables import NOT_IN_RECIPE, RAW
from docsplit.evaluation.results.paper_numbers import read_paper

TUNED = "fine-tuning of the graph paper"
REPORTS = {  # evaluations whose figures are in a report of their own
    "clusters": "Figures 3 and 4, maps of documents",
    "graph attention": "Figures 6 and 7, attention of the document node and of all nodes",
}


def labels_curve(reported: Reported) -> Iterator[Block]:
    """Figure 2: accuracy by the number of labels a class."""
    rows = [row for row in reported.results.rows if row["task"] == "classification" and row["metric"] == "accuracy"
            and row["features"] == "raw" and row["head"] in ("mlp", "linear")]  # fmt: skip
    places = list(dict.fromkeys((row["data"], row["head"], row["method"]) for row in rows))
    labels = sorted({row["shots"] for row in rows if row["shots"] is not None})
    yield Heading(3, f"{read_paper('docsplit_v2').short}, Figure 2: accuracy by labels a class")
    lines: list[list[Cell | str]] = []
    for data, head, method in places:
        link = f"#{anchor_of(evaluation_group('classification', data, method))}"
        cells: list[Cell | str] = []
        for shots in (*labels, None):
            place = ("classification", data, method, head, "raw", shots, "accuracy")
            found, mark = reported.numbers.look_up(*place), "†" if reported.numbers.one_class(*place) else ""
            cells.append("" if found is None else Cell(f"{100 * found[0]:.1f}{mark}", link))
        lines.append([f"{method}, {head}, {data}", *cells])
    yield Table(["", *map(str, labels), "all"], lines)


def attention(reported: Reported) -> Iterator[Block]:
    """Figure 3 of SimLTE: attention of the last layer to the words of each part of speech."""
    yield Heading(3, f"{read_paper('simlte').short}, Figure 3: attention by part of speech")
    yield Text("Attention to a word, 1 if all words of its document had as much; mean over seeds. The paper prints no "
               "number: it says that SimLTE has on nouns more than 1.4 times BERT's and SimCSE's (NYT).")  # fmt: skip
    rows: list[list[Cell | str]] = []
    for (evaluation, data, method), group in reported.plan.evaluated.items():
        if evaluation != "attention":
            continue
        row: list[Cell | str] = [f"{method}, {data}"]
        for metric in DRAWN["attention"]:
            found = reported.numbers.look_up("attention", data, method, "attention", RAW, None, metric)
            if found is None:
                row.append(reported.numbers.lacks("attention", data, method))
                continue
            mean, deviation = found
            spread = "" if deviation is None else f" ± {deviation:.2f}"
            row.append(Cell(f"{mean:.2f}{spread}", f"#{anchor_of(group)}"))
        rows.append(row)
    missing = sorted({one.needs for one in reported.plan.missing if one.evaluation == "attention"})
    if rows:
        yield Table(["", *(name.removesuffix("_to_uniform") for name in DRAWN["attention"])], rows)
    if missing or not rows:
        yield Text(f"Not measured: {'; '.join(missing) or NOT_IN_RECIPE}.")


def settings(reported: Reported) -> Iterator[Block]:
    """Table 6: the settings of fine-tuning, ours beside the paper's."""
    from docsplit.evaluation.arguments import ProbeArguments
    from docsplit.evaluation.heads.finetuning import WARMUP, WEIGHT_DECAY

    table = read_paper("graph").table("6")
    evaluation = reported.plan.recipe["evaluations"].get(TUNED)
    yield Heading(3, f"{read_paper('graph').short}, Table 6: {table.title}")
    rows: list[list[Cell | str]] = []
    for name, values in table.rows.items():
        cells: list[Cell | str] = [name]
        for (data, _), paper in zip(table.columns, values):
            ours = NOT_IN_RECIPE
            if evaluation is not None:
                stated = evaluation["options"] | (evaluation["sets"].get(data) or {}).get("options", {})
                names = ("probe_preset", "finetune_learning_rate", "finetune_epochs", "finetune_batch_size")
                tuning = ProbeArguments(**{name: stated[name] for name in names if name in stated}).finetuning
                ours = {"learning rate": f"{tuning.learning_rate:g}", "batch size": str(tuning.batch_size),
                        "epoch": f"{tuning.num_epochs:g}", "warmup": f"{WARMUP:g}",
                        "weight decay": f"{WEIGHT_DECAY:g}"}[name]  # fmt: skip
            cells.append(Cell(ours, None, str(paper)))
        rows.append(cells)
    yield Table(["", *(str(data) for data, _ in table.columns)], rows)


def convergence(reported: Reported) -> Iterator[Block]:
    """Figure 5: the validation accuracy while the encoder is fine-tuned, epoch by epoch."""
    yield Heading(3, f"{read_paper('graph').short}, Figure 5: validation accuracy while fine-tuning")
    curves = [row for row in reported.results.rows if row.get("curve") and row["task"] == TUNED]
    if not curves:
        yield Text("Not run yet.")
        return
    longest = max(len(row["curve"]) for row in curves)
    rows: list[list[Cell | str]] = []
    for row in curves:
        values = [entry.get("accuracy", entry.get("macro_f1")) for entry in row["curve"]]
        link = f"#{anchor_of(evaluation_group(row['task'], row['data'], row['method']))}"
        shown: list[Cell | str] = [Cell(f"{100 * value:.1f}", link) if value is not None else "" for value in values]
        rows.append([f"{row['method']}, {row['data']}, seed {row['seed']}", *shown, *[""] * (longest - len(values))])
    yield Table(["", *(f"epoch {number}" for number in range(1, longest + 1))], rows)


def pictures(reported: Reported) -> Iterator[Block]:
    """Figures that are pictures: the reports of the analyses."""
    for evaluation, title in REPORTS.items():
        groups = [group for (name, _, _), group in reported.plan.evaluated.items() if name == evaluation]
        cells = [cell for group in groups for cell in reported.cells_of(group)
                 if (reported.study.finished_folder(cell) / "measured" / "report.html").exists()]  # fmt: skip
        yield Heading(3, f"{read_paper('graph').short}, {title}")
        if not cells:
            ran = any(reported.study.record(cell) is not None for group in groups for cell in reported.cells_of(group))
            yield Text(f"The pictures are where the cells ran. To make them anew: --only '{evaluation}'."
                       if ran else "Not run yet." if groups else "Not in this recipe.")  # fmt: skip
            continue
        files = [f"cells/{reported.study.finished_folder(cell).name}/measured/report.html" for cell in cells]
        yield Table(
            ["cell", "its pictures"], [[cell.name, Cell("report.html", file)] for cell, file in zip(cells, files)]
        )


FIGURES = {  # below the tables of a family
    "docsplit": (labels_curve, attention),
    "graph": (settings, convergence, pictures),
}
