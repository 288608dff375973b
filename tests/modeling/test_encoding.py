"""Rows to vectors: the cheapest cut into micro-batches, and rows that an encoder combines to documents."""

import itertools
import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from datasets import Dataset
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForMaskedLM, BertModel, Trainer, TrainingArguments

from docsplit.data.collators import PassageCollator
from docsplit.data.passages import SECTION_BREAK
from docsplit.data.preparation import Segmentation, tokenize
from docsplit.modeling import encoding
from docsplit.modeling.encoding import (
    MICRO_BATCH_OVERHEAD,
    RowBatch,
    Rows,
    _cheapest_cut,
    encode_micro_batch,
    lay_out,
    micro_batches,
)
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import free_port, make_corpus, spawn
from tests.modeling.test_modeling_docsplit import SMALL, loss_and_gradients, random_batch

MOMENTUM_CONTRAST = {"objective": "momentum_contrast", "momentum_queue_size": 20, "mlm_weight": 0.0}


def test_micro_batches_keep_to_the_bound_and_cover_each_row_once():
    lengths = torch.tensor([3, 50, 7, 7, 12, 1, 30])
    groups = [(rows.tolist(), longest) for rows, longest in micro_batches(lengths, 30)]
    assert sorted(row for rows, _ in groups for row in rows) == list(range(7))
    for rows, longest in groups:
        assert longest == max(lengths[row] for row in rows)
        assert len(rows) * longest <= 30 or len(rows) == 1
    assert len(groups) > 2
    assert len(list(micro_batches(lengths, None))) == 1
    assert list(micro_batches(lengths[:0], 30)) == []


def test_micro_batches_are_the_cheapest_cut():
    """Against all cuts of the sorted rows."""
    generator = torch.Generator().manual_seed(0)
    for bound in (50, 300, 1000):
        lengths = torch.randint(1, 120, (9,), generator=generator)
        longest_first = sorted(lengths.tolist(), reverse=True)
        costs = []
        for cuts in range(2**8):
            edges = [0, *(row + 1 for row in range(8) if cuts >> row & 1), 9]
            groups = [longest_first[start:end] for start, end in itertools.pairwise(edges)]
            if all(len(group) * group[0] <= bound or len(group) == 1 for group in groups):
                costs.append(sum(len(group) * group[0] + MICRO_BATCH_OVERHEAD for group in groups))
        ours = sum(len(rows) * longest + MICRO_BATCH_OVERHEAD for rows, longest in micro_batches(lengths, bound))
        assert ours == min(costs) < max(costs)


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
        assert _cheapest_cut(lengths, bound) == quadratic_cut(lengths, bound)
        several += 1 < len(quadratic_cut(lengths, bound)) < len(lengths)
    assert several > 200


def test_a_micro_batch_is_laid_out_once_and_computed_twice_on_the_device(monkeypatch):
    """`checkpoint` restores the random state, and so dropout, of the devices of the tensors among its arguments."""
    laid_out, computed = [], []
    pad = RowBatch.pad
    monkeypatch.setattr(
        encoding,
        "encode_micro_batch",
        lambda *arguments: computed.append(arguments[3].longest) or encode_micro_batch(*arguments),
    )
    monkeypatch.setattr(RowBatch, "pad", lambda *arguments: laid_out.append(arguments) or pad(*arguments))
    model = DocSplitForContrastivePretraining(BertConfig(**SMALL), pooling="mean", max_seq_length=64)
    model.micro_batch_tokens, model.cache_gradients = 60, True
    loss_and_gradients(model, random_batch())
    assert len(computed) == 2 * len(laid_out) > 6
    assert computed[: len(laid_out)] == sorted(computed[len(laid_out) :], reverse=True)

    ids = torch.zeros(3, 2, 7, dtype=torch.long)
    batch = lay_out(ids + 1, None, ids, ids, ids + 5)
    batch.attention_mask = batch.attention_mask.to("meta")  # as on a GPU: lengths and masks were read before
    part = pad(batch, np.array([4, 1]), 7, 14)
    assert {part.numbers.device.type, part.masked.places.device.type, part.masked.sources.device.type} == {"meta"}


@pytest.mark.gpu
def test_cached_gradients_on_a_gpu_replay_dropout():
    results = []
    for cache_gradients in (False, True):
        torch.manual_seed(0)
        config = BertConfig(**SMALL, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.0)
        model = DocSplitForContrastivePretraining(config, pooling="mean", max_seq_length=64).double().cuda().train()
        model.micro_batch_tokens, model.cache_gradients = 60, cache_gradients
        torch.manual_seed(1)
        batch = {name: value.cuda() for name, value in random_batch().items()}
        results.append(loss_and_gradients(model, batch)[1])
    for name, gradient in results[1].items():
        torch.testing.assert_close(gradient, results[0][name], rtol=1e-8, atol=1e-12)


