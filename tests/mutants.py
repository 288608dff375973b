"""What share of faults the tests of a floor catch: mutants of its code, drawn with a fixed seed, one after another.

    # 60 mutants of the code of a commit, each before the floor's own tests; goes on where it was stopped
    python -m tests.mutants docsplit/runtime tests/runtime --commit main --out outputs/mutants/runtime.jsonl

A mutant turns a comparison, a condition, an operator, a constant or a returned value, or leaves out a call. Tests may
become fewer where the share that they catch stays.
"""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.trajectories import checkout

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


def is_caught(code: Path, tests: str, seconds: int) -> tuple[bool, str]:
    """Run tests until one fails; return whether one did or all took too long, and which."""
    words = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu and not engines", *tests.split(",")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *words]
    try:
        done = subprocess.run(command, cwd=code, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return True, "too long"
    return done.returncode != 0, next(
        (line for line in done.stdout.splitlines() if line[:6] in ("FAILED", "ERROR ")), ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("code", help="folder of the code")
    parser.add_argument("tests", help="folders or files of its tests, with commas between")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=600, help="that the tests of a mutant may take")
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON each")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.touch()
    done = len(options.out.read_text().splitlines())
    with tempfile.TemporaryDirectory() as folder, checkout(options.commit, Path(folder) / "code") as code:
        drawn = draw(sorted((code / options.code).rglob("*.py")), options.count, options.seed)
        for path, place in drawn[done:]:
            source = path.read_text()
            tree = ast.parse(source)
            node: Any = list(ast.walk(tree))[place]
            before, line = ast.unparse(node).partition("\n")[0], node.lineno
            mutate(node)
            path.write_text(ast.unparse(ast.fix_missing_locations(tree)))
            caught, by = is_caught(code, options.tests, options.seconds)
            path.write_text(source)
            result = {"file": str(path.relative_to(code)), "line": line, "before": before, "caught": caught, "by": by}
            with options.out.open("a") as file:
                file.write(json.dumps(result) + "\n")
    results = [json.loads(line) for line in options.out.read_text().splitlines()]
    print(f"{options.code}: {sum(result['caught'] for result in results)} of {len(results)} mutants are caught")


if __name__ == "__main__":
    main()
