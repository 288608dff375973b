"""Dense layers after the pooling: those of sentence-transformers, trained, resumed and released."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense as TheirDense
from sentence_transformers.models import Normalize, Pooling, Transformer
from torch import nn
from transformers import AutoModel, AutoTokenizer, BertModel

from docsplit.embedding.encode import embed_documents, encode
from docsplit.embedding.loading import load_encoder
from docsplit.modeling.pooling import Pooling as PoolingName
from docsplit.modeling.vectors import Dense, activation_named, embedding_width, finish
from docsplit.release.model_card import write_card
from modeling_docsplit import DocSplitForContrastivePretraining
from run_docsplit_pretraining import main
from tests.conftest import make_corpus, tiny_config
from tests.modeling.test_modeling_docsplit import double_model, loss_and_gradients, random_batch

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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [nn.Identity(), nn.Tanh(), nn.GELU()])
@pytest.mark.parametrize("residual", [None, 32, 8])
def test_a_layer_is_sentence_transformers_own(bias, activation, residual, tmp_path):
    out, has_residual = residual or 8, residual is not None
    theirs = TheirDense(32, out, bias=bias, activation_function=activation, use_residual=has_residual)
    theirs.save(str(tmp_path))
    ours = Dense(json.loads((tmp_path / "config.json").read_text()))
    ours.load_state_dict(load_file(tmp_path / "model.safetensors"))
    vectors = torch.randn(3, 32)
    expected = theirs({"sentence_embedding": vectors.clone()})["sentence_embedding"]
    torch.testing.assert_close(ours(vectors), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["os.system", "torch.load", "torch.nn.Nothing", "torch.nn.functional.gelu", "x"])
def test_no_other_code_is_an_activation(name):
    with pytest.raises(ValueError, match=r"is no activation of torch\.nn"):
        activation_named(name)


@pytest.mark.parametrize("pooling", [*PoolingName.__args__])
def test_micro_batches_change_neither_loss_nor_gradients(pooling):
    batch, model = random_batch(), double_model(pooling=pooling, **WITH_DENSE)
    plain, expected = loss_and_gradients(model, batch)
    assert plain.embeddings.shape == (7, 2, 16)
    torch.testing.assert_close(plain.embeddings.norm(dim=-1), torch.ones(7, 2, dtype=torch.float64))
    of_layers = [gradient for name, gradient in expected.items() if "dense_layers" in name]
    assert len(of_layers) == 3
    assert all(gradient.abs().max() > 1e-6 for gradient in of_layers)
    for cache_gradients in (False, True):
        model.micro_batch_tokens, model.cache_gradients = 60, cache_gradients
        output, gradients = loss_and_gradients(model, batch)
        torch.testing.assert_close(output.loss, plain.loss, rtol=1e-12, atol=0)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-8, atol=1e-12)


def test_layers_are_computed_in_full_precision():
    model = DocSplitForContrastivePretraining(tiny_config_of(32), **WITH_DENSE)
    vectors = torch.randn(5, 32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = finish(model.encoder.base_model, vectors, model.config.docsplit)
    assert torch.equal(ours, finish(model.encoder.base_model, vectors, model.config.docsplit))


def tiny_config_of(width):
    return double_model().config.__class__(**double_model().config.to_diff_dict() | {"hidden_size": width})


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "momentum_contrast", "momentum_queue_size": 20},
        {"objective": "contrastive_tension"},
        {"objective": "info_nce+bregman", "bregman_subnetworks": 3},
        {"objective": "info_nce+bregman", "bregman_trunk": "shared"},
    ],
)
def test_objectives_compare_what_the_layers_give(settings):
    model = double_model(mlm_weight=0.0, **settings, **WITH_DENSE)
    output, gradients = loss_and_gradients(model, random_batch(documents=9))
    assert output.embeddings.shape == (9, 2, 16)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    second = [name for name, _ in model.named_parameters() if "second_encoder.dense_layers" in name]
    assert len(second) == (3 if model.objective.further_encoders() else 0)


def test_masked_lm_alone_leaves_the_layers_as_they_are():
    model = double_model(contrastive_weight=0.0, mlm_weight=1.0, **WITH_DENSE)
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert len(frozen) == 3
    assert all("dense_layers" in name for name in frozen)
    model(**random_batch()).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def run(run_here, start, out, *words):
    run_here(
        main, "--model_name_or_path", start, "--corpus", "tests/data/documents.jsonl", "--output_dir", out,
        "--learning_rate", 1e-2, "--use_cpu", "--bf16", "false", "--per_device_train_batch_size", 8, "--disable_tqdm",
        "true", "--save_steps", 2, "--max_steps", 4, *words,
    )  # fmt: skip
    return out


def test_a_training_keeps_them_and_resumes_exactly(start, run_here, tmp_path):
    """Trained, released, loaded by SentenceTransformer, `AutoModel` and this project; resumed from the middle."""
    whole = run(run_here, start, tmp_path / "whole")
    resumed = run(run_here, start, tmp_path / "resumed", "--resume_from_checkpoint", whole / "checkpoint-2")
    for name in ("model.safetensors", "2_Dense/model.safetensors", "3_Dense/model.safetensors"):
        before = load_file(start / name)
        after, again = load_file(whole / name), load_file(resumed / name)
        assert before.keys() == after.keys(), name
        assert all(torch.equal(after[key], again[key]) for key in after), name
        moved = [key for key in after if (after[key] - before[key]).abs().max() > 1e-3]
        assert moved == [*after] if "Dense" in name else moved, name

    theirs = SentenceTransformer(str(whole), device="cpu")
    assert [type(module).__name__ for module in theirs] == ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    expected = theirs.encode(TEXTS)
    np.testing.assert_allclose(
        embed_documents(load_encoder(str(whole), device="cpu"), TEXTS, dtype=torch.float32)[0], expected, atol=1e-5
    )
    model, tokenizer = from_pretrained(whole), AutoTokenizer.from_pretrained(whole)
    np.testing.assert_allclose(encode(model.encoder.base_model, tokenizer, TEXTS), expected, atol=1e-5)
    assert np.abs(expected - SentenceTransformer(str(start), device="cpu").encode(TEXTS)).max() > 0.01
    assert "`2_Dense` and on (Dense 32 -> 48 -> 16), at unit length" in write_card(whole)
    assert embedding_width(model.config) == 16
    with pytest.raises(ValueError, match=r"loaded without its Dense 32 -> 48 -> 16: .*from_pretrained"):
        encode(AutoModel.from_pretrained(whole), tokenizer, TEXTS)


def test_targets_of_neighbours_have_the_width_of_the_layers(start, run_here, tmp_path):
    options = ("--objective", "neighbour_distillation", "--view", "simcse", "--num_neighbours", 3)
    out = run(run_here, start, tmp_path / "out", *options)
    assert load_file(out / "distillation_targets.safetensors")["vectors"].shape[1] == 16


def test_lora_updates_them_too(start, run_here, tmp_path):
    out = run(run_here, start, tmp_path / "out", "--lora_r", 2)
    before, after = (load_file(folder / "3_Dense" / "model.safetensors") for folder in (start, out))
    assert torch.linalg.matrix_rank(after["linear.weight"] - before["linear.weight"]) == 2
    assert torch.equal(after["linear.bias"], before["linear.bias"])
    model, tokenizer = from_pretrained(out), AutoTokenizer.from_pretrained(out)
    expected = SentenceTransformer(str(out), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(encode(model.encoder.base_model, tokenizer, TEXTS), expected, atol=1e-5)


def test_a_start_with_a_head_has_its_layers_in_the_folders_alone(start, wordpiece, tmp_path):
    model = from_pretrained(start, new_mlm_head=True)
    checkpoint, release = tmp_path / "checkpoint-1", tmp_path / "release"
    model.save_pretrained(checkpoint)  # which Trainer restores
    assert len(dense_states(load_file(checkpoint / "model.safetensors"))) == 2
    model.save_pretrained(release)
    wordpiece.save_pretrained(release)
    assert not any(dense_states(load_file(file)) for file in release.glob("*.safetensors"))
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
        (_config(3, in_features=40), "3_Dense a Dense layer of 40 values, and gets 48"),
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
    assert not dense_states(model.state_dict())
    assert "its Dense layers are left out" in caplog.text


@pytest.mark.parametrize(
    "name", ["torch.nn.Linear", "torch.nn.Module", "torch.nn.modules.nosuch.X", "os.system", "GELU"]
)
def test_what_is_no_activation_is_refused(name):
    with pytest.raises(ValueError, match=r"is no activation of torch\.nn"):
        activation_named(name)
