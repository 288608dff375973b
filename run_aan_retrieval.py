"""Citation links between papers from frozen embeddings: is this paper cited by that one, yes or no?

    # one encoder on the "See also" links between the docstrings of the installed packages
    python run_aan_retrieval.py --model_name_or_path outputs/quickstart

    # the AAN task of Long Range Arena: a folder with its train, eval and test .tsv files
    accelerate launch run_aan_retrieval.py recipes/retrieval_aan.yaml --lra_dir lra_release/tsv_data \\
        --model_name_or_path outputs/docsplit outputs/simcse

    # your own papers (id, title, abstract, text or sections) and their citations (citing, cited); splits are made here
    accelerate launch run_aan_retrieval.py --model_name_or_path outputs/docsplit --papers_file papers.parquet \\
        --citations_file citations.tsv --output_dir outputs/aan

Each distinct paper is embedded once per encoder; the paper's head is an MLP on both embeddings, [a; b]. Beside it
stand the untrained cosine, BM25 on the texts, and popularity, which sees no text at all and should be at chance.
"""

import logging
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from docsplit.data import citations
from docsplit.data.citation_splits import PairPart
from docsplit.data.citations import CitationPairs
from docsplit.embedding.encoders import EncoderArguments
from docsplit.evaluation import comparison, links, ranking
from docsplit.evaluation.heads import HeadOutput, Run
from docsplit.evaluation.mlp_head import mlp
from docsplit.evaluation.report import text_statistics, write_comparison
from docsplit.evaluation.results import Result, link_result
from docsplit.evaluation.tables import statistics_table
from docsplit.evaluation.tasks import LINKS
from docsplit.release.model_card import add_results
from docsplit.runtime.arguments import parse_arguments
from docsplit.runtime.launching import join_processes

logger = logging.getLogger("docsplit")

ENCODER_HEADS = ("mlp", "cosine")
BASELINES = ("bm25", "popularity")


@dataclass
class DataArguments:
    """Papers and links. Without any of these: python_docs, with its "See also" links."""

    lra_dir: str | None = field(
        default=None,
        metadata={"help": "Folder with Long Range Arena's train, eval and test .tsv (label, ids, texts)."},
    )
    papers_file: str | None = field(
        default=None, metadata={"help": "Table of papers: id, title, abstract, text or sections [{heading, text}]."}
    )
    train_pairs_file: str | None = field(default=None, metadata={"help": "Pairs to train on: label, id1, id2."})
    validation_pairs_file: str | None = field(default=None, metadata={"help": "Pairs for early stopping."})
    test_pairs_file: str | None = field(default=None, metadata={"help": "Pairs to measure on."})
    citations_file: str | None = field(
        default=None,
        metadata={"help": "In place of pairs: links (citing, cited), to make splits that share no paper."},
    )


@dataclass
class RetrievalArguments:
    """What is compared, and how often."""

    output_dir: str = field(default="outputs/retrieval", metadata={"help": "Where everything is written."})
    heads: list[str] = field(
        default_factory=lambda: [*ENCODER_HEADS, *BASELINES],
        metadata={
            "help": "mlp (the paper's, on [a; b]), cosine (untrained, threshold from the training pairs); and without "
            "encoder bm25 and popularity (ids and degrees only)."
        },
    )
    num_seeds: int = field(default=3, metadata={"help": "Trainings of the MLP."})
    seed: int = field(default=0, metadata={"help": "Of splits and trainings."})
    push_results: bool = field(
        default=False,
        metadata={
            "help": "Add the tables to the cards of the models that this project made: in their folders, and on the "
            "Hub if they are there."
        },
    )

    def __post_init__(self) -> None:
        choices = (*ENCODER_HEADS, *BASELINES)
        if unknown := [head for head in self.heads if head not in choices]:
            raise ValueError(f"--heads has no {', '.join(unknown)}: choose among {', '.join(choices)}.")
        if self.num_seeds < 1:
            raise ValueError(f"--num_seeds is {self.num_seeds}: expected 1 or more.")


def main() -> None:
    encoder_args, data_args, args = parse_arguments(
        (EncoderArguments, DataArguments, RetrievalArguments), description=str(__doc__)
    )
    state = join_processes()
    with state.main_process_first():  # the others find it in the cache
        pairs = load_pairs(data_args, args.seed)
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    encoders = list(dict.fromkeys(encoder_args.model_name_or_path)) if set(args.heads) & set(ENCODER_HEADS) else []
    for name in encoders:
        encoder_args.check(name, pairs.texts[:2])

    if state.is_main_process:
        print(f"\n{statistics_table(statistics_of(pairs, data_args))}\n")

    results = []
    for name in encoders:
        embeddings, info = encoder_args.embed_all(name, pairs.texts, show_progress=state.is_main_process)
        if state.is_main_process:
            results += list(link(name, embeddings, info, pairs, args))
    if state.is_main_process:
        results += list(baselines(pairs, args))
        report(results, encoders, pairs, [encoder_args, data_args, args], state.num_processes)
    state.wait_for_everyone()


