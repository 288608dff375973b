"""Any encoder as a SentenceTransformer, with the pooling, prompts and maximum length that it was made with.

Folders of encoders with modules of this project (graph documents, words) carry a copy of their code for other
programs, which run it with `trust_remote_code=True`. Here the installed code loads them, and no code of a folder runs.
"""

import contextlib
import json
import logging
import math
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sentence_transformers
from sentence_transformers.base.modules import Module
from sentence_transformers.models import Dense, Normalize, Transformer
from sentence_transformers.models import Pooling as PoolingModule
from sentence_transformers.util import import_module_class, is_sentence_transformer_model
from tokenizers import Tokenizer

from docsplit.data.tokenization import check_vocabulary, share_among_threads
from docsplit.modeling import encoder_with_words, pretrained
from docsplit.modeling.encoder_with_words import AddWords, EncoderWithWords, Words
from docsplit.modeling.families.table import FAMILIES, family_of, modules_of_families
from docsplit.modeling.pooling import Pooling
from docsplit.modeling.pretrained import (
    MODEL_FILE,
    MODULES,
    NO_CODE,
    changed_prompts,
    default_settings,
    has_pooler,
    max_positions,
    similarity_of,
    stated_length,
)
from docsplit.modeling.saving import dense_folder
from docsplit.modeling.vectors import KEPT, dense_configs, normalizes
from docsplit.runtime.files import JsonObject, refuse_missing_path, write_text
from docsplit.runtime.launching import refuse_unusable_gpu

logger = logging.getLogger(__name__)

SETTINGS = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
WORDS_FILE = Path(str(encoder_with_words.__file__))
WITH_WORDS = {f"{WORDS_FILE.stem}.{module.__name__}": module for module in (EncoderWithWords, AddWords)}
_LOADING = threading.RLock()  # transformers builds models through settings that all threads have in common


class SentenceTransformer(sentence_transformers.SentenceTransformer):
    """An encoder with modules of this project, saved with the code that programs without this package load it with.

    It carries its parent's name, because a card shows the class name.
    """

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Save as the parent does, but name the modules as other programs import them, and write their code."""
        super().save(path, *args, **kwargs)
        modules = json.loads((Path(path) / MODULES).read_text(encoding="utf-8"))
        for module in modules:
            module["type"] = portable_type(module["type"])
        write_text(Path(path) / MODULES, json.dumps(modules, indent=2) + "\n")
        for family in FAMILIES.values():
            if family.module in [modules[0]["type"], getattr(self[0], "inner_type", None)]:
                family.write_code(Path(path))
        if words_of(self) is not None:
            write_text(Path(path) / WORDS_FILE.name, WORDS_FILE.read_text(encoding="utf-8"))


def portable_type(name: str) -> str:
    """Return the name of a module's class as modules.json has it: FILE.CLASS for those of this project."""
    return ".".join(name.split(".")[-2:]) if name.startswith("docsplit.") else name


# --- A name to an encoder ---


