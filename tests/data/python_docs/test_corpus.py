"""Invariants of the built-in corpus: on a small package made for the test, and on a few installed ones."""

import importlib.metadata
import random
import sys

import pytest

from docsplit.data.python_docs import corpus as python_docs
from docsplit.data.python_docs.corpus import FEWEST_WORDS, python_docs_fingerprint, read_python_docs, split_docstring


def prose(seed: int, words: int = 70) -> str:
    """Words in a random order, so that equal seeds give equal texts and others do not."""
    generator = random.Random(seed)
    return " ".join(generator.choice(("the", "mean", "of", "a", "sample", "is", "zero")) for _ in range(words))


@pytest.fixture
def read_package(tmp_path, monkeypatch):
    """A function that writes the files of a package `fakekit` and reads its documents, by id."""

    def read(files: dict[str, str | bytes]) -> dict[str, dict]:
        for path, content in {"__init__.py": "", **files}.items():
            file = tmp_path / "fakekit" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(python_docs, "PACKAGES", ("fakekit",))
        documents = list(read_python_docs())
        assert len({document["id"] for document in documents}) == len(documents)
        return {document["id"]: document for document in documents}

    return read


def test_documents_of_modules_classes_methods_and_functions(read_package):
    """Nothing is imported."""
    documents = read_package(
        {
            "__init__.py": f'"""{prose(0)}"""\nraise RuntimeError("imported")',
            "sub/deep/frame.py": f'''
"""{prose(1)}"""
if True:
    class Frame:
        """{prose(2)}"""
        async def merge(self):
            r"""{prose(3)}"""
            def local():
                """{prose(4)}"""
def no_docstring(): pass
def short(): """{prose(5, words=FEWEST_WORDS - 1)}"""
''',
        }
    )
    assert {key: (document["title"], document["label"]) for key, document in documents.items()} == {
        "fakekit": ("fakekit", "fakekit"),
        "fakekit.sub.deep.frame": ("frame", "fakekit.sub"),
        "fakekit.sub.deep.frame.Frame": ("Frame", "fakekit.sub"),
        "fakekit.sub.deep.frame.Frame.merge": ("Frame.merge", "fakekit.sub"),
    }
    assert documents["fakekit.sub.deep.frame.Frame.merge"]["text"] == prose(3)
    assert "fakekit" not in sys.modules


def test_of_equal_texts_the_first_is_kept_and_reached_by_both_names(read_package):
    documents = read_package(
        {
            "a.py": f'def one():\n    """{prose(1)}"""',
            "b.py": f'def two():\n    """\n    {prose(1)}\n    """\ndef three():\n    """{prose(2)} :func:`two`"""',
        }
    )
    assert list(documents) == ["fakekit.a.one", "fakekit.b.three"]
    assert documents["fakekit.b.three"]["links"] == ["fakekit.a.one"]


def test_documentation_of_compiled_functions(read_package):
    documents = read_package(
        {
            "_add_newdocs.py": f'''
add_newdoc("fakekit", "array", ("T", """{prose(1)}"""))
add_newdoc("fakekit", "zeros", """
    {prose(2)}
    """)
add_newdoc("jv", "{prose(3)}")
add_newdoc("fakekit", "variable", doc)
''',
            "functional.py": f'''
conv = _add_docstr(fakekit.conv, r"""{prose(4)}""" + note)
pool = _add_docstr(fakekit.pool, r"""{prose(5)} {{{{x}}}}

    {{note}}

End.""".format(**notes))
''',
            "_C/_functions.pyi": f'def absolute(input):\n    """{prose(6)}"""',
        }
    )
    names = ["_add_newdocs.array.T", "_add_newdocs.zeros", "_add_newdocs.jv", "functional.conv", "functional.pool"]
    assert set(documents) == {f"fakekit.{name}" for name in [*names, "absolute"]}
    assert documents["fakekit._add_newdocs.zeros"]["text"] == prose(2)
    assert documents["fakekit.functional.pool"]["text"] == f"{prose(5)} {{x}}\n\n\nEnd."


SECTIONS = {  # docstrings of numpydoc, Google and Sphinx, and what is no heading
    "Only text.": [("", "Only text.")],
    "Fit a line.\n\nParameters\n----------\nx : array\n    Places.\n\nSee Also\n--------\npolyfit : more\n": [
        ("", "Fit a line."), ("Parameters", "x : array\n    Places."), ("See Also", "polyfit : more"),
    ],
    "Fit\n===\nA line.\n\nSee Also\n~~~~~~~~\n": [("", ""), ("Fit", "A line."), ("See Also", "")],
    "Fit.\n\nArgs:\n    x: Places.\n    y: Values.\nKeyword args:\n    out: To.\n\nExample::\n\n    >>> fit()\n": [
        ("", "Fit."), ("Args", "x: Places.\ny: Values."), ("Keyword args", "out: To."), ("Example", ">>> fit()"),
    ],
    "Fit.\n\n:param x: Places,\n    in order.\n:type x: array\n:returns: It.\n:rtype: int\n:raises KeyError: no.\n": [
        ("", "Fit."), ("Parameters", ":param x: Places,\n    in order.\n:type x: array"),
        ("Returns", ":returns: It.\n:rtype: int"), ("Raises", ":raises KeyError: no."),
    ],
    "Note:\nNote:\n    Twice.": [("", ""), ("Note", ""), ("Note", "Twice.")],
    "Here is why:\n\n    because\n\nwe note:": [("", "Here is why:\n\n    because\n\nwe note:")],
    "table\n-----  -----\na      b": [("", "table\n-----  -----\na      b")],
}  # fmt: skip


