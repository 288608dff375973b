"""What runs elsewhere: the workflow, the issue forms and the Dockerfile name only what is there."""

import fnmatch
import os
import re

import pytest
import yaml

from docsplit.runtime.files import versions
from tests.processes import ROOT
from tests.scripts.test_installation import COMMANDS, SOURCES

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
CI = (ROOT / ".ci" / "run").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()


def targets(text):
    """The targets of all calls of make."""
    calls = re.findall(r"^(?:.*run: |\s*)make (.+?)(?:#.*)?$", text, re.MULTILINE)
    return [word for call in calls for word in call.split() if "=" not in word and not word.startswith("-")]


def steps(job):
    return [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]


def test_the_workflow_does_what_the_check_here_does():
    assert targets(CI) == ["install-dev", "lint", "test"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert steps("check") == [".ci/run"]
    assert steps("test") == ["make test"]
    for target in [*targets(CI), "test"]:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    assert re.search(r"^test: install-dev", MAKEFILE, re.MULTILINE)  # a fresh runner has no environment
    assert re.search(r"^WORKERS \?=", MAKEFILE, re.MULTILINE)  # so that the workflow can set it
    assert isinstance(WORKFLOW["env"]["WORKERS"], int)


def test_every_python_that_the_project_names_is_tested():
    (lowest,) = re.findall(r'requires-python = ">=(.*)"', PROJECT)
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    setups = [step["with"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "with" in step]
    tested = {setup["python-version"] for setup in setups} - {"${{ matrix.python }}"}
    tested |= {*WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"]}
    assert tested == {*named}
    assert named[0] == lowest
    for setup in setups:
        for pattern in setup["cache-dependency-path"].split():
            assert [*ROOT.glob(pattern)], pattern


def test_torch_comes_without_cuda_and_old_runs_end():
    assert WORKFLOW["env"]["PIP_EXTRA_INDEX_URL"] == "https://download.pytorch.org/whl/cpu"
    assert WORKFLOW["concurrency"]["cancel-in-progress"] is True
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 60 for job in WORKFLOW["jobs"].values())


@pytest.mark.parametrize("path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_a_form_asks_for_what_exists(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= {*form}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    identifiers = [field["id"] for field in fields]
    assert len({*identifiers}) == len(fields) > 1
    for name in re.findall(r"[\w/.-]+\.md", path.read_text()):
        assert (ROOT / name).exists(), name


def test_the_bug_form_asks_for_versions_with_a_command_that_works(capsys):
    (command,) = re.findall(r"`python -c '(.*?)'`", (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    exec(command, {})
    assert versions()["torch"] in capsys.readouterr().out


# --- The image: no docker is needed to see that its context has what the installation needs ---


def copied():
    """The files and folders that the Dockerfile copies."""
    words = [word for line in re.findall(r"^COPY (.*)", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]]
    return [path.relative_to(ROOT).as_posix() for word in words for path in ROOT.glob(word)]


def test_the_image_gets_what_an_installation_needs():
    needed = {*SOURCES, *(path.name for path in ROOT.glob("*.py"))} - {"docs"}
    assert needed - {*copied()} == set()
    assert "docs/papers" in copied()
    assert "constraints.txt" in copied()


def test_nothing_that_the_image_copies_is_ignored():
    first, *rest = (ROOT / ".dockerignore").read_text().splitlines()
    assert first == "*"
    allowed = [line.removeprefix("!") for line in rest if line.startswith("!")]
    for name in copied():
        assert any(fnmatch.fnmatch(name, pattern) for pattern in allowed), name
    assert all([*ROOT.glob(pattern)] for pattern in allowed)


def test_the_image_runs_commands_of_the_project_as_another_user_than_root():
    run = [step for step in steps("image") if step.startswith("docker run")]
    named = {*re.findall(r"\bdocsplit-[a-z-]+", DOCKERFILE + " ".join(run))}
    assert named <= {*COMMANDS}
    assert named
    assert re.search(r"^USER 1000$", DOCKERFILE, re.MULTILINE)
    assert steps("image")[0].startswith("docker build")
    (python,) = re.findall(r"^FROM python:(.*)-slim$", DOCKERFILE, re.MULTILINE)
    assert python == WORKFLOW["jobs"]["check"]["steps"][1]["with"]["python-version"]
