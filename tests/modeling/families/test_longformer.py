"""Longformer and BigBird attend as they need in training, embedding and export; a BERT made a Longformer."""

import copy
import itertools
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BigBirdConfig,
    BigBirdModel,
    LongformerConfig,
    LongformerModel,
    ModernBertConfig,
    RobertaConfig,
)

import convert_to_longformer
from convert_to_longformer import convert
from docsplit.data.seen_documents import TrainingDocuments
from docsplit.embedding.encode import encode
from docsplit.embedding.loading import load_encoder
from docsplit.modeling.encoding import micro_batches
from docsplit.modeling.families.longformer_attention import use_blocked_attention
from docsplit.modeling.families.table import family_of
from docsplit.release import hub
from docsplit.runtime.files import ROOT
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import tiny_config
from tests.modeling.test_modeling_docsplit import SMALL, loss_and_gradients, random_batch
from tests.processes import Script

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LONGFORMER = SMALL | NO_DROPOUT | {"attention_window": [16, 16], "max_position_embeddings": 300, "pad_token_id": 1}
BIGBIRD = SMALL | NO_DROPOUT | {"block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 200}


def make_model(config, **settings):
    torch.manual_seed(0)
    settings = {"pooling": "cls", "max_seq_length": 100} | settings
    return DocSplitForContrastivePretraining(config, **settings).double().train()


# --- Longformer ----------------------------------------------------------------------------------------------------


def test_the_first_token_attends_globally():
    model, batch = make_model(LongformerConfig(**LONGFORMER)), random_batch(longest=60)
    mask = batch["attention_mask"].flatten(0, 1)
    first = torch.zeros_like(mask)
    first[:, 0] = 1
    plain = LongformerModel(model.encoder.config, add_pooling_layer=False).double()
    plain.load_state_dict(model.encoder.base_model.state_dict())
    ids = batch["input_ids"].flatten(0, 1)
    expected, local = (plain(ids, mask, global_attention_mask=which)[0][:, 0] for which in (first, None))
    output, gradients = loss_and_gradients(model, batch)
    torch.testing.assert_close(output.embeddings.flatten(0, 1), expected)
    assert (expected - local).abs().max() > 1e-6
    for name, gradient in gradients.items():  # DDP waits for each of them
        assert gradient.isfinite().all(), name
        assert gradient.abs().max() > 0 or "key" in name, name


@pytest.mark.parametrize(
    "config", [LongformerConfig(**LONGFORMER), BigBirdConfig(**BIGBIRD)], ids=["longformer", "bigbird"]
)
def test_micro_batches_change_neither_loss_nor_gradients(config):
    batch = random_batch(longest=26 if config.model_type == "big_bird" else 60)  # full attention for all of BigBird's
    model = make_model(config)
    plain, expected = loss_and_gradients(model, batch)
    for cache_gradients in (False, True):
        model.micro_batch_tokens, model.cache_gradients = 64, cache_gradients
        output, gradients = loss_and_gradients(model, batch)
        assert output.num_computed_tokens <= plain.num_computed_tokens
        torch.testing.assert_close(output.loss, plain.loss, rtol=1e-9, atol=0)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=1e-10)


