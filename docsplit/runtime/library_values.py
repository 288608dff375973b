"""Values that a library knows by name, looked up before any work; it would refuse them itself after loading."""

import importlib.util
import json
import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from transformers import Trainer, TrainingArguments, get_scheduler
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from docsplit.runtime.options import check_choices

CHECKED_STEPS = 10  # of a schedule of learning rates
NEED_A_MODEL = "galore|apollo|lomo"  # optimizers of transformers that look at more than weights


def check_trackers(names: Sequence[str]) -> None:
    """Check the values of --report_to.

    Raises:
        ValueError: for a tracker that transformers does not know, or that is not installed.
    """
    check_choices("report_to", names, ("none", "all", *INTEGRATION_TO_CALLBACK))
    installed = ["none", *get_available_reporting_integrations()]
    if missing := [name for name in names if name not in (*installed, "all")]:
        raise ValueError(
            f"--report_to {missing[0]} is not installed: pip install {missing[0]}, or choose among "
            f"{', '.join(installed)}."
        )


def check_attention(name: str | None) -> None:
    """Check --attn_implementation: a name of transformers, or USER/KERNEL of the Hub.

    Raises:
        ValueError: for another name, or flash attention that is not installed.
    """
    if name is None or "/" in name:
        return
    check_choices("attn_implementation", [name], dict.fromkeys(["eager", "sdpa", *ALL_ATTENTION_FUNCTIONS.keys()]))
    if re.fullmatch(r"flash_attention_\d", name) and not any(map(importlib.util.find_spec, ("flash_attn", "kernels"))):
        raise ValueError(f"--attn_implementation {name} needs flash-attn: pip install flash-attn, or choose sdpa.")


def check_compilation(backend: str, mode: str | None) -> None:
    """Check --torch_compile_backend and --torch_compile_mode.

    Raises:
        ValueError: for a value that PyTorch does not know.
    """
    # Imported when asked for: a quarter of a second
    import torch._dynamo
    import torch._inductor

    if backend not in torch._dynamo.list_backends(exclude_tags=()):
        check_choices("torch_compile_backend", [backend], torch._dynamo.list_backends())
    if mode is not None:
        check_choices("torch_compile_mode", [mode], torch._inductor.list_mode_options())


def read_json_option(name: str, value: Any) -> Any:
    """Return the mapping that an option gives as JSON text, {"key": value}; what is no text is returned as it is.

    Raises:
        ValueError: for other text, and for infinity and NaN, which JSON does not have.
    """
    if not isinstance(value, str):
        return value
    try:
        values = json.loads(value, parse_constant=_finite, parse_float=_finite)
    except ValueError as error:
        raise ValueError(f"--{name} {value}: give JSON such as '{{\"key\": 1}}' ({error}).") from error
    if not isinstance(values, dict):
        raise ValueError(f"--{name} {value}: give JSON such as '{{\"key\": 1}}', a mapping.")
    return values


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no finite number")
    return number


def check_optimizer(args: TrainingArguments) -> None:
    """Make the optimizer of these options for one weight, and follow its learning rate for some steps.

    Raises:
        ValueError: if --optim, --optim_args, --lr_scheduler_type or --lr_scheduler_kwargs cannot work.
    """
    weight = [torch.nn.Parameter(torch.zeros(1))]
    optimizer: Any = torch.optim.SGD(weight, lr=args.learning_rate)
    try:
        kind, keywords = Trainer.get_optimizer_cls_and_kwargs(args)
        optimizer = kind(weight, **keywords)
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        name = OptimizerNames(args.optim).value
        if isinstance(error, ImportError) or not re.search(NEED_A_MODEL, name):
            given = f"--optim {name}" + (f" --optim_args {args.optim_args}" if args.optim_args else "")
            raise ValueError(f"{given} makes no optimizer: {_one_line(error)}") from error
    _check_schedule(args, optimizer)


def _check_schedule(args: TrainingArguments, optimizer: torch.optim.Optimizer) -> None:
    kind = SchedulerType(args.lr_scheduler_type)
    keywords: Any = args.lr_scheduler_kwargs
    given = f"--lr_scheduler_type {kind.value}"
    given += f" --lr_scheduler_kwargs {json.dumps(keywords)}" if keywords else ""
    steps = {"num_warmup_steps": 1, "num_training_steps": CHECKED_STEPS}
    try:
        schedule = get_scheduler(kind, optimizer, **steps, scheduler_specific_kwargs=keywords)
        factors = schedule.lr_lambdas if isinstance(schedule, torch.optim.lr_scheduler.LambdaLR) else []
        rates = [factor(step) for factor in factors for step in range(CHECKED_STEPS + 1)]
        can_be = all(math.isfinite(rate) and rate >= 0 for rate in rates)
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{given} makes no schedule: {_one_line(error)}") from error
    if not can_be:
        raise ValueError(f"{given} gives a learning rate that is negative or no number.")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).removesuffix(".") + "."
