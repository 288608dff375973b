"""What goes out: checkpoints, by one rule, as SentenceTransformers; and LoRA, the stated exception.

A release is the SentenceTransformer, as it saves itself: its weights are what `AutoModel` looks for, no more and no
less. The head of a masked language model lies beside: `AutoModelForMaskedLM.from_pretrained(folder, variant="mlm")`.

Trainer's `checkpoint-N` has all weights in model.safetensors, which is all that Trainer restores: under the names of
the masked language model, with those of the modules after it (`after.`), of the objective (`objective.`) and of LoRA
(`adapter.`). Whatever an objective trains besides the encoder is so kept and resumed, and left out of the release.

With LoRA the merged weights are released under the names of a plain encoder, and the adapter is in a folder beside
them, as peft reads it: to resume, a run starts from the same weights and adds the layers.
"""

import contextlib
import copy
import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from docsplit.modeling.checked_files import HEAD_FILE, HEAD_INDEX, TRANSFORMER_FILES
from docsplit.modeling.families.table import family_of
from docsplit.modeling.start import ENCODER_DIGEST, RELEASED_DTYPE, digest_of_encoder
from docsplit.runtime.files import write_text, write_whole

WEIGHTS_FILE = "model.safetensors"
ENCODER, OBJECTIVE, AFTER, ADAPTER = "encoder.", "objective.", "after.", "adapter."  # prefixes of names of weights
ADAPTER_FOLDER = "adapter"


def save_checkpoint(model: Any, directory: Path) -> None:
    """Write a `DocSplitForContrastivePretraining`: a release, or what Trainer resumes from in its checkpoint-N.

    A kill in between leaves a folder that does not load, or that loads without its head.

    Raises:
        FloatingPointError: if a weight is not finite, before anything is written or removed.
        ValueError: for adapters of others.
    """
    encoder, base_model, settings = model.encoder, model.body[0].model, model.config.docsplit
    native = encoder.state_dict() if model.lora_config is None else merge_lora(encoder)
    whole = model.state_dict()
    refuse_adapters_of_others(model)
    refuse_not_finite(whole)
    refuse_not_finite(native)

    # Divide the weights
    prefix = "" if encoder is base_model else f"{encoder.base_model_prefix}."
    untied = {key: value for key, value in native.items() if f"{ENCODER}{key}" not in model.all_tied_weights_keys}
    written = {key.removeprefix(prefix): value for key, value in untied.items() if key.startswith(prefix)}
    head = {key: value for key, value in untied.items() if not key.startswith(prefix) and settings["mlm_weight"]}
    is_of_trainer = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-\d+", directory.name)
    if is_of_trainer:
        others = {key: value for key, value in whole.items() if key.startswith((AFTER, OBJECTIVE))}
        others |= {f"{ADAPTER}{key}": value for key, value in encoder.state_dict().items() if ".lora_" in key}
        written, head = untied | others, {}

    # Write them, and the modules
    for name in (WEIGHTS_FILE, f"{WEIGHTS_FILE}.index.json", HEAD_INDEX, HEAD_FILE):
        (directory / name).unlink(missing_ok=True)  # transformers removes shards of earlier weights, and nothing else
    with _written_as(base_model, written):
        model.body.save(str(directory), create_model_card=False)
    if head:
        _write_head(directory, [f"{prefix}{key}" for key in written if "pooler." not in key], head)
    if model.lora_config is not None:
        _save_adapter(base_model, model.lora_config, directory / ADAPTER_FOLDER)
    if family_of(model.config).rows == "views":  # Trainer's tokenizer may have another length
        _change_json(directory / TRANSFORMER_FILES[0], {"max_seq_length": model.body.max_seq_length})
    about = {"dtype": settings[RELEASED_DTYPE]} if RELEASED_DTYPE in settings else {}
    about |= {"architectures": [type(encoder).__name__]} if is_of_trainer else {}
    _change_json(directory / "config.json", about)


