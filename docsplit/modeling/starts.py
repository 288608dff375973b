"""Load the encoder that a training starts from: any checkpoint of transformers, sentence-transformers or ours.

A masked language model is loaded with its head. Where the checkpoint has none, like that of a SentenceTransformer,
transformers would make a random one; then the encoder alone is loaded, as the class that `AutoModel` gives. Weights
are float32 in training, whatever they are on the disk.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING
from transformers.utils import cached_file

from docsplit.modeling import pretrained
from docsplit.modeling.after_pooling import DENSE_WEIGHTS, KEPT, add_dense, dense_configs, load_dense
from docsplit.modeling.families.table import FAMILIES
from docsplit.modeling.pretrained import hub_arguments
from docsplit.modeling.sentence_transformers_files import (
    dense_paths,
    describe_start,
    describe_words,
    is_static,
    settings_of_start,
    warn_of_overrides,
)
from docsplit.modeling.settings import DEFAULT_SETTINGS, RELEASED_DTYPE, Settings, check_types, has_pooler

logger = logging.getLogger(__name__)

HEAD_FILE = "mlm_head.safetensors"
HEAD_VARIANT = "mlm"
HEAD_INDEX = f"model.safetensors.index.{HEAD_VARIANT}.json"  # transformers' name for the index of that variant
NEW_HEAD = " For a new, random head: --new_mlm_head (in Python new_mlm_head=True)."
DTYPE_ARGUMENTS = {"dtype", "torch_dtype"}


@dataclass
class Start:
    """An encoder to train, and the facts and weights of its checkpoint that are not part of it."""

    encoder: PreTrainedModel  # a `...ForMaskedLM`, or without a head what `AutoModel` gives
    has_head: bool
    dtype: str  # of the checkpoint
    pooler: dict[str, Tensor] = field(default_factory=dict)  # of a `...ForMaskedLM`, under `AutoModel`'s names


def read_config(name: str | Path, settings: Mapping[str, Any], **kwargs: Any) -> PreTrainedConfig:
    """Read the config of a start, with what SentenceTransformer's files say of it as its settings.

    Args:
        name: a folder, or a name on the Hub.
        settings: the given ones, which override those of the start.
        kwargs: those of `from_pretrained`.

    Raises:
        ValueError: if there is no encoder at this name, or it cannot be trained here, naming why.
    """
    try:
        config = _read_native_config(name, kwargs)
    except ValueError as error:
        if Path(name).exists() and is_static(name, hub_arguments(kwargs)):
            raise ValueError(
                f"{name} is a static encoder, a table of token vectors, in which there is nothing to train: start "
                "from the encoder that it was made of."
            ) from error
        raise
    check_types(getattr(config, "docsplit", None) or {}, f"{name}: config.json")
    with pretrained.loading(name, keeps=ValueError):
        describe_words(name, hub_arguments(kwargs))
        if _is_inner(config, kwargs.get("model_type")):
            config.docsplit = {}  # nothing but the weights counts
            if dense_paths(name, hub_arguments(kwargs)):
                logger.info(f"{name}: its Dense layers are left out, for its transformer alone reads passages.")
        elif of_start := settings_of_start(name, config, settings, **hub_arguments(kwargs)):
            config.docsplit = of_start
    return config


def load_start(
    name: str | Path,
    *args: Any,
    of_start: PreTrainedConfig | None = None,
    new_mlm_head: bool = False,
    model_type: str | None = None,
    config_overrides: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Start:
    """Load the encoder of a checkpoint, with the masked-LM head and the Dense layers that it has.

    Args:
        name: a folder, or a name on the Hub.
        of_start: its config, as `read_config` gives it; None: Dense layers are left out.
        new_mlm_head: make a random head where the checkpoint has none.
        model_type: of a family that is built on other encoders (`Family.built_on`); the start is of it, or becomes the
            inner encoder of a new one.
        config_overrides: `Family.config_options` of that family.
        kwargs: those of `from_pretrained`; a `dtype` among them is that of training.

    Raises:
        ValueError: if weights of the encoder itself are missing, there is no such encoder, or a new head is asked for
            where there is one.
    """
    # Read the config, and decide on dtype and variant
    config = _read_native_config(name, kwargs)
    if model_type == config.model_type:
        FAMILIES[model_type].override(name, config, config_overrides or {})
        kwargs["config"] = config
    if not DTYPE_ARGUMENTS & kwargs.keys():  # without a dtype in the config, that of the weights is the checkpoint's
        kwargs["dtype"] = torch.float32 if config.dtype is not None else "auto"
    is_ours = getattr(config, "docsplit", None) is not None
    if is_ours and "variant" not in kwargs and _has_head(name, kwargs):
        kwargs["variant"] = HEAD_VARIANT
    # Load a masked language model, if the architecture has one and the checkpoint its head
    encoder: Any = None
    unused: set[str] = set()
    if _is_masked_lm(config) and model_type is None:
        encoder, missing, unused = _load(AutoModelForMaskedLM, name, args, kwargs)
        prefix = _prefix_of_base(encoder)
        lacking = {key for key in missing if prefix is not None and not key.startswith(prefix)}
        _refuse_random_weights(name, missing - lacking)
        if new_mlm_head and not lacking:
            raise ValueError(f"{name} has a masked-LM head: leave out --new_mlm_head, which would make a random one.")
        if lacking and not new_mlm_head:
            encoder = None
    elif new_mlm_head:
        kind = model_type or config.model_type
        raise ValueError(f"transformers has no masked-LM head for a {kind}: leave out --new_mlm_head.")
    elif config.is_encoder_decoder:
        raise ValueError(f"{name} is a {config.model_type}, an encoder with a decoder: choose an encoder alone.")
    # Load the encoder alone, or the pooler beside it
    has_head, pooler = encoder is not None, {}
    has_split_pooler = kwargs.get("variant") == HEAD_VARIANT or any("pooler." in key for key in unused)
    if encoder is None or (has_pooler(config) and has_split_pooler):
        base, missing, unused_by_base = _load(AutoModel, name, args, kwargs | {"variant": None})
        poolers = {key for key in missing if "pooler." in key}
        _refuse_random_weights(name, missing - poolers)
        state = base.state_dict()
        for key in poolers:
            state[key].zero_()  # shares the memory of the weights: nothing random is kept
        if encoder is None:
            encoder, unused = base, unused_by_base
        else:
            pooler = {key: value.float() for key, value in state.items() if "pooler." in key}
    # Settle the dtype, and build a new encoder on this one where one is asked for
    dtype = str(config.dtype if config.dtype is not None else encoder.dtype).removeprefix("torch.")
    if kwargs["dtype"] == "auto":
        encoder.float()
    if _is_inner(config, model_type):
        encoder = FAMILIES[str(model_type)].build_on(encoder, config_overrides or {})
    _say_what_is_left_out(name, unused)
    _load_dense(encoder.base_model, name, getattr(of_start, "docsplit", None) or {}, hub_arguments(kwargs))
    return Start(encoder, has_head, dtype, pooler)


def settle(start: Start, name: str | Path, config: PreTrainedConfig, settings: Settings) -> Settings:
    """Return the given settings, adapted to what this start can do; log what becomes of the start's settings.

    Args:
        config: what `read_config` gave; its settings become those of the start's encoder.
        settings: the given ones.

    Raises:
        ValueError: if nothing is left to train without a masked-LM head.
    """
    of_start = getattr(config, "docsplit", None) or {}
    start.encoder.config.docsplit = dict(of_start)
    if KEPT in of_start and "objective" not in of_start:  # the files of others, and no settings of this project
        describe_start(name, of_start, start.dtype)
    warn_of_overrides(name, of_start, settings)
    if start.dtype != "float32":
        start.encoder.config.docsplit[RELEASED_DTYPE] = of_start.get(RELEASED_DTYPE, start.dtype)
    if start.has_head:
        return settings
    could_have_head, kind = _is_masked_lm(start.encoder.config), start.encoder.config.model_type
    fault = f"{name} has no masked-LM head" if could_have_head else f"A {kind} has no masked-LM head"
    remedy = NEW_HEAD if could_have_head else ""
    wanted = settings.get("mlm_weight", of_start.get("mlm_weight"))
    weight = DEFAULT_SETTINGS["mlm_weight"] if wanted is None else wanted
    if not settings.get("contrastive_weight", of_start.get("contrastive_weight", 1)):
        raise ValueError(f"{fault}, and contrastive_weight is 0: nothing is left to train.{remedy}")
    if weight:
        logger.log(
            logging.INFO if wanted is None else logging.WARNING,
            f"{fault}: mlm_weight is 0{'' if wanted is None else f' in place of {wanted}'}, and the encoder alone is "
            f"trained and kept.{remedy}",
        )
    return settings | {"mlm_weight": 0.0}


def _read_native_config(name: Any, kwargs: Mapping[str, Any]) -> PreTrainedConfig:
    trust = {"trust_remote_code": kwargs["trust_remote_code"]} if "trust_remote_code" in kwargs else {}
    return kwargs.get("config") or pretrained.read_config(name, **hub_arguments(kwargs), **trust)


def _is_inner(config: PreTrainedConfig, model_type: str | None) -> bool:
    """Whether a start becomes the inner encoder of a new one of this type."""
    return model_type is not None and model_type != config.model_type


def _is_masked_lm(config: PreTrainedConfig) -> bool:
    """Whether transformers, or the checkpoint's own code, has a masked language model of this architecture."""
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING or "AutoModelForMaskedLM" in (
        getattr(config, "auto_map", None) or {}
    )


