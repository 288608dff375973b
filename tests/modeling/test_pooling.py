"""Each kind of pooling is one that the encoding knows, and SentenceTransformer too."""

from typing import get_args

import pytest
import torch
from sentence_transformers.models import Pooling as PoolingModule

from docsplit.modeling.pooling import Pooling
from docsplit.modeling.vectors import pool


@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_a_kind_of_pooling_is_sentence_transformers_own(pooling):
    states = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    if pooling in ("lasttoken", "weightedmean"):  # of decoders, whose tokenizers pad on the left
        mask = torch.cat([mask, torch.tensor([[0, 0, 0, 1, 1]])])
        states = torch.cat([states, states[:1]])
    expected = PoolingModule(3, pooling_mode=pooling)({"token_embeddings": states, "attention_mask": mask})
    torch.testing.assert_close(pool(states, mask, pooling), expected["sentence_embedding"])
