"""Low-rank adaptation (LoRA): train updates, merge them into a plain checkpoint, and keep them beside it.

Checkpoints hold the merged weights under the names of a plain encoder, and the adapter in a folder of its own. So they
load like any other. To resume, a run starts from the same weights, adds the layers and loads the adapter.
"""

import os
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from docsplit.modeling.families.table import family_of
from docsplit.runtime.files import write_whole

ADAPTER_FOLDER = "adapter"
ADAPTER_FILE = "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."  # of the names in peft's files
LORA_SCALE = 2  # alpha / rank in LoRA's section 4.1


def inject_lora(encoder: PreTrainedModel, rank: int) -> Any:
    """Put low-rank updates on all matrices of the base model, freeze all else, and return peft's configuration.

    Raises:
        ValueError: for a family of encoders that LoRA does not work with.
    """
    if reason := family_of(encoder.config).without_lora:
        raise ValueError(f"LoRA does not work with {reason}: leave it out (--lora_r 0).")
    from peft import LoraConfig, inject_adapter_in_model

    base_model = encoder.base_model
    poolers = [name for name, part in base_model.named_modules() if "pooler" in name and isinstance(part, nn.Linear)]
    name = encoder.config._name_or_path
    config = LoraConfig(
        r=rank,
        lora_alpha=LORA_SCALE * rank,
        target_modules="all-linear",
        exclude_modules=poolers or None,
        base_model_name_or_path=None if os.path.exists(name) else name,  # a folder here is nothing elsewhere
    )
    encoder.requires_grad_(False)
    inject_adapter_in_model(config, base_model)
    return config


def save_adapter(encoder: PreTrainedModel, config: Any, directory: Path) -> None:
    """Write the updates as peft does, into a folder of a checkpoint."""
    from peft import get_peft_model_state_dict

    adapter = get_peft_model_state_dict(encoder.base_model, adapter_name="default")
    tensors = {f"{PEFT_PREFIX}{key}": value.contiguous() for key, value in adapter.items()}
    folder = directory / ADAPTER_FOLDER
    config.save_pretrained(folder)
    write_whole(folder / ADAPTER_FILE, lambda path: save_file(tensors, path, metadata={"format": "pt"}))


def load_adapter(encoder: PreTrainedModel, directory: Path) -> None:
    """Load the updates of a checkpoint.

    Raises:
        FileNotFoundError: if it has none.
        RuntimeError: if they are of another encoder.
    """
    from peft import set_peft_model_state_dict

    path = directory / ADAPTER_FOLDER / ADAPTER_FILE
    if not path.exists():
        raise FileNotFoundError(f"{directory} has no {ADAPTER_FOLDER}: its run was one without LoRA.")
    adapter = {key.removeprefix(PEFT_PREFIX): value for key, value in load_file(path).items()}
    unknown = cast(Any, set_peft_model_state_dict(encoder.base_model, adapter)).unexpected_keys
    if unknown:
        raise RuntimeError(f"The adapter of {directory} does not fit this encoder: {unknown[:5]}.")


def merge_lora(encoder: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights of an encoder with LoRA layers, merged, under the names that it has without them."""
    layers = {name: module for name, module in encoder.named_modules() if hasattr(module, "get_delta_weight")}
    merged = {}
    for key, value in encoder.state_dict().items():
        layer, _, part = key.partition(".base_layer.")
        if ".lora_" in key:
            continue
        if part == "weight":
            value = value + layers[layer].get_delta_weight("default").to(value.dtype)
        merged[f"{layer}.{part}" if part else key] = value
    return merged


def load_merged(module: Any, state_dict: dict[str, Tensor], prefix: str, is_adapted: bool) -> None:
    """Replace a checkpoint's plain weights in `state_dict` by those of a model with LoRA layers.

    Args:
        is_adapted: the checkpoint's adapter was loaded before, and the matrices stay what they are. Else they become
            the merged ones, to which nothing is then added.

    Raises:
        RuntimeError: if weights are missing or unknown, or the run had started from other weights than this one.
    """
    adapted = module.state_dict(prefix=prefix)
    plain = {key: key.replace(".base_layer.", ".") for key in adapted if ".lora_" not in key}
    missing = set(plain.values()) - set(state_dict) - {f"{prefix}{key}" for key in module.all_tied_weights_keys}
    if missing or set(state_dict) - set(plain.values()):
        raise RuntimeError(f"The checkpoint does not fit this model: it lacks the weights {sorted(missing)[:5]}.")
    merged = {f"{prefix}encoder.{key}": value for key, value in merge_lora(module.encoder).items()}
    for key, name in plain.items():
        if name not in state_dict:
            continue
        if not is_adapted or ".base_layer." not in key:
            adapted[key] = state_dict[name]
        elif not torch.allclose(merged[name], state_dict[name].to(merged[name]), rtol=1e-3, atol=1e-5):
            raise RuntimeError(f"The run did not start from these weights: with its adapter {name} is another matrix.")
    if not is_adapted:
        adapted |= {key: torch.zeros_like(value) for key, value in adapted.items() if ".lora_B." in key}
    state_dict.clear()
    state_dict.update(adapted)