def load_encoder(
    name_or_path: str,
    pooling: Pooling | None = None,
    max_seq_length: int | None = None,
    device: str | None = None,
    prompt: str | None = None,
    query_prompt: str | None = None,
) -> sentence_transformers.SentenceTransformer:
    """Load an encoder, frozen or not, with the pooling, prompts and maximum length that it was made with.

    Args:
        name_or_path: on the Hub or here, a SentenceTransformer (checkpoints of this project are such) or any
            `AutoModel`.
        pooling: of an `AutoModel` whose checkpoint says nothing about it; default `cls`, the DocSplit paper's.
        max_seq_length: tokens of a text, special ones included. Default: what the encoder's files say, as
            SentenceTransformer reads them: the tokenizer's length, and no more than there are positions for.
        device: where it computes. Default: the GPU, where there is one.
        prompt, query_prompt: before each document and each query: its `prompts`, saved with it. Default: the
            checkpoint's; an empty one is none.

    Raises:
        ValueError: if there is no encoder at this name, `max_seq_length` is more than it has positions for, or there
            is a GPU that PyTorch cannot use.

    Example:
        >>> from docsplit import load_encoder
        >>> model = load_encoder("sentence-transformers/all-MiniLM-L6-v2", max_seq_length=128)
        >>> model.encode_document(["boats in the harbour"]).shape
        (1, 384)
    """
    if device is None:
        refuse_unusable_gpu()
    refuse_missing_path(name_or_path, pretrained.EXPECTED)
    pretrained.check_files(name_or_path, {})

    # Modules
    model: Any
    with _LOADING, _missing_weights() as missing, pretrained.loading(name_or_path):
        types = module_types(name_or_path) if is_sentence_transformer_model(name_or_path) else []
        is_assembled = not types or types[0] in modules_of_families()
        if is_assembled:
            model = _assemble(name_or_path, pooling, device)
        elif WITH_WORDS.keys().isdisjoint(types):
            for module in types:
                _module_class(module)
            model = sentence_transformers.SentenceTransformer(name_or_path, device=device, **NO_CODE)
        else:
            model = _load_with_words(name_or_path, types, device)
    first = without_words(model)[0]
    if lacking := sorted(name for name in missing if "pooler" not in name):
        raise ValueError(
            f"{name_or_path!r} lacks {len(lacking)} weights of its own architecture, such as {lacking[:3]}: they "
            "would be random. Is it the checkpoint of another model?"
        )
    if missing:  # a random pooler: of no use here, and other weights at each loading
        first.model.pooler = None
    if pooling not in (None, pooling_of(model)):
        logger.info(f"{name_or_path} brings its own pooling: --pooling {pooling} is not used for it.")
    model.float().eval()
    if prompt is not None or query_prompt is not None:
        model.prompts, model.default_prompt_name = changed_prompts(
            model.prompts, model.default_prompt_name, prompt, query_prompt
        )

    # Tokenizer and attention, where the first module reads tokens and is no table of vectors, say
    positions = None
    if isinstance(first, Transformer) or is_graph_encoder(model):
        encoder: Any = first.model
        check_vocabulary(model.tokenizer, name_or_path, getattr(encoder.config, "vocab_size", None))
        pretrained.pad_on_the_right(model.tokenizer, name_or_path)
        share_among_threads(model.tokenizer)
        is_ours = is_assembled or getattr(model[0], "inner_type", None) in modules_of_families()
        family_of(encoder.config).prepare_loaded(encoder, is_ours)
        positions = max_positions(encoder.config)

    # Length
    if max_seq_length is not None and model.max_seq_length == math.inf:
        logger.info(f"{name_or_path} is static and reads whole texts: --max_seq_length changes nothing.")
    elif max_seq_length is not None:
        if positions is not None and max_seq_length > positions:
            raise ValueError(
                f"--max_seq_length is {max_seq_length}, but {name_or_path} has positions for {positions} tokens: "
                "lower it; --long_documents chunk_mean reads longer documents all the same."
            )
        model.max_seq_length = max_seq_length
    elif positions is not None and (model.max_seq_length is None or model.max_seq_length > positions):
        model.max_seq_length = positions
    return model


def _assemble(name_or_path: str, pooling: Pooling | None, device: str | None) -> Any:
    """Return a SentenceTransformer of an `AutoModel`, or of a checkpoint of this project without the module in it."""
    config = pretrained.read_config(name_or_path)
    family = family_of(config)
    settings = getattr(config, "docsplit", None)
    similarity: Any = similarity_of(settings or {})
    if family.rows == "passages":
        module = family.module_class().load(name_or_path)
        return SentenceTransformer(modules=[module], device=device, similarity_fn_name=similarity)
    settings = settings or {"pooling": pooling or default_settings(config)["pooling"]}
    without_pooler = {"add_pooling_layer": False} if has_pooler(config) else {}
    transformer = Transformer(
        name_or_path,
        model_kwargs=NO_CODE | without_pooler,
        processor_kwargs=dict(NO_CODE),
        config_kwargs=dict(NO_CODE),
    )
    pooler = PoolingModule(transformer.get_embedding_dimension(), pooling_mode=settings["pooling"])
    dense = [Dense.load(name_or_path, dense_folder(number)) for number, _ in enumerate(dense_configs(settings))]
    kept = settings.get(KEPT, {}).get("model", {})
    model = sentence_transformers.SentenceTransformer(
        modules=[transformer, pooler, *dense, *([Normalize()] if normalizes(settings) else [])],
        device=device,
        prompts=kept.get("prompts"),
        default_prompt_name=kept.get("default_prompt_name"),
        similarity_fn_name=similarity,
    )
    model.max_seq_length = settings.get("max_seq_length") or stated_length(model.max_seq_length, config)
    return model


