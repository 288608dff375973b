"""How much of a text is read: what an encoder's own files say, by all that embeds; --max_seq_length says less."""

import logging

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import (
    AutoModel,
    BertConfig,
    BigBirdConfig,
    LongformerConfig,
    ModernBertConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
)

from docsplit import Classifier, Index, adapt
from docsplit.embedding.encode import reading_of
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.index.index import encoder_of_index
from docsplit.modeling.loading import load_encoder
from docsplit.training.adapting import FEWEST_DOCUMENTS
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, tiny_values

POSITIONS = 1024
CONFIGS = {
    "longformer": lambda values: LongformerConfig(**values, attention_window=[32, 32]),
    "big_bird": lambda values: BigBirdConfig(**values, block_size=8, num_random_blocks=1),
    "modernbert": lambda values: ModernBertConfig(**values, global_attn_every_n_layers=1),
}
WORDS = ["ship", "anchor", "sail", "captain", "rope", "tide", "cargo", "wharf", "crane"] * 100
OTHER = [*WORDS[:699], "bread", *WORDS[700:]]  # another word 700: a word has a token or more
DOCUMENTS = [" ".join(WORDS), " ".join(OTHER)]


def save(config, tokenizer, folder, length=None):
    """A plain `AutoModel` with random weights, and its tokenizer, which says its length or none."""
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    own = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        **{"model_max_length": length} if length else {},
        **{
            name: getattr(tokenizer, name)
            for name in ("pad_token", "cls_token", "sep_token", "mask_token", "unk_token")
        },
    )
    own.save_pretrained(folder)
    return str(folder)


def save_long(kind, tokenizer, folder, length=None):
    follows_padding = {"longformer": tokenizer.pad_token_id + 1}.get(kind, 0)
    values = tiny_values(tokenizer, max_position_embeddings=POSITIONS + follows_padding)
    return save(CONFIGS[kind](values), tokenizer, folder, length)


def differs(first, second):
    return float(np.abs(first - second).max()) > 1e-6


@pytest.fixture(scope="module")
def modernbert(wordpiece, tmp_path_factory):
    return save_long("modernbert", wordpiece, tmp_path_factory.mktemp("modernbert"))


@pytest.mark.parametrize("kind", CONFIGS)
def test_word_700_is_read_but_for_max_seq_length_512(kind, wordpiece, tmp_path):
    name = save_long(kind, wordpiece, tmp_path)
    for length in (None, 512):
        options = EncoderArguments([name], pooling="mean", max_seq_length=length, dtype="float32")
        encoder = Encoder(name, options)
        assert encoder.max_seq_length == (length or POSITIONS)
        assert differs(*encoder.embed(DOCUMENTS)) == (length is None)
    of_training = DocSplitForContrastivePretraining.from_pretrained(name, pooling="mean").body
    assert of_training.max_seq_length == POSITIONS


def test_length_is_that_of_sentence_transformer_and_of_positions(wordpiece, tmp_path):
    values = tiny_values(wordpiece, max_position_embeddings=POSITIONS)
    for number, (config, length) in enumerate(
        [(BertConfig(**values), None), (BertConfig(**values), 300), (BertConfig(**values), 5000),
         (ModernBertConfig(**values), 700)]
    ):  # fmt: skip
        name = save(config, wordpiece, tmp_path / str(number), length)
        expected = SentenceTransformer(name).max_seq_length
        assert expected == min(length or POSITIONS, POSITIONS)
        assert load_encoder(name).max_seq_length == expected
        own = DocSplitForContrastivePretraining.from_pretrained(name, mlm_weight=0)
        assert own.body.max_seq_length == expected
    roberta = RobertaConfig(**values)  # whose positions are counted from padding
    name = save(roberta, wordpiece, tmp_path / "roberta")
    assert load_encoder(name).max_seq_length == POSITIONS - (roberta.pad_token_id + 1)


def test_a_checkpoint_keeps_the_length_that_it_says(tmp_path, modernbert):
    model = DocSplitForContrastivePretraining.from_pretrained(modernbert, pooling="mean", max_seq_length=100)
    model.save_pretrained(tmp_path)
    assert load_encoder(str(tmp_path)).max_seq_length == 100
    (tmp_path / "modules.json").unlink()  # assembled, by config.json alone
    assert load_encoder(str(tmp_path)).max_seq_length == 100


def test_search_classify_and_adapt_read_word_700(modernbert, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    rows = make_corpus(FEWEST_DOCUMENTS + 10)
    index = Index.build(dict(zip("ab", DOCUMENTS)), modernbert, tmp_path / "index", passage_words=2000)
    assert index.info().max_seq_length == POSITIONS
    assert differs(*encoder_of_index(tmp_path / "index", None, None).embed_for_index(DOCUMENTS))
    assert f"it reads up to {POSITIONS:,} tokens of a text, and 0 % of all are longer" in caplog.text
    for length in (None, 512):
        classifier = Classifier(modernbert, "encoder", max_seq_length=length)
        classifier.fit([row["text"] for row in rows], [row["label"] for row in rows])
        classifier.save(tmp_path / f"classifier {length}")
        saved = Classifier.load(tmp_path / f"classifier {length}")
        assert differs(*saved.features_of(DOCUMENTS, "encoder").toarray()) == (length is None)
    assert "it reads up to 512 tokens of a text" in caplog.text
    adapt(modernbert, [row["text"] for row in rows], tmp_path / "adapted")
    assert load_encoder(str(tmp_path / "adapted")).max_seq_length == POSITIONS


def test_what_is_said_of_lengths(wordpiece, tmp_path):
    values = tiny_values(wordpiece, max_position_embeddings=4096)
    encoder = load_encoder(save(ModernBertConfig(**values), wordpiece, tmp_path))
    texts = [*DOCUMENTS, "a ship", "ship " * 5000]
    said = reading_of(encoder, texts)
    assert said.startswith("it reads up to 4,096 tokens of a text, and 25 % of all are longer")
    assert ("--max_seq_length 512" in said) == (encoder.device.type == "cpu")
    assert "--max_seq_length" not in reading_of(encoder, texts, can_change=False)
    encoder.max_seq_length = 512
    assert reading_of(encoder, texts) == "it reads up to 512 tokens of a text, and 75 % of all are longer"
    assert "in pieces of up to 512 tokens" in reading_of(encoder, texts, "chunk_mean")
    assert "50 % of a sample of 200 documents are longer" in reading_of(encoder, texts[2:] * 300)
    assert reading_of(encoder, []) == "it reads up to 512 tokens of a text"
