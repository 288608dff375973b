"""Packs in training: the losses and gradients of padded rows, with everything that a training may add."""

import copy

import numpy as np
import pytest
import torch
from transformers import BertConfig, BigBirdConfig, LongformerConfig, ModernBertConfig, Qwen3Config, RobertaConfig

from docsplit.modeling.families.table import family_of
from docsplit.modeling.packing import FEWEST_BORDERS, Packing, groups_that_fit, pack_encoders
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.modeling.families.test_graph import make_model, passage_batch
from tests.modeling.test_modeling_docsplit import SMALL, loss_and_gradients, random_batch

SPECIAL = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
CONFIGS = {
    "bert": lambda: BertConfig(**SMALL),
    "roberta": lambda: RobertaConfig(**SMALL | {"max_position_embeddings": 90}),
    "longformer": lambda: LongformerConfig(**SMALL, max_position_embeddings=90, attention_window=[8, 8]),
    "modernbert": lambda: ModernBertConfig(**SMALL | SPECIAL | {"local_attention": 8, "pad_token_id": 0}),
}


def make(kind="bert", **settings):
    torch.manual_seed(0)
    config = CONFIGS[kind]()
    for name in vars(config).copy():
        if "dropout" in name:
            setattr(config, name, 0.0)
    model = DocSplitForContrastivePretraining(config, **{"pooling": "mean", "max_seq_length": 64} | settings).double()
    family_of(config).prepare_for_training(model)
    model.train()
    return model


def packed(model, tokens, **changes):
    model = copy.deepcopy(model)
    model.pack_sequences()
    model.micro_batch_tokens = tokens
    for name, value in changes.items():
        setattr(model, name, value)
    return model


def assert_same(model, other, batch):
    (wanted, gradients), (got, theirs) = loss_and_gradients(model, batch), loss_and_gradients(other, batch)
    for name in {"loss", "contrastive_loss", "mlm_loss"} & wanted.keys():
        torch.testing.assert_close(got[name], wanted[name], rtol=1e-12, atol=1e-12)
    assert gradients.keys() == theirs.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(theirs[name], gradient, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("tokens", [30, 200, None])
@pytest.mark.parametrize("kind", CONFIGS)
def test_packs_change_neither_loss_nor_gradients(kind, tokens):
    model = make(kind)
    assert_same(model, packed(model, tokens), random_batch())


@pytest.mark.parametrize("pooling", ["cls", "max", "weightedmean", "lasttoken"])
def test_packs_with_each_pooling(pooling):
    model = make(pooling=pooling)
    assert_same(model, packed(model, 100), random_batch())


@pytest.mark.parametrize("tokens", [30, 200])
def test_packs_of_one_shape(tokens):
    """They are filled up with texts that no loss knows."""
    model = make()
    other = packed(model, tokens, packing=Packing(0, fixed_length=True, longest=40))
    shapes, forward = set(), other.encoder.base_model.forward

    def note_shape(input_ids, **inputs):
        shapes.add((*input_ids.shape, len(inputs["cu_seq_lens_q"]), inputs["max_length_q"]))
        return forward(input_ids, **inputs)

    other.encoder.base_model.forward = note_shape
    assert_same(model, other, random_batch())
    if tokens == 200:
        assert shapes == {(1, 400, FEWEST_BORDERS, 40)}


@pytest.mark.parametrize("changes", [{"cache_gradients": True}, {"gradient_checkpointing": True}, {"mlm": False}])
def test_packs_with_recomputation_and_without_masked_lm(changes):
    model = make(mlm_weight=0.1 if changes.get("mlm", True) else 0.0)
    other = packed(model, 100, cache_gradients=changes.get("cache_gradients", False))
    if "gradient_checkpointing" in changes:
        other.activation_checkpointing_enable()
    batch = random_batch()
    if not changes.get("mlm", True):
        batch.pop("mlm_input_ids"), batch.pop("mlm_targets")
    assert_same(model, other, batch)


def test_masked_lm_alone_in_packs():
    model = make(contrastive_weight=0.0, mlm_weight=1.0)
    assert_same(model, packed(model, 100), random_batch())


@pytest.mark.parametrize("objective", ["momentum_contrast", "contrastive_tension"])
def test_packs_with_a_second_encoder(objective):
    options = {"momentum_queue_size": 50} if objective == "momentum_contrast" else {}
    model = make(objective=objective, mlm_weight=0.0, **options)
    batch = random_batch(documents=9)
    other = packed(model, 100)
    torch.manual_seed(0)
    wanted = loss_and_gradients(model, batch)
    torch.manual_seed(0)
    got = loss_and_gradients(other, batch)
    torch.testing.assert_close(got[0].loss, wanted[0].loss, rtol=1e-10, atol=1e-10)
    for name, gradient in wanted[1].items():
        torch.testing.assert_close(got[1][name], gradient, rtol=1e-8, atol=1e-10, msg=name)


def test_dropout_is_the_same_when_packs_are_computed_again():
    torch.manual_seed(0)
    model = DocSplitForContrastivePretraining(BertConfig(**SMALL), pooling="mean", max_seq_length=64).train()
    kept, again = packed(model, 100), packed(model, 100, cache_gradients=True)
    results = []
    for each in (kept, again):
        torch.manual_seed(1)
        results.append(loss_and_gradients(each, random_batch()))
    torch.testing.assert_close(results[0][0].loss, results[1][0].loss)
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], gradient, msg=name)
    assert not torch.equal(results[0][0].loss, loss_and_gradients(kept, random_batch())[0].loss)


