"""What comes in: hostile folders, settings, and any encoder to start from, a SentenceTransformer too."""

import builtins
import contextlib
import json
import linecache
import logging
import re
import shutil
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Router, Transformer
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    DistilBertConfig,
    LongformerConfig,
    ModernBertConfig,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
)

from docsplit.embedding.encode import embed_documents, embed_queries
from docsplit.modeling.checked_files import CannotLoad, as_cannot_load, load_tokenizer, max_positions
from docsplit.modeling.loading import changed_prompts, document_prompt, load_encoder, prompts_of, query_prompt
from docsplit.modeling.start import (
    DEFAULT_SETTINGS,
    checked_length,
    checked_settings,
    setting_names,
    settings_for,
)
from modeling_docsplit import DocSplitForContrastivePretraining
from run_docsplit_pretraining import main
from tests.conftest import make_corpus, tiny_config, tiny_values
from tests.hostile_folders import CASES, folders, has_run

ROOT = Path(__file__).parents[2]


def embed(folder):
    load_encoder(folder, device="cpu").encode_document(["a ship"])


def start_training(folder):
    DocSplitForContrastivePretraining.from_pretrained(folder)
    load_tokenizer(folder)


@pytest.mark.parametrize("use", [embed, start_training])
@pytest.mark.filterwarnings("ignore")
def test_hostile_folders_load_or_are_refused_in_a_line(use, wordpiece, tmp_path, monkeypatch):
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("asked on the terminal"))
    wrong, refused = [], 0
    for case, folder in folders(wordpiece, tmp_path):
        outcome = "loads"
        try:
            use(str(folder))
        except ValueError as error:
            frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
            said = linecache.getline(frame.f_code.co_filename, line).lstrip()
            is_ours = Path(frame.f_code.co_filename).is_relative_to(ROOT) and said.startswith("raise ")
            is_line = is_ours and len(str(error)) < 1200 and "\n" not in str(error) and folder.name in str(error)
            outcome = "refused" if is_line else f"ends with {error!r}"
        except Exception as error:
            outcome = f"ends with {error!r}"
        refused += outcome == "refused"
        as_meant = outcome == "refused" or (outcome == "loads" and (case.loads or use is start_training))
        if has_run(folder) or not as_meant:
            wrong.append((case.kind, case.name, "was run" if has_run(folder) else outcome))
    assert not wrong
    assert refused > 80  # a training does not use all files


@pytest.mark.parametrize("task", [None, "FEATURE_EXTRACTION"])
def test_an_adapter_is_refused_with_the_command_that_merges_it(task, encoder, tmp_path):
    """Its weights are changes of an encoder that lies elsewhere: every use says so, and how to have both in one."""
    theirs = SentenceTransformer(str(encoder), device="cpu")
    config = LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False, task_type=task)
    shutil.copytree(encoder, tmp_path / "adapter", ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
    shutil.copytree(encoder / "1_Pooling", tmp_path / "adapter" / "1_Pooling", dirs_exist_ok=True)
    get_peft_model(theirs[0].model, config).save_pretrained(tmp_path / "adapter")
    for use in (embed, start_training):
        with pytest.raises(CannotLoad, match="is a PEFT adapter") as refusal:
            use(str(tmp_path / "adapter"))
    (command,) = re.findall(r"`python -c \"(.*)\"`", str(refusal.value))
    exec(command.replace("FOLDER", str(tmp_path / "merged")))
    shutil.copytree(
        tmp_path / "adapter", tmp_path / "merged", ignore=shutil.ignore_patterns("adapter*"), dirs_exist_ok=True
    )
    merged = load_encoder(str(tmp_path / "merged"), device="cpu")
    np.testing.assert_allclose(merged.encode("a ship"), theirs.encode("a ship"), atol=1e-5)


def test_the_canary_sings_where_code_is_run(wordpiece, tmp_path):
    """Otherwise the test above would pass whatever happens."""
    case = next(case for case in CASES if case.name == "its code was replaced" and case.kind == "graph")
    for _, folder in folders(wordpiece, tmp_path, [case]):
        AutoModel.from_pretrained(folder, trust_remote_code=True, force_download=True)
        exec((folder / "graph_document_transformer.py").read_text().splitlines()[0])
        assert has_run(folder)


def test_errors_of_this_project_and_ctrl_c_stay_as_they_are():
    with pytest.raises(KeyboardInterrupt), as_cannot_load("name"):
        raise KeyboardInterrupt
    with pytest.raises(CannotLoad, match=r"^choose another$"), as_cannot_load("name"):
        raise CannotLoad("choose another")
    with (
        pytest.raises(CannotLoad, match=r"name a model .* The cause: TypeError: 5 and 6$"),
        as_cannot_load("name"),
    ):
        raise TypeError("5\nand 6")


SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 20}


