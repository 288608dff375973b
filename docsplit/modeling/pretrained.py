"""Load what others made: each configuration, model and tokenizer that a name or a folder stands for comes from here.

Nothing in a folder is trusted. Its code is never run, and nothing asks on the terminal whether to run it. The files
that say what is to be loaded are checked first: `check_files`. Whatever a library makes of damaged ones, a TypeError
or a panic, becomes one line: `loading`.
"""

import contextlib
import logging
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from safetensors import SafetensorError, safe_open
from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer
from transformers.utils import cached_file

from docsplit.modeling.after_pooling import DENSE, KEPT, activation_named
from docsplit.modeling.pooling import Pooling
from docsplit.runtime.files import Damaged, JsonObject, read_any_json, read_json, refuse_missing_path

logger = logging.getLogger(__name__)

NO_CODE: Any = {"trust_remote_code": False}  # None would ask on the terminal
ENCODER, TOKENIZER = "an encoder", "a tokenizer"
EXPECTED = "a folder with an encoder, or a model of the Hub (USER/NAME)"
MODULES, MODEL_FILE = "modules.json", "config_sentence_transformers.json"
TRANSFORMER_FILES = (  # the first, and those of the first versions of sentence-transformers
    "sentence_bert_config.json",
    *(f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta")),
)
OF_THE_HUB = ("revision", "token", "cache_dir", "local_files_only", "force_download", "subfolder", "proxies")

# What a folder may ask of `from_pretrained`; others choose how pickles are read, or bring kernels from the Hub.
MODEL_OPTIONS = ("model_kwargs", "model_args")  # its name, and that of before
HARMLESS_MODEL_OPTIONS = {"add_pooling_layer", "dtype", "torch_dtype", "attn_implementation"}
OTHER_OPTIONS = ("config_kwargs", "config_args", "processor_kwargs", "tokenizer_args")
IGNORED = {"trust_remote_code"}  # sentence-transformers leaves it out
CODE_OPTIONS = {"code_revision", "auto_map", "weights_only", "attn_implementation", "quantization_config"}

SIZES = {  # what makes building a model long or large, and the most that is believed
    re.compile(r"layers?$|blocks$|groups?$|group_num$"): 1_000,
    re.compile(r"experts$|heads$"): 2**14,
    re.compile(r"size$|dim$|^d_|_d$|^n_embd$|^n_positions$|max_position_embeddings$|attention_window$"): 2**24,
}
OBJECTS = {"config.json", "tokenizer.json", "tokenizer_config.json"}  # of all files named .json in a folder
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
SHORT = 300  # letters of a cause


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
        causes = filter(None, (f"{f'{file}: ' if file else ''}{_cause(error)}", _damaged_file(name)))
        raise CannotLoad(
            f"{str(name)!r} cannot be loaded as {what}{remedy}. The cause: {'; '.join(causes)}"
        ) from error


def _cause(error: BaseException) -> str:
    """Return what an error says, in one line and with its kind where that says more."""
    if isinstance(error, pickle.UnpicklingError):
        return (
            "its weights are a pickle that is damaged or holds more than tensors, which is not run: convert them to "
            "model.safetensors, or ask its makers to"
        )
    text = " ".join(str(error).split())
    if "ignore_mismatched_sizes" in text:  # transformers logs which
        return "its weights have other shapes than its config.json says"
    text = text if len(text) <= SHORT else f"{text[:SHORT]} ..."
    return text if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {text}"


def _damaged_file(name: Any) -> str | None:
    """Name the first file of a folder that cannot be read; None without any, and for names on the Hub."""
    folder = Path(str(name))
    for path in (*sorted(folder.glob("*.json")), *sorted(folder.glob("*/*.json"))):
        try:
            (read_json if path.name in OBJECTS else read_any_json)(path)
        except Damaged as error:
            return str(error).removesuffix(".")
        except OSError:  # a link that leads nowhere
            return f"{path} cannot be read"
    for path in (*sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*/*.safetensors"))):
        try:
            with safe_open(path, "pt"):
                pass
        except (SafetensorError, OSError, ValueError) as error:
            return f"{path} is damaged: {' '.join(str(error).split())[:SHORT]}"
    return None


# --- What is loaded ---


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


# --- Checks before anything is loaded ---


def read_file(name: Any, path: str, hub: Mapping[str, Any]) -> Any:
    """Read a JSON file of a folder or of a repository, the list of modules.json or an object; None without it.

    Raises:
        CannotLoad: if it is damaged.
        OSError: if there is no connection, and the cache does not know it.
    """
    file = cached_file(str(name), path, _raise_exceptions_for_missing_entries=False, **hub)
    if file is None:
        return None
    try:
        return read_any_json(Path(file)) or [] if path == MODULES else read_json(Path(file))
    except Damaged as error:
        raise CannotLoad(str(error)) from error


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
                raise CannotLoad(
                    f"{name}: config.json has the model type {kind!r}, which transformers knows by code of the folder "
                    "alone (auto_map); code of others is not run. Choose an encoder that transformers has itself."
                )
            if kind != "graph_document":
                logger.warning(
                    f"{name} brings code of its own (auto_map in config.json), which is not run: it is loaded as "
                    f"transformers' {kind}."
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
                f"{name}: {MODULES} has the module {str(module)[:SHORT]}, expected its type and its path as text."
            )
        if ".." in Path(module["path"]).parts or Path(module["path"]).is_absolute():
            raise CannotLoad(f"{name}: {MODULES} names {module['path']!r}, which is not in its folder.")
    return modules


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
    choices = {"default_prompt_name": [*prompts], "similarity_fn_name": list(SIMILARITIES)}
    for key, known in choices.items():
        if model.get(key) not in (None, *known):
            raise CannotLoad(f"{name}: {MODEL_FILE}: {key} is {str(model[key])[:SHORT]!r}, expected one of {known}.")


def _check_settings(name: Any, settings: Mapping[str, Any]) -> None:
    """Check the settings of a checkpoint of this project as far as loading reads them."""
    _check_length(name, "config.json", settings)
    kept = settings.get(KEPT, {})
    parts = [kept, *(kept.get(part) or {} for part in ("model", "transformer"))] if isinstance(kept, dict) else [kept]
    dense = kept.get(DENSE) or [] if isinstance(kept, dict) else []
    if not all(isinstance(part, dict) for part in (*parts, *(dense if isinstance(dense, list) else [dense]))):
        raise CannotLoad(f"{name}: config.json: {KEPT} is {str(kept)[:SHORT]}, expected objects.")
    if settings.get("pooling") not in (None, *get_args(Pooling)):
        said = str(settings["pooling"])[:SHORT]
        raise CannotLoad(f"{name}: config.json: pooling is {said!r}, expected one of {get_args(Pooling)}.")


def _check_length(name: Any, file: str, content: Mapping[str, Any]) -> None:
    length = content.get("max_seq_length")
    if length is not None and (type(length) is not int or not 1 <= length < 2**31):
        raise CannotLoad(f"{name}: {file}: max_seq_length is {length!r}, expected a number of tokens.")


def _check_options(name: Any, transformer: Mapping[str, Any]) -> None:
    """Refuse options of loading that let code run."""
    for part in (*MODEL_OPTIONS, *OTHER_OPTIONS):
        options = transformer.get(part) or {}
        if not isinstance(options, dict):
            raise CannotLoad(f"{name}: {TRANSFORMER_FILES[0]}: {part} is {options!r}, expected an object.")
        is_known = part not in MODEL_OPTIONS
        refused = options.keys() & CODE_OPTIONS if is_known else options.keys() - HARMLESS_MODEL_OPTIONS - IGNORED
        refused |= {key for key in options.keys() & {"attn_implementation"} if "/" in str(options[key])}
        if refused:
            raise CannotLoad(
                f"{name}: {TRANSFORMER_FILES[0]} asks for {part} {', '.join(sorted(refused))}, which a folder cannot "
                "decide: take it out in a copy of the folder."
            )
        _refuse_sizes(name, TRANSFORMER_FILES[0], options)


def _refuse_sizes(name: Any, file: str, values: Mapping[str, Any], depth: int = 0) -> None:
    """Refuse sizes that no model has: building it would take all memory, or for ever."""
    for key, value in values.items():
        if isinstance(value, dict) and depth < 3:
            _refuse_sizes(name, file, value, depth + 1)
        most = next((most for pattern, most in SIZES.items() if pattern.search(key)), None)
        for number in value if isinstance(value, list) else [value]:
            if most is not None and isinstance(number, int | float) and not -most <= number <= most:
                raise CannotLoad(f"{name}: {file}: {key} is {number:g}, expected at most {most:,}.")
    if values.get("num_hidden_layers", 0) is not None and _is_negative(values.get("num_hidden_layers", 0)):
        raise CannotLoad(f"{name}: {file}: num_hidden_layers is {values['num_hidden_layers']}, expected 0 or more.")


def _is_negative(value: Any) -> bool:
    return isinstance(value, int | float) and value < 0
