"""Packs: the states, losses and gradients of padded rows, for every kind of encoder that can be asked."""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from docsplit.modeling.families.table import family_of
from docsplit.modeling.packing import (
    PACKED_ATTENTION,
    Packing,
    groups_that_fit,
    pack_encoders,
    packed_attention,
)
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import OF_IDS
from tests.modeling.families.test_graph import make_model, passage_batch
from tests.modeling.test_modeling_docsplit import SMALL, loss_and_gradients, random_batch

SPECIAL = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
ROBERTA = {"max_position_embeddings": 90}
DECODER = {"num_key_value_heads": 1, "head_dim": 16, "bos_token_id": 2, "eos_token_id": 3}
KINDS = {
    "bert": {},
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "electra": {"embedding_size": 32},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2} | SPECIAL,
    "nomic_bert": {"head_dim": 16},
    "qwen3": DECODER,
    "mistral": DECODER | {"sliding_window": 6},
    "gemma3_text": DECODER | {"use_bidirectional_attention": True, "sliding_window": 6},
}
EXACT, IN_FLOAT32 = {"rtol": 1e-9, "atol": 1e-12}, {"rtol": 1e-4, "atol": 1e-5}  # decoders normalise in float32


def make(kind="bert", **settings):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SMALL | KINDS[kind])
    for name in vars(config).copy():
        if "dropout" in name:
            setattr(config, name, 0.0)
    model = DocSplitForContrastivePretraining.from_config(
        config, OF_IDS, **{"pooling": "mean", "max_seq_length": 64} | settings
    ).double()
    family_of(config).prepare_for_training(model)
    return model.train()


def packed(model, tokens, **changes):
    model = copy.deepcopy(model)
    model.pack_sequences()
    model.micro_batch_tokens = tokens
    for name, value in changes.items():
        setattr(model, name, value)
    return model


def assert_same(model, other, batch, **tolerance):
    (wanted, gradients), (got, theirs) = loss_and_gradients(model, batch), loss_and_gradients(other, batch)
    for name in {"loss", "contrastive_loss", "mlm_loss"} & wanted.keys():
        torch.testing.assert_close(got[name], wanted[name], **tolerance or EXACT)
    assert gradients.keys() == theirs.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(theirs[name], gradient, **tolerance or EXACT, msg=name)


@pytest.mark.parametrize(("kind", "tokens"), [("bert", None), *((kind, 30) for kind in KINDS)])
def test_packs_change_neither_loss_nor_gradients_and_have_no_padding(kind, tokens):
    model, batch = make(kind), random_batch()
    other = packed(model, tokens)
    assert_same(model, other, batch, **IN_FLOAT32 if "num_key_value_heads" in KINDS[kind] else EXACT)
    assert other(**batch).num_computed_tokens == batch["attention_mask"].sum()
    assert "attn_implementation" not in str(other.config.to_dict())  # a checkpoint says nothing of it


@pytest.mark.usefixtures("packs_as_on_gpu")
@pytest.mark.parametrize("kind", KINDS)
def test_packs_of_a_gpu_agree_in_16_bits_and_refuse_32(kind):
    """Also where the model was packed before it went to the GPU, when nothing could be refused."""
    model, batch = make(kind).float(), random_batch()
    other = copy.deepcopy(model)
    other.pack_sequences(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        wanted, got = model(**batch).embeddings, other(**batch).embeddings
    assert (got - wanted).norm() < 0.03 * wanted.norm()
    for refused in (lambda: other(**batch), lambda: copy.deepcopy(model).pack_sequences()):
        with pytest.raises(ValueError, match="16-bit precision on a GPU: train with bf16=True"):
            refused()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_flash_attention_agrees_with_padded_rows(kind):
    """In bfloat16, to what it has of digits."""
    model, batch = make(kind).float().cuda(), {name: value.cuda() for name, value in random_batch().items()}
    other = copy.deepcopy(model)
    other.pack_sequences(torch.bfloat16)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        (wanted, gradients), (got, theirs) = loss_and_gradients(model, batch), loss_and_gradients(other, batch)
    assert (got.embeddings - wanted.embeddings).norm() < 0.03 * wanted.embeddings.norm()
    for name, gradient in gradients.items():
        assert (theirs[name] - gradient).norm() < 0.1 * gradient.norm() + 1e-5, name


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        *(({"pooling": pooling}, {}) for pooling in ("cls", "max", "weightedmean", "lasttoken")),
        ({"contrastive_weight": 0.0, "mlm_weight": 1.0}, {}),
        ({"mlm_weight": 0.0}, {}),
        ({}, {"cache_gradients": True}),
        ({}, {"gradient_checkpointing": True}),
    ],
    ids=str,
)
def test_packs_with_each_pooling_loss_and_recomputation(settings, changes):
    model = make(**settings)
    other = packed(model, 100, cache_gradients=changes.get("cache_gradients", False))
    if "gradient_checkpointing" in changes:
        other.activation_checkpointing_enable()
    assert_same(model, other, random_batch())