def config_with(**settings):
    config = BertConfig(**SMALL, max_position_embeddings=100)
    config.docsplit = settings
    return config


def test_overrides_come_before_the_checkpoint_and_that_before_the_defaults():
    settings = checked_settings(config_with(contrastive_weight=2.0, mlm_weight=0.5), {"mlm_weight": 0.2})
    assert (settings["contrastive_weight"], settings["mlm_weight"]) == (2.0, 0.2)
    assert settings["objective"] == DEFAULT_SETTINGS["objective"] == "info_nce"
    assert "contrastive_temperature" in settings  # an option of the objective


def test_the_default_length_is_what_the_encoder_has_positions_for():
    assert checked_length(config_with(), None) == 100
    with pytest.raises(ValueError, match="positions for 100 tokens: set max_seq_length=100 or less"):
        checked_length(config_with(), 101)
    unlimited = BertConfig(**SMALL, max_position_embeddings=-1)
    assert max_positions(unlimited) is None
    assert checked_length(unlimited, None) == 512


def test_another_objective_drops_the_options_of_the_one_before():
    saved = {"objective": "momentum_contrast", "momentum_queue_size": 8, "mlm_weight": 0.0, "view": "crop"}
    assert settings_for("info_nce", saved) == {"objective": "info_nce", "mlm_weight": 0.0, "view": "crop"}
    settings = checked_settings(config_with(**saved), {"objective": "info_nce"})
    assert settings["objective"] == "info_nce"
    assert "momentum_queue_size" not in settings
    assert set(settings) <= {*setting_names()}


from_pretrained = DocSplitForContrastivePretraining.from_pretrained


@contextlib.contextmanager
def load_reports():
    """Collect the reports on weights that transformers logs while it loads."""
    reports, logs = [], logging.getLogger("transformers.modeling_utils")
    handler = logging.Handler()
    handler.emit = lambda record: reports.append(record.getMessage())
    logs.addHandler(handler)
    level = logs.level
    logs.setLevel(logging.WARNING)  # whatever a test before has made of it
    try:
        yield reports
    finally:
        logs.removeHandler(handler)
        logs.setLevel(level)


def configs(tokenizer):
    values = tiny_values(tokenizer)
    return {
        "bert": tiny_config(tokenizer),
        "roberta": RobertaConfig(**values),
        "modernbert": ModernBertConfig(**values),
        "distilbert": DistilBertConfig(vocab_size=len(tokenizer), dim=32, n_layers=2, n_heads=2, hidden_dim=64),
        "longformer": LongformerConfig(**values, attention_window=[16, 16]),
    }


