"""Citation links between papers from frozen embeddings: is this paper cited by that one, yes or no?

    # one encoder on the "See also" links between the docstrings of the installed packages
    python run_aan_retrieval.py --model_name_or_path outputs/quickstart

    # the AAN task of Long Range Arena: a folder with its train, eval and test .tsv files
    accelerate launch run_aan_retrieval.py recipes/retrieval_aan.yaml --lra_dir lra_release/tsv_data \\
        --model_name_or_path outputs/docsplit outputs/simcse

    # your own papers (id, title, abstract, text or sections) and their citations (citing, cited); splits are made here
    accelerate launch run_aan_retrieval.py --model_name_or_path outputs/docsplit --papers_file papers.parquet \\
        --citations_file citations.tsv --output_dir outputs/aan

Each distinct paper is embedded once per encoder; the paper's head is an MLP on both embeddings, [a; b], as they are
and standardised: each number of [a; b] to mean 0 and deviation 1 over the training pairs. Beside it stand the
untrained cosine, BM25 on the texts, and popularity, which sees no text at all and should be at chance.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from docsplit.data.sets.arguments import CitationArguments as DataArguments
from docsplit.embedding.encoders import ComparisonArguments, EncoderArguments, members_of
from docsplit.evaluation.heads.presets import LINK_BASELINES, LINK_HEADS, PRESETS
from docsplit.runtime.arguments import check_choices, parse_arguments

if TYPE_CHECKING:
    from docsplit.data.sets.citations import CitationPairs
    from docsplit.evaluation.results.result import Result

logger = logging.getLogger("docsplit")


@dataclass
class RetrievalArguments(ComparisonArguments):
    """What is compared."""

    output_dir: str = field(default="outputs/retrieval", metadata={"help": "Where everything is written."})
    heads: list[str] = field(
        default_factory=lambda: [*LINK_HEADS, *LINK_BASELINES],
        metadata={
            "help": "mlp (the paper's, on [a; b]), cosine (untrained, threshold from the training pairs); and without "
            "encoder bm25 and popularity (ids and degrees only)."
        },
    )
    probe_preset: str = field(
        default="docsplit", metadata={"help": "Which paper's probe mlp is: docsplit, or bregman (tanh, AdamW)."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("heads", self.heads, (*LINK_HEADS, *LINK_BASELINES))
        check_choices("probe_preset", [self.probe_preset], PRESETS)


def main() -> None:
    """Read papers and links, embed each paper once per encoder, train and measure the heads, report."""
    encoder_args, data_args, args = parse_arguments(
        (EncoderArguments, DataArguments, RetrievalArguments), description=str(__doc__)
    )
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.data.sets.citations import load_citation_pairs
    from docsplit.evaluation.link_heads import baselines, link
    from docsplit.evaluation.results.data_names import data_source
    from docsplit.evaluation.results.result import merge_members
    from docsplit.evaluation.results.tables import statistics_table
    from docsplit.runtime.launching import join_processes

    state = join_processes()
    with state.main_process_first():  # the others find it in the cache
        pairs = load_citation_pairs(data_args, args.seed)
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    encoders = list(dict.fromkeys(encoder_args.model_name_or_path)) if set(args.heads) & set(LINK_HEADS) else []
    for name in encoders:
        encoder_args.check(name, pairs.texts[:2])

    if state.is_main_process:
        print(f"\n{statistics_table(statistics_of(pairs, data_source(data_args, args.data_name)))}\n")

    results = []
    for name in encoders:
        members, of_members = members_of(name), []
        for member in members:
            embeddings, info = encoder_args.embed_all(member, pairs.texts, state.is_main_process, pairs.test_documents)
            if state.is_main_process:
                of_members.append(list(link(member, embeddings, info, pairs, args)))
        results += merge_members(name, members, of_members)
    if state.is_main_process:
        results += list(baselines(pairs, args))
        report(results, encoders, pairs, [encoder_args, data_args, args], state.num_processes)
    state.wait_for_everyone()


def statistics_of(pairs: "CitationPairs", data: str) -> list[dict[str, Any]]:
    """Of the papers that each split's pairs are made of."""
    from docsplit.evaluation.results.report import text_statistics

    papers = {name: np.union1d(part.first, part.second) for name, part in pairs.parts.items()}
    texts = {name: [pairs.texts[row] for row in rows] for name, rows in papers.items()}
    return text_statistics(data, texts, 2)


def report(
    results: list["Result"], encoders: list[str], pairs: "CitationPairs", arguments: list[Any], num_processes: int
) -> None:
    """The table on screen, results.json and results.md, and if asked for the encoders' cards."""
    import torch

    from docsplit.evaluation.links import popularity_warning
    from docsplit.evaluation.results import comparison
    from docsplit.evaluation.results.data_names import data_source, describe_data
    from docsplit.evaluation.results.report import write_comparison
    from docsplit.evaluation.results.task import LINKS
    from docsplit.release.model_card import add_results

    data_args, args = arguments[1:]
    rows, data = comparison.rows(results), describe_data(data_args, args.data_name)
    settings = {name: value for group in arguments for name, value in asdict(group).items()}
    settings |= {"pairs": {name: len(part.labels) for name, part in pairs.parts.items()}, "counts": pairs.counts}
    settings |= {"data_fingerprint": pairs.fingerprint()}
    settings |= {"splits_made_here": pairs.made_here, "processes": num_processes}
    settings |= {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}
    notes, linked = [], pairs.test.labels.mean()  # share of linked pairs
    for row in rows:
        if row["head"] == "popularity" and (
            warning := popularity_warning(row["accuracy_mean"], len(pairs.test.labels), max(linked, 1 - linked))
        ):
            logger.warning(warning)
            notes.append(warning)
    text = write_comparison(
        Path(args.output_dir),
        LINKS,
        rows,
        comparison.comparisons(results),
        settings,
        statistics=statistics_of(pairs, data_source(data_args, args.data_name)),
        title="Citation links",
        notes=notes,
        data=data,
    )
    print(text)
    if args.push_results:
        add_results(encoders, "Citation links", data, Path(args.output_dir))


command = as_command(main)
if __name__ == "__main__":
    command()
