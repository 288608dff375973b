"""Invariants of the built-in corpus: on a small package made for the test, and on a few installed ones."""

import importlib.metadata
import json
import os
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docsplit.data.python_docs import corpus as python_docs
from docsplit.data.python_docs.corpus import (
    MIN_WORDS,
    PACKAGES,
    python_docs_fingerprint,
    read_python_docs,
    split_sections,
)

ROOT = Path(__file__).parents[3]
SUBPROCESS = """
import hashlib, json, sys
from docsplit.data.python_docs import corpus as python_docs
python_docs.PACKAGES = tuple(sys.argv[1:])
before = set(sys.modules)
documents = list(python_docs.read_python_docs())
print(json.dumps({
    "count": len(documents),
    "digest": hashlib.sha256(json.dumps(documents).encode()).hexdigest(),
    "imported": sorted({name.partition(".")[0] for name in set(sys.modules) - before}),
}))
"""


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


@pytest.fixture(scope="module")
def installed_documents():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(python_docs, "PACKAGES", ("click", "joblib", "numpy", "requests"))
        documents = list(read_python_docs())
    assert len(documents) > 1000
    return documents


def test_documents_of_modules_classes_methods_and_functions(read_package):
    documents = read_package(
        {
            "__init__.py": f'"""{prose(0)}"""',
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
def short(): """{prose(5, words=MIN_WORDS - 1)}"""
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


def test_the_standard_library_is_labelled_by_its_top_modules(monkeypatch):
    monkeypatch.setattr(python_docs, "PACKAGES", ("python",))
    some = {"asyncio", "textwrap", "test", "idlelib", "tkinter"}  # all of them take seconds
    monkeypatch.setattr(sys, "stdlib_module_names", sys.stdlib_module_names & some)
    labels = {document["id"]: document["label"] for document in read_python_docs()}
    assert labels["asyncio.base_events.BaseEventLoop.sendfile"] == "python.asyncio"
    assert labels["textwrap.TextWrapper"] == "python.textwrap"
    assert not {label for label in labels.values() if label in ("python.test", "python.idlelib", "python.tkinter")}


def test_nothing_is_imported(read_package):
    documents = read_package({"__init__.py": f'"""{prose(0)}"""\nraise RuntimeError("imported")'})
    assert list(documents) == ["fakekit"]
    assert "fakekit" not in sys.modules


def test_installed_packages_are_not_imported_and_the_hash_seed_does_not_matter():
    first, second = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", SUBPROCESS, "joblib", "requests", "click"],
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "LC_ALL": locale},
                cwd=ROOT,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for seed, locale in (("1", "C"), ("2", "C.UTF-8"))
    )
    assert first["count"] > 100
    assert not {"joblib", "requests", "click"} & set(first["imported"])
    assert first == second


def test_of_equal_texts_the_first_is_kept_and_reached_by_both_names(read_package):
    documents = read_package(
        {
            "a.py": f'def one():\n    """{prose(1)}"""',
            "b.py": f'def two():\n    """\n    {prose(1)}\n    """\ndef three():\n    """{prose(2)} :func:`two`"""',
        }
    )
    assert list(documents) == ["fakekit.a.one", "fakekit.b.three"]
    assert documents["fakekit.b.three"]["links"] == ["fakekit.a.one"]


def test_of_two_definitions_under_one_name_the_first_long_one_is_kept(read_package):
    definitions = [f'def f():\n    """{text}"""\n' for text in ("Short.", prose(1), prose(2))]
    documents = read_package({"a.py": "".join(definitions), "b.py": f'def g():\n    """{prose(2)}"""'})
    assert {key: document["text"] for key, document in documents.items()} == {
        "fakekit.a.f": prose(1),
        "fakekit.b.g": prose(2),
    }


def test_example_input_does_not_count_as_prose(read_package):
    example = "\n".join(f"    >>> f({number})  # one two three" for number in range(MIN_WORDS))
    documents = read_package(
        {
            "a.py": f'def f():\n    """Short.\n\n{example}\n    """',
            "b.py": f'def g():\n    """{prose(1)}\n\n{example}\n    """',
        }
    )
    assert list(documents) == ["fakekit.b.g"]
    assert ">>> f(59)  # one two three" in documents["fakekit.b.g"]["text"]


def test_tests_vendored_packages_and_generator_sources_are_left_out(read_package):
    skipped = ["tests/a.py", "test_a.py", "sub/conftest.py", "_vendor/a.py", "externals/a.py", "modular_bert.py"]
    kept = ["modularity.py", "testing.py", "_private.py"]
    documents = read_package({path: f'"""{prose(seed)}"""' for seed, path in enumerate(skipped + kept)})
    assert sorted(documents) == ["fakekit._private", "fakekit.modularity", "fakekit.testing"]


