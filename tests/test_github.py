"""The image has what the installation needs, and runs commands that there are."""

import re

import yaml

from tests.processes import ROOT
from tests.scripts.test_installation import COMMANDS, SOURCES

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def steps(job):
    return [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]


def copied():
    """The files and folders that the Dockerfile copies."""
    words = [word for line in re.findall(r"^COPY (.*)", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]]
    return [path.relative_to(ROOT).as_posix() for word in words for path in ROOT.glob(word)]


def test_the_image_gets_what_an_installation_needs():
    needed = {*SOURCES, *(path.name for path in ROOT.glob("*.py"))} - {"docs"}
    assert needed - {*copied()} == set()
    assert "docs/papers" in copied()
    assert "constraints.txt" in copied()


def test_the_image_runs_commands_of_the_project_as_another_user_than_root():
    run = [step for step in steps("image") if step.startswith("docker run")]
    named = {*re.findall(r"\bdocsplit-[a-z-]+", DOCKERFILE + " ".join(run))}
    assert named <= {*COMMANDS}
    assert named
    assert re.search(r"^USER 1000$", DOCKERFILE, re.MULTILINE)
    assert steps("image")[0].startswith("docker build")
    (python,) = re.findall(r"^FROM python:(.*)-slim$", DOCKERFILE, re.MULTILINE)
    assert python == WORKFLOW["jobs"]["check"]["steps"][1]["with"]["python-version"]
