"""An index of documents on disk, searched by meaning and by words; documents are added and removed singly.

    D/manifest.json          its segments and its encoder; what it does not name is no part of the index
    D/segments/NAME/         `docsplit.index.segments`; never changed once it is named
    D/segments/NAME/files.json       size and digest of each file in it
    D/segments/NAME/deleted-K.npy    rows that are no longer in the index
    D/words-K/               words that were fitted on the documents, if any (`docsplit.index.refitting`)
    D/cache/                 embeddings of a run that was stopped; removed once it is finished

`docsplit.index.changes` writes it. Readers take no lock. The manifest says how all files are verified.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from docsplit.data.fusion import fuse
from docsplit.data.passages import to_passages
from docsplit.data.words import telling_words, words_in
from docsplit.index import first_stage
from docsplit.index.first_stage import Key, Scored
from docsplit.index.manifest import UNSEALED, check_files, read_manifest, refuse_unfinished
from docsplit.index.segments import Segment, open_segment
from docsplit.runtime.files import READ_WHEN_OPENED, Damaged

logger = logging.getLogger(__name__)

FUSED = 1000  # documents of each ranking that a hybrid fuses


@dataclass(frozen=True)
class Hit:
    """A document that was found, and its best passage.

    Attributes:
        score: what documents are sorted by: a similarity, BM25, or the reciprocal ranks of both.
        passage: the nearest to the query; where words alone count, the one with most of them.
        similarity: of that passage and the query; None where words alone count.
        words: of the query, that the document has; without those that say little.
    """

    id: str
    score: float
    title: str
    passage: str | None
    similarity: float | None = None
    words: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StoredPassage:
    """A passage of a document in the index, with its vector."""

    id: str  # of the document, and the passage's number in it
    document: str
    title: str
    text: str
    vector: np.ndarray  # (H,) float32


class Index:
    """The documents of a folder, as its manifest has them when it is opened.

    Opening compares the sizes of all files with their records, and the contents where all together are small
    (`READ_WHEN_OPENED`); `docsplit.index.check` always reads all. It memory-maps the files: what writers remove later
    can still be read.

    Raises:
        ValueError: if there is no index, one of another version or not built to its end, or if a file is missing or
            damaged.
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        while True:
            self.manifest = read_manifest(self.directory)
            refuse_unfinished(self.directory, self.manifest)
            try:
                check_files(self.directory, self.manifest, READ_WHEN_OPENED)
                self.segments = [open_segment(self.directory, entry) for entry in self.manifest.segments]
                break
            except (Damaged, FileNotFoundError):
                if read_manifest(self.directory) == self.manifest:  # else a writer was faster
                    raise
        if self.manifest.version == UNSEALED:
            logger.warning(
                f"The index in {directory} is of version {UNSEALED}, without checksums: damage goes unnoticed, and it "
                "can be read but not changed. Build it again."
            )

    def current(self) -> "Index":
        """Return this index; if another process has changed it, the index as it is now."""
        return self if read_manifest(self.directory) == self.manifest else Index(self.directory)

    def __len__(self) -> int:
        return sum(segment.num_documents for segment in self.segments)

    def find(self, document_id: str) -> tuple[Segment, int] | None:
        """Look up a document's segment and row; None if it is not in the index."""
        for segment in self.segments:
            if (row := segment.find(document_id)) is not None:
                return segment, row
        return None

    def search(
        self, vector: np.ndarray | None, words: Sequence[str], count: int = 10, method: str = "hybrid"
    ) -> list[Hit]:
        """Find the best documents for a query, the best first.

        `dense`: a document's score is that of its nearest passage. `bm25`: by words. `hybrid`: reciprocal rank fusion
        of the first `FUSED` of both.

        Args:
            vector: (H,), of the query; None for `bm25`.
            words: of the query, `docsplit.index.segments.query_words`.

        Returns: at most `count`; with `bm25` only documents that have one of the words.
        """
        depth = max(FUSED, count) if method == "hybrid" else count
        rankings = []
        if method != "bm25":
            assert vector is not None
            rankings += self.nearest(vector[None], depth)
        if method != "dense":
            rankings.append(first_stage.best_by_words(self.segments, words, depth))
        keys = [[key for key, _ in ranking] for ranking in rankings]
        ranked = rankings[0] if len(rankings) == 1 else fuse(keys)
        return [self._hit(key, score, vector, words) for key, score in ranked[:count]]

    def nearest(self, vectors: np.ndarray, count: int) -> list[Scored]:
        """Find the documents with the nearest passages to each query (Q, H), the best first.

        The search is exact, but for what `docsplit.index.approximate` may miss among millions of passages.
        """
        known = self.manifest.approximate
        if known is None:
            return first_stage.nearest(self.segments, vectors, count)
        from docsplit.index import approximate  # it needs torch, as an index of few passages does not

        names = [entry.name for entry in self.manifest.segments]
        by_name = {name: (number, segment) for number, (name, segment) in enumerate(zip(names, self.segments))}
        rankings = approximate.nearest(self.directory, known, by_name, vectors, count)
        others = [number for number, name in enumerate(names) if name not in known.segments]
        exact = first_stage.nearest([self.segments[number] for number in others], vectors, count)
        for ranking, more in zip(rankings, exact):
            ranking += [((others[number], row), score) for (number, row), score in more]
        return [sorted(ranking, key=lambda place: (-place[1], place[0]))[:count] for ranking in rankings]

    def _hit(self, key: Key, score: float, vector: np.ndarray | None, words: Sequence[str]) -> Hit:
        segment, row = self.segments[key[0]], key[1]
        passages = [passage.text for passage in to_passages(segment.texts[row], self.manifest.passage_words)]
        matched, similarity = [word for word in telling_words(words) if segment.words.has(word, row)], None
        if vector is None:
            passage = max(passages, key=lambda text: len(words_in(text).intersection(matched)))
        else:
            similarities = segment.passage_vectors[segment.passages_of(row)] @ vector
            passage, similarity = passages[similarities.argmax()], float(similarities.max())
        return Hit(segment.ids[row], float(score), segment.titles[row], passage, similarity, matched)

    def documents(self) -> Iterator[tuple[Segment, int]]:
        """Iterate over all documents in order: segment and row."""
        for segment in self.segments:
            for row in np.flatnonzero(segment.alive):
                yield segment, int(row)

    def document_vectors(self) -> np.ndarray:
        """Copy the vectors of all documents, in their order, (N, H)."""
        return np.concatenate([segment.document_vectors[segment.alive] for segment in self.segments])

    def num_passages(self) -> int:
        """Count the passages of all documents."""
        return sum(len(segment.passage_vectors[segment.passages_of(row)]) for segment, row in self.documents())

    def passages(self) -> Iterator[StoredPassage]:
        """Iterate over all passages of all documents, in order."""
        for segment, row in self.documents():
            document, title = segment.ids[row], segment.titles[row]
            vectors = segment.passage_vectors[segment.passages_of(row)]
            passages = to_passages(segment.texts[row], self.manifest.passage_words)
            for number, (passage, vector) in enumerate(zip(passages, vectors, strict=True)):
                yield StoredPassage(f"{document}#{number}", document, title, passage.text, vector)
