"""The settings that decide an embedding and its training, kept in config.json, and checks that an encoder takes them.

config.json has it under the key "docsplit": the names of `DEFAULT_SETTINGS`, and the options of the objective; where
a script trained it, the views that it learnt from (`OF_VIEWS`); where the start was a SentenceTransformer also `KEPT`,
and where it was not in float32 `RELEASED_DTYPE`.
"""

import inspect
from typing import Any, get_args, get_type_hints

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from docsplit.modeling.after_pooling import KEPT
from docsplit.modeling.families.table import FAMILIES, family_of
from docsplit.modeling.objectives.table import OBJECTIVES, objectives_with, option_names
from docsplit.modeling.pooling import Pooling
from docsplit.runtime.files import checked
from docsplit.runtime.plugins import PLUGINS

RELEASED_DTYPE = "released_dtype"  # in which `AutoModel` loads the checkpoint, where that is not float32
# The view of `docsplit.data.views` that was trained on, and about how many words its passages have, if it has any: for
# those who go on. A model that makes no views does not know them.
OF_VIEWS: dict[str, type] = {"view": str, "passage_words": int}
IGNORED = -100  # the value of `mlm_targets` where nothing is predicted

# Those of `DEFAULT_SETTINGS`, of the objective and of the start, by name: "docsplit" in config.json.
Settings = dict[str, Any]

DEFAULT_SETTINGS: Settings = {
    "pooling": "cls",
    "max_seq_length": 512,
    "objective": "info_nce",
    "contrastive_weight": 1.0,
    "mlm_weight": 0.1,
}


def setting_names() -> set[str]:
    """Return all names that a checkpoint's settings may have, whatever its objective."""
    return set(DEFAULT_SETTINGS).union(OF_VIEWS, *map(option_names, OBJECTIVES))


def current_settings(saved: Settings) -> Settings:
    """Return the settings of a checkpoint, which may be older, under today's names.

    Older ones have the options of all objectives at once: a queue stood for MoCo, `symmetric` for `symmetric_loss`. An
    option that came later has its default, which is what was trained with.
    """
    settings = dict(saved)
    if settings.get("momentum_queue_size"):
        settings["objective"] = "momentum_contrast"
    if "symmetric" in settings:
        settings["symmetric_loss"] = settings.pop("symmetric")
    objective = (DEFAULT_SETTINGS | settings)["objective"]
    defaults = vars(OBJECTIVES[objective].Options()) if saved and objective in OBJECTIVES else {}
    return defaults | settings_for(objective, settings)


def check_types(saved: Settings, where: str) -> None:
    """Check that the settings of a file have the types of theirs.

    Args:
        where: the file, for errors.

    Raises:
        ValueError: naming the setting that has another, or an objective that does not exist.
    """
    objective = checked(saved.get("objective", DEFAULT_SETTINGS["objective"]), str, f"{where}: objective")
    OBJECTIVES.check(objective, saved, f"{where}: ")
    types: dict[str, Any] = {name: type(value) for name, value in DEFAULT_SETTINGS.items()}
    types |= (
        {KEPT: dict, RELEASED_DTYPE: str, PLUGINS: dict} | OF_VIEWS | get_type_hints(OBJECTIVES[objective].Options)
    )
    for name, value in current_settings(saved).items():
        if value is not None and name in types:
            checked(value, types[name], f"{where}: {name}")


def settings_for(objective: str, settings: Settings) -> Settings:
    """Return the settings with this objective, without the options of others."""
    of_others = {name for name in settings if objectives_with(name) and objective not in objectives_with(name)}
    return {name: value for name, value in settings.items() if name not in of_others} | {"objective": objective}


def default_settings(config: PreTrainedConfig) -> Settings:
    """Return `DEFAULT_SETTINGS`, updated by those of the encoder's family."""
    return DEFAULT_SETTINGS | dict(family_of(config).default_settings)


