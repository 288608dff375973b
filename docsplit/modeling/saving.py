"""What a checkpoint holds, in both directions: under `encoder.` the released weights, all else training state."""

import json
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

from docsplit.modeling.long_documents import LONGFORMER_MODULE
from docsplit.modeling.lora import load_merged
from docsplit.modeling.settings import has_pooler

# What only training needs is beside the weights in a checkpoint: a second encoder and a queue of keys, or an adapter.
TRAINING_STATE_FILE = "training_state.safetensors"


def add_encoder_prefix(module: Any, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
    """Accept a checkpoint's native keys: Trainer resumes with `load_state_dict(..., strict=False)`, silently."""
    for key in list(state_dict):
        if key.startswith(prefix) and not key.startswith((f"{prefix}encoder.", f"{prefix}second_encoder.")):
            state_dict[f"{prefix}encoder.{key[len(prefix) :]}"] = state_dict.pop(key)
    if module.lora_config is not None:
        load_merged(module, state_dict, prefix)


def raise_on_missing_keys(module: Any, incompatible_keys: Any) -> None:
    """Refuse a checkpoint that would leave a weight as it was; the keys of tied weights may be absent.

    Raises:
        RuntimeError: naming the keys that are missing or unknown.
    """
    missing = set(incompatible_keys.missing_keys) - set(module.all_tied_weights_keys)
    of_training_state = {key for key in missing if key.startswith("second_encoder.")}
    if of_training_state:
        module.training_state_lost, module.training_state_loaded = not module.training_state_loaded, False
    missing -= of_training_state
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
    if config.model_type == "longformer":
        transformer_type = LONGFORMER_MODULE
        shutil.copy(Path(__file__).parent / "longformer_transformer.py", directory)
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
        "config_sentence_transformers.json": {"similarity_fn_name": config.docsplit["similarity"]},
    }.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
