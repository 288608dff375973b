"""Texts to vectors, in bulk: each text once, in micro-batches of similar length, pooled as the checkpoint says."""

from collections.abc import Sequence

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling_docsplit import micro_batches, pool

CHUNK_TEXTS = 4096  # tokenised and sorted by length together: bounds the memory, hardly adds padding


@torch.inference_mode()
def encode(
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    micro_batch_tokens: int = 4096,
    show_progress: bool = False,
) -> np.ndarray:
    """Embed texts with an encoder whose config has the settings of `DocSplitForContrastivePretraining`.

    Args:
        encoder: what `AutoModel.from_pretrained(checkpoint, add_pooling_layer=False)` gives, or the
            `encoder.base_model` of a `DocSplitForContrastivePretraining`; used in eval mode and left as it was.
        micro_batch_tokens: bound on texts x longest text of one forward pass.

    Returns: (len(texts), H) float32, in the order of the texts; truncated to the checkpoint's `max_seq_length` tokens,
        not normalised.

    Raises:
        ValueError: if the config has no such settings, or an embedding is not finite.
    """
    settings = getattr(encoder.config, "docsplit", None)
    if settings is None:
        raise ValueError(
            f"The config of {encoder.config._name_or_path!r} says nothing about pooling: load the encoder through "
            "DocSplitForContrastivePretraining.from_pretrained(..., pooling=..., max_seq_length=...)."
        )
    was_training = encoder.training
    encoder.eval()
    embeddings = np.empty((len(texts), encoder.config.hidden_size), dtype=np.float32)
    with tqdm(total=len(texts), desc="Embedding", unit="text", disable=not show_progress) as progress:
        for start in range(0, len(texts), CHUNK_TEXTS):
            # A lone surrogate would make the tokenizer raise; all else is left to it, as SentenceTransformer does.
            chunk = [text.encode("utf-8", "replace").decode() for text in texts[start : start + CHUNK_TEXTS]]
            encoded = tokenizer(chunk, truncation=True, max_length=settings["max_seq_length"], verbose=False)
            lengths = torch.tensor([len(ids) for ids in encoded["input_ids"]])
            for rows, _ in micro_batches(lengths, micro_batch_tokens):
                batch = tokenizer.pad(
                    {"input_ids": [encoded["input_ids"][row] for row in rows]},
                    padding_side="right",
                    return_tensors="pt",
                ).to(encoder.device)
                hidden_states = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[0]
                pooled = pool(hidden_states, batch["attention_mask"], settings["pooling"])
                embeddings[start + rows.numpy()] = pooled.float().cpu().numpy()
                progress.update(len(rows))
    encoder.train(was_training)
    if not np.isfinite(embeddings).all():
        bad = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
        raise ValueError(f"{len(bad)} of {len(texts)} embeddings are not finite, the first of text {bad[0]}.")
    return embeddings
