"""An index of documents for Python code: one object that is built, searched and changed.

    index = Index.build("notes/", "sentence-transformers/all-MiniLM-L6-v2", "notes.index")
    for hit in Index("notes.index").search("how long does a refund take?", count=5):
        print(hit.score, hit.id, hit.title, hit.passage)

The folder is that of search.py. `docsplit.index.index` reads it and `docsplit.index.changes` writes it.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from docsplit.data.fusion import FUSIONS, WEIGHT
from docsplit.data.readers.base import USUAL, Document
from docsplit.data.readers.documents import Documents, documents_of, refuse_other_than_texts
from docsplit.data.words import ENGLISH, LANGUAGES, Stems
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.index import changes
from docsplit.index.index import Hit, IndexReader, Segment, check_encoder, encoder_of_index
from docsplit.index.results import METHODS, Added, Answer, Info, notes_on

if TYPE_CHECKING:  # they need torch or scikit-learn, as a search by words does not
    from docsplit.embedding.encoder import Encoder
    from docsplit.index.overview import Group, Pair

logger = logging.getLogger(__name__)

# A question fits if the cosine of one of the first hits and this part of the share of its words that the document has,
# by their rarity, are together as much: docs/searching.md has how often that is right
FIRST, WORDS_WEIGHT, LEAST = 5, 0.4, 0.43
NOTHING_FITS = "Probably nothing fits: no hit is near the question, and none has most of its rarer words."


class Index:
    """An index on disk. Its encoder is loaded when it is first needed, and once.

    Other processes may change the index: every call sees it as it is then. Several threads may search at once.

    Args:
        directory: of the index.
        encoder: where its encoder is now. Default: where it was when the index was built.

    Raises:
        ValueError: if there is no index, or one that cannot be read.

    Example:
        >>> from docsplit import Index
        >>> notes = {"sea": "The ship dropped its anchor.", "kitchen": "Bread with butter and salt."}
        >>> index = Index.build(notes, "sentence-transformers/all-MiniLM-L6-v2", "outputs/notes.index")
        >>> index.search("butter on bread", count=1)[0].id
        'kitchen'
    """

    def __init__(self, directory: str | Path, encoder: str | Path | None = None):
        self.directory = Path(directory)
        self._encoder_path = None if encoder is None else str(encoder)
        self._encoder: Encoder | None = None  # with the description that the index has of it
        self._loading = threading.Lock()
        self._reader = IndexReader(self.directory)

    @classmethod
    def build(
        cls, documents: Documents, encoder: str | Path, directory: str | Path, passage_words: int = 100,
        language: str = ENGLISH, prompt: str | None = None, query_prompt: str | None = None,
    ) -> "Index":  # fmt: skip
        """Make an index of documents; run again after a kill, it goes on.

        Args:
            documents: a folder or a file (`docsplit.data.readers.documents`); texts by id; texts, whose ids are their
                numbers; or `Document`s (`docsplit.data.readers.base`).
            encoder: a SentenceTransformer or any `AutoModel`, by its name on the Hub or its folder.
            directory: a new folder.
            passage_words: words of a passage, about.
            language: of the stems that searching by words counts, one of `docsplit.data.words.LANGUAGES`.
            prompt, query_prompt: before each document and each query; the index keeps them. Default: the encoder's.

        Raises:
            ValueError: if there is an index already, if ids repeat, if no document has text, or for an unknown
                language.
        """
        if language not in LANGUAGES:
            raise ValueError(f"language is {language!r}: expected one of {', '.join(LANGUAGES)}.")
        if not isinstance(encoder, str | Path):
            raise ValueError(f"The encoder is a {type(encoder).__name__}: give its name on the Hub or its folder.")
        directory = Path(directory)
        changes.refuse_taken(directory)
        first = changes.begun(documents_of(documents))
        from docsplit.embedding.encoder import Encoder

        given = EncoderArguments([str(encoder)], prompt=prompt, query_prompt=query_prompt)
        loaded = Encoder(str(encoder), given, directory / "cache")
        built = changes.build(directory, first, loaded, passage_words, _source(documents), language=language)
        if built.empty:
            logger.warning(f"Documents without text, which are not in the index: {built.empty:,}.")
        index = cls(directory, encoder)
        index._encoder = loaded
        return index

    def __len__(self) -> int:
        return len(self._current())

    def search(
        self, question: str, count: int = 10, method: str = "hybrid", fusion: str = "sum", weight: float = WEIGHT,
        under: str = "",
    ) -> list[Hit]:  # fmt: skip
        """Find the best documents for a question, the best first.

        Args:
            method: `dense` by meaning, `bm25` by words, `hybrid` by both.
            fusion: of a hybrid: `sum` of both scores (`docsplit.data.fusion`), or `rrf`, reciprocal ranks.
            weight: of the meaning in the sum, 0 to 1.
            under: what the ids of the documents begin with, such as the name of a folder.

        Returns: at most `count` hits, with `id`, `title`, `score`, and the `passage` that answers the question best.
            Documents with the same text are one hit, which has the ids of the others as `copies`.

        Raises:
            ValueError: for an empty question, a `count` below 1, an unknown method, fusion or weight, an encoder that
                has changed, or if there is no document.
        """
        return self.answer(question, count, method, fusion, weight, under).rows

    def like(
        self, document_id: str, count: int = 10, method: str = "hybrid", fusion: str = "sum", weight: float = WEIGHT,
        under: str = "",
    ) -> list[Hit]:  # fmt: skip
        """Find the documents that are most like one of the index, which is left out; its encoder is not needed.

        The arguments and what is returned are those of `search`; the question is the document, its vector and its
        words.

        Raises:
            ValueError: as `search` does, and for an id that is not in the index.
        """
        return self.answer_like(document_id, count, method, fusion, weight, under).rows

    def answer(
        self, question: str, count: int = 10, method: str = "hybrid", fusion: str = "sum", weight: float = WEIGHT,
        under: str = "",
    ) -> Answer:  # fmt: skip
        """Find what `search` finds, and say how long it took and which words counted; raises as `search` does."""
        if not question.strip():
            raise ValueError("The question is empty: give it words.")
        _check_search(count, method, fusion, weight)
        reader = self._current().under(under)
        encoder = None if method == "bm25" else self.encoder()
        started = perf_counter()
        vector = None if encoder is None else encoder.embed_query(question)
        milliseconds = 1e3 * (perf_counter() - started)
        is_known = method == "hybrid" and reader.manifest.encoder["similarity"] == "cosine"
        most = max(count, FIRST) if is_known else count
        found = _answer(reader, question, vector, most, method, fusion, weight)
        fits = _fits(reader, found) if is_known else None
        notes = [*notes_on(question), *([NOTHING_FITS] if fits is False and found.rows else [])]
        return replace(found, rows=found.rows[:count], encoding_ms=milliseconds, fits=fits, notes=notes)

    def answer_like(
        self, document_id: str, count: int = 10, method: str = "hybrid", fusion: str = "sum", weight: float = WEIGHT,
        under: str = "",
    ) -> Answer:  # fmt: skip
        """Find what `like` finds, as `answer` does; the query of the answer is the id."""
        _check_search(count, method, fusion, weight)
        current = self._current()
        segment, row = _place_of(current, document_id)
        vector = None if method == "bm25" else segment.vectors[segment.document_rows[row]]
        others = current.under(under).without(document_id)
        found = _answer(others, segment.texts[row], vector, count, method, fusion, weight)
        return replace(found, query=document_id)

    def document(self, document_id: str) -> Document:
        """Return a document of the index: its `id`, `text` and `title`; the text begins with the title.

        Raises:
            ValueError: if it is not in the index.
        """
        segment, row = _place_of(self._current(), document_id)
        return segment.document(row)

    def documents(self, under: str = "") -> Iterator[Document]:
        """Iterate over all documents as `document` returns them, as the index is now, whatever changes meanwhile.

        Args:
            under: as in `search`.

        Example:
            >>> notes = {"sea": "The ship dropped its anchor.", "kitchen": "Bread with butter and salt."}
            >>> index = Index.build(notes, "sentence-transformers/all-MiniLM-L6-v2", "outputs/two.index")
            >>> {document.id: document.text for document in index.documents()} == notes
            True
        """
        reader = self._current().under(under)
        return (segment.document(row) for segment, row in reader.documents())

    def duplicates(self, threshold: float = 0.95, under: str = "") -> list["Pair"]:
        """Find pairs of documents that say nearly the same, the most similar first.

        Args:
            threshold: lowest similarity of a pair.
            under: as in `search`.
        """
        from docsplit.index import overview

        return overview.duplicates(self._current().under(under), threshold)

    def clusters(self, count: int | None = None, under: str = "") -> list["Group"]:
        """Group documents, and name each group by words; the largest comes first.

        Args:
            count: of the groups. Default: 10, or as many as documents where they are fewer.
            under: as in `search`.
        """
        from docsplit.index import overview

        return overview.clusters(self._current().under(under), count)

    def info(self) -> Info:
        """Say what the index holds, and which encoder it needs."""
        return Info.of(self._current())

    def add(self, documents: Documents, replace: bool = False) -> Added:
        """Add documents; those that are in the index unchanged stay.

        Args:
            documents: as in `build`, but texts need ids: their numbers are those of other documents.
            replace: replace documents whose text has changed.

        Returns: the numbers of `documents` and `passages` that were added, those `replaced` among them, and of
            documents left out: `unchanged` ones and `empty` ones, which have no text.

        Raises:
            ValueError: if an id is in the index with another text and `replace` is False, if ids repeat, or for texts
                without ids. The index is as it was.
        """
        first = changes.begun(documents_of(_with_ids(documents)))
        return changes.add(self.directory, first, self.encoder(), replace, _source(documents))

    def sync(self, folder: str | Path | None = None, yes: bool = False) -> Added:
        """Add, replace and remove what has changed in the folders that documents were read from.

        Args:
            folder: as in `docsplit.index.changes.sync`. Default: all of them.
            yes: go on if a folder is gone, or more than half of its documents are to be removed.

        Returns: what `add` returns, and how many documents were `removed`, and stay `unread` for now.

        Raises:
            ValueError: without `yes` in these cases, or if no document is of that folder. The index is as it was.
        """
        return changes.sync(self.directory, self.encoder, folder, yes)

    def delete(self, ids: str | Iterable[str]) -> int:
        """Take documents out, and return how many.

        Raises:
            ValueError: naming ids that are not in the index, before anything changes.
        """
        return changes.delete(self.directory, [ids] if isinstance(ids, str) else ids)

    def _current(self) -> IndexReader:
        """Return the reader of the index as it is now."""
        self._reader = self._reader.current()
        return self._reader

    def encoder(self) -> "Encoder":
        """Return the encoder that the index was built with.

        Raises:
            ValueError: if it is not the same any more.
        """
        with self._loading:
            if self._encoder is None:
                self._encoder = encoder_of_index(self.directory, self._encoder_path, self.directory / "cache")
            else:  # the index may have been built again
                check_encoder(self._current().manifest, self._encoder.description)
            return self._encoder


def _check_search(count: int, method: str, fusion: str, weight: float) -> None:
    if count < 1:
        raise ValueError(f"count is {count}: expected 1 or more.")
    if method not in METHODS:
        raise ValueError(f"method is {method!r}: expected one of {', '.join(METHODS)}.")
    if fusion not in FUSIONS or not 0 <= weight <= 1:
        raise ValueError(f"fusion is {fusion!r}, weight {weight!r}: expected sum or rrf, and 0 to 1.")


def _answer(
    reader: IndexReader, text: str, vector: np.ndarray | None, count: int, method: str, fusion: str, weight: float
) -> Answer:
    """Search with the words of a text and a vector (H,)."""
    started = perf_counter()
    hits = reader.search(vector, text, count, method, fusion, weight, joins_copies=True)
    milliseconds, language = 1e3 * (perf_counter() - started), reader.manifest.language
    similarity = None if vector is None else reader.manifest.encoder["similarity"]
    return Answer(text, method, hits, 0.0, milliseconds, similarity, [*Stems(language).content_words(text)], language)


def _fits(reader: IndexReader, answer: Answer) -> bool:
    """Whether one of the first hits is near the question, or has its rarer words."""
    rarity = reader.rarity(answer.words)
    words = (sum(rarity[word] for word in hit.words) for hit in answer.rows[:FIRST])
    return any((hit.similarity or 0) + WORDS_WEIGHT * share >= LEAST for hit, share in zip(answer.rows, words))


def _place_of(reader: IndexReader, document_id: str) -> tuple[Segment, int]:
    if (place := reader.find(document_id)) is None:
        raise ValueError(f"{document_id!r} is not in the index: an id is what a query prints in [brackets].")
    return place


def _source(documents: Documents) -> changes.DocumentSource:
    return (str(Path(documents).absolute()), USUAL) if isinstance(documents, str | Path) else changes.PYTHON


def _with_ids(documents: Documents) -> Documents:
    """Refuse texts without ids."""
    if isinstance(documents, str | Path | Mapping):
        return documents
    refuse_other_than_texts(documents)
    listed = list(documents)
    if not all(isinstance(document, Document) for document in listed):
        raise ValueError("Texts that are added need ids, by which they can be replaced and deleted: give {id: text}.")
    return listed
