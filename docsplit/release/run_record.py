"""The record of a pretraining run, run.json beside its checkpoint: what its card says beside results."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from docsplit.runtime.files import checked, read_json

RUN_FILE = "run.json"


@dataclass(frozen=True)
class Licence:
    """A licence in the words of cards on the Hub; all None where none is stated.

    Attributes:
        license: the identifier, "other" where the licence has a name of its own.
    """

    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None

    @classmethod
    def stated_in(cls, values: Mapping[str, Any]) -> "Licence":
        """Take the licence out of the front matter of a card, or out of a record."""
        return cls(**{key: str(values[key]) for key in LICENCE_KEYS if _states(values.get(key))})

    def __bool__(self) -> bool:
        return self != Licence()


def _states(value: object) -> bool:
    """Whether this is the text of a licence; YAML reads a number or a list where no quotes are."""
    return isinstance(value, str | int | float) and not isinstance(value, bool) and bool(str(value).strip())


LICENCE_KEYS = tuple(entry.name for entry in fields(Licence))


@dataclass(frozen=True)
class Start:
    """The weights that a run began from; empty for random weights.

    Attributes:
        base_model: a name on the Hub; None where it has none.
        language: codes, as cards on the Hub have them; None where none is stated.
    """

    base_model: str | list[str] | None = None
    licence: Licence = Licence()
    language: str | list[str] | None = None

    def __bool__(self) -> bool:
        return self != Start()


@dataclass(kw_only=True)
class RunRecord:
    """A pretraining run.

    Attributes:
        options: those given, by recipe or command line, as text.
        start: None in records of before it was kept.
        local: the options among `model_name_or_path` and `corpus` that name a place on the machine of the run.
    """

    recipe: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    start: Start | None = None
    local: list[str] = field(default_factory=list)
    hardware: str
    processes: int
    versions: dict[str, str | None] = field(default_factory=dict)
    commit: str | None
    hub_model_id: str | None = None

    @classmethod
    def read(cls, directory: Path) -> "RunRecord | None":
        """Read the record of a checkpoint's folder; None if it has none.

        Raises:
            ValueError: naming file and key, if a value is missing or of another type.
        """
        path = directory / RUN_FILE
        if not path.exists():
            return None
        values = read_json(path)
        if values.get("start") is not None:
            start = checked(values["start"], dict, f"{path}: start")
            values["start"] = start | {"licence": start}  # it states all in one mapping
        return checked(values, cls, str(path))

    def to_json(self) -> str:
        """Write the text of run.json, in which a start is one mapping."""
        values = asdict(self)
        if self.start is not None:
            stated = asdict(self.start.licence) | {"language": self.start.language}
            stated = {key: value for key, value in stated.items() if value is not None}
            values["start"] = {"base_model": self.start.base_model} | stated if self.start else {}
        return json.dumps(values, indent=2) + "\n"
