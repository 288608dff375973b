"""A token of the Hub, given or typed in every way: it is in no file, no log and no error."""

import contextlib
import io
import itertools
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from docsplit.data.tokenization import load_tokenizer
from tests.modeling import hostile_folders
from tests.processes import ROOT, Script
from tests.runtime.wrong_options import DOCUMENTS, RIGHT, WorkBegins, parser_of, refusal
from tests.soak.engine import BrokenPromise, Case
from tests.trajectories import DATA

TOKEN = "hf_CanaryTokenThatNobodyMaySee"
SPELLINGS = (
    *(f"--hub_token {TOKEN}", f"--hub_token={TOKEN}", f"--hub-token {TOKEN}", f"--token {TOKEN}", f"--token={TOKEN}"),
    *(f"--hubtoken {TOKEN}", f"--hf_token={TOKEN}", TOKEN),
)
DOWNLOAD = ("run_aan_retrieval", "run_document_retrieval", "run_embedding_analysis")  # what they read by default
RUN = """
import runpy, sys
import huggingface_hub.constants
file, script = sys.argv[1:3]
huggingface_hub.constants.HF_TOKEN_PATH = file
sys.argv = sys.argv[2:]
runpy.run_path(script, run_name="__main__")
"""


def canary_tokens(count: int) -> Iterator[Case]:
    """Give the token to scripts that need no network, by the environment and a file; then type it in every place."""
    return itertools.islice(itertools.chain(_given_cases(), _typed_cases()), count)


def _given_cases() -> Iterator[Case]:
    with tempfile.TemporaryDirectory(prefix="docsplit-soak-") as scratch:
        hostile_folders.build("ours", Path(scratch) / "model", load_tokenizer(str(DATA / "tokenizer")))
        scripts = [script for script in RIGHT if script not in DOWNLOAD]
        for script, way, traceback in itertools.product(scripts, ("HF_TOKEN", "file"), ("", "1")):
            name = f"{script}, token by {way}{', with tracebacks' * bool(traceback)}"
            args = Path(scratch) / "model", script, way, traceback
            yield Case(name, lambda folder, args=args: _run(folder, *args))


def _run(folder: Path, model: Path, script: str, way: str, traceback: str) -> str:
    """Run a script's right command to its end, whatever that is."""
    secret = folder / "secret"
    secret.mkdir()
    (secret / "token").write_text(TOKEN if way == "file" else "")
    words = RIGHT[script][0].replace(f"FOLDER {DOCUMENTS} FOLDER", f"{model} {DOCUMENTS} FOLDER")
    words = words.replace("--model FOLDER", f"--model {model}").replace("FOLDER FOLDER", f"{model} FOLDER")
    words = words.replace("FOLDER", str(folder / "work"))
    more = ["--max_steps", "2", "--save_steps", "1"] if script.startswith("run_docsplit") else []
    if script == "run_probe_classification":
        more = ["--train_file", DOCUMENTS, "--output_dir", str(folder / "work" / "out")]
    (folder / "work").mkdir()
    places = {name: str(folder / "home") for name in ("HF_HOME", "HF_DATASETS_CACHE")}
    environment = os.environ | places | {"DOCSPLIT_TRACEBACK": traceback, "HF_TOKEN": TOKEN if way != "file" else ""}
    typed = ("-c", RUN, secret / "token", f"{script.split()[0]}.py", *words.split(), *more)
    ended = Script(*typed, cwd=ROOT, env=environment).wait()
    refuse_token(ended.stdout + ended.stderr, folder, secret)
    return "not shown, by a run to its end" if ended.returncode == 0 else "not shown, by a run that failed"


def _typed_cases() -> Iterator[Case]:
    for script in RIGHT:
        options = [f"--{name} {TOKEN}" for name in sorted({action.dest for action in parser_of(script)._actions})]
        for words in (*SPELLINGS, *options):
            name = f"{script} {words}".replace(TOKEN, "TOKEN")
            yield Case(name, lambda folder, script=script, words=words: _type(script, words, folder))


def _type(script: str, words: str, folder: Path) -> str:
    """Type a token among a script's words, up to where its work would begin."""
    written, outcome = io.StringIO(), "refused without it"
    handler = logging.StreamHandler(written)
    logging.getLogger().addHandler(handler)
    here = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(written), mock.patch.object(logging, "basicConfig"):
            lines = refusal(script, f"{RIGHT[script][0]} {words}", folder)
    except WorkBegins:
        lines, outcome = [], "taken for the name of something"
    except Exception as error:
        raise BrokenPromise(f"a traceback: {type(error).__name__}: {error}") from error
    finally:
        os.chdir(here)
        logging.getLogger().removeHandler(handler)
    refuse_token("\n".join([*lines, written.getvalue()]), folder)
    return outcome


def refuse_token(printed: str, folder: Path, secret: Path | None = None) -> None:
    """Look for the token in what was printed and in all files of a folder, but in the one that it was given by."""
    if TOKEN[3:] in printed:
        line = next(line for line in printed.splitlines() if TOKEN[3:] in line)
        raise BrokenPromise(f"it is printed: {line[:200]}")
    for path in folder.rglob("*"):
        if (
            path.is_file()
            and (secret is None or secret not in path.parents)
            and TOKEN[3:].encode() in path.read_bytes()
        ):
            raise BrokenPromise(f"it is in {path.relative_to(folder)}")