def test_what_the_encoder_pads_to_is_padding():
    """Rows that fill one window share micro-batches by the windows that are computed, not by their own lengths."""
    lengths = torch.tensor([17, 17, 16, 15, 9, 3])
    groups = [(rows.tolist(), longest) for rows, longest in micro_batches(lengths, 64, multiple=16)]
    for rows, longest in groups:
        assert len(rows) * -(-longest // 16) * 16 <= 64
    assert sorted(row for rows, _ in groups for row in rows) == list(range(6))
    for config in (BigBirdConfig(**BIGBIRD), BertConfig(**SMALL)):
        assert family_of(config).length_multiple(AutoModel.from_config(config)) == 1
    model, seen = make_model(LongformerConfig(**LONGFORMER)), []
    assert family_of(model.config).length_multiple(model.encoder.base_model) == 16
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
    model = make_model(LongformerConfig(**values), max_seq_length=64).float()
    model.save_pretrained(tmp_path)
    byte_level_bpe.save_pretrained(tmp_path)
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
    bare = AutoModel.from_pretrained(path, add_pooling_layer=False)
    for name, embeddings in {
        "in training": encode(model.encoder.base_model, byte_level_bpe, texts),
        "bare": encode(bare, byte_level_bpe, texts, micro_batch_tokens=100),
        "for probing": load_encoder(str(path), device="cpu").encode(texts),
        "exported": SentenceTransformer(str(path), device="cpu", trust_remote_code=True).encode(texts),
    }.items():
        np.testing.assert_allclose(embeddings, expected, atol=1e-5, err_msg=name)
    local = plain(**batch)[0][0, 0].detach().numpy()
    assert np.abs(local - expected[-1]).max() > 1e-4
    assert "forward" not in vars(bare)  # left as it was
    twin = copy.deepcopy(model.encoder.base_model)
    with torch.no_grad():
        twin.embeddings.word_embeddings.weight.mul_(2)
    assert np.abs(encode(twin, byte_level_bpe, texts) - expected).max() > 1e-2  # a copy uses its own weights


@pytest.mark.parametrize(
    "config",
    [LongformerConfig(**LONGFORMER), ModernBertConfig(**SMALL), BertConfig(**SMALL, **NO_DROPOUT)],
    ids=["longformer", "modernbert", "bert"],
)
def test_activation_checkpointing_within_micro_batches(config):
    """The same gradients, from fewer tensors kept: whatever the layers have inside is recomputed."""
    batch, results = random_batch(longest=90), []
    for checkpointing, cache_gradients in itertools.product([False, True], [False, True]):
        model, kept = make_model(config, max_seq_length=90), set()
        model.micro_batch_tokens, model.cache_gradients = 200, cache_gradients
        if checkpointing:
            model.gradient_checkpointing_enable()

        def keep(tensor, kept=kept):
            kept.add((tensor.data_ptr(), tensor.numel()))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(**batch).loss
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
        results.append((sum(size for _, size in kept), loss, gradients))
    (plain, expected_loss, expected), *others = results
    for size, loss, gradients in others:
        assert size < 0.6 * plain
        torch.testing.assert_close(loss, expected_loss, rtol=1e-10, atol=0)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize(
    ("config", "length"),
    [
        (LongformerConfig(**LONGFORMER | {"max_position_embeddings": 8194, "attention_window": [512, 512]}), 4096),
        (BigBirdConfig(**SMALL | NO_DROPOUT | {"max_position_embeddings": 2048}), 2048),
        (ModernBertConfig(**SMALL, max_position_embeddings=2048), 2048),
    ],
    ids=["longformer at 4,096", "bigbird at 2,048", "modernbert at 2,048"],
)
def test_thousands_of_tokens_train(config, length):
    model = make_model(config, max_seq_length=length).float()
    if config.model_type == "longformer":
        use_blocked_attention(model)
    model.gradient_checkpointing_enable()
    model.micro_batch_tokens, model.cache_gradients = length, True
    batch = random_batch(documents=2, longest=length)
    batch["input_ids"].random_(5, 120)
    batch["attention_mask"].fill_(1)
    optimizer, before = torch.optim.SGD(model.parameters(), lr=0.1), copy.deepcopy(model.state_dict())
    output = model(**batch)
    output.loss.backward()
    optimizer.step()
    assert output.num_computed_tokens >= 4 * length
    if config.model_type == "big_bird":
        assert model.encoder.base_model.attention_type == "block_sparse"
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all()
        assert (parameter != before[name]).any() or not parameter.requires_grad or "key" in name, name


# --- BigBird -------------------------------------------------------------------------------------------------------


def test_a_short_micro_batch_does_not_end_block_sparse_attention():
    model = make_model(BigBirdConfig(**BIGBIRD)).eval()
    base_model = model.encoder.base_model
    generator = torch.Generator().manual_seed(0)
    long, short = (torch.randint(5, 120, (1, length), generator=generator) for length in (90, 20))
    fresh = BigBirdModel(model.encoder.config).double().eval()
    fresh.load_state_dict(base_model.state_dict(), strict=False)
    with torch.no_grad():
        expected = fresh(long)[0]
        for ids in (short, long, short):
            states = base_model(ids)[0]
            if ids is long:
                torch.testing.assert_close(states, expected)
        torch.testing.assert_close(states, fresh(short)[0])  # fresh one falls back to full attention, for good
        assert (fresh(long)[0] - expected).abs().max() > 1e-6


def test_bigbird_learns_from_short_and_long_rows():
    """Recomputed, a micro-batch has the attention and the dropout that it had, whatever was encoded before."""
    config = BigBirdConfig(**BIGBIRD | {"hidden_dropout_prob": 0.2})
    model, batch = make_model(config), random_batch(longest=90)
    names = list(dict(model.named_parameters()))
    model.micro_batch_tokens = 100
    results = []
    for cache_gradients in (False, True):  # at the second the model stands at full attention
        model.cache_gradients = cache_gradients
        torch.manual_seed(3)
        results.append(loss_and_gradients(model, batch))
    (plain, expected), (cached, gradients) = results
    assert torch.equal(plain.loss, cached.loss)
    for name, gradient in gradients.items():
        assert gradient.isfinite().all(), name
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12)
    assert list(dict(model.named_parameters())) == names
    model.gradient_checkpointing_enable()
    _, gradients = loss_and_gradients(model, batch)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    model.cache_gradients = False
    with pytest.raises(ValueError, match="needs --cache_gradients"):
        model(**batch)


