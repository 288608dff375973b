"""Models of a pretraining run, as the command line describes them: starts, random ones, graphs of passages."""

import copy
import logging

import pytest
import torch

import run_docsplit_pretraining
from docsplit.data.views import PASSAGE_VIEWS, QUERY_DOCUMENT
from docsplit.modeling.checked_files import load_tokenizer
from docsplit.training import models
from docsplit.training.documents import TrainingData
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import weights_of
from tests.training.examples import run_options

TINY = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2"
GRAPH = f"{TINY},intermediate_size=32,graph_hidden_size=16"


@pytest.fixture
def load(wordpiece, tmp_path, caplog):
    """A function that makes a model ready to be trained, as a run with these options does; returns it and them."""
    caplog.set_level(logging.INFO)

    def make(start=None, data=(), queries=(), objective=(), model=(), **training):
        model = {"model_name_or_path": None if start is None else str(start)} | dict(model)
        options = run_options(tmp_path / "out", data, queries, objective, model, **training)
        loaded = models.load_model(options)
        tokenizer = copy.deepcopy(wordpiece) if start is None else load_tokenizer(start)
        return models.prepare_model(loaded, options, TrainingData(None, None, tokenizer, {})), options

    return make


@pytest.fixture
def saved(tmp_path):
    """A function that saves a model, and returns the folder."""

    def save(model, name):
        model.save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


def test_a_graph_document_model_at_random(load, wordpiece):
    graph = {"model_type": "graph_document", "config_overrides": f"{GRAPH},graph_kind=section,graph_layer_norm=true"}
    config = load(model=graph, objective={"similarity": "dot"})[0].encoder.config
    assert (config.graph_kind, config.graph_layer_norm, config.graph_hidden_size) == ("section", True, 16)
    assert (config.passage_encoder.hidden_size, config.passage_encoder.pad_token_id) == (32, wordpiece.pad_token_id)
    assert (config.vocab_size, config.pad_token_id) == (len(wordpiece), wordpiece.pad_token_id)
    assert (config.docsplit["mlm_weight"], config.docsplit["similarity"]) == (0, "dot")


def test_a_start_is_the_passage_encoder_of_a_graph_or_the_whole(load, headless, saved, caplog):
    def graph(overrides=None):
        return {"model_type": "graph_document", "config_overrides": overrides}

    data = {"passage_words": 40, "sentence_splitter": "sentencizer"}
    model, options = load(headless, data, model=graph("graph_kind=star,graph_hidden_size=16"))
    assert (model.encoder.config.graph_kind, model.encoder.config.passage_words) == ("star", 40)
    assert model.body.max_seq_length == 128  # its positions
    assert "--sentence_splitter sentencizer finds the sentences of passages in training alone" in caplog.text
    assert models.name_of_start(options.model) is None  # it cannot be kept in the graph's place
    folder = saved(model, "graph")
    again, options = load(folder, model=graph("graph_kind=full"))
    config = again.encoder.config
    assert (config.graph_kind, config.graph_hidden_size, config.passage_words) == ("full", 16, 40)
    assert models.name_of_start(options.model) == str(folder)
    with pytest.raises(ValueError, match=r"beside a start are of the graph alone: leave out hidden_size=64"):
        load(headless, model=graph("hidden_size=64"))


def test_a_graph_that_is_resumed_is_the_uninterrupted_one(run_here, headless, corpus_file, tmp_path):
    words = ["--model_type", "graph_document", "--model_name_or_path", headless, "--corpus", corpus_file]
    words += ["--config_overrides", "graph_hidden_size=16,graph_kind=section,graph_attention_dropout=0.1"]
    words += ["--view", "passages", "--passage_words", 12, "--similarity", "dot", "--per_device_train_batch_size", 8]
    words += ["--max_steps", 2, "--save_steps", 1, "--use_cpu", "--micro_batch_tokens", 200]
    words += ["--cache_gradients", "--symmetric_loss", "--contrastive_temperature", 1]
    run_here(run_docsplit_pretraining.main, *words, "--output_dir", tmp_path / "whole")
    resume = ["--resume_from_checkpoint", tmp_path / "whole" / "checkpoint-1"]
    run_here(run_docsplit_pretraining.main, *words, "--output_dir", tmp_path / "resumed", *resume)
    before, whole, resumed = (weights_of(tmp_path / name) for name in ("whole/checkpoint-1", "whole", "resumed"))
    assert sum(not torch.equal(value, before[name]) for name, value in whole.items()) > 20
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_masked_lm_alone_is_asked_for(tiny_model, load, saved, caplog):
    weights = {"contrastive_weight": 0, "mlm_weight": 1}
    start = saved(DocSplitForContrastivePretraining(tiny_model.body, tiny_model.encoder, **weights), "start")
    with pytest.raises(ValueError, match=r"masked LM alone: its contrastive_weight is 0.*Say --contrastive_weight 1"):
        load(start)
    assert load(start, contrastive_weight=0)[0].config.docsplit["contrastive_weight"] == 0
    assert load(start, contrastive_weight=1)[0].config.docsplit["mlm_weight"] == 1
    assert f"Taken from {start}: mlm_weight 1." in caplog.text


