"""The parts that all contenders of `benchmarks.speed.training` share: the job, the model and the documents.

Documents are random ids, so nothing need be downloaded; each id has a made-up word, so that sentence-transformers can
be given texts. Here is also what is counted of documents: tokens, and the floating-point operations that they need.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertTokenizer
from transformers.trainer_pt_utils import get_length_grouped_indices

from benchmarks.speed.meters import DTYPES
from docsplit.modeling.encoding import IGNORED

MLM_PROBABILITY, MAX_LENGTH, SEED = 0.15, 512, 0
PAD, UNK, CLS, SEP, MASK = 0, 100, 101, 102, 103  # BERT's
SPECIAL_TOKENS = {PAD: "[PAD]", UNK: "[UNK]", CLS: "[CLS]", SEP: "[SEP]", MASK: "[MASK]"}

# Lengths of views are log-normal, clipped to 8 ... 512 tokens: mean 200, median 159, 7 % of them 512. The two halves
# of a document of twenty sentences differ in length by about a fifth, which is this correlation of their logarithms.
LENGTH_MU, LENGTH_SIGMA, LENGTH_CORRELATION = 5.068, 0.8, 0.9
POOL_BATCHES = 50  # among so many batches Trainer's group_by_length sorts

MODELS: dict[str, dict[str, int]] = {  # BERT-base, but for ...
    "tiny": {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64},
    "small": {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    "minilm": {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {},
}


@dataclass(frozen=True)
class Job:
    """The settings that are the same for all contenders of a model."""

    folder: Path  # config, weights and tokenizer
    device: str
    precision: str
    batch_size: int
    steps: int  # of a round
    rounds: int
    micro_batch_tokens: int | None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrix products under autocast; weights and optimizer are always float32."""
        return DTYPES[self.precision]


def write_model(name: str, folder: Path) -> BertConfig:
    """Return a random BERT without attention dropout, and a tokenizer with a word for each of its ids."""
    config = BertConfig(attention_probs_dropout_prob=0.0, max_position_embeddings=MAX_LENGTH)
    config.update(MODELS[name] | ({"vocab_size": 200} if name == "tiny" else {}))
    # With the usual spread of weights all texts get about the same vector, and equal losses would say little.
    config.initializer_range = 1.6 / config.hidden_size**0.5
    torch.manual_seed(SEED)
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer_of_ids(config.vocab_size).save_pretrained(folder)
    return config


def tokenizer_of_ids(vocab_size: int) -> BertTokenizer:
    """Return a tokenizer with a word for each of so many ids."""
    vocabulary = {SPECIAL_TOKENS.get(index, f"w{index}"): index for index in range(vocab_size)}
    return BertTokenizer(vocab=vocabulary, model_max_length=MAX_LENGTH)


@dataclass(frozen=True)
class View:
    """A half of a document: ids (T,), the same ids masked (T,), and the MLM targets (T,)."""

    ids: np.ndarray
    masked: np.ndarray
    targets: np.ndarray

    @property
    def text(self) -> str:
        """Return the made-up words of the ids, without [CLS] and [SEP], which a tokenizer adds."""
        return " ".join(f"w{index}" for index in self.ids[1:-1])


Document = dict[str, Any]  # {"views": (View, View), "document_id": int}


