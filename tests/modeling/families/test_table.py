"""A family in one file and one row: it is trained, saved, loaded, embedded, exported and described like the others."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    LongformerConfig,
    Trainer,
    TrainingArguments,
    XLMRobertaConfig,
)

from docsplit.data.collators import COLLATORS
from docsplit.data.passages import to_passages
from docsplit.data.preparation import Segmentation, tokenize
from docsplit.embedding.encode import embed_documents, encode
from docsplit.embedding.loading import load_encoder
from docsplit.modeling.families import table
from docsplit.modeling.families.base import Family
from docsplit.modeling.families.graph import GRAPH_DOCUMENTS
from docsplit.modeling.families.table import FAMILIES, PLAIN, family_named, family_of
from docsplit.modeling.pretrained import max_positions
from docsplit.release.model_card import write_card
from docsplit.release.onnx import export, largest_difference, write_tokenizer
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig
from tests.conftest import make_corpus, tiny_values
from tests.modeling.test_encoding import MeanOfPassages

TEXTS = [row["text"] for row in make_corpus(12, seed=3)]

# --- What transformers has of it -----------------------------------------------------------------------------------


class TonalConfig(BertConfig):
    model_type = "tonal"


class TonalModel(BertModel):
    """A BERT that wants a tone of each token."""

    config_class = TonalConfig

    def forward(self, input_ids=None, attention_mask=None, tones=None, **kwargs):
        if tones is None:
            raise ValueError("tones unknown")
        return super().forward(input_ids, attention_mask, **kwargs | {"token_type_ids": tones})


class TonalForMaskedLM(BertForMaskedLM):
    config_class = TonalConfig

    def __init__(self, config):
        super().__init__(config)
        self.bert = TonalModel(config, add_pooling_layer=False)
        self.post_init()


class MeanConfig(BertConfig):
    model_type, passage_words = "mean_of_passages", 12


class MeanModel(MeanOfPassages):
    config_class = MeanConfig

    def __init__(self, config):
        super().__init__(config, add_pooling_layer=False)

    def encode_passages(self, input_ids, attention_mask):
        return BertModel.forward(self, input_ids, attention_mask)[0][:, 0]

    def forward(self, input_ids, attention_mask, document, **rows):  # as SentenceTransformer's module calls it
        vectors = self.encode_passages(input_ids, attention_mask)
        rows = SimpleNamespace(document=document, view=torch.zeros_like(document))
        return SimpleNamespace(embeddings=self.combine(vectors, rows))


for config_class, *classes in ((TonalConfig, TonalModel, TonalForMaskedLM), (MeanConfig, MeanModel)):
    AutoConfig.register(config_class.model_type, config_class)
    for auto_class, model_class in zip((AutoModel, AutoModelForMaskedLM), classes):
        auto_class.register(config_class, model_class)


# --- The one file --------------------------------------------------------------------------------------------------


def _in_high_tones(self, input_ids: Tensor | None = None, *args, **kwargs):
    if input_ids is not None and kwargs.get("tones") is None:
        kwargs["tones"] = torch.ones_like(input_ids)
    return type(self).forward(self, input_ids, *args, **kwargs)


class Tonal(Family):
    def length_multiple(self, base_model):
        return 8

    def reads(self, config, tokens):
        return f"a song of {tokens}"


TONAL_TRANSFORMER = """
import torch
from sentence_transformers.models import Transformer


class TonalTransformer(Transformer):
    def forward(self, features, **kwargs):
        return super().forward(features, tones=torch.ones_like(features["input_ids"]), **kwargs)
