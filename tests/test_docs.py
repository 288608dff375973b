"""The documents are right: the tutorial runs, and the options, files and messages that they name exist."""

import ast
import importlib
import json
import os
import re
import shlex
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import run_aan_retrieval
import run_document_retrieval
import run_embedding_analysis
import run_probe_classification
from docsplit import Index
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.training import run_arguments
from docsplit.training.adapt_options import AdaptOptions
from tests.processes import ROOT, run

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL_PAGES = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "model_cards/README.md"))]
ARGUMENTS = {
    "adapt.py": [AdaptOptions],
    "run_docsplit_pretraining.py": [
        run_arguments.ModelArguments,
        run_arguments.DataArguments,
        run_arguments.QueryArguments,
        run_arguments.PretrainingArguments,
        *(row.Options for row in run_arguments.OBJECTIVES.values()),
    ],
    "run_probe_classification.py": [
        EncoderArguments, run_probe_classification.LabelledArguments, run_probe_classification.ProbeArguments,
    ],
    "run_aan_retrieval.py": [
        EncoderArguments, run_aan_retrieval.CitationArguments, run_aan_retrieval.LinkArguments,
    ],
    "run_document_retrieval.py": [
        EncoderArguments, run_document_retrieval.RankingArguments, run_document_retrieval.RetrievalArguments,
    ],
    "run_embedding_analysis.py": [
        EncoderArguments, run_embedding_analysis.LabelledArguments, run_embedding_analysis.AnalysisArguments,
    ],
}  # fmt: skip


def options_of(dataclass_types):
    return {"--help", *(f"--{field.name}" for dtype in dataclass_types for field in fields(dtype))}


def commands(page):
    """(command, the marker before it) of each indented block: comments left out, continued lines joined."""
    blocks = []
    for block in re.findall(r"((?:^<!--.*-->\n)?(?:^    .*\n?)+)", page.read_text(), flags=re.MULTILINE):
        marker, _, text = block.partition("-->\n") if block.startswith("<!--") else ("", "", block)
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            if line.strip().startswith(("python ", "accelerate launch ", "docsplit-")):
                blocks.append((line.partition("  # ")[0].strip(), marker))
    return blocks


ALL = [(page.name, command) for page in PAGES for command, _ in commands(page)]


