"""Results of toy studies."""

from benchmarks.engine.results import Record, Results


def results_of(rows, **fields):
    """Results whose rows these are, in cells by the rows' `cell`."""
    cells = {}
    for row in rows:
        key = row.get("cell", "")
        cells.setdefault(key, Record(f"cell {key}", "done", key, key)).rows.append(row)
    return Results(cells=cells, **fields)
