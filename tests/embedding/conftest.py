"""Fixtures of the tests of embedding."""

import pytest
import torch

from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, tiny_config


@pytest.fixture
def texts():
    return [row["text"] for row in make_corpus(30)] + ["", "ship", "\ud800 storm"]


@pytest.fixture
def checkpoint(tokenizer, tmp_path):
    """A checkpoint of this project, which is a SentenceTransformer directory."""
    torch.manual_seed(0)
    model = DocSplitForContrastivePretraining(tiny_config(tokenizer), pooling="mean", max_seq_length=40)
    model.save_pretrained(tmp_path / "checkpoint")
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"
