"""Encoders side by side: `compare` is the part that the comparing scripts share, an `Evaluation` what differs.

load, statistics     the data, and what is printed of it
check                whatever can fail, before any long work; then each encoder is loaded, once, and tried
prepare              what all encoders share
measure, add         one encoder after another
report               after each of them, for what comes later may fail
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from docsplit.data.sets.labelled import LabelledSplit, load_labelled
from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.embedding.encode import identity
from docsplit.embedding.encoder import Encoder, EncoderGroup, load_groups
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.evaluation.results import report
from docsplit.evaluation.results.data_names import data_source, describe_data
from docsplit.evaluation.results.report import Json
from docsplit.evaluation.results.result import NO_ENCODER, Facts, Result, merge_members
from docsplit.runtime.files import name_failed_writes
from docsplit.runtime.launching import accelerator, hardware, join_processes
from docsplit.runtime.sharing import OutputFolder, first_on_machine, refuse_differences

# What a row says of TF-IDF, which stands among the encoders and is none.
TFIDF_FACTS: Facts = NO_ENCODER | {"num_parameters": 0, "embedding_seconds": 0.0}
AddResults = Callable[[Sequence[str], str, str, Path], None]  # `docsplit.release.model_card.add_results`


class Evaluation(ABC):
    """The data that encoders are compared on, and how an encoder is measured.

    With several processes all call `load`, `check` and `measure`; only the first one adds and reports.
    """

    title: ClassVar[str]  # of the tables
    card_title: ClassVar[str]  # of the section in the cards
    not_encoders: ClassVar[Sequence[str]] = ()  # names that stand among those of encoders
    reports_each: ClassVar[bool] = True  # False: what all encoders are compared with comes last

    def __init__(self, data_args: Any, args: Any):
        self.data_args, self.args = data_args, args
        self.results: list[Result] = []

    # --- Before any long work ---

    @abstractmethod
    def load(self, show_progress: bool) -> None:
        """Read the data; the first process does so first, and the others find it in the cache."""

    @abstractmethod
    def statistics(self) -> list[Json]:
        """Size and length of each part of the data."""

    @abstractmethod
    def settings(self) -> Facts:
        """Return what results.json says of the data, beside all options."""

    @abstractmethod
    def sample(self) -> list[str]:
        """Return a few texts, on which each encoder is tried."""

    def names(self, given: list[str]) -> list[str]:
        """Return the names of --model_name_or_path that are measured."""
        return given

    def check(self, encoder_args: EncoderArguments) -> None:  # noqa: B027
        """Check all that can fail beside the encoders; raises a ValueError or an ImportError."""

    def check_encoder(self, encoder: Encoder) -> None:  # noqa: B027
        """Check all that can fail with this encoder, beside embedding; raises a ValueError that names it."""

    # --- The work ---

    def prepare(self, is_main: bool) -> None:  # noqa: B027
        """Do what all encoders share."""

    @abstractmethod
    def measure(self, name: str, encoder: Encoder | None, is_main: bool) -> Any:
        """Measure an encoder; for None measure what `not_encoders` names.

        Returns: what `add` takes, of the first process.
        """

    def add(self, group: EncoderGroup, measured: list[Any]) -> None:
        """Keep the measurements of a group of encoders as one result."""
        self.results += merge_members(group.name, group.members, measured)

    def finish(self) -> None:  # noqa: B027
        """Do what comes after the last encoder, before the last report."""

    # --- The report ---

    def source(self) -> str:
        """Return the name of the data."""
        return data_source(self.data_args, self.args.data_name)

    def describe(self) -> str:
        """Return the data in one line, for titles and cards."""
        return describe_data(self.data_args, self.args.data_name)

    def notes(self, frame: pd.DataFrame) -> list[str]:
        """Return notes on the rows, a line each."""
        return []

    def report(self, folder: Path, **about: Any) -> str:
        """Write all files, and return what to print.

        Args:
            about: data, statistics and settings of a `Report`.
        """
        results = self.results
        frame, compared = report.rows(results), report.comparisons(results)
        further = self.write_further(frame, folder)
        about |= {"heading": self.title, "notes": self.notes(frame)}
        return report.write_comparison(folder, report.Report(results[0].task, frame, compared, **about), further)

    def write_further(self, frame: pd.DataFrame, folder: Path) -> list[str]:
        """Write the files beside results.json and results.md, and return their names."""
        return []


class LabelledEvaluation(Evaluation):
    """An evaluation on labelled documents."""

    data_args: LabelledArguments
    split: LabelledSplit

    def load(self, show_progress: bool) -> None:
        """Read the documents."""
        self.split = load_labelled(self.data_args, self.args.seed)

    def statistics(self) -> list[Json]:
        """Documents, classes and words of each part."""
        return report.text_statistics(self.source(), self.split.texts, len(self.split.class_names))

    def settings(self) -> Facts:
        """Return the fingerprint of the documents, what was left out, and the classes."""
        return {
            "data_fingerprint": self.split.fingerprint(),
            "documents_dropped": self.split.counts,
            "class_names": self.split.class_names,
        }


def compare(evaluation: Evaluation, encoder_args: EncoderArguments, add_results: AddResults) -> None:
    """Compare encoders: read the data, check, measure one encoder after another, report.

    Args:
        add_results: puts the tables into the encoders' cards, with --push_results.
    """
    state = join_processes()
    is_main, args = state.is_main_process, evaluation.args
    folder = OutputFolder(Path(args.output_dir), f"an evaluation of {evaluation.card_title.lower()}", "--output_dir")
    with folder if is_main else nullcontext(), name_failed_writes(folder.path):
        # Read the data
        with first_on_machine():
            evaluation.load(is_main)
        refuse_differences(lambda: {"the data": str(evaluation.settings()["data_fingerprint"])})
        statistics = evaluation.statistics()
        if is_main:
            print(f"{report.facts_table(statistics, report.STATISTICS).text()}\n", flush=True)

        # Check, and load each encoder
        names = evaluation.names(list(dict.fromkeys(encoder_args.model_name_or_path)))
        evaluation.check(encoder_args)
        folder.path.mkdir(parents=True, exist_ok=True)
        device = accelerator().type
        settings = asdict(encoder_args) | asdict(evaluation.data_args) | asdict(args) | evaluation.settings()
        settings |= {"processes": state.num_processes, "device": "cpu" if device == "cpu" else hardware(device)}
        about = {"data": evaluation.describe(), "statistics": statistics, "settings": settings}
        groups = load_groups(names, encoder_args, evaluation.not_encoders)
        refuse_differences(lambda: _hashes_of(groups))
        for group in groups:
            group.check(evaluation.sample())
            for encoder in group.encoders:
                evaluation.check_encoder(encoder)
                encoder.rest()

        # Measure
        evaluation.prepare(is_main)
        for number, group in enumerate(groups, start=1):
            measured = [] if group.encoders else [evaluation.measure(group.name, None, is_main)]
            for encoder in group.encoders:
                measured.append(evaluation.measure(encoder.name, encoder, is_main))
                encoder.rest()
            if is_main:
                evaluation.add(group, measured)
                if evaluation.reports_each and number < len(groups):
                    evaluation.report(folder.path, **about)
            state.wait_for_everyone()

        # Report
        if is_main:
            evaluation.finish()
            print(evaluation.report(folder.path, **about))
            if args.push_results:
                add_results(names, evaluation.card_title, evaluation.describe(), folder.path)
        state.wait_for_everyone()


def _hashes_of(groups: list[EncoderGroup]) -> dict[str, str]:
    hashes = {}
    for encoder in (encoder for group in groups for encoder in group.encoders):
        hashes[encoder.name] = identity(encoder.model)
        encoder.rest()
    return hashes
