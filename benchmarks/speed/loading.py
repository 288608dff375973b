"""The cost of loading: drawing views, preprocessing with more processes, resuming late in an epoch.

    python -m benchmarks.speed.loading
    python -m benchmarks.speed.loading --corpus folder/of/parquet --tokenizer_name bert-base-uncased

    drawing        two views of a document from its cached units, beside cutting it into sentences and tokenising it
                   again, without the cache (both with the same sentence splitter and tokenizer)
    preprocessing  `docsplit.data.preparation.tokenize` with 1 to N processes on the same documents
    resuming       from the start of the loader to its first batch, at 1 % and at 99 % of an epoch, of the cached
                   documents and of a stream

Everything is measured in alternating rounds of one process, and reported as the median and as the median ratio within
a round, which a busy machine changes less.
"""

import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import datasets
from accelerate.data_loader import skip_first_batches
from torch.utils.data import DataLoader, RandomSampler
from transformers import PreTrainedTokenizerBase

from benchmarks.speed.meters import make_parser, seconds_of, write_results
from docsplit.data import corpora, preparation
from docsplit.data.collators import DocSplitCollator
from docsplit.data.segmentation import DEFAULT_SPLITTER, clean_text, load_sentence_splitter
from docsplit.data.streaming import DocumentStream, StreamLayout
from docsplit.data.tokenization import load_tokenizer, tokenize_units, train_wordpiece
from docsplit.runtime.files import cache_directory
from docsplit.runtime.launching import hardware

BATCH_SIZE = 36


def measure_drawing(
    texts: list[str], dataset: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, rounds: int
) -> dict[str, Any]:
    """Measure microseconds a document with and without the cache, their ratio, and the rate of one loader."""
    collator, split = DocSplitCollator(tokenizer), load_sentence_splitter(DEFAULT_SPLITTER)
    features = list(dataset)
    loader = DataLoader(dataset, BATCH_SIZE, collate_fn=collator)  # type: ignore[arg-type]

    def draw() -> None:
        for feature in features:
            for view in collator.view(feature["unit_lengths"], collator.generator(feature)):
                collator.join(feature, view)

    def again() -> None:
        for text in texts:
            tokenize_units(tokenizer, split(clean_text(text)))

    times = [(seconds_of(draw), seconds_of(again), seconds_of(list, loader)) for _ in range(rounds)]
    ours, theirs, loading = (statistics.median(column) for column in zip(*times))
    return {
        "documents": len(texts),
        "draw_us": ours / len(texts) * 1e6,
        "split_and_tokenise_us": theirs / len(texts) * 1e6,
        "ratio": statistics.median(again / drawn for drawn, again, _ in times),
        "loader_documents_per_second": len(texts) / loading,
    }


def measure_preprocessing(
    corpus: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, processes: list[int], rounds: int
) -> dict[str, Any]:
    """Measure documents a second for each number of processes, and the gain over one process."""
    rates: dict[int, list[float]] = {count: [] for count in processes}
    datasets.disable_caching()
    for _ in range(rounds):
        for count in processes:
            took = seconds_of(preparation.tokenize, corpus, tokenizer, preparation.Segmentation(), count)
            rates[count].append(len(corpus) / took)
    datasets.enable_caching()
    return {
        str(count): {
            "documents_per_second": statistics.median(rates[count]),
            "gain": statistics.median(ours / baseline for ours, baseline in zip(rates[count], rates[processes[0]])),
        }
        for count in processes
    }


def measure_resuming(
    dataset: datasets.Dataset, corpus: str, tokenizer: PreTrainedTokenizerBase, rounds: int
) -> dict[str, Any]:
    """Measure the seconds to the first batch at 1 % and 99 % of an epoch, and their ratio."""
    collator = DocSplitCollator(tokenizer)
    stream = corpora.stream_corpus(corpus)
    num_batches = len(dataset) // BATCH_SIZE

    def cached(batches: int) -> None:
        loader = DataLoader(dataset, BATCH_SIZE, sampler=RandomSampler(dataset), collate_fn=collator)  # type: ignore[arg-type]
        next(iter(skip_first_batches(loader, batches)))

    def streamed(batches: int) -> None:
        layout = StreamLayout(BATCH_SIZE, buffer_size=1000)
        documents = DocumentStream(stream, tokenizer, preparation.Segmentation(), layout)
        documents.first_batch = batches
        next(iter(DataLoader(documents, BATCH_SIZE, collate_fn=collator)))

    streamed(num_batches + 1)  # a whole pass: the sizes of shards are known from here on, as after a first epoch
    results = {}
    for name, run in {"cached": cached, "stream": streamed}.items():
        times = [
            (seconds_of(run, num_batches // 100), seconds_of(run, num_batches * 99 // 100)) for _ in range(rounds)
        ]
        results[name] = {
            "at_1_percent_s": statistics.median(early for early, _ in times),
            "at_99_percent_s": statistics.median(late for _, late in times),
            "ratio": statistics.median(late / early for early, late in times),
        }
    return results


def main() -> None:
    """Measure the three on one corpus, then write JSON and print it."""
    parser = make_parser(__doc__, "loading.json")
    parser.add_argument("--corpus", default=corpora.PYTHON_DOCS, help="corpus, named as in the pretraining script")
    parser.add_argument("--tokenizer_name", help="on the Hub or here (default: WordPiece trained on the documents)")
    parser.add_argument("--documents", type=int, default=2000, help="documents to draw and preprocess (default: 2000)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    corpus = corpora.add_text(corpora.load_corpus(options.corpus), "text").select_columns(["text"])
    if options.tokenizer_name:
        tokenizer = load_tokenizer(options.tokenizer_name)
    else:
        tokenizer = train_wordpiece(corpus, "text", 30522, cache_directory())
    whole, _ = preparation.tokenize(corpus, tokenizer)
    sample = corpus.select(range(min(options.documents, len(corpus))))
    with tempfile.TemporaryDirectory() as folder:  # read from a file of its own, as any corpus is
        sample.to_parquet(f"{folder}/sample.parquet")
        sample = corpora.load_corpus(f"{folder}/sample.parquet")
        dataset = preparation.tokenize(sample, tokenizer)[0].with_format("numpy")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        processes = sorted({2**power for power in range(10) if 2**power <= cores} | {cores})
        results = {
            "hardware": hardware("cpu"),
            "corpus": Path(options.corpus).name,
            "drawing": measure_drawing(sample["text"][:], dataset, tokenizer, options.rounds),
            "preprocessing": measure_preprocessing(sample, tokenizer, processes, options.rounds),
            "resuming": measure_resuming(whole.with_format("numpy"), options.corpus, tokenizer, options.rounds),
        }
    write_results(options.output, results)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
