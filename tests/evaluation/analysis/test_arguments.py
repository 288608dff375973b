"""Options of the analyses that contradict themselves are refused."""

import pytest

from docsplit.evaluation.analysis.arguments import AnalysisArguments


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"analyses": ["colour"]}, "--analyses has no colour"),
        ({"word_weight": "max"}, "--word_weight has no max"),
        ({"map_method": "som"}, "--map_method has no som"),
        ({"sample_documents": 3}, "--sample_documents 3: give a whole number of at least 4"),
        ({"push_results": True, "analyses": ["map"]}, "add clustering to --analyses"),
    ],
)
def test_options_that_cannot_be_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        AnalysisArguments(**given)


def test_graph_attention_is_asked_for_by_name():
    assert "graph_attention" not in AnalysisArguments().analyses
    assert AnalysisArguments(analyses=["graph_attention"]).analyses == ["graph_attention"]
