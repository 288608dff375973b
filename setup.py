"""The parts of the package that pyproject.toml cannot name: what setuptools finds, and what lies elsewhere."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["docsplit*"]), "docsplit.recipes"],
    package_dir={"docsplit.recipes": "recipes"},  # which stay where people look
    # reproduce.py runs on the benchmarks of a clone
    py_modules=sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {"setup", "reproduce"}),
)
