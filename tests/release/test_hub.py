"""A release on a Hub of the tests' own: what arrives loads by its name, no secret goes."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from huggingface_hub import ModelCard, constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM

import run_docsplit_pretraining
import run_probe_classification
from docsplit import AdaptOptions, adapt
from docsplit.modeling.checked_files import HEAD_FILE, HEAD_INDEX
from docsplit.modeling.loading import load_encoder
from docsplit.release import hub as release_hub
from docsplit.release.model_card import add_results
from docsplit.release.records import RunRecord, seal
from tests.conftest import write_checkpoint

MODEL = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64"
WEIGHTS = "model.safetensors"
TOKEN = "hf_CanaryTokenThatNobodyMaySee"


def files_in(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(status):
    return HfHubHTTPError(f"{status} of the Hub", response=httpx.Response(status, request=httpx.Request("POST", "/")))


class Hub:
    """What `HfApi` does, in a folder of the form that huggingface_hub caches: what is there loads by its name.

    The next uploads raise `failures`; everybody may read, and only `tester` may write.
    """

    endpoint = "https://hub"

    def __init__(self, folder):
        self.folder, self.failures, self.commits, self.private = folder, [], [], {}

    def __getitem__(self, repo_id):
        place = self.folder / f"models--{repo_id.replace('/', '--')}"
        (place / "refs").mkdir(parents=True, exist_ok=True)
        (place / "refs" / "main").write_text("0" * 40)
        (place / "snapshots" / ("0" * 40)).mkdir(parents=True, exist_ok=True)
        return place / "snapshots" / ("0" * 40)

    def create_repo(self, repo_id, private, exist_ok):
        name = repo_id if "/" in repo_id else f"tester/{repo_id}"
        self.private.setdefault(name, private)
        return SimpleNamespace(repo_id=name)

    def model_info(self, repo_id):
        return SimpleNamespace(private=bool(self.private[repo_id]))

    def auth_check(self, repo_id, write):
        if write and not repo_id.startswith("tester/"):
            raise refusal(403)

    def upload_folder(self, repo_id, folder_path, commit_message, allow_patterns, delete_patterns):
        if self.failures:
            raise self.failures.pop(0)
        for name in filter_repo_objects(files_in(self[repo_id]), allow_patterns=delete_patterns or []):
            (self[repo_id] / name).unlink()
        self.copy(folder_path, self[repo_id], allow_patterns)
        self.commits.append(commit_message)
        return SimpleNamespace(commit_url="the commit")

    def download(self, repo_id, allow_patterns, local_dir):
        self.copy(self[repo_id], local_dir, allow_patterns)

    @staticmethod
    def copy(source, target, patterns):
        for name in filter_repo_objects(files_in(source), allow_patterns=patterns):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    made = Hub(tmp_path / "hub")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(made.folder))
    monkeypatch.setattr(release_hub, "API", made)
    monkeypatch.setattr(release_hub, "snapshot_download", made.download)
    return made


@pytest.fixture
def pretrain(hub, run_here, tmp_path, corpus_file):
    def pretrain(*options):
        random = () if "--model_name_or_path" in options else ("--config_overrides", MODEL, "--vocab_size", 300)
        run_here(
            run_docsplit_pretraining.main, "--corpus", corpus_file, "--output_dir", tmp_path / "out", *random,
            "--max_seq_length", 64, "--pooling", "mean", "--use_cpu", "--per_device_train_batch_size", 8,
            "--max_steps", 2, "--save_steps", 1, "--disable_tqdm", "--push_to_hub", "--hub_model_id", "tester/tiny",
            *options,
        )  # fmt: skip
        return tmp_path / "out"

    return pretrain


def test_a_public_repository_is_refused_where_a_private_one_is_asked_for(hub, pretrain, run_here, tmp_path):
    """Before anything is trained, or uploaded by hand: what is there stays as it is."""
    hub.private = {"tester/tiny": False, "tester/mine": True}
    with pytest.raises(ValueError, match="tester/tiny is on the Hub already, and public"):
        pretrain("--hub_private_repo")
    assert not [*tmp_path.glob("out/*.safetensors"), *tmp_path.glob("out/checkpoint-*")]
    write_checkpoint(tmp_path / "made")
    with pytest.raises(ValueError, match="Make it private"):
        run_here(release_hub.main, tmp_path / "made", "tester/tiny", "--private")
    assert hub.commits == []
    for name in ("tester/mine", "tester/new"):
        run_here(release_hub.main, tmp_path / "made", name, "--private")
    assert len(hub.commits) == 2
    assert hub.private == {"tester/tiny": False, "tester/mine": True, "tester/new": True}


def test_a_release_arrives_and_loads_by_its_name(hub, pretrain, caplog):
    older = {"notes.txt": b"was here before", "evaluations/topics/results.json": b"of other weights"}
    for name, content in older.items():
        (hub["tester/tiny"] / name).parent.mkdir(parents=True, exist_ok=True)
        (hub["tester/tiny"] / name).write_bytes(content)
    local = pretrain("--hub_private_repo")
    assert (hub.commits, hub.private) == (["End of training"], {"tester/tiny": True})
    files = files_in(hub["tester/tiny"])
    assert files.pop("notes.txt") == b"was here before"
    assert "evaluations/topics/results.json" not in files
    expected = {WEIGHTS, HEAD_FILE, HEAD_INDEX, "README.md", "modules.json", "1_Pooling/config.json", "tokenizer.json"}
    expected |= {"run.json", "all_results.json", "training.png", "training_documents.safetensors"}
    assert expected <= set(files)
    assert all(content == (local / name).read_bytes() for name, content in files.items())
    assert {(local / name).stat().st_mode & 0o777 for name in files} == {0o644}  # others may read them here too
    assert not any(name.endswith((".bin", ".pt", ".pth", ".pkl")) or "checkpoint-" in name for name in files)
    # nothing needs pickle, but for what Trainer resumes from with weights_only; the token is nowhere
    written = files_in(local)
    pickles = {Path(name).name for name in written if name.endswith((".bin", ".pt", ".pth", ".pkl"))}
    assert pickles == {"optimizer.pt", "scheduler.pt", "rng_state.pth"}
    assert not any(TOKEN.encode() in content for content in written.values())
    assert TOKEN not in caplog.text

    _, report = AutoModel.from_pretrained("tester/tiny", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    head = AutoModelForMaskedLM.from_pretrained("tester/tiny", variant="mlm").cls.predictions.bias.detach()
    assert head.tolist() == load_file(local / HEAD_FILE)["cls.predictions.bias"].tolist()
    loaded, expected = (SentenceTransformer(name).encode("Bread and butter.") for name in ("tester/tiny", str(local)))
    np.testing.assert_allclose(loaded, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        ("create_repo", refusal(401), r"cannot write to 'tester/tiny' on the Hub: .*hf auth login"),
        ("auth_check", refusal(403), r"cannot write to 'tester/tiny' on the Hub: .*hf auth login"),
        (
            "create_repo",
            HTTPError("not known"),
            r"no network: .*not known.*Run without --push_to_hub.*tiny --private`",
        ),
    ],
)
def test_who_cannot_write_is_told_before_training(method, error, message, hub, monkeypatch):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(hub, method, refuse)
    with pytest.raises(ValueError, match=message):
        release_hub.create_repository("tester/tiny", private=True)


def test_results_are_added_to_the_card_on_the_hub(hub, encoder, tmp_path, corpus_file, run_here):
    local = shutil.copytree(encoder, tmp_path / "out")
    RunRecord(hardware="", processes=1, commit=None, hub_model_id="tester/tiny").write(local)
    release_hub.push(local, "tester/tiny", "")
    run_here(
        run_probe_classification.main, "--model_name_or_path", "tester/tiny", "tfidf", "--train_file", corpus_file,
        "--heads", "knn", "--shots", "2", "--num_draws", "3", "--num_seeds", "1", "--output_dir",
        tmp_path / "topics", "--push_results",
    )  # fmt: skip
    assert hub.commits == ["", "Results: Classification"]
    assert not list((tmp_path / "topics").rglob("model*.safetensors"))  # no weights come down
    files = files_in(hub["tester/tiny"])
    rows = json.loads((tmp_path / "topics" / "results.json").read_text())["rows"]
    ours = {row["shots"]: row for row in rows if row["encoder"] == "tester/tiny" and row["features"] == "raw"}
    card = ModelCard(files["README.md"].decode())
    measured = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert measured["accuracy (knn, 2 labels a class)"] == round(ours[2]["accuracy_mean"], 4)
    assert measured["accuracy (knn)"] == round(ours[None]["accuracy_mean"], 4)
    assert "tfidf" in card.text
    assert 'SentenceTransformer("tester/tiny")' in card.text
    assert all(str(tmp_path).encode() not in content for content in files.values())

    # From two folders that were pushed there: neither is taken for the other
    folders = [str(local), str(shutil.copytree(local, tmp_path / "copy"))]
    named = [row | {"encoder": folders[0]} if row["encoder"] == "tester/tiny" else row for row in rows]
    results = json.loads((tmp_path / "topics" / "results.json").read_text()) | {"rows": named}
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice" / "results.json").write_text(json.dumps(results))
    with pytest.raises(SystemExit, match=r"out and .*copy are all tester/tiny"):
        add_results(folders, "Classification", "news", tmp_path / "twice")
    for folder in folders:
        assert "### Classification: news" in Path(folder, "README.md").read_text()


def test_a_checkpoint_that_changed_is_not_uploaded(hub, tmp_path):
    write_checkpoint(tmp_path / "checkpoint")
    seal(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "README.md").write_text("a card that came later")
    for name in (HEAD_FILE, "notes.txt"):  # the first of a release with a head, which this one does not have
        (hub["tester/tiny"] / name).write_bytes(b"mine")
    assert release_hub.push(tmp_path / "checkpoint", "tester/tiny", "message") == "the commit"
    assert {"model.safetensors", "notes.txt"} <= files_in(hub["tester/tiny"]).keys()
    assert HEAD_FILE not in files_in(hub["tester/tiny"])
    (tmp_path / "checkpoint" / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ValueError, match=r"is not uploaded: model\.safetensors has 13 bytes, not 1,000"):
        release_hub.push(tmp_path / "checkpoint", "tester/tiny", "message")


def test_a_failure_at_the_end_names_the_command_that_finishes(hub, run_here, failure_of, tmp_path, capsys):
    local = tmp_path / "out"
    (local / "model_old").mkdir(parents=True)
    for name in ("config.json", ".env", "model_old/private.safetensors"):
        (local / name).write_text("mine")
    hub.failures = [refusal(403)]
    with pytest.raises(SystemExit, match=r"python -m docsplit.release.hub .*out tester/finish"):
        release_hub.push_at_the_end(local, "tester/finish")
    for folder in (local / "model_old", tmp_path / "nowhere"):
        message = failure_of(release_hub.main, folder, "tester/finish")
        assert message == f"{folder} has no file of a release: name the folder of an encoder."
    run_here(release_hub.main, local, "tester/finish")
    assert "On the Hub: https://hub/tester/finish" in capsys.readouterr().out
    assert files_in(hub["tester/finish"]) == {"config.json": b"mine"}  # and nothing else that lay there


def test_a_start_that_is_kept_is_what_the_hub_gets(hub, pretrain, encoder, corpus_file):
    shutil.copytree(encoder, hub["tester/start"], dirs_exist_ok=True)
    (hub["tester/tiny"] / "vocab.json").write_text("of other weights")
    options = ["--model_name_or_path", "tester/start", "--learning_rate", 0, "--max_steps", 1]
    pretrain(*options, "--probe_corpus", corpus_file)
    start, kept = (files_in(hub[name]) for name in ("tester/start", "tester/tiny"))
    assert json.loads(kept["all_results.json"])["kept_start"] is True
    assert {WEIGHTS, "config.json", "tokenizer.json", "modules.json", HEAD_FILE} <= start.keys()
    of_the_run = {"all_results.json", "run.json", "training.png"}
    assert {name: content for name, content in kept.items() if name not in of_the_run} == start


def test_an_adapted_encoder_arrives_and_loads_by_its_name(hub, tmp_path, reads_little, corpus_file):
    shutil.copytree(reads_little, hub["tester/start"], dirs_exist_ok=True)
    for name in ("all_results.json", "notes.txt"):  # the first of other weights
        (hub["tester/adapted"] / name).write_bytes(b"mine")
    options = AdaptOptions(push_to_hub=True, hub_model_id="tester/adapted", dtype="float32")
    adapt("tester/start", corpus_file, tmp_path / "out", options)
    files = files_in(hub["tester/adapted"])
    assert files.pop("notes.txt") == b"mine"
    assert files == files_in(tmp_path / "out")
    card = ModelCard(files["README.md"].decode())
    assert card.data.base_model == "tester/start"
    assert 'SentenceTransformer("tester/adapted", trust_remote_code=True)' in card.text
    expected = SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True).encode(["Bread and butter."])
    for model in (
        SentenceTransformer("tester/adapted", trust_remote_code=True),
        load_encoder("tester/adapted"),
    ):
        np.testing.assert_allclose(model.encode(["Bread and butter."]), expected, atol=1e-6)
