"""The other benchmarks of speed, each in its smallest form: they measure what they say. No time is asserted."""

import json
import threading

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertModel

from benchmarks.speed import (
    analyses,
    graph_document,
    loading,
    long_attention,
    micro_batches,
    probing,
    scaling,
    search,
    segmentation,
)
from docsplit.embedding.loading import load_encoder
from docsplit.evaluation.analysis import similarity
from docsplit.evaluation.arguments import ANALYSES
from docsplit.evaluation.heads.table import HEADS
from tests.conftest import make_corpus, tiny_config


@pytest.fixture
def written(run_here, tmp_path):
    """Runs a benchmark and returns the JSON that it writes."""

    def run(module, *options):
        run_here(module.main, *options, "--output", tmp_path / "results.json")
        return json.loads((tmp_path / "results.json").read_text())

    return run


@pytest.fixture
def labelled(wordpiece, tmp_path, monkeypatch):
    """Options of labelled documents, and tiny encoders in place of BERT-base."""

    def encoder_of(layers, tokenizer, folder, max_seq_length):
        torch.manual_seed(0)
        path = folder / f"layers-{layers}"
        BertModel(tiny_config(wordpiece, num_hidden_layers=layers)).save_pretrained(path)
        wordpiece.save_pretrained(path)
        return load_encoder(str(path), pooling="mean", max_seq_length=max_seq_length)

    for module in (probing, analyses):
        monkeypatch.setattr(module, "encoder_of", encoder_of)
    wordpiece.save_pretrained(tmp_path / "tokenizer")
    for part, seed in (("train", 3), ("test", 4)):
        (tmp_path / f"{part}.jsonl").write_text("\n".join(map(json.dumps, make_corpus(60, seed))) + "\n")
    files = ["--train_file", tmp_path / "train.jsonl", "--test_file", tmp_path / "test.jsonl"]
    return [*files, "--tokenizer_name", tmp_path / "tokenizer", "--layers", 2, "--max_seq_length", 64, "--sample", 8]


def test_scaling(written, tmp_path, monkeypatch):
    batch = scaling.random_batch(200, 60, 128, seed=0)
    lengths, masked = batch["attention_mask"].sum(dim=-1), batch["mlm_targets"] != -100
    assert (masked.sum() / lengths.sum()).item() == pytest.approx(0.15, abs=0.01)
    assert batch["mlm_targets"][masked].equal(batch["input_ids"][masked])

    def start_processes(measure, args, nprocs, start_method):
        """In this process: one alone."""
        threads, worker = torch.get_num_threads(), threading.Thread(target=measure, args=(0, *args))
        worker.start()
        worker.join()
        torch.set_num_threads(threads)

    monkeypatch.setattr(scaling.mp, "start_processes", start_processes)
    monkeypatch.setattr(scaling, "VOCABULARY", 2000)
    sizes = ["--documents", 4, "--lengths", 32, "--processes", 1, "--tokens", 256, "--steps", 1]
    results = written(scaling, *sizes, "--model", "tiny", "--device", "cpu", "--precision", "fp32")
    assert [row["documents"] for row in results["batch"]] == [4]
    assert [(row["longest"], row["documents"]) for row in results["length"]] == [(32, 4)]
    for row in (*results["batch"], *results["length"]):
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])
        assert row["memory_mb"] > 0
    assert (tmp_path / "results.png").stat().st_size > 1000
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert scaling.possible_processes([1, 2, 4, 8], "cuda") == [1, 2]