def _load_with_words(name_or_path: str, types: list[str], device: str | None) -> SentenceTransformer:
    """Load an encoder with words by the installed code.

    Raises:
        ValueError: naming what is missing, damaged, or a module neither of sentence-transformers nor of this project.
    """
    if [types[0], types[-1]] != list(WITH_WORDS) or not WITH_WORDS.keys().isdisjoint(types[1:-1]):
        raise ValueError(f"{MODULES} has the modules {types}: expected {' first and '.join(WITH_WORDS)} last.")
    paths = [module["path"] for module in pretrained.read_modules(name_or_path, {}) or []]
    first: Any = EncoderWithWords.load(name_or_path, module_class=_module_class)
    others = [_module_class(kind).load(name_or_path, path) for kind, path in zip(types[1:-1], paths[1:-1])]
    last = AddWords.load(name_or_path, paths[-1])
    config: JsonObject = pretrained.read_file(name_or_path, MODEL_FILE, {}) or {}
    settings: JsonObject = {name: config.get(name) for name in SETTINGS}
    model = SentenceTransformer(modules=[first, *others, last], device=device, **settings)
    _check_width(without_words(model), first.words)
    return model


def _module_class(name: str) -> Any:
    """Return the class of a module by its name in modules.json; no code of a folder or another program is run."""
    for family in FAMILIES.values():
        if name == family.module:
            return family.module_class()
    module_class: Any = None
    if str(name).startswith("sentence_transformers."):
        with contextlib.suppress(ImportError, AttributeError):
            module_class = import_module_class(name)
    if not (isinstance(module_class, type) and issubclass(module_class, Module)):
        raise ValueError(f"The module {name!r} is neither one of sentence-transformers nor of this project.")
    return module_class


@contextlib.contextmanager
def _missing_weights() -> Iterator[set[str]]:
    """Collect the weights that a checkpoint lacks, by what transformers logs of it, though nothing may be shown."""
    logs = logging.getLogger("transformers.modeling_utils")
    missing: set[str] = set()
    level, shown_level = logs.level, logs.getEffectiveLevel()

    def read(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "LOAD REPORT" not in text:
            return record.levelno >= shown_level
        keys = (line.split("|") for line in text.splitlines())
        missing.update(key.strip() for key, *status in keys if re.search("MISSING|MISMATCH", "".join(status[:1])))
        return False

    logs.addFilter(read)
    # Not at the level of warnings: there, transformers also checks each model's plan for tensor parallelism, and lists
    # all layers as "not sharded".
    logs.setLevel(logging.INFO)
    try:
        yield missing
    finally:
        logs.removeFilter(read)
        logs.setLevel(level)


# --- What an encoder is ---


def module_types(name_or_path: str) -> list[str]:
    """Return the types of an encoder's modules, in order; none where there is no modules.json."""
    return [module["type"] for module in pretrained.read_modules(name_or_path, {}) or []]


def has_words(name_or_path: str) -> bool:
    """Whether an encoder adds words to its vectors, by its files."""
    return not WITH_WORDS.keys().isdisjoint(module_types(name_or_path))


def says_pooling(name_or_path: str) -> bool:
    """Whether an encoder brings its pooling: SentenceTransformers and this project's checkpoints do."""
    return is_sentence_transformer_model(name_or_path) or hasattr(pretrained.read_config(name_or_path), "docsplit")


def is_graph_encoder(model: Any) -> bool:
    """Whether an encoder embeds texts whole, by their passages."""
    return family_of(getattr(model[0], "config", None)).rows == "passages"


def has_graph_attention(model: Any) -> bool:
    """Whether passages attend to each other; a graph document model without layers only takes their mean."""
    return is_graph_encoder(model) and getattr(model[0].config, "graph_layers", 0) > 0


def pooling_of(model: Any) -> str:
    """Return how an encoder pools, its modes joined by +; without a module that pools, the name of its last module."""
    plain = without_words(model)
    modes = [module.pooling_mode for module in plain if isinstance(module, PoolingModule)]
    return "+".join(modes[0] if modes and not isinstance(modes[0], str) else modes) or type(plain[-1]).__name__


def tokens_read(model: Any) -> int | None:
    """Return how many tokens an encoder reads of a text; None: all, as a static encoder does."""
    length = model.max_seq_length
    return None if length is None or length == math.inf else length


def reader_config(model: Any) -> Any:
    """Return the config of the part of an encoder that reads tokens; None where there is none, as in a static one."""
    config = getattr(without_words(model)[0], "config", None)
    return None if config is None else family_of(config).token_encoder(config)


def tokenizer_of(model: Any) -> Any:
    """Return the tokenizer of an encoder's first module; None if it has none."""
    return getattr(model[0], "processor", None) or getattr(model[0], "tokenizer", None)


def fast_tokenizer(model: Any) -> Tokenizer | None:
    """Return what tokenizer.json of an encoder holds; None for a tokenizer that is written in Python."""
    tokenizer = tokenizer_of(model)
    return tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)


