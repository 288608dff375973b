"""The start of a training: a name to an encoder and its masked-LM head, and the settings that only this project has.

The encoder is a SentenceTransformer (`docsplit.modeling.loading`): what decides its embeddings (pooling, length,
prompts, Dense layers, `Normalize`, similarity) comes in with it, is trained, and goes out again. The head is that of
the checkpoint, and shares the encoder. Where the checkpoint has none, transformers would make a random one, so there
is none. Weights are float32 in training, whatever they are on the disk.

config.json has the other settings under the key "docsplit": the names of `DEFAULT_SETTINGS`, and the options of the
objective; where a script trained it, the views that it learnt from (`VIEW_SETTINGS`); and where the start was not in
float32 `RELEASED_DTYPE`.
"""

import contextlib
import copy
import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

import torch
from safetensors import safe_open
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sentence_transformers.util import is_sentence_transformer_model
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from docsplit.modeling.checked_files import (
    HEAD_FILE,
    HEAD_INDEX,
    LENGTH,
    NO_CODE,
    as_cannot_load,
    find_file,
    has_pooler,
    hub_arguments,
    max_positions,
    read_config,
    read_file,
    read_modules,
)
from docsplit.modeling.encoding import finish
from docsplit.modeling.families.table import FAMILIES, family_of
from docsplit.modeling.loading import (
    SentenceTransformer,
    default_pooling,
    encoder_around,
    has_routes,
    is_graph_encoder,
    load_encoder,
    pooling_of,
    prompts_of,
    refuse_vectors_of_padding,
    replace_pooling,
    without_load_reports,
    without_words,
    words_of,
)
from docsplit.modeling.objectives.table import OBJECTIVES, objectives_with, option_names
from docsplit.modeling.pooling import PoolingMode
from docsplit.runtime.files import checked
from docsplit.runtime.plugins import PLUGINS

logger = logging.getLogger(__name__)

# --- The settings ---

RELEASED_DTYPE = "released_dtype"  # in which `AutoModel` loads the checkpoint, where that is not float32
# The view of `docsplit.data.views` that was trained on, and about how many words its passages have, if it has any: for
# those who go on. A model that makes no views does not know them.
VIEW_SETTINGS: dict[str, type] = {"view": str, "passage_words": int}

# Those of `DEFAULT_SETTINGS`, of the objective and of the views, by name: "docsplit" in config.json.
Settings = dict[str, Any]

DEFAULT_SETTINGS: Settings = {"objective": "info_nce", "contrastive_weight": 1.0, "mlm_weight": 0.1}


def setting_names() -> list[str]:
    """Return all names that a checkpoint's settings may have, whatever its objective, in the order of the tables."""
    return list(dict.fromkeys(chain(DEFAULT_SETTINGS, VIEW_SETTINGS, *map(option_names, OBJECTIVES))))


def current_settings(saved: Settings) -> Settings:
    """Return the settings of a checkpoint; options of its objective that it does not name have their defaults."""
    objective = (DEFAULT_SETTINGS | saved)["objective"]
    defaults = vars(OBJECTIVES[objective].Options()) if "objective" in saved and objective in OBJECTIVES else {}
    return defaults | settings_for(objective, saved)


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
    types |= {RELEASED_DTYPE: str, PLUGINS: dict} | VIEW_SETTINGS | get_type_hints(OBJECTIVES[objective].Options)
    for name, value in current_settings(saved).items():
        if value is not None and name in types:
            checked(value, types[name], f"{where}: {name}")


def settings_for(objective: str, settings: Settings) -> Settings:
    """Return the settings with this objective, without the options of others."""
    of_others = {name for name in settings if objectives_with(name) and objective not in objectives_with(name)}
    return {name: value for name, value in settings.items() if name not in of_others} | {"objective": objective}