@pytest.mark.parametrize("text", SECTIONS)
def test_sections(text):
    assert [(section["heading"], section["text"]) for section in split_docstring(text)] == SECTIONS[text]


def test_invariants_of_installed_documents(installed_documents):
    ids = {document["id"] for document in installed_documents}
    assert len(ids) == len(installed_documents)
    assert len({" ".join(document["text"].split()) for document in installed_documents}) == len(ids)
    for document in installed_documents:
        assert list(document) == ["id", "title", "text", "sections", "label", "links"]
        assert len(document["text"].split()) >= FEWEST_WORDS
        assert document["title"]
        assert document["id"].startswith(document["label"])
        assert document["links"] == sorted(set(document["links"]))
        assert set(document["links"]) <= ids - {document["id"]}
        assert document["sections"][0]["heading"] == ""
    assert sum(bool(document["links"]) for document in installed_documents) > len(ids) / 4
    assert sum(len(document["sections"]) for document in installed_documents) > 3 * len(ids)


LINKS = {  # what a docstring refers to by each; names without the package
    ":func:`sibling`": "linear._ridge.sibling",
    ":meth:`fit`": "linear._ridge.Ridge.fit",
    ":class:`~fakekit.Lasso`": "linear._lasso.Lasso",
    ":class:`the Lasso <fakekit.linear.Lasso>`": "linear._lasso.Lasso",
    ":py:meth:`Lasso.fit()`": "linear._lasso.Lasso.fit",
    "[`~fakekit.Lasso`]": "linear._lasso.Lasso",
    "`~.Lasso`": "linear._lasso.Lasso",
    ":mod:`fakekit.other`": "other",
    "\n\nSee Also\n--------\nsibling, Lasso.fit : two of them\n": "linear._lasso.Lasso.fit linear._ridge.sibling",
    "\n\nSee Also:\n    :class:`Lasso.fit`: a role\n    sibling\n": "linear._lasso.Lasso.fit linear._ridge.sibling",
    ":func:`Ridge` :func:`too_short` :func:`unknown` :class:`fakekit.elsewhere.Lasso`": "",  # itself, or nothing
    ":func:`twice` :func:`fakekit.twice`": "",  # in two modules equally near
    ":class:`list`": "",  # Python's, not the function of that name in the package
    "`sibling` Lasso fit\n\nSee Also\n--------\nThe sibling of this\n": "",
}


@pytest.mark.parametrize("reference", LINKS)
def test_links(read_package, reference):
    documents = read_package(
        {
            "linear/_ridge.py": f'''
class Ridge:
    """{prose(1)}. {reference}"""
    def fit(self):
        """{prose(2)}"""
def sibling():
    """{prose(3)}"""
def too_short():
    """No."""
''',
            "linear/_lasso.py": f'class Lasso:\n    """{prose(4)}"""\n    def fit(self):\n        """{prose(5)}"""\n',
            "other/__init__.py": f'''
"""{prose(6)}"""
def list():
    """{prose(7)}"""
def too_short():
    """{prose(8)}"""
''',
            "two/a.py": f'def twice():\n    """{prose(9)}"""',
            "two/b.py": f'def twice():\n    """{prose(10)}"""',
        }
    )
    links = [f"fakekit.{name}" for name in LINKS[reference].split()]
    assert documents["fakekit.linear._ridge.Ridge"]["links"] == links


def test_tests_vendored_packages_generator_sources_and_what_does_not_parse_are_left_out(read_package):
    skipped = ["tests/a.py", "test_a.py", "sub/conftest.py", "_vendor/a.py", "externals/a.py", "modular_bert.py"]
    kept = ["modularity.py", "testing.py", "_private.py"]
    files = {path: f'"""{prose(seed)}"""' for seed, path in enumerate(skipped + kept)}
    broken = {"syntax.py": f'"""{prose(20)}"""\ndef f(:', "null.py": f'"""{prose(21)}"""\0'}
    documents = read_package({**files, **broken})
    assert sorted(documents) == ["fakekit._private", "fakekit.modularity", "fakekit.testing"]


def test_the_key_of_the_corpus_has_the_versions_of_packages(monkeypatch):
    fingerprint = python_docs_fingerprint()
    assert python_docs_fingerprint() == fingerprint
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version(name) + (".1" if name == "numpy" else ""))
    assert python_docs_fingerprint() != fingerprint
