"""The documents of a job: what grouping, lengths and operations are, beside counting them."""

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import jobs
from benchmarks.speed.jobs import Job, draw_documents, num_tokens, useful_flops
from modeling_docsplit import DocSplitForContrastivePretraining


def test_grouping_gets_the_same_documents_and_less_padding(job):
    job = Job(**vars(job) | {"batch_size": 36, "steps": 10})
    plain, grouped = (draw_documents(job, 1, 200, grouped=grouped) for grouped in (False, True))

    def content(documents):
        return sorted(view.ids.tolist() for document in documents for view in document["views"])

    def padded(documents):
        batches = [documents[start : start + 36] for start in range(0, len(documents), 36)]
        return sum(jobs.collate(batch)["input_ids"].numel() for batch in batches)

    assert content(plain) == content(grouped)
    assert content(plain) != content(draw_documents(job, 0, 200))
    assert padded(grouped) < 0.6 * padded(plain)
    assert padded(grouped) < 1.25 * num_tokens(grouped)


def test_lengths(job):
    job = Job(**vars(job) | {"batch_size": 50, "steps": 50, "rounds": 1})
    lengths = np.array([[len(view.ids) for view in row["views"]] for row in draw_documents(job, 0, 200)])
    assert lengths.min() >= 8
    assert lengths.max() == 512
    assert lengths.mean() == pytest.approx(200, rel=0.05)
    assert np.corrcoef(np.log(lengths).T)[0, 1] == pytest.approx(0.9, abs=0.03)


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
