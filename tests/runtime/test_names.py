"""Commands are named as they are typed where the code lies."""

import re
import sys

import pytest

from docsplit.runtime import command as names
from docsplit.runtime.command import COMMANDS, as_typed, command_line, command_name, running_command
from tests.processes import ROOT


def test_commands_are_those_that_are_installed():
    installed = re.findall(r'^(docsplit-\S+) = "(\w+):command"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert {f"{script}.py": name for name, script in installed} == COMMANDS


def test_a_command_is_named_as_it_is_typed(monkeypatch, tmp_path):
    text = "    accelerate launch --quiet --multi_gpu --num_processes 2 adapt.py a\n"
    text += "    python search.py b; search.py adds\n    python adapt.py recipes/small.yaml research.py"
    monkeypatch.setattr(sys, "argv", ["somewhere/search.py"])
    assert (command_name("search.py"), running_command()) == ("python search.py", "python search.py")
    assert as_typed(text) == text
    monkeypatch.setattr(sys, "argv", ["bin/docsplit-search"])  # of an installation that one edits
    assert (command_name("adapt.py"), running_command()) == ("docsplit-adapt", "docsplit-search")
    assert as_typed(text).splitlines() == [
        "    accelerate launch --quiet --multi_gpu --num_processes 2 -m adapt a",
        "    docsplit-search b; docsplit-search adds",
        "    docsplit-adapt small research.py",
    ]
    (tmp_path / "docsplit" / "recipes").mkdir(parents=True)
    monkeypatch.setattr(names, "ROOT", tmp_path)  # of an installation
    monkeypatch.setattr(sys, "argv", ["notebook.py"])
    assert (command_name("search.py"), running_command()) == ("docsplit-search", "notebook.py")


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        ("adapt.py", "python search.py build 'my notes'"),
        ("FOLDER/adapt.py", "python FOLDER/search.py build 'my notes'"),
        ("/usr/bin/docsplit-adapt", "docsplit-search build 'my notes'"),
        ("/usr/bin/other_script.py", "python search.py build 'my notes'"),
    ],
)
def test_the_next_command_is_called_as_the_running_one_was(running, expected, tmp_path, monkeypatch):
    (tmp_path / "search.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [running.replace("FOLDER", str(tmp_path))])
    assert command_line("search.py", "build", "my notes") == expected.replace("FOLDER", str(tmp_path))
