"""Files of labelled documents, for tests."""

import json
from pathlib import Path


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows_of(file):
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def rewrite(file, change):
    """Change the list of rows in a file."""
    rows = rows_of(file)
    change(rows)
    write(Path(file), rows)
