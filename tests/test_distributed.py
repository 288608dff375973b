"""Real gloo processes: together they have the loss and the gradient of one process with the whole batch."""

import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from tests.test_modeling_docsplit import double_model, loss_and_gradients, random_batch


def model_for_test(symmetric):
    model = double_model(symmetric=symmetric)
    model.micro_batch_tokens, model.cache_gradients = 60, True  # ranks with different numbers of micro-batches
    return model


def whole_batch():
    batch = random_batch(documents=9)
    batch["document_ids"][8] = batch["document_ids"][0]  # the same document on two ranks is no negative
    return batch


def worker(rank, rows, port, symmetric, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(rows))
    start = sum(rows[:rank])
    batch = {key: value[start : start + rows[rank]] for key, value in whole_batch().items()}
    model = model_for_test(symmetric)
    parallel = DistributedDataParallel(model)  # kept until after backward: it averages the gradients
    output = parallel(**batch)
    output.loss.backward()
    result = {
        "loss": output.loss.detach(),
        "mlm_loss": output.mlm_loss.detach(),
        "masked": output.num_masked_negatives,
        "gradients": {name: parameter.grad for name, parameter in model.named_parameters()},
    }
    torch.save(result, f"{folder}/{rank}.pt")
    # First DDP: were its reference to the group the last one, its destructor could wait, with Python's lock, for a
    # thread of gloo that waits for this lock.
    del parallel, output
    dist.destroy_process_group()


@pytest.mark.parametrize(("rows", "symmetric"), [((5, 4), True), ((2, 6, 1), False)])
def test_processes_equal_one_process_with_the_whole_batch(rows, symmetric, tmp_path):
    expected, gradients = loss_and_gradients(model_for_test(symmetric), whole_batch())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(worker, args=(rows, port, symmetric, str(tmp_path)), nprocs=len(rows))
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(len(rows))]
    assert expected.num_masked_negatives == 2
    assert sum(int(result["masked"]) for result in results) == 2
    for name, value in (("loss", expected.loss), ("mlm_loss", expected.mlm_loss)):
        mean = sum(result[name] for result in results) / len(rows)
        torch.testing.assert_close(mean, value.detach(), rtol=1e-12, atol=0)
    alone = loss_and_gradients(
        model_for_test(symmetric), {key: value[: rows[0]] for key, value in whole_batch().items()}
    )
    assert (alone[0].loss - expected.loss).abs() > 1e-3  # the other ranks' documents do count
    for name, gradient in gradients.items():
        for result in results:
            torch.testing.assert_close(result["gradients"][name], gradient, rtol=1e-9, atol=1e-13)
