"""`--help` of each script: how many options are ours, what it shows, and that nothing heavy is imported for it."""

import dataclasses
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
from docsplit.training import arguments
from docsplit.training.adaptation.options import AdaptOptions

ROOT = Path(__file__).parents[2]
SCRIPTS = (
    *("explore", "export_onnx", "convert_to_longformer"),
    *("run_aan_retrieval", "run_document_retrieval", "run_embedding_analysis"),
    *("run_probe_classification", "run_docsplit_pretraining", "adapt"),
)
OWN = {  # without what scripts share (EncoderArguments, ComparisonArguments), and what objectives and queries bring
    "run_docsplit_pretraining": (arguments.ModelArguments, arguments.DataArguments, arguments.PretrainingArguments),
    "run_probe_classification": (run_probe_classification.LabelledArguments, run_probe_classification.ProbeArguments),
    "run_aan_retrieval": (run_aan_retrieval.CitationArguments, run_aan_retrieval.LinkArguments),
    "run_document_retrieval": (run_document_retrieval.RankingArguments, run_document_retrieval.RetrievalArguments),
    "run_embedding_analysis": (run_embedding_analysis.LabelledArguments, run_embedding_analysis.AnalysisArguments),
    "adapt": AdaptOptions.__mro__[:-1],
}

OURS = {"docsplit", "modeling_docsplit", "modeling_graph_document", "yaml", *SCRIPTS}

# What each script imports to answer, beyond what TrainingArguments alone does.
ANSWER = """
import contextlib, importlib, io, json, sys
sys.path.insert(0, sys.argv[1])
def answer(script):
    sys.argv = [f"{script}.py", "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        importlib.import_module(script).main()
    return shown.getvalue()
texts, scripts = {}, sys.argv[2:]
texts[scripts[0]] = answer(scripts[0])
without_torch = "torch" not in sys.modules
from transformers import TrainingArguments
before = set(sys.modules)
texts |= {script: answer(script) for script in scripts[1:]}
print(json.dumps([without_torch, sorted(set(sys.modules) - before), texts]))
"""


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    command = [sys.executable, "-c", ANSWER, str(ROOT), *SCRIPTS]
    result = subprocess.run(command, cwd=tmp_path_factory.mktemp("elsewhere"), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_help_imports_nothing_heavy(answered):
    explore_without_torch, imported, _ = answered
    assert explore_without_torch
    others = {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names}
    others -= {name for name in others if name.split(".")[0] in OURS}
    assert others <= {"transformers.hf_argparser"}
    assert "docsplit.training.arguments" in imported  # so it did answer
    heavy = {
        "docsplit.data.collators",
        "docsplit.data.sets.labelled",
        "docsplit.embedding.encode",
        "docsplit.release.hub",
    }
    assert not heavy & set(imported)


@pytest.mark.parametrize("script", SCRIPTS)
def test_examples_end_the_help_as_they_are_written(script, answered):
    text = answered[2][script]
    first, _, examples = __import__(script).__doc__.partition("\n\n")
    assert first in text.split("options:")[0]
    assert text.endswith(examples)
    assert f"    python {script}.py" in examples or f"launch {script}.py" in examples


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_example_is_broken_within_a_word(script):
    """A shell joins lines at a backslash, with the indentation of the next one between them."""
    lines = __import__(script).__doc__.split("\n")
    assert [line for line in lines if re.search(r"[^ ]\\$", line)] == []


def own_options(script):
    """Return a script's options, without TrainingArguments' and those that scripts share."""
    inherited = {field.name for field in dataclasses.fields(TrainingArguments)}
    return [name for group in OWN[script] for name in get_annotations(group) if name not in inherited]


@pytest.mark.parametrize(("script", "most"), [(name, 30 if "pretraining" in name else 20) for name in OWN])
def test_options_of_our_own_are_few(script, most, answered):
    options = own_options(script)
    assert len(options) <= most
    assert all(f"\n  --{option} " in answered[2][script] for option in options)


def test_options_of_the_small_scripts_are_fewer(answered):
    for script in set(SCRIPTS) - set(OWN):
        assert answered[2][script].count("\n  --") <= 10, script
