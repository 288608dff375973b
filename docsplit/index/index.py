"""An index of documents on disk, searched by meaning and by words; documents are added and removed singly.

`docsplit.index.store` says how it lies on the disk, `docsplit.index.changes` writes it. Readers take no lock.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from docsplit.data.fusion import fuse
from docsplit.data.passages import to_passages
from docsplit.data.words import telling_words, tokenize, words_in
from docsplit.index.store import Manifest, Segment, faults_in, map_data, read_manifest
from docsplit.runtime.files import READ_WHEN_OPENED, Damaged

if TYPE_CHECKING:  # it needs torch, as a search by words does not
    from docsplit.embedding.encoder import Description, Encoder

logger = logging.getLogger(__name__)

FUSED = 1000  # documents of each ranking that a hybrid fuses
K1, B = 1.5, 0.75  # of BM25, bm25s's defaults
BLOCK_VALUES = 2**20  # similarities at a time: 4 MB
Scored = list[tuple[int, float]]  # numbers of documents, and their scores


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


class Index:
    """The documents of a folder, as its manifest has them when it is opened.

    Opening compares sizes, and contents with their digests where all together are small (`READ_WHEN_OPENED`); `check`
    always reads all.

    Attributes:
        ends: the number of the last document of each segment, and one. Documents are counted through all segments.

    Args:
        is_built: refuse an index that is not built to its end.

    Raises:
        ValueError: if there is no index, one that is not built to its end, or if a file is missing or damaged.
        OSError: if a file cannot be opened.
    """

    def __init__(self, directory: str | Path, is_built: bool = True):
        self.directory = Path(directory)
        while True:
            self.manifest = read_manifest(self.directory, is_built)
            try:
                data = map_data(self.directory, self.manifest)
                if len(data) <= READ_WHEN_OPENED and (faults := faults_in(self.directory, self.manifest, data)):
                    raise Damaged(faults[0])
                break
            except Damaged:
                if read_manifest(self.directory) == self.manifest:  # else a writer was faster
                    raise
        self.segments = [Segment(data, entry) for entry in self.manifest.segments]
        self.ends = np.cumsum([len(segment.ids) for segment in self.segments], dtype=np.int64)

    def current(self) -> "Index":
        """Return this index; if another process has changed it, the index as it is now."""
        return self if read_manifest(self.directory) == self.manifest else Index(self.directory)

    def __len__(self) -> int:
        return sum(entry.documents for entry in self.manifest.segments)

    def find(self, document_id: str) -> tuple[Segment, int] | None:
        """Look up a document's segment and row; None if it is not in the index."""
        places = ((segment, segment.find(document_id)) for segment in self.segments)
        return next(((segment, row) for segment, row in places if row is not None), None)

    def search(
        self, vector: np.ndarray | None, words: Sequence[str], count: int = 10, method: str = "hybrid"
    ) -> list[Hit]:
        """Find the best documents for a query, the best first.

        `dense`: a document's score is that of its nearest passage. `bm25`: by words. `hybrid`: reciprocal rank fusion
        of the first `FUSED` of both.

        Args:
            vector: (H,), of the query; None for `bm25`.
            words: of the query, by `query_words`.

        Returns: at most `count`; with `bm25` only documents that have one of the words.
        """
        depth = max(FUSED, count) if method == "hybrid" else count
        rankings = []
        if method != "bm25":
            assert vector is not None
            rankings += self.nearest(vector[None], depth)
        if method != "dense":
            rankings.append(best_by_words(self.segments, words, depth))
        ranked = rankings[0] if len(rankings) == 1 else fuse([[number for number, _ in some] for some in rankings])
        hits = []
        for number, score in ranked[:count]:
            segment, row = self.place(number)
            passages = [passage.text for passage in to_passages(segment.texts[row], self.manifest.passage_words)]
            matched, similarity = [word for word in telling_words(words) if segment.has(word, row)], None
            if vector is None:
                passage = max(passages, key=lambda text: len(words_in(text).intersection(matched)))
            else:
                similarities = segment.vectors[segment.passages_of(row)] @ vector
                passage, similarity = passages[similarities.argmax()], float(similarities.max())
            hits.append(Hit(segment.ids[row], float(score), segment.titles[row], passage, similarity, matched))
        return hits

    def place(self, number: int) -> tuple[Segment, int]:
        """Return the segment of a document, and its row there."""
        which = int(np.searchsorted(self.ends, number, side="right"))
        return self.segments[which], number - int(self.ends[which]) + len(self.segments[which].ids)

    def nearest(self, vectors: np.ndarray, count: int) -> list[Scored]:
        """Find the documents with the nearest passages to each query (Q, H), the best first.

        The search is exact, but for what `docsplit.index.approximate` may miss among millions of passages.
        """
        known = self.manifest.approximate
        if known is None:
            return nearest(self.segments, vectors, count)
        from docsplit.index import approximate  # it needs torch, as an index of few passages does not

        covered = [segment.entry.name in known.segments for segment in self.segments]
        exact = nearest(self.segments, vectors, count, covered)
        found = approximate.nearest(self.directory, known, self.segments, self.ends, vectors, count)
        both = ([*some, *more.items()] for some, more in zip(exact, found))
        return [sorted(ranking, key=lambda scored: (-scored[1], scored[0]))[:count] for ranking in both]

    def documents(self) -> Iterator[tuple[Segment, int]]:
        """Iterate over all documents in order: segment and row."""
        for segment in self.segments:
            for row in np.flatnonzero(segment.alive):
                yield segment, int(row)

    def document_vectors(self) -> np.ndarray:
        """Copy the vectors of all documents, in their order, (N, H)."""
        return np.concatenate([segment.vectors[segment.document_rows[segment.alive]] for segment in self.segments])

    def num_passages(self) -> int:
        """Count the passages of all documents."""
        return sum(int(np.diff(segment.starts)[segment.alive].sum()) for segment in self.segments)

    def passages(self) -> Iterator[tuple[dict[str, str], np.ndarray]]:
        """Iterate over all passages of all documents, in order: id, document, title and text, and the vector (H,).

        The id is that of the document, and the passage's number in it.
        """
        for segment, row in self.documents():
            document, title = segment.ids[row], segment.titles[row]
            vectors = segment.vectors[segment.passages_of(row)]
            passages = to_passages(segment.texts[row], self.manifest.passage_words)
            for number, (passage, vector) in enumerate(zip(passages, vectors, strict=True)):
                yield (
                    {"id": f"{document}#{number}", "document": document, "title": title, "text": passage.text},
                    vector,
                )

    def words(self) -> str | None:
        """Say whether documents carry words beside their meaning; None: they do not."""
        return "Documents carry the words that the encoder brings." if self.manifest.has_words else None

    def reading(self) -> str | None:
        """Say what share of the documents' tokens the vectors read; None: all, or their tokens were not counted."""
        tokens = np.concatenate([np.empty((0, 3)), *(segment.tokens[segment.alive] for segment in self.segments)])
        total, in_passages, in_documents = tokens.sum(axis=0)
        if total < 0 or in_documents == total:
            return None
        of_passages, of_documents = (f"{np.floor(1000 * n / total) / 10:g} %" for n in (in_passages, in_documents))
        words = ", and the words of all" if self.manifest.has_words else ""
        fewer = "fewer --passage_words, or " if in_passages < total else ""
        return (
            f"The encoder reads {self.manifest.encoder['max_seq_length']:,} tokens at a time. Queries search "
            f"{of_passages} of your documents' tokens, in passages{words}. Clusters, duplicates and maps see "
            f"{of_documents}, the beginnings{words}. To read more, build with {fewer}an encoder that reads longer "
            "texts."
        )


