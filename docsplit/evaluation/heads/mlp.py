"""The papers' probes, an MLP or one layer on frozen embeddings: all runs are trained at once, as batched products.

What a paper's probe is, and how it is trained, is a row of `docsplit.evaluation.heads.presets.PRESETS`.
"""

import time
from collections import defaultdict
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from joblib import Parallel, delayed
from scipy.sparse import issparse
from sklearn.model_selection import train_test_split
from torch import Tensor

from docsplit.evaluation.heads.frozen import HeadOutput, Run, check_head
from docsplit.evaluation.heads.presets import PRESETS, HeadTraining

VALIDATION_SHARE = 0.1
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
    training: HeadTraining | None = None,
) -> HeadOutput:
    """A probe by gradient; by default the DocSplit paper's: one hidden layer, ReLU, dropout, Adam, batches of 8.

    With few shots it is trained for a fixed number of epochs on the whole draw, else until the validation part gets no
    better, and the weights of the best epoch are used: with the lowest loss, or the highest micro-F1 (the accuracy,
    where a document has one label). The loss is the cross-entropy, or with several labels the binary one, mean over
    labels.

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
        training: what the head is and how it is trained. Default: the `mlp` of the preset `docsplit`.

    Raises:
        ValueError: if arguments do not agree, a class is missing, or features are sparse or not finite.
        FloatingPointError: if the validation loss is not finite.
    """
    check_head(train, labels, runs, test, num_classes, validation)
    if issparse(train):
        raise ValueError("The mlp head takes dense features; for sparse ones like TF-IDF use linear or knn.")
    training = training or PRESETS["docsplit"].mlp
    start = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    widths = [train.shape[1], *([hidden or train.shape[1]] if training.hidden_layer else []), num_classes]
    sets = [_held_out(run, labels, few_shot, validation) for run in runs]
    features, targets = _to_device(train, labels, device)
    held_features, held_targets = (features, targets) if validation is None else _to_device(*validation, device)
    test_features = torch.as_tensor(np.asarray(test, dtype=np.float32), device=device)
    groups = defaultdict(list)  # an ensemble takes its steps together, and a step too many would change a run
    for number, (fitted, held) in enumerate(sets):
        groups[-(-len(fitted) // training.batch_size), len(held)].append(number)
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
            widths,
            training,
        )
        rows = torch.arange(test.shape[0]).expand(len(members), -1)
        logits = torch.cat(
            [part for part, _ in _chunks(parameters, test_features, rows, training)], dim=1
        )  # (R, M, C)
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
        trainable_parameters=sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths)),
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
    widths: list[int],
    training: HeadTraining,
) -> list[Tensor]:
    """Train runs with equally many batches an epoch; those that stop early leave the ensemble.

    Args:
        features, targets: (N, H) and (N,) or (N, C).
        fitted: for each run, rows of them to train on.
        held: features, targets, and for each run the rows of them, (R, V), to stop on; with V = 0 the number of epochs
            is fixed.
        widths: of the features, of the hidden layer if there is one, and the number of classes.

    Returns: weights (R, H, K), biases (R, 1, K), weights (R, K, C), biases (R, 1, C); of one layer, two of these.
    """
    device = features.device
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    initial = [_initial(widths, generator) for generator in generators]
    parameters = [torch.stack(values).to(device).requires_grad_() for values in zip(*initial)]
    mask_seeds = [int(torch.randint(2**62, (), generator=generator)) for generator in generators]
    masks = [torch.Generator(device).manual_seed(seed) for seed in mask_seeds]
    optimizer = _optimizer(parameters, training)
    held_features, held_targets, held_rows = held
    early_stopping = held_rows.shape[1] > 0
    best = [parameter.detach().clone() for parameter in parameters]
    best_quality = torch.full((len(seeds),), -torch.inf)
    waited = torch.zeros(len(seeds), dtype=torch.int64)
    active = torch.arange(len(seeds))
    for _ in range(training.max_epochs if early_stopping else training.few_shot_epochs):
        orders = torch.stack([_batches(fitted[run], generators[run], training.batch_size) for run in active])
        _train_epoch(parameters, optimizer, features, targets, orders, [masks[run] for run in active], training)
        if not early_stopping:
            continue
        quality = _quality(parameters, held_features, held_targets, held_rows[active], training)
        improved = quality > best_quality[active]
        for kept, parameter in zip(best, parameters):
            kept[active[improved].to(device)] = parameter.detach()[improved.to(device)]
        best_quality[active] = torch.maximum(quality, best_quality[active])
        waited[active] = torch.where(improved, 0, waited[active] + 1)
        going_on = waited[active] < training.patience
        if not going_on.all():
            active = active[going_on]
            parameters, optimizer = _without(parameters, optimizer, going_on.to(device), training)
        if not len(active):
            break
    return best if early_stopping else [parameter.detach() for parameter in parameters]


