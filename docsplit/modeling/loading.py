"""A name to an encoder: any as a SentenceTransformer, with the pooling, prompts and length that it was made with.

sentence-transformers reads the files and makes the modules. Here is what it does not do: modules of this project
(graph documents, words) are made by the installed code, and no code of a folder runs; an `AutoModel` is pooled as the
DocSplit paper does; weights that would be random, and what is no encoder of documents, are refused.

Folders of encoders with modules of this project carry a copy of their code for other programs, which run it with
`trust_remote_code=True`.
"""

import contextlib
import copy
import functools
import json
import logging
import math
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
from sentence_transformers.sentence_transformer.modules import Module, Normalize, Pooling, Router, Transformer
from sentence_transformers.util import import_from_string, is_sentence_transformer_model
from tokenizers import Tokenizer

from docsplit.modeling import checked_files, encoder_with_words
from docsplit.modeling.checked_files import (
    LENGTH,
    MODULES,
    CannotLoad,
    check_vocabulary,
    max_positions,
    share_among_threads,
)
from docsplit.modeling.encoder_with_words import AddWords, EncoderWithWords, Words
from docsplit.modeling.families.table import FAMILIES, family_of, modules_of_families
from docsplit.modeling.pooling import PoolingMode
from docsplit.runtime.files import refuse_missing_path, write_text
from docsplit.runtime.gpus import refuse_unusable_gpu

logger = logging.getLogger(__name__)

SETTINGS = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
WORDS_FILE = Path(str(encoder_with_words.__file__))
WITH_WORDS = {f"{WORDS_FILE.stem}.{module.__name__}": module for module in (EncoderWithWords, AddWords)}
NO_ENCODERS = re.compile(r"For(\w*Classification|QuestionAnswering|MultipleChoice|NextSentencePrediction)$|ColBERT")
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # the names that `encode_document` tries
MOST_APART = 1e-3  # share of its length that a text's vector in a batch may be from that alone
_LOADING = threading.RLock()  # transformers builds models through settings that all threads have in common


# --- The modules of an encoder ---


class KnownModules(dict[str, Any]):
    """The classes of modules by their names in modules.json; sentence-transformers asks it for each."""

    def get(self, name: Any, default: Any = None) -> Any:
        """Return the class of a module: one of this project or of sentence-transformers.

        Raises:
            ValueError: for another: its code is not run.
        """
        for family in FAMILIES.values():
            if name == family.module:
                return _refusing_random_weights(family.module_class())
        if name in WITH_WORDS:
            return WITH_WORDS[name]
        module_class: Any = None
        if str(name).startswith("sentence_transformers."):
            with contextlib.suppress(ImportError, AttributeError):
                module_class = import_from_string(name)
        if not (isinstance(module_class, type) and issubclass(module_class, Module)):
            raise ValueError(f"The module {name!r} is neither one of sentence-transformers nor of this project.")
        return _refusing_random_weights(module_class)


@functools.cache
def _refusing_random_weights(kind: Any) -> Any:
    """Return a class of modules that refuses weights that the checkpoint lacks; others than `Transformer` as it is."""
    if not issubclass(kind, Transformer):
        return kind

    class Checked(kind):
        def _load_model(self, model_name_or_path: str, *args: Any, **kwargs: Any) -> Any:
            with without_load_reports():
                model, info = super()._load_model(model_name_or_path, *args, output_loading_info=True, **kwargs)
            refuse_random_weights(model_name_or_path, model, info["missing_keys"])
            return model

        @classmethod
        def load(cls, *args: Any, **kwargs: Any) -> Any:
            module = super().load(*args, **kwargs)
            module.__class__ = kind  # which modules.json will name
            return module

    return Checked


def refuse_random_weights(name: Any, model: Any, missing: Any) -> None:
    """Refuse weights that a checkpoint lacks: they would be random. Poolers, which nothing here uses, are zero.

    Raises:
        CannotLoad: naming some.
    """
    state = model.state_dict()
    for key in missing:
        if "pooler." in key:
            state[key].zero_()  # shares the memory of the weights
    if lacking := sorted(key for key in missing if "pooler." not in key):
        raise CannotLoad(
            f"{str(name)!r} lacks {len(lacking)} weights of its own architecture, such as {lacking[:3]}: they would "
            "be random. Is it the checkpoint of another model?"
        )


