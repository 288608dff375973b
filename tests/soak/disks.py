"""A disk that is full, broken or read-only at each change that a training's save or an index's verb makes."""

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from docsplit.index.changes import build
from tests.index.conftest import ENCODER, WORDS
from tests.processes import Script
from tests.soak.engine import BrokenPromise, Case
from tests.soak.faults import Faults
from tests.soak.indexes import OLD, VERBS, check_and_finish
from tests.soak.trainings import UNATTENDED, differences, start_training, tensors_of, whole_run

CODES = {"full": errno.ENOSPC, "broken": errno.EIO, "read-only": errno.EACCES}
FAILED, CRASHED = 3, 4  # exit codes of a child: one line, a traceback
FAULTY = """
import runpy, sys
from pathlib import Path
from tests.soak.faults import Faults
folder, fails, code = sys.argv[1:4]
faults = Faults(Path(folder), None if fails == "none" else int(fails), int(code))
sys.argv = ["run_docsplit_pretraining.py", *sys.argv[4:]]
try:
    runpy.run_path("run_docsplit_pretraining.py", run_name="__main__")
finally:
    print(f"changes: {faults.count}", flush=True)
"""


def faulty_disks(count: int) -> Iterator[Case]:
    """Fail each change of each index verb with each error, then as many changes of trainings as `count` leaves."""
    return islice(chain(_index_cases(), _training_cases()), count)


def _index_cases() -> Iterator[Case]:
    for verb in VERBS:
        with tempfile.TemporaryDirectory(prefix="docsplit-soak-") as folder:
            changes = _faulty_verb(verb, Path(folder), None, 0)[1]
        for number in range(changes):
            for name, code in CODES.items():
                yield Case(
                    f"{verb}, {name} at change {number}",
                    lambda folder, verb=verb, number=number, code=code: _attack_index(verb, number, code, folder),
                )


def _faulty_verb(verb: str, folder: Path, fails: int | None, code: int) -> tuple[int, int]:
    """Run a verb in a child, on the folder `index`; return how it ended, and the changes it made."""
    if verb != "build":
        build(folder / "index", OLD, ENCODER, WORDS)
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        faults, end = Faults(folder / "index", fails, code), 0
        try:
            VERBS[verb][0](folder / "index")
        except (OSError, ValueError) as error:
            end = FAILED if len(str(error).splitlines()) == 1 else CRASHED
        except BaseException:
            end = CRASHED
        os.write(writing, str(faults.count).encode())
        os._exit(end)
    os.close(writing)
    end = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with os.fdopen(reading) as pipe:
        return end, int(pipe.read())


def _attack_index(verb: str, number: int, code: int, folder: Path) -> str:
    end, _ = _faulty_verb(verb, folder, number, code)
    if end not in (0, FAILED):
        raise BrokenPromise(f"it ended with {end}, not with one line")
    check_and_finish(verb, folder)
    return "one line, then whole" if end else "went on without it"


def _training_cases() -> Iterator[Case]:
    """Fail each change of the output folder of a training that starts, saves and finishes."""
    with tempfile.TemporaryDirectory(prefix="docsplit-soak-") as folder:
        counted = _faulty_training(Path(folder) / "run", "none", 0)
    changes = int(counted.stdout.rsplit("changes: ", 1)[1])
    for number in range(changes):
        for name, code in CODES.items():
            yield Case(
                f"training, {name} at change {number}",
                lambda folder, number=number, code=code: _attack_training(number, code, folder),
            )


def _faulty_training(output_dir: Path, fails: int | str, code: int) -> Script:
    (script,) = start_training("docsplit", output_dir, *UNATTENDED, prefix=("-c", FAULTY, output_dir, fails, code))
    return script.wait()


def _attack_training(number: int, code: int, folder: Path) -> str:
    script = _faulty_training(folder / "run", number, code)
    if "Traceback" in script.stderr:
        raise BrokenPromise(f"a traceback: {script.stderr.strip().splitlines()[-1]}")
    _go_on(folder / "run")
    return "one line, then bit for bit" if script.returncode else "went on without it"


def _go_on(output_dir: Path) -> None:
    """Give the command again, on a sound disk, and compare with a training that met no fault."""
    (again,) = start_training("docsplit", output_dir, *UNATTENDED)
    if again.wait().returncode:
        raise BrokenPromise(f"the next run ends with {again.returncode}: {again.stderr.strip().splitlines()[-1:]}")
    if different := differences(whole_run("docsplit")[1], tensors_of(output_dir)):
        raise BrokenPromise(different)


if sys.platform != "linux":
    raise RuntimeError("These attacks need Linux: /proc, fork and mount.")
