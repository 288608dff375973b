"""Collators turn features into a batch, and draw views and masks by (seed, epoch, document).

`DocSplitCollator` makes one row per view, `PassageCollator` one row per passage. `DocSplitCollator.for_model` makes
the one that a model needs, and writes what it draws into the model's settings.

Nothing is drawn from global random state, and nothing in `datasets.map`: views differ in each epoch and do not depend
on the number of workers or processes, and a resumed run sees what the uninterrupted one would have seen.
"""

import multiprocessing
import reprlib
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from docsplit.data.tokenization import prompt_affix, special_affixes
from docsplit.data.views import FIRST_IS_QUERY, MOST_PASSAGES, PASSAGE_VIEWS, VIEWS, View, simcse
from docsplit.modeling.encoding import IGNORED
from docsplit.modeling.families.table import family_of
from docsplit.modeling.loading import changed_prompts, document_prompt, replace_tokenizer
from docsplit.modeling.start import checked_length, checked_settings

MaskedRow = tuple[np.ndarray, np.ndarray, np.ndarray]  # ids, masked ids and targets, (L,) each
MLM_PROBABILITY = 0.15  # as BERT: 80 % of these become [MASK], 10 % another token, and 10 % stay as they are
Feature = dict[str, Any]  # a row of `docsplit.data.preparation.tokenize`, perhaps with its own `epoch`
Batch = dict[str, Any]  # tensors by name, and what `DocSplitForContrastivePretraining.forward` takes beside them


