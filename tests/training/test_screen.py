"""What a person sees of a training: one line a log, the main process alone, and commands that can be typed."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerControl, TrainerState

from docsplit.modeling.objectives.bregman import BregmanInfoNCE
from docsplit.modeling.objectives.info_nce import InfoNCE
from docsplit.modeling.objectives.neighbour_distillation import NeighbourDistillation
from docsplit.training import screen
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments, QueryArguments, RunOptions
from docsplit.training.screen import (
    ScreenCallback,
    closing_text,
    counts_table,
    duration,
    evaluation_parts,
    loss_names,
    number,
    training_line,
)
from run_docsplit_pretraining import main

RESULTS = {
    "global_step": 200, "train_runtime": 75.0, "train_tokens_per_second": 1234.5, "kept_start": False,
    "probe_classes": 3, "probe_test_documents": 20,
} | {f"{when}_{name}": 0.5 for when in ("probe_before", "probe_after", "tfidf")
     for name in ("5shot_accuracy", "5shot_accuracy_std", "accuracy")}  # fmt: skip


@pytest.fixture
def callback(tiny_model, tmp_path):
    args = PretrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    trainer = Trainer(tiny_model, args)
    callback = ScreenCallback(trainer)
    kinds = [type(one) for one in trainer.callback_handler.callbacks]
    assert not {PrinterCallback, ProgressCallback} & set(kinds)
    return SimpleNamespace(
        of=lambda event, state, **given: getattr(callback, event)(args, state, TrainerControl(), **given),
        own=callback,
    )


@pytest.mark.parametrize(
    ("logs", "objective", "has_contrast", "expected"),
    [
        (
            {"loss": 3.456, "contrastive_loss": 2.7, "mlm_loss": 7.584, "tokens_per_second": 1519.4, "alignment": 1.0},
            InfoNCE,
            True,
            "loss 3.46 (contrastive 2.70, masked LM 7.58)  1,519 tokens/s",
        ),
        (
            {"loss": 0.0532, "contrastive_loss": 0.0532, "tokens_per_second": 9.0},
            NeighbourDistillation,
            True,
            "distillation loss 0.0532  9 tokens/s",
        ),
        (
            {"loss": 8.0, "contrastive_loss": 8.0, "info_nce_loss": 2.0, "bregman_loss": 3.0},
            BregmanInfoNCE,
            True,
            "loss 8.00 (InfoNCE 2.00, Bregman 3.00)",
        ),
        ({"loss": 7.0, "mlm_loss": 7.0}, InfoNCE, False, "masked LM loss 7.00"),
    ],
)
def test_a_line_names_the_parts_of_the_loss_as_the_objective_does(logs, objective, has_contrast, expected):
    assert training_line(logs, loss_names(objective, has_contrast)) == expected


def test_lines_have_the_step_and_the_time_from_where_the_run_began(callback, capsys, monkeypatch):
    clock = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr(screen.time, "perf_counter", lambda: next(clock))
    state = TrainerState(global_step=40, max_steps=200)  # resumed
    callback.of("on_train_begin", state)
    callback.of("on_step_begin", state)
    state.global_step = 50
    callback.of("on_step_begin", state)  # the clock goes on
    callback.of("on_log", state, logs={"loss": 3.0, "grad_norm": 1.0})
    state.global_step = 200
    callback.of("on_log", state, logs={"loss": 2.0})
    callback.of("on_log", state, logs={"train_runtime": 100.0, "train_loss": 2.5})
    callback.of("on_train_end", state)
    assert capsys.readouterr().out.splitlines() == [
        "step  50/200  loss 3.00  2 min left",  # 150 steps of a second each
        "step 200/200  loss 2.00",
    ]


def test_an_evaluation_is_one_line_with_the_probe(callback, capsys):
    state = TrainerState(global_step=0, max_steps=300)
    before = {"probe_5shot_accuracy": 0.2, "probe_accuracy": 0.5, "probe_test_accuracy": 0.4}
    callback.of("on_log", state, logs=before)
    state.global_step = 100
    for logs in ({"eval_loss": 3.1, "eval_runtime": 2.0}, {"probe_5shot_accuracy": 0.432, "probe_accuracy": 0.61}):
        callback.of("on_log", state, logs=logs)  # the Trainer's and the probe's own
    metrics = {"eval_loss": 3.1, "eval_probe_5shot_accuracy": 0.432, "eval_probe_accuracy": 0.61}
    callback.of("on_evaluate", state, metrics=metrics)
    assert capsys.readouterr().out.splitlines() == [
        "step   0/300  probe, 5 labels a class: 20.0 %, all labels: 50.0 %",
        "step 100/300  held-out loss 3.10  probe, 5 labels a class: 43.2 %, all labels: 61.0 %",
    ]
    assert evaluation_parts({"loss": 3.1}) == ["held-out loss 3.10"]


def test_other_processes_print_nothing(callback, capsys):
    state = TrainerState(global_step=5, max_steps=300, is_world_process_zero=False)
    callback.of("on_train_begin", state)
    callback.of("on_step_begin", state)
    callback.of("on_step_end", state)
    callback.of("on_log", state, logs={"loss": 3.0})
    callback.of("on_evaluate", state, metrics={"eval_loss": 3.0})
    callback.of("on_train_end", state)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("disable_tqdm", [False, True])
def test_the_bar_is_on_a_terminal_alone_and_begins_where_the_run_does(callback, disable_tqdm, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    args = SimpleNamespace(disable_tqdm=disable_tqdm)
    state = TrainerState(global_step=40, max_steps=200)
    callback.own.on_train_begin(args, state, TrainerControl())
    assert bool(callback.own.bar.disable) == disable_tqdm
    callback.of("on_log", state, logs={"loss": 3.0})
    callback.of("on_train_end", state)
    printed = capsys.readouterr()
    assert printed.out == "step  40/200  loss 3.00\n"
    assert ("40/200" in printed.err) != disable_tqdm


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (60, "1 min"), (3570, "1 h 0 min"), (12_000, "3 h 20 min"),
     (86_400, "1 day 0 h"), (187_200, "2 days 4 h")],
)  # fmt: skip
def test_durations(seconds, expected):
    assert duration(seconds) == expected


@pytest.mark.parametrize(("value", "expected"), [(12.345, "12.35"), (0.5, "0.500"), (0.01234, "0.0123")])
def test_losses_have_digits_that_matter(value, expected):
    assert number(value) == expected


def test_counts_stand_in_columns_and_nothing_that_was_dropped_is_missing():
    counts = {
        "documents_in_corpus": 12_345, "documents_dropped": 40, "documents_dropped_empty": 30,
        "documents_dropped_fewer_than_two_words": 10, "documents_held_out": 0, "shards": None, "probe_classes": 40,
        "tokens_truncated_share": 0.2534,
    }  # fmt: skip
    assert counts_table(counts).splitlines() == [
        "Documents",
        "  in the corpus, usable           12,345",
        "  left out: empty                     30",
        "  left out: fewer than two words      10",
        "  probe: classes                      40",
        "  tokens lost by truncation       25.3 %",
    ]


def test_a_run_ends_with_what_it_wrote_and_commands_with_its_own_paths(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run_docsplit_pretraining.py"])
    notes, labelled = tmp_path / "my notes", tmp_path / "labelled.jsonl"
    notes.mkdir()
    labelled.touch()

    def closing(data, queries=None, **results):
        args = PretrainingArguments(output_dir="outputs/mine", use_cpu=True)
        options = RunOptions(ModelArguments(), DataArguments(**data), queries or QueryArguments(), args)
        return closing_text(options, RESULTS | results)

    text = closing({"corpus": str(notes), "probe_corpus": str(labelled)})
    assert re.search(r"\| after pretraining +\| +0.500 ± 0.500 \| +0.500 \|", text)
    assert "200 steps of training took 1 min, 1,234 tokens/s." in text
    said = "With 5 labels a class, accuracy went from 50.0 to 50.0 %, on 20 test documents. TF-IDF, which counts words"
    assert f"{said} and needs no training, has 50.0 %.\n" in text
    spread = {f"{name}_5shot_accuracy_std": 0.03 for name in ("probe_after", "tfidf")}
    assert "has 62.8 %: prefer it to this encoder." in closing({}, tfidf_5shot_accuracy=0.628, **spread)
    assert "has 52.8 %.\n" in closing({}, tfidf_5shot_accuracy=0.528, **spread)
    lines = text.splitlines()[-4:]
    assert lines[0] == "Wrote outputs/mine: the encoder, its card (README.md), results (all_results.json) and plot."
    assert lines[1] == "In Python, SentenceTransformer('outputs/mine') loads it. Next:"
    start = "python run_probe_classification.py --model_name_or_path outputs/mine"
    assert lines[2].strip() == f"{start} tfidf --train_file {labelled}"
    assert lines[3].strip() == (
        f"python search.py build '{notes}' --model outputs/mine --index_dir outputs/mine.index"
    )
    assert f"{start} tfidf\n" in closing({"probe_corpus": "python_docs"})  # its own sealed part, by default
    assert "Wrote outputs/mine: the start, unchanged, and results" in closing({}, kept_start=True)
    ranked = closing({"corpus": "cranfield", "view": "query_document"}, QueryArguments(fold=1, folds="10"))
    assert (
        "run_document_retrieval.py --collection cranfield --fold 1 --folds 10 --model_name_or_path outputs/mine bm25"
        in ranked
    )


def test_a_run_prints_lines_and_the_history_keeps_everything(tmp_path, corpus_file, run_here, capsys):
    run_here(
        main, "--corpus", corpus_file, "--output_dir", tmp_path, "--vocab_size", 300, "--max_seq_length", 32,
        "--config_overrides", "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64",
        "--use_cpu", "--per_device_train_batch_size", 4, "--max_steps", 4, "--logging_steps", 2, "--save_steps", 4,
        "--eval_strategy", "steps", "--eval_steps", 4, "--max_eval_samples", 10,
    )  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    pattern = r"step \d/4  loss [\d.]+ \(contrastive [\d.]+, masked LM [\d.]+\)  [\d,]+ tokens/s(  \d+ s left)?"
    assert all(re.fullmatch(pattern, line) for line in steps[:2]), steps
    assert re.fullmatch(r"step 4/4  held-out loss [\d.]+", steps[2])
    assert len(steps) == 3
    assert not [line for line in lines if line.startswith("{")]
    assert f"  {'held out, for the loss in evaluations'}" in "\n".join(lines)
    history = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())["log_history"]
    assert {"grad_norm", "learning_rate", "alignment", "contrastive_loss"} <= history[0].keys()
