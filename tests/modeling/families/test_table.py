"""Families of encoders: what all have, plain ones, BigBird and decoders."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    BigBirdConfig,
    BigBirdModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    LongformerConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    XLMRobertaConfig,
)

from docsplit.embedding.encode import embed_documents
from docsplit.modeling.checked_files import max_positions
from docsplit.modeling.families.base import Family
from docsplit.modeling.families.table import family_of
from docsplit.modeling.loading import load_encoder
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig
from tests.conftest import OF_IDS, make_corpus
from tests.modeling.families.test_longformer import BIGBIRD, make_model


def make_encoder():
    torch.manual_seed(0)
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=20)
    return BertModel(config, add_pooling_layer=False).eval()


IDS = torch.tensor([[3, 4, 5]])


def test_an_encoder_that_returns_attention_does_so_eagerly():
    encoder = make_encoder()
    Family().return_attention(encoder)
    assert encoder(IDS, output_attentions=True).attentions[-1].sum(-1).allclose(torch.ones(1, 1, 3))


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (BertConfig(), 512),
        (XLMRobertaConfig(max_position_embeddings=514, pad_token_id=1), 512),
        (LongformerConfig(max_position_embeddings=4098, pad_token_id=1), 4096),
        (GraphDocumentConfig(XLMRobertaConfig(max_position_embeddings=514, pad_token_id=1)), 512),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_positions_are_those_of_the_encoder_that_reads_tokens(config, positions):
    assert max_positions(config) == positions


def test_a_short_micro_batch_does_not_end_block_sparse_attention():
    model = make_model(BigBirdConfig(**BIGBIRD)).eval()
    base_model = model.encoder.base_model
    generator = torch.Generator().manual_seed(0)
    long, short = (torch.randint(5, 120, (1, length), generator=generator) for length in (90, 20))
    fresh = BigBirdModel(model.encoder.config).double().eval()
    fresh.load_state_dict(base_model.state_dict(), strict=False)
    with torch.no_grad():
        expected = fresh(long)[0]
        for ids in (short, long, short):
            states = base_model(ids)[0]
            if ids is long:
                torch.testing.assert_close(states, expected)
        torch.testing.assert_close(states, fresh(short)[0])  # fresh one falls back to full attention, for good
        assert (fresh(long)[0] - expected).abs().max() > 1e-6


def test_long_rows_of_a_bigbird_are_read_under_autocast():
    """In full precision, for the blocks of transformers fail in bfloat16."""
    base_model = make_model(BigBirdConfig(**BIGBIRD)).float().eval().encoder.base_model
    long = torch.randint(5, 120, (1, 90), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = base_model(long)[0]
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(base_model(long)[0], expected)


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


def test_a_bare_language_model_gives_its_last_token(starts):
    """Nothing is said of its pooling: [CLS] would be the first token, which has seen no other."""
    bare = starts / "bare_qwen3"
    model = from_pretrained(bare)
    assert model.body[1].pooling_mode == "lasttoken"
    loaded = load_encoder(str(bare), device="cpu")
    assert loaded[1].pooling_mode == "lasttoken"
    ours = embed_documents(model.eval().body, TEXTS, dtype=torch.float32)[0]
    np.testing.assert_allclose(ours, embed_documents(loaded, TEXTS, dtype=torch.float32)[0], atol=1e-5)
    with pytest.raises(ValueError, match="transformers has no masked-LM head for a qwen3: leave out --new_mlm_head"):
        from_pretrained(bare, new_mlm_head=True)


def test_a_random_one_is_made_without_a_head():
    config = Qwen3Config(**SIZES, vocab_size=120)
    model = DocSplitForContrastivePretraining.from_config(config, OF_IDS)
    assert (model.body[1].pooling_mode, model.config.docsplit["mlm_weight"]) == ("lasttoken", 0.0)
    assert type(model.encoder).__name__ == "Qwen3Model"
    both_ways = SimpleNamespace(model_type="gemma3_text", use_bidirectional_attention=True)
    assert family_of(both_ways).default_settings["pooling"] == "mean"
    with pytest.raises(ValueError, match=r"mlm_weight is 0\.1, but a language model that writes the next token"):
        DocSplitForContrastivePretraining.from_config(config, OF_IDS, mlm_weight=0.1)


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
