"""Models of a pretraining run, as the command line describes them: documents as graphs of passages."""

import copy
import json
import logging
import math

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.nn.parallel import DistributedDataParallel

import run_docsplit_pretraining
from docsplit.data.views import OF_PASSAGES, QUERY_DOCUMENT, VIEWS
from docsplit.modeling.families.table import family_of
from docsplit.modeling.pretrained import load_tokenizer
from docsplit.training import models
from docsplit.training.arguments import (
    DataArguments,
    ModelArguments,
    PretrainingArguments,
    QueryArguments,
    RunOptions,
)
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, tiny_config

TINY = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32,graph_hidden_size=16"


def make(tokenizer, tmp_path, data=None, **options):
    args = PretrainingArguments(str(tmp_path), use_cpu=True)
    model_args = ModelArguments(model_type="graph_document", **options)
    run_options = RunOptions(model_args, data or DataArguments(), QueryArguments(), args, {"similarity": "dot"})
    return models.prepare_model(models.load_start(run_options), run_options, tokenizer)


def test_a_graph_document_model_at_random(wordpiece, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        model = make(wordpiece, tmp_path, config_overrides=f"{TINY},graph_kind=section,graph_layer_norm=true")
    assert caplog.text.count("A graph_document has no masked-LM head: mlm_weight is 0.") == 1
    config = model.encoder.config
    assert (config.graph_kind, config.graph_layer_norm, config.graph_hidden_size) == ("section", True, 16)
    assert (config.passage_encoder.hidden_size, config.passage_encoder.pad_token_id) == (32, wordpiece.pad_token_id)
    assert config.vocab_size == len(wordpiece)
    assert config.pad_token_id == wordpiece.pad_token_id  # Trainer looks here, and warns of others
    assert config.docsplit["mlm_weight"] == 0
    assert config.docsplit["similarity"] == "dot"
    with pytest.raises(ValueError, match="graph_kin"):
        make(wordpiece, tmp_path, config_overrides="graph_kin=section")


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "graph_document", "longformer", "a start"])
def test_the_line_before_documents_names_the_attention_that_the_model_will_have(kind, headless, wordpiece, tmp_path):
    args = PretrainingArguments(str(tmp_path), use_cpu=True, bf16=True)
    start = {"model_name_or_path": str(headless)} if kind == "a start" else {"model_type": kind}
    overrides = None if kind == "a start" else "hidden_size=32,num_hidden_layers=1,num_attention_heads=2"
    if kind == "graph_document":
        overrides = TINY
    for attention in (None, "eager"):
        model_args = ModelArguments(config_overrides=overrides, attn_implementation=attention, **start)
        options = RunOptions(model_args, DataArguments(), QueryArguments(), args)
        loaded = models.load_start(options)
        line = models.describe_start(loaded, options)
        config = models.prepare_model(loaded, options, wordpiece).config
        reader = family_of(config).token_encoder(config)
        assert line.startswith("device: cpu (")
        assert line.endswith(f"bfloat16, {reader._attn_implementation} attention")


