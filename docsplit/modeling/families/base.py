"""`Family` describes the habits of an encoder. The defaults are those of a plain one, such as BERT.

The rest of the library asks `docsplit.modeling.families.table.family_of(config)`, and knows no family by its name.
"""

import pkgutil
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers import AutoModelForMaskedLM

from docsplit.runtime.files import write_text

_OWN_IMPORT = re.compile(r"^from docsplit\.\S* import [^(\n]+\n", re.MULTILINE)


@dataclass(frozen=True)
class Family:
    """A family of encoders; the defaults are those of a plain one.

    Facts are given to the constructor. A family that has to do something overrides a method.

    Attributes:
        rows: what a row of tokens is: a view of a document, or a passage of one. An encoder of passages has the
            methods `encode_passages(input_ids, attention_mask)` and `combine(row_vectors, rows)` (see
            `docsplit.modeling.encoding.Rows`), a config with `passage_words`, and a `module` that pools by itself.
        forward: replaces the encoder's `forward`, with what transformers leaves to its caller; called as a method.
        default_settings: in place of some of `docsplit.modeling.start.DEFAULT_SETTINGS`.
        positions_follow_padding: positions are counted from `pad_token_id + 1`, so the table has as many unused rows.
        has_global_token: the first token attends to all and all to it, by `global_attentions`.
        inner_encoder: the attribute of model and config that reads tokens; None: the encoder itself does.
        built_on: the model type of the inner encoder of a random start. Such a family is also built on any start.
        config_options: what --config_overrides may say of the family; all else is of the inner encoder.
        module: the first module of SentenceTransformer, as a checkpoint names it, FILE.CLASS of this folder. Loading
            it needs `trust_remote_code`. None: sentence-transformers' own.
        code: the files of code in a checkpoint, and of which files each is made.
        paper: the paper that a card names.
        without_lora: what LoRA does not go with, and why; None: it does.
        without_packs: what cannot read packs of texts, and why; None: what transformers says of its attention.
        without_onnx: why no ONNX file can be written; None: it can.
    """

    rows: Literal["views", "passages"] = "views"
    forward: Callable[..., Any] | None = None
    default_settings: Mapping[str, Any] = field(default_factory=dict)
    positions_follow_padding: bool = False
    has_global_token: bool = False
    inner_encoder: str | None = None
    built_on: str | None = None
    config_options: tuple[str, ...] = ()
    module: str | None = None
    code: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    paper: str | None = None
    without_lora: str | None = None
    without_packs: str | None = None
    without_onnx: str | None = None

    # --- The model ---

    def token_encoder(self, owner: Any) -> Any:
        """Return the part of an encoder, or of its configuration, that reads tokens."""
        return owner if self.inner_encoder is None else getattr(owner, self.inner_encoder)

    def new_encoder(self, config: Any) -> Any:
        """Make a random encoder, with a masked-LM head where the architecture has one."""
        return AutoModelForMaskedLM.from_config(config)

    def make_config(self, inner: Any, options: Mapping[str, Any]) -> Any:
        """Make the configuration of a family that is built on another encoder, from that encoder's.

        Raises:
            ValueError: for an encoder or options that do not fit.
        """
        raise NotImplementedError

    def build_on(self, encoder: Any, options: Mapping[str, Any]) -> Any:
        """Make an encoder that is new but for its inner encoder, a start without its head.

        Raises:
            ValueError: as `make_config`.
        """
        raise NotImplementedError

    def override(self, name: Any, config: Any, options: Mapping[str, Any]) -> None:
        """Change the configuration of a checkpoint of the family before its weights are loaded.

        Raises:
            ValueError: for an option that its weights do not allow.
        """
        raise NotImplementedError

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise a ValueError for settings that cannot work with this family."""

    # --- Attention ---

    def length_multiple(self, base_model: Any) -> int:
        """Return the number of tokens to a multiple of which the encoder pads its input."""
        return 1

    def patch_forward(self, base_model: Any) -> None:
        """Let an encoder that is called with ids and mask alone run `forward`."""
        if self.forward is not None:
            # No hook, which sentence-transformers would pass by; and a method, of which a deep copy has its own.
            base_model.forward = types.MethodType(self.forward, base_model)

    def prepare_for_training(self, model: Any, attn_implementation: str | None = None) -> None:
        """Choose how attention is computed in training; `model` is the encoder or has it in it."""

    def prepare_loaded(self, base_model: Any, is_ours: bool) -> None:
        """Let a loaded encoder attend as in training.

        Args:
            is_ours: False for a SentenceTransformer of others, which was trained as it is called there.
        """
        self.patch_forward(base_model)

    def return_attention(self, base_model: Any) -> None:
        """Let an encoder return its attention weights: transformers' eager attention, which computes them."""
        self.patch_forward(base_model)
        if base_model.config._attn_implementation != "eager":
            base_model.set_attn_implementation("eager")

    def check_recomputation(self, recomputes_layers: bool, cache_gradients: bool) -> None:
        """Raise a ValueError if recomputing layers would give other numbers."""

    # --- Checkpoints ---

    def module_class(self) -> Any:
        """Return the class of `module`, from this folder: no remote code is run here."""
        return self.module and pkgutil.resolve_name(f"docsplit.modeling.families.{self.module}")

    def write_code(self, directory: Path) -> None:
        """Copy into a checkpoint the code that other programs load it with, less its imports from this package."""
        for name, sources in self.code.items():
            text = "\n\n".join(path.read_text(encoding="utf-8") for path in sources)
            text = _OWN_IMPORT.sub("", text)
            assert not re.search(r"^\s*(from|import) docsplit", text, re.MULTILINE), name
            write_text(directory / name, text)

    # --- Words of a card ---

    def reads(self, config: Any, tokens: str) -> str:
        """Say how much of a document goes into an embedding; `tokens` is "up to 512 tokens"."""
        return f"a document of {tokens}"

    def layers(self, config: Any) -> str:
        """Say what follows the layers of the token encoder, as in "`bert` of 12 layers ..."."""
        return ""

    def with_transformers(self, address: str) -> str | None:
        """Say how transformers alone gives an embedding; None: pooled token states, as of any encoder."""
        return None
