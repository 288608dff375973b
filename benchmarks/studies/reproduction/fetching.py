"""Bring the data of a recipe that may be fetched, as `datasets.yaml` says where from; name those that may not.

An archive (tar or zip) becomes files of the data folder: `rows` is a pattern of its members that are a document each,
with the group `label` and perhaps `part` (train); `copies` is one of members that are kept as they are, under `name`.
"""

import hashlib
import json
import re
import tarfile
import urllib.request
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.studies.reproduction.plan import DATA, Plan, facts_of


def fetch_all(plan: Plan, data_dir: Path) -> Iterator[str]:
    """Fetch what a recipe needs and is not here; yield a line for each folder."""
    needed = {
        missing.file.removeprefix(DATA).split("/")[0] for missing in plan.missing if missing.file.startswith(DATA)
    }
    for name in sorted(needed):
        facts = facts_of(plan.recipe, f"{DATA}{name}")
        about = f"{facts['place']} (licence: {facts['licence']})"
        if "fetch" not in facts:
            yield f"{name}: not fetched; docs/datasets.md makes it of {about}."
            continue
        try:
            files = fetch(facts["fetch"], data_dir / name)
        except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, HTTPException) as error:
            yield f"{name}: {facts['fetch']['url']} cannot be read: {error}"
            continue
        yield f"{name}: {', '.join(files)} of {about}."
        lacking = {missing.file.removeprefix(f"{DATA}{name}/") for missing in plan.missing
                   if missing.file.startswith(f"{DATA}{name}/")} - {*files}  # fmt: skip
        if lacking:
            yield f"{name}: docs/datasets.md makes {', '.join(sorted(lacking))}."


def fetch(stated: Mapping[str, str], folder: Path) -> list[str]:
    """Download an archive, and write its documents, or files, into a folder, all or none; return their names.

    Raises:
        OSError: if it cannot be read, or is not the one that the table means.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    rows = defaultdict[str, list[str]](list)
    pattern = re.compile("|".join(stated[name] for name in ("rows", "copies") if name in stated))
    with TemporaryDirectory(dir=folder.parent) as temporary:
        archive, made = Path(temporary) / "archive", Path(temporary) / "made"
        made.mkdir()
        urllib.request.urlretrieve(stated["url"], archive)
        if "sha256" in stated and hashlib.sha256(archive.read_bytes()).hexdigest() != stated["sha256"]:
            raise OSError(f"its SHA-256 is not {stated['sha256']}")
        for found, content in _members(archive, pattern):
            if name := found.get("name"):
                (made / name).write_bytes(content)
            else:
                row = {"text": content.decode("latin-1"), "label": found["label"]}
                rows[found.get("part", "train")].append(json.dumps(row) + "\n")
        for part, lines in rows.items():
            (made / f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")
        files = sorted(made.iterdir())
        if not files:
            raise OSError("its archive has none of the documents that the table names")
        folder.mkdir(exist_ok=True)
        for file in files:  # all that there are, or none
            file.replace(folder / file.name)
    return [file.name for file in files]


def _members(archive: Path, pattern: re.Pattern[str]) -> Iterator[tuple[dict[str, str], bytes]]:
    """Yield the groups of each name in an archive that fits the pattern, and its content."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            yield from ((match.groupdict(), zipped.read(name)) for name in sorted(zipped.namelist())
                        if (match := pattern.fullmatch(name)))  # fmt: skip
    else:
        with tarfile.open(archive) as tarred:
            for member in tarred:
                if (match := pattern.fullmatch(member.name)) and (file := tarred.extractfile(member)):
                    yield match.groupdict(), file.read()
