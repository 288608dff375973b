"""Hash the documents that an encoder is trained on, and measure how much of a test set is among them.

The record beside an encoder's weights holds no text. It has the 8 bytes of `document_id` of each document and, up to
a million documents, a sketch: the 8 smallest hashes of its runs of five words (`docsplit.data.words.units_of`), of
letters where no spaces stand between words (Broder 1997, "On the resemblance and containment of documents"). Take the
8 smallest of two sketches' union: the share that both have estimates the Jaccard
similarity of the two documents' runs, with a standard deviation of 0.18 at 0.5. The price is the size of the file:
8 bytes a document, 40 with a sketch; 0.8 GB for a hundred million documents.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from docsplit.data.copies import NO_HASH, SKETCH_SIZE, document_id, resemblance, sketch
from docsplit.runtime.files import digest_of_arrays, write_whole

TRAINING_DOCUMENTS_FILE = "training_documents.safetensors"
SHARES = ("seen_in_pretraining_share", "near_duplicate_share")  # of the test documents, in rows of results
NEAR_DUPLICATE = 0.5  # estimated resemblance
MOST_SKETCHES = 1_000_000  # documents; with more, near-duplicates are unknown

logger = logging.getLogger(__name__)


@dataclass
class DocumentSet:
    """Distinct documents by their hashes.

    Attributes:
        ids: (N,) int64 of `document_id`, ascending.
        sketches: (N, SKETCH_SIZE) uint32 of these; None: unknown.
    """

    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sketches: np.ndarray | None = field(default_factory=lambda: np.zeros((0, SKETCH_SIZE), dtype=np.uint32))

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, ids: np.ndarray, sketches: np.ndarray | None) -> None:
        """Add documents; known and repeated ones count once.

        Args:
            ids: (M,) int64, in any order.
            sketches: (M, SKETCH_SIZE) uint32; None if unknown, which makes those of the whole set unknown.
        """
        ids, first = np.unique(ids, return_index=True)
        is_new = ~self.contains(ids)
        places = np.searchsorted(self.ids, ids[is_new])
        self.ids = np.insert(self.ids, places, ids[is_new])
        if self.sketches is None or sketches is None or len(self.ids) > MOST_SKETCHES:
            self.sketches = None
        else:
            self.sketches = np.insert(self.sketches, places, sketches[first[is_new]], axis=0)

    def contains(self, ids: np.ndarray) -> np.ndarray:
        """Whether each of these is in the set, (M,)."""
        places = np.searchsorted(self.ids, ids)
        is_known = places < len(self.ids)
        is_known[is_known] = self.ids[places[is_known]] == ids[is_known]
        return is_known

    def near_duplicates(self, sketches: np.ndarray) -> np.ndarray:
        """Whether each of M documents resembles one of the set by NEAR_DUPLICATE or more, (M,).

        Raises:
            ValueError: if the sketches of the set are unknown.
        """
        if self.sketches is None:
            raise ValueError("The sketches of this set are unknown: it has too many documents, or its start had none.")
        # An inverted index: hashes that a test document has, and the documents of the set that have them.
        wanted = np.unique(sketches[sketches != NO_HASH])
        documents, columns = np.isin(self.sketches, wanted).nonzero()
        hashes = self.sketches[documents, columns]
        order = np.argsort(hashes, kind="stable")
        hashes, documents = hashes[order], documents[order]
        is_duplicate = np.zeros(len(sketches), dtype=bool)
        # Compare each test document with those that share enough hashes to be near.
        for row, of_test in enumerate(sketches):
            known = of_test[of_test != NO_HASH]
            starts, ends = np.searchsorted(hashes, known), np.searchsorted(hashes, known, side="right")
            holders = [documents[start:end] for start, end in zip(starts, ends)] or [documents[:0]]
            candidates, num_shared = np.unique(np.concatenate(holders), return_counts=True)
            candidates = candidates[num_shared >= NEAR_DUPLICATE * len(known)]
            repeated = np.broadcast_to(of_test, (len(candidates), SKETCH_SIZE))
            is_duplicate[row] = (resemblance(repeated, self.sketches[candidates]) >= NEAR_DUPLICATE).any()
        return is_duplicate


@dataclass
class TrainingDocuments:
    """The documents that the weights of an encoder were trained on.

    Attributes:
        run: those of its pretraining, in all sessions of a resumed run.
        before: those that the weights had seen at the start of that run.
        is_complete: whether `before` is all; False where the start had no record.
    """

    run: DocumentSet = field(default_factory=DocumentSet)
    before: DocumentSet = field(default_factory=DocumentSet)
    is_complete: bool = True

    def for_next_run(self) -> "TrainingDocuments":
        """Begin the record of a run that starts from these weights."""
        before = DocumentSet(self.before.ids, self.before.sketches)
        before.add(self.run.ids, self.run.sketches)
        return TrainingDocuments(before=before, is_complete=self.is_complete)

    def shares(self, texts: Sequence[str]) -> tuple[float, float | None]:
        """Measure how much of a test set is in the record.

        Returns: the share of the distinct test documents that are in it, and the share of those that are in it or
            resemble one by NEAR_DUPLICATE or more; None where that is unknown.
        """
        ids, first = np.unique([document_id(text) for text in texts], return_index=True)
        seen = self.run.contains(ids) | self.before.contains(ids)
        if self.run.sketches is None or self.before.sketches is None:
            return float(seen.mean()), None
        sketches = sketch([texts[index] for index in first])
        alike = self.run.near_duplicates(sketches) | self.before.near_duplicates(sketches)
        return float(seen.mean()), float((seen | alike).mean())

    def save(self, directory: Path) -> None:
        """Write TRAINING_DOCUMENTS_FILE, whole or not at all."""
        from safetensors.numpy import save_file  # --help reads this module

        tensors = {"is_complete": np.array(self.is_complete)}
        for name, part in {"run": self.run, "before": self.before}.items():
            tensors[f"{name}.ids"] = part.ids
            if part.sketches is not None:
                tensors[f"{name}.sketches"] = part.sketches
        metadata = {"digest": digest_of_arrays(tensors)}  # safetensors writes several names in any order
        path = directory / TRAINING_DOCUMENTS_FILE
        write_whole(path, lambda path: save_file(tensors, path, metadata=metadata))

    @classmethod
    def load(cls, path: Path) -> "TrainingDocuments":
        """Read a record of `save`.

        Raises:
            ValueError: if the file cannot be read, or has changed since.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="np") as file:
                names, metadata = file.keys(), file.metadata()
                tensors = {name: file.get_tensor(name) for name in names}
            if metadata["digest"] != digest_of_arrays(tensors):
                raise ValueError("it has changed since it was written")
            run, before = (
                DocumentSet(tensors[f"{name}.ids"], tensors.get(f"{name}.sketches")) for name in ("run", "before")
            )
            return cls(run, before, bool(tensors["is_complete"]))
        except (SafetensorError, OSError, AttributeError, KeyError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


# --- Encoders against test sets ---


def training_documents_of(name_or_path: str) -> TrainingDocuments | None:
    """Load the record beside an encoder's weights, on the Hub or here; None if there is none, as beside most encoders.

    A record that cannot be read is none, with a warning.
    """
    from huggingface_hub.errors import HTTPError
    from sentence_transformers.util import load_file_path

    try:
        path = load_file_path(name_or_path, TRAINING_DOCUMENTS_FILE)
        if path is not None:
            return TrainingDocuments.load(Path(path))
    except (HTTPError, OSError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        logger.warning(f"The training documents of {name_or_path} are unknown: {reason}.")
    return None


def share_of_queries(name_or_path: str, queries: Sequence[str]) -> float | None:
    """Return the share of queries that an encoder was trained on for ranking; None where there is no record.

    A run with `--view query_document` has its queries in its record, beside the documents.
    """
    record = training_documents_of(name_or_path)
    return None if record is None else record.shares(queries)[0]


def contamination(name_or_path: str, test_texts: Sequence[str]) -> dict[str, float | None]:
    """Return `seen_in_pretraining_share` and `near_duplicate_share` of the distinct test documents.

    Documents are distinct up to white space. A near-duplicate is the same document, or one with an estimated Jaccard
    similarity of its runs of 0.5 or more. What is unknown is None. A warning names the shares where
    a test document was seen, or more than 5 % are near-duplicates, or only the last pretraining is known.
    """
    unknown: dict[str, float | None] = dict.fromkeys(SHARES)
    record = training_documents_of(name_or_path) if test_texts else None
    if record is None:
        return unknown
    seen, near = record.shares(test_texts)
    text = f"{100 * seen:.1f} % of the distinct test documents, "
    text += (
        "near-duplicates unknown (too many documents)" if near is None else f"{100 * near:.1f} % with near-duplicates"
    )
    if not record.is_complete:
        at_least = f"; it saw at least {text}" if seen else ""
        logger.warning(f"The training documents of {name_or_path} before its last pretraining are unknown{at_least}.")
        return unknown
    if seen or (near or 0) > 0.05:
        logger.warning(f"{name_or_path} saw {text}, in pretraining: its results on them may be too good.")
    return dict(zip(SHARES, (seen, near)))