class DocSplitCollator:
    """Turn features of `docsplit.data.preparation.tokenize` into a batch of `DocSplitForContrastivePretraining`.

    `DocSplitCallback(trainer)` sets `collator.epoch.value` at the start of each epoch; workers share its memory. A
    feature with a key `epoch` overrides it: evaluation sets are drawn the same way each time.

    Args:
        tokenizer: wraps each view in its special tokens, and pads and masks it.
        view: a key of `docsplit.data.views.VIEWS`.
        max_seq_length: length of a view in tokens, prompt and special tokens included; a longer view loses its end, or
            its beginning where the tokenizer's `truncation_side` is left.
        mlm: make masked copies.
        seed: of all draws.
        prompt: stands before each view, as before each document that is embedded; it is never masked.
        sketches: add `sketches` (B, 8), which `SeenDocumentsCallback` takes out before the model.

    Example:
        >>> from datasets import Dataset
        >>> from transformers import AutoTokenizer
        >>> from docsplit import DocSplitCollator
        >>> from docsplit.data.preparation import tokenize
        >>> tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
        >>> texts = ["The ship sails at dawn. The tide turns at noon.", "Mix flour and salt. Heat the oven."]
        >>> documents, _ = tokenize(Dataset.from_dict({"text": texts}), tokenizer)
        >>> batch = DocSplitCollator(tokenizer, max_seq_length=64)(list(documents.with_format("numpy")))
        >>> batch["input_ids"].shape[:2]  # documents, their views
        torch.Size([2, 2])
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
        if view not in VIEWS:
            raise ValueError(f"There is no view {view!r}: choose among {', '.join(VIEWS)}.")
        self.view_name, self.view, self.of_passages = view, VIEWS[view], view in PASSAGE_VIEWS
        self.max_seq_length = max_seq_length
        self.mlm = mlm
        self.seed = seed
        self.sketches = sketches
        self.epoch = multiprocessing.Value("q", -1)  # nobody has said which
        self.prefix, self.suffix = (np.array(ids, dtype=np.int64) for ids in special_affixes(tokenizer))
        prompt_ids, self.continues_prompt = prompt_affix(tokenizer, prompt)
        self.prompt_positions = slice(len(self.prefix), len(self.prefix) + len(prompt_ids))
        self.prefix = np.concatenate([self.prefix, np.array(prompt_ids, dtype=np.int64)])
        self.room = max_seq_length - len(self.prefix) - len(self.suffix)  # of a view, for the document
        self.kept = slice(self.room) if tokenizer.truncation_side == "right" else slice(-self.room, None)
        tokenizer.padding_side = "right"  # as rows are here: what is saved beside the encoder says so
        if self.room < 1:
            with_prompt = f"the prompt {prompt!r} and " if prompt else ""
            raise ValueError(
                f"max_seq_length is {max_seq_length}, and {len(self.prefix) + len(self.suffix)} of these are "
                f"{with_prompt}special tokens: a view needs room beside them."
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

    @classmethod
    def for_model(
        cls,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        view: str | None = None,
        max_seq_length: int | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> "DocSplitCollator":
        """Make the collator of a model: rows and masks as it takes them, the rest as its settings say.

        Args:
            model: a `DocSplitForContrastivePretraining`. What is given takes the place of its own, and is saved with
                it; its `body` gets this tokenizer.
            view: else that of the settings, which a start may bring; else `docsplit`, or `passages` for a graph.
            max_seq_length, prompt: else those of the encoder.
            options: `seed`, `sketches` and, of passages, `max_passages`; masks follow `mlm_weight`.
        """
        settings, rows = model.config.docsplit, COLLATORS[family_of(model.config).rows]
        kind = cls if issubclass(cls, rows) else rows
        known = PASSAGE_VIEWS if kind is PassageCollator else VIEWS
        view = view or next(name for name in (settings.get("view"), "docsplit", "passages") if name in known)
        body, new = model.body, checked_settings(model.config, {"view": view})
        length = body.max_seq_length if max_seq_length is None else checked_length(model.config, max_seq_length)
        prompts, default = body.prompts, body.default_prompt_name
        if prompt is not None:
            prompts, default = changed_prompts(prompts, default, prompt)
        mlm, of_documents = new["mlm_weight"] > 0, document_prompt(prompts, default)
        collator = kind(tokenizer, view, length, mlm, prompt=of_documents, **options)
        settings.update(new)
        body.prompts, body.default_prompt_name, body.max_seq_length = prompts, default, length
        replace_tokenizer(body, tokenizer)
        if view not in PASSAGE_VIEWS:
            settings.pop("passage_words", None)
        return collator

    def __call__(self, features: list[Feature]) -> Batch:
        """Make a batch of B documents: (B, 2, T) int64 tensors, padded to the longest view, and `document_ids` (B,).

        `host` holds what `describe` says of the rows, and `drawn` (B, 2): for which document and epoch.

        The view `simcse` adds `same_text`: both views are one text.

        Documents without units, which a stream may have, are left out.

        Raises:
            ValueError: if none is left, or the features lack columns.
        """
        if lacking := [name for name in ("document_id", "unit_lengths") if name not in features[0]]:
            raise ValueError(
                f"The features lack {', '.join(lacking)}: give TrainingArguments remove_unused_columns=False, and "
                "Trainer documents of docsplit.data.preparation.tokenize."
            )
        features = [feature for feature in features if len(feature["unit_lengths"])]
        if not features:
            raise ValueError("The tokenizer finds no token in any document of this batch: is it made for this text?")
        # These come first, since Trainer and accelerate take the size of a batch from its first tensor.
        batch: Batch = {"document_ids": torch.tensor([feature["document_id"] for feature in features])}
        if self.sketches:  # int64, for torch can do little with uint32
            batch["sketches"] = torch.from_numpy(
                np.stack([feature["sketch"] for feature in features]).astype(np.int64)
            )
        batch |= self.to_tensors(features)
        if self.view is simcse:  # both views are one text: a comparison on the GPU would have to wait for it
            batch["same_text"] = True
        batch["host"]["drawn"] = np.array([(feature["document_id"], self.epoch_of(feature)) for feature in features])
        return batch

    def to_tensors(self, features: list[Feature]) -> Batch:
        """Make the tensors of both views, (B, 2, T) each."""
        rows = [view for feature in features for view in self.draw(feature)]
        tensors = {name: values.unflatten(0, (-1, 2)) for name, values in self.pad(rows).items()}
        return tensors | {"host": self.describe(rows)}

    def pad(self, rows: list[MaskedRow]) -> dict[str, Tensor]:
        """Make tensors (R, T) of rows, padded to the longest."""
        ids, masked, targets = ([torch.from_numpy(row) for row in column] for column in zip(*rows))
        pad_id = int(self.tokenizer.pad_token_id)
        input_ids = pad_sequence(ids, batch_first=True, padding_value=pad_id)
        lengths = torch.tensor([[len(row)] for row in ids])
        batch = {"input_ids": input_ids, "attention_mask": (torch.arange(input_ids.shape[1]) < lengths).long()}
        if self.mlm:
            batch["mlm_input_ids"] = pad_sequence(masked, batch_first=True, padding_value=pad_id)
            batch["mlm_targets"] = pad_sequence(targets, batch_first=True, padding_value=IGNORED)
        return batch

    def describe(self, rows: list[MaskedRow]) -> dict[str, np.ndarray]:
        """Say what the course of a step depends on; Trainer leaves NumPy on the host, and need not wait for a GPU.

        Returns: `lengths` (R,), and `masked` (M,), the places of tokens to predict in the padded rows (R T,).
        """
        lengths = np.array([len(ids) for ids, _, _ in rows])
        if not self.mlm:
            return {"lengths": lengths}
        masked = [np.flatnonzero(targets != IGNORED) for _, _, targets in rows]
        return {
            "lengths": lengths,
            "masked": np.concatenate([row * lengths.max() + at for row, at in enumerate(masked)]),
        }

    def shares(self, dataset: Any) -> dict[str, float]:
        """Measure the `truncated_shares` of a data set."""
        return truncated_shares(dataset, self)

    def epoch_of(self, feature: Feature) -> int:
        """Return the epoch that a feature is drawn for: its own, or that of the training; -1 where nobody says."""
        return int(feature.get("epoch", self.epoch.value))

    def generator(self, feature: Feature) -> np.random.Generator:
        """Make the generator of this document and epoch; use it up before the next call.

        Philox is made for keys: changing the key takes a tenth of the time of making a generator from a seed.
        """
        self.state["state"]["key"][:] = self.seed << 32 | max(self.epoch_of(feature), 0), int(feature["document_id"])
        self.bit_generator.state = self.state
        return np.random.Generator(self.bit_generator)

    def unit_lengths(self, feature: Feature) -> np.ndarray:
        """Count the tokens of each unit of the view, (U,): each sentence, or each passage.

        Raises:
            ValueError: if the view is of passages, and the documents were tokenised without any.
        """
        lengths = np.asarray(feature["unit_lengths"])
        if not self.of_passages:
            return lengths
        if "passage_units" not in feature:
            raise ValueError(
                "This view needs passages: tokenize the documents with Segmentation(passage_words=100), for example."
            )
        num_units = np.asarray(feature["passage_units"])
        return np.add.reduceat(lengths, num_units.cumsum() - num_units)

    def draw_views(
        self, unit_lengths: np.ndarray, rng: np.random.Generator, needed: slice | np.ndarray = slice(None)
    ) -> tuple[View, View]:
        """Draw both views of a document with units of these lengths (U,), each with one of the `needed` tokens.

        Raises:
            ValueError: naming the view of a plug-in that gives anything else.
        """
        views, size = self.view(unit_lengths, rng), int(unit_lengths.sum())

        def is_right(view: Any) -> bool:
            is_mask = isinstance(view, np.ndarray) and (view.dtype, view.shape) == (bool, (size,))
            return is_mask and bool(view[needed].any())

        if not (isinstance(views, tuple | list) and len(views) == 2 and all(map(is_right, views))):
            raise ValueError(
                f"The view {self.view_name!r} gave {' '.join(reprlib.repr(views).split())} for a document of "
                f"{len(unit_lengths)} units and {size} tokens: expected two arrays of {size} bool, each with a token"
                f"{'' if isinstance(needed, slice) else ' that begins a unit'}."
            )
        return views

    def draw(self, feature: Feature) -> list[MaskedRow]:
        """Draw two views of a document: ids (L,), the same ids masked anew (L,), and the MLM targets (L,) of each."""
        rng = self.generator(feature)
        views = self.draw_views(self.unit_lengths(feature), rng)
        return [self.with_mask(self.join(feature, view), rng) for view in views]

    def wanted_and_room(self, feature: Feature) -> tuple[np.ndarray, np.ndarray]:
        """Count for each row the tokens of the document that it would have, and those that it has room for."""
        views = self.draw_views(self.unit_lengths(feature), self.generator(feature))
        return np.array([view.sum() for view in views]), np.full(2, self.room)

    def join(self, feature: Feature, view: View) -> np.ndarray:
        """Join the ids of a view: `tokenizer(prompt + " ".join(units), truncation=True, max_length=...)`."""
        unit = _first_whole_unit(np.asarray(feature["unit_lengths"]), view) if "initial_input_ids" in feature else None
        return self.wrap(feature, np.asarray(feature["input_ids"])[view], unit)

    def wrap(self, feature: Feature, ids: np.ndarray, unit: int | None) -> np.ndarray:
        """Cut ids and wrap them in special tokens; the unit that they begin with takes its initial form."""
        if unit is not None and "initial_input_ids" in feature and not self.continues_prompt:
            lengths = np.asarray(feature["initial_unit_lengths"])
            start = lengths[:unit].sum()
            initial = np.asarray(feature["initial_input_ids"])[start : start + lengths[unit]]
            ids = np.concatenate([initial, ids[feature["unit_lengths"][unit] :]])
        return np.concatenate([self.prefix, ids[self.kept], self.suffix], dtype=np.int64)

    def with_mask(self, ids: np.ndarray, rng: np.random.Generator) -> MaskedRow:
        """Add the masked copy of a row and its targets; with `mlm=False` the row takes their places."""
        return (ids, *(self.mask(ids, rng) if self.mlm else (ids, ids)))

    def mask(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Mask a copy of the ids as BERT does (section 3.1): masked ids (L,) and targets (L,).

        Special tokens and the prompt are never masked.
        """
        draws = rng.random(len(ids))
        draws[self.is_special[ids]] = 1
        draws[self.prompt_positions] = 1
        masked = np.where(draws < 0.8 * MLM_PROBABILITY, self.tokenizer.mask_token_id, ids)
        (replaced,) = ((draws >= 0.8 * MLM_PROBABILITY) & (draws < 0.9 * MLM_PROBABILITY)).nonzero()
        masked[replaced] = self.ordinary_ids[rng.integers(len(self.ordinary_ids), size=len(replaced))]
        return masked, np.where(draws < MLM_PROBABILITY, ids, IGNORED)


