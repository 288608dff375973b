"""One step of the cells of the study of adaptation: write a corpus to adapt on, or measure an encoder.

    python -m benchmarks.studies.adaptation.step --data 20news --data_dir DIR --corpus corpus.jsonl
    python -m benchmarks.studies.adaptation.step --data 20news --data_dir DIR --start NAME \\
        --encoder DIR --rows r.json
    python -m benchmarks.studies.adaptation.step --data 20news --data_dir DIR --start NAME \\
        --rows r.json  # untrained

Beside the value, rows have the difference to the start on the same test items, its bootstrap interval, and the drawn
differences. Intervals over seeds are made of these.
"""

import argparse
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.engine.results import SAMPLES, Row
from benchmarks.studies.adaptation.sets import DataSet, Measured, load
from docsplit.data.seen_documents import document_id
from docsplit.data.segmentation import clean_text, load_sentence_splitter
from docsplit.embedding.arguments import EncoderArguments
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.neighbours import nearest, smooth_texts, word_vectors
from docsplit.evaluation.analysis.geometry import embedding_geometry
from docsplit.evaluation.heads.tfidf import tfidf_features
from docsplit.runtime.files import cache_directory, write_text
from docsplit.runtime.vectors import unit

DRAWS = 200  # of test items
MORE_TOKENS = 1024  # that the start reads in pieces, as a control
WHITENED = 128  # dimensions that are kept of the smaller whitening
SMOOTHED = 10  # neighbours that the vectors of an encoder after are averaged with
SPLIT_DOCUMENTS = 500  # of the corpus, whose halves are embedded


def whiten(vectors: np.ndarray, fitted_on: np.ndarray, dimensions: int | None) -> np.ndarray:
    """Centre the vectors and scale their principal components to variance one (Su et al. 2021)."""
    mean = fitted_on.mean(axis=0)
    _, scales, components = np.linalg.svd(fitted_on - mean, full_matrices=False)
    kept = min(dimensions or len(scales), int((scales > 1e-5 * scales[0]).sum()))
    return unit((vectors - mean) @ (components[:kept].T / scales[:kept]))


def without_first_components(vectors: np.ndarray, fitted_on: np.ndarray, count: int) -> np.ndarray:
    """Centre the vectors and remove their first principal components (Mu and Viswanath 2018, "all but the top")."""
    mean = fitted_on.mean(axis=0)
    top = np.linalg.svd(fitted_on - mean, full_matrices=False)[2][:count]
    return unit((vectors - mean) - (vectors - mean) @ top.T @ top)


def untrained(data: DataSet, vectors: np.ndarray, more: np.ndarray, read: list[str]) -> Iterator[tuple[str, Measured]]:
    """Yield the baselines that need no training, by name.

    Baselines are fitted on the corpus to adapt on, but neighbours and words on all texts, without labels.

    Args:
        vectors: (N, H) of the start.
        more: (N, H) of the start too, averaged over the pieces of `MORE_TOKENS` tokens of a text.
        read: of each text, what the start reads for `vectors`: a control of methods that read whole texts.
    """
    corpus = {document_id(text) for text in data.corpus}
    fitted_on = vectors[[row for row, text in enumerate(data.texts) if document_id(text) in corpus]]
    yield "start", data.measure(vectors)
    for neighbours in (10, 20):
        for by_words, name in ((True, ""), (False, " of the encoder")):
            smoothed = smooth_texts(data.texts, vectors, neighbours, by_words)
            yield f"smoothing, {neighbours} neighbours{name}", data.measure(smoothed)
    yield "whitening", data.measure(whiten(vectors, fitted_on, None))
    yield f"whitening to {WHITENED}", data.measure(whiten(vectors, fitted_on, WHITENED))
    yield "without the mean", data.measure(without_first_components(vectors, fitted_on, 0))
    yield "without the first component", data.measure(without_first_components(vectors, fitted_on, 1))
    words = word_vectors(data.texts)  # what smoothing finds neighbours by
    yield "word vectors", data.measure(words)
    yield from ((f"with {name}", measured) for name, measured in beside_words(data, vectors, words))
    words = word_vectors(read)
    yield "word vectors of what the start reads", data.measure(words)
    for name, measured in beside_words(data, vectors, words):
        yield f"with {name.replace('vectors', 'vectors of that', 1)}", measured
    name = f"the start on {MORE_TOKENS} tokens"
    yield name, data.measure(more)
    yield f"{name}, smoothed", data.measure(smooth_texts(data.texts, more, SMOOTHED, by_words=False))
    yield "TF-IDF", data.measure(tfidf_features(data.corpus, data.texts)[1])
    if data.bm25 is not None:
        yield "BM25", data.bm25()


def beside_words(data: DataSet, vectors: np.ndarray, words: np.ndarray) -> Iterator[tuple[str, Measured]]:
    """Yield vectors of an encoder and of words (N, W) side by side, as they are and smoothed, neither weighted."""
    both = unit(np.concatenate([vectors, words], axis=1))
    yield "word vectors", data.measure(both)
    yield "word vectors, smoothed", data.measure(smooth_texts(data.texts, both, SMOOTHED, by_words=False))


