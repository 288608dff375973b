"""Probe frozen document encoders: what can be read out of their embeddings, with few labels and with all.

    # one encoder on the docstrings of the installed packages
    python run_probe_classification.py --model_name_or_path outputs/quickstart

    # several side by side, and the baseline everyone should have to beat; few-shot and full data
    accelerate launch run_probe_classification.py --model_name_or_path outputs/docsplit outputs/simcse tfidf \\
        --train_file train.jsonl --test_file test.jsonl --text_column text --label_column label \\
        --heads mlp linear knn --shots 5 10 20 --output_dir outputs/probe

    # two methods, three pretraining seeds each: only these can tell whether one is ahead
    python run_probe_classification.py --model_name_or_path \\
        DocSplit=outputs/docsplit-1,outputs/docsplit-2,outputs/docsplit-3 \\
        SimCSE=outputs/simcse-1,outputs/simcse-2,outputs/simcse-3 tfidf

    # a data set of the papers
    accelerate launch run_probe_classification.py recipes/probe_20news.yaml --model_name_or_path outputs/docsplit tfidf

Each document is embedded once per encoder, whatever heads, draws and seeds are asked for, and embeddings are kept in
the cache. Heads are trained on the embeddings as they are and standardised, a row for each. The table is printed and
written to results.md, every number with its spread and settings to results.json.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import logging
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docsplit.data.sets.arguments import LabelledArguments as DataArguments
from docsplit.embedding.encoders import ComparisonArguments, EncoderArguments, members_of
from docsplit.evaluation.heads.presets import PRESETS, TFIDF, TFIDF_HEADS, TUNING_HEADS
from docsplit.runtime.arguments import check_choices, parse_arguments

if TYPE_CHECKING:
    from docsplit.data.sets.labelled import LabelledSplit
    from docsplit.evaluation.results.result import Result

logger = logging.getLogger("docsplit")


@dataclass
class ProbeArguments(ComparisonArguments):
    """What is trained on the embeddings."""

    output_dir: str = field(default="outputs/probe", metadata={"help": "Where everything is written."})
    heads: list[str] = field(
        default_factory=lambda: ["mlp", "linear", "knn"],
        metadata={
            "help": "On frozen embeddings: mlp (the paper's), linear (logistic regression), knn. finetune trains the "
            "whole encoder on the full data (the ceiling), setfit on the few-shot draws. tfidf has linear and knn."
        },
    )
    probe_preset: str = field(
        default="docsplit",
        metadata={
            "help": "The paper whose probe mlp, linear and finetune are: docsplit (linear: logistic regression), "
            "bregman (tanh, AdamW; linear: one layer by gradient), graph, graph_arxiv or graph_hyperpartisan "
            "(docsplit's heads; finetune of 20 epochs or 15)."
        },
    )
    shots: list[int] = field(
        default_factory=lambda: [5], metadata={"help": "Labels a class, for each a row; 0: full data only."}
    )
    num_draws: int = field(default=10, metadata={"help": "Few-shot draws, the same for every encoder."})
    finetune_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Peak learning rate of AdamW. Default: the preset's, 2e-5 (bregman 3e-5, graph 5e-5)."},
    )
    finetune_epochs: float | None = field(
        default=None, metadata={"help": "Passes over the training documents. Default: the preset's, 3 (graph 20)."}
    )
    finetune_batch_size: int | None = field(
        default=None,
        metadata={"help": "Documents a step, of all processes together. Default: the preset's, 16 (graph 32)."},
    )

    def __post_init__(self) -> None:
        from docsplit.evaluation.heads.table import HEADS

        super().__post_init__()
        check_choices("heads", self.heads, (*HEADS, *TUNING_HEADS))
        check_choices("probe_preset", [self.probe_preset], PRESETS)
        self.shots = sorted({shots for shots in self.shots if shots != 0})
        for name, values in {"shots": self.shots, "num_draws": [self.num_draws]}.items():
            if any(value < 1 for value in values):
                raise ValueError(f"--{name} is {values}: expected 1 or more.")
        if "setfit" in self.heads and not self.shots:
            raise ValueError("The head setfit is for few-shot draws: give --shots.")

    @property
    def finetuning(self) -> dict[str, Any]:
        """The preset's, and in place of it what is given."""
        given = (self.finetune_learning_rate, self.finetune_epochs, self.finetune_batch_size)
        own = dict(zip(("learning_rate", "num_epochs", "batch_size"), given))
        return PRESETS[self.probe_preset].finetuning | {key: value for key, value in own.items() if value is not None}


