"""A BERT or RoBERTa made a Longformer: the same on short texts, with the parameters that the papers count."""

import json
import re

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BigBirdConfig,
    RobertaConfig,
)

import convert_to_longformer
from docsplit.data.seen_documents import TrainingDocuments
from docsplit.modeling.loading import load_encoder
from docsplit.release import hub
from docsplit.release.longformer import convert
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import save_checkpoint, tiny_config
from tests.modeling.families.test_longformer import BIGBIRD
from tests.modeling.test_modeling_docsplit import SMALL, random_batch


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


def test_the_longformer_is_its_source_on_short_texts(source, corpus, run_here, tmp_path, capsys):
    path, tokenizer = source
    words = ["--max_positions", 200, "--attention_window", 48]
    run_here(convert_to_longformer.main, path, tmp_path / "long", *words)
    printed = capsys.readouterr().out
    assert "200 positions" in printed
    card = ModelCard.load(tmp_path / "long" / "README.md")
    assert card.data.base_model is None  # a folder is no model of the Hub
    assert "A Longformer of 200 positions" in card.text
    assert str(tmp_path) not in card.text
    assert re.search(r"by (\S+) of the largest", card.text)[1] in printed
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
    assert model.body.max_seq_length == 200
    model(**random_batch(longest=150)).loss.backward()


def test_a_checkpoint_of_ours_keeps_its_pooling(run_here, wordpiece, tmp_path, monkeypatch):
    save_checkpoint(wordpiece, tmp_path / "source", 64)
    TrainingDocuments(is_complete=False).save(tmp_path / "source")
    pushed = []
    monkeypatch.setattr(hub, "create_repository", lambda name, private: name)
    monkeypatch.setattr(hub, "push_at_the_end", lambda *args: pushed.append(args))
    words = ["--max_positions", 256, "--attention_window", 128, "--push_to_hub", "--hub_model_id", "you/longer"]
    run_here(convert_to_longformer.main, tmp_path / "source", tmp_path / "long", *words)
    assert pushed == [(tmp_path / "long", "you/longer", "Longformer made of source")]
    assert 'SentenceTransformer("you/longer", trust_remote_code=True)' in (tmp_path / "long" / "README.md").read_text()
    assert not TrainingDocuments.load(tmp_path / "long" / "training_documents.safetensors").is_complete
    before, after = (json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("source", "long"))
    assert before["docsplit"] == after["docsplit"]
    texts = ["a ship in the storm", "bread and butter"]
    both = [load_encoder(str(tmp_path / folder), device="cpu").encode(texts) for folder in ("source", "long")]
    np.testing.assert_allclose(*both, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_sentence_transformer_without_a_head_becomes_a_longformer_without_one(run_here, wordpiece, tmp_path, dtype):
    torch.manual_seed(0)
    BertModel(tiny_config(wordpiece)).to(dtype).save_pretrained(tmp_path / "plain")
    wordpiece.save_pretrained(tmp_path / "plain")
    modules = [Transformer(str(tmp_path / "plain")), Pooling(32, "mean"), Dense(32, 8), Normalize()]
    settings = {"prompts": {"document": "text: ", "query": "ask: "}, "similarity_fn_name": "euclidean"}
    source = SentenceTransformer(modules=modules, device="cpu", truncate_dim=6, **settings)
    source.save(str(tmp_path / "source"), create_model_card=False)
    source = load_encoder(str(tmp_path / "source"), device="cpu")
    words = ["--max_positions", 256, "--attention_window", 128]
    run_here(convert_to_longformer.main, tmp_path / "source", tmp_path / "long", *words)
    assert not any(key.startswith("lm_head") for key in load_file(tmp_path / "long" / "model.safetensors"))
    long = load_encoder(str(tmp_path / "long"), device="cpu")
    texts = ["a ship in the storm", "bread and butter"]
    np.testing.assert_allclose(long.encode_document(texts), source.encode_document(texts), atol=1e-4)
    before, after = (
        json.loads((tmp_path / folder / "config_sentence_transformers.json").read_text())
        for folder in ("source", "long")
    )
    assert before == after  # prompts, similarity, truncation
    assert json.loads((tmp_path / "long" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert long.max_seq_length == 256


def test_what_cannot_be_converted_raises(wordpiece):
    source = AutoModelForMaskedLM.from_config(tiny_config(wordpiece, max_position_embeddings=64))
    with pytest.raises(ValueError, match="has 64 already"):
        convert(source, 32, 16)
    with pytest.raises(ValueError, match="expected an encoder"):
        convert(AutoModelForMaskedLM.from_config(BigBirdConfig(**BIGBIRD)), 128, 16)
    with pytest.raises(ValueError, match="activation relu"):
        convert(AutoModelForMaskedLM.from_config(tiny_config(wordpiece, hidden_act="relu")), 128, 16)


def test_a_conversion_adds_the_parameters_that_the_bregman_paper_counts():
    """Appendix B: 24 M for BioBERT. And a row of positions for padding, which a BERT does not have."""
    with torch.device("meta"):
        source = AutoModelForMaskedLM.from_config(BertConfig())
        longformer = convert(source, 4096, 512)
    before, after = (sum(parameter.numel() for parameter in model.parameters()) for model in (source, longformer))
    assert after - before - 768 == 24_013_824 == (4096 - 512) * 768 + 12 * 3 * (768 * 768 + 768)
