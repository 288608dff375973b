"""The cost of a training step with many documents as graphs of passages.

    python -m benchmarks.speed.graph_document
    python -m benchmarks.speed.graph_document --batches 64 256

An optimisation step of the paper's loss (dot products, both directions, two layers of graph attention 512 wide) with
cached gradients, on random ids: a document has 2 to 50 passages, of about 135 tokens. The passage encoder is a BERT of
2 layers, 64 wide, so that a CPU manages 1,536 documents: the encoder needs memory for a micro-batch, whatever the
batch. Each batch runs in a new process, and a step of 8 documents comes first. Memory is the peak of the process
during the step, above its memory before the batch was made. The report names parts of it: ids and masks of the batch;
all passage vectors and their gradients.

Needed operations are those of all tokens without padding: with cached gradients two forward passes and a backward
one. The share of the peak is what they would take at the rate of a large matrix product, over what the step took.
"""

from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from tqdm import tqdm
from transformers import BertConfig

from benchmarks.speed.jobs import CLS, MASK, SEP, tokenizer_of_ids
from benchmarks.speed.long_attention import peak_flops
from benchmarks.speed.meters import Memory, in_process, make_parser, seconds_of, write_results
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.runtime.files import versions
from docsplit.runtime.launching import hardware, use_all_cores
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig

ENCODER = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
WIDTH, LAYERS = 512, 2  # of the graph
MOST_PASSAGES, LONGEST = 50, 256  # of a document, and tokens of a passage
MEAN_TOKENS, DEVIATION = 135, 25  # of a passage of 100 words
MB = 2**20


