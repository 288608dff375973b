"""Queries and documents as batches: what stands in them, what is drawn, and what is never a negative."""

import itertools

import numpy as np
import pytest
import torch

from docsplit.data.collators import DocSplitCollator, PassageCollator
from docsplit.data.preparation import Segmentation, document_id
from docsplit.data.query_documents import NO_ID, PASSAGES_READ, Collection, QueryDataset, QueryDocumentCollator
from docsplit.data.sets.rankings import Ranking
from docsplit.modeling.families.graph import GRAPH_DOCUMENTS
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, tiny_config

TEXTS = [row["text"] for row in make_corpus(30, seed=7)]
TEXTS[5] = TEXTS[4]  # a duplicate: what is relevant as d4 is no negative as d5
TEXTS[6], TEXTS[7] = "", "Bread"
QUERIES = ["bread and butter", "ship", "Ship ", "tree", "storm", "bee"]
JUDGED = [{"d4": 1, "d8": 2, "d9": 0}, {"d1": 1}, {"d2": 1, "gone": 1}, {"d6": 1}, {"gone": 2}, {"d7": 1, "d3": 1}]


def ranking(whole=None):
    names = [f"q{number}" for number in range(len(QUERIES))]
    judgments = dict(zip(names, JUDGED))
    documents = [f"d{number}" for number in range(len(TEXTS))]
    return Ranking(documents, TEXTS, names, QUERIES, judgments, whole=whole or {})


def collected(tokenizer, passage_words=None, **options):
    return Collection.make(ranking(**options), tokenizer, Segmentation(passage_words=passage_words))


@pytest.fixture(scope="module")
def dataset(wordpiece):
    return QueryDataset(collected(wordpiece), np.arange(len(QUERIES)))


def make(tokenizer, dataset, **options):
    of_documents = DocSplitCollator(tokenizer, "simcse", 24, mlm=False, prompt=options.pop("prompt", ""))
    return QueryDocumentCollator(of_documents, [dataset], **options)


def text_of(tokenizer, ids):
    return [int(token) for token in ids if token != tokenizer.pad_token_id]


def test_queries_whose_relevant_documents_are_not_there_or_empty_are_left_out(dataset):
    assert dataset.numbers.tolist() == [0, 1, 2, 5]
    assert dataset.left_out == 2
    assert [rows.tolist() for rows in dataset.relevant] == [[4, 8], [1], [2], [3, 7]]
    same = {document_id(TEXTS[1]), document_id(TEXTS[2])}  # "ship" and "Ship " are one query
    assert {*dataset.relevant_ids[1].tolist()} == {*dataset.relevant_ids[2].tolist()} == same


@pytest.mark.parametrize("name", ["wordpiece", "byte_level_bpe"])
def test_rows_are_the_tokens_of_prompt_and_text(name, request):
    tokenizer = request.getfixturevalue(name)
    dataset = QueryDataset(collected(tokenizer), np.arange(len(QUERIES)))
    collator = make(tokenizer, dataset, negatives_per_query=2, prompt="text: ", query_prompt="ask: ")
    batch = collator([dataset[index] for index in range(4)])
    assert batch["input_ids"].shape[:2] == (4, 4)
    texts = {document_id(text): text for text in TEXTS}
    for index in range(4):
        expected = [f"ask: {' '.join(QUERIES[dataset.numbers[index]].split())}"]
        expected += [f"text: {texts[int(name)]}" for name in batch["document_ids"][index]]
        for row, text in zip(batch["input_ids"][index], expected):
            assert text_of(tokenizer, row) == tokenizer(text, truncation=True, max_length=24)["input_ids"]
    assert batch["attention_mask"].sum() == (batch["input_ids"] != tokenizer.pad_token_id).sum()


def test_draws_are_functions_of_seed_epoch_and_query_and_never_relevant(dataset, wordpiece):
    collator = make(wordpiece, dataset, negatives_per_query=3)
    positives, negatives = set(), set()
    for collator.epoch.value in range(30):
        ids = collator([dataset[index] for index in range(4)])["document_ids"]
        alone = torch.cat([collator([dataset[index]])["document_ids"] for index in (3, 2, 1, 0)]).flip(0)
        assert torch.equal(ids, alone)
        for found, relevant in zip(ids.tolist(), dataset.relevant_ids):
            assert found[0] in relevant
            assert not {*found[1:]} & {*relevant.tolist(), document_id("")}
            assert len({*found}) == 4
        positives.add(int(ids[0, 0]))
        negatives |= {*ids[0, 1:].tolist()}
    assert len(positives) == 2
    usable = {document_id(text) for text in TEXTS if text} - {*dataset.relevant_ids[0].tolist()}
    assert negatives == usable  # the judged non-relevant one too
    with pytest.raises(ValueError, match="too few for --negatives_per_query 28"):
        make(wordpiece, dataset, negatives_per_query=28)


