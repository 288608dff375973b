"""The wheel, installed where the repository is not: its commands, packaged recipes, and a training of two steps."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from docsplit.runtime.files import hash_of_code
from tests.gpus import selects_gpu_tests

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "requirements.txt", "README.md", "LICENSE", "docsplit", "recipes", "docs")
COMMANDS = re.findall(r'^(docsplit-[a-z-]+) = "', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
HASHED = ("docsplit/modeling", "docsplit/data/tokenization.py", "modeling_docsplit.py")
TINY = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32,max_position_embeddings=64"


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["tests", "-mgpu", "-q"], True),
        (["-m", ""], True),
        (["-m", "not slow", "-m", "gpu and not slow"], True),
        (["--maxfail=1"], False),
        (["-m", "slow and not gpu"], False),
    ],
)
def test_only_who_asks_for_gpu_tests_sees_gpus(words, seen):
    assert selects_gpu_tests(words) == seen


def install(folder, *how):
    """Install a copy of the sources into a new environment, which sees what they depend on; return the copy."""
    source = folder / "source"
    source.mkdir()
    for path in [*(ROOT / name for name in SOURCES), *ROOT.glob("*.py")]:
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, source / path.name)  # building leaves files beside the sources
    environment = folder / "environment"
    run(folder, sys.executable, "-m", "venv", "--without-pip", environment)
    site_packages = site_packages_of(environment)
    (site_packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    run(
        folder, sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--no-deps",
        "--no-index", "--no-build-isolation", "--disable-pip-version-check", *how, source,
    )  # fmt: skip
    return source


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folder with an environment that has the wheel; it lies in someone's repository."""
    folder = tmp_path_factory.mktemp("installation")
    shutil.rmtree(install(folder))
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    run(folder, "git", "init", "-q")
    run(folder, "git", *identity, "commit", "-q", "--allow-empty", "-m", "Another project")
    return folder


def run(folder, *command):
    """Run in an environment where no path leads to the repository."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(map(str, command), cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def site_packages_of(environment):
    (folder,) = (environment / "lib").glob("python*/site-packages")
    return folder


def files_in(folder):
    return {(str(path.relative_to(folder)), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_what_is_installed_is_what_is_here(installed):
    there = site_packages_of(installed / "environment")
    modules = [path for path in ROOT.glob("*.py") if path.name not in ("setup.py", "reproduce.py")]
    for path in [*(ROOT / "docsplit").rglob("*"), *modules]:
        if path.is_file() and "__pycache__" not in path.parts:
            assert (there / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    recipes = {path.name: path.read_text() for path in (ROOT / "recipes").glob("*.yaml")}
    assert {path.name: path.read_text() for path in (there / "docsplit" / "recipes").glob("*")} == recipes
    assert {path.name for path in (installed / "environment" / "bin").glob("docsplit-*")} == {*COMMANDS}
    code = f"from docsplit.runtime.files import hash_of_code; print(hash_of_code(*{HASHED}))"
    printed = run(installed, installed / "environment" / "bin" / "python", "-c", code)
    assert printed.strip() == hash_of_code(*HASHED)


def test_a_clone_that_is_installed_is_found_from_any_folder_as_it_is_now(tmp_path):
    source = install(tmp_path, "--editable")  # as `make install` does
    file = source / "docsplit" / "__init__.py"
    file.write_text(re.sub('__version__ = ".*"', '__version__ = "99.0"', file.read_text()))
    code = "import docsplit, importlib.util as u; print(docsplit.__version__, u.find_spec('modeling_docsplit').origin)"
    found = run(tmp_path, tmp_path / "environment" / "bin" / "python", "-c", code)
    assert found.split() == ["99.0", str(source / "modeling_docsplit.py")]
    assert "docsplit-search" in run(tmp_path, tmp_path / "environment" / "bin" / "docsplit-search", "--help")


def test_a_packaged_recipe_trains_outside_the_repository(installed, corpus_file):
    commands, there = installed / "environment" / "bin", site_packages_of(installed / "environment")
    before = files_in(there)
    page = run(installed, commands / "docsplit-explore", "--help")
    assert "docsplit-explore outputs/quickstart" in page
    assert "explore.py" not in page
    run(
        installed, commands / "docsplit-pretrain", "quickstart", "--corpus", corpus_file, "--probe_corpus",
        corpus_file, "--max_steps", 2, "--output_dir", "out", "--config_overrides", TINY, "--vocab_size", 300,
        "--max_seq_length", 48, "--per_device_train_batch_size", 4, "--eval_strategy", "no",
    )  # fmt: skip
    results = json.loads((installed / "out" / "all_results.json").read_text())
    assert results["global_step"] == 2
    record = json.loads((installed / "out" / "run.json").read_text())
    assert record["recipe"] == "quickstart"
    assert record["commit"] is None  # the one of the folder around it says nothing
    assert files_in(there) == before
