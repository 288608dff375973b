"""Options of ranking that contradict themselves are refused."""

import pytest

from docsplit.evaluation.arguments import RetrievalArguments


def test_options_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="leave one out"):
        RetrievalArguments(fold=0, selection_split="dev")
    assert RetrievalArguments().methods == ["dense", "bm25", "hybrid", "rrf"]
