"""What comes in: each configuration, model and tokenizer that a name or a folder stands for, and a training's start.

Nothing in a folder is trusted. Its code is never run, and nothing asks on the terminal whether to run it. The files
that say what is to be loaded are checked first: `check_files`. Whatever a library makes of damaged ones, a TypeError
or a panic, becomes one line: `loading`.

A training starts from any checkpoint of transformers, sentence-transformers or this project (`read_start`,
`load_start`, `settle`). A masked language model is loaded with its head. Where the checkpoint has none, transformers
would make a random one; then the encoder alone is loaded, as the class that `AutoModel` gives. Weights are float32 in
training, whatever they are on the disk.

A start that is a SentenceTransformer is more than its weights: pooling, length, prompts, Dense layers, `Normalize` and
similarity decide its embeddings. They are read as plain JSON (nothing here needs that library), used in training and
probes, and written again, so that the result is a drop-in replacement. Pooling and length are settings like any other;
what has no name of its own there is kept as `KEPT`, a part of the settings that only such starts have.

config.json has the settings under the key "docsplit": the names of `DEFAULT_SETTINGS`, and the options of the
objective; where a script trained it, the views that it learnt from (`OF_VIEWS`); where the start was a
SentenceTransformer also `KEPT`, and where it was not in float32 `RELEASED_DTYPE`.
"""

import contextlib
import inspect
import logging
import pickle
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING, MODEL_MAPPING
from transformers.utils import cached_file

from docsplit.modeling.families.table import FAMILIES, family_of
from docsplit.modeling.objectives.table import OBJECTIVES, objectives_with, option_names
from docsplit.modeling.pooling import Pooling
from docsplit.modeling.vectors import (
    DENSE,
    DENSE_WEIGHTS,
    KEPT,
    LAYERS,
    activation_named,
    add_dense,
    dense_configs,
    describe_dense,
    normalizes,
)
from docsplit.runtime.files import Damaged, JsonObject, checked, read_any_json, read_json, refuse_missing_path
from docsplit.runtime.plugins import PLUGINS

logger = logging.getLogger(__name__)

NO_CODE: Any = {"trust_remote_code": False}  # None would ask on the terminal
ENCODER, TOKENIZER = "an encoder", "a tokenizer"
EXPECTED = "a folder with an encoder, or a model of the Hub (USER/NAME)"
OF_THE_HUB = ("revision", "token", "cache_dir", "local_files_only", "force_download", "subfolder", "proxies")

