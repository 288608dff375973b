"""A stream gives each document once a pass, over all processes and workers, and resumes where it was."""

import gzip
import itertools
import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from accelerate.data_loader import IterableDatasetShard
from torch.utils.data import DataLoader

from docsplit.data import corpora, preparation, streaming
from docsplit.data.collators import DocSplitCollator
from docsplit.data.corpora import stream_corpus
from docsplit.data.preparation import Segmentation, document_id
from docsplit.data.streaming import DocumentStream, StreamLayout, take

TEXTS = [f"Document number {index} is here. It has a second sentence." for index in range(103)]


@pytest.fixture(params=["parquet", "txt"])
def files(request, tmp_path, write):
    """103 documents: in 18 shards, row groups of three files, or in one."""
    if request.param == "txt":
        return write("all.txt", "\n".join(TEXTS))
    for part in range(3):
        pa.parquet.write_table(pa.table({"text": TEXTS[part::3]}), write(f"corpus/{part}.parquet"), row_group_size=6)
    return tmp_path / "corpus"


@pytest.fixture
def make(wordpiece, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "cache_directory", lambda: tmp_path / "cache")

    def make(path, **options):
        excluded = options.pop("excluded", frozenset())
        segmentation = Segmentation(passage_words=options.pop("passage_words", None))
        layout = StreamLayout(**({"batch_size": 4, "buffer_size": 10, "seed": 3} | options))
        return DocumentStream(stream_corpus(str(path)), wordpiece, segmentation, layout, excluded)

    return make


IDS = {document_id(text): index for index, text in enumerate(TEXTS)}


def next_documents(stream, reader, readers, number, skip=0):
    """Return (pass, index of the text) of the next documents."""
    features = itertools.islice(stream.documents(reader, readers, skip), number)
    return [(feature["epoch"], IDS[int(feature["document_id"])]) for feature in features]


@pytest.mark.parametrize("readers", [1, 3, 6, 12])
def test_each_document_comes_once_a_pass_over_all_readers(files, make, readers, monkeypatch):
    for shards_per_reader in (0, 3, 10**6):  # readers with shards of their own, that share some, that share all
        monkeypatch.setattr(streaming, "SHARDS_PER_READER", shards_per_reader)
        if not shards_per_reader and readers > make(files).rows.num_shards:
            continue
        passes = Counter()
        for reader in range(readers):
            documents = make(files).documents(reader, readers, 0)
            first_two = itertools.takewhile(lambda feature: feature["epoch"] < 2, documents)
            passes.update((feature["epoch"], IDS[int(feature["document_id"])]) for feature in first_two)
        assert passes == Counter((epoch, index) for epoch in range(2) for index in range(len(TEXTS)))


@pytest.mark.parametrize(
    ("shards", "readers", "sharing"),
    [(300, 64, 2), (512, 64, 1), (511, 64, 2), (1, 64, 64), (16, 1, 1), (1, 1, 1), (20, 6, 3), (7, 4, 4), (100, 7, 1)],
)
def test_as_few_readers_as_possible_share_a_shard(shards, readers, sharing, caplog):
    assert streaming.readers_of_a_shard(shards, readers) == sharing
    least = [number for number in range(1, readers) if readers % number == 0 and shards / (readers / number) >= 8]
    assert sharing == min(least, default=readers)
    streaming.warn_of_few_shards(shards, readers)
    assert [record.message for record in caplog.records] == (
        []
        if sharing < 8
        else [
            "The corpus has 1 part for 64 readers (processes x --dataloader_num_workers): 64 of them decode each "
            "part, and keep one of 64 rows. Write it in 512 parts or more, as files or as row groups of parquet files."
        ]
    )


def test_the_order_is_shuffled_and_other_in_each_pass_and_for_each_seed(files, make):
    order = [index for _, index in next_documents(make(files), 0, 1, 206)]
    first, second = order[:103], order[103:]
    assert sorted(first) != first != second
    assert first != [index for _, index in next_documents(make(files, seed=4), 0, 1, 103)]
    assert order == [index for _, index in next_documents(make(files), 0, 1, 206)]


@pytest.mark.parametrize("shards_per_reader", [0, 10**6])
@pytest.mark.parametrize("known", [False, True])
def test_resuming_anywhere_gives_what_would_have_come(files, make, known, shards_per_reader, monkeypatch):
    monkeypatch.setattr(streaming, "SHARDS_PER_READER", shards_per_reader)
    readers = 1 if make(files).rows.num_shards == 1 else 3
    whole = next_documents(make(files), 0, readers, 220)
    stream = make(files)
    for skip in (1, 10, 11, 35, 103, 206):  # the end of a pass is among what comes
        for file in () if known else stream.sizes.glob("*"):
            file.unlink()
        assert next_documents(stream, 0, readers, 14, skip) == whole[skip : skip + 14], skip


