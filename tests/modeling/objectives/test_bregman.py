"""The Bregman ensemble: loss and divergence against loops, what couples the rows, what is kept, what the code does."""

import itertools
import math

import pytest
import torch
from torch import nn

from docsplit.modeling.objectives.bregman import Ensemble, bregman_loss
from tests.modeling.test_modeling_docsplit import double_model, random_batch

BREGMAN = {"objective": "info_nce+bregman", "mlm_weight": 0.0}


def random_outputs(documents, functionals=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(documents, functionals, generator=generator, dtype=torch.float64) for _ in range(2)]


def make_model(**settings):
    """In float64, without dropout, and its ensemble in training: batch norm over the batch."""
    model = double_model(**BREGMAN | settings)
    model.training = model.objective.training = True
    model.objective.projection.train()
    return model


# --- The loss --------------------------------------------------------------------------------------------------------


def slow_divergence(first, second):
    best = max(range(len(first)), key=lambda k: first[k])
    other = max(range(len(second)), key=lambda k: second[k])
    return first[best] - first[other]


def slow_loss(first, second, sigma, temperature, symmetric, same=()):
    """-log(exp(psi_ij / tau) / sum_t exp(psi_it / tau)), document by document; `same`: pairs of equal documents."""
    views = [z.tolist() for z in (first, second)]
    total, anchors = 0.0, 0
    for view, document in itertools.product((0, 1) if symmetric else (0,), range(len(first))):
        positive, denominator = None, 0.0
        for other_view, other in itertools.product((0, 1) if symmetric else (1,), range(len(first))):
            if (other_view, other) == (view, document) or {(document, other), (other, document)} & set(same):
                continue
            divergence = slow_divergence(views[view][document], views[other_view][other])
            psi = math.exp(-divergence / (2 * sigma**2))
            denominator += math.exp(psi / temperature)
            positive = math.exp(psi / temperature) if other == document else positive
        total, anchors = total - math.log(positive / denominator), anchors + 1
    return total / anchors


@pytest.mark.parametrize("documents", [2, 8])
@pytest.mark.parametrize("symmetric", [True, False], ids=["2N", "N"])
def test_the_loss_equals_a_loop(documents, symmetric):
    first, second = random_outputs(documents)
    ours = float(bregman_loss(first, second, 0.7, 0.1, symmetric=symmetric))
    assert ours == pytest.approx(slow_loss(first, second, 0.7, 0.1, symmetric), rel=1e-12)
    other_form = float(bregman_loss(first, second, 0.7, 0.1, symmetric=not symmetric))
    assert abs(ours - other_form) > 1e-3


def test_the_gradient_reaches_the_first_argument_alone():
    first, second = (z.requires_grad_() for z in random_outputs(6))
    loss = bregman_loss(first, second, 2.0, 0.1, symmetric=False)
    loss.backward()
    assert first.grad.abs().max() > 1e-3
    assert second.grad is None or second.grad.abs().max() == 0
    first.grad = None
    bregman_loss(first, second, 2.0, 0.1).backward()  # as anchors the second views get theirs
    assert second.grad.abs().max() > 1e-3


def test_it_is_computed_in_fp32_under_autocast():
    first, second = (z.float() for z in random_outputs(6))
    ensemble, embeddings = Ensemble(8, 4, 1, "separate", True), torch.randn(6, 8)
    plain = bregman_loss(first, second, 2.0, 0.1), ensemble(embeddings)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (embeddings @ embeddings.T).dtype == torch.bfloat16  # autocast is really on
        assert torch.equal(bregman_loss(first, second, 2.0, 0.1), plain[0])
        assert torch.equal(ensemble(embeddings), plain[1])
    assert ensemble(embeddings.bfloat16()).dtype == torch.float32


# --- The ensemble ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("trunk", ["separate", "shared"])
def test_the_ensemble_equals_its_networks_one_by_one(trunk, batch_norm):
    """Networks 6 -> 6 -> batch norm -> ReLU -> 3 -> batch norm, with the same weights."""
    torch.manual_seed(0)
    ensemble = Ensemble(6, 4, 3, trunk, batch_norm).double()
    embeddings = torch.randn(9, 6, dtype=torch.float64)
    trunks = 1 if trunk == "shared" else 4
    size, outputs = 6, []
    for network in range(trunks):
        norms = [nn.BatchNorm1d(width) if batch_norm else nn.Identity() for width in (size, 12 // trunks)]
        slow = nn.Sequential(nn.Linear(6, size), norms[0], nn.ReLU(), nn.Linear(size, 12 // trunks), norms[1]).double()
        hidden, columns = slice(network * size, (network + 1) * size), slice(network * 12 // trunks, None)
        with torch.no_grad():
            slow[0].weight.copy_(ensemble.hidden.weight[hidden])
            slow[0].bias.copy_(ensemble.hidden.bias[hidden])
            slow[3].weight.copy_(ensemble.weight[network])
            slow[3].bias.copy_(ensemble.bias[columns][: 12 // trunks])
        outputs.append(slow(embeddings))
    torch.testing.assert_close(ensemble(embeddings), torch.cat(outputs, dim=1))


# --- In the model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"bregman_trunk": "shared"}, {"bregman_batch_norm": False}], ids=str)
def test_the_loss_is_info_nce_and_lambda_times_the_bregman_loss(options):
    batch = random_batch(documents=6)
    batch["document_ids"][5] = batch["document_ids"][0]
    model = make_model(bregman_weight=0.3, bregman_sigma=0.6, bregman_temperature=0.2, **options)
    output = model(**batch)
    plain = double_model(mlm_weight=0.0)(**batch)
    torch.testing.assert_close(output.objective_parts["info_nce_loss"], plain.loss.detach())
    rows = output.embeddings.transpose(0, 1).flatten(0, 1)
    first, second = model.objective.projection(rows).chunk(2)
    expected = slow_loss(first, second, 0.6, 0.2, True, same=[(0, 5)])
    assert float(output.objective_parts["bregman_loss"]) == pytest.approx(expected, rel=1e-9)
    assert output.loss.item() == pytest.approx(plain.loss.item() + 0.3 * expected, rel=1e-9)
    histogram = output.objective_histograms["subnetworks"]
    assert histogram.tolist() == torch.cat([first, second]).argmax(1).bincount(minlength=first.shape[1]).tolist()
    assert output.num_masked_negatives == 2


def test_evaluation_reads_the_running_statistics_and_leaves_them():
    model = make_model()
    model(**random_batch())
    before = {name: value.clone() for name, value in model.objective.named_buffers()}
    model.eval()
    losses = [model(**random_batch(documents=n, seed=3)).objective_parts["bregman_loss"] for n in (3, 3, 1)]
    assert losses[0] == losses[1]
    torch.testing.assert_close(dict(model.objective.named_buffers()), before, rtol=0, atol=0)
