"""The cost of a training step with many documents as graphs of passages, and of embedding them.

    python -m benchmarks.speed.graph_document
    python -m benchmarks.speed.graph_document --batches 64 256 --texts 0

An optimisation step of the paper's loss (dot products, both directions, two layers of graph attention 512 wide) with
cached gradients, on random ids: a document has 2 to 50 passages, of about 135 tokens. The passage encoder is a BERT of
2 layers, 64 wide, so that a CPU manages 1,536 documents: the encoder needs memory for a micro-batch, whatever the
batch. Each batch runs in a new process, and a step of 8 documents comes first. Memory is the peak of the process
during the step, above its memory before the batch was made. The report names its parts: ids and masks of the batch;
all passage vectors and their gradients; and the forward and backward pass of the graph layers alone.

Needed operations are those of all tokens without padding: with cached gradients two forward passes and a backward
one. The share of the peak is what they would take at the rate of a large matrix product, over what the step took. At
the smallest batch loss and gradients must be those without caching, with the same dropout. An encoder of 4 layers,
256 wide, then embeds texts: as graph of passages, and as mean of pieces (chunk_mean) of the passages' mean length.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import BertConfig, BertForMaskedLM

from benchmarks.speed.jobs import CLS, MASK, SEP, write_model
from benchmarks.speed.long_attention import peak_flops
from benchmarks.speed.meters import Memory, seconds_of
from docsplit.data.passages import to_passages
from docsplit.data.tokenization import load_tokenizer
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.loading import load_encoder
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.modeling.encoding import Rows
from docsplit.runtime.files import versions, write_text
from docsplit.runtime.launching import hardware, use_all_cores
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig, GraphDocumentModel

ENCODER = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
WIDTH, LAYERS = 512, 2  # of the graph
MOST_PASSAGES, LONGEST = 50, 256  # of a document, and tokens of a passage
MEAN_TOKENS, DEVIATION = 135, 25  # of a passage of 100 words
EQUAL = 1e-5  # largest difference of gradients over the largest gradient
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


def make_model(micro_batch_tokens: int, cache: bool = True) -> DocSplitForContrastivePretraining:
    """Return a model of random weights in training mode, with the loss of equations 5 and 6."""
    torch.manual_seed(0)
    config = GraphDocumentConfig(BertConfig(**ENCODER), graph_hidden_size=WIDTH, graph_layers=LAYERS)  # type: ignore[arg-type]
    loss = {"similarity": "dot", "contrastive_temperature": 1.0, "symmetric_loss": True}
    model = DocSplitForContrastivePretraining(config, GraphDocumentModel(config), **loss).train()
    model.micro_batch_tokens, model.cache_gradients = micro_batch_tokens, cache
    return model


def needed_flops(views: np.ndarray, documents: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """Count the floating-point operations of a step with cached gradients, in the encoder and the graph layers.

    Args:
        views, documents, lengths: (P,) of each passage.
    """
    hidden, layers, wide = (ENCODER[name] for name in ("hidden_size", "num_hidden_layers", "intermediate_size"))
    linear = 2 * (4 * hidden**2 + 2 * hidden * wide) * lengths + 4 * hidden * lengths.astype(float) ** 2
    encoder = 4 * (layers * linear.sum() + 2 * hidden * WIDTH * len(lengths))
    nodes = np.bincount(2 * documents + views) + 1  # of each graph, with the document's
    graphs = 4 * LAYERS * (2.0 * WIDTH**2 * nodes.sum() + 2.0 * WIDTH * (nodes**2).sum())
    return {"encoder_flops": float(encoder), "graph_flops": float(graphs)}


def measure(documents: int, micro_batch_tokens: int, results: Any) -> None:
    """Measure one optimisation step, and the graph layers alone; runs in a separate process."""
    use_all_cores(torch.device("cpu"), world_size=1)
    model = make_model(micro_batch_tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    row: dict[str, Any] = {}

    def step(batch: dict[str, Any]) -> None:
        output = model(**batch)
        row["tokens_computed"] = int(output.num_computed_tokens)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    vocab_size = model.config.vocab_size
    step(make_batch(8, vocab_size, seed=1))  # gradients and the optimizer's state are there from here on
    memory = Memory("cpu")
    memory.start()
    batch = make_batch(documents, vocab_size)
    seconds = seconds_of(step, batch)
    memory.stop()
    rows = {name: values.numpy() for name, values in batch["rows"].items()}
    _, lengths = passages_of(documents, 0)
    row |= {"documents": documents, "passages": len(lengths), "tokens": int(lengths.sum()), "seconds": seconds}
    row |= {"memory_mb": memory.peak / MB, "padding_share": 1 - row["tokens"] / row["tokens_computed"]}
    row |= {"batch_mb": 2 * batch["input_ids"].nbytes / MB, "vectors_mb": 2 * 4 * WIDTH * len(lengths) / MB}
    row |= needed_flops(rows["view"], rows["document"], lengths)
    results.send(row | graphs_alone(model, Rows(**batch["rows"])))


def graphs_alone(model: DocSplitForContrastivePretraining, rows: Rows) -> dict[str, float]:
    """Return seconds of the graph layers' forward and backward pass, and memory above vectors and gradients."""
    combine: Any = model.encoder.combine
    vectors = torch.randn(len(rows.view), WIDTH, requires_grad=True)
    vectors.grad = torch.zeros_like(vectors)

    def both() -> None:
        combine(vectors, rows).square().mean().backward()

    both()
    memory = Memory("cpu")
    memory.start()
    seconds = seconds_of(both)
    memory.stop()
    return {"graph_seconds": seconds, "graph_mb": memory.peak / MB}


