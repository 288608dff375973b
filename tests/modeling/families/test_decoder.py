"""Decoders as starts: the last token is the embedding, whichever side is padded, and masked LM is left out."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from docsplit.modeling.families.decoder import is_decoder
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    Gemma3TextConfig,
    Gemma3TextModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from docsplit import AdaptOptions, adapt
from docsplit.embedding.encode import embed_documents, encode
from docsplit.embedding.loading import load_encoder, weight_of_words, words_of
from docsplit.modeling.families.table import family_of
from modeling_docsplit import DocSplitForContrastivePretraining
from run_docsplit_pretraining import main
from tests.conftest import make_corpus
from tests.modeling.test_modeling_docsplit import loss_and_gradients, random_batch

TEXTS = [row["text"] for row in make_corpus(6, seed=3)]
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "intermediate_size": 64, "max_position_embeddings": 128, "initializer_range": 0.2,
}  # fmt: skip
from_pretrained = DocSplitForContrastivePretraining.from_pretrained


@pytest.fixture(scope="module")
def left_padded(wordpiece):
    """A tokenizer as Qwen3-Embedding's: it ends a text with a special token, and pads on the left."""
    backend = type(wordpiece.backend_tokenizer).from_str(wordpiece.backend_tokenizer.to_str())
    backend.post_processor = TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", wordpiece.sep_token_id)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]", padding_side="left"
    )


@pytest.fixture(scope="module")
def starts(tmp_path_factory, left_padded):
    """Folders of SentenceTransformers as Qwen3-Embedding and EmbeddingGemma are, and of a bare language model."""
    torch.manual_seed(0)
    values = SIZES | {"vocab_size": len(left_padded), "pad_token_id": left_padded.pad_token_id}
    folder = tmp_path_factory.mktemp("decoders")
    qwen3 = Qwen3ForCausalLM(Qwen3Config(**values))
    gemma = Gemma3TextModel(Gemma3TextConfig(**values, use_bidirectional_attention=True, sliding_window=8))
    after = {
        "qwen3": [Pooling(32, "lasttoken"), Normalize()],
        "gemma": [
            Pooling(32, "mean"),
            Dense(32, 64, bias=False, activation_function=nn.Identity()),
            Dense(64, 32, bias=False, activation_function=nn.Identity()),
            Normalize(),
        ],
    }
    prompts = {"query": "ask: ", "document": "read: "}
    for name, encoder in (("qwen3", qwen3), ("gemma", gemma)):
        plain = folder / f"bare_{name}"
        encoder.save_pretrained(plain)
        left_padded.save_pretrained(plain)
        transformer = Transformer(str(plain))
        transformer.max_seq_length = 40
        model = SentenceTransformer(modules=[transformer, *after[name]], device="cpu", prompts=prompts)
        model.save(str(folder / name), create_model_card=False)
    return folder


@pytest.mark.parametrize("objective", ["info_nce", "neighbour_distillation"])
@pytest.mark.parametrize("name", ["qwen3", "gemma"])
def test_a_training_takes_the_place_of_its_start(name, objective, starts, run_here, tmp_path, caplog):
    caplog.set_level("INFO")
    out = tmp_path / "out"
    view = "docsplit" if objective == "info_nce" else "simcse"
    run_here(
        main, "--model_name_or_path", starts / name, "--corpus", "tests/data/documents.jsonl", "--output_dir", out,
        "--objective", objective, "--view", view, "--learning_rate", 1e-2, "--use_cpu", "--bf16", "false",
        "--per_device_train_batch_size", 8, "--disable_tqdm", "true", "--max_steps", 2, "--save_strategy", "no",
    )  # fmt: skip
    lines = [record.message for record in caplog.records if "no masked-LM head" in record.message]
    kind = {"qwen3": "qwen3", "gemma": "gemma3_text"}[name]
    assert lines == [f"A {kind} has no masked-LM head: mlm_weight is 0, and the encoder alone is trained and kept."]
    start, theirs = (SentenceTransformer(str(folder), device="cpu") for folder in (starts / name, out))
    assert [str(module) for module in theirs] == [str(module) for module in start]
    assert theirs.prompts == start.prompts
    assert theirs.tokenizer.padding_side == "right"  # as in training
    expected = theirs.encode_document(TEXTS)
    assert np.abs(expected - start.encode_document(TEXTS)).max() > 0.01
    loaded = embed_documents(load_encoder(str(out), device="cpu"), TEXTS, dtype=torch.float32)[0]
    np.testing.assert_allclose(loaded, expected, atol=1e-5)
    model, tokenizer = from_pretrained(out), AutoTokenizer.from_pretrained(out)
    np.testing.assert_allclose(encode(model.encoder.base_model, tokenizer, TEXTS), expected, atol=1e-5)
    assert type(AutoModel.from_pretrained(out)) is type(model.encoder)


