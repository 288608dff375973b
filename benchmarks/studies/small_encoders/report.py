"""Four small encoders side by side, from random weights: the tables and the picture of what was measured.

    python -m benchmarks.studies.small_encoders.report

docs/studies/small_encoders.md has the commands that train and compare them. Their results.json are kept in
benchmarks/results/small_encoders under the names of `FILES`; this writes the tables beside each, and the picture.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine.figures import save
from docsplit.evaluation.results.bootstrap import Difference
from docsplit.evaluation.results.paper_numbers import paper_sources
from docsplit.evaluation.results.plots import plt
from docsplit.evaluation.results.records import Comparison, Json, Row
from docsplit.evaluation.results.tables import (
    difference_table,
    names_of,
    result_tables,
    table_notes,
)
from docsplit.release.card_results import read_json, rows_of_file
from docsplit.runtime.files import ROOT, write_text

RESULTS = ROOT / "benchmarks" / "results" / "small_encoders"
FILES = ("20newsgroups", "aan")
PLOTTED = "20newsgroups"
PICTURE = RESULTS / f"{PLOTTED}.png"
HEAD = "linear"  # which reads TF-IDF too
SHOTS = 5
NAMES = {"random_start": "random start", "MLM_alone": "MLM alone", "tfidf": "TF-IDF"}  # in a reader's words
COLOURS = {SHOTS: "tab:orange", None: "tab:blue"}


def markdown(contents: Json) -> str:
    """Return the tables of a results.json: all rows, then all paired differences."""
    task, rows = rows_of_file(contents)
    notes = [*table_notes(rows, task), paper_sources(rows, names_of(rows), contents["data"])]
    comparisons = [_comparison(entry) for entry in contents["comparisons"]]
    parts = [
        f"# {contents['title']}",
        "In percent; ± is the standard deviation over pretraining seeds. † marks a head that gives nearly all test "
        "items one class.",
        result_tables(rows, task, contents["data"]),
        "\n".join(f"- {note}" for note in filter(None, notes)),
        "## Differences\n\nPoints, first minus second, with 95 % intervals over test items, runs and pretraining "
        "seeds (paired bootstrap); p is not corrected for the number of tests. Bold: the interval leaves 0 out.",
        difference_table(comparisons, task, names_of(rows)),
    ]
    return "\n\n".join(parts) + "\n"


def _comparison(entry: Json) -> Comparison:
    """Read a comparison of results.json."""
    names = ("head", "shots", "features", "a", "b", "measure", "pretraining_seeds", "heads", "p_holm")
    difference = Difference(*(entry[name] for name in ("difference", "low", "high", "p_value")))
    return Comparison(difference=difference, **{name: entry[name] for name in names if name in entry})


def plot(rows: Sequence[Row], path: Path) -> None:
    """Plot the accuracy of one head on raw embeddings: a line an encoder, a dot a number of labels."""
    shown = [row for row in rows if row.head == HEAD and row.features == "raw"]
    names = {encoder: NAMES.get(name, name) for encoder, name in names_of(rows).items()}
    accuracy = {(row.encoder, row.shots): row.main for row in shown}
    encoders = sorted({row.encoder for row in shown}, key=lambda encoder: accuracy[encoder, SHOTS].mean)
    figure, axis = plt.subplots(figsize=(7, 2.9), layout="constrained")
    for shots, colour in COLOURS.items():
        label = "all labels" if shots is None else f"{shots} labels a class"
        means = [100 * accuracy[encoder, shots].mean for encoder in encoders]
        spreads = [100 * (accuracy[encoder, shots].std or 0) for encoder in encoders]
        marker = "s" if shots is None else "o"
        axis.errorbar(means, range(len(encoders)), xerr=spreads, fmt=marker, capsize=3, color=colour, label=label)
        for height, mean in enumerate(means):
            axis.annotate(f"{mean:.0f}", (mean, height), (0, 7), textcoords="offset points", ha="center", fontsize=9)
    axis.set_yticks(range(len(encoders)), [names[encoder] for encoder in encoders])
    axis.set(xlim=(0, 70), ylim=(-0.5, len(encoders) - 0.3), xlabel="accuracy of logistic regression (%)")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    *_, best, reference = encoders
    ratio = accuracy[reference, SHOTS].mean / accuracy[best, SHOTS].mean
    title = f"With {SHOTS} labels {names[reference]} is {ratio:.1f} times as accurate as {names[best]}, the next best"
    axis.set_title(title, loc="right", fontsize=11)
    save(figure, path)


def main() -> None:
    """Write the tables of each file and the picture."""
    for name in FILES:
        contents = read_json(RESULTS / f"{name}.json")
        write_text(RESULTS / f"{name}.md", markdown(contents))
        if name == PLOTTED:
            plot(rows_of_file(contents)[1], PICTURE)


if __name__ == "__main__":
    main()
