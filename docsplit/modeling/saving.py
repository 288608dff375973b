"""What a checkpoint holds, by one rule in both directions.

Under `encoder.` is what is released, in the encoder's native format; all else is training state, in its own file.
There is no list of exceptions by name: what an objective trains besides the encoder is kept, resumed and left out of
the release without more. (LoRA is the stated exception: merged on release, the adapter kept beside.)

Trainer restores the encoder alone, and does not tell the model where from. So `training_state` says how the training
state stands to the weights: `fresh`, it belongs to them; `loaded`, from a checkpoint whose weights are still to come;
`missing`, other weights were loaded since.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedConfig

from docsplit.modeling.long_documents import needs_remote_code, write_transformer_module
from docsplit.modeling.lora import load_merged
from docsplit.modeling.settings import has_pooler
from docsplit.runtime.files import write_text, write_whole

TRAINING_STATE_FILE = "training_state.safetensors"
ENCODER, OBJECTIVE = "encoder.", "objective."  # prefixes of all names in the model's state

TrainingState = Literal["fresh", "loaded", "missing"]


def released_state(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """What of a model's state is released, under the encoder's own names.

    Raises:
        ValueError: if that is nothing: the state is of another model, or names its weights otherwise.
    """
    released = {key.removeprefix(ENCODER): value for key, value in state_dict.items() if key.startswith(ENCODER)}
    if not released:
        raise ValueError(f"No key of this state_dict begins with {ENCODER!r}: it is not that of the whole model.")
    return released


def refuse_not_finite(*states: Mapping[str, Tensor] | None) -> None:
    """Before the first file is written: weights of NaN or infinity would load without a word.

    Raises:
        FloatingPointError: naming the first of them.
    """
    for state in states:
        names = [name for name, value in (state or {}).items() if not value.isfinite().all()]
        if names:
            raise FloatingPointError(
                f"{len(names)} of {len(state or {})} weights are not finite, {names[0]} for one: nothing is written. "
                "Train with a lower learning rate or with clipped gradients, in bfloat16 in place of float16."
            )


def save_training_state(state_dict: dict[str, Tensor], directory: Path) -> None:
    """Write all else of a model's state, if there is any."""
    state = {key.removeprefix(OBJECTIVE): value for key, value in state_dict.items() if not key.startswith(ENCODER)}
    if state:
        tensors = {key: value.contiguous() for key, value in state.items()}
        path = directory / TRAINING_STATE_FILE
        write_whole(path, lambda path: save_file(tensors, path, metadata={"format": "pt"}))


def load_training_state(module: Any, directory: Path) -> None:
    """Give an objective what `save_training_state` wrote of it.

    Raises:
        FileNotFoundError: if the checkpoint has none.
        RuntimeError: if it is of another objective, or of other options.
    """
    path = directory / TRAINING_STATE_FILE
    if not path.exists():
        raise FileNotFoundError(
            f"{directory} has no {TRAINING_STATE_FILE}: it is the checkpoint of another objective."
        )
    module.objective.load_state_dict(load_file(path, device=str(module.device)))


def accept_released_weights(module: Any, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
    """Before `load_state_dict`: accept a checkpoint's native keys, which Trainer loads with `strict=False`, silently.

    The objective keeps what it has, for such a checkpoint says nothing of it, and `training_state` tells whether that
    belongs to these weights. `load_state_dict` copies the dict before it gets here: the caller's own stays as it was.
    """
    for key in list(state_dict):
        if key.startswith(prefix) and not key.startswith((f"{prefix}{ENCODER}", f"{prefix}{OBJECTIVE}")):
            state_dict[f"{prefix}{ENCODER}{key[len(prefix) :]}"] = state_dict.pop(key)
    own = module.objective.state_dict(prefix=f"{prefix}{OBJECTIVE}")
    is_whole = any(key.startswith(f"{prefix}{OBJECTIVE}") for key in state_dict)
    belongs = is_whole or module.training_state == "loaded"
    if not is_whole:
        state_dict.update(own)
    if module.lora_config is not None:
        load_merged(module, state_dict, prefix, is_adapted=belongs)
    if own or module.lora_config is not None:
        module.training_state = "fresh" if belongs else "missing"


def raise_on_missing_keys(module: Any, incompatible_keys: Any) -> None:
    """Refuse a checkpoint that would leave a weight as it was; the keys of tied weights may be absent.

    Raises:
        RuntimeError: naming the keys that are missing or unknown.
    """
    missing = set(incompatible_keys.missing_keys) - set(module.all_tied_weights_keys)
    unexpected = incompatible_keys.unexpected_keys
    if missing or unexpected:
        raise RuntimeError(
            f"The checkpoint does not fit this model: {len(missing)} weights are missing {sorted(missing)[:5]} and "
            f"{len(unexpected)} are unknown {sorted(unexpected)[:5]}. Start the run with the same encoder "
            "configuration as the checkpoint, or load it with from_pretrained."
        )
    incompatible_keys.missing_keys.clear()


def write_sentence_transformers_files(directory: Path, config: PreTrainedConfig) -> None:
    """Say in SentenceTransformer's own files which pooling and length the embeddings have."""
    pooling = config.docsplit["pooling"]
    transformer_type = "sentence_transformers.models.Transformer"
    if needs_remote_code(config):
        transformer_type = write_transformer_module(directory)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": transformer_type},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    transformer = {
        "max_seq_length": config.docsplit["max_seq_length"],
        "do_lower_case": False,
        "model_kwargs": {"add_pooling_layer": False} if has_pooler(config) else {},
    }
    pooler = {
        "word_embedding_dimension": config.hidden_size,
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": pooling == "max",
    }
    (directory / "1_Pooling").mkdir(parents=True, exist_ok=True)
    for name, content in {
        "modules.json": modules,
        "sentence_bert_config.json": transformer,
        "1_Pooling/config.json": pooler,
        "config_sentence_transformers.json": {"similarity_fn_name": config.docsplit.get("similarity", "cosine")},
    }.items():
        write_text(directory / name, json.dumps(content, indent=2) + "\n")
