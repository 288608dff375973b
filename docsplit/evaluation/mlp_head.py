"""The papers' probe, an MLP on frozen embeddings: all its runs are trained at once, as batched matrix products."""

import time
from collections import defaultdict

import numpy as np
import torch
import torch.nn.functional as F
from joblib import Parallel, delayed
from scipy.sparse import issparse
from sklearn.model_selection import train_test_split
from torch import Tensor

from docsplit.evaluation.heads import HeadOutput, Run, check_head

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
    check_head(train, labels, runs, test, num_classes, validation)
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
