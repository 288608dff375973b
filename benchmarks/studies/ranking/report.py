"""Training for ranking in small: what contrast before it, hard negatives and BM25 beside it are worth.

    python -m benchmarks.studies.ranking.report --data_dir DIR --start outputs/start --budget_hours 4
    python -m benchmarks.studies.ranking.report --data_dir DIR --start outputs/start --list

The cells are those of study.yaml: BM25, the start as it is, DocSplit and graph documents with and without contrast
before, each alone and with BM25, by kind of negatives; Cranfield, python_docs and titles of Wikipedia. DIR has the
folders cranfield (BEIR's layout) and wikipedia (train.parquet). Running again goes on where it was stopped: see
`benchmarks.engine.cells`.
The paper's orderings are tested over queries; its own numbers, of other weights and data, stand beside.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.engine.cells import Arguments, run_study
from benchmarks.engine.figures import save
from benchmarks.engine.results import SAMPLES, Results, Row
from benchmarks.studies.ranking.step import TESTED
from docsplit.evaluation.results.bootstrap import holm, paired_randomisation
from docsplit.evaluation.results.items import ItemScores
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.evaluation.results.paper_numbers import COLUMN, read_paper
from docsplit.evaluation.results.plots import plt
from docsplit.evaluation.results.task import RANKING

STUDY = Path(__file__).with_name("study.yaml")
MEASURES = {"ndcg_at_10": "nDCG@10", "mrr_at_10": "MRR@10", "recall_at_100": "Recall@100"}
ORDERINGS = (  # better, worse, whose claim it is
    ("docsplit, bm25, dense", "docsplit without contrast, bm25, dense", "contrast helps (paper)"),
    ("graph, bm25, dense", "graph without contrast, bm25, dense", "contrast helps (paper)"),
    ("docsplit, bm25, hybrid", "BM25", "hybrid beats BM25 (paper)"),
    ("graph, bm25, hybrid", "BM25", "hybrid beats BM25 (paper)"),
    ("docsplit, bm25, dense", "docsplit, random, dense", "hard negatives help (ours)"),
    ("graph, bm25, dense", "graph, random, dense", "hard negatives help (ours)"),
    ("docsplit, bm25+self, dense", "docsplit, bm25, dense", "own hard negatives help (ours)"),
    ("docsplit, bm25, dense", "start, dense", "training helps (ours)"),
    ("docsplit, bm25, hybrid", "start, hybrid", "training helps beside BM25 (ours)"),
)
Found = dict[str, dict[str, Row]]  # method, measure, row


def by_data(rows: list[Row]) -> dict[str, Found]:
    """Return rows of each data set by method and measure; BM25 is the same in all cells, and the first counts."""
    by_method: dict[str, Found] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        by_method[row["data"]][row["method"]].setdefault(row["metric"], row)
    return by_method


def orderings(measured: Found) -> list[tuple[str, ...]]:
    """Return a line an ordering whose both sides were measured: difference in points, p over queries, corrected by
    Holm.
    """
    pairs = [ordering for ordering in ORDERINGS if all(TESTED in measured.get(method, {}) for method in ordering[:2])]
    differences, p_values = [], []
    for better, worse, _ in pairs:
        values = [np.array([measured[method][TESTED][SAMPLES]], dtype=np.float32) for method in (better, worse)]
        scores = [ItemScores(of_queries, np.ones_like(of_queries)) for of_queries in values]
        differences.append(100 * float(values[0].mean() - values[1].mean()))
        p_values.append(paired_randomisation(*scores))
    lines = []
    for (better, worse, claim), difference, p, corrected in zip(pairs, differences, p_values, holm(p_values)):
        is_clear = corrected < 0.05
        verdict = ("holds" if difference > 0 else "the other way round") if is_clear else "not told apart"
        lines.append((claim, better, worse, f"{difference:+.1f}", f"{p:.4f}", f"{corrected:.4f}", verdict))
    return lines


def tables_of_the_paper() -> list[str]:
    """Return Tables 3 to 5 as Markdown: every system and column."""
    paper, parts = read_paper("graph"), []
    for table in map(paper.table, ("3", "4", "5")):
        header = ["method", *(f"{data}: {RANKING.measures[str(measure)]}" for data, measure in table.columns)]
        body = [[method, *map(str, values)] for method, values in table.rows.items()]
        note = f"; {table.note}" if table.note else ""
        title = f"The {COLUMN}, Table {table.table}: {table.title}{note}."
        parts.append(f"{title}\n\n{markdown_table(header, body)}")
    return parts


def markdown(results: Results) -> str:
    """Return the tables as Markdown."""
    lines = ["# Training for ranking, in small", ""]
    for data, methods in by_data(results.rows).items():
        count = len(next(iter(methods.values()))[TESTED][SAMPLES])
        lines += [f"{data}, {count} queries, one seed; in percent:", ""]
        table = [
            (method, *(f"{100 * row_by_measure[measure]['value']:.1f}" for measure in MEASURES))
            for method, row_by_measure in methods.items()
        ]
        lines += [markdown_table(["method", *MEASURES.values()], table), ""]
        if tested := orderings(methods):
            header = ["claim", "better", "worse", "points", "p", "p, Holm", "verdict"]
            lines += ["Paired randomisation tests over queries, nDCG@10:", "", markdown_table(header, tested), ""]
    lines += ["\n\n".join([*tables_of_the_paper(), results.what_is_missing()])]
    return "\n".join(lines) + "\n"


def plot(results: Results, path: Path) -> None:
    """Plot a panel a data set, a line a method: nDCG@10, its 95 % bootstrap interval over queries, BM25's dashed."""
    sets = by_data(results.rows)
    if not sets:
        return
    methods = list(dict.fromkeys(method for by_method in sets.values() for method in by_method))[::-1]
    size = (3.2 * len(sets) + 3, 0.26 * len(methods) + 1)
    figure, axes = plt.subplots(1, len(sets), figsize=size, sharey=True, squeeze=False)
    for axis, (data, by_method) in zip(axes[0], sets.items()):
        for height, method in enumerate(methods):
            if (measured := by_method.get(method)) is None:
                continue
            value, low, high = (100 * measured[TESTED][name] for name in ("value", "low", "high"))
            colour = "tab:orange" if method.endswith("hybrid") else "black" if method == "BM25" else "tab:blue"
            axis.plot([low, high], [height] * 2, color=colour)
            axis.plot(value, height, "o", color=colour)
            if method == "BM25":
                axis.axvline(value, color=colour, linewidth=0.8, linestyle="--")
        axis.grid(alpha=0.3)
        axis.set(title=data, xlabel=f"{MEASURES[TESTED]}, percent")
    axes[0][0].set_yticks(range(len(methods)), methods)
    figure.tight_layout()
    save(figure, path)


def main() -> None:
    """Run the cells, then write the results so far."""
    arguments: Arguments = {"start": {"required": True, "help": "the encoder to start from, a folder"}}
    run_study(STUDY, __doc__, arguments, markdown, plot)


if __name__ == "__main__":
    main()
