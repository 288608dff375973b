"""Plug-ins: a Python file of one's own that adds rows to the tables of views, objectives, families and heads.

Scripts that use these tables take `--plugin FILE`. They run it before their options are made: its rows are choices
like all others. What is trained with such a row names the file and its hash in config.json, and going on without it is
refused. A recipe may name a plug-in, which runs: it is trusted as the command line is. A checkpoint's never does.
"""

import functools
import importlib.util
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Row = TypeVar("Row")
PLUGINS = "plugins"  # in the settings of config.json: the origin of each kind of row

_tables: list["Table[Any]"] = []
_loaded: list[Path] = []


class Table(dict[str, Row]):
    """Rows by name, which remembers the plug-in that added a row or took its place.

    Attributes:
        kind: what a row is, as in "--view".
        made: the rows that it was made with, or has after the last plug-in.
        origins: the plug-in of each row that has one: its file and hash.
    """

    def __init__(self, kind: str, rows: Mapping[str, Row]):
        super().__init__(rows)
        self.kind, self.made = kind, dict(rows)
        self.origins: dict[str, str] = {}
        _tables.append(self)

    def record(self, name: str, settings: dict[str, Any]) -> None:
        """Keep in a checkpoint's settings which plug-in this row is of, for those who go on."""
        origins = {kind: origin for kind, origin in settings.pop(PLUGINS, {}).items() if kind != self.kind}
        if name in self.origins:
            origins[self.kind] = self.origins[name]
        if origins:
            settings[PLUGINS] = origins

    def origin_in(self, settings: Mapping[str, Any]) -> Any:
        """Return the plug-in of this table's row that the settings of a checkpoint name; None without one."""
        origins = settings.get(PLUGINS)
        return origins.get(self.kind) if isinstance(origins, dict) else None

    def check(self, name: str, settings: Mapping[str, Any], where: str = "") -> None:
        """Refuse a row that is not there, or is not the plug-in's; warn of a plug-in that has changed.

        Args:
            settings: of the checkpoint that names the row, which may have recorded its plug-in.
            where: the checkpoint, before the error.

        Raises:
            ValueError: naming that plug-in, or the rows that there are.
        """
        origin, here = self.origin_in(settings), self.origins.get(name)
        if origin and here is None:
            raise ValueError(
                f"{where}{self.kind} {name!r} comes from the plug-in {origin}: give it with --plugin (in Python: "
                "docsplit.runtime.plugins.load_plugin)."
            )
        if name not in self:
            raise ValueError(f"{where}{self.kind} is {name!r}, expected one of {sorted(self)}.")
        if origin and origin != here:
            _warn_once(f"{where}{self.kind} {name!r} was made with the plug-in {origin}; here it is of {here}.")


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning(message)


def load_plugin(path: str | Path) -> None:
    """Run a plug-in, once in a process; the tables stay as they are if it fails.

    Raises:
        ValueError: if there is no such file, or it fails.
    """
    import xxhash

    file = Path(path).resolve()
    if file in _loaded:
        return
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(f"--plugin {path}: there is no such Python file.")
    origin = f"{file.name} (XXH3 {xxhash.xxh3_128_hexdigest(file.read_bytes())})"
    spec = importlib.util.spec_from_file_location(f"docsplit_plugin_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        for table in _tables:
            table.clear()
            table.update(table.made)
        raise ValueError(f"--plugin {path}: {type(error).__name__}: {error}") from error
    for table in _tables:
        table.origins |= {name: origin for name, row in table.items() if table.made.get(name) is not row}
        table.made = dict(table)
    _loaded.append(file)


def loaded_plugin() -> str | None:
    """Return the path of the plug-in that runs in this process, for a process that it starts; None without one."""
    return str(_loaded[-1]) if _loaded else None
