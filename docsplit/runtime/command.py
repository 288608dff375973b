"""What a person types to run a script: hints, errors and examples name commands as they are there.

A clone has scripts, `python search.py`; an installation has commands, `docsplit-search`.
"""

import contextlib
import hashlib
import json
import linecache
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from docsplit.runtime.files import ROOT, why_not_written

COMMANDS = {  # the installed command of each script, as in pyproject.toml
    "run_docsplit_pretraining.py": "docsplit-pretrain",
    "run_probe_classification.py": "docsplit-probe",
    "run_aan_retrieval.py": "docsplit-links",
    "run_document_retrieval.py": "docsplit-rank",
    "run_embedding_analysis.py": "docsplit-analyse",
    "convert_to_longformer.py": "docsplit-convert-to-longformer",
    "export_onnx.py": "docsplit-export-onnx",
    "explore.py": "docsplit-explore",
    "search.py": "docsplit-search",
    "adapt.py": "docsplit-adapt",
}


def command_name(script: str) -> str:
    """Return what a person types to run a script: `python search.py` in a clone, `docsplit-search` where installed."""
    is_clone = not (ROOT / "docsplit" / "recipes").is_dir()  # in a clone they lie beside the package
    runs_installed = Path(sys.argv[0]).name in COMMANDS.values()
    return f"python {script}" if is_clone and not runs_installed else COMMANDS[script]


def running_command() -> str:
    """Return what was typed to run this program."""
    name = Path(sys.argv[0]).name
    return command_name(name) if name in COMMANDS else name


def command_line(script: str, *words: object) -> str:
    """Return a line that runs a script with these words, for the user of the running one to copy.

    A script of a clone is named with its folder, as the running one was.
    """
    call, beside = command_name(script), Path(sys.argv[0]).with_name(script)
    if call.startswith("python ") and beside.exists():
        call = f"python {beside}"
    join = subprocess.list2cmdline if os.name == "nt" else shlex.join
    return f"{call} {join([str(word) for word in words])}"


def as_typed(text: str) -> str:
    """Return a script's text with its examples as they are typed here: installed commands and recipes have names."""
    if command_name("search.py").startswith("python "):
        return text
    scripts = "|".join(map(re.escape, COMMANDS))
    text = re.sub(rf"(accelerate launch(?: --?\S+(?: \d+)?)*) ({scripts})\b", lambda m: f"{m[1]} -m {m[2][:-3]}", text)
    text = re.sub(rf"(?:python )?\b({scripts})\b", lambda match: COMMANDS[match[1]], text)
    return re.sub(r"\brecipes/(\w+)\.yaml", r"\1", text)


NARROWEST, SHORTEST_TITLE = 40, 40  # characters
# Control characters, separators of lines, what turns the direction of text around, and what UTF-8 cannot hold.
_ACTING = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ACTING_OR_BREAK, _ACTS = re.compile(f"[{_ACTING}\t\n]"), re.compile(f"[{_ACTING}]")
BOLD, DIM, RESET = "\033[1m", "\033[2m", "\033[0m"


def shown(text: str) -> str:
    """Write a text in one line, in which control characters are codes such as `\\x1b`."""
    return _ACTING_OR_BREAK.sub(_code, text)


def shown_lines(text: str) -> str:
    """Write a text as `shown` does, but keep its lines and tabs."""
    return _ACTS.sub(_code, text)


def as_json(value: Any) -> str:
    """Write a value as JSON, readable, but with codes for all control characters."""
    return _ACTS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))


