"""The benchmark of graph document models: the operations that it counts are those of a step."""

import numpy as np
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import graph_document


def test_a_step_is_the_papers_and_its_operations_are_those_that_are_needed(monkeypatch):
    """Passages of one length, so that there is no padding among tokens; in graphs there is a little."""
    monkeypatch.setattr(graph_document, "DEVIATION", 0)
    batch = graph_document.make_batch(6, 30522)
    rows = {name: values.numpy() for name, values in batch["rows"].items()}
    for document in range(6):
        is_inside = rows["document"] == document
        assert (rows["view"][is_inside] == 0).sum() == is_inside.sum() // 2
        assert sorted(rows["position"][is_inside]) == list(range(is_inside.sum()))
    lengths = batch["attention_mask"].sum(dim=1).numpy()
    model = graph_document.make_model(4096)
    model.set_attn_implementation("eager")  # whose products are counted
    with FlopCounterMode(display=False) as counted:
        model(**batch).loss.backward()
    needed = graph_document.needed_flops(rows["view"], rows["document"], lengths)
    assert np.isclose(counted.get_total_flops(), sum(needed.values()), rtol=0.02)
    assert graph_document.compare_caching(2, 512)["gradient_difference"] == 0
