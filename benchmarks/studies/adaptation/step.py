"""One step of the cells of the study of adaptation: write what to adapt on, or measure encoders of a set.

    python -m benchmarks.studies.adaptation.step --data dbpedia --data_dir DIR --corpus corpus.jsonl
    python -m benchmarks.studies.adaptation.step --data dbpedia --data_dir DIR --start NAME --rows rows.json \\
        [--adapted DIR --name NAME]

Whatever is fitted is fitted on the documents to adapt on, never on a tested one; of a collection that is searched
these are the documents. Beside the value, rows have the difference to the start on the same test items, its bootstrap
interval, and the drawn differences. Intervals over draws of the documents are made of these.
"""

import argparse
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import TruncatedSVD

from benchmarks.engine.results import SAMPLES, Row
from benchmarks.studies.adaptation.sets import DataSet, Measured, load
from docsplit.data.words import tfidf_counter
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.embedding.lexical_ridge import RidgeSettings, fit
from docsplit.embedding.neighbours import WORD_DIMENSIONS
from docsplit.evaluation.heads.frozen import tfidf_features
from docsplit.runtime.files import cache_directory, write_text
from docsplit.runtime.vectors import unit

DRAWS = 200  # of test items
Methods = Iterator[tuple[str, Measured]]


def embed(data: DataSet, name: str, tokens: int | None) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return an encoder's model and its vectors of all texts and of the corpus, of length one; cached on disk."""
    changed = {} if tokens is None else {"max_seq_length": tokens}
    encoder = Encoder(name, EncoderArguments([name], **changed), cache_directory())
    count = len(data.texts) - data.num_queries
    documents = list(dict.fromkeys([*data.texts[:count], *data.corpus]))
    row_of, vectors = {text: row for row, text in enumerate(documents)}, unit(encoder.embed(documents))
    of_texts, of_corpus = (vectors[[row_of[text] for text in part]] for part in (data.texts[:count], data.corpus))
    if data.num_queries:
        of_texts = np.concatenate([of_texts, unit(encoder.embed_queries(data.texts[count:])[0])])
    return encoder.model, of_texts, of_corpus


