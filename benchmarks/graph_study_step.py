"""One step of the cells of `benchmarks.graph_study`: an encoder measured on sets, by length of document too.

    python -m benchmarks.graph_study_step --data_dir DIR --data 20news aan --encoder outputs/mine --rows rows.json
    python -m benchmarks.graph_study_step --data_dir DIR --data 20news aan --encoder tfidf --rows rows.json

The sets and their metrics are those of `benchmarks.adaptation_sets`, on frozen vectors. Test documents are in three
classes of equal size by their words. Beside each value stand those on test items drawn with replacement, the same for
every encoder, so that two of them can be compared by `docsplit.evaluation.metrics.paired_bootstrap`.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.adaptation_sets import DataSet, Measured, load
from docsplit.embedding.encoders import EncoderArguments
from docsplit.embedding.neighbours import unit
from docsplit.evaluation.clustering import tfidf_svd
from docsplit.runtime.files import write_text

THIRDS = ("short", "medium", "long")
DRAWS = 500


def rows_of(data: DataSet, measured: Measured) -> Iterator[dict[str, Any]]:
    """The set's metric, other numbers, and the metric of each third of the test documents, which end the texts."""
    yield {"metric": measured.metric, **on_items(measured, np.arange(measured.num_items))}
    for name in ("accuracy", "kmeans_nmi"):
        if name in measured.others:
            yield {"metric": name, "value": measured.others[name]}
    if data.task == "links":  # of pairs
        return
    words = np.array([len(text.split()) for text in data.texts[-measured.num_items :]])
    for name, rows in zip(THIRDS, np.array_split(words.argsort(kind="stable"), len(THIRDS))):
        own = {"words": [int(words[rows].min()), int(words[rows].max())], "documents": len(rows)}
        yield {"metric": f"{measured.metric}, {name}", **on_items(measured, np.sort(rows)), **own}


def on_items(measured: Measured, items: np.ndarray) -> dict[str, Any]:
    """The metric of some test items, and of sets of as many, drawn from them with replacement."""
    generator = np.random.default_rng(0)
    drawn = (items[generator.integers(len(items), size=len(items))] for _ in range(DRAWS))
    return {"value": measured.of_items(items), "drawn": [round(measured.of_items(rows), 5) for rows in drawn]}


def of_words(data: DataSet) -> Iterator[tuple[str, Measured]]:
    """What needs no encoder, by name: fitted on the training documents alone."""
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    parts = {"train": vectorizer.fit_transform(data.corpus), "all": vectorizer.transform(data.texts)}
    yield "TF-IDF", data.measure(parts["all"])
    yield "TF-IDF + SVD", data.measure(unit(tfidf_svd(parts)["all"]))
    if data.bm25 is not None:
        yield "BM25", data.bm25()


def main() -> None:
    """Embed, measure and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--max_documents", type=int, default=2000, help="to train on (default: 2000)")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--encoder", help="any encoder, or tfidf: words alone")
    chosen.add_argument("--finetuned", type=Path, help="results.json of one fine-tuned encoder: its rows and curve")
    parser.add_argument("--seen", type=Path, help="its run of the pretraining script: rows of its tokens and seconds")
    parser.add_argument("--override_pooling", choices=["mean", "cls"], help="in place of the encoder's own")
    parser.add_argument("--max_seq_length", type=int, help="tokens of a text (default: the encoder's)")
    parser.add_argument("--read", nargs="+", default=["truncate"], choices=["truncate", "chunk_mean"])
    parser.add_argument("--rows", type=Path, required=True, help="where they go")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.seen is not None:
        run = json.loads((options.seen / "all_results.json").read_text(encoding="utf-8"))
        seen = {"tokens": run["train_tokens"], "seconds": run["train_runtime"]}
        rows += [{"data": "pretraining", "metric": name, "value": value} for name, value in seen.items()]
    if options.finetuned is not None:
        (found,) = json.loads(options.finetuned.read_text(encoding="utf-8"))["rows"]
        own = {"value": found["accuracy_mean"], "curve": found["validation_curves"][0]}
        rows += [{"data": options.data[0], "metric": "fine-tuned accuracy"} | own]
    for name in options.data if options.encoder is not None else []:
        data = load(name, options.data_dir, max_documents=options.max_documents)
        if options.encoder == "tfidf":
            for method, measured in of_words(data):
                rows += [row | {"data": name, "method": method} for row in rows_of(data, measured)]
            continue
        for read in options.read:
            own = {"override_pooling": options.override_pooling, "max_seq_length": options.max_seq_length}
            arguments = EncoderArguments([options.encoder], long_documents=read, **own)
            vectors = unit(arguments.embed_all(options.encoder, data.texts, show_progress=False)[0])
            rows += [row | {"data": name, "read": read} for row in rows_of(data, data.measure(vectors))]
    write_text(options.rows, json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