def run(documents: int, micro_batch_tokens: int) -> dict[str, Any]:
    """Run `measure` in a process and return what it sends.

    Raises:
        RuntimeError: if it ended without a result.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(documents, micro_batch_tokens, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise RuntimeError(f"A step of {documents} documents failed: it has said why above.") from None
    finally:
        process.join()


def compare_caching(documents: int, micro_batch_tokens: int) -> dict[str, float]:
    """Compare a step with and without caching: the difference of the losses, and the relative one of gradients.

    Raises:
        ValueError: if they are not the same numbers.
    """
    losses_and_gradients: list[tuple[float, list[Tensor]]] = []
    for cache in (True, False):
        model = make_model(micro_batch_tokens, cache)
        torch.manual_seed(1)  # of dropout
        output = model(**make_batch(documents, model.config.vocab_size))
        output.loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        losses_and_gradients.append((output.loss.item(), gradients))
    (loss, cached), (plain_loss, plain) = losses_and_gradients
    largest = max(float(gradient.abs().max()) for gradient in plain)
    difference = max(float((left - right).abs().max()) for left, right in zip(cached, plain, strict=True)) / largest
    if not (abs(loss - plain_loss) <= EQUAL * abs(plain_loss) and difference <= EQUAL):
        raise ValueError(f"Caching changed the step: losses {loss} and {plain_loss}, gradients by {difference:.1e}.")
    return {"documents": documents, "loss_difference": abs(loss - plain_loss), "gradient_difference": difference}


def make_texts(count: int, vocab_size: int) -> list[str]:
    """Make texts of sentences of about twenty made-up words, long enough for 2 to 50 passages."""
    generator, texts = np.random.default_rng(2), []
    for passages in generator.integers(2, MOST_PASSAGES + 1, count):
        sentences = []
        for length in generator.integers(15, 26, 5 * passages):
            sentences.append(f"W{' w'.join(map(str, generator.integers(MASK + 1, vocab_size, length)))}.")
        texts.append(" ".join(sentences))
    return texts


def compare_embedding(num_texts: int, rounds: int) -> dict[str, Any]:
    """Measure texts a second as graphs and by chunk_mean, with the same passage encoder: medians of rounds."""
    with tempfile.TemporaryDirectory() as name:
        plain, graph = Path(name, "plain"), Path(name, "graph")
        config = write_model("small", plain)
        tokenizer = load_tokenizer(plain)
        texts = make_texts(num_texts, config.vocab_size)
        passages = [passage.text for text in texts for passage in to_passages(text)]
        lengths = [len(ids) for ids in tokenizer(passages)["input_ids"]]
        encoder = BertForMaskedLM.from_pretrained(plain).bert
        model = GraphDocumentModel(GraphDocumentConfig(config, graph_hidden_size=WIDTH), encoder)
        wrapper = DocSplitForContrastivePretraining(model.config, model, similarity="dot")
        wrapper.save_pretrained(graph)
        tokenizer.save_pretrained(graph)
        of_mean = round(statistics.mean(lengths))
        encoders = {"graph": load_encoder(str(graph), device="cpu")}
        encoders["chunk_mean"] = load_encoder(str(plain), "mean", of_mean, device="cpu")
        seconds: dict[str, list[float]] = {kind: [] for kind in encoders}
        for number in range(rounds + 1):
            for kind, contender in encoders.items():
                chosen = texts if number else texts[:4]  # to warm up
                passed = seconds_of(lambda: embed_documents(contender, chosen, long_documents="chunk_mean"))  # noqa: B023
                seconds[kind] += [passed] if number else []
    rates = {f"{kind}_texts_per_second": num_texts / statistics.median(times) for kind, times in seconds.items()}
    ratio = rates["graph_texts_per_second"] / rates["chunk_mean_texts_per_second"]
    return {"texts": num_texts, "passages": len(passages), "mean_tokens": of_mean, **rates, "ratio": ratio}


def table(results: dict[str, Any]) -> str:
    """Return a line a batch, and what was compared."""
    header = ["documents", "passages", "tokens", "MB", "batch MB", "vectors MB", "graphs MB", "s a step", "graphs s"]
    header += ["padding %", "TFLOP", "of the peak %"]
    lines = [
        [
            *(f"{row[name]:,}" for name in ("documents", "passages", "tokens")),
            *(f"{row[name]:,.0f}" for name in ("memory_mb", "batch_mb", "vectors_mb", "graph_mb")),
            *(f"{row[name]:,.1f}" for name in ("seconds", "graph_seconds")),
            f"{100 * row['padding_share']:.1f}",
            f"{(row['encoder_flops'] + row['graph_flops']) / 1e12:.2f}",
            f"{100 * row['share_of_peak']:.0f}",
        ]
        for row in results["steps"]
    ]
    exact, graphs = results["caching"], results["embedding"]
    about = (
        f"{results['hardware']}, {results['threads']} threads. MB: the peak of a step above the process before. Parts "
        "of it: `batch` is ids and masks, `vectors` those of all passages and their gradients, `graphs` what the "
        "passes of the graph layers take alone."
    )
    parts = [about, markdown_table(header, lines)]
    parts.append(
        f"With {exact['documents']} documents the loss with and without cached gradients differs by "
        f"{exact['loss_difference']:.1e}, the gradients by {exact['gradient_difference']:.1e} of the largest."
    )
    if graphs is not None:
        parts.append(
            f"Embedding, {graphs['texts']} texts, {graphs['passages']:,} passages of {graphs['mean_tokens']} tokens: "
            f"{graphs['graph_texts_per_second']:.2f} texts a second as graphs, "
            f"{graphs['chunk_mean_texts_per_second']:.2f} by chunk_mean: {graphs['ratio']:.2f} times as many."
        )
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Compare, measure a step of each batch and the embedding, then write JSON and table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[64, 256, 1024, 1536], help="numbers of documents a step"
    )
    parser.add_argument(
        "--micro_batch_tokens", type=int, default=4096, help="most tokens of a forward pass (default: 4096)"
    )
    parser.add_argument("--texts", type=int, default=40, help="texts to embed; 0: none (default: 40)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of embedding; the median counts (default: 5)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("benchmarks/results/graph_document.json"),
        help="JSON file to write, with a table beside it",
    )
    options = parser.parse_args()
    if min(options.batches) < 2:
        parser.error("--batches: a batch of one document has no negatives.")
    use_all_cores(torch.device("cpu"), world_size=1)
    caching = compare_caching(min(options.batches), options.micro_batch_tokens)
    Memory("cpu").release()  # gigabytes of activations, which the C library would keep
    peak = peak_flops({"device": "cpu", "precision": "fp32"})
    results = {"hardware": hardware("cpu"), "versions": versions(), "threads": torch.get_num_threads()}
    results |= {"micro_batch_tokens": options.micro_batch_tokens, "peak_flops": peak, "caching": caching}
    results["embedding"] = compare_embedding(options.texts, options.rounds) if options.texts else None
    results["steps"] = steps = []
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for documents in tqdm(sorted(options.batches), unit="batch"):
        row = run(documents, options.micro_batch_tokens)
        needed = row["encoder_flops"] + row["graph_flops"]
        steps.append(row | {"share_of_peak": needed / row["seconds"] / peak})
        write_text(options.output, json.dumps(results, indent=2) + "\n")  # the next one may take an hour
        write_text(options.output.with_suffix(".md"), table(results))
    last = steps[-1]
    print(f"\n{table(results)}\nWritten: {options.output}")
    print(f"batch {last['documents']}: {last['memory_mb']:,.0f} MB, {last['seconds']:.1f} s a step")


if __name__ == "__main__":
    main()
