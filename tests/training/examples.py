"""The options of a run, for the tests of what a run does with them."""

from docsplit.training.run_arguments import (
    DataArguments,
    ModelArguments,
    PretrainingArguments,
    QueryArguments,
    RunOptions,
)


def run_options(output_dir="outputs/x", data=(), queries=(), objective_options=(), model=(), **training):
    args = PretrainingArguments(str(output_dir), use_cpu=True, **training)
    groups = ModelArguments(**dict(model)), DataArguments(**dict(data)), QueryArguments(**dict(queries)), args
    return RunOptions(*groups, dict(objective_options))