MODULES, MODEL_FILE = "modules.json", "config_sentence_transformers.json"
TRANSFORMER_FILES = (  # the first, and those of the first versions of sentence-transformers
    "sentence_bert_config.json",
    *(f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta")),
)
# The first and the last module of an encoder with words, and in which file the first says what it wraps.
WORDS_MODULES = ("encoder_with_words.EncoderWithWords", "encoder_with_words.AddWords")
WORDS_CONFIG, WORDS_TABLE = "words/config.json", "words/words.safetensors"
HEAD_FILE = "mlm_head.safetensors"
HEAD_INDEX = "model.safetensors.index.mlm.json"  # transformers' name for the index of that variant

# What a folder may ask of `from_pretrained`; others choose how pickles are read, or bring kernels from the Hub.
MODEL_OPTIONS = ("model_kwargs", "model_args")  # its name, and that of before
HARMLESS_MODEL_OPTIONS = {"add_pooling_layer", "dtype", "torch_dtype", "attn_implementation"}
SHORT = 300  # letters of a cause


# --- Loading, with one line for whatever goes wrong ---


class CannotLoad(ValueError):
    """What a name or a folder stands for cannot be loaded. The message is one line."""


@contextlib.contextmanager
def loading(name: Any, what: str = ENCODER, file: str = "", keeps: type[ValueError] | None = None) -> Iterator[None]:
    """Turn whatever goes wrong while this is loaded into one line, with the first damaged file of a folder.

    Args:
        file: that is read.
        keeps: errors that stay as they are, for this project raises them.

    Raises:
        CannotLoad: naming folder, cause and remedy.
    """
    try:
        yield
    except CannotLoad:
        raise
    except BaseException as error:
        # Libraries raise anything at all for damaged files; tokenizers panics in Rust, which is no `Exception`
        is_known = keeps is not None and isinstance(error, keeps)
        if is_known or not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        remedy = ""
        if not any((Path(str(name)) / known).exists() for known in ("config.json", MODULES)):
            files = "tokenizer.json" if what == TOKENIZER else "config.json, weights and tokenizer"
            remedy = f": name a model of the Hub (and be connected to it), or a folder with {files}"
        causes = "; ".join(filter(None, (f"{f'{file}: ' if file else ''}{_cause(error)}", _damaged_file(name))))
        raise CannotLoad(f"{str(name)!r} cannot be loaded as {what}{remedy}. The cause: {causes}") from error


def _cause(error: BaseException) -> str:
    """Return what an error says, in one line and with its kind where that says more."""
    if isinstance(error, pickle.UnpicklingError):
        return "its weights are a pickle that is damaged or holds code, which is not run: convert them to safetensors"
    text = " ".join(str(error).split())
    if "ignore_mismatched_sizes" in text:  # transformers logs which
        return "its weights have other shapes than its config.json says"
    text = text if len(text) <= SHORT else f"{text[:SHORT]} ..."
    return text if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {text}"


def _damaged_file(name: Any) -> str | None:
    """Name the first file of a folder that cannot be read; None without any, and for names on the Hub."""
    objects = {"config.json", "tokenizer.json", "tokenizer_config.json"}
    for pattern in ("*.json", "*/*.json", "*.safetensors", "*/*.safetensors"):
        for path in sorted(Path(str(name)).glob(pattern)):
            try:
                if path.suffix == ".json":
                    (read_json if path.name in objects else read_any_json)(path)
                else:
                    safe_open(path, "pt").__exit__(None, None, None)
            except Damaged as error:
                return str(error).removesuffix(".")
            except (SafetensorError, OSError, ValueError) as error:
                return f"{path} is damaged: {' '.join(str(error).split())[:SHORT]}"
    return None


def read_config(name: Any, **kwargs: Any) -> Any:
    """Read the configuration of a model, after `check_files`.

    Args:
        kwargs: those of `from_pretrained`; without `trust_remote_code` code of others is refused.

    Raises:
        ValueError: in one line, if there is none.
    """
    refuse_missing_path(name, EXPECTED)
    check_files(name, hub_arguments(kwargs), trusts=bool(kwargs.get("trust_remote_code")))
    with loading(name, file="config.json"):
        return AutoConfig.from_pretrained(name, **NO_CODE | kwargs)


def load_model(auto_class: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
    """Load the weights of a model by a class such as `AutoModel`, with the same keywords as `from_pretrained`.

    Raises:
        ValueError: in one line, if it cannot be loaded.
    """
    with loading(name):
        return auto_class.from_pretrained(name, *args, **NO_CODE | kwargs)


def load_tokenizer(name: Any, **kwargs: Any) -> Any:
    """Load a tokenizer.

    Raises:
        ValueError: in one line, if there is none.
    """
    refuse_missing_path(name, "a folder with a tokenizer, or a model of the Hub (USER/NAME)")
    with loading(name, TOKENIZER):
        tokenizer = AutoTokenizer.from_pretrained(name, **NO_CODE | kwargs)
    pad_on_the_right(tokenizer, name)
    return tokenizer


def pad_on_the_right(tokenizer: Any, name: Any) -> None:
    """Let a tokenizer pad on the right: padding on the left would shift positions, so that vectors depend on batches.

    Decoders give the same vectors either way: pooling by the last token finds it by the mask.
    """
    if getattr(tokenizer, "padding_side", "right") != "right":
        tokenizer.padding_side = "right"
        logger.info(f"The tokenizer of {name} pads on the left: it pads on the right here, and in what is written.")


def hub_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the arguments of `OF_THE_HUB` that are given."""
    return {key: kwargs[key] for key in OF_THE_HUB if kwargs.get(key) is not None}


def find_file(name: Any, path: str, hub: Mapping[str, Any]) -> str | None:
    """Return where a file of a folder or of a repository is; None without it."""
    return cached_file(str(name), path, _raise_exceptions_for_missing_entries=False, **hub)


def read_file(name: Any, path: str, hub: Mapping[str, Any]) -> Any:
    """Read a JSON file of a folder or of a repository, the list of modules.json or an object; None without it.

    Raises:
        CannotLoad: if it is damaged.
        OSError: if there is no connection, and the cache does not know it.
    """
    file = find_file(name, path, hub)
    if file is None:
        return None
    try:
        return read_any_json(Path(file)) or [] if path == MODULES else read_json(Path(file))
    except Damaged as error:
        raise CannotLoad(str(error)) from error


def read_modules(name: Any, hub: Mapping[str, Any]) -> list[JsonObject] | None:
    """Read the modules of a SentenceTransformer: type and path of each; None where there is no modules.json.

    Raises:
        CannotLoad: if the file says something else.
        OSError: as `read_file`.
    """
    modules: Any = read_file(name, MODULES, hub)
    if modules is None:
        return None
    if not modules or not isinstance(modules, list):
        raise CannotLoad(f"{name}: {MODULES} names no modules in a list.")
    for module in modules:
        if not isinstance(module, dict) or not all(isinstance(module.get(key), str) for key in ("type", "path")):
            raise CannotLoad(
                f"{name}: {MODULES} has the module {str(module)[:SHORT]}, expected type and path as text."
            )
        if ".." in Path(module["path"]).parts or Path(module["path"]).is_absolute():
            raise CannotLoad(f"{name}: {MODULES} names {module['path']!r}, which is not in its folder.")
    return modules


# --- Checks before anything is loaded ---


def check_files(name: Any, hub: Mapping[str, Any], trusts: bool = False) -> None:
    """Check the files that say what is to be loaded; files that are not there are left to the loader.

    Args:
        trusts: the caller lets code of the folder run.

    Raises:
        CannotLoad: naming the file, if one is damaged, would run code, or states sizes that nobody has.
    """

    def read(path: str) -> Any:
        with contextlib.suppress(OSError):  # no connection: the loader says so
            return read_file(name, path, hub)
        return None

    config = read("config.json")
    if config is not None:
        _refuse_sizes(name, "config.json", config)
        kind = config.get("model_type")
        if config.get("auto_map") and not trusts:
            if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
                problem = f"config.json has the model type {kind!r}, which only code of the folder knows (auto_map)"
                raise CannotLoad(f"{name}: {problem}: its own code is not run. Choose an encoder of transformers.")
            if kind != "graph_document":
                logger.warning(
                    f"{name} brings code (auto_map), which is not run: it is loaded as transformers' {kind}."
                )
        settings = config.get("docsplit")
        if not isinstance(settings, dict | None):
            raise CannotLoad(f"{name}: config.json: docsplit is {str(settings)[:SHORT]}, expected an object.")
        _check_settings(name, settings or {})
    if (adapter := read("adapter_config.json")) is not None:  # transformers would load the encoder from elsewhere
        auto_class = "AutoPeftModel" if adapter.get("auto_mapping") else "AutoPeftModelForFeatureExtraction"
        raise CannotLoad(
            f"{name} is a PEFT adapter (adapter_config.json), changes of an encoder that lies elsewhere. Merge them: "
            f"`python -c \"import peft; peft.{auto_class}.from_pretrained('{name}').merge_and_unload()"
            ".save_pretrained('FOLDER')\"`, copy its other files (tokenizer, modules.json and so on) into FOLDER, and "
            "give FOLDER."
        )
    with contextlib.suppress(OSError):
        if (modules := read_modules(name, hub)) is not None:
            _check_sentence_transformer(name, modules, read)


def _check_sentence_transformer(name: Any, modules: list[JsonObject], read: Callable[[str], Any]) -> None:
    for module in modules:
        if module["type"].endswith(".Dense") and (dense := read(f"{module['path']}/config.json".lstrip("/"))):
            try:
                activation_named(str(dense.get("activation_function", "torch.nn.Tanh")))
            except ValueError as error:
                raise CannotLoad(f"{name}: {module['path']}/config.json: {error}.") from error
    transformer: JsonObject = next((file for file in map(read, TRANSFORMER_FILES) if file is not None), {})
    _check_options(name, transformer)
    _check_length(name, TRANSFORMER_FILES[0], transformer)
    model = read(MODEL_FILE) or {}
    prompts = model.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise CannotLoad(f"{name}: {MODEL_FILE}: prompts is {str(prompts)[:SHORT]}, expected a text for each name.")
    choices = {"default_prompt_name": [*prompts], "similarity_fn_name": ["cosine", "dot", "euclidean", "manhattan"]}
    for key, known in choices.items():
        if model.get(key) not in (None, *known):
            raise CannotLoad(f"{name}: {MODEL_FILE}: {key} is {str(model[key])[:SHORT]!r}, expected one of {known}.")


def _check_options(name: Any, transformer: Mapping[str, Any]) -> None:
    """Refuse options of loading that let code run."""
    of_code = {"code_revision", "auto_map", "weights_only", "attn_implementation", "quantization_config"}
    for part in (*MODEL_OPTIONS, "config_kwargs", "config_args", "processor_kwargs", "tokenizer_args"):
        options = transformer.get(part) or {}
        if not isinstance(options, dict):
            raise CannotLoad(f"{name}: {TRANSFORMER_FILES[0]}: {part} is {options!r}, expected an object.")
        refused = options.keys() & of_code
        if part in MODEL_OPTIONS:  # sentence-transformers leaves `trust_remote_code` out
            refused = options.keys() - HARMLESS_MODEL_OPTIONS - {"trust_remote_code"}
        refused |= {key for key in options.keys() & {"attn_implementation"} if "/" in str(options[key])}
        if refused:
            problem = f"{TRANSFORMER_FILES[0]} asks for {part} {', '.join(sorted(refused))}"
            raise CannotLoad(f"{name}: {problem}, which a folder cannot decide: take it out in a copy.")
        _refuse_sizes(name, TRANSFORMER_FILES[0], options)


def _check_settings(name: Any, settings: Mapping[str, Any]) -> None:
    """Check the settings of a checkpoint of this project as far as loading reads them."""
    _check_length(name, "config.json", settings)
    kept = settings.get(KEPT, {})
    parts = [kept]
    if isinstance(kept, dict):
        dense = kept.get(DENSE) or []
        parts += [kept.get("model") or {}, kept.get("transformer") or {}]
        parts += dense if isinstance(dense, list) else [dense]
    if not all(isinstance(part, dict) for part in parts):
        raise CannotLoad(f"{name}: config.json: {KEPT} is {str(kept)[:SHORT]}, expected objects.")
    if (pooling := settings.get("pooling")) not in (None, *get_args(Pooling)):
        raise CannotLoad(f"{name}: config.json: pooling is {str(pooling)[:SHORT]!r}, expected {get_args(Pooling)}.")


def _check_length(name: Any, file: str, content: Mapping[str, Any]) -> None:
    length = content.get("max_seq_length")
    if length is not None and (type(length) is not int or not 1 <= length < 2**31):
        raise CannotLoad(f"{name}: {file}: max_seq_length is {length!r}, expected a number of tokens.")


SIZES = {  # what makes building a model long or large, and the most that is believed
    re.compile(r"layers?$|blocks$|groups?$|group_num$"): 1_000,
    re.compile(r"experts$|heads$"): 2**14,
    re.compile(r"size$|dim$|^d_|_d$|^n_embd$|^n_positions$|max_position_embeddings$|attention_window$"): 2**24,
}


def _refuse_sizes(name: Any, file: str, values: Mapping[str, Any], depth: int = 0) -> None:
    """Refuse sizes that no model has: building it would take all memory, or for ever."""
    for key, value in values.items():
        if isinstance(value, dict) and depth < 3:
            _refuse_sizes(name, file, value, depth + 1)
        most = next((most for pattern, most in SIZES.items() if pattern.search(key)), None)
        if most is None:
            continue
        least = 0 if key == "num_hidden_layers" else -most  # a model of no layers would load without a word
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float) and not least <= number <= most:
                raise CannotLoad(f"{name}: {file}: {key} is {number:g}, expected {least:,} to {most:,}.")


# --- The settings that decide an embedding and its training ---

RELEASED_DTYPE = "released_dtype"  # in which `AutoModel` loads the checkpoint, where that is not float32
# The view of `docsplit.data.views` that was trained on, and about how many words its passages have, if it has any: for
# those who go on. A model that makes no views does not know them.
OF_VIEWS: dict[str, type] = {"view": str, "passage_words": int}

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
    """Return the settings of a checkpoint; options of its objective that it does not name have their defaults."""
    objective = (DEFAULT_SETTINGS | saved)["objective"]
    defaults = vars(OBJECTIVES[objective].Options()) if saved and objective in OBJECTIVES else {}
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
    types |= {KEPT: dict, RELEASED_DTYPE: str, PLUGINS: dict} | OF_VIEWS
    types |= get_type_hints(OBJECTIVES[objective].Options)
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
    known = {*DEFAULT_SETTINGS, *option_names(objective), *OF_VIEWS, KEPT, RELEASED_DTYPE, PLUGINS}
    for name in settings.keys() - known:
        if having := objectives_with(name):
            raise ValueError(f"{name} is an option of objective {' and '.join(having)}, not of {objective}.")
        raise ValueError(f"There is no setting {name!r}, expected some of {sorted(setting_names())}.")
    # Let the objective read its options, and the encoder bound the length
    given = {name: settings[name] for name in option_names(objective) if name in settings}
    if KEPT in settings and "similarity" in overrides:
        model = settings[KEPT]["model"] | {"similarity_fn_name": overrides["similarity"]}
        settings[KEPT] = settings[KEPT] | {"model": model}
    settings |= vars(OBJECTIVES[objective].Options(**given))
    positions = max_positions(config)
    if "max_seq_length" not in saved and "max_seq_length" not in overrides and positions is not None:  # from nothing
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
        where = f"The config of {config._name_or_path or 'the encoder'}"
        raise ValueError(f"{where} has no pad_token_id, from which a {config.model_type} counts positions: add it.")
    return positions - (config.pad_token_id + 1)


def stated_length(length: float | None, config: PreTrainedConfig) -> int:
    """Return how many tokens of a text an encoder reads by its own files, as SentenceTransformer does.

    Args:
        length: of its tokenizer, or of SentenceTransformer's files before it; None, or transformers' 1e30: any.

    Returns: no more than the encoder has positions for; the default where both say nothing.
    """
    stated = [int(bound) for bound in (length, max_positions(config)) if bound and bound < 2**31]
    return min(stated, default=default_settings(config)["max_seq_length"])


def has_pooler(config: PreTrainedConfig) -> bool:
    """Whether `AutoModel` adds a pooler unless told `add_pooling_layer=False`.

    BERT's is neither trained nor used here: its weights would be random in each process.
    """
    model_class: Any = MODEL_MAPPING.get(type(config), None)  # none of an architecture that brings its own code
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    return model_class is not None and "add_pooling_layer" in inspect.signature(model_class.__init__).parameters


# --- What the settings keep of a SentenceTransformer ---

DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # the names that `encode_document` tries


def document_prompt(prompts: Mapping[str, str | None], default_prompt_name: str | None) -> str:
    """Return the prompt before a document: that for documents or passages, else the default one, else nothing.

    An empty prompt counts as none: SentenceTransformer writes an empty `document` for models that have no such prompt.
    """
    return _first_prompt((*DOCUMENT_PROMPTS, default_prompt_name or ""), prompts)


def query_prompt(prompts: Mapping[str, str | None], default_prompt_name: str | None) -> str:
    """Return the prompt before a query: that for queries, else the default one, else nothing."""
    return _first_prompt(("query", default_prompt_name or ""), prompts)


def changed_prompts(
    prompts: Mapping[str, str | None], default_prompt_name: str | None, document: str | None, query: str | None = None
) -> tuple[dict[str, str | None], str | None]:
    """Return an encoder's prompts, and the name of the default one, with others before documents and queries.

    Args:
        document, query: None keeps what the encoder has; an empty one is no prompt.
    """
    document = document_prompt(prompts, default_prompt_name) if document is None else document
    query = query_prompt(prompts, default_prompt_name) if query is None else query
    new = {name: document if name in DOCUMENT_PROMPTS else text for name, text in prompts.items()}
    is_default_left = document and query  # else it would stand in for the empty one
    return new | {"query": query, "document": document}, default_prompt_name if is_default_left else None


def _first_prompt(names: Sequence[str], prompts: Mapping[str, str | None]) -> str:
    return next((prompt for name in names if (prompt := prompts.get(name))), "")


def prompt_of(settings: Mapping[str, Any]) -> str:
    """Return an encoder's prompt before a document, by its settings."""
    model = settings.get(KEPT, {}).get("model", {})
    return document_prompt(model.get("prompts") or {}, model.get("default_prompt_name"))


def query_prompt_of(settings: Mapping[str, Any]) -> str:
    """Return an encoder's prompt before a query, by its settings."""
    model = settings.get(KEPT, {}).get("model", {})
    return query_prompt(model.get("prompts") or {}, model.get("default_prompt_name"))


def with_prompt(settings: Mapping[str, Any], prompt: str) -> Settings:
    """Return what the settings keep as `KEPT`, with this prompt before a document; "": none."""
    kept = settings.get(KEPT) or {"normalize": False, "model": {"similarity_fn_name": similarity_of(settings)}}
    model = kept["model"]
    prompts, default = changed_prompts(model.get("prompts") or {}, model.get("default_prompt_name"), prompt)
    model = model | {"prompts": prompts, "default_prompt_name": default}
    return {"transformer": {}} | kept | {"include_prompt": True, "model": model}


def similarity_of(settings: Mapping[str, Any]) -> str:
    """Return how embeddings are to be compared: `cosine`, `dot` ..."""
    return settings.get(KEPT, {}).get("model", {}).get("similarity_fn_name") or settings.get("similarity", "cosine")


def lower_cases(name: str | Path) -> bool:
    """Whether a start's texts become lower case before they are tokenised, whatever its tokenizer does by itself."""
    return any((_read(name, path, {}) or {}).get("do_lower_case") for path in TRANSFORMER_FILES)


# --- The files of a start that is a SentenceTransformer ---


def settings_of_start(name: str | Path, config: PreTrainedConfig, given: Collection[str] = (), **hub: Any) -> Settings:
    """Read the settings of a start that is none of this project: {} for one that is.

    Those of an `AutoModel` are its length alone, those of a SentenceTransformer in its files.

    Where sentence-transformers has saved such a checkpoint again, with another length, say, its files count. Those of
    an encoder with words are read as the encoder's inside.

    Args:
        name: a folder, or a name on the Hub.
        given: names of settings that the caller overrides; the start's need not be possible here.
        hub: arguments of `OF_THE_HUB`.

    Raises:
        ValueError: if a part cannot be trained here and kept, naming it and the remedy.
    """
    modules, saved, family = _plain_modules(name, hub), getattr(config, "docsplit", None), family_of(config)
    if family.rows == "passages":
        length = (_read(name, TRANSFORMER_FILES[0], hub) or {}).get("max_seq_length")
        return {} if not saved else _changed_since(name, saved, saved | ({"max_seq_length": length} if length else {}))
    if saved and (modules is None or modules[0]["type"] == family.module):
        return {}
    of_tokenizer = (_read(name, "tokenizer_config.json", hub) or {}).get("model_max_length")
    if modules is None:
        return {"max_seq_length": stated_length(of_tokenizer, config)}
    # Read the files
    dense_folders, normalize = _check_modules(name, modules, hub)
    pooling_path = f"{modules[1]['path']}/config.json"
    pooling = _read(name, pooling_path, hub)
    if pooling is None:
        raise ValueError(f"{name}: {MODULES} names {modules[1]['path']!r}, but there is no {pooling_path}.")
    files = (_read(name, path, hub) for path in TRANSFORMER_FILES)
    transformer: JsonObject = next((file for file in files if file), {})
    model = _read(name, MODEL_FILE, hub) or {}
    model.pop("__version__", None)
    if (kind := model.get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        raise ValueError(f"{name} is a {kind}, which gives no embeddings of documents: choose a SentenceTransformer.")
    # Choose pooling and length
    modes = pooling.get("pooling_mode") or [mode for flag, mode in POOLING_FLAGS.items() if pooling.get(flag)]
    modes = [modes] if isinstance(modes, str) else list(modes) or ["mean"]  # as SentenceTransformer reads none
    if "pooling" not in given and (len(modes) > 1 or modes[0] not in get_args(Pooling)):
        raise ValueError(
            f"{name} pools with {' and '.join(modes)}, expected one of {get_args(Pooling)}: choose another start, or "
            "override it with --pooling mean (another embedding, to be trained)."
        )
    options = transformer.get("processor_kwargs") or transformer.get("tokenizer_args") or {}
    length = transformer.pop("max_seq_length", None) or options.get("model_max_length") or of_tokenizer
    # Keep the rest
    kept = {
        "normalize": normalize,
        "include_prompt": pooling.get("include_prompt", True),
        "model": model,
        "transformer": transformer,
    }
    width = config.hidden_size
    for path in dense_folders:  # each gets what the one before gives
        layer = _checked_dense(name, path, _read(name, f"{path}/config.json", hub) or {}, width)
        kept.setdefault(DENSE, []).append(layer)
        width = layer["out_features"]
    settings = {
        "pooling": "+".join(modes),
        "max_seq_length": stated_length(length, config),
        KEPT: kept,
    }
    if not kept["include_prompt"] and (prompt := prompt_of(settings)):
        raise ValueError(
            f"{name} leaves its prompt {prompt!r} out of the pooling (include_prompt: false), which cannot be trained "
            f"here: set include_prompt to true in a copy of its {pooling_path}, or choose another start."
        )
    return settings if not saved else _changed_since(name, saved, settings)


POOLING_FLAGS = {  # of older files, with the name that newer ones have
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def _read(name: Any, path: str, hub: Mapping[str, Any]) -> Any:
    """Read a JSON file of a folder or of a repository; None if it has no such file."""
    try:
        return read_modules(name, hub) if path == MODULES else read_file(name, path, hub)
    except OSError as error:  # no connection, and the cache does not know whether there is one
        cause = " ".join(str(error).split())
        logger.warning(f"{name} is read as if it had no {path}, which cannot be looked for now: {cause}")
        return None


def _plain_modules(name: Any, hub: Mapping[str, Any]) -> list[JsonObject] | None:
    """Read the modules of an encoder, without its words if it has any; None where there is no modules.json.

    Raises:
        ValueError: if the files do not say what is without words.
    """
    modules: list[JsonObject] | None = _read(name, MODULES, hub)
    if not modules or modules[0]["type"] != WORDS_MODULES[0]:
        return modules
    inner = (_read(name, WORDS_CONFIG, hub) or {}).get("inner_type")
    if inner is None or modules[-1]["type"] != WORDS_MODULES[1]:
        raise ValueError(f"{name} is an encoder with words, but its {MODULES} or {WORDS_CONFIG} is damaged.")
    return [modules[0] | {"type": inner}, *modules[1:-1]]


def _kind(module: JsonObject) -> str:
    return module["type"].rpartition(".")[2]


def _check_modules(name: Any, modules: list[JsonObject], hub: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the folders of Dense layers, and whether vectors are normalised; refuse other modules and orders."""
    kinds = [_kind(module) for module in modules]
    num_dense = kinds.count("Dense")
    expected = ["Transformer", "Pooling", *["Dense"] * num_dense, "Normalize"]
    unknown = [
        module["type"]
        for module, kind, wanted in zip(modules, kinds, [*expected, *[""] * len(kinds)])
        if kind != wanted or not module["type"].startswith("sentence_transformers.") or module.get("kwargs")
    ]
    if unknown or len(kinds) < 2:
        problem = f"has the module {unknown[0]}" if unknown else "has no pooling"
        raise ValueError(
            f"{name} {problem} in its {MODULES}, expected Transformer, Pooling and perhaps Dense and Normalize, in "
            "this order: nothing else can be trained and kept. To start from its transformer alone, save that with "
            "its tokenizer (SentenceTransformer(NAME)[0].save(FOLDER)), and give FOLDER with --pooling."
        )
    if modules[0]["path"]:
        raise ValueError(
            f"{name} has its transformer in the folder {modules[0]['path']!r}: SentenceTransformer(NAME).save(FOLDER) "
            "writes it where it is looked for; give FOLDER."
        )
    normalize = kinds[-1] == "Normalize"
    options = (_read(name, f"{modules[-1]['path']}/config.json", hub) if normalize else None) or {}
    if any(value not in (None, "sentence_embedding") for value in options.values()):
        raise ValueError(f"{name} normalises something else than its embeddings ({options}): choose another start.")
    return [module["path"] for module in modules[2 : 2 + num_dense]], normalize


def _checked_dense(name: Any, path: str, config: JsonObject, width: int) -> JsonObject:
    """Return the config of a Dense layer that gets vectors of this width; refuse one that cannot be trained here."""
    names = ("module_input_name", "module_output_name")
    if others := {key: config[key] for key in names if config.get(key) not in (None, "sentence_embedding")}:
        raise ValueError(f"{name} has in {path} a Dense layer of something else than its embeddings ({others}).")
    if config.get("in_features") != width:
        found = config.get("in_features", "no known number of")
        raise ValueError(f"{name} has in {path}/config.json a Dense layer of {found} values, and gets {width}.")
    return {key: value for key, value in config.items() if key not in names}


def _changed_since(name: Any, saved: Settings, settings: Settings) -> Settings:
    """Return the settings of a checkpoint whose SentenceTransformer files say something else; {} if they do not."""
    before, now = _of_embedding(saved), _of_embedding({"similarity": similarity_of(saved)} | settings)
    changed = [key for key in now if before[key] not in (None, now[key])]
    if not changed:
        return {}
    logger.warning(
        f"{name}: its SentenceTransformer files have another {' and '.join(changed)} than its config.json; they count."
    )
    return saved | settings


def _of_embedding(settings: Mapping[str, Any]) -> Settings:
    model = settings.get(KEPT, {}).get("model", {})
    return {
        "pooling": settings.get("pooling"),
        "max_seq_length": settings.get("max_seq_length"),
        "Dense layers": dense_configs(settings),
        "normalisation": normalizes(settings),
        "prompts": {key: prompt for key, prompt in (model.get("prompts") or {}).items() if prompt},
        "default_prompt_name": model.get("default_prompt_name") or "",
        "similarity": similarity_of(settings),
    }


# --- The start of a training ---


@dataclass
class Start:
    """An encoder to train, and the facts and weights of its checkpoint that are not part of it."""

    encoder: PreTrainedModel  # a `...ForMaskedLM`, or without a head what `AutoModel` gives
    has_head: bool
    dtype: str  # of the checkpoint
    pooler: dict[str, Tensor] = field(default_factory=dict)  # of a `...ForMaskedLM`, under `AutoModel`'s names


def read_start(name: str | Path, settings: Mapping[str, Any], **kwargs: Any) -> PreTrainedConfig:
    """Read the config of a start, with what SentenceTransformer's files say of it as its settings.

    Args:
        name: a folder, or a name on the Hub.
        settings: the given ones, which override those of the start.
        kwargs: those of `from_pretrained`.

    Raises:
        ValueError: if there is no encoder at this name, or it cannot be trained here, naming why.
    """
    hub = hub_arguments(kwargs)
    try:
        config = _read_native_config(name, kwargs)
    except ValueError as error:
        modules = _read(name, MODULES, hub) if Path(name).exists() else None
        if modules and _kind(modules[0]) == "StaticEmbedding":
            problem = "a static encoder, a table of token vectors, in which there is nothing to train"
            raise ValueError(f"{name} is {problem}: start from the encoder that it was made of.") from error
        raise
    check_types(getattr(config, "docsplit", None) or {}, f"{name}: config.json")
    with loading(name, keeps=ValueError):
        modules = _read(name, MODULES, hub)
        if modules and modules[0]["type"] == WORDS_MODULES[0] and (file := find_file(name, WORDS_TABLE, hub)):
            with safe_open(file, "pt") as table:
                count = table.get_slice("pieces").get_shape()[0]
            logger.info(
                f"{name} is an encoder with words of {count:,} tokens: the start is the encoder inside, and its words "
                "are left out."
            )
        if _is_inner(config, kwargs.get("model_type")):
            config.docsplit = {}  # nothing but the weights counts
            if _dense_paths(name, hub):
                logger.info(f"{name}: its Dense layers are left out, for its transformer alone reads passages.")
        elif of_start := settings_of_start(name, config, settings, **hub):
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
        of_start: its config, as `read_start` gives it; None: Dense layers are left out.
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
    if not {"dtype", "torch_dtype"} & kwargs.keys():  # without one in the config, that of the weights counts
        kwargs["dtype"] = torch.float32 if config.dtype is not None else "auto"
    is_ours = getattr(config, "docsplit", None) is not None
    if is_ours and "variant" not in kwargs and _has_head(name, kwargs):
        kwargs["variant"] = "mlm"
    # Load a masked language model, if the architecture has one and the checkpoint its head
    encoder: Any = None
    unused: set[str] = set()
    if _is_masked_lm(config) and model_type is None:
        encoder, missing, unused = _load(AutoModelForMaskedLM, name, args, kwargs)
        modules = encoder.named_modules()
        prefixes = tuple(f"{path}." for path, module in modules if path and module is encoder.base_model)
        lacking = {key for key in missing if prefixes and not key.startswith(prefixes)}
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
    has_split_pooler = kwargs.get("variant") == "mlm" or any("pooler." in key for key in unused)
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
    expected = ("pooler.", "position_ids")
    left_out = [key for key in sorted(unused) if not DENSE_WEIGHTS.search(key) and not any(e in key for e in expected)]
    if left_out:
        logger.info(f"{name}: the encoder has no place for {len(left_out)} of its weights: {left_out[:3]}.")
    settings = getattr(of_start, "docsplit", None) or {}
    if dense_configs(settings):
        add_dense(encoder.base_model, settings)
        with loading(name):
            _load_dense(encoder.base_model, name, hub_arguments(kwargs))
    return Start(encoder, has_head, dtype, pooler)


def settle(start: Start, name: str | Path, config: PreTrainedConfig, settings: Settings) -> Settings:
    """Return the given settings, adapted to what this start can do; log what becomes of the start's settings.

    Args:
        config: what `read_start` gave; its settings become those of the start's encoder.
        settings: the given ones.

    Raises:
        ValueError: if nothing is left to train without a masked-LM head.
    """
    of_start = getattr(config, "docsplit", None) or {}
    start.encoder.config.docsplit = dict(of_start)
    if KEPT in of_start and "objective" not in of_start:  # the files of others, and no settings of this project
        _describe_start(name, of_start, start.dtype)
    compared = of_start | ({"similarity": similarity_of({KEPT: of_start[KEPT]})} if KEPT in of_start else {})
    for key in ("pooling", "max_seq_length", "similarity"):
        if key in compared and key in settings and settings[key] != compared[key]:
            logger.warning(f"{key} {settings[key]} takes the place of {name}'s own, {compared[key]}.")
    if start.dtype != "float32":
        start.encoder.config.docsplit[RELEASED_DTYPE] = of_start.get(RELEASED_DTYPE, start.dtype)
    if start.has_head:
        return settings
    # Without a head there is no masked-LM loss
    could_have_head, kind = _is_masked_lm(start.encoder.config), start.encoder.config.model_type
    fault = f"{name} has no masked-LM head" if could_have_head else f"A {kind} has no masked-LM head"
    remedy = " --new_mlm_head makes one." if could_have_head else ""
    wanted = settings.get("mlm_weight", of_start.get("mlm_weight"))
    if not settings.get("contrastive_weight", of_start.get("contrastive_weight", 1)):
        raise ValueError(f"{fault}, and contrastive_weight is 0: nothing is left to train.{remedy}")
    if wanted != 0:
        logger.log(
            logging.INFO if wanted is None else logging.WARNING,
            f"{fault}: mlm_weight is 0{'' if wanted is None else f' in place of {wanted}'}.{remedy}",
        )
    return settings | {"mlm_weight": 0.0}


def _describe_start(name: Any, settings: Mapping[str, Any], dtype: str) -> None:
    """Log in one line what a SentenceTransformer brings, and in another what training does otherwise."""
    kept = settings[KEPT]
    prompts = {key: value for key, value in (kept["model"].get("prompts") or {}).items() if value}
    similarity = similarity_of({KEPT: kept})
    logger.info(
        f"{name} is a SentenceTransformer, and so is each checkpoint: "
        f"{describe_dense(settings) + ', ' if dense_configs(settings) else ''}"
        f"{'normalised' if kept['normalize'] else 'not normalised'}, similarity {similarity}, "
        f"{f'prompts {prompts} (of documents: {prompt_of(settings)!r}), ' if prompts else ''}{dtype}."
    )
    if similarity != "cosine" and not (similarity == "dot" and kept["normalize"]):
        logger.warning(
            f"{name} is made for {similarity} similarity, and so are the checkpoints; training compares by the "
            "objective's --similarity, which is cosine unless it is given."
        )


def _read_native_config(name: Any, kwargs: Mapping[str, Any]) -> PreTrainedConfig:
    trust = {"trust_remote_code": kwargs["trust_remote_code"]} if "trust_remote_code" in kwargs else {}
    return kwargs.get("config") or read_config(name, **hub_arguments(kwargs), **trust)


def _is_inner(config: PreTrainedConfig, model_type: str | None) -> bool:
    """Whether a start becomes the inner encoder of a new one of this type."""
    return model_type is not None and model_type != config.model_type


def _is_masked_lm(config: PreTrainedConfig) -> bool:
    """Whether transformers, or the checkpoint's own code, has a masked language model of this architecture."""
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING or "AutoModelForMaskedLM" in (
        getattr(config, "auto_map", None) or {}
    )


def _load(auto_class: Any, name: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, set[str], set[str]]:
    """Return a model, the names of weights that the checkpoint lacks, and of those that the model has no place for.

    transformers' reports of both are hidden: they are read here, and logged where they matter.
    """

    def is_no_report(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        return "LOAD REPORT" not in text and "checkpoint seem corrupted" not in text

    logs = logging.getLogger("transformers.modeling_utils")
    logs.addFilter(is_no_report)
    try:
        model, info = load_model(auto_class, name, *args, output_loading_info=True, **kwargs)
    finally:
        logs.removeFilter(is_no_report)
    return model, set(info["missing_keys"]), set(info["unexpected_keys"])


def _refuse_random_weights(name: Any, missing: set[str]) -> None:
    if missing:
        raise ValueError(
            f"{str(name)!r} lacks {len(missing)} weights of its own architecture, such as {sorted(missing)[:3]}: they "
            "would be random. Is it the checkpoint of another model?"
        )


def _has_head(name: Any, kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a head lies beside the weights, and those that it belongs to: others may have been saved there."""

    def is_there(path: str) -> bool:
        with contextlib.suppress(OSError):  # no connection, and not in the cache
            return find_file(name, path, hub_arguments(kwargs)) is not None
        return False

    if not is_there(HEAD_INDEX):
        return False
    index = read_file(name, HEAD_INDEX, hub_arguments(kwargs))
    if all(map(is_there, set(index.get("weight_map", {}).values()))):
        return True
    logger.warning(f"{name} has other weights than its masked-LM head belongs to: the head is left out.")
    return False


def _dense_paths(name: Any, hub: Mapping[str, Any]) -> list[str]:
    """Return the folders of an encoder's Dense layers."""
    return [module["path"] for module in _plain_modules(name, hub) or [] if _kind(module) == "Dense"]


def _load_dense(base_model: Any, name: Any, hub: Mapping[str, Any]) -> None:
    """Load the weights of the Dense layers from a SentenceTransformer's module folders.

    Raises:
        ValueError: if there are none, or they are of another layer.
    """
    for layer, path in zip(getattr(base_model, LAYERS), _dense_paths(name, hub), strict=True):
        tried = [f"{path}/{file}" for file in ("model.safetensors", "pytorch_model.bin")]  # the second: of older ones
        file = next((Path(found) for found in (find_file(name, file, hub) for file in tried) if found), None)
        if file is None:
            raise ValueError(f"{name} has no {' and no '.join(tried)}, the weights of a Dense layer.")
        is_safe = file.suffix == ".safetensors"
        state = load_file(file) if is_safe else torch.load(file, map_location="cpu", weights_only=True)
        try:
            layer.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"{name}: {path}/{file.name} does not fit its config.json: {error}") from error
