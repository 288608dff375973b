"""The options of adapting an encoder. Nothing heavy is imported: `--help` reads this module."""

from dataclasses import dataclass, field
from typing import Literal

from docsplit.modeling.pooling import Pooling
from docsplit.runtime.arguments import find_recipe
from docsplit.runtime.help import COMMON


@dataclass
class EmbeddingOptions:
    """How the encoder embeds, here and in what is written."""

    pooling: Pooling | None = field(
        default=None,
        metadata={
            "help": "How token states become an embedding, where the encoder does not say. Default: cls; lasttoken of "
            "a decoder."
        },
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Tokens that the encoder reads; words are of the whole text. Default: the encoder's."},
    )
    prompt: str | None = field(
        default=None, metadata={"help": "Prompt before each document. Default: the encoder's own."}
    )
    dtype: Literal["auto", "float32", "bfloat16"] = field(
        default="auto", metadata={"help": "Precision of matrix products. auto: bfloat16 where the hardware has it."}
    )


@dataclass
class HubOptions:
    """The Hub."""

    push_to_hub: bool = field(default=False, metadata={COMMON: True, "help": "Upload OUTPUT, with its card."})
    hub_model_id: str | None = field(default=None, metadata={"help": "USER/NAME. Default: named after OUTPUT."})
    hub_private_repo: bool | None = field(default=None, metadata={"help": "Make a new repository private."})


@dataclass
class AdaptOptions(EmbeddingOptions, HubOptions):
    """What is made, of which documents, and how it is chosen.

    Raises:
        ValueError: for a value out of range, or a recipe that does not exist.
    """

    static: bool = field(
        default=False,
        metadata={
            COMMON: True,
            "help": "Write the words alone: a static encoder, some 90 times as fast on long documents (CPU).",
        },
    )
    train: bool = field(
        default=False,
        metadata={
            COMMON: True,
            "help": "Train the encoder on the documents first (neighbour distillation), then fit words to it.",
        },
    )
    recipe: str = field(default="adapt", metadata={"help": "Recipe of --train: a name, or a file of your own."})
    text_column: str = field(
        default="text", metadata={COMMON: True, "help": "Column of DOCUMENTS, where they are rows."}
    )
    probe_corpus: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Labelled documents, as a file or a name: what is best on validation documents is written, and "
            "the start where nothing beats it. Validation and test documents are kept out of DOCUMENTS.",
        },
    )
    probe_text_column: str = field(default="text", metadata={"help": "Column of --probe_corpus."})
    probe_label_column: str = field(default="label", metadata={"help": "Column of --probe_corpus."})
    penalty: float | None = field(
        default=None, metadata={"help": "Ridge penalty of the words. Default: chosen by leave-one-out."}
    )
    neighbours: int = field(
        default=20,
        metadata={
            COMMON: True,
            "help": "Fit words to vectors averaged with those of N nearest documents. 0: to the vectors alone.",
        },
    )

    def __post_init__(self) -> None:
        if self.max_seq_length is not None and self.max_seq_length < 3:
            raise ValueError(f"--max_seq_length is {self.max_seq_length}: a token needs room beside the special ones.")
        if self.penalty is not None and not 0 < self.penalty < float("inf"):
            raise ValueError(f"--penalty is {self.penalty}: expected a number above 0, such as 1.")
        if self.neighbours < 0:
            raise ValueError(f"--neighbours is {self.neighbours}: expected 0 (none) or more.")
        if self.train:
            find_recipe(self.recipe)
        elif self.recipe != "adapt":
            raise ValueError(f"--recipe {self.recipe} is for --train: add it, or leave the recipe out.")
        if self.hub_model_id is not None and not self.push_to_hub:
            raise ValueError("--hub_model_id names where --push_to_hub uploads to: add that, or leave it out.")
