"""The benchmark of probing times every head beside the embedding. No time is asserted."""

import json

import pytest
import torch
from transformers import BertModel

from benchmarks.speed import probing
from docsplit.embedding.loading import load_encoder
from docsplit.evaluation.heads.table import HEADS
from tests.conftest import make_corpus, tiny_config


def test_every_head_has_its_seconds(run_here, monkeypatch, wordpiece, tmp_path, capsys):
    def encoder_of(layers, tokenizer, folder, max_seq_length):
        torch.manual_seed(0)
        BertModel(tiny_config(wordpiece, num_hidden_layers=layers)).save_pretrained(folder / str(layers))
        wordpiece.save_pretrained(folder / str(layers))
        return load_encoder(str(folder / str(layers)), pooling="mean", max_seq_length=max_seq_length)

    monkeypatch.setattr(probing, "encoder_of", encoder_of)
    wordpiece.save_pretrained(tmp_path / "tokenizer")
    for part, seed in (("train", 3), ("test", 4)):
        (tmp_path / f"{part}.jsonl").write_text("\n".join(map(json.dumps, make_corpus(60, seed))) + "\n")
    run_here(
        probing.main, "--train_file", tmp_path / "train.jsonl", "--test_file", tmp_path / "test.jsonl",
        "--tokenizer_name", tmp_path / "tokenizer", "--layers", 2, "--max_seq_length", 64, "--sample", 8,
        "--rounds", 1, "--shots", 2, "--output", tmp_path / "probing.json",
    )  # fmt: skip
    results = json.loads((tmp_path / "probing.json").read_text())
    settings = ("2 shots, 10 draws", "all labels, 3 seeds")
    assert results["head_seconds"].keys() == {f"{head}, {setting}" for head in HEADS for setting in settings}
    assert results["sample_documents"] == 8
    assert results["documents"] == pytest.approx(120, abs=2)
    assert results["heads_to_embedding"] > 0
    assert "all heads" in capsys.readouterr().out
