"""The model of a pretraining run: a pretrained encoder or a random one, with the settings of the command line."""

import logging
from typing import Any

import torch
from transformers import AutoConfig, AutoModel

from docsplit.data.segmentation import DEFAULT_SPLITTER
from docsplit.data.views import PASSAGE_VIEWS, VIEWS
from docsplit.embedding.encode import LONG
from docsplit.embedding.lexical_start import check_table, epsilons, start_with_words
from docsplit.modeling.checked_files import check_vocabulary, read_config
from docsplit.modeling.families.table import family_named, family_of
from docsplit.modeling.loading import replace_tokenizer
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.modeling.start import (
    VIEW_SETTINGS,
    Settings,
    checked_length,
    checked_settings,
    default_settings,
    refuse_without_dropout,
)
from docsplit.runtime.launching import describe_computing
from docsplit.runtime.options import Options, parse_config_overrides
from docsplit.training.documents import TrainingData
from docsplit.training.run_arguments import ModelArguments, PretrainingArguments, RunOptions
from modeling_docsplit import DocSplitForContrastivePretraining

logger = logging.getLogger(__name__)
EMBEDDING_OPTIONS = ("pooling", "max_seq_length")  # options that are the SentenceTransformer's
TOKENIZER_IDS = tuple(f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep"))  # in a configuration


def given_settings(options: RunOptions) -> Settings:
    """Return the settings of the model that the options give; the others are the checkpoint's, or defaults."""
    names = (*EMBEDDING_OPTIONS, "objective", "contrastive_weight", "mlm_weight", "view")
    values = vars(options.training) | vars(options.data) | vars(options.model)
    return {name: values[name] for name in names if values[name] is not None} | options.objective


def load_model(options: RunOptions) -> DocSplitForContrastivePretraining | None:
    """Load the pretrained encoder; None for a random one, whose size depends on the tokenizer: it is only checked.

    Device, precision and attention are logged: documents, which come next, take long.

    Raises:
        ValueError: if the settings cannot work with this encoder or each other, or there is no such encoder: now,
            before any long work.
    """
    name, args, settings = options.start, options.training, given_settings(options)
    start = None
    if name is None:
        config = random_config(options.model)
        checked_settings(config, {name: value for name, value in settings.items() if name not in EMBEDDING_OPTIONS})
        length, reader = checked_length(config, settings.get("max_seq_length")), _check_random_start(options.model)
    else:
        start = _load_pretrained(options.model, settings)
        _note_inherited(name, start.config, settings)
        _go_on_with_view(start.config, options)
        length, reader = start.body.max_seq_length, family_of(start.config).token_encoder(start.config)
    length = min(length, options.data.view_max_length or length)
    advice = "; on a CPU --view_max_length 512 is faster" if length > LONG and args.device.type == "cpu" else ""
    computing = describe_computing(args.device, _dtype(args), reader)
    logger.info(f"{computing}, up to {length:,} tokens of a view{advice}")
    return start


def _dtype(args: PretrainingArguments) -> torch.dtype:
    return torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32


def _load_pretrained(model_args: ModelArguments, settings: Settings) -> DocSplitForContrastivePretraining:
    keywords: Options = {}
    if model_args.attn_implementation:
        keywords["attn_implementation"] = model_args.attn_implementation
    family = family_named(model_args.model_type)
    if family.built_on is not None:
        overrides, of_inner = _divide_overrides(model_args)
        if of_inner:
            raise ValueError(f"--config_overrides beside a start are of the graph alone: leave out {of_inner}.")
        keywords |= {"model_type": model_args.model_type, "config_overrides": overrides}
    return DocSplitForContrastivePretraining.from_pretrained(
        model_args.model_name_or_path, new_mlm_head=model_args.new_mlm_head, **settings, **keywords
    )


def _check_random_start(model_args: ModelArguments) -> Any:
    """Build a random encoder without memory, for an error of its sizes or its attention that comes early.

    Returns: the configuration of what reads tokens, with the attention that it will have.

    Raises:
        ValueError: as transformers says it; for overrides that are the tokenizer's.
    """
    for name in (pair.partition("=")[0] for pair in (model_args.config_overrides or "").split(",")):
        if name == "vocab_size" or name in TOKENIZER_IDS:
            raise ValueError(f"--config_overrides {name}: the tokenizer says it. See --vocab_size, --tokenizer_name.")
    kind, family = model_args.model_type, family_named(model_args.model_type)
    try:
        with torch.device("meta"):
            reader = family.token_encoder(random_config(model_args))
            encoder: Any = AutoModel.from_config(reader, attn_implementation=model_args.attn_implementation)
    except (ImportError, LookupError, ArithmeticError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"No {kind} can be made with these --config_overrides and --attn_implementation: {why}"
        ) from error
    if model_args.lexical_start:
        check_table(encoder)
    if family.built_on is None and model_args.config_overrides is None:
        logger.warning(
            f"There is no --model_name_or_path: a {kind} of {encoder.num_parameters() / 1e6:.0f} million parameters "
            "starts from random weights, which needs a large corpus and long training. Name a pretrained encoder, or "
            "try the recipe quickstart (`make quickstart`), a small encoder in minutes."
        )
    return encoder.config


def _go_on_with_view(config: Any, options: RunOptions) -> None:
    """Take the view over from the start where none is given, and say so.

    Raises:
        ValueError: if other options do not go with the start's view.
    """
    data, name, is_of_passages = options.data, name_of_start(options.model), family_of(config).rows == "passages"
    of_start: Settings = {}
    if name is not None:  # else it becomes a part of a new encoder
        of_start = {option: config.docsplit[option] for option in VIEW_SETTINGS if option in config.docsplit}
        of_start |= {"passage_words": config.passage_words} if is_of_passages else {}
    is_given = {option: getattr(data, option) is not None for option in VIEW_SETTINGS}
    if VIEWS.origin_in(config.docsplit) and not is_given["view"]:
        VIEWS.check(config.docsplit["view"], config.docsplit, f"{name}: ")
    options.choose_view(of_start)
    matter = VIEW_SETTINGS if is_of_passages or data.view in PASSAGE_VIEWS else ("view",)
    if taken := [option for option in matter if option in of_start and not is_given[option]]:
        logger.info(f"Taken from {name}: {', '.join(f'{option} {getattr(data, option)}' for option in taken)}.")


def _note_inherited(name: str, config: Any, given: Settings) -> None:
    """Log which settings come from the start, not from the command line or the defaults.

    Raises:
        ValueError: if only masked LM would be trained although the options do not ask for it.
    """
    settings = config.docsplit
    if not settings["contrastive_weight"] and "contrastive_weight" not in given:
        raise ValueError(
            f"{name} was trained by masked LM alone: its contrastive_weight is 0, and would be here. Say "
            "--contrastive_weight 1 --mlm_weight 0.1 to train it with a contrast, 0 and 1 to go on with masked LM."
        )
    defaults = default_settings(config) | vars(OBJECTIVES[settings["objective"]].Options())
    inherited = {key: settings[key] for key in defaults if key not in given and settings[key] != defaults[key]}
    if inherited:
        logger.info(f"Taken from {name}: {', '.join(f'{key} {value}' for key, value in inherited.items())}.")


def prepare_model(
    start: DocSplitForContrastivePretraining | None, options: RunOptions, data: TrainingData
) -> DocSplitForContrastivePretraining:
    """Make the result of `load_model`, or a random encoder for these data, ready to be trained."""
    model_args, data_args, args, tokenizer = options.model, options.data, options.training, data.tokenizer
    model = start if start is not None else _random(model_args, data, given_settings(options))
    settings: Settings = model.config.docsplit
    settings |= {
        option: getattr(data_args, option) for option in VIEW_SETTINGS
    }  # for those who go on from the checkpoint
    if data_args.view not in PASSAGE_VIEWS:
        settings.pop("passage_words")
    VIEWS.record(str(data_args.view), settings)
    check_vocabulary(tokenizer, tokenizer.name_or_path, model.config.vocab_size)
    if family_of(model.config).rows == "passages":  # a checkpoint cuts documents into passages as the training does
        model.config.passage_words = data_args.passage_words
        if data_args.sentence_splitter != DEFAULT_SPLITTER:
            logger.warning(
                f"--sentence_splitter {data_args.sentence_splitter} finds the sentences of passages in training "
                f"alone: a checkpoint finds them by {DEFAULT_SPLITTER}, which it carries."
            )
    family_of(model.config).prepare_for_training(model, model_args.attn_implementation)
    if model_args.lora_r:
        model.add_lora(model_args.lora_r)
    replace_tokenizer(model.body, tokenizer)
    tokenizer.model_max_length = model.body.max_seq_length  # Trainer saves it
    model.micro_batch_tokens, model.cache_gradients = args.micro_batch_tokens, args.cache_gradients
    if args.packed_sequences != "false":
        model.to(args.device)  # type: ignore[arg-type]  # transformers' decorator hides its type
        _pack(model, args.packed_sequences == "true", _dtype(args))
    if data_args.view == "simcse" and settings["contrastive_weight"] and model.objective.has_dropout:
        refuse_without_dropout(model)
    if args.compile_options is not None:
        torch._dynamo.config.optimize_ddp = False  # it would cut the encoder's program where DDP sends gradients
        model.compile(**args.compile_options)
    if model.packing is not None:
        logger.info("Sequences are packed, without dropout of attention weights: --packed_sequences false keeps it.")
    return model


def _pack(model: DocSplitForContrastivePretraining, is_asked_for: bool, dtype: torch.dtype) -> None:
    """Pack sequences where it was asked for, or by itself where it is faster: on CUDA, in 16-bit precision.

    Raises:
        ValueError: if it was asked for and cannot be.
    """
    if not is_asked_for and (model.device.type != "cuda" or dtype == torch.float32):
        return
    try:
        model.pack_sequences(dtype)
    except ValueError as error:
        if is_asked_for:
            raise
        logger.info(f"Sequences are padded. {error}")


def _random(model_args: ModelArguments, data: TrainingData, settings: Settings) -> DocSplitForContrastivePretraining:
    family, tokenizer = family_named(model_args.model_type), data.tokenizer
    known = family.token_encoder(random_config(model_args))
    ids = {name: getattr(tokenizer, name) for name in TOKENIZER_IDS if hasattr(known, name)}
    kept = epsilons(known) if model_args.lexical_start else {}
    config = random_config(model_args, vocab_size=len(tokenizer), **ids, **kept)
    config._attn_implementation = model_args.attn_implementation
    if "mlm_weight" not in settings and family.default_settings.get("mlm_weight") == 0:
        logger.info(f"A {model_args.model_type} has no masked-LM head: mlm_weight is 0.")
    model = DocSplitForContrastivePretraining.from_config(config, tokenizer, **settings)
    if model_args.lexical_start:
        reader = family.token_encoder(model.body[0].model)
        data.lexical = start_with_words(reader, data.documents, tokenizer.all_special_ids)
        logger.info(f"Token embeddings come from a {data.lexical.sentence()}.")
    return model


def random_config(model_args: ModelArguments, **values: Any) -> Any:
    """Make the configuration of a random start; `values` are those of the encoder that reads tokens.

    Raises:
        ValueError: for --config_overrides that cannot be.
    """
    kind, family = model_args.model_type, family_named(model_args.model_type)
    if family.built_on is None:
        return AutoConfig.for_model(kind, **values | parse_config_overrides(kind, model_args.config_overrides))
    options, of_inner = _divide_overrides(model_args)
    values |= parse_config_overrides(family.built_on, of_inner)
    return family.make_config(AutoConfig.for_model(family.built_on, **values), options)


def _divide_overrides(model_args: ModelArguments) -> tuple[Options, str]:
    """Divide overrides into those of a family and those of its inner encoder, as they were written."""
    pairs = model_args.config_overrides.split(",") if model_args.config_overrides else []
    options = family_named(model_args.model_type).config_options
    of_family = [pair for pair in pairs if pair.partition("=")[0] in options]
    of_inner = ",".join(pair for pair in pairs if pair not in of_family)
    return parse_config_overrides(model_args.model_type, ",".join(of_family)), of_inner


def name_of_start(model_args: ModelArguments) -> str | None:
    """Return the start if it embeds documents as it stands; the passage encoder of a new graph does not."""
    name = model_args.model_name_or_path
    if name is None or family_named(model_args.model_type).built_on is None:
        return name
    return name if read_config(name).model_type == model_args.model_type else None
