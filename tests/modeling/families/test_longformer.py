"""A Longformer's global token, and its attention in tiles: transformers' own numbers from less memory."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, BertConfig, BigBirdConfig, LongformerConfig, LongformerModel
from transformers.models.longformer import modeling_longformer

from docsplit.embedding.encode import embed_documents
from docsplit.modeling.families import longformer as module
from docsplit.modeling.families.longformer import token_masks, use_blocked_attention, use_transformers_attention
from docsplit.modeling.families.table import family_of
from docsplit.modeling.loading import load_encoder
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import OF_IDS
from tests.modeling.test_modeling_docsplit import SMALL, loss_and_gradients, random_batch

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LONGFORMER = SMALL | NO_DROPOUT | {"attention_window": [16, 16], "max_position_embeddings": 300, "pad_token_id": 1}
BIGBIRD = SMALL | NO_DROPOUT | {"block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 200}


def make_model(config, tokenizer=OF_IDS, **settings):
    torch.manual_seed(0)
    settings = {"pooling": "cls", "max_seq_length": 100} | settings
    return DocSplitForContrastivePretraining.from_config(config, tokenizer, **settings).double().train()


@pytest.mark.parametrize(
    "config", [LongformerConfig(**LONGFORMER), BigBirdConfig(**BIGBIRD)], ids=["longformer", "bigbird"]
)
def test_micro_batches_change_neither_loss_nor_gradients(config):
    batch = random_batch(longest=26 if config.model_type == "big_bird" else 60)  # full attention for all of BigBird's
    model = make_model(config)
    plain, expected = loss_and_gradients(model, batch)
    model.micro_batch_tokens, model.cache_gradients = 64, True
    output, gradients = loss_and_gradients(model, batch)
    torch.testing.assert_close(output.loss, plain.loss, rtol=1e-9, atol=0)
    for name, gradient in gradients.items():  # DDP waits for each of them
        torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=1e-10)
        assert gradient.abs().max() > 0 or "key" in name, name


def test_what_the_encoder_pads_to_is_padding():
    """Rows share micro-batches by the windows that are computed, not by their own lengths."""
    for config in (BigBirdConfig(**BIGBIRD), BertConfig(**SMALL)):
        assert family_of(config).length_multiple(AutoModel.from_config(config)) == 1
    model, seen = make_model(LongformerConfig(**LONGFORMER)), []
    model.micro_batch_tokens = 64
    model.encoder.base_model.encoder.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((args[0] if args else kwargs["hidden_states"]).shape[:2].numel()),
        with_kwargs=True,
    )
    output = model(**random_batch(longest=60))
    assert sum(seen) == 2 * output.num_computed_tokens  # the masked copies go with the views


@pytest.fixture
def longformer(byte_level_bpe, tmp_path):
    values = LONGFORMER | {"vocab_size": len(byte_level_bpe), "pad_token_id": byte_level_bpe.pad_token_id}
    model = make_model(LongformerConfig(**values), byte_level_bpe, max_seq_length=64).float()
    model.save_pretrained(tmp_path)
    return tmp_path, model


def test_embedding_probing_and_export_attend_alike(longformer, corpus, byte_level_bpe):
    path, model = longformer
    texts = corpus["text"][:6]
    expected = []
    model.eval()
    for text in texts:
        batch = byte_level_bpe(text, truncation=True, max_length=64, return_tensors="pt")
        is_global = torch.zeros_like(batch["input_ids"])
        is_global[:, 0] = 1
        plain = AutoModel.from_pretrained(path, add_pooling_layer=False).eval()
        with torch.no_grad():
            expected.append(plain(**batch, global_attention_mask=is_global)[0][0, 0].numpy())
    for name, embeddings in {
        "in training": embed_documents(model.body, texts, dtype=torch.float32)[0],
        "in small micro-batches": embed_documents(model.body, texts, dtype=torch.float32, micro_batch_tokens=100)[0],
        "for probing": load_encoder(str(path), device="cpu").encode(texts),
        "exported": SentenceTransformer(str(path), device="cpu", trust_remote_code=True).encode(texts),
    }.items():
        np.testing.assert_allclose(embeddings, expected, atol=1e-5, err_msg=name)
    local = plain(**batch)[0][0, 0].detach().numpy()
    assert np.abs(local - expected[-1]).max() > 1e-4
    twin = copy.deepcopy(model.body)
    with torch.no_grad():
        twin[0].model.embeddings.word_embeddings.weight.mul_(2)
    assert np.abs(embed_documents(twin, texts)[0] - expected).max() > 1e-2  # a copy uses its own weights


def make_longformer(windows, positions, dtype=torch.float64, dropout=0.0, hidden_size=16):
    config = LongformerConfig(
        vocab_size=50, hidden_size=hidden_size, num_hidden_layers=len(windows), num_attention_heads=2,
        intermediate_size=24, attention_window=list(windows), max_position_embeddings=positions + 2, pad_token_id=1,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LongformerModel(config, add_pooling_layer=False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # with the usual weights all attention is about even
    return model.to(dtype).train()


def make_inputs(lengths, num_global, seed=0):
    """Rows of these lengths; the first has `num_global` global tokens, each other one fewer, one at least."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(3, 50, mask.shape, generator=generator).masked_fill(mask == 0, 1)
    is_global = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        wanted = min(max(num_global - row, 1), length) if num_global else 0
        is_global[row, torch.randperm(length, generator=generator)[:wanted]] = 1
    return {"input_ids": ids, "attention_mask": mask, "global_attention_mask": is_global}


