"""InfoNCE against its formula; of queries, what is a negative."""

import math

import pytest
import torch

from docsplit.modeling.objectives.info_nce import InfoNCE, info_nce


def slow_info_nce(anchors, candidates, temperature, targets, excluded):
    total = 0.0
    for index, anchor in enumerate(anchors):
        similarities = [
            float((anchor @ candidate / anchor.norm() / candidate.norm()).detach()) / temperature
            for candidate in candidates
        ]
        denominator = sum(math.exp(s) for j, s in enumerate(similarities) if not excluded[index, j])
        total -= similarities[targets[index]] - math.log(denominator)
    return total


def test_info_nce_is_computed_in_fp32_under_autocast():
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(8, 16, generator=generator)
    plain = info_nce(embeddings, embeddings.flip(0), 0.05, torch.arange(8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (embeddings @ embeddings.T).dtype == torch.bfloat16  # autocast is really on
        assert torch.equal(info_nce(embeddings, embeddings.flip(0), 0.05, torch.arange(8)), plain)


def queries_batch():
    """Five queries with a relevant document and two others, whose ids occur more than once; -1 is no id."""
    torch.manual_seed(0)
    embeddings = torch.randn(5, 3, 6, dtype=torch.float64)
    document_ids = torch.tensor([[10, 11], [20, 10], [30, 21], [40, 12], [12, 50]])
    relevant_ids = torch.tensor([[10, 12, -1], [20, 21, 40], [30, -1, -1], [40, -1, -1], [12, 10, -1]])
    return embeddings, document_ids, relevant_ids


def by_loop(options):
    embeddings, document_ids, relevant_ids = queries_batch()
    unit = torch.nn.functional.normalize(embeddings, dim=-1)
    candidates = [(unit[k, v], int(document_ids[k, v - 1]), k, v) for v in (1, 2) for k in range(5)]
    forward, reverse = [], []
    for query in range(5):
        relevant = set(relevant_ids[query].tolist())
        scores = {(k, v): unit[query, 0] @ vector / 0.05 for vector, name, k, v in candidates
                  if (k, v) == (query, 1) or name not in relevant}  # fmt: skip
        forward.append(torch.stack(list(scores.values())).logsumexp(0) - scores[query, 1])
        name = int(document_ids[query, 0])
        scores = {k: unit[query, 1] @ unit[k, 0] / 0.05 for k in range(5)
                  if k == query or name not in relevant_ids[k].tolist()}  # fmt: skip
        reverse.append(torch.stack(list(scores.values())).logsumexp(0) - scores[query])
    both = torch.stack(forward).mean(), torch.stack(reverse).mean()
    return sum(both) / 2 if options.get("symmetric_loss") else both[bool(options.get("reverse_loss"))]


@pytest.mark.parametrize("options", [{}, {"reverse_loss": True}, {"symmetric_loss": True}])
def test_the_loss_of_queries_equals_a_loop_that_leaves_out_whatever_is_relevant(options):
    embeddings, *ids = queries_batch()
    output = InfoNCE(InfoNCE.Options(**options), None)(embeddings, ids[0], [5], ids[1])
    torch.testing.assert_close(output.loss, by_loop(options))
    assert output.num_masked_negatives == 3 + 2 + 0 + 0 + 3  # of the ten candidates of each query