class PassageCollator(DocSplitCollator):
    """Make batches of passages, for an encoder whose `combine` turns them into documents.

    A batch has the tensors (R, T) of all passages, `document_ids` (B,), and `rows`, the fields of
    `docsplit.modeling.encoding.Rows`, (R,) each, in NumPy: `position` and `section` of the passage in its document,
    and `is_query` where it is embedded as a query. The passages of a document and view follow one another, in order.

    Args:
        view: one of `docsplit.data.views.PASSAGE_VIEWS`, which divides the first `max_passages`.
        max_seq_length: length of a passage in tokens, special ones included; a longer passage loses its end.
        max_passages: of a document; further passages are left out.
        tokenizer, mlm, others, options: as in `DocSplitCollator`.

    Raises:
        ValueError: for another view, or fewer than two passages.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        view: str = "passages",
        max_seq_length: int = 256,
        mlm: bool = False,
        *others: Any,
        max_passages: int = MOST_PASSAGES,
        **options: Any,
    ):
        super().__init__(tokenizer, view, max_seq_length, mlm, *others, **options)
        if not self.of_passages:
            raise ValueError(f"The view is {view!r}, expected one of passages: {', '.join(sorted(PASSAGE_VIEWS))}.")
        if max_passages < 2:
            raise ValueError(f"max_passages is {max_passages}: expected 2 or more, one for each view.")
        self.first_is_query, self.max_passages = view in FIRST_IS_QUERY, max_passages

    def to_tensors(self, features: list[Feature]) -> Batch:
        """Make the tensors of all passages, (R, T) each, and the place of each row."""
        rows: list[MaskedRow] = []
        places: list[np.ndarray] = []  # (R', 4) of each document: its number, view, section and position
        for number, feature in enumerate(features):
            rng = self.generator(feature)
            views, positions = self.divide(feature, rng)
            sections = np.asarray(feature["passage_sections"])[positions]
            places.append(np.stack([np.full(len(views), number), views, sections, positions], axis=1))
            rows += [self.with_mask(ids, rng) for ids in self.passages(feature, positions)]
        document, view, section, position = np.concatenate(places).T.copy()
        is_query = (view == 0).astype(np.int64) if self.first_is_query else np.zeros_like(view)
        names = {"document": document, "view": view, "section": section, "position": position, "is_query": is_query}
        return self.pad(rows) | {"rows": names, "host": self.describe(rows)}

    def divide(self, feature: Feature, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Divide a document: the view and the position of each row, (R,) each, first those of view 0."""
        lengths = self.unit_lengths(feature)[: self.max_passages]
        starts = lengths.cumsum() - lengths
        positions = [np.flatnonzero(view[starts]) for view in self.draw_views(lengths, rng, starts)]
        return np.repeat([0, 1], [len(half) for half in positions]), np.concatenate(positions)

    def passages(self, feature: Feature, positions: np.ndarray) -> list[np.ndarray]:
        """Take the passages at these positions: ids (L,) of `tokenizer(passage, truncation=True, max_length=...)`."""
        feature = feature | {name: np.asarray(feature[name]) for name in feature if name.endswith(("ids", "lengths"))}
        first_units = np.append(0, np.cumsum(feature["passage_units"]))
        starts = np.append(0, self.unit_lengths(feature).cumsum())
        return [
            self.wrap(feature, feature["input_ids"][starts[position] : starts[position + 1]], first_units[position])
            for position in positions
        ]

    def wanted_and_room(self, feature: Feature) -> tuple[np.ndarray, np.ndarray]:
        """Count the tokens of all passages, and the room for each: none for those that are left out."""
        wanted = self.unit_lengths(feature)
        return wanted, np.where(np.arange(len(wanted)) < self.max_passages, self.room, 0)


