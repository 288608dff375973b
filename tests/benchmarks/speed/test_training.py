"""The benchmark of training compares like with like and writes what others read. No time is asserted."""

import argparse
import json
import math
import multiprocessing
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import jobs, long_attention, training
from benchmarks.speed.contenders import training as training_contenders
from benchmarks.speed.contenders.encoding import EncodingContender
from benchmarks.speed.contenders.table import CONTENDERS, serve
from benchmarks.speed.jobs import Job, draw_documents, num_tokens, useful_flops
from benchmarks.studies.objectives import report as objectives
from docsplit.data import corpora, preparation
from docsplit.data.collators import DocSplitCollator
from docsplit.data.tokenization import train_wordpiece
from docsplit.data.views import OF_PASSAGES
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.processes import start_server


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Job:
    folder = tmp_path_factory.mktemp("tiny")
    jobs.write_model("tiny", folder)
    return Job(folder, "cpu", "fp32", batch_size=6, steps=2, rounds=2, micro_batch_tokens=None)


@pytest.fixture
def forked(monkeypatch):
    """Processes of the benchmarks come from a server that has imported what they need."""
    start_server()
    context = types.SimpleNamespace(get_context=lambda _: multiprocessing.get_context("forkserver"))
    for module in (training, long_attention):
        monkeypatch.setattr(module, "multiprocessing", context)


@pytest.fixture
def run(forked, run_here, capsys):
    def run(output: Path, *options: str) -> dict:
        run_here(training.main, "--models", "tiny", "--device", "cpu", "--output", output, *options)
        printed = capsys.readouterr().out
        assert "equal losses" in printed
        assert output.with_suffix(".md").read_text() in printed
        return json.loads(output.read_text())

    return run


def test_two_contenders_and_their_ratios(run, tmp_path):
    results = run(tmp_path / "latest.json", "--contenders", "docsplit", "trainer_dynamic")
    assert {"hardware", "versions", "precision", "peak_flops"} <= set(results)
    rows = results["rows"]
    assert results["models"]["tiny"]["rows"] == rows
    assert set(rows) == {"docsplit", "trainer_dynamic"}
    for row in rows.values():
        assert row["tokens_per_second_min"] <= row["tokens_per_second"] <= row["tokens_per_second_max"]
        assert row["seconds_per_step"] > 0
        assert row["peak_memory_mb"] > 0
        assert 0 < row["mfu"] < 1
        assert 0 <= row["loader_stall"] < 1
    assert rows["docsplit"]["padding_share"] < rows["trainer_dynamic"]["padding_share"]
    assert set(results["ratios"]) == {"train_vs_trainer_dynamic", "memory_vs_trainer_dynamic"}


@pytest.mark.slow
def test_all_contenders(run, tmp_path):
    """In bf16 where the hardware has it: a CPU that emulates it takes ten minutes."""
    results = run(tmp_path / "latest.json", "--precision", "auto")
    assert set(results["rows"]) == set(CONTENDERS)
    assert set(results["ratios"]) == set(training.RATIOS)
    assert all(value > 0 for value in results["ratios"].values())
    assert results["models"]["tiny"]["unavailable"] == {}


def test_all_contenders_compute_the_same(job, corpus, monkeypatch):
    """Losses and vectors of the same texts, and the check says so where they are not the same."""
    monkeypatch.setattr(corpora, "load_corpus", lambda name: corpus)
    values = {name: build(job).prepare() for name, build in CONTENDERS.items()}
    training.check_equal(values)
    log_b = math.log(job.batch_size)
    assert abs(values["docsplit_contrastive"] - log_b) > 0.001 * log_b  # equal vectors would not prove much
    for name in ("trainer_dynamic", "st_mnrl", "st_encode"):
        with pytest.raises(ValueError, match=f"{name} does not compute"):
            training.check_equal(values | {name: values[name] * 1.001})
    with pytest.raises(ValueError, match="st_mnrl does not compute"):
        training.check_equal(values | {"st_mnrl": float("nan")})


def test_a_contender_with_another_loss_is_found(job, monkeypatch):
    right = {"docsplit": CONTENDERS["docsplit"](job).prepare()}
    monkeypatch.setattr(training_contenders, "TEMPERATURE", 0.06)
    with pytest.raises(ValueError, match="trainer_dynamic does not compute"):
        training.check_equal(right | {"trainer_dynamic": CONTENDERS["trainer_dynamic"](job).prepare()})


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp32", marks=pytest.mark.slow)])
def test_each_round_runs_in_its_precision(job, precision):
    """A model that a Trainer has prepared once is not prepared again: the second round must not be another one."""
    contender = CONTENDERS["docsplit"](Job(**vars(job) | {"precision": precision}))
    seen = []

    def look(module, args, output):
        seen.append(output.dtype)

    contender.encoder.encoder.layer[0].attention.output.dense.register_forward_hook(look)
    for number in range(2):
        contender.measure(number)
    assert set(seen) == {torch.bfloat16 if precision == "bf16" else torch.float32}


