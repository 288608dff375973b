"""Words of the corpus beside an encoder, in the study of adaptation: fitted, and measured on documents of no fit.

    python -m benchmarks.studies.adaptation.words --data 20news --data_dir DIR --start NAME --rows r.json \\
        [--part validation | --measure words | --measure lengths | --encoder DIR --name adapt | --model2vec DIR]

Words are fitted on the documents to adapt on, never on a tested one; of a collection that is searched these are the
documents. Vectors of documents that words were fitted on are those of `encode`, unless a row says leave-one-out.
Differences are to the start on the same test items, as in `benchmarks.studies.adaptation.step`.
"""

import argparse
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import TruncatedSVD

from benchmarks.engine.results import Row
from benchmarks.studies.adaptation.limits import LIMITS, drawn
from benchmarks.studies.adaptation.sets import (
    MAX_DOCUMENTS,
    SEARCH_SETS,
    SETS,
    DataSet,
    Measured,
    classes_of,
    docstrings,
    load,
    news,
)
from benchmarks.studies.adaptation.step import MORE_TOKENS, SMOOTHED, rows_of
from docsplit.data.seen_documents import document_id
from docsplit.data.words import tfidf_counter
from docsplit.embedding.arguments import EncoderArguments
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.lexical_ridge import LexicalRidge, RidgeSettings, fit
from docsplit.embedding.loading import load_encoder
from docsplit.embedding.neighbours import WORD_DIMENSIONS, smooth_texts
from docsplit.evaluation.heads.tfidf import tfidf_features
from docsplit.runtime.files import cache_directory, write_text
from docsplit.runtime.vectors import unit

SIZES = (100, 300, 1000)  # documents to fit on; all are the set itself
DRAWS = (1, 2)  # of the documents to fit on; 0 is the set itself
FULL_TOKENS = 256  # what all-MiniLM-L6-v2 reads unless it is told otherwise
TRIED = {  # on validation documents
    "chosen penalty": (RidgeSettings(), 1.0),
    "penalty 0.3": (RidgeSettings(penalty=0.3), 1.0),
    "penalty 1": (RidgeSettings(penalty=1.0), 1.0),
    "penalty 3": (RidgeSettings(penalty=3.0), 1.0),
    "chosen penalty, plain targets": (RidgeSettings(neighbours=0), 1.0),
    "chosen penalty, plain counts": (RidgeSettings(sublinear=False), 1.0),
    "penalty 1, plain counts": (RidgeSettings(penalty=1.0, sublinear=False), 1.0),
    "penalty 1, plain targets": (RidgeSettings(penalty=1.0, neighbours=0), 1.0),
    "chosen penalty, weight 0.5": (RidgeSettings(), 0.5),
    "chosen penalty, weight 2": (RidgeSettings(), 2.0),
}
Embedded = tuple[Any, np.ndarray, np.ndarray]  # a model, e of all texts of a set, and e of its corpus
Methods = Iterator[tuple[str, Measured]]


def _few(name: str, count: int, data_dir: Path, part: str, size: int) -> DataSet:
    """Draw some documents of a corpus."""
    data = SETS[name](data_dir, part, size)
    return replace(data, corpus=drawn(data.corpus, count))


def _of_first_classes(name: str, count: int, data_dir: Path, part: str, size: int) -> DataSet:
    """Keep the first documents of a corpus, which is ordered by class: of 11 of 20 classes, say."""
    data = SETS[name](data_dir, part, size)
    return replace(data, corpus=data.corpus[:count])


def _of_aan(name: str, data_dir: Path, part: str, size: int) -> DataSet:
    """Fit on papers of computational linguistics."""
    return replace(SETS[name](data_dir, part, size), corpus=SETS["aan"](data_dir, part, size).corpus)


def _drawn(name: str, seed: int, data_dir: Path, part: str, size: int) -> DataSet:
    split = news(data_dir, size, seed) if name == "20news" else docstrings(size, seed)
    return classes_of(split, part)


SETS_BEFORE = tuple(SETS)  # whose start is measured with the other untrained methods
LABELLED = ("20news", "python_docs")
MORE_SETS: dict[str, Callable[[Path, str, int], DataSet]] = {
    **{f"{name}, {count} documents": partial(_few, name, count) for name in LABELLED for count in SIZES},
    **{
        f"{name}, {count} documents of the first classes": partial(_of_first_classes, name, count)
        for name in LABELLED
        for count in SIZES
    },
    **{f"{name}, draw {seed}": partial(_drawn, name, seed) for name in LABELLED for seed in DRAWS},
    "python_docs, documents of another field": partial(_of_aan, "python_docs"),
    "20news, documents of another field": LIMITS["20news, documents of another field"],
}


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

    @property
    def num_documents(self) -> int:
        """The number of texts that are no queries."""
        return len(self.vectors) - self.data.num_queries

    def with_words(self, factor: float = 1.0, directions: np.ndarray | None = None) -> np.ndarray:
        """Return unit(e + weight r) of documents, and e of queries, (N, H); the weight is `factor` times the fit's."""
        weight = factor * self.ridge.facts.weight
        added = unit(self.vectors + weight * (self.directions if directions is None else directions))
        return np.concatenate([added[: self.num_documents], self.vectors[self.num_documents :]])

    def without_each(self) -> np.ndarray:
        """Return r with those of fitted documents by a fit without them, (N, H)."""
        row_of = {document_id(text): row for row, text in enumerate(self.data.corpus)}
        rows = [row_of.get(document_id(text), -1) for text in self.data.texts]
        left_out = np.concatenate([self.ridge.leave_one_out(), np.zeros_like(self.directions[:1])])
        return np.where((np.array(rows) >= 0)[:, None], left_out[rows], self.directions)


