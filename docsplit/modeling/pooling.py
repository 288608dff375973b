"""The kinds of pooling. This module imports nothing heavy: `--help` reads it."""

from typing import Literal

# Token states to the embedding of a text. weightedmean: a token's weight is its position, counted from 1.
PoolingMode = Literal["cls", "mean", "max", "weightedmean", "lasttoken"]
