"""The script, as a user runs it: real processes, real kills, real checkpoints loaded elsewhere."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file

from docsplit.embedding.encode import embed_documents
from docsplit.training import checkpoints
from modeling_docsplit import DocSplitForContrastivePretraining
from run_docsplit_pretraining import main
from tests.processes import ROOT, Script, launched, process_of_rank, start, wait_until
from tests.processes import run as run_script

TINY = "hidden_size=32,num_hidden_layers=2,num_attention_heads=2,intermediate_size=64,max_position_embeddings=64"
TWO_THREADS = {"OMP_NUM_THREADS": "2"}  # sums of others are equal up to rounding only
TEXTS = ["The ship was in the storm. It had a sail.", "Bread, butter and a kettle on the oven."]

# Run outside the repository, without trusting remote code: what a stranger does with a checkpoint.
LOAD = """
import json, sys, numpy as np, torch
from pathlib import Path
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer
directories, texts = json.loads(sys.argv[1])
for number, directory in enumerate(directories):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    encoder = AutoModel.from_pretrained(directory, add_pooling_layer=False).eval()
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = encoder(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    ours = ((states * mask).sum(1) / mask.sum(1)).numpy()
    sentences = SentenceTransformer(directory, device="cpu")
    is_release = (Path(directory) / "mlm_head.safetensors").exists()
    masked = AutoModelForMaskedLM.from_pretrained(directory, variant="mlm" if is_release else None)
    assert masked.get_output_embeddings().weight is masked.get_input_embeddings().weight
    np.savez(f"{number}.npz", ours=ours, theirs=sentences.encode(texts), length=sentences.max_seq_length)
"""


def words(output_dir, corpus_file, *options):
    return [
        "run_docsplit_pretraining.py", "--corpus", str(corpus_file), "--output_dir", str(output_dir),
        "--config_overrides", TINY, "--vocab_size", "300", "--pooling", "mean", "--max_seq_length", "48",
        "--use_cpu", "--per_device_train_batch_size", "4", "--learning_rate", "1e-3", "--logging_steps", "1",
        "--save_steps", "4", "--disable_tqdm", "true", *map(str, options),
    ]  # fmt: skip


def run(output_dir, corpus_file, *options, **how):
    return run_script(*words(output_dir, corpus_file, *options), **how)


def run_new(output_dir, corpus_file, *options):
    """In a new Python, where the hash seed is another and all is imported anew."""
    command = [sys.executable, *words(output_dir, corpus_file, *options)]
    environment = os.environ | TWO_THREADS
    result = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


def wait_for(condition, process, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.returncode is None, process.stdout + process.stderr
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def weights(directory):
    """Return the weights of the encoder, under `AutoModel`'s names, and of the head, of a checkpoint or a release."""
    files = [*Path(directory).glob("model*.safetensors"), *Path(directory).glob("mlm_head.safetensors")]
    tensors = [item for file in files for item in load_file(file).items()]
    return {name.removeprefix("bert."): value for name, value in tensors if "pooler." not in name}


def assert_same_weights(first, second):
    first, second = weights(first), weights(second)
    assert first.keys() == second.keys()
    for name in first:
        assert (first[name] == second[name]).all(), name


def assert_same_documents(first, second):
    """Assert that both records name the same training documents."""
    first, second = (load_numpy(Path(directory) / "training_documents.safetensors") for directory in (first, second))
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus_file):
    """One whole run with a probe and evaluation, which several tests look at."""
    output_dir = tmp_path_factory.mktemp("finished")
    result = run(
        output_dir, corpus_file, "--max_steps", 12, "--probe_corpus", corpus_file, "--eval_strategy", "steps",
        "--eval_steps", 6, "--report_to", "tensorboard",
    )  # fmt: skip
    return output_dir, result