def test_padding_is_gone():
    model = make()
    batch = random_batch()
    output = packed(model, 100)(**batch)
    assert output.num_computed_tokens == batch["attention_mask"].sum()


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
    assert groups_that_fit(lengths, None) == [slice(0, 7)]
    assert groups_that_fit(lengths[:0], 10) == groups_that_fit(lengths[:0], None) == []


@pytest.mark.parametrize("fixed", [False, True])
def test_a_layout_is_that_of_putting_rows_down_one_by_one(fixed):
    lengths, starts = np.array([3, 1, 5]), np.array([20, 0, 10])
    numbers, positions, borders, longest = Packing(2, fixed, longest=6).lay_out(lengths, starts, 2, 16)
    assert numbers.tolist() == [20, 21, 22, 0, 10, 11, 12, 13, 14]
    expected, edges = [], [0]
    for length in [3, 1, 5] * 2 + ([6, 6, 2] if fixed else []):
        expected += range(2, 2 + length)
        edges.append(edges[-1] + length)
    assert positions.tolist() == expected
    assert borders[: len(edges)].tolist() == edges
    assert set(borders[len(edges) :]) <= {edges[-1]}
    assert (len(borders), longest) == ((FEWEST_BORDERS, 6) if fixed else (7, 5))


def test_an_encoder_that_reads_packs_otherwise_is_refused():
    """What a trial finds: here the encoder takes no notice of positions that begin anew."""
    model = make()
    embeddings = model.encoder.base_model.embeddings
    plain = embeddings.forward
    embeddings.forward = lambda *args, position_ids=None, **kwargs: plain(*args, **kwargs)
    with pytest.raises(ValueError, match="gives texts in a pack other states than alone"):
        pack_encoders([model.encoder.base_model], 64, torch.float32)


@pytest.mark.parametrize("kind", ["big_bird", "graph", "graph of means", "qwen3"])
def test_families(kind):
    """BigBird is refused; a decoder's last token and a graph's passages are the same in packs."""
    if kind == "big_bird":
        model = DocSplitForContrastivePretraining(BigBirdConfig(**SMALL), pooling="mean", max_seq_length=64)
        with pytest.raises(ValueError, match="cross the borders"):
            model.pack_sequences()
        return
    if kind == "qwen3":
        sizes = {"num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 2, "eos_token_id": 3}
        model = DocSplitForContrastivePretraining(Qwen3Config(**SMALL | sizes), max_seq_length=64).train()
        batch = {name: value for name, value in random_batch().items() if "mlm" not in name}
        wanted, got = loss_and_gradients(model, batch), loss_and_gradients(packed(model, 100), batch)
    else:
        model = make_model(graph={"passage_pooling": "mean" if kind == "graph of means" else "cls"})
        batch = passage_batch([(3, 5), (2, 4), (1, 1)])
        wanted, got = loss_and_gradients(model, batch), loss_and_gradients(packed(model, 100), batch)
    torch.testing.assert_close(got[0].loss, wanted[0].loss, rtol=1e-4, atol=1e-6)
    for name, gradient in wanted[1].items():
        torch.testing.assert_close(got[1][name], gradient, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_compiled_for_packs_and_not_for_padded_rows(kind):
    """One shape, one program; rows with padding, as in a probe, go the plain way."""
    torch._dynamo.reset()
    model, batch, compiled_graphs = make(kind), random_batch(), []

    def backend(graph, inputs):
        compiled_graphs.append(graph)
        return graph.forward

    other = packed(model, 200)
    other.compile(backend=backend)
    assert other.packing.fixed_length
    assert_same(model, other, batch)
    programs = len(compiled_graphs)
    assert programs
    assert_same(model, other, random_batch(seed=1))
    assert len(compiled_graphs) == programs
    ids = {name: batch[name][:, 0] for name in ("input_ids", "attention_mask")}
    wanted, got = (each.encoder.base_model(**ids)[0] for each in (model, other))
    assert torch.equal(wanted[:, 0], got[:, 0])
    assert len(compiled_graphs) == programs
