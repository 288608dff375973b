"""The batch: what is masked, what is drawn when, and that neither workers nor processes change it."""

import itertools

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import find_batch_size

from docsplit.data import collators, preparation
from docsplit.data.collators import IGNORED, MLM_PROBABILITY, DocSplitCollator, PassageCollator, truncated_shares
from docsplit.data.passages import SECTION_BREAK, to_passages
from docsplit.data.preparation import Segmentation
from docsplit.modeling.loading import prompts_of
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig
from tests.conftest import make_corpus, tiny_config


@pytest.fixture(scope="module")
def dataset(corpus, wordpiece):
    return preparation.tokenize(corpus, wordpiece)[0].with_format("numpy")


@pytest.fixture
def collator(wordpiece):
    return DocSplitCollator(wordpiece, max_seq_length=64, seed=3)


def batches(dataset, collator, epoch, workers=0):
    collator.epoch.value = epoch
    loader = DataLoader(dataset, batch_size=8, collate_fn=collator, num_workers=workers)
    return list(loader)


def flat(batch):
    """Return the tensors and arrays of a batch, those of `rows` and `host` among them."""
    inner = [values.items() for values in batch.values() if isinstance(values, dict)]
    return {name: value for name, value in itertools.chain(batch.items(), *inner) if not isinstance(value, dict)}


def equal(first, second):
    """Whether two lists of batches hold the same."""
    pairs = [(flat(left), flat(right)) for left, right in zip(first, second, strict=True)]
    return all(
        left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)
        for left, right in pairs
    )


def test_shapes_padding_and_no_mask_in_the_contrastive_inputs(dataset, collator, wordpiece):
    batch = collator([dataset[index] for index in range(5)])
    assert batch["input_ids"].shape == batch["mlm_targets"].shape == (5, 2, batch["input_ids"].shape[-1])
    assert batch["input_ids"].shape[-1] == batch["attention_mask"].sum(-1).max()
    assert ((batch["input_ids"] != wordpiece.pad_token_id) == (batch["attention_mask"] == 1)).all()
    assert (batch["input_ids"] != wordpiece.mask_token_id).all()
    assert (batch["mlm_input_ids"] == wordpiece.mask_token_id).any()
    assert batch["host"]["lengths"].tolist() == batch["attention_mask"].flatten(0, 1).sum(-1).tolist()
    assert batch["host"]["masked"].tolist() == (batch["mlm_targets"].flatten() != IGNORED).nonzero()[:, 0].tolist()


def test_workers_see_the_epoch_and_each_epoch_differs(dataset, collator):
    first, second = (batches(dataset, collator, epoch, workers=2) for epoch in (0, 1))
    assert equal(second, batches(dataset, collator, 1))
    assert not equal(first[:1], second[:1])


def test_masking_against_its_definition(collator, wordpiece):
    rng, special_ids = np.random.default_rng(0), np.array(wordpiece.all_special_ids)
    ids = np.concatenate([rng.choice(special_ids, 500), rng.choice(collator.ordinary_ids, 200_000), special_ids])
    masked, targets = collator.mask(ids, rng)
    chosen, is_mask = targets != IGNORED, masked == wordpiece.mask_token_id
    assert (targets[chosen] == ids[chosen]).all()
    assert (masked[~chosen] == ids[~chosen]).all()
    assert not np.isin(ids[chosen], special_ids).any()
    assert not np.isin(masked[chosen & ~is_mask], special_ids).any()
    np.testing.assert_allclose(chosen[500:].mean(), MLM_PROBABILITY, atol=0.005)
    np.testing.assert_allclose(is_mask[chosen].mean(), 0.8, atol=0.01)
    np.testing.assert_allclose((masked == ids)[chosen].mean(), 0.1, atol=0.01)  # a random one is rarely the same


def test_the_whole_document_twice_is_said_to_be_one_text(dataset, wordpiece):
    for view, is_said in (("simcse", True), ("docsplit", False), ("half", False)):
        batch = DocSplitCollator(wordpiece, view=view, max_seq_length=64)(list(dataset.select(range(3))))
        assert ("same_text" in batch) == is_said
        assert torch.equal(batch["input_ids"][:, 0], batch["input_ids"][:, 1]) == is_said


def test_truncated_shares_count_documents_and_tokens(dataset, wordpiece):
    assert {*truncated_shares(dataset, DocSplitCollator(wordpiece, max_seq_length=512)).values()} == {0.0}
    collator = DocSplitCollator(wordpiece, max_seq_length=10)
    lengths = [
        [view.sum() for view in collator.view(feature["unit_lengths"], collator.generator(feature))]
        for feature in dataset
    ]
    shares = truncated_shares(dataset, collator)
    documents = np.mean([max(pair) > 8 for pair in lengths])
    assert shares["documents_truncated_share"] == pytest.approx(documents)
    tokens = sum(max(length - 8, 0) for pair in lengths for length in pair) / np.sum(lengths)
    assert shares["tokens_truncated_share"] == pytest.approx(tokens)
    assert 0 < tokens < 1


