"""`--help` of each script: how many options are ours, what it shows, and that nothing heavy is imported for it."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = (
    *("explore", "export_onnx", "convert_to_longformer", "search"),
    *("run_aan_retrieval", "run_document_retrieval", "run_embedding_analysis"),
    *("run_probe_classification", "run_docsplit_pretraining", "adapt", "classify", "reproduce"),
)

# What all scripts together import to answer
ANSWER = """
import contextlib, importlib, io, json, sys
sys.path.insert(0, sys.argv[1])
def answer(script):
    sys.argv = [f"{script}.py", "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        importlib.import_module(script).main()
    return shown.getvalue()
texts = {script: answer(script) for script in sys.argv[2:]}
print(json.dumps([sorted(sys.modules), texts]))
"""
HEAVY = {"torch", "transformers", "sentence_transformers", "datasets", "sklearn", "scipy", "accelerate"}
LONGEST_PAGE = 60


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    command = [sys.executable, "-c", ANSWER, str(ROOT), *SCRIPTS]
    result = subprocess.run(command, cwd=tmp_path_factory.mktemp("elsewhere"), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_help_imports_nothing_heavy(answered):
    imported = set(answered[0])
    assert {"docsplit.training.options", "docsplit.index.results"} <= imported  # so they did answer
    assert not HEAVY & {name.split(".")[0] for name in imported}


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_page_is_short_and_has_the_examples_as_they_are_written(script, answered):
    text = answered[1][script]
    first, _, examples = importlib.import_module(script).__doc__.partition("\n\n")
    assert first in text
    assert examples.rstrip() in text
    assert f"    python {script}.py" in examples or f"launch {script}.py" in examples
    assert len(text.splitlines()) <= LONGEST_PAGE


MISSING = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for words in sys.argv[2].split("\\n"):
    sys.argv = words.split()
    try:
        importlib.import_module(sys.argv[0].removesuffix(".py")).main()
    except ValueError as error:
        print(error)
print(sorted({"torch", "transformers.modeling_utils"} & set(sys.modules)))
"""


def test_documents_that_are_missing_are_named_before_an_encoder_is_loaded(tmp_path):
    (tmp_path / "labelled.csv").write_text("text,label\na ship,a\nbread,b\n")
    calls = [
        "classify.py predict classifier ./none",
        "classify.py next classifier ./none",
        "classify.py fit labelled.csv --documents ./none --model encoder --output_dir new",
        "adapt.py encoder ./none new",
        "explore.py user/encoder --corpus ./none --output new.html",
    ]
    command = [sys.executable, "-c", MISSING, str(ROOT), "\n".join(calls)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    *lines, loaded = result.stdout.splitlines()
    assert len(lines) == len(calls)
    assert all(re.match(r"There is no (\./)?none: name a ", line) for line in lines)
    assert loaded == "[]"
    assert [path.name for path in tmp_path.iterdir()] == ["labelled.csv"]
