"""Make batches of queries and documents, to train for ranking.

A row holds a query, one of its relevant documents, and others that are not relevant. They are drawn anew in each
epoch from (seed, epoch, query) alone: a resumed run sees what the uninterrupted one would have seen.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, Features, List, Value, load_from_disk
from datasets.fingerprint import Hasher
from pyarrow import compute
from transformers import PreTrainedTokenizerBase

from docsplit.data.collators import Batch, DocSplitCollator, Feature, MaskedRow, PassageCollator, truncated_shares
from docsplit.data.copies import SKETCH_SIZE, document_id, fingerprint_of, sketch
from docsplit.data.preparation import Segmentation, tokenize
from docsplit.data.sets.rankings import Ranking
from docsplit.runtime.files import build_once, cache_directory, hash_of_code, map_once

logger = logging.getLogger(__name__)

PASSAGES_READ = 100  # of a document, as in classification (graph document model, 3.2; 3.3 does not say)
NO_ID = -1  # fills up the ids of relevant documents


@dataclass
class Collection:
    """A collection, tokenised once. Documents and queries keep their rows of the ranking."""

    ranking: Ranking
    documents: Dataset  # of `docsplit.data.preparation.tokenize`; texts without tokens have no units
    queries: Dataset
    seen: Dataset  # `seen_id` and `sketch` of each whole document, as a pretraining may have read it

    def __post_init__(self) -> None:
        self.document_ids = np.asarray(self.documents["document_id"][:])  # (N,), equal for equal texts
        lengths = compute.list_value_length(self.documents.data["unit_lengths"])
        self.has_tokens = lengths.to_numpy() > 0  # (N,)
        self.rows = {name: row for row, name in enumerate(self.ranking.document_ids)}

    @classmethod
    def make(
        cls,
        ranking: Ranking,
        tokenizer: PreTrainedTokenizerBase,
        segmentation: Segmentation,
        num_proc: int | None = None,
    ) -> "Collection":
        """Write the texts into the cache, and tokenise them: every text, also where it is short.

        Args:
            segmentation: of the documents; queries have no passages.
            num_proc: number of processes, None for this one alone.
        """
        whole = [ranking.whole.get(name, text) for name, text in zip(ranking.document_ids, ranking.documents)]
        key = fingerprint_of([ranking.fingerprint(), *(whole if ranking.whole else ())])

        def write(folder: Path) -> None:
            Dataset.from_dict({"text": ranking.documents, "whole": whole}).save_to_disk(folder / "documents")
            Dataset.from_dict({"text": ranking.queries}).save_to_disk(folder / "queries")

        folder = build_once(cache_directory() / f"collection-{key}", write)
        documents = load_from_disk(str(folder / "documents"))
        features = Features({"seen_id": Value("int64"), "sketch": List(Value("uint32"), length=SKETCH_SIZE)})
        seen = map_once(
            documents,
            lambda batch: {
                "seen_id": [document_id(text) for text in batch["whole"]],
                "sketch": list(sketch(batch["whole"])),
            },
            Hasher.hash((documents._fingerprint, "seen", hash_of_code("docsplit/data"))),
            batched=True,
            batch_size=1000,
            remove_columns=documents.column_names,
            features=features,
        )
        segmentation = replace(segmentation, text_column="text", keep_all=True)
        without_passages = replace(segmentation, passage_words=None)
        texts, queries = documents.select_columns("text"), load_from_disk(str(folder / "queries"))
        tokenized, _ = tokenize(texts, tokenizer, segmentation, num_proc)
        tokenized_queries, _ = tokenize(queries, tokenizer, without_passages, num_proc)
        return cls(ranking, *(part.with_format("numpy") for part in (tokenized, tokenized_queries, seen)))

    def relevant_rows(self, query: str) -> np.ndarray:
        """List the documents with tokens that are judged relevant to the query of this id."""
        grades = self.ranking.judgments[query]
        rows = [self.rows[name] for name, grade in grades.items() if grade > 0 and name in self.rows]
        return np.array(sorted(row for row in rows if self.has_tokens[row]), dtype=np.int64)


class QueryDataset(torch.utils.data.Dataset):
    """The queries of a collection that have tokens, and a relevant document with tokens.

    Attributes:
        numbers: (Q,) rows of these queries in the ranking.
        relevant: rows of the relevant documents of each query.
        relevant_ids: their ids, for each query in ascending order, with those of other queries of the same text, and
            that of the query's own document (`Ranking.own`): none of them is ever a negative.
        left_out: number of queries that were asked for and are not here.

    Args:
        numbers: rows of queries in the ranking.
        is_evaluation: draw documents in the same way each time, without negatives.
    """

    def __init__(self, collection: Collection, numbers: np.ndarray, is_evaluation: bool = False):
        ranking, self.collection, self.is_evaluation = collection.ranking, collection, is_evaluation
        relevant = {int(number): collection.relevant_rows(ranking.query_ids[number]) for number in numbers}
        lengths = collection.queries["unit_lengths"]
        kept = [number for number, rows in relevant.items() if len(rows) and len(lengths[number])]
        self.numbers, self.left_out = np.array(kept, dtype=np.int64), len(relevant) - len(kept)
        self.relevant = [relevant[number] for number in kept]
        # Queries of one text share their relevant documents: none may be another's negative.
        texts = [" ".join(ranking.queries[number].lower().split()) for number in kept]
        ids_of_text: dict[str, set[int]] = {}
        for text, rows, own in zip(texts, self.relevant, ranking.own[self.numbers]):
            ids_of_text.setdefault(text, set()).update(collection.document_ids[rows].tolist())
            ids_of_text[text].update(collection.document_ids[[own]].tolist() if own >= 0 else ())
        self.relevant_ids = [np.array(sorted(ids_of_text[text]), dtype=np.int64) for text in texts]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Feature:
        feature = dict(self.collection.queries[int(self.numbers[index])])
        feature |= {"index": int(index), "relevant": self.relevant[index], "relevant_ids": self.relevant_ids[index]}
        return feature | ({"epoch": 0} if self.is_evaluation else {})


class QueryDocumentCollator:
    """Turn queries into a batch of `DocSplitForContrastivePretraining`: (B, V, T), or rows of passages.

    The views are the query, a relevant document and, in training, `negatives_per_query` documents that are not judged
    relevant.

    Args:
        document_collator: makes the rows of a document: a `PassageCollator` where the encoder combines passages. It
            also gives the length, masking and seed of queries, which are one row each.
        datasets: all that are collated, of one collection, the training queries first.
        query_prompt: stands before each query.

    Attributes:
        negatives: (Q, P) rows of documents that each training query draws from, -1 where there are fewer; None: any
            document. Documents of the whole collection fill up where a query has too few.

    Raises:
        ValueError: if the collection is too small for so many negatives.
    """

    def __init__(
        self,
        document_collator: DocSplitCollator,
        datasets: Sequence[QueryDataset],
        negatives_per_query: int = 0,
        query_prompt: str = "",
    ):
        self.document_collator = document_collator
        self.query_collator = DocSplitCollator(
            document_collator.tokenizer,
            "simcse",
            document_collator.max_seq_length,
            document_collator.mlm,
            document_collator.seed,
            query_prompt,
        )
        self.collection, self.epoch = datasets[0].collection, self.query_collator.epoch
        self.negatives: np.ndarray | None = None
        self.negatives_per_query = negatives_per_query
        self.width = max(len(ids) for dataset in datasets for ids in dataset.relevant_ids)
        usable = len(np.unique(self.collection.document_ids[self.collection.has_tokens]))
        if usable < max(self.width + negatives_per_query, 2):
            raise ValueError(
                f"The collection has {usable:,} distinct document{'s' * (usable != 1)}, and one query {self.width:,} "
                f"that are relevant: too few for --negatives_per_query {negatives_per_query}."
            )

    def shares(self, dataset: QueryDataset) -> dict[str, float]:
        """Measure the `truncated_shares` of the documents of the collection."""
        has_tokens = np.flatnonzero(dataset.collection.has_tokens)
        return truncated_shares(dataset.collection.documents.select(has_tokens), self.document_collator)

    def __call__(self, features: list[Feature]) -> Batch:
        """Make a batch of B queries: their tensors, and

        document_ids: (B, V - 1) of their documents; V is smaller in evaluation, which has no negatives.
        relevant_ids: (B, R) of all documents that are relevant to each, filled up with `NO_ID`.
        seen_ids, sketches: (V B,) and (V B, 8), for `SeenDocumentsCallback`, which takes them out before the model.
        """
        rows: list[MaskedRow] = []
        places: list[np.ndarray] = []  # (R', 4) of each text: number of the query, view, section and position
        document_ids, seen_ids, sketches = [], [], []
        relevant = np.full((len(features), self.width), NO_ID)
        for number, feature in enumerate(features):
            rng = self.query_collator.generator(feature)
            documents = self.draw(feature, rng)
            document_ids.append(self.collection.document_ids[documents])
            relevant[number, : len(feature["relevant_ids"])] = feature["relevant_ids"]
            seen = self.collection.seen[documents]
            seen_ids += [feature["document_id"], *seen["seen_id"]]
            sketches += [feature["sketch"], *seen["sketch"]]
            texts = [([self.query_collator.join(feature, _all_of(feature))], np.zeros((1, 2), dtype=np.int64))]
            texts += [self._rows_of(self.collection.documents[int(row)]) for row in documents]
            for view, (ids, inner) in enumerate(texts):
                collator = self.document_collator if view else self.query_collator
                rows += [collator.with_mask(text, rng) for text in ids]
                places.append(np.column_stack([np.full((len(ids), 2), (number, view)), inner]))
        batch: Batch = {"document_ids": torch.from_numpy(np.stack(document_ids))}
        batch |= {"relevant_ids": torch.from_numpy(relevant), "seen_ids": torch.tensor(np.array(seen_ids))}
        batch["sketches"] = torch.from_numpy(np.stack(sketches).astype(np.int64))
        return batch | self._lay_out(rows, np.concatenate(places))

    def _rows_of(self, feature: Feature) -> tuple[list[np.ndarray], np.ndarray]:
        """Make the rows of a document, one or one a passage: their ids, and section and position of each, (R', 2)."""
        if not isinstance(self.document_collator, PassageCollator):
            return [self.document_collator.join(feature, _all_of(feature))], np.zeros((1, 2), dtype=np.int64)
        positions = np.arange(min(len(feature["passage_units"]), self.document_collator.max_passages))
        sections = np.asarray(feature["passage_sections"])[positions]
        return self.document_collator.passages(feature, positions), np.column_stack([sections, positions])

    def _lay_out(self, rows: list[MaskedRow], places: np.ndarray) -> Batch:
        padded: Batch = self.document_collator.pad(rows)
        number, view, section, position = places.T.copy()
        host = {"host": self.document_collator.describe(rows)}
        if not isinstance(self.document_collator, PassageCollator):
            return {name: values.unflatten(0, (int(number[-1]) + 1, -1)) for name, values in padded.items()} | host
        names = {"document": number, "view": view, "section": section, "position": position}
        return padded | host | {"rows": names | {"is_query": (view == 0).astype(np.int64)}}

    def draw(self, feature: Feature, rng: np.random.Generator) -> list[int]:
        """Draw the documents of a query: one that is relevant, and `negatives_per_query` others of distinct texts."""
        drawn = [int(rng.choice(feature["relevant"]))]
        if "epoch" in feature:  # an evaluation
            return drawn
        taken = {*feature["relevant_ids"].tolist()}
        wanted = 1 + self.negatives_per_query
        pool = np.empty(0, dtype=np.int64) if self.negatives is None else self.negatives[feature["index"]]
        for row in rng.permutation(pool[pool >= 0]):
            if len(drawn) < wanted and self.collection.document_ids[row] not in taken:
                drawn.append(int(row))
                taken.add(int(self.collection.document_ids[row]))
        while len(drawn) < wanted:
            row = int(rng.integers(len(self.collection.document_ids)))
            name = int(self.collection.document_ids[row])
            if self.collection.has_tokens[row] and name not in taken:
                drawn.append(row)
                taken.add(name)
        return drawn


def _all_of(feature: Feature) -> np.ndarray:
    return np.ones(len(feature["input_ids"]), dtype=bool)
