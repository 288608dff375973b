"""Probe frozen document encoders: what can be read out of their embeddings, with few labels and with all.

    # one encoder on the docstrings of the installed packages
    python run_probe_classification.py --model_name_or_path outputs/quickstart

    # several side by side, and the baseline everyone should have to beat; few-shot and full data
    accelerate launch run_probe_classification.py --model_name_or_path outputs/docsplit outputs/simcse tfidf \\
        --train_file train.jsonl --test_file test.jsonl --text_column text --label_column label \\
        --heads mlp linear knn --shots 5 10 20 --output_dir outputs/probe

    # a data set of the papers
    accelerate launch run_probe_classification.py recipes/probe_20news.yaml --model_name_or_path outputs/docsplit tfidf

Each document is embedded once per encoder, whatever heads, draws and seeds are asked for, and embeddings are kept in
the cache. The table is printed and written to results.md, every number with its spread and settings to results.json.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docsplit.data.arguments import LabelledArguments as DataArguments
from docsplit.embedding.encoders import ComparisonArguments, EncoderArguments
from docsplit.runtime.arguments import check_choices, parse_arguments

if TYPE_CHECKING:
    from docsplit.data.labelled import LabelledSplit
    from docsplit.evaluation.results import Result

logger = logging.getLogger("docsplit")

TFIDF = "tfidf"
TFIDF_HEADS = ("linear", "knn")
TUNING_HEADS = ("finetune", "setfit")  # those that change the encoder


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
    features: list[str] = field(
        default_factory=lambda: ["raw"],
        metadata={"help": "raw, standardized or both: standardised rows rescue encoders whose vectors are all alike."},
    )
    shots: list[int] = field(
        default_factory=lambda: [5], metadata={"help": "Labels a class, for each a row; 0: full data only."}
    )
    num_draws: int = field(default=10, metadata={"help": "Few-shot draws, the same for every encoder."})
    finetune_learning_rate: float = field(default=2e-5, metadata={"help": "Peak learning rate of AdamW."})
    finetune_epochs: float = field(default=3, metadata={"help": "Passes over the training documents."})
    finetune_batch_size: int = field(default=16, metadata={"help": "Documents a step, of all processes together."})

    def __post_init__(self) -> None:
        from docsplit.evaluation.probing import HEADS

        super().__post_init__()
        check_choices("heads", self.heads, (*HEADS, *TUNING_HEADS))
        check_choices("features", self.features, ("raw", "standardized"))
        self.shots = sorted({shots for shots in self.shots if shots != 0})
        for name, values in {"shots": self.shots, "num_draws": [self.num_draws]}.items():
            if any(value < 1 for value in values):
                raise ValueError(f"--{name} is {values}: expected 1 or more.")
        if "setfit" in self.heads and not self.shots:
            raise ValueError("The head setfit is for few-shot draws: give --shots.")


def main() -> None:
    """Read the documents, embed each once per encoder, train and measure the heads, report after each encoder."""
    encoder_args, data_args, args = parse_arguments(
        (EncoderArguments, DataArguments, ProbeArguments), description=str(__doc__)
    )
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.data.labelled import load_labelled
    from docsplit.evaluation.report import text_statistics
    from docsplit.evaluation.tables import statistics_table
    from docsplit.runtime.launching import join_processes

    state = join_processes()
    options = asdict(data_args)
    with state.main_process_first():  # the others find it in the cache
        split = load_labelled(text_columns=options.pop("text_column"), **options, seed=args.seed)
    check(encoder_args, args, split)
    statistics = text_statistics(source_of(data_args), split.texts, len(split.class_names))
    if state.is_main_process:
        print(f"\n{statistics_table(statistics)}\n")

    results, names = [], list(dict.fromkeys(encoder_args.model_name_or_path))
    for name in names:
        features, info = embed(encoder_args, name, split, show_progress=state.is_main_process)
        if state.is_main_process:
            results += list(probe(name, features, info, split, args))
        results += list(tune(name, info, split, encoder_args, args, show_progress=state.is_main_process))
        if state.is_main_process:  # so far: what comes later may fail
            report(results, split, statistics, [encoder_args, data_args, args], last=name == names[-1])
        state.wait_for_everyone()


def check(encoder_args: EncoderArguments, args: ProbeArguments, split: "LabelledSplit") -> None:
    """Whatever can fail, before any long work: draws, encoders and heads that do not go together."""
    from docsplit.evaluation.finetuning import check_batch_size
    from docsplit.evaluation.probing import few_shot_runs
    from docsplit.evaluation.setfit_head import check_setfit

    for shots in args.shots:
        split.draws(shots, args.num_draws, args.seed)
    if "finetune" in args.heads:
        check_batch_size(args.finetune_batch_size)
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
    from docsplit.evaluation.probing import tfidf_features

    unused = dict.fromkeys(["max_seq_length", "dtype", "long_documents"])
    info = {"pooling": None, "num_parameters": 0, "embedding_seconds": 0.0} | unused
    return dict(zip(split.texts, tfidf_features(*split.texts.values()))), info


def probe(
    name: str, features: dict[str, Any], info: dict[str, Any], split: "LabelledSplit", args: ProbeArguments
) -> Iterator["Result"]:
    """Train each head on frozen features: on each few-shot draw, and on the full data for each seed."""
    from tqdm.auto import tqdm

    from docsplit.evaluation.heads import standardize
    from docsplit.evaluation.probing import HEADS, runs_of
    from docsplit.evaluation.results import classification_result

    heads = [head for head in args.heads if head in (TFIDF_HEADS if name == TFIDF else HEADS)]
    kinds = ["raw"] if name == TFIDF else args.features
    tasks = [(kind, head, shots) for kind in kinds for head in heads for shots in (*args.shots, None)]
    for kind, head, shots in (bar := tqdm(tasks, desc=f"Probing {name}", unit="head")):
        bar.set_postfix_str(f"{head}, {'full data' if shots is None else f'{shots} shots'}")
        parts = features if kind == "raw" else dict(zip(features, standardize(*features.values())))
        validation: Any = (parts["validation"], split.validation_labels) if "validation" in parts else None
        output = HEADS[head](
            parts["train"],
            split.train_labels,
            runs_of(split, shots, args.num_draws, args.num_seeds, args.seed),
            parts["test"],
            num_classes=len(split.class_names),
            few_shot=shots is not None,
            validation=validation,
        )
        yield classification_result(name, head, shots, output, split, info | {"features": kind})


def tune(
    name: str,
    info: dict[str, Any],
    split: "LabelledSplit",
    encoder_args: EncoderArguments,
    args: ProbeArguments,
    show_progress: bool,
) -> Iterator["Result"]:
    """Train the encoder itself, by all processes: on the full data (finetune) and on the draws (setfit)."""
    from docsplit.evaluation.finetuning import finetune
    from docsplit.evaluation.probing import runs_of
    from docsplit.evaluation.results import classification_result
    from docsplit.evaluation.setfit_head import setfit

    if name == TFIDF:
        return
    load = partial(encoder_args.load, name)
    for head in (head for head in args.heads if head in TUNING_HEADS):
        for shots in [None] if head == "finetune" else args.shots:
            runs = runs_of(split, shots, args.num_draws, args.num_seeds, args.seed)
            logger.info(
                f"{head} of {name}, {'full data' if shots is None else f'{shots} shots'}: {len(runs)} trainings"
            )
            if head == "finetune":
                output = finetune(
                    load,
                    split,
                    runs,
                    prompt=info["prompt"],
                    learning_rate=args.finetune_learning_rate,
                    num_epochs=args.finetune_epochs,
                    batch_size=args.finetune_batch_size,
                    bf16=info["dtype"] == "bfloat16",
                    show_progress=show_progress,
                )
            else:
                output = setfit(load, split, runs, prompt=info["prompt"], show_progress=show_progress)
            own = {"features": "raw", "long_documents": "truncate", "embedding_seconds": None}
            yield classification_result(name, head, shots, output, split, info | own, trains_encoder=True)


def source_of(data_args: DataArguments) -> str:
    """How results and cards call the data."""
    return data_args.train_file or data_args.dataset_name or "python_docs"


def report(
    results: list["Result"], split: "LabelledSplit", statistics: list[Any], arguments: list[Any], last: bool
) -> None:
    """The table on screen, results.json, results.md, the few-shot curve, and if asked for the encoders' cards."""
    import torch
    from accelerate import PartialState

    from docsplit.evaluation import comparison
    from docsplit.evaluation.plots import plot_few_shot
    from docsplit.evaluation.report import write_comparison
    from docsplit.release.model_card import add_results

    encoder_args, data_args, args = arguments
    output_dir = Path(args.output_dir)
    task, rows = results[0].task, comparison.rows(results)
    settings = {name: value for group in arguments for name, value in asdict(group).items()}
    settings |= {"data_fingerprint": split.fingerprint(), "documents_dropped": split.counts}
    settings |= {"class_names": split.class_names, "processes": PartialState().num_processes}
    settings |= {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}
    text = write_comparison(
        output_dir,
        task,
        rows,
        comparison.comparisons(results),
        settings,
        statistics=statistics,
        title=f"Probes on {source_of(data_args)}",
    )
    plotted = plot_few_shot(rows, task, output_dir / "few_shot.png")
    if last:
        print(text)
        if plotted:
            print(f"The few-shot curve is in {output_dir / 'few_shot.png'}.")
        if args.push_results:
            encoders = list(dict.fromkeys(encoder_args.model_name_or_path))
            add_results(encoders, "Classification", source_of(data_args), output_dir)


command = as_command(main)
if __name__ == "__main__":
    command()