def _load(auto_class: Any, name: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, set[str], set[str]]:
    """Return a model, the names of weights that the checkpoint lacks, and of those that the model has no place for."""
    with _without_load_reports():
        model, info = pretrained.load_model(auto_class, name, *args, output_loading_info=True, **kwargs)
    return model, set(info["missing_keys"]), set(info["unexpected_keys"])


def _prefix_of_base(encoder: Any) -> str | None:
    """Return what the names of the base model's weights begin with; None for a model that is its own base."""
    return next(
        (f"{name}." for name, module in encoder.named_modules() if name and module is encoder.base_model), None
    )


def _load_dense(base_model: Any, name: Any, settings: Settings, hub: Mapping[str, Any]) -> None:
    """Give a base model the Dense layers of its start, if there are any."""
    if dense_configs(settings):
        add_dense(base_model, settings)
        with pretrained.loading(name):
            load_dense(base_model, name, dense_paths(name, hub), hub)


def _say_what_is_left_out(name: Any, unused: set[str]) -> None:
    if left_out := sorted(key for key in unused if not _is_expected(key)):
        logger.info(
            f"{name}: the encoder leaves out {len(left_out)} weights that it has no place for: {left_out[:3]}."
        )


def _is_expected(key: str) -> bool:
    """Whether a checkpoint may have a weight that its encoder has no place for."""
    return "pooler." in key or key.endswith("position_ids") or DENSE_WEIGHTS.search(key) is not None


