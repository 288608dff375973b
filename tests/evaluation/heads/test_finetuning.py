"""Heads that change the encoder: they learn, repeat themselves, and leave nothing behind."""

import importlib.util

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from transformers import Trainer, set_seed

from docsplit.data.passages import to_passages
from docsplit.evaluation.heads import finetuning
from docsplit.evaluation.heads import setfit as setfit_head
from docsplit.evaluation.heads.base import HeadRun
from docsplit.evaluation.heads.finetuning import FineTuningStart, finetune
from docsplit.evaluation.heads.presets import FineTuning
from docsplit.evaluation.heads.setfit import setfit
from docsplit.modeling.loading import load_encoder
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig
from tests.conftest import tiny_config
from tests.evaluation.heads.examples import LEARNING_RATE, accuracy, everything, few, make_split


def tune(start, split, settings, seed=0):
    return finetune(start, split, everything(split.train_labels, seed), settings)


@pytest.mark.parametrize("multi_label", [False, True])
def test_scores_are_those_of_the_trained_model_in_the_order_of_the_texts(multi_label, load, monkeypatch):
    trainers = []
    monkeypatch.setattr(Trainer, "train", lambda self: trainers.append(self))
    split = make_split(train=30, multi_label=multi_label)
    scores = tune(FineTuningStart(load, prompt="harbour: "), split, FineTuning()).scores[0]
    model = trainers[0].model.eval()
    assert not trainers[0].model_accepts_loss_kwargs  # or it would scale the loss by the number of processes
    for text, row in zip(split.test_texts, scores, strict=True):
        logits = model.classifier(model.body.encode(text, prompt="harbour: ", convert_to_tensor=True).clone())
        expected = logits.sigmoid() if multi_label else logits.softmax(dim=-1)
        np.testing.assert_allclose(row, expected.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("multi_label", [False, True])
def test_one_step_is_that_of_a_slow_loop(multi_label, load, monkeypatch):
    monkeypatch.setattr(finetuning, "DROPOUT", 0.0)
    monkeypatch.setattr(finetuning, "WARMUP", 0.0)

    def undropped():
        body = load()
        for module in body.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = 0.0
        return body

    split = make_split(train=16, test=10, multi_label=multi_label)
    settings = FineTuning(learning_rate=LEARNING_RATE, num_epochs=1)
    output = tune(FineTuningStart(undropped), split, settings, seed=3)

    set_seed(3)
    body, classifier = undropped(), torch.nn.Linear(32, 3)
    parameters = [*body.parameters(), *classifier.parameters()]
    groups = [{"params": [value for value in parameters if (value.ndim > 1) == decayed],
               "weight_decay": 0.01 * decayed} for decayed in (True, False)]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)

    def logits_of(texts):
        return classifier(body(dict(body.preprocess(texts)))["sentence_embedding"])

    labels = torch.tensor(split.train_labels)
    losses = {False: torch.nn.functional.cross_entropy, True: torch.nn.functional.binary_cross_entropy_with_logits}
    body.train()
    losses[multi_label](logits_of(split.train_texts), labels.float() if multi_label else labels).backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    body.eval()
    before = logits_of(split.test_texts)
    optimizer.step()
    before, after = (logits.sigmoid() if multi_label else logits.softmax(-1)
                     for logits in (before, logits_of(split.test_texts)))  # fmt: skip
    np.testing.assert_allclose(output.scores[0], after.detach().numpy(), atol=1e-5)
    assert not np.allclose(output.scores[0], before.detach().numpy(), atol=1e-3)


def test_a_broken_encoder_raises(load):
    def broken():
        body = load()
        with torch.no_grad():
            next(body.parameters()).fill_(torch.nan)
        return body

    split = make_split(train=6, test=2)
    with pytest.raises(FloatingPointError, match=r"prediction of fine-tuning .*--finetune_learning_rate"):
        tune(FineTuningStart(broken), split, FineTuning(num_epochs=1))


def test_the_best_epoch_on_the_validation_part_counts(load, monkeypatch):
    macro_f1 = (0.2, 0.6, 0.6, 0.1)
    values = iter([{"macro_f1": value, "accuracy": 1 - value} for value in macro_f1 + macro_f1])
    monkeypatch.setattr(finetuning, "_measures", lambda prediction: next(values))
    weights = []

    class Recorder(finetuning._BestEpoch):
        def on_epoch_end(self, args, state, control, **kwargs):
            weights.append(kwargs["model"].classifier.weight.detach().clone())

        def on_evaluate(self, args, state, control, **kwargs):
            super().on_evaluate(args, state, control, **kwargs)
            self.model = kwargs["model"]

    recorders = []
    monkeypatch.setattr(finetuning, "_BestEpoch", lambda by: recorders.append(Recorder(by)) or recorders[-1])
    split = make_split(train=30, test=5, validation=20)
    output = tune(FineTuningStart(load), split, FineTuning(learning_rate=LEARNING_RATE, num_epochs=4))
    assert len({weight.sum().item() for weight in weights}) == 4
    torch.testing.assert_close(recorders[0].model.classifier.weight, weights[1], rtol=0, atol=0)
    assert [(point["epoch"], point["macro_f1"]) for point in output.curves[0]] == list(enumerate(macro_f1, start=1))
    by_accuracy = FineTuning(learning_rate=LEARNING_RATE, num_epochs=4, select_by="accuracy")
    tune(FineTuningStart(load), split, by_accuracy)
    torch.testing.assert_close(recorders[1].model.classifier.weight, weights[7], rtol=0, atol=0)
    assert next(values, None) is None  # validated after each epoch


