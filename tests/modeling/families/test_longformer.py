"""Longformer and BigBird attend as they need in training, embedding and export."""

import copy
import itertools

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import (
    AutoModel,
    BertConfig,
    BigBirdConfig,
    LongformerConfig,
    LongformerModel,
    ModernBertConfig,
)

from docsplit.embedding.encode import encode
from docsplit.embedding.loading import load_encoder
from docsplit.modeling.encoding import micro_batches
from docsplit.modeling.families.longformer import use_blocked_attention
from docsplit.modeling.families.table import family_of
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.modeling.test_modeling_docsplit import SMALL, loss_and_gradients, random_batch

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LONGFORMER = SMALL | NO_DROPOUT | {"attention_window": [16, 16], "max_position_embeddings": 300, "pad_token_id": 1}
BIGBIRD = SMALL | NO_DROPOUT | {"block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 200}


def make_model(config, **settings):
    torch.manual_seed(0)
    settings = {"pooling": "cls", "max_seq_length": 100} | settings
    return DocSplitForContrastivePretraining(config, **settings).double().train()


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


def test_the_first_token_of_each_packed_text_attends_globally():
    """As each does in a row of its own; transformers' own attention would take the row for one text."""
    model = make_model(LongformerConfig(**LONGFORMER))
    encoder, ids = model.encoder.base_model, torch.randint(3, 100, (2, 30))
    packed = {
        "input_ids": ids.view(1, 60),
        "position_ids": (torch.arange(60) % 30 + 2)[None],
        "cu_seq_lens_q": torch.tensor([0, 30, 60, 60], dtype=torch.int32),
        "max_length_q": 30,
    }
    with pytest.raises(ValueError, match="across the borders between texts"):
        encoder(**packed)
    expected = encoder(ids)[0]
    use_blocked_attention(model)
    torch.testing.assert_close(encoder(**packed)[0].view(2, 30, -1), expected, rtol=0, atol=1e-6)  # a softmax in fp32


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
    """Recomputing layers gives the same gradients and keeps fewer tensors."""
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
