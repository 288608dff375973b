"""The training data of a run: none is trained on that is measured on, and streams and queries keep that too."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset

from docsplit.data.copies import document_id
from docsplit.data.sets.labelled import load_probe
from docsplit.data.sets.rankings import divide_queries, load_collection
from docsplit.data.sets.set_arguments import RankingArguments
from docsplit.training.documents import (
    load_documents,
    load_queries,
    make_query_collator,
    measured_on,
    note_sections,
    stream_documents,
    tokenizer_of_run,
)
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, tiny_config
from tests.scripts.test_run_document_retrieval import write_collection
from tests.training.examples import run_options


@pytest.fixture
def options(corpus_file, wordpiece, tmp_path):
    """A function of further options of documents, queries and training."""
    wordpiece.save_pretrained(tmp_path / "tokenizer")

    def make(data=(), queries=(), **training):
        training = {"eval_strategy": "steps", "eval_steps": 1, "per_device_train_batch_size": 4} | training
        training = {"per_device_eval_batch_size": 2, "model": {"tokenizer_name": tmp_path / "tokenizer"}} | training
        data = {"corpus": str(corpus_file), "max_eval_samples": 10} | dict(data)
        return run_options(tmp_path / "out", data, queries, **training)

    return make


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    folder = write_collection(tmp_path_factory.mktemp("ranking") / "ships", "train")
    return {"corpus": str(folder), "view": "query_document"}


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
    alone = load_documents(options({"max_train_samples": 20}, eval_strategy="no"), None)
    assert alone.datasets == [alone.train]
    assert ids_of(alone.train) <= {document_id(row["text"]) for row in make_corpus(150)[:20]}
    with pytest.raises(ValueError, match="151"):
        load_documents(options(per_device_train_batch_size=151, per_device_eval_batch_size=4), None)


def test_a_stream_holds_its_first_documents_and_the_probes_out(options, corpus_file):
    data = stream_documents(options({"streaming": True, "probe_corpus": str(corpus_file)}, max_steps=2), None)
    assert data.stream is data.train
    first = [document_id(row["text"]) for row in make_corpus(150)[:10]]
    assert ids_of(data.held_out) <= set(first)
    streamed = {int(document["document_id"]) for document, _ in zip(data.stream, range(100)) if document is not None}
    assert len(streamed) > 50
    assert not streamed & (ids_of(data.held_out) | measured_on(data.probe))


def test_the_tokenizer_is_that_of_the_checkpoint_when_a_run_resumes(options, byte_level_bpe, corpus, tmp_path):
    byte_level_bpe.save_pretrained(tmp_path / "checkpoint-3")
    makes = [options(model={}), options(model={"vocab_size": 300}), options()]  # trained here, and named
    resumed, trained, named = (
        tokenizer_of_run(made, corpus, place) for made, place in zip(makes, (tmp_path / "checkpoint-3", None, None))
    )
    ids = [tokenizer("A ship.")["input_ids"] for tokenizer in (byte_level_bpe, resumed, trained, named)]
    assert ids[0] == ids[1]
    assert ids[0] not in ids[2:]
    again = tokenizer_of_run(options(), corpus, tmp_path / "checkpoint-3")  # compared with the checkpoint's
    assert again("A ship.")["input_ids"] == ids[3]


def test_what_another_machine_reads_is_compared_by_its_content(options, corpus_file, collection, tmp_path):
    """A copy of the corpus at another place is the same; another document, tokenizer or query is not."""
    copied = shutil.copy(corpus_file, tmp_path / "copy.jsonl")
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text("".join(corpus_file.read_text().splitlines(keepends=True)[:-1]))
    probed = {"probe_corpus": str(corpus_file)}
    loaded = [load_documents(options({"corpus": str(path)} | probed), None) for path in (corpus_file, copied, fewer)]
    here, there, other = (data.fingerprints() for data in loaded)
    assert here == there
    trained, held_out = ("the training documents (--corpus)", "the held-out documents (--corpus)")
    tokenizer = "the tokenizer (--tokenizer_name)"
    assert list(here) == [tokenizer, trained, held_out, "the probe's documents (--probe_corpus)"]
    assert here[trained] != other[trained]
    loaded[0].tokenizer.add_tokens(["anchovy"])
    assert loaded[0].fingerprints()[tokenizer] != here[tokenizer]
    loaded[1].tokenizer.backend_tokenizer.normalizer = None  # the same vocabulary
    assert loaded[1].fingerprints()[tokenizer] != here[tokenizer]
    broken = tmp_path / "broken.jsonl"  # the same words, cut into other passages
    broken.write_text(corpus_file.read_text().replace(" a ", "\\n\\na "))
    passages = {"view": "passages", "passage_words": 12}
    one, other = (load_documents(options(passages | {"corpus": str(path)}), None) for path in (corpus_file, broken))
    assert one.document_ids().tolist() == other.document_ids().tolist()
    assert one.fingerprints()[trained] != other.fingerprints()[trained]
    stream = stream_documents(options({"streaming": True}, max_steps=2), None).fingerprints()
    assert list(stream) == [tokenizer, "the shards of the stream (--corpus)", held_out]
    folds = [load_queries(options(collection, {"fold": fold}), None, None).fingerprints() for fold in (0, 0, 1)]
    assert folds[0] == folds[1]
    assert folds[0][trained] != folds[2][trained]


def test_a_model_that_joins_passages_by_section_says_where_the_documents_have_none(caplog):
    one, several = (Dataset.from_dict({"passage_sections": rows}) for rows in ([[0, 0], [0]], [[0, 1], [0]]))
    for kind, layers, documents in (("section", 2, several), ("full", 2, one), ("section", 0, one)):
        note_sections(SimpleNamespace(graph_kind=kind, graph_layers=layers), documents)
    assert caplog.text == ""
    note_sections(SimpleNamespace(graph_kind="section", graph_layers=2), one)
    assert "joins passages by section (graph_kind section), and none of the training documents" in caplog.text


def test_queries_are_divided_into_those_trained_on_and_held_out(options, collection):
    data = load_queries(options(collection), None, None)
    assert (len(data.train), len(data.held_out)) == (22, 2)
    assert not set(data.train.numbers) & set(data.held_out.numbers)
    alone = load_queries(options(collection | {"max_train_samples": 20}, eval_strategy="no"), None, None)
    assert (len(alone.train), alone.held_out) == (20, None)
    assert (alone.counts["queries_used"], alone.counts["queries_in_collection"]) == (20, 24)
    fold = load_queries(options(collection, {"fold": 1, "folds": "3", "split": "train"}), None, None)
    train, held_out, reported = divide_queries(
        load_collection(RankingArguments(collection["corpus"], "train")), "3", 1
    )
    np.testing.assert_array_equal(fold.train.numbers, train)
    np.testing.assert_array_equal(fold.held_out.numbers, held_out)
    assert len(reported) == 8
    with pytest.raises(ValueError, match="has 22 queries for this, which do not fill one batch of 30"):
        load_queries(options(collection, per_device_train_batch_size=30), None, None)
    with pytest.raises(ValueError, match="goes with --objective info_nce, not contrastive_tension"):
        load_queries(options(collection, objective="contrastive_tension"), None, None)


def test_the_collator_draws_as_many_negatives_as_the_options_say(options, collection, wordpiece):
    run_options = options(collection, {"negatives": ["random"], "negatives_per_query": 3})
    data = load_queries(run_options, None, None)
    model = DocSplitForContrastivePretraining.from_config(tiny_config(wordpiece), wordpiece, max_seq_length=64)
    batch = make_query_collator(model, data, run_options, 32)([data.train[0], data.train[1]])
    assert batch["input_ids"].shape[:2] == (2, 5)  # the query, a relevant document and three others
    assert batch["input_ids"].shape[2] <= 32
    assert "mlm_targets" in batch
