"""The attention that embeddings are read from: against transformers' eager attention, one text at a time."""

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import (
    AutoModel,
    BertConfig,
    DistilBertConfig,
    LongformerConfig,
    ModernBertConfig,
    MPNetConfig,
    RobertaConfig,
)

from docsplit.embedding import attention
from docsplit.embedding.attention import attention_to_tokens, check_attention, describe_attention
from docsplit.modeling.encoder_with_words import Words
from docsplit.modeling.loading import load_encoder, with_words
from tests.conftest import tiny_values

TEXTS = ["The ship sailed.", "A loaf of bread and butter in the oven of the harbour, on a plate.", "Salt."]


def config_of(architecture, tokenizer):
    values = tiny_values(tokenizer)
    return {
        "bert": lambda: BertConfig(**values),
        "roberta": lambda: RobertaConfig(**values),
        "mpnet": lambda: MPNetConfig(**values),
        "modernbert": lambda: ModernBertConfig(**values),
        "distilbert": lambda: DistilBertConfig(
            vocab_size=len(tokenizer), dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=128
        ),
        "longformer": lambda: LongformerConfig(**values, attention_window=[8, 8]),
    }[architecture]()


@pytest.fixture
def encoder(tmp_path, wordpiece, byte_level_bpe):
    def make(architecture, pooling="cls"):
        tokenizer = byte_level_bpe if architecture == "roberta" else wordpiece
        torch.manual_seed(0)
        model = AutoModel.from_config(config_of(architecture, tokenizer))
        for parameter in model.parameters():  # attention that is far from uniform
            if parameter.ndim == 2:
                parameter.data *= 8
        model.save_pretrained(tmp_path / architecture)
        tokenizer.save_pretrained(tmp_path / architecture)
        loaded = load_encoder(str(tmp_path / architecture), max_seq_length=40)
        loaded[1] = Pooling(32, pooling)
        return loaded, tmp_path / architecture

    return make


@pytest.mark.parametrize(
    ("architecture", "pooling", "attended_from"),
    [
        *((name, "cls", "[CLS]") for name in ("bert", "mpnet", "modernbert")),
        *((name, "mean", "mean over tokens") for name in ("roberta", "distilbert")),
        ("bert", "lasttoken", "last token"),
    ],
)
def test_weights_are_those_of_eager_attention(architecture, pooling, attended_from, encoder):
    loaded, folder = encoder(architecture, pooling)
    attentions = list(attention_to_tokens(loaded, TEXTS, "", micro_batch_tokens=1000))  # all in one batch, padded
    assert describe_attention(loaded)["attended_from"] == attended_from
    eager = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    for text, result in zip(TEXTS, attentions, strict=True):
        encoded = loaded.tokenizer(text, return_tensors="pt", truncation=True, max_length=40)
        with torch.no_grad():
            last = eager(**encoded, output_attentions=True).attentions[-1][0]  # (heads, T, T)
        expected = {"cls": last[:, 0].mean(0), "lasttoken": last[:, -1].mean(0)}.get(pooling, last.mean((0, 1)))
        np.testing.assert_allclose(result.weights, expected, atol=1e-5)
        assert result.weights.sum() == pytest.approx(1, abs=1e-4)
        assert result.weights.std() > 1e-3


def test_a_longformers_weights_are_its_global_row(encoder):
    """The first token attends to all tokens by separate projections: they are computed here from the last layer."""
    loaded, _ = encoder("longformer", "mean")
    base, inputs = loaded[0].model, {}
    hook = base.encoder.layer[-1].attention.self.register_forward_hook(
        lambda module, args, kwargs, output: inputs.update(hidden=(kwargs.get("hidden_states", *args[:1]))),
        with_kwargs=True,
    )
    (result,) = attention_to_tokens(loaded, TEXTS[1:2], "", micro_batch_tokens=1000)
    hook.remove()
    assert describe_attention(loaded)["attended_from"] == "global row of the first token"
    layer, hidden = base.encoder.layer[-1].attention.self, inputs["hidden"][0, : len(result.weights)]
    query = layer.query_global(hidden[0]).view(2, 16) / 4
    scores = torch.einsum("hd,thd->ht", query, layer.key_global(hidden).view(-1, 2, 16))
    np.testing.assert_allclose(result.weights, scores.softmax(-1).mean(0).detach(), atol=1e-5)
    assert result.weights.std() > 0.001


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_tokens_and_their_places(architecture, encoder, monkeypatch):
    monkeypatch.setattr(attention, "CHUNK_TEXTS", 2)
    loaded, _ = encoder(architecture)
    attentions = list(attention_to_tokens(loaded, TEXTS, "", micro_batch_tokens=20))
    for text, result in zip(TEXTS, attentions, strict=True):
        assert result.offsets.shape == (len(result.weights), 2)
        special = result.offsets[:, 1] <= result.offsets[:, 0]
        assert special.nonzero()[0].tolist() == [0, len(special) - 1]
        assert "".join(text[start:end] for start, end in result.offsets).replace(" ", "") == text.replace(" ", "")


def test_a_prompt_is_no_part_of_the_text(encoder):
    loaded, _ = encoder("bert")
    plain, prompted = (list(attention_to_tokens(loaded, TEXTS, prompt, 1000)) for prompt in ("", "query: "))
    for text, without, with_prompt in zip(TEXTS, plain, prompted, strict=True):
        places = [offsets for offsets in with_prompt.offsets.tolist() if offsets[1] > offsets[0]]
        assert places == [offsets for offsets in without.offsets.tolist() if offsets[1] > offsets[0]]
        assert max(end for _, end in places) == len(text)
        assert len(with_prompt.weights) > len(without.weights)


def test_an_encoder_without_weights_or_places_is_refused(encoder, monkeypatch):
    loaded, _ = encoder("bert")
    check_attention("some/encoder", loaded, TEXTS[0])
    forward = loaded[0].model.forward
    monkeypatch.setattr(loaded[0].model, "forward", lambda output_attentions, **features: forward(**features))
    with pytest.raises(ValueError, match=r"some/encoder: BertModel returns no attention weights"):
        check_attention("some/encoder", loaded, TEXTS[0])
    loaded[0].processor = None
    with pytest.raises(ValueError, match=r"some/encoder: .*fast tokenizer"):
        check_attention("some/encoder", loaded, TEXTS[0])


def test_the_attention_of_an_encoder_with_words_is_the_plain_ones(encoder):
    model, _ = encoder("bert", "mean")
    more = with_words(model, Words(model.tokenizer.backend_tokenizer, torch.arange(10), torch.ones(10, 32)))
    check_attention("more", more, TEXTS[0])
    assert describe_attention(more) == describe_attention(model)
    for ours, expected in zip(attention_to_tokens(more, TEXTS, "", 64), attention_to_tokens(model, TEXTS, "", 64)):
        np.testing.assert_array_equal(ours.weights, expected.weights)