def default_settings(config: PreTrainedConfig) -> Settings:
    """Return `DEFAULT_SETTINGS`, updated by those of the encoder's family."""
    own = family_of(config).default_settings
    return {name: own.get(name, value) for name, value in DEFAULT_SETTINGS.items()}


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
    known = {*DEFAULT_SETTINGS, *option_names(objective), *VIEW_SETTINGS, RELEASED_DTYPE, PLUGINS}
    for name in (name for name in settings if name not in known):
        if having := objectives_with(name):
            raise ValueError(f"{name} is an option of objective {' and '.join(having)}, not of {objective}.")
        raise ValueError(f"There is no setting {name!r}, expected some of {sorted(setting_names())}.")
    # Let the objective read its options, and check them
    given = {name: settings[name] for name in option_names(objective) if name in settings}
    settings |= vars(OBJECTIVES[objective].Options(**given))
    family_of(config).check_settings(settings)
    for name in ("contrastive_weight", "mlm_weight"):
        if settings[name] < 0:
            raise ValueError(f"{name} is {settings[name]}, expected 0 (none) or more.")
    OBJECTIVES[objective].check(settings)
    if settings["contrastive_weight"] == settings["mlm_weight"] == 0:
        raise ValueError("contrastive_weight and mlm_weight are both 0: nothing is left to train.")
    return settings


def checked_length(config: PreTrainedConfig, max_seq_length: int | None) -> int:
    """Return how many tokens of a text an encoder is to read.

    Args:
        max_seq_length: None: 512, or of a graph's passages 256, and no more than there are positions for.

    Raises:
        ValueError: for none, or more than it has positions for.
    """
    positions = max_positions(config)
    if max_seq_length is not None and max_seq_length < 1:
        raise ValueError(f"max_seq_length is {max_seq_length}, expected 1 token or more.")
    if max_seq_length is None:
        return min(family_of(config).default_settings.get("max_seq_length", LENGTH), positions or LENGTH)
    if positions is not None and max_seq_length > positions:
        raise ValueError(
            f"max_seq_length is {max_seq_length}, but this encoder has positions for {positions} tokens: set "
            f"max_seq_length={positions} or less, or choose a long-document encoder."
        )
    return max_seq_length


def refuse_without_dropout(model: Any) -> None:
    """Refuse two views that are one text and get one vector: there would be nothing to learn (SimCSE, section 3).

    Args:
        model: a `DocSplitForContrastivePretraining`.

    Raises:
        ValueError: naming the encoder's settings of dropout, and another view.
    """
    config, is_packed = model.body[0].config, model.packing is not None and model.device.type == "cuda"
    settings = vars(config) | vars(family_of(config).token_encoder(config))
    # Without those of heads, of whole layers, which both views pass or skip, and of attention in CUDA's packs
    left_out = f"classif|pooler|summary|qa_|layerdrop{'|^att' if is_packed else ''}"
    shares = {key: value for key, value in settings.items() if "drop" in key and not re.search(left_out, key)}
    if not any(isinstance(value, float) and value > 0 for value in shares.values()):
        said = " and ".join(f"{key} {value}" for key, value in shares.items()) or "no such setting"
        given = f" (of a random start --config_overrides {next(iter(shares))}=0.1)" if shares else ""
        raise ValueError(
            f"Both views of a document are the same text, and this {config.model_type} has no dropout to tell them "
            f"apart ({said}{'; packed sequences have none of attention weights' if is_packed else ''}): choose "
            f"another view, such as docsplit, or an encoder with dropout{given}."
        )


# --- A name to a start ---

ENCODER_DIGEST = "encoder"  # in the metadata of its index: the `digest_of_encoder` that it belongs to
_PASSAGE_POOLING = (
    "A graph document model pools passages by --config_overrides passage_pooling=cls or =mean: leave out --pooling "
    "(in Python pooling)."
)


@dataclass
class Start:
    """An encoder to train, the head that shares it if there is one, and the settings to train it with."""

    body: Any  # a SentenceTransformer
    masked_lm: PreTrainedModel | None
    settings: Settings = field(default_factory=dict)


