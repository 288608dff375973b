"""The batch: what is masked, what is drawn when, and that neither workers nor processes change it."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from docsplit.data import preparation
from docsplit.data.collators import IGNORED, MLM_PROBABILITY, DocSplitCollator, truncated_shares


@pytest.fixture(scope="module")
def dataset(corpus, wordpiece):
    return preparation.tokenize(corpus, wordpiece, "text", "rules")[0].with_format("numpy")


@pytest.fixture
def collator(wordpiece):
    return DocSplitCollator(wordpiece, max_seq_length=64, seed=3)


def batches(dataset, collator, epoch, workers=0):
    collator.epoch.value = epoch
    loader = DataLoader(dataset, batch_size=8, collate_fn=collator, num_workers=workers)
    return list(loader)


def equal(first, second):
    return all(torch.equal(a[key], b[key]) for a, b in zip(first, second, strict=True) for key in a)


def test_shapes_padding_and_no_mask_in_the_contrastive_inputs(dataset, collator, wordpiece):
    batch = collator([dataset[index] for index in range(5)])
    assert batch["input_ids"].shape == batch["mlm_targets"].shape == (5, 2, batch["input_ids"].shape[-1])
    assert batch["input_ids"].shape[-1] == batch["attention_mask"].sum(-1).max()
    assert ((batch["input_ids"] != wordpiece.pad_token_id) == (batch["attention_mask"] == 1)).all()
    assert (batch["input_ids"] != wordpiece.mask_token_id).all()
    assert (batch["mlm_input_ids"] == wordpiece.mask_token_id).any()


def test_draws_do_not_depend_on_workers(dataset, collator):
    assert equal(batches(dataset, collator, 0, workers=0), batches(dataset, collator, 0, workers=2))


def test_workers_see_the_epoch_and_each_epoch_differs(dataset, collator):
    first, second = (batches(dataset, collator, epoch, workers=2) for epoch in (0, 1))
    assert equal(second, batches(dataset, collator, 1))
    assert not equal(first[:1], second[:1])


def test_draws_do_not_depend_on_the_batch_a_document_is_in(dataset, collator):
    alone = collator.draw(dataset[4])
    together = collator([dataset[index] for index in (9, 4, 2)])
    length = len(alone[0][0])
    np.testing.assert_array_equal(together["input_ids"][1, 0, :length].numpy(), alone[0][0])
    np.testing.assert_array_equal(together["mlm_targets"][1, 0, :length].numpy(), alone[0][2])


def test_global_random_state_is_neither_used_nor_moved(dataset, collator):
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    first = collator([dataset[0]])
    states = torch.get_rng_state(), np.random.get_state()[2]  # noqa: NPY002
    torch.manual_seed(1)
    second = collator([dataset[0]])
    assert equal([first], [second])
    torch.manual_seed(0)
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.random.get_state()[2] == states[1]  # noqa: NPY002


def test_evaluation_features_are_drawn_the_same_in_each_epoch(dataset, collator):
    fixed = dataset.add_column("epoch", np.zeros(len(dataset), dtype=np.int64))
    assert equal(batches(fixed, collator, 0), batches(fixed, collator, 5))
    assert equal(batches(fixed, collator, 5), batches(dataset, collator, 0))


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


def test_the_two_views_are_masked_independently(dataset, wordpiece):
    collator = DocSplitCollator(wordpiece, view="simcse", max_seq_length=64)
    (ids, first, _), (same_ids, second, _) = collator.draw(dataset[0])
    np.testing.assert_array_equal(ids, same_ids)
    assert (first != second).any()


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
