"""The model of a pretraining run: a pretrained encoder or a random one, with the settings of the command line."""

import logging
from typing import Any

import torch
from transformers import AutoConfig, AutoModel

from docsplit.data.segmentation import DEFAULT_SPLITTER
from docsplit.data.tokenization import check_vocabulary
from docsplit.data.views import OF_PASSAGES
from docsplit.modeling.families.table import family_named, family_of
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.modeling.pretrained import OF_VIEWS, Settings, checked_settings, default_settings, read_config
from docsplit.runtime.launching import describe_computing
from docsplit.runtime.options import Options, parse_config_overrides
from docsplit.training.arguments import DataArguments, ModelArguments, RunOptions
from modeling_docsplit import DocSplitForContrastivePretraining

logger = logging.getLogger(__name__)
OF_THE_TOKENIZER = tuple(f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep"))  # in a configuration


def given_settings(options: RunOptions) -> Settings:
    """Return the settings of the model that the options give; the others are the checkpoint's, or defaults."""
    settings: Settings = {
        "pooling": options.model.pooling,
        "max_seq_length": options.model.max_seq_length,
        "objective": options.training.objective,
        "contrastive_weight": options.training.contrastive_weight,
        "mlm_weight": options.training.mlm_weight,
        "view": options.data.view,
    }
    return {name: value for name, value in settings.items() if value is not None} | options.objective


def load_start(options: RunOptions) -> DocSplitForContrastivePretraining | None:
    """Load the pretrained encoder; None for a random one, whose size depends on the tokenizer: it is only checked.

    Raises:
        ValueError: if the settings cannot work with this encoder or each other, or there is no such encoder: now,
            before any long work.
    """
    model_args, settings = options.model, given_settings(options)
    if model_args.model_name_or_path is None:
        _refuse_overrides_of_the_tokenizer(model_args.config_overrides or "")
        config = random_config(model_args)
        checked_settings(config, settings)
        _check_sizes(config, model_args)
        return None
    keywords: Options = (
        {"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}
    )
    family = family_named(model_args.model_type)
    if family.built_on is not None:
        overrides, of_inner = _divide_overrides(model_args)
        if of_inner:
            raise ValueError(
                f"--config_overrides beside a start are of the {model_args.model_type} "
                f"({', '.join(family.config_options)}): leave out {of_inner}."
            )
        keywords |= {"model_type": model_args.model_type, "config_overrides": overrides}
    start = DocSplitForContrastivePretraining.from_pretrained(
        model_args.model_name_or_path, new_mlm_head=model_args.new_mlm_head, **settings, **keywords
    )
    _note_inherited(model_args.model_name_or_path, start.config, settings)
    _go_on_with_view(start.config, options)
    return start


def _go_on_with_view(config: Any, options: RunOptions) -> None:
    """Take the view over from the start where none is given; say so, or that the start does not tell.

    Raises:
        ValueError: if other options do not go with the start's view.
    """
    data, name, is_of_passages = options.data, name_of_start(options.model), family_of(config).rows == "passages"
    of_start: Settings = {}
    if name is not None:  # else it becomes a part of a new encoder
        of_start = {option: config.docsplit[option] for option in OF_VIEWS if option in config.docsplit}
        of_start |= {"passage_words": config.passage_words} if is_of_passages else {}
    is_given = {option: getattr(data, option) is not None for option in OF_VIEWS}
    options.choose_view(of_start)
    matter = OF_VIEWS if is_of_passages or data.view in OF_PASSAGES else ("view",)
    if taken := [option for option in matter if option in of_start and not is_given[option]]:
        logger.info(f"Taken from {name}: {', '.join(f'{option} {getattr(data, option)}' for option in taken)}.")
    if name is not None and not is_given["view"] and "view" not in of_start and hasattr(read_config(name), "docsplit"):
        logger.warning(
            f"{name} does not say which view it was trained with, as checkpoints of earlier versions do not: --view "
            f"{data.view}, the default, is used."
        )


def _check_sizes(config: Any, model_args: ModelArguments) -> None:
    """Build a random encoder without memory, for an error of its sizes or its attention that comes early.

    Raises:
        ValueError: as transformers says it.
    """
    if family_named(model_args.model_type).built_on is not None:
        return
    encoder = _build_without_memory(config, model_args)
    _note_random_start(model_args, encoder.num_parameters())


def _build_without_memory(config: Any, model_args: ModelArguments) -> Any:
    try:
        with torch.device("meta"):
            return AutoModel.from_config(config, attn_implementation=model_args.attn_implementation)
    except (ValueError, ImportError, LookupError, ArithmeticError, TypeError, AttributeError, RuntimeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"No {model_args.model_type} can be made with these --config_overrides and --attn_implementation: {why}"
        ) from error


def _note_random_start(model_args: ModelArguments, num_parameters: int) -> None:
    """Say that nothing is pretrained; as a warning where it may not be what was meant, for no size was given."""
    size = f"{num_parameters / 1e6:.{0 if num_parameters >= 1e7 else 1}f} million parameters"
    text = f"There is no --model_name_or_path: a {model_args.model_type} of {size} starts from random weights."
    if model_args.config_overrides is not None:
        logger.info(text)
        return
    logger.warning(
        f"{text} That needs a large corpus and long training. Name a pretrained encoder with --model_name_or_path, or "
        "try the recipe quickstart (`make quickstart`), a small encoder in minutes."
    )


def _refuse_overrides_of_the_tokenizer(overrides: str) -> None:
    for name in (pair.partition("=")[0] for pair in overrides.split(",")):
        if name == "vocab_size" or name in OF_THE_TOKENIZER:
            raise ValueError(
                f"--config_overrides {name}: the tokenizer says it. --vocab_size is that of a tokenizer trained here, "
                "--tokenizer_name chooses another."
            )


def _note_inherited(name: str, config: Any, given: Settings) -> None:
    """Log which settings come from the start, not from the command line or the defaults.

    Raises:
        ValueError: if only masked LM would be trained although the options do not ask for it.
    """
    settings = config.docsplit
    if not settings["contrastive_weight"] and "contrastive_weight" not in given:
        raise ValueError(
            f"{name} was trained by masked LM alone: its contrastive_weight is 0, and would be here. Say "
            "--contrastive_weight 1 --mlm_weight 0.1 (or other weights) to train it with a contrast, "
            "--contrastive_weight 0 to go on with masked LM."
        )
    defaults = default_settings(config) | vars(OBJECTIVES[settings["objective"]].Options())
    inherited = {key: settings[key] for key in defaults if key not in given and settings[key] != defaults[key]}
    if inherited:
        logger.info(f"Taken from {name}: {', '.join(f'{key} {value}' for key, value in inherited.items())}.")


def prepare_model(
    start: DocSplitForContrastivePretraining | None, options: RunOptions, tokenizer: Any
) -> DocSplitForContrastivePretraining:
    """Make the result of `load_start`, or a random encoder for this tokenizer, ready to be trained."""
    model_args, data_args, args = options.model, options.data, options.training
    model = start if start is not None else _random(model_args, tokenizer, given_settings(options))
    _record_view(model.config.docsplit, data_args)
    check_vocabulary(tokenizer, tokenizer.name_or_path, model.config.vocab_size)
    _note_passages(model, data_args)
    family_of(model.config).prepare_for_training(model, model_args.attn_implementation)
    if model_args.lora_r:
        model.add_lora(model_args.lora_r)
    tokenizer.model_max_length = model.config.docsplit["max_seq_length"]
    model.micro_batch_tokens, model.cache_gradients = args.micro_batch_tokens, args.cache_gradients
    dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
    if args.packed_sequences != "false":
        model.to(args.device)  # type: ignore[arg-type]  # transformers' decorator hides its type
        _pack(model, args.packed_sequences == "true", dtype)
    if args.compile_options is not None:
        torch._dynamo.config.optimize_ddp = False  # it would cut the encoder's program where DDP sends gradients
        model.compile(**args.compile_options)
    how = "packed" if model.packing is not None else "padded"
    logger.info(f"A forward pass takes up to {model.micro_batch_tokens:,} tokens of views, {how}.")
    return model


def _pack(model: DocSplitForContrastivePretraining, is_asked_for: bool, dtype: torch.dtype) -> None:
    """Pack sequences where it was asked for, or by itself where it is faster: on CUDA, in 16-bit precision.

    Raises:
        ValueError: if it was asked for and cannot be.
    """
    on_cuda = model.device.type == "cuda"
    if not is_asked_for and (not on_cuda or dtype == torch.float32):
        return
    try:
        model.pack_sequences(dtype)
    except ValueError as error:
        if is_asked_for:
            raise
        logger.info(f"Sequences are padded. {error}")
        return
    config = family_of(model.config).token_encoder(model.config)
    names = ("attention_probs_dropout_prob", "attention_dropout")
    dropout = next((value for name in names if (value := getattr(config, name, 0))), 0)
    if on_cuda and dropout:
        logger.warning(
            f"Packed sequences: the encoder's dropout of attention weights, {dropout}, is left out. To keep it: "
            "--packed_sequences false, which is slower."
        )


def describe_start(start: DocSplitForContrastivePretraining | None, options: RunOptions) -> str:
    """Describe device, precision and attention of a run, from the result of `load_start`: documents take long."""
    args = options.training
    dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
    config = start.config if start is not None else random_config(options.model)
    reader = family_of(config).token_encoder(config)
    if start is None:
        reader = _build_without_memory(reader, options.model).config  # which chooses the attention
    return describe_computing(args.device, dtype, reader)


def _random(model_args: ModelArguments, tokenizer: Any, settings: Settings) -> DocSplitForContrastivePretraining:
    family = family_named(model_args.model_type)
    known = family.token_encoder(random_config(model_args))
    ids = {name: getattr(tokenizer, name) for name in OF_THE_TOKENIZER if hasattr(known, name)}
    config = random_config(model_args, vocab_size=len(tokenizer), **ids)
    config._attn_implementation = model_args.attn_implementation
    if "mlm_weight" not in settings and family.default_settings.get("mlm_weight") == 0:
        logger.info(f"A {model_args.model_type} has no masked-LM head: mlm_weight is 0.")
    return DocSplitForContrastivePretraining(config, **settings)


def random_config(model_args: ModelArguments, **values: Any) -> Any:
    """Make the configuration of a random start; `values` are those of the encoder that reads tokens.

    Raises:
        ValueError: for --config_overrides that cannot be.
    """
    kind, family = model_args.model_type, family_named(model_args.model_type)
    if family.built_on is None:
        return AutoConfig.for_model(kind, **values, **parse_config_overrides(kind, model_args.config_overrides))
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


def _record_view(settings: Settings, data: DataArguments) -> None:
    """Keep the view in the checkpoint's settings, for those who go on, and the words of its passages if it has any."""
    settings |= {option: getattr(data, option) for option in OF_VIEWS}
    if data.view not in OF_PASSAGES:
        settings.pop("passage_words")


def _note_passages(model: DocSplitForContrastivePretraining, data: DataArguments) -> None:
    """Let the checkpoint of a graph document model cut documents into passages as they are cut in training."""
    config: Any = model.encoder.config
    if family_of(config).rows != "passages":
        return
    if data.sentence_splitter != DEFAULT_SPLITTER:
        logger.warning(
            f"--sentence_splitter {data.sentence_splitter} finds the sentences of passages in training alone: a "
            f"checkpoint finds them by {DEFAULT_SPLITTER}, which it carries."
        )
    config.passage_words = data.passage_words


def length_of_views(settings: Settings, view_max_length: int | None) -> int:
    """Return the tokens of a view in training, at most what the encoder reads; warn if more are wanted."""
    longest = settings["max_seq_length"]
    if view_max_length is not None and view_max_length > longest:
        logger.warning(f"--view_max_length is {view_max_length}, but the encoder reads {longest} tokens: so do views.")
        return longest
    return view_max_length or longest
