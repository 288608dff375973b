"""Document encoders: adapted to your documents, pretrained, compared, searched with.

    from docsplit import adapt, load_encoder

    adapted = adapt("sentence-transformers/all-MiniLM-L6-v2", ["a text", "another", ...], "outputs/mine")
    vectors = load_encoder("outputs/mine").encode_document(["a new text"])

Nothing is imported before it is used: `import docsplit` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docsplit.data.collators import DocSplitCollator
    from docsplit.embedding.loading import load_encoder
    from docsplit.embedding.neighbours import smooth
    from docsplit.training.adaptation.options import AdaptOptions
    from docsplit.training.adapting import Adapted, adapt
    from modeling_docsplit import DocSplitForContrastivePretraining

__version__ = "0.1.0"
__all__ = [
    "AdaptOptions",
    "Adapted",
    "DocSplitCollator",
    "DocSplitForContrastivePretraining",
    "adapt",
    "load_encoder",
    "smooth",
]
_MODULES = {
    "AdaptOptions": "docsplit.training.adaptation.options",
    "Adapted": "docsplit.training.adapting",
    "DocSplitCollator": "docsplit.data.collators",
    "DocSplitForContrastivePretraining": "modeling_docsplit",
    "adapt": "docsplit.training.adapting",
    "load_encoder": "docsplit.embedding.loading",
    "smooth": "docsplit.embedding.neighbours",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