def test_bulk_embedding_leaves_a_bigbird_as_it_was(wordpiece, corpus):
    model = make_model(BigBirdConfig(**BIGBIRD | {"vocab_size": len(wordpiece)})).float()
    bare = BigBirdModel(model.encoder.config, add_pooling_layer=False)
    encode(bare, wordpiece, [*corpus["text"][:3], "short"])
    assert bare.attention_type == bare.encoder.layer[0].attention.attention_type == "block_sparse"
    assert "forward" not in vars(bare)


# --- A BERT made a Longformer --------------------------------------------------------------------------------------


@pytest.fixture(params=["bert", "roberta"])
def source(request, wordpiece, byte_level_bpe, tmp_path):
    torch.manual_seed(0)
    if request.param == "bert":
        tokenizer, config = wordpiece, tiny_config(wordpiece, max_position_embeddings=64, type_vocab_size=2)
    else:
        tokenizer = byte_level_bpe
        ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        values = SMALL | ids | {"vocab_size": len(tokenizer), "max_position_embeddings": 66}
        config = RobertaConfig(**values)
    model = AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # biases and layer norms too
    model.save_pretrained(tmp_path / "source")
    tokenizer.save_pretrained(tmp_path / "source")
    return tmp_path / "source", tokenizer


def run_conversion(source, out, *options):
    return Script("convert_to_longformer.py", source, out, *options).wait()


