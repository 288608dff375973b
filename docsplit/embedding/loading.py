"""Any encoder as a SentenceTransformer, with the pooling, prompts and maximum length that it was made with."""

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Transformer
from sentence_transformers.models import Pooling as PoolingModule
from sentence_transformers.util import is_sentence_transformer_model

from docsplit.data.tokenization import check_vocabulary, share_among_threads
from docsplit.embedding import graphs, project_modules
from docsplit.embedding.arguments import EncoderArguments, Stated
from docsplit.embedding.project_modules import (
    WITH_WORDS,
    load_stock,
    load_with_words,
    module_types,
    without_words,
    words_of,
)
from docsplit.modeling import pretrained
from docsplit.modeling.after_pooling import KEPT, dense_configs, normalizes
from docsplit.modeling.families.table import family_of, modules_of_families
from docsplit.modeling.pooling import Pooling
from docsplit.modeling.sentence_transformers_files import dense_folder, document_prompt, query_prompt, similarity_of
from docsplit.modeling.settings import DEFAULT_SETTINGS, default_settings, has_pooler, max_positions
from docsplit.runtime.files import refuse_missing_path
from docsplit.runtime.launching import refuse_unusable_gpu

logger = logging.getLogger(__name__)

_LOADING = threading.RLock()  # transformers builds models through settings that all threads have in common


def load_encoder(
    name_or_path: str, pooling: Pooling | None = None, max_seq_length: int | None = None, device: str | None = None
) -> SentenceTransformer:
    """Load an encoder, frozen or not, with the pooling, prompts and maximum length that it was made with.

    Args:
        name_or_path: on the Hub or here, a SentenceTransformer (checkpoints of this project are such) or any
            `AutoModel`.
        pooling: of an `AutoModel` whose checkpoint says nothing about it; default `cls`, the DocSplit paper's.
        max_seq_length: tokens of a text, special ones included. Default: the checkpoint's; where it says nothing,
            512 or what the encoder has positions for.
        device: where it computes. Default: the GPU, where there is one.

    Raises:
        ValueError: if there is no encoder at this name, `max_seq_length` is more than it has positions for, or there
            is a GPU that PyTorch cannot use.
    """
    if device is None:
        refuse_unusable_gpu()
    refuse_missing_path(name_or_path, pretrained.EXPECTED)
    pretrained.check_files(name_or_path, {})
    with _LOADING, _reading_report() as report, pretrained.loading(name_or_path):
        types = module_types(name_or_path) if is_sentence_transformer_model(name_or_path) else []
        is_assembled = not types or types[0] in modules_of_families()
        if is_assembled:
            model: SentenceTransformer = _assemble(name_or_path, pooling, device)
        else:
            if pooling is not None:
                logger.info(f"{name_or_path} brings its own pooling: --pooling {pooling} is not used for it.")
            has_words = not WITH_WORDS.keys().isdisjoint(types)
            load = load_with_words if has_words else load_stock
            model = load(name_or_path, device=device)
        plain = without_words(model)
    if report.missing:
        raise ValueError(
            f"{name_or_path!r} lacks {len(report.missing)} weights of its own architecture, such as "
            f"{sorted(report.missing)[:3]}: they would be random. Is it the checkpoint of another model?"
        )
    if report.random_pooler:  # of no use here, and other weights at each loading
        first: Any = plain[0]
        first.model.pooler = None
    model.float().eval()
    positions = None
    if _reads_tokens(plain):
        encoder: Any = plain[0].model
        check_vocabulary(model.tokenizer, name_or_path, getattr(encoder.config, "vocab_size", None))
        pretrained.pad_on_the_right(model.tokenizer, name_or_path)
        share_among_threads(model.tokenizer)
        is_ours = is_assembled or getattr(model[0], "inner_type", None) in modules_of_families()
        family_of(encoder.config).prepare_loaded(encoder, is_ours)
        positions = max_positions(encoder.config)
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


def _reads_tokens(model: SentenceTransformer) -> bool:
    """Whether the first module is an encoder of tokens, rather than a table of vectors, say."""
    return isinstance(model[0], Transformer) or graphs.is_graph_encoder(model)


def _assemble(name_or_path: str, pooling: Pooling | None, device: str | None) -> SentenceTransformer:
    """Return a SentenceTransformer of an `AutoModel`, or of a checkpoint of this project without the module in it."""
    config = pretrained.read_config(name_or_path)
    family = family_of(config)
    if family.rows == "passages":
        similar: Any = similarity_of(getattr(config, "docsplit", {}))
        module = family.module_class().load(name_or_path)
        return project_modules.SentenceTransformer(modules=[module], device=device, similarity_fn_name=similar)
    settings = getattr(config, "docsplit", {"pooling": pooling or default_settings(config)["pooling"]})
    if pooling not in (None, settings["pooling"]):
        logger.info(f"{name_or_path} brings its own pooling: --pooling {pooling} is not used for it.")
    arguments = {"add_pooling_layer": False} if has_pooler(config) else {}
    no_code = pretrained.NO_CODE
    transformer = Transformer(
        name_or_path, model_kwargs=no_code | arguments, processor_kwargs=dict(no_code), config_kwargs=dict(no_code)
    )
    pooler = PoolingModule(transformer.get_embedding_dimension(), pooling_mode=settings["pooling"])
    dense = [Dense.load(name_or_path, dense_folder(number)) for number, _ in enumerate(dense_configs(settings))]
    similarity: Any = similarity_of(settings)
    kept = settings.get(KEPT, {}).get("model", {})
    model = SentenceTransformer(
        modules=[transformer, pooler, *dense, *([Normalize()] if normalizes(settings) else [])],
        device=device,
        prompts=kept.get("prompts"),
        default_prompt_name=kept.get("default_prompt_name"),
        similarity_fn_name=similarity,
    )
    default = min(DEFAULT_SETTINGS["max_seq_length"], model.max_seq_length or 512)
    model.max_seq_length = settings.get("max_seq_length", default)
    return model


