"""Documents ranked for queries: dense vectors, BM25 and both together, encoders side by side.

    # one encoder on the docstrings of the installed packages: the first line of each is a query for the rest
    python run_document_retrieval.py --model_name_or_path outputs/quickstart

    # a judged collection in BEIR's layout, a folder or a data set on the Hub; bm25 needs no encoder
    accelerate launch run_document_retrieval.py --collection data/cranfield --output_dir outputs/cranfield \\
        --model_name_or_path outputs/docsplit sentence-transformers/all-MiniLM-L6-v2 bm25

    # trained on the other folds' queries: run_docsplit_pretraining.py --view query_document --fold 0
    python run_document_retrieval.py --collection data/cranfield --fold 0 --model_name_or_path outputs/ranking_fold_0

    # Robust04 with its five folds; MS MARCO's documents, the hybrid's weight chosen on other queries than dev's
    python run_document_retrieval.py --collection data/robust04 --folds data/robust04/folds.json \\
        --model_name_or_path outputs/docsplit
    python run_document_retrieval.py --collection data/msmarco --split dev --selection_split train \\
        --model_name_or_path outputs/docsplit

    # any corpus with titles: a title finds its own article, and those that this one links to
    python run_document_retrieval.py --collection wikipedia.parquet --queries title \\
        --model_name_or_path outputs/docsplit

Each document is embedded once per encoder, and kept in the cache. Beside each encoder alone stand BM25 (with bm25s's
default parameters, then k1 0.9 and b 0.4), their weighted sum (hybrid) and reciprocal rank fusion (rrf). The hybrid's
weight is never chosen on the queries that it is measured on.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import logging
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from docsplit.data.sets.arguments import RankingArguments as DataArguments
from docsplit.embedding.encoders import ComparisonArguments, EncoderArguments, members_of
from docsplit.evaluation.heads.presets import BM25, RANKING_METHODS
from docsplit.runtime.arguments import check_choices, parse_arguments

if TYPE_CHECKING:
    from docsplit.evaluation.ranking.methods import RankingRun
    from docsplit.evaluation.results.result import Result

logger = logging.getLogger("docsplit")


@dataclass
class RetrievalArguments(ComparisonArguments):
    """How documents are ranked."""

    output_dir: str = field(default="outputs/retrieval", metadata={"help": "Where everything is written."})
    methods: list[str] = field(
        default_factory=lambda: [*RANKING_METHODS],
        metadata={
            "help": "dense (an encoder alone), bm25, hybrid (weighted sum of both), rrf (reciprocal rank fusion of "
            "both). With the encoder bm25 alone only bm25."
        },
    )
    query_prompt: str | None = field(
        default=None,
        metadata={"help": "Put before each query, as --prompt before each document. Default: the checkpoint's own."},
    )
    folds: str = field(
        default="5",
        metadata={"help": "Of queries, to choose the hybrid's weight on the others: how many, or a JSON file of ids."},
    )
    fold: int | None = field(
        default=None,
        metadata={
            "help": "From 0: measure on the queries of this fold alone, of an encoder that was trained without them, "
            "and choose the hybrid's weight on those of the next one."
        },
    )
    selection_split: str | None = field(
        default=None, metadata={"help": "Choose the weight on (at most 1,000) queries of this split, not on folds."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("methods", self.methods, RANKING_METHODS)
        if self.fold is not None and self.selection_split is not None:
            raise ValueError("--fold and --selection_split both say which queries choose the weight: leave one out.")


def main() -> None:
    """Read the collection, find documents by words and by each encoder's vectors, measure and report."""
    encoder_args, data_args, args = parse_arguments(
        (EncoderArguments, DataArguments, RetrievalArguments), description=str(__doc__)
    )
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.evaluation.ranking.measures import check_measures
    from docsplit.evaluation.results.result import merge_members
    from docsplit.evaluation.results.tables import statistics_table
    from docsplit.runtime.launching import join_processes

    check_measures()
    state = join_processes()
    with state.main_process_first():  # the others find it in the cache
        run = load(data_args, args, show_progress=state.is_main_process)
    names = list(dict.fromkeys(encoder_args.model_name_or_path))
    encoders = [name for name in names if name != BM25] if {*args.methods} != {BM25} else []
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    for name in encoders:
        encoder_args.check(name, run.ranking.documents[:2])
    statistics = statistics_of(run)
    if state.is_main_process:
        print(f"\n{statistics_table(statistics)}\n")

    found: dict[str, list[Result]] = {}
    needs_words = BM25 in names or {*args.methods} - {"dense"} or not encoders
    by_words = run.find_by_words() if needs_words and state.is_main_process else []
    for name in encoders:
        members, of_members = members_of(name), []
        for member in members:
            results = search_with(member, run, encoder_args, args, is_main=state.is_main_process)
            of_members.append(results)
        found[name] = merge_members(name, members, of_members)
    if state.is_main_process:
        found[BM25] = by_words if BM25 in (*names, *args.methods) else []
        order = [*names, BM25] if BM25 not in names else names
        alone = [result for name in order for result in found.get(name, []) if result.head not in ("hybrid", "rrf")]
        joined = [result for name in order for result in found.get(name, []) if result.head in ("hybrid", "rrf")]
        report([*alone, *joined], encoders, run, statistics, [encoder_args, data_args, args], state.num_processes)
    state.wait_for_everyone()


