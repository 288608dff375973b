"""Users see errors in one line, programmers see where a bug is, and waiting threads sleep."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from docsplit.runtime import command
from docsplit.runtime.arguments import find_recipe
from docsplit.runtime.command import COMMANDS, as_command, as_typed, command_name, end_with, running_command
from tests.processes import ROOT, Script, start

SCRIPTS = sorted(path.stem for path in ROOT.glob("*.py") if "as_command" in path.read_text())


def told():
    raise ValueError("--rate is 7,\n  expected 1.")


def of_a_library():
    np.stack([])


def of_a_builtin():
    dict([[1]])


def no_file():
    Path("/no/such/file").read_text()


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("main", "message"), [(told, "error: --rate is 7,\n  expected 1.\n"), (no_file, "/no/such/file")]
)
def test_what_tells_the_user_is_one_line(main, message, capsys, monkeypatch):
    with pytest.raises(SystemExit) as end:
        as_command(main)()
    assert end.value.code == 1
    assert message in capsys.readouterr().err
    monkeypatch.setenv("DOCSPLIT_TRACEBACK", "1")
    with pytest.raises((ValueError, OSError)):
        as_command(main)()


@pytest.mark.parametrize("main", [of_a_library, of_a_builtin])
def test_a_bug_keeps_its_traceback(main, capsys):
    with pytest.raises(ValueError, match=r"at least one|length 1"):
        as_command(main)()
    assert capsys.readouterr().err == ""


def test_an_interrupt_is_one_line(capsys):
    with pytest.raises(SystemExit) as end:
        as_command(interrupted)()
    assert end.value.code == 130
    assert capsys.readouterr().err == "error: stopped by Ctrl-C\n"


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Make this process one of several of a launcher, which shares its folder with them."""

    def become(rank):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, str(rank))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(folder / "error.json"))
        return folder / "error.json"

    monkeypatch.setattr(command, "PATIENCE", 0.01)
    return become


def errors_of(capsys, message):
    with pytest.raises(SystemExit, match="1"):
        end_with(message)
    return capsys.readouterr().err


def test_of_processes_with_the_same_error_one_prints_it(launch, capsys):
    file = launch(0)
    assert errors_of(capsys, "no space") == "error: no space\n"
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(file))
    assert "traceback : error: no space" in str(ChildFailedError("script", {0: failure}))  # the launcher repeats it
    assert failure.timestamp > 0
    launch(1)
    assert errors_of(capsys, "no space") == ""
    assert errors_of(capsys, "another") == "error of process 1: another\n"
    launch(2)
    assert errors_of(capsys, "another") == ""


def test_another_process_waits_for_the_first_one_and_prints_what_that_does_not(launch, capsys, monkeypatch):
    monkeypatch.setattr(command, "PATIENCE", 60)
    launch(1)

    def first_one_prints(seconds):
        launch(0)
        assert errors_of(capsys, "no space") == "error: no space\n"
        launch(1)

    monkeypatch.setattr(command.time, "sleep", first_one_prints)
    assert errors_of(capsys, "no space") == ""


def test_an_error_is_printed_where_the_launcher_has_gone(launch, capsys, tmp_path, monkeypatch):
    launch(0)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "0" / "error.json"))
    assert errors_of(capsys, "no space") == "error: no space\n"


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
    monkeypatch.setattr(command, "ROOT", tmp_path)  # of an installation
    monkeypatch.setattr(sys, "argv", ["notebook.py"])
    assert (command_name("search.py"), running_command()) == ("docsplit-search", "notebook.py")


def test_each_script_is_such_a_command():
    """Installed files count too, and the module that sets the variables is imported before torch."""
    assert len(SCRIPTS) == 10
    entries = (ROOT / "pyproject.toml").read_text()
    for name in SCRIPTS:
        text = (ROOT / f"{name}.py").read_text()
        assert f'"{name}:command"' in entries
        assert text.rstrip().endswith('if __name__ == "__main__":\n    command()')
        assert text.index("from docsplit.runtime.command import") == min(
            text.index(f"\n{word} ") + 1 for word in ("import", "from") if f"\n{word} " in text
        )


@pytest.mark.parametrize("processes", [1, 2])
def test_a_script_ends_with_the_line(tmp_path, processes):
    options = ["--corpus", tmp_path / "none.jsonl", "--output_dir", tmp_path / "out", "--use_cpu"]
    env = os.environ | {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "rank" / "error.json")}
    printed = []
    for script in start("run_docsplit_pretraining.py", *options, processes=processes, env=env):
        assert script.wait(60).returncode == 1
        assert "Traceback" not in script.stderr
        printed += [line for line in script.stderr.splitlines() if line.startswith("error")]
    (line,) = printed
    assert f"There is no {tmp_path / 'none.jsonl'}: name a file or folder that is there" in line


def test_a_name_that_is_no_encoder_ends_in_a_line_too(tmp_path, corpus_file):
    options = ["--corpus", corpus_file, "--output_dir", tmp_path, "--model_name_or_path", "no-such/model", "--use_cpu"]
    script = Script("run_docsplit_pretraining.py", *options).wait(60)
    assert script.returncode == 1
    assert "Traceback" not in script.stderr
    assert "error: " in script.stderr


def test_recipes_of_other_scripts_are_not_named(tmp_path):
    script = Script("run_docsplit_pretraining.py", "quickstrat").wait(60)
    assert "quickstart" in script.stderr
    assert "probe_" not in script.stderr
    assert "retrieval_aan" not in script.stderr
    with pytest.raises(ValueError, match="for this script: probe_bbc"):
        find_recipe("bbc", set(options_of("probe_bbc")))


def options_of(name):
    return [line.split(":")[0] for line in find_recipe(name).read_text().splitlines() if ":" in line]


def test_waiting_threads_sleep():
    """OpenMP itself says so, once torch is there."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = "import docsplit.runtime.command, torch"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment | {"OMP_DISPLAY_ENV": "true"},
        text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in result.stderr


def test_threads_wait_as_the_user_wants():
    code = "import docsplit.runtime.command, os, sys; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    environment = os.environ | {"OMP_WAIT_POLICY": "ACTIVE"}
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True)
    assert printed == "ACTIVE False\n"
