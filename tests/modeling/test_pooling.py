"""Token states to embeddings: pooling of padded rows and of packs, and the modules that follow."""

from typing import get_args

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from sentence_transformers.sentence_transformer.modules.pooling import PoolingMode
from transformers import AutoModel

from docsplit.embedding.encode import embed_documents
from docsplit.modeling.encoding import PaddedRows, finish, pool_texts
from docsplit.modeling.pooling import PoolingMode as OurMode
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, weights_of
from tests.modeling.test_modeling_docsplit import dense_layers, double_model, loss_and_gradients, random_batch

from_pretrained = DocSplitForContrastivePretraining.from_pretrained
TEXTS = [row["text"] for row in make_corpus(6, seed=3)]


def slow_pool(tokens, mode):
    """Pool the states (T, H) of a row's tokens, one after another."""
    vector = torch.full_like(tokens[0], float("-inf") if mode == "max" else 0.0)
    for position, state in enumerate(tokens, start=1):
        if mode == "max":
            vector = torch.maximum(vector, state)
        elif mode == "weightedmean":
            vector = vector + position * state / sum(range(1, len(tokens) + 1))
        elif mode in ("mean", "mean_sqrt_len_tokens"):
            vector = vector + state / len(tokens) ** (1 if mode == "mean" else 0.5)
        elif position == {"cls": 1, "lasttoken": len(tokens)}[mode]:
            vector = state
    return vector


@pytest.mark.parametrize("mode", [*get_args(PoolingMode), ("cls", "mean")])
def test_rows_and_packs_are_pooled_alike_and_as_one_token_after_another(mode):
    """States, and their gradients; padding, and tokens behind the last text of a pack, belong to none."""
    lengths = torch.tensor([5, 1, 3])
    padded = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(5) < lengths[:, None]).long()
    pack = torch.cat([padded[mask.bool()], torch.full((6, 4), 1e6)]).requires_grad_()
    padded.requires_grad_()
    borders = torch.tensor([0, *lengths.cumsum(0).tolist()])
    of_rows = PaddedRows(torch.arange(3), 5, 15).pool(padded, mask, Pooling(4, mode))
    of_pack = pool_texts(pack, borders, 9, mode)
    modes = [mode] if isinstance(mode, str) else mode
    expected = [torch.cat([slow_pool(row[:size], one) for one in modes]) for row, size in zip(padded, lengths)]
    torch.testing.assert_close(of_rows, torch.stack(expected), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(of_pack, of_rows, rtol=1e-12, atol=1e-12)
    weights = torch.randn(of_rows.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ((of_rows + of_pack) * weights).sum().backward()
    torch.testing.assert_close(pack.grad[:9], padded.grad[mask.bool()], rtol=1e-12, atol=1e-12)
    assert (pack.grad[9:] == 0).all()


def test_the_modes_of_options_are_some_of_sentence_transformers():
    assert set(get_args(OurMode)) < set(get_args(PoolingMode))


@pytest.mark.parametrize("kind", ["rows", "pack"])
def test_states_are_summed_in_full_precision(kind):
    states = torch.full((1, 4097, 1), 1.0, dtype=torch.bfloat16)
    if kind == "rows":
        pooled = PaddedRows(torch.arange(1), 4097, 4097).pool(states, torch.ones(1, 4097), Pooling(1, "mean"))
    else:
        pooled = pool_texts(states[0], torch.tensor([0, 4097]), 4097, "mean")
    assert pooled.dtype == torch.float32
    assert float(pooled) == 1.0


def test_layers_are_computed_in_full_precision():
    model, vectors = double_model(with_dense=True).float(), torch.randn(5, 32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = finish(model.body, vectors)
    assert torch.equal(ours, finish(model.body, vectors))


def test_objectives_compare_what_the_layers_give():
    settings = {"objective": "momentum_contrast", "momentum_queue_size": 20, "mlm_weight": 0.0}
    model = double_model(with_dense=True, **settings)
    output, gradients = loss_and_gradients(model, random_batch(documents=9))
    assert output.embeddings.shape == (9, 2, 16)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert sum("second_encoder" in name and "linear" in name for name, _ in model.named_parameters()) == 3


def test_masked_lm_alone_leaves_the_layers_as_they_are():
    model = double_model(contrastive_weight=0.0, mlm_weight=1.0, with_dense=True)
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert sorted({name.split(".")[0] for name in frozen if "pooler" not in name}) == ["after"]
    model(**random_batch()).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def test_layers_are_trained_and_kept_in_the_folders_of_their_modules(encoder, tmp_path):
    """Whatever changes pooled vectors is: Dense and Normalize, and a module that this project has no word for."""
    start = SentenceTransformer(str(encoder), device="cpu")
    for layer in (LayerNorm(32), *dense_layers()):
        start.append(layer)
    start.save(str(tmp_path / "start"), create_model_card=False)
    model = from_pretrained(tmp_path / "start", mlm_weight=0.0)
    _, gradients = loss_and_gradients(model, random_batch(longest=20))
    assert sum(name.startswith("after.") for name in gradients) == 5
    model.save_pretrained(tmp_path / "release")
    assert not any("linear" in key for key in weights_of(tmp_path / "release"))
    again = SentenceTransformer(str(tmp_path / "release"), device="cpu")
    assert [str(module) for module in again] == [str(module) for module in start]
    np.testing.assert_allclose(again.encode(TEXTS), start.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(
        embed_documents(model.eval().body, TEXTS, dtype=torch.float32)[0], start.encode(TEXTS), atol=1e-5
    )
    states = AutoModel.from_pretrained(tmp_path / "release")(torch.tensor([[5, 6]])).last_hidden_state
    torch.testing.assert_close(states, start[0].model(torch.tensor([[5, 6]])).last_hidden_state)
