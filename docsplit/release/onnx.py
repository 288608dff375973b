"""An encoder as one ONNX file: what is exported, how far it is from the encoder, and the tokenizer beside it."""

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, normalize

from docsplit.data.passages import to_passages
from docsplit.modeling.families.table import family_of
from docsplit.runtime.command import command_name

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

ONNX_TOLERANCE = 1e-5  # of each number, relative to the largest
ONNX_FILES = ("model.onnx", "model.onnx.data", "tokenizer.json", "passages.py")


class OnnxEmbedder(nn.Module):
    """An encoder in the form that is exported: ids and mask (B, T) to embeddings (B, H)."""

    def __init__(self, encoder: "SentenceTransformer"):
        super().__init__()
        self.encoder = encoder
        first: Any = encoder[0]
        self.config: Any = getattr(first, "config", None)
        self.vocabulary: int = first.num_embeddings if hasattr(first, "num_embeddings") else first.config.vocab_size
        self.unit_length = encoder.similarity_fn_name == "cosine"  # other measures read the length
        self.input_names = ["input_ids", "attention_mask"]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embed texts: ids and mask (B, T) to (B, H)."""
        return self.finish(
            self.encoder({"input_ids": input_ids, "attention_mask": attention_mask})["sentence_embedding"]
        )

    def finish(self, embeddings: Tensor) -> Tensor:
        """Cut embeddings (B, H) as the encoder says; scale them to length one if it compares by cosine."""
        embeddings = embeddings[:, : self.encoder.truncate_dim]
        return normalize(embeddings, dim=-1) if self.unit_length else embeddings

    def inputs(self, texts: list[str], tokenizer: Any) -> list[dict[str, np.ndarray]]:
        """Make the inputs by which onnxruntime embeds these texts: one batch after the other."""
        rows = tokenizer.encode_batch(texts)
        return [{"input_ids": np.array([row.ids for row in rows]),
                 "attention_mask": np.array([row.attention_mask for row in rows])}]  # fmt: skip

    def random_batch(self, rows: int, length: int) -> tuple[Tensor, ...]:
        """Draw ids and mask (rows, length) of texts of 1 to `length` tokens, one of them of that length."""
        generator = torch.Generator().manual_seed(rows * length)
        lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
        lengths[0] = length
        mask = (torch.arange(length) < lengths).long()
        return torch.randint(self.vocabulary, (rows, length), generator=generator), mask


class StaticEmbedder(OnnxEmbedder):
    """A static encoder in the form that is exported: the mean of the vectors of the tokens that the mask keeps."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embed texts: ids and mask (B, T) to (B, H)."""
        first: Any = self.encoder[0]
        mask = attention_mask.float()[:, :, None]  # (B, T, 1)
        sums = (embedding(input_ids, first.embedding.weight) * mask).sum(dim=1)
        features: dict[str, Tensor] = {"sentence_embedding": sums / mask.sum(dim=1).clamp(min=1)}
        for module in list(self.encoder)[1:]:
            features = module(features)
        return self.finish(features["sentence_embedding"])


class PassageEmbedder(OnnxEmbedder):
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
        return self.finish(embeddings)

    def inputs(self, texts: list[str], tokenizer: Any) -> list[dict[str, np.ndarray]]:
        """Make the inputs of one document after the other."""
        batches = []
        words, most = self.config.passage_words, self.config.max_passages or None
        for passages in (to_passages(text, words)[:most] for text in texts):
            (batch,) = super().inputs([passage.text for passage in passages], tokenizer)
            sections = {"section": np.array([passage.section for passage in passages])}
            batches.append(batch | (sections if "section" in self.input_names else {}))
        return batches

    def random_batch(self, rows: int, length: int) -> tuple[Tensor, ...]:
        """Draw ids, mask and, where the graph needs them, sections."""
        sections = torch.arange(rows) // 2
        return *super().random_batch(rows, length), *([sections] if "section" in self.input_names else [])


def write_onnx(encoder: "SentenceTransformer", path: Path) -> OnnxEmbedder:
    """Write `path`, and return the exported module in PyTorch.

    Raises:
        ValueError: for an architecture that cannot be exported.
    """
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    from docsplit.modeling.loading import words_of

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
    kind = StaticEmbedder if is_static else PassageEmbedder if family.rows == "passages" else OnnxEmbedder
    embedder = kind(encoder).eval()
    rows, tokens = torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC
    shapes = {"section": {0: rows}}
    # The exporter warns of torchvision, which no encoder needs, and of its own code
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        torch.onnx.export(
            embedder,
            embedder.random_batch(2, 8),
            path,
            input_names=embedder.input_names,
            output_names=["embeddings"],
            dynamic_shapes=tuple(shapes.get(name, {0: rows, 1: tokens}) for name in embedder.input_names),
            dynamo=True,
            # Protobuf ends at 2 GiB: weights beyond lie in model.onnx.data
            external_data=sum(weights.nbytes for weights in embedder.parameters()) > 2**31 - 2**24,
            verbose=False,
        )
    return embedder


def onnx_difference(embedder: OnnxEmbedder, folder: Path, longest: int) -> float:
    """Return how far the files of a folder are from `SentenceTransformer.encode`, relative to the largest number.

    Both embed texts of random tokens, in batches of several shapes; infinite if the vectors have other widths.
    """
    import onnxruntime
    from tokenizers import Tokenizer

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    tokenizer, draw, differences = Tokenizer.from_file(str(folder / "tokenizer.json")), np.random.default_rng(0), []
    for rows, length in ((1, 1), (1, longest), (3, max(longest // 3, 1)), (5, min(7, longest))):
        lengths = [length, *draw.integers(1, length + 1, rows - 1)]
        ids = [draw.integers(tokenizer.get_vocab_size(), size=size).tolist() for size in lengths]
        texts = [tokenizer.decode(of_text) or "." for of_text in ids]
        expected = embedder.encoder.encode(
            texts, prompt="", normalize_embeddings=embedder.unit_length, show_progress_bar=False
        )
        by_onnx = np.concatenate([session.run(None, batch)[0] for batch in embedder.inputs(texts, tokenizer)])
        if by_onnx.shape != expected.shape:
            return float("inf")
        largest = max(np.abs(expected).max(), 1e-12)  # a token without a vector gives zeros
        differences.append(float(np.abs(by_onnx - expected).max() / largest))
    return max(differences)


def write_tokenizer(encoder: "SentenceTransformer", name: str, path: Path) -> None:
    """Write the rules that give the ids and the mask: with padding, and cut as the encoder cuts."""
    from tokenizers import Tokenizer, processors

    from docsplit.data.tokenization import load_tokenizer
    from docsplit.modeling.loading import tokens_read

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
        rules.enable_truncation(length, direction=getattr(static, "truncation_side", "right"))
    rules.save(str(path))
