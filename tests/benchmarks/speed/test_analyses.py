"""The benchmark of the analyses runs every one of them, and says what they cost. No time is asserted."""

import json

import pytest
import torch
from transformers import BertModel

from benchmarks.speed import analyses
from docsplit.embedding.loading import load_encoder
from docsplit.evaluation.analysis import similarity
from docsplit.evaluation.analysis.arguments import ANALYSES
from tests.conftest import make_corpus, tiny_config


def test_every_analysis_has_its_seconds(run_here, monkeypatch, spacy_pipeline, wordpiece, tmp_path, capsys):
    def encoder_of(layers, tokenizer, folder, max_seq_length):
        torch.manual_seed(0)
        BertModel(tiny_config(wordpiece, num_hidden_layers=layers)).save_pretrained(folder / str(layers))
        wordpiece.save_pretrained(folder / str(layers))
        return load_encoder(str(folder / str(layers)), pooling="mean", max_seq_length=max_seq_length)

    monkeypatch.setattr(analyses, "encoder_of", encoder_of)
    monkeypatch.setattr(similarity, "NUM_PAIRS", 500)
    wordpiece.save_pretrained(tmp_path / "tokenizer")
    for part, seed in (("train", 3), ("test", 4)):
        (tmp_path / f"{part}.jsonl").write_text("\n".join(map(json.dumps, make_corpus(60, seed))) + "\n")
    run_here(
        analyses.main, "--train_file", tmp_path / "train.jsonl", "--test_file", tmp_path / "test.jsonl",
        "--spacy_pipeline", spacy_pipeline, "--tokenizer_name", tmp_path / "tokenizer", "--documents", 60,
        "--layers", 2, "--max_seq_length", 64, "--sample", 10, "--output", tmp_path / "analyses.json",
    )  # fmt: skip
    results = json.loads((tmp_path / "analyses.json").read_text())
    assert results["seconds"].keys() == {"embedding", *ANALYSES}
    assert results["documents"] == pytest.approx(60, abs=1)
    assert "all analyses" in capsys.readouterr().out
    assert results["analyses_to_embedding"] > 0
