"""Search and measures of a collection, beside sentence-transformers' InformationRetrievalEvaluator.

    python -m benchmarks.speed.retrieval
    python -m benchmarks.speed.retrieval --documents 20000 --queries 200 --output outputs/retrieval.json

Both get the same vectors of documents and queries, random and clustered, and the same judgments; what they take beyond
these is reported: seconds, and the peak memory of a process of its own. Embedding is no part of it. Ours reads the 100
best documents of each query, as theirs does, and in a row of its own the 1,000 that `run_document_retrieval.py` reads,
which adds to MAP and to hybrids. Rounds alternate; ratios are medians over rounds, each within its round.
"""

import argparse
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.results import write_report
from docsplit.runtime.files import versions
from docsplit.runtime.launching import hardware

RELEVANT, CLUSTERS = 3, 1000
OURS, DEEP, THEIRS = "ours, 100 documents a query", "ours, 1,000 documents a query", "sentence-transformers"
DEPTHS = {OURS: 100, DEEP: 1000}


def make_vectors(documents: int, queries: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw vectors of documents (N, H) and queries (Q, H), and rows of each query's relevant documents (Q, 3)."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLUSTERS, width)).astype(np.float32)
    vectors = centres[rng.integers(CLUSTERS, size=documents)]
    vectors += rng.normal(size=(documents, width), scale=0.7).astype(np.float32)
    relevant = np.stack([rng.choice(documents, RELEVANT, replace=False) for _ in range(queries)])
    asked = vectors[relevant[:, 0]] + rng.normal(size=(queries, width), scale=3.0).astype(np.float32)
    return vectors, asked.astype(np.float32), relevant


class Ours:
    """`docsplit.embedding.search` and `docsplit.evaluation.ranking.measures`."""

    def __init__(self, vectors: np.ndarray, asked: np.ndarray, relevant: np.ndarray, depth: int):
        from docsplit.data.sets.rankings import Ranking

        self.vectors, self.asked, self.depth = vectors, asked, depth
        names = [f"d{row}" for row in range(len(vectors))]
        queries = [f"q{row}" for row in range(len(asked))]
        judgments = {query: {names[row]: 1 for row in rows} for query, rows in zip(queries, relevant)}
        self.ranking = Ranking(names, names, queries, queries, judgments)

    def evaluate(self) -> dict[str, float]:
        """Return all measures of the script."""
        from docsplit.embedding.search import make_comparable, search
        from docsplit.evaluation.ranking.measures import measure_retrieved

        for vectors in (self.vectors, self.asked):
            make_comparable(vectors, "cosine")
        retrieved = search(self.asked, self.vectors, self.depth)
        return {name: float(items.of_runs()[0]) for name, items in measure_retrieved(retrieved, self.ranking).items()}


class Theirs:
    """The evaluator with its defaults; its model is a look-up in the vectors."""

    def __init__(self, vectors: np.ndarray, asked: np.ndarray, relevant: np.ndarray):
        import torch
        from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
        from sentence_transformers.util import cos_sim

        self.vectors, self.asked = torch.from_numpy(vectors), torch.from_numpy(asked)
        names = [f"d{row}" for row in range(len(vectors))]
        judged = {f"q{query}": {names[row] for row in rows} for query, rows in enumerate(relevant)}
        self.evaluator = InformationRetrievalEvaluator(
            {query: query for query in judged},
            dict(zip(names, names)),
            judged,
            score_functions={"cosine": cos_sim},
            write_csv=False,
        )

    def encode_query(self, sentences: list[str], **options: Any) -> Any:
        """Return the vectors of queries, which the evaluator asks its model for."""
        return self.asked

    def evaluate(self) -> dict[str, float]:
        """Compute all measures of the evaluator; return the two that are compared with ours."""
        scores = self.evaluator.compute_metrices(self, corpus_embeddings=self.vectors)["cosine"]
        return {"ndcg_at_10": scores["ndcg@k"][10], "mrr_at_10": scores["mrr@k"][10]}


def measure(name: str, documents: int, queries: int, width: int) -> tuple[float, float, float, float]:
    """Run one contender in this process; return seconds, peak memory beyond its input in MB, nDCG@10 and MRR@10."""
    import bm25s  # noqa: F401  with the next ones: imports are no part of what is measured
    import ir_measures  # noqa: F401

    import docsplit.evaluation.ranking.measures  # noqa: F401
    from benchmarks.speed.meters import Memory, seconds_of

    size = make_vectors(documents, queries, width)
    contender: Any = Theirs(*size) if name == THEIRS else Ours(*size, depth=DEPTHS[name])
    warm: Any = (Theirs if name == THEIRS else Ours)(
        *make_vectors(2000, 10, width), *([100] if name != THEIRS else [])
    )
    warm.evaluate()
    memory, values = Memory("cpu"), {}
    memory.start()
    seconds = seconds_of(lambda: values.update(contender.evaluate()))
    memory.stop()
    return seconds, memory.peak / 2**20, values["ndcg_at_10"], values["mrr_at_10"]


def table(rows: dict[str, dict[str, float]]) -> str:
    """Return a line for each, with ratios to sentence-transformers."""
    from docsplit.evaluation.results.markdown import markdown_table

    header = ["", "seconds", "of theirs", "peak memory, MB", "of theirs", "nDCG@10", "MRR@10"]
    body = [
        [
            *(name, f"{row['seconds']:.2f}", f"{row['time_ratio']:.2f}", f"{row['peak_mb']:.0f}"),
            *(f"{row['memory_ratio']:.3f}", f"{100 * row['ndcg_at_10']:.1f}", f"{100 * row['mrr_at_10']:.1f}"),
        ]
        for name, row in rows.items()
    ]
    return markdown_table(header, body)


def main() -> None:
    """Measure each contender in alternating rounds, print the table, write JSON and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--width", type=int, default=384, help="numbers of a vector (default: 384, as MiniLM)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("benchmarks/results/retrieval.json"),
        help="JSON file to write, with a table beside it",
    )
    options = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    measured: dict[str, list[tuple[float, ...]]] = {name: [] for name in (OURS, DEEP, THEIRS)}
    for _ in range(options.rounds):
        for name, rounds in measured.items():
            with ProcessPoolExecutor(1, mp_context=context) as process:
                rounds.append(
                    process.submit(measure, name, options.documents, options.queries, options.width).result()
                )
    rows = {}
    for name, rounds in measured.items():
        columns = zip(*rounds)
        rows[name] = dict(zip(("seconds", "peak_mb", "ndcg_at_10", "mrr_at_10"), map(statistics.median, columns)))
        for ratio, column in (("time_ratio", 0), ("memory_ratio", 1)):
            pairs = zip(rounds, measured[THEIRS])
            rows[name][ratio] = statistics.median(row[column] / theirs[column] for row, theirs in pairs)
    contents = {key: getattr(options, key) for key in ("documents", "queries", "width", "rounds")}
    contents |= {"rows": rows, "rounds_measured": measured, "hardware": hardware("cpu"), "versions": versions()}
    title = f"{options.documents:,} documents, {options.queries:,} queries, vectors of {options.width} numbers"
    text = f"{title}: search and measures, beyond the vectors.\n\n{table(rows)}\n\n{contents['hardware']}.\n"
    write_report(options.output, contents, text)
    print(text)


if __name__ == "__main__":
    main()
