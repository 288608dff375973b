"""The analysis script, as a user runs it: all analyses, several encoders and seeds, several processes, bad input."""

import contextlib
import csv
import io
import json
import re
import sys

import numpy as np
import pytest
from accelerate.state import AcceleratorState
from transformers import BertModel

from docsplit.evaluation.analysis import similarity
from docsplit.evaluation.task_arguments import ANALYSES
from run_embedding_analysis import main
from tests.conftest import make_corpus, save_checkpoint, tiny_config

FEW_PAIRS = 2000  # of sentences: what 100,000 say is tested beside the function
FIGURES = ("redundancy", "similarity", "attention", "map")


@pytest.fixture(autouse=True, scope="module")
def _few_pairs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(similarity, "NUM_PAIRS", FEW_PAIRS)
        yield


@pytest.fixture(scope="module")
def encoders(wordpiece, tmp_path_factory):
    """Two seeds of a checkpoint of this project, and a plain AutoModel that says nothing about pooling."""
    folders = [tmp_path_factory.mktemp("encoders") / name for name in ("ours-1", "ours-2", "plain")]
    for seed, folder in enumerate(folders[:2]):
        save_checkpoint(wordpiece, folder, 64, seed)
    BertModel(tiny_config(wordpiece)).save_pretrained(folders[2])
    wordpiece.save_pretrained(folders[2])
    return [*map(str, folders)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labelled")
    rows = make_corpus(160, seed=5)
    for name, part in {"train": rows[:90], "test": rows[90:]}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)) + "\n")
    return folder


def options(files, output_dir, pipeline, *others):
    words = ["--train_file", files / "train.jsonl", "--test_file", files / "test.jsonl", "--output_dir", output_dir]
    words += ["--dtype", "float32", "--spacy_pipeline", pipeline, "--num_seeds", "2", "--sample_documents", "40"]
    return [str(word) for word in (*words, *others)]


def contents_of(output_dir):
    return json.loads((output_dir / "analysis.json").read_text())


@pytest.fixture(scope="module")
def finished(encoders, files, spacy_pipeline, tmp_path_factory):
    """A group of two seeds, another encoder and TF-IDF, through every analysis."""
    output_dir, group = tmp_path_factory.mktemp("analysis"), f"Ours={','.join(encoders[:2])}"
    words = ["--model_name_or_path", group, encoders[2], "tfidf", "--data_name", "Three 20news"]
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(sys, "argv", ["script.py", *options(files, output_dir, spacy_pipeline, *words)])
        main()
    return output_dir, printed.getvalue(), group


def test_every_analysis_of_every_encoder_is_in_the_json(finished, encoders):
    contents, group = contents_of(finished[0]), finished[2]
    names = [group, encoders[2], "tfidf"]
    assert set(ANALYSES) <= set(contents)
    assert contents["settings"]["spacy_pipeline"]
    for analysis in ("similarity", "geometry"):
        assert [row["encoder"] for row in contents[analysis]["rows"]] == names
    assert [row["encoder"] for row in contents["attention"]["rows"]] == names[:2]  # TF-IDF has none
    assert contents["attention"]["rows"][0]["attended_from"] == "mean over tokens"
    assert contents["attention"]["rows"][1]["attended_from"] == "[CLS]"
    kinds = {(row["encoder"], row["features"]) for row in contents["clustering"]["rows"]}
    assert kinds == {(name, kind) for name in names for kind in ("raw", "normalized")} | {
        (encoders[2], "mean pooling"),
        (encoders[2], "mean pooling, normalized"),
    }
    assert set(contents["map"]["points"]) == set(names)
    assert {np.array(points).shape for points in contents["map"]["points"].values()} == {(40, 2)}
    redundancy = {row["length"]: row for row in contents["redundancy"]["rows"]}
    assert redundancy["All"]["n"] == 160
    assert sum(row["n"] for name, row in redundancy.items() if name != "All") == 160
    # Documents are about one topic: they repeat its words beyond what the words of all topics together would.
    assert redundancy["All"]["r_to_null_low"] > 1
    tfidf = contents["similarity"]["rows"][2]
    assert tfidf["inner_low"] > tfidf["inter_high"]
    assert tfidf["auc_low"] > 0.5


def test_the_report_opens_offline_and_each_figure_has_its_numbers(finished):
    output_dir, output, *_ = finished
    page = (output_dir / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(FIGURES)
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert "http" not in page
    for name in FIGURES:
        assert (output_dir / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        with open(output_dir / f"{name}.csv") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) > 3
    assert len(rows) == 3 * 40
    text = (output_dir / "analysis.md").read_text()
    assert "160 documents" in text
    assert "report.html" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--spacy_pipeline", "no_such_pipeline"], "python -m spacy download no_such_pipeline"),
        (["--map_method", "umap"], "pip install umap-learn"),
        (["--model_name_or_path", "no/model"], "cannot be loaded as an encoder"),
    ],
)
def test_bad_input_ends_with_a_message_before_any_long_work(
    failure_of, encoders, files, spacy_pipeline, tmp_path, words, message, capsys
):
    base = options(files, tmp_path / "out", spacy_pipeline, "--model_name_or_path", encoders[0])
    assert message in failure_of(main, *base, *words).splitlines()[-1]
    assert "Embedding" not in capsys.readouterr().err
    assert not (tmp_path / "out" / "analysis.json").exists()