def test_results_have_the_names_others_rely_on(finished):
    output_dir, result = finished
    results = json.loads((output_dir / "all_results.json").read_text())
    for name in (
        "train_runtime", "train_tokens_per_second", "documents_used", "documents_in_corpus", "documents_dropped",
        "probe_before_5shot_accuracy", "probe_after_5shot_accuracy", "probe_before_accuracy", "probe_after_accuracy",
        "tfidf_5shot_accuracy", "tfidf_accuracy",
    ):  # fmt: skip
        assert results[name] >= 0, name
    assert results["documents_in_corpus"] == 150
    kept = results["documents_held_out"] + results["documents_kept_for_probe"]
    assert results["documents_used"] == 12 * 4 < 150 - kept  # less than one pass over the rest
    assert results["tfidf_accuracy"] > 0.9  # topics with words of their own: a probe that cannot see them is broken
    assert "\nafter pretraining" in result.stdout
    assert (output_dir / "training.png").stat().st_size > 10_000
    assert "SentenceTransformer(" in (output_dir / "README.md").read_text()


def test_the_log_has_loss_parts_geometry_and_throughput(finished):
    output_dir, _ = finished
    history = json.loads((output_dir / "checkpoint-12" / "trainer_state.json").read_text())["log_history"]
    steps = [entry for entry in history if "contrastive_loss" in entry]
    assert len(steps) == 12
    for entry in steps:
        assert entry["loss"] == pytest.approx(entry["contrastive_loss"] + 0.1 * entry["mlm_loss"], rel=1e-3)
        assert entry["alignment"] == pytest.approx(2 - 2 * entry["positive_cosine"], abs=1e-4)
        assert -1 <= entry["negative_cosine"] <= 1
        assert entry["tokens_per_second"] > 0
        assert 0 <= entry["padding_share"] < 1
    assert [entry["step"] for entry in history if "probe_accuracy" in entry] == [0, 6, 12]
    assert sum("eval_loss" in entry for entry in history) == 2
    events = [path for path in output_dir.rglob("events.out.tfevents*") if b"contrastive_loss" in path.read_bytes()]
    assert events


def test_each_directory_loads_elsewhere_with_the_same_embeddings(finished, tmp_path):
    directories = [finished[0], finished[0] / "checkpoint-8"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-c", LOAD, json.dumps([[*map(str, directories)], TEXTS])],
        cwd=tmp_path, env=environment | {"HF_HUB_OFFLINE": "1"}, check=True,
    )  # fmt: skip
    embeddings = []
    for number, directory in enumerate(directories):
        loaded = np.load(tmp_path / f"{number}.npz")
        model = DocSplitForContrastivePretraining.from_pretrained(directory)
        ours, _ = embed_documents(model.body, TEXTS, dtype=torch.float32)
        np.testing.assert_allclose(loaded["ours"], ours, atol=1e-5)
        np.testing.assert_allclose(loaded["theirs"], ours, atol=1e-5)
        assert np.abs(ours[0] - ours[1]).max() > 1e-3
        assert loaded["length"] == 48
        embeddings.append(ours)
    assert np.abs(embeddings[0] - embeddings[1]).max() > 1e-3  # of step 12 and of step 8


def test_a_killed_run_resumes_to_the_same_parameters(tmp_path, corpus_file):
    """SIGKILL in the middle of the second epoch, dropout on; then once more while a checkpoint is being written."""
    options = [
        "--num_train_epochs", "5", "--max_steps", 14, "--save_steps", 3, "--gradient_accumulation_steps", 4,
        "--dataloader_num_workers", 2, "--probe_corpus", corpus_file,
    ]  # fmt: skip
    environment = os.environ | TWO_THREADS
    run(tmp_path / "whole", corpus_file, *options, env=environment)
    killed = tmp_path / "killed"
    for sign, resume in (
        ("checkpoint-12/checkpoint_manifest.json", []),
        ("checkpoint-14/model.safetensors", ["--resume_from_checkpoint"]),  # its other files are being written
    ):
        process = Script(*words(killed, corpus_file, *options, *resume), env=environment)
        wait_for((killed / sign).exists, process)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait().returncode == -signal.SIGKILL
    assert not (killed / "all_results.json").exists()
    run_new(killed, corpus_file, *options, "--resume_from_checkpoint")
    assert_same_weights(tmp_path / "whole", killed)
    assert_same_documents(tmp_path / "whole", killed)
    whole, resumed = (json.loads((path / "all_results.json").read_text()) for path in (tmp_path / "whole", killed))
    for name in ("global_step", "probe_before_accuracy", "probe_before_5shot_accuracy", "probe_after_accuracy"):
        assert whole[name] == resumed[name]
    start, end = weights(tmp_path / "whole" / "checkpoint-3"), weights(tmp_path / "whole")
    assert any((start[name] != end[name]).any() for name in start)  # or the comparison shows nothing


