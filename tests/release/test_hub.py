"""A release on a Hub, over HTTP: what arrives loads there, what breaks is tried again, and no secret goes along."""

import json
import os
import shutil
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from docsplit.modeling.pretrained import HEAD_FILE, HEAD_INDEX
from docsplit.release import hub as release_hub
from docsplit.release.records import seal
from docsplit.training.arguments import PretrainingArguments
from tests.conftest import write_checkpoint
from tests.processes import ROOT, Script, start_server
from tests.release.hub_server import TOKEN, HubServer

MODEL = "hidden_size=32,num_hidden_layers=2,num_attention_heads=2,intermediate_size=64"
PRETRAIN = """
import run_docsplit_pretraining
from docsplit.release import hub
hub.FIRST_PAUSE = 0.01
run_docsplit_pretraining.main()
"""
WEIGHTS = "model-00001-of-00002.safetensors"  # of an encoder with a head
CANARY = "CanaryOfTheEnvironment"


@pytest.fixture(scope="module")
def hub_and_server(tmp_path_factory):
    """A Hub, and a server of processes that were told its address before they imported anything."""
    names = [name for name in os.environ if name.startswith("HF_") and name != "HF_DATASETS_CACHE"]
    with HubServer() as hub, pytest.MonkeyPatch.context() as monkeypatch:
        for name in names:
            monkeypatch.delenv(name)
        for name, value in {"ENDPOINT": hub.url, "HUB_DISABLE_XET": "1", "HUB_DISABLE_TELEMETRY": "1"}.items():
            monkeypatch.setenv(f"HF_{name}", value)
        monkeypatch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        hub.environment = dict(os.environ) | {"SECRET_SERVICE_KEY": CANARY}
        server = start_server(forkserver.ForkServer())
        monkeypatch.undo()
        yield hub, server
        os.kill(server._forkserver_pid, signal.SIGKILL)  # its own end takes seconds
        server._stop()


@pytest.fixture
def hub(hub_and_server):
    hub_and_server[0].empty()
    return hub_and_server[0]


@pytest.fixture
def python(hub, hub_and_server):
    """Runs `python words` with the token of somebody."""

    def start(*words, token=TOKEN, cwd=ROOT):
        environment = hub.environment | ({"HF_TOKEN": token} if token else {})
        return Script(*words, env=environment, cwd=cwd, server=hub_and_server[1]).wait()

    return start


@pytest.fixture
def pretrain(python, tmp_path, corpus_file):
    def pretrain(*options):
        random = () if "--model_name_or_path" in options else ("--config_overrides", MODEL, "--vocab_size", 300)
        result = python(
            "-c", PRETRAIN, "--corpus", corpus_file, "--output_dir", tmp_path / "out",
            *random, "--max_seq_length", 64, "--pooling", "mean", "--use_cpu",
            "--per_device_train_batch_size", 8, "--max_steps", 4, "--save_steps", 2, "--logging_steps", 2,
            "--disable_tqdm", "--push_to_hub", "--hub_model_id", "tester/docsplit-tiny", *options,
        )  # fmt: skip
        assert result.returncode == 0, result.stdout + result.stderr
        return result

    return pretrain


