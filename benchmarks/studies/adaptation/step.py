"""One step of the cells of the study of adaptation: write a corpus to adapt on, or measure encoders of a set.

    python -m benchmarks.studies.adaptation.step --data 20news --data_dir DIR --corpus corpus.jsonl
    python -m benchmarks.studies.adaptation.step --data 20news --data_dir DIR --start NAME --rows r.json \\
        [--measure NAME] [--encoder DIR | --model2vec DIR]

Words are fitted on the documents to adapt on, never on a tested one; of a collection that is searched these are the
documents. Beside the value, rows have the difference to the start on the same test items, its bootstrap interval, and
the drawn differences. Intervals over seeds are made of these.
"""

import argparse
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import TruncatedSVD

from benchmarks.engine.results import SAMPLES, Row
from benchmarks.studies.adaptation.sets import MAX_DOCUMENTS, DataSet, Measured, load
from docsplit.data.seen_documents import document_id
from docsplit.data.words import tfidf_counter
from docsplit.embedding.arguments import EncoderArguments
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.lexical_ridge import LexicalRidge, RidgeSettings, fit
from docsplit.embedding.loading import load_encoder
from docsplit.embedding.neighbours import WORD_DIMENSIONS, smooth_texts, word_vectors
from docsplit.evaluation.heads.frozen import tfidf_features
from docsplit.runtime.files import cache_directory, write_text
from docsplit.runtime.vectors import unit

DRAWS = 200  # of test items
FULL_TOKENS, MORE_TOKENS = 256, 1024  # what all-MiniLM-L6-v2 reads by itself, and in pieces
SMOOTHED = 10  # neighbours that vectors are averaged with
Embedded = tuple[Any, np.ndarray, np.ndarray]  # a model, e of all texts of a set, and e of its corpus
Methods = Iterator[tuple[str, Measured]]


class Encoders:
    """Vectors of a set's texts and of its corpus by an encoder; cached on disk."""

    def __init__(self, data: DataSet, pooling: str):
        self.data, self.pooling = data, pooling

    def embed(self, name: str, tokens: int, **more: Any) -> Embedded:
        """Return the model, e of all texts and e of the corpus."""
        settings = {"pooling": self.pooling, "max_seq_length": tokens, "dtype": "float32"} | more
        encoder = Encoder(name, EncoderArguments([name], **settings), cache_directory())
        texts = list(dict.fromkeys([*self.data.texts, *self.data.corpus]))
        row_of = {text: row for row, text in enumerate(texts)}
        vectors = unit(encoder.embed(texts))
        of_all, of_corpus = (vectors[[row_of[text] for text in part]] for part in (self.data.texts, self.data.corpus))
        return encoder.model, of_all, of_corpus


class Fitted:
    """Words fitted to vectors of an encoder on the corpus of a set, and r of all texts of the set.

    Args:
        vectors: e, (N, H) of all texts.
        corpus_vectors: those of the texts to fit on.
    """

    def __init__(self, data: DataSet, model: Any, vectors: np.ndarray, corpus_vectors: np.ndarray, **settings: Any):
        self.data, self.vectors = data, vectors
        self.ridge: LexicalRidge = fit(model, data.corpus, corpus_vectors, RidgeSettings(**settings))
        words = self.ridge.words
        self.directions = words(**words.preprocess(data.texts)).numpy()

    def with_words(self, directions: np.ndarray | None = None) -> np.ndarray:
        """Return unit(e + weight r) of documents, and e of queries, (N, H)."""
        count = len(self.vectors) - self.data.num_queries
        added = self.vectors + self.ridge.facts.weight * (self.directions if directions is None else directions)
        return np.concatenate([unit(added[:count]), self.vectors[count:]])

    def without_each(self) -> np.ndarray:
        """Return r with those of fitted documents by a fit without them, (N, H)."""
        row_of = {document_id(text): row for row, text in enumerate(self.data.corpus)}
        rows = np.array([row_of.get(document_id(text), -1) for text in self.data.texts])
        left_out = np.concatenate([self.ridge.leave_one_out(), np.zeros_like(self.directions[:1])])
        return np.where((rows >= 0)[:, None], left_out[rows], self.directions)


