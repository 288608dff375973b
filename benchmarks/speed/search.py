"""An index of `search.py` beside the alternative: sentence-transformers' semantic_search with bm25s.

    python -m benchmarks.speed.search                                         # 10,000, 100,000 and 1,000,000 vectors
    python -m benchmarks.speed.search --sizes 100000 --rounds 5 --output /tmp/search.json

Both hold the same on disk: vectors of synthetic clusters, one a document, and texts of random words, for queries by
vector and by word. Ours is an index. The alternative saves the vectors in an .npy file, ids and texts as JSON, and a
bm25s index; it loads all of them to answer.

    build    from vectors and texts in memory to the files, imports done
    open     from a new process's first line after its imports to the first answer by vector
    query    one query by vector, the best ten, when everything is in memory
    words    one query by words, counted by their stems
    memory   at the peak of opening and queries, beside the vectors themselves: what the process allocates

Each is measured in processes of their own, in alternating rounds; the ratios are medians over rounds, ours by theirs.
"""

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.speed.meters import AllocatedMemory, in_process, make_parser, seconds_of, write_results
from docsplit.runtime.files import versions
from docsplit.runtime.launching import hardware

DIMENSION, CLUSTERS, WORDS, VOCABULARY = 256, 200, 30, 20_000
QUERIES, REPEATS = 100, 20
UNITS = {"build": "s", "open": "s", "query": "ms", "words": "ms", "memory": "MB"}
FACTORS = {"s": 1.0, "ms": 1e3, "MB": 1e-6}


