"""The comparing scripts load every encoder once, and find errors before any long work."""

import json
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.embedding import encoder as encoder_module
from docsplit.embedding.encoder_arguments import ComparisonArguments, EncoderArguments
from docsplit.evaluation.compare import LabelledEvaluation, compare
from tests.conftest import make_corpus
from tests.scripts.test_run_document_retrieval import write_collection


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Labelled documents, and a collection."""
    folder, rows = tmp_path_factory.mktemp("data"), make_corpus(120, seed=5)
    for name, part in {"train": rows[:80], "test": rows[80:]}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    write_collection(folder / "ships")
    return folder


@pytest.fixture
def loads(monkeypatch):
    """List the names of loaded encoders, and count the SentenceTransformers that are made."""
    names, made, load, start = [], [], encoder_module.load_encoder, SentenceTransformer.__init__
    monkeypatch.setattr(
        encoder_module, "load_encoder", lambda name, *rest, **more: names.append(name) or load(name, *rest, **more)
    )
    monkeypatch.setattr(
        SentenceTransformer, "__init__", lambda self, *rest, **more: made.append(1) or start(self, *rest, **more)
    )
    return names, made


@dataclass
class ToyArguments(ComparisonArguments):
    output_dir: str = "outputs"


class Lengths(LabelledEvaluation):
    """A toy: the mean length of the vectors of test documents."""

    title, card_title, not_encoders = "Lengths", "Lengths of vectors", ("words",)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.order, self.lengths = [], {}

    def sample(self):
        return self.split.test_texts[:2]

    def check(self, encoder_args):
        self.order.append("check")

    def check_encoder(self, encoder):
        self.order.append(f"try {encoder.name}")

    def prepare(self, is_main):
        self.order.append("prepare")

    def measure(self, name, encoder, is_main):
        self.order.append(f"measure {name}")
        return 0.0 if encoder is None else float(np.linalg.norm(encoder.embed(self.split.test_texts), axis=1).mean())

    def add(self, group, measured):
        self.lengths[group.name] = np.mean(measured)

    def finish(self):
        self.order.append("finish")

    def report(self, folder, **about):
        self.order.append(f"report of {len(self.lengths)}")
        self.about = about
        return "All lengths."


@pytest.mark.parametrize("reports_each", [True, False])
def test_what_can_fail_comes_first_and_reports_follow_each_encoder(
    encoder, data, loads, run_here, tmp_path, capsys, reports_each
):
    shutil.copytree(encoder, tmp_path / "again")
    checkpoint, copy = str(encoder), str(tmp_path / "again")
    data_args = LabelledArguments(train_file=str(data / "train.jsonl"), test_file=str(data / "test.jsonl"))
    toy = Lengths(data_args, ToyArguments(output_dir=str(tmp_path / "out"), push_results=True))
    toy.reports_each, cards = reports_each, []
    encoder_args = EncoderArguments([f"A={checkpoint},{copy}", "words", copy, copy], dtype="float32")
    run_here(lambda: compare(toy, encoder_args, lambda *card: cards.append(card)))
    checks = ["check", f"try {checkpoint}", f"try {copy}", f"try {copy}", "prepare"]
    work = [f"measure {checkpoint}", f"measure {copy}", "report of 1", "measure words", "report of 2"]
    work = [step for step in [*work, f"measure {copy}"] if reports_each or not step.startswith("report")]
    assert toy.order == [*checks, *work, "finish", "report of 3"]
    assert loads == ([checkpoint, copy], [1, 1])  # once each, alone and in a group
    assert [*toy.lengths] == [f"A={checkpoint},{copy}", "words", copy]
    assert toy.lengths[copy] == pytest.approx(toy.lengths[f"A={checkpoint},{copy}"])
    assert cards == [([*toy.lengths], "Lengths of vectors", toy.about["data"], tmp_path / "out")]
    settings = toy.about["settings"]
    assert (settings["dtype"], settings["push_results"]) == ("float32", True)  # of each dataclass of options
    assert settings["train_file"] == data_args.train_file
    assert len(settings["data_fingerprint"]) == 16
    assert (settings["processes"], settings["device"] == "cpu") == (1, not torch.cuda.is_available())
    assert {"train", "test"} <= {part["part"] for part in toy.about["statistics"]}
    printed = capsys.readouterr().out
    assert printed.count("All lengths.") == 1
    assert printed.index("mean words") < printed.index("All lengths.")
