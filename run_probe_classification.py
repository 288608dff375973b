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

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from tqdm.auto import tqdm

from docsplit.data.labelled import LabelledSplit, load_labelled
from docsplit.embedding.encoders import EncoderArguments
from docsplit.evaluation import comparison
from docsplit.evaluation.finetuning import check_batch_size, finetune
from docsplit.evaluation.heads import standardize
from docsplit.evaluation.plots import plot_few_shot
from docsplit.evaluation.probing import HEADS, few_shot_runs, full_runs, tfidf_features
from docsplit.evaluation.report import text_statistics, write_comparison
from docsplit.evaluation.results import Result, classification_result
from docsplit.evaluation.setfit_head import check_setfit, setfit
from docsplit.evaluation.tables import statistics_table
from docsplit.release.model_card import add_results
from docsplit.runtime.arguments import parse_arguments
from docsplit.runtime.launching import join_processes

logger = logging.getLogger("docsplit")

TFIDF = "tfidf"
TFIDF_HEADS = ("linear", "knn")
TUNING_HEADS = ("finetune", "setfit")  # those that change the encoder


@dataclass
class DataArguments:
    """The labelled documents."""

    dataset_name: str | None = field(
        default=None,
        metadata={"help": "Hub data set NAME or NAME:CONFIGURATION. Default, without files: python_docs."},
    )
    train_split: str = field(default="train", metadata={"help": "Of the Hub data set."})
    validation_split: str | None = field(default=None, metadata={"help": "Default: validation, where it has one."})
    test_split: str | None = field(default=None, metadata={"help": "Default: test, where it has one."})
    train_file: str | None = field(default=None, metadata={"help": "json, jsonl, csv, tsv or parquet."})
    validation_file: str | None = field(default=None, metadata={"help": "For early stopping of mlp and finetune."})
    test_file: str | None = field(
        default=None,
        metadata={
            "help": "If there is no test part, a fifth of train is held out, half of it for validation if need be."
        },
    )
    text_column: list[str] = field(
        default_factory=lambda: ["text"], metadata={"help": "One or several, joined by a blank line."}
    )
    label_column: str = field(
        default="label", metadata={"help": "Strings or integers; lists of them if a document has several labels."}
    )
    strip_newsgroup_headers: bool = field(
        default=False, metadata={"help": "Without headers, footers and quotes, which give a newsgroup away."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "At most so many, stratified."})
    max_test_samples: int | None = field(default=None, metadata={"help": "At most so many, stratified."})


@dataclass
class ProbeArguments:
    """What is trained on the embeddings, and how often."""

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
    num_seeds: int = field(default=3, metadata={"help": "Trainings on the full data."})
    seed: int = field(default=0, metadata={"help": "Of splits, draws and trainings."})
    push_results: bool = field(
        default=False,
        metadata={
            "help": "Add the tables to the cards of the models that this project made: in their folders, and on the "
            "Hub if they are there."
        },
    )
    finetune_learning_rate: float = field(default=2e-5, metadata={"help": "Peak learning rate of AdamW."})
    finetune_epochs: float = field(default=3, metadata={"help": "Passes over the training documents."})
    finetune_batch_size: int = field(default=16, metadata={"help": "Documents a step, of all processes together."})

    def __post_init__(self) -> None:
        _check_choices("heads", self.heads, [*HEADS, *TUNING_HEADS])
        _check_choices("features", self.features, ["raw", "standardized"])
        self.shots = sorted({shots for shots in self.shots if shots != 0})
        for name, values in {
            "shots": self.shots,
            "num_draws": [self.num_draws],
            "num_seeds": [self.num_seeds],
        }.items():
            if any(value < 1 for value in values):
                raise ValueError(f"--{name} is {values}: expected 1 or more.")
        if "setfit" in self.heads and not self.shots:
            raise ValueError("The head setfit is for few-shot draws: give --shots.")


def _check_choices(option: str, values: list[str], choices: list[str]) -> None:
    if unknown := [value for value in values if value not in choices]:
        raise ValueError(f"--{option} has no {', '.join(unknown)}: choose among {', '.join(choices)}.")


