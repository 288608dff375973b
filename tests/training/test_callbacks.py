"""The work beside the steps: what is logged, which epoch is drawn, when a training stops, and what it has seen."""

import json
import math
import os
import shutil
import signal
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

from docsplit.data.collators import DocSplitCollator
from docsplit.data.copies import document_id, sketch
from docsplit.data.preparation import tokenize
from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE, TrainingDocuments
from docsplit.evaluation.analysis.geometry import embedding_geometry, spread, usage
from docsplit.release.records import MANIFEST
from docsplit.training.callbacks import NUM_SPREAD, DocSplitCallback, SeenDocumentsCallback, StopCallback
from modeling_docsplit import DocSplitForContrastivePretraining, DocSplitOutput
from run_docsplit_pretraining import main
from tests.conftest import free_port, make_corpus, tiny_config, weights_of
from tests.processes import spawn, start, wait_until
from tests.waits import Watch, move, register, watched

TINY = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64,max_position_embeddings=64"
FROM_NOTHING = ("--config_overrides", TINY, "--vocab_size", 300)
SKETCHES = {document_id(row["text"]): sketch([row["text"]])[0].tolist() for row in make_corpus(150)}


def words(output_dir, corpus_file, *options, start=FROM_NOTHING):
    return [
        "--corpus", corpus_file, "--output_dir", output_dir, *start, "--pooling", "mean", "--max_seq_length", 48,
        "--use_cpu", "--per_device_train_batch_size", 4, "--save_steps", 3, "--disable_tqdm", "true", *options,
    ]  # fmt: skip


# --- What is logged ---


def test_geometry_against_a_loop():
    embeddings = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(0))
    unit = embeddings / embeddings.norm(dim=-1, keepdim=True)
    positives, negatives, distances, potentials = [], [], [], []
    for i in range(5):
        for j in range(5):
            cosine = float(unit[i, 0] @ unit[j, 1])
            distance = float((unit[i, 0] - unit[j, 1]).square().sum())
            (positives if i == j else negatives).append(cosine)
            (distances if i == j else potentials).append(distance if i == j else math.exp(-2 * distance))
    ours = {name: float(value) for name, value in embedding_geometry(embeddings).items()}
    assert ours["positive_cosine"] == pytest.approx(sum(positives) / 5, abs=1e-6)
    assert ours["negative_cosine"] == pytest.approx(sum(negatives) / 20, abs=1e-6)
    assert ours["alignment"] == pytest.approx(sum(distances) / 5, abs=1e-5)
    assert ours["uniformity"] == pytest.approx(math.log(sum(potentials) / 20), abs=1e-5)


class Scripted(nn.Module):
    """Gives the outputs of a list, one a call."""

    def forward(self, output, attention_mask):
        return output


def trainer_that_draws(get_batch_samples):
    return SimpleNamespace(
        args=SimpleNamespace(
            dataloader_drop_last=False, train_batch_size=2, eval_batch_size=2, eval_strategy="no", world_size=1
        ),
        accelerator=SimpleNamespace(dataloader_config=SimpleNamespace(dispatch_batches=None)),
        callback_handler=SimpleNamespace(callbacks=[]),
        **{
            "data_collator": None,
            "train_dataset": None,
            "eval_dataset": None,
            "get_batch_samples": get_batch_samples,
            "evaluate": None,
        },
    )