def test_unreadable_files_are_skipped_and_counted(read_package, caplog):
    docstring = f'"""{prose(1)}"""\n'
    caplog.set_level("INFO")
    documents = read_package(
        {
            "good.py": f'"""{prose(2)}"""',
            "syntax.py": docstring + "def f(:",
            "latin.py": docstring.encode() + b"name = '\xe9'",
            "null.py": docstring.encode() + b"\0",
            "coding.py": b"# -*- coding: no-such-coding -*-\n" + docstring.encode(),
        }
    )
    assert list(documents) == ["fakekit.good"]
    assert "fakekit: 4 unreadable file(s) skipped: coding.py, latin.py, null.py, syntax.py" in caplog.messages


def test_declared_latin_1_is_decoded(read_package):
    source = f'# -*- coding: latin-1 -*-\n"""{prose(1)} café"""'
    assert read_package({"a.py": source.encode("latin-1")})["fakekit.a"]["text"].endswith("café")


def test_lone_surrogates_are_replaced_and_invalid_escapes_are_silent(read_package):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        documents = read_package({"a.py": f'"""{prose(1)} \\ud800 \\d"""'})
    assert documents["fakekit.a"]["text"] == f"{prose(1)} ? \\d"
    json.dumps(documents, ensure_ascii=False).encode("utf-8")


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
    assert set(documents) == {
        "fakekit._add_newdocs.array.T",
        "fakekit._add_newdocs.zeros",
        "fakekit._add_newdocs.jv",
        "fakekit.functional.conv",
        "fakekit.functional.pool",
        "fakekit.absolute",
    }
    assert documents["fakekit._add_newdocs.zeros"]["text"] == prose(2)
    assert documents["fakekit.functional.pool"]["text"] == f"{prose(5)} {{x}}\n\n\nEnd."


NUMPYDOC = """Fit a line.

Parameters
----------
x : array
    Places.

See Also
--------
polyfit : more
"""
GOOGLE = """Fit a line.

Args:
    x (array): Places.
    y (array): Values.
Keyword args:
    out: Where to.

Example::

    >>> fit()
"""
SPHINX = """Fit a line.

:param x: Places,
    in order.
:type x: array
:returns: A slope.
:rtype: float
:raises ValueError: if not.
"""


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("Only text.", [("", "Only text.")]),
        (NUMPYDOC, [("", "Fit a line."), ("Parameters", "x : array\n    Places."), ("See Also", "polyfit : more")]),
        ("Fit\n===\nA line.\n\nSee Also\n~~~~~~~~\n", [("", ""), ("Fit", "A line."), ("See Also", "")]),
        (
            GOOGLE,
            [
                ("", "Fit a line."),
                ("Args", "x (array): Places.\ny (array): Values."),
                ("Keyword args", "out: Where to."),
                ("Example", ">>> fit()"),
            ],
        ),
        (
            SPHINX,
            [
                ("", "Fit a line."),
                ("Parameters", ":param x: Places,\n    in order.\n:type x: array"),
                ("Returns", ":returns: A slope.\n:rtype: float"),
                ("Raises", ":raises ValueError: if not."),
            ],
        ),
        ("Args:\n    x: A place.", [("", ""), ("Args", "x: A place.")]),
        ("Note:\nNote:\n    Twice.", [("", ""), ("Note", ""), ("Note", "Twice.")]),
        ("Here is why:\n\n    because\n\nwe note:", [("", "Here is why:\n\n    because\n\nwe note:")]),
        ("table\n-----  -----\na      b", [("", "table\n-----  -----\na      b")]),
    ],
)
def test_split_sections(text, sections):
    assert [(section["heading"], section["text"]) for section in split_sections(text)] == sections


def test_sections_hold_the_whole_text(installed_documents):
    number_of_sections = 0
    for document in installed_documents:
        assert document["sections"][0]["heading"] == ""
        rest = " ".join(document["text"].split())
        for section in document["sections"]:
            number_of_sections += 1
            heading, text = " ".join(section["heading"].split()), " ".join(section["text"].split())
            if heading:  # of Sphinx fields the heading is not in the text
                rest = re.sub(rf"^{re.escape(heading)}(::?| ([-=~^])\2{{2,}})(?= |$)", "", rest).lstrip()
            assert rest.startswith(text), document["id"]
            rest = rest.removeprefix(text).lstrip()
        assert rest == "", document["id"]
    assert number_of_sections > 3 * len(installed_documents)


