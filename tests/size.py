"""How much there is of the house, beside the commit before: lines of code, modules, words of prose.

    make size
    python -m tests.size main

Size is looked at, not tested. A line of code is not blank, not a comment alone and not in a docstring.
"""

import ast
import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from docsplit.evaluation.results.markdown import markdown_table

ROOT = Path(__file__).parent.parent
CODE = {"library": ("*.py", "docsplit/**/*.py"), "tests": ("tests/**/*.py",), "benchmarks": ("benchmarks/**/*.py",)}
PROSE = ("*.md", "docs/**/*.md")
DEFINITIONS = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def lines_of_code(source: str) -> int:
    """Count the lines of a module with code in them."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(source.split("\n"), 1)
    return sum(
        number not in docstrings and not line.lstrip().startswith("#") for number, line in lines if line.strip()
    )


def sizes(root: Path) -> dict[str, int]:
    """Count what a checkout has."""

    def read(patterns: tuple[str, ...]) -> dict[Path, str]:
        return {path: path.read_text(encoding="utf-8") for pattern in patterns for path in root.glob(pattern)}

    sources = {part: read(patterns) for part, patterns in CODE.items()}
    counts = {f"lines, {part}": sum(map(lines_of_code, files.values())) for part, files in sources.items()}
    for part, files in sources.items():
        counts[f"modules, {part}"] = sum(path.name != "__init__.py" for path in files)
    return counts | {"words of prose": sum(len(text.split()) for text in read(PROSE).values())}


def main() -> None:
    """Print the table, beside the commit that is named; else beside HEAD, or the one before where all is committed."""
    is_changed = subprocess.check_output(["git", "status", "--porcelain"], cwd=ROOT)
    commit = sys.argv[1] if len(sys.argv) > 1 else "HEAD" if is_changed else "HEAD~1"
    archive = io.BytesIO(subprocess.check_output(["git", "archive", commit], cwd=ROOT))
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=archive) as tar:
        tar.extractall(folder, filter="data")
        before, now = sizes(Path(folder)), sizes(ROOT)
    rows = [[what, f"{before[what]:,}", f"{now[what]:,}", f"{now[what] - before[what]:+,}"] for what in now]
    print(markdown_table(["", commit, "now", "change"], rows))


if __name__ == "__main__":
    main()
