"""Show a corpus as an encoder sees it: one HTML page that works by opening the file, offline.

    python explore.py outputs/quickstart                                   # the built-in corpus
    python explore.py outputs/mine --corpus documents.jsonl --label_column topic --output mine.html
    python explore.py notes.index                                          # an index of search.py

Search by words or click on the map: the page shows the document and its nearest ones, each with the two sentences that
match best. It also shows the probe and the training curves of the checkpoint, if it has them. Everything is in the
file, texts included: share it as you may share the corpus.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import argparse
import base64
import gzip
import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.runtime.command_parser import CommandParser
from docsplit.runtime.files import JsonObject, refuse_missing_path

TEMPLATE = Path(__file__).parent / "docsplit" / "explore.html"
SENTENCES_SHOWN = 30  # of a document
FEWEST_WORDS = 6  # of a sentence that is matched with another
PASSAGES_HEARD = 3  # of a document, with a graph document model
LONGEST_SENTENCE, LONGEST_TITLE = 400, 90  # letters
LARGEST_TSNE = 5000  # documents


@dataclass(frozen=True)
class Documents:
    """The documents of the page.

    Attributes:
        labels: None where there is no label column.
        vectors: (N, H); None where they are still to be embedded.
    """

    titles: list[str]
    texts: list[str]
    labels: list[str] | None = None
    vectors: np.ndarray | None = None


def read_documents(corpus: str, text_column: str, label_column: str | None, limit: int) -> Documents:
    """Draw at most `limit` documents of a corpus at random, and leave out those without text.

    Raises:
        ValueError: if a column is missing, or fewer than three documents are left.
    """
    from datasets import ClassLabel, Dataset

    from docsplit.data import corpora
    from docsplit.data.segmentation import clean_text

    documents = corpora.load_corpus(corpus, text_column=text_column if label_column is None else None)
    dataset: Dataset = corpora.add_text(documents, text_column)
    if label_column is None and "label" in dataset.column_names:
        label_column = "label"
    if label_column is not None and label_column not in dataset.column_names:
        raise ValueError(f"--label_column is {label_column!r}, but the columns are {dataset.column_names}.")
    rows = np.sort(np.random.default_rng(0).permutation(len(dataset))[:limit])
    chosen = dataset.select(rows)
    texts = [clean_text(text).strip() if isinstance(text, str) else "" for text in chosen[text_column]]
    titles = chosen["title"] if "title" in dataset.column_names else [None] * len(texts)
    labels = [str(label) for label in chosen[label_column]] if label_column else None
    if labels and isinstance(feature := dataset.features[label_column], ClassLabel):
        labels = [feature.names[int(label)] if label.isdecimal() else label for label in labels]
    kept = [row for row, text in enumerate(texts) if text]
    if len(kept) < 3:
        raise ValueError(f"{corpus} has {len(kept)} documents with text: a map needs three or more.")
    short = [" ".join(clean_text(str(titles[row] or texts[row])).split())[:LONGEST_TITLE] for row in kept]
    return Documents(short, [texts[row] for row in kept], [labels[row] for row in kept] if labels else None)


def documents_of_index(directory: Path, limit: int) -> tuple[Documents, Any]:
    """Draw at most `limit` documents of an index at random, and load its encoder.

    Raises:
        ValueError: if there are fewer than three, or the encoder is another one now.
    """
    from docsplit.embedding.encoder import Encoder
    from docsplit.index.index import Index
    from docsplit.index.manifest import check_encoder
    from docsplit.index.vectors import with_words_of

    index = Index(directory)
    if len(index) < 3:
        raise ValueError(f"{directory} has {len(index)} documents: a map needs three or more.")
    encoder = Encoder.of(index.manifest.encoder)
    check_encoder(index.manifest, encoder.description)
    encoder = with_words_of(encoder, directory, index.manifest)
    places = list(index.documents())
    chosen = [places[number] for number in np.sort(np.random.default_rng(0).permutation(len(places))[:limit])]
    titles = [segment.titles[row] or segment.ids[row] for segment, row in chosen]
    vectors = np.stack([segment.document_vectors[row] for segment, row in chosen])
    return Documents(titles, [segment.texts[row] for segment, row in chosen], vectors=vectors), encoder.model


def best_sentences(
    sentence_embeddings: np.ndarray, candidates: list[np.ndarray], starts: np.ndarray, neighbours: np.ndarray
) -> list[list[tuple[int, int]]]:
    """Choose the two sentences with the highest cosine, for each document and each of its neighbours.

    Args:
        sentence_embeddings: (S, H), of length one, document after document.
        candidates: the numbers of the sentences to choose among, one or more in each document.
        starts: (N,), the first sentence of each document.
        neighbours: (N, k), rows of documents.

    Returns: the numbers of both sentences, the document's first, for each document and neighbour.
    """
    from tqdm.auto import tqdm

    rows = [start + numbers for start, numbers in zip(starts, candidates)]
    matches = []
    for row, others in enumerate(tqdm(neighbours, desc="Matching sentences", unit="doc")):
        sentences, pairs = sentence_embeddings[rows[row]], []
        for other in others:
            cosines = sentences @ sentence_embeddings[rows[other]].T
            first, second = np.unravel_index(cosines.argmax(), cosines.shape)
            pairs.append((int(candidates[row][first]), int(candidates[other][second])))
        matches.append(pairs)
    return matches


def telling(sentences: list[str]) -> np.ndarray:
    """Return the numbers of the sentences with enough words to say something, unlike `Lines: 28`; all if none has."""
    long = [number for number, sentence in enumerate(sentences) if len(sentence.split()) >= FEWEST_WORDS]
    return np.array(long or range(len(sentences)))


def heard_passages(encoder: Any, texts: list[str]) -> list[list[tuple[float, str]]] | None:
    """Find the passages that weigh most in each document's vector, and how much; None without graph attention."""
    from tqdm.auto import tqdm

    from docsplit.embedding.graphs import document_attention, has_graph_attention

    if not has_graph_attention(encoder):
        return None
    heard = []
    for document in tqdm(document_attention(encoder, texts), desc="Graph attention", total=len(texts), unit="doc"):
        weights = document.weights[0, 1:]  # node 0 is the document itself
        most = np.argsort(-weights, kind="stable")[:PASSAGES_HEARD]
        short = [" ".join(document.passages[place].text.split())[:LONGEST_SENTENCE] for place in most]
        heard.append([(round(float(weights[place]), 4), text) for place, text in zip(most, short)])
    return heard


