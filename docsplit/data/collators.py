"""Features to batch: draws two views of each document and the masked copies, keyed by (seed, epoch, document).

Nothing is drawn from global random state and nothing at `datasets.map` time: the views differ in each epoch, do not
depend on the number of workers or processes, and a resumed run sees what the uninterrupted one would have seen.
"""

import multiprocessing
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from docsplit.data.tokenization import prompt_affix, special_affixes
from docsplit.data.views import OF_PASSAGES, VIEWS, View
from docsplit.modeling.settings import IGNORED

MLM_PROBABILITY = 0.15  # BERT's, of which 80 % become [MASK], 10 % another token and 10 % stay as they are


class DocSplitCollator:
    """Turn features of `docsplit.data.preparation.tokenize` into a batch of `DocSplitForContrastivePretraining`.

    Give `EpochCallback(collator)` to the Trainer, or set `collator.epoch.value` at the start of each epoch; it is
    shared memory, so that workers see it. A feature with a key `epoch` overrides that: evaluation sets are drawn the
    same way each time.

    Args:
        tokenizer: wraps each view in its special tokens, and pads and masks it.
        view: a key of `docsplit.data.views.VIEWS`.
        max_seq_length: length of a view in tokens, prompt and special tokens included; what is longer loses its end.
        mlm: False leaves out the masked copies.
        seed: of all draws.
        prompt: stands before each view, as before each document that is embedded; it is never masked.
        sketches: True adds `sketches` (B, 8), which `SeenDocumentsCallback` takes out before the model.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        view: str = "docsplit",
        max_seq_length: int = 512,
        mlm: bool = True,
        seed: int = 42,
        prompt: str = "",
        sketches: bool = False,
    ):
        self.tokenizer = tokenizer
        self.view, self.of_passages = VIEWS[view], view in OF_PASSAGES
        self.max_seq_length = max_seq_length
        self.mlm = mlm
        self.seed = seed
        self.sketches = sketches
        self.epoch = multiprocessing.Value("q", 0)
        self.prefix, self.suffix = (np.array(ids, dtype=np.int64) for ids in special_affixes(tokenizer))
        prompt_ids, self.continues_prompt = prompt_affix(tokenizer, prompt)
        self.prompt_positions = slice(len(self.prefix), len(self.prefix) + len(prompt_ids))
        self.prefix = np.concatenate([self.prefix, np.array(prompt_ids, dtype=np.int64)])
        self.room = max_seq_length - len(self.prefix) - len(self.suffix)  # of a view, for the document
        if self.room < 1:
            of_prompt = f"the prompt {prompt!r} and " if prompt else ""
            raise ValueError(
                f"max_seq_length is {max_seq_length}, and {len(self.prefix) + len(self.suffix)} of these are "
                f"{of_prompt}special tokens: a view needs room beside them."
            )
        if tokenizer.pad_token_id is None:
            raise ValueError(f"The tokenizer {tokenizer.name_or_path!r} has no pad token: set tokenizer.pad_token.")
        if mlm and tokenizer.mask_token_id is None:
            raise ValueError(f"The tokenizer {tokenizer.name_or_path!r} has no mask token: set mlm_weight to 0.")
        self.is_special = np.zeros(max(len(tokenizer), *tokenizer.all_special_ids) + 1, dtype=bool)
        self.is_special[tokenizer.all_special_ids] = True
        self.ordinary_ids = np.flatnonzero(~self.is_special[: len(tokenizer)])
        self.bit_generator = np.random.Philox()
        self.state = self.bit_generator.state

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Batch of B documents: (B, 2, T) int64 tensors, padded to the longest view, and `document_ids` (B,).

        Documents without units, which a stream may have, are left out.

        Raises:
            ValueError: if none is left.
        """
        features = [feature for feature in features if len(feature["unit_lengths"])]
        if not features:
            raise ValueError("The tokenizer finds no token in any document of this batch: is it made for this text?")
        rows = [view for feature in features for view in self.draw(feature)]  # (ids, masked ids, targets) a view
        longest = max(len(ids) for ids, _, _ in rows)
        shape = (len(features), 2, longest)
        lengths = torch.tensor([len(ids) for ids, _, _ in rows]).view(-1, 2, 1)
        pad_id = self.tokenizer.pad_token_id
        batch = {
            "input_ids": _pad([ids for ids, _, _ in rows], longest, pad_id).view(shape),
            "attention_mask": (torch.arange(longest) < lengths).long(),
            "document_ids": torch.tensor([feature["document_id"] for feature in features]),
        }
        if self.sketches:  # int64, for torch can do little with uint32
            batch["sketches"] = torch.from_numpy(
                np.stack([feature["sketch"] for feature in features]).astype(np.int64)
            )
        if self.mlm:
            batch["mlm_input_ids"] = _pad([masked for _, masked, _ in rows], longest, pad_id).view(shape)
            batch["mlm_targets"] = _pad([targets for _, _, targets in rows], longest, IGNORED).view(shape)
        return batch

    def generator(self, feature: dict[str, Any]) -> np.random.Generator:
        """The source of all that is drawn for this document in this epoch; it is used up before the next call.

        Philox is made for keys: to change the key takes a tenth of the time of making a generator from a seed.
        """
        epoch = int(feature.get("epoch", self.epoch.value))
        self.state["state"]["key"][:] = self.seed << 32 | epoch, int(feature["document_id"])
        self.bit_generator.state = self.state
        return np.random.Generator(self.bit_generator)

    def unit_lengths(self, feature: dict[str, Any]) -> np.ndarray:
        """How many tokens each unit of the view has, (U,): each sentence, or each passage.

        Raises:
            ValueError: if it is a view of passages, and the documents were tokenised without.
        """
        lengths = np.asarray(feature["unit_lengths"])
        if not self.of_passages:
            return lengths
        if "passage_units" not in feature:
            raise ValueError("This view is of passages: tokenize the documents with passage_words=100, or so.")
        num_units = np.asarray(feature["passage_units"])
        return np.add.reduceat(lengths, num_units.cumsum() - num_units)

    def draw(self, feature: dict[str, Any]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Two views of a document, each as ids (L,), the same ids masked anew (L,), and the MLM targets (L,)."""
        rng = self.generator(feature)
        rows = []
        for view in self.view(self.unit_lengths(feature), rng):
            ids = self.join(feature, view)
            masked, targets = self.mask(ids, rng) if self.mlm else (ids, ids)
            rows.append((ids, masked, targets))
        return rows

    def join(self, feature: dict[str, Any], view: View) -> np.ndarray:
        """Of whole units the ids of `tokenizer(prompt + " ".join(units), truncation=True, max_length=...)`."""
        ids = np.asarray(feature["input_ids"])[view]
        if "initial_input_ids" in feature and not self.continues_prompt:
            ids = self._as_beginning(feature, view, ids)
        return np.concatenate([self.prefix, ids[: self.room], self.suffix], dtype=np.int64)

    def _as_beginning(self, feature: dict[str, Any], view: View, ids: np.ndarray) -> np.ndarray:
        """Put the first unit into the form that it has at the start of a text, if the whole of it is in the view."""
        lengths, first = np.asarray(feature["unit_lengths"]), view.argmax()
        starts = lengths.cumsum() - lengths
        unit = starts.searchsorted(first, side="right") - 1
        if not view[starts[unit] : starts[unit] + lengths[unit]].all():
            return ids
        initial_lengths = np.asarray(feature["initial_unit_lengths"])
        start = initial_lengths[:unit].sum()
        initial = np.asarray(feature["initial_input_ids"])[start : start + initial_lengths[unit]]
        return np.concatenate([initial, ids[lengths[unit] :]])

    def mask(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """BERT's masking (section 3.1 there) of a copy: masked ids (L,) and targets (L,).

        Special tokens and the prompt are never masked.
        """
        draws = rng.random(len(ids))
        draws[self.is_special[ids]] = 1
        draws[self.prompt_positions] = 1
        masked = np.where(draws < 0.8 * MLM_PROBABILITY, self.tokenizer.mask_token_id, ids)
        (replaced,) = ((draws >= 0.8 * MLM_PROBABILITY) & (draws < 0.9 * MLM_PROBABILITY)).nonzero()
        masked[replaced] = self.ordinary_ids[rng.integers(len(self.ordinary_ids), size=len(replaced))]
        return masked, np.where(draws < MLM_PROBABILITY, ids, IGNORED)


def truncated_shares(dataset: Any, collator: DocSplitCollator, max_documents: int = 10_000) -> dict[str, float]:
    """How much the maximum length costs: shares of documents with a truncated view, and of tokens lost to that.

    Taken from the draws of epoch 0 of the first `max_documents` documents.
    """
    rows = dataset.select(range(min(max_documents, len(dataset))))
    needed = [name for name in ("document_id", "unit_lengths", "passage_units") if name in rows.column_names]
    lengths = []  # (documents, 2)
    for row in rows.select_columns(needed):
        views = collator.view(collator.unit_lengths(row), collator.generator(row))
        lengths.append([view.sum() for view in views])
    tokens = np.array(lengths)
    lost = np.maximum(tokens - collator.room, 0)
    return {
        "documents_truncated_share": float((lost > 0).any(axis=1).mean()),
        "tokens_truncated_share": float(lost.sum() / tokens.sum()),
    }


def _pad(rows: list[np.ndarray], length: int, value: int) -> Tensor:
    padded = np.full((len(rows), length), value, dtype=np.int64)
    for row, ids in zip(padded, rows):
        row[: len(ids)] = ids
    return torch.from_numpy(padded)
