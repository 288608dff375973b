"""The house: imports go only down."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.size import lines_of_code

ROOT = Path(__file__).parent.parent
MODELING_FILES = ("modeling_docsplit", "modeling_graph_document")
SCRIPTS = tuple(sorted({path.stem for path in ROOT.glob("*.py")} - {*MODELING_FILES, "setup"}))
FLOORS = {  # a module imports lower floors, and its own folder
    "docsplit.runtime": 0,
    "docsplit.data.passages": 0,  # self-contained: a copy is in each checkpoint of a graph document model
    "modeling_graph_document": 0,  # self-contained: a copy is in each checkpoint
    "docsplit.modeling": 1,
    "modeling_docsplit": 2,
    "docsplit.data": 3,
    "docsplit.embedding": 4,
    "docsplit.evaluation": 5,
    "docsplit.index": 6,
    "docsplit.release": 6,
    "docsplit.training": 7,
    "docsplit.explorer": 7,
    "docsplit.classifier": 7,
    **dict.fromkeys(SCRIPTS, 8),
}
FOLDERS = [room for room in FLOORS if room.startswith("docsplit.") and room.count(".") == 1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in ((ROOT / "docsplit").rglob("*.py"))
    if path.name != "__init__.py"
)
WITHOUT_TORCH = [
    *("docsplit.runtime.files", "docsplit.runtime.options", "docsplit.modeling.pooling", "docsplit.data.passages"),
    *("docsplit.data.sets.set_arguments", "docsplit.data.segmentation", "docsplit.data.views"),
    "docsplit.data.python_docs.corpus",
]
OF_MODELS = {f"docsplit.runtime.{name}" for name in ("files", "plugins", "bounds", "gpus")}
NOT_ON_WINDOWS = {"fcntl", "grp", "pwd", "resource", "termios"}


def path_of(module):
    return ROOT / (module.replace(".", "/") + ".py")


def room_of(module):
    """The folder, or file at the root, that a module of ours is in; None for a library."""
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in (3, 2, 1)]
    return next((name for name in names if name in FLOORS), None)


@functools.cache
def imported(path):
    """All modules that a file imports, wherever in it, under TYPE_CHECKING too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {
                f"{node.module}.{alias.name}" if path_of(f"{node.module}.{alias.name}").exists() else str(node.module)
                for alias in node.names
            }
    return names


def reached(module, seen):
    """All modules of ours that are imported on the way, and the libraries, by their first names."""
    for name in imported(path_of(module)) - seen:
        seen.add(name)
        if room_of(name):
            reached(name, seen)
    return seen


def code_files():
    return [path_of(name) for name in (*MODULES, *MODELING_FILES, *SCRIPTS)] + sorted(
        (ROOT / "benchmarks").rglob("*.py")
    )


def test_no_module_needs_what_windows_lacks():
    """A `try` around an import is a guard."""
    for path in code_files():
        tree = ast.parse(path.read_text())
        guarded = {node for block in ast.walk(tree) if isinstance(block, ast.Try) for node in ast.walk(block)}
        for node in set(ast.walk(tree)) - guarded:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else {node.module}
                assert not names & NOT_ON_WINDOWS, f"{path}, line {node.lineno}"


def test_every_module_has_a_floor():
    assert all(room_of(module) in FLOORS for module in MODULES)
    assert set(MODELING_FILES) == {path.stem for path in ROOT.glob("modeling_*.py")}


def test_imports_go_down():
    for module in (*MODULES, *MODELING_FILES, *SCRIPTS):
        module_room = room_of(module)
        for name in imported(path_of(module)):
            assert not name.startswith("tests"), f"{module} imports {name}"
            if (room := room_of(name)) is not None and (room != module_room or module_room not in FOLDERS):
                assert FLOORS[room] < FLOORS[module_room], f"{module} imports {name}"


def test_folders_have_no_circle():
    graph = {module: {name for name in imported(path_of(module)) if name in MODULES} for module in MODULES}
    while graph:
        free = {module for module, names in graph.items() if not names & set(graph)}
        assert free, f"these import each other: {sorted(graph)}"
        graph = {module: names for module, names in graph.items() if module not in free}


@pytest.mark.parametrize("module", MODELING_FILES)
def test_a_model_needs_little(module):
    names = reached(module, set())
    assert {name for name in names if room_of(name) == "docsplit.runtime"} <= OF_MODELS
    roots = {name.split(".")[0] for name in names} - {"docsplit", "modeling_graph_document"}
    # The others come with transformers; peft is for `add_lora`, and datasets for its cache's place.
    lazily, needed = {"peft", "datasets", "xxhash"}, {"torch", "transformers"}
    if module == "modeling_docsplit":
        needed |= {"sentence_transformers", "tokenizers", "safetensors", "numpy"}
    assert roots - set(sys.stdlib_module_names) - lazily == needed
    for name in filter(room_of, [module, *names]):
        at_the_top = [node for node in ast.parse(path_of(name).read_text()).body if isinstance(node, ast.ImportFrom)]
        assert not {str(node.module).split(".")[0] for node in at_the_top} & lazily, name


def test_what_is_copied_into_checkpoints_travels_alone():
    for module, needed in (
        ("modeling_graph_document", {"torch", "transformers"}),
        ("docsplit.modeling.families.longformer_transformer", {"torch", "sentence_transformers"}),
        ("docsplit.data.passages", set()),
    ):
        roots = {name.split(".")[0] for name in imported(path_of(module))}
        assert roots - sys.stdlib_module_names == needed, module


def test_these_are_imported_without_torch():
    code = f"import sys, {', '.join(WITHOUT_TORCH)}; print({{'torch', 'transformers'}} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "set()\n"


def test_lines_of_code_are_neither_blank_nor_comments_nor_docstrings():
    source = '"""A module.\n\nSaid.\n"""\n\n# why\ndef one():\n    """Return one."""\n    return 1  # why\n'
    assert lines_of_code(source) == 2
