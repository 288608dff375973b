"""Quality and speed of the sentence splitters, side by side.

    python -m benchmarks.speed.segmentation
    python -m benchmarks.speed.segmentation en_core_web_sm --documents corpus.parquet --text_column text

Quality is the share of hand-made cases (`tests/data/sentence_cases.json`, each one a known difficulty, so the shares
say which splitter fails where and not how often it fails on a corpus) whose sentences all come out as expected. Speed
is measured on the same documents in alternating rounds of one process, and reported as documents per second and as the
median ratio to the sentencizer of the same round, which a busy machine changes less.
"""

import argparse
import ast
import json
import statistics
import sysconfig
import time
from collections import Counter
from pathlib import Path

from docsplit.data.segmentation import SentenceSplitter, clean_text, load_sentence_splitter
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.runtime.files import write_text

CASES = Path(__file__).parents[2] / "tests" / "data" / "sentence_cases.json"
BASELINE = "sentencizer"


def standard_library_docstrings(minimum_words: int = 60) -> list[str]:
    """Read the docstrings of Python's standard library: real text that is there without a network."""
    docstrings = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):  # lib2to3 carries files that are meant to be invalid
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstrings.append(ast.get_docstring(node) or "")
    return [text for text in docstrings if len(text.split()) >= minimum_words]


def measure_quality(split: SentenceSplitter, cases: list[dict]) -> Counter[str]:
    """Count the cases that come out right in each category."""
    return Counter(case["category"] for case in cases if split(case["text"]) == case["sentences"])


def measure_speed(splitters: dict[str, SentenceSplitter], documents: list[str], rounds: int) -> dict[str, list[float]]:
    """Time each splitter on all documents once per round, in turn.

    Returns:
        Documents per second in each round.
    """
    speeds: dict[str, list[float]] = {name: [] for name in splitters}
    for _ in range(rounds):
        for name, split in splitters.items():
            start = time.perf_counter()
            for document in documents:
                split(document)
            speeds[name].append(len(documents) / (time.perf_counter() - start))
    return speeds


def main() -> None:
    """Measure all splitters, then print them side by side and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "pipelines", nargs="*", help="installed spaCy pipelines to measure beside the built-in splitters"
    )
    parser.add_argument("--documents", type=Path, help="parquet file (default: docstrings of the standard library)")
    parser.add_argument("--text_column", default="text", help="its column (default: text)")
    parser.add_argument("--max_documents", type=int, default=2000, help="documents timed (default: 2000)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds over the documents (default: 5)")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/segmentation.json"), help="JSON file to write"
    )
    options = parser.parse_args()

    if options.documents is None:
        documents = standard_library_docstrings()
    else:
        import pyarrow.parquet

        documents = pyarrow.parquet.read_table(options.documents)[options.text_column].to_pylist()
    documents = [clean_text(document) for document in documents[: options.max_documents]]
    words = statistics.mean(len(document.split()) for document in documents)

    cases = json.loads(CASES.read_text(encoding="utf-8"))
    totals = Counter(case["category"] for case in cases)
    splitters = {name: load_sentence_splitter(name) for name in ("rules", BASELINE, *options.pipelines)}
    right = {name: measure_quality(split, cases) for name, split in splitters.items()}
    speeds = measure_speed(splitters, documents, options.rounds)

    measures = {
        name: {
            "cases_right": right[name].total(),
            "cases_right_by_category": {category: right[name][category] for category in totals},
            "documents_per_second": round(statistics.median(speeds[name])),
            "speed_to_sentencizer": round(
                statistics.median(ours / base for ours, base in zip(speeds[name], speeds[BASELINE])), 1
            ),
        }
        for name in splitters
    }
    rows = [[c, *(f"{right[name][c]} / {total}" for name in splitters)] for c, total in totals.items()]
    rows += [["all", *(f"{right[name].total()} / {len(cases)}" for name in splitters)]]
    rows += [
        [key, *(str(measures[name][key]) for name in splitters)]
        for key in ("documents_per_second", "speed_to_sentencizer")
    ]
    print(markdown_table(["", *splitters], rows))
    print(f"\n{len(documents)} documents of {words:.0f} words on average, median of {options.rounds} rounds")

    results = {"cases": len(cases), "documents": len(documents), "words_per_document": round(words, 1)}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.output, json.dumps(results | {"splitters": measures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
