"""BigBird: block-sparse attention of long rows, and full attention of short ones alone."""

import pytest
import torch
from transformers import (
    BigBirdConfig,
    BigBirdModel,
)

from docsplit.embedding.encode import encode
from tests.modeling.families.test_longformer import BIGBIRD, make_model
from tests.modeling.test_modeling_docsplit import loss_and_gradients, random_batch


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
