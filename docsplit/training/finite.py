"""A training stops within a step or two of its first NaN or infinity, on all processes at the same step.

Whether losses and parameters are finite is worked out on the device and copied to the host without waiting: on a GPU
the answer is read one step later, before anything is saved at once. `save_pretrained` refuses such weights once more
(`docsplit.modeling.saving.refuse_not_finite`), so that none lie on the disk. Gradients that are not finite are no
reason to stop: under fp16 the gradient scaler skips their step, and without it they reach the parameters.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class FiniteCallback(TrainerCallback):
    """Raise where a loss or a trained parameter is not finite; to be added after callbacks that ask for a checkpoint.

    Args:
        model: the one that is trained. Its parameters are equal on all processes; a loss may be NaN on one alone.
    """

    def __init__(self, model: nn.Module):
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.losses: list[Tensor] = []  # of the micro-steps since the last step
        self.pending: tuple[int, Tensor, Any] | None = None  # step, answer on the host, when it has arrived
        model.register_forward_hook(self._observe)

    def _observe(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if model.training and output.loss is not None:
            self.losses.append(output.loss.detach().float())

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Ask for the answer of this step, and look at the last one; at this one too if its weights are used next."""
        # One NaN or infinity stays in a sum.
        sums = [parameter.detach().sum(dtype=torch.float32) for parameter in self.parameters]
        finite = torch.stack([*self.losses, *sums]).isfinite().all().int()
        self.losses.clear()
        if args.world_size > 1:
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        self._look(args)
        answer = finite.to("cpu", non_blocking=finite.is_cuda)  # elsewhere nothing tells when it has arrived
        arrival = torch.cuda.current_stream().record_event() if finite.is_cuda else None
        self.pending = state.global_step, answer, arrival
        if arrival is None or control.should_save or control.should_evaluate or control.should_training_stop:
            self._look(args)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Look at the last answer: a checkpoint may follow."""
        self._look(args)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Look at the last answer."""
        self._look(args)

    def _look(self, args: TrainingArguments) -> None:
        """Read the answer that is on its way, if there is one.

        Raises:
            FloatingPointError: naming the step and the remedy.
        """
        if self.pending is None:
            return
        step, answer, arrival = self.pending
        self.pending = None
        if arrival is not None:
            arrival.synchronize()
        if not answer:
            remedies = [f"a lower --learning_rate than {args.learning_rate}"]
            remedies += ["--max_grad_norm 1"] if not args.max_grad_norm else []
            remedies += ["--bf16 in place of --fp16"] if args.fp16 else []
            raise FloatingPointError(
                f"The loss or the parameters are not finite after step {step}: the training stops, and nothing of it "
                f"is written. Start anew, or with --resume_from_checkpoint where there is a checkpoint, with "
                f"{' or '.join(remedies)}."
            )
