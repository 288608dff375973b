"""The page: what is shown of each document, and the one HTML file that holds it."""

import base64
import gzip
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from docsplit.data.words import (
    APART,
    BORDERS,
    COMPOUNDS,
    DIGIT,
    ENGLISH,
    HIDDEN,
    JOINTS,
    LETTER,
    LETTERS,
    NUMBERED,
    PIECES,
    RUNS,
    Stems,
)
from docsplit.embedding import encode
from docsplit.embedding.attention import document_attention
from docsplit.embedding.neighbours import nearest
from docsplit.explorer import sentences as of_sentences
from docsplit.explorer.documents import ExploredDocuments
from docsplit.explorer.map import groups_of, map_of
from docsplit.explorer.sentences import LONGEST_SHOWN, ShownText, split_texts
from docsplit.modeling.loading import has_graph_attention, is_graph_encoder, tokens_read, words_of
from docsplit.release.model_card import tables_of_results
from docsplit.release.records import read_evaluations, read_results
from docsplit.runtime.files import JsonObject
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

PAGE_FOLDER = Path(__file__).parent


def build_page(
    documents: ExploredDocuments,
    encoder: SentenceTransformer,
    name: str,
    directory: Path,
    neighbours: int = 8,
    method: str | None = None,
    language: str = ENGLISH,
) -> str:
    """Embed documents and their sentences, find neighbours, draw the map, and write all of it as HTML.

    Args:
        name: the title of the page.
        directory: the encoder's, whose results are shown; it need not exist.
        neighbours: of each document.
        method: of the map; None: as the number of documents has it.
        language: of the stems that the search counts.
    """
    texts = split_texts(documents.texts)
    vectors = documents.vectors
    if vectors is None:
        vectors = encode.embed_documents(encoder, documents.texts, show_progress=True)[0]
    vectors = unit(vectors)
    near, scores = nearest(vectors, min(neighbours, len(vectors) - 1))
    logger.info(f"Drawing the map of {len(vectors):,} documents")
    points, about_map = map_of(vectors, method)
    names = sorted(set(documents.labels or []))
    number_of = {name: number for number, name in enumerate(names)}
    curves = directory / "training.png"
    return html_of(
        {
            "name": name,
            "summary": summary_of(encoder, vectors),
            "about_map": about_map,
            "titles": documents.titles,
            "ids": documents.ids,
            "labels": [number_of[label] for label in documents.labels] if documents.labels else None,
            "label_names": names,
            "sentences": [text.sentences for text in texts],
            "breaks": [text.breaks for text in texts],
            "left_out": [text.left_out for text in texts],
            "points": points.tolist(),
            "groups": groups_of(points, documents.texts),
            "neighbours": near.tolist(),
            "scores": scores.round(4).tolist(),
            **matches_of(texts, near, encoder),
            "heard": heard_passages(encoder, documents.texts),
            "tables": tables_of(directory),
            "curves": f"data:image/png;base64,{_base64(curves.read_bytes())}" if curves.exists() else None,
            "words": words_of_page([*documents.titles, *(" ".join(text.sentences) for text in texts)], language),
        }
    )


def words_of_page(texts: Sequence[str], language: str) -> JsonObject:
    """Return what the page needs to cut queries and these texts as BM25 does: the stems, where a word is none."""
    cutter = Stems(language)
    words = {word for text in texts for word in cutter.words_in(text)}
    stems = {word: stem for word in sorted(words) if (stem := cutter.stem(word)) != word}
    patterns = {"apart": APART, "hidden": HIDDEN, "digit": DIGIT, "runs": RUNS, "letter": LETTER, "borders": BORDERS}
    patterns |= {
        "joined": COMPOUNDS.joined,
        "numbers": COMPOUNDS.numbers,
        "joints": JOINTS,
        "numbered": NUMBERED,
        "pieces": PIECES,
    }
    return {
        **{name: pattern.pattern for name, pattern in patterns.items()},
        "letters": LETTERS,
        "locale": "tr" if cutter.is_turkish else "en",  # of small letters
        "stop_words": sorted(cutter.stop_words),
        "stems": stems,
    }


def matches_of(texts: Sequence[ShownText], neighbours: np.ndarray, encoder: SentenceTransformer) -> JsonObject:
    """Match the sentences of each document with those of its neighbours, and choose the document to open with."""
    sentences = [text.sentences for text in texts]
    words = of_sentences.words_of_sentences(sentences)
    candidates = of_sentences.telling_sentences(sentences, words)
    flat = [said[number] for said, numbers in zip(sentences, candidates) for number in numbers]
    logger.info(
        f"{len(flat):,} of {sum(map(len, sentences)):,} sentences are matched: not boilerplate, code or short ones"
    )
    if flat:
        vectors = unit(encode.embed_documents(encoder, flat, show_progress=True)[0])
        vectors = unit(vectors - vectors.mean(axis=0))  # what all sentences share says nothing about two of them
    else:
        vectors = np.empty((0, 1), dtype=np.float32)
    matches = of_sentences.best_sentences(vectors, candidates, neighbours)
    pairs = [[pair and [pair.here, pair.there] for pair in several] for several in matches]
    return {"matches": pairs, "opening": of_sentences.opening_document(matches, neighbours, words)}


def heard_passages(encoder: SentenceTransformer, texts: Sequence[str]) -> list[list[tuple[float, str]]] | None:
    """Find the three passages that weigh most in each vector, and how much; None without graph attention."""
    if not has_graph_attention(encoder):
        return None
    heard = []
    for document in tqdm(document_attention(encoder, texts), desc="Graph attention", total=len(texts), unit="doc"):
        weights = document.weights[0, 1:]  # node 0 is the document itself
        most = np.argsort(-weights, kind="stable")[:3]
        short = [" ".join(document.passages[place].text.split())[:LONGEST_SHOWN] for place in most]
        heard.append([(round(float(weights[place]), 4), text) for place, text in zip(most, short)])
    return heard


def summary_of(encoder: SentenceTransformer, vectors: np.ndarray) -> str:
    """Say how many documents there are, and how much of each the encoder reads: all passages with a graph."""
    read = "whole texts read"
    if (length := tokens_read(encoder)) is not None:
        read = f"up to {length} tokens read of {'every passage' if is_graph_encoder(encoder) else 'each'}"
    if words_of(encoder) is not None:
        read += ", and the words of all of it"
    return f"{len(vectors):,} documents, embeddings of {vectors.shape[1]} numbers, {read}"


def tables_of(directory: Path) -> list[JsonObject]:
    """Read the results beside a checkpoint: tables with a title and the cells, line after line."""
    tables = tables_of_results(read_results(directory), read_evaluations(directory))
    return [{"title": table.title, "rows": [table.header, *table.rows]} for table in tables]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def html_of(payload: JsonObject) -> str:
    """Write the page with its style, its code and its data inside."""
    text = json.dumps(payload, separators=(",", ":")).encode()
    packed = _base64(gzip.compress(text, mtime=0))
    parts = {name: (PAGE_FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "bm25.js", "page.js")}
    page = (PAGE_FOLDER / "page.html").read_text(encoding="utf-8")
    for place, content in [*parts.items(), ("DATA_GZIP_BASE64", packed)]:
        page = page.replace(f"/* {place} */", content)
    return page