def query_words(text: str) -> list[str]:
    """Cut a query into words, as documents are cut."""
    return tokenize([text], return_ids=False)[0]


def nearest(
    segments: Sequence[Segment], vectors: np.ndarray, count: int, passed_over: Sequence[bool] | None = None
) -> list[Scored]:
    """Find the documents with the nearest passages to each query (Q, H), exactly, the best first.

    Segments are read through their mapping in blocks, so that memory does not grow with them.

    Args:
        passed_over: segments whose documents are not compared, but counted.
    """
    from docsplit.runtime.vectors import best_of_blocks  # it needs torch, as a search by words does not

    def blocks() -> Iterator[np.ndarray]:
        """Yield the similarity of each query and each document (Q, N'), a block of documents after another."""
        for segment, is_passed_over in zip(segments, passed_over or [False] * len(segments)):
            if is_passed_over:
                yield np.full((len(vectors), len(segment.ids)), -np.inf, np.float32)
                continue
            starts, alive = segment.starts, segment.alive
            step = max(BLOCK_VALUES * len(alive) // (len(vectors) * int(starts[-1])), 1)  # documents
            for first in range(0, len(alive), step):
                last = min(first + step, len(alive))
                scores = vectors @ segment.vectors[starts[first] : starts[last]].T  # (Q, P')
                if last - first < scores.shape[1]:
                    scores = np.maximum.reduceat(scores, starts[first:last] - starts[first], axis=1)  # (Q, N')
                scores[:, ~alive[first:last]] = -np.inf
                yield scores

    rows, scores = best_of_blocks(blocks(), len(vectors), count)
    return [
        [(number, score) for number, score in zip(*ranking) if score > -np.inf]
        for ranking in zip(rows.tolist(), scores.tolist())
    ]


def best_by_words(segments: Sequence[Segment], words: Sequence[str], count: int) -> Scored:
    """Find the documents with the highest BM25 among those that have one of the words, the best first."""
    scores = bm25(segments, words)
    rows = np.flatnonzero(scores)  # BM25 is never below 0
    if len(rows) > count:
        least = np.partition(scores[rows], -count)[-count]
        rows = rows[scores[rows] >= least]  # also all that equal the last one
    rows = rows[np.argsort(-scores[rows], kind="stable")[:count]]
    return list(zip(rows.tolist(), scores[rows].tolist()))


def bm25(segments: Sequence[Segment], words: Sequence[str]) -> np.ndarray:
    """Compute BM25 (Lucene's form, as bm25s has it) of all documents of some segments for the words of a query.

    It is computed when a query comes, for its words alone: the statistics of the collection (documents that have a
    word, mean length) change with each document that comes or goes. bm25s, which the evaluations use, weighs all words
    of all documents beforehand; the scores are the same. Only documents that are in the index count: after an addition
    or a deletion, the scores are those of an index that was built so.

    Returns: (N,) float32 of all documents, 0 for those without any of the words and for deleted ones.
    """
    if not segments:
        return np.zeros(0, dtype=np.float32)
    alive = np.concatenate([segment.alive for segment in segments])
    lengths = np.concatenate([segment.lengths for segment in segments])
    starts = np.cumsum([0, *(len(segment.ids) for segment in segments)])
    num_documents, scores = int(alive.sum()), np.zeros(len(alive), dtype=np.float32)
    mean_length = max(int(lengths[alive].sum()) / max(num_documents, 1), 1e-9)
    for word, times in Counter(words).items():  # a word that the query has twice counts twice
        postings = [segment.postings(word) for segment in segments]
        rows = np.concatenate([start + rows for start, (rows, _) in zip(starts, postings)])
        counts = np.concatenate([counts for _, counts in postings])
        rows, counts = rows[alive[rows]], counts[alive[rows]]
        weight = times * np.log(1 + (num_documents - len(rows) + 0.5) / (len(rows) + 0.5))
        scores[rows] += weight * counts / (counts + K1 * (1 - B + B * lengths[rows] / mean_length))
    return scores


def encoder_of_index(directory: Path, name: str | None = None, cache_dir: Path | None = None) -> "Encoder":
    """Load the encoder that an index was built with.

    Args:
        name: where it is now. Default: where it was.
        cache_dir: of its embeddings. Default: they are not kept.

    Raises:
        ValueError: if there is no index, or the encoder is not the same any more.
    """
    from docsplit.embedding.encoder import Encoder

    manifest = read_manifest(directory)
    encoder = Encoder.of(manifest.encoder, name, cache_dir)
    check_encoder(manifest, encoder.description)
    return encoder


def check_encoder(manifest: Manifest, encoder: "Description") -> None:
    """Refuse an encoder that is not that of the index.

    Raises:
        ValueError: naming both.
    """
    expected = manifest.encoder
    if expected["hash"] != encoder["hash"]:
        changed = [name for name in expected if expected[name] != encoder.get(name) and name not in ("hash", "name")]
        raise ValueError(
            f"The index was built with {expected['name']} ({expected['hash'][:8]}), not with {encoder['name']} "
            f"({encoder['hash'][:8]}){': other ' + ', '.join(changed) if changed else ''}. Vectors of two encoders "
            "cannot be compared: build the index again."
        )