def whiten(vectors: np.ndarray, fitted_on: np.ndarray) -> np.ndarray:
    """Centre the vectors and scale their principal components to variance one (Su et al. 2021)."""
    mean = fitted_on.mean(axis=0)
    _, scales, components = np.linalg.svd(fitted_on - mean, full_matrices=False)
    kept = int((scales > 1e-5 * scales[0]).sum())
    return unit((vectors - mean) @ (components[:kept].T / scales[:kept]))


def without_first_component(vectors: np.ndarray, fitted_on: np.ndarray) -> np.ndarray:
    """Centre the vectors and remove their first principal component (Mu and Viswanath 2018, "all but the top")."""
    mean = fitted_on.mean(axis=0)
    top = np.linalg.svd(fitted_on - mean, full_matrices=False)[2][:1]
    return unit((vectors - mean) - (vectors - mean) @ top.T @ top)


def lsa_of_corpus(data: DataSet) -> np.ndarray:
    """Return word vectors (latent semantic analysis) of all texts, fitted on the corpus alone."""
    counter = tfidf_counter(min_df=2, dtype=np.float32)
    weights = counter.fit_transform(data.corpus)
    reduced = TruncatedSVD(min(WORD_DIMENSIONS, *weights.shape), random_state=0).fit(weights)
    return unit(reduced.transform(counter.transform(data.texts)))


def cut(data: DataSet, model: Any, tokens: int) -> DataSet:
    """Cut all texts of a set after so many tokens, special ones included, as an encoder of that length reads them."""

    def beginnings(texts: list[str]) -> list[str]:
        encoded = model.tokenizer(texts, truncation=True, max_length=tokens, return_offsets_mapping=True)
        return [text[: max(end for _, end in ends)] for text, ends in zip(texts, encoded["offset_mapping"])]

    return replace(data, texts=beginnings(data.texts), corpus=beginnings(data.corpus))


def of_words(data: DataSet, embedded: Embedded, name: str = "words") -> Methods:
    """Yield the encoder with words, and the static encoder."""
    yield name, data.measure(Fitted(data, *embedded).with_words())
    static, static_name = Fitted(data, *embedded, sublinear=False), "static" if name == "words" else f"{name}, static"
    yield static_name, data.measure(static.directions)
    if not data.num_queries:
        yield f"{static_name}, leave-one-out", data.measure(static.without_each())


def of_start(data: DataSet, encoders: Encoders, start: str, tokens: int) -> Methods:
    """Yield all that is measured from a start without training.

    Baselines are fitted on the corpus to adapt on, but smoothing and word vectors on all texts, without labels.
    """
    model, vectors, of_corpus = embedded = encoders.embed(start, tokens)
    yield from of_words(data, embedded)
    fitted = Fitted(data, *embedded)
    if not data.num_queries:
        yield "words, leave-one-out", data.measure(fitted.with_words(fitted.without_each()))
    read = cut(data, model, tokens)
    alike = Fitted(read, model, *Encoders(read, encoders.pooling).embed(start, tokens)[1:])
    yield "words of what the start reads", data.measure(alike.with_words())
    yield "words, plain targets", data.measure(Fitted(data, *embedded, neighbours=0).with_words())
    yield "words, plain counts", data.measure(Fitted(data, *embedded, sublinear=False).with_words())
    yield "whitening", data.measure(whiten(vectors, of_corpus))
    yield "without the first component", data.measure(without_first_component(vectors, of_corpus))
    yield "with LSA of the corpus", data.measure(unit(np.concatenate([vectors, lsa_of_corpus(data)], axis=1)))
    yield "smoothing, 20 neighbours", data.measure(smooth_texts(data.texts, vectors, 20))
    both = unit(np.concatenate([vectors, word_vectors(data.texts)], axis=1))
    yield "with word vectors", data.measure(both)
    smoothed = smooth_texts(data.texts, both, SMOOTHED, by_words=False)
    yield "with word vectors, smoothed", data.measure(smoothed)
    yield "TF-IDF", data.measure(tfidf_features(data.corpus, data.texts)[1])
    if data.bm25 is not None:
        yield "BM25", data.bm25()
    if data.beside_bm25 is not None:
        yield "start + BM25", data.beside_bm25(vectors)
        yield "words + BM25", data.beside_bm25(fitted.with_words())


