"""The probe beside pretraining, and what follows from it: the start is released where training did not beat it.

The probe is the accuracy of the frozen encoder on labelled documents, before, during and after training.
"""

import filecmp
import logging
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import try_to_load_from_cache
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE, contamination
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.embedding.encode import embed_documents
from docsplit.evaluation.heads.frozen import probe_accuracy, tfidf_accuracy
from docsplit.evaluation.results.bootstrap import ItemScores, paired_bootstrap, resample
from docsplit.modeling.loading import has_words, load_encoder, save_plain
from docsplit.modeling.objectives.table import prepared_files
from docsplit.release.hub import RELEASE
from docsplit.release.records import MANIFEST
from docsplit.runtime.files import JsonObject, move_aside
from docsplit.runtime.sharing import RECORD, from_first, remove
from docsplit.training.checkpoints import RESULTS
from docsplit.training.run_arguments import PretrainingArguments

logger = logging.getLogger(__name__)

MODEL_FILES = (  # what a loader may read, and what is said of the model
    *("*.json", "*.txt", "*.model", "*.safetensors", "*.bin", "*.py", "README.md", "LICENSE*"),
    *("[0-9]*_*/*", "adapter/*"),
)
RIGHT = "5shot_right"
RUN_FILES = {*RESULTS, MANIFEST, *prepared_files(), "trainer_state.json", RECORD} - {TRAINING_DOCUMENTS_FILE}


