"""The numbers that options take: one table for all scripts, checked right after parsing, before anything is loaded.

A number outside of its row is one line: `--learning_rate -1: give a number of at least 0`. Infinity and NaN are
refused everywhere. A new option with a number needs a row in `BOUNDS`, or its name in `ANY_NUMBER`. A folder to write
into is no file.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LARGEST = 2**63 - 1  # of whole numbers, which libraries take as 64 bits


@dataclass(frozen=True)
class Bound:
    """The numbers that an option takes.

    Attributes:
        least, most: the limits; infinite where there is none.
        above, below: whether the limit itself is refused.
        steps: a number of steps: a whole number, or below 1 a share of all.
        special: a number outside of the limits, and what it stands for.
        remedy: what else the message says.
    """

    least: float = -math.inf
    most: float = math.inf
    above: bool = field(default=False, kw_only=True)
    below: bool = field(default=False, kw_only=True)
    steps: bool = field(default=False, kw_only=True)
    special: tuple[int, str] | None = field(default=None, kw_only=True)
    remedy: str = field(default="", kw_only=True)

    def holds(self, value: float) -> bool:
        """Whether the option takes this number."""
        if self.special is not None and value == self.special[0]:
            return True
        if abs(value) > LARGEST if isinstance(value, int) else not math.isfinite(value):
            return False
        if self.steps and value > 1 and value != int(value):
            return False
        is_enough = value > self.least if self.above else value >= self.least
        return is_enough and (value < self.most if self.below else value <= self.most)

    def wanted(self, is_whole: bool) -> str:
        """Say which numbers the option takes."""
        lower = f"{'above' if self.above else 'of at least'} {self.least:g}" if self.least > -math.inf else ""
        upper = f"{'below' if self.below else 'of at most'} {self.most:.10g}" if self.most < math.inf else ""
        limits = " and ".join(filter(None, (lower, upper)))
        if lower and upper and not self.above and not self.below:
            limits = f"from {self.least:g} to {self.most:.10g}"
        text = f"a whole number {limits}" if is_whole else f"a number {limits}"
        if self.steps:
            first = 1 if self.above else 0
            text = f"a whole number of steps of at least {first}, or a share of all steps between 0 and 1"
        if self.special is not None:
            text += f", or {self.special[0]} ({self.special[1]})"
        return f"{text.strip()}; {self.remedy}" if self.remedy else text.strip()


COUNT = Bound(1)
NOT_NEGATIVE = Bound(0)
POSITIVE = Bound(0, above=True)
SHARE = Bound(0, 1)
DECAY = Bound(0, 1, below=True)
SEED = Bound(0, 2**31 - 1)  # half of what numpy takes: further runs count on from it
STEPS = Bound(0, above=True, steps=True)
TOKENS = Bound(3, remedy="a token needs room beside the special ones")

BOUNDS: dict[str, Bound] = {
    # Documents and encoders, of several scripts
    "max_seq_length": TOKENS,
    "passage_words": Bound(1, remedy="the paper has 100"),
    "max_train_samples": Bound(1, remedy="leave it out for all documents"),
    "max_test_samples": Bound(1, remedy="leave it out for all documents"),
    "max_queries": Bound(1, remedy="leave it out for all queries"),
    "max_documents": Bound(3),
    "embedding_tokens": COUNT,
    "smooth_neighbours": NOT_NEGATIVE,
    "neighbours": NOT_NEGATIVE,
    "seed": SEED,
    "fold": Bound(0, remedy="folds count from 0"),
    # Pretraining: the encoder and the documents
    "vocab_size": Bound(100, remedy="special tokens and letters alone take about as many"),
    "lora_r": NOT_NEGATIVE,
    "view_max_length": TOKENS,
    "shuffle_buffer_size": Bound(1, remedy="1 shuffles nothing"),
    "max_eval_samples": Bound(1, remedy="--eval_strategy no holds no documents out"),
    "preprocessing_num_workers": COUNT,
    "negatives_per_query": COUNT,
    "negatives_depth": COUNT,
    "negatives_min_rank": NOT_NEGATIVE,
    # Pretraining: the loss
    "contrastive_weight": NOT_NEGATIVE,
    "mlm_weight": NOT_NEGATIVE,
    "contrastive_temperature": POSITIVE,
    "momentum_queue_size": Bound(1, remedy="for negatives from the batch alone, --objective info_nce"),
    "momentum": SHARE,
    "num_neighbours": NOT_NEGATIVE,
    "smoothing_rounds": NOT_NEGATIVE,
    "smoothing_share": SHARE,
    "neighbour_temperature": POSITIVE,
    "neighbour_words": NOT_NEGATIVE,
    "bregman_weight": NOT_NEGATIVE,
    "bregman_temperature": POSITIVE,
    "bregman_sigma": POSITIVE,
    "bregman_subnetworks": COUNT,
    "bregman_width": COUNT,
    # Pretraining: the run
    "per_device_train_batch_size": COUNT,
    "per_device_eval_batch_size": COUNT,
    "num_train_epochs": Bound(0, above=True, remedy="--max_steps N stops after N steps"),
    "max_steps": Bound(1, special=(-1, "as many as --num_train_epochs needs")),
    "gradient_accumulation_steps": COUNT,
    "micro_batch_tokens": COUNT,
    "learning_rate": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    "warmup_steps": Bound(0, steps=True),
    "adam_beta1": DECAY,
    "adam_beta2": DECAY,
    "adam_epsilon": Bound(0, above=True, remedy="1e-8 is usual"),
    "max_grad_norm": Bound(0, remedy="0 clips no gradient"),
    "label_smoothing_factor": SHARE,
    "neftune_noise_alpha": NOT_NEGATIVE,
    "logging_steps": STEPS,
    "save_steps": STEPS,
    "eval_steps": STEPS,
    "eval_delay": NOT_NEGATIVE,
    "eval_accumulation_steps": COUNT,
    "save_total_limit": Bound(1, remedy="leave it out to keep all checkpoints"),
    "early_stopping_patience": COUNT,
    "data_seed": SEED,
    "dataloader_num_workers": NOT_NEGATIVE,
    "dataloader_prefetch_factor": COUNT,
    "torch_empty_cache_steps": COUNT,
    "ddp_bucket_cap_mb": COUNT,
    "ddp_timeout": Bound(1, remedy="it is in seconds"),
    "local_rank": Bound(0, special=(-1, "no launcher")),
    # Comparing encoders
    "jobs": COUNT,
    "num_seeds": COUNT,
    "num_draws": COUNT,
    "shots": Bound(0, remedy="0 stands for all labels only"),
    "probe_epochs": COUNT,
    "finetune_learning_rate": POSITIVE,
    "finetune_epochs": POSITIVE,
    "finetune_batch_size": COUNT,
    "sample_documents": Bound(4),
    # Adapting, converting, searching
    "penalty": Bound(0, above=True, remedy="such as 1"),
    "max_positions": COUNT,
    "attention_window": Bound(2),
    "count": COUNT,
}
ANY_NUMBER = (  # but infinity and NaN
    "negatives_margin",
    "threshold",  # a dot product, for some encoders: search.py checks it where the index compares by cosine
)
FOLDERS = ("output_dir", "index_dir", "out")  # to write into


def refusals(options: Mapping[str, Any], bounds: Mapping[str, Bound] = BOUNDS) -> Iterator[str]:
    """Yield a line for each option that has a number out of bounds, or a file as its folder."""
    for name, value in options.items():
        if name in FOLDERS and value is not None and Path(value).is_file():
            yield f"{name if name == 'out' else f'--{name}'} {value} is a file: name a folder, which may be new"
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float) and not isinstance(number, bool):
                bound = bounds.get(name, Bound())
                if not bound.holds(number):
                    shown = number if isinstance(number, int) else f"{number:.10g}"
                    yield f"--{name} {shown}: give {bound.wanted(isinstance(number, int))}"


def check_bounds(options: Any) -> None:
    """Check a dataclass of options, which a program may have made without a command line.

    Raises:
        ValueError: naming the first option out of bounds.
    """
    for refusal in refusals(vars(options)):
        raise ValueError(f"{refusal}.")
