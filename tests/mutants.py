"""What share of faults the tests of a module catch: mutants of its code, drawn with a fixed seed.

    python -m tests.mutants docsplit/embedding/neighbours.py tests/embedding/test_neighbours.py --count 40

A mutant turns a comparison, a condition, an operator, a constant or a returned value, or leaves out a call. Libraries
are imported once; the tests of each mutant run in a fork, in which it takes the module's place, until one fails. No
file changes. Tests may become fewer where the share that they catch stays.
"""

import argparse
import ast
import importlib
import os
import random
import signal
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT

PRELOADED = ("datasets", "hypothesis", "sentence_transformers", "sklearn.linear_model", "spacy.lang.en")

SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip


def mutate(node: Any) -> bool:
    """Change a node in place; return whether there is anything to change."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in SWAPS:
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif (isinstance(node, ast.Return) and not isinstance(node.value, ast.Constant | None)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        node.value = ast.Constant(None)
    else:
        return False
    return True


def draw(paths: list[Path], count: int, seed: int) -> list[tuple[Path, int]]:
    """Draw nodes that can be changed: the file, and the place in `ast.walk`."""
    places = [
        (path, place)
        for path in paths
        for place, node in enumerate(list(ast.walk(ast.parse(path.read_text()))))
        if mutate(node)
    ]
    return random.Random(seed).sample(places, min(count, len(places)))


class Mutant(MetaPathFinder, SourceFileLoader):
    """Imports a module from another text than its file's."""

    def __init__(self, path: Path, text: str):
        super().__init__(".".join(path.with_suffix("").parts), str(ROOT / path))
        self.text = text

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> Any:
        return compile(self.text, self.path, "exec")


def is_caught(path: Path, text: str, tests: list[str], seconds: int) -> bool:
    """Run tests in a fork with this text of a module; return whether one fails, or all take too long."""
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        sys.meta_path.insert(0, Mutant(path, text))
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
    return os.waitpid(child, 0)[1] != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=Path, help="file of the code")
    parser.add_argument("tests", nargs="+", help="its tests: files, folders, other words of pytest")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=120, help="that the tests of a mutant may take")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    sys.dont_write_bytecode = True
    for name in PRELOADED:
        importlib.import_module(name)
    source = options.module.read_text()
    if is_caught(options.module, source, options.tests, options.seconds):
        sys.exit("The tests fail as the code is, or take too long.")
    drawn, caught = draw([options.module], options.count, options.seed), 0
    for _, place in drawn:
        tree = ast.parse(source)
        node: Any = list(ast.walk(tree))[place]
        before = ast.unparse(node).partition("\n")[0]
        mutate(node)
        if is_caught(options.module, ast.unparse(ast.fix_missing_locations(tree)), options.tests, options.seconds):
            caught += 1
        else:
            print(f"{options.module}:{node.lineno}: not caught: {before}", flush=True)
    print(f"{options.module}: {caught} of {len(drawn)} mutants are caught")


if __name__ == "__main__":
    main()
