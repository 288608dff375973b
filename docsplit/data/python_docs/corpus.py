"""The built-in corpus: the documentation inside the packages that requirements.txt installs anyway.

The repository carries no third-party text, yet pretraining has to run on real text right after install and without a
network. Docstrings are such text: about 22,000 documents of expository English with titles, sections, topics (the
sub-package) and links ("See Also").

Files are parsed with `ast` and never imported: it takes a minute, runs no third-party code and needs no GPU library
to load. The price is that documentation which only exists at run time is missing: that of compiled
functions without a stub (NumPy's ufuncs), of SciPy's distributions (templates), and whatever a decorator adds.

A document is a docstring with `FEWEST_WORDS` words of prose; the input lines of examples (`>>>`) do not count. Private
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
import platform
import re
import sys
import sysconfig
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

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
FEWEST_WORDS = 60
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
CODE_NAME = r"([A-Za-z_]\w*(?:\.\w+)*)(?:\(\))?"
# :func:`torch.abs`, :class:`text <torch.Tensor>`, [`~transformers.BertModel`], and Matplotlib's `~.Axes.plot`.
CROSS_REFERENCE = re.compile(
    rf"(?::(?:py:)?(?:func|class|meth|mod|obj|exc):`~?\.?|\[`~?\.?|(?<!`)`~?\.)(?:[^`<]*<)?{CODE_NAME}>?`"
)
SEE_ALSO_NAME = re.compile(rf"(?::\w+:)?`{{0,2}}~?\.?{CODE_NAME}`{{0,2}}")


DocstringSection = dict[str, str]  # `heading` and `text`, see `split_docstring`


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
        """Look `name` up as Python does, from `source` outwards, then among the names that packages re-export.

        `torch.nn.Linear` is `Linear` in `torch.nn.modules.linear`: parts of the module may be left out, parts of the
        name inside the module may not. The module nearest to `source` comes first if `name` is relative, then the
        least deep one; where several are as good, the name leads nowhere.
        """
        scopes = source.id.split(".")
        for depth in range(len(scopes), -1, -1):
            full_name = ".".join([*scopes[:depth], name])
            if full_name in self.ids:
                return self.ids[full_name]
        parts = name.split(".")
        is_absolute = parts[0] in PACKAGES
        candidates = []
        for split in range(len(parts)):
            inner_name = ".".join(parts[split:])
            for module in self.modules.get((parts[0] if is_absolute else source.package, inner_name), []):
                path = module.split(".")
                following = iter(path)
                if all(part in following for part in parts[:split]):  # they stand in the path, in this order
                    nearby = zip(path, source.module.split("."), strict=False)
                    shared = 0 if is_absolute else len(list(takewhile(lambda pair: pair[0] == pair[1], nearby)))
                    candidates.append(((-shared, len(path)), f"{module}.{inner_name}"))
        candidates.sort()
        if not candidates or [rank for rank, _ in candidates].count(candidates[0][0]) > 1:
            return None
        return self.ids[candidates[0][1]]


def read_python_docs() -> Iterator[dict[str, Any]]:
    """Read the corpus: about 22,000 documents.

    Yields: rows with
        id: the qualified name at the place of definition, pandas.core.frame.DataFrame.merge.
        title: the name inside the module, DataFrame.merge; the last component of a module's own name.
        text: the docstring, dedented.
        sections: a list of `DocstringSection`s.
        label: the sub-package, pandas.core.
        links: sorted ids of other documents that "See Also" or a cross-reference names.
    """
    index = NameIndex()
    documents: dict[str, Docstring] = {}
    id_of_text: dict[str, str] = {}
    for package in PACKAGES:
        docstrings = read_docstrings(package)
        if not docstrings:
            logger.warning(f"python_docs is smaller than usual: {package} is not installed.")
        for docstring in docstrings:
            document_id = None
            if docstring.id in documents:  # of two definitions under one name, an overload say, the first counts
                document_id = docstring.id
            elif len(EXAMPLE_INPUT.sub("", docstring.text).split()) >= FEWEST_WORDS:
                document_id = id_of_text.setdefault(" ".join(docstring.text.split()), docstring.id)
                if document_id == docstring.id:
                    documents[document_id] = docstring
            index.add(docstring, document_id)
    for document in documents.values():
        sections = split_docstring(document.text)
        targets = {index.resolve(name, document) for name in find_references(document.text, sections)}
        yield {
            "id": document.id,
            "title": document.name or document.module.rpartition(".")[2],
            "text": document.text,
            "sections": sections,
            "label": document.label,
            "links": sorted(target for target in targets if target and target != document.id),
        }


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


def find_sources(package: str) -> Iterator[tuple[str, Path]]:
    """Find the source files of a package, sorted, without importing it.

    Yields:
        Dotted module name and path: `torch.nn.functional` and `torch/nn/functional.py`. Stubs (.pyi) count: they hold
        the documentation of compiled modules, known by the package that re-exports them, `torch` for
        `torch/_C/_nn.pyi`.
    """
    if package == STANDARD_LIBRARY:
        folder = Path(sysconfig.get_path("stdlib"))
        modules = sorted(sys.stdlib_module_names - OPTIONAL_MODULES)
        roots = [path for name in modules for path in (folder / f"{name}.py", folder / name) if path.exists()]
    else:
        spec = importlib.util.find_spec(package)
        roots = [Path(path) for path in (spec.submodule_search_locations or [str(spec.origin)])] if spec else []
    for root in roots:
        paths = root.rglob("*.py*") if root.is_dir() else [root]
        names = (path.relative_to(root.parent).as_posix() for path in paths if path.suffix in (".py", ".pyi"))
        for name in sorted(name for name in names if not SKIPPED_PATH.search(name)):
            module = name.rpartition(".")[0].replace("/", ".").removesuffix(".__init__")
            yield module.partition("._")[0] if name.endswith(".pyi") else module, root.parent / name


def read_docstrings(package: str) -> list[Docstring]:
    """Return all docstrings of a package, without those of files that do not parse."""
    docstrings: list[Docstring] = []
    for module, path in find_sources(package):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes such as "\d" in other people's docstrings
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: null bytes, in some versions
            logger.debug(f"{path} does not parse.")
            continue
        for name, text in _walk([tree], prefix=""):
            # Drop the lines that only hold a template's placeholder, and make lone surrogates question marks.
            clean = inspect.cleandoc(PERCENT_PLACEHOLDER_LINE.sub("", text))
            docstrings.append(Docstring(package, module, name, clean.encode("utf-8", errors="replace").decode()))
    return docstrings


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


def split_docstring(text: str) -> list[DocstringSection]:
    """Split a docstring at its headings.

    A heading is an underlined line (numpydoc), a known word with a colon on a line of its own (`Args:`), or a group of
    Sphinx fields of one kind (`:param x:`; these lines stay in the section's text). Headings lose their markup, texts
    lose their indentation; nothing else is lost.

    Returns: sections in order. The first heading is "", with an empty text if the docstring opens with one.
    """
    headings = [(match.start(), match.end(), _heading_text(match)) for match in HEADING.finditer(text)]
    sections: list[DocstringSection] = []
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


def find_references(text: str, sections: list[DocstringSection]) -> set[str]:
    """Find the names that a docstring refers to: in cross-references anywhere, and before the colons of "See Also"."""
    names = set(CROSS_REFERENCE.findall(text)) - set(dir(builtins))  # :class:`list` is not `torch.hub.list`
    for section in sections:
        if section["heading"].lower() == "see also":
            for line in section["text"].split("\n"):
                listed = re.split(r"\s*:(?:\s|$)", line)[0].split(",")
                names.update(match[1] for name in listed if (match := SEE_ALSO_NAME.fullmatch(name.strip())))
    return names
