"""The cost of a probe's heads beside embedding the documents, with an encoder of BERT-base's size.

    python -m benchmarks.speed.probing --train_file train.parquet --test_file test.parquet \\
        --tokenizer_name bert-base-uncased

Embedding is timed on a random sample of the documents (`docsplit.embedding.encode.embed_documents`, in alternating
rounds with `SentenceTransformer.encode` on the same ones) and multiplied up to all of them. The heads are timed in
full: mlp, linear and knn on all labels (3 seeds) and on 3 x 10 few-shot draws. Their cost depends on the number, width
and spread of the vectors and not on the depth of the encoder, so theirs are real vectors of the documents from an
encoder of one layer of the same width. Weights are random: none need be downloaded.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import BertConfig, BertModel

from benchmarks.speed.meters import make_parser, seconds_of, write_results
from docsplit.data.sets.labelled import load_labelled
from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.data.tokenization import load_tokenizer, train_wordpiece
from docsplit.embedding.encode import embed_documents
from docsplit.evaluation.heads.base import HeadInput, head_runs
from docsplit.evaluation.heads.table import HEADS
from docsplit.modeling.loading import load_encoder
from docsplit.runtime.files import cache_directory
from docsplit.runtime.launching import hardware


def parser_of_documents(doc: str | None, results: str) -> argparse.ArgumentParser:
    """Return a parser with the options of labelled documents and a timed encoder."""
    parser = make_parser(doc, results)
    parser.add_argument("--train_file", help="labelled documents (default: python_docs)")
    parser.add_argument("--test_file")
    parser.add_argument("--tokenizer_name", help="on the Hub or here (default: WordPiece trained on the documents)")
    parser.add_argument("--max_seq_length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12, help="of the timed encoder (default: 12, BERT-base)")
    parser.add_argument("--sample", type=int, default=128, help="documents timed in passes (default: 128)")
    return parser


def tokenizer_of(options: argparse.Namespace, texts: list[str]) -> Any:
    """Return the tokenizer that is named, else WordPiece of these texts."""
    if options.tokenizer_name:
        return load_tokenizer(options.tokenizer_name)
    return train_wordpiece(Dataset.from_dict({"text": texts}), "text", 30522, cache_directory())


def encoder_of(layers: int, tokenizer: Any, folder: Path, max_seq_length: int) -> Any:
    """Return BERT-base (768 wide, 12 heads) with `layers` layers and mean pooling."""
    torch.manual_seed(0)
    path = folder / f"layers-{layers}"
    BertModel(BertConfig(vocab_size=len(tokenizer), num_hidden_layers=layers)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return load_encoder(str(path), pooling="mean", max_seq_length=max_seq_length)


def main() -> None:
    """Time embedding on a sample and every head in full, then print the share and write JSON."""
    parser = parser_of_documents(__doc__, "probing.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shots", type=int, nargs="+", default=[5, 10, 20])
    options = parser.parse_args()
    split = load_labelled(LabelledArguments(train_file=options.train_file, test_file=options.test_file))
    texts = split.train_texts + split.test_texts
    tokenizer = tokenizer_of(options, texts)
    sample = [texts[row] for row in np.random.default_rng(0).permutation(len(texts))[: options.sample]]
    with tempfile.TemporaryDirectory() as folder:
        base = encoder_of(options.layers, tokenizer, Path(folder), options.max_seq_length)
        shallow = encoder_of(1, tokenizer, Path(folder), 128)

    contenders = {
        "embed_documents, default dtype": lambda: embed_documents(base, sample),
        "embed_documents, float32": lambda: embed_documents(base, sample, dtype=torch.float32),
        "SentenceTransformer.encode": lambda: base.encode(sample, show_progress_bar=False),
    }
    rounds = [{name: seconds_of(embed) for name, embed in contenders.items()} for _ in range(options.rounds)]
    seconds = {name: [round_[name] for round_ in rounds] for name in contenders}
    embedding_seconds = statistics.median(seconds["embed_documents, default dtype"]) * len(texts) / len(sample)
    same_work = zip(seconds["embed_documents, float32"], seconds["SentenceTransformer.encode"])
    print(f"Embedding {len(texts):,} documents: {embedding_seconds:,.0f} s, from {len(sample)} of them")

    embeddings, _ = embed_documents(shallow, texts, show_progress=True)
    train, test = np.split(embeddings, [len(split.train_texts)])
    settings = {f"{shots} shots, 10 draws": (head_runs(split, shots, 10, 3), True) for shots in options.shots}
    settings["all labels, 3 seeds"] = (head_runs(split, None, 10, 3), False)
    head_seconds = {}
    for name, head in HEADS.items():
        for setting, (runs, few_shot) in settings.items():
            data = HeadInput(train, split.train_labels, runs, test, len(split.class_names), few_shot=few_shot)
            head_seconds[f"{name}, {setting}"] = seconds_of(head, data)
            print(f"{f'{name}, {setting}':<36}{head_seconds[f'{name}, {setting}']:8.1f} s")
    total = sum(head_seconds.values())
    print(f"{'all heads':<36}{total:8.1f} s, {total / embedding_seconds:.3f} of the embedding")
    results = {
        "documents": len(texts),
        "classes": len(split.class_names),
        "encoder_parameters": sum(parameter.numel() for parameter in base.parameters()),
        "max_seq_length": options.max_seq_length,
        "hardware": hardware("cuda" if torch.cuda.is_available() else "cpu"),
        "sample_documents": len(sample),
        "sample_seconds": {name: [round(value, 2) for value in values] for name, values in seconds.items()},
        "speed_to_sentence_transformers": round(statistics.median(theirs / ours for ours, theirs in same_work), 2),
        "embedding_seconds": round(embedding_seconds, 1),
        "head_seconds": {name: round(value, 1) for name, value in head_seconds.items()},
        "heads_to_embedding": round(total / embedding_seconds, 4),
    }
    write_results(options.output, results)


if __name__ == "__main__":
    main()
