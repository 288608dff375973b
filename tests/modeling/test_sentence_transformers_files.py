"""A SentenceTransformer in, the same kind of SentenceTransformer out: its files read, used and written again."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from torch import nn
from transformers import AutoModel, AutoTokenizer, BertModel, RobertaConfig, RobertaModel

from docsplit.data.collators import IGNORED, DocSplitCollator
from docsplit.data.preparation import Segmentation, tokenize_batch
from docsplit.embedding.encode import embed_documents, encode
from docsplit.embedding.loading import load_encoder, resolve_prompt
from docsplit.modeling.pretrained import document_prompt, prompt_of
from docsplit.modeling.saving import trust_argument
from modeling_docsplit import DocSplitForContrastivePretraining
from run_docsplit_pretraining import main
from tests.conftest import make_corpus, tiny_config, tiny_values
from tests.modeling.test_starts import load_reports

TEXTS = [row["text"] for row in make_corpus(6, seed=3)]
PROMPTS = {"query": "query: ", "passage": "passage: "}
OLD_FILES = {  # as most models on the Hub have them
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ],
    "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": True},
    "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_cls_token": False,
                              "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True},
    "config_sentence_transformers.json": {"__version__": {"sentence_transformers": "2.2.2"}},
}  # fmt: skip
from_pretrained = DocSplitForContrastivePretraining.from_pretrained


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


KINDS = {
    "mean, normalised": {},
    "cls, long": {"pooling": "cls", "normalize": False, "length": 100, "similarity_fn_name": "dot"},
    "prompts": {"prompts": PROMPTS, "similarity_fn_name": "euclidean"},
    "a default prompt": {"prompts": {"any": "text: "}, "default_prompt_name": "any", "dtype": torch.bfloat16},
    "old files": {"files": OLD_FILES, "normalize": False},
    "last token": {"pooling": "lasttoken", "similarity_fn_name": "dot"},
    "weighted by position": {"pooling": "weightedmean", "normalize": False},
    "dense": {"dense": [Dense(32, 48, bias=False, activation_function=nn.Identity()), Dense(48, 16)]},
    "a residual": {"dense": [Dense(32, 8, activation_function=nn.GELU(), use_residual=True)], "normalize": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_out_takes_the_place_of_what_came_in(kind, make_start, run_here, corpus_file, tmp_path):
    start, out = make_start(**KINDS[kind]), tmp_path / "out"
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
        is_reported = folder != out and "dense" in KINDS[kind]  # Trainer resumes them from a checkpoint's weights
        assert (reports != []) == is_reported
        assert all("dense_layers" in line for text in reports for line in text.splitlines() if "UNEXPECTED " in line)
        assert [str(module) for module in ours] == [str(module) for module in theirs]
        for name in ("prompts", "default_prompt_name", "similarity_fn_name", "max_seq_length", "dtype"):
            assert getattr(ours, name) == getattr(theirs, name), name
        for method in ("encode", "encode_document", "encode_query"):
            expected = getattr(theirs, method)(TEXTS)
            np.testing.assert_allclose(getattr(ours, method)(TEXTS), expected, atol=1e-6)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
    shares = json.loads((out / "all_results.json").read_text())
    assert shares["tokens_truncated_share"] > 0.1  # the views were of 20 tokens


@pytest.mark.parametrize("kind", KINDS)
def test_the_probe_sees_the_embeddings_of_the_start(kind, make_start):
    """`encode` on the encoder in training, `embed_documents` and SentenceTransformer: one embedding of a document."""
    start = make_start(**KINDS[kind])
    model, tokenizer = from_pretrained(start), AutoTokenizer.from_pretrained(start)
    ours = encode(model.encoder.base_model, tokenizer, TEXTS)
    loaded = load_encoder(str(start), device="cpu")
    np.testing.assert_allclose(ours, embed_documents(loaded, TEXTS, dtype=torch.float32)[0], atol=1e-5)
    assert resolve_prompt(loaded, None) == prompt_of(model.config.docsplit)
    theirs = SentenceTransformer(str(start), device="cpu").float()
    np.testing.assert_allclose(ours, theirs.encode(TEXTS, prompt=resolve_prompt(theirs, None)), atol=1e-5)
    with_prompts = [prompt_of(model.config.docsplit) + text for text in TEXTS]
    length = model.config.docsplit["max_seq_length"]
    batch = tokenizer(with_prompts, padding=True, truncation=True, max_length=length, return_tensors="pt")
    views = {name: batch[name].view(3, 2, -1) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():  # and what the loss compares
        compared = model.eval()(**views, return_loss=False).embeddings
    np.testing.assert_allclose(compared.flatten(0, 1), ours, atol=1e-5)
    assert (np.abs(np.linalg.norm(ours, axis=1) - 1) < 1e-5).all() == KINDS[kind].get("normalize", True)


@pytest.mark.parametrize("file", ["longformer_transformer.py", "encoder_with_words.py", "modeling_graph_document.py"])
def test_a_folder_with_code_asks_for_trust(file, tmp_path):
    (tmp_path / "config.json").touch()
    assert trust_argument(tmp_path) == ""
    (tmp_path / file).touch()
    assert trust_argument(tmp_path) == ", trust_remote_code=True"


def test_a_document_has_the_prompt_for_documents_else_the_default_one():
    assert document_prompt({"query": "q: ", "document": "d: ", "passage": "p: "}, "query") == "d: "
    assert document_prompt({"query": "q: ", "document": "", "passage": "p: "}, "query") == "p: "
    assert document_prompt({"query": "q: ", "document": ""}, "query") == "q: "
    assert document_prompt({"query": "q: "}, None) == document_prompt({}, None) == ""


@pytest.mark.parametrize("prompt", ["passage: ", "passage:", "Represent this document\n", ""])
def test_views_carry_the_prompt_as_the_tokenizer_would_write_it(prompt, tokenizer):
    """Against tokenising prompt and text at once; the prompt is within the length, and never masked."""
    collator = DocSplitCollator(tokenizer, "simcse", 24, prompt=prompt)
    texts = [row["text"] for row in make_corpus(20, seed=1)]
    columns = tokenize_batch({"text": texts}, tokenizer, Segmentation())
    features = [dict(zip(columns, values)) for values in zip(*columns.values())]
    batch = collator(features)
    length = len(tokenizer(prompt.rstrip(" "))["input_ids"]) - 1 if prompt else 1
    num_cut = 0
    for number, text in enumerate(texts):
        expected = tokenizer(prompt + text, truncation=True, max_length=24)["input_ids"]
        num_cut += len(tokenizer(prompt + text)["input_ids"]) > 24
        for view in range(2):
            mask = batch["attention_mask"][number, view].bool()
            assert batch["input_ids"][number, view][mask].tolist() == expected
            assert (batch["mlm_targets"][number, view, :length] == IGNORED).all()
    assert num_cut > 5
    assert (batch["mlm_targets"][..., length : length + 3] != IGNORED).any()
    if prompt:
        with pytest.raises(ValueError, match=r"the prompt .* and special tokens: a view needs room"):
            DocSplitCollator(tokenizer, "simcse", length + 1, prompt=prompt)


def test_a_prompt_that_runs_into_the_text_is_said(wordpiece, caplog):
    DocSplitCollator(wordpiece, prompt="shi")
    assert "runs into the word after it" in caplog.text


@pytest.mark.parametrize(
    ("name", "option", "theirs"),
    [("pooling", "cls", "mean"), ("max_seq_length", 16, "40"), ("similarity", "dot", "cosine")],
)
def test_what_overrides_the_start_is_said(name, option, theirs, make_start, caplog, tmp_path, wordpiece):
    caplog.set_level("INFO")
    start = make_start()
    model = from_pretrained(start)
    (line,) = [record.message for record in caplog.records if "is a SentenceTransformer" in record.message]
    for words in ("pooling mean", "normalised", "up to 40 tokens", "similarity cosine", "prompts none", "float32"):
        assert words in line
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    model.save_pretrained(tmp_path / "ours")
    for folder in (start, tmp_path / "ours"):  # what a checkpoint of this project says is overridden as loudly
        caplog.clear()
        model = from_pretrained(folder, **{name: option})
        (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert f"{name} {option} takes the place of" in warning
        assert warning.endswith(f" {theirs}.")
    model.save_pretrained(tmp_path / "out")
    wordpiece.save_pretrained(tmp_path / "out")
    result = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    settings = {"pooling": result[1].pooling_mode, "max_seq_length": result.max_seq_length}
    assert (settings | {"similarity": result.similarity_fn_name})[name] == option


def _pooling(**values):
    return {"1_Pooling/config.json": {"embedding_dimension": 32, **values}}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (_pooling(pooling_mode="mean_sqrt_len_tokens"), "pools with mean_sqrt_len_tokens.*--pooling mean"),
        (_pooling(pooling_mode=["cls", "mean"]), "pools with cls and mean"),
        ({"modules.json": [*OLD_FILES["modules.json"], {"idx": 2, "name": "2", "path": "2_Dense",
          "type": "sentence_transformers.models.Dense"}]}, "names '2_Dense', but there is no 2_Dense/config.json"),
        ({"modules.json": [*OLD_FILES["modules.json"], {"idx": 2, "name": "2", "path": "2_Normalize",
          "type": "sentence_transformers.models.Normalize"}, {"idx": 3, "name": "3", "path": "3_Dense",
          "type": "sentence_transformers.models.Dense"}]}, "has the module sentence_transformers.models.Dense"),
        ({"modules.json": [*OLD_FILES["modules.json"], {"idx": 2, "name": "2", "path": "2_LayerNorm",
          "type": "sentence_transformers.models.LayerNorm"}]}, "has the module sentence_transformers.models.LayerN"),
        ({"modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.BoW"}]},
         "has the module sentence_transformers.models.BoW"),
        ({"modules.json": [{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}]}, "custom_st"),
        ({"modules.json": OLD_FILES["modules.json"][:1]}, "has no pooling"),
        ({"modules.json": [OLD_FILES["modules.json"][0] | {"path": "0_Transformer"}, *OLD_FILES["modules.json"][1:]]},
         "in the folder '0_Transformer'"),
        (_pooling(pooling_mode="mean", include_prompt=False)
         | {"config_sentence_transformers.json": {"prompts": PROMPTS}}, "leaves its prompt 'passage: ' out"),
        ({"config_sentence_transformers.json": {"model_type": "SparseEncoder"}}, "is a SparseEncoder"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_name(files, message, make_start, failure_of):
    start = make_start(files=files, normalize=False)
    with pytest.raises(ValueError, match=message):
        from_pretrained(start)
    # before the corpus is looked for
    assert str(start) in failure_of(main, "--model_name_or_path", start, "--corpus", "nowhere", "--use_cpu")


def test_a_pooling_that_is_overridden_may_be_any(make_start, caplog):
    start = make_start(files=_pooling(pooling_mode="mean_sqrt_len_tokens"))
    assert from_pretrained(start, pooling="mean").config.docsplit["pooling"] == "mean"
    assert "pooling mean takes the place of" in caplog.text
    assert "mean_sqrt_len_tokens" in caplog.text


def test_a_checkpoint_that_sentence_transformers_saved_anew_is_what_its_files_say(
    make_start, wordpiece, tmp_path, caplog
):
    model = from_pretrained(make_start(prompts=PROMPTS))
    model.save_pretrained(tmp_path / "ours")
    wordpiece.save_pretrained(tmp_path / "ours")
    assert from_pretrained(tmp_path / "ours").config.docsplit == model.config.docsplit
    assert "they count" not in caplog.text
    changed = SentenceTransformer(str(tmp_path / "ours"), device="cpu", prompts={"document": "doc: "})
    changed.max_seq_length = 20
    changed.save(str(tmp_path / "theirs"), create_model_card=False)
    again = from_pretrained(tmp_path / "theirs")
    assert again.config.docsplit["max_seq_length"] == 20
    assert prompt_of(again.config.docsplit) == "doc: "
    assert "another max_seq_length and prompts than its config.json" in caplog.text
    embeddings = encode(again.encoder.base_model, wordpiece, TEXTS)
    assert np.allclose(embeddings, changed.encode_document(TEXTS), atol=1e-5)