BAD_VIEWS = {
    "one array": lambda half: half,
    "one view": lambda half: (half,),
    "three views": lambda half: (half, ~half, half),
    "nothing": lambda half: None,
    "an empty view": lambda half: (half, half & ~half),
    "places of tokens": lambda half: (np.flatnonzero(half), np.flatnonzero(~half)),
    "0 and 1": lambda half: (half.astype(int), (~half).astype(int)),  # which would take the first two tokens
    "lists": lambda half: (half.tolist(), (~half).tolist()),
    "a token less": lambda half: (half[1:], ~half[1:]),
    "tensors": lambda half: (torch.from_numpy(half), torch.from_numpy(~half)),
}


@pytest.mark.parametrize("bad", BAD_VIEWS)
@pytest.mark.parametrize("kind", [DocSplitCollator, PassageCollator])
def test_a_view_that_is_no_pair_of_masks_is_named(dataset, wordpiece, monkeypatch, kind, bad):
    """Of both kinds of rows; with the good halves in their place both make a batch."""
    number = int(np.argmax([len(feature["unit_lengths"]) for feature in dataset]))
    feature = dict(dataset[number])
    feature["passage_units"] = np.ones(len(feature["unit_lengths"]), dtype=int)
    feature["passage_sections"] = np.zeros(len(feature["unit_lengths"]), dtype=int)
    monkeypatch.setattr(collators, "PASSAGE_VIEWS", {"mine"} if kind is PassageCollator else set())

    def halves(unit_lengths):
        return np.arange(unit_lengths.sum()) < unit_lengths[0]

    monkeypatch.setitem(collators.VIEWS, "mine", lambda lengths, rng: (halves(lengths), ~halves(lengths)))
    assert kind(wordpiece, "mine")([feature])["document_ids"].shape == (1,)
    monkeypatch.setitem(collators.VIEWS, "mine", lambda lengths, rng: BAD_VIEWS[bad](halves(lengths)))
    with pytest.raises(
        ValueError, match=r"The view 'mine' gave .* expected two arrays of \d+ bool, each with a token"
    ):
        kind(wordpiece, "mine")([feature])


# --- Rows that are passages ---

WORDS = 12


@pytest.fixture(scope="module")
def texts():
    """Return documents made of three documents of the corpus each, as sections."""
    rows = [row["text"] for row in make_corpus(60)]
    return [f"\n\n{SECTION_BREAK}".join(rows[number : number + 3]) for number in range(0, 60, 3)]


@pytest.fixture
def documents(texts, tokenizer):
    dataset, _ = preparation.tokenize(Dataset.from_dict({"text": texts}), tokenizer, Segmentation(passage_words=WORDS))
    return dataset.with_format("numpy")


def rows_of(batch):
    """Map (document, view) to its rows: (position, section, is_query, ids without padding)."""
    rows_of_view = {}
    for number, ids in enumerate(batch["input_ids"]):
        place = {name: int(value[number]) for name, value in batch["rows"].items()}
        row = *(place[name] for name in ("position", "section", "is_query")), ids[batch["attention_mask"][number] == 1]
        rows_of_view.setdefault((place["document"], place["view"]), []).append(row)
    return rows_of_view


@pytest.mark.parametrize("view", ["passages", "passage_vs_rest"])
@pytest.mark.parametrize("max_passages", [2, 5, 50])
def test_rows_are_the_passages_of_the_text_divided_between_two_views(texts, documents, tokenizer, view, max_passages):
    collator = PassageCollator(tokenizer, view, max_seq_length=24, max_passages=max_passages)
    rows, queries_at = rows_of(collator([documents[number] for number in range(len(documents))])), set()
    assert list(rows) == [(number, view) for number in range(len(texts)) for view in (0, 1)]  # one after another
    for number, text in enumerate(texts):
        passages = to_passages(text, WORDS)[:max_passages]
        first, second = rows[number, 0], rows[number, 1]
        assert len(first) == (len(passages) // 2 if view == "passages" else 1)
        places = [[position for position, *_ in rows_of_view] for rows_of_view in (first, second)]
        assert places == [sorted(positions) for positions in places]
        assert all(is_query == (view == "passage_vs_rest") for _, _, is_query, _ in first)
        assert not any(is_query for _, _, is_query, _ in second)
        queries_at |= {*places[0]}
        together = sorted([*first, *second], key=lambda row: row[0])
        expected = tokenizer([passage.text for passage in passages], truncation=True, max_length=24)["input_ids"]
        assert [(position, section, ids.tolist()) for position, section, _, ids in together] == [
            (position, passage.section, ids) for position, (passage, ids) in enumerate(zip(passages, expected))
        ]
    assert len(queries_at) > 1


def test_a_view_of_passages_needs_the_beginning_of_one(documents, tokenizer, monkeypatch):
    monkeypatch.setattr(collators, "PASSAGE_VIEWS", {"mine"})
    monkeypatch.setitem(
        collators.VIEWS, "mine", lambda lengths, rng: (np.arange(lengths.sum()) == 1, np.arange(lengths.sum()) > 1)
    )
    with pytest.raises(ValueError, match=r"'mine' gave .*each with a token that begins a unit"):
        PassageCollator(tokenizer, "mine")([documents[0]])


def test_passages_are_masked_and_prompted_as_views_are(documents, tokenizer):
    collator = PassageCollator(tokenizer, max_seq_length=64, mlm=True, prompt="bread and ")
    batch = collator([documents[number] for number in range(len(documents))])
    masked = batch["mlm_targets"] != IGNORED
    assert 0.1 < masked.sum() / (batch["attention_mask"].sum() - 2 * len(masked)) < 0.2
    assert (batch["mlm_targets"][masked] == batch["input_ids"][masked]).all()
    assert not masked[:, collator.prompt_positions].any()
    texts = tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True)
    assert all(text.strip().startswith("bread and ") for text in texts)
    assert not {"mlm_input_ids", "mlm_targets"} & set(PassageCollator(tokenizer, max_seq_length=64)([documents[0]]))


