"""Any encoder becomes a SentenceTransformer, with what it was made with."""

import json
import logging

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Pooling, StaticEmbedding
from transformers import AutoConfig, AutoTokenizer, BertModel, RobertaConfig, RobertaModel

from docsplit.embedding.encode import _fingerprint, embed_documents, identity
from docsplit.embedding.loading import describe_encoder, load_encoder, replace_pooling, says_pooling
from docsplit.embedding.project_modules import with_words
from docsplit.embedding.words_on_disk import save_with_words
from docsplit.modeling.encoder_with_words import Words
from tests.conftest import tiny_values


def test_a_pooling_that_an_encoder_brings_is_replaced(checkpoint, texts):
    brought, replaced = load_encoder(str(checkpoint)), load_encoder(str(checkpoint))
    assert replace_pooling(replaced, "max") == "mean"
    assert describe_encoder(replaced).pooling == "max"
    with torch.no_grad():
        states = replaced[0](replaced.preprocess(["a ship", "the captain of a ship"]))
    expected = [
        tokens[mask == 1].max(dim=0)[0] for tokens, mask in zip(states["token_embeddings"], states["attention_mask"])
    ]
    vectors, _ = embed_documents(replaced, ["a ship", "the captain of a ship"], dtype=torch.float32)
    np.testing.assert_allclose(vectors, torch.stack(expected), atol=1e-5)
    assert np.abs(vectors - embed_documents(brought, ["a ship", "the captain of a ship"])[0]).max() > 1e-2
    assert _fingerprint(brought, "") != _fingerprint(replaced, "")  # else the cache would give the one for the other


def test_a_pooling_that_cannot_be_replaced_is_refused_by_name(wordpiece, checkpoint):
    static = SentenceTransformer(modules=[StaticEmbedding(wordpiece.backend_tokenizer, embedding_dim=8)], device="cpu")
    with pytest.raises(
        ValueError, match=r"--override_pooling max needs an encoder with a pooling module.*StaticEmbedding"
    ):
        replace_pooling(static, "max")
    model = load_encoder(str(checkpoint))
    model[1] = Pooling(32, pooling_mode=("mean", "max"))
    model.append(Dense(64, 16))
    with pytest.raises(ValueError, match=r"max gives 32 numbers; what follows mean\+max takes more"):
        replace_pooling(model, "max")


@pytest.mark.parametrize("pooling", [None, "mean", "max"])
def test_a_plain_encoder_is_pooled_as_asked(headless, texts, pooling):
    model = load_encoder(str(headless), pooling=pooling, device="cpu")
    facts = describe_encoder(model)
    assert (facts.pooling, facts.max_seq_length) == (pooling or "cls", 128)
    encoder = BertModel.from_pretrained(headless, add_pooling_layer=False)
    assert facts.num_parameters == encoder.num_parameters()
    hidden = encoder.eval()(**model.tokenizer(texts[0], return_tensors="pt")).last_hidden_state[0]
    by_hand = {"cls": hidden[0], "mean": hidden.mean(dim=0), "max": hidden.amax(dim=0)}[facts.pooling]
    np.testing.assert_allclose(
        embed_documents(model, texts[:1], dtype=torch.float32)[0][0], by_hand.detach(), atol=1e-5
    )


def test_a_checkpoint_keeps_its_own_pooling_and_length(checkpoint):
    model = load_encoder(str(checkpoint), pooling="max", device="cpu")
    assert (describe_encoder(model).pooling, model.max_seq_length) == ("mean", 40)
    assert load_encoder(str(checkpoint), max_seq_length=100, device="cpu").max_seq_length == 100
    with pytest.raises(ValueError, match="has positions for 128 tokens"):
        load_encoder(str(checkpoint), max_seq_length=129, device="cpu")


def test_what_is_no_encoder_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty' cannot be loaded as an encoder: name a model"):
        load_encoder(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="no-such/model' cannot be loaded as an encoder"):
        load_encoder("no-such/model")


def test_loading_lists_no_layers(headless, monkeypatch):
    """transformers checks plans of tensor parallelism, that nobody has, where its logger is set to warnings."""
    monkeypatch.setattr(transformers.modeling_utils, "verify_tp_plan", lambda *_: pytest.fail("checked"))
    load_encoder(str(headless), device="cpu")


def test_an_encoder_without_a_vocabulary_is_refused(checkpoint, headless):
    for folder in (checkpoint, headless):
        (folder / "tokenizer.json").unlink()
        with pytest.raises(ValueError, match=r"special tokens: tokenizer\.json .* is missing"):
            load_encoder(str(folder), device="cpu")


@pytest.fixture(params=[logging.ERROR, logging.INFO])
def verbosity(request):
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity(request.param)
    yield
    transformers.utils.logging.set_verbosity(before)


