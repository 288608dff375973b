"""What a person sees of a training: one line a log, the main process alone."""

import pytest
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerControl, TrainerState

from docsplit.modeling.objectives.bregman import BregmanInfoNCE
from docsplit.modeling.objectives.info_nce import InfoNCE
from docsplit.modeling.objectives.neighbour_distillation import NeighbourDistillation
from docsplit.training import screen
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments, QueryArguments, RunOptions
from docsplit.training.screen import ScreenCallback, closing_text, counts_table, duration, loss_names, training_line


@pytest.fixture
def on(tiny_model, tmp_path):
    """A function that tells the callback of an event."""
    args = PretrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    trainer = Trainer(tiny_model, args)
    callback = ScreenCallback(trainer)
    assert not {PrinterCallback, ProgressCallback} & {type(one) for one in trainer.callback_handler.callbacks}
    return lambda event, state, args=args, **given: getattr(callback, f"on_{event}")(
        args, state, TrainerControl(), **given
    )


@pytest.mark.parametrize(
    ("logs", "objective", "has_contrast", "expected"),
    [
        (
            {"loss": 3.456, "contrastive_loss": 2.7, "mlm_loss": 7.584, "tokens_per_second": 1519.4, "alignment": 1.0},
            InfoNCE, True, "loss 3.46 (contrastive 2.70, masked LM 7.58)  1,519 tokens/s",
        ),
        ({"loss": 0.0532, "contrastive_loss": 0.0532}, NeighbourDistillation, True, "distillation loss 0.0532"),
        (
            {"loss": 8.0, "contrastive_loss": 8.0, "info_nce_loss": 1.0, "bregman_loss": 0.3},
            BregmanInfoNCE, True, "loss 8.00 (InfoNCE 1.00, Bregman 0.300)",
        ),
        ({"loss": 7.0, "mlm_loss": 7.0}, InfoNCE, False, "masked LM loss 7.00"),
    ],
)  # fmt: skip
def test_a_line_names_the_parts_of_the_loss_as_the_objective_does(logs, objective, has_contrast, expected):
    assert training_line(logs, loss_names(objective, has_contrast)) == expected


def test_lines_of_steps_and_evaluations_of_the_main_process_alone(on, capsys, monkeypatch):
    clock = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr(screen.time, "perf_counter", lambda: next(clock))
    state, before = TrainerState(global_step=40, max_steps=200), {"probe_5shot_accuracy": 0.2, "probe_accuracy": 0.5}
    on("train_begin", state)
    on("log", state, logs=before | {"probe_test_accuracy": 0.4})
    on("step_begin", state)
    state.global_step = 50
    on("step_begin", state)  # the clock goes on
    on("log", state, logs={"loss": 3.0, "grad_norm": 1.0})
    state.global_step = 200
    on("log", state, logs={"loss": 2.0})
    for logs in ({"train_runtime": 100.0}, {"eval_loss": 3.1}, before):  # the Trainer's and the probe's own
        on("log", state, logs=logs)
    on("evaluate", state, metrics={"eval_loss": 3.1, "eval_probe_5shot_accuracy": 0.432, "eval_probe_accuracy": 0.61})
    on("train_end", state)
    other = TrainerState(global_step=5, max_steps=300, is_world_process_zero=False)
    for event, given in (("train_begin", {}), ("log", {"logs": {"loss": 3.0}}), ("step_end", {}), ("train_end", {})):
        on(event, other, **given)
    assert capsys.readouterr().out.splitlines() == [
        "step  40/200  probe, 5 labels a class: 20.0 %, all labels: 50.0 %",
        "step  50/200  loss 3.00  2 min left",  # 150 steps of a second each
        "step 200/200  loss 2.00",
        "step 200/200  held-out loss 3.10  probe, 5 labels a class: 43.2 %, all labels: 61.0 %",
    ]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(59.4, "59 s"), (59.6, "1 min"), (3570, "1 h 0 min"), (12_000, "3 h 20 min")],
)
def test_durations(seconds, expected):
    assert duration(seconds) == expected


def test_counts_stand_in_columns_and_nothing_that_was_dropped_is_missing():
    counts = {
        "documents_in_corpus": 12_345, "documents_dropped": 40, "documents_dropped_empty": 40,
        "documents_held_out": 0, "shards": None, "probe_classes": 40, "tokens_truncated_share": 0.2534,
    }  # fmt: skip
    assert counts_table(counts).splitlines() == [
        "Documents",
        "  in the corpus, usable      12,345",
        "  left out: empty                40",
        "  probe: classes                 40",
        "  tokens lost by truncation  25.3 %",
    ]


def test_a_run_ends_with_what_it_wrote_and_what_is_better():
    args = PretrainingArguments(output_dir="outputs/mine", use_cpu=True)
    options = RunOptions(ModelArguments(), DataArguments(), QueryArguments(), args)
    results = {"global_step": 200, "train_runtime": 75.0, "train_tokens_per_second": 1234.5, "kept_start": False}
    assert "prefer it" not in (text := closing_text(options, results))
    assert "200 steps of training took 1 min, 1,234 tokens/s." in text
    assert "Wrote outputs/mine: the encoder, its card" in text
    assert "SentenceTransformer('outputs/mine') loads it." in text
    assert "search.py build YOUR_DOCUMENTS --model outputs/mine --index_dir outputs/mine.index" in text
    results |= {"probe_classes": 3, "probe_test_documents": 20, "kept_start": True}
    for tfidf, is_better in ((0.528, False), (0.531, True)):  # by more than draws of the labels differ
        for name, accuracy in (("probe_before", 0.5), ("probe_after", 0.5), ("tfidf", tfidf)):
            results |= {f"{name}_5shot_accuracy": accuracy, f"{name}_5shot_accuracy_std": 0.03}
            results |= {f"{name}_accuracy": 0.5}
        text = closing_text(options, results)
        assert ("prefer it" in text) == is_better
        assert "Wrote outputs/mine: the start, unchanged" in text
