"""Which documents are to be labelled next? What `classify.py next` names, beside documents drawn by chance.

    python -m benchmarks.studies.classifier.next --data_dir DIR --model sentence-transformers/all-MiniLM-L6-v2

From two labels a class, the same in both, to twenty: the accuracy of the classifier's self-trained head on the test
documents. Ten draws of the first labels; intervals hold 95 % over draws (Student). Each set writes its rows, and those
that are there stay.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.studies.adaptation.sets import labelled
from benchmarks.studies.classifier.report import DataSet
from docsplit.classifier import TYPICAL, next_to_label
from docsplit.evaluation.heads.logistic import RowSpace, fit_labelled, probabilities_of
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.runtime.files import read_any_json, versions, write_text

SETS = ("20newsgroups", "docstrings", "banking77", "dbpedia")
DRAWS = 10
STEPS = (2, 4, 6, 8, 10, 14, 20)  # labels a class on average


def curve(data: DataSet, space: RowSpace, test: Any, draw: int, by_chance: bool) -> list[float]:
    """Return the accuracy at each step."""
    split, features = data.split, data.features["words_and_tfidf"][0]
    labels, count = split.train_labels, len(split.class_names)
    generator = np.random.default_rng(draw)
    known = np.concatenate([generator.permutation(np.flatnonzero(labels == of))[:2] for of in range(count)])
    accuracies = []
    for step, following in zip(STEPS, [*STEPS[1:], STEPS[-1]]):
        rest = np.setdiff1d(np.arange(len(labels)), known)
        rows = np.concatenate([known, rest])
        points = space.coordinates[rows]
        (coefficients, intercepts), _ = fit_labelled(points, labels[known], count, np.arange(len(known)))
        accuracies.append(float(((test @ coefficients + intercepts).argmax(axis=1) == split.test_labels).mean()))
        number = min((following - step) * count, len(rest))
        if by_chance:
            chosen = generator.permutation(rest)[:number]
        else:
            probabilities = probabilities_of(points @ coefficients + intercepts, 1, 0, False)
            is_known = np.arange(len(rows)) < len(known)
            few = len(known) < TYPICAL * count
            chosen = rows[next_to_label(features[rows], probabilities, is_known, number, few, draw)]
        known = np.concatenate([known, chosen])
    return accuracies


def measure(name: str, data: DataSet) -> dict[str, Any]:
    """Return the curves of a set, and the difference of their means."""
    train, test = data.features["words_and_tfidf"]
    space = RowSpace.of(train)
    points = space.points(test)
    by_chance, chosen = (
        np.array([curve(data, space, points, draw, chance) for draw in range(DRAWS)]) for chance in (True, False)
    )
    gains = (chosen - by_chance).mean(axis=1)
    half = student.ppf(0.975, DRAWS - 1) * gains.std(ddof=1) / np.sqrt(DRAWS)
    row: dict[str, Any] = {"data": name, "draws": DRAWS, "documents": len(data.split.test_labels), "labels": STEPS}
    row |= {"by_chance": by_chance.mean(axis=0).round(4).tolist(), "next": chosen.mean(axis=0).round(4).tolist()}
    return row | {"gain": {"value": gains.mean(), "low": gains.mean() - half, "high": gains.mean() + half}}


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return a table with two lines a set."""
    lines = []
    for row in rows:
        gain = {key: 100 * value for key, value in row["gain"].items()}
        said = f"{gain['value']:+.1f} ({gain['low']:+.1f} to {gain['high']:+.1f})"
        for key, name in (("by_chance", "by chance"), ("next", "classify.py next")):
            lines.append([row["data"], name, *(f"{100 * value:.1f}" for value in row[key]), said * (key == "next")])
    head = ["", "labelled", *(f"{step} a class" for step in STEPS), "gain in the mean"]
    return f"Accuracy in percent, mean of {DRAWS} draws of the first labels.\n\n{markdown_table(head, lines)}\n"


def main() -> None:
    """Measure the sets that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Callable[..., Any] = parser.add_argument
    add("--data_dir", type=Path, required=True, help="folder with a folder of each set")
    add("--model", required=True, help="the encoder: a SentenceTransformer, here or on the Hub")
    add("--sets", nargs="+", choices=SETS, default=SETS)
    add("--output", type=Path, default=Path("benchmarks/results/classifier_next.json"))
    options = parser.parse_args()
    for name in options.sets:
        rows = read_any_json(options.output)["rows"] if options.output.exists() else []
        if name in {row["data"] for row in rows}:
            continue
        rows.append(measure(name, DataSet(labelled(name, options.data_dir), options.model)))
        lines = ",\n".join(map(json.dumps, rows))
        write_text(options.output, f'{{"versions": {json.dumps(versions())},\n"rows": [\n{lines}\n]}}\n')
        write_text(options.output.with_suffix(".md"), markdown(rows))


if __name__ == "__main__":
    main()
