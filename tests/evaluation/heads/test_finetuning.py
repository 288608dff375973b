"""Heads that change the encoder: they learn, repeat themselves, and leave nothing behind."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from transformers import Trainer, set_seed

from docsplit.data.passages import to_passages
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.embedding.loading import load_encoder
from docsplit.evaluation.heads import finetuning
from docsplit.evaluation.heads import setfit as setfit_head
from docsplit.evaluation.heads.finetuning import TextClassifier, finetune
from docsplit.evaluation.heads.frozen import Run
from docsplit.evaluation.heads.setfit import setfit
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig, GraphDocumentModel
from tests.conftest import TOPICS, make_corpus, tiny_config

LEARNING_RATE = 1e-3  # high: tiny encoders from nothing


def make_split(train=210, test=61, validation=0, multi_label=False):
    """Documents about three topics; with several labels, also joined pairs of them."""
    names = sorted(TOPICS)
    rows = make_corpus(2 * (train + test + validation), seed=1)
    texts, labels = [], []
    for first, second in zip(rows[::2], rows[1::2]):
        both = multi_label and len(texts) % 2 == 0
        texts.append(f"{first['text']} {second['text']}" if both else first["text"])
        topics = {first["label"], second["label"]} if both else {first["label"]}
        labels.append([int(name in topics) for name in names])
    multi_hot = np.array(labels, dtype=np.int8)
    array = multi_hot if multi_label else multi_hot.argmax(axis=1)
    end = train + test
    return LabelledSplit(
        train_texts=texts[:train],
        train_labels=array[:train],
        test_texts=texts[train:end],
        test_labels=array[train:end],
        class_names=names,
        validation_texts=texts[end:] if validation else None,
        validation_labels=array[end:] if validation else None,
    )


@pytest.fixture
def checkpoint(tiny_model, wordpiece, tmp_path):
    directory = tmp_path / "encoder"
    tiny_model.save_pretrained(directory)
    wordpiece.save_pretrained(directory)
    return directory


@pytest.fixture
def load(checkpoint):
    return lambda: SentenceTransformer(str(checkpoint), device="cpu")


def everything(split, *seeds):
    return [Run(np.arange(len(split.train_texts)), seed) for seed in seeds]


def accuracy(scores, split):
    return (scores.argmax(axis=-1) == split.test_labels).mean(axis=-1)  # (R,)


def test_learns_repeats_itself_and_leaves_nothing_behind(load, checkpoint, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.chdir(folder)
    split = make_split()
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    output = finetune(load, split, everything(split, 0, 1), learning_rate=LEARNING_RATE)
    assert caplog.text.count("no validation part, so the last epoch counts") == 1
    assert output.scores.shape == (2, 61, 3)
    assert output.scores.dtype == np.float32
    np.testing.assert_allclose(output.scores.sum(axis=-1), 1, atol=1e-5)
    assert accuracy(output.scores, split).min() > 0.8
    assert not np.allclose(output.scores[0], output.scores[1])
    again = finetune(load, split, everything(split, 1), learning_rate=LEARNING_RATE)
    np.testing.assert_array_equal(again.scores[0], output.scores[1])  # whatever ran before it
    assert output.seconds > 0
    assert list(folder.iterdir()) == []
    assert {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()} == before


def test_scores_are_those_of_the_trained_model_in_the_order_of_the_texts(load, monkeypatch):
    trainers = []
    monkeypatch.setattr(Trainer, "train", lambda self: trainers.append(self))
    split = make_split(train=30)
    scores = finetune(load, split, everything(split, 0), prompt="harbour: ").scores[0]
    model = trainers[0].model.eval()
    assert not trainers[0].model_accepts_loss_kwargs  # or it would scale the loss by the number of processes
    for text, row in zip(split.test_texts, scores):
        embedding = model.body.encode(text, prompt="harbour: ", convert_to_tensor=True).clone()
        expected = model.classifier(embedding).softmax(dim=-1)
        np.testing.assert_allclose(row, expected.detach().numpy(), atol=1e-5)
    without = finetune(load, split, everything(split, 0)).scores[0]
    assert not np.allclose(scores, without, atol=1e-4)


def test_one_step_is_that_of_a_slow_loop(load, monkeypatch):
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

    split = make_split(train=16, test=10)
    output = finetune(undropped, split, everything(split, 3), learning_rate=LEARNING_RATE, num_epochs=1)

    set_seed(3)
    body = undropped()
    classifier = torch.nn.Linear(32, 3)
    parameters = [*body.parameters(), *classifier.parameters()]
    decayed = [parameter for parameter in parameters if parameter.ndim > 1]
    rest = [parameter for parameter in parameters if parameter.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=LEARNING_RATE
    )
    features = dict(body.preprocess(split.train_texts))
    logits = classifier(body.train()(features)["sentence_embedding"])
    torch.nn.functional.cross_entropy(logits, torch.tensor(split.train_labels)).backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    untrained = classifier(body.eval()(dict(body.preprocess(split.test_texts)))["sentence_embedding"]).softmax(-1)
    optimizer.step()
    expected = classifier(body.eval()(dict(body.preprocess(split.test_texts)))["sentence_embedding"]).softmax(-1)
    np.testing.assert_allclose(output.scores[0], expected.detach().numpy(), atol=1e-5)
    assert not np.allclose(output.scores[0], untrained.detach().numpy(), atol=1e-3)


def test_several_labels(load):
    split = make_split(multi_label=True)
    scores = finetune(load, split, everything(split, 0), learning_rate=LEARNING_RATE, num_epochs=5).scores[0]
    assert scores.shape == (61, 3)
    right = ((scores >= 0.5) == split.test_labels).mean()
    majority = max(split.test_labels.mean(), 1 - split.test_labels.mean())
    assert right > 0.85 > majority + 0.1
    assert (scores.sum(axis=1) > 1.5).any()  # no softmax


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
    output = finetune(load, split, everything(split, 0), learning_rate=LEARNING_RATE, num_epochs=4)
    assert len({weight.sum().item() for weight in weights}) == 4
    torch.testing.assert_close(recorders[0].model.classifier.weight, weights[1], rtol=0, atol=0)
    assert [(point["epoch"], point["macro_f1"]) for point in output.curves[0]] == list(enumerate(macro_f1, start=1))
    finetune(load, split, everything(split, 0), learning_rate=LEARNING_RATE, num_epochs=4, select_by="accuracy")
    torch.testing.assert_close(recorders[1].model.classifier.weight, weights[7], rtol=0, atol=0)
    assert next(values, None) is None  # validated after each epoch


def test_validation_looks_at_the_validation_part(load, caplog):
    caplog.set_level("INFO")
    split = make_split(train=120, test=5, validation=60)
    best = []

    class Kept(finetuning._BestEpoch):
        def on_evaluate(self, args, state, control, **kwargs):
            super().on_evaluate(args, state, control, **kwargs)
            best.append(kwargs["metrics"]["eval_macro_f1"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetuning, "_BestEpoch", Kept)
        finetune(load, split, everything(split, 0), learning_rate=LEARNING_RATE)
    assert len(best) == 3
    assert max(best) > 0.8
    assert "no validation part" not in caplog.text


def test_weights_kept_in_half_precision_are_trained_in_full(load, monkeypatch):
    models, train = [], Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda self: models.append(self.model) or train(self))
    split = make_split(train=32, test=10)
    output = finetune(lambda: load().bfloat16(), split, everything(split, 0), num_epochs=1, bf16=True)
    assert output.scores.dtype == np.float32
    assert {parameter.dtype for parameter in models[0].parameters()} == {torch.float32}


def test_only_what_an_embedding_depends_on_is_trained(checkpoint):
    def load_with_pooler():
        return SentenceTransformer(str(checkpoint), device="cpu", model_kwargs={"add_pooling_layer": True})

    split = make_split(train=16, test=4)
    assert any("pooler" in name for name, _ in load_with_pooler().named_parameters())
    output = finetune(load_with_pooler, split, everything(split, 0), num_epochs=1)
    of_body = sum(value.numel() for name, value in load_with_pooler().named_parameters() if "pooler" not in name)
    assert output.trainable_parameters == of_body + 33 * 3


def test_normalisation_is_left_out_of_training(load):
    def normalised():
        body = load()
        body.append(Normalize())
        return body

    split = make_split(train=32, test=10)
    plain, without = (finetune(each, split, everything(split, 0), num_epochs=1) for each in (load, normalised))
    np.testing.assert_array_equal(plain.scores, without.scores)


def test_a_pooling_that_leaves_the_prompt_out_works(load):
    def instructor():
        body = load()
        body.set_pooling_include_prompt(False)
        return body

    split = make_split(train=32, test=10)
    output = finetune(instructor, split, everything(split, 0), prompt="a ship: ", num_epochs=1)
    plain = finetune(load, split, everything(split, 0), prompt="a ship: ", num_epochs=1)
    assert not np.allclose(output.scores, plain.scores, atol=1e-5)


def test_the_loss_is_the_mean_over_the_batch(load):
    torch.manual_seed(0)
    for multi_label, labels in ((False, [0, 2]), (True, [[0, 1, 1], [0, 0, 0]])):
        model = TextClassifier(load(), 32, 3, multi_label).eval()
        features = dict(model.body.preprocess(["A ship.", "Bread and butter in the oven."]))
        output = model(labels=torch.tensor(labels), **features)
        probabilities = output["logits"].double().sigmoid() if multi_label else output["logits"].double().softmax(-1)
        terms = []
        for row, label in zip(probabilities, labels):
            if multi_label:
                terms += [-torch.log(p if yes else 1 - p) for p, yes in zip(row, label)]
            else:
                terms.append(-torch.log(row[label]))
        torch.testing.assert_close(output["loss"].double(), sum(terms) / len(terms), rtol=1e-5, atol=1e-6)


def test_a_broken_loss_raises(load):
    def broken():
        body = load()
        with torch.no_grad():
            body[0].auto_model.embeddings.LayerNorm.weight.fill_(float("nan"))
        return body

    split = make_split(train=32, test=10)
    with pytest.raises(FloatingPointError, match=r"loss of fine-tuning at step \d+ .*--finetune_learning_rate"):
        finetune(broken, split, everything(split, 0), num_epochs=1)


def few(split, shots=4, draws=1):
    return [Run(draw, seed) for seed, draw in enumerate(split.draws(shots, draws))]


def test_setfit_learns_from_a_draw_and_repeats_itself(load, tmp_path, monkeypatch):
    monkeypatch.setattr(setfit_head, "SETFIT_ITERATIONS", 3)
    monkeypatch.chdir(tmp_path)
    split = make_split(test=45)
    runs = few(split, shots=8, draws=2)
    before = load().encode(split.test_texts)
    output = setfit(load, split, runs)
    assert output.scores.shape == (2, 45, 3)
    assert output.scores.dtype == np.float32
    np.testing.assert_allclose(output.scores.sum(axis=-1), 1, atol=1e-5)
    assert accuracy(output.scores, split).min() > 0.5
    again = setfit(load, split, runs[1:])
    np.testing.assert_array_equal(again.scores[0], output.scores[1])
    np.testing.assert_array_equal(load().encode(split.test_texts), before)
    assert {path.name for path in tmp_path.iterdir()} == {"encoder"}
    assert output.trainable_parameters == sum(value.numel() for value in load().parameters()) + 33 * 3


def test_setfit_changes_the_encoder_with_the_prompt(load, monkeypatch):
    monkeypatch.setattr(setfit_head, "SETFIT_ITERATIONS", 1)
    seen, bodies = [], []

    def recording():
        body = load()
        preprocess = body.preprocess
        body.preprocess = lambda inputs, prompt=None, **kwargs: (
            seen.append(prompt) or preprocess(inputs, prompt, **kwargs)
        )
        bodies.append((body, [value.clone() for value in body.parameters()]))
        return body

    split = make_split(test=5)
    setfit(recording, split, few(split), prompt="a ship: ")
    assert len(seen) > 4
    assert set(seen) == {"a ship: "}
    body, before = bodies[0]
    assert any(not torch.equal(old, new) for old, new in zip(before, body.parameters()))


def test_setfit_with_several_labels_and_with_a_missing_class(load, monkeypatch):
    monkeypatch.setattr(setfit_head, "SETFIT_ITERATIONS", 1)
    split = make_split(test=12, multi_label=True)
    scores = setfit(load, split, few(split)).scores
    assert scores.shape == (1, 12, 3)
    assert (scores.sum(axis=-1) > 1.05).any()
    single = make_split(test=12)
    of_two_classes = Run(np.flatnonzero(single.train_labels != 1)[:10], 0)
    scores = setfit(load, single, [of_two_classes]).scores
    assert (scores[..., 1] == 0).all()
    assert (scores[..., [0, 2]] > 0).all()


def test_setfit_refuses_what_cannot_work(load, monkeypatch):
    split = make_split(test=5, multi_label=True)
    same = Run(np.flatnonzero(split.train_labels[:, 0])[:5], 0)
    with pytest.raises(ValueError, match="all pairs"):
        setfit(load, split, [same])
    monkeypatch.setattr(setfit_head, "SETFIT_MAX_DOCUMENTS", 100)
    with pytest.raises(ValueError, match="leave setfit out"):
        setfit(load, split, everything(split, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install setfit"):
        setfit(load, split, few(split))


def test_several_gpus_in_one_process_are_refused(load, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    split = make_split(train=6, test=2)
    with pytest.raises(ValueError, match="accelerate launch"):
        finetune(load, split, everything(split, 0))
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="3 processes cannot share a batch of 16"):
        finetune(load, split, everything(split, 0))


WORKER = """
import os, sys
import numpy as np, torch
import torch.distributed as dist
from sentence_transformers import SentenceTransformer
from docsplit.evaluation.heads import setfit as setfit_head
from docsplit.evaluation.heads.finetuning import finetune
from docsplit.evaluation.heads.table import Run
from docsplit.evaluation.heads.setfit import setfit
from tests.evaluation.heads.test_finetuning import LEARNING_RATE, everything, few, make_split

