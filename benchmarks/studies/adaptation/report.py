"""Does adapting an encoder to unlabelled documents help? Two encoders on nine sets, beside what needs no training.

    python -m benchmarks.studies.adaptation.report --data_dir DIR [--encoders DIR]
    python -m benchmarks.studies.adaptation.report --data_dir DIR --list

The cells are those of study.yaml. DIR has the folders 20newsgroups, aan, banking77, cranfield, dbpedia, ecthr and
wikipedia; python_docs is built in. model2vec has to be installed with its extra `distill`. Running again goes on where
it was stopped: see `benchmarks.engine.cells`.
"""

from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from benchmarks.engine.cells import Arguments, run_study
from benchmarks.engine.results import SAMPLES, Results
from docsplit.evaluation.results.markdown import bold, markdown_table
from docsplit.evaluation.results.plots import plt

STUDY = Path(__file__).with_name("study.yaml")
NAMES = {  # of methods and sets, in a reader's words
    "start": "the encoder as it is",
    "words": "adapted (words, no training)",
    "static": "adapted, static",
    "chosen": "chosen by labels",
    "with LSA": "with LSA of the documents",
    "without components": "principal components removed",
    "whitening": "whitened",
    "model2vec": "model2vec's static",
    "LSA": "LSA of the documents",
    "TF-IDF": "TF-IDF",
    "start + BM25": "the encoder, and BM25 (search.py)",
    "words + BM25": "adapted, and BM25",
    "BM25": "BM25",
}
SETS = {
    "20newsgroups": "newsgroup posts",
    "docstrings": "Python docstrings",
    "banking77": "customers' questions",
    "dbpedia": "encyclopedia entries",
    "aan": "citations of papers",
    "ecthr": "court judgments",
    "search: cranfield": "search in abstracts",
    "search: docstrings": "search by first lines",
    "search: wikipedia_titles": "search by titles",
}
METRICS = {
    "5shot_accuracy": "accuracy, 5 labels a class",
    "roc_auc": "ROC-AUC",
    "ndcg_at_10": "nDCG@10",
    "micro_f1": "micro-F1",
}


def pooled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each encoder, length, metric, set and method: means over draws, and the interval.

    It holds 95 % of the differences to the start on drawn test items of all draws of the documents together.
    """

    def of_draws(some: pd.DataFrame) -> pd.Series:
        low, high = np.percentile(np.concatenate(list(some[SAMPLES])), [2.5, 97.5])
        means = {"value": some.value.mean(), "difference": some.difference.mean(), "low": low, "high": high}
        return pd.Series(means | {"draws": len(some)})

    rows = rows[rows.metric.isin(METRICS)].drop_duplicates(["encoder", "tokens", "data", "seed", "method"])
    return rows.groupby(["encoder", "tokens", "metric", "data", "method"]).apply(of_draws).reset_index()


def lines_of(some: pd.DataFrame) -> list[list[object]]:
    """Return a line for each method: value, difference to the start and its interval; bold above 0, and the mean."""
    by_place = {(row.method, row.data): row for row in some.itertuples()}
    data, lines = [name for name in SETS if name in set(some.data)], []
    for method, name in NAMES.items():
        found = [by_place.get((method, each)) for each in data]
        if not any(found):
            continue
        cells: list[object] = [name]
        for row in found:
            text = "" if row is None else f"{100 * row.value:.1f}"
            if row is not None and method != "start":
                text += f" ({100 * row.difference:+.1f}; {100 * row.low:+.1f} to {100 * row.high:+.1f})"
            cells.append(bold(text) if row is not None and row.low > 0 else text)
        all_there = all(row is not None for row in found)
        lines.append([*cells, f"{100 * np.mean([row.difference for row in found]):+.1f}" if all_there else ""])
    heads = [f"{SETS[each]}, {METRICS[some[some.data == each].metric.iloc[0]]}" for each in data]
    return [["", *heads, "mean difference"], *lines]


def markdown(results: Results) -> str:
    """Return a table for each encoder and length, one with all labels, and the means over encoders."""
    rows = pd.DataFrame(results.rows)
    lines = ["Percent; in brackets the difference to the encoder as it is and its 95 % interval over test items and",
             "draws of the documents (of the choice by labels: one). Bold: the interval is above 0.", ""]  # fmt: skip
    for (encoder, tokens), some in pooled(rows).groupby(["encoder", "tokens"]):
        for title, part in (("", some[~some.data.str.startswith("search")]),
                            (", search", some[some.data.str.startswith("search")])):  # fmt: skip
            if len(part):
                head, *body = lines_of(part)
                lines += [f"## {encoder}, {tokens} tokens{title}", "", markdown_table(head, body), ""]
    full = rows[rows.metric == "accuracy"].pivot_table("value", ["encoder", "tokens", "method"], "data")
    body = [[*place, *("" if np.isnan(value) else f"{100 * value:.1f}" for value in values)]
            for place, values in zip(full.index, full.to_numpy())]  # fmt: skip
    lines += ["## Accuracy with all labels", "", markdown_table(["encoder", "tokens", "", *full.columns], body), ""]
    return "\n".join([*lines, results.what_is_missing()]) + "\n"


def plot(results: Results, path: Path) -> None:
    """Plot the difference to the start of five methods, with its interval: a panel a set, a colour an encoder."""
    some = pooled(pd.DataFrame(results.rows))
    some = some[some.tokens == some.groupby("encoder").tokens.transform("max")]
    methods = ["words", "static", "with LSA", "model2vec", "TF-IDF"]
    data = [name for name in SETS if name in set(some.data)]
    figure, axes = plt.subplots(-(-len(data) // 3), 3, figsize=(9.5, 7.5), sharex=True, sharey=True, squeeze=False,
                                layout="constrained")  # fmt: skip
    for axis, name in zip(axes.flat, data):
        for place, encoder in enumerate(sorted(set(some.encoder))):
            own = some[(some.data == name) & (some.encoder == encoder)].set_index("method").reindex(methods)
            heights = np.arange(len(methods))[::-1] + 0.15 - 0.3 * place
            axis.hlines(heights, 100 * own.low, 100 * own.high, color=f"C{place}", linewidth=2)
            axis.plot(100 * own.difference, heights, "o", color=f"C{place}", markersize=4, label=encoder)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_title(SETS[name], fontsize=11, loc="left")
        axis.set_yticks(range(len(methods)), [NAMES[method] for method in reversed(methods)])
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(data) :]:
        axis.set_axis_off()
    figure.legend(*max((axis.get_legend_handles_labels() for axis in axes.flat), key=lambda found: len(found[0])),
                  loc="outside lower right", ncols=2, fontsize=9)  # fmt: skip
    figure.suptitle("Words help with classes and links, and cost where one document is sought\n"
                    "Points of difference to the encoder as it is, and 95 % intervals", fontsize=12)  # fmt: skip
    drawn = BytesIO()  # a PNG as small as it can be without losing a pixel; it has no transparent parts
    figure.savefig(drawn, format="png", dpi=120)
    plt.close(figure)
    Image.open(drawn).convert("RGB").save(path, "png", optimize=True, dpi=(120, 120))


def main() -> None:
    """Run the cells, then write the results so far."""
    arguments: Arguments = {
        "data_dir": {"required": True, "help": "folder with a folder of each data set"},
        "encoders": {"help": "folder with a folder of each encoder (default: the Hub's)"},
    }
    run_study(STUDY, __doc__, arguments, markdown, plot)


if __name__ == "__main__":
    main()
