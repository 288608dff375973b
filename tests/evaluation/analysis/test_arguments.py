"""Options of the analyses that contradict themselves are refused."""

import pytest

from docsplit.evaluation.arguments import AnalysisArguments


def test_results_without_clusters_are_not_published():
    with pytest.raises(ValueError, match="add clustering to --analyses"):
        AnalysisArguments(push_results=True, analyses=["map"])


def test_graph_attention_is_asked_for_by_name():
    assert "graph_attention" not in AnalysisArguments().analyses
    assert AnalysisArguments(analyses=["graph_attention"]).analyses == ["graph_attention"]