class _LoadReport(logging.Filter):
    """Read what transformers logs about a checkpoint: missing weights matter, unused ones do not."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level  # of what is shown
        self.missing: set[str] = set()
        self.random_pooler = False

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "LOAD REPORT" not in text:
            return record.levelno >= self.level
        for line in text.splitlines():
            key, *status = line.split("|")
            if status and ("MISSING" in status[0] or "MISMATCH" in status[0]):
                if "pooler" in key:
                    self.random_pooler = True
                else:
                    self.missing.add(key.strip())
        return False


@contextmanager
def _reading_report() -> Iterator[_LoadReport]:
    """Read the report of what is loaded, even where nobody wants to see warnings."""
    logs = logging.getLogger("transformers.modeling_utils")
    level, report = logs.level, _LoadReport(logs.getEffectiveLevel())
    logs.addFilter(report)
    # Not at the level of warnings: there, transformers also checks each model's plan for tensor parallelism, and lists
    # all layers as "not sharded".
    logs.setLevel(logging.INFO)
    try:
        yield report
    finally:
        logs.removeFilter(report)
        logs.setLevel(level)


def replace_pooling(model: SentenceTransformer, pooling: Pooling) -> str:
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
    positions = [position for position, module in enumerate(model) if isinstance(module, PoolingModule)]
    if not positions:
        modules = " -> ".join(type(module).__name__ for module in model)
        raise ValueError(
            f"--override_pooling {pooling} needs an encoder with a pooling module; this one is {modules}."
        )
    old: Any = model[positions[0]]
    brought = describe_encoder(model).pooling
    width = old.embedding_dimension
    if old.get_embedding_dimension() != width and positions[0] < len(model) - 1:
        raise ValueError(f"--override_pooling {pooling} gives {width} numbers; what follows {brought} takes more.")
    model[positions[0]] = PoolingModule(width, pooling_mode=pooling, include_prompt=old.include_prompt)
    return brought


def says_pooling(name_or_path: str) -> bool:
    """Whether an encoder brings its pooling: SentenceTransformers and this project's checkpoints do."""
    return is_sentence_transformer_model(name_or_path) or hasattr(pretrained.read_config(name_or_path), "docsplit")


def own_options(name_or_path: str, stated: Stated, options: EncoderArguments) -> EncoderArguments:
    """Return the options with the pooling and the prompt that an argument states of its encoder: those win."""
    own: dict[str, Any] = {"prompt": stated.prompt} if stated.prompt is not None else {}
    if stated.pooling is not None:
        option = "override_pooling" if says_pooling(name_or_path) else "pooling"
        own |= {"pooling": None, "override_pooling": None, option: stated.pooling}
    return replace(options, **own)


@dataclass(frozen=True)
class ModelFacts:
    """What decides the embeddings of a model."""

    pooling: str
    max_seq_length: int | None  # None: whole texts are read
    num_parameters: int  # those of words included


def describe_encoder(model: SentenceTransformer) -> ModelFacts:
    """Describe what decides its embeddings, for the rows of results."""
    plain = without_words(model)
    poolers = [module for module in plain if isinstance(module, PoolingModule)]
    modes = [poolers[0].pooling_mode] if poolers and isinstance(poolers[0].pooling_mode, str) else None
    modes = modes or [mode for pooler in poolers for mode in pooler.pooling_mode]
    return ModelFacts(
        pooling="+".join(modes) or type(plain[-1]).__name__,
        max_seq_length=tokens_read(model),
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def reader_config(model: SentenceTransformer) -> Any:
    """Return the config of the part of an encoder that reads tokens; None where there is none, as in a static one."""
    config = getattr(without_words(model)[0], "config", None)
    return None if config is None else family_of(config).token_encoder(config)


def tokens_read(model: SentenceTransformer) -> int | None:
    """Return how many tokens an encoder reads of a text; None: all, as a static encoder does."""
    length = model.max_seq_length
    return None if length is None or length == math.inf else length


def resolve_prompt(model: SentenceTransformer, prompt: str | None) -> str:
    """Return the prompt before each text; for None the model's for documents, else its default prompt."""
    return document_prompt(model.prompts, model.default_prompt_name) if prompt is None else prompt


def resolve_query_prompt(model: SentenceTransformer, prompt: str | None) -> str:
    """Return the prompt before each query; for None the model's for queries, else its default prompt."""
    return query_prompt(model.prompts, model.default_prompt_name) if prompt is None else prompt
