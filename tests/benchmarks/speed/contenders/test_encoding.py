"""Contenders of encoding give the vectors of single documents, in the order of the texts."""

import numpy as np
import pytest

from benchmarks.speed.contenders.table import CONTENDERS
from docsplit.data import corpora


@pytest.mark.parametrize("name", ["docsplit_encode", "st_encode"])
def test_vectors_are_those_of_single_documents(job, corpus, monkeypatch, name):
    """Padding and sorting by length change nothing."""
    monkeypatch.setattr(corpora, "load_corpus", lambda name: corpus)
    contender = CONTENDERS[name](job)
    texts = contender.texts(0)[:12]
    together = contender.encode(texts)
    alone = np.concatenate([contender.encode([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert np.ptp(alone, axis=0).max() > 0.01  # equal vectors would prove nothing
    assert contender.texts(0) != contender.texts(1)


def test_a_round_is_measured_in_tokens_without_padding(job, corpus, monkeypatch):
    monkeypatch.setattr(corpora, "load_corpus", lambda name: corpus)
    contender = CONTENDERS["docsplit_encode"](job)
    monkeypatch.setattr("benchmarks.speed.contenders.encoding.seconds_of", lambda *call: 2.0)
    counted = sum(len(contender.tokenizer(text)["input_ids"]) for text in contender.texts(0))
    assert contender.measure(0)["tokens_per_second"] == counted / 2
