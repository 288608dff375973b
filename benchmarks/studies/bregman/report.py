"""Self-contrastive Bregman divergence in small: its ablations (the paper's Table 4), and its orderings.

    python -m benchmarks.studies.bregman.report --data_dir DIR --start outputs/small_longformer --budget_hours 4
    python -m benchmarks.studies.bregman.report --data_dir DIR --start outputs/small_longformer --list

The cells are those of study.yaml: a grid around the paper's choice on validation documents, then the best cell,
SimCSE and the plain start, three seeds, on test documents. DIR has the folders 20newsgroups and ecthr. The start is a
masked LM of the domain made a Longformer: the header of study.yaml has the commands. Running again goes on where it
was stopped: see `benchmarks.engine.cells`. The paper's own numbers, of other weights and data, stand beside.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.engine.cells import Arguments, run_study
from benchmarks.engine.figures import save
from benchmarks.engine.results import Results, Row
from benchmarks.studies.bregman.step import LOGGED
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.evaluation.results.paper_numbers import read_paper, set_named
from docsplit.evaluation.results.plots import plt
from docsplit.evaluation.results.tables import ONE_CLASS

STUDY = Path(__file__).with_name("study.yaml")
CHOSEN = "mlp micro_f1"  # by what the best cell is chosen, on validation documents
HEADS = ("mlp", "linear", "mlp, standardized,", "linear, standardized,")
CENTRES = {"g": "10", "sigma": "2", "steps": "5/5", "batch": "2", "lambda": "2", "batch norm": "with"}
CENTRE = "centre"
METHODS = {"start": "Longformer_DA"}  # as the paper calls it
STEPS = {"1/5": "10k", "2/5": "20k", "3/5": "30k", "4/5": "40k", "5/5": "50k"}  # of the paper's training
FINAL = ("micro_f1", "macro_f1", "macro_f1_lexglue", "seconds")
Measured = dict[str, dict[str, Row]]  # method, metric, row
WATCHED = {CENTRE: "SimCSE + Bregman", "lambda 0": "SimCSE", "batch norm without": "SimCSE + Bregman, no batch norm"}


def grid(rows: list[Row]) -> Measured:
    """Map method to metric to row, of the cells with one encoder."""
    rows_of: Measured = defaultdict(dict)
    for row in rows:
        if row["seed"] is not None:
            rows_of[row["method"].strip()][row["metric"]] = row
    return dict(rows_of)


def percent(row: Row) -> str:
    """Format a value as 62.1 or 62.1 ± 1.3; mark it where the head gives nearly all documents one class."""
    spread = "" if row.get("std") is None else f" ± {100 * row['std']:.1f}"
    return f"{100 * row['value']:.1f}{spread}" + (f" {ONE_CLASS}" if row.get("warning") else "")


def level_of(method: str) -> tuple[str, str]:
    """Return factor and level of a method's name; the centre has the paper's level of each."""
    for factor in ("batch norm", *CENTRES, "trunk", "form", "temperature", "pooling"):
        if method.startswith(f"{factor} "):
            return factor, method.removeprefix(f"{factor} ")
    return method, ""


def ablation_of_the_paper(factor: str, level: str) -> str:
    """Return micro- and macro-F1 of Table 4, 6 or 7; nothing where the paper has no such cell."""
    tables = {"batch norm": ("7", level), "pooling": ("6", level)}
    number, row = tables.get(factor, ("4", f"{factor} {STEPS.get(level, level)}"))
    return " / ".join(map(str, read_paper("bregman").table(number).rows.get(row, ())))


def scores_of_the_paper(head: str, method: str, data: str) -> str:
    """Return micro- and macro-F1 of Table 2 or 3; nothing where the paper has no such cell."""
    paper, row = read_paper("bregman"), METHODS.get(method, method)
    for table in paper.tables:
        metrics = [metric for of_set, metric in table.columns if of_set and of_set == set_named(paper, data)]
        if head == table.head and row in table.rows and metrics:
            return " / ".join(str(table.value(row, str(metric), set_named(paper, data))) for metric in metrics)
    return ""


def ablations(rows_of: Measured) -> list[tuple[str, ...]]:
    """Return a line a cell: micro- and macro-F1 of each head, the paper's, and whether anything collapsed."""
    lines = []
    for method, row_by_metric in rows_of.items():
        factor, level = level_of(method)
        in_paper = ablation_of_the_paper(*(("g", CENTRES["g"]) if method == CENTRE else (factor, level)))
        scores = [
            " / ".join(
                percent(row_by_metric[f"{head} {metric}"] | {"std": None}) for metric in ("micro_f1", "macro_f1")
            )
            for head in HEADS
        ]
        logged = [f"{row_by_metric[name]['value']:.3f}" if name in row_by_metric else "" for name in LOGGED]
        lines.append(
            (
                factor,
                level,
                *scores,
                in_paper,
                *logged,
            )
        )
    return lines


def confirmed(rows: list[Row], data: str) -> list[tuple[str, ...]]:
    """Return a line a head and method, as Table 2 has them: scores, seconds, share of the parameters, the paper's
    scores.
    """
    rows_of: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        if "difference" not in row["metric"]:
            head, _, metric = row["metric"].rpartition(" ")
            rows_of[head, row["method"]][metric] = row
    lines = []
    for (head, method), row_by_metric in rows_of.items():
        scores = [
            "" if name not in row_by_metric else f"{row_by_metric[name]['value']:.0f}" if name == "seconds"
            else percent(row_by_metric[name])
            for name in FINAL
        ]  # fmt: skip
        share = next(iter(row_by_metric.values())).get("trained_share")
        trained = "" if share is None else f"{100 * share:.3g} %"
        lines.append(
            (
                head.rstrip(","),
                method,
                *scores,
                trained,
                scores_of_the_paper(head, method, data),
            )
        )
    return lines