def load(data_args: DataArguments, args: RetrievalArguments, show_progress: bool) -> "RankingRun":
    """The collection, and the queries that a hybrid's weight is chosen on: folds of those reported, or others.

    Raises:
        ValueError: if there is no such split or fold, or one that others would not find.
    """
    from docsplit.data.sets.rankings import load_collection, other_queries
    from docsplit.evaluation.ranking import folds as folds_of
    from docsplit.evaluation.ranking.fusion import make_folds
    from docsplit.evaluation.ranking.methods import SELECTION_QUERIES, RankingRun
    from docsplit.evaluation.results.data_names import data_source

    ranking, selection, folds = load_collection(data_args, args.seed), None, []
    if args.fold is not None:
        if data_args.max_queries is not None:
            raise ValueError("--max_queries would make other folds than those of the training: leave it out.")
        _, chosen, reported = folds_of.divide(ranking, args.folds, args.fold)
        notes = [*ranking.notes, folds_of.describe(args.folds, args.fold)]
        ranking, selection = ranking.with_queries(reported), ranking.with_queries(chosen)
        ranking.notes = notes
    elif args.selection_split:
        chosen_on = replace(data_args, split=args.selection_split, max_queries=SELECTION_QUERIES)
        selection = other_queries(ranking, chosen_on, args.seed)
    elif "hybrid" in args.methods:
        folds = make_folds(ranking, args.folds, args.seed)
    return RankingRun(ranking, data_source(data_args, args.data_name), folds, selection, show_progress)


def search_with(
    name: str, run: "RankingRun", encoder_args: EncoderArguments, args: RetrievalArguments, is_main: bool
) -> list["Result"]:
    """Embed with one encoder, by all processes; search, join with BM25 and measure, by the first of them."""
    from docsplit.embedding.overlap import share_of_queries
    from docsplit.embedding.search import make_comparable, search
    from docsplit.evaluation.ranking.methods import DEPTH

    ranking = run.ranking
    documents, info = encoder_args.embed_all(name, ranking.documents, is_main, ranking.relevant_documents)
    queries, of_queries = encoder_args.embed_queries(name, run.queries, args.query_prompt, is_main)
    if not is_main:
        return []
    if seen := share_of_queries(name, ranking.queries):
        ranking.notes.append(f"{name} was trained on {seen:.1%} of these queries: its results on them are too good.")
        logger.warning(ranking.notes[-1])
    started = perf_counter()
    for vectors in (queries, documents):
        make_comparable(vectors, of_queries["similarity"])
    found = search(queries, documents, DEPTH)
    seconds = perf_counter() - started
    info |= of_queries | {"queries_seen_in_training_share": seen}
    return run.rank(name, found, info, seconds, args.methods)


def statistics_of(run: "RankingRun") -> list[dict[str, Any]]:
    """Of documents and queries."""
    from docsplit.evaluation.results.report import text_statistics

    parts = {"documents": run.ranking.documents, "queries": run.ranking.queries}
    return text_statistics(run.collection, parts, num_classes=None)


def report(
    results: list["Result"],
    encoders: list[str],
    run: "RankingRun",
    statistics: list[dict[str, Any]],
    arguments: list[Any],
    num_processes: int,
) -> None:
    """The table on screen, results.json, results.md, queries.csv, curves.png, and if asked for the encoders' cards."""
    import torch

    from docsplit.evaluation.ranking.methods import draw_curves, with_plain_measures, write_queries
    from docsplit.evaluation.results import comparison
    from docsplit.evaluation.results.data_names import describe_data
    from docsplit.evaluation.results.report import write_comparison
    from docsplit.evaluation.results.task import RANKING
    from docsplit.release.model_card import add_results

    data_args, args = arguments[1:]
    folder, data, ranking = Path(args.output_dir), describe_data(data_args, args.data_name), run.ranking
    data += f", queries of fold {args.fold}" if args.fold is not None else ""
    settings = {name: value for group in arguments for name, value in asdict(group).items()}
    settings |= {"counts": ranking.counts, "data_fingerprint": ranking.fingerprint(), "processes": num_processes}
    settings |= {"queries_reported": len(ranking.queries), "documents": len(ranking.documents)}
    settings |= {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}
    text = write_comparison(
        folder,
        RANKING,
        with_plain_measures(comparison.rows(results)),
        comparison.comparisons(results),
        settings,
        statistics=statistics,
        title="Documents ranked for queries",
        notes=ranking.notes,
        data=data,
    )
    write_queries(folder / "queries.csv", results, run)
    draw_curves(folder, results, run)
    print(text)
    if args.push_results:
        add_results(encoders, "Documents ranked for queries", data, folder)


command = as_command(main)
if __name__ == "__main__":
    command()
