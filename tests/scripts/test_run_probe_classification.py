"""The probe script, as a user runs it: several encoders side by side, several processes, bad input."""

import json
import shutil

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import BertModel
from transformers.models.bert.modeling_bert import BertEmbeddings

from docsplit.data.copies import document_id, sketch
from docsplit.data.seen_documents import TrainingDocuments
from run_probe_classification import main
from tests.conftest import make_corpus, tiny_config
from tests.processes import run

FEW_EPOCHS = {"max_epochs": 3, "few_shot_epochs": 3}  # what the MLP learns is tested with the heads
TWO_CS = (1.0, 100.0)  # and which C is chosen
SCRIPT = (
    "-c",
    f"from docsplit.evaluation.heads.presets import PRESETS; vars(PRESETS['docsplit'].mlp).update({FEW_EPOCHS}); "
    f"from docsplit.evaluation.heads import frozen; frozen.C_GRID = {TWO_CS}; "
    "from run_probe_classification import main; main()",
)
COLUMNS = {
    "encoder", "head", "shots", "accuracy_mean", "accuracy_std", "macro_f1_mean", "macro_f1_std", "micro_f1_mean",
    "seconds", "pooling", "max_seq_length", "runs", "num_parameters", "trainable_share", "dtype",
}  # fmt: skip


@pytest.fixture(scope="module")
def encoders(encoder, wordpiece, tmp_path_factory):
    """A checkpoint of this project, and a plain AutoModel that says nothing about pooling."""
    folder = tmp_path_factory.mktemp("encoders")
    shutil.copytree(encoder, folder / "ours")  # its card is written
    BertModel(tiny_config(wordpiece)).save_pretrained(folder / "plain")
    wordpiece.save_pretrained(folder / "plain")
    return [str(folder / "ours"), str(folder / "plain")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labelled")
    rows = make_corpus(180, seed=5)
    for name, part in {"train": rows[:90], "validation": rows[90:120], "test": rows[120:]}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)) + "\n")
    return folder


def options(files, output_dir, *others):
    named = [word for name in ("train", "validation", "test") for word in (f"--{name}_file", files / f"{name}.jsonl")]
    return [str(word) for word in (*named, "--output_dir", output_dir, "--dtype", "float32", *others)]


def test_rows_say_how_many_test_documents_were_seen(run_here, encoders, files, tmp_path, capsys):
    texts = [json.loads(line)["text"] for name in ("train", "test") for line in (files / f"{name}.jsonl").open()]
    record, seen = TrainingDocuments(), texts[:110]  # all to train a head on, and the first third of the test
    record.run.add(np.array([document_id(text) for text in seen]), sketch(seen))
    shutil.copytree(encoders[0], tmp_path / "seen")
    record.save(tmp_path / "seen")
    names = [str(tmp_path / "seen"), encoders[1], "tfidf"]
    words = options(files, tmp_path / "out", "--heads", "knn", "--num_draws", 2)
    run_here(main, "--model_name_or_path", *names, *words)
    shares = {row["encoder"]: row["seen_in_pretraining_share"] for row in results_of(tmp_path / "out")["rows"]}
    assert shares == {names[0]: pytest.approx(20 / 60, abs=0.02), names[1]: None, "tfidf": None}
    assert all("near_duplicate_share" in row for row in results_of(tmp_path / "out")["rows"])
    printed = capsys.readouterr().out
    assert f"saw {100 * shares[names[0]]:.1f} % of the test documents in training (" in printed
    assert printed.count(" saw ") == 1  # nothing is said of encoders of others
    assert "One training run of" in printed


def results_of(output_dir):
    return json.loads((output_dir / "results.json").read_text())


@pytest.fixture(scope="module")
def finished(encoders, files, tmp_path_factory):
    """An encoder and TF-IDF, few-shot and full data, raw and standardised features."""
    output_dir = tmp_path_factory.mktemp("probe")
    words = ["--model_name_or_path", encoders[0], "tfidf", "--shots", "5", "--num_draws", "2", "--num_seeds", "2"]
    output = run(*SCRIPT, *options(files, output_dir, *words))
    return output_dir, output


