"""`--help` of each script: how many options are ours, what it shows, and that nothing heavy is imported for it."""

import contextlib
import dataclasses
import importlib
import io
import json
import re
import subprocess
import sys
from inspect import get_annotations
from pathlib import Path

import pytest
from transformers import TrainingArguments

import run_aan_retrieval
import run_document_retrieval
import run_embedding_analysis
import run_probe_classification
from docsplit.training.adapt_options import AdaptOptions
from docsplit.training.arguments import PretrainingArguments
from docsplit.training.options import DataArguments, ModelArguments, TrainingOptions

ROOT = Path(__file__).parents[2]
SCRIPTS = (
    *("explore", "export_onnx", "convert_to_longformer", "search"),
    *("run_aan_retrieval", "run_document_retrieval", "run_embedding_analysis"),
    *("run_probe_classification", "run_docsplit_pretraining", "adapt", "reproduce"),
)
OWN = {  # without what scripts share (EncoderArguments, ComparisonArguments), and what objectives and queries bring
    "run_docsplit_pretraining": (
        ModelArguments,
        DataArguments,
        TrainingOptions,
        PretrainingArguments,
    ),
    "run_probe_classification": (run_probe_classification.LabelledArguments, run_probe_classification.ProbeArguments),
    "run_aan_retrieval": (run_aan_retrieval.CitationArguments, run_aan_retrieval.LinkArguments),
    "run_document_retrieval": (run_document_retrieval.RankingArguments, run_document_retrieval.RetrievalArguments),
    "run_embedding_analysis": (run_embedding_analysis.LabelledArguments, run_embedding_analysis.AnalysisArguments),
    "adapt": AdaptOptions.__mro__[:-1],
}

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


@pytest.fixture(scope="module")
def all_options():
    """The pages of `--help all`, of scripts with dataclasses of options."""
    pages = {}
    for script in OWN:
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as shown:
            patch.setattr(sys, "argv", [f"{script}.py", "--help", "all"])
            with pytest.raises(SystemExit, match="0"):
                importlib.import_module(script).main()
        pages[script] = shown.getvalue()
    return pages


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


@pytest.mark.parametrize("script", OWN)
def test_common_options_are_some_of_all(script, answered, all_options):
    short, whole = (set(re.findall(r"^  (--\w+)", page, re.M)) for page in (answered[1][script], all_options[script]))
    assert short < whole
    assert len(short) >= 6
    assert answered[1][script].endswith(f"All options: python {script}.py --help all\n")


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_example_is_broken_within_a_word(script):
    """A shell joins lines at a backslash, with the indentation of the next one between them."""
    lines = importlib.import_module(script).__doc__.split("\n")
    assert [line for line in lines if re.search(r"[^ ]\\$", line)] == []


def own_options(script):
    """Return a script's options, without TrainingArguments' and those that scripts share."""
    inherited = {field.name for field in dataclasses.fields(TrainingArguments)}
    return [name for group in OWN[script] for name in get_annotations(group) if name not in inherited]


@pytest.mark.parametrize(("script", "most"), [(name, 32 if "pretraining" in name else 21) for name in OWN])
def test_options_of_our_own_are_few(script, most, all_options):
    own = own_options(script)
    assert len(own) <= most
    assert all(f"\n  --{option} " in all_options[script] for option in own)


def test_options_of_the_small_scripts_are_fewer(answered):
    for script in set(SCRIPTS) - set(OWN):
        assert answered[1][script].count("\n  --") <= 11, script