class MeanOfPassages(BertModel):
    """A document is the mean of its passages."""

    def combine(self, row_vectors: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Combine (R, H) to (D, H), one for each document and view among the rows."""
        _, numbers = torch.unique(2 * rows.document + rows.view, return_inverse=True)
        sums = row_vectors.new_zeros(int(numbers.max()) + 1, row_vectors.shape[1]).index_add(0, numbers, row_vectors)
        return sums / torch.bincount(numbers)[:, None]


class PassagesForMaskedLM(BertForMaskedLM):
    """BERT, but for its base model."""

    def __init__(self, config):
        super().__init__(config)
        self.bert = MeanOfPassages(config, add_pooling_layer=False)
        self.post_init()


def make_model(vocab_size=SMALL["vocab_size"], **settings):
    torch.manual_seed(0)
    sizes = SMALL | {"vocab_size": vocab_size}
    encoder = PassagesForMaskedLM(BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    model = DocSplitForContrastivePretraining(encoder.config, encoder, pooling="mean", max_seq_length=64, **settings)
    return model.double().train()


def passages(num_passages, seed=0):
    """A batch of documents whose views have these numbers of passages, and of each passage where it belongs.

    Args:
        num_passages: of each document, of view 0 and view 1.
    """
    places = [
        (document, view, position)
        for document, of_views in enumerate(num_passages)
        for view, count in enumerate(of_views)
        for position in range(count)
    ]
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(20) < torch.randint(3, 21, (len(places), 1), generator=generator)).long()
    input_ids = torch.randint(5, 120, mask.shape, generator=generator) * mask
    masked = (torch.rand(mask.shape, generator=generator) < 0.2) & (mask == 1)
    documents, views, positions = torch.tensor(places).T
    return {
        "input_ids": input_ids,
        "attention_mask": mask,
        "mlm_input_ids": input_ids.masked_fill(masked, 4),
        "mlm_targets": input_ids.masked_fill(~masked, -100),
        "document_ids": torch.arange(len(num_passages)),
        "rows": {"document": documents, "view": views, "position": positions},
    }


SIZES = [(3, 1), (1, 4), (2, 2), (5, 1), (1, 1)]


def of_documents(batch, first, last):
    """The part of a batch that has these documents."""
    rows = batch["rows"]["document"]
    chosen = (rows >= first) & (rows < last)
    part = {name: value[chosen] for name, value in batch.items() if name not in ("rows", "document_ids")}
    part["rows"] = {name: value[chosen] for name, value in batch["rows"].items()}
    part["rows"]["document"] = part["rows"]["document"] - first
    return part | {"document_ids": batch["document_ids"][first:last]}


@pytest.mark.parametrize("settings", [{}, MOMENTUM_CONTRAST], ids=["info_nce", "momentum_contrast"])
def test_passages_become_documents(settings):
    model, batch = make_model(**settings), passages(SIZES)
    loss_and_gradients(model, passages(SIZES, seed=1))  # a queue has something in it then
    output = model(**batch)
    second = getattr(model.objective, "second_encoder", model.encoder.base_model)
    expected = torch.zeros_like(output.embeddings)
    for document, view, _ in zip(*batch["rows"].values()):
        chosen = (batch["rows"]["document"] == document) & (batch["rows"]["view"] == view)
        base_model, mask = (model.encoder.base_model, second)[view], batch["attention_mask"][chosen]
        states = base_model(batch["input_ids"][chosen], mask).last_hidden_state
        vectors = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        expected[document, view] = vectors.mean(0)
    torch.testing.assert_close(output.embeddings, expected)
    assert output.loss > 0


@pytest.mark.parametrize("settings", [{}, MOMENTUM_CONTRAST], ids=["info_nce", "momentum_contrast"])
def test_cached_gradients_of_passages_are_the_same(settings):
    results = []
    for micro_batch_tokens, cache_gradients in ((None, False), (40, False), (40, True)):
        model = make_model(**settings)
        model.micro_batch_tokens, model.cache_gradients = micro_batch_tokens, cache_gradients
        for seed in range(2):
            result = loss_and_gradients(model, passages(SIZES, seed))
        results.append(result)
    (plain, expected), *others = results
    assert any(gradient.abs().max() > 0 for gradient in expected.values())
    for output, gradients in others:
        assert output.num_computed_tokens < plain.num_computed_tokens
        torch.testing.assert_close(output.loss, plain.loss, rtol=1e-12, atol=0)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-8, atol=1e-12)


@pytest.fixture(scope="module")
def dataset(wordpiece):
    """Eleven documents, of one to six sections."""
    rows = [row["text"] for row in make_corpus(36)]
    texts = [f"\n\n{SECTION_BREAK}".join(rows[3 * number : 3 * number + 1 + number % 6]) for number in range(11)]
    return tokenize(Dataset.from_dict({"text": texts}), wordpiece, Segmentation(passage_words=6))[0]


@pytest.mark.parametrize("view", ["passages", "passage_vs_rest"])
def test_batches_of_the_collator_go_through(view, dataset, wordpiece):
    batch = PassageCollator(wordpiece, view)([dataset[number] for number in range(len(dataset))])
    results = []
    for micro_batch_tokens, cache_gradients in ((None, False), (60, False), (60, True)):
        model = make_model(vocab_size=len(wordpiece), mlm_weight=0)
        model.micro_batch_tokens, model.cache_gradients = micro_batch_tokens, cache_gradients
        results.append(loss_and_gradients(model, batch))
    (plain, expected), *others = results
    assert plain.embeddings.shape[:2] == (len(dataset), 2)
    rows = batch["rows"]
    states = make_model(vocab_size=len(wordpiece)).encoder.base_model(batch["input_ids"], batch["attention_mask"])[0]
    mask = batch["attention_mask"][..., None]
    vectors = (states * mask).sum(1) / mask.sum(1)
    for document, of_a_view in itertools.product(range(len(dataset)), range(2)):
        mean = vectors[(rows["document"] == document) & (rows["view"] == of_a_view)].mean(0)
        torch.testing.assert_close(plain.embeddings[document, of_a_view], mean)
    for output, gradients in others:
        torch.testing.assert_close(output.loss, plain.loss, rtol=1e-12, atol=0)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-8, atol=1e-12)


def test_the_evaluation_loss_is_the_mean_over_batches_of_as_many_documents(dataset, wordpiece, tmp_path):
    """However many passages they have: a batch of long documents does not count for more."""
    collator, model = PassageCollator(wordpiece), make_model(vocab_size=len(wordpiece), mlm_weight=0).eval()
    args = TrainingArguments(
        tmp_path, per_device_eval_batch_size=4, dataloader_drop_last=True, remove_unused_columns=False, use_cpu=True
    )
    metrics = Trainer(model, args, collator, eval_dataset=dataset.with_format("numpy")).evaluate()
    batches = [collator([dataset[number] for number in range(start, start + 4)]) for start in (0, 4)]
    assert len({len(batch["input_ids"]) for batch in batches}) == 2
    with torch.no_grad():
        losses = [model(**batch).loss for batch in batches]
    assert losses[0] != losses[1]
    assert metrics["eval_loss"] == pytest.approx(float(sum(losses) / 2), rel=1e-6)


def worker(rank, port, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = make_model()
    model.micro_batch_tokens, model.cache_gradients = 40, True
    parallel = DistributedDataParallel(model)
    batch = of_documents(passages(SIZES), *((0, 2), (2, 5))[rank])
    output, gradients = loss_and_gradients(model, batch, parallel)
    torch.save({"loss": output.loss.detach(), "gradients": gradients}, f"{folder}/{rank}.pt")
    del parallel, output
    dist.destroy_process_group()


def test_two_processes_with_passages_equal_one(tmp_path):
    expected, gradients = loss_and_gradients(make_model(), passages(SIZES))
    spawn(worker, args=(free_port(), str(tmp_path)), nprocs=2)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    mean = sum(result["loss"] for result in results) / 2
    torch.testing.assert_close(mean, expected.loss.detach(), rtol=1e-12, atol=0)
    for name, gradient in gradients.items():
        for result in results:
            torch.testing.assert_close(result["gradients"][name], gradient, rtol=1e-9, atol=1e-13)


def test_rows_of_a_view_are_cut_as_all_are_and_each_once():
    lengths = torch.randint(1, 8, (5, 2), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(7) < lengths[..., None]).long()
    batch = lay_out(mask, None, mask, None, None)
    assert batch.rows_of(None).tolist() == list(range(10))
    for view in (0, 1):
        chosen = batch.rows_of(view)
        assert (batch.rows.view[chosen] == view).all()
        places, parts = zip(*batch.micro_batches(chosen, 14, 1))
        assert sorted(np.concatenate(places).tolist()) == list(range(5))
        for group, part in zip(places, parts):
            assert part.numbers.tolist() == chosen[group].tolist()
            assert part.longest == int(lengths[:, view][group].max())
            assert part.masked is None