def load_start(
    name: str | Path,
    settings: Settings,
    pooling: PoolingMode | None = None,
    max_seq_length: int | None = None,
    new_mlm_head: bool = False,
    model_type: str | None = None,
    config_overrides: Mapping[str, Any] | None = None,
    **options: Any,
) -> Start:
    """Load an encoder, and the masked-LM head that its checkpoint has.

    Args:
        name: a folder, or a name on the Hub.
        settings: those that are given, which override the checkpoint's.
        pooling, max_seq_length: in place of the encoder's own, which is logged.
        new_mlm_head: make a random head where the checkpoint has none.
        model_type: of a family that is built on other encoders (`Family.built_on`); the start is of it, or becomes the
            inner encoder of a new one.
        config_overrides: `Family.config_options` of that family.
        options: as `load_encoder` takes them.

    Raises:
        ValueError: if there is no such encoder, it cannot be trained here, naming why, or a new head is asked for
            where there is one.
    """
    of_config = {key: value for key, value in options.items() if key != "attn_implementation"}
    changed: dict[str, Any] = {"dtype": torch.float32}
    if model_type is not None and (config := read_config(name, **of_config)).model_type == model_type:
        FAMILIES[model_type].override(name, config, config_overrides or {})
        changed["config"] = config
    body: Any = load_encoder(str(name), device="cpu", **options | changed)
    if (words := words_of(body)) is not None:
        logger.info(
            f"{name} is an encoder with words of {len(words.pieces):,} tokens: the start is the encoder inside, and "
            "its words are left out."
        )
        body = without_words(body)
    _refuse_what_cannot_be_trained(body, name)
    if model_type is not None and model_type != body[0].config.model_type:
        new = _build_on(body, name, model_type, config_overrides or {}, max_seq_length)
        return Start(new, None, _without_head(name, new[0].config, settings, {}))
    modules = read_modules(name, hub_arguments(options))
    if modules and (path := modules[0]["path"]):  # as the first versions of sentence-transformers wrote them
        of_config, options = of_config | {"subfolder": path}, options | {"subfolder": path}
    config = changed.get("config") or read_config(name, **of_config)
    if config.is_encoder_decoder:
        raise ValueError(f"{name} is a {config.model_type}, an encoder with a decoder: choose an encoder alone.")
    saved, dtype = getattr(config, "docsplit", None) or {}, str(config.dtype or "float32").removeprefix("torch.")
    check_types(saved, f"{name}: config.json")
    if "objective" not in saved:
        _describe(body, name, dtype)
    if pooling not in (None, pooling_of(body)):
        if is_graph_encoder(body):
            raise ValueError(_PASSAGE_POOLING)
        brought = replace_pooling(body, pooling)
        refuse_vectors_of_padding(body, name)
        if is_sentence_transformer_model(str(name)):
            logger.warning(f"pooling {pooling} takes the place of {name}'s own, {brought}.")
    if max_seq_length is not None:
        if max_seq_length != body.max_seq_length:
            logger.warning(f"max_seq_length {max_seq_length} takes the place of {name}'s own, {body.max_seq_length}.")
        body.max_seq_length = checked_length(config, max_seq_length)
    if body.max_seq_length is None or body.max_seq_length >= 2**31:
        body.max_seq_length = LENGTH
    if (family := family_of(config)).rows == "views" and family.module:  # it was of others, and trained without it
        body[0].__class__ = family.module_class()
    if dtype != "float32":
        saved = saved | {RELEASED_DTYPE: saved.get(RELEASED_DTYPE, dtype)}
    body[0].config.docsplit = saved
    masked_lm = _load_head(name, config, body, new_mlm_head, options)
    if masked_lm is None:
        settings = _without_head(name, config, settings, saved)
    elif new_mlm_head and settings.get("mlm_weight", saved.get("mlm_weight")) == 0:
        raise ValueError("--new_mlm_head makes a head that mlm_weight 0 never trains: give --mlm_weight, or none.")
    return Start(body, masked_lm, settings)


