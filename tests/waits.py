"""Where a training makes the host wait for the device, by call site, found on a CPU with a simulated device.

A GPU works through a queue, and the host runs ahead of it. A read of a number, a shape that depends on values, or a
copy that blocks makes the host wait until the queue is empty. Here tensors of the device `simulated` compute on the
CPU, and each operation that would wait is noted with the line that asked for it. `run_docsplit_pretraining.main` runs
as it is, the stock Trainer with it; only the Trainer's device is another one.

The device stays registered as long as the process lives, so tests start one for it (`tests.processes.Script`).
"""

import contextlib
import functools
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from accelerate import PartialState
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import TrainerCallback

from docsplit.modeling.families.table import family_of

ROOT = Path(__file__).parent.parent
NAME = "simulated"
SCRIPT = "run_docsplit_pretraining.py"
WATCHED = ("docsplit", "modeling_docsplit.py", "modeling_graph_document.py", "tests", "transformers", "accelerate")
aten = torch.ops.aten

# The shape of what comes out depends on values, or a number is read
READS = {
    aten._local_scalar_dense: "a number is read",
    aten.equal: "equal",
    aten.allclose: "allclose",
    aten.nonzero: "nonzero",
    aten.masked_select: "masked_select",
    aten.bincount: "bincount",
    aten.unique_dim: "unique",
    aten._unique2: "unique",
    aten.unique_consecutive: "unique",
    aten.unique_dim_consecutive: "unique",
}
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index)
COPIES = (aten._to_copy, aten.copy_)
FROM_VALUES = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)


class Event:
    """As `torch.cuda.Event`."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.step: int | None = None

    def record(self, stream: Any = None) -> None:
        self.step = watch().step

    def synchronize(self) -> None:
        watch().note("an event of this step" if self.step == watch().step else "an event of the step before")


class Device:
    """What `torch.cuda` is to CUDA: the part of it that torch and this project ask for."""

    Event = Event

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return len(_watches) > 1

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Dropout draws from the CPU's generator."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def synchronize(self, device: Any = None) -> None:
        watch().note("synchronize")


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return len(_watches) > 1

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def watch() -> "Watch":
    return _watches[-1]


class OnDevice(Tensor):
    """A tensor that says it is on the simulated device; `on_cpu` has its values."""

    on_cpu: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> "OnDevice":
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=f"{NAME}:0",
        )

    def __init__(self, values: Tensor):
        self.on_cpu = values

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return watch().run(func, args, kwargs or {})


@dataclass(frozen=True, order=True)
class Site:
    """A place that waits: its file from the root of the repository or of the library, and what it does."""

    file: str
    function: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.why}"


@dataclass
class Watch:
    """Runs what is on the device, and notes each wait by its step."""

    step: int = 0
    waits: dict[int, Counter[Site]] = field(default_factory=dict)

    def note(self, why: str) -> None:
        """Note that the host waits now, for the innermost line of ours, of transformers' or of accelerate's."""
        self.waits.setdefault(self.step, Counter())[site(why)] += 1

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation on the CPU; its results are on the device if its tensors are, or if it says so."""
        packet = func.overloadpacket
        if packet is aten.is_pinned:
            return False
        if packet is aten._pin_memory:
            return args[0].clone()
        tensors = list(_tensors((args, *kwargs.values())))
        goes_to_device = any(isinstance(tensor, OnDevice) for tensor in tensors)
        self._check(func, packet, tensors, args, kwargs)
        if kwargs.get("device") is not None:
            goes_to_device = torch.device(kwargs["device"]).type == NAME
            kwargs = kwargs | ({"device": torch.device("cpu")} if goes_to_device else {})
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        result = func(*_on_cpu(args), **{name: _on_cpu(value) for name, value in kwargs.items()})
        returned = func._schema.returns
        if len(returned) == 1 and returned[0].alias_info is not None and returned[0].alias_info.is_write:
            return kwargs.get("out", args[0])  # in place: the same tensor
        return _on_device(result) if goes_to_device else result

    def _check(self, func: Any, packet: Any, tensors: list[Tensor], args: Any, kwargs: dict[str, Any]) -> None:
        on_device = [isinstance(tensor, OnDevice) for tensor in tensors]
        if packet in COPIES:
            self._check_copy(packet, args, kwargs)
        elif any(on_device) and packet in READS:
            self.note(READS[packet])
        elif any(on_device) and packet is aten.repeat_interleave and kwargs.get("output_size") is None:
            self.note("repeat_interleave without output_size")
        elif any(on_device) and packet in INDEXING:
            if not isinstance(args[0], OnDevice):
                raise RuntimeError("indices should be on the host, as the tensor is")
            if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
                self.note("an index of booleans")
        elif any(on_device) and any(not there and tensor.dim() for there, tensor in zip(on_device, tensors)):
            raise RuntimeError(f"{func}: expected all tensors on the same device")

    def _check_copy(self, packet: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if packet is aten.copy_:
            target, source = args[:2]
            to_device, non_blocking = isinstance(target, OnDevice), (args[2:] or (kwargs.get("non_blocking"),))[0]
        else:
            source, device, non_blocking = args[0], kwargs.get("device"), kwargs.get("non_blocking")
            to_device = isinstance(source, OnDevice) if device is None else torch.device(device).type == NAME
        if isinstance(source, OnDevice) != to_device and not non_blocking:
            self.note(f"a copy to the {'device' if to_device else 'host'} that blocks")


_watches = [Watch()]  # the first is there so that a model can be moved before it is trained


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, OnDevice):
        return value.on_cpu
    return type(value)(map(_on_cpu, value)) if isinstance(value, list | tuple) else value


