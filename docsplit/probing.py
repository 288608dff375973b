"""Heads on frozen embeddings: how much can be read out of them, with few labels and with all.

Each document is embedded once; the heads `mlp`, `linear` and `knn` then share the array. All of them are trained once
per `Run`: on each few-shot draw, or with each seed on the whole training part. The runs depend on the labels and a
seed alone, so every encoder, and TF-IDF, is measured on the same ones.
"""

import logging
import time
import warnings
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from joblib import Parallel, delayed
from scipy.sparse import issparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits
from torch import Tensor

from docsplit.labelled import SHOTS, LabelledSplit

logger = logging.getLogger(__name__)

# The DocSplit paper's probe (its first version, section 4 and appendix) ...
LEARNING_RATE = 3e-4
BATCH_SIZE = 8
# ... and what the papers leave open.
DROPOUT = 0.1
VALIDATION_SHARE = 0.1
MAX_EPOCHS = 50
PATIENCE = 3  # epochs without a lower validation loss; the Bregman paper's
FEW_SHOT_EPOCHS = 100  # unit-length embeddings, the slowest, then fit 20 x 5 documents to a cross-entropy of 0.04
CHUNK_ROWS = 1024  # documents of one forward pass without gradient
CHUNK_STEPS = 64  # whose dropout masks are drawn at once

C_GRID = (0.01, 0.1, 1.0, 10.0, 100.0)
C_WITHOUT_FOLDS = 1.0
NUM_FOLDS = 5
MAX_ITERATIONS = 2000
MAX_ROW_SPACE = 2000  # documents of a run, up to which sparse features are rotated into the space that they span

NUM_NEIGHBOURS = 10


@dataclass
class Run:
    """One training of a head: on which training documents, and with which seed."""

    indices: np.ndarray  # (n,)
    seed: int


@dataclass
class HeadOutput:
    """What a head says about the test documents, in each run."""

    scores: np.ndarray  # (R, M, C) float32: class probabilities, or with several labels a probability each
    seconds: float  # of training and prediction, the mean over runs
    trainable_parameters: int


def few_shot_runs(split: LabelledSplit, shots: int, num_draws: int, seed: int = 0) -> list[Run]:
    """One run per few-shot draw; they depend on the labels, the shots and the seed alone."""
    draws = split.draws(shots, num_draws, seed)
    return [Run(indices, seed + number) for number, indices in enumerate(draws)]


def full_runs(split: LabelledSplit, num_seeds: int, seed: int = 0) -> list[Run]:
    """`num_seeds` runs on all training documents."""
    return [Run(np.arange(len(split.train_texts)), seed + number) for number in range(num_seeds)]


