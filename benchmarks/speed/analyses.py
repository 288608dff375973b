"""The cost of each analysis beside embedding the documents, with an encoder of BERT-base's size.

    python -m benchmarks.speed.analyses --train_file train.parquet --test_file test.parquet --documents 10000 \\
        --spacy_pipeline en_core_web_sm --tokenizer_name bert-base-uncased

Passes through the encoder (documents, sentences, halves, attention) are timed on random samples and multiplied up to
all. All else is timed in full, on vectors of these texts from an encoder of one layer of the same width: its cost
depends on the number and width of the vectors. Weights are random: none need be downloaded. The goal: all analyses
of 10,000 documents in at most 3 times the time of embedding them.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from benchmarks.speed.meters import seconds_of
from benchmarks.speed.probing import encoder_of
from docsplit.data.sets.arguments import LabelledArguments
from docsplit.data.sets.labelled import LabelledSplit, load_labelled
from docsplit.data.tagging import load_tagger
from docsplit.data.tokenization import load_tokenizer, train_wordpiece
from docsplit.embedding.attention import attention_to_tokens, describe_attention
from docsplit.embedding.encode import embed_documents
from docsplit.evaluation.analysis.analyses import measure
from docsplit.evaluation.analysis.arguments import ANALYSES, NEED_A_TAGGER, AnalysisArguments
from docsplit.evaluation.analysis.redundancy import redundancy
from docsplit.evaluation.analysis.sample import Documents, Embedded, choose_documents, nearest_of
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.runtime.files import cache_directory, write_text
from docsplit.runtime.launching import hardware

ATTENTION_TOKENS = 2048  # of one forward pass, as the script has it on a CPU


def embedding_seconds(encoder: Any, texts: Sequence[str], sample: int) -> float:
    """Estimate the seconds to embed all texts, from a random sample of them."""
    rows = np.random.default_rng(0).permutation(len(texts))[:sample]
    return seconds_of(embed_documents, encoder, [texts[row] for row in rows]) * len(texts) / max(len(rows), 1)


def seconds_of_passes(analysis: str, documents: Documents, encoder: Any, sample: int) -> float:
    """Estimate the seconds to embed what an analysis needs beside the documents, or to read its attention."""
    if analysis == "similarity":
        return embedding_seconds(encoder, documents.sentences.texts, 8 * sample)
    if analysis == "geometry":
        return embedding_seconds(encoder, documents.halves, sample)
    if analysis == "attention":
        texts = documents.texts[:sample]
        spent = seconds_of(lambda: list(attention_to_tokens(encoder, texts, "", ATTENTION_TOKENS)))
        return spent * len(documents.texts) / len(texts)
    return 0.0


def vectors_of(analysis: str, documents: Documents, encoder: Any) -> dict[str, Any]:
    """Return the vectors that `measure` needs of an encoder for an analysis."""
    if analysis == "similarity":
        return {"sentences": embed_documents(encoder, documents.sentences.texts)[0]}
    if analysis == "geometry":
        return {"halves": embed_documents(encoder, documents.halves)[0]}
    if analysis == "attention":
        tokens = attention_to_tokens(encoder, documents.texts, "", ATTENTION_TOKENS)
        return {"attention": (describe_attention(encoder), iter(list(tokens)))}
    return {}


def measure_all(split: LabelledSplit, base: Any, shallow: Any, options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of each step.

    Args:
        base: the encoder whose passes are timed.
        shallow: an encoder of the same width, which gives the vectors.
    """
    tagger = load_tagger(options.spacy_pipeline)
    seconds = {"embedding": embedding_seconds(base, split.train_texts + split.test_texts, options.sample)}
    seconds["redundancy"] = seconds_of(redundancy, split, tagger, 0)
    parts = {"train": split.train_texts, "test": split.test_texts}
    raw = {part: embed_documents(shallow, texts)[0] for part, texts in parts.items()}
    for analysis in ANALYSES[1:]:
        arguments = AnalysisArguments(analyses=[analysis])
        start = time.perf_counter()
        documents = choose_documents(split, arguments, tagger if analysis in NEED_A_TAGGER else None)
        spent = time.perf_counter() - start + seconds_of_passes(analysis, documents, base, options.sample)
        embedded: dict[str, Any] = vectors_of(analysis, documents, shallow)
        start = time.perf_counter()
        if analysis == "geometry":
            embedded["neighbours"] = nearest_of(raw["test"])
        measure("encoder", Embedded({"num_parameters": 1}, {"raw": raw}, **embedded), split, documents, arguments)
        seconds[analysis] = spent + time.perf_counter() - start
    return seconds


def main() -> None:
    """Time every step, then print the share of the embedding's time and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", help="labelled documents (default: python_docs)")
    parser.add_argument("--test_file")
    parser.add_argument("--spacy_pipeline", default="en_core_web_sm")
    parser.add_argument(
        "--tokenizer_name", help="tokenizer on the Hub or here (default: WordPiece trained on the documents)"
    )
    parser.add_argument(
        "--documents", type=int, default=10_000, help="documents of train and test together (default: 10000)"
    )
    parser.add_argument("--max_seq_length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12, help="layers of the timed encoder (default: 12, BERT-base)")
    parser.add_argument("--sample", type=int, default=128, help="documents timed in passes (default: 128)")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/analyses.json"), help="JSON file to write"
    )
    options = parser.parse_args()

    sizes = {"max_train_samples": round(0.6 * options.documents), "max_test_samples": round(0.4 * options.documents)}
    files = {"train_file": options.train_file, "test_file": options.test_file}
    split = load_labelled(LabelledArguments(**files, **sizes))
    texts = split.train_texts + split.test_texts
    if options.tokenizer_name:
        tokenizer = load_tokenizer(options.tokenizer_name)
    else:
        tokenizer = train_wordpiece(Dataset.from_dict({"text": texts}), "text", 30522, cache_directory())
    with tempfile.TemporaryDirectory() as folder:
        base = encoder_of(options.layers, tokenizer, Path(folder), options.max_seq_length)
        shallow = encoder_of(1, tokenizer, Path(folder), 128)
        seconds = measure_all(split, base, shallow, options)
    embedding = seconds["embedding"]
    ratios = {name: value / embedding for name, value in seconds.items()}
    total = sum(ratios[name] for name in ANALYSES)
    rows = [[name, f"{seconds[name]:,.1f}", f"{ratio:.3f}"] for name, ratio in ratios.items()]
    print(markdown_table(["", "seconds", "of embedding"], [*rows, ["all analyses", "", f"{total:.3f}"]]))
    results = {
        "documents": len(texts),
        "max_seq_length": options.max_seq_length,
        "encoder_parameters": sum(parameter.numel() for parameter in base.parameters()),
        "sample_documents": options.sample,
        "hardware": hardware("cuda" if torch.cuda.is_available() else "cpu"),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "analyses_to_embedding": round(total, 3),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.output, json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
