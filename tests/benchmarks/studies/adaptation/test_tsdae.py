"""TSDAE as a step of a cell: what it deletes, and that it trains the encoder it was given."""

import json
import random

import numpy as np

from benchmarks.studies.adaptation import tsdae
from docsplit.embedding.loading import load_encoder
from tests.conftest import make_corpus


def test_three_fifths_of_the_words_are_deleted_and_one_stays():
    words = [f"w{number}" for number in range(5000)]
    kept = tsdae.noisy(" ".join(words), random.Random(0)).split()
    assert abs(len(kept) / len(words) - 0.4) < 0.02
    assert kept == [word for word in words if word in set(kept)]  # in their order
    assert {tsdae.noisy("alone", random.Random(seed)) for seed in range(20)} == {"alone"}


def test_the_encoder_is_trained_and_keeps_its_modules(run_here, encoder, tmp_path):
    texts = [row["text"] for row in make_corpus(20)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    run_here(
        tsdae.main, "--model", encoder, "--corpus", tmp_path / "corpus.jsonl", "--output_dir", tmp_path / "trained",
        "--steps", 2, "--batch_size", 4, "--learning_rate", 1e-2, "--max_seq_length", 32,
    )  # fmt: skip
    before, after = load_encoder(str(encoder), "mean", 32), load_encoder(str(tmp_path / "trained"), "mean", 32)
    assert [type(module) for module in after] == [type(module) for module in before]
    vectors = [model.encode(texts) for model in (before, after)]
    assert vectors[0].shape == vectors[1].shape
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3