def _quality(
    parameters: list[Tensor], features: Tensor, targets: Tensor, held_rows: Tensor, training: HeadTraining
) -> Tensor:
    """Of each run on its held-out rows (R, V), higher is better, (R,): the loss, negative, or the micro-F1.

    Raises:
        FloatingPointError: if the loss is not finite.
    """
    losses, both, either = (torch.zeros(len(held_rows)) for _ in range(3))
    for logits, rows in _chunks(parameters, features, held_rows, training):
        true = targets[rows]
        losses += _losses(logits, true).sum(dim=1).cpu()
        if true.ndim == 3:
            predicted = logits >= 0
            both += 2 * (predicted * true).sum(dim=(1, 2)).cpu()
            either += (predicted + true).sum(dim=(1, 2)).cpu()
        else:
            both += (logits.argmax(dim=-1) == true).sum(dim=1).cpu()
            either += rows.shape[1]
    if not losses.isfinite().all():
        raise FloatingPointError(
            "The mlp head's validation loss is not finite: are the features very large? Scale them down."
        )
    return -losses / held_rows.shape[1] if training.monitor == "loss" else both / either.clamp(min=1)


def _initial(widths: list[int], generator: torch.Generator) -> list[Tensor]:
    """Weights and biases of each layer, as `nn.Linear` initialises: uniform within 1 / sqrt(inputs)."""
    shapes = [(shape, inputs) for inputs, outputs in pairwise(widths) for shape in ((inputs, outputs), (1, outputs))]
    return [torch.empty(shape).uniform_(-(size**-0.5), size**-0.5, generator=generator) for shape, size in shapes]


def _optimizer(parameters: list[Tensor], training: HeadTraining) -> torch.optim.Adam:
    if training.weight_decay:
        decay = training.weight_decay
        return torch.optim.AdamW(parameters, lr=training.learning_rate, weight_decay=decay, fused=True)
    return torch.optim.Adam(parameters, lr=training.learning_rate, fused=True)


def _without(
    parameters: list[Tensor], optimizer: torch.optim.Adam, going_on: Tensor, training: HeadTraining
) -> tuple[list[Tensor], torch.optim.Adam]:
    """Parameters and optimizer of the runs that go on alone."""
    kept = [parameter.detach()[going_on].requires_grad_() for parameter in parameters]
    new = _optimizer(kept, training)
    for old_parameter, parameter in zip(parameters, kept):
        state = optimizer.state[old_parameter]
        moments = {name: state[name][going_on] for name in ("exp_avg", "exp_avg_sq")}
        new.state[parameter] = {"step": state["step"], **moments}
    return kept, new


def _batches(fitted: Tensor, generator: torch.Generator, size: int) -> Tensor:
    """A permutation cut in batches, (steps, size); -1 fills the last one."""
    order = fitted[torch.randperm(len(fitted), generator=generator).to(fitted.device)]
    return F.pad(order, (0, -len(order) % size), value=-1).view(-1, size)


def _train_epoch(
    parameters: list[Tensor],
    optimizer: torch.optim.Adam,
    features: Tensor,
    targets: Tensor,
    orders: Tensor,
    masks: list[torch.Generator],
    training: HeadTraining,
) -> None:
    real = orders >= 0  # (R, steps, batch)
    weights = real / real.sum(dim=-1, keepdim=True)
    num_steps = orders.shape[1]
    dropouts: list[Tensor] = []  # (steps, R, batch, width) each, of the inputs of each layer
    for step in range(num_steps):
        if step % CHUNK_STEPS == 0:
            size = min(CHUNK_STEPS, num_steps - step)
            dropouts = [
                _dropout(rate, (size, training.batch_size, weight.shape[1]), masks)
                for rate, weight in zip(_rates(training), parameters[::2])
            ]
        rows = orders[:, step]  # (R, batch); -1 takes a row whose weight is 0
        logits = _logits(parameters, features[rows], training, [part[step % CHUNK_STEPS] for part in dropouts])
        # Runs share no parameter, so the gradient of the sum is that of each one's mean.
        loss = (_losses(logits, targets[rows]) * weights[:, step]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _rates(training: HeadTraining) -> list[float]:
    """Dropout of the inputs of each layer."""
    return [training.input_dropout, training.dropout] if training.hidden_layer else [training.input_dropout]


def _dropout(rate: float, shape: tuple[int, int, int], masks: list[torch.Generator]) -> Tensor:
    """Factors of a chunk of steps, (steps, R, batch, width), each run's of its own generator; (steps,) ones for 0."""
    if not rate:
        return torch.ones(shape[0], device=masks[0].device)
    drawn = [torch.empty(shape, device=mask.device).bernoulli_(1 - rate, generator=mask) for mask in masks]
    return torch.stack(drawn, dim=1) / (1 - rate)


def _logits(
    parameters: list[Tensor], features: Tensor, training: HeadTraining, dropouts: list[Tensor] | None = None
) -> Tensor:
    """(R, n, H) -> (R, n, C)"""
    values = features
    for layer in range(0, len(parameters), 2):
        if layer:
            values = values.relu() if training.activation == "relu" else values.tanh()  # (R, n, K)
        if dropouts is not None and _rates(training)[layer // 2]:
            values = values * dropouts[layer // 2]
        values = torch.baddbmm(parameters[layer + 1], values, parameters[layer])
    return values


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Of each document, (R, n): cross-entropy, or the mean over labels of the binary one."""
    if targets.ndim == 3:
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=-1)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


@torch.no_grad()
def _chunks(
    parameters: list[Tensor], features: Tensor, rows: Tensor, training: HeadTraining
) -> list[tuple[Tensor, Tensor]]:
    """Logits (R, n, C) of the rows (R, n) of the features, and those rows, in parts that bound the memory."""
    parts = [part.to(features.device) for part in rows.split(CHUNK_ROWS, dim=1)]
    return [(_logits(parameters, features[part], training), part) for part in parts]
