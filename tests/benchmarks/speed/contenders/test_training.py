"""Contenders of training: each reads the same ids, and keeps its precision and loss."""

import pytest
import torch

from benchmarks.speed.contenders import training as training_contenders
from benchmarks.speed.contenders.table import CONTENDERS
from benchmarks.speed.jobs import Job, draw_documents


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp32", marks=pytest.mark.slow)])
def test_each_round_runs_in_its_precision(job, precision):
    """A model that a Trainer has prepared once is not prepared again: the second round must not be another one."""
    contender = CONTENDERS["docsplit"](Job(**vars(job) | {"precision": precision}))
    seen = []

    def look(module, args, output):
        seen.append(output.dtype)

    contender.encoder.encoder.layer[0].attention.output.dense.register_forward_hook(look)
    for number in range(2):
        contender.measure(number)
    assert set(seen) == {torch.bfloat16 if precision == "bf16" else torch.float32}


def test_words_stand_for_ids(job):
    contender = CONTENDERS["st_mnrl"](job)
    views = draw_documents(job, 0, 200)[0]["views"]
    ids = contender.model.preprocess([view.text for view in views])["input_ids"]
    training_contenders.check_same_ids(ids, views)
    ids[0, 1] += 1
    with pytest.raises(ValueError, match="other ids"):
        training_contenders.check_same_ids(ids, views)


def test_sentence_transformers_without_its_trainer(job):
    """The stock Trainer gives the same loss in the same steps where `datasets` is missing."""
    speeds = []
    for own_trainer in (True, False):
        contender = CONTENDERS["st_cached_mnrl"](job)
        contender.own_trainer = own_trainer
        contender.settings = {"mini_batch_num_tokens": 512}
        contender.train(contender.documents(0))
        speeds.append(contender.prepare())
    assert speeds[0] == pytest.approx(speeds[1], rel=1e-4)
