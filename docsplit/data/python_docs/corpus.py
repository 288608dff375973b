"""The built-in corpus: the documentation inside the packages that requirements.txt installs anyway.

The repository carries no third-party text, yet pretraining has to run on real text right after install and without a
network. Docstrings are such text: about 22,000 documents of expository English with titles, sections, topics (the
sub-package) and links ("See Also").

Files are parsed with `ast` and never imported: it takes a minute on one core, runs no third-party code and needs
no GPU library to load. The price is that documentation which only exists at run time is missing: that of compiled
functions without a stub (NumPy's ufuncs), of SciPy's distributions (templates), and whatever a decorator adds.

A document is a docstring with `MIN_WORDS` words of prose; the input lines of examples (`>>>`) do not count. Private
functions are in, for their docstrings read like the others. Tests, vendored packages and the `modular_*.py` sources of
transformers' generated models are out. The packages are a fixed list: equal versions of these (and of Python, up to
the minor version) give equal documents in equal order on each machine.
"""

import ast
import builtins
import hashlib
import importlib.util
import inspect
import logging
import os
import platform
import re
import sys
import sysconfig
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise, takewhile
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, TypedDict

logger = logging.getLogger(__name__)

# fmt: off
STANDARD_LIBRARY = "python"
PACKAGES: tuple[str, ...] = (
    STANDARD_LIBRARY, "PIL", "accelerate", "aiohttp", "anyio", "attr", "click", "contourpy", "datasets", "dateutil",
    "dill", "evaluate", "filelock", "fontTools", "fsspec", "httpx", "huggingface_hub", "jinja2", "joblib",
    "matplotlib", "mpl_toolkits", "mpmath", "narwhals", "networkx", "numpy", "packaging", "pandas", "peft", "psutil",
    "pyarrow", "pydantic", "pydantic_core", "pygments", "pyparsing", "requests", "rich", "safetensors", "scipy",
    "sentence_transformers", "sklearn", "smart_open", "spacy", "srsly", "sympy", "thinc", "tokenizers", "torch",
    "tqdm", "transformers", "typing_extensions", "urllib3", "wrapt",
)
# Where the name that one imports is not the name that one installs.
DISTRIBUTIONS = {
    "PIL": "pillow", "attr": "attrs", "dateutil": "python-dateutil", "mpl_toolkits": "matplotlib",
    "sklearn": "scikit-learn",
}
# Modules that some systems install apart from Python, or not at all; and pydoc_data, which is generated.
OPTIONAL_MODULES = {
    "distutils", "ensurepip", "idlelib", "lib2to3", "msilib", "pydoc_data", "tkinter", "turtle", "turtledemo", "venv",
}
# fmt: on
MIN_WORDS = 60
MOST_PARSERS = 8  # processes: the largest package takes an eighth of the time
SKIPPED_PATH = re.compile(
    r"(^|/)(tests?|conftest|test_\w+|_?vendor\w*|externals|array_api_compat|array_api_extra|modular_\w+)(\.pyi?$|/)"
)
EXAMPLE_INPUT = re.compile(r"^\s*(>>>|\.\.\.)( .*)?$", re.MULTILINE)
PERCENT_PLACEHOLDER_LINE = re.compile(r"^[ ]*%\([\w:]+\)s[ ]*$\n?", re.MULTILINE)
BRACE_PLACEHOLDER_LINE = re.compile(r"^[ ]*\{\w+\}[ ]*$\n?", re.MULTILINE)
HEADING = re.compile(
    r"""
    ^(?P<underlined>\w[^:|\n]*)\n(?P<mark>[-=~^])(?P=mark){2,}[ ]*$
    | ^(?P<word>Arg(?:ument)?s|Keyword[ ]arg(?:ument)?s|Param(?:eter)?s|Attributes|Inputs?|Outputs?|Shape|Returns?
        |Yields?|Raises|Examples?|Usage|Notes?|Warnings?|References|See[ ]also)::?[ ]*$
    | ^(?=:(?P<field>param|type|keyword|returns?|rtype|raises?|[ci]?var)\b[^:\n]*:)
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
FIELD_HEADINGS = {"return": "Returns", "returns": "Returns", "rtype": "Returns", "raise": "Raises", "raises": "Raises"}
NAME = r"([A-Za-z_]\w*(?:\.\w+)*)(?:\(\))?"
# :func:`torch.abs`, :class:`text <torch.Tensor>`, [`~transformers.BertModel`], and Matplotlib's `~.Axes.plot`.
CROSS_REFERENCE = re.compile(
    rf"(?::(?:py:)?(?:func|class|meth|mod|obj|exc):`~?\.?|\[`~?\.?|(?<!`)`~?\.)(?:[^`<]*<)?{NAME}>?`"
)
SEE_ALSO_NAME = re.compile(rf"(?::\w+:)?`{{0,2}}~?\.?{NAME}`{{0,2}}")


class Section(TypedDict):
    """A section of a docstring, see `split_sections`."""

    heading: str
    text: str


class PythonDoc(TypedDict):
    """A row of the corpus."""

    id: str  # the qualified name at the place of definition: pandas.core.frame.DataFrame.merge
    title: str  # the name inside the module, DataFrame.merge; the last component of a module's own name
    text: str  # the docstring, dedented
    sections: list[Section]
    label: str  # the sub-package, pandas.core
    links: list[str]  # sorted ids of other documents that "See Also" or a cross-reference names


class Docstring(NamedTuple):
    """A docstring and where it stands."""

    package: str
    module: str
    name: str  # inside the module: "DataFrame.merge"; "" for the module itself
    text: str

    @property
    def id(self) -> str:
        """The full name."""
        return f"{self.module}.{self.name}" if self.name else self.module

    @property
    def label(self) -> str:
        """The sub-package: `scipy.stats`; of the standard library the top module: `python.asyncio`."""
        parts = self.module.split(".")
        return f"{STANDARD_LIBRARY}.{parts[0]}" if self.package == STANDARD_LIBRARY else ".".join(parts[:2])


class NameIndex:
    """Documented names, and the document that each leads to; None where the docstring is too short for one.

    A name whose docstring repeats another's leads to the document that was kept.
    """

    def __init__(self) -> None:
        self.ids: dict[str, str | None] = {}
        self.modules: dict[tuple[str, str], list[str]] = defaultdict(list)  # (package, name in module) -> modules

    def add(self, docstring: Docstring, document_id: str | None) -> None:
        """Note where the name of a docstring leads."""
        if docstring.id not in self.ids:
            self.modules[docstring.package, docstring.name].append(docstring.module)
        self.ids[docstring.id] = document_id

    def resolve(self, name: str, source: Docstring) -> str | None:
        """Look `name` up as Python does, from `source` outwards, then among the names that packages re-export."""
        scopes = source.id.split(".")
        for depth in range(len(scopes), -1, -1):
            full_name = ".".join([*scopes[:depth], name])
            if full_name in self.ids:
                return self.ids[full_name]
        return self._resolve_reexported(name, source)

    def _resolve_reexported(self, name: str, source: Docstring) -> str | None:
        """Find the definition that packages above it may re-export as `name`; None if there are several.

        `torch.nn.Linear` is `Linear` in `torch.nn.modules.linear`: parts of the module may be left out, parts of the
        name inside the module may not. The module nearest to `source` comes first if `name` is relative, then the
        least deep one.
        """
        parts = name.split(".")
        absolute = parts[0] in PACKAGES
        candidates = []
        for split in range(len(parts)):
            inner_name = ".".join(parts[split:])
            for module in self.modules.get((parts[0] if absolute else source.package, inner_name), []):
                path = module.split(".")
                if _is_subsequence(parts[:split], path):
                    shared = 0 if absolute else _count_shared(path, source.module.split("."))
                    candidates.append(((-shared, len(path)), f"{module}.{inner_name}"))
        candidates.sort()
        if not candidates or [rank for rank, _ in candidates].count(candidates[0][0]) > 1:
            return None
        return self.ids[candidates[0][1]]


def read_python_docs() -> Iterator[PythonDoc]:
    """Read the corpus: about 22,000 documents."""
    index = NameIndex()
    documents: dict[str, Docstring] = {}
    id_of_text: dict[str, str] = {}
    missing = []
    for package, (docstrings, unreadable) in zip(PACKAGES, _read_packages(), strict=True):
        if not docstrings and not unreadable:
            missing.append(package)
        if unreadable:
            logger.info("%s: %d unreadable file(s) skipped: %s", package, len(unreadable), ", ".join(unreadable))
        for docstring in docstrings:
            document_id = None
            if docstring.id in documents:  # of two definitions under one name, an overload say, the first counts
                document_id = docstring.id
            elif len(EXAMPLE_INPUT.sub("", docstring.text).split()) >= MIN_WORDS:
                document_id = id_of_text.setdefault(" ".join(docstring.text.split()), docstring.id)
                if document_id == docstring.id:
                    documents[document_id] = docstring
            index.add(docstring, document_id)
    logger.info(f"python_docs has {len(documents):,} documents of {len(PACKAGES) - len(missing)} packages.")
    if missing:
        logger.warning("python_docs is smaller than usual, not installed: %s", ", ".join(missing))
    for document in documents.values():
        yield _as_row(document, index)


def _read_packages() -> list[tuple[list[Docstring], list[str]]]:
    """Return what `read_docstrings` returns for each package, in order; nothing for one that is not installed.

    On Linux each core parses packages: forked processes, which start at once. They read files and parse; they take no
    lock that a thread of this process may have held at the fork.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if cores == 1:
        return list(map(read_docstrings, PACKAGES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads beside a fork
        with ProcessPoolExecutor(min(cores, MOST_PARSERS), mp_context=get_context("fork")) as pool:
            return list(pool.map(read_docstrings, PACKAGES))


def python_docs_fingerprint() -> str:
    """Return the cache key of the corpus: versions of Python and of the packages, and this file."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(f"{STANDARD_LIBRARY} {platform.python_version()}\n".encode())
    for package in PACKAGES:
        try:
            version = importlib.metadata.version(DISTRIBUTIONS.get(package, package))
        except importlib.metadata.PackageNotFoundError:
            continue
        digest.update(f"{package} {version}\n".encode())
    return digest.hexdigest()[:16]


def find_files(package: str) -> Iterator[tuple[str, Path]]:
    """Find the source files of a package, sorted, without importing it.

    Yields:
        Dotted module name and path. Stubs (.pyi) count: they hold the documentation of compiled modules.
    """
    for root in _find_roots(package):
        paths = root.rglob("*.py*") if root.is_dir() else [root]
        relative_paths = (path.relative_to(root.parent).as_posix() for path in paths if path.suffix in (".py", ".pyi"))
        for relative_path in sorted(path for path in relative_paths if not SKIPPED_PATH.search(path)):
            yield _module_name(relative_path), root.parent / relative_path


def _find_roots(package: str) -> list[Path]:
    if package == STANDARD_LIBRARY:
        folder = Path(sysconfig.get_path("stdlib"))
        modules = sorted(sys.stdlib_module_names - OPTIONAL_MODULES)
        return [path for name in modules for path in (folder / f"{name}.py", folder / name) if path.exists()]
    spec = importlib.util.find_spec(package)
    if spec is None:
        return []
    return [Path(path) for path in spec.submodule_search_locations or [str(spec.origin)]]


def _module_name(relative_path: str) -> str:
    """Return the name of a file's module: `torch/nn/functional.py` -> `torch.nn.functional`.

    A stub describes a compiled module, known by the package that re-exports it: `torch/_C/_nn.pyi` -> `torch`.
    """
    name = relative_path.rpartition(".")[0].replace("/", ".").removesuffix(".__init__")
    return name.partition("._")[0] if relative_path.endswith(".pyi") else name


def read_docstrings(package: str) -> tuple[list[Docstring], list[str]]:
    """Return all docstrings of a package, and the names of its files that do not parse."""
    docstrings: list[Docstring] = []
    unreadable = []
    for module, path in find_files(package):
        try:
            tree = _parse(path)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: null bytes, in some versions
            unreadable.append(path.name)
            continue
        docstrings += (Docstring(package, module, name, _clean(text)) for name, text in _walk([tree], prefix=""))
    return docstrings, unreadable


def _parse(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes such as "\d" in other people's docstrings
        return ast.parse(path.read_bytes())


def _walk(nodes: Iterable[ast.AST], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield (name inside the module, raw docstring); functions inside functions are left out."""
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = "" if isinstance(node, ast.Module) else prefix + node.name
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield name, docstring
            if isinstance(node, (ast.Module, ast.ClassDef)):
                yield from _walk(node.body, prefix=f"{name}." if name else "")
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _walk(ast.iter_child_nodes(node), prefix)
        elif isinstance(node, (ast.Expr, ast.Assign)) and isinstance(node.value, ast.Call):
            yield from _added_docstring(node, node.value)


def _added_docstring(statement: ast.Expr | ast.Assign, call: ast.Call) -> Iterator[tuple[str, str]]:
    """Read documentation that a call attaches to a compiled function.

    NumPy: `add_newdoc(place, "zeros", doc)` and `add_newdoc(place, "ndarray", ("T", doc))`.
    SciPy: `add_newdoc("jv", doc)`.
    PyTorch: `conv1d = _add_docstr(torch.conv1d, doc)`; what it adds without an assignment is in its stubs too.
    """
    function = call.func.id if isinstance(call.func, ast.Name) else ""
    if function == "add_newdoc" and len(call.args) > 1:
        *_, owner, last = call.args
        *member, docstring = last.elts if isinstance(last, ast.Tuple) else [last]
        yield ".".join(_constant(part) for part in [owner, *member]), _constant(docstring)
    elif function == "_add_docstr" and isinstance(statement, ast.Assign) and len(call.args) > 1:
        yield ast.unparse(statement.targets[0]), _constant(call.args[1])


def _constant(node: ast.AST) -> str:
    """Keep the constant part of a string expression: "a {x} b" of `"a {x} " + y + "b".format(...)`."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.BinOp):
        return _constant(node.left) + _constant(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        text = _constant(node.func.value)
        if node.func.attr == "format":
            return BRACE_PLACEHOLDER_LINE.sub("", text).replace("{{", "{").replace("}}", "}")
        return text
    return ""


def _clean(docstring: str) -> str:
    """Dedent, drop the lines that only hold a template's placeholder, and make lone surrogates question marks."""
    text = inspect.cleandoc(PERCENT_PLACEHOLDER_LINE.sub("", docstring))
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _as_row(document: Docstring, index: NameIndex) -> PythonDoc:
    sections = split_sections(document.text)
    targets = {index.resolve(name, document) for name in find_references(document.text, sections)}
    return {
        "id": document.id,
        "title": document.name or document.module.rpartition(".")[2],
        "text": document.text,
        "sections": sections,
        "label": document.label,
        "links": sorted(target for target in targets if target and target != document.id),
    }


def split_sections(text: str) -> list[Section]:
    """Split a docstring at its headings.

    A heading is an underlined line (numpydoc), a known word with a colon on a line of its own (`Args:`), or a group of
    Sphinx fields of one kind (`:param x:`; these lines stay in the section's text). Headings lose their markup, texts
    lose their indentation; nothing else is lost.

    Returns: sections in order. The first heading is "", with an empty text if the docstring opens with one.
    """
    headings = [(match.start(), match.end(), _heading_text(match)) for match in HEADING.finditer(text)]
    sections: list[Section] = []
    for (begin, start, heading), (end, _, _) in pairwise([(0, 0, ""), *headings, (len(text), 0, "")]):
        body = textwrap.dedent(text[start:end]).strip()
        if sections and begin == start and heading == sections[-1]["heading"]:  # the second :param: of a group
            sections[-1]["text"] += f"\n{body}"
        else:
            sections.append({"heading": heading, "text": body})
    return sections


def _heading_text(match: re.Match) -> str:
    if match["field"]:
        return FIELD_HEADINGS.get(match["field"], "Parameters")
    return (match["underlined"] or match["word"]).strip()


def find_references(text: str, sections: list[Section]) -> set[str]:
    """Find the names that a docstring refers to: in cross-references anywhere, and before the colons of "See Also"."""
    names = set(CROSS_REFERENCE.findall(text)) - set(dir(builtins))  # :class:`list` is not `torch.hub.list`
    for section in sections:
        if section["heading"].lower() == "see also":
            for line in section["text"].split("\n"):
                listed = re.split(r"\s*:(?:\s|$)", line)[0].split(",")
                names.update(match[1] for name in listed if (match := SEE_ALSO_NAME.fullmatch(name.strip())))
    return names


def _is_subsequence(parts: list[str], path: list[str]) -> bool:
    remaining = iter(path)
    return all(part in remaining for part in parts)


def _count_shared(first: list[str], second: list[str]) -> int:
    """Count the components of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
