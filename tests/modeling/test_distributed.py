"""Several processes equal one with the whole batch; copies between host and device arrive."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import LongformerConfig

from docsplit.modeling.distributed import fetch, send
from docsplit.modeling.families.longformer import use_blocked_attention
from docsplit.modeling.objectives.info_nce import InfoNCE
from tests.conftest import free_port, spawn
from tests.modeling.families.test_graph import SIZES, passage_batch
from tests.modeling.families.test_graph import make_model as make_graph_model
from tests.modeling.families.test_longformer import LONGFORMER, make_model
from tests.modeling.objectives.test_info_nce import queries_batch
from tests.modeling.test_modeling_docsplit import double_model, loss_and_gradients, random_batch
from tests.waits import OnDevice, Watch, register, watched

ROWS = (3, 4, 1)  # documents of each process
CASES = {
    "symmetric": {"symmetric_loss": True},
    "queue": {"objective": "momentum_contrast", "momentum_queue_size": 12, "momentum": 0.5, "mlm_weight": 0.0},
    "contrastive tension": {"objective": "contrastive_tension", "mlm_weight": 0.0},  # all of eight documents are drawn
    "bregman": {"objective": "info_nce+bregman", "mlm_weight": 0.0},
    "longformer": {"kind": "longformer"},  # in whose attention [CLS] has projections of its own
    "graph": {"kind": "graph", "symmetric_loss": True},
    "lora": {"lora_r": 2},
    "dense": {"pooling": "weightedmean", "with_dense": True},
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


def batch_of(settings, seed, rank=None):
    """The whole batch, or the documents of a rank."""
    documents = slice(0, sum(ROWS)) if rank is None else slice(sum(ROWS[:rank]), sum(ROWS[: rank + 1]))
    if settings.get("kind") != "graph":
        batch = random_batch(documents=sum(ROWS), seed=seed)
        batch["document_ids"][-1] = batch["document_ids"][0]  # the same document on two ranks is no negative
        return {key: value[documents] for key, value in batch.items()}
    batch = passage_batch(SIZES, seed)
    batch["document_ids"][-1] = batch["document_ids"][0]
    is_inside = (batch["rows"]["document"] >= documents.start) & (batch["rows"]["document"] < documents.stop)
    part = {name: batch[name][is_inside] for name in ("input_ids", "attention_mask")}
    parts = {name: value[is_inside] for name, value in batch["rows"].items()}
    parts["document"] = parts["document"] - documents.start
    return part | {"rows": parts, "document_ids": batch["document_ids"][documents]}


def last_step(forward, model, settings, rank=None):
    """The output and the gradients of a step, with a queue of the second: it has keys then."""
    for seed in range(2 if "momentum" in settings else 1):
        output, gradients = loss_and_gradients(model, batch_of(settings, seed, rank), forward)
    return output, gradients


def queries(rank=None):
    """The loss of queries and of their documents, of a process or of all, and its gradient."""
    counts, rows = ([5], slice(None)) if rank is None else ([2, 2, 1], slice(2 * rank, 2 * rank + 2))
    embeddings, document_ids, relevant_ids = (whole[rows].clone() for whole in queries_batch())
    embeddings.requires_grad_()
    loss = InfoNCE(InfoNCE.Options(symmetric_loss=True), None)(embeddings, document_ids, counts, relevant_ids).loss
    loss.backward()
    return loss.detach(), embeddings.grad


def worker(rank, port, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(ROWS))
    torch.save(queries(rank), f"{folder}/queries {rank}.pt")
    for name, settings in CASES.items():
        model = model_for_test(settings)
        parallel = DistributedDataParallel(model)  # kept until after backward: it averages the gradients
        output, gradients = last_step(parallel, model, settings, rank)
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


def test_processes_equal_one_process_with_the_whole_batch(tmp_path):
    """All settings in the same processes: starting these is what takes long."""
    spawn(worker, (free_port(), str(tmp_path)), nprocs=len(ROWS))
    for name, settings in CASES.items():
        check(name, settings, [torch.load(tmp_path / f"{name} {rank}.pt") for rank in range(len(ROWS))])
    losses, gradients = zip(*(torch.load(tmp_path / f"queries {rank}.pt") for rank in range(len(ROWS))))
    loss, gradient = queries()
    torch.testing.assert_close(sum(losses) / len(ROWS), loss)
    torch.testing.assert_close(torch.cat(gradients) / len(ROWS), gradient)


def check(case, settings, results):
    model = model_for_test(settings)
    expected, gradients = last_step(None, model, settings)
    assert expected.num_masked_negatives >= 2, case
    assert sum(int(result["masked"]) for result in results) == expected.num_masked_negatives, case
    for name in ("loss", "mlm_loss"):
        if expected.get(name) is not None:
            mean = sum(result[name] for result in results) / len(ROWS)
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