def test_packs_of_one_shape():
    """They are filled up with texts that no loss knows."""
    model = make()
    other = packed(model, 200, packing=Packing(0, fixed_length=True, longest=40))
    shapes, forward = set(), other.encoder.base_model.forward

    def note_shape(input_ids, **inputs):
        shapes.add((*input_ids.shape, len(inputs["cu_seq_lens_q"]), inputs["max_length_q"]))
        return forward(input_ids, **inputs)

    other.encoder.base_model.forward = note_shape
    assert_same(model, other, random_batch())
    assert shapes == {(1, 400, 64, 40)}


def test_packs_with_the_collator_and_without_what_it_says():
    """Lengths and masked positions come from the collator, else from the tensors: the same losses."""
    model, batch = make(), random_batch()
    flat = batch["mlm_targets"].flatten(0, 1)
    lengths = batch["attention_mask"].flatten(0, 1).sum(1).numpy()
    host = {"lengths": lengths, "masked": np.flatnonzero((flat != -100).numpy())}
    for each in (model, packed(model, 100)):
        assert torch.equal(each(**batch).loss, each(**batch, host=host).loss)


def test_rows_are_grouped_in_their_order():
    lengths = np.array([4, 5, 3, 20, 1, 1, 9])
    groups = groups_that_fit(lengths, 10)
    assert [lengths[group].tolist() for group in groups] == [[4, 5], [3], [20], [1, 1], [9]]
    assert groups_that_fit(lengths, 1000) == [slice(0, 7)]
    assert groups_that_fit(lengths[:0], 10) == []


@pytest.mark.parametrize("fixed", [False, True])
def test_a_layout_is_that_of_putting_rows_down_one_by_one(fixed):
    lengths, starts = np.array([3, 1, 5]), np.array([20, 0, 10])
    numbers, positions, borders, longest = Packing(2, fixed, longest=6).arrange(lengths, starts, 2, 16)
    assert numbers.tolist() == [20, 21, 22, 0, 10, 11, 12, 13, 14]
    expected, edges = [], [0]
    for length in [3, 1, 5] * 2 + ([6, 6, 2] if fixed else []):
        expected += range(2, 2 + length)
        edges.append(edges[-1] + length)
    assert positions.tolist() == expected
    assert borders[: len(edges)].tolist() == edges
    assert set(borders[len(edges) :]) <= {edges[-1]}
    assert (len(borders), longest) == ((64, 6) if fixed else (7, 5))


def test_an_encoder_that_reads_packs_otherwise_is_refused():
    """What a trial finds: here the encoder takes no notice of positions that begin anew."""
    model = make()
    embeddings = model.encoder.base_model.embeddings
    plain = embeddings.forward
    embeddings.forward = lambda *args, position_ids=None, **kwargs: plain(*args, **kwargs)
    with pytest.raises(ValueError, match="gives texts in a pack other states than alone"):
        pack_encoders([model.encoder.base_model], 64, torch.float32)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_passages_of_a_graph_are_the_same_in_packs(pooling):
    model, batch = make_model(graph={"passage_pooling": pooling}), passage_batch([(3, 5), (2, 4), (1, 1)])
    assert_same(model, packed(model, 100), batch)


def test_dropout_of_attention_is_drawn():
    torch.manual_seed(0)
    states = [torch.randn(1, 2, 7, 4) for _ in range(3)]
    borders = torch.tensor([0, 3, 7]).int()
    plain = packed_attention(None, *states, None, cu_seq_lens_q=borders, max_length_q=4)[0]
    drawn = packed_attention(None, *states, None, 0.5, cu_seq_lens_q=borders, max_length_q=4)[0]
    assert plain.shape == drawn.shape == (1, 7, 2, 4)
    assert not torch.allclose(plain, drawn)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("bert", "eager", "leave out eager attention"),
        ("megatron-bert", "sdpa", "one attention only"),
        ("big_bird", "sdpa", "cross the borders"),
        ("longformer", "sdpa", "cross the borders"),
    ],
)
def test_encoders_that_cannot_are_named(kind, change, message):
    model = AutoModel.from_config(AutoConfig.for_model(kind, **SMALL))
    model.config._attn_implementation = change
    with pytest.raises(ValueError, match=message):
        pack_encoders([model], 64, torch.float32)
    assert model.config._attn_implementation != PACKED_ATTENTION