def batches_of_all(make, files, world_size, workers, number, first_batch=0):
    """The first batches that each process gets through accelerate's wrapper and PyTorch's loader."""
    result = []
    for rank in range(world_size):
        stream = make(files, rank=rank, world_size=world_size)
        stream.first_batch = first_batch
        wrapped = IterableDatasetShard(stream, batch_size=4, num_processes=world_size, process_index=rank)
        loader = DataLoader(
            wrapped if world_size > 1 else stream, batch_size=4, num_workers=workers, collate_fn=list,
            multiprocessing_context="fork" if workers else None,
        )  # fmt: skip
        batches = itertools.islice(loader, number)
        result.append([[(row["epoch"], IDS[int(row["document_id"])]) for row in batch] for batch in batches])
    return result


@pytest.mark.parametrize(
    ("files", "world_size", "workers"), [("parquet", 2, 2), ("parquet", 1, 2), ("txt", 3, 0)], indirect=["files"]
)
def test_processes_and_workers_share_a_pass_and_resume(files, make, world_size, workers):
    number = 8 + 26 // world_size  # of each process; a pass has 26
    whole = batches_of_all(make, files, world_size, workers, number)
    seen = [item for rank in whole for batch in rank for item in batch]
    assert Counter(item for item in seen if item[0] == 0) == Counter((0, index) for index in range(103))
    assert {len(batch) for rank in whole for batch in rank} == {4}
    rest = batches_of_all(make, files, world_size, workers, 5, first_batch=7)
    assert rest == [rank[7:12] for rank in whole]


@pytest.mark.parametrize(("view", "passage_words"), [("docsplit", None), ("passages", 5)])
def test_features_are_those_of_the_tokenised_corpus(write, tokenizer, view, passage_words):
    path, segmentation = str(write("all.txt", "\n".join(TEXTS[:20]))), Segmentation(passage_words=passage_words)
    ours = DocumentStream(stream_corpus(path), tokenizer, segmentation, StreamLayout(4))
    expected, _ = preparation.tokenize(corpora.load_corpus(path), tokenizer, segmentation)
    expected = {row["document_id"]: row for row in expected.with_format("numpy")}
    collator = DocSplitCollator(tokenizer, view)
    for feature in itertools.islice(ours.documents(0, 1), 20):
        row = expected[int(feature["document_id"])]
        assert set(feature) == set(row) | {"epoch"}
        for name, value in row.items():
            np.testing.assert_array_equal(feature[name], value)
        for left, right in zip(collator.draw(feature), collator.draw(row)):
            np.testing.assert_array_equal(left, right)


def test_documents_of_one_passage_are_passed_over_and_counted(make, write):
    """Before they are dealt out, so that batches are full and a resumed stream finds its place."""
    path = write("all.txt", "\n".join(f"{text} {text}" if n % 3 else text for n, text in enumerate(TEXTS)))

    def documents(number, skip=0):
        features = list(itertools.islice(stream.documents(0, 1, skip), number))
        assert all(len(feature["passage_units"]) > 1 for feature in features)
        return [(feature["epoch"], int(feature["document_id"])) for feature in features]

    stream = make(path, passage_words=15)
    whole = documents(200)
    assert {name for _, name in whole} == {
        document_id(f"{text} {text}") for number, text in enumerate(TEXTS) if number % 3
    }
    assert stream.num_dropped.value == 3 * 35
    for skip in (7, 68):
        stream = make(path, passage_words=15)
        assert documents(50, skip) == whole[skip : skip + 50]


def test_unusable_and_excluded_documents_are_passed_over_and_counted(make, write, wordpiece):
    texts = [*TEXTS[:10], "", "word", None, "word \x00", "\u200b \u200b", TEXTS[10]]
    path = write("all.jsonl", "\n".join(json.dumps({"text": text}) for text in texts))
    stream = make(path, excluded=frozenset({document_id(TEXTS[3])}))
    features = list(itertools.islice(stream.documents(0, 1), 11))
    assert stream.num_dropped.value == 6
    empty = [feature for feature in features if len(feature["unit_lengths"]) == 0]
    assert len(empty) == 1  # nothing but zero-width spaces: only the tokenizer sees that
    assert {IDS.get(int(feature["document_id"])) for feature in features} == ({*range(11)} - {3}) | {None}
    assert DocSplitCollator(wordpiece)(features)["input_ids"].shape[0] == 10
    with pytest.raises(ValueError, match="no token in any document"):
        DocSplitCollator(wordpiece)(empty)


