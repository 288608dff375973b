"""The numbers that are logged beside the loss."""

import math

import pytest
import torch
from transformers import TrainerControl, TrainerState, TrainingArguments

from docsplit.data.collators import DocSplitCollator
from docsplit.evaluation.analysis import embedding_geometry
from docsplit.training.callbacks import EpochCallback


def test_geometry_against_a_loop():
    embeddings = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(0))
    unit = embeddings / embeddings.norm(dim=-1, keepdim=True)
    positives, negatives, distances, potentials = [], [], [], []
    for i in range(5):
        for j in range(5):
            cosine = float(unit[i, 0] @ unit[j, 1])
            distance = float((unit[i, 0] - unit[j, 1]).square().sum())
            (positives if i == j else negatives).append(cosine)
            (distances if i == j else potentials).append(distance if i == j else math.exp(-2 * distance))
    ours = {name: float(value) for name, value in embedding_geometry(embeddings).items()}
    assert ours["positive_cosine"] == pytest.approx(sum(positives) / 5, abs=1e-6)
    assert ours["negative_cosine"] == pytest.approx(sum(negatives) / 20, abs=1e-6)
    assert ours["alignment"] == pytest.approx(sum(distances) / 5, abs=1e-5)
    assert ours["uniformity"] == pytest.approx(math.log(sum(potentials) / 20), abs=1e-5)


@pytest.mark.parametrize(("epoch", "expected"), [(0, 0), (0.5, 0), (1.0, 1), (2.97, 2), (None, 0)])
def test_the_epoch_reaches_the_collator(wordpiece, tmp_path, epoch, expected):
    collator = DocSplitCollator(wordpiece)
    collator.epoch.value = 7
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    EpochCallback(collator).on_epoch_begin(args, TrainerState(epoch=epoch), TrainerControl())
    assert collator.epoch.value == expected
