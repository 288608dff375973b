"""The options of pretraining that need no transformers are those that the run has."""

from dataclasses import MISSING, fields

from transformers import TrainingArguments

from docsplit.runtime.options import COMMON
from docsplit.training.arguments import PretrainingArguments
from docsplit.training.options import TrainingOptions

# These have a help text of their own here, and the default that they have in transformers.
EXPLAINED = ("max_steps", "resume_from_checkpoint", "push_to_hub")


def test_the_run_has_these_options_with_their_defaults_and_help():
    in_run = {option.name: option for option in fields(PretrainingArguments)}
    for option in fields(TrainingOptions):
        assert in_run[option.name] is option or in_run[option.name].default == option.default
        assert in_run[option.name].metadata == option.metadata


def test_options_that_are_only_explained_anew_keep_the_default_of_transformers():
    theirs = {option.name: option.default for option in fields(TrainingArguments)}
    ours = {option.name: option for option in fields(TrainingOptions)}
    for name in EXPLAINED:
        assert theirs[name] is not MISSING
        assert ours[name].default == theirs[name]
        assert ours[name].metadata[COMMON]
