"""An encoder as one ONNX file: what is exported, how far it is from PyTorch, and the tokenizer beside it."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, normalize

from docsplit.modeling.families.table import family_of
from docsplit.runtime.names import command_name

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TOLERANCE = 1e-5  # of each number, relative to the largest
FILES = ("model.onnx", "model.onnx.data", "tokenizer.json", "passages.py")
LARGEST_FILE = 2**31 - 2**24  # bytes; protobuf ends at 2 GiB, and weights beyond lie in model.onnx.data


class Embedder(nn.Module):
    """An encoder in the form that is exported: ids and mask (B, T) to embeddings (B, H)."""

    def __init__(self, encoder: "SentenceTransformer"):
        super().__init__()
        self.encoder = encoder
        self.config: Any = getattr(encoder[0], "config", None)
        self.unit_length = encoder.similarity_fn_name != "dot"
        self.input_names = ["input_ids", "attention_mask"]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embed texts: ids and mask (B, T) to (B, H)."""
        embeddings = self.encoder({"input_ids": input_ids, "attention_mask": attention_mask})["sentence_embedding"]
        return normalize(embeddings, dim=-1) if self.unit_length else embeddings

    def random_batch(self, rows: int, length: int) -> tuple[Tensor, ...]:
        """Draw ids and mask (rows, length) of texts of 1 to `length` tokens, one of them of that length."""
        generator = torch.Generator().manual_seed(rows * length)
        lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
        lengths[0] = length
        mask = (torch.arange(length) < lengths).long()
        return torch.randint(self.vocabulary, (rows, length), generator=generator), mask

    @property
    def vocabulary(self) -> int:
        """Return the number of token ids."""
        return self.config.vocab_size


class StaticEmbedder(Embedder):
    """A static encoder in the form that is exported: the mean of the vectors of the tokens that the mask keeps."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embed texts: ids and mask (B, T) to (B, H)."""
        first: Any = self.encoder[0]
        mask = attention_mask.float()[:, :, None]  # (B, T, 1)
        sums = (embedding(input_ids, first.embedding.weight) * mask).sum(dim=1)
        features: dict[str, Tensor] = {"sentence_embedding": sums / mask.sum(dim=1).clamp(min=1)}
        for module in list(self.encoder)[1:]:
            features = module(features)
        embeddings = features["sentence_embedding"]
        return normalize(embeddings, dim=-1) if self.unit_length else embeddings

    @property
    def vocabulary(self) -> int:
        """Return the number of token ids."""
        first: Any = self.encoder[0]
        return first.num_embeddings


class PassageEmbedder(Embedder):
    """A graph document model in the form that is exported: passages (P, T), sections (P,) to an embedding (1, H)."""

    def __init__(self, encoder: "SentenceTransformer"):
        super().__init__(encoder)
        self.input_names += ["section"] if self.config.graph_kind != "full" else []

    def forward(self, input_ids: Tensor, attention_mask: Tensor, section: Tensor | None = None) -> Tensor:
        """Embed one document."""
        module: Any = self.encoder[0]
        vectors = module.model.encode_passages(input_ids, attention_mask)
        index = torch.arange(input_ids.shape[0])[None]  # (1, P)
        sections = None if section is None else section[None]
        embeddings, _ = module.model.attend(vectors, index, torch.ones_like(index, dtype=torch.bool), sections, index)
        return normalize(embeddings, dim=-1) if self.unit_length else embeddings

    def random_batch(self, rows: int, length: int) -> tuple[Tensor, ...]:
        """Draw ids, mask and, where the graph needs them, sections."""
        sections = torch.arange(rows) // 2
        return *super().random_batch(rows, length), *([sections] if "section" in self.input_names else [])


EMBEDDERS = {"views": Embedder, "passages": PassageEmbedder}


def export(encoder: "SentenceTransformer", path: Path) -> Embedder:
    """Write `path`, and return the exported module in PyTorch.

    Raises:
        ValueError: for an architecture that cannot be exported.
    """
    from sentence_transformers.models import StaticEmbedding

    from docsplit.embedding.project_modules import words_of

    if words_of(encoder) is not None:
        raise ValueError(
            "An encoder with words cannot be written as ONNX, for it reads whole texts beside its own tokens: export "
            f"the encoder that they were added to, or a static one (`{command_name('adapt.py')} --static`)."
        )
    config: Any = getattr(encoder[0], "config", None)
    family = family_of(config)
    if family.without_onnx is not None:
        raise ValueError(f"A {config.model_type} cannot be written as ONNX: {family.without_onnx}.")
    is_static = isinstance(encoder[0], StaticEmbedding)
    embedder = (StaticEmbedder if is_static else EMBEDDERS[family.rows])(encoder).eval()
    rows, tokens = torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC
    shapes = {"section": {0: rows}}
    with _without_noise():
        torch.onnx.export(
            embedder,
            embedder.random_batch(2, 8),
            path,
            input_names=embedder.input_names,
            output_names=["embeddings"],
            dynamic_shapes=tuple(shapes.get(name, {0: rows, 1: tokens}) for name in embedder.input_names),
            dynamo=True,
            external_data=sum(weights.nbytes for weights in embedder.parameters()) > LARGEST_FILE,
            verbose=False,
        )
    return embedder


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Hold back what PyTorch's exporter says of torchvision, which no encoder needs, and of its own code."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")

    def is_of_use(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("torchvision is not installed")

    registration.addFilter(is_of_use)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        registration.removeFilter(is_of_use)


@torch.no_grad()
def largest_difference(embedder: Embedder, path: Path, longest: int) -> float:
    """Return how far onnxruntime is from PyTorch, relative to the largest number, over batches of several shapes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    differences = []
    for rows, length in ((1, 1), (1, longest), (3, max(longest // 3, 1)), (5, min(7, longest))):
        batch = embedder.random_batch(rows, length)
        expected = embedder(*batch)
        inputs = {name: tensor.numpy() for name, tensor in zip(embedder.input_names, batch)}
        by_onnx = torch.from_numpy(session.run(None, inputs)[0])
        largest = expected.abs().max().clamp(min=1e-12)  # a token without a vector gives zeros
        differences.append(float((by_onnx - expected).abs().max() / largest))
    return max(differences)


def write_tokenizer(encoder: "SentenceTransformer", name: str, path: Path) -> None:
    """Write the rules that give the ids and the mask: with padding, and cut as the encoder cuts."""
    from tokenizers import Tokenizer, processors

    from docsplit.data.tokenization import load_tokenizer
    from docsplit.embedding.loading import tokens_read

    static: Any = encoder[0].tokenizer
    if isinstance(static, Tokenizer):
        rules: Any = Tokenizer.from_str(static.to_str())
        rules.post_processor = processors.TemplateProcessing(single="$A")  # no special tokens
        rules.enable_padding(pad_id=0, pad_token=rules.id_to_token(0) or "")
    else:
        tokenizer = load_tokenizer(name)
        rules = tokenizer.backend_tokenizer
        rules.enable_padding(pad_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token)
    if (length := tokens_read(encoder)) is not None:
        rules.enable_truncation(length)
    rules.save(str(path))