def test_every_row_is_there_with_its_numbers(finished, encoders):
    rows = results_of(finished[0])["rows"]
    expected = {
        (encoders[0], head, shots, features)
        for head in ("mlp", "linear", "knn")
        for shots in (5, None)
        for features in ("raw", "standardized")
    } | {("tfidf", head, shots, "raw") for head in ("linear", "knn") for shots in (5, None)}
    assert {(row["encoder"], row["head"], row["shots"], row["features"]) for row in rows} == expected
    assert len(rows) == len(expected)
    for row in rows:
        assert row.keys() >= COLUMNS
        assert 0 <= row["accuracy_low"] <= row["accuracy_mean"] <= row["accuracy_high"] <= 1
        assert row["runs"] == (2 if row["shots"] else 1 if row["head"] == "knn" else 2)
    facts = {row["encoder"]: (row["pooling"], row["max_seq_length"]) for row in rows}
    assert facts == {encoders[0]: ("mean", 64), "tfidf": (None, None)}
    # Topics are words: TF-IDF reads them off, and more labels help it.
    best = {row["shots"]: row["accuracy_mean"] for row in rows if (row["encoder"], row["head"]) == ("tfidf", "linear")}
    assert best[5] <= best[None]
    assert best[None] > 0.9


def test_the_report_is_complete(finished, encoders):
    output_dir, output = finished
    results = results_of(output_dir)
    assert {"rows", "comparisons", "statistics", "settings", "versions"} <= set(results)
    assert [row["documents"] for row in results["statistics"]] == [90, 30, 60]
    compared = {(row["head"], row["shots"], row["a"], row["b"]) for row in results["comparisons"]}
    assert ("linear", None, encoders[0], "tfidf") in compared
    assert "Accuracy, 5 labels" in (output_dir / "results.md").read_text()
    assert "tfidf: " in output.stdout
    assert "standardized" not in output.stdout
    assert (output_dir / "few_shot.png").stat().st_size > 10_000


def test_two_processes_give_the_same_results(finished, encoders, files, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))  # nothing embedded yet
    words = ["--model_name_or_path", encoders[0], "--shots", "5", "--num_draws", "2", "--num_seeds", "2"]
    run(*SCRIPT, *options(files, tmp_path / "two", *words, "--heads", "linear"), processes=2)
    two = results_of(tmp_path / "two")
    assert two["settings"]["processes"] == 2
    alone = {
        (row["encoder"], row["head"], row["shots"], row["features"]): row for row in results_of(finished[0])["rows"]
    }
    compared = 0
    for row in two["rows"]:
        same = alone[row["encoder"], row["head"], row["shots"], row["features"]]
        for name in ("accuracy_mean", "macro_f1_mean", "accuracy_std"):
            assert row[name] == pytest.approx(same[name], abs=1e-6)
        compared += 1
    assert compared == 4


def test_encoders_from_several_seeds_are_one_row_and_their_cards_get_it(run_here, encoders, files, tmp_path):
    names = [str(shutil.copytree(encoder, tmp_path / f"seed{n}")) for n, encoder in enumerate(encoders)]
    group = f"Ours={','.join(names)}"
    words = ["--model_name_or_path", group, names[0], "--heads", "knn", "--shots", "5", "--num_draws", "2"]
    run_here(main, *options(files, tmp_path / "probe", *words, "--push_results", "--data_name", "Three topics"))
    results = results_of(tmp_path / "probe")
    assert results["data"] == "Three topics, text column text"
    rows = {(row["encoder"], row["shots"], row["features"]): row for row in results["rows"]}
    for (name, shots, features), row in rows.items():
        if name == group:
            alone = rows[names[0], shots, features]
            assert row["accuracy_of_seeds"][0] == pytest.approx(alone["accuracy_mean"])
            assert row["accuracy_mean"] == pytest.approx(sum(row["accuracy_of_seeds"]) / 2)
            assert (row["members"], row["runs"]) == (names, 2 * alone["runs"])
    card = ModelCard.load(tmp_path / "seed0" / "README.md")
    assert "Ours is the mean over seeds of which this model is one" in card.text
    assert str(tmp_path) not in card.content
    (entry,) = [entry for entry in card.data.eval_results if entry.metric_name == "accuracy (knn)"]
    own = rows[group, None, "raw"]["accuracy_of_seeds"][0]  # and not the mean
    assert entry.metric_value == pytest.approx(own, abs=1e-4)


