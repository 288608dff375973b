"""Attention within the texts of a pack: that of each text alone, for every kind of encoder that can be asked."""

import pytest
import torch
from docsplit.modeling.packed_attention import NAME, use_packed_attention
from transformers import AutoConfig, AutoModel

from docsplit.modeling import packed_attention
from docsplit.modeling.families.table import family_of
from docsplit.modeling.packing import packed_inputs, reading_pack

SIZES = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 80, "pad_token_id": 1}
DECODER = {"num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 2, "eos_token_id": 3}
SPECIAL = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
ENCODERS = {
    "bert": {},
    "roberta": {},
    "xlm-roberta": {},
    "electra": {"embedding_size": 32},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2} | SPECIAL,
    "nomic_bert": {"head_dim": 8},
    "qwen3": DECODER,
    "mistral": DECODER | {"sliding_window": 6},
    "gemma3_text": DECODER | {"use_bidirectional_attention": True, "sliding_window": 6},
}
NORMALISE_IN_FLOAT32 = ("qwen3", "mistral", "gemma3_text")  # whatever the dtype of the states
LENGTHS = [5, 33, 3, 60]


def make(kind):
    config = AutoConfig.for_model(kind, **SIZES | ENCODERS[kind])
    for name in vars(config).copy():
        if "dropout" in name:
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    return AutoModel.from_config(config).double()


def padded_and_pack(config):
    """Return the same texts as rows with a mask, and as a pack with borders that repeat its end."""
    ids = torch.full((len(LENGTHS), max(LENGTHS)), config.pad_token_id)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    ids[mask.bool()] = torch.randint(5, 100, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
    first = config.pad_token_id + 1 if family_of(config).positions_follow_padding else 0
    positions = torch.cat([torch.arange(length) for length in LENGTHS]) + first
    borders = torch.tensor([0, *LENGTHS, 0, 0]).cumsum(0).int()
    pack = {"input_ids": ids[mask.bool()][None], "position_ids": positions[None]} | packed_inputs(borders, 60)
    return {"input_ids": ids, "attention_mask": mask}, pack


def states_and_gradients(model, inputs, mask=None):
    states = model(**inputs)[0]
    states = states[0] if mask is None else states[mask.bool()]
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=states.dtype)
    parameters = {name: value for name, value in model.named_parameters() if "pooler" not in name}
    gradients = torch.autograd.grad((states * weights).sum(), list(parameters.values()), allow_unused=True)
    return [states, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_pack_gives_the_states_and_gradients_of_padded_rows(kind):
    model = make(kind)
    padded, pack = padded_and_pack(model.config)
    wanted = states_and_gradients(model, padded, padded["attention_mask"])
    use_packed_attention(model, torch.float32)
    again = states_and_gradients(model, padded, padded["attention_mask"])
    assert all(torch.equal(one, other) for one, other in zip(wanted, again))
    with reading_pack():
        got = states_and_gradients(model, pack)
    assert len(got) == len(wanted) > 10
    exact = {"rtol": 1e-9, "atol": 1e-12} if kind not in NORMALISE_IN_FLOAT32 else {"rtol": 1e-4, "atol": 1e-5}
    for one, other in zip(wanted, got):
        torch.testing.assert_close(other, one, **exact)
    assert "attn_implementation" not in str(model.config.to_dict())  # a checkpoint says nothing of it


def test_texts_of_a_pack_would_read_each_other_without_borders():
    """What packing by positions alone gives."""
    model = make("bert")
    padded, pack = padded_and_pack(model.config)
    use_packed_attention(model, torch.float32)
    names = {"input_ids", "position_ids"}
    alone = model(**padded)[0][padded["attention_mask"].bool()]
    together = model(**{name: pack[name] for name in names})[0][0]
    assert (alone - together).abs().max() > 0.01


def test_a_window_is_no_wider_than_that_of_rows():
    """The masks of local layers matter here: with a window over all tokens the states are others."""
    model = make("modernbert")
    _, pack = padded_and_pack(model.config)
    use_packed_attention(model, torch.float32)
    with reading_pack():
        narrow = model(**pack)[0]
        for layer in model.layers:
            layer.attn.sliding_window = None
        assert (narrow - model(**pack)[0]).abs().max() > 1e-4


def test_dropout_of_attention_is_drawn():
    torch.manual_seed(0)
    states = [torch.randn(1, 2, 7, 4) for _ in range(3)]
    borders = torch.tensor([0, 3, 7]).int()
    plain = packed_attention.packed_attention(None, *states, None, cu_seq_lens_q=borders, max_length_q=4)[0]
    drawn = packed_attention.packed_attention(None, *states, None, 0.5, cu_seq_lens_q=borders, max_length_q=4)[0]
    assert plain.shape == drawn.shape == (1, 7, 2, 4)
    assert not torch.allclose(plain, drawn)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("bert", "eager", "leave out eager attention"),
        ("megatron-bert", None, "one attention only"),
    ],
)
def test_encoders_that_cannot_are_named(kind, change, message):
    model = AutoModel.from_config(AutoConfig.for_model(kind, **SIZES))
    model.config._attn_implementation = change or "sdpa"
    with pytest.raises(ValueError, match=message):
        use_packed_attention(model, torch.float32)
    assert model.config._attn_implementation != NAME


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ENCODERS)
def test_flash_attention_agrees_with_text_by_text(kind):
    """In bfloat16, to what it has of digits, for states and gradients."""
    model = make(kind).float().cuda()
    padded, pack = padded_and_pack(model.config)
    padded, pack = ({name: _on_gpu(value) for name, value in inputs.items()} for inputs in (padded, pack))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        wanted = states_and_gradients(model, padded, padded["attention_mask"])
        use_packed_attention(model, torch.bfloat16)
        with reading_pack():
            got = states_and_gradients(model, pack)
    for one, other in zip(wanted, got):
        assert (one.float() - other.float()).norm() < 0.03 * one.float().norm() + 1e-6


def _on_gpu(value):
    return value.cuda() if isinstance(value, torch.Tensor) else value