def states_and_gradients(model, inputs):
    """Return the states, and the gradients of a loss of all states of real tokens."""
    model.zero_grad()
    states = model(**inputs)[0]
    weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (states * weight.to(states) * inputs["attention_mask"].unsqueeze(-1)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return states.detach(), {name: gradient.clone() for name, gradient in gradients.items() if gradient is not None}


def assert_equal(model, inputs, tolerance):
    """To transformers' own, states of padding included; each gradient in relation to its own size."""
    use_transformers_attention(model)
    expected, expected_gradients = states_and_gradients(model, inputs)
    use_blocked_attention(model)
    states, gradients = states_and_gradients(model, inputs)
    assert expected.isfinite().all()
    torch.testing.assert_close(states, expected, rtol=0, atol=tolerance)
    assert set(gradients) == set(expected_gradients)
    scale = max(gradient.abs().max() for gradient in expected_gradients.values())
    for name, gradient in expected_gradients.items():
        size = max(gradient.abs().max(), 1e-3 * scale)
        assert (gradients[name] - gradient).abs().max() / size < tolerance, name


@pytest.fixture
def wide_softmax(monkeypatch):
    """transformers computes this one softmax in fp32, float64 models included."""
    softmax = F.softmax

    def in_float64(scores, dim, dtype=None):
        return softmax(scores, dim=dim, dtype=torch.promote_types(scores.dtype, torch.float32))

    monkeypatch.setattr(modeling_longformer.nn.functional, "softmax", in_float64)


# --- Equal to transformers' ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [(4, 4), (16, 8), (64, 128)], ids=str)
@pytest.mark.parametrize(
    ("lengths", "num_global", "tile"),
    [((2, 1), 1, 160), ((64, 33, 1), 0, 1), ((300, 257, 7), 3, 160), ((300, 100), 20, 50)],
    ids=str,
)
def test_equal_to_transformers_in_float64(wide_softmax, monkeypatch, windows, lengths, num_global, tile):
    """Also with more global tokens than a head is wide, for which all tokens are projected."""
    monkeypatch.setitem(module.TILE, "cpu", tile)
    assert_equal(make_longformer(windows, 310), make_inputs(lengths, num_global), 1e-9)


def test_a_hook_on_a_global_projection_counts(wide_softmax):
    model, inputs = make_longformer((16, 16), 310), make_inputs((40, 33), 2)
    before = states_and_gradients(model, inputs)[0]
    model.encoder.layer[0].attention.self.value_global.register_forward_hook(lambda layer, args, output: output * 2)
    assert_equal(model, inputs, 1e-9)
    assert (states_and_gradients(model, inputs)[0] - before).abs().max() > 1e-3


@pytest.mark.parametrize("options", [{"output_hidden_states": True}, {"return_dict": False}], ids=str)
def test_what_the_model_can_be_called_with_otherwise(options):
    """By embeddings, a mask of three values, and for all states or a tuple."""
    model, inputs = make_longformer((16, 8), 60, torch.float32).eval(), make_inputs((40, 33), 1)
    call = {"inputs_embeds": model.embeddings.word_embeddings(inputs["input_ids"]).detach(), **options}
    call["attention_mask"] = inputs["attention_mask"] * (1 + inputs["global_attention_mask"])
    with torch.no_grad():
        theirs = model(**call)
        use_blocked_attention(model)
        ours = model(**call)
    assert type(ours) is type(theirs)
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-4)
    if "output_hidden_states" in options:
        torch.testing.assert_close(ours.hidden_states, theirs.hidden_states, rtol=0, atol=1e-4)


# --- Dropout, precision, memory ------------------------------------------------------------------------------------


def test_dropout_keeps_the_mean():
    model = make_longformer((8,), 60, dropout=0.3)
    use_blocked_attention(model)
    attention, hidden = model.encoder.layer[0].attention.self, torch.randn(1, 40, 16, dtype=torch.float64)
    hidden = hidden.expand(100, -1, -1)  # a text a hundred times: dropout is drawn for each
    is_global = torch.zeros(100, 40, dtype=torch.bool)
    is_global[:, 0] = True
    rows = token_masks(torch.zeros_like(is_global), is_global)
    with torch.no_grad():
        drawn = torch.cat([attention(hidden, rows)[0] for _ in range(30)])  # (3000, T, H)
        expected = attention.eval()(hidden, rows)[0][0]
    error = (drawn.mean(0) - expected).abs() / (drawn.std(0) / 3000**0.5)
    assert drawn.std(0).min() > 0
    assert error.max() < 6  # standard errors


# --- In a model, in training and embedding -------------------------------------------------------------------------


def test_what_it_cannot_do_is_an_error():
    model = make_longformer((8,), 60)
    use_blocked_attention(model)
    with pytest.raises(ValueError, match=r"output_attentions is True.*use_transformers_attention"):
        model(**make_inputs((20,), 1), output_attentions=True)
    use_transformers_attention(model)
    assert model(**make_inputs((20,), 1), output_attentions=True).attentions
    with pytest.raises(ValueError, match="no Longformer"):
        use_blocked_attention(AutoModel.from_config(BertConfig(**SMALL)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-9)], ids=str)
def test_equal_on_a_gpu(wide_softmax, dtype, tolerance):
    model = make_longformer((512, 256), 1300, dtype).cuda()
    inputs = {name: value.cuda() for name, value in make_inputs((1200, 1111, 7), 2).items()}
    assert_equal(model, inputs, tolerance)