def refuse_adapters_of_others(model: Any) -> None:
    """Refuse layers of peft that `add_lora` did not add, in training too.

    Raises:
        ValueError: naming the way that works.
    """
    if model.lora_config is None and any("base_layer" in module._modules for module in model.encoder.modules()):
        raise ValueError(
            "The encoder has adapters that add_lora did not add: a release would lose their matrices. Merge them "
            "(peft's merge_and_unload), or train with model.add_lora(rank)."
        )


def refuse_not_finite(state: Mapping[str, Tensor]) -> None:
    """Refuse weights of NaN or infinity before the first file is written: they would load without a word.

    Raises:
        FloatingPointError: naming the first of them.
    """
    names = [name for name, value in state.items() if not value.isfinite().all()]
    if names:
        problem = f"{len(names)} of {len(state)} weights are not finite, {names[0]} for one: nothing is written"
        raise FloatingPointError(f"{problem}. Lower the learning rate, clip gradients, or use bfloat16, not float16.")


@contextlib.contextmanager
def _written_as(base_model: Any, state: Mapping[str, Tensor]) -> Iterator[None]:
    """Let a model of transformers write these weights in place of its own."""
    # Under the names that the model has now: BERT has others on the Hub, with which Trainer could not resume.
    options = {"state_dict": dict(state), "save_original_format": False}
    base_model.save_pretrained = functools.partial(type(base_model).save_pretrained, base_model, **options)
    try:
        yield
    finally:
        del base_model.save_pretrained


def _write_head(directory: Path, of_encoder: list[str], head: Mapping[str, Tensor]) -> None:
    """Write the head, and then the index that joins it to the encoder: `variant="mlm"`."""
    write_whole(directory / HEAD_FILE, lambda temporary: _save_tensors(head, temporary))
    index = directory / f"{WEIGHTS_FILE}.index.json"
    files = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.exists() else {}
    places = {key: files.get(key.partition(".")[2], WEIGHTS_FILE) for key in of_encoder}
    digest = digest_of_encoder([directory / file for file in sorted(set(places.values()))])
    content = {"metadata": {ENCODER_DIGEST: digest}, "weight_map": places | dict.fromkeys(head, HEAD_FILE)}
    write_text(directory / HEAD_INDEX, json.dumps(content, indent=2) + "\n")


def _save_tensors(tensors: Mapping[str, Tensor], path: Any) -> None:
    save_file({key: value.contiguous() for key, value in tensors.items()}, path, metadata={"format": "pt"})


