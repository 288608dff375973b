"""What a reproduction measured, in the cards of the encoders that it trained.

The training of a cell writes its encoder's card. An evaluation is a cell of its own, so its results come into the card
when all cells have run: as those of the evaluation scripts do with --push_results, but under the name of the cell.
"""

import contextlib
import io
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.engine.study import Study
from docsplit.release.model_card import add_results
from docsplit.release.records import RUN_FILE
from docsplit.runtime.files import read_json

RESULTS, CURVE = "results.json", "few_shot.png"  # of an evaluation, as cards take them


def add_measured(study: Study) -> str:
    """Put the results of finished cells into the cards of encoders that cells trained; return what to print."""
    cards = set()
    for cell in study.cells().values():
        record = study.record(cell)
        measured = study.finished_folder(cell) / "measured"
        if record is None or record.status != "done" or not (measured / RESULTS).exists():
            continue
        contents = read_json(measured / RESULTS)
        folders = {Path(row["encoder"]) for row in contents["rows"]}
        trained = sorted(
            folder for folder in folders if study.work_dir in folder.parents and (folder / RUN_FILE).exists()
        )
        cards |= {folder / "README.md" for folder in trained}
        name = re.sub(r"\W+", "_", f"{cell.fields['task']} {cell.fields['data']}")
        title = str(cell.fields["task"])
        _add(trained, name, title[0].upper() + title[1:], contents["data"], measured)
    where = f"{study.work_dir}/KEY/encoder/README.md"
    return f"Cards of trained encoders that have what was measured: {len(cards)} ({where}; --list names each KEY)."


def _add(encoders: list[Path], name: str, title: str, data: str, measured: Path) -> None:
    """Add an evaluation under a name of its own: `add_results` takes that of its folder, and cells' are all alike."""
    with TemporaryDirectory() as parent, contextlib.redirect_stdout(io.StringIO()):  # it prints a line a card
        folder = Path(parent) / name
        folder.mkdir()
        for file in (RESULTS, CURVE):
            if (measured / file).exists():
                shutil.copy(measured / file, folder)
        add_results([str(encoder) for encoder in encoders], title, data, folder)
