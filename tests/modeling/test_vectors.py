"""Token states to embeddings: pooling of padded rows and of packs, Dense layers, unit length."""

import json
import shutil
from typing import get_args

import numpy as np
import pytest
import torch
from docsplit.modeling.vectors import DENSE_WEIGHTS, Dense, activation_named, finish, pool, pool_texts
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense as TheirDense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from torch import nn
from transformers import AutoTokenizer, BertModel

from docsplit.embedding.encode import encode
from docsplit.modeling.pooling import Pooling as PoolingName
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, tiny_config, weights_of
from tests.modeling.test_modeling_docsplit import double_model, loss_and_gradients, random_batch


def slow_pool(tokens, pooling):
    """Pool the states (T, H) of a row's tokens, one after another."""
    vector = torch.full_like(tokens[0], float("-inf") if pooling == "max" else 0.0)
    for position, state in enumerate(tokens, start=1):
        if pooling == "max":
            vector = torch.maximum(vector, state)
        elif pooling == "weightedmean":
            vector = vector + position * state / sum(range(1, len(tokens) + 1))
        elif pooling == "mean":
            vector = vector + state / len(tokens)
        elif position == {"cls": 1, "lasttoken": len(tokens)}[pooling]:
            vector = state
    return vector


@pytest.mark.parametrize("pooling", get_args(PoolingName))
@pytest.mark.parametrize("side", ["right", "left"])
def test_pooling_ignores_padding(pooling, side):
    """On either side, but for cls, whose rows training pads on the right."""
    hidden_states = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    lengths = [5, 2, 1]
    for row, length in enumerate(lengths):
        mask = torch.zeros(3, 5, dtype=torch.long)
        tokens = slice(0, length) if side == "right" or pooling == "cls" else slice(5 - length, 5)
        mask[row, tokens] = 1
        pooled = pool(hidden_states, mask, pooling)
        torch.testing.assert_close(pooled[row], slow_pool(hidden_states[row, tokens], pooling))
        if pooling not in ("cls", "max"):
            assert (pooled[torch.arange(3) != row] == 0).all()  # rows without tokens


@pytest.mark.parametrize("pooling", get_args(PoolingName))
def test_texts_of_a_pack_are_pooled_as_padded_ones(pooling):
    """States, and their gradients; tokens behind the last text belong to none."""
    lengths = torch.tensor([5, 1, 3])
    padded = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(5) < lengths[:, None]).long()
    pack = torch.cat([padded[mask.bool()], torch.full((6, 4), 1e6)]).requires_grad_()
    padded.requires_grad_()
    borders = torch.tensor([0, *lengths.cumsum(0).tolist()])
    wanted, got = pool(padded, mask, pooling), pool_texts(pack, borders, 9, pooling)
    torch.testing.assert_close(got, wanted, rtol=1e-14, atol=1e-14)
    weights = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ((wanted * weights).sum() + (got * weights).sum()).backward()
    torch.testing.assert_close(pack.grad[:9], padded.grad[mask.bool()], rtol=1e-14, atol=1e-14)
    assert (pack.grad[9:] == 0).all()


def test_a_pack_is_pooled_in_full_precision():
    states = torch.full((4097, 1), 1.0, dtype=torch.bfloat16)
    assert float(pool_texts(states, torch.tensor([0, 4097]), 4097, "mean")) == 1.0
    with pytest.raises(ValueError, match="expected one of"):
        pool_texts(states, torch.tensor([0, 4097]), 4097, "sum")


