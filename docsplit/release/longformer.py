"""A BERT or RoBERTa as a Longformer: its weights, how far it is from its source, and its card."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from docsplit.modeling.checked_files import max_positions
from docsplit.modeling.families.longformer import LONGFORMER

if TYPE_CHECKING:
    from transformers import LongformerForMaskedLM

SOURCES = ("bert", "roberta", "xlm-roberta", "camembert")  # the same layers under the same names
TOLERANCE = 1e-4  # of hidden states and logits


def convert(source: Any, num_positions: int, window: int, sep_token_id: int | None = None) -> "LongformerForMaskedLM":
    """Make a Longformer with the weights of a BERT- or RoBERTa-like masked language model.

    Args:
        source: a masked language model of one of the types `SOURCES`.
        num_positions: tokens of the longest text.
        window: tokens that each token attends to, half of them to either side.

    Raises:
        ValueError: for another architecture, or numbers that cannot work.
    """
    from transformers import LongformerConfig, LongformerForMaskedLM

    old = source.config
    if old.model_type not in SOURCES or getattr(old, "is_decoder", False):
        raise ValueError(f"The source is a {old.model_type}, expected an encoder of one of the types {SOURCES}.")
    if old.model_type == "bert" and old.hidden_act != "gelu":
        raise ValueError(f"The source's MLM head has the activation {old.hidden_act}; a Longformer's has gelu only.")
    num_old = max_positions(old) or 0
    if num_positions < num_old:
        raise ValueError(f"--max_positions is {num_positions}, but the source has {num_old} already.")
    taken = (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
        "hidden_dropout_prob", "attention_probs_dropout_prob", "type_vocab_size", "initializer_range",
        "layer_norm_eps", "pad_token_id", "bos_token_id", "eos_token_id",
    )  # fmt: skip
    # Configure
    config = LongformerConfig(
        **{name: getattr(old, name) for name in taken},
        sep_token_id=sep_token_id,
        max_position_embeddings=num_positions + old.pad_token_id + 1,  # counted from there, as RoBERTa's
        attention_window=[window] * old.num_hidden_layers,
    )
    model = LongformerForMaskedLM(config)

    # Rename the weights; projections of global attention start as those of the local one
    weights = {}
    for name, tensor in source.state_dict().items():
        name = name.replace(f"{source.base_model_prefix}.", "longformer.", 1)
        for theirs, ours in (
            ("cls.predictions.transform.dense", "lm_head.dense"),
            ("cls.predictions.transform.LayerNorm", "lm_head.layer_norm"),
            ("cls.predictions.decoder", "lm_head.decoder"),
            ("cls.predictions.bias", "lm_head.bias"),
        ):
            name = name.replace(theirs, ours)
        weights[name] = tensor
        for projection in ("query", "key", "value"):
            if f".self.{projection}." in name:
                weights[name.replace(f"{projection}.", f"{projection}_global.")] = tensor
    # Copy the positions one after another until there are enough
    positions = "longformer.embeddings.position_embeddings.weight"
    first = len(weights[positions]) - num_old  # RoBERTa's begin after the padding id
    table = model.state_dict()[positions].zero_()
    table[-num_positions:] = weights[positions][first:][torch.arange(num_positions) % num_old]
    weights[positions] = table
    expected = set(model.state_dict())
    # Buffers (position ids) and what the encoder does not use (poolers) are left behind; nothing may be missing.
    missing = model.load_state_dict({k: v for k, v in weights.items() if k in expected}, strict=False).missing_keys
    if missing:
        raise ValueError(f"The source has no weights for {missing[:5]}.")
    return model


def with_random_head(encoder: Any) -> Any:
    """Give an encoder a masked-LM head, for `convert`; `without_head` takes it off."""
    from transformers import AutoModelForMaskedLM

    source = AutoModelForMaskedLM.from_config(encoder.config)
    source.base_model.load_state_dict(encoder.state_dict(), strict=False)  # the pooler has no place there
    return source


@torch.no_grad()
def without_head(model: "LongformerForMaskedLM") -> Any:
    """Return a Longformer as `AutoModel` has it, its pooler zero."""
    from transformers import LongformerModel

    encoder = LongformerModel(model.config)
    missing = encoder.load_state_dict(model.longformer.state_dict(), strict=False).missing_keys
    for name in missing:  # the pooler's
        encoder.get_parameter(name).zero_()
    return encoder


@torch.no_grad()
def largest_difference(source: Any, model: "LongformerForMaskedLM", tokenizer: Any) -> float:
    """Compare hidden states and MLM logits, relative to the largest, on random texts of up to half a window."""
    window = LONGFORMER.length_multiple(model.base_model)
    longest = min(window // 2 + 1, max_positions(source.config) or window)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([longest, max(longest // 2, 1), 1])[:, None]
    mask = (torch.arange(longest) < lengths).long()
    ordinary = torch.tensor(sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    input_ids = ordinary[torch.randint(len(ordinary), mask.shape, generator=generator)]
    input_ids = input_ids.masked_fill(mask == 0, source.config.pad_token_id)
    differences = []
    for left, right in ((source, model), (source.base_model, model.base_model)):
        ours, theirs = (net.eval()(input_ids=input_ids, attention_mask=mask)[0][mask == 1] for net in (left, right))
        differences.append(float((ours - theirs).abs().max() / ours.abs().max()))
    return max(differences)


def write_card_of_conversion(out: Path, source: str, positions: int, window: int, difference: float) -> None:
    """Write README.md of a Longformer that no script of this project has trained yet."""
    from huggingface_hub import ModelCard, ModelCardData

    from docsplit.evaluation.results.markdown import code, inline

    is_local = Path(source).exists()
    base_model = None if is_local else source
    data = ModelCardData(base_model=base_model, library_name="transformers", pipeline_tag="fill-mask")
    name = inline(out.resolve().name)
    made_of = code(Path(source).resolve().name if is_local else source)
    text = f"""A Longformer of {positions:,} positions and a window of {window:,} tokens, made of {made_of} by
`convert_to_longformer.py` and not trained since. On texts of up to {window // 2 + 1:,} tokens its hidden states and
logits differ from those of its source by {difference:.1e} of the largest; nothing else was measured. Its licence is
that of its source."""
    ModelCard(f"---\n{data}\n---\n\n# {name}\n\n{text}\n").save(out / "README.md")
