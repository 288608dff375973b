"""A folder of files; markitdown: a stub of it, or none; and docstrings."""

import sys
import types

import pytest

from docsplit.data.python_docs import corpus
from docsplit.data.readers import documents, files


@pytest.fixture
def write(tmp_path):
    """Writes a file below the folder of the test."""

    def write(name, content=""):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture(autouse=True)
def _converter_is_made_anew():
    documents._markitdown.cache_clear()
    yield
    documents._markitdown.cache_clear()


@pytest.fixture
def no_markitdown(monkeypatch):
    documents._markitdown.cache_clear()
    monkeypatch.setitem(sys.modules, "markitdown", None)  # an import raises ImportError
    monkeypatch.setattr(files, "converter_version", lambda: None)


@pytest.fixture
def markitdown(monkeypatch):
    """A stub that decodes bytes which begin with `ok `, and refuses others as markitdown does."""

    class MarkItDown:
        def __init__(self, enable_builtins):
            assert enable_builtins is False
            self.kinds = []

        def register_converter(self, kind):
            self.kinds.append(kind)

        def convert_stream(self, content, stream_info):
            assert self.kinds == ["docx", "pdf", "pptx"]
            marker, _, text = content.read().decode().partition(" ")
            if marker != "ok":
                raise RuntimeError(f"File conversion failed:\n - Pdf threw {marker}")
            return types.SimpleNamespace(markdown=text + stream_info["extension"])

    module, converters = types.ModuleType("markitdown"), types.ModuleType("markitdown.converters")
    module.MarkItDown, module.StreamInfo = MarkItDown, dict
    for kind in ("Docx", "Pdf", "Pptx"):
        setattr(converters, f"{kind}Converter", kind.lower)
    monkeypatch.setitem(sys.modules, "markitdown", module)
    monkeypatch.setitem(sys.modules, "markitdown.converters", converters)


@pytest.fixture(scope="session")
def installed_documents():
    """The docstrings of a few packages."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(corpus, "PACKAGES", ("click", "joblib", "networkx", "requests"))
        return list(corpus.read_python_docs())
