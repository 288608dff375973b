"""The cost of each analysis beside embedding the documents, with an encoder of BERT-base's size.

    python -m benchmarks.speed.analyses --documents 500 --spacy_pipeline en_core_web_sm
    python -m benchmarks.speed.analyses --train_file train.parquet --test_file test.parquet --tokenizer_name NAME

Each analysis runs as `run_embedding_analysis.py --analyses NAME` does, with the vectors of the documents in the cache:
its seconds are all that it takes beside them, passes through the encoder included (sentences, halves, attention).
Embedding is timed on a random sample and multiplied up to all documents. Weights are random: none need be downloaded.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.speed.meters import seconds_of, write_results
from benchmarks.speed.probing import encoder_of, parser_of_documents, tokenizer_of
from docsplit.data.sets.labelled import load_labelled
from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.evaluation.analysis.analyses import EmbeddingAnalysis
from docsplit.evaluation.compare import compare
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.evaluation.task_arguments import ANALYSES, AnalysisArguments
from docsplit.release.model_card import add_results
from docsplit.runtime.launching import hardware


def main() -> None:
    """Time every analysis, then print the share of the embedding's time and write JSON."""
    parser = parser_of_documents(__doc__, "analyses.json")
    parser.add_argument("--spacy_pipeline", default="en_core_web_sm")
    parser.add_argument("--documents", type=int, default=500, help="of train and test together (default: 500)")
    options = parser.parse_args()
    data_args = LabelledArguments(
        train_file=options.train_file,
        test_file=options.test_file,
        max_train_samples=round(0.6 * options.documents),
        max_test_samples=round(0.4 * options.documents),
    )
    split = load_labelled(data_args)
    texts = split.train_texts + split.test_texts
    sample = [texts[row] for row in np.random.default_rng(0).permutation(len(texts))[: options.sample]]
    with tempfile.TemporaryDirectory() as folder:
        encoder = encoder_of(options.layers, tokenizer_of(options, texts), Path(folder), options.max_seq_length)
        seconds = {"embedding": seconds_of(embed_documents, encoder, sample) * len(texts) / len(sample)}
        path = os.path.join(folder, f"layers-{options.layers}")
        encoder_args = EncoderArguments([path], pooling="mean", max_seq_length=options.max_seq_length)

        def run(analysis: str, name: str) -> float:
            args = AnalysisArguments(
                output_dir=f"{folder}/{name}", analyses=[analysis], spacy_pipeline=options.spacy_pipeline
            )
            return seconds_of(compare, EmbeddingAnalysis(data_args, args), encoder_args, add_results)

        run("clustering", "cache")  # of the documents' vectors
        for analysis in ANALYSES:
            seconds[analysis] = run(analysis, analysis)
    ratios = {name: value / seconds["embedding"] for name, value in seconds.items()}
    total = sum(ratios[name] for name in ANALYSES)
    rows = [[name, f"{seconds[name]:,.1f}", f"{ratio:.3f}"] for name, ratio in ratios.items()]
    print(markdown_table(["", "seconds", "of embedding"], [*rows, ["all analyses", "", f"{total:.3f}"]]))
    results = {
        "documents": len(texts),
        "max_seq_length": options.max_seq_length,
        "encoder_parameters": sum(parameter.numel() for parameter in encoder.parameters()),
        "sample_documents": len(sample),
        "hardware": hardware("cuda" if torch.cuda.is_available() else "cpu"),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "analyses_to_embedding": round(total, 3),
    }
    write_results(options.output, results)


if __name__ == "__main__":
    main()
