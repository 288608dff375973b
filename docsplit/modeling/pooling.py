"""The kinds of pooling. Nothing is imported for them: `--help` reads this module."""

from typing import Literal

# Token states to the embedding of a text. weightedmean: a token's weight is its position, counted from 1.
Pooling = Literal["cls", "mean", "max", "weightedmean", "lasttoken"]
