"""Any encoder becomes a SentenceTransformer, with what it was made with."""

import copy
import json
import logging
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, StaticEmbedding
from tokenizers import Tokenizer, models, trainers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    BertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from docsplit.embedding.encode import _fingerprint, embed_documents, embed_queries, identity
from docsplit.embedding.lexical_ridge import RidgeSettings, fit, save_with_words
from docsplit.modeling.encoder_with_words import Words
from docsplit.modeling.families.table import FAMILIES
from docsplit.modeling.loading import (
    load_encoder,
    pooling_of,
    portable_type,
    refuse_vectors_of_padding,
    replace_pooling,
    tokens_read,
    with_words,
    without_words,
)
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig
from tests.conftest import make_corpus, tiny_config, tiny_values

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
OF_DECODER = {"num_key_value_heads": 1, "head_dim": 16, "bos_token_id": 2, "eos_token_id": 3}
OF_T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2}
SMALLER = {"embedding_size": 32}
OF_XLM = {"emb_dim": 32, "n_layers": 2, "n_heads": 2, "n_words": 300, "pad_index": 0}
OF_FUNNEL = {
    "d_model": 32,
    "n_head": 2,
    "d_head": 16,
    "d_inner": 64,
    "block_sizes": [1, 1],
    "architectures": ["FunnelModel"],
}
# The families of encoders of texts that people embed with (docs/python.md lists them), and what makes them small
FAMILIES_THAT_WORK = {
    "bert": {}, "roberta": {}, "xlm-roberta": {}, "camembert": {}, "mpnet": {"pad_token_id": 1}, "ernie": {},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}, "albert": SMALLER, "electra": SMALLER,
    "deberta": {}, "deberta-v2": {}, "rembert": {"input_embedding_size": 32, "output_embedding_size": 32},
    "modernbert": {"local_attention": 8}, "nomic_bert": {"head_dim": 16}, "longformer": {"attention_window": [16, 16]},
    "big_bird": {}, "xlm": OF_XLM, "flaubert": OF_XLM, "t5": OF_T5, "mt5": OF_T5, "data2vec-text": {}, "luke": {},
    "mobilebert": {"embedding_size": 32, "true_hidden_size": 32, "intra_bottleneck_size": 32}, "roformer": SMALLER,
    "jina_embeddings_v3": {},
    "eurobert": OF_DECODER, "qwen3": OF_DECODER, "mistral": OF_DECODER, "llama": OF_DECODER, "gpt2": {"n_embd": 32},
    "gemma3_text": OF_DECODER | {"use_bidirectional_attention": True},
}  # fmt: skip
REFUSED_FAMILIES = {
    "fnet": ({}, "a fnet, in which padding enters a text's vector"),
    "convbert": (SMALLER, "a convbert, in which padding enters a text's vector"),
    "yoso": ({}, "a yoso, in which padding enters a text's vector"),
    "funnel": (OF_FUNNEL, "a funnel, in which padding enters a text's vector"),
    "nystromformer": ({"segment_means_seq_len": 64, "num_landmarks": 8}, "a nystromformer, which cannot read a short"),
}


def save_family(tokenizer, folder, kind, sizes):
    """A random encoder of a family, as `AutoModel` saves it, with a tokenizer whose padding has its id."""
    torch.manual_seed(0)
    tokenizer = copy.deepcopy(tokenizer)
    own = {} if kind == "funnel" else SIZES | {"max_position_embeddings": 80}
    config = AutoConfig.for_model(kind, **{"vocab_size": len(tokenizer), "pad_token_id": 0} | own | sizes)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(getattr(config, "pad_token_id", None) or 0)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", FAMILIES_THAT_WORK)
def test_a_family_that_people_embed_with_reads_batches_and_long_texts(kind, wordpiece, tmp_path):
    name = save_family(wordpiece, tmp_path, kind, FAMILIES_THAT_WORK[kind])
    model = load_encoder(name, pooling="mean", device="cpu")
    texts = ["a ship", "bread and butter " * 200, "the captain of a ship"]
    for dtype in (torch.float32, torch.bfloat16):
        vectors = embed_documents(model, texts, dtype=dtype)[0]
        alone = np.concatenate([model.encode([text]) for text in texts])
        tolerance = 1e-4 if dtype == torch.float32 else 0.05
        assert (np.linalg.norm(vectors - alone, axis=1) <= tolerance * np.linalg.norm(alone, axis=1)).all()


