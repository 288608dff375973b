"""Write and read checkpoints by one rule.

The weights under `encoder.` are released, in the encoder's native format; all others are training state, in a file
beside them. No list names exceptions: whatever an objective trains besides the encoder is kept and resumed, and left
out of the release. (LoRA is the stated exception: merged on release, the adapter kept beside.)

The weights are what `AutoModel` and SentenceTransformer look for, no more and no less, and the head of a masked
language model lies beside them, for `AutoModelForMaskedLM.from_pretrained(folder, variant="mlm")`. Dense layers after
the pooling are in SentenceTransformer's module folders. Trainer's `checkpoint-N` has all in model.safetensors, under
the names of the masked language model: Trainer restores nothing else.

Trainer restores the encoder alone, and does not tell the model where from. So `training_state` says how the training
state stands to the weights: `fresh`, it belongs to them; `loaded`, from a checkpoint whose weights are still to come;
`missing`, other weights were loaded since.
"""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from docsplit.modeling.after_pooling import DENSE_WEIGHTS, dense_states
from docsplit.modeling.lora import load_merged
from docsplit.modeling.sentence_transformers_files import dense_folder, write_sentence_transformers_files
from docsplit.modeling.settings import RELEASED_DTYPE
from docsplit.modeling.starts import HEAD_FILE, HEAD_INDEX
from docsplit.runtime.files import write_text, write_whole

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"
OF_TRAINER = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-\d+")  # the name of a folder that it resumes from

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


def save_encoder(
    directory: Path,
    encoder: PreTrainedModel,
    released: dict[str, Tensor] | None,
    pooler: Mapping[str, Tensor],
    **kwargs: Any,
) -> None:
    """Write an encoder in its native format, divided unless the folder is Trainer's, and SentenceTransformer's files.

    A kill in between leaves a folder that does not load, or that loads without its head.

    Args:
        released: the weights that are saved; None: the encoder's.
        pooler: the start's, under `AutoModel`'s names; what it lacks is zero.
        kwargs: those of `save_pretrained`.
    """
    state, is_main = encoder.state_dict() if released is None else released, kwargs.get("is_main_process", True)
    parts = None if OF_TRAINER.fullmatch(directory.name) else _divide(encoder, state, pooler)
    if is_main:  # transformers removes shards of earlier weights, and nothing else
        for name in (WEIGHTS_FILE, f"{WEIGHTS_FILE}.index.json", HEAD_INDEX, HEAD_FILE):
            (directory / name).unlink(missing_ok=True)
    # Under the names that the model has now: BERT has others on the Hub, with which Trainer could not resume.
    kwargs["save_original_format"] = False
    if parts is None:
        written = state
        encoder.save_pretrained(directory, state_dict=released and dict(released), **kwargs)  # it empties that
    else:
        written = parts.encoder | parts.pooler
        if parts.head and parts.pooler:  # a file of its own, for a masked language model has no place for it
            kwargs.setdefault("max_shard_size", sum(value.nbytes for value in parts.encoder.values()))
        base_model: Any = encoder.base_model
        base_model.save_pretrained(directory, state_dict=dict(written), **kwargs)
    if not is_main:
        return
    if parts is not None and parts.head:
        _write_head(directory, parts)
    has_pooler = any("pooler." in key for key in written)
    write_sentence_transformers_files(directory, encoder.config, has_pooler)
    for number, weights in dense_states(state).items():
        _write_tensors(directory / dense_folder(number) / WEIGHTS_FILE, weights)
    if dtype := encoder.config.docsplit.get(RELEASED_DTYPE):
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        write_text(directory / "config.json", json.dumps(config | {"dtype": dtype}, indent=2) + "\n")


@dataclass
class Parts:
    """The weights of a release: those of `AutoModel`, the pooler apart, and the head of a masked language model."""

    encoder: dict[str, Tensor]
    pooler: dict[str, Tensor]  # if the encoder is a part of a masked language model
    head: dict[str, Tensor]
    prefix: str  # of the encoder's weights in a masked language model


def _divide(encoder: PreTrainedModel, state: Mapping[str, Tensor], pooler: Mapping[str, Tensor]) -> Parts | None:
    """Divide weights into what each loader looks for; None for an architecture that brings its own code.

    A head is kept if masked LM was trained; without that it says nothing of these weights. An architecture's pooler,
    which the training left alone, is released because `AutoModel` would otherwise make a random one.
    """
    config, base_model = encoder.config, encoder.base_model
    if type(config) not in MODEL_MAPPING:
        return None
    with torch.device("meta"):
        expected = AutoModel.from_config(config)
    prefix = "" if base_model is encoder else f"{encoder.base_model_prefix}."
    weights = {key: value for key, value in state.items() if not DENSE_WEIGHTS.search(key)}
    of_base = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
    shapes = {key: value.shape for key, value in expected.state_dict().items() if key not in of_base}
    poolers = {key: pooler.get(key, torch.zeros(shape)) for key, shape in shapes.items() if "pooler." in key}
    if different := (of_base.keys() | poolers.keys()) ^ (
        expected.state_dict().keys() - getattr(expected, "all_tied_weights_keys", {}).keys()
    ):
        logger.warning(f"The weights stay in one file: `AutoModel` has other names for {sorted(different)[:3]}.")
        return None
    tied = getattr(encoder, "all_tied_weights_keys", None) or {}
    head = {key: value for key, value in weights.items() if not key.startswith(prefix) and key not in tied}
    return Parts(of_base, poolers, head if config.docsplit["mlm_weight"] else {}, prefix)


def _write_head(directory: Path, parts: Parts) -> None:
    """Write the head, and then the index that joins it to the encoder: `variant="mlm"`."""
    _write_tensors(directory / HEAD_FILE, parts.head)
    index = directory / f"{WEIGHTS_FILE}.index.json"
    files = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.exists() else {}
    places = {f"{parts.prefix}{key}": files.get(key, WEIGHTS_FILE) for key in parts.encoder}
    size = sum(value.nbytes for value in [*parts.encoder.values(), *parts.head.values()])
    content = {"metadata": {"total_size": size}, "weight_map": places | dict.fromkeys(parts.head, HEAD_FILE)}
    write_text(directory / HEAD_INDEX, json.dumps(content, indent=2) + "\n")


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    whole = {key: value.contiguous() for key, value in tensors.items()}
    write_whole(path, lambda temporary: save_file(whole, temporary, metadata={"format": "pt"}))