def test_grouping_gets_the_same_documents_and_less_padding(job):
    job = Job(**vars(job) | {"batch_size": 36, "steps": 10})
    plain, grouped = (draw_documents(job, 1, 200, grouped=grouped) for grouped in (False, True))

    def content(documents):
        return sorted(view.ids.tolist() for document in documents for view in document["views"])

    def padded(documents):
        batches = [documents[start : start + 36] for start in range(0, len(documents), 36)]
        return sum(jobs.collate(batch)["input_ids"].numel() for batch in batches)

    assert content(plain) == content(grouped)
    assert content(plain) != content(draw_documents(job, 0, 200))
    assert padded(grouped) < 0.6 * padded(plain)
    assert padded(grouped) < 1.25 * num_tokens(grouped)


def test_lengths(job):
    job = Job(**vars(job) | {"batch_size": 50, "steps": 50, "rounds": 1})
    lengths = np.array([[len(view.ids) for view in row["views"]] for row in draw_documents(job, 0, 200)])
    assert lengths.min() >= 8
    assert lengths.max() == 512
    assert lengths.mean() == pytest.approx(200, rel=0.05)
    assert np.corrcoef(np.log(lengths).T)[0, 1] == pytest.approx(0.9, abs=0.03)


def test_useful_flops_are_those_of_a_batch_without_padding(job):
    """Counted by torch, in a step in which only the masked tokens reach the head."""
    documents = []
    for row in draw_documents(job, 0, 200)[:4]:
        views = tuple(jobs.draw_view(100, 200, np.random.default_rng(row["document_id"])) for _ in range(2))
        documents.append(row | {"views": views})
    for mlm_weight in (0.1, 0.0):
        model = DocSplitForContrastivePretraining.from_pretrained(
            job.folder, mlm_weight=mlm_weight, attn_implementation="eager"
        )
        with FlopCounterMode(display=False) as counter:
            model(**jobs.collate(documents))["loss"].backward()
        expected = useful_flops(model.encoder.base_model, documents, mlm=mlm_weight > 0)
        assert counter.get_total_flops() == pytest.approx(expected, rel=0.03)


def test_words_stand_for_ids(job):
    contender = CONTENDERS["st_mnrl"](job)
    views = draw_documents(job, 0, 200)[0]["views"]
    ids = contender.model.preprocess([view.text for view in views])["input_ids"]
    training_contenders.check_same_ids(ids, views)
    ids[0, 1] += 1
    with pytest.raises(ValueError, match="other ids"):
        training_contenders.check_same_ids(ids, views)


def test_sentence_transformers_without_its_trainer(job):
    """Where `datasets` is missing: the same loss in the stock Trainer, with the same steps."""
    speeds = []
    for own_trainer in (True, False):
        contender = CONTENDERS["st_cached_mnrl"](job)
        contender.own_trainer = own_trainer
        contender.settings = {"mini_batch_num_tokens": 512}
        contender.train(contender.documents(0))
        speeds.append(contender.prepare())
    assert speeds[0] == pytest.approx(speeds[1], rel=1e-4)


def test_what_is_not_installed_is_left_out(job, monkeypatch):
    class Missing(EncodingContender):
        def __init__(self, job):
            import a_package_that_is_missing  # noqa: F401

    class Pipe:
        def __init__(self):
            self.answers = []
            self.requests = iter([("prepare",), None])

        def recv(self):
            return next(self.requests)

        def send(self, answer):
            self.answers.append(answer)

    monkeypatch.setitem(CONTENDERS, "missing", Missing)
    pipe = Pipe()
    serve("missing", job, pipe)
    assert pipe.answers == [("unavailable", "a_package_that_is_missing is not installed")]


def test_rows_of_the_objectives_read_as_many_tokens_a_step(corpus_file, monkeypatch):
    monkeypatch.setattr(objectives, "PASSAGE_WORDS", 10)
    documents = objectives.documents_a_step(str(corpus_file), 6000)
    assert {view for view, _ in documents} >= {"docsplit", "simcse", "crop", "ict", "half", "passages"}
    corpus = corpora.add_text(corpora.load_corpus(str(corpus_file)), "text")
    tokenizer = train_wordpiece(corpus, "text", objectives.VOCABULARY, corpora.cache_directory())
    for (view, longest), count in documents.items():
        dataset, _ = preparation.tokenize(
            corpus, tokenizer, preparation.Segmentation(passage_words=10 if view in OF_PASSAGES else None)
        )
        collator = DocSplitCollator(tokenizer, view, longest, mlm=False, seed=7)  # other draws than those counted
        batch = collator([dataset[row] for row in range(len(dataset))])
        tokens = int(batch["attention_mask"].sum()) * count / len(dataset)
        assert tokens == pytest.approx(6000, rel=0.06), view


