"""Contrastive Tension and the momentum queue: against slow versions, saved, resumed, unseen by those who load."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, BertConfig, Trainer, TrainingArguments

from docsplit.data import preparation
from docsplit.data.collators import DocSplitCollator
from docsplit.modeling.objectives.second_encoder import CT_NEGATIVES, contrastive_tension
from docsplit.modeling.saving import TRAINING_STATE_FILE
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import tiny_config
from tests.modeling.test_modeling_docsplit import SMALL, loss_and_gradients, random_batch, slow_info_nce

CT = {"objective": "contrastive_tension", "mlm_weight": 0.0}
QUEUE = {"objective": "momentum_contrast", "momentum_queue_size": 20, "momentum": 0.7, "mlm_weight": 0.0}


def make_model(dropout=0.0, **settings):
    torch.manual_seed(0)
    config = BertConfig(**SMALL, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    return DocSplitForContrastivePretraining(config, pooling="mean", max_seq_length=64, **settings).double().train()


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
    for seed in range(300):
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
    counts = torch.stack(drawn).sum((0, 2)) / 300
    assert counts.tolist() == [7, 7, 5]
    share = torch.stack(drawn).mean(0)[0]  # 8 candidates are allowed, 7 are drawn
    assert share[3:].sort().values[1:].min() > 0.75
    assert share[:3].sum() == share[4] == 0


def test_both_copies_learn_and_neither_has_dropout():
    model, batch = make_model(dropout=0.3, **CT), random_batch(documents=9)
    results = []
    for _ in range(2):
        torch.manual_seed(5)
        results.append(loss_and_gradients(model, batch))
    (first, gradients), (second, _) = results
    assert torch.equal(first.loss, second.loss)
    both = model.state_dict()
    for name, gradient in gradients.items():
        assert gradient.abs().max() > 0 or "key.bias" in name, name  # which softmax cancels
    assert any(name.startswith("objective.second_encoder.") for name in gradients)
    assert torch.equal(
        both["objective.second_encoder.embeddings.word_embeddings.weight"],
        both["encoder.bert.embeddings.word_embeddings.weight"],
    )
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1).step()
    weights = [
        encoder.embeddings.word_embeddings.weight
        for encoder in (model.encoder.base_model, model.objective.second_encoder)
    ]
    assert (weights[0] - weights[1]).abs().max() > 1e-6  # they drift apart
    torch.manual_seed(5)
    output = model(**batch)
    expected = torch.stack(
        [embed(model.encoder.base_model, batch, 0), embed(model.objective.second_encoder, batch, 1)], dim=1
    )
    torch.testing.assert_close(output.embeddings, expected)
    assert not model.encoder.training
    assert model.training


@pytest.mark.parametrize("settings", [CT, QUEUE], ids=["contrastive_tension", "queue"])
@pytest.mark.parametrize("cache_gradients", [False, True])
def test_micro_batches_change_neither_loss_nor_gradients(settings, cache_gradients):
    results = []
    for micro_batch_tokens in (None, 60):
        model = make_model(**settings)
        model.micro_batch_tokens, model.cache_gradients = (
            micro_batch_tokens,
            cache_gradients and bool(micro_batch_tokens),
        )
        for seed in range(2):  # the queue has something in it at the second
            torch.manual_seed(seed)
            result = loss_and_gradients(model, random_batch(documents=9, seed=seed))
        results.append(result)
    (plain, expected), (output, gradients) = results
    assert output.num_computed_tokens < plain.num_computed_tokens
    torch.testing.assert_close(output.loss, plain.loss, rtol=1e-12, atol=0)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-8, atol=1e-12)


def test_contrastive_tension_refuses_what_needs_training_mode():
    with pytest.raises(ValueError, match="--cache_gradients"):
        make_model(**CT).gradient_checkpointing_enable()


def test_contrastive_tension_needs_eight_documents():
    with pytest.raises(ValueError, match="draws 7 other documents"):
        make_model(**CT)(**random_batch(documents=7))


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


def test_a_batch_larger_than_the_queue_raises():
    with pytest.raises(ValueError, match="momentum_queue_size is 20"):
        make_model(**QUEUE)(**random_batch(documents=21))


def test_embeddings_alone_are_those_of_the_first_encoder():
    model = make_model(**CT).eval()
    with torch.no_grad():
        model.objective.second_encoder.embeddings.word_embeddings.weight.mul_(2)
    batch = random_batch()
    expected = torch.stack([embed(model.encoder.base_model, batch, index) for index in range(2)], dim=1)
    torch.testing.assert_close(model(**batch, return_loss=False).embeddings, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "triplet"}, "objective"),
        ({"similarity": "euclidean"}, "similarity"),
        ({"objective": "contrastive_tension"}, "set mlm_weight=0"),
        ({"objective": "momentum_contrast"}, "set mlm_weight=0"),
        (CT | {"contrastive_weight": 0.0}, "set mlm_weight=0 and contrastive_weight=1"),
        (QUEUE | {"symmetric_loss": True}, "symmetric_loss is an option of objective info_nce .*not of momentum"),
        (QUEUE | {"objective": "contrastive_tension"}, "momentum.* is an option of objective momentum_contrast"),
        ({"momentum_queue_size": 10}, "momentum_queue_size is an option of objective momentum_contrast, not of info"),
        (QUEUE | {"momentum_queue_size": 0}, "momentum_queue_size is 0, expected 1 or more"),
        (QUEUE | {"momentum": 1.5}, "momentum is 1.5, expected a number from 0 to 1"),
        ({"contrastive_temperature": 0.0}, "contrastive_temperature is 0.0, expected more than 0"),
        ({"contrastive_temprature": 0.1}, "no setting 'contrastive_temprature'"),
    ],
)
def test_settings_that_cannot_work_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        make_model(**settings)


# --- Checkpoints ---------------------------------------------------------------------------------------------------


def train(corpus, tokenizer, output_dir, settings, checkpoint=None, load=True):
    torch.manual_seed(0)
    config = tiny_config(tokenizer, hidden_dropout_prob=0.1)
    model = DocSplitForContrastivePretraining(config, pooling="mean", max_seq_length=32, **settings)
    dataset = preparation.tokenize(corpus, tokenizer)[0].with_format("numpy")
    arguments = TrainingArguments(
        output_dir=str(output_dir), use_cpu=True, per_device_train_batch_size=10, max_steps=8, save_steps=4,
        learning_rate=1e-2, remove_unused_columns=False, disable_tqdm=True, logging_strategy="no", report_to="none",
    )  # fmt: skip
    collator = DocSplitCollator(tokenizer, "simcse", max_seq_length=32, mlm=False)
    trainer = Trainer(model, arguments, collator, dataset)
    if checkpoint is not None and load:
        model.load_training_state(checkpoint)
    trainer.train(resume_from_checkpoint=checkpoint)
    return model


@pytest.mark.parametrize("settings", [CT, QUEUE | {"momentum_queue_size": 25}], ids=["contrastive_tension", "queue"])
def test_a_resumed_training_is_the_uninterrupted_one(corpus, wordpiece, tmp_path, settings):
    whole = train(corpus, wordpiece, tmp_path / "whole", settings)
    checkpoint = str(tmp_path / "whole" / "checkpoint-4")
    resumed = train(corpus, wordpiece, tmp_path / "resumed", settings, checkpoint)
    assert (whole.state_dict()["objective.second_encoder.embeddings.word_embeddings.weight"] != 0).any()
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    with pytest.raises(RuntimeError, match="load_training_state"):
        train(corpus, wordpiece, tmp_path / "lost", settings, checkpoint, load=False)

    # What others load knows nothing of it.
    assert (tmp_path / "whole" / "checkpoint-8" / TRAINING_STATE_FILE).exists()
    keys = load_file(tmp_path / "whole" / "checkpoint-8" / "model.safetensors")
    assert not any("second" in key or "queue" in key for key in keys)
    encoder = AutoModel.from_pretrained(tmp_path / "whole" / "checkpoint-8", add_pooling_layer=False)
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, whole.encoder.base_model.state_dict()[name]), name


def test_a_state_of_before_the_first_step_has_no_queue(tmp_path):
    """Older code made it at the first step."""
    model = make_model(**QUEUE)
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / TRAINING_STATE_FILE)
    save_file({name: value for name, value in state.items() if "queue." not in name}, tmp_path / TRAINING_STATE_FILE)
    again = make_model(**QUEUE)
    again.load_training_state(tmp_path)
    assert int(again.objective.queue.count) == 0
    del state["second_encoder.embeddings.word_embeddings.weight"]
    save_file(state, tmp_path / TRAINING_STATE_FILE)
    with pytest.raises(RuntimeError, match="word_embeddings"):
        again.load_training_state(tmp_path)


def test_best_weights_without_their_second_encoder_are_not_saved_with_another(tmp_path):
    model = make_model(**QUEUE)
    model.load_state_dict({k: v for k, v in model.state_dict().items() if k.startswith("encoder.")}, strict=False)
    model.save_pretrained(tmp_path)
    assert not (tmp_path / TRAINING_STATE_FILE).exists()
    make_model(**QUEUE).save_pretrained(tmp_path)
    assert (tmp_path / TRAINING_STATE_FILE).exists()


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_the_similarity_is_that_of_the_export(similarity, tmp_path):
    make_model(similarity=similarity).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config_sentence_transformers.json").read_text())
    assert written == {"similarity_fn_name": similarity}


def test_the_state_of_another_objective_is_missed(tmp_path):
    plain = make_model()
    plain.save_pretrained(tmp_path)
    plain.load_training_state(tmp_path)  # it needs none
    with pytest.raises(FileNotFoundError, match=TRAINING_STATE_FILE):
        make_model(**CT).load_training_state(tmp_path)


def test_compiling_reaches_both_encoders():
    model = make_model(**CT)
    model.compile(backend="eager")
    assert all(
        "forward" in vars(base_model) for base_model in (model.encoder.base_model, model.objective.second_encoder)
    )
    assert isinstance(model.objective.second_encoder, nn.Module)
    losses = []
    for each in (model, make_model(**CT)):
        torch.manual_seed(5)
        losses.append(each(**random_batch(documents=9)).loss)
    torch.testing.assert_close(*losses)
