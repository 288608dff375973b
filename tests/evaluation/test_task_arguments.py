"""Options that contradict themselves are refused; fine-tuning's come from the preset."""

import pytest

from docsplit.evaluation.heads.presets import FineTuning
from docsplit.evaluation.task_arguments import AnalysisArguments, ProbeArguments, RetrievalArguments


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ProbeArguments, {"heads": ["svm"]}, "--heads has no svm"),
        (ProbeArguments, {"heads": ["setfit"], "shots": [0]}, "setfit is for few-shot draws"),
        (ProbeArguments, {"heads": ["linear"], "probe_epochs": 5}, "trained by gradient: mlp"),
        (ProbeArguments, {"heads": ["knn"], "probe_preset": "bregman", "probe_epochs": 5}, "linear or mlp"),
        (RetrievalArguments, {"fold": 0, "selection_split": "dev"}, "leave out --selection_split"),
        (RetrievalArguments, {"fold": 0, "encoders_by_fold": True}, "leave out --fold"),
        (RetrievalArguments, {"push_results": True, "encoders_by_fold": True}, "leave out --push_results"),
        (AnalysisArguments, {"push_results": True, "analyses": ["map"]}, "add clustering to --analyses"),
    ],
)
def test_options_that_cannot_be_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_the_graph_papers_fine_tuning():
    """Table 6: batch, epochs and rate of its four data sets."""
    table = {"graph": (5e-5, 20), "graph_arxiv": (1e-4, 20), "graph_hyperpartisan": (3e-5, 15)}
    for name, (rate, epochs) in table.items():
        finetuning = ProbeArguments(probe_preset=name, heads=["finetune"]).finetuning
        assert finetuning == FineTuning(rate, epochs, batch_size=32, select_by="accuracy")
    assert ProbeArguments().finetuning == FineTuning(2e-5, 3, 16)
    assert (ProbeArguments(shots=[10, 5, 0, 5]).shots, ProbeArguments(shots=[0]).shots) == ([5, 10], [])
    given = ProbeArguments(probe_preset="bregman", finetune_epochs=1.5, finetune_batch_size=4).finetuning
    assert given == FineTuning(3e-5, 1.5, 4)