@pytest.mark.parametrize(
    ("view", "kind"), [("simcse", "bert"), ("passages", "bert"), (QUERY_DOCUMENT, "graph_document")]
)
def test_the_view_of_a_checkpoint_is_gone_on_with(view, kind, headless, load, saved, caplog):
    words = 30 if view in PASSAGE_VIEWS or kind == "graph_document" else None
    model, _ = load(headless, {"view": view, "passage_words": words}, model={"model_type": kind}, mlm_weight=0)
    first = saved(model, "first")
    caplog.clear()
    again, options = load(first)
    assert again.config.docsplit == model.config.docsplit
    assert (options.data.view, options.data.passage_words) == (view, words or 100)
    assert f"Taken from {first}: view {view}{f', passage_words {words}' if words else ''}." in caplog.text
    if kind == "bert":
        other, options = load(first, {"view": "crop"})
        assert (other.config.docsplit["view"], options.data.view) == ("crop", "crop")
        assert "passage_words" not in other.config.docsplit
        _, options = load(first, model={"model_type": "graph_document"})  # a passage encoder's view says nothing
        assert (options.data.view, options.data.passage_words) == ("docsplit", 100)


def test_what_does_not_go_with_the_view_of_a_start_is_refused(headless, load, saved):
    model, _ = load(headless, {"view": "simcse"}, mlm_weight=0)
    with pytest.raises(ValueError, match="--fold are for --view query_document"):
        load(saved(model, "simcse"), queries={"fold": 0})
    model.config.docsplit["view"] = "glimpse"
    with pytest.raises(ValueError, match=r"--view has no glimpse\. Choose among docsplit"):
        load(saved(model, "glimpse"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn_implementation": "fast"}, "No bert can be made .*attn_implementation=.fast"),
        ({"config_overrides": "hidden_act=gleu"}, "No bert can be made .*gleu"),
        ({"config_overrides": "layer_norm_eps=nan"}, "layer_norm_eps=nan: no such number can be here"),
        ({"config_overrides": "vocab_size=300"}, "vocab_size: the tokenizer says it"),
    ],
)
def test_a_random_encoder_that_cannot_be_is_refused(options, message, load):
    with pytest.raises(ValueError, match=message):
        load(model=options)


def test_sequences_are_packed_where_it_was_asked_for_or_by_itself_on_a_gpu(load, monkeypatch, caplog):
    def packing(packed_sequences, kind="bert", **more):
        overrides = "hidden_size=24,num_attention_heads=2"
        model = {"model_type": kind, "config_overrides": overrides}
        return load(model=model, packed_sequences=packed_sequences, bf16=False, **more)[0].packing

    assert packing("auto") is packing("false") is None
    assert "packed" not in caplog.text
    assert not packing("true").fixed_length
    assert "Sequences are packed, without dropout" in caplog.text
    with pytest.raises(ValueError, match="cross the borders of texts"):
        packing("true", "big_bird")
    # As on a GPU: in 16 bits alone, and with a line where it cannot be
    model, _ = load(model={"model_type": "big_bird", "config_overrides": TINY}, bf16=False)
    monkeypatch.setattr(type(model), "device", property(lambda self: torch.device("cuda")))
    models._pack(model, False, torch.float32)
    assert "Sequences are padded." not in caplog.text
    models._pack(model, False, torch.bfloat16)
    assert "Sequences are padded." in caplog.text


@torch._dynamo.config.patch(optimize_ddp=True)  # pytest's monkeypatch would leave it hidden
def test_a_compiled_encoder_is_one_program_under_ddp(load):
    """DDP's optimizer would cut it where a bucket of gradients is full."""
    model, _ = load(model={"config_overrides": TINY}, torch_compile_backend="eager", bf16=False)
    assert "forward" in vars(model.encoder.base_model)
    assert not torch._dynamo.config.optimize_ddp
