"""Turn a BERT or RoBERTa checkpoint into a Longformer that reads documents of thousands of tokens.

    python convert_to_longformer.py bert-base-uncased outputs/longformer_bert --max_positions 4096
    accelerate launch run_docsplit_pretraining.py recipes/longformer_da.yaml \\
        --model_name_or_path outputs/longformer_bert

As the Longformer paper (section 5) and the self-contrastive Bregman paper (section 4.3) do it: the position embeddings
are copied one after another until there are enough, the projections of global attention start as those of the local
one, and all other weights, the MLM head and the tokenizer are taken over. On texts of up to half a window the result
is the source: that is checked before anything is written.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from docsplit.modeling.families.longformer import LONGFORMER
from docsplit.modeling.settings import current_settings, max_positions, settings_for

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
    if window < 2 or window % 2:
        raise ValueError(f"--attention_window is {window}: expected an even number, half of it to either side.")
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

    from docsplit.release.card_results import code, plain

    is_local = Path(source).exists()
    base_model = None if is_local else source
    data = ModelCardData(base_model=base_model, library_name="transformers", pipeline_tag="fill-mask")
    name = plain(out.resolve().name)
    made_of = code(Path(source).resolve().name if is_local else source)
    text = f"""A Longformer of {positions:,} positions and a window of {window:,} tokens, made of {made_of} by
`convert_to_longformer.py` and not trained since. On texts of up to {window // 2 + 1:,} tokens its hidden states and
logits differ from those of its source by {difference:.1e} of the largest; nothing else was measured. Its licence is
that of its source."""
    ModelCard(f"---\n{data}\n---\n\n# {name}\n\n{text}\n").save(out / "README.md")


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    description, _, examples = str(__doc__).partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model = parser.add_argument_group("The Longformer")
    model.add_argument("source", help="BERT or RoBERTa checkpoint, on the Hub or here")
    model.add_argument("out", type=Path, help="folder of the Longformer")
    model.add_argument("--max_positions", type=int, default=4096, help="tokens of the longest text; default: 4096")
    model.add_argument(
        "--attention_window",
        type=int,
        default=512,
        help="tokens that each token attends to, half of them to either side; default: 512",
    )
    release = parser.add_argument_group("Its release")
    release.add_argument("--push_to_hub", action="store_true", help="upload the Longformer to the Hub")
    release.add_argument("--hub_model_id", help="user/name on the Hub; default: the name of the folder")
    release.add_argument("--hub_private_repo", action="store_true", default=None, help="make a new repository private")
    return parser.parse_args()


def main() -> None:
    """Convert, compare on short texts, and only then write."""
    options = parse_options()
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.data.tokenization import load_tokenizer
    from docsplit.embedding.overlap import training_documents_of
    from docsplit.modeling.starts import load_start, read_config
    from docsplit.release import hub
    from docsplit.release.model_card import write_card
    from modeling_docsplit import DocSplitForContrastivePretraining

    if options.push_to_hub:  # a token that may not write is found before the work
        name = options.hub_model_id or options.out.resolve().name
        options.hub_model_id = hub.create_repository(name, options.hub_private_repo)

    settings = getattr(read_config(options.source, {}), "docsplit", None)
    start = load_start(options.source, dtype=torch.float32)
    source = start.encoder if start.has_head else with_random_head(start.encoder)
    tokenizer = load_tokenizer(options.source)
    model = convert(source, options.max_positions, options.attention_window, tokenizer.sep_token_id)
    LONGFORMER.patch_forward(model.base_model)
    difference = largest_difference(source, model, tokenizer)
    if not difference <= TOLERANCE:
        raise RuntimeError(
            f"On short texts the Longformer differs from its source by {difference:.1e} of the largest."
        )
    tokenizer.model_max_length = options.max_positions
    encoder = model if start.has_head else without_head(model)
    if settings is None:
        encoder.save_pretrained(options.out)
    else:  # of a checkpoint of this project or of a SentenceTransformer, with its pooling
        one_encoder = settings_for("info_nce", current_settings(settings)) | {"max_seq_length": options.max_positions}
        one_encoder |= {} if start.has_head else {"mlm_weight": 0.0}
        DocSplitForContrastivePretraining(encoder.config, encoder, **one_encoder).save_pretrained(options.out)
    if settings is None or "objective" not in settings:
        window = options.attention_window
        write_card_of_conversion(options.out, options.source, options.max_positions, window, difference)
    else:
        if (record := training_documents_of(options.source)) is not None:
            record.save(options.out)
        write_card(options.out, options.hub_model_id)
    tokenizer.save_pretrained(options.out)
    print(
        f"{options.out}: {options.max_positions} positions, window {options.attention_window}; on texts of up to "
        f"{options.attention_window // 2 + 1} tokens it differs from {options.source} by {difference:.1e}."
    )
    if options.push_to_hub:
        hub.push_at_the_end(options.out, options.hub_model_id, f"Longformer made of {Path(options.source).name}")


command = as_command(main)
if __name__ == "__main__":
    command()