def saved(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


def test_the_pooler_is_the_start_s_where_it_has_one(tmp_path, wordpiece):
    torch.manual_seed(0)
    start = BertForPreTraining(tiny_config(wordpiece))
    model = from_pretrained(saved(start, wordpiece, tmp_path / "start"))
    assert model.config.docsplit["mlm_weight"] == 0.1  # its head is there
    assert_equal(model.encoder.cls.predictions.state_dict(), start.cls.predictions.state_dict())
    folder = saved(model, wordpiece, tmp_path / "release")
    assert_equal(AutoModel.from_pretrained(folder).pooler.state_dict(), start.bert.pooler.state_dict())


def test_a_start_without_a_head_is_trained_without_one(headless, wordpiece, caplog, tmp_path):
    caplog.set_level("INFO")
    with load_reports() as reports:
        model = from_pretrained(headless, pooling="mean")
    assert reports == []
    assert type(model.encoder) is BertModel
    assert model.config.docsplit["mlm_weight"] == 0
    # By number: a script's handler, of an earlier test, writes names
    assert [record.levelno for record in caplog.records if "no masked-LM head" in record.message] == [logging.INFO]
    batch = wordpiece(["bread and butter", "a ship"] * 2, padding=True, return_tensors="pt")
    views = {key: batch[key].view(2, 2, -1) for key in ("input_ids", "attention_mask")}
    model(**views).loss.backward()
    assert all((parameter.grad is None) == ("pooler." in name) for name, parameter in model.named_parameters())

    caplog.clear()
    from_pretrained(headless, mlm_weight=0.3)
    (record,) = [record for record in caplog.records if "no masked-LM head" in record.message]
    assert record.levelno == logging.WARNING
    assert "0 in place of 0.3" in record.message
    assert "--new_mlm_head" in record.message
    with pytest.raises(ValueError, match=r"nothing is left to train.*--new_mlm_head"):
        from_pretrained(headless, contrastive_weight=0.0)

    # what it writes is what it read: names, class and pooler
    folder = saved(model, wordpiece, tmp_path / "checkpoint")
    assert_equal(load_file(headless / "model.safetensors"), load_file(folder / "model.safetensors"))
    with load_reports() as reports:
        AutoModel.from_pretrained(folder)
        SentenceTransformer(str(folder), device="cpu")
    assert reports == []


def test_a_new_head_is_made_where_it_is_asked_for(headless, wordpiece, tmp_path):
    model = from_pretrained(headless, new_mlm_head=True)
    assert model.config.docsplit["mlm_weight"] == 0.1
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert all(parameter.requires_grad for parameter in model.encoder.cls.parameters())
    folder = saved(model, wordpiece, tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="has a masked-LM head: leave out --new_mlm_head"):
        from_pretrained(folder, new_mlm_head=True)
    with pytest.raises(ValueError, match="mlm_weight 0 never trains"):
        from_pretrained(headless, new_mlm_head=True, mlm_weight=0.0)


def test_what_cannot_be_trained_is_refused(tmp_path, headless):
    with pytest.raises(ValueError, match=r"'no/model' cannot be loaded as an encoder"):
        from_pretrained("no/model")
    values = {"vocab_size": 200, "d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 1, "d_kv": 16}
    T5Model(T5Config(**values)).save_pretrained(tmp_path / "t5")
    with pytest.raises(ValueError, match="a t5, an encoder with a decoder"):
        from_pretrained(tmp_path / "t5")
    with pytest.raises(ValueError, match=r"headless' cannot be loaded as an encoder. The cause: .*fast"):
        from_pretrained(headless, attn_implementation="fast")
    config = json.loads((headless / "config.json").read_text())
    (headless / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"lacks \d+ weights of its own architecture, such as \['encoder.layer.2"):
        from_pretrained(headless)
    (headless / "config.json").write_text(json.dumps(config))
    (headless / "model.safetensors").write_bytes((headless / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"headless' cannot be loaded as an encoder. The cause: .*header"):
        from_pretrained(headless)


@pytest.mark.parametrize("has_head", [True, False])
def test_training_is_in_float32_and_the_release_in_the_dtype_of_the_start(has_head, tmp_path, wordpiece):
    kind = AutoModelForMaskedLM if has_head else AutoModel
    kind.from_config(tiny_config(wordpiece)).to(torch.bfloat16).save_pretrained(tmp_path / "start")
    wordpiece.save_pretrained(tmp_path / "start")
    model = from_pretrained(tmp_path / "start")
    assert model.dtype == torch.float32
    with torch.no_grad():
        model.get_input_embeddings().weight[5, 5] = 1 + 2**-20  # no bfloat16
    folder = saved(model, wordpiece, tmp_path / "release")
    assert AutoModel.from_pretrained(folder).dtype == torch.bfloat16
    assert SentenceTransformer(str(folder), device="cpu").dtype == torch.bfloat16
    again = from_pretrained(folder)  # nothing is rounded on the way
    assert_equal(model.state_dict(), again.state_dict())
    folder = saved(again, AutoTokenizer.from_pretrained(folder), tmp_path / "further")
    assert AutoModel.from_pretrained(folder).dtype == torch.bfloat16


TEXTS = [row["text"] for row in make_corpus(6, seed=3)]
PROMPTS = {"query": "query: ", "passage": "passage: "}


def modules(*kinds, path="", package="sentence_transformers.sentence_transformer.modules"):
    """A modules.json of these modules; the first one's folder has this path."""
    paths = [path, *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], 1))]
    return {
        "modules.json": [
            {"idx": number, "name": str(number), "path": place, "type": f"{package}.{kind}"}
            for number, (kind, place) in enumerate(zip(kinds, paths))
        ]
    }