def load_pairs(data_args: DataArguments, seed: int) -> CitationPairs:
    """The pairs that the options name.

    Raises:
        ValueError: if they name two sources, or half of one.
    """
    pair_files: list[Any] = [data_args.train_pairs_file, data_args.validation_pairs_file, data_args.test_pairs_file]
    sources = [data_args.lra_dir, data_args.citations_file, any(pair_files)]
    if sum(bool(source) for source in sources) > 1 or (data_args.lra_dir and data_args.papers_file):
        raise ValueError("Give one of --lra_dir, --citations_file (with --papers_file), or the three pair files.")
    if data_args.lra_dir:
        return citations.load_long_range_arena(data_args.lra_dir)
    if not data_args.papers_file:
        if any(sources):
            raise ValueError("Pairs and citations name papers by id: give their texts with --papers_file.")
        return citations.python_docs_pairs(seed)
    if data_args.citations_file:
        return citations.load_citations(data_args.papers_file, data_args.citations_file, seed)
    if not all(pair_files):
        raise ValueError(
            "Beside --papers_file give --citations_file, or --train_pairs_file, --validation_pairs_file and "
            "--test_pairs_file."
        )
    return citations.load_pair_files(data_args.papers_file, *pair_files)


def link(
    name: str, embeddings: np.ndarray, info: dict[str, Any], pairs: CitationPairs, args: RetrievalArguments
) -> Iterator[Result]:
    """The heads on an encoder's embeddings."""
    if "mlp" in args.heads:
        output = mlp(
            links.pair_features(embeddings, pairs.train),
            pairs.train.labels,
            [Run(np.arange(len(pairs.train.labels)), args.seed + number) for number in range(args.num_seeds)],
            links.pair_features(embeddings, pairs.test),
            num_classes=2,
            few_shot=False,
            validation=(links.pair_features(embeddings, pairs.validation), pairs.validation.labels),
            hidden=embeddings.shape[1],
        )
        yield link_result(name, "mlp", output, pairs.test.labels, info)
    if "cosine" in args.heads:
        train, test = (links.cosine_scores(embeddings, part) for part in (pairs.train, pairs.test))
        threshold = links.best_threshold(train, pairs.train.labels)
        yield link_result(name, "cosine", untrained(test, 0.0), pairs.test.labels, info, threshold)


def untrained(scores: np.ndarray, seconds: float) -> HeadOutput:
    """Scores (M,) of the test pairs as a head of one run gives them."""
    return HeadOutput(scores[None, :, None].astype(np.float32), seconds, trainable_parameters=0)


def baselines(pairs: CitationPairs, args: RetrievalArguments) -> Iterator[Result]:
    """What needs no encoder."""
    info = dict.fromkeys(
        ["pooling", "max_seq_length", "num_parameters", "dtype", "long_documents", "embedding_seconds"]
    )
    for head in (head for head in args.heads if head in BASELINES):
        logger.info(f"Scoring the pairs by {head}")
        started, threshold = perf_counter(), 0.5
        if head == "bm25":
            both = PairPart(*map(np.concatenate, zip(astuple(pairs.train), astuple(pairs.test))))
            scores = ranking.bm25_scores(pairs.texts, both, show_progress=True)
            train, test = np.split(scores, [len(pairs.train.labels)])
            threshold = links.best_threshold(train, pairs.train.labels)
        else:
            test = links.popularity(pairs, args.seed)
        output = untrained(test, perf_counter() - started)
        yield link_result(head, head, output, pairs.test.labels, info, threshold, is_baseline=True)


def source_of(data_args: DataArguments) -> str:
    return data_args.lra_dir or data_args.papers_file or "python_docs"


def statistics_of(pairs: CitationPairs, data_args: DataArguments) -> list[dict[str, Any]]:
    """Of the papers that each split's pairs are made of."""
    parts = {"train": pairs.train, "validation": pairs.validation, "test": pairs.test}
    texts = {name: [pairs.texts[row] for row in np.union1d(part.first, part.second)] for name, part in parts.items()}
    return text_statistics(source_of(data_args), texts, 2)


def report(
    results: list[Result], encoders: list[str], pairs: CitationPairs, arguments: list[Any], num_processes: int
) -> None:
    """The table on screen, results.json and results.md, and if asked for the encoders' cards."""
    data_args, args = arguments[1:]
    rows = comparison.rows(results)
    parts = {"train": pairs.train, "validation": pairs.validation, "test": pairs.test}
    settings = {name: value for group in arguments for name, value in asdict(group).items()}
    settings |= {"pairs": {name: len(part.labels) for name, part in parts.items()}, "counts": pairs.counts}
    settings |= {"data_fingerprint": pairs.fingerprint()}
    settings |= {"splits_made_here": pairs.made_here, "processes": num_processes}
    settings |= {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}
    notes, linked = [], pairs.test.labels.mean()  # share of linked pairs
    for row in rows:
        if row["head"] == "popularity" and (
            warning := links.popularity_warning(row["accuracy_mean"], len(pairs.test.labels), max(linked, 1 - linked))
        ):
            logger.warning(warning)
            notes.append(warning)
    text = write_comparison(
        Path(args.output_dir),
        LINKS,
        rows,
        comparison.comparisons(results),
        settings,
        statistics=statistics_of(pairs, data_args),
        title=f"Citation links in {source_of(data_args)}",
        notes=notes,
    )
    print(text)
    if args.push_results:
        add_results(encoders, "Citation links", source_of(data_args), Path(args.output_dir))


if __name__ == "__main__":
    main()