def mlp(
    train: np.ndarray,
    labels: np.ndarray,
    runs: list[Run],
    test: np.ndarray,
    num_classes: int,
    few_shot: bool,
    validation: tuple[np.ndarray, np.ndarray] | None = None,
    hidden: int | None = None,
) -> HeadOutput:
    """The DocSplit paper's probe: one hidden layer, ReLU, dropout, Adam, raw features, batches of 8.

    With few shots it is trained for `FEW_SHOT_EPOCHS` on the whole draw, else for at most `MAX_EPOCHS`, and the
    weights of the epoch with the lowest loss on the validation part are used. The loss is the cross-entropy, or with
    several labels the binary one, mean over labels.

    The runs are trained at once as an ensemble of batched matrix products: one on a GPU, one a thread on CPU. Each run
    draws its initial weights, batches and dropout masks from generators of its own seed, so it ends as if trained
    alone, up to rounding.

    Args:
        train: (N, H) float32.
        labels: (N,) class indices, or (N, C) multi-hot.
        test: (M, H) float32.
        validation: features (V, H) and labels for early stopping; without them `VALIDATION_SHARE` of each run's
            training documents is held out, stratified where there is one label a document.
        hidden: width of the hidden layer, by default that of the features.

    Raises:
        ValueError: if arguments do not agree, a class is missing, or features are sparse or not finite.
        FloatingPointError: if the validation loss is not finite.
    """
    _check(train, labels, runs, test, num_classes, validation)
    if issparse(train):
        raise ValueError("The mlp head takes dense features; for sparse ones like TF-IDF use linear or knn.")
    start = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    hidden = hidden or train.shape[1]
    sets = [_held_out(run, labels, few_shot, validation) for run in runs]
    features, targets = _to_device(train, labels, device)
    held_features, held_targets = (features, targets) if validation is None else _to_device(*validation, device)
    test_features = torch.as_tensor(np.asarray(test, dtype=np.float32), device=device)
    groups = defaultdict(list)  # an ensemble takes its steps together, and a step too many would change a run
    for number, (fitted, held) in enumerate(sets):
        groups[-(-len(fitted) // BATCH_SIZE), len(held)].append(number)
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    ensembles = [part for group in groups.values() for part in np.array_split(group, min(threads, len(group)))]

    def scores_of(members: np.ndarray) -> np.ndarray:
        if threads > 1:  # of one such product, threads mostly wait for each other
            torch.set_num_threads(1)
        held_rows = torch.stack([torch.as_tensor(sets[number][1]) for number in members])  # (R, V)
        parameters = _train_ensemble(
            features,
            targets,
            [torch.as_tensor(sets[number][0], device=device) for number in members],
            [runs[number].seed for number in members],
            (held_features, held_targets, held_rows),
            num_classes,
            hidden,
        )
        rows = torch.arange(test.shape[0]).expand(len(members), -1)
        logits = torch.cat([part for part, _ in _chunks(parameters, test_features, rows)], dim=1)  # (R, M, C)
        return (logits.sigmoid() if labels.ndim == 2 else logits.softmax(dim=-1)).cpu().numpy()

    try:
        outputs = Parallel(n_jobs=threads, prefer="threads")(delayed(scores_of)(members) for members in ensembles)
    finally:
        if threads > 1:
            torch.set_num_threads(threads)
    scores = np.empty((len(runs), test.shape[0], num_classes), dtype=np.float32)
    for members, output in zip(ensembles, outputs):
        scores[members] = output
    return HeadOutput(
        scores=scores,
        seconds=(time.perf_counter() - start) / len(runs),
        trainable_parameters=(train.shape[1] + 1) * hidden + (hidden + 1) * num_classes,
    )


def _to_device(features: np.ndarray, labels: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    targets = torch.as_tensor(labels, dtype=torch.float32 if labels.ndim == 2 else torch.int64, device=device)
    return torch.as_tensor(np.asarray(features, dtype=np.float32), device=device), targets


def _held_out(
    run: Run, labels: np.ndarray, few_shot: bool, validation: tuple[np.ndarray, np.ndarray] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Which documents a run is fitted to, and which ones stop it early: of the validation part, if one is given."""
    if few_shot:
        return run.indices, np.array([], dtype=np.int64)
    if validation is not None:
        return run.indices, np.arange(len(validation[1]))
    chosen = labels[run.indices]
    size = max(round(VALIDATION_SHARE * len(chosen)), 1)
    possible = chosen.ndim == 1 and np.bincount(chosen).min() > 1 and len(np.unique(chosen)) <= size
    return tuple(
        train_test_split(
            run.indices, test_size=size, stratify=chosen if possible else None, random_state=run.seed, shuffle=True
        )
    )


def _train_ensemble(
    features: Tensor,
    targets: Tensor,
    fitted: list[Tensor],
    seeds: list[int],
    held: tuple[Tensor, Tensor, Tensor],
    num_classes: int,
    hidden: int,
) -> list[Tensor]:
    """Train runs with equally many batches an epoch; those that stop early leave the ensemble.

    Args:
        features, targets: (N, H) and (N,) or (N, C).
        fitted: for each run, rows of them to train on.
        held: features, targets, and for each run the rows of them, (R, V), to stop on; with V = 0 the number of epochs
            is fixed.

    Returns: weights (R, H, K), biases (R, 1, K), weights (R, K, C), biases (R, 1, C).
    """
    device = features.device
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    initial = [_initial(features.shape[1], hidden, num_classes, generator) for generator in generators]
    parameters = [torch.stack(values).to(device).requires_grad_() for values in zip(*initial)]
    mask_seeds = [int(torch.randint(2**62, (), generator=generator)) for generator in generators]
    masks = [torch.Generator(device).manual_seed(seed) for seed in mask_seeds]
    optimizer = _adam(parameters)
    held_features, held_targets, held_rows = held
    early_stopping = held_rows.shape[1] > 0
    best = [parameter.detach().clone() for parameter in parameters]
    best_loss = torch.full((len(seeds),), torch.inf)
    waited = torch.zeros(len(seeds), dtype=torch.int64)
    active = torch.arange(len(seeds))
    for _ in range(MAX_EPOCHS if early_stopping else FEW_SHOT_EPOCHS):
        orders = torch.stack([_batches(fitted[run], generators[run]) for run in active])  # (R, steps, batch)
        _train_epoch(parameters, optimizer, features, targets, orders, [masks[run] for run in active])
        if not early_stopping:
            continue
        sums = torch.zeros(len(active))
        for logits, rows in _chunks(parameters, held_features, held_rows[active]):
            sums += _losses(logits, held_targets[rows]).sum(dim=1).cpu()
        loss = sums / held_rows.shape[1]
        if not loss.isfinite().all():
            raise FloatingPointError(
                "The mlp head's validation loss is not finite: are the features very large? Standardise them."
            )
        improved = loss < best_loss[active]
        for kept, parameter in zip(best, parameters):
            kept[active[improved].to(device)] = parameter.detach()[improved.to(device)]
        best_loss[active] = torch.minimum(loss, best_loss[active])
        waited[active] = torch.where(improved, 0, waited[active] + 1)
        going_on = waited[active] < PATIENCE
        if not going_on.all():
            active = active[going_on]
            parameters, optimizer = _without(parameters, optimizer, going_on.to(device))
        if not len(active):
            break
    return best if early_stopping else [parameter.detach() for parameter in parameters]


def _initial(width: int, hidden: int, num_classes: int, generator: torch.Generator) -> list[Tensor]:
    """As `nn.Linear` initialises: uniform within 1 / sqrt(inputs)."""
    shapes = [
        ((width, hidden), width),
        ((1, hidden), width),
        ((hidden, num_classes), hidden),
        ((1, num_classes), hidden),
    ]
    return [torch.empty(shape).uniform_(-(size**-0.5), size**-0.5, generator=generator) for shape, size in shapes]


def _adam(parameters: list[Tensor]) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)


def _without(
    parameters: list[Tensor], optimizer: torch.optim.Adam, going_on: Tensor
) -> tuple[list[Tensor], torch.optim.Adam]:
    """Parameters and optimizer of the runs that go on alone."""
    kept = [parameter.detach()[going_on].requires_grad_() for parameter in parameters]
    new = _adam(kept)
    for old_parameter, parameter in zip(parameters, kept):
        state = optimizer.state[old_parameter]
        moments = {name: state[name][going_on] for name in ("exp_avg", "exp_avg_sq")}
        new.state[parameter] = {"step": state["step"], **moments}
    return kept, new


def _batches(fitted: Tensor, generator: torch.Generator) -> Tensor:
    """A permutation cut in batches, (steps, BATCH_SIZE); -1 fills the last one."""
    order = fitted[torch.randperm(len(fitted), generator=generator).to(fitted.device)]
    return F.pad(order, (0, -len(order) % BATCH_SIZE), value=-1).view(-1, BATCH_SIZE)


def _train_epoch(
    parameters: list[Tensor],
    optimizer: torch.optim.Adam,
    features: Tensor,
    targets: Tensor,
    orders: Tensor,
    masks: list[torch.Generator],
) -> None:
    real = orders >= 0  # (R, steps, batch)
    weights = real / real.sum(dim=-1, keepdim=True)
    num_steps, width = orders.shape[1], parameters[0].shape[-1]
    for step in range(num_steps):
        if DROPOUT and step % CHUNK_STEPS == 0:
            shape = (min(CHUNK_STEPS, num_steps - step), BATCH_SIZE, width)
            drawn = [torch.empty(shape, device=features.device).bernoulli_(1 - DROPOUT, generator=g) for g in masks]
            dropout = torch.stack(drawn, dim=1) / (1 - DROPOUT)  # (steps, R, batch, K)
        rows = orders[:, step]  # (R, batch); -1 takes a row whose weight is 0
        logits = _logits(parameters, features[rows], dropout[step % CHUNK_STEPS] if DROPOUT else None)
        # Runs share no parameter, so the gradient of the sum is that of each one's mean.
        loss = (_losses(logits, targets[rows]) * weights[:, step]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _logits(parameters: list[Tensor], features: Tensor, dropout: Tensor | None = None) -> Tensor:
    """(R, n, H) -> (R, n, C)"""
    weights_1, biases_1, weights_2, biases_2 = parameters
    activations = torch.baddbmm(biases_1, features, weights_1).relu()  # (R, n, K)
    if dropout is not None:
        activations = activations * dropout
    return torch.baddbmm(biases_2, activations, weights_2)


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Of each document, (R, n): cross-entropy, or the mean over labels of the binary one."""
    if targets.ndim == 3:
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=-1)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


@torch.no_grad()
def _chunks(parameters: list[Tensor], features: Tensor, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Logits (R, n, C) of the rows (R, n) of the features, and those rows, in parts that bound the memory."""
    parts = [part.to(features.device) for part in rows.split(CHUNK_ROWS, dim=1)]
    return [(_logits(parameters, features[part]), part) for part in parts]


def linear(
    train: Any,
    labels: np.ndarray,
    runs: list[Run],
    test: Any,
    num_classes: int,
    few_shot: bool,
    validation: tuple[Any, np.ndarray] | None = None,
) -> HeadOutput:
    """Logistic regression, C by cross-validation on each run's training documents; several labels: one against rest.

    C is the one of `C_GRID` with the highest accuracy over stratified folds, shuffled by the run's seed; the smallest
    one if several have it. With several labels they share a C, the one with the highest micro-F1 over plain folds. A
    label that all documents of a run have, or none, gets a constant probability. The validation part is not used.

    Args:
        train, test: (N, H) and (M, H), dense or sparse; computed with in float32.

    Raises:
        ValueError: if arguments do not agree, a class is missing, or features are not finite.
    """
    _check(train, labels, runs, test, num_classes, validation)
    start = time.perf_counter()
    train, test = (features.astype(np.float32, copy=False) for features in (train, test))
    parts = [_in_row_space(train[run.indices], test) for run in runs]  # of each run: (n, H) and (M, H)
    folds = [_folds(labels[run.indices], run.seed) for run in runs]
    if unfolded := sum(not run_folds for run_folds in folds):
        logger.warning(
            f"{unfolded} of {len(runs)} runs of the linear head have a class with a single document: C = 1 there, "
            "without cross-validation."
        )
    jobs = [(number, *fold) for number, run_folds in enumerate(folds) for fold in run_folds]
    # One thread a fit, several fits at a time: the matrices are small, and threads of one product that wait for each
    # other are slow on a busy machine, by a factor of 100 on two cores.
    with warnings.catch_warnings(record=True) as caught, threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("always", ConvergenceWarning)
        parallel = Parallel(n_jobs=-1, prefer="threads")
        qualities = parallel(
            delayed(_path)(parts[number][0], labels[runs[number].indices], fitted, held)
            for number, fitted, held in jobs
        )
        by_run: dict[int, list[list[float]]] = defaultdict(list)
        for (number, _, _), quality in zip(jobs, qualities):
            by_run[number].append(quality)
        chosen = [
            C_GRID[int(np.argmax(np.mean(by_run[number], axis=0)))] if by_run[number] else C_WITHOUT_FOLDS
            for number in range(len(runs))
        ]
        scores = parallel(
            delayed(_probabilities)(_classifiers(labels), part[0], labels[run.indices], part[1], c)
            for part, run, c in zip(parts, runs, chosen)
        )
    if failed := sum(issubclass(warning.category, ConvergenceWarning) for warning in caught):
        logger.warning(f"{failed} fits of logistic regression did not converge in {MAX_ITERATIONS} iterations.")
    logger.info(f"C of the linear head's runs: {chosen}")
    return HeadOutput(
        scores=np.stack(scores).astype(np.float32),
        seconds=(time.perf_counter() - start) / len(runs),
        trainable_parameters=(train.shape[1] + 1) * num_classes,
    )


def _in_row_space(train: Any, test: Any) -> tuple[Any, Any]:
    """Sparse features of few documents, (n, V), as coordinates in the space that they span, (n, r) with r <= n.

    The weights of logistic regression with an L2 penalty lie in that space (Kimeldorf and Wahba, 1971), and the
    penalty does not change under rotation: the same probabilities, for a hundredth of the time in few-shot draws.
    """
    if not issparse(train) or not train.nnz or train.shape[0] > min(MAX_ROW_SPACE, train.shape[1]):
        return train, test
    rows = train.astype(np.float64)
    values, vectors = np.linalg.eigh((rows @ rows.T).toarray())
    spanned = values > 1e-9 * values.max()  # equal documents span one dimension
    basis = vectors[:, spanned] / np.sqrt(values[spanned])  # (n, r)
    return tuple(((features @ rows.T) @ basis).astype(np.float32) for features in (rows, test))  # type: ignore[return-value]


def _folds(labels: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and held-out rows of each fold; none if a class, or the whole, has a single document."""
    multi_label = labels.ndim == 2
    num_folds = min(NUM_FOLDS, len(labels) if multi_label else int(np.bincount(labels).min()))
    if num_folds < 2:
        return []
    splitter = (KFold if multi_label else StratifiedKFold)(num_folds, shuffle=True, random_state=seed)
    return list(splitter.split(np.zeros(len(labels)), labels))


def _classifiers(labels: np.ndarray) -> list[LogisticRegression]:
    """One for classes, or one for each label."""
    count = labels.shape[1] if labels.ndim == 2 else 1
    return [LogisticRegression(max_iter=MAX_ITERATIONS, warm_start=True) for _ in range(count)]


def _path(features: Any, labels: np.ndarray, fitted: np.ndarray, held: np.ndarray) -> list[float]:
    """Quality of each C on the held-out rows; each starts from the solution of the one before."""
    classifiers = _classifiers(labels)
    train, train_labels, others = features[fitted], labels[fitted], features[held]
    qualities = []
    for c in C_GRID:
        scores = _probabilities(classifiers, train, train_labels, others, c)
        if labels.ndim == 2:
            qualities.append(f1_score(labels[held], scores >= 0.5, average="micro", zero_division=0.0))
        else:
            qualities.append(float(np.mean(scores.argmax(axis=1) == labels[held])))
    return qualities


def _probabilities(
    classifiers: list[LogisticRegression], features: Any, labels: np.ndarray, others: Any, c: float
) -> np.ndarray:
    """Fit to (n, H) and give the probabilities (m, C) of others (m, H)."""
    if labels.ndim == 1:
        return classifiers[0].set_params(C=c).fit(features, labels).predict_proba(others)
    columns = []
    for classifier, column in zip(classifiers, labels.T):
        if column.min() == column.max():
            columns.append(np.full(others.shape[0], float(column[0])))
        else:
            columns.append(classifier.set_params(C=c).fit(features, column).predict_proba(others)[:, 1])
    return np.stack(columns, axis=1)


def knn(
    train: Any,
    labels: np.ndarray,
    runs: list[Run],
    test: Any,
    num_classes: int,
    few_shot: bool,
    validation: tuple[Any, np.ndarray] | None = None,
) -> HeadOutput:
    """The share of each label among the nearest training documents by cosine: `NUM_NEIGHBOURS`, or fewer.

    Few-shot no more than the smallest class of the draw has documents. Of equal shares the first class wins. With all
    training documents nothing depends on the seed, so there is a single run in the output. The validation part is not
    used.

    Raises:
        ValueError: if arguments do not agree, a class is missing, or features are not finite.
    """
    _check(train, labels, runs, test, num_classes, validation)
    start = time.perf_counter()
    runs = runs if few_shot else runs[:1]
    has_label = labels if labels.ndim == 2 else np.eye(num_classes, dtype=np.int8)[labels]  # (N, C)
    scores = np.empty((len(runs), test.shape[0], num_classes), dtype=np.float32)
    for number, run in enumerate(runs):
        chosen = has_label[run.indices]
        limit = max(int(chosen.sum(axis=0).min()), 1) if few_shot else len(chosen)
        search = NearestNeighbors(n_neighbors=min(NUM_NEIGHBOURS, limit, len(chosen)), metric="cosine")
        neighbours = search.fit(train[run.indices]).kneighbors(test, return_distance=False)  # (M, k)
        scores[number] = chosen[neighbours].mean(axis=1, dtype=np.float32)
    return HeadOutput(scores, (time.perf_counter() - start) / len(runs), trainable_parameters=0)


HEADS = {"mlp": mlp, "linear": linear, "knn": knn}


def _check(
    train: Any,
    labels: np.ndarray,
    runs: list[Run],
    test: Any,
    num_classes: int,
    validation: tuple[Any, np.ndarray] | None,
) -> None:
    """Raise a ValueError that names what does not agree, before any work."""
    parts = [("training", train, labels), ("test", test, None)]
    if validation is not None:
        parts.append(("validation", *validation))
    for name, features, its_labels in parts:
        if features.ndim != 2 or features.shape[1] != train.shape[1] or features.shape[0] == 0:
            raise ValueError(f"The {name} features are {features.shape}, expected (documents, {train.shape[-1]}).")
        finite = np.isfinite(features.data if issparse(features) else features)
        if not finite.all():
            count = int((~finite).sum()) if issparse(features) else int((~finite.all(axis=1)).sum())
            raise ValueError(
                f"{count} of {features.shape[0]} {name} documents have features that are not finite: the encoder "
                "gave NaN or infinity for them. Embed in float32, or leave it out."
            )
        if its_labels is None:
            continue
        if len(its_labels) != features.shape[0] or its_labels.ndim != labels.ndim:
            raise ValueError(f"The {name} labels are {its_labels.shape}, of {features.shape[0]} documents.")
        if its_labels.ndim == 2 and its_labels.shape[1] != num_classes:
            raise ValueError(f"The {name} labels are {its_labels.shape}, expected {num_classes} columns.")
        if its_labels.min() < 0 or its_labels.max() >= (2 if its_labels.ndim == 2 else num_classes):
            kind = "0 or 1" if its_labels.ndim == 2 else f"0 to {num_classes - 1}"
            raise ValueError(f"The {name} labels go from {its_labels.min()} to {its_labels.max()}, expected {kind}.")
    if not runs:
        raise ValueError("A head needs at least one run: ask for one or more draws or seeds.")
    for number, run in enumerate(runs):
        if len(run.indices) == 0:
            raise ValueError(f"Run {number} has no documents: give it some rows of the training part.")
        if run.indices.min() < 0 or run.indices.max() >= len(labels):
            raise ValueError(f"Run {number} has rows outside 0 to {len(labels) - 1}: it belongs to other data.")
        if labels.ndim == 1:
            missing = np.setdiff1d(np.arange(num_classes), labels[run.indices])
            if len(missing):
                raise ValueError(
                    f"Run {number} has no training document of classes {missing.tolist()}: draw from each class, or "
                    "drop those classes."
                )


def standardize(train: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """Shift and scale each feature to mean 0 and standard deviation 1 over the training documents.

    Fitted once on the whole training part, whose labels it does not read, few-shot too: with few documents in a draw
    it would be noise. It rescues encoders whose vectors all point the same way and can change the order of encoders,
    so its rows stand second, and say so. A feature that does not vary becomes 0.
    """
    if issparse(train):
        raise ValueError("Sparse features cannot be standardised: they would become dense. Take them raw.")
    mean = train.mean(axis=0, dtype=np.float64)
    deviation = train.std(axis=0, dtype=np.float64)
    # A constant column has a deviation of rounding errors, hardly ever 0.
    deviation[deviation <= 1e-6 * np.maximum(np.abs(mean), 1e-30)] = np.inf
    return tuple(((features - mean) / deviation).astype(np.float32) for features in (train, *others))


def tfidf_features(train_texts: list[str], *others: list[str]) -> tuple[Any, ...]:
    """The baseline everyone should have to beat: sparse (N, H); the vocabulary is that of the whole training part."""
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    train = vectorizer.fit_transform(train_texts)
    return train, *(vectorizer.transform(texts) for texts in others)


def probe_accuracy(split: LabelledSplit, train: Any, test: Any) -> dict[str, float]:
    """Accuracy of logistic regression on given features: with 5 labels a class (mean over draws) and with all.

    The quick probe beside pretraining: C = 1, no cross-validation. Features are taken as they are: standardising them
    rescues encoders whose vectors all point the same way.

    Args:
        train: (N, H), dense or sparse, the features of `split.train_texts`.
        test: (M, H), the features of `split.test_texts`.
    """
    few = [_accuracy(split, train, test, draw) for draw in split.draws()]
    return {
        f"{SHOTS}shot_accuracy": float(np.mean(few)),
        f"{SHOTS}shot_accuracy_std": float(np.std(few)),
        "accuracy": _accuracy(split, train, test, np.arange(len(split.train_labels))),
    }


def _accuracy(split: LabelledSplit, train: Any, test: Any, chosen: np.ndarray) -> float:
    classifier = LogisticRegression(max_iter=1000)
    classifier.fit(train[chosen], split.train_labels[chosen])
    return float(classifier.score(test, split.test_labels))


def tfidf_accuracy(split: LabelledSplit) -> dict[str, float]:
    """`probe_accuracy` of TF-IDF."""
    return probe_accuracy(split, *tfidf_features(split.train_texts, split.test_texts))
