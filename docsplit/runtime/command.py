"""What a person types to run a script, and what a script prints: names of commands, harmless text, errors of one line.

A clone has scripts, `python search.py`; an installation has commands, `docsplit-search`. This module is imported
before torch, since it sets variables that torch and its libraries read once.
"""

import codecs
import contextlib
import hashlib
import io
import json
import linecache
import logging
import os
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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
    "classify.py": "docsplit-classify",
}
# Waiting threads sleep: those of other processes and libraries need the cores
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if not sys.stderr.isatty():
    for interval in ("TQDM_MININTERVAL", "TQDM_MAXINTERVAL"):
        os.environ.setdefault(interval, "30")  # seconds
# Batches differ in length, and blocks of a fixed size are left with gaps: memory runs out while much of it is free
# (https://docs.pytorch.org/docs/stable/notes/cuda.html, `expandable_segments`)
ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
if Path("/dev/nvidiactl").exists() and os.environ.keys().isdisjoint(ALLOCATORS):
    os.environ[ALLOCATORS[0]] = "expandable_segments:True"


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
    return f"{call} {shlex.join(map(str, words))}"


def with_installed_commands(text: str) -> str:
    """Return a script's text with its examples as they are typed here: installed commands and recipes have names."""
    if command_name("search.py").startswith("python "):
        return text
    scripts = "|".join(map(re.escape, COMMANDS))
    text = re.sub(rf"(accelerate launch(?: --?\S+(?: \d+)?)*) ({scripts})\b", lambda m: f"{m[1]} -m {m[2][:-3]}", text)
    text = re.sub(rf"(?:python )?\b({scripts})\b", lambda match: COMMANDS[match[1]], text)
    return re.sub(r"\brecipes/(\w+)\.yaml", r"\1", text)


WITH_CODES = "docsplit.with_codes"  # how output is encoded
# Control characters, separators of lines, what turns the direction of text around, and what UTF-8 cannot hold
_ACTING = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"


def shown(text: str) -> str:
    """Write a text in one line, in which control characters are codes such as `\\x1b`."""
    return re.sub(f"[{_ACTING}\t\n]", lambda match: match[0].encode("unicode_escape").decode(), text)


def shown_lines(text: str) -> str:
    """Write a text as `shown` does, but keep its lines and tabs."""
    return re.sub(f"[{_ACTING}]", lambda match: shown(match[0]), text)


def log_messages(level: int = logging.INFO) -> None:
    """Log the messages of a script as they are, warnings marked; of chatty libraries warnings alone."""
    logging.addLevelName(logging.INFO, "")
    logging.addLevelName(logging.WARNING, "warning: ")
    logging.addLevelName(logging.ERROR, "error: ")
    logging.basicConfig(level=level, format="%(levelname)s%(message)s")
    # accelerate says at each evaluation that the data set has no length: it has, and drops an incomplete batch
    for chatty in ("sentence_transformers", "httpx", "accelerate.accelerator"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def as_json(value: Any) -> str:
    """Write a value as JSON, readable, but with codes for all control characters."""
    return re.sub(f"[{_ACTING}]", lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))


def _with_codes(error: UnicodeError) -> tuple[str, int]:
    """Write what an encoding lacks as JSON does: `\\ud83e\\udd89` for an owl, so that `as_json` stays JSON."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(WITH_CODES, _with_codes)


def print_all_characters() -> None:
    """Let what the encoding of the output lacks, such as an emoji in cp1252, be printed as a code and be no error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not what a notebook has there
            stream.reconfigure(errors=WITH_CODES)


def protect_logs() -> None:
    """Let all messages that are logged from now on pass through `shown_lines`."""
    make = logging.getLogRecordFactory()

    def protected_record(*given: Any, **named: Any) -> logging.LogRecord:
        record = make(*given, **named)
        with contextlib.suppress(TypeError, ValueError):  # arguments that do not fit the message: logging says where
            message = record.getMessage()
            if (harmless := shown_lines(message)) != message:
                record.msg, record.args = harmless, ()
        return record

    if getattr(make, "__name__", "") != protected_record.__name__:
        logging.setLogRecordFactory(protected_record)


