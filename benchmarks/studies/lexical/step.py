"""One step of the cells of the study of lexical starts: measure an encoder, or words alone, on a set of adaptation's.

    python -m benchmarks.studies.lexical.step --data 20newsgroups --data_dir DIR --rows r.json --encoder DIR
    python -m benchmarks.studies.lexical.step --data 20newsgroups --data_dir DIR --rows r.json --corpus corpus.jsonl

Vectors of an encoder are centred: without training all have a large part in common, and the regression's penalty is
fixed. Without an encoder it measures TF-IDF and latent semantic analysis, and writes the documents to train on.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import TruncatedSVD

from benchmarks.studies.adaptation.sets import DataSet, load
from docsplit.data.words import tfidf_counter
from docsplit.embedding.encode import embed_documents
from docsplit.modeling.loading import load_encoder
from docsplit.runtime.files import write_text
from docsplit.runtime.vectors import unit

WIDTHS = (64, 256)


def of_words(data: DataSet) -> Iterator[tuple[str, Any]]:
    """Yield features of all texts of a set, fitted on its corpus."""
    counter = tfidf_counter(min_df=2, dtype=np.float32)
    fitted_on, weights = counter.fit_transform(data.corpus), counter.transform(data.texts)
    yield "TF-IDF", weights
    for width in WIDTHS:
        yield f"LSA, {width} wide", unit(TruncatedSVD(width, random_state=0).fit(fitted_on).transform(weights))


def main() -> None:
    """Write the rows, and perhaps the corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--encoder")
    parser.add_argument("--corpus", type=Path)
    options = parser.parse_args()
    data = load(options.data, options.data_dir)
    if options.encoder:
        vectors, _ = embed_documents(load_encoder(options.encoder, device="cpu"), data.texts)
        measured = [({}, data.measure(unit(vectors - vectors.mean(axis=0))))]
    else:
        write_text(options.corpus, "".join(json.dumps({"text": text}) + "\n" for text in data.corpus))
        measured = [({"method": name, "seed": None}, data.measure(features)) for name, features in of_words(data)]
    rows = [
        own | {"metric": name, "value": value}
        for own, one in measured
        for name, value in ({one.metric: one.value} | one.others).items()
    ]
    write_text(options.rows, json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
