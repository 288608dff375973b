"""Shorter codes of an encoder's vectors: what truncation and single bits lose, with and without exact rescoring.

    python -m benchmarks.studies.truncation.report --model sentence-transformers/all-MiniLM-L6-v2 \\
        --collections python_docs cranfield

Documents are embedded whole, as far as the encoder reads. A code is the first dimensions of a vector, of length one
(what Matryoshka representations are trained for; Kusupati et al. 2022), or the sign of each dimension, compared by
how many are equal. With rescoring so many of the code's best documents are put in order by the vectors as they are.

    recall    of the ten best documents by the vectors as they are, the share among the code's ten
    nDCG@10   by the collection's judgments
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.data.sets.arguments import RankingArguments
from docsplit.data.sets.rankings import Ranking, Retrieved, load_collection
from docsplit.embedding.encode import embed_documents, embed_queries
from docsplit.embedding.loading import load_encoder
from docsplit.embedding.search import search
from docsplit.evaluation.ranking.measures import measure_retrieved
from docsplit.runtime.files import ROOT, cache_directory, versions, write_text
from docsplit.runtime.launching import hardware
from docsplit.runtime.vectors import unit

DEPTH, RESCORED = 10, 100
DIMENSIONS = (128, 64)


@dataclass(frozen=True)
class Code:
    """A code for vectors: `encode` turns (N, H) into vectors whose dot product compares as the code does."""

    name: str
    num_bytes: int
    encode: Callable[[np.ndarray], np.ndarray]


def codes(width: int) -> list[Code]:
    """Return the codes of vectors of this width, the vectors themselves first."""
    shorter = [Code(f"first {size} dimensions", 4 * size, partial(_first, size)) for size in DIMENSIONS]
    return [Code("vectors", 4 * width, lambda vectors: vectors), *shorter, Code("signs", width // 8, _signs)]


def _first(size: int, vectors: np.ndarray) -> np.ndarray:
    return unit(vectors[:, :size])


def _signs(vectors: np.ndarray) -> np.ndarray:
    return np.where(vectors > 0, np.float32(1), np.float32(-1))


def retrieve(queries: np.ndarray, documents: np.ndarray, code: Code, rescored: int = 0) -> Retrieved:
    """Return the `DEPTH` best documents (N, H) of each query (Q, H) by a code, put in order by the vectors if
    `rescored`.
    """
    retrieved = search(code.encode(queries), code.encode(documents), rescored or DEPTH)
    if not rescored:
        return retrieved
    scores = np.einsum("qh,qkh->qk", queries, documents[retrieved.rows])
    return Retrieved.best(retrieved.rows, scores, DEPTH)


def recall(retrieved: np.ndarray, exact: np.ndarray) -> float:
    """Return the share of the rows (Q, K) of `exact` that are in the same row of `found`."""
    return float(np.mean([len({*got} & {*best}) / len(best) for got, best in zip(retrieved.tolist(), exact.tolist())]))


def measure(ranking: Ranking, documents: np.ndarray, queries: np.ndarray) -> list[dict[str, Any]]:
    """Return a row a code, with rescoring and without."""
    vectors, *shorter = codes(documents.shape[1])
    exact = retrieve(queries, documents, vectors)
    runs = [(vectors, 0), *((code, rescored) for code in shorter for rescored in (0, RESCORED))]
    rows = []
    for code, rescored in runs:
        retrieved = retrieve(queries, documents, code, rescored)
        ndcg = measure_retrieved(retrieved, ranking)["ndcg_at_10"].numerators.mean()
        row = {"code": code.name, "bytes": code.num_bytes, "rescored": rescored}
        rows.append(row | {"recall": recall(retrieved.rows, exact.rows), "ndcg": float(ndcg)})
    return rows


def compare(model: Any, collection: str) -> list[dict[str, Any]]:
    """Return the rows of a collection, its vectors from the cache if they are there."""
    ranking, cache = load_collection(RankingArguments(collection)), cache_directory()
    documents, _ = embed_documents(model, ranking.documents, cache_dir=cache, show_progress=True)
    queries, _ = embed_queries(model, ranking.queries, cache_dir=cache)
    about = {"collection": Path(collection).name, "documents": len(documents), "queries": len(queries)}
    return [about | row for row in measure(ranking, unit(documents), unit(queries))]


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table, a line for each collection and code."""
    lines = ["| collection | code | bytes a vector | rescored | recall@10 | nDCG@10 |", "|---|---|---|---|---|---|"]
    for row in rows:
        told = f"| {row['collection']} | {row['code']} | {row['bytes']:,} | {row['rescored'] or 'no'} "
        lines.append(f"{told}| {row['recall']:.3f} | {row['ndcg']:.3f} |")
    return "\n".join(lines)


def markdown(results: dict[str, Any]) -> str:
    """Return the table with what its columns mean, which this module's docstring says."""
    _, _, codes_explained, measures = (__doc__ or "").strip().split("\n\n")
    return f"# Shorter codes\n\n{codes_explained}\n\n{measures}\n\n{table(results['rows'])}\n"


def main() -> None:
    """Measure all collections, and write JSON and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a SentenceTransformer, here or on the Hub")
    parser.add_argument("--collections", nargs="+", default=["python_docs"], help="as run_document_retrieval.py's")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "truncation.json")
    options = parser.parse_args()
    model = load_encoder(options.model)
    rows = [row for collection in options.collections for row in compare(model, collection)]
    results = {"rows": rows, "encoder": Path(options.model).name, "versions": versions(), "hardware": hardware("cpu")}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.output, json.dumps(results, indent=1) + "\n")
    write_text(options.output.with_suffix(".md"), markdown(results))
    print(table(rows))


if __name__ == "__main__":
    main()