def without_components(vectors: np.ndarray, fitted_on: np.ndarray) -> np.ndarray:
    """Centre the vectors and remove a hundredth of their principal components (Mu and Viswanath 2018)."""
    mean = fitted_on.mean(axis=0)
    top = np.linalg.svd(fitted_on - mean, full_matrices=False)[2][: vectors.shape[1] // 100]
    return unit((vectors - mean) - (vectors - mean) @ top.T @ top)


def whiten(vectors: np.ndarray, fitted_on: np.ndarray) -> np.ndarray:
    """Centre the vectors and scale their principal components to variance one (Su et al. 2021)."""
    mean = fitted_on.mean(axis=0)
    _, scales, components = np.linalg.svd(fitted_on - mean, full_matrices=False)
    kept = int((scales > 1e-5 * scales[0]).sum())
    return unit((vectors - mean) @ (components[:kept].T / scales[:kept]))


def lsa(data: DataSet) -> np.ndarray:
    """Return latent semantic vectors of all texts, fitted on the corpus."""
    counter = tfidf_counter(min_df=2, dtype=np.float32)
    weights = counter.fit_transform(data.corpus)
    reduced = TruncatedSVD(min(WORD_DIMENSIONS, *weights.shape), random_state=0).fit(weights)
    return unit(reduced.transform(counter.transform(data.texts)))


def model2vec(start: str, texts: list[str]) -> np.ndarray:
    """Return vectors of whole texts by model2vec's static encoder of the start, as it comes; distilled once."""
    from model2vec import StaticModel
    from model2vec.distill import distill

    folder = cache_directory() / "model2vec" / Path(start).name
    if not folder.exists():
        distill(start, device="cpu").save_pretrained(str(folder))
    return unit(StaticModel.from_pretrained(str(folder)).encode(texts, max_length=None))


def of_start(data: DataSet, start: str, model: Any, vectors: np.ndarray, of_corpus: np.ndarray) -> Methods:
    """Yield all that is measured from a start without training."""
    count = len(vectors) - data.num_queries
    for name, settings in (("words", RidgeSettings()), ("static", RidgeSettings(sublinear=False))):
        ridge = fit(model, data.corpus, of_corpus, settings)
        directions = ridge.words(**ridge.words.preprocess(data.texts)).numpy()
        if name == "words":  # beside the encoder, of documents alone
            with_words = unit(vectors[:count] + ridge.facts.weight * directions[:count])
            directions = np.concatenate([with_words, vectors[count:]])
            if data.beside_bm25 is not None:
                yield "BM25", data.beside_bm25(None)
                yield "start + BM25", data.beside_bm25(vectors)
                yield "words + BM25", data.beside_bm25(directions)
        yield name, data.measure(directions)
    yield "without components", data.measure(without_components(vectors, of_corpus))
    yield "whitening", data.measure(whiten(vectors, of_corpus))
    of_words = lsa(data)
    yield "LSA", data.measure(of_words)
    yield "with LSA", data.measure(unit(np.concatenate([vectors, of_words], axis=1)))
    yield "model2vec", data.measure(model2vec(start, data.texts))
    yield "TF-IDF", data.measure(tfidf_features(data.corpus, data.texts)[1])


def rows_of(measured: Measured, start: Measured, method: str) -> Iterator[Row]:
    """Yield a row for the set's metric, with the difference to the start, and one for each other number."""
    generator = np.random.default_rng(0)
    drawn = [generator.integers(measured.num_items, size=measured.num_items) for _ in range(DRAWS)]
    differences = np.array([measured.of_items(rows) - start.of_items(rows) for rows in drawn])
    low, high = map(float, np.percentile(differences, [2.5, 97.5]))
    row: Row = {"method": method, "metric": measured.metric, "value": measured.value}
    row |= {"difference": measured.value - start.value, "low": low, "high": high, "items": measured.num_items}
    yield row | {SAMPLES: differences.round(5).tolist()}
    for name, value in measured.others.items():
        yield {"method": method, "metric": name, "value": value, "difference": value - start.others[name]}


def main() -> None:
    """Write the corpus, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a set of benchmarks/studies/adaptation/sets.py")
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--draw", type=int, default=0, help="of the documents")
    parser.add_argument("--corpus", type=Path, help="file to write the documents to adapt on to, and nothing else")
    parser.add_argument("--start", help="the encoder as it is")
    parser.add_argument("--adapted", help="an encoder made of it: measured in place of what needs no training")
    parser.add_argument("--name", help="its method")
    parser.add_argument("--max_seq_length", type=int, help="tokens of a text (default: the encoder's)")
    parser.add_argument("--rows", type=Path, help="file for the rows")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    data = load(options.data, options.data_dir, options.draw)
    if options.corpus is not None:
        labels = data.labels or [""] * len(data.corpus)
        lines = [json.dumps({"text": text, "label": label}) for text, label in zip(data.corpus, labels)]
        write_text(options.corpus, "\n".join(lines) + "\n")
        return
    embedded = embed(data, options.start, options.max_seq_length)
    start = data.measure(embedded[1])
    facts = {"encoder": Path(options.start).name, "tokens": embedded[0].max_seq_length, "documents": len(data.corpus)}
    rows = [*rows_of(start, start, "start")]
    if options.adapted is None:
        methods = of_start(data, options.start, *embedded)
    else:
        methods = iter([(options.name, data.measure(embed(data, options.adapted, None)[1]))])
    for method, measured in methods:
        rows += rows_of(measured, start, method)
        logging.info(f"{method}: {measured.value:.4f}, {rows[-1]['difference']:+.4f}")
    write_text(options.rows, json.dumps([facts | row for row in rows]))


if __name__ == "__main__":
    main()
