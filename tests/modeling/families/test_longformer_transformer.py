"""SentenceTransformer's module of a Longformer: the first token is global, in each row."""

import torch
from transformers import LongformerConfig, LongformerModel

from docsplit.modeling.families.longformer_transformer import LongformerTransformer
from tests.conftest import tiny_values


def test_the_first_token_of_each_row_is_global(byte_level_bpe, tmp_path):
    torch.manual_seed(0)
    values = tiny_values(byte_level_bpe, initializer_range=0.3)
    LongformerModel(LongformerConfig(**values, attention_window=[4, 4])).save_pretrained(tmp_path)
    byte_level_bpe.save_pretrained(tmp_path)
    module = LongformerTransformer(str(tmp_path)).eval()
    batch = byte_level_bpe(["a ship in the storm and the rope", "bread"], padding=True, return_tensors="pt")
    first = torch.zeros_like(batch["input_ids"])
    first[:, 0] = 1
    with torch.no_grad():
        embeddings = module(dict(batch))["token_embeddings"]
        expected, local = (module.model(**batch, global_attention_mask=mask)[0] for mask in (first, None))
    kept = batch["attention_mask"].bool()
    torch.testing.assert_close(embeddings[kept], expected[kept])
    assert (expected[kept] - local[kept]).abs().max() > 1e-3