@pytest.mark.parametrize("view", ["passages", "passage_vs_rest"])
def test_passages_are_drawn_by_seed_epoch_and_document_alone(documents, tokenizer, view):
    """A killed run that a new collator resumes within an epoch sees the views that it would have seen."""

    def drawn(start=0, epoch=1, seed=3, workers=0):
        collator = PassageCollator(tokenizer, view, seed=seed)
        return batches(documents.select(range(start, len(documents))), collator, epoch, workers)

    whole = drawn()
    assert equal(drawn(start=8), whole[1:])
    assert equal(drawn(start=8, workers=2), whole[1:])
    others = rows_of(drawn(start=2)[0])  # other documents beside it
    assert [row[:3] for row in others[0, 0]] == [row[:3] for row in rows_of(whole[0])[2, 0]]
    assert not equal(drawn(epoch=2), whole)
    assert not equal(drawn(seed=4), whole)
    fixed = preparation.with_fixed_draws(documents)
    collator = PassageCollator(tokenizer, view, seed=3)
    evaluated = [collator([fixed[0], fixed[1]]) for collator.epoch.value in (0, 5)]
    assert equal(evaluated[:1], evaluated[1:])


def test_the_size_of_a_batch_is_that_of_its_documents(dataset, documents, collator, tokenizer):
    """Trainer and accelerate take that of the first tensor."""
    assert find_batch_size(collator([dataset[index] for index in range(5)])) == 5
    batch = PassageCollator(tokenizer, sketches=True)([documents[index] for index in range(5)])
    assert find_batch_size(batch) == 5 < len(batch["input_ids"])
    assert batch["sketches"].shape == (5, 8)


# --- Made for a model ---


def test_a_collator_for_a_model_draws_what_the_settings_say(dataset, wordpiece):
    """Length, view, prompt and masking are the model's; what is given takes their place there."""
    config = tiny_config(wordpiece)
    model = DocSplitForContrastivePretraining.from_config(
        config, wordpiece, max_seq_length=24, view="ict", passage_words=20, mlm_weight=0.0
    )
    features = [dataset[number] for number in range(8)]
    batch = DocSplitCollator.for_model(model, wordpiece, seed=3)(features)
    assert equal([batch], [DocSplitCollator(wordpiece, "ict", 24, mlm=False, seed=3)(features)])
    assert model.config.docsplit["view"] == "ict"
    collator = DocSplitCollator.for_model(model, wordpiece, view="crop", max_seq_length=30, prompt="ship ")
    assert equal([collator(features)], [DocSplitCollator(wordpiece, "crop", 30, mlm=False, prompt="ship ")(features)])
    settings = model.config.docsplit
    assert (settings["view"], model.body.max_seq_length, prompts_of(model.body)[0]) == ("crop", 30, "ship ")
    assert "passage_words" not in settings
    DocSplitCollator.for_model(model, wordpiece, prompt="")
    assert prompts_of(model.body)[0] == ""
    assert model(**collator(features)).loss > 0
    with pytest.raises(ValueError, match="positions for 128 tokens"):
        DocSplitCollator.for_model(model, wordpiece, max_seq_length=129)
    # Else the released encoder would read fewer tokens of a document than it was trained on
    with pytest.raises(ValueError, match=r"views of \d+ tokens.*max_seq_length 30.*DocSplitCollator.for_model"):
        model(**DocSplitCollator(wordpiece)(features))


def test_a_collator_for_a_graph_makes_passages(documents, tokenizer):
    config = GraphDocumentConfig(tiny_config(tokenizer), graph_hidden_size=16)
    model = DocSplitForContrastivePretraining.from_config(config, tokenizer, max_seq_length=48)
    collator = DocSplitCollator.for_model(model, tokenizer, max_passages=4)
    assert type(collator) is PassageCollator
    assert (collator.max_passages, collator.max_seq_length) == (4, 48)
    assert model.config.docsplit["view"] == "passages"
    assert model(**collator([documents[number] for number in range(3)])).loss > 0