@pytest.mark.parametrize(("page", "command"), ALL)
def test_a_command_names_scripts_recipes_and_options_that_exist(page, command):
    words = [word for word in shlex.split(command) if word != "..."]
    if words[0].startswith("docsplit-"):  # of an installation, which finds recipes by name
        (module,) = re.findall(rf'^{words[0]} = "(\w+):command"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        recipe = [f"recipes/{word}.yaml" for word in words[1:2] if "run_" in module and not word.startswith("--")]
        words = [f"{module}.py", *recipe, *words[1 + len(recipe) :]]
    if scripts := [word for word in words if word.endswith(".py")]:
        (script,) = scripts
        after = words[words.index(script) + 1 :]
    else:
        assert words[:2] == ["python", "-m"], command
        script, after = f"{words[2].replace('.', '/')}.py", words[3:]
    source = (ROOT / script).read_text()
    if "run_study(" in source:  # which adds the options that all studies have to those of a dictionary
        source = re.sub(r'"(\w+)": \{', r'"--\1"', source) + (ROOT / "benchmarks/engine/cells.py").read_text()
    if "make_parser(" in source:
        source += (ROOT / "benchmarks/speed/meters.py").read_text()
    known = options_of(ARGUMENTS[script]) if script in ARGUMENTS else {*re.findall(r'"(--\w+)"', source)}
    for word in after:
        if " " in word:  # options that are passed on
            passed_on = {option for option in word.split() if option.startswith("--")}
            assert passed_on <= set().union(*map(options_of, ARGUMENTS.values()))
        else:
            assert not word.startswith("recipes/") or (ROOT / word).exists(), word
            assert not word.startswith("--") or word.partition("=")[0] in known, word


def texts_in(path):
    """The texts of a page, or of a program: messages, help and docstrings."""
    if path.suffix == ".md":
        return path.read_text()
    values = (getattr(node, "value", None) for node in ast.walk(ast.parse(path.read_text())))
    return "\n".join(value for value in values if isinstance(value, str) and " " in value)


def test_options_that_messages_and_pages_name_exist():
    sources = [*ROOT.glob("*.py"), *(ROOT / "docsplit").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    known = set().union(*map(options_of, ARGUMENTS.values()))
    for text in (path.read_text() for path in sources):
        known |= {*re.findall(r'add(?:_argument)?\(\s*(?:"-\w", )?"(--\w+)"', text)}
        known |= {
            f"--{name}" for name in re.findall(r'^ +"(\w+)": \{"(?:required|help|default|type)', text, re.MULTILINE)
        }
    others = "--quiet --multi_gpu --num_processes --num_machines --machine_rank --main_process_ip --main_process_port "
    others += "--mixed_precision --nnodes --nproc_per_node --rdzv_backend --rdzv_endpoint --bytes --links --logdir"
    own = "--against --write --evaluation --per_device_ --option"  # parsed by hand, or of tests; a beginning; made up
    for path in [*ALL_PAGES, *sources]:
        named = {*re.findall(r"(?<![\w-])--[a-z]\w*(?![\w-])", texts_in(path))}
        assert named <= known | {*others.split(), *own.split()}, path


@pytest.fixture
def reader(tmp_path, corpus_file):
    """Return a function that runs commands as somebody who has cloned the repository, in `tmp_path`."""
    for path in [*ROOT.glob("*.py"), ROOT / "recipes", ROOT / "docsplit", ROOT / "model_cards"]:
        (tmp_path / path.name).symlink_to(path)
    lines = corpus_file.read_text().splitlines(keepends=True)
    (tmp_path / "documents.jsonl").write_text("".join(lines[:-30]))
    (tmp_path / "test.jsonl").write_text("".join(lines[-30:]))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    return partial(run, cwd=tmp_path, env=environment)


def runnable(page):
    """The words after `python` of each command of a page that needs nothing but the repository."""
    texts = [command for command, marker in commands(ROOT / "docs" / page) if "needs" not in marker]
    assert all(text.startswith("python ") for text in texts)
    pairs = [list(zip(words := shlex.split(text), ["", *words])) for text in texts]
    return [["4" if before == "--max_steps" else word for word, before in line[1:]] for line in pairs]


def test_the_tutorial_runs_as_it_is_written_and_then_publishing_and_searching(tmp_path, reader):
    tutorial, publishing, searching = map(runnable, ("tutorial.md", "publishing.md", "searching.md"))
    assert (len(tutorial), len(publishing), len(searching)) == (4, 2, 10)
    assert (publishing.pop()[0], searching.pop()[0]) == ("export_onnx.py", "explore.py")  # which have tests of theirs
    for words in tutorial:
        reader(*words)
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), flags=re.DOTALL)
    result = reader("-c", snippet)
    assert result.stdout.splitlines()[-1] == "(2, 64)", result.stderr
    card = ModelCard.load(tmp_path / "outputs" / "tutorial" / "README.md")
    assert any("linear" in entry.metric_name for entry in card.data.eval_results)
    assert (tmp_path / "outputs" / "tutorial.html").stat().st_size > 10_000

    (tmp_path / "outputs" / "tutorial").rename(tmp_path / "outputs" / "mine")
    for words in publishing:
        reader(*words)
    assert ModelCard.load(tmp_path / "outputs" / "mine" / "README.md").data.license == "apache-2.0"

    (tmp_path / "documents" / "drafts").mkdir(parents=True)
    texts = [json.loads(line)["text"] for line in (tmp_path / "documents.jsonl").read_text().splitlines()]
    for name, text in zip(("bread.md", "ship.md", "garden.txt", "drafts/old.md"), texts):
        (tmp_path / "documents" / name).write_text(text)
    for words in searching:
        reader(*words)
    assert len(Index(tmp_path / "outputs" / "mine.index")) == 4 - 1  # one was deleted


def prose_of(page):
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def headings(page):
    """Return the anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", prose_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", prose_of(page)):
        if not target.startswith("http"):
            other = page.parent / target if target else page
            assert other.exists(), target
            assert not anchor or anchor in headings(other), f"{target}#{anchor}"


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_modules_and_names_exist(page):
    roots = "|".join(["docsplit", "benchmarks", *(path.stem for path in ROOT.glob("*.py"))])
    for name in set(re.findall(rf"(?<![\w./-])(?:{roots})(?:\.\w+)+", page.read_text())):
        if name.rpartition(".")[2] in ("py", "md", "yaml", "html"):
            continue
        parts, value = name.split("."), None
        for end in range(1, len(parts) + 1):  # a module first: `docsplit.embedding.encode` has a function of its name
            module = ROOT.joinpath(*parts[:end])
            if value is None or module.is_dir() or module.with_suffix(".py").exists():
                value = importlib.import_module(".".join(parts[:end]))
            else:
                assert hasattr(value, parts[end - 1]), name
                value = getattr(value, parts[end - 1])


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_files_and_tests_exist(page):
    text = page.read_text()
    folders = "docsplit|tests|benchmarks|recipes|docs|model_cards"
    for path in set(re.findall(rf"(?<![\w./-])(?:{folders})/[\w./-]*\w", text)):
        made_up = "NAME" in path or path == "recipes/projected_info_nce.yaml"
        assert made_up or (ROOT / path).exists(), path
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in set(re.findall(r"`(test_\w+)`", text)):
        assert f"def {name}(" in sources, name
    assert not re.findall(r"`test_\w+\.py`", text)  # which folder?
