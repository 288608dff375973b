"""Texts one after another in a row give a Longformer the numbers that each gives alone, and nothing waits."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from benchmarks.speed.scaling import peak_memory
from docsplit.modeling.families import longformer_packed, longformer_tiles
from docsplit.modeling.families.longformer_attention import use_blocked_attention
from docsplit.modeling.families.longformer_packed import attend_in_windows, packed_row
from docsplit.modeling.families.longformer_tiles import WindowAttention
from tests.modeling.families.test_longformer_attention import (  # noqa: F401 (wide_softmax is a fixture)
    make_longformer,
    wide_softmax,
)

LENGTHS = [(30,), (5, 3, 40, 1, 200, 7), (3,) * 40, (150, 3, 260)]
SIZES = [(160, 64), (10, 64), (10, 3)]  # of a tile, and tiles of a strip: 1 tile, over 16, and many strips


@pytest.fixture(params=SIZES, ids=str)
def sizes(request, monkeypatch):
    monkeypatch.setitem(longformer_tiles.TILE, "cpu", request.param[0])
    monkeypatch.setitem(longformer_packed.STRIP, "cpu", request.param[1])


def make_packed(lengths, repeats=2, first_token_is_global=True):
    """A row of random texts; `repeats` of them have no tokens."""
    length, generator = sum(lengths), torch.Generator().manual_seed(0)
    bounds = torch.tensor([0, *itertools.accumulate(lengths), *[length] * repeats], dtype=torch.int32)
    return {
        "input_ids": torch.randint(3, 50, (1, length), generator=generator),
        "position_ids": torch.cat([torch.arange(count) for count in lengths])[None] + 2,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
        "first_token_is_global": first_token_is_global,
    }


def make_padded(packed, lengths):
    """The same texts, a row each."""
    texts = packed["input_ids"][0].split(lengths)
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=1)
    mask = (torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]).long()
    is_global = torch.zeros_like(ids)
    is_global[:, 0] = packed["first_token_is_global"]
    return {"input_ids": ids, "attention_mask": mask, "global_attention_mask": is_global}


def states_and_gradients(model, inputs):
    """Return the states of all tokens, text after text, and the gradients of a loss of all of them."""
    model.zero_grad()
    states = model(**inputs)[0]
    states = states[inputs["attention_mask"].bool()] if "attention_mask" in inputs else states[0]
    weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (states * weight.to(states)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return states.detach(), {name: gradient.clone() for name, gradient in gradients.items() if gradient is not None}


def assert_close(results, expected, tolerance):
    """Each gradient in relation to its own size, or to a thousandth of the largest one."""
    torch.testing.assert_close(results[0], expected[0], rtol=0, atol=tolerance)
    assert set(results[1]) == set(expected[1])
    scale = max(gradient.abs().max() for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        size = max(gradient.abs().max(), 1e-3 * scale)
        assert (results[1][name] - gradient).abs().max() / size < tolerance, name


# --- Equal to one text a row ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [(16, 8), (100, 64)], ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_packed_equals_padded(sizes, windows, lengths):
    model = make_longformer(windows, max(lengths))
    use_blocked_attention(model)
    for first_token_is_global in (True, False):
        packed = make_packed(lengths, first_token_is_global=first_token_is_global)
        expected = states_and_gradients(model, make_padded(packed, lengths))
        assert_close(states_and_gradients(model, packed), expected, 1e-12)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_packed_equals_transformers(wide_softmax, lengths):  # noqa: F811 (a fixture)
    model, packed = make_longformer((16, 8), max(lengths)), make_packed(lengths)
    expected = states_and_gradients(model, make_padded(packed, lengths))
    use_blocked_attention(model)
    assert_close(states_and_gradients(model, packed), expected, 1e-9)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any),
    window=st.sampled_from([2, 4, 10, 64, 200]),
    tile=st.integers(1, 50),
    strip=st.integers(1, 40),
    looseness=st.sampled_from([0, 5, 1000]),
    seed=st.integers(0, 99),
)
def test_one_layer_is_attention_under_a_dense_mask(lengths, window, tile, strip, looseness, seed):
    """The definition: a score for each pair of tokens, and a mask. Texts without tokens may be anywhere."""
    model, length = make_longformer((window,), 80), sum(lengths)
    use_blocked_attention(model)
    attention = model.encoder.layer[0].attention.self
    hidden = torch.randn(1, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    bounds = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(longformer_tiles.TILE, "cpu", tile)
        patch.setitem(longformer_packed.STRIP, "cpu", strip)
        (output,) = attention(hidden, packed_row(bounds, length, max(lengths) + looseness, True))

    def heads(layer):
        return layer(hidden).unflatten(2, (2, 8)).transpose(1, 2)

    places = torch.arange(length)
    text = torch.cat([torch.full((count,), number) for number, count in enumerate(lengths)])
    is_first = torch.tensor([place == 0 or text[place] != text[place - 1] for place in range(length)])
    together = text[:, None] == text
    sees = together & (((places[:, None] - places).abs() <= window // 2) | is_first)
    local = F.scaled_dot_product_attention(
        heads(attention.query), heads(attention.key), heads(attention.value), attn_mask=sees
    )
    within = F.scaled_dot_product_attention(
        *(heads(getattr(attention, f"{name}_global")) for name in ("query", "key", "value")), attn_mask=together
    )
    expected = torch.where(is_first[:, None], within, local).transpose(1, 2).flatten(2)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


def test_texts_without_tokens_change_nothing(sizes):
    model = make_longformer((16, 8), 300)
    use_blocked_attention(model)
    expected = states_and_gradients(model, make_packed((60, 3, 37), repeats=0))
    for repeats in (1, 30):
        assert_close(states_and_gradients(model, make_packed((60, 3, 37), repeats)), expected, 1e-12)
    behind = make_packed((60, 3, 37), repeats=0)
    behind["cu_seq_lens_q"] = behind["cu_seq_lens_q"][:-1]  # what is behind the last end is a text, too
    assert_close(states_and_gradients(model, behind), expected, 1e-12)


def test_feed_forward_in_chunks_takes_any_length():
    lengths, model = (50, 3, 44), make_longformer((16, 8), 60)
    use_blocked_attention(model)
    packed = make_packed(lengths)
    expected = states_and_gradients(model, packed)
    model.config.chunk_size_feed_forward = 8
    for layer in model.encoder.layer:
        layer.chunk_size_feed_forward = 8
    assert_close(states_and_gradients(model, packed), expected, 1e-12)
    states = model(**packed, output_hidden_states=True).hidden_states
    assert [tuple(layer.shape) for layer in states] == [(1, 97, 16)] * 3


def test_all_tokens_are_projected_only_where_they_must_be(monkeypatch):
    """For very many texts, and where a projection is more than a weight and a bias: the hook of a user counts."""
    model, projected = make_longformer((16,), 310), []
    use_blocked_attention(model)
    key_global, value_global = (
        getattr(model.encoder.layer[0].attention.self, name) for name in ("key_global", "value_global")
    )
    forward = key_global.forward
    monkeypatch.setattr(key_global, "forward", lambda states: projected.append(len(states)) or forward(states))
    few, many = (100, 40), (1,) * 30 + (2,) * 30
    for lengths, expected in ((few, []), (many, [90])):
        packed = make_packed(lengths)
        projected.clear()
        results = states_and_gradients(model, packed)
        assert projected == expected
        assert_close(results, states_and_gradients(model, make_padded(packed, lengths)), 1e-12)
    before = states_and_gradients(model, make_packed(few))[0]
    value_global.register_forward_hook(lambda layer, args, output: output * 2)
    packed = make_packed(few)
    results = states_and_gradients(model, packed)
    assert (results[0] - before).abs().max() > 1e-3
    assert_close(results, states_and_gradients(model, make_padded(packed, few)), 1e-12)


# --- Dropout, recomputed layers, precision, memory -----------------------------------------------------------------


def test_recomputed_layers_give_the_same(sizes, monkeypatch):
    model, packed, passes = make_longformer((16, 8), 210, dropout=0.2), make_packed((5, 3, 40, 200)), []
    use_blocked_attention(model)
    torch.manual_seed(3)
    expected = states_and_gradients(model, packed)
    forward = WindowAttention.forward
    monkeypatch.setattr(WindowAttention, "forward", lambda *args: passes.append(1) or forward(*args))
    for use_reentrant in (False, True):
        passes.clear()
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        model.enable_input_require_grads()
        torch.manual_seed(3)
        assert_close(states_and_gradients(model, packed), expected, 1e-12)
        assert len(passes) == 4  # two layers, twice


def test_dropout_is_drawn_and_replayed():
    """A whole call under `checkpoint`, as cached gradients have it. One layer: no token shows another's dropout."""
    model, packed = make_longformer((16,), 210, dropout=0.2), make_packed((5, 3, 40, 200))
    use_blocked_attention(model)

    class Replayed(torch.nn.Module):
        def forward(self, **inputs):
            return checkpoint(lambda: model(**inputs)[:1], use_reentrant=False)

    class Named(torch.nn.Module):
        named_parameters, zero_grad = model.named_parameters, model.zero_grad
        forward = Replayed.forward

    results = []
    for called, seed in ((model, 3), (Named(), 3), (model, 4)):
        torch.manual_seed(seed)
        results.append(states_and_gradients(called, packed))
    assert_close(results[1], results[0], 1e-12)
    changes = (results[2][0] - results[0][0]).abs().amax(dim=1)
    assert changes[[0, 5, 8, 48]].min() > 1e-3  # of the first tokens
    assert changes.median() > 1e-3
    torch.testing.assert_close(model.eval()(**packed)[0], model(**packed)[0])


