"""Quality and speed of the sentence splitters, side by side.

    python -m benchmarks.speed.segmentation
    python -m benchmarks.speed.segmentation en_core_web_sm --corpus corpus.parquet --text_column text

Quality is the share of hand-made cases (`tests/data/sentence_cases.json`, each one a known difficulty, so the shares
say which splitter fails where and not how often it fails on a corpus) whose sentences all come out as expected. Speed
is measured on the same documents in alternating rounds of one process, and reported as documents per second and as the
median ratio to the sentencizer of the same round, which a busy machine changes less.
"""

import json
import statistics
import time
from collections import Counter
from pathlib import Path

from benchmarks.speed.meters import make_parser, write_results
from docsplit.data.corpora import load_corpus
from docsplit.data.segmentation import SentenceSplitter, clean_text, load_sentence_splitter
from docsplit.evaluation.results.markdown import markdown_table

CASES = Path(__file__).parents[2] / "tests" / "data" / "sentence_cases.json"
BASELINE = "sentencizer"


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
    parser = make_parser(__doc__, "segmentation.json")
    parser.add_argument("pipelines", nargs="*", help="installed spaCy pipelines, beside the built-in splitters")
    parser.add_argument("--corpus", default="python_docs", help="as the pretraining script names it")
    parser.add_argument("--text_column", default="text", help="its column (default: text)")
    parser.add_argument("--max_documents", type=int, default=2000, help="documents timed (default: 2000)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds over the documents (default: 5)")
    options = parser.parse_args()
    corpus = load_corpus(options.corpus)
    corpus = corpus.select(range(min(options.max_documents, len(corpus))))
    documents = list(map(clean_text, corpus[options.text_column]))
    words = statistics.mean(len(document.split()) for document in documents)

    cases = json.loads(CASES.read_text(encoding="utf-8"))
    totals = Counter(case["category"] for case in cases)
    splitters = {name: load_sentence_splitter(name) for name in ("rules", BASELINE, *options.pipelines)}
    right = {name: measure_quality(split, cases) for name, split in splitters.items()}
    speeds = measure_speed(splitters, documents, options.rounds)
    measures = {}
    for name in splitters:
        ratio = statistics.median(ours / base for ours, base in zip(speeds[name], speeds[BASELINE]))
        measures[name] = {
            "cases_right": right[name].total(),
            "cases_right_by_category": {category: right[name][category] for category in totals},
            "documents_per_second": round(statistics.median(speeds[name])),
            "speed_to_sentencizer": round(ratio, 1),
        }
    rows = [[c, *(f"{right[name][c]} / {total}" for name in splitters)] for c, total in totals.items()]
    rows += [["all", *(f"{right[name].total()} / {len(cases)}" for name in splitters)]]
    for key in ("documents_per_second", "speed_to_sentencizer"):
        rows.append([key, *(str(measures[name][key]) for name in splitters)])
    print(markdown_table(["", *splitters], rows))
    print(f"\n{len(documents)} documents of {words:.0f} words on average, median of {options.rounds} rounds")
    results = {"cases": len(cases), "documents": len(documents), "words_per_document": round(words, 1)}
    write_results(options.output, results | {"splitters": measures})


if __name__ == "__main__":
    main()