def test_long_attention(written, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(long_attention, "LENGTH_OF_RATIO", 1024)
    monkeypatch.setattr(long_attention, "in_process", lambda function, *given: function(*given))
    words = "--model tiny --lengths 1024 --contenders blocked longformer --rounds 1 --steps 1 --device cpu"
    results = written(long_attention, *words.split(), "--precision", "fp32", "--window", 64)
    seconds = {row["contender"]: row["seconds"] for row in results["rows"]}
    assert 0 < results["largest_difference"] < 1e-4
    assert all(0 < row["forward"] < row["seconds"] and row["memory_mb"] > 0 for row in results["rows"])
    ratio = seconds["longformer"] / seconds["blocked"]
    assert capsys.readouterr().out.splitlines()[-1] == f"forward+backward at 1024: ratio {ratio:.2f}"
    assert (tmp_path / "results.png").stat().st_size > 1000
    monkeypatch.setattr(long_attention, "largest_difference", lambda job: 0.5)
    with pytest.raises(ValueError, match=r"differ by 5.0e-01"):
        written(long_attention, *words.split())


def test_a_step_of_graphs_is_the_papers_and_its_operations_are_those_that_are_needed(monkeypatch):
    """Passages of one length, so that there is no padding among tokens; in graphs there is a little."""
    monkeypatch.setattr(graph_document, "DEVIATION", 0)
    batch = graph_document.make_batch(6, 30522)
    rows = {name: values.numpy() for name, values in batch["rows"].items()}
    for document in range(6):
        is_inside = rows["document"] == document
        assert (rows["view"][is_inside] == 0).sum() == is_inside.sum() // 2
        assert sorted(rows["position"][is_inside]) == list(range(is_inside.sum()))
    model = graph_document.make_model(4096)
    model.set_attn_implementation("eager")  # whose products are counted
    with FlopCounterMode(display=False) as counted:
        model(**batch).loss.backward()
    lengths = batch["attention_mask"].sum(dim=1).numpy()
    needed = graph_document.needed_flops(rows["view"], rows["document"], lengths)
    assert np.isclose(counted.get_total_flops(), sum(needed.values()), rtol=0.02)


def test_graph_document(written, monkeypatch):
    for name, value in {"MOST_PASSAGES": 4, "MEAN_TOKENS": 24, "LONGEST": 30, "DEVIATION": 2}.items():
        monkeypatch.setattr(graph_document, name, value)
    monkeypatch.setattr(graph_document, "in_process", lambda function, *given: function(*given))
    results = written(graph_document, "--batches", 3, 2, "--micro_batch_tokens", 256)
    assert [row["documents"] for row in results["steps"]] == [2, 3]
    assert all(row["seconds"] > 0 and 0 <= row["padding_share"] < 1 for row in results["steps"])


def test_both_searches_find_what_a_loop_finds(written, monkeypatch, tmp_path):
    for name, value in {"DIMENSION": 16, "CLUSTERS": 5, "QUERIES": 6, "REPEATS": 2}.items():
        monkeypatch.setattr(search, name, value)
    vectors, queries = search.make_vectors(300)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    exact = np.argsort(-(vectors @ queries[0]))[:10].tolist()
    for name, (build, ask) in search.CONTENDERS.items():
        (tmp_path / name).mkdir()
        build(tmp_path / name, vectors, search.make_texts(300))
        assert ask(tmp_path / name, queries)["found"] == exact
    monkeypatch.setattr(search, "in_process", lambda function, *given: function(*given))
    (row,) = written(search, "--sizes", 300, "--rounds", 1)["rows"]
    assert row["same_of_ten"] == 1
    assert all(row[f"{name}_ratio"] == pytest.approx(row[f"ours_{name}"] / row[f"theirs_{name}"])
               for name in ("build", "open", "query", "batch", "words"))  # fmt: skip


def test_loading(written, wordpiece, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "BATCH_SIZE", 4)
    monkeypatch.setattr(loading.os, "sched_getaffinity", lambda pid: {0}, raising=False)
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_corpus(60)))
    wordpiece.save_pretrained(tmp_path / "tokenizer")
    files = ["--corpus", tmp_path / "corpus.jsonl", "--tokenizer_name", tmp_path / "tokenizer"]
    results = written(loading, *files, "--documents", 30, "--rounds", 1)
    drawing = results["drawing"]
    assert drawing["ratio"] == pytest.approx(drawing["split_and_tokenise_us"] / drawing["draw_us"])
    assert results["preprocessing"]["1"]["gain"] == 1
    for row in results["resuming"].values():
        assert row["ratio"] == pytest.approx(row["at_99_percent_s"] / row["at_1_percent_s"])


def test_micro_batches(written):
    (small, large) = written(micro_batches, "--cuts", "72:1024", "72:36864", "--step_rows", 0)["cuts"]
    assert 1 <= large["micro_batches"] < small["micro_batches"]
    assert 0 < small["padding_share"] < large["padding_share"]


def test_probing_times_every_head(written, labelled):
    results = written(probing, *labelled, "--rounds", 1, "--shots", 2)
    settings = ("2 shots, 10 draws", "all labels, 3 seeds")
    assert results["head_seconds"].keys() == {f"{head}, {setting}" for head in HEADS for setting in settings}
    assert results["documents"] == pytest.approx(120, abs=2)
    assert results["heads_to_embedding"] > 0


def test_analyses_times_every_analysis(written, labelled, monkeypatch, spacy_pipeline):
    monkeypatch.setattr(similarity, "NUM_PAIRS", 500)
    results = written(analyses, *labelled, "--documents", 60, "--spacy_pipeline", spacy_pipeline)
    assert results["seconds"].keys() == {"embedding", *ANALYSES}
    assert results["analyses_to_embedding"] > 0


def test_segmentation(written, tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "One sentence. And another one."}\n' * 5)
    results = written(segmentation, "--corpus", tmp_path / "corpus.jsonl", "--max_documents", 3, "--rounds", 1)
    assert (results["documents"], results["words_per_document"]) == (3, 5)
    rules, sentencizer = (results["splitters"][name] for name in ("rules", "sentencizer"))
    assert rules["cases_right"] == sum(rules["cases_right_by_category"].values()) > sentencizer["cases_right"]
    assert sentencizer["speed_to_sentencizer"] == 1
