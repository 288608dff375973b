"""The targets of neighbour distillation: the start's own vectors of the whole documents, averaged with neighbours.

They are made before training and lie beside the run in one file, which a resumed run maps again: nothing is computed
twice, and no second encoder is in memory while the model trains. The vectors behind them are in the cache of
`docsplit.embedding`, under the hash of the encoder.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from datasets import Dataset

from docsplit.data import corpora
from docsplit.data.preparation import document_id
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.loading import load_encoder
from docsplit.embedding.neighbours import check_search, smooth, word_vectors
from docsplit.modeling.objectives.neighbour_distillation import NeighbourDistillation, Targets
from docsplit.runtime.files import cache_directory
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments
from modeling_docsplit import DocSplitForContrastivePretraining

logger = logging.getLogger(__name__)

FEW_DOCUMENTS = 500  # with 258 nothing was gained, with 1,173 something (docs/adaptation.md)

TARGETS_FILE = "distillation_targets.safetensors"  # in the output folder


def give_targets(
    model: DocSplitForContrastivePretraining,
    model_args: ModelArguments,
    data_args: DataArguments,
    args: PretrainingArguments,
    datasets: Sequence[Any],
    checkpoint: Path | None,
) -> dict[str, Any]:
    """Give the objective a vector for each document, if it is neighbour distillation.

    All processes must call it; the output folder must be on a file system of all of them.

    Args:
        datasets: documents to train on and, perhaps None, to evaluate on. All are each other's neighbours.
        checkpoint: that the run resumes from: the targets of its first start are used again.

    Returns: what all_results.json says of them.

    Raises:
        ValueError: for a stream, a random start, or a checkpoint whose targets are of other documents or options.
    """
    objective: Any = model.objective
    path = Path(args.output_dir) / TARGETS_FILE
    if not isinstance(objective, NeighbourDistillation):
        if checkpoint is None and args.process_index == 0:
            path.unlink(missing_ok=True)  # of an earlier run in this folder
        return {}
    if data_args.streaming:
        raise ValueError(
            "--streaming does not go with --objective neighbour_distillation, whose neighbours are those of the whole "
            "corpus: leave it out, or name another objective."
        )
    if model_args.model_name_or_path is None:
        raise ValueError(
            "--objective neighbour_distillation learns from what the start makes of the documents, and this one is "
            "random: give --model_name_or_path."
        )
    parts = [dataset["document_id"][:] for dataset in datasets if dataset is not None]
    wanted = np.unique(np.concatenate([np.asarray(ids) for ids in parts]))
    about = {"options": json.dumps(asdict(objective.options), sort_keys=True)}
    about |= {"documents": hashlib.blake2b(wanted.astype("<i8").tobytes(), digest_size=16).hexdigest()}
    started, made = perf_counter(), Targets.about(path) if checkpoint is not None else None
    if made is None:
        if checkpoint is not None:
            logger.warning(f"{path} is not there: the targets are made again from {model_args.model_name_or_path}.")
        _make_targets(model, model_args.model_name_or_path, data_args, args, wanted, about, path)
    elif about != made:
        different = {name: (made.get(name), value) for name, value in about.items() if made.get(name) != value}
        raise ValueError(
            f"{path} has the targets of other documents or options (there, here): {different}. Resume with the "
            "corpus and the options of the run, or start a new one."
        )
    objective.targets = Targets(path)
    return {"distillation_targets": len(wanted), "distillation_seconds": round(perf_counter() - started, 2)}


def _make_targets(
    model: DocSplitForContrastivePretraining,
    name: str,
    data_args: DataArguments,
    args: PretrainingArguments,
    wanted: np.ndarray,
    about: dict[str, str],
    path: Path,
) -> None:
    """Embed the documents with these ids, by all processes, average, and let the first process write."""
    check_search(len(wanted))
    teacher = load_encoder(name, model.config.docsplit["pooling"], device=str(args.device))
    width = teacher.truncate_dim or teacher.get_embedding_dimension()
    if width != model.config.hidden_size:
        raise ValueError(
            f"{name} gives vectors of {width} values, the encoder that is trained {model.config.hidden_size}: a "
            "module after its pooling changes the width, which this training leaves out. Start from another encoder."
        )
    with args.main_process_first(desc="reading the corpus"):
        texts = _texts_of(wanted, data_args)
    own, _ = embed_documents(
        teacher, texts, cache_dir=cache_directory(), show_progress=args.should_log and not args.disable_tqdm
    )
    options: Any = model.objective.options
    if args.process_index == 0:
        if len(wanted) < FEW_DOCUMENTS:
            logger.warning(
                f"{len(wanted)} documents are few: where this was measured, an encoder lost with 100 and gained "
                "nothing with 258. --probe_corpus with labelled documents keeps the better of start and end."
            )
        logger.info(
            f"Targets: {name}'s vectors of {len(wanted):,} documents (the first {teacher.max_seq_length} tokens), "
            f"averaged {options.smoothing_rounds} times with {options.num_neighbours} neighbours, found by its cosine"
            + (f" and {options.neighbour_words:g} x that of their words." if options.neighbour_words else ".")
        )
        targets = targets_of(own, texts, options)
        path.parent.mkdir(parents=True, exist_ok=True)
        Targets.write(path, torch.from_numpy(wanted), torch.from_numpy(targets), about)
    if args.world_size > 1:
        dist.barrier()


def targets_of(vectors: np.ndarray, texts: Sequence[str], options: NeighbourDistillation.Options) -> np.ndarray:
    """The start's vectors (N, H) of documents that all differ, averaged with neighbours: (N, H) of length one."""
    averages = options.num_neighbours and options.smoothing_rounds
    words = options.neighbour_words**0.5 * word_vectors(texts) if averages and options.neighbour_words else None
    weights = options.smoothing_share, options.neighbour_temperature
    return smooth(vectors, options.num_neighbours, options.smoothing_rounds, *weights, words)


def _texts_of(wanted: np.ndarray, data_args: DataArguments) -> Any:
    """The texts of these documents (ids ascending), in their order: a column, which is read as it is needed."""
    corpus: Dataset = corpora.add_text(corpora.load_corpus(data_args.corpus), data_args.text_column)
    rows: dict[int, int] = {}  # the first that each document stands in
    for row, text in enumerate(corpus[data_args.text_column]):
        if isinstance(text, str):
            rows.setdefault(document_id(text), row)
    return corpus.select([rows[number] for number in wanted.tolist()])[data_args.text_column]
