"""Documents, draws, quickly trained presets and an encoder for the tests of heads."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads.base import Run
from docsplit.evaluation.heads.presets import PRESETS
from tests.conftest import make_corpus
from tests.evaluation.heads.examples import clusters


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
    return [Run(np.r_[0:3, 3 + rng.permutation(57)[: size - 3]], seed + 7) for seed, size in enumerate(sizes)]


@pytest.fixture
def split():
    rows = make_corpus(150)
    names = sorted({row["label"] for row in rows})
    texts, labels = [row["text"] for row in rows], np.array([names.index(row["label"]) for row in rows])
    return LabelledSplit(texts[:120], labels[:120], texts[120:], labels[120:], names)


@pytest.fixture
def checkpoint(tiny_model, wordpiece, tmp_path):
    directory = tmp_path / "encoder"
    tiny_model.save_pretrained(directory)
    wordpiece.save_pretrained(directory)
    return directory


@pytest.fixture
def load(checkpoint):
    return lambda: SentenceTransformer(str(checkpoint), device="cpu")
