"""Read SentenceTransformer's files from a start, and write them into each checkpoint.

A start that is a SentenceTransformer is more than its weights: pooling, length, prompts, `Normalize` and similarity
decide its embeddings. They are read as plain JSON (nothing here needs that library), used in training and probes, and
written again, so that the result is a drop-in replacement. Pooling and length are settings like any other; what
has no name of its own there is kept as `KEPT`, a part of the settings that only such starts have. Dense layers after
the pooling are trained along (`docsplit.modeling.after_pooling`).
"""

import json
import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from safetensors import safe_open
from transformers import PreTrainedConfig
from transformers.utils import cached_file

from docsplit.modeling.after_pooling import (
    DENSE,
    KEPT,
    checked_dense,
    dense_configs,
    describe_dense,
    normalizes,
)
from docsplit.modeling.families.table import family_of
from docsplit.modeling.pooling import Pooling
from docsplit.modeling.pretrained import (
    HARMLESS_MODEL_OPTIONS,
    MODEL_FILE,
    MODEL_OPTIONS,
    MODULES,
    TRANSFORMER_FILES,
    read_file,
    read_modules,
)
from docsplit.modeling.settings import Settings, default_settings, has_pooler, max_positions
from docsplit.runtime.files import JsonObject, write_text

logger = logging.getLogger(__name__)