def main() -> None:
    """Read the documents, embed each once per encoder, train and measure the heads, report after each encoder."""
    encoder_args, data_args, args = parse_arguments(
        (EncoderArguments, DataArguments, ProbeArguments), description=str(__doc__)
    )
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.evaluation.results.report import read_labelled
    from docsplit.runtime.launching import join_processes

    state = join_processes()
    split, statistics = read_labelled(data_args, args.data_name, args.seed, state)
    check(encoder_args, args, split)

    results, names = [], list(dict.fromkeys(encoder_args.model_name_or_path))
    for name in names:
        results += measure(name, split, encoder_args, args, is_main=state.is_main_process)
        if state.is_main_process:  # so far: what comes later may fail
            report(results, split, statistics, [encoder_args, data_args, args], last=name == names[-1])
        state.wait_for_everyone()


def measure(
    name: str, split: "LabelledSplit", encoder_args: EncoderArguments, args: ProbeArguments, is_main: bool
) -> list["Result"]:
    """Every head on an encoder, or on those of several pretraining seeds, which become one result a head.

    All processes embed and tune; the main one alone trains heads on frozen features.
    """
    from docsplit.evaluation.classification import probe, tune
    from docsplit.evaluation.results.result import merge_members

    members, results = members_of(name), []
    for member in members:
        features, info = embed(encoder_args, member, split, show_progress=is_main)
        frozen = list(probe(member, features, info, split, args)) if is_main else []
        load = partial(encoder_args.load, member)
        results.append([*frozen, *tune(member, load, info, split, args, show_progress=is_main)])
    return merge_members(name, members, results)


def check(encoder_args: EncoderArguments, args: ProbeArguments, split: "LabelledSplit") -> None:
    """Whatever can fail, before any long work: draws, encoders and heads that do not go together."""
    from docsplit.evaluation.heads.finetuning import check_batch_size
    from docsplit.evaluation.heads.setfit import check_setfit
    from docsplit.evaluation.heads.table import few_shot_runs

    for shots in args.shots:
        split.draws(shots, args.num_draws, args.seed)
    if "finetune" in args.heads:
        check_batch_size(args.finetuning["batch_size"])
    if "setfit" in args.heads:
        for shots in args.shots:
            check_setfit(split, few_shot_runs(split, shots, args.num_draws, args.seed))
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    names = encoder_args.model_name_or_path
    if TFIDF in names and not set(args.heads) & set(TFIDF_HEADS):
        raise ValueError(f"tfidf has the heads {', '.join(TFIDF_HEADS)}: add one of them to --heads.")
    for name in dict.fromkeys(names):
        if name != TFIDF:
            encoder_args.check(name, split.train_texts[:2])


def embed(
    encoder_args: EncoderArguments, name: str, split: "LabelledSplit", show_progress: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Features of the parts of the split, and what the rows of results say about them."""
    if name != TFIDF:
        return encoder_args.embed_parts(name, split.texts, show_progress)
    from docsplit.evaluation.heads.table import tfidf_features

    unused = dict.fromkeys(["max_seq_length", "dtype", "long_documents", "smooth_neighbours"])
    info = {"pooling": None, "num_parameters": 0, "embedding_seconds": 0.0} | unused
    return dict(zip(split.texts, tfidf_features(*split.texts.values()))), info


def report(
    results: list["Result"], split: "LabelledSplit", statistics: list[Any], arguments: list[Any], last: bool
) -> None:
    """The table on screen, results.json, results.md, the few-shot curve, and if asked for the encoders' cards."""
    import torch
    from accelerate import PartialState

    from docsplit.evaluation.results import comparison
    from docsplit.evaluation.results.data_names import describe_data
    from docsplit.evaluation.results.plots import plot_convergence, plot_few_shot
    from docsplit.evaluation.results.report import write_comparison
    from docsplit.release.model_card import add_results

    encoder_args, data_args, args = arguments
    output_dir = Path(args.output_dir)
    task, rows, data = results[0].task, comparison.rows(results), describe_data(data_args, args.data_name)
    settings = {name: value for group in arguments for name, value in asdict(group).items()}
    settings |= {"data_fingerprint": split.fingerprint(), "documents_dropped": split.counts}
    settings |= {"class_names": split.class_names, "processes": PartialState().num_processes}
    settings |= {"finetuning": args.finetuning}
    settings |= {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}
    text = write_comparison(
        output_dir,
        task,
        rows,
        comparison.comparisons(results),
        settings,
        statistics=statistics,
        title="Probes",
        data=data,
    )
    plotted = plot_few_shot(rows, task, output_dir / "few_shot.png")
    converged = plot_convergence(rows, task, output_dir / "convergence.png")
    if last:
        print(text)
        if plotted:
            print(f"The few-shot curve is in {output_dir / 'few_shot.png'}.")
        if converged:
            print(f"Fine-tuning, epoch by epoch, is in {output_dir / 'convergence.png'}, and in numbers in its CSV.")
        if args.push_results:
            encoders = list(dict.fromkeys(encoder_args.model_name_or_path))
            add_results(encoders, "Classification", data, output_dir)


command = as_command(main)
if __name__ == "__main__":
    command()