@pytest.mark.parametrize("kind", REFUSED_FAMILIES)
def test_a_family_whose_vectors_depend_on_the_batch_is_refused_by_name(kind, wordpiece, tmp_path):
    sizes, message = REFUSED_FAMILIES[kind]
    name = save_family(wordpiece, tmp_path, kind, sizes)
    for load in (load_encoder, DocSplitForContrastivePretraining.from_pretrained):
        with pytest.raises(ValueError, match=message):
            load(name, pooling="mean")
    with pytest.raises(ValueError, match=message.removeprefix("a ")):
        DocSplitForContrastivePretraining.from_config(AutoConfig.from_pretrained(name), wordpiece, pooling="mean")


def test_an_encoder_is_tried_with_its_own_tokens_and_left_as_it_was(wordpiece, tmp_path):
    """One whose tokenizer knows no English; one that is being trained; one whose padding is not a number."""
    name = save_family(wordpiece, tmp_path / "japanese", "llama", OF_DECODER | {"vocab_size": 60})
    tokenizer = Tokenizer(models.BPE())
    tokenizer.train_from_iterator(["船は港にある。船長はパンを食べる。"] * 9, trainers.BpeTrainer(vocab_size=60))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="船").save_pretrained(name)
    model = load_encoder(name, device="cpu")
    assert model.encode(["船長"]).shape == (1, 32)
    model.train()
    model[0].model.norm.eval()
    refuse_vectors_of_padding(model, name)
    assert (model.training, model[0].model.training, model[0].model.norm.training) == (True, True, False)
    broken = load_encoder(save_family(wordpiece, tmp_path / "broken", "bert", {}), pooling="mean", device="cpu")
    with torch.no_grad():
        broken[0].model.embeddings.word_embeddings.weight[0] = torch.nan
    with pytest.raises(ValueError, match="a bert, in which padding enters"):
        refuse_vectors_of_padding(broken, "x")


def test_a_pooling_that_an_encoder_brings_is_replaced(checkpoint):
    brought, replaced = load_encoder(str(checkpoint)), load_encoder(str(checkpoint))
    assert replace_pooling(replaced, "max") == "mean"
    assert pooling_of(replaced) == "max"
    texts = ["a ship", "the captain of a ship"]
    with torch.no_grad():
        states = replaced[0](replaced.preprocess(texts))
    tokens, mask = states["token_embeddings"], states["attention_mask"]
    expected = tokens.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(dim=1)
    np.testing.assert_allclose(bulk(replaced, texts), expected, atol=1e-5)
    assert _fingerprint(brought, "") != _fingerprint(replaced, "")  # else the cache would give the one for the other


def test_a_pooling_that_cannot_be_replaced_is_refused_by_name(wordpiece, checkpoint):
    static = SentenceTransformer(modules=[StaticEmbedding(wordpiece.backend_tokenizer, embedding_dim=8)], device="cpu")
    with pytest.raises(ValueError, match=r"max needs an encoder with a pooling module.*StaticEmbedding"):
        replace_pooling(static, "max")
    model = load_encoder(str(checkpoint))
    model[1] = Pooling(32, pooling_mode=("mean", "max"))
    model.append(Dense(64, 16))
    with pytest.raises(ValueError, match=r"max gives 32 numbers; what follows mean\+max takes more"):
        replace_pooling(model, "max")


@pytest.mark.parametrize("pooling", [None, "mean"])
def test_a_plain_encoder_is_pooled_as_asked(headless, texts, pooling):
    model = load_encoder(str(headless), pooling=pooling, device="cpu")
    assert (pooling_of(model), model.max_seq_length) == (pooling or "cls", 128)
    encoder = BertModel.from_pretrained(headless, add_pooling_layer=False)
    hidden = encoder.eval()(**model.tokenizer(texts[0], return_tensors="pt")).last_hidden_state[0]
    by_hand = hidden.mean(dim=0) if pooling else hidden[0]
    np.testing.assert_allclose(bulk(model, texts[:1])[0], by_hand.detach(), atol=1e-5)


def test_a_checkpoint_keeps_its_own_pooling_and_length(checkpoint, caplog):
    caplog.set_level(logging.INFO)
    model = load_encoder(str(checkpoint), pooling="max", device="cpu")
    assert f"{checkpoint} brings its own pooling: --pooling max is not used for it." in caplog.text
    assert (pooling_of(model), model.max_seq_length) == ("mean", 40)
    assert load_encoder(str(checkpoint), max_seq_length=100, device="cpu").max_seq_length == 100
    with pytest.raises(ValueError, match="has positions for 128 tokens"):
        load_encoder(str(checkpoint), max_seq_length=129, device="cpu")