@dataclass(frozen=True)
class Style:
    """The width of lines, and whether parts of them are marked."""

    width: int = 100
    has_marks: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> "Style":
        """Return the style of a stream: marks on a terminal that shows them, unless NO_COLOR is set."""
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        shows_marks = os.name != "nt" or "WT_SESSION" in os.environ
        width = max(shutil.get_terminal_size((100, 24)).columns, 40)
        return cls(width, stream.isatty() and shows_marks and not is_plain)

    def bold(self, text: str) -> str:
        """Make a text stand out."""
        return f"\033[1m{text}\033[0m" if self.has_marks else text

    def dim(self, text: str) -> str:
        """Make a text less bright."""
        return f"\033[2m{text}\033[0m" if self.has_marks else text

    def document(self, document_id: str, title: str, before: str = "", after: str = "") -> str:
        """Name a document in a line: its title, shortened to fit, and its id, which stays whole."""
        document_id, title = shown(document_id), shown(" ".join(title.split()))
        if title in ("", document_id):
            return before + self.bold(document_id) + after
        room = max(self.width - len(before) - len(document_id) - len(after) - len("  []"), 40)
        short = title if len(title) <= room else f"{title[: room - 1]}…"
        return f"{before}{self.bold(short)}  {self.dim(f'[{document_id}]')}{after}"


def end_with(message: str, code: int = 1) -> NoReturn:
    """Print an error and exit; of several processes of a launch with the same error, the first one prints it.

    Control characters in it, and a token of the Hub that was typed in the wrong place, are not printed.

    Raises:
        SystemExit: with this code.
    """
    message = shown_lines(re.sub(r"hf_\w{16,}", "hf_...", message))
    try:
        if error_file := os.environ.get("TORCHELASTIC_ERROR_FILE"):  # in the launcher's folder of this process
            digest = hashlib.blake2b(message.encode(errors="replace"), digest_size=12).hexdigest()
            (Path(error_file).parents[1] / digest).touch(exist_ok=False)
    except FileExistsError:  # another process has printed it
        sys.exit(code)
    except OSError:  # the launcher is gone, and its folder with it
        pass
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


SHOW_TRACEBACK = "DOCSPLIT_TRACEBACK"  # a variable of the environment
LOST = (
    "Another process of this run has ended, and its last lines say why; or it is stopped, or works alone for longer "
    "than --ddp_timeout: then raise that."
)


def _reader_is_gone() -> bool:
    """Whether the reader of this process's output, such as `head`, has closed the pipe."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False


def as_command(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap a script's `main`: an error that its user can do something about ends it in one line, with exit code 1.

    Those are ValueErrors, ArithmeticErrors, OSErrors, ImportErrors, MemoryErrors, a write that failed, a backend of
    torch.compile that does not work, and a common step of processes that another one has left. All others are bugs and
    keep their traceback; so do all with DOCSPLIT_TRACEBACK=1. Ctrl-C ends a script in one line too, with exit code
    130; a reader that closes the pipe of its output ends it without a line. Control characters of documents and names
    come neither into logs nor into errors; characters that the output cannot hold are printed as codes.
    """

    def command() -> None:
        protect_logs()
        print_all_characters()
        try:
            main()
            sys.stdout.flush()
        except (KeyboardInterrupt, Exception) as error:
            if isinstance(error, BrokenPipeError) and _reader_is_gone():
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                sys.exit(1)
            if os.environ.get(SHOW_TRACEBACK):
                raise
            if isinstance(error, KeyboardInterrupt):
                end_with("stopped by Ctrl-C", code=130)
            dist: Any = sys.modules.get("torch.distributed")
            is_backend = type(error).__module__ == "torch._dynamo.exc"
            if is_backend or isinstance(error, ValueError | ArithmeticError | OSError | ImportError | MemoryError):
                frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
                is_raised = linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("raise ")
                place = "" if is_raised else f" ({SHOW_TRACEBACK}=1 shows where.)"
                end_with((str(error) or type(error).__name__) + place)
            if reason := why_not_written(error):
                end_with(f"A file could not be written: {reason}.")
            if "gloo" in str(error) or (dist is not None and isinstance(error, dist.DistError)):
                end_with(LOST)
            raise

    return command
