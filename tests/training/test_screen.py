"""What a person sees of a training: one line a log, the main process alone."""

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerControl, TrainerState

from docsplit.modeling.objectives.bregman import BregmanInfoNCE
from docsplit.modeling.objectives.info_nce import InfoNCE
from docsplit.training import screen
from docsplit.training.run_arguments import PretrainingArguments
from docsplit.training.screen import ScreenCallback, closing_text, counts_table, duration, loss_names, training_line
from tests.training.examples import run_options


def test_a_line_names_the_parts_of_the_loss_as_the_objective_does():
    logs = {"loss": 3.456, "contrastive_loss": 2.7, "mlm_loss": 7.584, "tokens_per_second": 1519.4, "alignment": 1.0}
    expected = "loss 3.46 (contrastive 2.70, MLM 7.58)  1,519 tokens/s"
    assert training_line(logs, loss_names(InfoNCE, True)) == expected
    logs = {"loss": 8.0, "contrastive_loss": 8.0, "info_nce_loss": 1.0, "bregman_loss": 0.3}
    assert training_line(logs, loss_names(BregmanInfoNCE, True)) == "loss 8.00 (InfoNCE 1.00, Bregman 0.300)"
    assert training_line({"loss": 7.0, "mlm_loss": 7.0}, loss_names(InfoNCE, False)) == "MLM loss 7.00"


def test_lines_of_steps_and_evaluations_of_the_main_process_alone(tiny_model, tmp_path, capsys, monkeypatch):
    args = PretrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    trainer = Trainer(tiny_model, args)
    callback = ScreenCallback(trainer)
    assert not {PrinterCallback, ProgressCallback} & {type(one) for one in trainer.callback_handler.callbacks}
    clock = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr(screen.time, "perf_counter", lambda: next(clock))
    probe = {"probe_5shot_accuracy": 0.2, "probe_accuracy": 0.5}
    events = [
        (40, "train_begin", {}),
        (40, "log", {"logs": probe | {"probe_test_accuracy": 0.4}}),
        (40, "step_begin", {}),
        (50, "step_begin", {}),  # the clock goes on
        (50, "log", {"logs": {"loss": 3.0, "grad_norm": 1.0}}),
        (200, "log", {"logs": {"loss": 2.0}}),
        (200, "log", {"logs": {"train_runtime": 100.0}}),  # the Trainer's own
        (200, "evaluate", {"metrics": {"eval_loss": 3.1} | {f"eval_{name}": value for name, value in probe.items()}}),
        (200, "train_end", {}),
    ]
    for is_first, part in ((True, events), (False, events[:2])):
        for step, event, given in part:
            state = TrainerState(global_step=step, max_steps=200, is_world_process_zero=is_first)
            getattr(callback, f"on_{event}")(args, state, TrainerControl(), **given)
    assert capsys.readouterr().out.splitlines() == [
        "step  40/200  probe, 5 labels: 20.0 %, all: 50.0 %",
        "step  50/200  loss 3.00  2 min left",  # 150 steps of a second each
        "step 200/200  loss 2.00",
        "step 200/200  held-out loss 3.10  probe, 5 labels: 20.0 %, all: 50.0 %",
    ]
    assert [duration(seconds) for seconds in (59.4, 59.6, 3570, 12_000)] == [
        "59 s",
        "1 min",
        "1 h 0 min",
        "3 h 20 min",
    ]


def test_a_run_begins_with_its_counts_and_ends_with_what_is_better():
    counts = {"documents_in_corpus": 12_345, "documents_dropped": 40, "documents_dropped_empty": 40, "shards": None}
    assert counts_table(counts | {"tokens_truncated_share": 0.2534}).splitlines() == [
        "Documents",
        "  in the corpus, usable      12,345",
        "  left out: empty                40",
        "  tokens lost by truncation  25.3 %",
    ]
    options = run_options("outputs/mine")
    results = {"global_step": 200, "train_runtime": 75.0, "train_tokens_per_second": 1234.5}
    results |= {"train_loss": 2.345, "kept_start": False, "probe_test_documents": 20}
    text = closing_text(options, results)
    assert "200 steps took 1 min (1,234 tokens/s), mean loss 2.35." in text
    assert "SentenceTransformer('outputs/mine') loads it. To search:\n    python search.py build YOUR_" in text
    results |= {"kept_start": True, "probe_validation_documents": 500}
    for name in ("probe_before", "probe_after", "tfidf"):
        results |= {f"{name}_5shot_accuracy": 0.5, f"{name}_5shot_accuracy_std": 0.03, f"{name}_accuracy": 0.5}
    for other, high in (("start", 0.004), ("tfidf", -0.001)):
        name = f"probe_against_{other}"
        results |= {name: -0.01, f"{name}_low": -0.02, f"{name}_high": high}
    text = closing_text(options, results)
    assert "Wrote outputs/mine: the start, unchanged" in text
    assert text.split("\n\n")[0].splitlines()[-1] == (
        "Trained, it is within the noise of its start (-1.0 points [-2.0, 0.4]) and worse than TF-IDF (-1.0 points "
        "[-2.0, -0.1]), with 5 labels a class on 500 validation documents."
    )
    results |= {"probe_against_start": 0.01, "probe_against_start_low": 0.001, "probe_against_start_high": 0.02}
    assert "it is better than its start (+1.0 points [0.1, 2.0]) and" in closing_text(options, results)