def make_vectors(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw documents (N, H) in clusters, and queries (Q, H) near some of them, of length one."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(CLUSTERS, DIMENSION)).astype(np.float32)
    vectors = centres[generator.integers(CLUSTERS, size=size)]
    vectors += 0.7 * generator.standard_normal(vectors.shape, dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[generator.integers(size, size=QUERIES)] + 0.02 * generator.normal(size=(QUERIES, DIMENSION))
    queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
    return vectors, queries


def make_texts(size: int) -> list[str]:
    """Draw words by Zipf's law."""
    generator = np.random.default_rng(1)
    numbers = np.minimum(generator.zipf(1.3, size=(size, WORDS)), VOCABULARY)
    return [" ".join(f"w{number}" for number in row) for row in numbers]


def build_ours(folder: Path, vectors: np.ndarray, texts: list[str]) -> None:
    """Build an index; a document is one passage, and its vector is looked up."""
    from docsplit.data.readers.base import Document
    from docsplit.index.changes import build

    done = 0

    def embed(passages: Sequence[str]) -> np.ndarray:
        nonlocal done
        done += len(passages)
        return vectors[done - len(passages) : done]

    documents = (Document(str(number), text) for number, text in enumerate(texts))
    encoder: Any = SimpleNamespace(
        embed_for_index=embed,
        announce=lambda *_, **__: None,
        count_tokens=lambda texts: None,
        has_words=False,
        description={"name": "synthetic", "hash": "", "pooling": None, "max_seq_length": None, "similarity": "cosine"}
        | {"dimension": vectors.shape[1]},
    )
    build(folder, documents, encoder)


def build_theirs(folder: Path, vectors: np.ndarray, texts: list[str]) -> None:
    """Save vectors, texts, and a bm25s index."""
    import bm25s
    import Stemmer

    np.save(folder / "vectors.npy", vectors)
    content = {"ids": [str(number) for number in range(len(texts))], "texts": texts}
    (folder / "texts.json").write_text(json.dumps(content))
    retriever = bm25s.BM25()
    retriever.index(
        bm25s.tokenize(texts, stemmer=Stemmer.Stemmer("english"), show_progress=False), show_progress=False
    )
    retriever.save(str(folder / "bm25"))


def ask_ours(folder: Path, queries: np.ndarray) -> dict[str, Any]:
    """Return the times of an index, and its hits."""
    from docsplit.index.index import IndexReader

    started = time.perf_counter()
    index = IndexReader(folder)
    first = [int(hit.id) for hit in index.search(queries[0], "", 10, "dense")]
    opened = time.perf_counter() - started
    return {
        "open": opened,
        "query": _median(lambda number: index.search(queries[number], "", 10, "dense")),
        "words": _median(lambda number: index.search(None, _words(number), 10, "bm25")),
        "found": first,
    }


def ask_theirs(folder: Path, queries: np.ndarray) -> dict[str, Any]:
    """Return the times of semantic_search and bm25s, and their hits."""
    import bm25s
    import Stemmer
    import torch
    from sentence_transformers.util import semantic_search

    started = time.perf_counter()
    vectors = torch.from_numpy(np.load(folder / "vectors.npy"))
    content = json.loads((folder / "texts.json").read_text())
    asked = torch.from_numpy(queries)
    first = [int(content["ids"][int(hit["corpus_id"])]) for hit in semantic_search(asked[:1], vectors, top_k=10)[0]]
    opened = time.perf_counter() - started
    retriever, stemmer = bm25s.BM25.load(str(folder / "bm25")), Stemmer.Stemmer("english")

    def by_words(number: int) -> Any:
        words = bm25s.tokenize([_words(number)], stemmer=stemmer, show_progress=False, return_ids=False)
        return retriever.retrieve(words, k=10, show_progress=False)

    return {
        "open": opened,
        "query": _median(lambda number: semantic_search(asked[number : number + 1], vectors, top_k=10)),
        "words": _median(by_words),
        "found": first,
    }


def _words(number: int) -> str:
    return f"w{number + 2} w{number + 40} w{1000 + number}"


def _median(ask: Any) -> float:
    return statistics.median(seconds_of(ask, number) for number in range(REPEATS))


CONTENDERS = {"ours": (build_ours, ask_ours), "theirs": (build_theirs, ask_theirs)}


def measure(contender: str, size: int, folder: Path) -> dict[str, Any]:
    """Build and ask once, and ask once more for the memory, which is watched; in a process each."""
    answers: dict[str, Any] = {}
    for part in ("build", "ask", "memory"):
        answers |= in_process(do_part, part, contender, size, folder)
    return answers


def do_part(part: str, contender: str, size: int, folder: Path) -> dict[str, Any]:
    """Measure a part in a process that `measure` starts: seconds, or peak memory beside vectors and imports."""
    import bm25s  # noqa: F401
    import sentence_transformers  # noqa: F401

    import docsplit.data.readers.documents
    import docsplit.index.changes  # noqa: F401

    build, ask = CONTENDERS[contender]
    if part == "build":
        vectors, _ = make_vectors(size)
        return {"build": seconds_of(build, folder, vectors, make_texts(size))}
    queries = np.load(folder.parent / "queries.npy")
    if part == "ask":
        return ask(folder, queries)
    with AllocatedMemory() as allocated:
        ask(folder, queries)
    # Our vectors are mapped, theirs are in what is allocated
    return {"memory": allocated.peak - (0 if contender == "ours" else size * DIMENSION * 4)}


def compare(size: int, rounds: int) -> dict[str, Any]:
    """Return the measures of both, medians, and ours by theirs."""
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as place:
            np.save(Path(place) / "queries.npy", make_vectors(size)[1])
            for name in sorted(CONTENDERS, reverse=bool(number % 2)):
                folder = Path(place) / name
                folder.mkdir()
                measured[name].append(measure(name, size, folder))
                shutil.rmtree(folder)
    pairs = list(zip(measured["ours"], measured["theirs"]))
    agree = statistics.mean(len({*ours["found"]} & {*theirs["found"]}) / 10 for ours, theirs in pairs)
    row: dict[str, Any] = {"documents": size, "same_of_ten": agree}
    for name in [name for name in UNITS if name in pairs[0][0]]:
        for contender, rounds_measured in measured.items():
            row[f"{contender}_{name}"] = statistics.median(figures[name] for figures in rounds_measured)
        row[f"{name}_ratio"] = statistics.median(ours[name] / theirs[name] for ours, theirs in pairs)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table, a line for each size and measure."""
    lines = ["| documents | | index | semantic_search and bm25s | ratio |", "|---|---|---|---|---|"]
    for row in rows:
        for name in [name for name in UNITS if f"{name}_ratio" in row]:
            ours, theirs = (
                f"{row[f'{contender}_{name}'] * FACTORS[UNITS[name]]:,.3g} {UNITS[name]}" for contender in CONTENDERS
            )
            lines.append(f"| {row['documents']:,} | {name} | {ours} | {theirs} | {row[f'{name}_ratio']:.2f} |")
    return "\n".join(lines)


def markdown(results: dict[str, Any]) -> str:
    """Return the table with what its rows mean, which this module's docstring says."""
    _, _, _, measures, ratios = (__doc__ or "").strip().split("\n\n")
    about = f"{results['hardware']}, {results['dimension']} dimensions, rounds: {results['rounds']}."
    return f"# Search\n\n{about} {' '.join(ratios.split())}\n\n{measures}\n\n{table(results['rows'])}\n"


def main() -> None:
    """Measure all sizes, and write JSON and a table."""
    parser = make_parser(__doc__, "search.json")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    results = {"rows": rows, "dimension": DIMENSION, "rounds": options.rounds}
    results |= {"versions": versions(), "hardware": hardware("cpu")}
    for size in tqdm(options.sizes, unit="size"):
        rows.append(compare(size, options.rounds))
        write_results(options.output, results, markdown(results))
    print(table(rows))


if __name__ == "__main__":
    main()
