"""Imports go only downward: scripts -> 2 -> 1 -> 0."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEVELS = {
    "modeling_docsplit": 0,
    "docsplit.segmentation": 0,
    "docsplit.views": 0,
    "docsplit.python_docs": 0,
    "docsplit.arguments": 0,
    "docsplit.checkpoints": 0,
    "docsplit.hub": 0,
    "docsplit.caching": 0,
    "docsplit.launching": 0,
    "docsplit.longformer_attention": 0,
    "docsplit.longformer_transformer": 0,
    "docsplit.metrics": 0,
    "docsplit.comparison": 1,
    "docsplit.tokenization": 1,
    "docsplit.corpora": 2,
    "docsplit.collators": 2,
    "docsplit.embedding": 2,
    "docsplit.streaming": 3,
    "docsplit.labelled": 3,
    "docsplit.citations": 3,
    "docsplit.probing": 4,
    "docsplit.finetuning": 5,
    "docsplit.callbacks": 5,
    "docsplit.model_card": 2,
    "docsplit.reporting": 3,
}
WITHOUT_TORCH = ["docsplit", "docsplit.segmentation", "docsplit.views", "docsplit.python_docs", "docsplit.checkpoints"]
OURS = ("docsplit", "modeling_", "run_")


def path_of(module):
    path = ROOT / (module.replace(".", "/") + ".py")
    return path if path.exists() else ROOT / module / "__init__.py"


def imported(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {
                f"{node.module}.{alias.name}" if node.module == "docsplit" else node.module for alias in node.names
            }
    return names


def test_every_module_has_a_level():
    modules = {f"docsplit.{path.stem}" for path in (ROOT / "docsplit").glob("*.py") if path.stem != "__init__"}
    modules |= {path.stem for path in ROOT.glob("modeling_*.py")}
    assert modules == set(LEVELS)


@pytest.mark.parametrize("module", LEVELS)
def test_imports_go_downward(module):
    for name in imported(path_of(module)):
        if name.startswith(OURS):
            assert LEVELS[name] < LEVELS[module], f"{module} imports {name}"


def test_the_model_file_travels_alone():
    roots = {name.split(".")[0] for name in imported(ROOT / "modeling_docsplit.py")}
    # safetensors comes with transformers; peft is for those who call `add_lora`.
    assert roots - sys.stdlib_module_names == {"torch", "transformers", "safetensors", "peft"}
    source = ast.parse((ROOT / "modeling_docsplit.py").read_text())
    at_the_top = {node.module for node in source.body if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith("peft") for name in at_the_top)


def test_the_module_of_a_longformer_checkpoint_travels_alone():
    roots = {name.split(".")[0] for name in imported(ROOT / "docsplit" / "longformer_transformer.py")}
    assert roots - sys.stdlib_module_names == {"torch", "sentence_transformers"}


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_these_need_no_torch(module):
    assert not any(name.split(".")[0] in ("torch", "transformers") for name in imported(path_of(module)))


def test_the_package_is_empty_at_the_top():
    assert (ROOT / "docsplit" / "__init__.py").read_text() == ""