class ProbeCallback(TrainerCallback):
    """Measure the frozen encoder: on validation documents at each evaluation, on test documents at start and end.

    The numbers on validation are metrics of the evaluation, `probe_5shot_accuracy` among them, so that
    `--metric_for_best_model probe_5shot_accuracy` and early stopping work on them: no selection sees a test document.
    The numbers before the first step are in the log history, which a resumed run inherits.
    """

    def __init__(self, trainer: Trainer, split: LabelledSplit):
        self.trainer: Any = trainer
        self.split = split
        self.step = -1  # whose weights gave features and numbers
        self.features: dict[str, np.ndarray] = {}  # of parts
        self.measured: dict[str, float] = {}
        self.right: list[float] = []  # (M,) of the validation documents, in what share of draws each is found

    def measure(self, with_test: bool = False) -> dict[str, float]:
        """Return `probe_5shot_accuracy`, its `_std` over draws, `probe_accuracy` and the chosen C, on each process.

        Args:
            with_test: measure on the test documents too, as `probe_test_5shot_accuracy` and so on.
        """
        if self.step != self.trainer.state.global_step:
            self.step, self.features, self.measured = self.trainer.state.global_step, {}, {}
        wanted = ["train", "validation", *(["test"] if with_test else [])]
        if missing := [part for part in wanted if part not in self.features]:
            self._embed(missing)
            by_part = from_first(lambda: probe_accuracy(self.split, self.features))
            self.right = by_part["validation"].pop(RIGHT)
            self.measured = {f"probe_{name}": value for name, value in by_part["validation"].items()}
            self.measured |= {f"probe_test_{name}": value for name, value in by_part.get("test", {}).items()}
        return {name: value for name, value in self.measured.items() if with_test or "probe_test_" not in name}

    def _embed(self, parts: list[str]) -> None:
        texts = [text for part in parts for text in self.split.texts[part]]
        show_progress = not self.trainer.args.disable_tqdm and sys.stderr.isatty()  # a log has a line of the results
        body = self.trainer.model.body
        embeddings, _ = embed_documents(body, texts, dtype=torch.float32, show_progress=show_progress)
        ends = np.cumsum([len(self.split.texts[part]) for part in parts])
        self.features |= dict(zip(parts, np.split(embeddings, ends[:-1])))

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Measure the start, unless the run resumes, which has that in its history."""
        if not self.history():
            self.trainer.log(self.measure(with_test=True))
            self.history()[-1][RIGHT] = self.right  # in no tracker, which would not know what to do with it

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Measure on validation, and put the numbers among the metrics of the evaluation."""
        result = self.measure()
        kwargs["metrics"].update({f"eval_{name}": value for name, value in result.items()})
        self.trainer.log(dict(result))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Forget the last numbers where the best weights take the place of the last ones."""
        if args.load_best_model_at_end:
            self.step = -1  # the weights are those of an earlier step

    def history(self) -> list[dict[str, Any]]:
        """Return all measurements so far, oldest first, with their `step`."""
        return [entry for entry in self.trainer.state.log_history if "probe_accuracy" in entry]

    def summary(self) -> JsonObject:
        """Return the accuracies on test documents, before the first step, now, and of TF-IDF, for all_results.json.

        TF-IDF has those on validation documents too (`tfidf_validation_accuracy`), to stand beside the curves, and
        with 5 labels a class the encoder is compared there with its start and TF-IDF (`compare`). The share of test
        documents that this training, or the start's, has seen is there too, so call this after the record of training
        documents was written. Other processes than the first take part, and get nothing.
        """
        before, after = self.history()[0], self.measure(with_test=True)
        if not self.trainer.is_world_process_zero():
            return {}
        measured = {name: name.removeprefix("probe_test_") for name in after if name.startswith("probe_test_")}
        results: JsonObject = {f"probe_before_{short}": before[name] for name, short in measured.items()}
        results |= {f"probe_after_{short}": after[name] for name, short in measured.items()}
        tfidf = tfidf_accuracy(self.split)
        results |= compare("start", self.right, before[RIGHT])
        results |= compare("tfidf", self.right, tfidf["validation"].pop(RIGHT))
        results |= {f"tfidf_{name}": value for name, value in tfidf["test"].items()}
        results |= {f"tfidf_validation_{name}": value for name, value in tfidf["validation"].items()}
        shares = contamination(str(self.trainer.args.output_dir), self.split.test_texts)
        return results | {f"probe_{name}": value for name, value in shares.items()}


def compare(other: str, right: list[float], of_other: list[float]) -> JsonObject:
    """Compare an encoder with another by how often each finds the same documents, (M,).

    Returns: `probe_against_OTHER`, the difference, and `_low` and `_high`, its interval over documents.
    """
    items = [ItemScores(np.array([one]), np.ones((1, len(one)))) for one in (right, of_other)]
    ours, theirs = resample(items)
    found, name = paired_bootstrap(ours, theirs), f"probe_against_{other}"
    return {name: found.difference, f"{name}_low": found.low, f"{name}_high": found.high}


def folder_of(start: str | None) -> Path | None:
    """Find the files of an encoder that was loaded by its name: its folder, or that in the cache of the Hub.

    To be called before training: the Hub's files of that name may change meanwhile. None where there is no start, or
    where the cache does not have it, which is logged.
    """
    if start is None or Path(start).is_dir():
        return None if start is None else Path(start)
    config = try_to_load_from_cache(start, "config.json")
    if not isinstance(config, str):
        logger.warning(f"The files of {start} are not in the Hub's cache: the start cannot be kept if it is better.")
        return None
    return Path(config).parent


def put_back_better_start(probe: ProbeCallback | None, start: Path | None, args: PretrainingArguments) -> bool:
    """Tell whether nothing beat the start on the probe's validation documents, so that its files are released.

    All processes must call it, with the weights that would be saved. The metric is the one that chose the best
    checkpoint, if that is the probe's, else the accuracy with 5 labels a class.

    Args:
        start: of `folder_of`.
    """
    if probe is None or from_first(lambda: start is None):
        return False
    chosen = (args.metric_for_best_model or "").removeprefix("eval_")
    metric = chosen if chosen.startswith("probe_") else "probe_5shot_accuracy"
    before, after = probe.history()[0][metric], probe.measure()[metric]
    if after > before:
        return False
    documents = len(probe.split.validation_texts or [])
    comparison = f"{metric} on {documents} validation documents was {before:.4f} before training and is {after:.4f}"
    if not args.keep_better_start:
        logger.warning(f"{comparison}; the trained weights are saved all the same, for --keep_better_start is false.")
        return False
    if probe.trainer.is_world_process_zero():
        assert start is not None
        with tempfile.TemporaryDirectory() as folder:
            kept, plain = "the start, unchanged", start
            if has_words(str(start)):  # the encoder inside was trained
                kept, plain = "the encoder inside the start, without its words", Path(folder)
                save_plain(load_encoder(str(start), device="cpu"), plain)
            count = put_back(plain, Path(str(args.output_dir)))
        logger.warning(
            f"Keep what you had: {comparison}. {args.output_dir} holds the {count} files of {kept} "
            "(--keep_better_start false would save the trained weights)."
        )
    return True


def put_back(start: Path, output_dir: Path) -> int:
    """Fill a folder with the files of an encoder, in place of a release that is there; return how many.

    A file of another name that is in the way, and may be the user's, is renamed.
    """
    paths = {path.relative_to(start).as_posix(): path for pattern in MODEL_FILES for path in start.glob(pattern)}
    names = [name for name, path in paths.items() if path.is_file() and name not in RUN_FILES]
    remove(output_dir, RELEASE)
    for name in sorted(names, key=lambda name: Path(name).name == "config.json"):  # last: nothing loads without it
        path = output_dir / name
        if path.exists() and not filecmp.cmp(start / name, path, shallow=False):
            logger.warning(f"{path} is in the way of the start's: it is kept as {move_aside(path).name}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(start / name, path)
    return len(names)