# The first and the last module of an encoder with words, and in which file the first says what it wraps.
WORDS_MODULES = ("encoder_with_words.EncoderWithWords", "encoder_with_words.AddWords")
WORDS_CONFIG, WORDS_TABLE = "words/config.json", "words/words.safetensors"
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # the names that `encode_document` tries
POOLING_FLAGS = {  # of older files, with the name that newer ones have
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# What training and probes do not need to know of the transformer's file.
APPLIED = {"do_lower_case", "transformer_task", "modality_config", "module_output_name", "unpad_inputs"}


def trust_argument(directory: Path) -> str:
    """Return the argument that lets SentenceTransformer run a folder's own code; "" where it has none."""
    return ", trust_remote_code=True" if any(directory.glob("*.py")) else ""


def document_prompt(prompts: Mapping[str, str | None], default_prompt_name: str | None) -> str:
    """Return the prompt before a document: that for documents or passages, else the default one, else nothing.

    An empty prompt counts as none: SentenceTransformer writes an empty `document` for models that have no such prompt.
    """
    tried = (prompts.get(name) for name in (*DOCUMENT_PROMPTS, default_prompt_name or ""))
    return next((prompt for prompt in tried if prompt), "")


def query_prompt(prompts: Mapping[str, str | None], default_prompt_name: str | None) -> str:
    """Return the prompt before a query: that for queries, else the default one, else nothing."""
    return next((prompt for name in ("query", default_prompt_name or "") if (prompt := prompts.get(name))), "")


def prompt_of(settings: Mapping[str, Any]) -> str:
    """Return an encoder's prompt before a document, by its settings."""
    model = settings.get(KEPT, {}).get("model", {})
    return document_prompt(model.get("prompts") or {}, model.get("default_prompt_name"))


def with_prompt(settings: Mapping[str, Any], prompt: str) -> Settings:
    """Return what the settings keep as `KEPT`, with this prompt before a document; "": none."""
    kept = settings.get(KEPT) or {"normalize": False, "model": {"similarity_fn_name": similarity_of(settings)}}
    model = dict(kept["model"])
    prompts = {name: text for name, text in (model.get("prompts") or {}).items() if name not in DOCUMENT_PROMPTS}
    model["prompts"] = prompts | {"document": prompt}
    if not prompt:  # the default one would stand in
        model["default_prompt_name"] = None
    return {"transformer": {}} | kept | {"include_prompt": True, "model": model}


def query_prompt_of(settings: Mapping[str, Any]) -> str:
    """Return an encoder's prompt before a query, by its settings."""
    model = settings.get(KEPT, {}).get("model", {})
    return query_prompt(model.get("prompts") or {}, model.get("default_prompt_name"))


def similarity_of(settings: Mapping[str, Any]) -> str:
    """Return how embeddings are to be compared: `cosine`, `dot` ..."""
    return settings.get(KEPT, {}).get("model", {}).get("similarity_fn_name") or settings.get("similarity", "cosine")


def lower_cases(name: str | Path) -> bool:
    """Whether a start's texts become lower case before they are tokenised, whatever its tokenizer does by itself."""
    return any((_read(name, path, {}) or {}).get("do_lower_case") for path in TRANSFORMER_FILES)


def settings_of_start(name: str | Path, config: PreTrainedConfig, given: Collection[str] = (), **hub: Any) -> Settings:
    """Read the settings of a start that is a SentenceTransformer; {} for others, and for a checkpoint of this project.

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
    if modules is None or (saved and modules[0]["type"] == family.module):
        return {}
    pooling_path, dense_folders, normalize = _check_modules(name, modules, hub)
    pooling = _read(name, f"{pooling_path}/config.json", hub)
    if pooling is None:
        raise ValueError(f"{name}: {MODULES} names {pooling_path!r}, but there is no {pooling_path}/config.json.")
    transformer: JsonObject = next(
        (file for file in (_read(name, path, hub) for path in TRANSFORMER_FILES) if file), {}
    )
    model = _read(name, MODEL_FILE, hub) or {}
    model.pop("__version__", None)
    if (kind := model.get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        raise ValueError(f"{name} is a {kind}, which gives no embeddings of documents: choose a SentenceTransformer.")
    if (task := transformer.get("transformer_task", "feature-extraction")) != "feature-extraction":
        raise ValueError(f"{name} is made for {task!r}, expected 'feature-extraction': choose another start.")

    length = transformer.pop("max_seq_length", None) or _tokenizer_length(name, transformer, hub)
    kept = {
        "normalize": normalize,
        "include_prompt": pooling.get("include_prompt", True),
        "model": model,
        "transformer": transformer,
    }
    positions, mode = max_positions(config), _pooling(name, pooling, "pooling" in given)
    if dense := _dense_of_start(name, dense_folders, config.hidden_size, hub):
        kept[DENSE] = dense
    settings = {
        "pooling": mode,
        "max_seq_length": min(length or default_settings(config)["max_seq_length"], positions or sys.maxsize),
        KEPT: kept,
    }
    if not kept["include_prompt"] and (prompt := prompt_of(settings)):
        raise ValueError(
            f"{name} leaves its prompt {prompt!r} out of the pooling (include_prompt: false), which cannot be trained "
            f"here: set include_prompt to true in a copy of its {pooling_path}/config.json, or choose another start."
        )
    return settings if not saved else _changed_since(name, saved, settings)


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


def is_static(name: Any, hub: Mapping[str, Any]) -> bool:
    """Whether an encoder is a table of token vectors."""
    modules = _read(name, MODULES, hub)
    return bool(modules) and modules[0]["type"].rpartition(".")[2] == "StaticEmbedding"


def describe_words(name: Any, hub: Mapping[str, Any]) -> None:
    """Log that a training starts from the encoder inside an encoder with words, if it is one."""
    modules = _read(name, MODULES, hub)
    if not modules or modules[0]["type"] != WORDS_MODULES[0]:
        return
    file = cached_file(str(name), WORDS_TABLE, _raise_exceptions_for_missing_entries=False, **hub)
    count = ""
    if file is not None:
        with safe_open(file, "pt") as table:
            count = f" of {table.get_slice('pieces').get_shape()[0]:,} tokens"
    logger.info(
        f"{name} is an encoder with words{count}: the start is the encoder inside, and its words are left out."
    )


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


def _check_modules(name: Any, modules: list[JsonObject], hub: Mapping[str, Any]) -> tuple[str, Sequence[str], bool]:
    """Return the folders of the pooling and of Dense layers, and whether vectors are normalised.

    Raises:
        ValueError: for any other module, or another order.
    """
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    stock = [module["type"].startswith("sentence_transformers.") and not module.get("kwargs") for module in modules]
    dense = modules[2 : 2 + next((number for number, kind in enumerate(kinds[2:]) if kind != "Dense"), len(kinds))]
    expected = ["Transformer", "Pooling", *("Dense" for _ in dense), "Normalize"]
    unknown = [
        module["type"]
        for number, module in enumerate(modules)
        if not stock[number] or number >= len(expected) or kinds[number] != expected[number]
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
    options = _read(name, f"{modules[-1]['path']}/config.json", hub) if normalize else None
    if any((options or {}).get(key) not in (None, "sentence_embedding") for key in options or {}):
        raise ValueError(f"{name} normalises something else than its embeddings ({options}): choose another start.")
    return modules[1]["path"], [module["path"] for module in dense], normalize


def dense_paths(name: Any, hub: Mapping[str, Any]) -> list[str]:
    """Return the folders of an encoder's Dense layers."""
    modules = _plain_modules(name, hub) or []
    return [module["path"] for module in modules if module["type"].rpartition(".")[2] == "Dense"]


def _dense_of_start(name: Any, paths: Sequence[str], width: int, hub: Mapping[str, Any]) -> list[JsonObject]:
    """Read the configs of Dense layers, each of which gets what the one before gives."""
    configs: list[JsonObject] = []
    for path in paths:
        configs.append(checked_dense(name, path, _read(name, f"{path}/config.json", hub), width))
        width = configs[-1]["out_features"]
    return configs


def _pooling(name: Any, pooling: Mapping[str, Any], is_overridden: bool) -> str:
    """Return the mode of a pooling, if it is one that can be trained here."""
    modes = pooling.get("pooling_mode") or [mode for flag, mode in POOLING_FLAGS.items() if pooling.get(flag)]
    modes = [modes] if isinstance(modes, str) else list(modes) or ["mean"]  # as SentenceTransformer reads none
    if not is_overridden and (len(modes) > 1 or modes[0] not in get_args(Pooling)):
        raise ValueError(
            f"{name} pools with {' and '.join(modes)}, expected one of {get_args(Pooling)}: choose another start, or "
            "override it with --pooling mean (another embedding, to be trained)."
        )
    return "+".join(modes)


def _tokenizer_length(name: Any, transformer: Mapping[str, Any], hub: Mapping[str, Any]) -> int | None:
    """Return the tokenizer's length, which counts where the transformer's file has none."""
    options = transformer.get("processor_kwargs") or transformer.get("tokenizer_args") or {}
    length = options.get("model_max_length")
    length = length or (_read(name, "tokenizer_config.json", hub) or {}).get("model_max_length")
    return int(length) if length and length < 1e9 else None  # transformers writes 1e30 for "any"


def _read(name: Any, path: str, hub: Mapping[str, Any]) -> Any:
    """Read a JSON file of a folder or of a repository; None if it has no such file."""
    try:
        return read_modules(name, hub) if path == MODULES else read_file(name, path, hub)
    except OSError as error:  # no connection, and the cache does not know whether there is one
        logger.warning(f"{name} is read as if it had no {path}, which cannot be looked for now: {_one_line(error)}")
        return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def describe_start(name: Any, settings: Mapping[str, Any], dtype: str) -> None:
    """Log in one line what a SentenceTransformer brings, and in another what training does not use."""
    kept = settings[KEPT]
    model, transformer = kept["model"], kept["transformer"]
    prompts = {key: value for key, value in (model.get("prompts") or {}).items() if value}
    logger.info(
        f"{name} is a SentenceTransformer, and so is each checkpoint: pooling {settings['pooling']}, "
        f"{describe_dense(settings) + ', ' if dense_configs(settings) else ''}"
        f"{'normalised' if kept['normalize'] else 'not normalised'}, up to {settings['max_seq_length']} tokens, "
        f"similarity {model.get('similarity_fn_name') or 'cosine'}, prompts {prompts or 'none'} (of documents: "
        f"{prompt_of(settings)!r}), {dtype}."
    )
    similarity = model.get("similarity_fn_name") or "cosine"
    if similarity != "cosine" and not (similarity == "dot" and kept["normalize"]):
        logger.warning(
            f"{name} is made for {similarity} similarity, and so are the checkpoints; training compares by the "
            "objective's --similarity, which is cosine unless it is given."
        )
    aside = {key: value for key, value in transformer.items() if value and key not in APPLIED}
    for key in aside.keys() & set(MODEL_OPTIONS):
        aside[key] = {name: value for name, value in aside[key].items() if name not in HARMLESS_MODEL_OPTIONS}
    if aside := {key: value for key, value in aside.items() if value}:
        logger.warning(f"{name}: the checkpoints keep these settings, but training does not use them: {aside}.")


def warn_of_overrides(name: Any, of_start: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Warn which of the embedding's properties differ from the start's.

    Args:
        of_start: settings of the start.
        settings: those that options or a recipe give.
    """
    model = of_start.get(KEPT, {}).get("model", {})
    start_settings = dict(of_start)
    start_settings |= {"similarity": model.get("similarity_fn_name") or "cosine"} if KEPT in of_start else {}
    for key in ("pooling", "max_seq_length", "similarity"):
        if key in start_settings and key in settings and settings[key] != start_settings[key]:
            logger.warning(f"{key} {settings[key]} takes the place of {name}'s own, {start_settings[key]}.")


def write_sentence_transformers_files(directory: Path, config: PreTrainedConfig, with_pooler: bool) -> None:
    """Write SentenceTransformer's files, which define the embeddings.

    Args:
        with_pooler: the weights have what `AutoModel` calls the pooler, where the architecture has one.
    """
    settings, family = config.docsplit, family_of(config)
    family.write_code(directory)
    if family.rows == "passages":
        files: JsonObject = {MODULES: [{"idx": 0, "name": "0", "path": "", "type": family.module}]}
        files |= {TRANSFORMER_FILES[0]: {"max_seq_length": settings["max_seq_length"]}}
        _write_files(directory, files | {MODEL_FILE: {"similarity_fn_name": similarity_of(settings)}})
        return
    kept, pooling = settings.get(KEPT, {}), settings["pooling"]
    transformer_type = family.module or "sentence_transformers.models.Transformer"
    dense = dense_configs(settings)
    modules = [{"idx": 0, "name": "0", "path": "", "type": transformer_type}]
    for kind in ("Pooling", *("Dense" for _ in dense), *(["Normalize"] if kept.get("normalize") else [])):
        number, module_type = len(modules), f"sentence_transformers.models.{kind}"
        modules.append({"idx": number, "name": str(number), "path": f"{number}_{kind}", "type": module_type})
    pooler = {
        "word_embedding_dimension": config.hidden_size,
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": pooling == "max",
    }
    if pooling not in ("cls", "mean", "max"):  # files of before have these three names alone
        pooler |= {flag: True for flag, mode in POOLING_FLAGS.items() if mode == pooling}
    if not kept.get("include_prompt", True):
        pooler["include_prompt"] = False
    files = {
        MODULES: modules,
        TRANSFORMER_FILES[0]: _transformer_file(config, kept.get("transformer", {}), with_pooler),
        "1_Pooling/config.json": pooler,
        MODEL_FILE: kept.get("model", {}) | {"similarity_fn_name": similarity_of(settings)},
    }
    files |= {f"{dense_folder(number)}/config.json": layer for number, layer in enumerate(dense)}
    _write_files(directory, files)


def dense_folder(number: int) -> str:
    """Return the folder of a Dense layer in a checkpoint: 2_Dense is the first."""
    return f"{2 + number}_Dense"


def _write_files(directory: Path, contents: Mapping[str, Any]) -> None:
    for name, content in contents.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(directory / name, json.dumps(content, indent=2) + "\n")


def _transformer_file(config: PreTrainedConfig, kept: Mapping[str, Any], with_pooler: bool) -> JsonObject:
    """Return length and options of loading: without a pooler among the weights `AutoModel` must not look for one."""
    options = {key: value for name in MODEL_OPTIONS for key, value in (kept.get(name) or {}).items()}
    options.pop("add_pooling_layer", None)
    if has_pooler(config) and not with_pooler:
        options["add_pooling_layer"] = False
    rest = {key: value for key, value in kept.items() if key not in MODEL_OPTIONS}
    length = {"max_seq_length": config.docsplit["max_seq_length"]}
    return length | {"do_lower_case": False} | rest | {"model_kwargs": options}
