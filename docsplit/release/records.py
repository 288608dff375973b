"""What a folder says of its encoder beside the weights: the records that cards are made of, and the manifest.

run.json is of a pretraining and adapt.json of an adaptation; all_results.json has the numbers of a pretraining, and
evaluations/*/results.json what the evaluation scripts put there. The manifest of a checkpoint is written last: without
a fitting one it does not count.
"""

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import pandas as pd
from huggingface_hub import hf_hub_download, metadata_load
from huggingface_hub.errors import HTTPError
from yaml import YAMLError

from docsplit.embedding.closed_form import ClosedFormFacts
from docsplit.embedding.lexical_ridge import RidgeFacts
from docsplit.embedding.lexical_start import LexicalFacts
from docsplit.evaluation.results.data_names import without_folders
from docsplit.evaluation.results.markdown import one_line
from docsplit.evaluation.results.report import Json, read_result_rows
from docsplit.evaluation.results.result import Task
from docsplit.runtime import files
from docsplit.runtime.launching import hardware
from docsplit.runtime.options import given_options

logger = logging.getLogger(__name__)

R = TypeVar("R", bound="Record")
RUN_FILE, ADAPTATION_FILE, RESULTS_FILE, EVALUATIONS = "run.json", "adapt.json", "all_results.json", "evaluations"
MANIFEST = "checkpoint_manifest.json"
CLOSED_FORM = "closed form"  # the kind of an encoder of documents alone
LOCAL_OPTIONS = ("model_name_or_path", "corpus")  # that may name a place on the machine of the run
SECRET_OR_LOCAL = re.compile(
    r"output_dir|overwrite_output_dir|resume_from_checkpoint|disable_tqdm|.*token|push_.*|hub_.*"
)


def read_record(path: Path) -> Json:
    """Read a JSON file; {} if it does not exist."""
    return files.read_json(path) if path.exists() else {}


# --- Where weights come from ---


@dataclass(frozen=True)
class StartRecord:
    """The weights that a run began from, in the words of cards on the Hub; all None of random weights.

    Attributes:
        base_model: names on the Hub.
        language: codes.
        license: the identifier, "other" where the licence has a name of its own.
    """

    base_model: str | list[str] | None = None
    language: str | list[str] | None = None
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None


def start_of(name: str) -> StartRecord:
    """Find out the base model, the licence and the language of the weights that a run starts from.

    Args:
        name: on the Hub, or a folder, whose card names the base model.
    """
    is_folder = Path(name).exists()
    try:
        card = Path(name) / "README.md" if is_folder else Path(hf_hub_download(name, "README.md"))
        front = read_front_matter(card)
    except (HTTPError, OSError, ValueError) as error:
        logger.warning(f"The card of {name} cannot be read: {one_line(error)}")
        front = {}
    licence = stated_licence(front)
    if "license" not in licence:
        logger.warning(f"{name} states no licence: that of these weights is unknown, unless --license names one.")
        licence["license"] = "unknown"
    stated = {key: front.get(key) for key in ("base_model", "language")}
    for key, value in stated.items():  # `language: no`, without quotes, is false in YAML
        if not all(isinstance(one, str) for one in (value if isinstance(value, list) else [value])):
            stated[key] = None
    return StartRecord(**stated | licence | ({} if is_folder else {"base_model": name}))


def read_front_matter(card: Path) -> Json:
    """Read the YAML at the top of a card, which anyone may have written; {}, perhaps with a warning, without."""
    try:
        return metadata_load(card) or {} if card.exists() else {}
    except (OSError, ValueError, YAMLError, RecursionError) as error:
        logger.warning(f"{card} cannot be read, nor a licence that it may state: {one_line(error)[:300]}")
        return {}


def stated_licence(front: Mapping[str, Any]) -> dict[str, str]:
    """Return `license`, `license_name` and `license_link` of a front matter, as far as they are text or a number."""
    stated = {key: front.get(key) for key in ("license", "license_name", "license_link")}
    return {
        key: str(value)
        for key, value in stated.items()
        if isinstance(value, str | int | float) and value is not True and str(value).strip()
    }


# --- Records of runs ---


class Record:
    """A dataclass that is kept as a JSON file, named `file`, in the folder of an encoder."""

    file: ClassVar[str]

    def write(self, directory: Path) -> None:
        """Write the file."""
        files.write_text(directory / self.file, json.dumps(asdict(cast(Any, self)), indent=2) + "\n")

    @classmethod
    def read(cls: type[R], directory: Path) -> R | None:
        """Read the file; None without. A ValueError names file and key of a value that is missing or wrong."""
        path = directory / cls.file
        return files.checked(read_record(path), cls, str(path)) if path.exists() else None