def test_a_stream_goes_on_to_the_same_parameters(tmp_path, corpus_file, run_here):
    """From the second pass over the documents, dropout on; accumulation, held-out and probe documents."""
    options = [
        "--streaming", "--max_steps", 18, "--save_steps", 6, "--shuffle_buffer_size", 20,
        "--gradient_accumulation_steps", 2, "--dataloader_num_workers", 2, "--probe_corpus", corpus_file,
        "--eval_strategy", "steps", "--eval_steps", 16, "--max_eval_samples", 10, "--view", "docsplit",
    ]  # fmt: skip
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    run_here(main, *words(whole, corpus_file, *options)[1:])
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoint-18")
    run_here(main, *words(resumed, corpus_file, *options, "--resume_from_checkpoint")[1:])
    assert_same_weights(whole, resumed)
    assert_same_documents(whole, resumed)
    results = json.loads((whole / "all_results.json").read_text())
    again = json.loads((resumed / "all_results.json").read_text())
    for name in ("documents_used", "probe_after_accuracy"):
        assert results[name] == again[name]
    assert 150 - 30 - 10 <= results["documents_used"] <= 150 - 30  # not the probe's and held-out ones; some are both
    assert results["documents_held_out"] == 10
    first, last = weights(whole / "checkpoint-12"), weights(whole)
    assert any((first[name] != last[name]).any() for name in first)


def test_a_stream_of_two_processes_that_is_killed_goes_on_to_the_same_parameters(tmp_path, corpus_file):
    """In the second pass; both processes are killed, and resume from the checkpoint that was whole."""
    options = [
        "--streaming", "--max_steps", 24, "--save_steps", 6, "--shuffle_buffer_size", 10, "--eval_strategy", "steps",
        "--eval_steps", 24, "--max_eval_samples", 10, "--dataloader_num_workers", 1, "--view", "docsplit",
    ]  # fmt: skip
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole, corpus_file, *options, processes=2)
    processes = start(*words(killed, corpus_file, *options), processes=2)
    wait_for((killed / "checkpoint-18" / "checkpoint_manifest.json").exists, processes[0])
    for process in processes:
        process.kill()
        assert process.wait().returncode == -signal.SIGKILL
    assert not (killed / "all_results.json").exists()
    run(killed, corpus_file, *options, "--resume_from_checkpoint", processes=2)
    assert_same_weights(whole, killed)
    assert_same_documents(whole, killed)
    first, last = weights(whole / "checkpoint-18"), weights(whole)
    assert any((first[name] != last[name]).any() for name in first)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "end"), [(1, signal.SIGKILL), (0, signal.SIGSTOP)])
def test_the_launcher_starts_a_lost_process_again_and_the_run_goes_on(tmp_path, corpus_file, rank, end):
    """torchrun alone would resume nothing: the folder has checkpoints, and its store the old processes' addresses."""
    options = ["--max_steps", 24, "--ddp_timeout", 5]
    run(tmp_path / "whole", corpus_file, *options, processes=2)
    lost, log = tmp_path / "lost", tmp_path / "log"
    with launched(2, *words(lost, corpus_file, *options), restarts=1, log=log) as launcher:
        assert wait_until((lost / "checkpoint-8" / "checkpoint_manifest.json").exists)
        process_of_rank(launcher.pid, rank).send_signal(end)
        assert launcher.wait(300) == 0, log.read_text()
    (line,) = [line for line in log.read_text().splitlines() if "started the processes again" in line]
    assert "(restart 1): continuing from" in line
    assert_same_weights(tmp_path / "whole", lost)
    assert_same_documents(tmp_path / "whole", lost)


