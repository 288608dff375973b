"""Document encoders: adapted to your documents, pretrained, compared, searched with.

    from docsplit import Index, adapt, embed

    adapt("sentence-transformers/all-MiniLM-L6-v2", "notes/", "outputs/mine")
    vectors = embed("outputs/mine", ["a new text", "another"])  # (2, 384)
    hits = Index.build("notes/", "outputs/mine", "notes.index").search("a question")

Nothing is imported before it is used: `import docsplit` takes no time. It sets two variables of the environment: one
puts cuDNN's attention last, one leaves a GPU's memory to PyTorch where JAX is installed.
"""

from importlib import import_module
from os import environ
from typing import TYPE_CHECKING, Any

# On Hopper and Blackwell GPUs PyTorch tries cuDNN's attention first, and cuDNN builds a plan for each new shape, for
# up to half a second; padded batches hardly repeat a shape. PyTorch reads this variable once, at the first attention
# on a GPU; with 0 cuDNN is first again. Source: `check_prefer_cudnn_attention` of PyTorch 2.10 to 2.13, in
# aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (TORCH_CUDNN_SDPA_ENABLED, of 2.4, is no more). Measured in
# https://github.com/modelscope/FunASR/issues/3704: one step in six took 1 s, the others 0.1 s.
environ.setdefault("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
# `import bm25s` starts JAX where that is installed, and JAX takes three quarters of a GPU's memory when it starts
environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

if TYPE_CHECKING:
    from docsplit.classifier import Classifier
    from docsplit.data.collators import DocSplitCollator
    from docsplit.embedding.encoder import embed
    from docsplit.embedding.neighbours import smooth
    from docsplit.index.api import Index
    from docsplit.modeling.loading import load_encoder
    from docsplit.training.adapt_options import AdaptOptions
    from docsplit.training.adapting import Adapted, adapt
    from docsplit.training.callbacks import DocSplitCallback
    from modeling_docsplit import DocSplitForContrastivePretraining

__version__ = "0.1.0"
__all__ = [
    "AdaptOptions",
    "Adapted",
    "Classifier",
    "DocSplitCallback",
    "DocSplitCollator",
    "DocSplitForContrastivePretraining",
    "Index",
    "adapt",
    "embed",
    "load_encoder",
    "smooth",
]
_MODULES = {
    "AdaptOptions": "docsplit.training.adapt_options",
    "Adapted": "docsplit.training.adapting",
    "Classifier": "docsplit.classifier",
    "DocSplitCallback": "docsplit.training.callbacks",
    "DocSplitCollator": "docsplit.data.collators",
    "DocSplitForContrastivePretraining": "modeling_docsplit",
    "Index": "docsplit.index.api",
    "adapt": "docsplit.training.adapting",
    "embed": "docsplit.embedding.encoder",
    "load_encoder": "docsplit.modeling.loading",
    "smooth": "docsplit.embedding.neighbours",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
