"""Real gloo processes: together they have the loss and the gradient of one process with the whole batch."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import LongformerConfig

from docsplit.modeling.longformer_attention import use_blocked_attention
from tests.conftest import free_port, spawn
from tests.modeling.test_long_documents import LONGFORMER, make_model
from tests.test_modeling_docsplit import double_model, loss_and_gradients, random_batch


def model_for_test(settings):
    settings = dict(settings)
    lora_r, is_longformer = settings.pop("lora_r", 0), settings.pop("is_longformer", False)
    if is_longformer:
        torch.manual_seed(0)
        model = make_model(LongformerConfig(**LONGFORMER), **settings).eval()
        use_blocked_attention(model)
    else:
        model = double_model(**settings)
    if lora_r:
        model.add_lora(lora_r)
        model.double()
    model.training = model.objective.training = True  # which fills a queue; the encoder stays without dropout
    model.micro_batch_tokens, model.cache_gradients = 60, True  # ranks with different numbers of micro-batches
    return model


def whole_batch(documents, seed):
    batch = random_batch(documents=documents, seed=seed)
    batch["document_ids"][-1] = batch["document_ids"][0]  # the same document on two ranks is no negative
    return batch


def two_steps(forward, model, rows, rank=None):
    """The output and the gradients of the second: a queue has keys then."""
    for seed in range(2):
        batch = whole_batch(sum(rows), seed)
        if rank is not None:
            start = sum(rows[:rank])
            batch = {key: value[start : start + rows[rank]] for key, value in batch.items()}
        output, gradients = loss_and_gradients(model, batch, forward)
    return output, gradients


def worker(rank, rows, port, settings, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(rows))
    model = model_for_test(settings)
    parallel = DistributedDataParallel(model)  # kept until after backward: it averages the gradients
    output, gradients = two_steps(parallel, model, rows, rank)
    result = {
        "loss": output.loss.detach(),
        "mlm_loss": None if output.mlm_loss is None else output.mlm_loss.detach(),
        "masked": output.num_masked_negatives,
        "gradients": gradients,
        "buffers": dict(model.objective.named_buffers()),
        "broadcast": [name for name in parallel.named_module_buffers if ".queue." in name],
    }
    torch.save(result, f"{folder}/{rank}.pt")
    # First DDP: were its reference to the group the last one, its destructor could wait, with Python's lock, for a
    # thread of gloo that waits for this lock.
    del parallel, output
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        ((5, 4), {"symmetric_loss": True}),
        ((2, 6, 1), {}),
        ((5, 4), {"objective": "momentum_contrast", "momentum_queue_size": 12, "momentum": 0.5, "mlm_weight": 0.0}),
        ((3, 5), {"objective": "contrastive_tension", "mlm_weight": 0.0}),  # of eight documents all are drawn
        ((5, 4), {"is_longformer": True}),  # in whose attention [CLS] has projections of its own
        ((5, 4), {"lora_r": 2}),
    ],
    ids=["symmetric", "three processes", "queue", "contrastive tension", "longformer", "lora"],
)
def test_processes_equal_one_process_with_the_whole_batch(rows, settings, tmp_path):
    model = model_for_test(settings)
    expected, gradients = two_steps(None, model, rows)
    spawn(worker, (rows, free_port(), settings, str(tmp_path)), nprocs=len(rows))
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(len(rows))]
    assert expected.num_masked_negatives >= 2
    assert sum(int(result["masked"]) for result in results) == expected.num_masked_negatives
    for name in ("loss", "mlm_loss"):
        if name in expected:
            mean = sum(result[name] for result in results) / len(rows)
            torch.testing.assert_close(mean, expected[name].detach(), rtol=1e-12, atol=0)
    for name, gradient in gradients.items():
        for result in results:
            torch.testing.assert_close(result["gradients"][name], gradient, rtol=1e-9, atol=1e-13)
    for result in results:
        buffers = dict(model.objective.named_buffers())
        assert result["buffers"].keys() == buffers.keys()
        assert result["broadcast"] == []  # 131,072 keys would be sent at every step
        for name, value in buffers.items():
            torch.testing.assert_close(result["buffers"][name], value)


def test_the_documents_of_other_processes_do_count():
    alone, _ = two_steps(None, model_for_test({}), (5, 4), rank=0)
    together, _ = two_steps(None, model_for_test({}), (5, 4))
    assert (alone.loss - together.loss).abs() > 1e-3