def _without_head(name: Any, config: PreTrainedConfig, settings: Settings, saved: Settings) -> Settings:
    """Return the given settings without a masked-LM loss, and log that.

    Raises:
        ValueError: if nothing is left to train.
    """
    could_have_head = is_masked_lm(config)
    fault = f"{name} has no masked-LM head" if could_have_head else f"A {config.model_type} has no masked-LM head"
    remedy = " --new_mlm_head makes one." if could_have_head else ""
    wanted = settings.get("mlm_weight", saved.get("mlm_weight"))
    if not settings.get("contrastive_weight", saved.get("contrastive_weight", 1)):
        raise ValueError(f"{fault}, and contrastive_weight is 0: nothing is left to train.{remedy}")
    if wanted != 0:
        logger.log(
            logging.INFO if wanted is None else logging.WARNING,
            f"{fault}: mlm_weight is 0{'' if wanted is None else f' in place of {wanted}'}.{remedy}",
        )
    return settings | {"mlm_weight": 0.0}


def _build_on(
    body: SentenceTransformer, name: Any, model_type: str, overrides: Mapping[str, Any], max_seq_length: int | None
) -> Any:
    """Make a new encoder of passages whose inner one is that of a start; nothing but its weights counts."""
    if any(hasattr(module, "linear") for module in body):
        logger.info(f"{name}: its Dense layers are left out, for its transformer alone reads passages.")
    encoder = FAMILIES[model_type].build_on(body[0].model, overrides)
    return encoder_around(encoder, body.tokenizer, None, checked_length(encoder.config, max_seq_length))


def _refuse_what_cannot_be_trained(body: Any, name: Any) -> None:
    """Refuse encoders that do more than pool the states of one transformer and change the pooled vectors."""
    if is_graph_encoder(body):
        return
    first, *others = body
    if type(first).__name__ == "StaticEmbedding":
        raise ValueError(
            f"{name} is a static encoder, a table of token vectors, in which there is nothing to train: start from "
            "the encoder that it was made of."
        )
    names = [type(module).__name__ for module in body]
    pools = isinstance(first, Transformer) and others and isinstance(others[0], Pooling)
    if not pools or has_routes(body):
        raise ValueError(
            f"{name} has the modules {' and '.join(names)}, expected Transformer, Pooling and what changes pooled "
            "vectors: nothing else can be trained and kept. To start from its transformer alone, save that with its "
            "tokenizer (SentenceTransformer(NAME)[0].save(FOLDER)), and give FOLDER with --pooling."
        )
    try:
        finish(body, torch.zeros(2, others[0].get_embedding_dimension()))
    except (KeyError, RuntimeError) as error:
        raise ValueError(
            f"{name} has after its pooling {' and '.join(names[2:])}, which change something else than its "
            f"embeddings, or vectors of another width: choose another start. The cause: {error}"
        ) from error
    if not others[0].include_prompt and (prompt := prompts_of(body)[0]):
        raise ValueError(
            f"{name} leaves its prompt {prompt!r} out of the pooling (include_prompt: false), which cannot be trained "
            "here: set include_prompt to true in a copy of its 1_Pooling/config.json, or choose another start."
        )


def _describe(body: Any, name: Any, dtype: str) -> None:
    """Log in one line what a start brings, and in another what training does otherwise."""
    similarity = str(body.similarity_fn_name)
    prompts = {key: value for key, value in body.prompts.items() if value}
    modules = " and ".join(type(module).__name__ for module in list(body)[1:])
    logger.info(
        f"{name}: {modules or 'passages'}, {pooling_of(body)}, similarity {similarity}, "
        f"{f'prompts {prompts} (of documents: {prompts_of(body)[0]!r}), ' if prompts else ''}{dtype}. Each checkpoint "
        "is such a SentenceTransformer."
    )
    is_unit = type(body[-1]).__name__ == "Normalize"
    if similarity != "cosine" and not (similarity == "dot" and is_unit):
        logger.warning(
            f"{name} is made for {similarity} similarity, and so are the checkpoints; training compares by the "
            "objective's --similarity, which is cosine unless it is given."
        )


def is_masked_lm(config: PreTrainedConfig) -> bool:
    """Whether transformers has a masked language model of this architecture."""
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING


