"""The targets of neighbour distillation: the start's vectors of whole documents, averaged with their neighbours'.

From nothing (--lexical_start) the vector of a document is the mean of its token embeddings, before training.

They are made before training and lie beside the run in one file, which a resumed run maps again. So nothing is
computed twice, and no second encoder is in memory while the model trains. The cache of `docsplit.embedding` has the
start's vectors, under the hash of the encoder.
"""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from datasets import Dataset, concatenate_datasets

from docsplit.data import corpora
from docsplit.data.copies import document_id
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.lexical_start import document_vectors
from docsplit.embedding.neighbours import check_search, smooth, word_vectors
from docsplit.modeling.families.table import family_of
from docsplit.modeling.loading import load_encoder, pooling_of, without_words
from docsplit.modeling.objectives.neighbour_distillation import TARGETS_FILE, NeighbourDistillation, Targets
from docsplit.runtime.files import cache_directory, fingerprint
from docsplit.runtime.sharing import first_on_machine
from docsplit.training.documents import TrainingData
from docsplit.training.run_arguments import DataArguments, RunOptions
from modeling_docsplit import DocSplitForContrastivePretraining

logger = logging.getLogger(__name__)


def provide_targets(
    options: RunOptions,
    smoothing: NeighbourDistillation.Options,
    model: DocSplitForContrastivePretraining,
    data: TrainingData,
    checkpoint: Path | None,
) -> Path:
    """Return the file with a vector for each document; a run that resumes uses the file of its first start.

    All processes must call it; the output folder must be on a file system of all of them. `data.counts` gets the
    number of targets and the seconds.

    Args:
        smoothing: how the start's vectors are averaged.
        model: that is trained. Its pooling is that of a start that says nothing of its own; from nothing its token
            embeddings give the vectors, those of --lexical_start.
        data: documents to train on and to evaluate on. All are each other's neighbours.
        checkpoint: that the run resumes from: the targets of its first start are used again.

    Raises:
        ValueError: for a stream, a random start, or a checkpoint whose targets are of other documents or options.
    """
    if options.data.streaming:
        raise ValueError("--streaming does not go with --objective neighbour_distillation: neighbours are of all.")
    if options.start is None and not options.model.lexical_start:
        raise ValueError(
            "--objective neighbour_distillation learns from the start: give --model_name_or_path, or --lexical_start."
        )
    started, path, document_ids = perf_counter(), options.output_dir / TARGETS_FILE, data.document_ids()
    about = {"options": json.dumps(asdict(smoothing), sort_keys=True)}
    about["documents"] = fingerprint(*document_ids.tolist())
    saved = None
    if checkpoint is not None:
        try:
            saved = Targets(path)
        except (OSError, ValueError) as error:
            logger.warning(
                f"{str(error).removesuffix('.')}: the targets are made again from {options.start or 'words'}."
            )
    if saved is None:
        targets = _make_targets(options, smoothing, model, data, document_ids)
        if options.training.process_index == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            Targets.write(path, torch.from_numpy(document_ids), torch.from_numpy(targets), about)
        if options.training.world_size > 1:
            dist.barrier()
    elif about != saved.about:
        raise ValueError(f"{path} has the targets of other documents or options: {saved.about}, here {about}.")
    data.counts["distillation_targets"] = len(document_ids)
    data.counts["distillation_seconds"] = round(perf_counter() - started, 2)
    return path


def _make_targets(
    options: RunOptions,
    smoothing: NeighbourDistillation.Options,
    model: DocSplitForContrastivePretraining,
    data: TrainingData,
    document_ids: np.ndarray,
) -> np.ndarray:
    """Embed these documents with the start, on all processes: (N, H), which the first process averages."""
    args, num_documents = options.training, len(document_ids)
    check_search(num_documents)
    with first_on_machine():
        texts = texts_by_id(document_ids, options.data)
    if options.start is None:
        rows = concatenate_datasets([part.select_columns(["document_id", "input_ids"]) for part in data.datasets])
        first = np.unique(np.asarray(rows["document_id"][:]), return_index=True)[1]
        reader = family_of(model.config).token_encoder(model.body[0].model)
        vectors = document_vectors(reader, rows.select(first), data.tokenizer.all_special_ids)
    else:
        pooling: Any = pooling_of(model.body)
        start = without_words(load_encoder(str(options.start), pooling, device=str(args.device)))
        show_progress = args.should_log and not args.disable_tqdm
        vectors, _ = embed_documents(start, texts, cache_dir=cache_directory(), show_progress=show_progress)
    if args.process_index > 0:
        return vectors
    if num_documents < 500:
        logger.warning(f"{num_documents} documents are few: an encoder gained nothing with 100 or 258.")
    rounds, weight = smoothing.smoothing_rounds, smoothing.neighbour_words
    words = weight**0.5 * word_vectors(texts) if weight and rounds and smoothing.num_neighbours else None
    shares = smoothing.smoothing_share, smoothing.neighbour_temperature
    return smooth(vectors, smoothing.num_neighbours, rounds, *shares, words)


def texts_by_id(document_ids: np.ndarray, data_args: DataArguments) -> Any:
    """Return the texts of these documents (ids ascending), in their order: a column, read as it is needed."""
    text_column = data_args.text_column
    read = corpora.load_corpus(data_args.corpus, text_column=text_column, encoding=data_args.encoding)
    corpus: Dataset = corpora.add_text(read, text_column)
    rows: dict[int, int] = {}  # the first that each document stands in
    for row, text in enumerate(corpus[text_column]):
        if isinstance(text, str):
            rows.setdefault(document_id(text), row)
    return corpus.select([rows[number] for number in document_ids.tolist()])[text_column]