def test_gradients_with_dropout_are_those_of_finite_differences(monkeypatch):
    """Of strips that overlap, and global keys from another strip."""
    monkeypatch.setitem(longformer_tiles.TILE, "cpu", 3)
    monkeypatch.setitem(longformer_packed.STRIP, "cpu", 2)
    row = packed_row(torch.tensor([0, 2, 11, 12]), 12, 9, True)
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 12, 4, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]

    def attend(*tensors):
        torch.manual_seed(3)
        return attend_in_windows(*tensors, row, 2, 2, 0.4)

    assert torch.autograd.gradcheck(attend, tensors)


def test_autocast_stays_close():
    model, lengths = make_longformer((64, 32), 310, torch.float32), (300, 3, 200)
    use_blocked_attention(model)
    packed = make_packed(lengths)
    padded = make_padded(packed, lengths)
    expected = states_and_gradients(model, padded)
    with torch.autocast("cpu", torch.bfloat16):
        lower, lower_padded = states_and_gradients(model, packed), states_and_gradients(model, padded)

    def errors(results):
        squares = sum((results[1][name] - gradient).square().sum() for name, gradient in expected[1].items())
        return (results[0] - expected[0]).abs().max(), squares**0.5

    for error, error_padded in zip(errors(lower), errors(lower_padded), strict=True):
        assert error < 1.5 * error_padded