def test_what_is_no_encoder_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in (str(tmp_path / "empty"), "no-such/model"):
        with pytest.raises(ValueError, match=rf"{name}' cannot be loaded as an encoder: name a model"):
            load_encoder(name)


def test_weights_that_are_missing_raise_and_a_pooler_is_never_random(checkpoint, headless):
    weights = load_file(headless / "model.safetensors")
    save_file({f"other.{name}": value for name, value in weights.items()}, headless / "model.safetensors")
    with pytest.raises(ValueError, match="weights of its own architecture"):
        load_encoder(str(headless), device="cpu")
    # SentenceTransformer's file asks for BERT's pooler, and the weights have none
    BertModel(AutoConfig.from_pretrained(checkpoint), add_pooling_layer=False).save_pretrained(checkpoint)
    (checkpoint / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    left, right = (load_encoder(str(checkpoint), device="cpu") for _ in range(2))
    assert not left[0].model.pooler.dense.weight.any()
    keys = {_fingerprint(model, "", torch.float32, 4096) for model in (left, right)}
    assert len(keys) == 1


def test_a_static_encoder_reads_whole_texts(wordpiece, tmp_path, caplog):
    modules = [StaticEmbedding(wordpiece.backend_tokenizer, embedding_dim=8)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path))
    caplog.set_level(logging.INFO)
    model = load_encoder(str(tmp_path), max_seq_length=12, device="cpu")
    assert "is static and reads whole texts: --max_seq_length changes nothing." in caplog.text
    assert tokens_read(model) is None  # JSON has no infinity


