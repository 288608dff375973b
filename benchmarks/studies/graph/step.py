"""One step of the cells of `benchmarks.studies.graph.report`: measure an encoder on sets, and by document length.

    python -m benchmarks.studies.graph.step --data_dir DIR --data 20news aan --encoder outputs/mine --rows rows.json
    python -m benchmarks.studies.graph.step --data_dir DIR --data 20news aan --encoder tfidf --rows rows.json

The sets and their metrics are those of `benchmarks.studies.adaptation.sets`. Frozen vectors are standardised over
training documents; "raw" metrics read them as they are, of length one. Test documents are in three classes of equal
size by their words. Each row also has the values on test items drawn with replacement. The draws are the same for
every encoder, so that `docsplit.evaluation.results.bootstrap.paired_bootstrap` can compare two of them.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.engine.results import SAMPLES, Row
from benchmarks.studies.adaptation.sets import DataSet, Measured, load, news
from docsplit.embedding.arguments import EncoderArguments
from docsplit.embedding.encoder import Encoder
from docsplit.evaluation.analysis.clustering import cluster, cluster_measures, tfidf_svd
from docsplit.evaluation.heads.tfidf import tfidf_features
from docsplit.evaluation.results.items import ItemScores
from docsplit.runtime.files import cache_directory, write_text
from docsplit.runtime.vectors import unit

THIRDS = ("short", "medium", "long")
KNOWN = 300
DRAWS = 500
Reading = Literal["truncate", "chunk_mean"]


def rows_of(data: DataSet, measured: Measured) -> Iterator[Row]:
    """Yield the set's metric, accuracy, and the metric of each third of the test documents, which end the texts."""
    yield {"metric": measured.metric, **on_items(measured, np.arange(measured.num_items))}
    if "accuracy" in measured.others:
        yield {"metric": "accuracy", "value": measured.others["accuracy"]}
    if data.task == "links":  # of pairs
        return
    words = np.array([len(text.split()) for text in data.texts[-measured.num_items :]])
    for name, rows in zip(THIRDS, np.array_split(words.argsort(kind="stable"), len(THIRDS))):
        third = {"words": [int(words[rows].min()), int(words[rows].max())], "documents": len(rows)}
        yield {"metric": f"{measured.metric}, {name}", **on_items(measured, np.sort(rows)), **third}


def rows_of_vectors(data: DataSet, vectors: np.ndarray, known: np.ndarray) -> Iterator[Row]:
    """Yield `rows_of` standardised vectors, and the metric and accuracy of raw ones.

    Args:
        vectors: (len(data.texts), H).
        known: rows of training documents, whose mean and deviation standardise.
    """
    deviation = vectors[known].std(axis=0)
    standardised = (vectors - vectors[known].mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    if data.task == "links":
        standardised = unit(standardised)
    yield from rows_of(data, data.measure(standardised))
    for row in rows_of(data, data.measure(unit(vectors))):
        if not row["metric"].endswith(THIRDS):
            yield row | {"metric": f"{row['metric']}, raw"}


def clusters_of(train: np.ndarray, test: np.ndarray, labels: np.ndarray) -> Iterator[Row]:
    """Measure table 1: k-means of unit vectors, fitted on train, a cluster for each class, mean of ten seeds."""
    clusters, _ = cluster(unit(train), unit(test), len(np.unique(labels)), num_seeds=10)
    measures = cluster_measures(clusters, labels)
    nmi, purity = measures["nmi"], measures["purity"]
    assert isinstance(nmi, np.ndarray)
    assert isinstance(purity, ItemScores)
    yield {"metric": "k-means NMI, raw", "value": float(nmi.mean())}
    yield {"metric": "purity, raw", "value": float(purity.of_runs().mean())}


def on_items(measured: Measured, items: np.ndarray) -> Row:
    """Return the metric of some test items, and of sets of as many, drawn from them with replacement."""
    generator = np.random.default_rng(0)
    drawn = (items[generator.integers(len(items), size=len(items))] for _ in range(DRAWS))
    return {"value": measured.of_items(items), SAMPLES: [round(measured.of_items(rows), 5) for rows in drawn]}


def embed(encoder: str, data: DataSet, read: Reading, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors (len(data.texts), H), and the rows of training documents that standardise them.

    For links these are `KNOWN` papers. Other papers of no measured pair are not embedded: their vectors are 0.
    """
    places = {text: row for row, text in enumerate(data.texts)}
    known = np.array([places[text] for text in data.corpus])
    rows = np.arange(len(data.texts))
    if data.task == "links":
        rows = np.setdiff1d(rows, known[KNOWN:])
        known = known[:KNOWN]
    arguments = EncoderArguments([encoder], long_documents=read, **options)
    embedded, _ = Encoder(encoder, arguments, cache_directory()).embed_all([data.texts[row] for row in rows])
    vectors = np.zeros((len(data.texts), embedded.shape[1]), dtype=np.float32)
    vectors[rows] = embedded
    return vectors, known


def of_words(data: DataSet) -> Iterator[tuple[str, Row]]:
    """Yield rows of the baselines without an encoder, by name: fitted on the training documents alone."""
    parts = dict(zip(("train", "all"), tfidf_features(data.corpus, data.texts)))
    methods = {"TF-IDF": data.measure(parts["all"]), "TF-IDF + SVD": data.measure(unit(tfidf_svd(parts)["all"]))}
    if data.bm25 is not None:
        methods["BM25"] = data.bm25()
    for method, measured in methods.items():
        yield from ((method, row) for row in rows_of(data, measured))


def main() -> None:
    """Embed, measure and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--max_documents", type=int, default=2000, help="documents to train on (default: 2000)")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--encoder", help="any encoder, or tfidf: words alone")
    chosen.add_argument("--finetuned", type=Path, help="results.json of one fine-tuned encoder: its rows and curve")
    parser.add_argument(
        "--seen", type=Path, help="its run of the pretraining script, for rows of its tokens and seconds"
    )
    parser.add_argument("--override_pooling", choices=["mean", "cls"], help="pooling in place of the encoder's")
    parser.add_argument("--read", nargs="+", default=["truncate"], choices=["truncate", "chunk_mean"])
    parser.add_argument("--rows", type=Path, required=True, help="file for the rows")
    options = parser.parse_args()
    rows: list[Row] = []
    if options.seen is not None:
        run = json.loads((options.seen / "all_results.json").read_text(encoding="utf-8"))
        seen = {"tokens": run["train_tokens"], "seconds": run["train_runtime"]}
        rows += [{"data": "pretraining", "metric": name, "value": value} for name, value in seen.items()]
    if options.finetuned is not None:
        (finetuned,) = json.loads(options.finetuned.read_text(encoding="utf-8"))["rows"]
        measured = {"value": finetuned["accuracy_mean"], "curve": finetuned["validation_curves"][0]}
        rows += [{"data": options.data[0], "metric": "fine-tuned accuracy"} | measured]
    for name in options.data if options.encoder is not None else []:
        data = load(name, options.data_dir, max_documents=options.max_documents)
        if options.encoder == "tfidf":
            rows += [row | {"data": name, "method": method} for method, row in of_words(data)]
            continue
        for read in options.read:
            vectors, known = embed(options.encoder, data, read, override_pooling=options.override_pooling)
            new_rows = [*rows_of_vectors(data, vectors, known)]
            if name == "20news":
                split = news(options.data_dir, options.max_documents)
                train, test = np.split(vectors, [len(split.train_texts)])
                new_rows += clusters_of(train, test, split.test_labels)
            rows += [row | {"data": name, "read": read} for row in new_rows]
    write_text(options.rows, json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
