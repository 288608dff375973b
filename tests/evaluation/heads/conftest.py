"""Documents, draws, quickly trained presets and an encoder for the tests of heads."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from docsplit.evaluation.heads.base import HeadRun
from docsplit.evaluation.heads.presets import PRESETS
from tests.evaluation.heads.examples import clusters, make_split


@pytest.fixture(autouse=True)
def _one_thread():
    """The MLP cuts its ensembles by threads, whose number a test before may have changed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def change_mlp(monkeypatch):
    """Changes how the default preset trains its MLP."""

    def change(**values):
        preset = PRESETS["docsplit"]
        monkeypatch.setitem(PRESETS, "docsplit", replace(preset, mlp=replace(preset.mlp, **values)))

    return change


@pytest.fixture(autouse=True)
def _few_epochs(change_mlp):
    change_mlp(few_shot_epochs=30)


@pytest.fixture
def train():
    return clusters(60)


@pytest.fixture
def test():
    return clusters(30, seed=1)


@pytest.fixture
def draws():
    rng = np.random.default_rng(0)
    sizes = (10, 12, 17, 31, 60)  # the first two have as many batches, full and partial ones
    return [HeadRun(np.r_[0:3, 3 + rng.permutation(57)[: size - 3]], seed + 7) for seed, size in enumerate(sizes)]


@pytest.fixture
def split():
    return make_split(train=120, test=30)


@pytest.fixture
def load(encoder):
    return lambda: SentenceTransformer(str(encoder), device="cpu")
