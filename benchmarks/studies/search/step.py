"""One cell of the study of search: rank the documents of a set for its queries in all ways, with one encoder.

    python -m benchmarks.studies.search.step --data scifact --data_dir DIR --encoder NAME --rows rows.json \\
        [--peers txtai lancedb]

Vectors are kept in the cache, outside the repository: an encoder is slow on a CPU, and all ways to rank are fast.
"""

import argparse
import json
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.results import Row
from benchmarks.studies.search.peers import PEERS
from benchmarks.studies.search.sets import SETS
from docsplit.data.bm25 import BM25
from docsplit.data.fusion import LOWEST, WEIGHT
from docsplit.data.sets.rankings import Ranking, Retrieved
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.embedding.neighbours import search
from docsplit.evaluation.ranking import DEPTH, Candidates, curves, reciprocal_rank_fusion
from docsplit.evaluation.results.bootstrap import ItemScores, interval, paired_bootstrap, resample
from docsplit.runtime.files import cache_directory, write_text
from docsplit.runtime.vectors import unit

MEASURED = 100  # documents of a list that are measured, and that others are asked for
METRICS = {"ndcg_at_10": "ndcg@10", "recall_at_100": "recall@100"}
OURS = "sum, stems"
WEIGHTS = (0.5, 0.6, 0.7, 0.75, WEIGHT, 0.85, 0.9, 0.95)


def embed(encoder: Encoder, stem: Path, ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of the documents (N, H) and of the queries (Q, H), of length one.

    Args:
        stem: of the files where they are kept, with what they were made of.
    """
    made_of = f"{ranking.fingerprint()} {encoder.description['hash']} {encoder.dtype}"
    paths, note = [Path(f"{stem}-{part}.npy") for part in ("documents", "queries")], Path(f"{stem}.txt")
    if not note.exists() or note.read_text() != made_of:
        stem.parent.mkdir(parents=True, exist_ok=True)
        note.unlink(missing_ok=True)
        np.save(paths[0], unit(encoder.embed(ranking.documents)))
        np.save(paths[1], unit(encoder.embed_queries(ranking.queries)[0]))
        write_text(note, made_of)
    documents, queries = map(np.load, paths)
    return documents, queries


def rank(ranking: Ranking, documents: np.ndarray, queries: np.ndarray) -> Iterator[tuple[str, Retrieved]]:
    """Yield our lists: of the encoder, of BM25 and of both together, with stems and without."""
    own = ranking.own
    dense = search(queries, documents, DEPTH + 1).without(own, DEPTH)
    yield "dense", dense

    def similarities(rows: np.ndarray) -> np.ndarray:
        return np.stack([documents[found] @ query for found, query in zip(rows, queries)])

    for ending, language in {"": "none", ", stems": "english"}.items():
        index = BM25(ranking.documents, language)
        words = index.retrieve(ranking.queries, DEPTH + 1).without(own, DEPTH)
        yield f"BM25{ending}", words
        yield f"RRF{ending}", reciprocal_rank_fusion(dense, words, DEPTH)
        both = (dense, words)
        candidates = Candidates.of(both, similarities, partial(index.scores, ranking.queries), LOWEST["cosine"])
        yield f"sum{ending}", candidates.ranked(np.full(len(queries), WEIGHT), DEPTH)
    for weight in [each for each in WEIGHTS if each != WEIGHT]:
        yield f"{OURS}, w {weight}", candidates.ranked(np.full(len(queries), weight), DEPTH)


def rank_by_others(
    ranking: Ranking, documents: np.ndarray, queries: np.ndarray, peers: list[str]
) -> Iterator[tuple[str, Retrieved]]:
    """Yield the lists of other tools, from the same texts and vectors."""
    depth = min(MEASURED + 1, len(documents))
    for name in [name for name in PEERS if name.partition(",")[0] in ("semantic_search", "bm25s", *peers)]:
        lists = PEERS[name](ranking, documents, queries, depth)
        rows = np.array([[*found, *[-1] * (depth - len(found))] for found in lists], dtype=np.int32)
        scores = np.where(rows >= 0, -np.arange(depth, dtype=np.float32), -np.inf)  # their order is what counts
        yield name, Retrieved(rows, scores).without(ranking.own, MEASURED)


def rows_of(values: dict[str, ItemScores], metric: str) -> Iterator[Row]:
    """Yield the mean of each method over queries, and what `OURS` is ahead of each, with intervals over queries."""
    drawn = dict(zip(values, resample([*values.values()])))
    for method, system in drawn.items():
        low, high = interval(system)
        yield {"method": method, "metric": metric, "value": float(system.scores.mean()), "low": low, "high": high}
    others = [name for name in drawn if name != OURS and ", w " not in name] if OURS in drawn else []
    for method, other in [*((OURS, name) for name in others), *([("BM25, stems", "BM25")] if others else [])]:
        found = paired_bootstrap(drawn[method], drawn[other])
        row = {"method": method, "against": other, "metric": f"{metric}_difference"}
        yield row | {"value": found.difference, "low": found.low, "high": found.high}


def measure(ranking: Ranking, lists: Iterator[tuple[str, Retrieved]]) -> list[Row]:
    """Measure all lists of a set by `METRICS`."""
    values: dict[str, dict[str, ItemScores]] = {metric: {} for metric in METRICS}
    for method, retrieved in lists:
        of_depths = curves(Retrieved(retrieved.rows[:, :MEASURED], retrieved.scores[:, :MEASURED]), ranking)
        for metric, name in METRICS.items():
            values[metric][method] = of_depths[name]
        logging.info(f"{method} {values['ndcg_at_10'][method].of_runs()[0]:.4f}")
    return [row for metric, of_methods in values.items() for row in rows_of(of_methods, metric)]


def main() -> None:
    """Measure one set with one encoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, choices=SETS)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--rows", type=Path, required=True, help="file for the rows")
    parser.add_argument("--peers", nargs="*", default=[], choices=["txtai", "lancedb"])
    parser.add_argument("--max_seq_length", type=int, help="tokens of a text (default: the encoder's)")
    parser.add_argument("--dtype", default="auto", help="of products (default: bfloat16 where it is fast)")
    parser.add_argument("--dense_alone", action="store_true", help="rank by the encoder alone")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    folder = cache_directory() / "search_study"
    changed = {} if options.max_seq_length is None else {"max_seq_length": options.max_seq_length}
    ranking, name = SETS[options.data].load(options.data_dir), Path(options.encoder).name
    encoder = Encoder(options.encoder, EncoderArguments([options.encoder], **changed, dtype=options.dtype), folder)
    facts: dict[str, Any] = {"encoder": name, "tokens": encoder.max_seq_length, "dtype": str(encoder.dtype)[6:]}
    facts |= {"queries": len(ranking.queries), "documents": len(ranking.documents)}
    stem = "-".join(map(str, [name, options.data, *changed.values(), *({options.dtype} - {"auto"})]))
    documents, queries = embed(encoder, folder / stem, ranking)

    def lists() -> Iterator[tuple[str, Retrieved]]:
        if options.dense_alone:
            yield "dense", search(queries, documents, MEASURED)
            return
        yield from rank(ranking, documents, queries)
        yield from rank_by_others(ranking, documents, queries, options.peers)

    rows = [facts | row for row in measure(ranking, lists())]
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.rows, json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
