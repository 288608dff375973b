"""Token states to the embedding of a text: pooling, and what a SentenceTransformer has after it.

That is `Dense` layers, as EmbeddingGemma has two, and unit length. Dense layers hang on the encoder's base model,
under `dense_layers`: they are trained, resumed and copied for a second encoder along with it. A checkpoint has them
twice: among the encoder's weights, from which Trainer resumes, and as SentenceTransformer's module folders (`2_Dense`
...), which are read when a training starts. A release has the folders alone (`docsplit.modeling.saving`).
"""

import importlib
import re
from collections.abc import Mapping
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from docsplit.modeling.pooling import Pooling
from docsplit.runtime.files import JsonObject

KEPT = "sentence_transformer"  # in the settings: what a start that was one says under names that only its files have
DENSE = "dense"  # in that: the config of each Dense layer, as its config.json has it
LAYERS = "dense_layers"  # the attribute of the base model
DENSE_WEIGHTS = re.compile(rf"(?:^|\.){LAYERS}\.(\d+)\.(.+)")  # the name of a weight: layer, and name in it


def pool(hidden_states: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """Turn token states (R, T, H) and their mask (R, T) into one vector a row (R, H), in fp32 or wider.

    Raises:
        ValueError: for an unknown pooling.
    """
    dtype = torch.promote_types(hidden_states.dtype, torch.float32)
    if pooling == "cls":
        return hidden_states[:, 0].to(dtype, copy=True)  # a view would keep all token states in memory
    mask = attention_mask.unsqueeze(-1)  # (R, T, 1)
    if pooling == "mean":
        total = (hidden_states * mask.to(hidden_states.dtype)).sum(dim=1, dtype=dtype)
        return total / mask.sum(dim=1).clamp(min=1)
    if pooling == "max":
        return hidden_states.masked_fill(mask == 0, float("-inf")).amax(dim=1).to(dtype)
    if pooling == "weightedmean":
        weights = (attention_mask.cumsum(dim=1) * attention_mask).unsqueeze(-1).to(dtype)  # 1, 2 ... of its tokens
        return (hidden_states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
    if pooling == "lasttoken":  # the last that the mask has, whichever side is padded
        rows = torch.arange(len(attention_mask), device=attention_mask.device)
        last = attention_mask.shape[1] - 1 - attention_mask.flip(1).argmax(dim=1)  # (R,)
        return hidden_states[rows, last].to(dtype) * mask[rows, last]  # zero for a row without tokens
    raise ValueError(f"pooling is {pooling!r}, expected one of {get_args(Pooling)}")


def pool_texts(states: Tensor, borders: Tensor, num_tokens: int, pooling: Pooling) -> Tensor:
    """Turn the token states (N, H) of a pack into one vector a text (R, H), in fp32 or wider.

    Args:
        borders: (R + 1,), where texts begin and the last ends; none is empty.
        num_tokens: of all texts, the last border.

    Raises:
        ValueError: for an unknown pooling.
    """
    dtype = torch.promote_types(states.dtype, torch.float32)
    starts, lengths = borders[:-1], borders.diff()
    if pooling in ("cls", "lasttoken"):
        return states[starts if pooling == "cls" else borders[1:] - 1].to(dtype)
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling is {pooling!r}, expected one of {get_args(Pooling)}")
    states = states[:num_tokens].to(dtype)
    totals = lengths[:, None].to(dtype)
    if pooling == "weightedmean":
        numbers = torch.arange(num_tokens, device=states.device)
        first = starts.repeat_interleave(lengths, output_size=num_tokens)
        states = states * (numbers - first + 1)[:, None]  # 1, 2 ... of its tokens
        totals = totals * (totals + 1) / 2
    # One thread a text and number of H adds them in order: as exact as it is repeatable
    reduced = torch.segment_reduce(states, "max" if pooling == "max" else "sum", lengths=lengths, unsafe=True)
    return reduced if pooling == "max" else reduced / totals


class Dense(nn.Module):
    """A linear layer with an activation, as `sentence_transformers.models.Dense`; the weights have its names.

    Args:
        config: of the layer's config.json.
    """

    def __init__(self, config: Mapping[str, Any]):
        super().__init__()
        width, self.out_features = config["in_features"], config["out_features"]
        self.linear = nn.Linear(width, self.out_features, bias=config.get("bias", True))
        self.activation_function = activation_named(config.get("activation_function", "torch.nn.Tanh"))
        self.use_residual = config.get("use_residual", False)
        if self.use_residual and width != self.out_features:
            self.residual = nn.Linear(width, self.out_features, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Turn vectors (..., in_features) into (..., out_features)."""
        changed = self.activation_function(self.linear(vectors))
        if not self.use_residual:
            return changed
        return changed + (self.residual(vectors) if hasattr(self, "residual") else vectors)


def activation_named(name: str) -> nn.Module:
    """Make an activation by the name of its class, one of torch.nn: no other code is run.

    Raises:
        ValueError: if there is no such class.
    """
    module, _, kind = name.rpartition(".")
    activation: Any = None
    try:
        if module == "torch.nn" or module.startswith("torch.nn.modules."):
            activation = getattr(importlib.import_module(module), kind, None)
        if isinstance(activation, type) and issubclass(activation, nn.Module) and activation is not nn.Module:
            return activation()
    except (ImportError, TypeError):  # no such module; a layer that takes sizes
        pass
    raise ValueError(f"{name!r} is no activation of torch.nn")


def dense_configs(settings: Mapping[str, Any]) -> list[JsonObject]:
    """Return the configs of an encoder's Dense layers, in order, by its settings."""
    return settings.get(KEPT, {}).get(DENSE, [])


def describe_dense(settings: Mapping[str, Any]) -> str:
    """Name the widths of an encoder's Dense layers, as in "Dense 768 -> 3072 -> 768"; nothing where it has none."""
    widths = [str(config["out_features"]) for config in dense_configs(settings)]
    return " -> ".join([f"Dense {dense_configs(settings)[0]['in_features']}", *widths]) if widths else ""


def normalizes(settings: Mapping[str, Any]) -> bool:
    """Whether embeddings have unit length."""
    return bool(settings.get(KEPT, {}).get("normalize"))


def embedding_width(config: Any) -> int:
    """Return the width of an encoder's embeddings: that of its states, or of its last Dense layer."""
    dense = dense_configs(getattr(config, "docsplit", None) or {})
    return dense[-1]["out_features"] if dense else config.hidden_size


def add_dense(base_model: Any, settings: Mapping[str, Any]) -> None:
    """Give an encoder's base model the Dense layers of its settings, random unless it has them already.

    They are frozen where no contrastive loss trains them.
    """
    configs = dense_configs(settings)
    if not configs:
        return
    if not hasattr(base_model, LAYERS):
        weights = next(base_model.parameters())
        layers = nn.ModuleList([Dense(config) for config in configs])
        setattr(base_model, LAYERS, layers.to(weights.device, weights.dtype))
    getattr(base_model, LAYERS).requires_grad_(settings.get("contrastive_weight", 1) != 0)


def finish(base_model: Any, vectors: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Turn pooled vectors (N, H) into embeddings (N, W): Dense layers in full precision, unit length if it is kept.

    Raises:
        ValueError: if the settings have Dense layers that the base model lacks.
    """
    if dense_configs(settings):
        if not hasattr(base_model, LAYERS):
            raise ValueError(
                f"This encoder was loaded without its {describe_dense(settings)}: load it with "
                "DocSplitForContrastivePretraining.from_pretrained, or as a SentenceTransformer."
            )
        with torch.autocast(vectors.device.type, enabled=False):
            for layer in getattr(base_model, LAYERS):
                vectors = layer(vectors)
    return F.normalize(vectors, dim=-1) if normalizes(settings) else vectors
