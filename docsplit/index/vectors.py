"""Vectors of documents and passages, by an encoder that may add words of documents to them.

An encoder with words (`docsplit.modeling.encoder_with_words`) gives documents and passages vectors with words in them,
and queries vectors without. Words are fitted anew as an index grows, and the encoder is dear: so segments keep its
plain vectors, too, and each text goes through it once. That takes the vectors' room on disk twice; to embed all texts
at each fitting would take as long as to build the index again.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from docsplit.index.manifest import REMEDY, Manifest, check_encoder, read_manifest
from docsplit.runtime.files import Damaged, why_folder_damaged

if TYPE_CHECKING:  # it needs torch, as a search by words does not
    from docsplit.embedding.encoder import Description, Encoder

Embed = Callable[[Sequence[str]], np.ndarray]
CountTokens = Callable[[Sequence[str]], tuple[np.ndarray, int] | None]


@dataclass(frozen=True)
class Vectors:
    """Vectors of some documents (N, H), and of their passages (P, H), document after document."""

    documents: np.ndarray
    passages: np.ndarray

    @classmethod
    def of(cls, embedded: np.ndarray, counts: Sequence[int]) -> "Vectors":
        """Take apart the vectors of `texts_to_embed`; `counts` are the passages of each document."""
        passages = embedded[: sum(counts)]
        documents = passages[np.cumsum([0, *counts])[:-1]]  # a document of one passage is that passage
        documents[_of_several(counts)] = embedded[len(passages) :]
        return cls(documents, passages)

    def together(self, counts: Sequence[int]) -> np.ndarray:
        """Return the vectors in the order of `texts_to_embed`."""
        return np.concatenate([self.passages, self.documents[_of_several(counts)]])


def texts_to_embed(texts: Sequence[str], passages: Sequence[Sequence[str]]) -> list[str]:
    """List the passages of all documents, and then the texts of the documents that have several."""
    flat = [passage for several in passages for passage in several]
    return flat + [texts[row] for row in _of_several(list(map(len, passages)))]


def _of_several(counts: Sequence[int]) -> list[int]:
    return [row for row, count in enumerate(counts) if count > 1]


@dataclass(frozen=True)
class IndexEncoder:
    """An encoder as an index uses it.

    Attributes:
        embed: texts to vectors (N, H), of length one if the similarity is the cosine, without words of documents.
        description: what the manifest says of it: `name`, `hash`, and settings.
        with_words: what adds words to the vectors of `embed`; None: nothing does.
        count_tokens: `Encoder.count_tokens`; None: nothing is counted.
    """

    embed: Embed
    description: "Description"
    with_words: "Encoder | None" = None
    count_tokens: CountTokens | None = None

    @classmethod
    def of(cls, encoder: "Encoder", embed: Embed | None = None) -> "IndexEncoder":
        """Prepare an encoder.

        Args:
            embed: `encoder.without_words().embed_for_index`, computed elsewhere. Default: here.
        """
        embed = embed or encoder.without_words().embed_for_index
        return cls(embed, encoder.description, encoder if encoder.has_words else None, encoder.count_tokens)

    def in_index(self, directory: Path, manifest: Manifest) -> "IndexEncoder":
        """Return the encoder with the words that an index uses."""
        if self.with_words is None:
            return self
        return dataclasses.replace(self, with_words=with_words_of(self.with_words, directory, manifest))


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


def with_words_of(encoder: "Encoder", directory: Path, manifest: Manifest) -> "Encoder":
    """Return the encoder of an index with the words that were last fitted for it, or with its own.

    Raises:
        ValueError: if their files are missing or damaged.
    """
    if manifest.words is None or manifest.words.folder is None:
        return encoder
    from docsplit.modeling.encoder_with_words import TABLE, TOKENIZER, Words

    folder = directory / manifest.words.folder
    if manifest.files and (reason := why_folder_damaged(folder)):
        raise Damaged(f"{folder}: {reason}. Try again if another process changes the index. {REMEDY}")
    return encoder.with_words(Words.load(str(folder / TABLE), str(folder / TOKENIZER)))