def _code(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def protect_logs() -> None:
    """Let all messages that are logged from now on pass through `shown_lines`."""
    if not isinstance(logging.getLogRecordFactory(), _ProtectedRecords):
        logging.setLogRecordFactory(_ProtectedRecords(logging.getLogRecordFactory()))


@dataclass(frozen=True)
class _ProtectedRecords:
    make: Callable[..., logging.LogRecord]

    def __call__(self, *given: Any, **named: Any) -> logging.LogRecord:
        record = self.make(*given, **named)
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit the message: logging says where
            return record
        if _ACTS.search(message):
            record.msg, record.args = shown_lines(message), ()
        return record


@dataclass(frozen=True)
class Style:
    """The width of lines, and whether parts of them are marked."""

    width: int = 100
    has_marks: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> "Style":
        """Return the style of a stream: marks on a terminal that shows them, unless NO_COLOR is set."""
        shows_marks = os.name != "nt" or "WT_SESSION" in os.environ
        wants_marks = shows_marks and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = max(shutil.get_terminal_size((cls.width, 24)).columns, NARROWEST)
        return cls(width, stream.isatty() and wants_marks)

    def bold(self, text: str) -> str:
        """Make a text stand out."""
        return f"{BOLD}{text}{RESET}" if self.has_marks else text

    def dim(self, text: str) -> str:
        """Make a text less bright."""
        return f"{DIM}{text}{RESET}" if self.has_marks else text

    def document(self, document_id: str, title: str, before: str = "") -> str:
        """Name a document in a line: its title, shortened to fit, and its id, which stays whole."""
        document_id, title = shown(document_id), shown(" ".join(title.split()))
        if title in ("", document_id):
            return before + self.bold(document_id)
        room = max(self.width - len(before) - len(document_id) - len("  []"), SHORTEST_TITLE)
        short = title if len(title) <= room else f"{title[: room - 1]}…"
        return f"{before}{self.bold(short)}  {self.dim(f'[{document_id}]')}"


ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # set by torchrun and accelerate: where a process says why it failed
TOKEN = r"hf_\w{16,}"  # of the Hub
PATIENCE = 5.0  # seconds in which one process of a machine may say what another one would


def end_with(message: str, code: int = 1, about: str | None = None) -> NoReturn:
    """Print an error and exit. Of several processes of a launcher with the same error, one prints it.

    Args:
        about: of `say`.

    Raises:
        SystemExit: with this code.
    """
    say(message, about)
    sys.exit(code)


def say(message: str, about: str | None = None) -> None:
    """Print an error, once for all processes of a launcher on this machine.

    Control characters in it, and a token of the Hub that was typed in the wrong place, are not printed.

    Args:
        about: what the error is about, where processes have different words for it; whoever is first prints it. None:
            the first process prints it if it has the same error.
    """
    message = shown_lines(re.sub(TOKEN, "hf_...", message))
    rank = os.environ.get("RANK", "0")
    said = _file_of(about or message)
    if said is None or _is_first_to_say(said, message, 0 if about else PATIENCE):
        print(f"error{'' if rank == '0' else f' of process {rank}'}: {message}", file=sys.stderr, flush=True)
        if said is not None:
            with contextlib.suppress(OSError):
                said.write_text("printed")


def _file_of(about: str) -> Path | None:
    """Name the file that stands for an error in the folder that the processes of a launch share; None without one."""
    if not (error_file := os.environ.get(ERROR_FILE)):
        return None
    return Path(error_file).parents[1] / hashlib.blake2b(about.encode(errors="replace"), digest_size=12).hexdigest()


def _is_first_to_say(said: Path, message: str, patience: float) -> bool:
    """Whether this process has to print an error: no other process of this machine does; the first one goes first.

    The launcher also reads the error from the folder, for its own report.

    Args:
        said: is made by who prints the error, and filled once it is printed.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        end = time.monotonic() + patience
        while not said.exists() and time.monotonic() < end:
            time.sleep(0.05)
    try:
        said.touch(exist_ok=False)
    except FileExistsError:
        return not _is_printed(said)
    except OSError:  # the launcher is gone, and its folder with it
        return True
    report = {"message": {"message": f"error: {message}", "extraInfo": {"timestamp": int(time.time())}}}
    with contextlib.suppress(OSError):
        Path(os.environ[ERROR_FILE]).write_text(json.dumps(report))
    return True


def _is_printed(said: Path) -> bool:
    """Wait until another process has printed an error; it may be killed before, by the launcher for example."""
    end = time.monotonic() + PATIENCE
    with contextlib.suppress(OSError):
        while not said.stat().st_size:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True
    return False


ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")  # the first since torch 2.9
NVIDIA = Path("/dev/nvidiactl")  # is there where a driver of NVIDIA has a GPU, on Linux


def memory_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that makes torch's blocks of GPU memory grow; none where the user says how it allocates.

    Batches differ in length, and blocks of a fixed size are left with gaps: memory runs out while much of it is free
    (https://docs.pytorch.org/docs/stable/notes/cuda.html, `expandable_segments`).
    """
    is_said = any(name in environment for name in ALLOCATOR)
    return {} if is_said or not NVIDIA.exists() else {ALLOCATOR[0]: "expandable_segments:True"}


os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if not sys.stderr.isatty():
    for interval in ("TQDM_MININTERVAL", "TQDM_MAXINTERVAL"):
        os.environ.setdefault(interval, "30")  # seconds
os.environ |= memory_settings(os.environ)
SHOW_TRACEBACK = "DOCSPLIT_TRACEBACK"  # a variable of the environment
LOST = (
    "Another process of this run has ended, and its last lines say why; or it is stopped, or works alone for longer "
    "than --ddp_timeout: then raise that."
)


def as_command(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap a script's `main`: an error that tells its user what to do ends it in one line, with exit code 1.

    Those are errors that a `raise` of this project raises, OSErrors (no file, no model of that name, no space), and
    errors of libraries that mean a failed write (`docsplit.runtime.files.why_not_written`).
    A step that processes take together, and another process has left, ends in a line too. All others are bugs and keep
    their traceback. DOCSPLIT_TRACEBACK=1 keeps every traceback. Ctrl-C ends a script in one line too, with exit code
    130. Control characters of documents and names come neither into logs nor into errors.
    """

    def command() -> None:
        protect_logs()
        try:
            main()
        except KeyboardInterrupt:
            if os.environ.get(SHOW_TRACEBACK):
                raise
            end_with("stopped by Ctrl-C", code=130)
        except Exception as error:
            frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
            if os.environ.get(SHOW_TRACEBACK):
                raise
            if isinstance(error, OSError) or _is_raised_here(frame, line, main.__module__):
                end_with(str(error))
            if reason := why_not_written(error):
                end_with(f"A file could not be written: {reason}.")
            if _is_of_a_common_step(error):
                end_with(LOST, about=LOST)
            raise

    return command


def _is_of_a_common_step(error: Exception) -> bool:
    dist: Any = sys.modules.get("torch.distributed")
    is_of_gloo = isinstance(error, RuntimeError) and "gloo" in str(error)
    return is_of_gloo or (dist is not None and isinstance(error, dist.DistError))


def _is_raised_here(frame: FrameType, line: int, script: str) -> bool:
    """Whether the line is a `raise` of this project, and not a library's or a failing expression of ours."""
    room = frame.f_globals.get("__name__", "").split(".")[0]
    is_ours = room in (script.split(".")[0], "docsplit", "benchmarks") or room.startswith("modeling_")
    return is_ours and linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("raise ")