@pytest.mark.parametrize("name", ["qwen3", "gemma"])
def test_rows_padded_on_the_right_have_the_vectors_of_those_padded_on_the_left(name, starts, left_padded):
    """Training pads on the right, SentenceTransformer as the tokenizer says."""
    model = from_pretrained(starts / name).eval()
    texts = [f"read: {text}" for text in TEXTS]
    batch = left_padded(texts, padding=True, truncation=True, max_length=40, return_tensors="pt", padding_side="right")
    assert (batch["attention_mask"][:, -1] == 0).any()
    views = {key: batch[key].view(3, 2, -1) for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        ours = model(**views, return_loss=False).embeddings.flatten(0, 1)
    theirs = SentenceTransformer(str(starts / name), device="cpu")
    assert {mask[0] for mask in theirs.tokenizer(texts, padding=True)["attention_mask"]} == {0, 1}
    np.testing.assert_allclose(ours, theirs.encode_document(TEXTS), atol=1e-5)


@pytest.mark.parametrize("name", ["qwen3", "gemma"])
def test_micro_batches_change_neither_loss_nor_gradients(name, starts):
    batch = {key: value for key, value in random_batch().items() if not key.startswith("mlm")}
    model = from_pretrained(starts / name).eval()
    plain, expected = loss_and_gradients(model, batch)
    assert all(gradient.abs().max() > 0 for key, gradient in expected.items() if "q_proj" in key or "dense" in key)
    for cache_gradients in (False, True):
        model.micro_batch_tokens, model.cache_gradients = 60, cache_gradients
        output, gradients = loss_and_gradients(model, batch)
        torch.testing.assert_close(output.loss, plain.loss, rtol=1e-5, atol=1e-6)
        for key, gradient in gradients.items():  # these models compute norms in float32, whatever their weights are
            torch.testing.assert_close(gradient, expected[key], rtol=1e-3, atol=1e-4)


def test_a_bare_language_model_gives_its_last_token(starts):
    """Nothing is said of its pooling: [CLS] would be the first token, which has seen no other."""
    bare = starts / "bare_qwen3"
    model = from_pretrained(bare)
    assert model.config.docsplit["pooling"] == "lasttoken"
    loaded = load_encoder(str(bare), device="cpu")
    assert loaded[1].pooling_mode == "lasttoken"
    ours = encode(model.encoder.base_model, AutoTokenizer.from_pretrained(bare), TEXTS)
    np.testing.assert_allclose(ours, embed_documents(loaded, TEXTS, dtype=torch.float32)[0], atol=1e-5)
    with pytest.raises(ValueError, match="transformers has no masked-LM head for a qwen3: leave out --new_mlm_head"):
        from_pretrained(bare, new_mlm_head=True)


@pytest.mark.parametrize("name", ["qwen3", "gemma"])
def test_words_of_documents_are_added_to_its_vectors(name, starts, tmp_path):
    """With pooling by the last token, and with Dense layers."""
    documents = [row["text"] for row in make_corpus(60, seed=5)]
    adapt(starts / name, documents, tmp_path / "out", AdaptOptions(dtype="float32"))
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu", trust_remote_code=True)
    ours = load_encoder(str(tmp_path / "out"), device="cpu")
    kinds = [type(module).__name__ for module in SentenceTransformer(str(starts / name), device="cpu")]
    assert [type(module).__name__ for module in theirs] == ["EncoderWithWords", *kinds[1:], "AddWords"]
    expected = theirs.encode_document(TEXTS)
    np.testing.assert_allclose(embed_documents(ours, TEXTS, dtype=torch.float32)[0], expected, atol=1e-5)
    plain = embed_documents(load_encoder(str(starts / name), device="cpu"), TEXTS, dtype=torch.float32)[0]
    directions = words_of(ours)(**words_of(ours).preprocess(TEXTS))
    summed = plain + weight_of_words(ours) * directions.numpy()
    np.testing.assert_allclose(expected, summed / np.linalg.norm(summed, axis=1, keepdims=True), atol=1e-5)


def test_a_random_one_is_made_without_a_head():
    config = Qwen3Config(**SIZES, vocab_size=120)
    model = DocSplitForContrastivePretraining(config)
    assert (model.config.docsplit["pooling"], model.config.docsplit["mlm_weight"]) == ("lasttoken", 0.0)
    assert type(model.encoder).__name__ == "Qwen3Model"
    with pytest.raises(ValueError, match=r"mlm_weight is 0\.1, but a language model that writes the next token"):
        DocSplitForContrastivePretraining(config, mlm_weight=0.1)


def test_masked_language_models_are_no_decoders():
    assert all(is_decoder(kind) for kind in ("qwen3", "gemma3_text", "llama", "gpt2", "mistral"))
    others = ("xlnet", "bert-generation", "bert", "roberta", "modernbert", "longformer", "graph_document", "t5")
    assert not any(map(is_decoder, others))


@pytest.mark.parametrize(("reads_both_ways", "pooling"), [(False, "lasttoken"), (True, "mean")])
def test_a_decoder_that_reads_both_ways_is_pooled_by_the_mean(reads_both_ways, pooling):
    config = SimpleNamespace(model_type="gemma3_text", use_bidirectional_attention=reads_both_ways)
    assert family_of(config).default_settings["pooling"] == pooling


def test_an_empty_text_has_a_vector_where_no_special_tokens_are_added(starts, left_padded, tmp_path):
    shutil.copytree(starts / "bare_qwen3", tmp_path / "bare")
    plain = AutoTokenizer.from_pretrained(tmp_path / "bare")
    plain.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    plain.save_pretrained(tmp_path / "bare")
    model = load_encoder(str(tmp_path / "bare"), device="cpu")
    assert model.tokenizer("")["input_ids"] == []
    alone = embed_documents(model, [""], dtype=torch.float32)[0]
    among, _ = embed_documents(model, [*TEXTS, ""], dtype=torch.float32)
    np.testing.assert_allclose(among[-1:], alone, atol=1e-5)
