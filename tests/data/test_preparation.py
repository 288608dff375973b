"""Tokenised documents: their units and passages, what is dropped and why, held-out parts and copies."""

import copy
import logging
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from docsplit.data import preparation
from docsplit.data.corpora import load_corpus
from docsplit.data.passages import SECTION_BREAK, to_passages
from docsplit.data.preparation import Segmentation, tokenize
from tests.conftest import TOPICS, make_document

WORDS = 12


@pytest.fixture(scope="module")
def dataset():
    """30 documents of one to four sections of one to eight sentences."""
    rng, texts = np.random.default_rng(0), []
    for _ in range(30):
        sections = [
            make_document(rng, str(rng.choice(list(TOPICS))), rng.integers(1, 9)) for _ in range(rng.integers(1, 5))
        ]
        texts.append(f"\n\n{SECTION_BREAK}".join(sections))
    return Dataset.from_dict({"text": texts})


def passages_of(row):
    """The ids of each passage of a tokenised document."""
    units = np.split(np.asarray(row["input_ids"]), np.cumsum(row["unit_lengths"])[:-1])
    ends = np.cumsum(row["passage_units"])
    return [np.concatenate(units[end - size : end]).tolist() for end, size in zip(ends, row["passage_units"])]


def test_passages_are_those_of_the_text(dataset, tokenizer):
    tokenized, counts = tokenize(dataset, tokenizer, Segmentation(passage_words=WORDS))
    expected = [passages for text in dataset["text"] if len(passages := to_passages(text, WORDS)) > 1]
    assert counts == {
        **{"used": len(expected), "not_a_string": 0, "empty": 0, "fewer_than_two_words": 0},
        "fewer_than_two_passages": len(dataset) - len(expected),
    }
    assert 0 < len(expected) < len(dataset)
    for row, passages in zip(tokenized, expected, strict=True):
        ids = tokenizer([f" {passage.text}" for passage in passages], add_special_tokens=False)["input_ids"]
        assert passages_of(row) == ids
        assert row["passage_sections"] == [passage.section for passage in passages]


def test_views_of_sentences_store_no_passages_and_keep_what_passages_drop(dataset, wordpiece):
    plain, counts = tokenize(dataset, wordpiece)
    with_passages, _ = tokenize(dataset, wordpiece, Segmentation(passage_words=WORDS))
    assert set(with_passages.column_names) - set(plain.column_names) == {"passage_units", "passage_sections"}
    assert counts == {"used": len(dataset), "not_a_string": 0, "empty": 0, "fewer_than_two_words": 0}
    units = {row["document_id"]: (row["input_ids"], row["unit_lengths"]) for row in plain}
    assert all((row["input_ids"], row["unit_lengths"]) == units[row["document_id"]] for row in with_passages)
    assert tokenize(dataset, wordpiece, num_proc=2)[0][:] == plain[:]


def test_what_has_no_tokens_is_none_and_reasons_are_told_apart(wordpiece):
    empty = "\u200b"  # WordPiece removes it
    sections = [f"The ship.\n\n{empty}\n\nIt had a sail.", f"{empty}\n\n{empty} {empty}", "Bread."]
    text = f"\n\n{SECTION_BREAK}".join(sections)
    texts = [text, None, " ", empty, "word", "Only one. Passage.", "The first one.\n\nPart\n====\n\nThe second one."]
    tokenized, counts = tokenize(Dataset.from_dict({"text": texts}), wordpiece, Segmentation(passage_words=10))
    assert list(counts.items()) == [
        ("used", 2), ("not_a_string", 1), ("empty", 2), ("fewer_than_two_words", 0), ("fewer_than_two_passages", 2),
    ]  # fmt: skip
    row = tokenized[0]
    assert (len(row["unit_lengths"]), row["passage_units"], row["passage_sections"]) == (3, [2, 1], [0, 1])
    with pytest.raises(ValueError, match=r"None of the 5 .*fewer_than_two_passages.: 2.*lower --passage_words"):
        tokenize(Dataset.from_dict({"text": texts[1:6]}), wordpiece, Segmentation(passage_words=20))


def test_tokenising_twice_reads_the_cache(corpus_file, wordpiece, tmp_path):
    """A resumed run does not tokenise again, with the tokenizer of a checkpoint either."""
    wordpiece = copy.deepcopy(wordpiece)  # the other tests' stays as it is
    wordpiece.model_max_length = 99
    wordpiece(["a ship"], truncation=True, padding=True)
    wordpiece.save_pretrained(tmp_path)
    tokenizers = [wordpiece, AutoTokenizer.from_pretrained(tmp_path)]
    runs = [tokenize(load_corpus(str(corpus_file)), tokenizer) for tokenizer in tokenizers]
    files = [[Path(file["filename"]) for file in dataset.cache_files] for dataset, _ in runs]
    assert files[0] == files[1] != []
    parts = preparation.hold_out(runs[0][0], 8, seed=0)
    assert [set(part.cache_files[0].values()) for part in parts if part.cache_files] == [{str(files[0][0])}]
    assert {file.name for file in files[0][0].parent.iterdir()} == {"rows.arrow", "files.json"}  # all is verified
    other = tokenize(load_corpus(str(corpus_file)), wordpiece, Segmentation(sentence_splitter="sentencizer"))[0]
    assert other.cache_files[0]["filename"] != str(files[0][0])


def test_held_out_documents_are_others_and_drawn_the_same_way_each_time(corpus, wordpiece):
    documents = tokenize(corpus, wordpiece)[0]
    assert preparation.hold_out(documents, 0, seed=0)[1] is None
    train, held_out = preparation.hold_out(documents, 5, seed=0)
    expected = documents.train_test_split(test_size=5, seed=0)
    for part, name in ((train, "train"), (held_out, "test")):
        assert part["document_id"][:].tolist() == expected[name]["document_id"][:]
    assert set(held_out["epoch"][:].tolist()) == {0}
    assert len(preparation.hold_out(documents, 10**6, seed=0)[1]) == len(documents) // 10  # at most a tenth
    with pytest.raises(ValueError, match="held out of one: give more documents, or --eval_strategy no"):
        preparation.hold_out(documents.select(range(1)), 5, seed=0)
    rest, count = preparation.without_documents(documents, set(held_out["document_id"][:].tolist()))
    assert (len(rest), count) == (len(documents) - 5, 5)
    assert not {*rest["document_id"][:]} & {*held_out["document_id"][:].tolist()}


def test_copies_are_counted_and_copies_of_one_document_are_refused(tokenizer, caplog):
    ship, bread, storm = "A ship. It had a sail.", "Bread. Butter.", "A storm. It went by."

    def check(texts, batch_size):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="docsplit.data.preparation"):
            documents, _ = tokenize(Dataset.from_dict({"text": texts}), tokenizer)
            preparation.check_fills_a_batch(documents, batch_size, "training")
        said = [record for record in caplog.records if "copies" in record.getMessage()]
        return [(record.levelno, record.getMessage().split(":")[0]) for record in said]

    for texts in ([ship] * 60, [ship, "A ship.  It had\na sail."]):
        with pytest.raises(ValueError, match=f"The {len(texts)} training documents are copies of one"):
            check(texts, 2)
    assert check([ship, bread, storm], 3) == []
    for batch_size, level in ((3, logging.INFO), (4, logging.WARNING)):
        said = check([ship, ship, bread, storm], batch_size)
        assert said == [(level, "1 of 4 training documents are copies of others")]
    with pytest.raises(ValueError, match="3 training documents do not fill one batch of 4"):
        check([ship, bread, storm], 4)