@pytest.mark.usefixtures("verbosity")
def test_weights_that_are_missing_raise_and_a_random_pooler_is_left_out(checkpoint, headless):
    weights = load_file(headless / "model.safetensors")
    save_file({f"other.{name}": value for name, value in weights.items()}, headless / "model.safetensors")
    with pytest.raises(ValueError, match="weights of its own architecture"):
        load_encoder(str(headless), device="cpu")
    # SentenceTransformer's file asks for BERT's pooler, and the weights have none
    BertModel(AutoConfig.from_pretrained(checkpoint), add_pooling_layer=False).save_pretrained(checkpoint)
    (checkpoint / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    left, right = (load_encoder(str(checkpoint), device="cpu") for _ in range(2))
    assert not any("pooler" in name for name in left.state_dict())
    keys = {_fingerprint(model, "", torch.float32, 4096) for model in (left, right)}
    assert len(keys) == 1


def test_an_encoder_with_words_is_described_by_its_own_parts(checkpoint):
    model = load_encoder(str(checkpoint), device="cpu")
    words = Words(model.tokenizer.backend_tokenizer, torch.arange(10), torch.ones(10, 32))
    facts, plain = describe_encoder(with_words(model, words)), describe_encoder(model)
    assert (facts.pooling, facts.max_seq_length) == (plain.pooling, plain.max_seq_length) == ("mean", 40)
    assert facts.num_parameters == plain.num_parameters + 11 * 32
    with pytest.raises(ValueError, match=r"--override_pooling max would change vectors that words were fitted to"):
        replace_pooling(with_words(model, words), "max")


def test_what_a_folder_with_words_says_stands(checkpoint, tmp_path, caplog):
    model = load_encoder(str(checkpoint), device="cpu")
    words = Words(model.tokenizer.backend_tokenizer, torch.arange(10), torch.ones(10, 32))
    save_with_words(model, words, 1.0, tmp_path / "words")
    name = str(tmp_path / "words")
    assert says_pooling(name)
    caplog.set_level(logging.INFO)
    loaded = load_encoder(name, pooling="cls", max_seq_length=12, device="cpu")
    assert f"{name} brings its own pooling: --pooling cls is not used for it." in caplog.text
    assert (describe_encoder(loaded).pooling, describe_encoder(loaded).max_seq_length) == ("mean", 12)
    with pytest.raises(ValueError, match="has positions for 128 tokens"):
        load_encoder(name, max_seq_length=129, device="cpu")


def test_a_static_encoder_reads_whole_texts(wordpiece, tmp_path, caplog):
    modules = [StaticEmbedding(wordpiece.backend_tokenizer, embedding_dim=8)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path))
    caplog.set_level(logging.INFO)
    model = load_encoder(str(tmp_path), max_seq_length=12, device="cpu")
    assert "is static and reads whole texts: --max_seq_length changes nothing." in caplog.text
    assert describe_encoder(model).max_seq_length is None  # JSON has no infinity


def change_json(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_vector_does_not_depend_on_the_batch_whatever_side_was_padded(checkpoint, texts, tmp_path):
    texts = [text.replace("\ud800", "?") for text in texts]
    expected, _ = embed_documents(load_encoder(str(checkpoint)), texts, dtype=torch.float32)
    change_json(checkpoint / "tokenizer_config.json", padding_side="left")
    theirs = SentenceTransformer(str(checkpoint), device="cpu")
    assert np.abs(theirs.encode(texts) - expected).max() > 1e-2  # what happens where nothing is done
    np.testing.assert_allclose(embed_documents(theirs, texts, dtype=torch.float32)[0], expected, atol=1e-5)
    model = load_encoder(str(checkpoint), device="cpu")
    model.save(str(tmp_path / "released"))
    for one in (model, SentenceTransformer(str(tmp_path / "released"), device="cpu")):
        np.testing.assert_allclose(one.encode(texts), expected, atol=1e-5)


def test_an_encoder_that_cuts_the_beginning_of_texts_is_another_one(checkpoint):
    first = load_encoder(str(checkpoint))
    change_json(checkpoint / "tokenizer_config.json", truncation_side="left")
    assert identity(load_encoder(str(checkpoint))) != identity(first)


def test_a_token_that_the_encoder_does_not_embed_is_named(checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.add_tokens(["zyxgizmo"])
    tokenizer.save_pretrained(checkpoint)
    with pytest.raises(ValueError, match=r"the token 'zyxgizmo' with the id .*resize_token_embeddings"):
        load_encoder(str(checkpoint))


def test_a_config_without_a_padding_id_embeds_or_says_why_not(headless, byte_level_bpe, tmp_path):
    expected = embed_documents(load_encoder(str(headless)), ["a ship", "a"])[0]
    change_json(headless / "config.json", pad_token_id=None)
    np.testing.assert_array_equal(embed_documents(load_encoder(str(headless)), ["a ship", "a"])[0], expected)
    RobertaModel(RobertaConfig(**tiny_values(byte_level_bpe))).save_pretrained(tmp_path / "roberta")
    byte_level_bpe.save_pretrained(tmp_path / "roberta")
    change_json(tmp_path / "roberta" / "config.json", pad_token_id=None)
    with pytest.raises(ValueError, match="has no pad_token_id, from which a roberta counts positions"):
        load_encoder(str(tmp_path / "roberta"))
