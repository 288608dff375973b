"""A Longformer for SentenceTransformer whose first token attends to all and all to it, as in its pretraining here.

sentence-transformers leaves `global_attention_mask` out, and a checkpoint has no other place for it. A copy of this
file is in each Longformer checkpoint: `SentenceTransformer(path, trust_remote_code=True)`.
"""

from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import Transformer

Features = dict[str, Any]  # what modules of SentenceTransformer hand on, by name


class LongformerTransformer(Transformer):
    """A transformer whose first token is global."""

    def forward(self, features: Features, **kwargs: Any) -> Features:
        """Run the parent's forward, with global attention."""
        global_attention_mask = torch.zeros_like(features["attention_mask"])
        global_attention_mask[:, 0] = 1
        return super().forward(features, global_attention_mask=global_attention_mask, **kwargs)