checkpoint, folder = sys.argv[1:]
torch.set_num_threads(1)
setfit_head.SETFIT_ITERATIONS = 1
seen = []

def load():
    body = SentenceTransformer(checkpoint, device="cpu", model_kwargs={"add_pooling_layer": True})
    preprocess = body.preprocess
    body.preprocess = lambda inputs, prompt=None, **kw: seen.append(list(inputs)) or preprocess(inputs, prompt, **kw)
    return body

split = make_split(validation=20)
split.test_texts, split.test_labels = split.test_texts[:7], split.test_labels[:7]
output = finetune(load, split, everything(split, 0), learning_rate=LEARNING_RATE)
rank = int(os.environ["RANK"])
assert dist.is_initialized() and dist.get_world_size() == 2
trained = [text for batch in seen[1:] for text in batch if text in set(split.train_texts)]
contrasted = setfit(load, split, few(split))
np.savez(f"{folder}/{rank}.npz", scores=output.scores, setfit=contrasted.scores, trained=trained)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_give_all_predictions_to_both(checkpoint, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    root = Path(__file__).parents[3]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    completed = subprocess.run(
        [*launch, str(script), str(checkpoint), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    results = [np.load(tmp_path / f"{rank}.npz") for rank in range(2)]
    split = make_split()
    for name in ("scores", "setfit"):
        assert results[0][name].shape == (1, 7, 3)
        np.testing.assert_allclose(results[0][name], results[1][name], atol=1e-6)
    assert (results[0]["scores"][0].argmax(axis=-1) == split.test_labels[:7]).mean() > 0.8
    # Each of the 210 documents once in each of 3 epochs, and 14 of them again to fill the last batches of 8.
    together = [str(text) for result in results for text in result["trained"]]
    assert set(together) == set(split.train_texts)
    assert min(together.count(text) for text in split.train_texts) == 3
    assert len(together) == 3 * (210 + 14)


def test_a_graph_document_model_reads_so_many_passages(wordpiece, tmp_path, monkeypatch, caplog):
    """The first of each document, more in prediction than in training; what is longer is counted."""
    monkeypatch.setattr(finetuning, "TRAIN_PASSAGES", 2)
    monkeypatch.setattr(finetuning, "TEST_PASSAGES", 3)
    config = GraphDocumentConfig(tiny_config(wordpiece), graph_hidden_size=16, passage_words=10)
    model = DocSplitForContrastivePretraining(config, GraphDocumentModel(config), max_seq_length=24)
    model.save_pretrained(tmp_path)
    wordpiece.save_pretrained(tmp_path)
    read = []

    def load():
        body = load_encoder(str(tmp_path), device="cpu")
        body.register_forward_pre_hook(lambda module, arguments: read.append((module.training, arguments[0])))
        return body

    split = make_split(train=24, test=9, validation=6)
    with caplog.at_level("INFO"):
        output = finetune(load, split, everything(split, 0), num_epochs=1)
    counts = {part: [len(to_passages(text, 10)) for text in texts] for part, texts in split.texts.items()}
    assert min(max(own) for own in counts.values()) > 3
    over, beyond = sum(own > 2 for own in counts["train"]), sum(own > 3 for own in counts["test"])
    assert f"Of {over} of 24 training documents the first 2 passages are read, of {beyond} of 9 test" in caplog.text
    in_training = [features["document"] for is_training, features in read if is_training]
    after = [features["document"] for is_training, features in read[1:] if not is_training]  # 1: what gets a gradient
    for batches, own, most in ((in_training, counts["train"], 2), (after, counts["validation"] + counts["test"], 3)):
        found = [count for document in batches for count in document.bincount().tolist()]
        assert sorted(found) == sorted(min(count, most) for count in own)
    assert [point["epoch"] for point in output.curves[0]] == [1]