def _refuse_random_weights(name: Any, missing: set[str]) -> None:
    if missing:
        raise ValueError(
            f"{str(name)!r} lacks {len(missing)} weights of its own architecture, such as {sorted(missing)[:3]}: they "
            "would be random. Is it the checkpoint of another model?"
        )


def _has_head(name: Any, kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a head lies beside the weights, and those that it belongs to: others may have been saved there."""
    if not _has_file(name, HEAD_INDEX, kwargs):
        return False
    index = pretrained.read_file(name, HEAD_INDEX, hub_arguments(kwargs))
    if all(_has_file(name, file, kwargs) for file in set(index.get("weight_map", {}).values())):
        return True
    logger.warning(f"{name} has other weights than its masked-LM head belongs to: the head is left out.")
    return False


def _has_file(name: Any, path: str, kwargs: Mapping[str, Any]) -> bool:
    try:
        file = cached_file(str(name), path, _raise_exceptions_for_missing_entries=False, **hub_arguments(kwargs))
        return file is not None
    except OSError:  # no connection, and not in the cache
        return False


@contextlib.contextmanager
def _without_load_reports() -> Iterator[None]:
    """Hide transformers' reports of missing and unused weights, which are read here and logged where they matter."""

    def is_no_report(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        return "LOAD REPORT" not in text and "checkpoint seem corrupted" not in text

    logs = logging.getLogger("transformers.modeling_utils")
    logs.addFilter(is_no_report)
    try:
        yield
    finally:
        logs.removeFilter(is_no_report)
