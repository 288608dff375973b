"""Contrastive Tension and the momentum queue: against slow versions, saved, resumed, unseen by those who load."""

import copy

import pytest
import torch
from transformers import BertConfig

from docsplit.modeling.objectives.second_encoder import CT_NEGATIVES, contrastive_tension
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import OF_IDS
from tests.modeling.test_modeling_docsplit import SMALL, random_batch, slow_info_nce

CT = {"objective": "contrastive_tension", "mlm_weight": 0.0}
QUEUE = {"objective": "momentum_contrast", "momentum_queue_size": 20, "momentum": 0.7, "mlm_weight": 0.0}


def make_model(dropout=0.0, **settings):
    torch.manual_seed(0)
    config = BertConfig(**SMALL, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    return (
        DocSplitForContrastivePretraining.from_config(config, OF_IDS, pooling="mean", max_seq_length=64, **settings)
        .double()
        .train()
    )


def embed(base_model, batch, index):
    mask = batch["attention_mask"][:, index]
    states = base_model(batch["input_ids"][:, index], mask).last_hidden_state
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


# --- Contrastive Tension -------------------------------------------------------------------------------------------


def test_contrastive_tension_is_the_binary_cross_entropy_of_one_positive_and_seven_negatives():
    generator = torch.Generator().manual_seed(0)
    anchors, candidates = (torch.randn(n, 8, generator=generator, dtype=torch.float64) for n in (3, 12))
    targets = torch.tensor([4, 0, 11])
    excluded = torch.zeros(3, 12, dtype=torch.bool)
    excluded[0, :3] = excluded[2, :6] = True  # the last anchor has five negatives left

    drawn = []
    candidates.requires_grad_()
    for seed in range(100):
        torch.manual_seed(seed)
        loss = contrastive_tension(anchors, candidates, targets, excluded)
        torch.manual_seed(seed)
        order = torch.rand(3, 12)
        expected, chosen = 0.0, torch.zeros(3, 12)
        for row in range(3):
            allowed = [c for c in range(12) if c != targets[row] and not excluded[row, c]]
            negatives = sorted(allowed, key=lambda c: -order[row, c])[:CT_NEGATIVES]
            scores = candidates @ anchors[row]
            expected = expected - scores[targets[row]].sigmoid().log()
            expected = expected - sum((1 - scores[c].sigmoid()).log() for c in negatives)
            chosen[row, negatives] = 1
        torch.testing.assert_close(loss, expected)
        drawn.append(chosen)
    counts = torch.stack(drawn).sum((0, 2)) / 100
    assert counts.tolist() == [7, 7, 5]
    share = torch.stack(drawn).mean(0)[0]  # 8 candidates are allowed, 7 are drawn
    assert share[3:].sort().values[1:].min() > 0.7
    assert share[:3].sum() == share[4] == 0


def test_what_cannot_be_done_with_a_second_encoder_is_refused():
    with pytest.raises(ValueError, match="--cache_gradients"):
        make_model(**CT).gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="draws 7 other documents"):
        make_model(**CT)(**random_batch(documents=7))
    with pytest.raises(ValueError, match="momentum_queue_size is 20"):
        make_model(**QUEUE)(**random_batch(documents=21))


# --- The queue -----------------------------------------------------------------------------------------------------


def test_momentum_queue_against_a_slow_version():
    """Six steps with batches of unequal sizes, so that the queue of 20 runs over its end."""
    model = make_model(**QUEUE)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05)
    slow_encoder = copy.deepcopy(model.encoder.base_model)
    queue = []  # (key, document), oldest first
    losses = []
    for step, documents in enumerate((7, 9, 3, 8, 9, 5)):
        batch = random_batch(documents=documents, seed=step)
        batch["document_ids"] = torch.arange(documents) + 4 * step  # some were in the batch before
        for slow, ours in zip(slow_encoder.parameters(), model.encoder.base_model.parameters()):
            slow.data = 0.7 * slow.data + 0.3 * ours.data
        anchors, keys = embed(model.encoder.base_model, batch, 0), embed(slow_encoder, batch, 1).detach()
        expected, masked = 0.0, 0
        for index, document in enumerate(batch["document_ids"].tolist()):
            negatives = [key for key, other in queue if other != document]
            masked += len(queue) - len(negatives)
            candidates = torch.stack([keys[index], *negatives])
            nothing = torch.zeros(1, len(candidates), dtype=torch.bool)
            expected += slow_info_nce(anchors[index : index + 1], candidates, 0.05, torch.tensor([0]), nothing)
        queue = [*queue, *zip(keys, batch["document_ids"].tolist())][-20:]

        output = model(**batch)
        assert output.loss.item() == pytest.approx(expected / documents, rel=1e-9, abs=1e-12)
        assert output.num_masked_negatives == masked
        losses.append(output.loss.item())
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    assert losses[0] == 0  # there are no negatives yet
    assert max(losses[1:]) > 1
    assert all(parameter.grad is None for parameter in model.objective.second_encoder.parameters())
    assert int(model.objective.queue.count) == 41


def test_evaluation_moves_neither_queue_nor_encoder():
    model = make_model(**QUEUE)
    model(**random_batch()).loss.backward()
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1).step()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.eval()
    with torch.no_grad():
        assert model(**random_batch(seed=1)).loss > 0
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_embeddings_alone_are_those_of_the_first_encoder():
    model = make_model(**CT).eval()
    with torch.no_grad():
        model.objective.second_encoder[0].model.embeddings.word_embeddings.weight.mul_(2)
    batch = random_batch()
    expected = torch.stack([embed(model.encoder.base_model, batch, index) for index in range(2)], dim=1)
    torch.testing.assert_close(model(**batch, return_loss=False).embeddings, expected)