def test_memory_does_not_grow_with_the_number_of_texts():
    """No score of a first token and another text's token is kept."""
    model = make_longformer((64, 64), 4096, torch.float32, hidden_size=64)
    use_blocked_attention(model)

    def megabytes(lengths):
        packed = make_packed(lengths)
        states_and_gradients(model, packed)
        return peak_memory(lambda: states_and_gradients(model, packed), torch.device("cpu")) / 2**20

    assert megabytes((20,) * 200) < 1.3 * megabytes((1000,) * 4)


# --- Nothing waits; errors -----------------------------------------------------------------------------------------


def test_nothing_is_read_from_the_device():
    """A tensor on `meta` has no data: what decides by a value, or makes a shape of one, raises."""
    lengths = (100, 3, 700, 197)
    model, packed = make_longformer((16, 8), 710), make_packed(lengths)
    use_blocked_attention(model)
    model.to("meta")
    padded = make_padded(packed, lengths)
    is_global = {"global_attention_mask": padded.pop("global_attention_mask")}
    for inputs in (
        packed,
        packed | {"first_token_is_global": False},
        padded | {"first_token_is_global": True},
        padded,
    ):
        if inputs is padded:
            with pytest.raises((RuntimeError, NotImplementedError)):  # somebody has to count the global tokens
                model(**{name: value.to("meta") for name, value in (inputs | is_global).items()})
            continue
        inputs = {
            name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in inputs.items()
        }
        model(**inputs)[0].sum().backward()
        assert model.encoder.layer[0].attention.self.query.weight.grad.shape == (16, 16)


def test_compiled_it_is_the_same():
    model = make_longformer((16,), 210, torch.float32, dropout=0.1)
    use_blocked_attention(model)
    compiled = torch.compile(model, backend="eager", dynamic=True)
    for lengths in ((5, 3, 40), (200, 7)):
        states = []
        for called in (model, compiled):
            torch.manual_seed(5)
            states.append(called(**make_packed(lengths))[0])
        torch.testing.assert_close(*states)


def test_what_does_not_go_together_is_an_error():
    model, packed = make_longformer((8,), 60), make_packed((20, 30))
    use_blocked_attention(model)
    mask = torch.ones(1, 50)
    for wrong in (packed | {"attention_mask": mask}, packed | {"global_attention_mask": mask}):
        with pytest.raises(ValueError, match="takes no masks"):
            model(**wrong)
    with pytest.raises(ValueError, match="needs position_ids"):
        model(**packed | {"position_ids": None})
    with pytest.raises(ValueError, match="in one row, and here are 2"):
        model(**packed | {"input_ids": packed["input_ids"].expand(2, -1)})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-9)], ids=str)
def test_packed_equals_padded_on_a_gpu(dtype, tolerance):
    """In three strips, and the first tokens of long texts are in another one; and no call waits for the device."""
    lengths, model = (4000, 3, 500, 2000, 5000), make_longformer((512, 256), 5000, dtype).cuda()
    use_blocked_attention(model)
    packed = make_packed(lengths)
    on_device = [
        {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
        for inputs in (packed, make_padded(packed, lengths))
    ]
    model(**on_device[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        model(**on_device[0])[0].sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_close(*(states_and_gradients(model, inputs) for inputs in on_device), tolerance)