def test_the_longformer_is_its_source_on_short_texts(source, corpus, tmp_path):
    path, tokenizer = source
    result = run_conversion(path, tmp_path / "long", "--max_positions", 200, "--attention_window", 48)
    assert result.returncode == 0, result.stderr
    assert "200 positions" in result.stdout
    old, new = (AutoModelForMaskedLM.from_pretrained(folder).eval() for folder in (path, tmp_path / "long"))
    same = AutoTokenizer.from_pretrained(tmp_path / "long")
    assert type(new).__name__ == "LongformerForMaskedLM"
    assert same.get_vocab() == tokenizer.get_vocab()
    assert same.model_max_length == 200
    batch = tokenizer(corpus["text"][:5], truncation=True, max_length=24, padding=True, return_tensors="pt")
    is_global = torch.zeros_like(batch["input_ids"])
    is_global[:, 0] = 1
    mask = batch["attention_mask"] == 1
    for which in (None, is_global):  # the global projections start as the local ones
        with torch.no_grad():
            logits = new(**batch, global_attention_mask=which).logits
            states = new.base_model(**batch, global_attention_mask=which)[0]
            torch.testing.assert_close(logits[mask], old(**batch).logits[mask], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(states[mask], old.base_model(**batch)[0][mask], rtol=1e-4, atol=1e-4)
    assert new.get_output_embeddings().weight is new.get_input_embeddings().weight

    first = old.config.pad_token_id + 1
    table = new.base_model.embeddings.position_embeddings.weight[first:]
    theirs = old.base_model.embeddings.position_embeddings.weight[-64:]
    assert len(table) == 200
    for position in (0, 63, 64, 130, 199):
        assert torch.equal(table[position], theirs[position % 64])
    long = torch.randint(5, 50, (1, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert new(long).logits.isfinite().all()

    # It can be pretrained, at its full length.
    model = DocSplitForContrastivePretraining.from_pretrained(tmp_path / "long", max_seq_length=200)
    assert model.config.docsplit["max_seq_length"] == 200
    model(**random_batch(longest=150)).loss.backward()


def test_a_checkpoint_of_ours_keeps_its_pooling(run_here, wordpiece, tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), pooling="mean", max_seq_length=64)
    model.save_pretrained(tmp_path / "source")
    wordpiece.save_pretrained(tmp_path / "source")
    TrainingDocuments(is_complete=False).save(tmp_path / "source")
    pushed = []
    monkeypatch.setattr(hub, "create_repository", lambda name, private: name)
    monkeypatch.setattr(hub, "push_at_the_end", lambda *args: pushed.append(args))
    words = ["--max_positions", 256, "--attention_window", 128, "--push_to_hub", "--hub_model_id", "you/longer"]
    run_here(convert_to_longformer.main, tmp_path / "source", tmp_path / "long", *words)
    assert pushed == [(tmp_path / "long", "you/longer", "Longformer made of source")]
    assert 'SentenceTransformer("you/longer", trust_remote_code=True)' in (tmp_path / "long" / "README.md").read_text()
    assert not list(tmp_path.rglob("training_state*"))
    assert not TrainingDocuments.load(tmp_path / "long" / "training_documents.safetensors").is_complete
    settings = json.loads((tmp_path / "long" / "config.json").read_text())["docsplit"]
    assert settings == model.config.docsplit | {"max_seq_length": 256}
    texts = ["a ship in the storm", "bread and butter"]
    both = [load_encoder(str(tmp_path / folder), device="cpu").encode(texts) for folder in ("source", "long")]
    np.testing.assert_allclose(*both, atol=1e-4)


def test_a_sentence_transformer_without_a_head_becomes_a_longformer_without_one(run_here, wordpiece, tmp_path):
    torch.manual_seed(0)
    BertModel(tiny_config(wordpiece)).save_pretrained(tmp_path / "plain")
    wordpiece.save_pretrained(tmp_path / "plain")
    modules = [Transformer(str(tmp_path / "plain")), Pooling(32, "mean"), Normalize()]
    source = SentenceTransformer(modules=modules, device="cpu", prompts={"document": "text: "})
    source.save(str(tmp_path / "source"), create_model_card=False)
    words = ["--max_positions", 256, "--attention_window", 128]
    run_here(convert_to_longformer.main, tmp_path / "source", tmp_path / "long", *words)
    assert not any(key.startswith("lm_head") for key in load_file(tmp_path / "long" / "model.safetensors"))
    long = load_encoder(str(tmp_path / "long"), device="cpu")
    texts = ["a ship in the storm", "bread and butter"]
    np.testing.assert_allclose(long.encode_document(texts), source.encode_document(texts), atol=1e-4)
    assert long.max_seq_length == 256


def test_what_cannot_be_converted_raises(wordpiece):
    source = AutoModelForMaskedLM.from_config(tiny_config(wordpiece, max_position_embeddings=64))
    with pytest.raises(ValueError, match="has 64 already"):
        convert(source, 32, 16)
    with pytest.raises(ValueError, match="even number"):
        convert(source, 128, 15)
    with pytest.raises(ValueError, match="expected an encoder"):
        convert(AutoModelForMaskedLM.from_config(BigBirdConfig(**BIGBIRD)), 128, 16)
    with pytest.raises(ValueError, match="activation relu"):
        convert(AutoModelForMaskedLM.from_config(tiny_config(wordpiece, hidden_act="relu")), 128, 16)


@pytest.mark.parametrize(
    ("hidden_size", "layers", "added"),
    [(512, 6, 6_562_816), (768, 12, 24_013_824)],
    ids=["legal-bert-small", "biobert"],
)
def test_a_conversion_adds_the_parameters_that_the_bregman_paper_counts(hidden_size, layers, added):
    """Appendix B: 6 M and 24 M. And a row of positions for padding, which a BERT does not have."""
    with torch.device("meta"):
        config = BertConfig(hidden_size=hidden_size, num_hidden_layers=layers, num_attention_heads=hidden_size // 64)
        source = AutoModelForMaskedLM.from_config(config)
        longformer = convert(source, 4096, 512)
    before, after = (sum(parameter.numel() for parameter in model.parameters()) for model in (source, longformer))
    assert after - before - hidden_size == added
    assert added == (4096 - 512) * hidden_size + layers * 3 * (hidden_size * hidden_size + hidden_size)


def test_parameters_of_the_bregman_papers_table_5():
    """Its Longformer-Bio has 1.6 M less here: what the conversion adds to BioBERT is what appendix B says, 24 M."""
    published = json.loads((ROOT / "docs" / "papers" / "bregman.json").read_text())["table_5_millions"]
    legal = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}
    longformer = {"vocab_size": 50265, "max_position_embeddings": 4098, "attention_window": [512] * 12}
    with torch.device("meta"):
        models = {
            "BioBERT": AutoModelForMaskedLM.from_config(BertConfig(vocab_size=28996)),
            "LegalBERT-small": AutoModelForMaskedLM.from_config(BertConfig(**legal)),
            "Longformer-base": AutoModelForMaskedLM.from_config(LongformerConfig(**longformer, type_vocab_size=1)),
        }
        models["Longformer-Legal"] = convert(models["LegalBERT-small"], 4096, 512)
        models["Longformer-Bio"] = convert(models["BioBERT"], 4096, 512)
    found = {name: sum(parameter.numel() for parameter in model.parameters()) / 1e6 for name, model in models.items()}
    assert {name: round(millions, 1) for name, millions in found.items()} == {
        "BioBERT": 108.3, "LegalBERT-small": 35.1, "Longformer-base": 148.7, "Longformer-Legal": 41.7,
        "Longformer-Bio": 132.4,
    }  # fmt: skip
    for name, millions in found.items():
        assert millions == pytest.approx(published[name], abs=1 if name != "Longformer-Bio" else 2)