def _change_json(path: Path, changes: Mapping[str, Any]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    write_text(path, json.dumps(content | changes, indent=2) + "\n")


# --- What Trainer restores ---


def accept_released_weights(module: Any, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
    """Accept a checkpoint's names in `load_state_dict`: Trainer would load nothing of it, silently.

    `load_state_dict` has copied the dict: the caller's stays as it was.
    """
    ours = {key.replace(".base_layer.", ".") for key in module.state_dict(prefix=prefix)}
    for key in [key for key in state_dict if key.startswith(prefix) and key not in ours]:
        named_by_encoder = f"{prefix}{ENCODER}{key[len(prefix) :]}"  # a BERT has an `encoder.` of its own
        if named_by_encoder in ours or not key.startswith((f"{prefix}{ENCODER}", f"{prefix}{ADAPTER}")):
            state_dict[named_by_encoder] = state_dict.pop(key)
    if module.lora_config is not None:
        _load_adapted(module, state_dict, prefix)


def raise_on_missing_keys(module: Any, incompatible_keys: Any) -> None:
    """Refuse a checkpoint that would leave a weight as it was; the keys of tied weights may be absent.

    Raises:
        RuntimeError: naming the keys that are missing or unknown.
    """
    missing = set(incompatible_keys.missing_keys) - set(module.all_tied_weights_keys)
    unexpected = incompatible_keys.unexpected_keys
    if missing or unexpected:
        problem = f"weights are missing {sorted(missing)[:5]} or unknown {sorted(unexpected)[:5]}"
        raise RuntimeError(f"The checkpoint does not fit this model: {problem}. Start with the same configuration.")
    incompatible_keys.missing_keys.clear()


# --- LoRA ---


def inject_lora(encoder: nn.Module, base_model: Any, rank: int) -> Any:
    """Put low-rank updates on all matrices of `base_model`, freeze all else, and return peft's configuration.

    Raises:
        ValueError: for a family of encoders that LoRA does not work with.
    """
    if reason := family_of(base_model.config).without_lora:
        raise ValueError(f"LoRA does not work with {reason}: leave it out (--lora_r 0).")
    from peft import LoraConfig, inject_adapter_in_model

    poolers = [name for name, part in base_model.named_modules() if "pooler" in name and isinstance(part, nn.Linear)]
    name = base_model.config._name_or_path
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,  # LoRA, section 4.1
        target_modules="all-linear",
        exclude_modules=poolers or None,
        base_model_name_or_path=None if os.path.exists(name) else name,  # a folder here is nothing elsewhere
    )
    encoder.requires_grad_(False)
    inject_adapter_in_model(config, base_model)
    return config


def _save_adapter(base_model: Any, config: Any, folder: Path) -> None:
    """Write the updates as peft does."""
    from peft import get_peft_model_state_dict

    adapter = get_peft_model_state_dict(base_model, adapter_name="default")
    config = copy.copy(config)
    config.target_modules = sorted(config.target_modules)  # a set, which would be written in any order
    config.save_pretrained(folder)
    named = {f"base_model.model.{key}": value for key, value in adapter.items()}
    write_whole(folder / "adapter_model.safetensors", lambda temporary: _save_tensors(named, temporary))


def merge_lora(encoder: nn.Module) -> dict[str, Tensor]:
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


def _load_adapted(module: Any, state_dict: dict[str, Tensor], prefix: str) -> None:
    """Take a checkpoint's updates, and keep the matrices of the start that they are added to.

    Raises:
        RuntimeError: if weights are missing or unknown, or the run had started from other weights than this one.
    """
    adapted = module.state_dict(prefix=prefix)
    updates = [key for key in adapted if ".lora_" in key]
    of_checkpoint = {f"{prefix}{ADAPTER}{key.removeprefix(f'{prefix}{ENCODER}')}": key for key in updates}
    plain = {key: key.replace(".base_layer.", ".") for key in adapted if key not in updates}
    expected = {*of_checkpoint, *plain.values()} - {f"{prefix}{key}" for key in module.all_tied_weights_keys}
    if different := expected ^ (set(state_dict) - {f"{prefix}{key}" for key in module.all_tied_weights_keys}):
        raise RuntimeError(
            f"The checkpoint does not fit this model: weights are missing or unknown, {sorted(different)[:5]}."
        )
    with torch.no_grad():
        for theirs, ours in of_checkpoint.items():
            adapted[ours].copy_(state_dict[theirs])  # shares the memory of the weights
    merged = {f"{prefix}{ENCODER}{key}": value for key, value in merge_lora(module.encoder).items()}
    for key, name in plain.items():
        if name not in state_dict:
            continue
        if ".base_layer." not in key:
            adapted[key] = state_dict[name]
        elif not torch.allclose(merged[name], state_dict[name].to(merged[name]), rtol=1e-3, atol=1e-5):
            raise RuntimeError(f"The run did not start from these weights: with its adapter {name} is another matrix.")
    state_dict.clear()
    state_dict.update(adapted)


def trust_argument(directory: Path) -> str:
    """Return the argument that lets SentenceTransformer run a folder's own code; "" where it has none."""
    return ", trust_remote_code=True" if any(directory.glob("*.py")) else ""