def draw_documents(job: Job, round_number: int, vocab_size: int, grouped: bool = False) -> list[Document]:
    """Return the documents of a round, the same for all contenders, in the order in which they are trained on.

    Trainer's group_by_length sorts 50 batches at a time, far more than a round can have. So the lengths of that many
    are drawn and sorted as Trainer does, and the round is every n-th of these batches: `grouped` takes them as they
    are, which is as good as grouping gets in a long training, and the others get the same documents shuffled.
    """
    rng = np.random.default_rng((SEED, round_number))
    num_batches = max(POOL_BATCHES, job.steps)
    normal = rng.standard_normal((num_batches * job.batch_size, 1)) * LENGTH_CORRELATION**0.5
    normal = normal + rng.standard_normal((len(normal), 2)) * (1 - LENGTH_CORRELATION) ** 0.5
    lengths = np.exp(LENGTH_MU + LENGTH_SIGMA * normal).round().clip(8, MAX_LENGTH).astype(int)
    generator = torch.Generator().manual_seed(round_number)
    order = get_length_grouped_indices(lengths.max(axis=1).tolist(), job.batch_size, num_batches, generator)
    offset = ((round_number + job.rounds // 2) % job.rounds + 0.5) / job.rounds  # the first is in the middle
    chosen = ((np.arange(job.steps) + offset) * num_batches / job.steps).astype(int)
    rows = np.array(order).reshape(num_batches, job.batch_size)[chosen].ravel()
    documents = [
        {"views": tuple(draw_view(length, vocab_size, rng) for length in lengths[row]), "document_id": int(row)}
        for row in rows
    ]
    return documents if grouped else [documents[index] for index in rng.permutation(len(documents))]


def draw_view(length: int, vocab_size: int, rng: np.random.Generator) -> View:
    """Draw random ids between [CLS] and [SEP], `length` with these two, of which about 15 % are masked."""
    ids = np.r_[CLS, rng.integers(MASK + 1, vocab_size, length - 2), SEP]
    chosen = rng.random(length) < MLM_PROBABILITY
    chosen[[0, -1]] = False
    return View(ids, np.where(chosen, MASK, ids), np.where(chosen, ids, IGNORED))


def collate(documents: list[Document], pad_to: int | None = None) -> dict[str, Tensor]:
    """Return a batch of `DocSplitForContrastivePretraining`, padded to its longest view or to `pad_to`."""
    views = [view for document in documents for view in document["views"]]
    longest = pad_to or max(len(view.ids) for view in views)

    def padded(rows: list[np.ndarray], value: int) -> Tensor:
        batch = np.full((len(rows), longest), value, dtype=np.int64)
        for row, ids in zip(batch, rows):
            row[: len(ids)] = ids
        return torch.from_numpy(batch).view(-1, 2, longest)

    return {
        "input_ids": padded([view.ids for view in views], PAD),
        "attention_mask": padded([np.ones(len(view.ids)) for view in views], 0),
        "mlm_input_ids": padded([view.masked for view in views], PAD),
        "mlm_targets": padded([view.targets for view in views], IGNORED),
        "document_ids": torch.tensor([document["document_id"] for document in documents]),
    }


def mean_length(job: Job) -> float:
    """Return the mean tokens of a view, over all rounds."""
    rounds = [draw_documents(job, number, MASK + 2) for number in range(job.rounds)]
    return sum(map(num_tokens, rounds)) / (2 * job.rounds * job.steps * job.batch_size)


def num_tokens(documents: list[Document]) -> int:
    """Count the tokens of both views of all documents, without padding, each once."""
    return sum(len(view.ids) for document in documents for view in document["views"])


def longest(documents: list[Document], count: int) -> list[Document]:
    """Return the `count` documents with the longest views, in descending order."""
    return sorted(documents, key=lambda document: -max(len(view.ids) for view in document["views"]))[:count]


def layer_flops(encoder: Any, lengths: np.ndarray) -> float:
    """Count the operations of the encoder's forward and backward pass on rows of so many tokens (R,).

    `benchmarks.speed.training` says how they are counted.
    """
    parameters = sum(parameter.numel() for parameter in encoder.encoder.parameters())
    attention = 12 * encoder.config.num_hidden_layers * encoder.config.hidden_size
    return (6 * parameters * lengths + attention * lengths**2).sum()


def useful_flops(encoder: Any, documents: list[Document], mlm: bool) -> float:
    """Count the operations of forward and backward pass on all tokens but padding; see `benchmarks.speed.training`."""
    config = encoder.config
    views = [view for document in documents for view in document["views"]]
    flops = layer_flops(encoder, np.array([len(view.ids) for view in views], dtype=float))
    if not mlm:
        return flops
    masked = sum((view.targets != IGNORED).sum() for view in views)
    return 2 * flops + 6 * (config.hidden_size**2 + config.hidden_size * config.vocab_size) * masked


def load_sentence_transformer(job: Job, **model_kwargs: Any) -> Any:
    """Return the same weights with the first token's state as the vector, on the device of the job; texts are cut at
    512.

    Args:
        model_kwargs: of transformers, such as `attn_implementation`.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(job.folder), model_kwargs={"add_pooling_layer": False} | model_kwargs)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="cls")
    model = SentenceTransformer(modules=[transformer, pooling], device=job.device)
    model.max_seq_length = MAX_LENGTH
    return model
