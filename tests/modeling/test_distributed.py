"""Several processes equal one with the whole batch; copies between host and device arrive."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import LongformerConfig

from docsplit.modeling.distributed import fetch, send
from docsplit.modeling.families.longformer import use_blocked_attention
from tests.conftest import free_port, spawn
from tests.modeling.families.test_graph import SIZES, passage_batch
from tests.modeling.families.test_graph import make_model as make_graph_model
from tests.modeling.families.test_longformer import LONGFORMER, make_model
from tests.modeling.test_modeling_docsplit import double_model, loss_and_gradients, random_batch
from tests.modeling.test_vectors import WITH_DENSE
from tests.waits import OnDevice, Watch, register, watched

CASES = {  # documents of each process, and settings
    "symmetric": ((5, 4), {"symmetric_loss": True}),
    "three processes": ((2, 6, 1), {}),
    "queue": (
        (5, 4),
        {"objective": "momentum_contrast", "momentum_queue_size": 12, "momentum": 0.5, "mlm_weight": 0.0},
    ),
    # All of eight documents are drawn.
    "contrastive tension": ((3, 5), {"objective": "contrastive_tension", "mlm_weight": 0.0}),
    "bregman": ((3, 5), {"objective": "info_nce+bregman", "mlm_weight": 0.0}),
    "longformer": ((5, 4), {"kind": "longformer"}),  # in whose attention [CLS] has projections of its own
    "graph": ((3, 5), {"kind": "graph", "symmetric_loss": True}),
    "lora": ((5, 4), {"lora_r": 2}),
    "dense": ((5, 4), {"pooling": "lasttoken", "mlm_weight": 0.0, **WITH_DENSE}),
    "dense, three processes": ((2, 6, 1), {"pooling": "weightedmean", **WITH_DENSE}),
}


def model_for_test(settings):
    settings = dict(settings)
    lora_r, kind = settings.pop("lora_r", 0), settings.pop("kind", None)
    if kind == "longformer":
        torch.manual_seed(0)
        model = make_model(LongformerConfig(**LONGFORMER), **settings).eval()
        use_blocked_attention(model)
    else:
        model = make_graph_model(**settings).eval() if kind == "graph" else double_model(**settings)
    if lora_r:
        model.add_lora(lora_r)
        model.double()
    model.training = model.objective.training = True  # which fills a queue; the encoder stays without dropout
    model.micro_batch_tokens, model.cache_gradients = 60, True  # ranks with different numbers of micro-batches
    return model


def batch_of(settings, rows, seed, rank=None):
    """The whole batch, or the documents of a rank."""
    first = sum(rows[:rank]) if rank is not None else 0
    documents = slice(first, first + rows[rank]) if rank is not None else slice(0, sum(rows))
    if settings.get("kind") != "graph":
        batch = random_batch(documents=sum(rows), seed=seed)
        batch["document_ids"][-1] = batch["document_ids"][0]  # the same document on two ranks is no negative
        return {key: value[documents] for key, value in batch.items()}
    batch = passage_batch(SIZES, seed)
    batch["document_ids"][-1] = batch["document_ids"][0]
    is_inside = (batch["rows"]["document"] >= documents.start) & (batch["rows"]["document"] < documents.stop)
    part = {name: batch[name][is_inside] for name in ("input_ids", "attention_mask")}
    parts = {name: value[is_inside] for name, value in batch["rows"].items()}
    parts["document"] = parts["document"] - documents.start
    return part | {"rows": parts, "document_ids": batch["document_ids"][documents]}


def two_steps(forward, model, settings, rows, rank=None):
    """The output and the gradients of the second: a queue has keys then."""
    for seed in range(2):
        output, gradients = loss_and_gradients(model, batch_of(settings, rows, seed, rank), forward)
    return output, gradients


def worker(rank, processes, port, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
    for name, (rows, settings) in CASES.items():
        if len(rows) != processes:
            continue
        model = model_for_test(settings)
        parallel = DistributedDataParallel(model)  # kept until after backward: it averages the gradients
        output, gradients = two_steps(parallel, model, settings, rows, rank)
        result = {
            "loss": output.loss.detach(),
            "mlm_loss": None if output.mlm_loss is None else output.mlm_loss.detach(),
            "masked": output.num_masked_negatives,
            "gradients": gradients,
            "buffers": dict(model.objective.named_buffers()),
            "broadcast": [name for name in parallel.named_module_buffers if ".queue." in name],
        }
        torch.save(result, f"{folder}/{name} {rank}.pt")
        # First DDP: were its reference to the group the last one, its destructor could wait, with Python's lock, for
        # a thread of gloo that waits for this lock.
        del parallel, output
    dist.destroy_process_group()


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_equal_one_process_with_the_whole_batch(processes, tmp_path):
    """All settings in the same processes: starting these is what takes long."""
    spawn(worker, (processes, free_port(), str(tmp_path)), nprocs=processes)
    for name, (rows, settings) in CASES.items():
        if len(rows) == processes:
            check(name, rows, settings, [torch.load(tmp_path / f"{name} {rank}.pt") for rank in range(processes)])


def check(case, rows, settings, results):
    model = model_for_test(settings)
    expected, gradients = two_steps(None, model, settings, rows)
    assert expected.num_masked_negatives >= 2, case
    assert sum(int(result["masked"]) for result in results) == expected.num_masked_negatives, case
    for name in ("loss", "mlm_loss"):
        if expected.get(name) is not None:
            mean = sum(result[name] for result in results) / len(rows)
            torch.testing.assert_close(mean, expected[name].detach(), rtol=1e-12, atol=0, msg=f"{case}: {name}")
    for name, gradient in gradients.items():
        for result in results:
            summed = result["gradients"][name]
            torch.testing.assert_close(summed, gradient, rtol=1e-9, atol=1e-13, msg=f"{case}: {name}")
    for result in results:
        buffers = dict(model.objective.named_buffers())
        assert result["buffers"].keys() == buffers.keys(), case
        assert result["broadcast"] == [], case  # 131,072 keys would be sent at every step
        for name, value in buffers.items():
            torch.testing.assert_close(result["buffers"][name], value)


def test_the_documents_of_other_processes_do_count():
    alone, _ = two_steps(None, model_for_test({}), {}, (5, 4), rank=0)
    together, _ = two_steps(None, model_for_test({}), {}, (5, 4))
    assert (alone.loss - together.loss).abs() > 1e-3


def test_the_cpu_needs_no_copy():
    values = torch.arange(3.0)
    assert send(values, values.device) is values
    assert fetch(values) == (values, None)


def test_values_arrive(tmp_path):
    spawn(_there_and_back, ())


def _there_and_back(index):
    values = torch.arange(12.0).view(3, 4)
    with watched(Watch()):
        there = send(values[:, ::2], register())
        assert isinstance(there, OnDevice)
        back, arrival = fetch(there + 1)
        arrival.synchronize()
        assert back.device.type == "cpu"
        assert torch.equal(back, values[:, ::2] + 1)