def beginnings(model: SentenceTransformer, texts: list[str], tokens: int) -> list[str]:
    """Cut each text after so many tokens, special ones included, as an encoder of that length reads it."""
    encoded = model.tokenizer(texts, truncation=True, max_length=tokens, return_offsets_mapping=True)
    return [text[: max(end for _, end in offsets)] for text, offsets in zip(texts, encoded["offset_mapping"])]


def random_halves(texts: list[str]) -> list[str]:
    """Return the two halves of each text with two sentences or more, one after the other: the same at each call."""
    generator, split = np.random.default_rng(0), load_sentence_splitter()
    halves = []
    for text in texts[:SPLIT_DOCUMENTS]:
        if len(sentences := split(clean_text(text))) > 1:
            is_first = generator.permutation(len(sentences)) < len(sentences) // 2
            halves += [" ".join(np.array(sentences, dtype=object)[side]) for side in (is_first, ~is_first)]
    return halves


def signs_of_halves(vectors: np.ndarray) -> dict[str, float]:
    """Return alignment and uniformity (Wang and Isola 2020), and how often a half (2N, H) finds its other half."""
    halves = vectors.reshape(-1, 2, vectors.shape[-1])
    is_hit = (halves[:, 0] @ halves[:, 1].T).argmax(axis=1) == np.arange(len(halves))
    geometry = embedding_geometry(torch.from_numpy(halves))
    return {"alignment": float(geometry["alignment"]), "halves_uniformity": float(geometry["uniformity"])} | {
        "halves_recall_at_1": float(is_hit.mean())
    }


def kept_neighbours(before: np.ndarray, after: np.ndarray, count: int = 10) -> float:
    """Return the share of nearest neighbours of all texts (N, H) before that are neighbours after."""
    rows = zip(nearest(before, count)[0], nearest(after, count)[0])
    return float(np.mean([len(np.intersect1d(*pair)) / count for pair in rows]))


def rows_of(measured: Measured, start: Measured, **fields: Any) -> Iterator[Row]:
    """Yield a row for the set's metric, with the difference to the start, and one for each other number."""
    generator = np.random.default_rng(0)
    drawn = [generator.integers(measured.num_items, size=measured.num_items) for _ in range(DRAWS)]
    differences = np.array([measured.of_items(rows) - start.of_items(rows) for rows in drawn])
    low, high = np.percentile(differences, [2.5, 97.5])
    yield fields | {
        "metric": measured.metric,
        "value": measured.value,
        "difference": measured.value - start.value,
        "low": float(low),
        "high": float(high),
        SAMPLES: differences.round(5).tolist(),
    }
    for name, value in measured.others.items():
        yield fields | {"metric": name, "value": value}


def main() -> None:
    """Write a corpus or rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--part", choices=["test", "validation"], default="test")
    parser.add_argument("--max_documents", type=int, default=2000, help="documents to adapt on")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--pooling", default="mean", help="pooling of encoders that name none")
    parser.add_argument("--start", help="the encoder before training")
    parser.add_argument("--prefix", default="", help="prefix of the names of untrained methods")
    parser.add_argument(
        "--encoder", help="the encoder after; without it the start and the untrained methods are measured"
    )
    parser.add_argument("--corpus", type=Path, help="write the texts to adapt on")
    parser.add_argument("--rows", type=Path, help="measure, and write the rows")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    data = load(options.data, options.data_dir, options.part, options.max_documents)
    if options.corpus is not None:
        options.corpus.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.corpus, "".join(json.dumps({"text": text}) + "\n" for text in data.corpus))
        return

    def encoder_of(name: str, **more: Any) -> Encoder:
        settings = {
            "pooling": options.pooling,
            "max_seq_length": options.max_seq_length,
            "dtype": "float32",
        }  # anywhere
        return Encoder(name, EncoderArguments([name], **settings, **more), cache_directory())

    def vectors_of(name: str, texts: list[str], **more: Any) -> np.ndarray:
        return unit(encoder_of(name, **more).embed_all(texts)[0])

    fields = {"task": data.task, "part": options.part}
    if options.encoder is None:
        model = encoder_of(options.start).model
        read, further = (beginnings(model, data.texts, count) for count in (options.max_seq_length, MORE_TOKENS))
        more = vectors_of(options.start, further, long_documents="chunk_mean")
        of_start = list(untrained(data, vectors_of(options.start, data.texts), more, read))
        of_start[0][1].others |= signs_of_halves(vectors_of(options.start, random_halves(data.corpus)))
        rows = [
            row
            for name, values in of_start
            for row in rows_of(values, of_start[0][1], **fields, method=options.prefix + name, seed=None)
        ]
    else:
        before, after = (vectors_of(name, data.texts) for name in (options.start, options.encoder))
        measured = data.measure(after)
        measured.others |= signs_of_halves(vectors_of(options.encoder, random_halves(data.corpus)))
        measured.others["kept_neighbours"] = kept_neighbours(before, after)
        rows = list(rows_of(measured, start := data.measure(before), **fields))
        then = [("smoothed", data.measure(smooth_texts(data.texts, after, SMOOTHED)))]
        then += ((f"with {name}", values) for name, values in beside_words(data, after, word_vectors(data.texts)))
        for name, measured in then:
            row = next(rows_of(measured, start, **fields))  # of the set's own metric
            rows.append(row | {"metric": f"{row['metric']}, {name}"})
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.rows, json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
