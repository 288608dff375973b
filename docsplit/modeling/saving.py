"""Write and read checkpoints by one rule.

The weights under `encoder.` are released, in the encoder's native format; all others are training state, in a file
beside them. No list names exceptions: whatever an objective trains besides the encoder is kept and resumed, and left
out of the release. (LoRA is the stated exception: merged on release, the adapter kept beside.)

A checkpoint of a masked language model has that model's names, with its head, so that Trainer can resume. The result
of a run is split by `split_release`: `model.safetensors` is what `AutoModel` and SentenceTransformer look for, no
more and no less, and the head lies beside it, for `AutoModelForMaskedLM.from_pretrained(folder, variant="mlm")`.
Dense layers after the pooling are in SentenceTransformer's module folders, in a checkpoint among the weights too.

Trainer restores the encoder alone, and does not tell the model where from. So `training_state` says how the training
state stands to the weights: `fresh`, it belongs to them; `loaded`, from a checkpoint whose weights are still to come;
`missing`, other weights were loaded since.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING, MODEL_MAPPING

from docsplit.modeling.after_pooling import DENSE_WEIGHTS, dense_configs, dense_states
from docsplit.modeling.lora import load_merged
from docsplit.modeling.pretrained import read_config
from docsplit.modeling.sentence_transformers_files import dense_folder, write_sentence_transformers_files
from docsplit.modeling.settings import RELEASED_DTYPE
from docsplit.modeling.starts import HEAD_FILE, HEAD_INDEX
from docsplit.runtime.files import write_text, write_whole

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"

TRAINING_STATE_FILE = "training_state.safetensors"
ENCODER, OBJECTIVE = "encoder.", "objective."  # prefixes of all names in the model's state

TrainingState = Literal["fresh", "loaded", "missing"]


def released_state(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the part of a model's state that is released, under the encoder's names.

    Raises:
        ValueError: if nothing is: the state is of another model, or names its weights otherwise.
    """
    released = {key.removeprefix(ENCODER): value for key, value in state_dict.items() if key.startswith(ENCODER)}
    if not released:
        raise ValueError(f"No key of this state_dict begins with {ENCODER!r}: it is not that of the whole model.")
    return released


def refuse_not_finite(*states: Mapping[str, Tensor] | None) -> None:
    """Refuse weights of NaN or infinity before the first file is written: they would load without a word.

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
    """Write the rest of a model's state, if there is any."""
    state = {key.removeprefix(OBJECTIVE): value for key, value in state_dict.items() if not key.startswith(ENCODER)}
    if state:
        _write_tensors(directory / TRAINING_STATE_FILE, state)


