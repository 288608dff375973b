"""The batch: what is masked, what is drawn when, and that neither workers nor processes change it."""

import itertools

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import find_batch_size

from docsplit.data import preparation
from docsplit.data.collators import IGNORED, MLM_PROBABILITY, DocSplitCollator, PassageCollator, truncated_shares
from docsplit.data.passages import SECTION_BREAK, to_passages
from docsplit.data.preparation import Segmentation
from docsplit.modeling.pretrained import prompt_of
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig, GraphDocumentModel
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
    return all(same(a, b) for a, b in zip(first, second, strict=True))


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
    rng = np.random.default_rng(0)
    special_ids = np.array(wordpiece.all_special_ids)
    ids = np.concatenate([rng.choice(special_ids, 500), rng.choice(collator.ordinary_ids, 200_000), special_ids])
    masked, targets = collator.mask(ids, rng)
    chosen = targets != IGNORED
    assert (targets[chosen] == ids[chosen]).all()
    assert (masked[~chosen] == ids[~chosen]).all()
    assert not chosen[:500].any()
    assert not np.isin(ids[chosen], special_ids).any()
    mask_share = (masked[chosen] == wordpiece.mask_token_id).mean()
    kept_share = (masked[chosen] == ids[chosen]).mean()
    np.testing.assert_allclose(chosen[500:].mean(), MLM_PROBABILITY, atol=0.005)
    np.testing.assert_allclose(mask_share, 0.8, atol=0.01)
    np.testing.assert_allclose(kept_share, 0.1, atol=0.01)  # a random token is rarely the same one
    assert not np.isin(masked[chosen & (masked != wordpiece.mask_token_id)], special_ids).any()


def test_the_whole_document_twice_is_said_to_be_one_text(dataset, wordpiece):
    for view, is_said in (("simcse", True), ("docsplit", False), ("half", False)):
        batch = DocSplitCollator(wordpiece, view=view, max_seq_length=64)(list(dataset.select(range(3))))
        assert ("same_text" in batch) == is_said
        assert torch.equal(batch["input_ids"][:, 0], batch["input_ids"][:, 1]) == is_said


def test_truncated_shares_count_documents_and_tokens(dataset, wordpiece):
    nothing = truncated_shares(dataset, DocSplitCollator(wordpiece, max_seq_length=512))
    assert nothing == {"documents_truncated_share": 0.0, "tokens_truncated_share": 0.0}
    collator = DocSplitCollator(wordpiece, max_seq_length=10)
    lost = total = documents = 0
    for feature in dataset:
        halves = [view.sum() for view in collator.view(feature["unit_lengths"], collator.generator(feature))]
        documents += any(half > 8 for half in halves)
        lost += sum(max(half - 8, 0) for half in halves)
        total += sum(halves)
    shares = truncated_shares(dataset, collator)
    assert shares["documents_truncated_share"] == pytest.approx(documents / len(dataset))
    assert shares["tokens_truncated_share"] == pytest.approx(lost / total)
    assert 0 < shares["tokens_truncated_share"] < 1


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
    for number in range(len(batch["input_ids"])):
        place = {name: int(value[number]) for name, value in batch["rows"].items()}
        ids = batch["input_ids"][number][batch["attention_mask"][number] == 1].tolist()
        row = place["position"], place["section"], place["is_query"], ids
        rows_of_view.setdefault((place["document"], place["view"]), []).append(row)
    return rows_of_view


@pytest.mark.parametrize("view", ["passages", "passage_vs_rest"])
@pytest.mark.parametrize("max_passages", [2, 5, 50])
def test_rows_are_the_passages_of_the_text_divided_between_two_views(texts, documents, tokenizer, view, max_passages):
    collator = PassageCollator(tokenizer, view, max_seq_length=24, max_passages=max_passages)
    batch = collator([documents[number] for number in range(len(documents))])
    assert batch["rows"].keys() == {"document", "view", "section", "position", "is_query"}
    assert all(value.dtype == np.int64 for value in batch["rows"].values())
    rows, queries_at = rows_of(batch), set()
    assert list(rows) == [(number, view) for number in range(len(texts)) for view in (0, 1)]  # one after another
    for number, text in enumerate(texts):
        passages = to_passages(text, WORDS)[:max_passages]
        first, second = rows[number, 0], rows[number, 1]
        assert len(first) == (len(passages) // 2 if view == "passages" else 1)
        for rows_of_view in (first, second):
            assert [row[0] for row in rows_of_view] == sorted(row[0] for row in rows_of_view)
        assert all(row[2] == (view == "passage_vs_rest") for row in first)
        assert not any(row[2] for row in second)
        queries_at |= {row[0] for row in first}
        together = sorted([*first, *second])
        assert [row[0] for row in together] == [*range(len(passages))]
        assert [row[1] for row in together] == [passage.section for passage in passages]
        expected = tokenizer([passage.text for passage in passages], truncation=True, max_length=24)["input_ids"]
        assert [row[3] for row in together] == expected
    assert len(queries_at) > 1


def test_passages_are_masked_and_prompted_as_views_are(documents, tokenizer):
    prompt = "bread and "
    collator = PassageCollator(tokenizer, max_seq_length=64, mlm=True, prompt=prompt)
    batch = collator([documents[number] for number in range(len(documents))])
    masked = batch["mlm_targets"] != IGNORED
    assert 0.1 < masked.sum() / (batch["attention_mask"].sum() - 2 * len(masked)) < 0.2
    assert (batch["mlm_targets"][masked] == batch["input_ids"][masked]).all()
    assert not masked[:, collator.prompt_positions].any()
    assert all(
        text.strip().startswith("bread and ")
        for text in tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True)
    )
    no_masks = PassageCollator(tokenizer, max_seq_length=64, prompt=prompt)([documents[0]])
    assert not {"mlm_input_ids", "mlm_targets"} & set(no_masks)


