"""What a person types to run a script: hints, errors and examples name commands as they are there.

A clone has scripts, `python search.py`; an installation has commands, `docsplit-search`.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from docsplit.runtime.files import ROOT

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
