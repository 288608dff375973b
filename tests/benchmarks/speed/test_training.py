"""The benchmark of training compares like with like and writes what others read. No time is asserted."""

import json
import math

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import contenders, jobs, training
from benchmarks.speed.contenders import CONTENDERS
from benchmarks.speed.jobs import draw_documents, useful_flops
from docsplit.data import corpora
from modeling_docsplit import DocSplitForContrastivePretraining


def test_useful_flops_are_those_of_a_batch_without_padding(job):
    """Counted by torch, in a step in which only the masked tokens reach the head."""
    documents = []
    for row in draw_documents(job, 0, 200)[:4]:
        views = tuple(jobs.draw_view(100, 200, np.random.default_rng(row["document_id"])) for _ in range(2))
        documents.append(row | {"views": views})
    for mlm_weight in (0.1, 0.0):
        model = DocSplitForContrastivePretraining.from_pretrained(
            job.folder, mlm_weight=mlm_weight, attn_implementation="eager"
        )
        with FlopCounterMode(display=False) as counter:
            model(**jobs.collate(documents))["loss"].backward()
        expected = useful_flops(model.encoder.base_model, documents, mlm=mlm_weight > 0)
        assert counter.get_total_flops() == pytest.approx(expected, rel=0.03)


def test_all_contenders_compute_the_same(job, corpus, monkeypatch):
    """Losses and vectors of the same texts, and the check says so where they are not the same."""
    monkeypatch.setattr(corpora, "load_corpus", lambda name: corpus)
    values = {name: build(job).prepare() for name, build in CONTENDERS.items()}
    training.check_equal(values)
    log_b = math.log(job.batch_size)
    assert abs(values["docsplit_contrastive"] - log_b) > 0.001 * log_b  # equal vectors would not prove much
    for name in ("trainer_dynamic", "st_mnrl", "st_encode"):
        with pytest.raises(ValueError, match=f"{name} does not compute"):
            training.check_equal(values | {name: values[name] * 1.001})
    with pytest.raises(ValueError, match="st_mnrl does not compute"):
        training.check_equal(values | {"st_mnrl": float("nan")})
    monkeypatch.setattr(contenders, "TEMPERATURE", 0.06)
    with pytest.raises(ValueError, match="trainer_dynamic does not compute"):
        training.check_equal(values | {"trainer_dynamic": CONTENDERS["trainer_dynamic"](job).prepare()})


def test_what_it_writes(run_here, tmp_path, monkeypatch, capsys):
    """With the contenders in this process."""

    class Here:
        def __init__(self, name, job):
            self.contender = CONTENDERS[name](job)

        def ask(self, method, *arguments):
            return getattr(self.contender, method)(*arguments)

        def close(self):
            pass

    monkeypatch.setattr(training, "Contender", Here)
    monkeypatch.setattr(training, "in_process", lambda function, *given: {"fp32": 1e15})
    names = ["--contenders", "docsplit", "trainer_dynamic"]
    options = ["--models", "tiny", "--device", "cpu", "--precision", "fp32", "--output", tmp_path / "latest.json"]
    run_here(training.main, *options, *names)
    printed, results = capsys.readouterr().out, json.loads((tmp_path / "latest.json").read_text())
    assert "equal losses" in printed
    assert (tmp_path / "latest.md").read_text() in printed
    ours, theirs = (results["rows"][name] for name in ("docsplit", "trainer_dynamic"))
    for row in (ours, theirs):
        assert row["tokens_per_second_min"] <= row["tokens_per_second"] <= row["tokens_per_second_max"]
        assert 0 < row["mfu"] < 1
    assert ours["padding_share"] < theirs["padding_share"]
    ratio = ours["tokens_per_second"] / theirs["tokens_per_second"]
    assert results["ratios"]["train_vs_trainer_dynamic"] == pytest.approx(ratio)
