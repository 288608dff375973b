"""Does the classifier name the labels that are wrong? Labels are exchanged; beside it cleanlab, on the same folds.

    pip install cleanlab
    python -m benchmarks.studies.classifier.wrong_labels --data_dir DIR --model sentence-transformers/all-MiniLM-L6-v2

Of 1,000 documents 5 % get the label of another class, in three draws. Precision: the share of exchanged labels among
as many labels as were exchanged, the surest first. Labels that were wrong before count as mistakes of both.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.adaptation.sets import labelled
from benchmarks.studies.classifier.report import DataSet
from docsplit.classifier import DOUBTFUL, FOLDS
from docsplit.data.copies import near_copy_groups
from docsplit.data.sets.labelled import folds_of, stratified_sample
from docsplit.evaluation.heads.logistic import RowSpace, held_out
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.runtime.files import versions, write_text

SETS = ("20newsgroups", "docstrings", "dbpedia")
DRAWS, DOCUMENTS, SHARE = 3, 1000, 0.05


def measure(data: DataSet, draw: int) -> dict[str, float]:
    """Return what both find in a draw."""
    from cleanlab.filter import find_label_issues

    split, count = data.split, len(data.split.class_names)
    generator = np.random.default_rng(draw)
    rows = stratified_sample(split.train_labels, DOCUMENTS, draw)
    labels = split.train_labels[rows].copy()
    exchanged = generator.choice(len(rows), round(SHARE * len(rows)), replace=False)
    labels[exchanged] = (labels[exchanged] + generator.integers(1, count, len(exchanged))) % count
    groups = near_copy_groups([split.train_texts[row] for row in rows])
    points = RowSpace.of(data.features["words_and_tfidf"][0][rows]).coordinates
    held = held_out(points, labels, count, list(folds_of(labels, groups, FOLDS, 0)))
    probabilities = held.calibrated()
    is_exchanged = np.isin(held.rows, exchanged)
    odds = probabilities[np.arange(len(held.targets)), held.targets] / probabilities.max(axis=1)
    ours, named = np.argsort(odds, kind="stable"), odds < 1 / DOUBTFUL
    theirs = find_label_issues(held.targets, probabilities, return_indices_ranked_by="self_confidence")
    number = int(is_exchanged.sum())
    return {
        "exchanged": number,
        "precision": float(is_exchanged[ours[:number]].mean()),
        "named": int(named.sum()),
        "found": float(is_exchanged[named].sum() / number),
        "cleanlab_precision": float(is_exchanged[theirs[:number]].mean()),
        "cleanlab_named": len(theirs),
        "cleanlab_found": float(is_exchanged[theirs].sum() / number),
    }


def main() -> None:
    """Measure all sets, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Callable[..., Any] = parser.add_argument
    add("--data_dir", type=Path, required=True, help="folder with a folder of each set")
    add("--model", required=True, help="the encoder: a SentenceTransformer, here or on the Hub")
    add("--output", type=Path, default=Path("benchmarks/results/classifier_wrong_labels.json"))
    options = parser.parse_args()
    rows, lines = [], []
    for name in SETS:
        data = DataSet(labelled(name, options.data_dir), options.model)
        draws = [measure(data, draw) for draw in range(DRAWS)]
        rows.append({"data": name, "draws": draws})
        means = {key: np.mean([draw[key] for draw in draws]) for key in draws[0]}
        for prefix, of in (("", "classify.py"), ("cleanlab_", "cleanlab")):
            shares = [f"{100 * means[prefix + key]:.0f} %" for key in ("precision", "found")]
            lines.append(
                [name, of, f"{means['exchanged']:.0f}", shares[0], f"{means[prefix + 'named']:.0f}", shares[1]]
            )
    written = ",\n".join(map(json.dumps, rows))
    write_text(options.output, f'{{"versions": {json.dumps(versions())},\n"rows": [\n{written}\n]}}\n')
    head = ["", "", "exchanged", "of as many, the surest first", "named", "of the exchanged ones"]
    text = f"Labels of {DOCUMENTS:,} documents, {100 * SHARE:.0f} % exchanged; mean of {DRAWS} draws.\n\n"
    write_text(options.output.with_suffix(".md"), f"{text}{markdown_table(head, lines)}\n")


if __name__ == "__main__":
    main()