def nan_encoder(encoders, folder):
    """Make somebody else's checkpoint, whose card we do not write."""
    shutil.copytree(encoders[0], folder / "broken")
    (file,) = (folder / "broken").glob("model.safetensors")
    weights = load_file(file)
    (name,) = (name for name in weights if name.endswith("embeddings.word_embeddings.weight"))
    save_file(weights | {name: torch.full_like(weights[name], float("nan"))}, file, metadata={"format": "pt"})
    return folder / "broken"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shots", "500"], "500 shots need 500 training documents of each class"),
        (["--model_name_or_path", "BROKEN"], "embeddings are not finite"),
        (["--max_seq_length", "300"], "has positions for 128 tokens"),
        (["--model_name_or_path", "tfidf", "--heads", "mlp"], "tfidf has the heads linear, knn"),
        (["--test_file", "UNKNOWN"], "no training document has"),
        (["--test_split", "test"], "cannot go with --train_file"),
    ],
)
def test_bad_input_ends_with_a_message_before_any_long_work(
    failure_of, encoders, files, tmp_path, words, message, capsys
):
    (tmp_path / "unknown.jsonl").write_text(json.dumps({"text": "A tale of the moon.", "label": "moon"}) + "\n")
    special = {"UNKNOWN": tmp_path / "unknown.jsonl", "BROKEN": tmp_path / "broken"}
    if "BROKEN" in words:
        nan_encoder(encoders, tmp_path)
    words = [str(special.get(word, word)) for word in words]
    base = options(files, tmp_path / "out", "--model_name_or_path", encoders[0])
    assert message in failure_of(main, *base, *words).splitlines()[-1]
    assert "Embedding" not in capsys.readouterr().err
    assert not (tmp_path / "out" / "results.json").exists()


@pytest.mark.parametrize(("words", "expected"), [([], 1000), (["--max_seq_length", 600], 600)])
def test_a_long_encoder_reads_documents_at_its_length(
    run_here, wordpiece, files, tmp_path, monkeypatch, caplog, words, expected
):
    """What the model is given is what the first line and the row say, not 512 tokens nor all 4,096 positions."""
    BertModel(tiny_config(wordpiece, max_position_embeddings=4096)).save_pretrained(tmp_path / "long")
    wordpiece.save_pretrained(tmp_path / "long")
    settings = tmp_path / "long" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": 1000}))
    text, test = " ".join(row["text"] for row in make_corpus(60, seed=7)), tmp_path / "test.jsonl"
    test.write_text((files / "test.jsonl").read_text() + json.dumps({"text": text, "label": "orchard"}) + "\n")
    assert len(wordpiece(text)["input_ids"]) > 1000
    read, forward = [], BertEmbeddings.forward

    def counting(self, *args, **kwargs):
        vectors = forward(self, *args, **kwargs)
        read.append(vectors.shape[1])
        return vectors

    monkeypatch.setattr(BertEmbeddings, "forward", counting)
    words = ["--model_name_or_path", tmp_path / "long", "--test_file", test, "--heads", "knn", *words]
    with caplog.at_level("INFO"):
        run_here(main, *options(files, tmp_path / "out", *words))
    assert max(read) == expected
    assert f"it reads up to {expected:,} tokens of a text" in caplog.text
    assert {row["max_seq_length"] for row in results_of(tmp_path / "out")["rows"]} == {expected}
