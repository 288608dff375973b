"""The probe beside pretraining: accuracy of the frozen encoder on labelled documents, before, during and after."""

import sys
from typing import Any

import numpy as np
from accelerate.utils import broadcast_object_list
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from docsplit.data.seen_documents import contamination
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.embedding.encode import encode
from docsplit.evaluation.heads.frozen import probe_accuracy, tfidf_accuracy
from docsplit.runtime.files import JsonObject


class ProbeCallback(TrainerCallback):
    """Measure the frozen encoder: on validation documents at each evaluation, on test documents at start and end.

    The numbers on validation are metrics of the evaluation, `probe_5shot_accuracy` among them, so that
    `--metric_for_best_model probe_5shot_accuracy` and early stopping work on them: no selection sees a test document.
    The numbers before the first step are in the log history, which a resumed run inherits.
    """

    def __init__(self, trainer: Trainer, split: LabelledSplit):
        model: Any = trainer.model
        self.trainer = trainer
        self.encoder = model.encoder.base_model
        self.tokenizer: Any = trainer.processing_class
        self.split = split
        self.step = -1  # whose weights gave features and numbers
        self.features: dict[str, np.ndarray] = {}  # of parts
        self.measured: dict[str, float] = {}

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
            results: list[Any] = [None]
            if self.trainer.is_world_process_zero():
                results = [probe_accuracy(self.split, self.features)]
            by_part = broadcast_object_list(results)[0]
            self.measured = {f"probe_{name}": value for name, value in by_part["validation"].items()}
            self.measured |= {f"probe_test_{name}": value for name, value in by_part.get("test", {}).items()}
        return {name: value for name, value in self.measured.items() if with_test or "probe_test_" not in name}

    def _embed(self, parts: list[str]) -> None:
        texts = [text for part in parts for text in self.split.texts[part]]
        show_progress = not self.trainer.args.disable_tqdm and sys.stderr.isatty()  # a log has a line of the results
        embeddings = encode(self.encoder, self.tokenizer, texts, show_progress=show_progress)
        ends = np.cumsum([len(self.split.texts[part]) for part in parts])
        self.features |= dict(zip(parts, np.split(embeddings, ends[:-1])))

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Measure the start, unless the run resumes and has that in its history.

        Raises:
            ValueError: if the run resumes and has it not.
        """
        if any("probe_test_accuracy" in entry for entry in state.log_history):
            return
        if self.history():
            raise ValueError(
                "The run to resume measured its probe on documents that selection looked at, as versions before did, "
                "and trained on some that are test documents now: resume without --probe_corpus, or start a new run."
            )
        if state.global_step > 0:
            raise ValueError("--probe_corpus cannot be added when resuming: nothing was measured before training.")
        self.trainer.log(self.measure(with_test=True))

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ):
        """Measure on validation, and put the numbers among the metrics of the evaluation."""
        result = self.measure()
        kwargs["metrics"].update({f"eval_{name}": value for name, value in result.items()})
        self.trainer.log(dict(result))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Forget the last numbers where the best weights take the place of the last ones."""
        if args.load_best_model_at_end:
            self.step = -1  # the weights are those of an earlier step

    def history(self) -> list[dict[str, float]]:
        """Return all measurements so far, oldest first, with their `step`."""
        return [entry for entry in self.trainer.state.log_history if "probe_accuracy" in entry]

    def summary(self) -> JsonObject:
        """Return the accuracies on test documents, before the first step, now, and of TF-IDF, for all_results.json.

        TF-IDF has those on validation documents too (`tfidf_validation_accuracy`), to stand beside the curves. The
        share of test documents that this training, or the start's, has seen is there too, so call this after the
        record of training documents was written. Other processes than the first take part, and get nothing.
        """
        before, after = self.history()[0], self.measure(with_test=True)
        if not self.trainer.is_world_process_zero():
            return {}
        measured = {name: name.removeprefix("probe_test_") for name in after if name.startswith("probe_test_")}
        results: JsonObject = {f"probe_before_{short}": before[name] for name, short in measured.items()}
        results |= {f"probe_after_{short}": after[name] for name, short in measured.items()}
        tfidf = tfidf_accuracy(self.split)
        results |= {f"tfidf_{name}": value for name, value in tfidf["test"].items()}
        results |= {f"tfidf_validation_{name}": value for name, value in tfidf["validation"].items()}
        shares = contamination(str(self.trainer.args.output_dir), self.split.test_texts)
        return results | {f"probe_{name}": value for name, value in shares.items()}
