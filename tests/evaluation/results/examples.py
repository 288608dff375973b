"""Results that tests of this folder share: heads whose scores are noise plus a known signal."""

import numpy as np

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads.base import HeadOutput
from docsplit.evaluation.results.bootstrap import ItemScores, interval, resample
from docsplit.evaluation.results.report import comparisons, records, rows
from docsplit.evaluation.results.result import (
    CLASSIFICATION,
    LINKS,
    MULTI_LABEL_CLASSIFICATION,
    classification_result,
    link_result,
    merge_seeds,
)

CLASSES = ["kitchen", "harbour", "orchard"]
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 90)
SEVERAL = (RNG.random((90, 3)) < [0.5, 0.3, 0]).astype(np.int8)  # nobody has the last label
LINKED = RNG.permutation(np.repeat([0, 1], 45))


TASKS = {"single": CLASSIFICATION, "multi": MULTI_LABEL_CLASSIFICATION, "links": LINKS}


def make_scores(signal, kind="single", num_runs=3, seed=0):
    """(R, M, C): noise plus `signal` for the right answer; probabilities for labels and links."""
    true = {"single": np.eye(3)[LABELS], "multi": SEVERAL, "links": LINKED[:, None]}[kind]
    scores = signal * (true - 0.5) + np.random.default_rng(seed).standard_normal((num_runs, *true.shape))
    scores = 1 / (1 + np.exp(-scores))
    if kind == "multi":
        scores[:, :, 2] = 0.1
    return scores.astype(np.float32)


def make_split(kind, class_names=CLASSES):
    labels = {"single": LABELS, "multi": SEVERAL}[kind]
    texts = [""] * len(labels)
    return LabelledSplit(texts, labels, texts, labels, class_names)


def make_result(
    encoder, signal, kind="single", head="linear", shots=None, num_runs=3, seed=0, class_names=CLASSES, **info
):
    output = HeadOutput(make_scores(signal, kind, num_runs, seed), 1.5, 100)
    is_baseline = encoder == head
    about = {"encoder": encoder, "head": head, "shots": shots, "info": {"pooling": "mean"} | info}
    about |= {"is_baseline": is_baseline, "pretraining_seeds": None if is_baseline else 1}
    about["trains_encoder"] = head == "finetune"
    if kind == "links":
        return link_result(output, LINKED, **about)
    return classification_result(output, make_split(kind, class_names), **about)


def make_group(name, members, signal, kind="single", head="linear", seed=0, **others):
    """One head on the encoders of several pretraining seeds, as one result."""
    results = [make_result(member, signal, kind, head, seed=seed + i, **others) for i, member in enumerate(members)]
    return merge_seeds(name, members, results), results


def interval_of(correct):
    correct = correct.astype(np.float32)
    return interval(*resample([ItemScores(correct, np.ones_like(correct))]))


def json_rows(results):
    """The rows of results.json."""
    return records(rows(results))


def json_comparisons(results):
    """The comparisons of results.json."""
    return records(comparisons(results))
