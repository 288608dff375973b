"""Whether an encoder was trained on the documents that it is tested on, by its record of training documents."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from huggingface_hub.errors import HTTPError
from sentence_transformers.util import load_file_path

from docsplit.data.preparation import document_id
from docsplit.data.seen_documents import SHARES, TRAINING_DOCUMENTS_FILE, TrainingDocuments

logger = logging.getLogger(__name__)

FEW_NEAR_DUPLICATES = 0.05  # of the test documents: so few are named in the log, without a warning
NO_RECORD = f"it has no {TRAINING_DOCUMENTS_FILE}"


def training_documents_of(name_or_path: str) -> TrainingDocuments | None:
    """Load the record beside an encoder's weights, on the Hub or here; None if there is none, which the log says.

    That is a warning where a record cannot be read: encoders of others have none, and nobody can change that.
    """
    record, reason = _find(name_or_path)
    if record is None:
        level = logging.INFO if reason == NO_RECORD else logging.WARNING
        logger.log(level, f"Nobody knows which documents {name_or_path} was trained on: {reason}.")
    return record


def _find(name_or_path: str) -> tuple[TrainingDocuments | None, str]:
    """Return the record, or the reason why there is none."""
    try:
        path = load_file_path(name_or_path, TRAINING_DOCUMENTS_FILE)
        if path is not None:
            return TrainingDocuments.load(Path(path)), ""
        return None, NO_RECORD
    except (HTTPError, OSError, ValueError) as error:
        return None, " ".join(str(error).split()).rstrip(".")


def share_of_queries(name_or_path: str, queries: Sequence[str]) -> float | None:
    """Return the share of queries that an encoder was trained on for ranking; None where nothing is known of it.

    A run with `--view query_document` has its queries in its record, beside the documents.
    """
    record, _ = _find(name_or_path)
    return None if record is None else record.shares(queries, np.array([document_id(text) for text in queries])).seen


def contamination(name_or_path: str, test_texts: Sequence[str]) -> dict[str, float | None]:
    """Return `seen_in_pretraining_share` and `near_duplicate_share` of the distinct test documents.

    Documents are distinct up to white space. A near-duplicate is the same document, or one with an estimated Jaccard
    similarity of its runs of five words of 0.5 or more. What is unknown is None. The log names the shares: as a
    warning where a test document was seen, or more than `FEW_NEAR_DUPLICATES` are near-duplicates. It says at least
    how much it is where only the last pretraining is known.
    """
    unknown: dict[str, float | None] = dict.fromkeys(SHARES)
    record = training_documents_of(name_or_path) if test_texts else None
    if record is None:
        return unknown
    ids = np.array([document_id(text) for text in test_texts])
    shares = record.shares(test_texts, ids)
    near = shares.near_duplicates
    text = f"{100 * shares.seen:.1f} % of the {len(np.unique(ids)):,} distinct test documents, "
    unknown_near = "near-duplicates unknown (too many documents)"
    text += unknown_near if near is None else f"{100 * near:.1f} % with near-duplicates"
    if not record.is_complete:
        logger.warning(
            f"{name_or_path} saw at least {text}. Nobody knows which documents it was trained on before its last "
            "pretraining, so that its shares are unknown."
        )
        return unknown
    if shares.seen or (near or 0) > FEW_NEAR_DUPLICATES:
        logger.warning(f"{name_or_path} saw {text}, in pretraining: its results on them may be too good.")
    else:
        logger.info(f"{name_or_path} saw {text}, in pretraining.")
    return dict(zip(SHARES, (shares.seen, near)))