def lsa_of_corpus(data: DataSet) -> np.ndarray:
    """Return word vectors (latent semantic analysis) of all texts, fitted on the corpus alone."""
    counter = tfidf_counter(min_df=2, dtype=np.float32)
    weights = counter.fit_transform(data.corpus)
    reduced = TruncatedSVD(min(WORD_DIMENSIONS, *weights.shape), random_state=0).fit(weights)
    return unit(reduced.transform(counter.transform(data.texts)))


class Encoders:
    """Vectors of a set's texts and of its corpus by an encoder; cached on disk."""

    def __init__(self, data: DataSet, pooling: str):
        self.data, self.pooling = data, pooling
        self.models: dict[str, Any] = {}

    def embed(self, name: str, tokens: int, **more: Any) -> Embedded:
        """Return the model, e of all texts and e of the corpus."""
        arguments = EncoderArguments(
            [name],
            pooling=self.pooling,
            max_seq_length=tokens,
            dtype="float32",
            **more,  # type: ignore[arg-type]
        )
        encoder = Encoder(name, arguments, cache_directory())
        texts = list(dict.fromkeys([*self.data.texts, *self.data.corpus]))
        row_of = {text: row for row, text in enumerate(texts)}
        vectors = unit(encoder.embed(texts))
        of_all, of_corpus = (vectors[[row_of[text] for text in part]] for part in (self.data.texts, self.data.corpus))
        return encoder.model, of_all, of_corpus


def with_words(data: DataSet, embedded: Embedded, name: str) -> Methods:
    """Yield the encoder with words, and the static encoder."""
    yield name, data.measure(Fitted(data, *embedded).with_words())
    static, static_name = Fitted(data, *embedded, sublinear=False), "static" if name == "words" else f"{name}, static"
    yield static_name, data.measure(static.directions)
    if not data.num_queries:
        yield f"{static_name}, leave-one-out", data.measure(static.without_each())


def of_start(data: DataSet, encoders: Encoders, start: str, tokens: int) -> Methods:
    """Yield all that is measured from a start without training; the start first."""
    model, vectors, _ = embedded = encoders.embed(start, tokens)
    fitted = Fitted(data, *embedded)
    yield "start", data.measure(vectors)
    yield from with_words(data, embedded, "words")
    if not data.num_queries:
        yield "words, leave-one-out", data.measure(fitted.with_words(directions=fitted.without_each()))
    read = cut(data, model, tokens)
    alike = Fitted(read, model, *Encoders(read, encoders.pooling).embed(start, tokens)[1:])
    yield "words of what the start reads", data.measure(alike.with_words())
    yield "words, plain targets", data.measure(Fitted(data, *embedded, neighbours=0).with_words())
    yield "words, plain counts", data.measure(Fitted(data, *embedded, sublinear=False).with_words())
    smoothed = smooth_texts(data.texts, fitted.with_words(), SMOOTHED, by_words=False)
    yield "words, smoothed", data.measure(smoothed)
    beside = unit(np.concatenate([vectors, lsa_of_corpus(data)], axis=1))
    yield "with LSA of the corpus", data.measure(beside)
    yield "TF-IDF", data.measure(tfidf_features(data.corpus, data.texts)[1])
    if data.bm25 is not None:
        yield "BM25", data.bm25()
    if data.beside_bm25 is not None:
        yield "start + BM25", data.beside_bm25(vectors)
        yield "words + BM25", data.beside_bm25(fitted.with_words())


def of_words(data: DataSet, encoders: Encoders, start: str, tokens: int) -> Methods:
    """Yield the start, with words and static."""
    embedded = encoders.embed(start, tokens)
    yield "start", data.measure(embedded[1])
    yield from with_words(data, embedded, "words")


def of_lengths(data: DataSet, encoders: Encoders, start: str, tokens: int) -> Methods:
    """Yield words fitted to vectors of more tokens: what the start reads by itself, and 1,024 in pieces."""
    yield "start", data.measure(encoders.embed(start, tokens)[1])
    pieces = {"long_documents": "chunk_mean"}
    for name, more in ((f"{FULL_TOKENS} tokens", {}), (f"{MORE_TOKENS} tokens", pieces)):
        texts = encoders
        if more:  # the mean of pieces of `tokens`, of the first 1,024 tokens
            texts = Encoders(cut(data, encoders.embed(start, tokens)[0], MORE_TOKENS), encoders.pooling)
        model, vectors, of_corpus = texts.embed(start, tokens if more else FULL_TOKENS, **more)
        yield f"start on {name}", data.measure(vectors)
        yield f"words, start on {name}", data.measure(Fitted(data, model, vectors, of_corpus).with_words())


