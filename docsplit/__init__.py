"""Document encoders: pretrained, adapted to your documents, compared, searched with.

    from docsplit import AdaptOptions, adapt

    adapt("sentence-transformers/all-MiniLM-L6-v2", ["a text", "another", ...], "outputs/mine")

Nothing is imported before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docsplit.training.adaptation.options import AdaptOptions
    from docsplit.training.adapting import Adapted, adapt

__all__ = ["AdaptOptions", "Adapted", "adapt"]
_MODULES = dict.fromkeys(__all__, "docsplit.training.adapting")
_MODULES["AdaptOptions"] = "docsplit.training.adaptation.options"


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
