"""Hard negatives: documents that rank high for a query and are not judged relevant to it, by their ids.

A ranking comes from BM25, or from the encoder in training (ANCE: Xiong et al., 2021). The negatives are in one file
beside the run, under a hash of weights, collection and settings, and each checkpoint names the file that it was
trained with: a resumed run draws from the same documents, though the weights that ranked them are gone.
"""

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as Arguments

from docsplit.data.bm25 import BM25
from docsplit.data.sets.rankings import Retrieved
from docsplit.embedding.encode import embed_documents, embed_queries, identity
from docsplit.embedding.neighbours import make_comparable, search
from docsplit.modeling.loading import load_encoder
from docsplit.runtime.files import (
    READ_WHEN_OPENED,
    build_once,
    fingerprint,
    flush,
    hash_of_code,
    read_json,
    why_folder_damaged,
    write_text,
)
from docsplit.training.run_arguments import NEGATIVES_FOLDER, QueryArguments

logger = logging.getLogger(__name__)

NOTE = "negatives.json"  # in a checkpoint
NEGATIVES_FILE = "negatives.npy"  # in a folder of its own, with its record


def mine(
    ranked: Retrieved, is_relevant: np.ndarray, min_rank: int = 0, margin: float | None = None
) -> tuple[np.ndarray, dict[str, float]]:
    """Keep the documents of each ranking that may be negatives.

    Args:
        ranked: (Q, K) documents of each query, the best first; -1 where there are fewer.
        is_relevant: (Q, K), those that are judged relevant, which are never kept.
        min_rank: skip the N best of a list, relevant ones counted: a document that ranks highest without a judgment
            may be relevant.
        margin: leave out what scores above `score - |score| x margin` of the best relevant document of the list. A
            relevant one below the list scores less than all of it: nothing of that list is kept.

    Returns: rows of documents (Q, K), -1 elsewhere, the kept ones in order; and the share of ranked documents that
        was skipped, for each reason.
    """
    exists = ranked.rows >= 0
    above = np.arange(ranked.rows.shape[1]) < min_rank
    skipped = {"relevant": exists & is_relevant, "above_min_rank": exists & ~is_relevant & above}
    kept = exists & ~is_relevant & ~above
    if margin is not None:
        best = np.where(is_relevant & exists, ranked.scores, -np.inf).max(axis=1, keepdims=True)  # (Q, 1)
        with np.errstate(invalid="ignore"):  # of a list without a relevant document, whose limit is -inf
            limit = np.nan_to_num(best - np.abs(best) * margin, nan=-np.inf, neginf=-np.inf)
        skipped["within_margin"] = kept & (ranked.scores > limit)
        kept &= ranked.scores <= limit
    number = max(int(exists.sum()), 1)
    order = np.argsort(~kept, axis=1, kind="stable")
    pools = np.take_along_axis(np.where(kept, ranked.rows, -1), order, axis=1).astype(np.int32)
    return pools, {name: float(mask.sum() / number) for name, mask in skipped.items()}


