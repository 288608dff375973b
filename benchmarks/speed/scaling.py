"""The cost of a step by the size of the contrastive batch, the length of views and the number of processes.

    python -m benchmarks.speed.scaling

Three tables, each from a small BERT (4 layers, 256 wide, vocabulary 30,522; `--model base` for BERT-base) with random
weights and random documents, forward and backward pass, masked LM on:

    batch      36 to 1,536 documents with cached gradients, views of log-normal length up to 128 tokens
    length     128 to 4,096 tokens a view, the same number of tokens in each batch
    processes  1 to 2 processes over gloo (NCCL with GPUs) with the same contrastive batch in all; on one machine they
               share its cores, so that this shows what gathering and averaging cost, and no gain

Every configuration runs in a process of its own, one at a time, and each table is written when it is done. There are
no more processes than GPUs: NCCL needs one for each. Memory is the allocator's peak during a step, above
the weights and gradients; a second step is timed.
"""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig

from benchmarks.speed.jobs import MODELS, tokenizer_of_ids
from benchmarks.speed.meters import add_device, make_parser, native_precision, write_results
from docsplit.modeling.encoding import default_training_tokens
from docsplit.runtime.files import write_text
from docsplit.runtime.launching import hardware
from modeling_docsplit import DocSplitForContrastivePretraining

VOCABULARY = 30522
MASK_ID, FIRST_ORDINARY_ID = 103, 1000


def random_batch(documents: int, mean_length: float, longest: int, seed: int, spread: float = 0.6) -> dict[str, Any]:
    """Draw views of log-normal lengths, 15 % of their tokens masked."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal(np.log(mean_length), spread, (documents, 2, 1))).clip(8, longest).astype(np.int64)
    mask = np.arange(lengths.max()) < lengths  # (B, 2, T)
    ids = rng.integers(FIRST_ORDINARY_ID, VOCABULARY, mask.shape) * mask
    masked = (rng.random(mask.shape) < 0.15) & mask
    arrays = {
        "input_ids": ids,
        "attention_mask": mask.astype(np.int64),
        "mlm_input_ids": np.where(masked, MASK_ID, ids),
        "mlm_targets": np.where(masked, ids, -100),
        "document_ids": np.arange(documents),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def peak_memory(run: Any, device: torch.device) -> int:
    """Return the peak of the allocator's bytes while `run` ran, above those in use before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    profiler: Any = profile.profiler
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    allocated = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


def measure(rank: int, job: dict[str, Any], port: int, output: str) -> None:
    """Measure one configuration in one of `job["processes"]` processes; the first writes the result."""
    world_size = job["processes"]
    device = torch.device("cuda", rank) if job["device"] == "cuda" else torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(max(job["cores"] // world_size, 1))
    else:
        torch.cuda.set_device(device)
    if world_size > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=max(job["longest"], 512),
        attention_probs_dropout_prob=0.0,
        **MODELS[job["model"]],  # type: ignore[arg-type]
    )
    tokenizer = tokenizer_of_ids(VOCABULARY)
    model = DocSplitForContrastivePretraining.from_config(config, tokenizer, max_seq_length=job["longest"])
    model.to(device).train()
    model.micro_batch_tokens, model.cache_gradients = job["micro_batch_tokens"], job["cache_gradients"]
    parallel: Any = DistributedDataParallel(model) if world_size > 1 else model
    batch = random_batch(job["documents"], job["mean_length"], job["longest"], seed=0)
    share = job["documents"] // world_size
    batch = {name: value[rank * share : (rank + 1) * share].to(device) for name, value in batch.items()}

    def step() -> float:
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=job["bf16"]):
            loss = parallel(**batch).loss
        loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    step()  # gradients are there from here on
    memory = peak_memory(step, device)
    seconds = min(step() for _ in range(job["steps"]))
    tokens = batch["attention_mask"].sum()
    if world_size > 1:
        dist.all_reduce(tokens)
    if rank == 0:
        row = {"seconds": seconds, "tokens": int(tokens), "tokens_per_second": int(tokens) / seconds}
        write_text(Path(output), json.dumps(row | {"memory_mb": memory / 2**20}))
    parallel = None  # before its process group
    if world_size > 1:
        dist.destroy_process_group()


def run(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Measure a configuration in new processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    output = folder / "row.json"
    mp.start_processes(measure, args=(job, port, str(output)), nprocs=job["processes"], start_method="spawn")
    row = json.loads(output.read_text())
    output.unlink()
    names = ("documents", "longest", "processes", "micro_batch_tokens", "cache_gradients")
    row = {name: job[name] for name in names} | row
    print(", ".join(f"{name} {value:,.4g}" for name, value in row.items()), flush=True)
    return row


def possible_processes(asked: list[int], device: str) -> list[int]:
    """Return the numbers of processes that this machine has devices for; say which are left out."""
    devices = torch.cuda.device_count() if device == "cuda" else max(asked)  # processes on a CPU share it
    if left_out := [str(number) for number in asked if number > devices]:
        print(f"Left out: {', '.join(left_out)} processes, for there are {devices} GPUs.")
    return [number for number in asked if number <= devices]


def main() -> None:
    """Measure the three tables, printing each row, and write them as JSON."""
    parser = make_parser(__doc__, "scaling.json")
    add_device(parser)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--documents", type=int, nargs="+", default=[36, 96, 384, 1536], help="of a batch")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024, 2048, 4096], help="of a view")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="at most one for each GPU")
    parser.add_argument("--tokens", type=int, default=16384, help="of each batch while its length grows")
    parser.add_argument("--micro_batch_tokens", type=int, help="most tokens of a forward pass (default: the script's)")
    parser.add_argument("--steps", type=int, default=2, help="timed steps; the fastest counts (default: 2)")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    precision = options.precision or native_precision(options.device)
    budget = options.micro_batch_tokens or default_training_tokens(torch.device(options.device))
    job = {"model": options.model, "device": options.device, "bf16": precision == "bf16", "steps": options.steps,
           "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
           "processes": 1, "cache_gradients": True, "micro_batch_tokens": budget, "longest": 128, "mean_length": 60,
           "documents": max(options.documents[0], 2)}  # fmt: skip
    by_length = [
        {"longest": length, "mean_length": length * 0.75, "micro_batch_tokens": max(budget, length),
         "documents": max(options.tokens // (2 * length), 2)}
        for length in options.lengths
    ]  # fmt: skip
    processes = possible_processes(options.processes, options.device)
    jobs = {
        "batch": [job | {"documents": documents} for documents in options.documents],
        "length": [job | other for other in by_length],
        "processes": [job | {"processes": number, "documents": 96} for number in processes],
    }
    results: dict[str, Any] = {"hardware": hardware(options.device), "model": options.model, "precision": precision}
    results["torch"] = torch.__version__
    for name, its_jobs in jobs.items():
        print(f"\n{name}")
        results[name] = [run(its_job, options.output.parent) for its_job in its_jobs]
        write_results(options.output, results)


if __name__ == "__main__":
    main()