def _on_device(value: Any) -> Any:
    if isinstance(value, Tensor):
        return OnDevice(value)
    return type(value)(map(_on_device, value)) if isinstance(value, list | tuple) else value


def site(why: str) -> Site:
    """The innermost line that is watched; in a backward pass without lines of Python: that."""
    frame, place = sys._getframe(), None
    while frame := frame.f_back:
        file = watched_file(frame.f_code.co_filename)
        if file is not None:
            place = place or (file, frame.f_lineno)
            # A comprehension has a frame of its own, or not, by the version of Python
            if not frame.f_code.co_name.startswith("<"):
                return Site(place[0], frame.f_code.co_name, place[1], why)
    return Site("backward pass", "", 0, why)


@functools.cache
def watched_file(name: str) -> str | None:
    """The file from the root of the repository or of the library; None for what is not watched."""
    path = Path(name)
    parts = path.parts[path.parts.index("site-packages") + 1 :] if "site-packages" in path.parts else ()
    if not parts and path.is_relative_to(ROOT) and path != Path(__file__):
        parts = path.relative_to(ROOT).parts
    return "/".join(parts) if parts and parts[0] in WATCHED else None


class _Operations(TorchDispatchMode):
    """Also of tensors that are not on the device, yet: copies, pinned memory, new tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return watch().run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """What torch does below its dispatcher: tensors of Python's values, and lists of a tensor's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.tolist and isinstance(args[0], OnDevice):
            watch().note("tolist")
            return args[0].on_cpu.tolist()
        if func in FROM_VALUES:
            device = kwargs.get("device")
            if device is None and func is Tensor.new_tensor:
                device = args[0].device
            if device is not None and torch.device(device).type == NAME:
                if isinstance(args[-1], Tensor):
                    return args[-1].to(device, kwargs.get("dtype"))
                new = torch.tensor(args[-1], dtype=kwargs.get("dtype"))
                return new.to(device).requires_grad_(bool(kwargs.get("requires_grad")))
        return func(*args, **kwargs)


def register() -> torch.device:
    """Make the device known to torch, once a process."""
    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME, backend_module=Device(), hook=_Hooks())
    return torch.device(NAME, 0)


@contextlib.contextmanager
def watched(found: Watch) -> Iterator[None]:
    """As long as this lasts, there is a device, and what waits for it is noted in `found`."""
    register()
    _watches.append(found)
    try:
        with _Functions(), _Operations():
            yield
    finally:
        _watches.pop()


def move(model: nn.Module) -> None:
    """Put the parameters and buffers of a model onto the device; those that are tied stay one."""
    moved: dict[int, Tensor] = {}

    def on_device(tensor: Tensor) -> Tensor:
        if id(tensor) not in moved:
            wrapped: Tensor = OnDevice(tensor.detach())
            is_parameter = isinstance(tensor, nn.Parameter)
            moved[id(tensor)] = nn.Parameter(wrapped, tensor.requires_grad) if is_parameter else wrapped
        return moved[id(tensor)]

    for module in model.modules():
        for values in (module._parameters, module._buffers):
            for name, value in values.items():
                if value is not None:
                    values[name] = on_device(value)  # type: ignore[assignment]


def put_onto_device(trainer: Any) -> None:
    """Let a Trainer, made for the CPU, train its model on the device."""
    device = register()
    move(trainer.model)
    trainer.args.__dict__["_setup_devices"] = device
    trainer.accelerator.state.device = PartialState().device = device


class Measured(BaseException):
    """The step is done: what comes after it is not measured."""


class NumberSteps(TrainerCallback):
    """Tell the watch which step it is, and end with the second: the first makes what later ones use."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the next step."""
        watch().step = state.global_step
        if state.global_step == 2:
            raise Measured


@dataclass
class Step:
    """What one step of a training did.

    Attributes:
        forward_passes: of the encoder that is released, in all micro-steps, without those that are repeated.
        waits: how often each site waited.
    """

    forward_passes: int
    waits: list[tuple[Site, int]]


def second_step(words: Sequence[object]) -> Step:
    """Run the script's training with these options on the device, and watch its second step, data loading included."""
    from transformers import Trainer

    import run_docsplit_pretraining

    forward_passes: Counter[int] = Counter()
    found = Watch()
    make, run = Trainer.__init__, Trainer.train

    def make_on_device(trainer: Trainer, model: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        make(trainer, model, args, *rest, **kwargs)
        put_onto_device(trainer)
        family_of(model.config).token_encoder(model.encoder.base_model).register_forward_pre_hook(count)

    def count(encoder: nn.Module, inputs: Any) -> None:
        if torch._C._current_graph_task_id() == -1:  # not repeated in a backward pass
            forward_passes[found.step] += 1

    def run_watched(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        trainer.add_callback(NumberSteps)  # the last one
        with watched(found):
            run(trainer, *args, **kwargs)

    fixed = ("--use_cpu", "False", "--dataloader_num_workers", 0, "--max_steps", 3, "--save_strategy", "no")
    fixed = (*fixed, "--logging_steps", 1000, "--disable_tqdm", "True")
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(Trainer, "__init__", make_on_device),
        mock.patch.object(Trainer, "train", run_watched),
        mock.patch("docsplit.training.run_arguments.accelerator", register),
        mock.patch.object(sys, "argv", [SCRIPT, *map(str, (*words, *fixed, "--output_dir", f"{folder}/run"))]),
        contextlib.suppress(Measured),
    ):
        run_docsplit_pretraining.main()
    return Step(forward_passes[1], sorted(found.waits.get(1, Counter()).items()))
