"""What follows the pooling of a SentenceTransformer: `Dense` layers, as EmbeddingGemma has two, and unit length.

Dense layers hang on the encoder's base model, under `dense_layers`: they are trained, resumed and copied for a second
encoder along with it. A checkpoint has them twice: among the encoder's weights, from which Trainer resumes, and as
SentenceTransformer's module folders (`2_Dense` ...), which are read when a training starts. A release has the folders
alone (`docsplit.modeling.saving`).
"""

import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.utils import cached_file

from docsplit.runtime.files import JsonObject

KEPT = "sentence_transformer"  # in the settings: what a start that was one says under names that only its files have
DENSE = "dense"  # in that: the config of each Dense layer, as its config.json has it
LAYERS = "dense_layers"  # the attribute of the base model
DENSE_WEIGHTS = re.compile(rf"(?:^|\.){LAYERS}\.(\d+)\.(.+)")  # the name of a weight: layer, and name in it
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")  # the second is that of older ones
VECTORS = "sentence_embedding"
NO_OPTIONS = {"module_input_name": VECTORS, "module_output_name": VECTORS}  # that a layer may have, with these values


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
    configs = dense_configs(settings)
    return " -> ".join([f"Dense {configs[0]['in_features']}", *_widths(configs)]) if configs else ""


def _widths(configs: Sequence[JsonObject]) -> list[str]:
    return [str(config["out_features"]) for config in configs]


def normalizes(settings: Mapping[str, Any]) -> bool:
    """Whether embeddings have unit length."""
    return bool(settings.get(KEPT, {}).get("normalize"))


def embedding_width(config: Any) -> int:
    """Return the width of an encoder's embeddings: that of its states, or of its last Dense layer."""
    dense = dense_configs(getattr(config, "docsplit", None) or {})
    return dense[-1]["out_features"] if dense else config.hidden_size


def checked_dense(name: Any, path: str, config: JsonObject | None, width: int) -> JsonObject:
    """Return the config of a Dense layer that can be trained here.

    Args:
        name: of the start.
        path: of the module's folder.
        config: of its config.json; None: there is none.
        width: of what it gets.

    Raises:
        ValueError: for anything else, naming it.
    """
    if config is None:
        raise ValueError(f"{name}: modules.json names {path!r}, but there is no {path}/config.json.")
    others = {key: config[key] for key, expected in NO_OPTIONS.items() if config.get(key) not in (None, expected)}
    if others:
        raise ValueError(f"{name} has in {path} a Dense layer of something else than its embeddings ({others}).")
    if missing := [key for key in ("in_features", "out_features") if not isinstance(config.get(key), int)]:
        raise ValueError(f"{name}: {path}/config.json states no {' and no '.join(missing)}.")
    if config["in_features"] != width:
        raise ValueError(
            f"{name} has in {path} a Dense layer of {config['in_features']} values, and gets {width}: choose another "
            "start, or leave out --pooling."
        )
    try:
        activation_named(config.get("activation_function", "torch.nn.Tanh"))
    except ValueError as error:
        raise ValueError(f"{name} has in {path} a Dense layer that cannot be trained here: {error}.") from error
    return {key: value for key, value in config.items() if key not in NO_OPTIONS}


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


def load_dense(base_model: Any, name: Any, paths: Sequence[str], hub: Mapping[str, Any]) -> None:
    """Load the weights of the Dense layers from a SentenceTransformer's module folders.

    Raises:
        ValueError: if there are none, or they are of another layer.
    """
    for layer, path in zip(getattr(base_model, LAYERS), paths, strict=True):
        tried = [f"{path}/{file}" for file in WEIGHT_FILES]
        files = (cached_file(str(name), file, _raise_exceptions_for_missing_entries=False, **hub) for file in tried)
        file = next((Path(found) for found in files if found is not None), None)
        if file is None:
            raise ValueError(f"{name} has no {' and no '.join(tried)}, the weights of a Dense layer.")
        is_safe = file.suffix == ".safetensors"
        state = load_file(file) if is_safe else torch.load(file, map_location="cpu", weights_only=True)
        try:
            layer.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"{name}: {path}/{file.name} does not fit its config.json: {error}") from error


def dense_states(state: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Return the weights of each Dense layer among those of an encoder, under the names that they have there."""
    states: dict[int, dict[str, Tensor]] = {}
    for key, value in state.items():
        if match := DENSE_WEIGHTS.search(key):
            states.setdefault(int(match[1]), {})[match[2]] = value
    return states


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
