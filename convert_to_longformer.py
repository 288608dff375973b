"""Turn a BERT or RoBERTa checkpoint into a Longformer that reads documents of thousands of tokens.

    python convert_to_longformer.py bert-base-uncased outputs/longformer_bert --max_positions 4096
    python run_docsplit_pretraining.py recipes/longformer_da_simcse.yaml \\
        --model_name_or_path outputs/longformer_bert

It follows the Longformer paper (section 5) and the self-contrastive Bregman paper (section 3.1). The position
embeddings are copied one after another until there are enough. The projections of global attention start as copies of
the local ones. All other weights, the MLM head and the tokenizer are kept. On texts of up to half a window the result
equals the source, which is checked before anything is written.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import argparse
from pathlib import Path

from docsplit.runtime.bounds import Bound
from docsplit.runtime.options import CommandParser


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandParser(__doc__)
    model = parser.add_argument_group("The Longformer")
    model.add_argument("source", help="BERT or RoBERTa checkpoint: Hub name or folder")
    model.add_argument("out", type=Path, help="folder to write the Longformer into")
    model.add_argument("--max_positions", type=Bound(1), default=4096, help="most tokens of a text (default: 4096)")
    model.add_argument(
        "--attention_window",
        type=Bound(2),
        default=512,
        help="tokens that each token attends to, half of them on each side (default: 512)",
    )
    release = parser.add_argument_group("Its release")
    release.add_argument("--push_to_hub", action="store_true", help="upload the Longformer, with its card, to the Hub")
    release.add_argument("--hub_model_id", help="name on the Hub, USER/NAME (default: the name of the folder)")
    help_text = "make a new repository private, and refuse a public one"
    release.add_argument("--hub_private_repo", action="store_true", default=None, help=help_text)
    options = parser.parse_args()
    if options.attention_window % 2:
        parser.error(f"--attention_window {options.attention_window}: give an even number, half of it for each side")
    return options


def main() -> None:
    """Convert into a folder where nothing of others is in the way."""
    options = parse_options()
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.runtime.files import name_failed_writes
    from docsplit.runtime.sharing import OutputFolder

    with OutputFolder(options.out, "convert_to_longformer.py", "OUT"), name_failed_writes(options.out):
        convert_checkpoint(options)


def convert_checkpoint(options: argparse.Namespace) -> None:
    """Convert, compare on short texts, and only then write.

    Raises:
        ValueError: for a source that cannot be converted.
        RuntimeError: if the Longformer differs from its source.
    """
    import torch
    from sentence_transformers.util import is_sentence_transformer_model

    from docsplit.data.seen_documents import training_documents_of
    from docsplit.modeling.families.longformer import LONGFORMER
    from docsplit.modeling.start import current_settings, load_start, settings_for, start_around
    from docsplit.release import hub
    from docsplit.release.longformer import (
        TOLERANCE,
        convert,
        largest_difference,
        with_random_head,
        without_head,
        write_card_of_conversion,
    )
    from docsplit.release.model_card import write_card
    from docsplit.runtime.launching import describe_computing
    from modeling_docsplit import DocSplitForContrastivePretraining

    if options.push_to_hub:  # a token that may not write is found before the work
        name = options.hub_model_id or options.out.resolve().name
        options.hub_model_id = hub.create_repository(name, options.hub_private_repo)

    begun = load_start(options.source, {})
    settings = begun.body[0].config.docsplit
    print(describe_computing(torch.device("cpu"), torch.float32, begun.body[0].config))
    source = begun.masked_lm if begun.masked_lm is not None else with_random_head(begun.body[0].model)
    tokenizer = begun.body.tokenizer
    if source.config.pad_token_id is None:
        source.config.pad_token_id = tokenizer.pad_token_id
    model = convert(source, options.max_positions, options.attention_window, tokenizer.sep_token_id)
    LONGFORMER.patch_forward(model.base_model)
    difference = largest_difference(source, model, tokenizer)
    if not difference <= TOLERANCE:
        raise RuntimeError(f"On short texts it differs from its source by {difference:.1e} of the largest number.")
    tokenizer.model_max_length = options.max_positions
    encoder = model if begun.masked_lm is not None else without_head(model)
    if is_sentence_transformer_model(options.source):  # it keeps its pooling and what follows
        made = start_around(encoder, tokenizer, None, options.max_positions)
        begun.body[0] = made.body[0]
        one_encoder = settings_for("info_nce", current_settings(settings))
        one_encoder |= {} if made.masked_lm is not None else {"mlm_weight": 0.0}
        made.body[0].config.docsplit = one_encoder  # given to the constructor, they would change its similarity
        DocSplitForContrastivePretraining(begun.body, made.masked_lm).save_pretrained(options.out)
    else:
        encoder.save_pretrained(options.out)
    if "objective" not in settings:
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