def prompts_of(model: Any) -> tuple[str, str]:
    """Return the prompts before documents and before queries: the model's own for them, else its default one."""
    known = model.prompts, model.default_prompt_name
    return pretrained.document_prompt(*known), pretrained.query_prompt(*known)


# --- Another pooling, and words ---


def replace_pooling(model: Any, pooling: Pooling) -> str:
    """Pool by another mode than the encoder brings, in place (mean in pretraining and max in classification, say).

    Returns: the mode that it brought.

    Raises:
        ValueError: if it has no module that pools, what follows takes another width, or it adds words.
    """
    if words_of(model) is not None:
        raise ValueError(
            f"--override_pooling {pooling} would change vectors that words were fitted to: fit words to an encoder "
            "with that pooling."
        )
    brought, is_pooling = pooling_of(model), [isinstance(module, PoolingModule) for module in model]
    if not any(is_pooling):
        raise ValueError(f"--override_pooling {pooling} needs an encoder with a pooling module, not {brought}.")
    position = is_pooling.index(True)
    old, width = model[position], model[position].embedding_dimension
    if old.get_embedding_dimension() != width and position < len(model) - 1:
        raise ValueError(f"--override_pooling {pooling} gives {width} numbers; what follows {brought} takes more.")
    model[position] = PoolingModule(width, pooling_mode=pooling, include_prompt=old.include_prompt)
    return brought


def words_of(model: Any) -> Words | None:
    """Return the words that an encoder adds to its vectors; None if it adds none."""
    return model[0].words if isinstance(model[0], EncoderWithWords) else None


def with_words(model: Any, words: Words, weight: float = 1.0) -> SentenceTransformer:
    """Return an encoder with words added to its vectors; the modules are shared, nothing is copied.

    Words that `model` has are left out.

    Raises:
        ValueError: for words of another width than the encoder's vectors.
    """
    plain = without_words(model)
    _check_width(plain, words)
    first, *others = plain
    # The name of the first module in modules.json: that of the family whose attention it was given by `load_encoder`
    inner_type = portable_type(f"{type(first).__module__}.{type(first).__name__}")
    family = family_of(getattr(first, "config", None))
    if family.module and "forward" in vars(getattr(first, "model", family)):
        inner_type = family.module
    modules = [EncoderWithWords(first, words, inner_type), *others, AddWords(weight)]
    return SentenceTransformer(modules=modules, **_options(plain))


def without_words(model: Any) -> Any:
    """Return the plain encoder of one with words, which shares its modules; another encoder as it is."""
    if words_of(model) is None:
        return model
    return SentenceTransformer(modules=[model[0].inner, *list(model)[1:-1]], **_options(model))


def save_plain(model: Any, folder: Path) -> None:
    """Write an encoder without words, with the code of this project's modules."""
    plain = without_words(model)
    SentenceTransformer(modules=list(plain), **_options(plain)).save(str(folder), create_model_card=False)


def _options(model: Any) -> dict[str, Any]:
    return {"device": str(model.device)} | {name: getattr(model, name) for name in SETTINGS}


def _check_width(plain: Any, words: Words) -> None:
    with plain.truncate_embeddings(None):
        width = plain.get_embedding_dimension()
    if width is not None and words.vectors().shape[1] != width:
        raise ValueError(
            f"The words have vectors of {words.vectors().shape[1]} numbers, the encoder of {width}: fit them again."
        )
