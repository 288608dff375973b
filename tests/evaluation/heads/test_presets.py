"""The papers' settings, and which head each preset names."""

from docsplit.evaluation.arguments import ProbeArguments
from docsplit.evaluation.heads.presets import FineTuning


def test_the_graph_papers_fine_tuning():
    """Table 6: batch, epochs and rate of its four data sets."""
    table = {"graph": (5e-5, 20), "graph_arxiv": (1e-4, 20), "graph_hyperpartisan": (3e-5, 15)}
    for name, (rate, epochs) in table.items():
        finetuning = ProbeArguments(probe_preset=name, heads=["finetune"]).finetuning
        assert finetuning == FineTuning(rate, epochs, batch_size=32, select_by="accuracy")
    given = ProbeArguments(probe_preset="graph", finetune_epochs=2, finetune_batch_size=8).finetuning
    assert (given.num_epochs, given.batch_size, given.learning_rate) == (2, 8, 5e-5)