def markdown(results: Results) -> str:
    """Return the tables as Markdown."""
    rows_of = grid(results.rows)
    lines = ["# Self-contrastive Bregman divergence, in small", ""]
    if rows_of:
        header = ["factor", "level", *(f"{head.rstrip(',')}: micro / macro-F1" for head in HEADS)]
        header += ["paper, micro / macro (other weights and data, end to end)", *LOGGED]
        lines += [
            "The grid: 20 Newsgroups, validation documents, one seed; what the embeddings of the last steps do.",
            "",
        ]
        lines += [
            markdown_table(header, ablations(rows_of)),
            "",
            "subnetworks_active counts functionals; a shared trunk has g times the width of them, more than there are "
            "embeddings in the steps of a log. A Bregman loss of ln(2N - 1) is chance: 1.099 for two documents.",
            "",
        ]
    final = [row for row in results.rows if row["seed"] is None]
    for data, cell in dict.fromkeys((row["data"], row["cell"]) for row in final):  # a table a run
        rows = [row for row in final if (row["data"], row["cell"]) == (data, cell)]
        differences = [row for row in rows if "difference" in row["metric"]]
        lines += [
            f"{data}, test documents ({results.cells[cell].name}); ± is the deviation over three pretraining "
            "seeds, of the start and of TF-IDF over trainings of the head; seconds are those to embed and to train "
            "a head:",
            "",
        ]
        header = ["head", "method", *FINAL, "trained", f"paper, {data}, micro / macro (other weights and data)"]
        body = confirmed(rows, data)
        if not any(line[-1] for line in body):
            header, body = header[:-1], [line[:-1] for line in body]
        lines += [markdown_table(header, body), ""]
        table = [(row["method"], row["metric"], f"{100 * row['value']:+.1f}",
                  f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}", row["ahead"] or "")
                 for row in differences]  # fmt: skip
        lines += [markdown_table(["difference", "metric", "points", "95 %, over items and seeds", "ahead"], table), ""]
    lines += [results.what_is_missing()]
    return "\n".join(lines) + "\n"


def plot(results: Results, path: Path) -> None:
    """Plot a heat map of the grid: a row a factor, a column a level, the difference to the centre in points."""
    rows_of = grid(results.rows)
    if CENTRE not in rows_of:
        return
    factors: dict[str, dict[str, float]] = defaultdict(dict)
    for method, row_by_metric in rows_of.items():
        factor, level = level_of(method)
        if level:
            factors[factor][level] = 100 * (row_by_metric[CHOSEN]["value"] - rows_of[CENTRE][CHOSEN]["value"])
    if not factors:
        return
    width = max(map(len, factors.values()))
    cells = np.full((len(factors), width), np.nan)
    for row, levels in enumerate(factors.values()):
        cells[row, : len(levels)] = list(levels.values())
    most = max(np.nanmax(np.abs(cells)), 0.1)
    figure, axis = plt.subplots(figsize=(1.3 * width + 2, 0.5 * len(factors) + 1.2))
    image = axis.imshow(cells, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    for row, levels in enumerate(factors.values()):
        for column, (level, value) in enumerate(levels.items()):
            colour = "white" if abs(value) > 0.6 * most else "black"
            axis.text(column, row, f"{level}\n{value:+.1f}", ha="center", va="center", fontsize=8, color=colour)
    axis.set_yticks(range(len(factors)), list(factors))
    axis.set_xticks([])
    documents = rows_of[CENTRE][CHOSEN].get("test_documents")
    axis.set_title(f"{CHOSEN} on {documents} validation documents, points beside the paper's choice", fontsize=9)
    figure.colorbar(image)
    figure.tight_layout()
    save(figure, path)


def plot_collapse(results: Results, path: Path) -> None:
    """Plot the logged numbers of embeddings and ensemble over steps, with and without the Bregman term."""
    histories = {(row["metric"], row["method"].strip()): row["history"] for row in results.rows if row.get("history")}
    names = [name for name in LOGGED if any((name, method) in histories for method in WATCHED)]
    if not names:
        return
    rows = -(-len(names) // 3)
    figure, axes = plt.subplots(rows, 3, figsize=(10, 2.4 * rows), squeeze=False)
    for axis, name in zip(axes.flat, names):
        for method, label in WATCHED.items():
            if history := histories.get((name, method)):
                axis.plot(*zip(*history), label=label)
        axis.set_title(name.replace("_", " "), fontsize=9)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), fontsize=9)
    figure.supxlabel("step", y=0.06, fontsize=9)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    save(figure, path)


def plots(results: Results, path: Path) -> None:
    """Plot the heat map of the grid, and beside it, `..._collapse.png`, what the embeddings do."""
    plot(results, path)
    plot_collapse(results, path.with_name(f"{path.stem}_collapse{path.suffix}"))


def main() -> None:
    """Run the cells, then write the results so far."""
    arguments: Arguments = {"start": {"required": True, "help": "the Longformer to start from, a folder"}}
    run_study(STUDY, __doc__, arguments, markdown, plots)


if __name__ == "__main__":
    main()
