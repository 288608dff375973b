"""Users see errors in one line, programmers see where a bug is, and waiting threads sleep."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from docsplit.runtime import command
from docsplit.runtime.command import as_command
from docsplit.runtime.options import find_recipe
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


def no_space():
    torch.save({"state": torch.ones(100)}, "/dev/full")


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("main", "message"),
    [
        (told, "error: --rate is 7,\n  expected 1.\n"),
        (no_file, "/no/such/file"),
        (no_space, "error: A file could not be written: "),
    ],
)
def test_what_tells_the_user_is_one_line(main, message, capsys, monkeypatch):
    with pytest.raises(SystemExit) as end:
        as_command(main)()
    assert end.value.code == 1
    assert message in capsys.readouterr().err
    monkeypatch.setenv("DOCSPLIT_TRACEBACK", "1")
    with pytest.raises((ValueError, OSError, RuntimeError)):
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


def test_each_script_is_such_a_command():
    """Installed files count too, and the module that sets the variables is imported before torch."""
    assert len(SCRIPTS) == 11
    entries = (ROOT / "pyproject.toml").read_text()
    for name in SCRIPTS:
        text = (ROOT / f"{name}.py").read_text()
        assert (f'"{name}:command"' in entries) == (name != "reproduce")  # which needs the benchmarks of a clone
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


def test_bars_in_a_file_are_a_line_every_half_minute():
    code = "import docsplit.runtime.command, tqdm; bar = tqdm.tqdm([]); print(bar.mininterval, bar.maxinterval)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TQDM_")}
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True, capture_output=True)
    assert result.stdout == "30.0 30.0\n", result.stderr


@pytest.mark.parametrize(
    ("has_gpu", "said", "expected"),
    [
        (True, {}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        (True, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, {}),
        (True, {"PYTORCH_ALLOC_CONF": ""}, {}),
        (False, {}, {}),
    ],
)
def test_memory_of_a_gpu_grows_unless_the_user_says_how(monkeypatch, tmp_path, has_gpu, said, expected):
    monkeypatch.setattr(command, "NVIDIA", tmp_path if has_gpu else tmp_path / "none")
    assert command.memory_settings({"HOME": "/"} | said) == expected


def test_torch_reads_that_variable_and_its_value(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "NVIDIA", tmp_path)
    ((name, value),) = command.memory_settings({}).items()
    assert name.encode() in (Path(torch.__file__).parent / "lib" / "libc10.so").read_bytes()
    torch._C._accelerator_setAllocatorSettings(value)  # of GPUs alone: nothing changes here
    with pytest.raises(ValueError, match="Expected 'True' or 'False'"):
        torch._C._accelerator_setAllocatorSettings(value.replace("True", "Yes"))