def cut(data: DataSet, model: SentenceTransformer, tokens: int) -> DataSet:
    """Cut all texts of a set after so many tokens."""

    def beginnings(texts: list[str]) -> list[str]:
        encoded = model.tokenizer(texts, truncation=True, max_length=tokens, return_offsets_mapping=True)
        return [text[: max(end for _, end in ends)] for text, ends in zip(texts, encoded["offset_mapping"])]

    return replace(data, texts=beginnings(data.texts), corpus=beginnings(data.corpus))


MEASURED = {"all": of_start, "words": of_words, "lengths": of_lengths}


def of_validation(data: DataSet, encoders: Encoders, start: str, tokens: int) -> Methods:
    """Yield settings of the fit, on validation documents, which it does not read."""
    model, vectors, of_corpus = encoders.embed(start, tokens)
    yield "start", data.measure(vectors)
    for name, (settings, weight) in TRIED.items():
        fitted = Fitted(data, model, vectors, of_corpus, **vars(settings))
        yield f"search: words, {name}", data.measure(fitted.with_words(weight))


def main() -> None:
    """Measure, and write rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--part", choices=["test", "validation"], default="test")
    parser.add_argument("--max_documents", type=int, default=MAX_DOCUMENTS, help="documents to fit on")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--pooling", default="mean", help="pooling of encoders that name none")
    parser.add_argument("--start", required=True, help="the encoder that differences are to")
    parser.add_argument("--prefix", default="", help="prefix of the names of untrained methods")
    parser.add_argument("--encoder", help="an encoder after training: words are fitted to it")
    parser.add_argument("--name", default="adapt", help="its name in rows")
    parser.add_argument(
        "--measure",
        choices=list(MEASURED),
        default="all",
        help="words: and static, no controls; lengths: starts that read more tokens",
    )
    parser.add_argument("--model2vec", help="folder of model2vec's distillation of the start")
    parser.add_argument("--rows", type=Path, required=True, help="file for the rows")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    SETS.update(SEARCH_SETS | MORE_SETS)
    SETS.update({name: LIMITS[name] for name in LIMITS if name not in MORE_SETS})
    data = load(options.data, options.data_dir, options.part, options.max_documents)
    encoders = Encoders(data, options.pooling)
    seed = None
    if options.part == "validation":
        tested = {document_id(text) for text in data.texts[-data.measure(_zeros(data)).num_items :]}
        data = replace(data, corpus=[text for text in data.corpus if document_id(text) not in tested])
        methods = of_validation(data, Encoders(data, options.pooling), options.start, options.max_seq_length)
        seed = 0
    elif options.encoder is not None:
        methods = of_encoder(data, encoders, options)
    elif options.model2vec is not None:
        methods = of_model2vec(data, encoders, options)
    else:
        methods = MEASURED[options.measure](data, encoders, options.start, options.max_seq_length)
    fields: dict[str, Any] = {"task": data.task, "part": options.part}
    fields |= {"seed": seed} if options.encoder is None else {}  # that of the training is the cell's
    rows: list[Row] = []
    start: Measured | None = None
    for name, measured in methods:
        start = start or measured
        logging.info(f"{options.data}: {name} {measured.value:.4f}")
        if name == "start" and options.prefix == "" and options.data in SETS_BEFORE:
            continue  # the cell of untrained methods has it
        rows += rows_of(measured, start, **fields, method=options.prefix + name)
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.rows, json.dumps(rows) + "\n")


def of_encoder(data: DataSet, encoders: Encoders, options: argparse.Namespace) -> Methods:
    """Yield words fitted to a trained encoder."""
    yield "start", data.measure(encoders.embed(options.start, options.max_seq_length)[1])
    embedded = encoders.embed(options.encoder, options.max_seq_length)
    logging.info(f"{options.data}: {options.name} {data.measure(embedded[1]).value:.4f}")
    yield from with_words(data, embedded, f"{options.name} + words")


def of_model2vec(data: DataSet, encoders: Encoders, options: argparse.Namespace) -> Methods:
    """Yield model2vec's static encoder, on whole documents."""
    yield "start", data.measure(encoders.embed(options.start, options.max_seq_length)[1])
    static = load_encoder(options.model2vec, device="cpu")
    static[0].tokenizer.no_truncation()
    yield "model2vec", data.measure(unit(static.encode(data.texts)))


def _zeros(data: DataSet) -> np.ndarray:
    return unit(np.random.default_rng(0).normal(size=(len(data.texts), 2)))


if __name__ == "__main__":
    main()