"""


class MeanFamily(Family):
    def new_encoder(self, config):
        return MeanModel(config)


MEAN = MeanFamily(
    rows="passages",
    default_settings={"mlm_weight": 0.0, "max_seq_length": 32},
    module=GRAPH_DOCUMENTS.module,
    code=GRAPH_DOCUMENTS.code,
)


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """The one row of each, gone after the test."""
    source = tmp_path / "tonal_transformer.py"
    source.write_text(f"from docsplit.data.passages import Passage\n{TONAL_TRANSFORMER}")
    tonal = Tonal(
        forward=_in_high_tones, module="tonal_transformer.TonalTransformer", code={"tonal_transformer.py": (source,)}
    )
    monkeypatch.setitem(FAMILIES, "tonal", tonal)
    monkeypatch.setitem(FAMILIES, "mean_of_passages", MEAN)


def pretrain(config, tokenizer, folder, view, **settings):
    """A step, as the script takes it."""
    torch.manual_seed(0)
    model = DocSplitForContrastivePretraining(config, **settings)
    family = family_of(config)
    passage_words = config.passage_words if family.rows == "passages" else None
    documents, _ = tokenize(Dataset.from_dict({"text": TEXTS}), tokenizer, Segmentation(passage_words=passage_words))
    options = model.config.docsplit
    collator = COLLATORS[family.rows](tokenizer, view, options["max_seq_length"], options["mlm_weight"] > 0)
    args = TrainingArguments(
        str(folder / "run"), max_steps=1, per_device_train_batch_size=4, learning_rate=1e-3, use_cpu=True,
        remove_unused_columns=False, report_to=[], disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = Trainer(model, args, collator, documents.with_format("numpy"))
    trainer.train()
    assert sum((value != before[name]).any() for name, value in model.state_dict().items()) > 10
    trainer.save_model(folder / "checkpoint")
    tokenizer.save_pretrained(folder / "checkpoint")
    return model.eval(), collator([documents[number] for number in range(4)]), folder / "checkpoint"


def test_an_encoder_with_habits_is_a_row(rows, wordpiece, tmp_path):
    config = TonalConfig(**tiny_values(wordpiece))
    model, batch, folder = pretrain(config, wordpiece, tmp_path, "half", pooling="mean", max_seq_length=37)
    with pytest.raises(ValueError, match="tones unknown"):
        TonalModel(config)(torch.ones(1, 3, dtype=torch.long))
    assert model(**batch).num_computed_tokens % 8 == 0

    again = DocSplitForContrastivePretraining.from_pretrained(folder).eval()
    assert torch.equal(again(**batch).loss, model(**batch).loss)
    bare = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    loaded = load_encoder(str(folder), device="cpu")
    expected = encode(model.encoder.base_model, wordpiece, TEXTS)
    assert np.abs(expected[0] - expected[1]).max() > 1e-2
    for name, vectors in {
        "bare": encode(bare, wordpiece, TEXTS),
        "in bulk": embed_documents(loaded, TEXTS, dtype=torch.float32)[0],
        "by its own code": SentenceTransformer(str(folder), trust_remote_code=True, device="cpu").encode(TEXTS),
    }.items():
        np.testing.assert_allclose(vectors, expected, atol=1e-5, err_msg=name)
    assert "forward" not in vars(bare)
    assert (folder / "tonal_transformer.py").read_text().strip() == TONAL_TRANSFORMER.strip()
    assert "tonal_transformer.py" in table.code_files()

    card = write_card(folder)
    assert "a song of up to 37 tokens" in card
    assert "trust_remote_code=True" in card
    embedder = export(loaded, tmp_path / "model.onnx")
    write_tokenizer(loaded, str(folder), tmp_path / "tokenizer.json")
    assert largest_difference(embedder, tmp_path, longest=30) < 1e-5


def test_an_encoder_of_passages_is_a_row(rows, wordpiece, tmp_path):
    config = MeanConfig(**tiny_values(wordpiece, initializer_range=0.3))
    model, batch, folder = pretrain(config, wordpiece, tmp_path, "passages")
    assert model.config.docsplit["max_seq_length"] == 32
    assert set(batch["rows"]) == {"document", "view", "section", "position", "is_query"}

    again = DocSplitForContrastivePretraining.from_pretrained(folder).eval()
    assert torch.equal(again(**batch).loss, model(**batch).loss)
    expected = []
    for text in TEXTS:
        passages = [passage.text for passage in to_passages(text, config.passage_words)]
        features = wordpiece(passages, truncation=True, max_length=32, padding=True, return_tensors="pt")
        with torch.no_grad():
            vectors = model.encoder.encode_passages(features["input_ids"], features["attention_mask"])
        expected.append(vectors.mean(dim=0).numpy())
    loaded = load_encoder(str(folder), device="cpu")
    for name, vectors in {
        "in training": encode(model.encoder, wordpiece, TEXTS),
        "in bulk": embed_documents(loaded, TEXTS, dtype=torch.float32)[0],
        "by sentence-transformers": loaded.encode(TEXTS),
    }.items():
        np.testing.assert_allclose(vectors, expected, atol=1e-5, err_msg=name)
    assert set(MEAN.code) < {path.name for path in folder.iterdir()}
    assert "32 tokens of a passage and nothing after them" in write_card(folder)


def test_an_encoder_without_a_row_is_plain():
    assert family_of(BertConfig()) is family_named("something_new") is family_of(None) is PLAIN
    encoder = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=20))
    before = dict(vars(encoder))
    PLAIN.prepare_loaded(encoder, is_ours=True)
    with PLAIN.attending(encoder):
        assert vars(encoder) == before
    assert PLAIN.length_multiple(encoder) == 1
    assert PLAIN.token_encoder(encoder) is encoder


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (BertConfig(), 512),
        (XLMRobertaConfig(max_position_embeddings=514, pad_token_id=1), 512),
        (LongformerConfig(max_position_embeddings=4098, pad_token_id=1), 4096),
        (GraphDocumentConfig(XLMRobertaConfig(max_position_embeddings=514, pad_token_id=1)), 512),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_positions_are_those_of_the_encoder_that_reads_tokens(config, positions):
    assert max_positions(config) == positions


def test_the_modules_that_need_no_remote_code_here():
    assert set(table.modules_of_families()) == {
        "longformer_transformer.LongformerTransformer", "graph_document_transformer.GraphDocumentTransformer",
    }  # fmt: skip
    assert GRAPH_DOCUMENTS.module_class().__name__ == "GraphDocumentTransformer"