def checked_settings(config: PreTrainedConfig, overrides: Settings) -> Settings:
    """Return the settings of an encoder: the defaults, then the checkpoint's, then the overrides.

    Raises:
        ValueError: for a setting that does not exist, is of another objective or cannot work with this encoder.
    """
    saved = current_settings(getattr(config, "docsplit", None) or {})
    # Merge them, and refuse what has no place
    objective = str(overrides.get("objective", saved["objective"]))
    OBJECTIVES.check(saved["objective"], saved)
    OBJECTIVES.check(objective, {})
    settings = default_settings(config) | settings_for(objective, saved) | overrides
    OBJECTIVES.record(objective, settings)
    FAMILIES.record(config.model_type, settings)
    known = (*DEFAULT_SETTINGS, *option_names(objective), *OF_VIEWS, KEPT, RELEASED_DTYPE, PLUGINS)
    for name in [name for name in settings if name not in known]:
        if having := objectives_with(name):
            raise ValueError(
                f"{name} is an option of objective {' and '.join(having)}, not of {objective}: leave it out, or name "
                "that objective."
            )
        raise ValueError(f"There is no setting {name!r}, expected some of {sorted(setting_names())}.")
    # Let the objective read its options, and the encoder bound the length
    given = {name: settings[name] for name in option_names(objective) if name in settings}
    if KEPT in settings and "similarity" in overrides:
        model = settings[KEPT]["model"] | {"similarity_fn_name": overrides["similarity"]}
        settings[KEPT] = settings[KEPT] | {"model": model}
    settings |= vars(OBJECTIVES[objective].Options(**given))
    positions = max_positions(config)
    if "max_seq_length" not in saved and "max_seq_length" not in overrides and positions is not None:
        settings["max_seq_length"] = min(settings["max_seq_length"], positions)
    # Check them
    if settings["pooling"] not in get_args(Pooling):
        raise ValueError(f"pooling is {settings['pooling']!r}, expected one of {get_args(Pooling)}.")
    family_of(config).check_settings(settings)
    for name in ("contrastive_weight", "mlm_weight"):
        if settings[name] < 0:
            raise ValueError(f"{name} is {settings[name]}, expected 0 (none) or more.")
    OBJECTIVES[objective].check(settings)
    if settings["contrastive_weight"] == settings["mlm_weight"] == 0:
        raise ValueError("contrastive_weight and mlm_weight are both 0: nothing is left to train.")
    if positions is not None and settings["max_seq_length"] > positions:
        raise ValueError(
            f"max_seq_length is {settings['max_seq_length']}, but this encoder has positions for {positions} tokens: "
            f"set max_seq_length={positions} or less, or choose a long-document encoder."
        )
    return settings


def max_positions(config: PreTrainedConfig) -> int | None:
    """Return how many tokens of a row the encoder has positions for; None: the config has no limit.

    Raises:
        ValueError: if they are counted from the id of padding, and the config has none.
    """
    config = family_of(config).token_encoder(config)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions <= 0:
        return None
    if not family_of(config).positions_follow_padding:
        return positions
    if config.pad_token_id is None:
        raise ValueError(
            f"The config of {config._name_or_path or 'the encoder'} has no pad_token_id, from which a "
            f"{config.model_type} counts positions: write the id of the tokenizer's pad token there."
        )
    return positions - (config.pad_token_id + 1)


def has_pooler(config: PreTrainedConfig) -> bool:
    """Whether `AutoModel` adds a pooler unless told `add_pooling_layer=False`.

    BERT's is neither trained nor used here: its weights would be random in each process.
    """
    model_class: Any = MODEL_MAPPING.get(type(config), None)  # none of an architecture that brings its own code
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    return model_class is not None and "add_pooling_layer" in inspect.signature(model_class.__init__).parameters


def freeze_unused_parameters(encoder: PreTrainedModel, mlm: bool) -> None:
    """Freeze poolers, and the MLM head where there is no MLM loss: DDP waits for each trained parameter's gradient."""
    base = {id(parameter): name for name, parameter in encoder.base_model.named_parameters()}
    for parameter in encoder.parameters():
        name = base.get(id(parameter))
        if "pooler." in (name or "") or (name is None and not mlm):
            parameter.requires_grad_(False)
