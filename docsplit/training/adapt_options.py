"""The options of adapting an encoder. Nothing heavy is imported: `--help` reads this module."""

from dataclasses import dataclass
from typing import Literal

from docsplit.modeling.pooling import PoolingMode
from docsplit.runtime.bounds import Length, Positive, Whole, option
from docsplit.runtime.options import find_recipe


@dataclass
class AdaptOptions:
    """What is made, of which documents, and how it is chosen.

    Raises:
        ValueError: for a value out of range, or a recipe that does not exist.

    Example:
        >>> from docsplit import AdaptOptions, adapt
        >>> options = AdaptOptions(static=True)
        >>> adapt("sentence-transformers/all-MiniLM-L6-v2", "python_docs", "outputs/static", options).kept
        'static'
    """

    static: bool = option(
        False,
        "Write the words alone, without the encoder: some 90 times as fast on long documents (CPU).",
        common=True,
    )
    train: bool = option(
        False,
        "Train the encoder on DOCUMENTS first (neighbour distillation, minutes), then add words to it.",
        common=True,
    )
    recipe: str = option(
        "adapt", "Recipe of --train: the name of one that comes with the project, or a file of your own."
    )
    text_column: str = option("text", "Column of the text, where DOCUMENTS are rows.", common=True)
    encoding: str | None = option(None, "Encoding of local text files (default: UTF-8, or what is detected).")
    probe_corpus: str | None = option(
        None,
        "Labelled documents (a file or a Hub name) to choose by: what is best with 5 labels a class and with all, by "
        "cross-validation, is written, and the start where nothing beats it. Their validation and test parts are kept "
        "out of DOCUMENTS.",
        common=True,
    )
    probe_text_column: str = option("text", "Column of the text in --probe_corpus.")
    probe_label_column: str = option("label", "Column of the label in --probe_corpus.")
    penalty: Positive | None = option(
        None, "Ridge penalty of the words: higher values shrink their weights. Default: chosen by leave-one-out."
    )
    neighbours: Whole = option(
        20,
        "Fit words to each document's vector averaged with those of its N nearest documents; 0: to its vector alone.",
        common=True,
    )
    pooling: PoolingMode | None = option(
        None,
        "How token vectors become one embedding, for an encoder that does not say: cls, mean, max, lasttoken or "
        "weightedmean. Default: cls; lasttoken for a decoder.",
    )
    max_seq_length: Length | None = option(
        None,
        "Tokens that the encoder reads of each text; words are counted in the whole text. Default: the encoder's own.",
    )
    prompt: str | None = option(
        None,
        "Text to put before each document, for an encoder that needs one and whose files do not say it, such as "
        "'passage: ' for E5; OUTPUT keeps it. Default: the encoder's own.",
    )
    query_prompt: str | None = option(
        None, "Text to put before each query, such as 'query: ' for E5; OUTPUT keeps it. Default: the encoder's own."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "Precision of the encoder's matrix products; auto: bfloat16 where the hardware has it, else float32."
    )
    push_to_hub: bool = option(False, "Upload OUTPUT, with its card, to the Hub.", common=True)
    hub_model_id: str | None = option(None, "Name on the Hub, USER/NAME. Default: the name of OUTPUT.")
    hub_private_repo: bool | None = option(None, "Make a new repository private, and refuse a public one.")

    def __post_init__(self) -> None:
        if self.train:
            find_recipe(self.recipe)
        elif self.recipe != "adapt":
            raise ValueError(f"--recipe {self.recipe} is for --train: add it, or leave the recipe out.")
        if self.hub_model_id is not None and not self.push_to_hub:
            raise ValueError("--hub_model_id names where --push_to_hub uploads to: add that, or leave it out.")
