"""The kinds of pooling. Nothing is imported for them: `--help` reads this module."""

from typing import Literal

Pooling = Literal["cls", "mean", "max"]  # token states to the embedding of a text