def map_of(vectors: np.ndarray, method: str) -> tuple[np.ndarray, str]:
    """Project vectors to points (N, 2) of whole numbers from 0 to 1000, and write the line under the map.

    Args:
        vectors: (N, H), of three documents or more.
    """
    from docsplit.evaluation.analysis.maps import project

    points, how = project(vectors, method)
    if method == "pca":
        share = points.var(axis=0).sum() / max(float(vectors.var(axis=0).sum()), 1e-12)
        about = f"{how.capitalize()}, {share:.0%} of the variance."
    else:
        about = f"{how}: who is near to whom means something, how far apart groups are not."
    low, high = points.min(axis=0), points.max(axis=0)
    scaled = (points - (low + high) / 2) / max(float((high - low).max()), 1e-9) * 1000 + 500
    return scaled.round().astype(int), f"{about} Click, drag, scroll; double click for all."


def tables_of(directory: Path) -> list[JsonObject]:
    """Read the results beside a checkpoint: tables with a title and the cells, line after line."""
    from docsplit.release.card_results import RESULTS_FILE, read_evaluations, read_json, tables_of_results

    tables = tables_of_results(read_json(directory / RESULTS_FILE), read_evaluations(directory))
    return [{"title": table.title, "rows": [table.header, *table.rows]} for table in tables]


