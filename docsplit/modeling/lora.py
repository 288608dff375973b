"""Low-rank adaptation: updates that are trained, merged into a plain checkpoint, and kept beside it."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

ADAPTER_FOLDER = "adapter"
LORA_SCALE = 2  # alpha / rank in LoRA's section 4.1


def load_merged(module: Any, state_dict: dict[str, Tensor], prefix: str) -> None:
    """Replace a checkpoint's plain weights in `state_dict` by those of a model with LoRA layers.

    If its adapter was loaded before, the matrices stay what they are. Else they become the merged ones, to which
    nothing is then added.

    Raises:
        RuntimeError: if weights are missing or unknown, or the run had started from other weights than this one.
    """
    own = module.state_dict(prefix=prefix)
    plain = {key: key.replace(".base_layer.", ".") for key in own if ".lora_" not in key}
    missing = set(plain.values()) - set(state_dict) - {f"{prefix}{key}" for key in module.all_tied_weights_keys}
    if missing or set(state_dict) - set(plain.values()):
        raise RuntimeError(
            f"The checkpoint does not fit this model: of its weights are missing {sorted(missing)[:5]}."
        )
    merged = {f"{prefix}encoder.{key}": value for key, value in merge_lora(module.encoder).items()}
    for key, name in plain.items():
        if name not in state_dict:
            continue
        if not module.training_state_loaded or ".base_layer." not in key:
            own[key] = state_dict[name]
        elif not torch.allclose(merged[name], state_dict[name].to(merged[name]), rtol=1e-3, atol=1e-5):
            raise RuntimeError(f"The run did not start from these weights: with its adapter {name} is another matrix.")
    if not module.training_state_loaded:
        own |= {key: torch.zeros_like(value) for key, value in own.items() if ".lora_B." in key}
    module.training_state_lost, module.training_state_loaded = not module.training_state_loaded, False
    state_dict.clear()
    state_dict.update(own)


def merge_lora(encoder: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of an encoder with LoRA layers under the names, and with the values, that it has without them."""
    layers: dict[str, Any] = {
        name: module for name, module in encoder.named_modules() if hasattr(module, "get_delta_weight")
    }
    merged = {}
    for key, value in encoder.state_dict().items():
        layer, _, part = key.partition(".base_layer.")
        if ".lora_" in key:
            continue
        if part == "weight":
            value = value + layers[layer].get_delta_weight("default").to(value.dtype)
        merged[f"{layer}.{part}" if part else key] = value
    return merged