def pooling(**values):
    return {"1_Pooling/config.json": {"embedding_dimension": 32, **values}}


OLD_FILES = {  # as most models on the Hub have them
    **modules("Transformer", "Pooling"),
    "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": True},
    "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_cls_token": False,
                              "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True},
    "config_sentence_transformers.json": {"__version__": {"sentence_transformers": "2.2.2"}},
}  # fmt: skip


@pytest.fixture
def make_start(tmp_path, wordpiece):
    """A folder that SentenceTransformer wrote, with changes to its JSON files."""

    def make(
        pooling="mean", normalize=True, tokenizer=wordpiece, dtype=None, length=40, files=None, dense=(), **options
    ):
        torch.manual_seed(0)
        plain, folder = tmp_path / "plain", tmp_path / "start"
        if tokenizer is wordpiece:
            encoder = BertModel(tiny_config(tokenizer))
        else:
            encoder = RobertaModel(RobertaConfig(**tiny_values(tokenizer)))
        encoder.to(dtype or torch.float32).save_pretrained(plain)
        tokenizer.save_pretrained(plain)
        transformer = Transformer(str(plain))
        transformer.max_seq_length = length
        modules = [transformer, Pooling(32, pooling), *dense, *([Normalize()] if normalize else [])]
        SentenceTransformer(modules=modules, device="cpu", **options).save(str(folder), create_model_card=False)
        for name, content in (files or {}).items():
            (folder / name).write_text(json.dumps(content))
        return folder

    return make


