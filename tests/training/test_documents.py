"""The documents of a run: none is trained on that is measured on, and a stream reads the same ones."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import BertConfig

from docsplit.data.seen_documents import document_id
from docsplit.data.sets.labelled import load_probe
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments, QueryArguments, RunOptions
from docsplit.training.documents import load_documents, load_tokenizer, measured_on, note_sections, stream_documents
from tests.conftest import make_corpus


@pytest.fixture
def options(corpus_file, wordpiece, tmp_path):
    """A function of further options of documents and training."""
    wordpiece.save_pretrained(tmp_path / "tokenizer")

    def make(data=(), **training):
        training = {"per_device_train_batch_size": 4, "eval_strategy": "steps", "eval_steps": 1} | training
        args = PretrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, **training)
        model_args = ModelArguments(tokenizer_name=str(tmp_path / "tokenizer"))
        data_args = DataArguments(**{"corpus": str(corpus_file), "max_eval_samples": 10} | dict(data))
        return RunOptions(model_args, data_args, QueryArguments(), args)

    return make


def ids_of(dataset):
    return set(dataset["document_id"][:].tolist())


def test_parts_are_disjoint_and_the_counts_add_up(options, corpus_file):
    data = load_documents(options({"probe_corpus": str(corpus_file)}), None)
    train, held_out = (ids_of(dataset) for dataset in (data.train, data.held_out))
    assert len(held_out) == 10
    assert not train & held_out
    assert not (train | held_out) & measured_on(load_probe(str(corpus_file)))
    assert data.document_ids().tolist() == sorted(train | held_out)
    read = len(data.train) + len(data.held_out) + data.counts["documents_kept_for_probe"]
    assert read + data.counts["documents_dropped"] == 150
    assert data.stream is None
    assert data.probe.test_texts == load_probe(str(corpus_file)).test_texts


def test_without_evaluation_all_documents_are_trained_on(options):
    data = load_documents(options({"max_train_samples": 20}, eval_strategy="no"), None)
    assert data.held_out is None
    assert data.datasets == [data.train]
    assert ids_of(data.train) <= {document_id(row["text"]) for row in make_corpus(150)[:20]}


def test_a_stream_holds_its_first_documents_out(options):
    data = stream_documents(options({"streaming": True}, max_steps=2), None)
    assert data.stream is data.train
    first = [document_id(row["text"]) for row in make_corpus(150)[:10]]
    assert ids_of(data.held_out) <= set(first)
    streamed = {int(document["document_id"]) for document, _ in zip(data.stream, range(100)) if document is not None}
    assert len(streamed) > 50
    assert not streamed & ids_of(data.held_out)


def test_a_batch_that_the_documents_do_not_fill_is_refused(options):
    with pytest.raises(ValueError, match="151"):
        load_documents(options(per_device_train_batch_size=151, per_device_eval_batch_size=4), None)


def test_the_tokenizer_is_that_of_the_checkpoint_when_a_run_resumes(options, byte_level_bpe, corpus, tmp_path):
    byte_level_bpe.save_pretrained(tmp_path / "checkpoint-3")
    named, resumed = (load_tokenizer(options(), corpus, place) for place in (None, tmp_path / "checkpoint-3"))
    ids = [np.array(tokenizer("A ship.")["input_ids"]) for tokenizer in (byte_level_bpe, named, resumed)]
    assert not np.array_equal(ids[0], ids[1])
    np.testing.assert_array_equal(ids[0], ids[2])


@pytest.mark.parametrize("load", [load_documents, stream_documents])
def test_a_folder_of_several_kinds_of_files_is_read_whole(options, tmp_path, load):
    rows = make_corpus(24)
    folder = tmp_path / "documents"
    folder.mkdir()
    for number, row in enumerate(rows[:12]):
        (folder / f"{number}.{'md' if number % 2 else 'txt'}").write_text(row["text"])
    (folder / "rows.csv").write_text("body\n" + "".join(f"{row['text']}\n" for row in rows[12:]))
    given = {"corpus": str(folder), "text_column": "body"}
    data = load(options(given, eval_strategy="no", max_steps=2), None)
    documents = data.train if load is load_documents else (row for row, _ in zip(data.train, range(24)))
    assert {int(row["document_id"]) for row in documents} == {document_id(row["text"]) for row in rows}


def test_what_another_machine_reads_is_compared_by_its_content(options, corpus_file, tmp_path):
    """A copy of the corpus at another place is the same; another document, tokenizer or shard is not."""
    copied = shutil.copy(corpus_file, tmp_path / "copy.jsonl")
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text("".join(corpus_file.read_text().splitlines(keepends=True)[:-1]))
    probed = {"probe_corpus": str(corpus_file)}
    here, there, other = (
        load_documents(options({"corpus": str(path)} | probed), None).fingerprints()
        for path in (corpus_file, copied, fewer)
    )
    assert here == there
    assert here.keys() == {
        "the tokenizer",
        "the training documents",
        "the held-out documents",
        "the probe's documents",
    }
    assert here["the training documents"] != other["the training documents"]
    data = load_documents(options(), None)
    data.tokenizer("a text", truncation=True, max_length=4)  # leaves a mark in it
    assert data.fingerprints()["the tokenizer"] == here["the tokenizer"]
    data.tokenizer.add_tokens(["anchovy"])
    assert data.fingerprints()["the tokenizer"] != here["the tokenizer"]
    stream = stream_documents(options({"streaming": True}, max_steps=2), None).fingerprints()
    assert stream.keys() == {"the tokenizer", "the shards of the stream", "the held-out documents"}


@pytest.mark.parametrize("with_sections", [True, False])
def test_a_model_that_joins_passages_by_section_says_where_the_documents_have_none(
    options, tmp_path, caplog, with_sections
):
    texts = [row["text"] for row in make_corpus(12, seed=8)]
    texts[-1] += f"\n\n## More\n\n{texts[0]}" * with_sections
    (tmp_path / "plain.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    passages = {"corpus": str(tmp_path / "plain.jsonl"), "view": "passages", "passage_words": 10}
    data = load_documents(options(passages, eval_strategy="no"), None)
    for kind, layers in (("full", 2), ("section", 0)):
        note_sections(SimpleNamespace(graph_kind=kind, graph_layers=layers), data.train)
    note_sections(BertConfig(), data.train)
    assert "joins" not in caplog.text
    note_sections(SimpleNamespace(graph_kind="section", graph_layers=2), data.train)
    assert ("The model joins passages by section (graph_kind section), and none of the training" in caplog.text) == (
        not with_sections
    )
