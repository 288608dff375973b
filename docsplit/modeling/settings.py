"""What decides an embedding, kept in the checkpoint's config.json, and what an encoder can take."""

import inspect
from typing import Any, Literal, get_args

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from docsplit.modeling.objectives import Objective, Similarity

Pooling = Literal["cls", "mean", "max"]
IGNORED = -100  # the value of `mlm_targets` where nothing is predicted
# What decides an embedding or the objective is kept in the checkpoint's config.json, under the key "docsplit".
DEFAULT_SETTINGS: dict[str, Any] = {
    "pooling": "cls",
    "max_seq_length": 512,
    "objective": "info_nce",
    "similarity": "cosine",
    "contrastive_temperature": 0.05,
    "contrastive_weight": 1.0,
    "mlm_weight": 0.1,
    "symmetric": False,
    "momentum_queue_size": 0,
    "momentum": 0.9995,
}


def freeze_unused_parameters(encoder: PreTrainedModel, mlm: bool) -> None:
    """Poolers, and without an MLM loss its head: DDP waits for a gradient from each parameter that asks for one."""
    base = {id(parameter): name for name, parameter in encoder.base_model.named_parameters()}
    for parameter in encoder.parameters():
        name = base.get(id(parameter))
        if "pooler." in (name or "") or (name is None and not mlm):
            parameter.requires_grad_(False)


def checked_settings(config: PreTrainedConfig, overrides: dict[str, Any]) -> dict[str, Any]:
    """Defaults, then what the checkpoint says, then the overrides.

    Raises:
        ValueError: for a setting that does not exist or cannot work with this encoder.
    """
    saved = getattr(config, "docsplit", None) or {}
    settings = {**DEFAULT_SETTINGS, **saved, **overrides}
    positions = max_positions(config)
    if "max_seq_length" not in saved and "max_seq_length" not in overrides and positions is not None:
        settings["max_seq_length"] = min(settings["max_seq_length"], positions)
    if unknown := set(settings) - set(DEFAULT_SETTINGS):
        raise ValueError(f"Unknown settings {sorted(unknown)}, expected some of {sorted(DEFAULT_SETTINGS)}.")
    if settings["pooling"] not in get_args(Pooling):
        raise ValueError(f"pooling is {settings['pooling']!r}, expected one of {get_args(Pooling)}.")
    if settings["objective"] not in get_args(Objective):
        raise ValueError(f"objective is {settings['objective']!r}, expected one of {get_args(Objective)}.")
    if settings["similarity"] not in get_args(Similarity):
        raise ValueError(f"similarity is {settings['similarity']!r}, expected one of {get_args(Similarity)}.")
    if settings["momentum_queue_size"] < 0 or not 0 <= settings["momentum"] <= 1:
        raise ValueError(
            f"momentum_queue_size is {settings['momentum_queue_size']} and momentum {settings['momentum']}, expected "
            "0 (no queue) or more, and a share of 1."
        )
    if settings["objective"] == "contrastive_tension" and settings["momentum_queue_size"]:
        raise ValueError("Contrastive Tension has a second encoder of its own: leave out momentum_queue_size.")
    if (settings["objective"] == "contrastive_tension" or settings["momentum_queue_size"]) and (
        settings["mlm_weight"] or settings["symmetric"] or not settings["contrastive_weight"]
    ):
        raise ValueError(
            "With a second encoder (contrastive_tension, momentum_queue_size) the loss is contrastive alone, in one "
            "direction: set mlm_weight=0, symmetric=False and contrastive_weight=1; or, if it is the checkpoint's "
            "objective and not yours, objective='info_nce' and momentum_queue_size=0."
        )
    if settings["contrastive_temperature"] <= 0:
        raise ValueError(f"contrastive_temperature is {settings['contrastive_temperature']}, expected more than 0.")
    for name in ("contrastive_weight", "mlm_weight"):
        if settings[name] < 0:
            raise ValueError(f"{name} is {settings[name]}, expected 0 (none) or more.")
    if settings["contrastive_weight"] == settings["mlm_weight"] == 0:
        raise ValueError("contrastive_weight and mlm_weight are both 0: nothing is left to train.")
    if positions is not None and settings["max_seq_length"] > positions:
        raise ValueError(
            f"max_seq_length is {settings['max_seq_length']}, but this encoder has positions for {positions} tokens: "
            f"set max_seq_length={positions} or less, or choose a long-document encoder."
        )
    return settings


def max_positions(config: PreTrainedConfig) -> int | None:
    """How many tokens the encoder has positions for; None where the config sets no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions <= 0:
        return None
    # RoBERTa and its kin (Longformer, XLM-R, CamemBERT ...) count positions from padding_idx + 1.
    counts_from_padding = any(name in config.model_type for name in ("roberta", "longformer", "camembert", "mpnet"))
    return positions - (config.pad_token_id + 1) if counts_from_padding else positions


def has_pooler(config: PreTrainedConfig) -> bool:
    """Whether `AutoModel` adds a pooler unless told `add_pooling_layer=False`.

    BERT's is neither trained nor used here: its weights would be random in each process.
    """
    model_class: Any = MODEL_MAPPING.get(type(config), None)  # none of an architecture that brings its own code
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    return model_class is not None and "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
