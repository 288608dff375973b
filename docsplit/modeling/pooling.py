"""The kinds of pooling. This module imports nothing heavy: `--help` reads it."""

from typing import Literal

Pooling = Literal["cls", "mean", "max"]  # token states to the embedding of a text