def _load_head(
    name: Any, config: PreTrainedConfig, body: Any, new_mlm_head: bool, options: Mapping[str, Any]
) -> PreTrainedModel | None:
    """Load the masked language model of a checkpoint around its encoder; None where it has no head."""
    if not is_masked_lm(config):
        if new_mlm_head:
            raise ValueError(
                f"transformers has no masked-LM head for a {config.model_type}: leave out --new_mlm_head."
            )
        return None
    if getattr(config, "docsplit", None) is not None and _has_head(name, hub_arguments(options)):
        options = {"variant": "mlm"} | dict(options)
    with as_cannot_load(name), without_load_reports():
        masked_lm, info = AutoModelForMaskedLM.from_pretrained(
            name, output_loading_info=True, **NO_CODE | dict(options) | {"dtype": torch.float32}
        )
    prefixes = tuple(
        f"{path}." for path, module in masked_lm.named_modules() if path and module is masked_lm.base_model
    )
    has_head = all(key.startswith(prefixes) for key in info["missing_keys"])
    if new_mlm_head and has_head:
        raise ValueError(f"{name} has a masked-LM head: leave out --new_mlm_head, which would make a random one.")
    return share_encoder(masked_lm, body[0].model) if has_head or new_mlm_head else None


def share_encoder(masked_lm: Any, encoder: Any) -> Any:
    """Let a masked language model compute with this encoder, and tie its weights again."""
    setattr(masked_lm, masked_lm.base_model_prefix, encoder)
    masked_lm.config = encoder.config
    masked_lm.tie_weights()
    return masked_lm


def digest_of_encoder(files: Sequence[Path]) -> str:
    """Hash the biases and scales of an encoder's weights, which any training changes, for the head beside them."""
    digest = hashlib.blake2b(digest_size=12)
    for file in files:
        with safe_open(file, "pt") as weights:
            for key in weights.keys():  # noqa: SIM118
                if len(weights.get_slice(key).get_shape()) == 1:
                    digest.update(weights.get_tensor(key).contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _has_head(name: Any, hub: Mapping[str, Any]) -> bool:
    """Tell whether a head lies beside the weights, and those that it belongs to: others may have been saved there."""

    def is_there(path: str) -> bool:
        with contextlib.suppress(OSError):  # no connection, and not in the cache
            return find_file(name, path, hub) is not None
        return False

    if not is_there(HEAD_INDEX):
        return False
    index = read_file(name, HEAD_INDEX, hub)
    files = set(index.get("weight_map", {}).values())
    if all(map(is_there, files)):
        others = [Path(str(find_file(name, file, hub))) for file in sorted(files - {HEAD_FILE})]
        if index.get("metadata", {}).get(ENCODER_DIGEST) == digest_of_encoder(others):
            return True
    logger.warning(f"{name} has other weights than its masked-LM head belongs to: the head is left out.")
    return False


def _set_to_zero(module: torch.nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        torch.nn.init.zeros_(parameter)


def new_start(
    config: PreTrainedConfig, tokenizer: Any, pooling: str | None = None, max_seq_length: int | None = None
) -> Start:
    """Make a random encoder, with a masked-LM head where its architecture has one.

    Raises:
        ValueError: for a length that it has no positions for, or a pooling of a graph document model.
    """
    family, length = family_of(config), checked_length(config, max_seq_length)
    model: Any = family.new_encoder(copy.deepcopy(config))  # settings are written into it
    if family.rows == "passages":
        if pooling is not None:
            raise ValueError(_PASSAGE_POOLING)
        return Start(encoder_around(model, tokenizer, None, length), None)
    return start_around(model, tokenizer, pooling, length)


def start_around(model: Any, tokenizer: Any, pooling: str | None, max_seq_length: int) -> Start:
    """Make a start of a masked language model, or an encoder without that head, that is in memory."""
    encoder = model.base_model
    if has_pooler(encoder.config) and encoder.pooler is None:  # `AutoModel` may look for one
        with torch.device("meta"):
            pooler: Any = AutoModel.from_config(encoder.config).pooler
        encoder.pooler = pooler and pooler.to_empty(device=encoder.device).apply(_set_to_zero)
    pooling = pooling or default_pooling(encoder.config)
    body = encoder_around(encoder, tokenizer, pooling, max_seq_length)
    family_of(encoder.config).patch_forward(encoder)
    refuse_vectors_of_padding(body, "The start")
    return Start(body, None if model is encoder else model)