TEXTS = [row["text"] for row in make_corpus(6, seed=3)]
LAYERS = [
    {"in_features": 32, "out_features": 48, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"},
    {"in_features": 48, "out_features": 16, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"},
]
WITH_DENSE = {"sentence_transformer": {"normalize": True, "model": {}, "transformer": {}, "dense": LAYERS}}
from_pretrained = DocSplitForContrastivePretraining.from_pretrained


@pytest.fixture(scope="module")
def start(tmp_path_factory, wordpiece):
    """A SentenceTransformer of last tokens, two Dense layers and unit length."""
    plain, folder = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("start")
    torch.manual_seed(0)
    BertModel(tiny_config(wordpiece, initializer_range=0.3)).save_pretrained(plain)
    wordpiece.save_pretrained(plain)
    transformer = Transformer(str(plain))
    transformer.max_seq_length = 40
    dense = [TheirDense(32, 48, bias=False, activation_function=nn.Identity()), TheirDense(48, 16)]
    modules = [transformer, Pooling(32, "lasttoken"), *dense, Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    return folder


@pytest.mark.parametrize(
    ("bias", "activation", "residual"), [(True, nn.Tanh(), None), (False, nn.GELU(), 32), (True, nn.Identity(), 8)]
)
def test_a_layer_is_sentence_transformers_own(bias, activation, residual, tmp_path):
    out, has_residual = residual or 8, residual is not None
    theirs = TheirDense(32, out, bias=bias, activation_function=activation, use_residual=has_residual)
    theirs.save(str(tmp_path))
    ours = Dense(json.loads((tmp_path / "config.json").read_text()))
    ours.load_state_dict(load_file(tmp_path / "model.safetensors"))
    vectors = torch.randn(3, 32)
    expected = theirs({"sentence_embedding": vectors.clone()})["sentence_embedding"]
    torch.testing.assert_close(ours(vectors), expected, rtol=0, atol=0)


def test_layers_are_computed_in_full_precision():
    model, vectors = double_model(**WITH_DENSE).float(), torch.randn(5, 32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = finish(model.encoder.base_model, vectors, model.config.docsplit)
    assert torch.equal(ours, finish(model.encoder.base_model, vectors, model.config.docsplit))


def test_objectives_compare_what_the_layers_give():
    settings = {"objective": "momentum_contrast", "momentum_queue_size": 20, "mlm_weight": 0.0}
    model = double_model(**settings, **WITH_DENSE)
    output, gradients = loss_and_gradients(model, random_batch(documents=9))
    assert output.embeddings.shape == (9, 2, 16)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert sum("second_encoder.dense_layers" in name for name, _ in model.named_parameters()) == 3


def test_masked_lm_alone_leaves_the_layers_as_they_are():
    model = double_model(contrastive_weight=0.0, mlm_weight=1.0, **WITH_DENSE)
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert len(frozen) == 3
    assert all("dense_layers" in name for name in frozen)
    model(**random_batch()).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def test_a_start_with_a_head_has_its_layers_in_the_folders_alone(start, wordpiece, tmp_path):
    model = from_pretrained(start, new_mlm_head=True)
    checkpoint, release = tmp_path / "checkpoint-1", tmp_path / "release"
    model.save_pretrained(checkpoint)  # which Trainer restores
    assert sum(bool(DENSE_WEIGHTS.search(key)) for key in load_file(checkpoint / "model.safetensors")) == 3
    model.save_pretrained(release)
    wordpiece.save_pretrained(release)
    assert not any(DENSE_WEIGHTS.search(key) for key in weights_of(release))
    again = from_pretrained(release)
    assert again.config.docsplit["mlm_weight"]
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())


def test_layers_that_sentence_transformers_added_to_a_checkpoint_count(encoder, caplog, tmp_path):
    theirs = SentenceTransformer(str(encoder), device="cpu")
    theirs.append(TheirDense(32, 8))
    theirs.save(str(tmp_path), create_model_card=False)
    model, tokenizer = from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert "another Dense layers than its config.json; they count" in caplog.text
    np.testing.assert_allclose(encode(model.encoder.base_model, tokenizer, TEXTS), theirs.encode(TEXTS), atol=1e-5)


def _config(number, **values):
    return {f"{number}_Dense/config.json": LAYERS[number - 2] | values}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (_config(3, in_features=40), "3_Dense.* a Dense layer of 40 values, and gets 48"),
        (_config(3, activation_function="mine.Act"), "'mine.Act' is no activation of torch.nn"),
        (_config(2, module_input_name="token_embeddings"), "a Dense layer of something else than its embeddings"),
        (_config(3, out_features=17), "3_Dense/model.safetensors does not fit its config.json"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(files, message, start, tmp_path):
    folder = shutil.copytree(start, tmp_path / "start")
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder)


def test_weights_that_are_missing_are_named_and_older_files_are_read(start, tmp_path):
    folder = shutil.copytree(start, tmp_path / "start")
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no 2_Dense/model\.safetensors and no 2_Dense/pytorch_model\.bin"):
        from_pretrained(folder)
    torch.save(load_file(start / "2_Dense" / "model.safetensors"), folder / "2_Dense" / "pytorch_model.bin")
    assert from_pretrained(folder).state_dict().keys() == from_pretrained(start).state_dict().keys()


def test_the_start_of_a_graph_leaves_them_out_and_says_so(start, caplog):
    caplog.set_level("INFO")
    model = from_pretrained(start, model_type="graph_document")
    assert not any(map(DENSE_WEIGHTS.search, model.state_dict()))
    assert "its Dense layers are left out" in caplog.text


@pytest.mark.parametrize(
    "name", ["torch.nn.Linear", "torch.nn.Module", "torch.nn.modules.nosuch.X", "os.system", "GELU"]
)
def test_what_is_no_activation_is_refused(name):
    with pytest.raises(ValueError, match=r"is no activation of torch\.nn"):
        activation_named(name)
