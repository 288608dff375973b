"""The papers' probes, an MLP or one layer on frozen embeddings: all runs are trained at once, as batched products.

What a paper's probe is, and how it is trained, is a row of `docsplit.evaluation.heads.presets.PRESETS`.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from joblib import Parallel, delayed
from scipy.sparse import issparse
from sklearn.model_selection import train_test_split
from torch import Tensor

from docsplit.evaluation.heads.base import HeadInput, HeadOutput, HeadRun
from docsplit.evaluation.heads.presets import PRESETS, HeadTraining

VALIDATION_SHARE = 0.1
CHUNK_ROWS = 1024  # documents of one forward pass without gradient
CHUNK_STEPS = 64  # whose dropout masks are drawn at once


def mlp(data: HeadInput, hidden: int | None = None, training: HeadTraining | None = None) -> HeadOutput:
    """Train a probe by gradient; by default the DocSplit paper's: one hidden layer, ReLU, dropout, Adam, batches of 8.

    With few shots it is trained for a fixed number of epochs on the whole draw, else until the validation part gets no
    better, and the weights of the best epoch are used: with the lowest loss, or the highest micro-F1 (the accuracy,
    where a document has one label). Without a validation part `VALIDATION_SHARE` of each run's training documents is
    held out, stratified where there is one label a document. The loss is the cross-entropy, or with several labels the
    binary one, mean over labels.

    The runs are trained at once as an ensemble of batched matrix products: one on a GPU, one a thread on CPU. Each run
    draws its initial weights, batches and dropout masks from generators of its own seed, so it ends as if trained
    alone, up to rounding.

    Args:
        hidden: width of the hidden layer, by default that of the features.
        training: what the head is and how it is trained. Default: the `mlp` of the preset `docsplit`.

    Raises:
        ValueError: if features are sparse.
        FloatingPointError: if the validation loss is not finite.
    """
    if issparse(data.train):
        raise ValueError("The mlp head takes dense features; for sparse ones like TF-IDF use linear or knn.")
    training = training or PRESETS["docsplit"].mlp
    start = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    width = data.train.shape[1]
    widths = [width, *([hidden or width] if training.hidden_layer else []), data.num_classes]

    def on_device(features: np.ndarray, labels: np.ndarray) -> _Documents:
        targets = torch.as_tensor(labels, dtype=torch.float32 if labels.ndim == 2 else torch.int64, device=device)
        return torch.as_tensor(np.asarray(features, dtype=np.float32), device=device), targets

    # Move the documents to the device, and say which of them each run reads
    train = on_device(data.train, data.labels)
    held = train if data.validation is None else on_device(*data.validation)
    test_features = torch.as_tensor(np.asarray(data.test, dtype=np.float32), device=device)
    members = [_Member(run.seed, *_held_out(run, data)) for run in data.runs]
    # Those that are trained together take equally many batches an epoch: a step too many would change a run
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    groups = defaultdict(list)
    for number, member in enumerate(members):
        groups[-(-len(member.fitted) // training.batch_size), len(member.held)].append(number)
    ensembles = [part for group in groups.values() for part in np.array_split(group, min(threads, len(group)))]

    def scores_of(numbers: np.ndarray) -> np.ndarray:
        if threads > 1:  # of one such product, threads mostly wait for each other
            torch.set_num_threads(1)
        parameters = _train_ensemble([members[number] for number in numbers], train, held, widths, training)
        rows = torch.arange(data.test.shape[0]).expand(len(numbers), -1)
        chunks = [part for part, _ in _chunks(parameters, test_features, rows, training)]
        logits = torch.cat(chunks, dim=1)  # (R, M, C)
        return (logits.sigmoid() if data.multi_label else logits.softmax(dim=-1)).cpu().numpy()

    # Train the ensembles, each in a thread, and put their scores in the order of the runs
    try:
        outputs = Parallel(n_jobs=threads, prefer="threads")(delayed(scores_of)(numbers) for numbers in ensembles)
    finally:
        if threads > 1:
            torch.set_num_threads(threads)
    scores = np.concatenate(outputs)[np.argsort(np.concatenate(ensembles))]
    trainable = sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))
    return HeadOutput(scores, (time.perf_counter() - start) / len(members), trainable)


_Documents = tuple[Tensor, Tensor]  # features (N, H) and targets, (N,) or (N, C), on the device


class _Member(NamedTuple):
    """One run of an ensemble: its seed, and the rows that it is fitted to and stops early on."""

    seed: int
    fitted: np.ndarray  # (n,) rows of the training documents
    held: np.ndarray  # (V,) rows of the documents to stop on; none: the number of epochs is fixed


def _held_out(run: HeadRun, data: HeadInput) -> Sequence[np.ndarray]:
    """Choose the documents that a run is fitted to, and those that stop it early: the validation part, if given."""
    if data.few_shot:
        return run.indices, np.array([], dtype=np.int64)
    if data.validation is not None:
        return run.indices, np.arange(len(data.validation[1]))
    chosen = data.labels[run.indices]
    size = max(round(VALIDATION_SHARE * len(chosen)), 1)
    possible = chosen.ndim == 1 and np.bincount(chosen).min() > 1 and len(np.unique(chosen)) <= size
    return train_test_split(run.indices, test_size=size, stratify=chosen if possible else None, random_state=run.seed)


def _train_ensemble(
    members: Sequence[_Member], train: _Documents, held: _Documents, widths: list[int], training: HeadTraining
) -> list[Tensor]:
    """Train runs with equally many batches an epoch; one that has stopped takes further steps, which do not count.

    Args:
        held: the documents that runs stop early on; the training documents, where these are among them.
        widths: of the features, of the hidden layer if there is one, and the number of classes.

    Returns: weights (R, H, K), biases (R, 1, K), weights (R, K, C), biases (R, 1, C); or two of these.
    """
    device = train[0].device
    # Draw the initial weights, and prepare each run's batches and dropout masks
    generators = [torch.Generator().manual_seed(member.seed) for member in members]
    initial = [_initial(widths, generator) for generator in generators]
    parameters = [torch.stack(values).to(device).requires_grad_() for values in zip(*initial)]
    decay = training.weight_decay  # 0: AdamW is Adam
    optimizer = torch.optim.AdamW(parameters, lr=training.learning_rate, weight_decay=decay, fused=True)
    mask_seeds = [int(torch.randint(2**62, (), generator=generator)) for generator in generators]
    masks = [torch.Generator(device).manual_seed(seed) for seed in mask_seeds]
    fitted = [torch.as_tensor(member.fitted, device=device) for member in members]
    held_rows = torch.stack([torch.as_tensor(member.held) for member in members])  # (R, V)
    early_stopping = held_rows.shape[1] > 0
    # Train epoch by epoch, and keep each run's best weights
    best = [parameter.detach().clone() for parameter in parameters]
    best_quality = torch.full((len(members),), -torch.inf)
    waited = torch.zeros(len(members), dtype=torch.int64)
    size = training.batch_size
    for _ in range(training.max_epochs if early_stopping else training.few_shot_epochs):
        orders = []  # of each run a permutation cut in batches, (steps, size); -1 fills the last one
        for rows, generator in zip(fitted, generators):
            order = rows[torch.randperm(len(rows), generator=generator).to(device)]
            orders.append(F.pad(order, (0, -len(order) % size), value=-1).view(-1, size))
        _train_epoch(parameters, optimizer, train, torch.stack(orders), masks, training)
        if not early_stopping:
            continue
        quality = _quality(parameters, held, held_rows, training)
        improved = (quality > best_quality) & (waited < training.patience)
        for kept, parameter in zip(best, parameters):
            kept[improved.to(device)] = parameter.detach()[improved.to(device)]
        best_quality = torch.where(improved, quality, best_quality)
        waited = torch.where(improved, 0, waited + 1)
        if (waited >= training.patience).all():
            break
    return best if early_stopping else [parameter.detach() for parameter in parameters]


def _quality(parameters: list[Tensor], held: _Documents, held_rows: Tensor, training: HeadTraining) -> Tensor:
    """Measure each run on its held-out rows (R, V), higher is better, (R,): the loss, negative, or the micro-F1.

    Raises:
        FloatingPointError: if the loss is not finite.
    """
    features, targets = held
    losses, both, either = torch.zeros(3, len(held_rows))
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
        raise FloatingPointError("The mlp head's validation loss is not finite: are the features very large?")
    return -losses / held_rows.shape[1] if training.monitor == "loss" else both / either.clamp(min=1)


def _initial(widths: list[int], generator: torch.Generator) -> list[Tensor]:
    """Draw weights and biases of each layer as `nn.Linear` initialises: uniform within 1 / sqrt(inputs)."""
    shapes = [(shape, inputs) for inputs, outputs in pairwise(widths) for shape in ((inputs, outputs), (1, outputs))]
    return [torch.empty(shape).uniform_(-(size**-0.5), size**-0.5, generator=generator) for shape, size in shapes]


def _train_epoch(
    parameters: list[Tensor], optimizer: torch.optim.Optimizer, train: _Documents, orders: Tensor,
    masks: list[torch.Generator], training: HeadTraining,
) -> None:  # fmt: skip
    """Take one step for each batch of `orders`, (R, steps, batch), rows of the training documents; -1 is none."""
    features, targets = train
    real = orders >= 0  # (R, steps, batch)
    weights = real / real.sum(dim=-1, keepdim=True)
    num_steps = orders.shape[1]
    dropouts: list[Tensor] = []  # (steps, R, batch, width) each, of the inputs of each layer
    for step in range(num_steps):
        if step % CHUNK_STEPS == 0:
            size = min(CHUNK_STEPS, num_steps - step)
            shapes = [(size, training.batch_size, weight.shape[1]) for weight in parameters[::2]]
            dropouts = [_dropout(rate, shape, masks) for rate, shape in zip(_rates(training), shapes)]
        rows = orders[:, step]  # (R, batch); -1 takes a row whose weight is 0
        logits = _logits(parameters, features[rows], training, [part[step % CHUNK_STEPS] for part in dropouts])
        # Runs share no parameter, so the gradient of the sum is that of each one's mean.
        loss = (_losses(logits, targets[rows]) * weights[:, step]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _rates(training: HeadTraining) -> list[float]:
    """Return the dropout rate of the inputs of each layer."""
    return [training.input_dropout, training.dropout] if training.hidden_layer else [training.input_dropout]


def _dropout(rate: float, shape: tuple[int, int, int], masks: list[torch.Generator]) -> Tensor:
    """Draw the factors of a chunk of steps, (steps, R, batch, width), by each run's generator; for rate 0 ones."""
    if not rate:
        return torch.ones(shape[0], device=masks[0].device)
    drawn = [torch.empty(shape, device=mask.device).bernoulli_(1 - rate, generator=mask) for mask in masks]
    return torch.stack(drawn, dim=1) / (1 - rate)


def _logits(
    parameters: list[Tensor], features: Tensor, training: HeadTraining, dropouts: list[Tensor] | None = None
) -> Tensor:
    """Apply the layers: (R, n, H) -> (R, n, C)."""
    values = features
    for layer in range(0, len(parameters), 2):
        if layer:
            values = values.relu() if training.activation == "relu" else values.tanh()  # (R, n, K)
        if dropouts is not None and _rates(training)[layer // 2]:
            values = values * dropouts[layer // 2]
        values = torch.baddbmm(parameters[layer + 1], values, parameters[layer])
    return values


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each document, (R, n): cross-entropy, or the mean over labels of the binary one."""
    if targets.ndim == 3:
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=-1)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


@torch.no_grad()
def _chunks(
    parameters: list[Tensor], features: Tensor, rows: Tensor, training: HeadTraining
) -> list[tuple[Tensor, Tensor]]:
    """Return logits (R, n, C) of the rows (R, n) of the features, and those rows, in parts that bound the memory."""
    parts = [part.to(features.device) for part in rows.split(CHUNK_ROWS, dim=1)]
    return [(_logits(parameters, features[part], training), part) for part in parts]