def test_tables_of_the_objectives_have_mean_and_spread_over_seeds(tmp_path):
    documents = dict.fromkeys([("docsplit", 128), ("simcse", 128), ("crop", 128)], 64) | {("docsplit", 4096): 9}
    documents |= {(view, 128): 32 for view in ("ict", "half", "passages", "passage_vs_rest")}
    options = argparse.Namespace(work_dir=tmp_path, seeds=[3, 4])
    study = objectives.Study(options, documents)

    def write(folder, rows):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps({"rows": rows}))

    for seed in options.seeds:
        for name in [*objectives.ROWS, *objectives.LENGTHS]:
            value = seed / 10 + (name == "DocSplit") / 100
            links = [
                {"encoder": "e", "head": head, "features": features, "shots": None}
                | {"accuracy_mean": value if features == "raw" else 0.0, "roc_auc_mean": value}
                for head in ("mlp", "cosine", "bm25")
                for features in ("raw", *(["standardized"] if head == "mlp" else []))
            ]  # fmt: skip
            folder = study.folder(name, seed)
            if name in objectives.LENGTHS:
                write(folder, links)
                continue
            write(folder / "retrieval", links)
            probes = [
                {"encoder": "e", "head": "mlp", "features": "raw", "shots": shots, "accuracy_mean": value}
                for shots in (5, 10, 20, None)
            ]
            write(folder / "probe", probes)
            (folder / "all_results.json").write_text(json.dumps({"train_tokens": 1000 * seed}))
    write(study.folder("tfidf", 0), [{"encoder": "tfidf", "head": "linear", "shots": 5, "accuracy_mean": 0.9}])
    results = {"hardware": "x", "steps": 1, "learning_rate": 0.1, "seeds": options.seeds}
    results |= study.tables() | {"references": study.references()}
    text = objectives.markdown(results)
    assert "| DocSplit | 64 | 0.00 | 36.0 ± 7.1 |" in text
    assert "| random start | 0 | 0.00 | 35.0 ± 7.1 |" in text
    assert "| the first 512 | 35.0 ± 7.1 |" in text
    assert "| tfidf | linear | 5 | 90.0 |" in text
    assert "| e | bm25 | all | 30.0 |" in text
    objectives.plot(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


# --- Long attention ------------------------------------------------------------------------------------------------


def test_long_attention_compares_equal_states_and_ends_with_the_ratio(forked, run_here, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(long_attention, "LENGTH_OF_RATIO", 1024)
    output = tmp_path / "long.json"
    options = (
        "--model tiny --lengths 1024 --contenders blocked longformer --rounds 1 --steps 1 --device cpu "
        f"--precision fp32 --window 64 --output {output}"
    )
    run_here(long_attention.main, *options.split())
    printed = capsys.readouterr().out
    results = json.loads(output.read_text())
    seconds = {(row["contender"], row["length"]): row["seconds"] for row in results["rows"]}
    assert set(seconds) == {("blocked", 1024), ("longformer", 1024)}
    assert 0 < results["largest_difference"] < 1e-4
    assert all(row["forward"] < row["seconds"] for row in results["rows"])
    assert all(row["memory_mb"] > 0 for row in results["rows"])
    ratio = seconds["longformer", 1024] / seconds["blocked", 1024]
    assert printed.splitlines()[-1] == f"forward+backward at 1024: ratio {ratio:.2f}"
    assert output.with_suffix(".md").read_text() in printed
    assert output.with_suffix(".png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("difference", "message"), [(0.5, r"differ by 5.0e-01"), (0.0, "no ratio: at 100 tokens")], ids=["unequal", "none"]
)
def test_long_attention_refuses_what_says_nothing(monkeypatch, tmp_path, difference, message):
    monkeypatch.setattr(long_attention, "LENGTH_OF_RATIO", 100)
    monkeypatch.setattr(long_attention, "largest_difference", lambda job: difference)
    monkeypatch.setattr(long_attention, "measure_all", lambda job, options: ([], ["blocked at 100"]))
    options = ["--model", "tiny", "--lengths", "100", "--output", str(tmp_path / "x.json")]
    monkeypatch.setattr(sys, "argv", ["long_attention", *options])
    with pytest.raises(ValueError, match=message):
        long_attention.main()
    assert not list(tmp_path.iterdir())


def test_lengths_that_would_take_too_long_are_left_out_and_named(monkeypatch):
    monkeypatch.setattr(long_attention, "run", lambda name, job: {"seconds": job["length"] ** 2, "memory_mb": 1.0})
    options = argparse.Namespace(
        lengths=[1, 2, 4, 8], contenders=["bert"], rounds=1, batch_size=1, longest_step=17, device="cpu"
    )
    rows, left_out = long_attention.measure_all({}, options)
    assert [row["length"] for row in rows] == [1, 2, 4]
    assert left_out == ["bert at 8"]
    monkeypatch.setattr(long_attention, "run", lambda name, job: None)  # out of memory
    assert long_attention.measure_all({}, options) == ([], ["bert at 1", "bert at 2", "bert at 4", "bert at 8"])


def test_needed_flops_are_those_of_dense_attention_where_the_window_holds_all():
    job = {"model": "tiny", "length": 64, "batch_size": 2, "window": 200, "device": "cpu", "dropout": 0.0}
    model = long_attention.make("bert", job)
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        model(**long_attention.inputs_of("bert", job))[0].sum().backward()
    pooler = 2 * job["batch_size"] * 32 * 32  # which gets no gradient
    assert long_attention.needed_flops(job) == pytest.approx(counter.get_total_flops() - pooler, rel=0.01)