def change_json(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_vector_does_not_depend_on_the_batch_whatever_side_was_padded(checkpoint, texts, tmp_path):
    texts = [text.replace("\ud800", " ") for text in texts]
    expected, _ = embed_documents(load_encoder(str(checkpoint)), texts, dtype=torch.float32)
    change_json(checkpoint / "tokenizer_config.json", padding_side="left")
    theirs = SentenceTransformer(str(checkpoint), device="cpu")
    assert np.abs(theirs.encode(texts) - expected).max() > 1e-2  # what happens where nothing is done
    np.testing.assert_allclose(embed_documents(theirs, texts, dtype=torch.float32)[0], expected, atol=1e-5)
    model = load_encoder(str(checkpoint), device="cpu")
    model.save(str(tmp_path / "released"))
    for one in (model, SentenceTransformer(str(tmp_path / "released"), device="cpu")):
        np.testing.assert_allclose(one.encode(texts), expected, atol=1e-5)


def test_an_encoder_that_cuts_the_beginning_of_texts_is_another_one(checkpoint):
    first = load_encoder(str(checkpoint))
    change_json(checkpoint / "tokenizer_config.json", truncation_side="left")
    assert identity(load_encoder(str(checkpoint))) != identity(first)


def test_a_token_that_the_encoder_does_not_embed_is_named(checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.add_tokens(["zyxgizmo"])
    tokenizer.save_pretrained(checkpoint)
    with pytest.raises(ValueError, match=r"the token 'zyxgizmo' with the id .*resize_token_embeddings"):
        load_encoder(str(checkpoint))


def test_a_config_without_a_padding_id_embeds_or_says_why_not(headless, byte_level_bpe, tmp_path):
    expected = embed_documents(load_encoder(str(headless)), ["a ship", "a"])[0]
    change_json(headless / "config.json", pad_token_id=None)
    np.testing.assert_array_equal(embed_documents(load_encoder(str(headless)), ["a ship", "a"])[0], expected)
    RobertaModel(RobertaConfig(**tiny_values(byte_level_bpe))).save_pretrained(tmp_path / "roberta")
    byte_level_bpe.save_pretrained(tmp_path / "roberta")
    change_json(tmp_path / "roberta" / "config.json", pad_token_id=None)
    with pytest.raises(ValueError, match="has no pad_token_id, from which a roberta counts positions"):
        load_encoder(str(tmp_path / "roberta"))


# --- Words of documents beside an encoder ---

CORPUS = [row["text"] for row in make_corpus(40, seed=7)]
TEXTS = [*CORPUS[:5], "", "☃", "ship", "bread " * 300 + "storm"]
ALONE = [5, 6]  # of TEXTS, those without a known piece


def fitted_words(model):
    return fit(model, CORPUS, model.encode(CORPUS), RidgeSettings(1.0, 0)).words


def saved(config, tokenizer, folder, **settings):
    """An encoder of random weights, loaded from a folder."""
    torch.manual_seed(0)
    DocSplitForContrastivePretraining.from_config(config, tokenizer, **settings).save_pretrained(folder)
    return load_encoder(str(folder), device="cpu")


@pytest.fixture(scope="module")
def plain(wordpiece, tmp_path_factory):
    """A SentenceTransformer of unit vectors that differ, with prompts."""
    folder = tmp_path_factory.mktemp("plain")
    transformer = saved(tiny_config(wordpiece, initializer_range=0.3), wordpiece, folder, max_seq_length=24)[0]
    prompts = {"document": "ship bread: ", "query": "sail: "}
    return SentenceTransformer(modules=[transformer, Pooling(32), Normalize()], device="cpu", prompts=prompts)


@pytest.fixture(scope="module")
def words(plain):
    return fitted_words(plain)


@pytest.fixture(scope="module")
def folder(plain, words, tmp_path_factory):
    folder = tmp_path_factory.mktemp("folders") / "with words"
    save_with_words(plain, words, 0.5, folder)
    return folder


def by_hand(vectors, directions, weight):
    """unit(e + weight r) of the length of e; e where r is zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    summed = vectors / np.maximum(lengths, 1e-12) + weight * directions
    summed *= lengths / np.maximum(np.linalg.norm(summed, axis=1, keepdims=True), 1e-12)
    return np.where(np.abs(directions).max(axis=1, keepdims=True) > 0, summed, vectors)


def directions_of(words, texts):
    return words(**words.preprocess(texts)).numpy()


def bulk(model, texts):
    return embed_documents(model, texts, dtype=torch.float32)[0]


def test_documents_get_words_and_queries_do_not(plain, words, folder):
    directions = directions_of(words, TEXTS)
    assert [row for row in range(len(TEXTS)) if not directions[row].any()] == ALONE
    for model in (with_words(plain, words, 0.5), load_encoder(str(folder), device="cpu")):
        for vectors, bare in (
            (model.encode(TEXTS), plain.encode(TEXTS)),
            (model.encode_document(TEXTS), plain.encode_document(TEXTS)),
        ):
            np.testing.assert_allclose(vectors, by_hand(bare, directions, 0.5), atol=1e-6)
            np.testing.assert_array_equal(vectors[ALONE], bare[ALONE])  # exactly e
            assert np.abs(vectors - bare).max() > 0.02
        np.testing.assert_allclose(model.encode_query(TEXTS), plain.encode_query(TEXTS), atol=1e-6)
        np.testing.assert_allclose(bulk(model, TEXTS), model.encode_document(TEXTS), atol=1e-6)
        queries, facts = embed_queries(model, TEXTS, dtype=torch.float32)
        np.testing.assert_allclose(queries, plain.encode_query(TEXTS), atol=1e-6)
        assert (facts.query_prompt, model.max_seq_length, len(model.encode([]))) == ("sail: ", 24, 0)
        model.truncate_dim = 5  # cut after the words are added
        np.testing.assert_allclose(model.encode_document(TEXTS), bulk(model, TEXTS), atol=1e-6)
        expected = by_hand(plain.encode_document(TEXTS), directions, 0.5)[:, :5]
        np.testing.assert_allclose(bulk(model, TEXTS), expected, atol=1e-6)
        assert embed_queries(model, TEXTS)[0].shape == (len(TEXTS), 5)
        again = with_words(model, words, 0.5)  # from one that has words, and cuts
        np.testing.assert_allclose(again.encode_document(TEXTS), bulk(model, TEXTS), atol=1e-6)
        assert [*without_words(model)] == [*without_words(again)]


IN_ANOTHER_PROGRAM = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer
folder, out, texts = sys.argv[1:]
model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
assert not any(name.split(".")[0] == "docsplit" for name in sys.modules)
texts = json.loads(texts)
np.savez(out, documents=model.encode_document(texts), queries=model.encode_query(texts))
model.save(out + ".again")
"""


def test_a_program_without_this_package_gives_the_same(plain, words, folder, tmp_path):
    command = [sys.executable, "-I", "-c", IN_ANOTHER_PROGRAM, str(folder), str(tmp_path / "out"), json.dumps(TEXTS)]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=120)
    outputs = np.load(tmp_path / "out.npz")
    bare = bulk(plain, TEXTS)
    documents = by_hand(bare, directions_of(words, TEXTS), 0.5)
    np.testing.assert_allclose(outputs["documents"], documents, atol=1e-5)
    np.testing.assert_allclose(outputs["queries"], plain.encode_query(TEXTS), atol=1e-5)
    again = load_encoder(str(tmp_path / "out.again"), device="cpu")
    np.testing.assert_allclose(bulk(again, TEXTS), documents, atol=1e-5)


@pytest.mark.parametrize("family", ["longformer", "graph_document"])
def test_a_family_with_its_own_module_can_be_the_start(wordpiece, tmp_path, family):
    values = tiny_values(wordpiece, initializer_range=0.3, num_hidden_layers=1)
    config = AutoConfig.for_model("longformer", **values, attention_window=16)
    if family == "graph_document":
        inner = tiny_config(wordpiece, initializer_range=0.3, num_hidden_layers=1)
        config = GraphDocumentConfig(inner, graph_hidden_size=16, graph_kind="section", passage_words=12)
    start = saved(config, wordpiece, tmp_path / "start", max_seq_length=24)
    words = fitted_words(start)
    save_with_words(start, words, 1.0, tmp_path / "words")
    bare, loaded = bulk(start, TEXTS), load_encoder(str(tmp_path / "words"), device="cpu")
    np.testing.assert_allclose(bulk(without_words(loaded), TEXTS), bare, atol=1e-6)
    np.testing.assert_allclose(bulk(loaded, TEXTS), by_hand(bare, directions_of(words, TEXTS), 1), atol=1e-5)
    assert portable_type(loaded[0].inner_type) in {module.module for module in FAMILIES.values()}


def test_words_of_another_width_are_refused(plain, words):
    narrow = Words(words.tokenizer, words.pieces, words.vectors()[:, :8])
    with pytest.raises(ValueError, match=r"words have vectors of 8 numbers, the encoder of 32"):
        with_words(plain, narrow)
    wider = SentenceTransformer(modules=[*plain, Dense(32, 8)], device="cpu")
    assert with_words(wider, narrow).encode(TEXTS).shape == (len(TEXTS), 8)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("words/config.json", {"inner_type": "os.system"}, "The module 'os.system' is neither one of sentence-trans"),
        ("words/config.json", {"inner_type": "encoder_with_words.EncoderWithWords"}, "The module 'encoder_with_words"),
        ("modules.json", None, "words of documents in one module of two"),
        ("3_AddWords/config.json", {"weight": "much"}, "The weight of words is 'much'"),
    ],
)
def test_a_damaged_or_hostile_folder_is_named_and_its_code_is_not_run(plain, words, tmp_path, name, content, problem):
    path = tmp_path / "damaged"
    save_with_words(plain, words, 1.0, path)
    for module in ("evil", "os", "encoder_with_words"):  # which would be imported, if a folder's code were
        (path / f"{module}.py").write_text(f"raise SystemExit('{module} was run')")
    load_encoder(str(path), device="cpu")  # the installed code does not need the copy
    (path / name).write_text(json.dumps(content or json.loads((path / name).read_text())[:-1]))
    with pytest.raises(ValueError, match=rf"damaged.*{problem}") as failure:
        load_encoder(str(path), device="cpu")
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("kind", ["checkpoint", "headless", "words"])
def test_prompts_that_are_given_are_those_that_files_would_name(kind, folder, request, tmp_path):
    name = str(folder if kind == "words" else request.getfixturevalue(kind))
    given = load_encoder(name, device="cpu", prompt="bread: ", query_prompt="storm: ")
    given.save(str(tmp_path / "given"))
    named = load_encoder(name, device="cpu")
    before = bulk(named, TEXTS), embed_queries(named, TEXTS, dtype=torch.float32)[0]
    named.prompts = {"query": "storm: ", "passage": "bread: "}
    named.save(str(tmp_path / "named"))
    named = load_encoder(str(tmp_path / "named"), device="cpu")
    expected = bulk(named, TEXTS), embed_queries(named, TEXTS, dtype=torch.float32)[0]
    for model in (given, load_encoder(str(tmp_path / "given"), device="cpu")):
        np.testing.assert_allclose(bulk(model, TEXTS), expected[0], atol=1e-6)
        np.testing.assert_allclose(embed_queries(model, TEXTS, dtype=torch.float32)[0], expected[1], atol=1e-6)
        np.testing.assert_allclose(model.encode_document(TEXTS), expected[0], atol=1e-6)
        np.testing.assert_allclose(model.encode_query(TEXTS), expected[1], atol=1e-6)
    assert all(np.abs(ours - theirs).max() > 1e-3 for ours, theirs in zip(before, expected))
