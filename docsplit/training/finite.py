"""A training stops within a step or two of its first NaN or infinity, on all processes at the same step.

Whether losses and parameters are finite, and whether a process was told to stop, is worked out on the device, reduced
over the processes once, and copied to the host without waiting: on a GPU the answer is read one step later, before
anything is saved at once. `save_pretrained` refuses such weights once more
(`docsplit.modeling.saving.refuse_not_finite`), so that none lie on the disk. Gradients that are not finite are no
reason to stop: under fp16 the gradient scaler skips their step, and without it they reach the parameters.
"""

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from docsplit.modeling.distributed import fetch
from docsplit.training.callbacks import InterruptCallback


class FiniteCallback(TrainerCallback):
    """Raise where a loss or a trained parameter is not finite; stop all processes where one got a signal.

    To be added after callbacks that ask for a checkpoint.

    Args:
        model: the one that is trained. Its parameters are equal on all processes; a loss may be NaN on one alone.
        interrupt: what takes the signals of this process.
    """

    def __init__(self, model: nn.Module, interrupt: InterruptCallback):
        self.interrupt = interrupt
        self.parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        dtypes = [parameter.dtype for parameter in self.parameters]
        self.dtype = functools.reduce(torch.promote_types, dtypes, torch.float32)  # of losses and norms
        self.losses: list[Tensor] = []  # of the micro-steps since the last step
        self.pending: tuple[int, Tensor, Any] | None = None  # step, answers on the host, when they have arrived
        model.register_forward_hook(self._observe)

    def _observe(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if model.training and output.loss is not None:
            self.losses.append(output.loss.detach().to(self.dtype))

    @torch.no_grad()
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Ask for the answers of this step, and look at the last; at these too if the weights are used next."""
        # One NaN or infinity stays in a norm. (So it is with a parameter above 1e19, whose square is infinite.)
        norms = torch._foreach_norm(self.parameters, 2, self.dtype)
        finite = torch.stack([*self.losses, *norms]).isfinite().all()
        self.losses.clear()
        goes_on = torch.full_like(finite, not self.interrupt.received)
        answers = torch.stack([finite, goes_on]).int()
        if args.world_size > 1:  # signals reach the processes at different steps; all must stop after the same one
            dist.all_reduce(answers, op=dist.ReduceOp.MIN)
        elif self.interrupt.received:
            self.interrupt.stop(control)
        self._look(args, control)
        self.pending = state.global_step, *fetch(answers)
        is_here = self.pending[2] is None
        if is_here or control.should_save or control.should_evaluate or control.should_training_stop:
            self._look(args, control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Look at the last answers: a checkpoint may follow."""
        self._look(args, control)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Look at the last answers."""
        self._look(args, control)

    def _look(self, args: TrainingArguments, control: TrainerControl) -> None:
        """Read the answers that are on their way, if there are any.

        Raises:
            FloatingPointError: naming the step and the remedy.
        """
        if self.pending is None:
            return
        step, answers, arrival = self.pending
        self.pending = None
        if arrival is not None:
            arrival.synchronize()
        finite, goes_on = answers.tolist()
        if not finite:
            remedies = [f"a lower --learning_rate than {args.learning_rate}"]
            remedies += ["--max_grad_norm 1"] if not args.max_grad_norm else []
            remedies += ["--bf16 in place of --fp16"] if args.fp16 else []
            raise FloatingPointError(
                f"The loss or the parameters are not finite after step {step}: the training stops, and nothing of it "
                f"is written. Start anew, or with --resume_from_checkpoint where there is a checkpoint, with "
                f"{' or '.join(remedies)}."
            )
        if not goes_on:
            self.interrupt.stop(control)
