"""The tokens that a training is projected from, against counting by hand."""

import pytest

from benchmarks.studies.reproduction.costs import trained_tokens

RECIPE = {"documents": 100, "document_tokens": 60}


@pytest.mark.parametrize(
    ("method", "tokens"),
    [
        ({"view": "docsplit", "max_seq_length": 20, "mlm_weight": 0}, 100 * 40),  # two views of 20
        ({"view": "simcse", "max_seq_length": 20, "mlm_weight": 0}, 100 * 40),
        ({"view": "simcse", "max_seq_length": 512, "mlm_weight": 0}, 100 * 120),  # the whole document twice
        ({"view": "passages", "max_seq_length": 20, "mlm_weight": 0}, 100 * 60),  # a passage is cut, not the document
        ({"view": "docsplit", "mlm_weight": 0.1}, 100 * 60 * 2),
        ({"view": "docsplit", "mlm_weight": 0, "num_train_epochs": 3}, 3 * 100 * 60),
        ({"view": "docsplit", "mlm_weight": 0, "max_steps": 7, "per_device_train_batch_size": 2}, 7 * 2 * 60),
    ],
)
def test_tokens_of_a_training(method, tokens):
    assert trained_tokens(RECIPE, {"options": method}) == pytest.approx(tokens)


def test_a_method_with_a_corpus_of_its_own_counts_its_documents():
    options = {"view": "passages", "max_seq_length": 20, "mlm_weight": 0}
    own = {"options": options, "documents": 10, "document_tokens": 5000}
    assert trained_tokens(RECIPE, own) == pytest.approx(10 * 50 * 20)  # the first 50 passages
