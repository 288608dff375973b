"""model.onnx and tokenizer.json alone give the embeddings of the checkpoint, normalised where cosines are meant."""

import json
import runpy
import shutil

import numpy as np
import onnxruntime
import pytest
import tokenizers
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig

import export_onnx
from docsplit.embedding.lexical_ridge import RidgeSettings, fit, save_static
from docsplit.modeling.loading import load_encoder, with_words
from docsplit.release import onnx
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig
from tests.conftest import make_corpus, tiny_config, tiny_values

TEXTS = [row["text"] for row in make_corpus(6, seed=3)] + ["Bread.", ""]


@pytest.fixture
def checkpoint(tmp_path, wordpiece):
    """A folder with a random encoder, as the pretraining script leaves it."""

    def save(architecture="bert", **settings):
        torch.manual_seed(0)
        values = tiny_values(wordpiece, num_hidden_layers=1)
        if architecture == "longformer":
            values |= {"attention_window": 16}
        config = AutoConfig.for_model(architecture, **values)
        model = DocSplitForContrastivePretraining.from_config(config, wordpiece, **{"max_seq_length": 24} | settings)
        with torch.no_grad():  # of a length that is not 1 by chance
            for name, weight in model.named_parameters():
                if name.endswith(("LayerNorm.weight", "norm.weight")):
                    weight.mul_(1.7)
        model.save_pretrained(tmp_path / "checkpoint")
        return tmp_path / "checkpoint"

    return save


def run_onnx(folder):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    rows = tokenizer.encode_batch(TEXTS)
    inputs = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
    return session.run(None, {name: np.array(values) for name, values in inputs.items()})[0]


PROMPTED = {"truncate_dim": 5, "prompts": {"d": "passage: "}, "default_prompt_name": "d"}


@pytest.mark.parametrize(
    ("architecture", "settings", "added"),
    [
        ("bert", {"pooling": "mean"}, PROMPTED | {"similarity_fn_name": "euclidean"}),
        pytest.param("bert", {"pooling": "cls", "similarity": "dot"}, {}, marks=pytest.mark.slow),
        pytest.param("roberta", {"pooling": "cls"}, PROMPTED, marks=pytest.mark.slow),
        pytest.param("modernbert", {"pooling": "mean"}, {}, marks=pytest.mark.slow),
    ],
)
def test_onnx_gives_the_embeddings_of_the_checkpoint(
    architecture, settings, added, checkpoint, tmp_path, run_here, capsys
):
    """Cut where the encoder is; without its prompt, which the script says."""
    folder, out = checkpoint(architecture, **settings), tmp_path / "onnx"
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | added))
    run_here(export_onnx.main, folder, out)
    assert ("Put 'passage: ' before each text" in capsys.readouterr().out) == bool(added)
    assert {path.name for path in out.glob("[!.]*")} == {"model.onnx", "tokenizer.json"}
    unit_length = added.get("similarity_fn_name", settings.get("similarity", "cosine")) == "cosine"
    expected = SentenceTransformer(str(folder)).encode(TEXTS, prompt="", normalize_embeddings=unit_length)
    assert expected.shape == (len(TEXTS), 5 if added else 32)
    exported = run_onnx(out)
    np.testing.assert_allclose(exported, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)
    assert np.allclose(np.linalg.norm(exported, axis=1), 1, atol=1e-5) == unit_length
    assert np.abs(expected[0] - expected[1]).max() > 1e-3  # texts differ, truncated or not


def lexical_ridge(folder):
    model = load_encoder(str(folder), device="cpu")
    corpus = [row["text"] for row in make_corpus(40)]
    return model, fit(model, corpus, model.encode(corpus), RidgeSettings(1.0, 0, sublinear=False))


def test_a_static_encoder_is_exported_for_whole_texts(checkpoint, tmp_path, run_here, capsys, monkeypatch):
    _, fitted = lexical_ridge(checkpoint("bert", pooling="mean"))
    (tmp_path / "static").mkdir()
    save_static(fitted.words, tmp_path / "static")
    run_here(export_onnx.main, tmp_path / "static", tmp_path / "onnx")
    assert "embeddings of unit length, whole texts; differs from SentenceTransformer by" in capsys.readouterr().out
    expected = SentenceTransformer(str(tmp_path / "static")).encode(TEXTS)
    np.testing.assert_allclose(run_onnx(tmp_path / "onnx"), expected, atol=1e-5, rtol=0)
    assert not expected[-1].any()  # of an empty text
    assert np.abs(expected[0] - expected[1]).max() > 1e-3

    # A file that is not what SentenceTransformer gives is refused
    def export_before(change):
        def export(encoder, path):
            shutil.copy(tmp_path / "onnx" / "model.onnx", path)
            encode = encoder.encode
            encoder.encode = lambda *given, **named: change(encode(*given, **named))
            return onnx.StaticEmbedder(encoder)

        return export

    for change in (lambda vectors: vectors[:, :5], lambda vectors: 1.1 * vectors):
        monkeypatch.setattr(onnx, "write_onnx", export_before(change))
        with pytest.raises(RuntimeError, match="differs from SentenceTransformer"):
            run_here(export_onnx.main, tmp_path / "static", tmp_path / "refused")
        assert not (tmp_path / "refused").exists()


def test_what_onnx_cannot_follow_is_refused(checkpoint, tmp_path):
    model, fitted = lexical_ridge(checkpoint("bert", pooling="mean"))
    encoders = {
        "export the encoder that they were added to, or a static one": with_words(model, fitted.words),
        "longformer cannot be written as ONNX": load_encoder(str(checkpoint("longformer", pooling="mean"))),
    }
    for message, encoder in encoders.items():
        with pytest.raises(ValueError, match=message):
            onnx.write_onnx(encoder, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"graph_kind": "section", "gat_version": 2, "passage_pooling": "mean", "max_passages": 3},
        pytest.param({}, marks=pytest.mark.slow),
    ],
)
def test_onnx_gives_the_vector_of_a_document_of_passages(settings, wordpiece, tmp_path, run_here, capsys):
    """Embed with model.onnx, tokenizer.json and passages.py alone."""
    torch.manual_seed(0)
    config = tiny_config(wordpiece, initializer_range=0.3, num_hidden_layers=1)
    config = GraphDocumentConfig(config, graph_hidden_size=16, passage_words=12, **settings)
    model = DocSplitForContrastivePretraining.from_config(config, wordpiece, max_seq_length=24)
    model.save_pretrained(tmp_path / "checkpoint")
    run_here(export_onnx.main, tmp_path / "checkpoint", tmp_path / "onnx")
    most = settings.get("max_passages")
    given = f"Give the {f'first {most} ' if most else ''}passages of one document at a time, of 12 words"
    assert given in capsys.readouterr().out
    to_passages = runpy.run_path(str(tmp_path / "onnx" / "passages.py"))["to_passages"]
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    encoder, sizes = load_encoder(str(tmp_path / "checkpoint"), device="cpu"), set()
    for text in [*TEXTS[:4], f"## One\n\n{TEXTS[0]}\n\n## Two\n\n{TEXTS[1]}", "Bread."]:
        whole = to_passages(text, words=12)
        passages = whole[:most]
        rows = tokenizer.encode_batch([passage.text for passage in passages])
        inputs = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
        inputs |= {"section": [passage.section for passage in passages]} if "graph_kind" in settings else {}
        (exported,) = session.run(None, {name: np.array(values) for name, values in inputs.items()})
        np.testing.assert_allclose(exported, encoder.encode([text], normalize_embeddings=True), atol=1e-5)
        sizes.add(len(whole))
    assert len(sizes) > 2
