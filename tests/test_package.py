"""What `from docsplit import ...` gives, and that it costs nothing before it is used."""

import ast
import subprocess
import sys

import pytest
import yaml

import docsplit
from docsplit.runtime.files import ROOT


def test_the_names_are_those_that_type_checkers_see():
    tree = ast.parse((ROOT / "docsplit" / "__init__.py").read_text())
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in guarded.body for alias in node.names}
    assert seen == docsplit._MODULES
    assert sorted(seen) == docsplit.__all__
    assert {*seen, "__version__"} <= {*dir(docsplit)}


@pytest.mark.parametrize("name", docsplit.__all__)
def test_each_name_is_what_its_module_defines(name):
    assert getattr(docsplit, name).__module__ == docsplit._MODULES[name]


def test_the_import_brings_nothing_heavy():
    code = "import sys; before = {*sys.modules}; import docsplit; print(*sorted({*sys.modules} - before))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    roots = {name.split(".")[0] for name in result.stdout.split()}
    assert "docsplit" in roots
    assert roots - {"docsplit"} <= sys.stdlib_module_names


def test_other_files_have_the_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == docsplit.__version__
    assert f"## {docsplit.__version__}" in (ROOT / "CHANGELOG.md").read_text()