@dataclass(kw_only=True)
class RunRecord(Record):
    """A pretraining run.

    Attributes:
        options: those given, by recipe or command line, as text.
        local: those of `LOCAL_OPTIONS` that name a place on the machine of the run.
        lexical: of token embeddings that were made of the corpus; None: they were random, or the start's.
        changes: that were made when the run was resumed, a sentence each.
    """

    file = RUN_FILE

    recipe: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    start: StartRecord = StartRecord()
    local: list[str] = field(default_factory=list)
    hardware: str
    processes: int
    versions: dict[str, str | None] = field(default_factory=dict)
    commit: str | None
    hub_model_id: str | None = None
    lexical: LexicalFacts | None = None
    changes: list[str] = field(default_factory=list)

    @classmethod
    def of_this_run(
        cls,
        device: str,
        processes: int,
        hub_model_id: str | None,
        lexical: LexicalFacts | None = None,
        changes: Sequence[str] = (),
    ) -> "RunRecord":
        """Describe this run. Secrets are left out, and files are named without the folders they are in.

        Args:
            device: "cpu" or "cuda".
        """
        recipe, options = given_options()
        start = options.get("model_name_or_path")
        return cls(
            recipe=without_folders(recipe) if recipe else None,
            options={
                name: without_folders(value) for name, value in options.items() if not SECRET_OR_LOCAL.fullmatch(name)
            },
            start=start_of(start) if start else StartRecord(),
            local=[name for name in LOCAL_OPTIONS if name in options and Path(options[name]).exists()],
            hardware=hardware(device),
            processes=processes,
            versions=files.versions(),
            commit=files.commit_of_code(),
            hub_model_id=hub_model_id,
            lexical=lexical,
            changes=list(changes),
        )


@dataclass(frozen=True)
class Candidate:
    """What adapting could write, and its accuracies with 5 labels a class and with all."""

    name: str
    weight: float | None  # of the words beside the encoder
    validation: dict[str, float]  # by cross-validation
    test: dict[str, float]

    @property
    def label(self) -> str:
        """Return the name, with a weight that is not 1."""
        return label_of(self.name, self.weight)


def label_of(name: str, weight: float | None) -> str:
    """Return the name of a candidate, with a weight of the words that is not 1."""
    return name if weight in (None, 1) else f"{name}, weight {weight:g}"


@dataclass(frozen=True)
class Adaptation(Record):
    """What was made of which encoder and documents: encoder and words, words alone ("static"), or plain; or
    documents alone ("closed form").

    Attributes:
        kept: the label of what was written.
        encoder: the start's name; of a folder its name alone.
        documents: what they are called.
        facts: of the words; None where they were not fitted.
        of_halves: of an encoder of documents alone.
        recipe: of a training before; None without.
        probe: the labelled documents; None without.
        seconds: of each step.
    """

    file = ADAPTATION_FILE

    kind: str
    kept: str
    weight: float | None
    encoder: str
    start: StartRecord
    documents: str
    documents_are_local: bool
    facts: RidgeFacts | None
    of_halves: ClosedFormFacts | None = None
    recipe: str | None = None
    probe: str | None = None
    candidates: Sequence[Candidate] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    hardware: str = ""
    versions: dict[str, str | None] = field(default_factory=dict)
    commit: str | None = None
    hub_model_id: str | None = None


# --- Results ---


def read_results(directory: Path) -> Json:
    """Read all_results.json of a checkpoint's folder; {} without it.

    Raises:
        ValueError: naming file and key, for what is no number where cards have one.
    """
    results = read_record(directory / RESULTS_FILE)
    for name, value in results.items():
        if name.startswith(("global_step", "train_", "documents_", "tokens_", "probe_", "tfidf_")):
            files.checked(value, float | None, f"{directory / RESULTS_FILE}: {name}")
    return results


@dataclass(frozen=True)
class CardEvaluation:
    """One evaluation in the folder of a checkpoint."""

    title: str  # of the section in the card
    dataset: str
    task: Task
    rows: pd.DataFrame
    encoder: str  # this checkpoint, as the rows have it
    plot: str | None = None  # address of the curve, relative to the card


def read_evaluations(directory: Path) -> list[CardEvaluation]:
    """Read the evaluations in a checkpoint's folder, with the address of each curve."""
    evaluations = []
    for path in sorted((directory / EVALUATIONS).glob("*/results.json")):
        contents, plot = read_record(path), path.with_name("few_shot.png")
        try:
            title, dataset, encoder = (files.checked(contents.get(k), str, k) for k in ("title", "dataset", "encoder"))
            task, rows = read_result_rows(contents)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        address = plot.relative_to(directory).as_posix() if plot.exists() else None
        evaluations.append(CardEvaluation(title, dataset, task, rows, encoder, address))
    return evaluations


# --- The manifest ---


def seal(directory: Path) -> None:
    """Mark a directory as a complete checkpoint. When this returns the mark is on the disk: older ones may go."""
    files.seal_folder(directory, MANIFEST, written=time.time())
    files.flush(directory.parent)


def why_incomplete(directory: Path) -> str | None:
    """Tell why a directory is no complete checkpoint, None if it is one; reads each file once."""
    if not (directory / MANIFEST).exists():
        return f"it has no {MANIFEST}: its run was stopped while writing it, or was none of this project"
    return files.why_folder_damaged(directory, MANIFEST)