def last_line(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_a_release_arrives_and_loads_by_its_name(hub, pretrain, tmp_path):
    result = pretrain("--hub_private_repo", "--report_to", "tensorboard")
    files = hub.files["tester/docsplit-tiny"]
    assert hub.private["tester/docsplit-tiny"]
    assert {WEIGHTS, HEAD_FILE, HEAD_INDEX, "README.md", "modules.json", "1_Pooling/config.json",
            "tokenizer.json", "run.json", "all_results.json", "training.png",
            "training_documents.safetensors"} <= set(files)  # fmt: skip
    local = tmp_path / "out"
    assert all(content == (local / name).read_bytes() for name, content in files.items())
    assert {(local / name).stat().st_mode & 0o777 for name in files} == {0o644}  # others may read them here too
    assert not any(name.endswith((".bin", ".pt", ".pth", ".pkl")) or "checkpoint-" in name for name in files)
    assert [message for _, message, _ in hub.commits][-1] == "End of training"

    # nothing needs pickle, but for what Trainer resumes from; no secret is on the Hub, the disk or the screen
    written = [path for path in local.rglob("*") if path.is_file()]
    assert len(written) > 20
    resumed_from = {"optimizer.pt", "scheduler.pt", "rng_state.pth"}  # torch.load reads them with weights_only
    assert {path.name for path in written if path.suffix in (".bin", ".pt", ".pth", ".pkl")} <= resumed_from
    written += [path for path in Path(hub.environment["HF_HOME"]).rglob("*") if path.is_file()]
    everything = [path.read_bytes() for path in written] + [result.stdout.encode(), result.stderr.encode()]
    for secret in (TOKEN, CANARY):
        assert not any(secret.encode() in content for content in everything)

    card = ModelCard(files["README.md"].decode())
    assert card.data.library_name == "sentence-transformers"
    assert 'SentenceTransformer("tester/docsplit-tiny")' in card.text

    code = """
import json, logging
from transformers import AutoModel
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForMaskedLM
name, reports = "tester/docsplit-tiny", []
handler = logging.Handler()
handler.emit = lambda record: reports.append(record.getMessage())
logging.getLogger("transformers.modeling_utils").addHandler(handler)
print(json.dumps({
    "hidden": AutoModel.from_pretrained(name).config.hidden_size,
    "embedding": SentenceTransformer(name).encode("Bread and butter.").tolist(),
    "reports": list(reports),
    "head": AutoModelForMaskedLM.from_pretrained(name, variant="mlm").cls.predictions.bias.tolist(),
}))
"""
    loaded = last_line(
        subprocess.run(  # in a new Python, which has nothing of ours
            [sys.executable, "-c", code], cwd=tmp_path, env=hub.environment | {"HF_TOKEN": TOKEN}, capture_output=True,
            text=True,
        )
    )  # fmt: skip
    assert loaded["hidden"] == 32
    assert loaded["reports"] == []
    assert loaded["head"] == load_file(local / HEAD_FILE)["cls.predictions.bias"].tolist()
    expected = SentenceTransformer(str(local)).encode("Bread and butter.")
    np.testing.assert_allclose(loaded["embedding"], expected, atol=1e-6)


def test_a_broken_upload_is_tried_again(hub, pretrain):
    older = {"notes.txt": b"was here before", "evaluations/topics/results.json": b"of other weights"}
    older["model.safetensors"] = b"of a release without a head, which would be read before the files of this one"
    hub.files["tester/docsplit-tiny"] = older  # an existing repository is used
    hub.failures = ["drop", "error"]
    result = pretrain()
    assert "again in" in result.stderr
    assert TOKEN not in result.stderr + result.stdout
    assert [message for _, message, _ in hub.commits] == ["End of training"]
    assert set(hub.files["tester/docsplit-tiny"]) >= {"notes.txt", WEIGHTS}
    assert not {"evaluations/topics/results.json", "model.safetensors"} & set(hub.files["tester/docsplit-tiny"])


@pytest.mark.parametrize(
    ("repository", "token"), [("tester/docsplit-tiny", "hf_wrong"), ("somebody/else", TOKEN), ("somebody/else", None)]
)
def test_who_may_not_write_is_told_before_training(repository, token, hub, python):
    hub.files["somebody/else"] = {}  # there, and everybody may read it
    code = f"from docsplit.release.hub import create_repository; create_repository({repository!r})"
    result = python("-c", code, token=token)
    assert result.returncode == 1
    assert f"cannot write to {repository!r}" in result.stderr
    assert "hf auth login" in result.stderr
    assert (token or TOKEN) not in result.stderr


def test_a_token_on_the_command_line_is_refused(tmp_path):
    with pytest.raises(ValueError, match="process lists") as refused:
        PretrainingArguments(output_dir=str(tmp_path), hub_token="hf_x")
    assert "hf_x" not in str(refused.value)


def test_results_are_added_to_the_card_on_the_hub(hub, python, pretrain, tmp_path, corpus_file):
    pretrain()
    weights = hub.files["tester/docsplit-tiny"][WEIGHTS]
    result = python(
        "run_probe_classification.py", "--model_name_or_path", "tester/docsplit-tiny", "tfidf",
        "--train_file", corpus_file, "--heads", "linear", "--shots", "2", "--num_draws", "3", "--num_seeds", "1",
        "--output_dir", tmp_path / "topics", "--push_results",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert hub.commits[-1][1] == "Results: Classification"
    files = hub.files["tester/docsplit-tiny"]
    assert files[WEIGHTS] is weights  # not downloaded and sent back
    rows = json.loads((tmp_path / "topics" / "results.json").read_text())["rows"]
    ours = {row["shots"]: row for row in rows if row["encoder"] == "tester/docsplit-tiny" and row["features"] == "raw"}
    card = ModelCard(files["README.md"].decode())
    measured = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert measured["accuracy (linear, 2 labels a class)"] == round(ours[2]["accuracy_mean"], 4)
    assert measured["accuracy (linear)"] == round(ours[None]["accuracy_mean"], 4)
    assert "tfidf" in card.text
    assert 'SentenceTransformer("tester/docsplit-tiny")' in card.text
    assert str(tmp_path) not in card.content
    assert all(str(tmp_path).encode() not in content for content in files.values())

    # From two folders that were pushed there: neither is taken for the other
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    code = """
import json
from pathlib import Path
from docsplit.release.model_card import add_results
results = json.loads(Path("topics/results.json").read_text())
rows = [row | {"encoder": "out"} if "tester" in row["encoder"] else row for row in results["rows"]]
Path("twice").mkdir()
Path("twice/results.json").write_text(json.dumps(results | {"rows": rows}))
try:
    add_results(["out", "copy"], "Classification", "news", Path("twice"))
except SystemExit as error:
    print(json.dumps(str(error)))
"""
    assert "out and copy are all tester/docsplit-tiny" in last_line(python("-c", code, cwd=tmp_path))
    for folder in ("out", "copy"):
        assert "### Classification: news" in (tmp_path / folder / "README.md").read_text()


def test_a_checkpoint_that_changed_is_not_uploaded(tmp_path, monkeypatch):
    write_checkpoint(tmp_path)
    seal(tmp_path)
    (tmp_path / "README.md").write_text("a card that came later")
    monkeypatch.setattr(release_hub.API, "upload_folder", lambda **options: SimpleNamespace(commit_url="the commit"))
    assert release_hub.push(tmp_path, "somebody/encoder", "message") == "the commit"
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ValueError, match=r"is not uploaded: model\.safetensors has 13 bytes, not 1,000"):
        release_hub.push(tmp_path, "somebody/encoder", "message")


def test_a_failure_at_the_end_names_the_command_that_finishes(hub, python, tmp_path, monkeypatch):
    local = tmp_path / "out"
    local.mkdir()
    (local / "config.json").write_text("{}")
    (local / ".env").write_text("KEY=secret")
    (local / "model_old").mkdir()
    (local / "model_old" / "private.safetensors").write_text("mine")
    monkeypatch.setattr(release_hub, "push", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("gone")))
    with pytest.raises(SystemExit, match=r"python -m docsplit.release.hub .*out tester/finish"):
        release_hub.push_at_the_end(local, "tester/finish")
    assert (local / "config.json").exists()

    for folder in (local, tmp_path / "nowhere"):  # the first one without its release
        (local / "config.json").rename(local / "other.json")
        result = python("-m", "docsplit.release.hub", folder, "tester/finish")
        assert result.stderr == f"error: {folder} has no file of a release: name the folder of an encoder.\n"
        (local / "other.json").rename(local / "config.json")
    result = python("-m", "docsplit.release.hub", local, "somebody/else", token="hf_wrong")
    assert result.stderr.startswith(
        "error: You cannot write to 'somebody/else' on the Hub: log in with `hf auth login`"
    )
    assert len(result.stderr.splitlines()) == 1

    result = python("-m", "docsplit.release.hub", local, "tester/finish")
    assert result.returncode == 0, result.stderr
    assert hub.files["tester/finish"] == {"config.json": b"{}"}  # and nothing else that lay there