def passages_of(documents: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of passages of each document (D,), and the tokens of each passage (P,)."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(2, MOST_PASSAGES + 1, documents)
    return counts, generator.normal(MEAN_TOKENS, DEVIATION, counts.sum()).round().clip(20, LONGEST).astype(np.int64)


def make_batch(documents: int, vocab_size: int, seed: int = 0) -> dict[str, Any]:
    """Return a batch as `PassageCollator` makes it: half of a document's passages, drawn at random, against the
    others.
    """
    counts, lengths = passages_of(documents, seed)
    generator = np.random.default_rng((seed, 1))
    views = np.concatenate([np.sort(generator.permutation(count) >= count // 2) for count in counts])
    mask = torch.arange(int(lengths.max())) < torch.from_numpy(lengths)[:, None]  # (P, T)
    ids = torch.randint(MASK + 1, vocab_size, mask.shape, generator=torch.Generator().manual_seed(seed)) * mask
    ids[:, 0] = CLS
    ids[torch.arange(len(ids)), torch.from_numpy(lengths) - 1] = SEP
    rows = {"document": np.repeat(np.arange(documents), counts), "view": views.astype(np.int64)}
    rows["position"] = np.concatenate([generator.permutation(count) for count in counts])
    return {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "document_ids": torch.arange(documents),
        "rows": {name: torch.from_numpy(values) for name, values in rows.items()},
    }


def make_model(micro_batch_tokens: int, encoder: dict[str, int] = ENCODER) -> DocSplitForContrastivePretraining:
    """Return a model of random weights in training mode, with the loss of equations 5 and 6."""
    torch.manual_seed(0)
    config = GraphDocumentConfig(BertConfig(**encoder), graph_hidden_size=WIDTH, graph_layers=LAYERS)  # type: ignore[arg-type]
    loss = {"similarity": "dot", "contrastive_temperature": 1.0, "symmetric_loss": True}
    model = DocSplitForContrastivePretraining.from_config(
        config, tokenizer_of_ids(config.passage_encoder.vocab_size), **loss
    ).train()
    model.micro_batch_tokens, model.cache_gradients = micro_batch_tokens, True
    return model


def needed_flops(
    views: np.ndarray, documents: np.ndarray, lengths: np.ndarray, encoder: dict[str, int] = ENCODER
) -> dict[str, float]:
    """Count the floating-point operations of a step with cached gradients, in the encoder and the graph layers.

    Args:
        views, documents, lengths: (P,) of each passage.
    """
    hidden, layers, wide = (encoder[name] for name in ("hidden_size", "num_hidden_layers", "intermediate_size"))
    linear = 2 * (4 * hidden**2 + 2 * hidden * wide) * lengths + 4 * hidden * lengths.astype(float) ** 2
    passages = 4 * (layers * linear.sum() + 2 * hidden * WIDTH * len(lengths))
    nodes = np.bincount(2 * documents + views) + 1  # of each graph, with the document's
    graphs = 4 * LAYERS * (2.0 * WIDTH**2 * nodes.sum() + 2.0 * WIDTH * (nodes**2).sum())
    return {"encoder_flops": float(passages), "graph_flops": float(graphs)}


def measure(
    documents: int, micro_batch_tokens: int, device: str = "cpu", encoder: dict[str, int] = ENCODER
) -> dict[str, Any]:
    """Measure one optimisation step, and the graph layers alone; runs in a separate process."""
    use_all_cores(torch.device(device), world_size=1)
    model = make_model(micro_batch_tokens, encoder).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    row: dict[str, Any] = {}

    def step(batch: dict[str, Any]) -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            output = model(**send_to_device(batch, device))
        row["tokens_computed"] = int(output.num_computed_tokens)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        if device == "cuda":
            torch.cuda.synchronize()

    vocab_size = model.config.vocab_size
    step(make_batch(min(documents, 8), vocab_size, seed=1))  # makes gradients and the optimizer's state
    memory = Memory(device)
    memory.start()
    batch = make_batch(documents, vocab_size)
    seconds = seconds_of(step, batch)
    memory.stop()
    rows = {name: values.numpy() for name, values in batch["rows"].items()}
    _, lengths = passages_of(documents, 0)
    row |= {"documents": documents, "passages": len(lengths), "tokens": int(lengths.sum()), "seconds": seconds}
    row |= {"memory_mb": memory.peak / MB, "padding_share": 1 - row["tokens"] / row["tokens_computed"]}
    row |= {"batch_mb": 2 * batch["input_ids"].nbytes / MB, "vectors_mb": 2 * 4 * WIDTH * len(lengths) / MB}
    row |= needed_flops(rows["view"], rows["document"], lengths, encoder)
    return row


def table(results: dict[str, Any]) -> str:
    """Return a line a batch, and what was compared."""
    lines = []
    for row in results["steps"]:
        counts = (f"{row[name]:,}" for name in ("documents", "passages", "tokens"))
        memory = (f"{row[name]:,.0f}" for name in ("memory_mb", "batch_mb", "vectors_mb"))
        work = f"{(row['encoder_flops'] + row['graph_flops']) / 1e12:.2f}"
        shares = f"{100 * row['padding_share']:.1f}", work, f"{100 * row['share_of_peak']:.0f}"
        lines.append([*counts, *memory, f"{row['seconds']:,.1f}", *shares])
    about = (
        f"{results['hardware']}, {results['threads']} threads. MB: the peak of a step above the process before. Parts "
        "of it: `batch` is ids and masks, `vectors` those of all passages and their gradients."
    )
    header = ["documents", "passages", "tokens", "MB", "batch MB", "vectors MB", "s a step", "padding %", "TFLOP"]
    return f"{about}\n\n{markdown_table([*header, 'of the peak %'], lines)}\n"


def main() -> None:
    """Measure a step of each batch; JSON and table are written after each."""
    parser = make_parser(__doc__, "graph_document.json")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256, 1024, 1536], help="documents a step")
    parser.add_argument("--micro_batch_tokens", type=int, default=4096, help="of a forward pass (default: 4096)")
    options = parser.parse_args()
    if min(options.batches) < 2:
        parser.error("--batches: a batch of one document has no negatives.")
    use_all_cores(torch.device("cpu"), world_size=1)
    peak = peak_flops({"device": "cpu", "precision": "fp32"})
    results = {"hardware": hardware("cpu"), "versions": versions(), "threads": torch.get_num_threads()}
    results |= {"micro_batch_tokens": options.micro_batch_tokens, "peak_flops": peak}
    results["steps"] = steps = []
    for documents in tqdm(sorted(options.batches), unit="batch"):
        row = in_process(measure, documents, options.micro_batch_tokens)
        needed = row["encoder_flops"] + row["graph_flops"]
        steps.append(row | {"share_of_peak": needed / row["seconds"] / peak})
        write_results(options.output, results, table(results))  # the next one may take an hour
    print(f"\n{table(results)}\nWritten: {options.output}")


if __name__ == "__main__":
    main()