def test_spread_histograms_and_stall_are_those_since_the_last_log(monkeypatch):
    """A batch of two has no rank to speak of, and no more than four of the ensemble's functionals."""
    generator, model, now = torch.Generator().manual_seed(0), Scripted(), [0.0]
    monkeypatch.setattr("docsplit.training.callbacks.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def passes(seconds):
        now[0] += seconds

    stand_in = trainer_that_draws(passes)
    callback = DocSplitCallback(stand_in)
    callback.on_train_begin(TrainingArguments(use_cpu=True), TrainerState(), TrainerControl(), model=model)
    for num_steps, documents in ((20, 2), (300, 2), (1, 1)):
        vectors, counts = [], []
        for _ in range(num_steps):
            vectors.append(torch.randn(documents, 2, 6, generator=generator))
            counts.append(torch.tensor([0, 1, 0, 3]) if len(counts) else torch.tensor([4, 0, 0, 0]))
            output = DocSplitOutput(loss=torch.zeros(()), contrastive_loss=torch.zeros(()), embeddings=vectors[-1])
            output.num_masked_negatives = torch.tensor(0)
            output.num_computed_tokens = 8 if len(counts) % 2 else torch.tensor(8)  # the host may know it
            output.objective_histograms = {"subnetworks": counts[-1]}
            stand_in.get_batch_samples(1)  # as Trainer draws batches
            callback.on_step_begin(None, None, None)
            passes(4)
            model(output=output, attention_mask=torch.ones(2, 2))
            callback.on_step_end(None, None, None)
            passes(100)
            callback.on_evaluate(None, None, None)
        logged = callback.flush()
        first_views = torch.cat(vectors)[-NUM_SPREAD:, 0].numpy()
        expected = spread(first_views) if len(first_views) > 1 else {}
        expected |= {f"subnetworks_{name}": value for name, value in usage(sum(counts).numpy()).items()}
        assert {name: logged.get(name) for name in expected} == pytest.approx(expected, abs=1e-5)
        assert ("effective_rank" in logged) == (num_steps > 1)
        assert (logged["padding_share"], logged["loader_stall"]) == (0.5, 0.2)  # 4 tokens of 8, 1 second of 5
        assert logged["tokens_per_second"] == pytest.approx(4 / 5)


BATCHES = {  # of each process: the values of a part of the loss, some of which have none, and documents
    0: [({"mlm_loss": 2.0}, 3), ({"mlm_loss": 4.0, "rare": 7.0}, 2), ({"mlm_loss": 6.0}, 1)],
    1: [({"mlm_loss": 8.0, "alone": 1.0}, 2), ({"mlm_loss": 1.0}, 1), ({"mlm_loss": 3.0, "rare": 9.0}, 1)],
}


def outputs_of(rank):
    generator = torch.Generator().manual_seed(rank)
    for parts, documents in BATCHES[rank]:
        parts = {name: torch.tensor(value) for name, value in parts.items()}
        yield DocSplitOutput(
            loss=torch.zeros(()),
            contrastive_loss=torch.tensor(float(documents)),
            mlm_loss=parts.pop("mlm_loss"),
            embeddings=torch.randn(documents, 2, 6, generator=generator),
            num_masked_negatives=torch.tensor(documents),
            num_computed_tokens=16,
            objective_parts=parts,
            objective_histograms={"subnetworks": torch.tensor([rank, 0, documents])},
        )


def _log_of_one_of_two(rank, port, folder):
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model, callback = Scripted(), DocSplitCallback(trainer_that_draws(None))
    callback.on_train_begin(TrainingArguments(use_cpu=True), TrainerState(), TrainerControl(), model=model)
    for output in outputs_of(rank):
        model(output=output, attention_mask=torch.ones(2, 2))
    (folder / f"{rank}.json").write_text(json.dumps(callback.flush()))
    torch.distributed.destroy_process_group()


def test_what_is_logged_is_of_all_processes_and_of_the_batches_that_have_it(tmp_path):
    spawn(_log_of_one_of_two, (free_port(), tmp_path), nprocs=2)
    values, outputs = defaultdict(list), [*outputs_of(0), *outputs_of(1)]
    for output in outputs:
        parts = {"contrastive_loss": output.contrastive_loss, "mlm_loss": output.mlm_loss} | output.objective_parts
        if len(output.embeddings) > 1:
            parts["negative_cosine"] = embedding_geometry(output.embeddings)["negative_cosine"]
        for name, value in parts.items():
            values[name].append(float(value))
    expected = {name: sum(of_name) / len(of_name) for name, of_name in values.items()}
    assert expected["mlm_loss"] == 4
    assert (expected["rare"], expected["alone"]) == (8, 1)
    expected |= {"masked_negatives": sum(len(output.embeddings) for output in outputs) / 3}  # a step
    expected |= {"padding_share": 1 - 6 * 4 / (6 * 16), "tokens_seen": 24}
    expected["subnetworks_active"] = 2 / 3
    for rank in (0, 1):
        logged = json.loads((tmp_path / f"{rank}.json").read_text())
        assert {name: logged[name] for name in expected} == pytest.approx(expected, abs=1e-5)
        assert not any(math.isnan(value) for value in logged.values())


@pytest.mark.parametrize(
    ("has_callback", "workers", "has_length"), [(True, 2, True), (False, 0, True), (True, 0, False)]
)
def test_a_trainer_of_ones_own_tells_the_truth(has_callback, workers, has_length, corpus, wordpiece, tmp_path, caplog):
    """Other views in each epoch, or a line that says not; what was drawn in config.json; the parts of the loss.

    Also of documents without a length, with a model that Trainer makes anew.
    """
    drawn, collators = defaultdict(set), []

    def make_model():
        torch.manual_seed(0)
        model = DocSplitForContrastivePretraining.from_config(tiny_config(wordpiece), wordpiece, max_seq_length=64)
        of_model = {"view": "crop", "max_seq_length": 20, "prompt": "storm "}
        collators.append(DocSplitCollator.for_model(model, wordpiece, **of_model))
        model.register_forward_pre_hook(note, with_kwargs=True)
        return model

    documents = tokenize(corpus.select(range(24)), wordpiece)[0].with_format("numpy")
    args = TrainingArguments(
        str(tmp_path), use_cpu=True, num_train_epochs=3, per_device_train_batch_size=6, logging_steps=2,
        remove_unused_columns=False, dataloader_num_workers=workers, eval_strategy="epoch",
        report_to=[], disable_tqdm=True, save_strategy="no", max_steps=-1 if has_length else 12,
    )  # fmt: skip

    def note(model, args, inputs):
        for document, views in zip(inputs["document_ids"].tolist(), inputs["input_ids"], strict=True):
            if model.training:
                drawn[document].add(wordpiece.decode(views[0], skip_special_tokens=True))
            assert views.shape[-1] <= 20

    trained = documents if has_length else documents.to_iterable_dataset()
    model = make_model()
    trainer = Trainer(
        model if has_length else None,
        args,
        collators[0],
        trained,
        documents.select(range(6)),
        processing_class=wordpiece,
        model_init=None if has_length else make_model,
    )
    if has_callback:
        DocSplitCallback(trainer)
    trainer.train()
    trainer.save_model()
    assert len(drawn) == len(documents)
    lines = [record.getMessage() for record in caplog.records if "the same views" in record.getMessage()]
    if has_callback:
        assert sum(len(views) == 3 for views in drawn.values()) > 20  # two spans may be alike by chance
        assert lines == []
    else:
        assert {len(views) for views in drawn.values()} == {1}
        assert len(lines) == 1
        assert "DocSplitCallback(trainer)" in lines[0]
    for entry in [entry for entry in trainer.state.log_history if "loss" in entry]:
        assert ("contrastive_loss" in entry) == has_callback
        if has_callback:
            assert entry["loss"] == pytest.approx(entry["contrastive_loss"] + 0.1 * entry["mlm_loss"], abs=2e-4)
    settings = json.loads((tmp_path / "config.json").read_text())["docsplit"]
    assert settings["view"] == "crop"
    released = SentenceTransformer(str(tmp_path), device="cpu")
    assert released.max_seq_length == 20
    np.testing.assert_array_equal(released.encode_document("a ship"), released.encode("storm a ship"))


@pytest.mark.parametrize(("train", "held_out", "purpose"), [(5, 6, "training"), (6, 5, "evaluation")])
def test_documents_that_fill_no_batch_are_refused(
    tiny_model, wordpiece, corpus, tmp_path, monkeypatch, train, held_out, purpose
):
    """Trainer would ask for max_steps, or evaluate nothing without a word."""
    documents = tokenize(corpus, wordpiece)[0].with_format("numpy")
    args = TrainingArguments(
        str(tmp_path), use_cpu=True, per_device_train_batch_size=6, per_device_eval_batch_size=6,
        dataloader_drop_last=True, remove_unused_columns=False, report_to=[], eval_strategy="epoch",
    )  # fmt: skip
    collator = DocSplitCollator.for_model(tiny_model, wordpiece)
    trainer = Trainer(tiny_model, args, collator, documents.select(range(train)), documents.select(range(held_out)))
    with pytest.raises(ValueError, match=f"5 {purpose} documents do not fill one batch of 6"):
        DocSplitCallback(trainer)
    args.eval_strategy = "no"
    if purpose == "evaluation":  # which nobody asked for
        DocSplitCallback(trainer)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="2 processes were started, and each would train alone"):
        DocSplitCallback(trainer)


