"""TSDAE (Wang et al. 2021) as sentence-transformers has it, as a step of a cell of the study of adaptation.

    python -m benchmarks.studies.adaptation.tsdae --model NAME --corpus corpus.jsonl --output_dir DIR --steps 100

The encoder reads a text of which 60 % of the words are deleted, and a decoder with the same weights writes the text
from its vector. On transformers 5 the decoder's cross-attention is made at random, as it is on older ones.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.models import Pooling, Transformer
from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss

from docsplit.embedding.loading import load_encoder

DELETED = 0.6  # of the words (TSDAE, section 4.2)


def noisy(text: str, generator: random.Random) -> str:
    """Return the text without 60 % of its words, at random; one word at least."""
    words = text.split()
    kept = [word for word in words if generator.random() >= DELETED]
    return " ".join(kept or words[:1])


def main() -> None:
    """Train, and save as a SentenceTransformer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=3e-5)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--pooling", default="mean")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    texts = [json.loads(line)["text"] for line in options.corpus.read_text(encoding="utf-8").splitlines()]
    generator = random.Random(options.seed)
    rows = [{"noisy": noisy(text, generator), "text": text} for text in texts if text.split()]
    loaded: Any = load_encoder(options.model, options.pooling, options.max_seq_length)
    # A normalisation would take the decoder's one input vector to length one: it is put back when this is saved.
    modules = [module for module in loaded if isinstance(module, Transformer | Pooling)]
    model = SentenceTransformer(modules=modules, device=str(loaded.device))
    model.transformers_model.config._name_or_path = options.model
    loss = DenoisingAutoEncoderLoss(model, tie_encoder_decoder=True)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=options.output_dir, max_steps=options.steps, per_device_train_batch_size=options.batch_size,
        learning_rate=options.learning_rate, warmup_steps=0.1, seed=options.seed, save_strategy="no", report_to="none",
        disable_tqdm=True, logging_steps=10, use_cpu=not str(loaded.device).startswith("cuda"),
    )  # fmt: skip
    SentenceTransformerTrainer(model, arguments, Dataset.from_list(rows), loss=loss).train()
    loaded.save_pretrained(options.output_dir)


if __name__ == "__main__":
    main()