@contextlib.contextmanager
def without_load_reports() -> Iterator[None]:
    """Hide transformers' reports of weights that are missing or have no place: they are looked at here."""

    def is_no_report(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        return "LOAD REPORT" not in text and "checkpoint seem corrupted" not in text

    logs = logging.getLogger("transformers.modeling_utils")
    logs.addFilter(is_no_report)
    try:
        yield
    finally:
        logs.removeFilter(is_no_report)


class SentenceTransformer(sentence_transformers.SentenceTransformer):
    """An encoder whose modules the installed code makes, and that is saved with the code for other programs.

    It carries its parent's name, because a card shows the class name.
    """

    default_huggingface_organization = None  # a name means the same to all loaders
    _module_classes = KnownModules(dict.fromkeys(modules_of_families()))  # some, or `load` of words does not get it

    def _load_default_modules(  # type: ignore[override]
        self, model_name_or_path: str, **kwargs: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """Make the modules of an `AutoModel`, pooled as its family is unless told."""
        hub = {"cache_dir" if name == "cache_folder" else name: value for name, value in kwargs.items()}
        config = checked_files.read_config(model_name_or_path, **checked_files.hub_arguments(hub))
        for kind in filter(NO_ENCODERS.search, config.architectures or []):
            raise CannotLoad(
                f"{model_name_or_path} is a {kind}, which gives no embeddings of documents: choose an encoder, such "
                "as the model that it was made of."
            )
        family = family_of(config)
        kind = family.module or f"{Transformer.__module__}.{Transformer.__name__}"
        first = self._module_classes.get(kind).load(model_name_or_path, **kwargs)
        if family.rows == "passages":
            return [first], {}
        if first.max_seq_length is None or first.max_seq_length >= 2**31:
            first.max_seq_length = LENGTH
        return [first, Pooling(first.get_embedding_dimension(), default_pooling(config))], {}

    def _load_converted_modules(  # type: ignore[override]
        self, model_name_or_path: str, model_type: str | None = None, **kwargs: Any
    ) -> Any:
        """Refuse other models of sentence-transformers: without their heads they are something else."""
        raise CannotLoad(
            f"{model_name_or_path} is a {model_type}, which gives no embeddings of documents: choose a "
            "SentenceTransformer."
        )

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


def default_pooling(config: Any) -> str:
    """Return the pooling of an encoder that says nothing of it: `cls`, the DocSplit paper's, or its family's."""
    return family_of(config).default_settings.get("pooling", "cls")


def portable_type(name: str) -> str:
    """Return the name of a module's class as modules.json has it: FILE.CLASS for those of this project."""
    return ".".join(name.split(".")[-2:]) if name.startswith("docsplit.") else name


# --- A name to an encoder ---


def load_encoder(
    name_or_path: str,
    pooling: PoolingMode | None = None,
    max_seq_length: int | None = None,
    device: str | None = None,
    prompt: str | None = None,
    query_prompt: str | None = None,
    **options: Any,
) -> SentenceTransformer:
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
        options: of `from_pretrained`: `revision`, `token`, `cache_dir`, `local_files_only`, `attn_implementation`, and
            `trust_remote_code`, without which no code of a folder runs.

    Raises:
        ValueError: if there is no encoder at this name, `max_seq_length` is below 1 or more than it has positions for,
            or there is a GPU that PyTorch cannot use.

    Example:
        >>> from docsplit import load_encoder
        >>> model = load_encoder("sentence-transformers/all-MiniLM-L6-v2", max_seq_length=128)
        >>> model.encode_document(["boats in the harbour"]).shape
        (1, 384)
    """
    if max_seq_length is not None and max_seq_length < 1:
        raise ValueError(f"max_seq_length is {max_seq_length}, expected 1 token or more.")
    if device is None:
        refuse_unusable_gpu()
    name, hub = str(name_or_path), checked_files.hub_arguments(options)
    refuse_missing_path(name, checked_files.EXPECTED_ENCODER)
    trust = {"trust_remote_code": options.pop("trust_remote_code", False)}  # None would ask on the terminal
    checked_files.check_files(name, hub, trusts=trust["trust_remote_code"])

    # Modules
    of_model = {key: value for key, value in options.items() if key not in checked_files.HUB_ARGUMENTS}
    named = {"cache_folder" if key == "cache_dir" else key: value for key, value in hub.items()}
    model: Any
    with _LOADING, checked_files.as_cannot_load(name):
        model = SentenceTransformer(name, device=device, model_kwargs=of_model, **named, **trust)
        says_pooling = is_sentence_transformer_model(name, **named)
    first, words = without_words(model)[0], words_of(model)
    if (words is None) == isinstance(model[-1], AddWords):
        raise CannotLoad(
            f"{name}: {MODULES} has words of documents in one module of two, expected {list(WITH_WORDS)}."
        )
    if words is not None:
        _check_width(without_words(model), words)
    pools = any(isinstance(module, Pooling) for module in model)
    if getattr(first, "module_output_name", "") == "token_embeddings" and not pools:
        raise CannotLoad(f"{name} has no module that pools its tokens' states: it gives no embeddings of documents.")
    if pooling not in (None, pooling_of(model)):
        if says_pooling or not pools:
            logger.info(f"{name} brings its own pooling: --pooling {pooling} is not used for it.")
        else:
            replace_pooling(model, pooling)
    model.float().eval()
    if prompt is not None or query_prompt is not None:
        model.prompts, model.default_prompt_name = changed_prompts(
            model.prompts, model.default_prompt_name, prompt, query_prompt
        )

    # Tokenizer and attention, where the first module reads tokens and is no table of vectors, say
    positions = None
    if isinstance(first, Transformer) or is_graph_encoder(model):
        encoder: Any = first.model
        if model.tokenizer is None:
            raise CannotLoad(
                f"{name} is a {encoder.config.model_type}, which reads no text: choose an encoder of texts."
            )
        check_vocabulary(model.tokenizer, name, getattr(encoder.config, "vocab_size", None))
        checked_files.pad_on_the_right(model.tokenizer, name)
        share_among_threads(model.tokenizer)
        is_ours = type(first).__module__.startswith("docsplit.") or not says_pooling
        family_of(encoder.config).prepare_loaded(encoder, is_ours)
        positions = max_positions(encoder.config)

    # Length
    if max_seq_length is not None and model.max_seq_length == math.inf:
        logger.info(f"{name} is static and reads whole texts: --max_seq_length changes nothing.")
    elif max_seq_length is not None:
        if positions is not None and max_seq_length > positions:
            raise ValueError(
                f"--max_seq_length is {max_seq_length}, but {name} has positions for {positions} tokens: lower it."
            )
        model.max_seq_length = max_seq_length
    elif positions is not None and (model.max_seq_length is None or model.max_seq_length > positions):
        model.max_seq_length = positions
    refuse_vectors_of_padding(model, name)
    return model


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Let a model compute without dropout, and leave it as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def refuse_vectors_of_padding(model: Any, name: Any) -> None:
    """Refuse an encoder of which a text's vector depends on what else is in its batch, or which reads no batch.

    A short and a long text of its own tokens are embedded alone and together. Flash attention, which reads no padding
    and no float32, is not tried; nor are tables of token vectors and graphs of passages, which no padding reaches.

    Raises:
        CannotLoad: naming the family.
    """
    plain = without_words(model)
    if not isinstance(plain[0], Transformer) or plain[0].model.dtype != torch.float32:
        return
    config, tokenizer = plain[0].model.config, plain.tokenizer
    if "flash" in str(config._attn_implementation):
        return
    ids = np.linspace(len(tokenizer) // 5, len(tokenizer) - 1, 24).astype(int).tolist()
    ids = [number for number in ids if number not in tokenizer.all_special_ids]
    texts = [tokenizer.decode(ids[:1]), tokenizer.decode(ids)]
    try:
        with evaluating(model):
            together, *alone = (
                plain.encode(batch, prompt="", show_progress_bar=False, convert_to_numpy=True)
                for batch in (texts, texts[:1], texts[1:])
            )
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        raise CannotLoad(
            f"{name} is a {config.model_type}, which cannot read a short and a long text in one batch: choose another "
            f"encoder. The cause: {checked_files.cause_of(error)}"
        ) from error
    apart = np.linalg.norm(together - np.concatenate(alone), axis=1).max()
    is_equal = apart <= MOST_APART * np.linalg.norm(alone, axis=-1).max()
    if not is_equal and np.isfinite(alone).all():  # else the encoder is broken, as embedding will say
        raise CannotLoad(
            f"{name} is a {config.model_type}, in which padding enters a text's vector: alone and beside a longer one "
            f"it has vectors {apart:.2g} apart. Choose another encoder."
        )


def encoder_around(encoder: Any, tokenizer: Any, pooling: Any, max_seq_length: int) -> SentenceTransformer:
    """Make a SentenceTransformer of a model of transformers, or a graph document model, that is in memory.

    Args:
        pooling: one of `PoolingMode`; None for an encoder that combines passages by itself.
    """
    kind: Any = family_of(encoder.config).module_class() or Transformer
    if not issubclass(kind, Transformer):
        return SentenceTransformer(modules=[kind(encoder, tokenizer, max_seq_length)], device="cpu")

    class InMemory(kind):
        def _load_config(self, *args: Any) -> Any:
            return encoder.config, False

        def _load_model(self, *args: Any, **kwargs: Any) -> Any:
            return encoder

    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        first: Any = InMemory.load(folder)
    first.__class__ = kind
    first.max_seq_length = max_seq_length
    modules = [first, Pooling(first.get_embedding_dimension(), pooling)]
    return SentenceTransformer(modules=modules, device="cpu")


# --- What an encoder is ---


def has_words(name_or_path: str) -> bool:
    """Whether an encoder adds words to its vectors, by its files."""
    return any(module["type"] in WITH_WORDS for module in checked_files.read_modules(name_or_path, {}) or [])


def is_graph_encoder(model: Any) -> bool:
    """Whether an encoder embeds texts whole, by their passages."""
    return family_of(getattr(model[0], "config", None)).rows == "passages"


def has_routes(model: Any) -> bool:
    """Whether documents and queries go through different modules."""
    return any(isinstance(module, Router) for module in model)


def has_graph_attention(model: Any) -> bool:
    """Whether passages attend to each other; a graph document model without layers only takes their mean."""
    return is_graph_encoder(model) and getattr(model[0].config, "graph_layers", 0) > 0


def pooling_of(model: Any) -> str:
    """Return how an encoder pools, its modes joined by +; without a module that pools, the name of its last module."""
    plain = without_words(model)
    modes = [module.pooling_mode for module in plain if isinstance(module, Pooling)]
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
    return document_prompt(*known), query_prompt(*known)


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


# --- Another tokenizer, another pooling, and words ---


def replace_tokenizer(model: Any, tokenizer: Any) -> None:
    """Let an encoder read texts by a copy of another tokenizer, as long as before."""
    first, length = model[0], model.max_seq_length
    setattr(first, "processor" if isinstance(first, Transformer) else "tokenizer", copy.deepcopy(tokenizer))
    model.max_seq_length = length


def replace_pooling(model: Any, pooling: PoolingMode) -> str:
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
    brought, is_pooling = pooling_of(model), [isinstance(module, Pooling) for module in model]
    if not any(is_pooling):
        raise ValueError(f"--override_pooling {pooling} needs an encoder with a pooling module, not {brought}.")
    position = is_pooling.index(True)
    old, width = model[position], model[position].embedding_dimension
    is_bound = any(not isinstance(module, Normalize) for module in list(model)[position + 1 :])
    if old.get_embedding_dimension() != width and is_bound:
        raise ValueError(f"--override_pooling {pooling} gives {width} numbers; what follows {brought} takes more.")
    model[position] = Pooling(width, pooling_mode=pooling, include_prompt=old.include_prompt)
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