def test_a_start_is_the_passage_encoder_or_the_whole(headless, wordpiece, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    overrides = "graph_kind=star,graph_hidden_size=16"
    model = make(wordpiece, tmp_path, model_name_or_path=str(headless), config_overrides=overrides)
    assert model.encoder.config.graph_kind == "star"
    assert f"Taken from {headless}: max_seq_length 128." in caplog.text  # its positions; the rest is a graph's default
    model.save_pretrained(tmp_path / "graph")
    again = make(wordpiece, tmp_path, model_name_or_path=str(tmp_path / "graph"), config_overrides="graph_kind=full")
    assert (again.encoder.config.graph_kind, again.encoder.config.graph_hidden_size) == ("full", 16)
    with pytest.raises(ValueError, match=r"beside a start are of the graph_document .*: leave out hidden_size=64"):
        make(wordpiece, tmp_path, model_name_or_path=str(headless), config_overrides="hidden_size=64")
    with pytest.raises(ValueError, match="or for --model_type graph_document"):
        ModelArguments(model_name_or_path=str(headless), config_overrides=overrides)
    eager = make(wordpiece, tmp_path, model_name_or_path=str(headless), attn_implementation="eager")
    assert eager.encoder.passage_encoder.config._attn_implementation == "eager"


def test_a_checkpoint_cuts_passages_as_the_training_did(headless, wordpiece, tmp_path, caplog):
    data = DataArguments(passage_words=40, sentence_splitter="sentencizer")
    model = make(wordpiece, tmp_path, data, model_name_or_path=str(headless))
    assert model.encoder.config.passage_words == 40
    assert "--sentence_splitter sentencizer finds the sentences of passages in training alone" in caplog.text
    model.save_pretrained(tmp_path / "graph")
    again = DocSplitForContrastivePretraining.from_pretrained(tmp_path / "graph")
    assert again.encoder.config.passage_words == 40


def test_the_passage_encoder_of_a_new_graph_cannot_be_kept_in_its_place(headless, wordpiece, tmp_path):
    model = make(wordpiece, tmp_path, model_name_or_path=str(headless))
    model.save_pretrained(tmp_path / "graph")
    for name, kind, kept in (
        (headless, "graph_document", False),
        (tmp_path / "graph", "graph_document", True),
        (headless, "bert", True),
    ):
        arguments = ModelArguments(model_name_or_path=str(name), model_type=kind)
        assert models.name_of_start(arguments) == (str(name) if kept else None)
    assert models.name_of_start(ModelArguments(model_type="graph_document")) is None


def test_the_script_trains_a_graph_document_model_and_resumes(run_here, headless, corpus_file, tmp_path, capsys):
    """From a passage encoder, with the paper's loss; a resumed run is the uninterrupted one."""
    words = ["--model_type", "graph_document", "--model_name_or_path", headless, "--corpus", corpus_file]
    words += ["--config_overrides", "graph_hidden_size=16,graph_kind=section,graph_attention_dropout=0.1"]
    words += ["--view", "passages", "--passage_words", 12, "--symmetric_loss", "--similarity", "dot"]
    words += ["--contrastive_temperature", 1, "--per_device_train_batch_size", 8, "--cache_gradients"]
    words += ["--max_steps", 4, "--save_steps", 2, "--use_cpu", "--bf16", "false", "--micro_batch_tokens", 200]
    run_here(run_docsplit_pretraining.main, *words, "--output_dir", tmp_path / "whole")
    assert "trust_remote_code=True) loads it" in capsys.readouterr().out
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    resume = ["--resume_from_checkpoint", checkpoint]
    run_here(run_docsplit_pretraining.main, *words, "--output_dir", tmp_path / "resumed", *resume)
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed"))
    before = load_file(checkpoint / "model.safetensors")
    assert sum(not torch.equal(value, before[name]) for name, value in whole.items()) > 20
    for name, value in whole.items():
        assert torch.equal(resumed[name], value), name


def test_a_stream_with_a_document_of_ten_thousand_words_in_bfloat16(run_here, headless, tmp_path):
    """Graphs of two nodes beside those of fifty: the rest of the long document is left out of training."""
    long = " ".join(row["text"] for row in make_corpus(260, seed=6))
    assert len(long.split()) > 10_000
    rows = [*make_corpus(24), {"text": long}, {"text": "Bread."}, {"text": "Too short."}]
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in rows))
    words = ["--model_type", "graph_document", "--model_name_or_path", headless, "--view", "passages"]
    words += ["--corpus", tmp_path / "documents.jsonl", "--config_overrides", "graph_hidden_size=16", "--bf16", "true"]
    words += ["--passage_words", 12, "--similarity", "dot", "--per_device_train_batch_size", 12, "--streaming"]
    words += ["--max_steps", 2, "--use_cpu", "--micro_batch_tokens", 200, "--save_strategy", "no"]
    run_here(run_docsplit_pretraining.main, *words, "--logging_steps", 1, "--output_dir", tmp_path / "out")
    results = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert results["global_step"] == 2
    assert results["documents_dropped"] >= 2  # of one passage
    assert math.isfinite(results["train_loss"])


def test_what_a_start_was_trained_with_is_said_and_masked_lm_alone_asked_for(tiny_model, wordpiece, tmp_path, caplog):
    model = DocSplitForContrastivePretraining(
        tiny_model.config, tiny_model.encoder, contrastive_weight=0, mlm_weight=1
    )
    model.save_pretrained(tmp_path / "start")
    wordpiece.save_pretrained(tmp_path / "start")

    def load(**options):
        args = PretrainingArguments(str(tmp_path), use_cpu=True, **options)
        model_args = ModelArguments(model_name_or_path=str(tmp_path / "start"))
        return models.load_start(RunOptions(model_args, DataArguments(), QueryArguments(), args))

    with pytest.raises(ValueError, match=r"masked LM alone: its contrastive_weight is 0.*Say --contrastive_weight 1"):
        load()
    assert load(contrastive_weight=0).config.docsplit["contrastive_weight"] == 0
    with caplog.at_level(logging.INFO):
        assert load(contrastive_weight=1).config.docsplit["mlm_weight"] == 1
    assert f"Taken from {tmp_path / 'start'}: pooling mean, max_seq_length 64, mlm_weight 1." in caplog.text


