"""Values that libraries know by name are looked up before any work: what they would refuse, and nothing else."""

import pytest
from transformers import TrainingArguments
from transformers.trainer_utils import SchedulerType

from docsplit.runtime.library_values import (
    check_attention,
    check_compilation,
    check_optimizer,
    check_trackers,
    read_json_option,
)

NEEDED = {  # by schedules that do without no argument
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 3},
}


def arguments(tmp_path, **options):
    return TrainingArguments(str(tmp_path), use_cpu=True, eval_strategy="steps", **options)


def test_what_is_there_is_taken():
    check_trackers(["none"])
    check_trackers(["all"])
    check_trackers(["tensorboard"])
    for name in (None, "eager", "sdpa", "flex_attention", "kernels-community/flash-attn"):
        check_attention(name)
    check_compilation("inductor", "max-autotune")
    check_compilation("aot_eager", None)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_trackers(["tensorbord"]), r"--report_to has no tensorbord. Did you mean tensorboard\?"),
        (lambda: check_trackers(["tensorboard", "neptune"]), "--report_to neptune is not installed: pip install"),
        (lambda: check_attention("spda"), r"--attn_implementation has no spda. Did you mean sdpa\?"),
        (lambda: check_attention("flash_attention_2"), "needs flash-attn: pip install flash-attn, or choose sdpa"),
        (lambda: check_compilation("inductr", None), "--torch_compile_backend has no inductr. Did you mean inductor"),
        (lambda: check_compilation("inductor", "fast"), "--torch_compile_mode has no fast: choose among default"),
        (lambda: read_json_option("x", "{bad"), "--x {bad: give JSON such as"),
        (lambda: read_json_option("x", "[1]"), "a mapping"),
        (lambda: read_json_option("x", '{"a": -Infinity}'), "-Infinity is no finite number"),
        (lambda: read_json_option("x", '{"a": 1e999}'), "1e999 is no finite number"),
    ],
)
def test_what_is_not_there_is_refused(check, message):
    with pytest.raises(ValueError, match=message) as failure:
        check()
    assert "\n" not in str(failure.value)


def test_json_is_read_and_what_is_no_text_stays():
    assert read_json_option("x", '{"a": 1.5, "b": [2]}') == {"a": 1.5, "b": [2]}
    assert [read_json_option("x", value) for value in (None, {"a": 1})] == [None, {"a": 1}]


@pytest.mark.parametrize("kind", SchedulerType)
def test_each_schedule_is_taken_with_the_arguments_that_it_needs(kind, tmp_path):
    options = {"lr_scheduler_kwargs": NEEDED[kind.value]} if kind.value in NEEDED else {}
    check_optimizer(arguments(tmp_path, lr_scheduler_type=kind, **options))
    if options:
        with pytest.raises(ValueError, match=f"--lr_scheduler_type {kind.value} makes no schedule"):
            check_optimizer(arguments(tmp_path, lr_scheduler_type=kind))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optim": "sgd", "optim_args": "momentum"}, "--optim sgd --optim_args momentum makes no optimizer"),
        ({"optim": "galore_adamw"}, "--optim galore_adamw makes no optimizer: .*install"),
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, "unexpected keyword argument 'num_cycles'"),
        ({"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": -1}}, "makes no schedule"),
        ({"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": -1.0}}, "is negative or no number"),
        ({"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": "two"}}, "makes no schedule"),
    ],
)
def test_an_optimizer_or_a_schedule_that_cannot_be_is_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message) as failure:
        check_optimizer(arguments(tmp_path, **options))
    assert "\n" not in str(failure.value)