def of_lengths(data: DataSet, encoders: Encoders, start: str, tokens: int) -> Methods:
    """Yield words fitted to vectors of more tokens: what the start reads by itself, and 1,024 in pieces."""
    in_pieces = Encoders(cut(data, encoders.embed(start, tokens)[0], MORE_TOKENS), encoders.pooling)
    for count, (model, vectors, of_corpus) in (
        (FULL_TOKENS, encoders.embed(start, FULL_TOKENS)),
        (MORE_TOKENS, in_pieces.embed(start, tokens, long_documents="chunk_mean")),
    ):
        yield f"start on {count} tokens", data.measure(vectors)
        yield f"words, start on {count} tokens", data.measure(Fitted(data, model, vectors, of_corpus).with_words())


def methods_of(data: DataSet, options: argparse.Namespace) -> Methods:
    """Yield what the options ask for, the start first."""
    encoders, tokens = Encoders(data, options.pooling), options.max_seq_length
    start = encoders.embed(options.start, tokens)
    yield "start", data.measure(start[1])
    if options.model2vec is not None:
        static = load_encoder(options.model2vec, device="cpu")
        static[0].tokenizer.no_truncation()
        yield "model2vec", data.measure(unit(static.encode(data.texts)))
    elif options.encoder is not None:
        embedded = encoders.embed(options.encoder, tokens)
        yield options.name, data.measure(embedded[1])
        if options.measure == "words":
            yield from of_words(data, embedded, f"{options.name} + words")
    elif options.measure == "words":
        yield from of_words(data, start)
    else:
        of = of_lengths if options.measure == "lengths" else of_start
        yield from of(data, encoders, options.start, tokens)


def rows_of(measured: Measured, start: Measured, **fields: Any) -> Iterator[Row]:
    """Yield a row for the set's metric, with the difference to the start, and one for each other number."""
    generator = np.random.default_rng(0)
    drawn = [generator.integers(measured.num_items, size=measured.num_items) for _ in range(DRAWS)]
    differences = np.array([measured.of_items(rows) - start.of_items(rows) for rows in drawn])
    low, high = map(float, np.percentile(differences, [2.5, 97.5]))
    of_difference = {"difference": measured.value - start.value, "low": low, "high": high}
    samples = {SAMPLES: differences.round(5).tolist()}
    yield fields | {"metric": measured.metric, "value": measured.value} | of_difference | samples
    for name, value in measured.others.items():
        yield fields | {"metric": name, "value": value}


def main() -> None:
    """Write a corpus or rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--max_documents", type=int, default=MAX_DOCUMENTS, help="documents to adapt on")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--pooling", default="mean", help="pooling of encoders that name none")
    parser.add_argument("--corpus", type=Path, help="write the texts to adapt on, and nothing else")
    parser.add_argument("--rows", type=Path, help="file for the rows")
    parser.add_argument("--start", help="the encoder that differences are to")
    parser.add_argument("--prefix", default="", help="prefix of the names of untrained methods")
    parser.add_argument("--measure", choices=["all", "words", "lengths"], default="all", help="of the start; words: "
                        "also of --encoder; lengths: a start that reads more tokens")  # fmt: skip
    parser.add_argument("--encoder", help="an encoder after training")
    parser.add_argument("--name", default="adapt", help="its name in rows")
    parser.add_argument("--model2vec", help="folder of model2vec's distillation of the start")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    data = load(options.data, options.data_dir, options.max_documents)
    if options.corpus is not None:
        options.corpus.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.corpus, "".join(json.dumps({"text": text}) + "\n" for text in data.corpus))
        return
    rows: list[Row] = []
    start: Measured | None = None
    fields = {"task": data.task, "part": "test"} | ({"seed": None} if options.encoder is None else {})
    for name, measured in methods_of(data, options):
        start = start or measured
        logging.info(f"{options.data}: {name} {measured.value:.4f}")
        if name != "start" or (options.encoder is None and options.measure == "all" and options.model2vec is None):
            rows += rows_of(measured, start, **fields, method=options.prefix + name)
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.rows, json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