def same(first, second):
    first, second = flat(first), flat(second)
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("view", ["passages", "passage_vs_rest"])
def test_passages_are_drawn_by_seed_epoch_and_document_alone(documents, tokenizer, view):
    """A killed run that a new collator resumes within an epoch sees the views that it would have seen."""

    def batches(start=0, epoch=1, seed=3, workers=0):
        collator = PassageCollator(tokenizer, view, seed=seed)
        collator.epoch.value = epoch
        rest = documents.select(range(start, len(documents)))
        return list(DataLoader(rest, batch_size=4, collate_fn=collator, num_workers=workers))

    whole = batches()
    for resumed in (batches(start=8), batches(start=8, workers=2)):
        assert all(same(left, right) for left, right in zip(resumed, whole[2:], strict=True))
    others = rows_of(batches(start=2)[0])  # other documents beside it
    assert [row[:3] for row in others[0, 0]] == [row[:3] for row in rows_of(whole[0])[2, 0]]
    for different in (batches(epoch=2), batches(seed=4)):
        assert not all(same(left, right) for left, right in zip(different, whole))
    fixed = preparation.with_fixed_draws(documents)
    collator = PassageCollator(tokenizer, view, seed=3)
    evaluated = [collator([fixed[0], fixed[1]]) for collator.epoch.value in (0, 5)]
    assert same(*evaluated)


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
    model = DocSplitForContrastivePretraining(config, max_seq_length=24, view="ict", passage_words=20, mlm_weight=0.0)
    features = [dataset[number] for number in range(8)]
    batch = DocSplitCollator.for_model(model, wordpiece, seed=3)(features)
    assert equal([batch], [DocSplitCollator(wordpiece, "ict", 24, mlm=False, seed=3)(features)])
    assert model.config.docsplit["view"] == "ict"
    collator = DocSplitCollator.for_model(model, wordpiece, view="crop", max_seq_length=30, prompt="ship ")
    assert equal([collator(features)], [DocSplitCollator(wordpiece, "crop", 30, mlm=False, prompt="ship ")(features)])
    settings = model.config.docsplit
    assert (settings["view"], settings["max_seq_length"], prompt_of(settings)) == ("crop", 30, "ship ")
    assert "passage_words" not in settings
    with pytest.raises(ValueError, match="positions for 128 tokens"):
        DocSplitCollator.for_model(model, wordpiece, max_seq_length=129)
    assert prompt_of(DocSplitForContrastivePretraining(model.config).config.docsplit) == "ship "
    DocSplitCollator.for_model(model, wordpiece, prompt="")
    assert prompt_of(model.config.docsplit) == ""
    assert model(**collator(features)).loss > 0


def test_a_collator_for_a_graph_makes_passages(documents, tokenizer):
    config = GraphDocumentConfig(tiny_config(tokenizer), graph_hidden_size=16)
    model = DocSplitForContrastivePretraining(config, GraphDocumentModel(config), max_seq_length=48)
    collator = DocSplitCollator.for_model(model, tokenizer, max_passages=4)
    assert type(collator) is PassageCollator
    assert (collator.max_passages, collator.max_seq_length) == (4, 48)
    assert model.config.docsplit["view"] == "passages"
    assert model(**collator([documents[number] for number in range(3)])).loss > 0


def test_views_longer_than_the_settings_say_are_refused(dataset, wordpiece):
    """Else the released encoder would read fewer tokens of a document than it was trained on."""
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), max_seq_length=20)
    batch = DocSplitCollator(wordpiece)([dataset[number] for number in range(8)])
    with pytest.raises(ValueError, match=r"views of \d+ tokens.*max_seq_length 20.*DocSplitCollator.for_model"):
        model(**batch)
