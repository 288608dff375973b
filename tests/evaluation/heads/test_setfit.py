"""SetFit: it learns from a draw, repeats itself, and refuses what cannot work."""

import importlib.util

import numpy as np
import pytest
import torch

from docsplit.evaluation.heads import setfit as setfit_head
from docsplit.evaluation.heads.base import Run
from docsplit.evaluation.heads.finetuning import Start
from docsplit.evaluation.heads.setfit import setfit
from tests.evaluation.heads.labelled_texts import accuracy, everything, few, make_split


def test_setfit_learns_from_a_draw_and_repeats_itself(load, tmp_path, monkeypatch):
    monkeypatch.setattr(setfit_head, "SETFIT_ITERATIONS", 3)
    monkeypatch.chdir(tmp_path)
    split = make_split(test=45)
    runs = few(split, shots=8, draws=2)
    before = load().encode(split.test_texts)
    output = setfit(Start(load), split, runs)
    assert output.scores.shape == (2, 45, 3)
    assert output.scores.dtype == np.float32
    np.testing.assert_allclose(output.scores.sum(axis=-1), 1, atol=1e-5)
    assert accuracy(output.scores, split).min() > 0.5
    again = setfit(Start(load), split, runs[1:])
    np.testing.assert_array_equal(again.scores[0], output.scores[1])
    np.testing.assert_array_equal(load().encode(split.test_texts), before)
    assert {path.name for path in tmp_path.iterdir()} == {"encoder"}
    trained = [value for name, value in load().named_parameters() if "pooler." not in name]
    assert output.trainable_parameters == sum(value.numel() for value in trained) + 33 * 3


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
    setfit(Start(recording, prompt="a ship: "), split, few(split))
    assert len(seen) > 4
    assert set(seen) == {"a ship: "}
    body, before = bodies[0]
    assert any(not torch.equal(old, new) for old, new in zip(before, body.parameters()))


def test_setfit_with_several_labels_and_with_a_missing_class(load, monkeypatch):
    monkeypatch.setattr(setfit_head, "SETFIT_ITERATIONS", 1)
    split = make_split(test=12, multi_label=True)
    scores = setfit(Start(load), split, few(split)).scores
    assert scores.shape == (1, 12, 3)
    assert (scores.sum(axis=-1) > 1.05).any()
    single = make_split(test=12)
    of_two_classes = Run(np.flatnonzero(single.train_labels != 1)[:10], 0)
    scores = setfit(Start(load), single, [of_two_classes]).scores
    assert (scores[..., 1] == 0).all()
    assert (scores[..., [0, 2]] > 0).all()


def test_setfit_refuses_what_cannot_work(load, monkeypatch):
    split = make_split(test=5, multi_label=True)
    same = Run(np.flatnonzero(split.train_labels[:, 0])[:5], 0)
    with pytest.raises(ValueError, match="all pairs"):
        setfit(Start(load), split, [same])
    monkeypatch.setattr(setfit_head, "SETFIT_MAX_DOCUMENTS", 100)
    with pytest.raises(ValueError, match="leave setfit out"):
        setfit(Start(load), split, everything(split, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install setfit"):
        setfit(Start(load), split, few(split))
