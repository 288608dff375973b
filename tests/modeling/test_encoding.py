"""Rows to vectors: the cheapest cut into micro-batches, and rows that an encoder combines to documents."""

import random

import numpy as np
import torch

from docsplit.modeling.encoding import MICRO_BATCH_OVERHEAD, _cheapest_cut, lay_out_batch, micro_batches


def test_micro_batches_keep_to_the_bound_and_cover_each_row_once():
    lengths = torch.tensor([3, 50, 7, 7, 12, 1, 30])
    groups = [(rows.tolist(), longest) for rows, longest in micro_batches(lengths, 30)]
    assert sorted(row for rows, _ in groups for row in rows) == list(range(7))
    for rows, longest in groups:
        assert longest == max(lengths[row] for row in rows)
        assert len(rows) * longest <= 30 or len(rows) == 1
    assert len(groups) > 2
    assert list(micro_batches(lengths[:0], 30)) == []


def quadratic_cut(lengths, max_tokens):
    """Every beginning of the last group, tried for every number of rows."""
    costs, previous = [0] + [None] * len(lengths), [0] * (len(lengths) + 1)
    for start, length in enumerate(lengths):
        for end in range(start + 1, min(start + max(max_tokens // length, 1), len(lengths)) + 1):
            cost = costs[start] + MICRO_BATCH_OVERHEAD + length * (end - start)
            if costs[end] is None or cost < costs[end]:
                costs[end], previous[end] = cost, start
    starts = [previous[-1]]
    while starts[-1]:
        starts.append(previous[starts[-1]])
    return starts[::-1]


def test_the_cut_is_that_of_trying_everything():
    generator, several = random.Random(0), 0
    for _ in range(1000):
        longest, bound = generator.choice([3, 20, 600]), generator.choice([1, 10, 100, 1000, 5000])
        lengths = sorted((generator.randint(1, longest) for _ in range(generator.randint(1, 60))), reverse=True)
        assert _cheapest_cut(lengths, bound, MICRO_BATCH_OVERHEAD) == quadratic_cut(lengths, bound)
        several += 1 < len(quadratic_cut(lengths, bound)) < len(lengths)
    assert several > 200


def test_the_tokens_of_a_micro_batch_are_found_on_the_device():
    """`checkpoint` restores the random state, and so dropout, of the devices of the tensors among its arguments."""
    ids = torch.zeros(3, 2, 7, dtype=torch.long)
    batch = lay_out_batch(ids + 1, None, ids, ids, ids + 5)
    batch.attention_mask = batch.attention_mask.to("meta")  # as on a GPU: lengths and masks were read before
    part = batch.pad(np.array([4, 1]), 7, 14)
    assert {part.numbers.device.type, part.masked.places.device.type, part.masked.sources.device.type} == {"meta"}
