"""What goes out: checkpoints, by one rule, with what SentenceTransformer needs; and LoRA, the stated exception.

The weights under `encoder.` are released, in the encoder's native format; all others are training state, in a file
beside them. No list names exceptions: whatever an objective trains besides the encoder is kept and resumed, and left
out of the release. With LoRA the merged weights are released under the names of a plain encoder, and the adapter is in
a folder beside them: to resume, a run starts from the same weights, adds the layers and loads the adapter.

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
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from docsplit.modeling.families.table import family_of
from docsplit.modeling.pretrained import (
    HEAD_FILE,
    HEAD_INDEX,
    MODEL_FILE,
    MODEL_OPTIONS,
    MODULES,
    POOLING_FLAGS,
    RELEASED_DTYPE,
    TRANSFORMER_FILES,
    has_pooler,
    similarity_of,
)
from docsplit.modeling.vectors import DENSE_WEIGHTS, KEPT, dense_configs
from docsplit.runtime.files import JsonObject, write_text, write_whole

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"
TRAINING_STATE_FILE = "training_state.safetensors"
ENCODER, OBJECTIVE = "encoder.", "objective."  # prefixes of all names in the model's state
ADAPTER_FOLDER = "adapter"
ADAPTER_FILE = "adapter_model.safetensors"

TrainingState = Literal["fresh", "loaded", "missing"]


# --- The training state ---


def refuse_not_finite(*states: Mapping[str, Tensor] | None) -> None:
    """Refuse weights of NaN or infinity before the first file is written: they would load without a word.

    Raises:
        FloatingPointError: naming the first of them.
    """
    for state in states:
        names = [name for name, value in (state or {}).items() if not value.isfinite().all()]
        if names:
            problem = (
                f"{len(names)} of {len(state or {})} weights are not finite, {names[0]} for one: nothing is written"
            )
            raise FloatingPointError(
                f"{problem}. Lower the learning rate, clip gradients, or use bfloat16, not float16."
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
        raise FileNotFoundError(f"{directory} has no {TRAINING_STATE_FILE}: it is of another objective.")
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
        _load_merged(module, state_dict, prefix, is_adapted=belongs)
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
        problem = f"weights are missing {sorted(missing)[:5]} or unknown {sorted(unexpected)[:5]}"
        raise RuntimeError(f"The checkpoint does not fit this model: {problem}. Start with the same configuration.")
    incompatible_keys.missing_keys.clear()


# --- The encoder ---


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
    is_of_trainer = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-\d+", directory.name)  # it resumes from such a folder
    parts = None if is_of_trainer else _divide(encoder, state, pooler)
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
    _write_sentence_transformers_files(directory, encoder.config, any("pooler." in key for key in written))
    layers: dict[str, dict[str, Tensor]] = {}  # of Dense, under the names that the weights have there
    for key, value in state.items():
        if match := DENSE_WEIGHTS.search(key):
            layers.setdefault(dense_folder(int(match[1])), {})[match[2]] = value
    for folder, weights in layers.items():
        _write_tensors(directory / folder / WEIGHTS_FILE, weights)
    if dtype := encoder.config.docsplit.get(RELEASED_DTYPE):
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        _write_json(directory / "config.json", config | {"dtype": dtype})


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
    _write_json(directory / HEAD_INDEX, content)


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    whole = {key: value.contiguous() for key, value in tensors.items()}
    write_whole(path, lambda temporary: save_file(whole, temporary, metadata={"format": "pt"}))


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=2) + "\n")


# --- SentenceTransformer's files, which define the embeddings ---


def _write_sentence_transformers_files(directory: Path, config: PreTrainedConfig, with_pooler: bool) -> None:
    """Write them; `with_pooler`: the weights have what `AutoModel` calls the pooler."""
    settings, family = config.docsplit, family_of(config)
    family.write_code(directory)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": family.module or "sentence_transformers.models.Transformer"}
    ]
    files: JsonObject = {MODULES: modules}
    if family.rows == "passages":
        files |= {TRANSFORMER_FILES[0]: {"max_seq_length": settings["max_seq_length"]}}
        files |= {MODEL_FILE: {"similarity_fn_name": similarity_of(settings)}}
    else:
        kept, pooling, dense = settings.get(KEPT, {}), settings["pooling"], dense_configs(settings)
        for kind in ("Pooling", *["Dense"] * len(dense), *["Normalize"] * bool(kept.get("normalize"))):
            number, module_type = len(modules), f"sentence_transformers.models.{kind}"
            modules.append({"idx": number, "name": str(number), "path": f"{number}_{kind}", "type": module_type})
        pooler = {"word_embedding_dimension": config.hidden_size}
        of_before = ("cls", "mean", "max")  # files of before have these three names alone
        pooler |= {flag: mode == pooling for flag, mode in POOLING_FLAGS.items() if mode in (*of_before, pooling)}
        if not kept.get("include_prompt", True):
            pooler["include_prompt"] = False
        files |= {
            TRANSFORMER_FILES[0]: _transformer_file(config, kept.get("transformer", {}), with_pooler),
            "1_Pooling/config.json": pooler,
            MODEL_FILE: kept.get("model", {}) | {"similarity_fn_name": similarity_of(settings)},
        }
        files |= {f"{dense_folder(number)}/config.json": layer for number, layer in enumerate(dense)}
    for name, content in files.items():
        _write_json(directory / name, content)


def _transformer_file(config: PreTrainedConfig, kept: Mapping[str, Any], with_pooler: bool) -> JsonObject:
    """Return length and options of loading: without a pooler among the weights `AutoModel` must not look for one."""
    options = {key: value for name in MODEL_OPTIONS for key, value in (kept.get(name) or {}).items()}
    options.pop("add_pooling_layer", None)
    if has_pooler(config) and not with_pooler:
        options["add_pooling_layer"] = False
    rest = {key: value for key, value in kept.items() if key not in MODEL_OPTIONS}
    length = {"max_seq_length": config.docsplit["max_seq_length"]}
    return length | {"do_lower_case": False} | rest | {"model_kwargs": options}


def dense_folder(number: int) -> str:
    """Return the folder of a Dense layer in a checkpoint: 2_Dense is the first."""
    return f"{2 + number}_Dense"


def trust_argument(directory: Path) -> str:
    """Return the argument that lets SentenceTransformer run a folder's own code; "" where it has none."""
    return ", trust_remote_code=True" if any(directory.glob("*.py")) else ""


# --- LoRA ---


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
        lora_alpha=2 * rank,  # LoRA, section 4.1
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
    folder = directory / ADAPTER_FOLDER
    config.save_pretrained(folder)
    _write_tensors(folder / ADAPTER_FILE, {f"base_model.model.{key}": value for key, value in adapter.items()})


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
    adapter = {key.removeprefix("base_model.model."): value for key, value in load_file(path).items()}
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


def _load_merged(module: Any, state_dict: dict[str, Tensor], prefix: str, is_adapted: bool) -> None:
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
    merged = {f"{prefix}{ENCODER}{key}": value for key, value in merge_lora(module.encoder).items()}
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
