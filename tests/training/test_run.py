"""A run between its loading and its results: what it prepares, and what it leaves."""

import pytest

from docsplit.modeling.objectives.neighbour_distillation import TARGETS_FILE
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments, QueryArguments, RunOptions
from docsplit.training.documents import TrainingData
from docsplit.training.run import Run, take_output


@pytest.fixture
def options(tmp_path):
    args = PretrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    return RunOptions(ModelArguments(), DataArguments(), QueryArguments(), args)


def test_a_new_run_leaves_nothing_that_an_earlier_one_prepared(tiny_model, options, tmp_path):
    tiny_model.save_pretrained(tmp_path / "checkpoint-4")
    (tmp_path / TARGETS_FILE).touch()
    for checkpoint, is_kept in ((tmp_path / "checkpoint-4", True), (None, False)):
        run = Run(options, checkpoint, TrainingData([], None, None, {}), tiny_model, take_output(options))
        run.prepare_objective()
        assert (tmp_path / TARGETS_FILE).exists() == is_kept
        assert run.results == {}