def test_a_checkpoint_before_an_evaluation_is_resumed_bit_for_bit(wordpiece, corpus, tmp_path):
    """At the end of an epoch Trainer saves first; the run that resumes does not evaluate there again."""
    documents = tokenize(corpus, wordpiece)[0].with_format("numpy")

    def train(steps, folder, **how):
        torch.manual_seed(0)
        model = DocSplitForContrastivePretraining.from_config(tiny_config(wordpiece), wordpiece, max_seq_length=64)
        args = TrainingArguments(
            str(folder), use_cpu=True, per_device_train_batch_size=8, remove_unused_columns=False, report_to=[],
            eval_strategy="epoch", save_steps=4, max_steps=steps, disable_tqdm=True, dataloader_drop_last=True,
        )  # fmt: skip
        collator = DocSplitCollator.for_model(model, wordpiece)
        trainer = Trainer(model, args, collator, documents.select(range(32)), documents.select(range(40, 48)))
        DocSplitCallback(trainer)
        trainer.train(**how)
        return model.state_dict()

    whole = train(8, tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole" / "checkpoint-8")
    resumed = train(8, tmp_path / "whole", resume_from_checkpoint=True)
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_a_finished_run_that_is_resumed_takes_no_step(tmp_path, corpus_file, run_here):
    """At a learning rate that is not 0 at the end: stock Trainer takes one step more."""
    given = words(
        tmp_path, corpus_file, "--max_steps", 4, "--lr_scheduler_type", "constant", "--save_strategy", "epoch"
    )
    run_here(main, *given)
    before = weights_of(tmp_path)
    (tmp_path / "model.safetensors").unlink()  # else nothing is done
    run_here(main, *given, "--resume_from_checkpoint", "--overwrite_output_dir")
    after = weights_of(tmp_path)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((tmp_path / "all_results.json").read_text())["global_step"] == 4


# --- When a training stops ---


@pytest.mark.parametrize(
    "options",
    [
        ("--lora_r", 4, "--model_name_or_path", "encoder"),
        ("--save_strategy", "steps", "--save_steps", 1, "--gradient_accumulation_steps", 2, *FROM_NOTHING),
        ("--save_strategy", "epoch", "--max_steps", 1, *FROM_NOTHING),  # its only step is its last
    ],
    ids=["lora", "saving", "last_step"],
)
def test_a_diverging_run_stops_within_two_steps_and_writes_no_weights(
    run_here, tmp_path, corpus_file, encoder, options
):
    options = [encoder if word == "encoder" else word for word in options]
    given = ["--learning_rate", 1e38, "--max_grad_norm", 0, "--warmup_steps", 0, "--save_strategy", "no"]
    with pytest.raises(FloatingPointError, match=r"not finite after step [12]: .*--learning_rate"):
        run_here(main, *words(tmp_path, corpus_file, *given, "--max_steps", 9, *options, start=()))
    checkpoints = list(tmp_path.glob("checkpoint-*"))
    for folder in checkpoints:  # of the first step, after which they may be huge and yet finite
        assert all(value.isfinite().all() for value in load_file(folder / "model.safetensors").values())
    assert checkpoints or not [path for path in tmp_path.rglob("*") if path.suffix in (".safetensors", ".bin", ".pt")]


@pytest.mark.parametrize("where", ["loss", "parameter"])
def test_a_loss_or_a_parameter_is_enough(tiny_model, tmp_path, where):
    args, control, callback = (
        TrainingArguments(str(tmp_path), use_cpu=True),
        TrainerControl(),
        StopCallback(tiny_model),
    )
    for parameter in tiny_model.parameters():  # which is no reason: under fp16 the scaler skips such a step
        parameter.grad = torch.full_like(parameter, torch.inf)
    callback._observe(tiny_model.train(), None, SimpleNamespace(loss=torch.tensor(1.0)))
    callback.on_step_end(args, TrainerState(global_step=2), control)
    if where == "parameter":
        tiny_model.get_input_embeddings().weight.data[0, 0] = torch.inf
    callback._observe(tiny_model, None, SimpleNamespace(loss=torch.tensor(torch.nan if where == "loss" else 1.0)))
    with pytest.raises(FloatingPointError, match="step 3"):
        callback.on_step_end(args, TrainerState(global_step=3), control)


def test_a_device_answers_one_step_later_or_at_once_before_a_checkpoint():
    spawn(_answers_of_a_device, ())


def _answers_of_a_device(index):
    args, device = SimpleNamespace(world_size=1, learning_rate=1e-3, max_grad_norm=1.0, fp16=False), register()
    model = torch.nn.Linear(2, 2).eval()
    move(model)

    def end_step(callback, loss, control):
        callback._observe(model.train(), None, SimpleNamespace(loss=torch.tensor(loss)))
        with watched(Watch()):
            callback.losses = [loss.to(device) for loss in callback.losses]
            callback.on_step_end(args, TrainerState(global_step=1), control)

    for control in (TrainerControl(), TrainerControl(should_save=True), TrainerControl(should_training_stop=True)):
        callback = StopCallback(model)
        if control == TrainerControl():
            end_step(callback, torch.nan, control)
        with pytest.raises(FloatingPointError, match="after step 1"):
            end_step(callback, torch.nan, control)


def test_a_signal_to_one_process_stops_both_after_the_same_step(tmp_path, corpus_file):
    given = words(tmp_path, corpus_file, "--logging_steps", 1, "--num_train_epochs", 100, "--save_strategy", "no")
    first, second = start("run_docsplit_pretraining.py", *given, processes=2)
    assert wait_until(lambda: "tokens/s" in first.stdout or first.returncode or second.returncode)
    os.kill(second.pid, signal.SIGTERM)
    assert [script.wait(100).returncode for script in (first, second)] == [130, 130], first.stderr + second.stderr
    (checkpoint,) = tmp_path.glob("checkpoint-*")
    assert (checkpoint / MANIFEST).exists()


# --- What it has seen ---


@pytest.fixture
def steps(monkeypatch):
    """The documents of each training batch, as the model gets them."""
    seen, forward = [], DocSplitForContrastivePretraining.forward

    def spy(self, *args, **inputs):
        if self.training:
            seen.append(inputs["document_ids"].tolist())
        return forward(self, *args, **inputs)

    monkeypatch.setattr(DocSplitForContrastivePretraining, "forward", spy)
    return seen


def record_in(directory):
    return TrainingDocuments.load(directory / TRAINING_DOCUMENTS_FILE)


def assert_is(documents, batches):
    expected = sorted({document for batch in batches for document in batch})
    assert documents.ids.tolist() == expected
    assert documents.sketches.tolist() == [SKETCHES[document] for document in expected]


EVALUATED = ("--max_train_samples", 24, "--eval_strategy", "steps", "--eval_steps", 2, "--max_eval_samples", 4)


@pytest.mark.parametrize(
    ("options", "in_corpus"),
    [
        ((*EVALUATED, "--per_device_eval_batch_size", 2, "--dataloader_num_workers", 2), 24),
        (("--streaming", "--shuffle_buffer_size", 20, "--gradient_accumulation_steps", 2), None),
    ],
)
def test_the_record_is_what_the_steps_saw(run_here, steps, tmp_path, corpus_file, options, in_corpus):
    """Of several epochs, each document once."""
    run_here(main, *words(tmp_path, corpus_file, "--max_steps", 7, *options))
    per_step = len(steps) // 7
    assert_is(record_in(tmp_path / "checkpoint-3").run, steps[: 3 * per_step])
    assert_is(record_in(tmp_path).run, steps)
    assert_is(record_in(tmp_path).before, [])
    assert record_in(tmp_path).is_complete
    results = json.loads((tmp_path / "all_results.json").read_text())
    assert results["documents_used"] == len({document for batch in steps for document in batch})
    assert results["documents_in_corpus"] == in_corpus


def test_further_pretraining_keeps_what_the_start_had_seen(run_here, steps, tmp_path, corpus_file):
    first, second = tmp_path / "one", tmp_path / "two"
    run_here(main, *words(first, corpus_file, "--max_steps", 12))
    given = words(second, corpus_file, "--max_steps", 12, "--seed", 1, start=("--model_name_or_path", first))
    run_here(main, *given)
    assert_is(record_in(second).before, steps[:12])
    assert_is(record_in(second).run, steps[12:24])
    assert set(steps[0] + steps[1]) & {document for batch in steps[12:] for document in batch}  # some were seen twice
    assert json.loads((second / "all_results.json").read_text())["documents_used"] == len(record_in(second).run)
    # From a checkpoint of it; and without a record, after which the whole is unknown
    (first / TRAINING_DOCUMENTS_FILE).write_bytes(b"no such file")
    records = {}
    for place in (second / "checkpoint-9", first):
        model = SimpleNamespace(register_forward_pre_hook=lambda *_, **__: None)
        records[place] = SeenDocumentsCallback(SimpleNamespace(model=model), str(place), None).record
    assert_is(records[second / "checkpoint-9"].before, steps[:21])
    assert [record.is_complete for record in records.values()] == [True, False]


def test_the_best_weights_come_with_their_own_documents(run_here, tmp_path, corpus_file):
    given = ["--max_steps", 4, "--eval_strategy", "steps", "--eval_steps", 2, "--save_steps", 2]
    given += ["--load_best_model_at_end", "--metric_for_best_model", "eval_loss", "--greater_is_better", "true"]
    run_here(main, *words(tmp_path, corpus_file, *given, "--learning_rate", "3e-2"))
    chosen = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())["best_model_checkpoint"]
    assert chosen == str(tmp_path / "checkpoint-2")  # or this shows nothing
    ours, theirs = (folder / TRAINING_DOCUMENTS_FILE for folder in (tmp_path, tmp_path / "checkpoint-2"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert json.loads((tmp_path / "all_results.json").read_text())["documents_used"] == 16
