"""What comes in: the files of a folder or of a repository, checked before anything is loaded, and its tokenizer.

Nothing in a folder is trusted. Its code is never run, and nothing asks on the terminal whether to run it. The files
that say what is to be loaded are checked first: `check_files`. Whatever a library makes of damaged ones, a TypeError
or a panic, becomes one line: `as_cannot_load`. What is loaded then: `docsplit.modeling.loading` and
`docsplit.modeling.start`.
"""

import contextlib
import functools
import inspect
import logging
import pickle
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.utils import cached_file

from docsplit.modeling.families.table import family_of
from docsplit.runtime.files import Damaged, JsonObject, read_any_json, read_json, refuse_missing_path

logger = logging.getLogger(__name__)

NO_CODE: Any = {"trust_remote_code": False}  # None would ask on the terminal
ENCODER, TOKENIZER = "an encoder", "a tokenizer"
EXPECTED_ENCODER = "a folder with an encoder, or a model of the Hub (USER/NAME)"
HUB_ARGUMENTS = ("revision", "token", "cache_dir", "local_files_only", "force_download", "subfolder", "proxies")

MODULES, MODEL_FILE = "modules.json", "config_sentence_transformers.json"
TRANSFORMER_FILES = (  # the first, and those of the first versions of sentence-transformers
    "sentence_bert_config.json",
    *(f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta")),
)
HEAD_FILE = "mlm_head.safetensors"
HEAD_INDEX = "model.safetensors.index.mlm.json"  # transformers' name for the index of that variant

# What a folder may ask of `from_pretrained`; others choose how pickles are read, or bring kernels from the Hub.
MODEL_OPTIONS = ("model_kwargs", "model_args")  # its name, and that of before
HARMLESS_MODEL_OPTIONS = {"add_pooling_layer", "dtype", "torch_dtype", "attn_implementation"}
SHORT = 300  # letters of a cause
LENGTH = 512  # tokens that are read of a text where no file says how many
_TOKENIZING = threading.RLock()


# --- Loading, with one line for whatever goes wrong ---


class CannotLoad(ValueError):
    """What a name or a folder stands for cannot be loaded. The message is one line."""


@contextlib.contextmanager
def as_cannot_load(name: Any, what: str = ENCODER, file: str = "") -> Iterator[None]:
    """Turn whatever goes wrong while this is loaded into one line, with the first damaged file of a folder.

    Args:
        file: that is read.

    Raises:
        CannotLoad: naming folder, cause and remedy.
    """
    try:
        yield
    except CannotLoad:
        raise
    except BaseException as error:
        # Libraries raise anything at all for damaged files; tokenizers panics in Rust, which is no `Exception`
        if not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        remedy = ""
        if not any((Path(str(name)) / known).exists() for known in ("config.json", MODULES)):
            files = "tokenizer.json" if what == TOKENIZER else "config.json, weights and tokenizer"
            remedy = f": name a model of the Hub (and be connected to it), or a folder with {files}"
        causes = "; ".join(filter(None, (f"{f'{file}: ' if file else ''}{cause_of(error)}", _damaged_file(name))))
        raise CannotLoad(f"{str(name)!r} cannot be loaded as {what}{remedy}. The cause: {causes}") from error


def cause_of(error: BaseException) -> str:
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
    refuse_missing_path(name, EXPECTED_ENCODER)
    check_files(name, hub_arguments(kwargs), trusts=bool(kwargs.get("trust_remote_code")))
    with as_cannot_load(name, file="config.json"):
        return AutoConfig.from_pretrained(name, **NO_CODE | kwargs)


def load_tokenizer(name: Any, **kwargs: Any) -> Any:
    """Load a tokenizer, and refuse the empty one that `AutoTokenizer` makes up for a folder without any.

    Raises:
        ValueError: as `check_vocabulary`, and in one line if it cannot be loaded.
    """
    refuse_missing_path(name, "a folder with a tokenizer, or a model of the Hub (USER/NAME)")
    with as_cannot_load(name, TOKENIZER):
        tokenizer = AutoTokenizer.from_pretrained(name, **NO_CODE | kwargs)
    pad_on_the_right(tokenizer, name)
    check_vocabulary(tokenizer, name)
    return tokenizer


def check_vocabulary(
    tokenizer: PreTrainedTokenizerBase, name_or_path: str | Path, embedded: int | None = None
) -> None:
    """Refuse a tokenizer that reads every text as unknown, or whose ids the encoder does not embed.

    Args:
        embedded: the number of ids that the encoder embeds.

    Raises:
        ValueError: if it has no entry but special tokens, naming the files that may be missing; or an id that is none.
    """
    vocabulary = tokenizer.get_vocab()
    if set(vocabulary) <= set(tokenizer.all_special_tokens):
        raise ValueError(
            f"The tokenizer of {str(name_or_path)!r} has {len(vocabulary)} entries, all of them special tokens: "
            "tokenizer.json (or the vocabulary file: vocab.txt, vocab.json, sentencepiece.bpe.model) is missing or "
            "empty there. Copy it from the checkpoint that this one began from; to pretrain, --tokenizer_name may "
            "name that one."
        )
    beyond = {token: number for token, number in vocabulary.items() if embedded is not None and number >= embedded}
    if not beyond:
        return
    token, number = min(beyond.items(), key=lambda item: item[1])
    remedy = "it is of another model. Leave out --tokenizer_name, or copy the encoder's own tokenizer there."
    if beyond.keys() <= tokenizer.get_added_vocab().keys():
        remedy = (
            "the token was added to the tokenizer alone. Call model.resize_token_embeddings(len(tokenizer)) and save "
            "the model, which then has a random vector for it to train; or take the token out."
        )
    raise ValueError(
        f"The tokenizer of {str(name_or_path)!r} has the token {token!r} with the id {number}, but the encoder embeds "
        f"{embedded} ids: {remedy}"
    )


def share_among_threads(tokenizer: Any) -> None:
    """Let threads use tokenizers in turn: each call sets truncation and padding of what they have in common."""
    kind: Any = type(tokenizer)
    if not isinstance(tokenizer, PreTrainedTokenizerBase) or hasattr(kind._encode_plus, "__wrapped__"):
        return
    encode = kind._encode_plus

    @functools.wraps(encode)
    def in_turn(*args: Any, **kwargs: Any) -> Any:
        with _TOKENIZING:
            return encode(*args, **kwargs)

    kind._encode_plus = in_turn


def pad_on_the_right(tokenizer: Any, name: Any) -> None:
    """Let a tokenizer pad on the right: padding on the left would shift positions, so that vectors depend on batches.

    Decoders give the same vectors either way: pooling by the last token finds it by the mask.
    """
    if getattr(tokenizer, "padding_side", "right") != "right":
        tokenizer.padding_side = "right"
        logger.info(f"The tokenizer of {name} pads on the left: it pads on the right here, and in what is written.")


def hub_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the arguments of `HUB_ARGUMENTS` that are given."""
    return {key: kwargs[key] for key in HUB_ARGUMENTS if kwargs.get(key) is not None}


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
        if not isinstance(settings := config.get("docsplit"), dict | None):
            raise CannotLoad(f"{name}: config.json: docsplit is {str(settings)[:SHORT]}, expected an object.")
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
            activation = str(dense.get("activation_function", "torch.nn.Tanh"))
            if not activation.startswith("torch.nn."):  # else sentence-transformers takes Tanh
                raise CannotLoad(
                    f"{name}: {module['path']}/config.json: {activation!r} is no activation of torch.nn, and no other "
                    "code is run."
                )
    transformer: JsonObject = next((file for file in map(read, TRANSFORMER_FILES) if file is not None), {})
    _check_options(name, transformer)
    length = transformer.get("max_seq_length")
    if length is not None and (type(length) is not int or not 1 <= length < 2**31):
        raise CannotLoad(f"{name}: {TRANSFORMER_FILES[0]}: max_seq_length is {length!r}, expected a number of tokens.")
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


def has_pooler(config: PreTrainedConfig) -> bool:
    """Whether `AutoModel` adds a pooler unless told `add_pooling_layer=False`.

    BERT's is neither trained nor used here: its weights would be random in each process.
    """
    model_class: Any = MODEL_MAPPING.get(type(config), None)  # none of an architecture that brings its own code
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    return model_class is not None and "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