def test_ctrl_c_leaves_a_checkpoint_to_resume_from(tmp_path, corpus_file):
    options = ["--num_train_epochs", "100", "--save_steps", "1000"]
    process = Script(*words(tmp_path / "run", corpus_file, *options))
    wait_for(lambda: "tokens/s" in process.stdout, process)
    os.kill(process.pid, signal.SIGINT)
    output = process.wait(100).stdout + process.stderr
    assert process.returncode == 130, output
    assert "--resume_from_checkpoint" in output
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    step = int(checkpoint.name.split("-")[1])
    resumed = run(
        tmp_path / "run", corpus_file, *options[2:], "--max_steps", step + 1, "--resume_from_checkpoint", checkpoint
    )
    assert json.loads((tmp_path / "run" / "all_results.json").read_text())["global_step"] == step + 1, resumed.stderr


def test_the_checkpoint_to_start_from_is_not_removed(failure_of, finished, corpus_file):
    checkpoint = checkpoints.newest_complete(finished[0])
    options = words(finished[0], corpus_file, "--model_name_or_path", checkpoint, "--overwrite_output_dir")[1:]
    position = options.index("--config_overrides")
    assert "choose another --output_dir" in failure_of(main, *options[:position], *options[position + 2 :])
    assert checkpoints.newest_complete(finished[0]) == checkpoint


def test_two_processes_train_as_one(tmp_path, corpus_file):
    """Two processes with batches of 4 and one with batches of 8 see the same documents, views and negatives."""
    options = [
        "--config_overrides", f"{TINY},hidden_dropout_prob=0.0,attention_probs_dropout_prob=0.0", "--max_steps", "6",
        "--save_steps", "3", "--probe_corpus", corpus_file, "--eval_strategy", "steps", "--eval_steps", "3",
        "--learning_rate", "1e-4", "--optim", "sgd", "--bf16", "false",
    ]  # fmt: skip
    run(tmp_path / "one", corpus_file, *options, "--per_device_train_batch_size", "8")
    run(tmp_path / "two", corpus_file, *options, processes=2)
    left, right = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in left:
        np.testing.assert_allclose(left[name], right[name], atol=1e-6, rtol=1e-4)
    results = [json.loads((tmp_path / name / "all_results.json").read_text()) for name in ("one", "two")]
    assert_same_documents(tmp_path / "one", tmp_path / "two")
    assert_same_documents(tmp_path / "one" / "checkpoint-3", tmp_path / "two" / "checkpoint-3")
    assert results[0]["documents_used"] == results[1]["documents_used"] == 6 * 8
    assert results[0]["train_tokens"] == results[1]["train_tokens"]
    assert results[0]["probe_before_accuracy"] == results[1]["probe_before_accuracy"]
    assert checkpoints.newest_complete(tmp_path / "two").name == "checkpoint-6"
    assert (tmp_path / "two" / "checkpoint-6" / "rng_state_1.pth").exists()  # so it did run on two


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--view", "passages"], "lower --passage_words"),
        (["--deepspeed", "zero2.json"], "DDP"),
        (["--sentence_splitter", "xx_none"], "spacy download"),
        (["--max_seq_length", "500"], "64 tokens"),
        (["--per_device_train_batch_size", "151"], "151"),
    ],
)
def test_wrong_options_end_with_a_message(failure_of, tmp_path, corpus_file, options, message):
    assert message in failure_of(main, *words(tmp_path, corpus_file, "--max_steps", 1, *options)[1:])


def test_the_start_is_looked_for_before_the_corpus(failure_of, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    for name in ("no/such-model", tmp_path / "nowhere", "bert-base-uncasedd"):
        message = failure_of(main, "--corpus", tmp_path / "empty.jsonl", "--model_name_or_path", name)
        is_path = isinstance(name, Path)
        assert message.startswith(f"There is no {name}: " if is_path else f"{name!r} cannot be loaded as an encoder")
        assert "\n" not in message