def test_only_what_an_embedding_depends_on_is_trained_and_it_is_not_normalised(encoder):
    def load(*more):
        body = SentenceTransformer(str(encoder), device="cpu", model_kwargs={"add_pooling_layer": True})
        body.extend(more)
        return body

    split = make_split(train=16, test=4)
    of_body = sum(value.numel() for name, value in load().named_parameters() if "pooler" not in name)
    assert of_body < sum(value.numel() for value in load().parameters())
    starts = (load, lambda: load(Normalize()))
    plain, without = (tune(FineTuningStart(each), split, FineTuning(num_epochs=1)) for each in starts)
    assert plain.trainable_parameters == of_body + 33 * 3
    np.testing.assert_array_equal(plain.scores, without.scores)


def test_several_gpus_in_one_process_are_refused(load, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    split = make_split(train=6, test=2)
    with pytest.raises(ValueError, match="accelerate launch"):
        tune(FineTuningStart(load), split, FineTuning())
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="3 processes cannot share a batch of 16"):
        tune(FineTuningStart(load), split, FineTuning())


def test_a_graph_document_model_reads_so_many_passages(wordpiece, tmp_path, monkeypatch):
    """The first of each document, more in prediction than in training."""
    monkeypatch.setattr(finetuning, "TRAIN_PASSAGES", 2)
    monkeypatch.setattr(finetuning, "TEST_PASSAGES", 3)
    config = GraphDocumentConfig(tiny_config(wordpiece), graph_hidden_size=16, passage_words=10)
    model = DocSplitForContrastivePretraining.from_config(config, wordpiece, max_seq_length=24)
    model.save_pretrained(tmp_path)
    read = []

    def load():
        body = load_encoder(str(tmp_path), device="cpu")
        body.register_forward_pre_hook(lambda module, arguments: read.append((module.training, arguments[0])))
        return body

    split = make_split(train=24, test=9, validation=6)
    output = tune(FineTuningStart(load), split, FineTuning(num_epochs=1))
    counts = {part: [len(to_passages(text, 10)) for text in texts] for part, texts in split.texts.items()}
    assert min(max(own) for own in counts.values()) > 3
    in_training = [features["document"] for is_training, features in read if is_training]
    after = [features["document"] for is_training, features in read[1:] if not is_training]  # 1: what gets a gradient
    for batches, own, most in ((in_training, counts["train"], 2), (after, counts["validation"] + counts["test"], 3)):
        found = [count for document in batches for count in document.bincount().tolist()]
        assert sorted(found) == sorted(min(count, most) for count in own)
    assert [point["epoch"] for point in output.curves[0]] == [1]


def test_setfit_learns_from_a_draw_with_the_prompt_and_repeats_itself(load, tmp_path, monkeypatch):
    monkeypatch.setattr(setfit_head, "SETFIT_ITERATIONS", 3)
    monkeypatch.chdir(tmp_path)
    prompts, bodies = set(), []

    def recording():
        body = load()
        preprocess = body.preprocess
        body.preprocess = lambda inputs, prompt=None, **given: (
            prompts.add(prompt) or preprocess(inputs, prompt, **given)
        )
        bodies.append((body, [value.clone() for value in body.parameters()]))
        return body

    split = make_split(test=45)
    output = setfit(FineTuningStart(recording, prompt="a ship: "), split, 2 * few(split, shots=8))
    assert (output.scores.shape, output.scores.dtype) == ((2, 45, 3), np.float32)
    np.testing.assert_array_equal(output.scores[0], output.scores[1])
    np.testing.assert_allclose(output.scores.sum(axis=-1), 1, atol=1e-5)
    assert accuracy(output.scores, split).min() > 0.5
    assert prompts == {"a ship: "}
    body, before = bodies[0]
    assert any(not torch.equal(old, new) for old, new in zip(before, body.parameters()))
    assert not list(tmp_path.iterdir())
    trained = [value for name, value in load().named_parameters() if "pooler." not in name]
    assert output.trainable_parameters == sum(value.numel() for value in trained) + 33 * 3


def test_setfit_refuses_what_cannot_work(load, monkeypatch):
    split = make_split(test=5, multi_label=True)
    same = HeadRun(np.flatnonzero(split.train_labels[:, 0])[:5], 0)
    with pytest.raises(ValueError, match="with and without a common label"):
        setfit(FineTuningStart(load), split, [same])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install setfit"):
        setfit(FineTuningStart(load), split, few(split))
