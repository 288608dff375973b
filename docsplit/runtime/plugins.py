"""Plug-ins: a Python file of one's own that adds rows to the tables of views, objectives, families and heads.

Scripts that use these tables take `--plugin FILE`. They run it before their options are made: its rows are choices
like all others. What is trained with such a row names the file and its hash in config.json, and going on without it is
refused. No plug-in is run because a file names it.
"""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

Row = TypeVar("Row")
PLUGINS = "plugins"  # in the settings of config.json: the origin of each kind of row

_running: list[str] = []  # the plug-in whose rows are being added
_loaded: set[Path] = set()


class Table(dict[str, Row]):
    """Rows by name, which remembers the plug-in that added a row or took its place.

    Attributes:
        kind: what a row is, as in "--view".
        origins: the plug-in of each row that has one: its file and hash.
    """

    def __init__(self, kind: str, rows: Mapping[str, Row]):
        super().__init__(rows)
        self.kind = kind
        self.origins: dict[str, str] = {}

    def __setitem__(self, name: str, row: Row) -> None:
        super().__setitem__(name, row)
        if _running:
            self.origins[name] = _running[-1]

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
        """Refuse a row that is not there, or is not the plug-in's.

        Args:
            settings: of the checkpoint that names the row, which may have recorded its plug-in.
            where: the checkpoint, before the error.

        Raises:
            ValueError: naming that plug-in, or the rows that there are.
        """
        origin = self.origin_in(settings)
        if origin and name not in self.origins:
            raise ValueError(
                f"{where}{self.kind} {name!r} comes from the plug-in {origin}: give it with --plugin (in Python: "
                "docsplit.runtime.plugins.load_plugin)."
            )
        if name not in self:
            raise ValueError(f"{where}{self.kind} is {name!r}, expected one of {sorted(self)}.")


def load_plugin(path: str | Path) -> None:
    """Run a plug-in, once in a process.

    Raises:
        ValueError: if there is no such file, or it fails.
    """
    import xxhash

    file = Path(path).resolve()
    if file in _loaded:
        return
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(f"--plugin {path}: there is no such Python file.")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)  # dataclasses look their module up
    _running.append(f"{file.name} (XXH3 {xxhash.xxh3_128_hexdigest(file.read_bytes())})")
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"--plugin {path}: {type(error).__name__}: {error}") from error
    finally:
        _running.pop()
        _loaded.add(file)