def loaded(start, view=None, words=None, queries=None, kind="bert", **training):
    """Load a start as a run with these options does; returns the model, ready to be trained, and the options."""
    args = PretrainingArguments(str(start.parent), use_cpu=True, **training)
    data = DataArguments(view=view, passage_words=words)
    model_args = ModelArguments(model_name_or_path=str(start), model_type=kind)
    options = RunOptions(model_args, data, QueryArguments(**(queries or {})), args)
    model = models.load_start(options)
    return models.prepare_model(model, options, load_tokenizer(start)), options


@pytest.mark.parametrize("view", [*VIEWS, QUERY_DOCUMENT])
def test_the_view_of_a_checkpoint_is_gone_on_with(view, headless, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    words = 30 if view in OF_PASSAGES else None
    model, _ = loaded(headless, view, words, mlm_weight=0)
    recorded = {"view": view} | ({"passage_words": 30} if words else {})
    assert recorded.items() <= model.config.docsplit.items()
    assert ("passage_words" in model.config.docsplit) == (words is not None)
    model.save_pretrained(tmp_path / "first")
    load_tokenizer(headless).save_pretrained(tmp_path / "first")
    caplog.clear()
    again, options = loaded(tmp_path / "first")
    said = ", ".join(f"{name} {value}" for name, value in recorded.items())
    assert f"Taken from {tmp_path / 'first'}: {said}." in caplog.text
    assert again.config.docsplit == model.config.docsplit
    assert (options.data.view, options.data.words_of_passages) == (view, words)

    caplog.clear()
    other, options = loaded(tmp_path / "first", "crop")
    assert (other.config.docsplit["view"], options.data.view) == ("crop", "crop")
    assert "passage_words" not in other.config.docsplit
    assert ": view" not in caplog.text


def test_a_graph_is_gone_on_with_and_a_new_one_takes_no_view_of_its_passage_encoder(headless, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    for number, view in enumerate(("passages", QUERY_DOCUMENT)):
        model, _ = loaded(headless, view, 25, kind="graph_document")
        model.save_pretrained(tmp_path / f"graph_{number}")
        load_tokenizer(headless).save_pretrained(tmp_path / f"graph_{number}")
        again, options = loaded(tmp_path / f"graph_{number}")
        assert (options.data.view, again.encoder.config.passage_words) == (view, 25)
        assert f"Taken from {tmp_path / f'graph_{number}'}: view {view}, passage_words 25." in caplog.text
    model, _ = loaded(headless, "simcse", mlm_weight=0)
    model.save_pretrained(tmp_path / "simcse")
    load_tokenizer(headless).save_pretrained(tmp_path / "simcse")
    caplog.clear()
    _, options = loaded(tmp_path / "simcse", kind="graph_document")
    assert (options.data.view, options.data.passage_words) == ("docsplit", 100)
    assert ": view" not in caplog.text


def test_a_checkpoint_that_does_not_tell_its_view_goes_on_with_the_default_and_it_is_said(
    tiny_model, wordpiece, tmp_path, caplog
):
    tiny_model.save_pretrained(tmp_path / "older")  # as one of an earlier version, or made in Python
    wordpiece.save_pretrained(tmp_path / "older")
    assert "view" not in tiny_model.config.docsplit
    model, options = loaded(tmp_path / "older")
    assert model.config.docsplit["view"] == options.data.view == "docsplit"
    assert "older does not say which view it was trained with" in caplog.text
    caplog.clear()
    loaded(tmp_path / "older", "simcse")
    assert "does not say" not in caplog.text


def test_what_does_not_go_with_the_view_of_a_start_is_refused(headless, tmp_path):
    for view in ("simcse", QUERY_DOCUMENT, "glimpse"):
        model, _ = loaded(headless, "simcse", mlm_weight=0)
        model.config.docsplit["view"] = view
        model.save_pretrained(tmp_path / view)
        load_tokenizer(headless).save_pretrained(tmp_path / view)
    loaded(tmp_path / QUERY_DOCUMENT, queries={"fold": 0})
    with pytest.raises(ValueError, match="--fold are for --view query_document"):
        loaded(tmp_path / "simcse", queries={"fold": 0})
    with pytest.raises(ValueError, match="--view has no glimpse\\. Choose among docsplit"):
        loaded(tmp_path / "glimpse")


@pytest.mark.parametrize(
    ("overrides", "said", "warns"),
    [
        (None, "a bert of 109 million parameters starts from random weights. That needs a large corpus", True),
        ("hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64", "of 1.0 million", False),
    ],
)
def test_a_random_start_says_its_size(tmp_path, caplog, overrides, said, warns):
    caplog.set_level("INFO")
    args = PretrainingArguments(str(tmp_path), use_cpu=True)
    options = RunOptions(ModelArguments(config_overrides=overrides), DataArguments(), QueryArguments(), args)
    assert models.load_start(options) is None
    (record,) = [record for record in caplog.records if "random weights" in record.getMessage()]
    assert said in record.getMessage()
    assert (record.levelname == "WARNING") == ("make quickstart" in record.getMessage()) == warns


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config_overrides": "hidden_size=30,num_attention_heads=7"}, "No bert can be made .* multiple of"),
        ({"attn_implementation": "fast"}, "No bert can be made .*attn_implementation=.fast"),
        ({"config_overrides": "hidden_act=gleu"}, "No bert can be made .*gleu"),
        ({"config_overrides": "num_attention_heads=0"}, "num_attention_heads=0: no such number can be here"),
        ({"config_overrides": "hidden_dropout_prob=1.5"}, "No bert can be made .*dropout probability"),
        ({"config_overrides": "layer_norm_eps=nan"}, "layer_norm_eps=nan: no such number can be here"),
        ({"config_overrides": "cls_token_id=3"}, "cls_token_id: the tokenizer says it"),
    ],
)
def test_a_random_encoder_that_cannot_be_is_refused_before_the_documents_are_read(tmp_path, options, message):
    args = PretrainingArguments(str(tmp_path), use_cpu=True)
    with pytest.raises(ValueError, match=message):
        models.load_start(RunOptions(ModelArguments(**options), DataArguments(), QueryArguments(), args))