def test_what_cannot_be_read_is_passed_over_counted_and_said(make, write, caplog):
    """By whichever of the readers: each once a pass; a file that has nothing else is an error."""
    rows = [json.dumps({"text": text}).encode() for text in TEXTS]
    folder = write("docs/a.jsonl", b"\n".join([*rows[:40], b'{"text": ', *rows[40:60]])).parent
    write("docs/b.jsonl", b"\n".join([*rows[60:80], b'{"text": "\x81\x8d. A ship."}']))
    write("docs/c.jsonl.gz", gzip.compress(b"\n".join(rows[80:]))[:-20])
    write("docs/d.jsonl", b'{"body": "A ship. A sail."}')
    read = Counter()
    for reader in range(2):
        documents = make(folder).documents(reader, 2)
        first_pass = itertools.takewhile(lambda feature: feature["epoch"] == 0, documents)
        read.update(IDS[int(feature["document_id"])] for feature in first_pass)
    assert set(range(80)) <= set(read)
    assert set(read.values()) == {1}
    for kind in (
        "1 that are no JSON (a.jsonl, line 41)",
        "that are of an unknown encoding: --encoding names it (b.jsonl, line 21)",
        "1 .jsonl that are damaged, from there on (c.jsonl.gz)",
        "without a column 'text' (d.jsonl)",
    ):
        assert kind in caplog.text
    stream = make(folder)
    assert len(list(itertools.islice(stream.documents(0, 1), len(read)))) == len(read)
    assert stream.num_dropped.value == 4
    assert len(take(stream_corpus(str(folder)), 1000, "text")) == len(read)
    for file, message in (("a.jsonl", r"a\.jsonl is no JSON"), ("d.jsonl", r"but the columns are \['body'\]")):
        (folder / "a.jsonl").write_text("{")
        with pytest.raises(ValueError, match=message):
            take(stream_corpus(str(folder / file)), 10, "text")
        with pytest.raises(ValueError, match=message):
            next(make(folder / file).documents(0, 1))


def test_a_checkpoint_knows_its_position_and_refuses_another_layout(make, write, tmp_path):
    path, checkpoint = write("all.txt", "\n".join(TEXTS)), tmp_path / "checkpoint-5"
    checkpoint.mkdir()
    with pytest.raises(ValueError, match="without --streaming"):
        make(path).resume(checkpoint, num_workers=2)
    make(path).save(checkpoint, num_batches=10, num_workers=2)
    again = make(path)
    again.resume(checkpoint, num_workers=2)
    assert again.first_batch == 10
    for workers, options, message in (
        (1, {}, "num_workers 2 -> 1"),
        (2, {"world_size": 2}, "num_processes 1 -> 2"),
        (2, {"passage_words": 100}, "passage_words None -> 100"),
        (2, {"excluded": frozenset({1})}, "excluded"),
    ):
        with pytest.raises(ValueError, match=message):
            make(path, **options).resume(checkpoint, num_workers=workers)
    write("all.txt", "\n".join(TEXTS[1:]))
    with pytest.raises(ValueError, match="corpus"):
        make(path).resume(checkpoint, num_workers=2)


def test_resuming_late_reads_no_more_than_resuming_early(make, tmp_path, monkeypatch):
    """At 2 % and at 98 % of a pass: rows read before the first document, with sizes known from an earlier pass."""
    path, read = tmp_path / "all.parquet", []
    pa.parquet.write_table(pa.table({"text": [f"Document {row}. It ends." for row in range(1000)]}), path, 50)
    stream = make(path, buffer_size=100)
    list(itertools.islice(stream.documents(0, 1), 1001))
    column = streaming._column
    monkeypatch.setattr(streaming, "_column", lambda *args: read.append(len(args[0])) or column(*args))

    def cost(skip):
        read.clear()
        next(make(path, buffer_size=100).documents(0, 1, skip))
        return sum(read)

    assert max(map(cost, (20, 980, 3980))) <= 150  # the block and what a shard has beyond it
    for file in stream.sizes.glob("*"):
        file.unlink()
    assert cost(980) > 900  # without the sizes all is read: the test sees the difference