def load_training_state(module: Any, directory: Path) -> None:
    """Load what `save_training_state` wrote into the objective of a model.

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
    """Accept a checkpoint's native keys in `load_state_dict`: Trainer would load nothing of it, silently.

    The objective keeps what it has, for such a checkpoint says nothing of it. `training_state` tells whether that
    belongs to these weights. `load_state_dict` has copied the dict: the caller's stays as it was.
    """
    ours = {key.replace(".base_layer.", ".") for key in module.state_dict(prefix=prefix)}
    for key in [key for key in state_dict if key.startswith(prefix) and key not in ours]:
        named_by_encoder = f"{prefix}{ENCODER}{key[len(prefix) :]}"  # a BERT has an `encoder.` of its own
        if named_by_encoder in ours or not key.startswith((f"{prefix}{ENCODER}", f"{prefix}{OBJECTIVE}")):
            state_dict[named_by_encoder] = state_dict.pop(key)
    of_objective = module.objective.state_dict(prefix=f"{prefix}{OBJECTIVE}")
    is_whole = any(key.startswith(f"{prefix}{OBJECTIVE}") for key in state_dict)
    belongs = is_whole or module.training_state == "loaded"
    if not is_whole:
        state_dict.update(of_objective)
    if module.lora_config is not None:
        load_merged(module, state_dict, prefix, is_adapted=belongs)
    if of_objective or module.lora_config is not None:
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


def write_encoder_files(directory: Path, encoder: PreTrainedModel, released: Mapping[str, Tensor] | None) -> None:
    """Write the files beside the weights: SentenceTransformer's, and the dtype that the start loads in.

    Args:
        released: the weights that are saved; None: the encoder's.
    """
    with_pooler = any("pooler." in name for name, _ in encoder.base_model.named_parameters())
    write_sentence_transformers_files(directory, encoder.config, with_pooler)
    for number, state in dense_states(encoder.state_dict() if released is None else released).items():
        _write_tensors(directory / dense_folder(number) / WEIGHTS_FILE, state)
    if dtype := encoder.config.docsplit.get(RELEASED_DTYPE):
        _change_config(directory, dtype=dtype)


def remove_head(directory: Path) -> None:
    """Remove the files that `split_release` put beside the weights."""
    for name in (HEAD_INDEX, HEAD_FILE):
        (directory / name).unlink(missing_ok=True)


def split_release(directory: Path, pooler: Mapping[str, Tensor]) -> None:
    """Split a checkpoint's weights into encoder and head, so that every loader finds what it looks for.

    A kill in between leaves a folder that loads. The head is kept if masked LM was trained; without that it says
    nothing of these weights. An architecture's pooler, which the training left alone, is in the release because
    `AutoModel` would otherwise make a random one.

    Args:
        directory: what `save_pretrained` wrote; the checkpoint of an encoder without head is in that form already.
        pooler: the start's, under `AutoModel`'s names; what it lacks is zero.
    """
    # Leave folders alone that have this form already, or cannot have it
    config = read_config(directory)
    if dense_configs(config.docsplit):
        _leave_out_dense(directory)
    if type(config) not in MODEL_MAPPING:
        logger.info(f"{directory} stays as it is: a {config.model_type} brings its own code.")
        return
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:  # an encoder alone
        return
    with torch.device("meta"):
        whole, base = AutoModelForMaskedLM.from_config(config), AutoModel.from_config(config)
    if type(base).__name__ in (config.architectures or []):
        return
    if not (directory / WEIGHTS_FILE).exists():
        logger.warning(f"{directory} has its weights in several files: they stay as they are, the head among them.")
        return
    # Divide the weights between encoder and head
    weights = load_file(directory / WEIGHTS_FILE)
    prefix = f"{whole.base_model_prefix}."
    released = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
    head = {key: value for key, value in weights.items() if not key.startswith(prefix)}
    encoder_keys = list(released)
    for key, value in base.state_dict().items():
        if key not in released and "pooler." in key:
            released[key] = pooler.get(key, torch.zeros(value.shape))
    if different := set(released) ^ (set(base.state_dict()) - set(base.all_tied_weights_keys)):
        logger.warning(f"{directory} stays as it is: `AutoModel` has other names for {sorted(different)[:3]}.")
        return
    # Write the head before the encoder, so that a kill in between leaves a folder that loads
    if config.docsplit["mlm_weight"]:
        _write_tensors(directory / HEAD_FILE, head)
        files = {f"{prefix}{key}": WEIGHTS_FILE for key in encoder_keys} | dict.fromkeys(head, HEAD_FILE)
        index = {"metadata": {"total_size": sum(value.nbytes for value in weights.values())}, "weight_map": files}
        write_text(directory / HEAD_INDEX, json.dumps(index, indent=2) + "\n")
    else:
        logger.info(f"{directory} has no masked-LM head: mlm_weight is 0, and the start's does not fit these weights.")
    _write_tensors(directory / WEIGHTS_FILE, released)
    write_sentence_transformers_files(directory, config, with_pooler=True)
    _change_config(directory, architectures=[type(base).__name__])


def _leave_out_dense(directory: Path) -> None:
    """Leave the Dense layers out of the weights: `AutoModel` has no place for them, and their folders have them."""
    if not (directory / WEIGHTS_FILE).exists():
        logger.warning(f"{directory} has its weights in several files: the Dense layers stay among them, unused.")
        return
    weights = load_file(directory / WEIGHTS_FILE)
    _write_tensors(directory / WEIGHTS_FILE, {k: v for k, v in weights.items() if not DENSE_WEIGHTS.search(k)})


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    whole = {key: value.contiguous() for key, value in tensors.items()}
    write_whole(path, lambda temporary: save_file(whole, temporary, metadata={"format": "pt"}))


def _change_config(directory: Path, **values: Any) -> None:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    write_text(directory / "config.json", json.dumps(config | values, indent=2) + "\n")