STARTS = {
    "prompts": {"prompts": PROMPTS, "similarity_fn_name": "euclidean"},
    "a default prompt": {
        "pooling": "cls", "normalize": False, "length": 100, "similarity_fn_name": "dot",
        "prompts": {"any": "text: "}, "default_prompt_name": "any", "dtype": torch.bfloat16,
    },
    "old files": {"files": OLD_FILES, "normalize": False},
    "dense": {
        "pooling": "lasttoken", "similarity_fn_name": "dot",
        "dense": [Dense(32, 48, bias=False, activation_function=nn.Identity()), Dense(48, 16)],
    },
    "a residual dense": {
        "pooling": "weightedmean", "normalize": False,
        "dense": [Dense(32, 8, activation_function=nn.GELU(), use_residual=True)],
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", STARTS)
def test_what_comes_out_takes_the_place_of_what_came_in(kind, make_start, run_here, corpus_file, tmp_path):
    start, out = make_start(**STARTS[kind]), tmp_path / "out"
    run_here(
        main, "--model_name_or_path", start, "--corpus", corpus_file, "--output_dir", out, "--max_steps", 1,
        "--learning_rate", 0, "--use_cpu", "--per_device_train_batch_size", 4, "--disable_tqdm", "true",
        "--view_max_length", 20, "--max_train_samples", 20,
    )  # fmt: skip
    theirs = SentenceTransformer(str(start), device="cpu")
    for folder in (out, out / "checkpoint-1"):
        with load_reports() as reports:
            ours = SentenceTransformer(str(folder), device="cpu")
            AutoModel.from_pretrained(folder)
        is_reported = folder != out and "dense" in kind  # Trainer resumes them from a checkpoint's weights
        assert (reports != []) == is_reported
        assert all("after." in line for text in reports for line in text.splitlines() if "UNEXPECTED " in line)
        assert [str(module) for module in ours] == [str(module) for module in theirs]
        for name in ("prompts", "default_prompt_name", "similarity_fn_name", "max_seq_length", "dtype"):
            assert getattr(ours, name) == getattr(theirs, name), name
        for method in ("encode", "encode_document", "encode_query"):
            expected = getattr(theirs, method)(TEXTS)
            np.testing.assert_allclose(getattr(ours, method)(TEXTS), expected, atol=1e-6)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert json.loads((out / "all_results.json").read_text())["tokens_truncated_share"] > 0.1  # views of 20 tokens


def test_a_document_has_the_prompt_for_documents_else_the_default_one():
    assert document_prompt({"query": "q: ", "document": "d: ", "passage": "p: "}, "query") == "d: "
    assert document_prompt({"query": "q: ", "document": "", "passage": "p: "}, "query") == "p: "
    assert document_prompt({"query": "q: ", "document": ""}, "query") == "q: "
    assert document_prompt({"query": "q: "}, None) == document_prompt({}, None) == ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("d: ", "q: "), ("d: ", "q: ")),
        (("d: ", None), ("d: ", "any: ")),
        ((None, "q: "), ("p: ", "q: ")),
        (("", None), ("", "any: ")),
        ((None, ""), ("p: ", "")),
    ],
)
def test_a_prompt_that_is_given_takes_the_place_of_one_and_leaves_the_other(given, expected):
    new, default = changed_prompts({"passage": "p: ", "any": "any: ", "sort": "s: "}, "any", *given)
    assert (document_prompt(new, default), query_prompt(new, default)) == expected
    assert (new["document"], new["query"], new["sort"]) == (*expected, "s: ")  # as sentence-transformers reads them


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (modules("Transformer", "Pooling", "Dense"), "cannot be loaded as an encoder"),  # which has no config.json
        (modules("BoW"), "cannot be loaded as an encoder"),
        (modules("Transformer", package="custom_st"), "custom_st.Transformer' is neither one of"),
        (modules("Transformer"), "has no module that pools"),
        (modules("Transformer", "Pooling", "CNN"), "cannot be loaded as an encoder"),
        (
            pooling(pooling_mode="mean", include_prompt=False)
            | {"config_sentence_transformers.json": {"prompts": PROMPTS}},
            "leaves its prompt 'passage: ' out",
        ),
        ({"config_sentence_transformers.json": {"model_type": "SparseEncoder"}}, "is a SparseEncoder"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(files, message, make_start):
    with pytest.raises(ValueError, match=message):
        from_pretrained(make_start(files=files, normalize=False))


@pytest.mark.parametrize("given", [{}, {"pooling": "mean"}])
def test_a_pooling_of_several_modes_is_trained_or_overridden(given, make_start, caplog):
    model = from_pretrained(make_start(files=pooling(pooling_mode=["cls", "mean_sqrt_len_tokens"])), **given)
    assert model.body[1].pooling_mode == given.get("pooling", ("cls", "mean_sqrt_len_tokens"))
    assert ("pooling mean takes the place of" in caplog.text) == bool(given)


def test_a_similarity_that_is_given_is_the_sentence_transformers_too(make_start):
    start = make_start(similarity_fn_name="euclidean")
    assert from_pretrained(start).body.similarity_fn_name == "euclidean"
    assert from_pretrained(start, similarity="dot").body.similarity_fn_name == "dot"


def test_a_checkpoint_that_sentence_transformers_saved_anew_is_what_its_files_say(make_start, tmp_path):
    model = from_pretrained(make_start(prompts=PROMPTS))
    model.save_pretrained(tmp_path / "ours")
    assert from_pretrained(tmp_path / "ours").config.docsplit == model.config.docsplit
    changed = SentenceTransformer(str(tmp_path / "ours"), device="cpu", prompts={"document": "doc: "})
    changed.max_seq_length = 20
    changed.save(str(tmp_path / "theirs"), create_model_card=False)
    again = from_pretrained(tmp_path / "theirs").eval()
    assert (again.body.max_seq_length, prompts_of(again.body)[0]) == (20, "doc: ")
    embeddings, _ = embed_documents(again.body, TEXTS, dtype=torch.float32)
    assert np.allclose(embeddings, changed.encode_document(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("made", "kind", "name"),
    [
        (BertForSequenceClassification, None, "is a Bert"),
        (BertForTokenClassification, None, "is a Bert"),
        (BertForSequenceClassification, CrossEncoder, "is a CrossEncoder"),
        (BertForMaskedLM, SparseEncoder, "is a SparseEncoder"),
        (BertModel, lambda name, device: SentenceTransformer(modules=[Transformer(name)], device=device),
         "has no module that pools"),
    ],
)  # fmt: skip
def test_what_is_no_encoder_is_refused_by_what_it_is(made, kind, name, wordpiece, tmp_path):
    """In every script, for they load encoders here: else a classifier is embedded by what is left of it."""
    made(tiny_config(wordpiece)).save_pretrained(tmp_path / "start")
    wordpiece.save_pretrained(tmp_path / "start")
    if kind is not None:
        kind(str(tmp_path / "start"), device="cpu").save_pretrained(str(tmp_path / "start"))
    for use in (embed, start_training):
        with pytest.raises(ValueError, match=f"start {name}.*embeddings of documents") as error:
            use(str(tmp_path / "start"))
        assert "\n" not in str(error.value)


def test_each_route_of_an_encoder_reads_its_own_texts_and_none_is_trained(make_start):
    """Documents and queries are embedded as by sentence-transformers; a training knows no queries."""
    torch.manual_seed(0)
    start = make_start(dense=[Router.for_query_document([Dense(32, 8)], [Dense(32, 8)])])
    model, texts = load_encoder(str(start), device="cpu"), ["bread and butter", "a ship"]
    documents, queries = embed_documents(model, texts)[0], embed_queries(model, texts)[0]
    np.testing.assert_allclose(documents, model.encode_document(texts), atol=1e-6)
    np.testing.assert_allclose(queries, model.encode_query(texts), atol=1e-6)
    assert np.abs(documents - queries).max() > 0.01
    with pytest.raises(ValueError, match="has the modules Transformer and Pooling and Router"):
        from_pretrained(start)


def test_a_start_whose_transformer_has_a_folder_of_its_own_is_trained_with_its_head(make_start, wordpiece, tmp_path):
    """As the first versions of sentence-transformers wrote them: `0_Transformer`."""
    start, inner = make_start(normalize=False), tmp_path / "start" / "0_Transformer"
    inner.mkdir()
    for file in start.glob("*.*"):
        if file.name not in ("modules.json", "config_sentence_transformers.json"):
            shutil.move(file, inner)
    listed = json.loads((start / "modules.json").read_text())
    (start / "modules.json").write_text(json.dumps([listed[0] | {"path": inner.name}, *listed[1:]]))
    expected = SentenceTransformer(str(start), device="cpu").encode("bread and butter")
    model = from_pretrained(start)
    assert type(model.encoder) is BertModel
    np.testing.assert_allclose(model.body.encode("bread and butter"), expected, atol=1e-6)

    masked = BertForMaskedLM(tiny_config(wordpiece))
    masked.save_pretrained(inner)
    model = from_pretrained(start)
    assert_equal(model.encoder.cls.state_dict(), masked.cls.state_dict())
    assert model.encoder.base_model is model.body[0].model
    assert_equal(from_pretrained(saved(model, wordpiece, tmp_path / "release")).state_dict(), model.state_dict())


def test_an_encoder_of_images_is_refused(tmp_path):
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=8
    )
    ViTModel(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "ViTImageProcessor"}))
    for use in (embed, start_training):
        with pytest.raises(ValueError, match="is a vit, which reads no text"):
            use(str(tmp_path))


@pytest.mark.parametrize("length", [0, -1])
def test_no_encoder_reads_no_tokens(length, encoder):
    for load in (from_pretrained, load_encoder):
        with pytest.raises(ValueError, match=f"max_seq_length is {length}, expected 1 token or more"):
            load(str(encoder), max_seq_length=length)
