"""The model of a pretraining run: a pretrained encoder or a random one, with the settings of the command line."""

import logging
from typing import Any

from transformers import AutoConfig

from docsplit.modeling.long_documents import block_attention
from docsplit.modeling.settings import checked_settings
from docsplit.runtime.arguments import parse_config_overrides
from docsplit.training.arguments import ModelArguments, PretrainingArguments
from modeling_docsplit import DocSplitForContrastivePretraining

logger = logging.getLogger(__name__)


def settings_of(
    model_args: ModelArguments, args: PretrainingArguments, objective_options: dict[str, Any]
) -> dict[str, Any]:
    """The settings of the model that the command line gives; the others are the checkpoint's, or defaults."""
    settings: dict[str, Any] = {
        "pooling": model_args.pooling,
        "max_seq_length": model_args.max_seq_length,
        "objective": args.objective,
        "contrastive_weight": args.contrastive_weight,
        "mlm_weight": args.mlm_weight,
    }
    return {name: value for name, value in settings.items() if value is not None} | objective_options


def load_start(model_args: ModelArguments, settings: dict[str, Any]) -> DocSplitForContrastivePretraining | None:
    """The pretrained encoder; None for a random one, whose size depends on the tokenizer: that is only checked.

    Raises:
        ValueError: if the settings cannot work with this encoder or each other, or there is no such encoder: now,
            before any long work.
    """
    if model_args.model_name_or_path is None:
        overrides = parse_config_overrides(model_args.model_type, model_args.config_overrides)
        checked_settings(AutoConfig.for_model(model_args.model_type, **overrides), settings)
        return None
    attention = {"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}
    return DocSplitForContrastivePretraining.from_pretrained(
        model_args.model_name_or_path, new_mlm_head=model_args.new_mlm_head, **settings, **attention
    )


def prepare_model(
    start: DocSplitForContrastivePretraining | None,
    model_args: ModelArguments,
    args: PretrainingArguments,
    tokenizer: Any,
    settings: dict[str, Any],
) -> DocSplitForContrastivePretraining:
    """What `load_start` gave, or a random encoder for this tokenizer, ready to be trained."""
    model = start if start is not None else _random(model_args, tokenizer, settings)
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} ids, but the encoder embeds {model.config.vocab_size}: leave out "
            "--tokenizer_name to use the encoder's own."
        )
    block_attention(model, model_args.attn_implementation)
    if model_args.lora_r:
        model.add_lora(model_args.lora_r)
    tokenizer.model_max_length = model.config.docsplit["max_seq_length"]
    if args.compile_options is not None:
        model.compile(**args.compile_options)
    model.micro_batch_tokens, model.cache_gradients = args.micro_batch_tokens, args.cache_gradients
    return model


def _random(model_args: ModelArguments, tokenizer: Any, settings: dict[str, Any]) -> DocSplitForContrastivePretraining:
    overrides = parse_config_overrides(model_args.model_type, model_args.config_overrides)
    known, names = AutoConfig.for_model(model_args.model_type), ("pad", "bos", "eos", "cls", "sep")
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in names}
    ids = {name: value for name, value in ids.items() if hasattr(known, name)}
    config = AutoConfig.for_model(model_args.model_type, vocab_size=len(tokenizer), **ids, **overrides)
    config._attn_implementation = model_args.attn_implementation
    return DocSplitForContrastivePretraining(config, **settings)


def length_of_views(settings: dict[str, Any], view_max_length: int | None) -> int:
    """Tokens of a view in training: no more than the encoder reads, which is said where more are asked for."""
    longest = settings["max_seq_length"]
    if view_max_length is not None and view_max_length > longest:
        logger.warning(f"--view_max_length is {view_max_length}, but the encoder reads {longest} tokens: so do views.")
        return longest
    return view_max_length or longest