def test_sequences_are_packed_where_it_was_asked_for(wordpiece, tmp_path, caplog):
    caplog.set_level(logging.INFO)

    def prepare(packed_sequences, kind="bert", **more):
        args = PretrainingArguments(str(tmp_path), use_cpu=True, packed_sequences=packed_sequences, bf16=False, **more)
        model_args = ModelArguments(model_type=kind, config_overrides="hidden_size=24,num_attention_heads=2")
        options = RunOptions(model_args, DataArguments(), QueryArguments(), args)
        return models.prepare_model(models.load_start(options), options, wordpiece)

    assert prepare("auto").packing is prepare("false").packing is None
    assert "up to 1,024 tokens of views, padded." in caplog.text
    model = prepare("true", micro_batch_tokens=2000)
    assert model.packing is not None
    assert not model.packing.fixed_length
    assert "up to 2,000 tokens of views, packed." in caplog.text
    assert prepare("true", torch_compile=True).packing.fixed_length
    with pytest.raises(ValueError, match="cross the borders of texts"):
        prepare("true", "big_bird")


def test_by_itself_a_gpu_in_16_bits_packs_and_says_what_is_left_out(wordpiece, tmp_path, caplog, monkeypatch):
    """Or says why it does not; here the encoder is asked as on a GPU, and is on the CPU."""
    caplog.set_level(logging.INFO)
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), pooling="mean", max_seq_length=64)
    monkeypatch.setattr(type(model), "device", property(lambda self: torch.device("cuda")))
    monkeypatch.setattr(models.DocSplitForContrastivePretraining, "pack_sequences", lambda self, dtype: None)
    models._pack(model, False, torch.float32)
    assert not caplog.messages
    models._pack(model, False, torch.bfloat16)
    assert "dropout of attention weights, 0.1, is left out" in caplog.text

    def refuse(self, dtype):
        raise ValueError("It cannot.")

    monkeypatch.setattr(models.DocSplitForContrastivePretraining, "pack_sequences", refuse)
    models._pack(model, False, torch.bfloat16)
    assert "Sequences are padded. It cannot." in caplog.text
    with pytest.raises(ValueError, match="It cannot"):
        models._pack(model, True, torch.bfloat16)


@torch._dynamo.config.patch(optimize_ddp=True)  # pytest's monkeypatch would leave it hidden
def test_a_compiled_encoder_is_one_program_under_ddp(tmp_path, wordpiece):
    """DDP's optimizer would cut it where a bucket of gradients is full: here, after nearly each layer."""
    programs = []

    def note(graph, inputs):
        programs.append(graph)
        return graph.forward

    overrides = "hidden_size=32,num_hidden_layers=3,num_attention_heads=2,intermediate_size=64"
    args = PretrainingArguments(str(tmp_path), use_cpu=True, torch_compile_backend="eager", bf16=False)
    args.compile_options["backend"] = note
    options = RunOptions(ModelArguments(config_overrides=overrides), DataArguments(), QueryArguments(), args)
    model = models.prepare_model(None, options, copy.deepcopy(wordpiece))
    ids = torch.randint(5, 50, (2, 2, 9))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "document_ids": torch.arange(2)}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parallel = DistributedDataParallel(model, bucket_cap_mb=0.001)
        parallel(**batch, mlm_input_ids=ids, mlm_targets=ids).loss.backward()
        del parallel
    finally:
        dist.destroy_process_group()
        torch._dynamo.reset()
    assert len(programs) == 1