@pytest.mark.parametrize(
    ("reference", "links"),
    [
        (":func:`sibling`", ["fakekit.linear._ridge.sibling"]),
        (":meth:`fit`", ["fakekit.linear._ridge.Ridge.fit"]),
        (":class:`~fakekit.Lasso`", ["fakekit.linear._lasso.Lasso"]),
        (":class:`the Lasso <fakekit.linear.Lasso>`", ["fakekit.linear._lasso.Lasso"]),
        (":py:meth:`Lasso.fit()`", ["fakekit.linear._lasso.Lasso.fit"]),
        ("[`~fakekit.Lasso`]", ["fakekit.linear._lasso.Lasso"]),
        ("`~.Lasso`", ["fakekit.linear._lasso.Lasso"]),
        (":mod:`fakekit.other`", ["fakekit.other"]),
        ("\n\nSee Also\n--------\nsibling, Lasso.fit : two of them\n", None),
        ("\n\nSee Also:\n    :class:`Lasso.fit`: a role\n    sibling\n", None),
        (":func:`Ridge`", []),  # itself
        (":func:`too_short`", []),
        (":func:`unknown`", []),
        (":class:`fakekit.elsewhere.Lasso`", []),
        (":func:`twice`", []),  # in two modules equally near
        (":func:`fakekit.twice`", []),
        (":class:`list`", []),  # Python's, not the function of that name in the package
        ("`sibling` Lasso fit", []),
        ("\n\nSee Also\n--------\nThe sibling of this\n", []),
    ],
)
def test_links(read_package, reference, links):
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
    if links is None:
        links = ["fakekit.linear._lasso.Lasso.fit", "fakekit.linear._ridge.sibling"]
    assert documents["fakekit.linear._ridge.Ridge"]["links"] == links


def test_invariants_of_installed_documents(installed_documents):
    ids = {document["id"] for document in installed_documents}
    assert len(ids) == len(installed_documents)
    assert len({" ".join(document["text"].split()) for document in installed_documents}) == len(ids)
    for document in installed_documents:
        assert list(document) == ["id", "title", "text", "sections", "label", "links"]
        assert len(document["text"].split()) >= MIN_WORDS
        assert document["title"]
        assert document["id"].startswith(document["label"])
        assert document["links"] == sorted(set(document["links"]))
        assert set(document["links"]) <= ids - {document["id"]}
    assert sum(bool(document["links"]) for document in installed_documents) > len(ids) / 4


def test_names_that_numpy_reexports_are_found(installed_documents):
    """numpy.loadtxt, which "See Also" of genfromtxt names, is defined in a module with a private name."""
    (links,) = (document["links"] for document in installed_documents if document["id"].endswith(".genfromtxt"))
    assert "numpy.loadtxt" not in links
    assert any(link.startswith("numpy.") and link.endswith(".loadtxt") for link in links)


def test_a_missing_package_is_named_in_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(python_docs, "PACKAGES", ("click", "no_such_package"))
    assert list(read_python_docs())
    assert [record.levelname for record in caplog.records if "no_such_package" in record.message] == ["WARNING"]


def test_packages_are_what_requirements_installs():
    """Directly or through another package, with the extras that are asked for."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    queue = [Requirement(line.partition("#")[0]) for line in lines if line.partition("#")[0].strip()]
    required: set[tuple[str, str]] = set()
    while queue:
        requirement = queue.pop()
        for extra in {"", *requirement.extras}:
            key = (canonicalize_name(requirement.name), extra)
            if key not in required and _is_installed(requirement.name):
                required.add(key)
                dependencies = map(Requirement, importlib.metadata.requires(requirement.name) or [])
                queue += [d for d in dependencies if d.marker is None or d.marker.evaluate({"extra": extra})]
    names = {name for name, _ in required}
    distributions = [python_docs.DISTRIBUTIONS.get(package, package) for package in PACKAGES if package != "python"]
    installed = [canonicalize_name(name) for name in distributions if _is_installed(name)]
    assert len(installed) > 20
    assert [name for name in installed if name not in names] == []


def _is_installed(distribution: str) -> bool:
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False


def test_fingerprint(monkeypatch):
    fingerprint = python_docs_fingerprint()
    assert re.fullmatch(r"[0-9a-f]{16}", fingerprint)
    assert python_docs_fingerprint() == fingerprint
    for package in PACKAGES[1:]:  # each package that can be read has a version that is part of the key
        if list(python_docs._find_roots(package)):
            assert _is_installed(python_docs.DISTRIBUTIONS.get(package, package)), package
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version(name) + (".1" if name == "numpy" else ""))
    assert python_docs_fingerprint() != fingerprint
