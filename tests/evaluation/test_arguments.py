"""Options of classification and links that contradict themselves are refused; fine-tuning's come from the preset."""

import pytest

from docsplit.evaluation.arguments import ProbeArguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ProbeArguments(heads=["svm"]), "--heads has no svm"),
        (lambda: ProbeArguments(heads=["setfit"], shots=[0]), "setfit is for few-shot draws"),
        (lambda: ProbeArguments(heads=["linear"], probe_epochs=5), "add mlp to --heads"),
        (
            lambda: ProbeArguments(heads=["knn"], probe_preset="bregman", probe_epochs=5),
            "add linear or mlp to --heads",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_shots_are_sorted_and_zero_is_the_full_data_alone():
    assert ProbeArguments(shots=[10, 5, 0, 5]).shots == [5, 10]
    assert ProbeArguments(shots=[0]).shots == []


def test_what_is_given_of_finetuning_wins_over_the_preset():
    preset = ProbeArguments().finetuning
    assert (preset.learning_rate, preset.num_epochs, preset.batch_size) == (2e-5, 3, 16)
    given = ProbeArguments(probe_preset="bregman", finetune_epochs=1.5, finetune_batch_size=4).finetuning
    assert (given.learning_rate, given.num_epochs, given.batch_size) == (3e-5, 1.5, 4)