def main() -> None:
    encoder_args, data_args, args = parse_arguments(
        (EncoderArguments, DataArguments, ProbeArguments), description=str(__doc__)
    )
    state = join_processes()
    with state.main_process_first():  # the others find it in the cache
        split = load_split(data_args, args.seed)
    check(encoder_args, args, split)
    if state.is_main_process:
        print(f"\n{statistics_table(statistics_of(split, data_args))}\n")

    results = []
    names = list(dict.fromkeys(encoder_args.model_name_or_path))
    for name in names:
        features, info = embed(encoder_args, name, split, show_progress=state.is_main_process)
        if state.is_main_process:
            results += list(probe(name, features, info, split, args))
        results += list(tune(name, info, split, encoder_args, args, show_progress=state.is_main_process))
        if state.is_main_process:  # so far: what comes later may fail
            report(results, split, [encoder_args, data_args, args], last=name == names[-1])
        state.wait_for_everyone()


def load_split(data_args: DataArguments, seed: int) -> LabelledSplit:
    options = asdict(data_args)
    return load_labelled(text_columns=options.pop("text_column"), **options, seed=seed)


def check(encoder_args: EncoderArguments, args: ProbeArguments, split: LabelledSplit) -> None:
    """Whatever can fail, before any long work: draws, encoders and heads that do not go together."""
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
    encoder_args: EncoderArguments, name: str, split: LabelledSplit, show_progress: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Features of the parts of the split, and what the rows of results say about them."""
    parts = {"train": split.train_texts, "test": split.test_texts}
    if split.validation_texts is not None:
        parts["validation"] = split.validation_texts
    if name == TFIDF:
        features = tfidf_features(*parts.values())
        unused = dict.fromkeys(["max_seq_length", "dtype", "long_documents"])
        return dict(zip(parts, features)), {"pooling": None, "num_parameters": 0, "embedding_seconds": 0.0} | unused
    embeddings, info = encoder_args.embed_all(
        name, [text for texts in parts.values() for text in texts], show_progress
    )
    ends = np.cumsum([len(texts) for texts in parts.values()])
    return dict(zip(parts, np.split(embeddings, ends[:-1]))), info


def probe(
    name: str, features: dict[str, Any], info: dict[str, Any], split: LabelledSplit, args: ProbeArguments
) -> Iterator[Result]:
    """Train each head on frozen features: on each few-shot draw, and on the full data for each seed."""
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
            runs_of(split, shots, args),
            parts["test"],
            num_classes=len(split.class_names),
            few_shot=shots is not None,
            validation=validation,
        )
        yield classification_result(name, head, shots, output, split, info | {"features": kind})


def tune(
    name: str,
    info: dict[str, Any],
    split: LabelledSplit,
    encoder_args: EncoderArguments,
    args: ProbeArguments,
    show_progress: bool,
) -> Iterator[Result]:
    """Train the encoder itself, by all processes: on the full data (finetune) and on the draws (setfit)."""
    if name == TFIDF:
        return
    load = partial(encoder_args.load, name)
    for head in (head for head in args.heads if head in TUNING_HEADS):
        for shots in [None] if head == "finetune" else args.shots:
            runs = runs_of(split, shots, args)
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


def runs_of(split: LabelledSplit, shots: int | None, args: ProbeArguments) -> list[Any]:
    if shots is None:
        return full_runs(split, args.num_seeds, args.seed)
    return few_shot_runs(split, shots, args.num_draws, args.seed)


def source_of(data_args: DataArguments) -> str:
    return data_args.train_file or data_args.dataset_name or "python_docs"


def statistics_of(split: LabelledSplit, data_args: DataArguments) -> list[dict[str, Any]]:
    parts = {"train": split.train_texts, "validation": split.validation_texts or [], "test": split.test_texts}
    used = {name: texts for name, texts in parts.items() if texts}
    return text_statistics(source_of(data_args), used, len(split.class_names))


def report(results: list[Result], split: LabelledSplit, arguments: list[Any], last: bool) -> None:
    """The table on screen, results.json, results.md, the few-shot curve, and if asked for the encoders' cards."""
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
        statistics=statistics_of(split, data_args),
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


if __name__ == "__main__":
    main()