def test_mined_documents_come_first_and_random_ones_fill_up(dataset, wordpiece):
    collator = make(wordpiece, dataset, negatives_per_query=2)
    collator.negatives = np.array([[5, 9, 10], [11, -1, -1], [12, 13, -1], [3, 7, 14]])  # 5 is 4, 3 and 7 relevant
    ids = collator([dataset[index] for index in range(4)])["document_ids"][:, 1:].tolist()
    expected = [[document_id(TEXTS[row]) for row in rows] for rows in ([9, 10], [11], [12, 13], [14])]
    assert [sorted(text) for text in (ids[0], ids[2])] == [sorted(expected[0]), sorted(expected[2])]
    assert expected[1][0] in ids[1]
    assert expected[3][0] in ids[3]


def test_an_evaluation_has_no_negatives_and_the_same_documents_in_each_epoch(dataset, wordpiece):
    held_out = QueryDataset(dataset.collection, np.arange(len(QUERIES)), is_evaluation=True)
    of_documents = DocSplitCollator(wordpiece, "simcse", max_seq_length=24, mlm=False)
    collator = QueryDocumentCollator(of_documents, [dataset, held_out], negatives_per_query=2)
    batches = [collator([held_out[index] for index in range(4)]) for collator.epoch.value in range(3)]
    assert all(batch["document_ids"].shape == (4, 1) for batch in batches)
    assert all(torch.equal(batches[0]["input_ids"], batch["input_ids"]) for batch in batches)


def test_relevant_ids_and_what_is_said_of_texts_that_were_read(wordpiece):
    whole = {"d1": f"About ships. {TEXTS[1]}"}
    dataset = QueryDataset(collected(wordpiece, whole=whole), np.array([0, 1]))
    batch = make(wordpiece, dataset, negatives_per_query=1)([dataset[0], dataset[1]])
    both = sorted(document_id(TEXTS[row]) for row in (4, 8))
    assert batch["relevant_ids"].tolist() == [both, [document_id(TEXTS[1]), NO_ID]]
    assert (batch["seen_ids"].shape, batch["sketches"].shape) == ((6,), (6, 8))
    assert batch["seen_ids"][3:5].tolist() == [document_id("ship"), document_id(whole["d1"])]


def test_passages_of_a_document_and_a_query_that_is_one(wordpiece):
    """The vectors are those of the documents alone, as the model embeds them, whatever else is in the batch."""
    dataset = QueryDataset(collected(wordpiece, passage_words=8), np.arange(len(QUERIES)))
    of_documents = PassageCollator(wordpiece, "passages", 24, max_passages=PASSAGES_READ)
    batch = QueryDocumentCollator(of_documents, [dataset], negatives_per_query=1)([dataset[0], dataset[3]])
    rows = batch["rows"]
    assert batch["input_ids"].shape[0] == len(rows["view"])
    assert rows["document"][rows["view"] == 0].tolist() == [0, 1]
    assert np.array_equal(rows["is_query"], rows["view"] == 0)
    torch.manual_seed(0)
    config = GRAPH_DOCUMENTS.make_config(tiny_config(wordpiece), {"graph_hidden_size": 16, "graph_kind": "section"})
    model = DocSplitForContrastivePretraining.from_config(config, wordpiece, max_seq_length=24).eval()
    output = model(**{name: batch[name] for name in batch.keys() - {"seen_ids", "sketches"}})
    assert output.embeddings.shape == (2, 3, 16)
    assert torch.isfinite(output.loss)
    for number, view in itertools.product(range(2), range(3)):
        chosen = (rows["document"] == number) & (rows["view"] == view)
        alone = {name: batch[name][chosen] for name in ("input_ids", "attention_mask")}
        places = {name: torch.from_numpy(rows[name][chosen]) for name in ("section", "position", "is_query")}
        vector = model.encoder(**alone, **places).embeddings[0]
        torch.testing.assert_close(output.embeddings[number, view], vector, atol=1e-5, rtol=1e-4)


def test_a_querys_own_document_is_no_negative(wordpiece):
    """Drawn at random, mined, or in the batch of another query; and it is no answer."""
    names = [f"d{number}" for number in range(4)]
    of_arguana = Ranking(names, TEXTS[:4], ["d0", "d2"], [TEXTS[0], TEXTS[2]], {"d0": {"d1": 1}, "d2": {"d0": 1}})
    dataset = QueryDataset(Collection.make(of_arguana, wordpiece, Segmentation()), np.arange(2))
    assert [rows.tolist() for rows in dataset.relevant] == [[1], [0]]
    collator = make(wordpiece, dataset, negatives_per_query=1)
    for collator.negatives in (None, np.array([[0, 1], [2, 0]])):
        for collator.epoch.value in range(20):
            batch = collator([dataset[0], dataset[1]])
            assert batch["document_ids"][0, 1] != document_id(TEXTS[0])
            assert batch["document_ids"][1, 1] != document_id(TEXTS[2])
    assert document_id(TEXTS[0]) in batch["relevant_ids"][0]  # so it is none where it answers the other query