def _inside(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def page(payload: JsonObject) -> str:
    """Write the page with its data inside."""
    text = json.dumps(payload, separators=(",", ":")).encode()
    packed = base64.b64encode(gzip.compress(text, mtime=0)).decode()
    return TEMPLATE.read_text(encoding="utf-8").replace("DATA_GZIP_BASE64", packed)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandParser(__doc__)
    documents = parser.add_argument_group("Encoder and documents")
    documents.add_argument(
        "encoder",
        help="an encoder: folder or Hub name; or the folder of an index, which has its encoder and documents",
    )
    documents.add_argument(
        "--corpus",
        help="documents: file, folder of files, Hub name or python_docs (default: python_docs); not with an index",
    )
    documents.add_argument("--text_column", default="text", help="column of the text (default: text)")
    documents.add_argument(
        "--label_column",
        help="column that colours the map (default: label, if there is one); of a folder, only data files are read",
    )
    documents.add_argument(
        "--max_documents", type=int, default=20_000, help="most documents, drawn at random (default: 20000)"
    )
    shown = parser.add_argument_group("The page")
    shown.add_argument("--neighbours", type=int, default=8, help="nearest documents shown with each (default: 8)")
    shown.add_argument(
        "--map",
        choices=["tsne", "pca"],
        help=f"projection of the map (default: tsne for up to {LARGEST_TSNE:,} documents, else pca)",
    )
    shown.add_argument(
        "--output", type=Path, default=Path("explore.html"), help="page to write (default: explore.html)"
    )
    options = parser.parse_args()
    if options.neighbours < 1 or options.max_documents < 3:
        parser.error("--neighbours needs 1 or more, --max_documents 3 or more.")
    refuse_missing_path(options.encoder, "a folder with an encoder or an index, or a model of the Hub (USER/NAME)")
    is_index = (Path(options.encoder) / "manifest.json").exists()
    if is_index and (options.corpus or options.label_column):
        parser.error(f"{options.encoder} is an index and has documents of its own: no --corpus, no --label_column.")
    options.corpus = options.corpus if is_index else options.corpus or "python_docs"
    return options


def summary_of(encoder: Any, vectors: np.ndarray) -> str:
    """Say how many documents there are, and how much of each the encoder reads: all passages with a graph."""
    from docsplit.embedding.graphs import is_graph_encoder
    from docsplit.embedding.loading import tokens_read
    from docsplit.embedding.project_modules import words_of

    read = "whole texts read"
    if (length := tokens_read(encoder)) is not None:
        read = f"up to {length} tokens read of {'every passage' if is_graph_encoder(encoder) else 'each'}"
    if words_of(encoder) is not None:
        read += ", and the words of all of it"
    return f"{len(vectors):,} documents, embeddings of {vectors.shape[1]} numbers, {read}"


def main() -> None:
    """Read the documents, embed them and their sentences, find neighbours, write the page."""
    options = parse_options()
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from tqdm.auto import tqdm

    from docsplit.data.segmentation import load_sentence_splitter
    from docsplit.embedding.encode import embed_documents
    from docsplit.embedding.encoder import Encoder
    from docsplit.embedding.neighbours import nearest
    from docsplit.runtime.vectors import unit

    options.output.parent.mkdir(parents=True, exist_ok=True)
    # The documents and their encoder: an index has both.
    directory = Path(options.encoder)
    if (directory / "manifest.json").exists():
        documents, encoder = documents_of_index(directory, options.max_documents)
    else:
        documents = read_documents(options.corpus, options.text_column, options.label_column, options.max_documents)
        encoder = Encoder(options.encoder).model
    texts, labels = documents.texts, documents.labels
    # Vectors of sentences and of documents.
    split = load_sentence_splitter()
    sentences = [split(text) for text in tqdm(texts, desc="Splitting into sentences", unit="doc")]
    shown = [[sentence[:LONGEST_SENTENCE] for sentence in several[:SENTENCES_SHOWN]] for several in sentences]
    vectors = documents.vectors
    if vectors is None:
        vectors = embed_documents(encoder, texts, show_progress=True)[0]
    vectors = unit(vectors)
    of_sentences = unit(embed_documents(encoder, list(chain.from_iterable(shown)), show_progress=True)[0])
    # What the page shows of them.
    neighbours, scores = nearest(vectors, min(options.neighbours, len(texts) - 1))
    starts = np.cumsum([0, *map(len, shown)])[:-1]
    points, about_map = map_of(vectors, options.map or ("tsne" if len(texts) <= LARGEST_TSNE else "pca"))
    names = sorted(set(labels or []))
    number_of = {name: number for number, name in enumerate(names)}
    curves = directory / "training.png"
    payload = {
        "name": directory.name if options.corpus is None else f"{directory.name} on {Path(options.corpus).name}",
        "summary": summary_of(encoder, vectors),
        "about_map": about_map,
        "titles": documents.titles,
        "labels": [number_of[label] for label in labels] if labels else [-1] * len(texts),
        "label_names": names,
        "sentences": shown,
        "left_out": [max(len(several) - SENTENCES_SHOWN, 0) for several in sentences],
        "points": points.tolist(),
        "neighbours": neighbours.tolist(),
        "scores": scores.round(4).tolist(),
        "matches": best_sentences(of_sentences, list(map(telling, shown)), starts, neighbours),
        "heard": heard_passages(encoder, texts),
        "tables": tables_of(directory),
        "curves": _inside(curves) if curves.exists() else None,
    }
    options.output.write_text(page(payload), encoding="utf-8")
    print(f"{options.output}: {options.output.stat().st_size / 1e6:.1f} MB; open it in a browser.")


command = as_command(main)
if __name__ == "__main__":
    command()
