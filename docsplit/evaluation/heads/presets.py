"""How heads are trained by gradient, paper by paper: a new paper is a row of `PRESETS`.

Nothing heavy is imported: `--help` reads this module.
"""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class HeadTraining:
    """An MLP of one hidden layer, or a single layer, and how it is trained."""

    learning_rate: float
    batch_size: int
    max_epochs: int  # with all labels, where early stopping ends it sooner
    few_shot_epochs: int  # with few labels: no early stopping, there is nothing to stop on
    patience: int  # epochs without a better validation part
    monitor: Literal["loss", "micro_f1"]  # of the validation part
    weight_decay: float  # 0: Adam; else AdamW
    hidden_layer: bool = True
    activation: Literal["relu", "tanh"] = "relu"
    input_dropout: float = 0.0
    dropout: float = 0.1  # after the hidden layer


@dataclass(frozen=True)
class FineTuning:
    """How the whole encoder is trained."""

    learning_rate: float = 2e-5  # the peak
    num_epochs: float = 3
    batch_size: int = 16  # documents a step, of all processes together
    select_by: str | None = None  # measure on the validation part that chooses the epoch; None: macro_f1


@dataclass(frozen=True)
class Preset:
    """The heads of one paper."""

    mlp: HeadTraining
    linear: HeadTraining | None  # None: logistic regression, C by cross-validation
    finetuning: FineTuning


# The DocSplit paper's probe (first version: 3.3, A.3; second: 4.2, A.1): learning rate and batch size. It leaves open
# the rest; the patience is the Bregman paper's. After 100 epochs unit-length embeddings, the slowest, fit 20 x 5
# documents to a cross-entropy of 0.04.
_DOCSPLIT = HeadTraining(
    learning_rate=3e-4,
    batch_size=8,
    max_epochs=50,
    few_shot_epochs=100,
    patience=3,
    monitor="loss",
    weight_decay=0.0,
)
# "Efficient document embeddings via self-contrastive Bregman divergence learning", 4.2, appendix A and the head of its
# code: dropout, a dense layer as wide as the embedding, tanh, dropout, a layer to the classes.
_BREGMAN = HeadTraining(
    learning_rate=1e-4,
    batch_size=16,  # the paper: by search
    max_epochs=30,  # the paper: SCOTUS; 20 on ECtHR, 10 on MIMIC: --probe_epochs, in their recipes
    few_shot_epochs=100,  # no few-shot runs of this head in the paper
    patience=3,
    monitor="micro_f1",
    weight_decay=0.01,
    activation="tanh",
    input_dropout=0.1,
)
# "Contrastive document representation learning with graph attention networks", Table 6: fine-tuning. The heads on
# frozen embeddings, and what the epoch is selected by, are not said.
_GRAPH = FineTuning(learning_rate=5e-5, num_epochs=20, batch_size=32, select_by="accuracy")

PRESETS: dict[str, Preset] = {
    "docsplit": Preset(_DOCSPLIT, None, FineTuning()),
    "bregman": Preset(
        _BREGMAN, replace(_BREGMAN, hidden_layer=False, input_dropout=0.0), FineTuning(learning_rate=3e-5)
    ),
    "graph": Preset(_DOCSPLIT, None, _GRAPH),  # 20 Newsgroups, IMDB
    "graph_arxiv": Preset(_DOCSPLIT, None, replace(_GRAPH, learning_rate=1e-4)),
    "graph_hyperpartisan": Preset(_DOCSPLIT, None, replace(_GRAPH, learning_rate=3e-5, num_epochs=15)),
}
