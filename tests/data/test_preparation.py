"""Passages of tokenised documents: those of `to_passages`, none that the tokenizer empties, counted in one line."""

import numpy as np
import pytest
from datasets import Dataset

from docsplit.data.passages import SECTION_BREAK, to_passages
from docsplit.data.preparation import Segmentation, tokenize
from tests.conftest import TOPICS, make_document

WORDS = 12
EMPTY = "\u200b"  # WordPiece removes it


def make_texts(number=30):
    """Documents of one to four sections of one to eight sentences."""
    rng, texts = np.random.default_rng(0), []
    for _ in range(number):
        sections = [
            make_document(rng, str(rng.choice(list(TOPICS))), rng.integers(1, 9)) for _ in range(rng.integers(1, 5))
        ]
        texts.append(f"\n\n{SECTION_BREAK}".join(sections))
    return texts


@pytest.fixture(scope="module")
def dataset():
    return Dataset.from_dict({"text": make_texts()})


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


def test_units_and_passages_and_sections_without_tokens_are_none(wordpiece):
    breath = f"\n\n{SECTION_BREAK}"
    empty_sentence, empty_section = f"The ship.\n\n{EMPTY}\n\nIt had a sail.", f"{EMPTY}\n\n{EMPTY} {EMPTY}"
    texts = [breath.join([empty_sentence, empty_section, "Bread."]), breath.join(["The ship.", empty_section])]
    tokenized, counts = tokenize(Dataset.from_dict({"text": texts}), wordpiece, Segmentation(passage_words=50))
    assert (counts["used"], counts["fewer_than_two_passages"]) == (1, 1)
    (row,) = tokenized
    assert len(row["unit_lengths"]) == 3
    assert row["passage_units"] == [2, 1]
    assert row["passage_sections"] == [0, 1]


def test_reasons_are_told_apart(wordpiece):
    texts = [None, " ", EMPTY, "word", "Only one. Passage.", "The first one.\n\nPart\n====\n\nThe second one."]
    _, counts = tokenize(Dataset.from_dict({"text": texts}), wordpiece, Segmentation(passage_words=100))
    assert list(counts.values()) == [1, 1, 2, 0, 2]
    with pytest.raises(ValueError, match=r"None of the 5 .*fewer_than_two_passages.: 2.*lower --passage_words"):
        tokenize(Dataset.from_dict({"text": texts[:5]}), wordpiece, Segmentation(passage_words=100))


@pytest.mark.parametrize("num_proc", [None, 2])
def test_their_lengths_are_said(dataset, wordpiece, caplog, num_proc):
    caplog.set_level("INFO")
    tokenize(dataset, wordpiece, Segmentation(passage_words=WORDS), num_proc=num_proc)
    documents = [passages for text in dataset["text"] if len(passages := to_passages(text, WORDS)) > 1]
    words = np.array([len(passage.text.split()) for passages in documents for passage in passages])
    sections = np.mean([passages[-1].section + 1 for passages in documents])
    expected = (
        f"Passages of about 12 words: {len(words):,} in {len(documents)} documents, "
        f"{len(words) / len(documents):.1f} a document, of {sections:.1f} sections. They have "
        f"{words.mean():.1f} words on average; {(words < 6).mean():.1%} have fewer than 6, "
        f"{(words > 18).mean():.1%} more than 18."
    )
    assert expected in caplog.text
    assert "'fewer_than_two_passages': " in caplog.text


def test_the_cache_knows_the_words(dataset, wordpiece):
    fingerprints = {
        tokenize(dataset, wordpiece, Segmentation(passage_words=n))[0]._fingerprint for n in (None, 5, 9, 9)
    }
    assert len(fingerprints) == 3