def test_a_start_that_is_kept_is_what_the_hub_gets(hub, pretrain, tmp_path, corpus_file):
    pretrain("--hub_model_id", "tester/start")
    start = dict(hub.files["tester/start"])
    shutil.rmtree(tmp_path / "out")
    options = ["--model_name_or_path", "tester/start", "--hub_model_id", "tester/kept", "--learning_rate", 0]
    pretrain(*options, "--probe_corpus", corpus_file, "--lora_r", 2)
    kept = hub.files["tester/kept"]
    assert json.loads(kept["all_results.json"])["kept_start"] is True
    of_the_run = {"all_results.json", "run.json", "training.png"}
    cached = set(kept) - of_the_run  # of a start on the Hub: the files that loading it has read
    assert {WEIGHTS, "config.json", "tokenizer.json", "modules.json", HEAD_FILE} <= cached
    assert not any(name.startswith("adapter/") for name in kept)  # of checkpoints that were pushed on the way
    assert all(kept[name] == start[name] for name in cached)


def test_an_adapted_encoder_arrives_and_loads_by_its_name(hub, python, tmp_path, reads_little, corpus_file):
    files = [path for path in reads_little.rglob("*") if path.is_file()]
    hub.files["tester/start"] = {path.relative_to(reads_little).as_posix(): path.read_bytes() for path in files}
    hub.files["tester/adapted"] = {"words/words.safetensors": b"of other weights", "notes.txt": b"mine"}
    given = ["--push_to_hub", "--hub_model_id", "tester/adapted", "--dtype", "float32"]
    result = python("adapt.py", "tester/start", corpus_file, tmp_path / "out", *given)
    assert result.returncode == 0, result.stderr
    files = dict(hub.files["tester/adapted"])
    assert files.pop("notes.txt") == b"mine"
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files == {path.relative_to(tmp_path / "out").as_posix(): path.read_bytes() for path in written}
    card = ModelCard(files["README.md"].decode())
    assert card.data.base_model == "tester/start"
    assert 'SentenceTransformer("tester/adapted", trust_remote_code=True)' in card.text
    code = """
import json
from sentence_transformers import SentenceTransformer
from docsplit.embedding.loading import load_encoder
for model in (SentenceTransformer("tester/adapted", trust_remote_code=True), load_encoder("tester/adapted")):
    print(json.dumps(model.encode(["Bread and butter."]).tolist()))
"""
    result = python("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    expected = SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True).encode(["Bread and butter."])
    for line in result.stdout.splitlines()[-2:]:
        np.testing.assert_allclose(json.loads(line), expected, atol=1e-6)