COLLATORS = {"views": DocSplitCollator, "passages": PassageCollator}  # by `Family.rows`


def truncated_shares(dataset: Any, collator: DocSplitCollator) -> dict[str, float]:
    """Measure what the maximum length costs: the share of documents with a truncated view, and of tokens lost.

    All are taken from the draws of epoch 0 of the first 10,000 documents.
    """
    needed = [name for name in ("document_id", "unit_lengths", "passage_units") if name in dataset.column_names]
    features = dataset.select(range(min(10_000, len(dataset)))).select_columns(needed)
    pairs = [collator.wanted_and_room(feature) for feature in features]
    wanted, room = (np.concatenate(values) for values in zip(*pairs))
    lost = np.maximum(wanted - room, 0)
    lost_by_document = np.split(lost, np.cumsum([len(rows) for rows, _ in pairs])[:-1])
    return {
        "documents_truncated_share": float(np.mean([losses.any() for losses in lost_by_document])),
        "tokens_truncated_share": float(lost.sum() / wanted.sum()),
    }


def _first_whole_unit(lengths: np.ndarray, view: View) -> int | None:
    """Find the unit that a view begins with; None if it begins within one, or has only a part of it."""
    starts = lengths.cumsum() - lengths
    unit = int(starts.searchsorted(view.argmax(), side="right")) - 1
    return unit if view[starts[unit] : starts[unit] + lengths[unit]].all() else None