class NegativesCallback(TrainerCallback):
    """Give the collator the documents to draw negatives from: at the start, and anew when half the epochs are over.

    That is at the start of an epoch, whose workers begin with them. All processes embed, the first one searches.
    To be added before `CheckpointCallback`.

    Args:
        trainer: its collator is a `QueryDocumentCollator`, its training data a `QueryDataset`.
        checkpoint: the one that the training resumes from.

    Raises:
        ValueError: if negatives change at half of a training of a single epoch, or the file that the checkpoint names
            is not there or damaged.
    """

    def __init__(self, trainer: Trainer, options: QueryArguments, checkpoint: Path | None):
        self.trainer, self.options = trainer, options
        self.model: Any = trainer.model
        self.tokenizer: Any = trainer.processing_class
        self.collator: Any = trainer.data_collator
        self.dataset: Any = trainer.train_dataset
        self.phases = options.phases
        self.folder, self.current = Path(str(trainer.args.output_dir)) / NEGATIVES_FOLDER, -1  # the phase
        self.file: str | None = None
        self.note = None
        if checkpoint is not None and (checkpoint / NOTE).exists():
            self.note = read_json(checkpoint / NOTE)
            file = self.folder / self.note["file"] if self.note["file"] is not None else None
            if file is not None and (reason := why_folder_damaged(file.parent, most_bytes=READ_WHEN_OPENED)):
                raise ValueError(
                    f"{checkpoint} was trained with the negatives of {file}, but {reason}: put it back, or start a "
                    "new run from these weights with --model_name_or_path."
                )

    def on_train_begin(self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Check that there is a half, and go on with the negatives of the checkpoint."""
        if len(self.phases) > 1 and state.num_train_epochs < 2:
            raise ValueError("--negatives change when half the epochs are over, and there is one: raise the epochs.")
        if self.note is not None:
            self._use(self.note["phase"], self.note["file"])

    def on_epoch_begin(self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Search, if this epoch is the first of a half."""
        half = math.ceil(state.num_train_epochs / 2)
        phase = max(min(int((state.epoch or 0) >= half), len(self.phases) - 1), self.current)  # a longer half goes on
        if phase != self.current and not control.should_training_stop:
            kind = self.phases[phase]
            self._use(phase, None if kind == "random" else self._search(kind))

    def on_save(self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Name the file in the checkpoint."""
        if state.is_world_process_zero:
            note = json.dumps({"phase": self.current, "file": self.file})
            write_text(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / NOTE, note + "\n")

    def _use(self, phase: int, file: str | None) -> None:
        self.current, self.file = phase, file
        self.collator.negatives = None if file is None else np.load(self.folder / file, mmap_mode="r")

    def _search(self, kind: str) -> str:
        """Find the negatives of all training queries, and return the name of their file, which exists then."""
        args, options = self.trainer.args, self.options
        with torch.random.fork_rng():  # what is loaded may draw: a resumed run does not load it again
            vectors, weights = self._embed() if kind == "self" else (None, kind)
        ranking = self.dataset.collection.ranking
        about = [weights, ranking.fingerprint(), self.dataset.numbers.tolist(), hash_of_code("docsplit")]
        about += [options.language, options.negatives_depth, options.negatives_min_rank, options.negatives_margin]
        key = fingerprint(*about)

        def build(folder: Path) -> None:
            depth = min(options.negatives_depth, len(ranking.documents))
            if vectors is None:
                queries = [ranking.queries[number] for number in self.dataset.numbers]
                ranked = BM25(ranking.documents, options.language).retrieve(queries, depth + 1)
            else:
                ranked = search(*vectors, depth + 1)
            ranked = ranked.without(ranking.own[self.dataset.numbers], depth)
            np.save(folder / NEGATIVES_FILE, self._mine(ranked, kind))

        if args.process_index == 0:
            build_once(self.folder / key, build)
            flush(self.folder)  # checkpoints name it
        if args.world_size > 1:
            dist.barrier()
        return f"{key}/{NEGATIVES_FILE}"

    def _embed(self) -> tuple[tuple[np.ndarray, np.ndarray], str]:
        """Embed training queries and all documents with the current weights; return them and the hash of the weights.

        The encoder is written and loaded, so that it reads both as a checkpoint would: by its prompts and routes.
        """
        args, folder = self.trainer.args, self.folder / "encoder"
        if args.process_index == 0:
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
        if args.world_size > 1:
            dist.barrier()
        encoder = load_encoder(str(folder), device=str(args.device))
        ranking, show = self.dataset.collection.ranking, args.should_log and not args.disable_tqdm
        queries = [ranking.queries[number] for number in self.dataset.numbers]
        logger.info(f"Embedding {len(ranking.documents):,} documents, to find negatives.")
        documents, _ = embed_documents(encoder, ranking.documents, show_progress=show)
        asked, facts = embed_queries(encoder, queries)
        for vectors in (asked, documents):
            make_comparable(vectors, facts.similarity)
        weights = identity(encoder)
        if args.world_size > 1:
            dist.barrier()  # all have loaded it
        if args.process_index == 0:
            shutil.rmtree(folder)
        return (asked, documents), weights

    def _mine(self, ranked: Retrieved, kind: str) -> np.ndarray:
        """Mine the ranking of `kind`, and log what was skipped."""
        ids, relevant_ids = self.dataset.collection.document_ids, self.dataset.relevant_ids
        has_no_tokens = ~self.dataset.collection.has_tokens[ranked.rows]
        ranked.rows[has_no_tokens & (ranked.rows >= 0)] = -1
        is_relevant = np.stack([np.isin(ids[rows], names) for rows, names in zip(ranked.rows, relevant_ids)])
        pools, shares = mine(ranked, is_relevant, self.options.negatives_min_rank, self.options.negatives_margin)
        skipped = ", ".join(f"{100 * share:.1f} % {name.replace('_', ' ')}" for name, share in shares.items())
        logger.info(
            f"Negatives of {kind}: {int((pools >= 0).sum()):,} for {len(pools):,} queries; skipped: {skipped}."
        )
        return pools
