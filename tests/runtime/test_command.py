"""Users see errors in one line, programmers see where a bug is, and nothing that is printed acts on a terminal."""

import io
import json
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from docsplit.runtime import command
from docsplit.runtime.command import (
    LOST,
    Style,
    as_command,
    as_json,
    command_line,
    command_name,
    end_with,
    running_command,
    shown,
    shown_lines,
    with_installed_commands,
)
from tests.processes import ROOT


def told():
    raise ValueError("--rate is 7,\n  expected 1.")


def lost():
    raise dist.DistError("broken pipe")


def lost_over_gloo():
    raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc] Timed out")


@pytest.mark.parametrize(
    ("main", "message"),
    [
        (told, "error: --rate is 7,\n  expected 1.\n"),
        (lambda: int("x"), "invalid literal for int() with base 10: 'x' (DOCSPLIT_TRACEBACK=1 shows where.)\n"),
        (lambda: Path("/no/such/file").read_text(), "/no/such/file"),
        (lambda: torch.save(torch.ones(100), "/dev/full"), "error: A file could not be written: "),
        (lambda: torch.compile(torch.nn.Linear(2, 2), backend="foo"), "error: Invalid backend: 'foo'"),
        (lost, f"error: {LOST}\n"),
        (lost_over_gloo, f"error: {LOST}\n"),
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


@pytest.mark.skipif(os.name == "nt", reason="its pipes end otherwise")
def test_a_reader_that_closes_the_pipe_hears_nothing():
    code = "from docsplit.runtime.command import as_command; as_command(lambda: print('line\\n' * 10**6))()"
    call = f"{sys.executable} -c {shlex.quote(code)} | head -1"
    result = subprocess.run(call, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("line\n", "")


def test_a_bug_keeps_its_traceback_and_an_interrupt_has_its_own_code(capsys):
    for error in (KeyError("x"), RuntimeError("x"), TypeError("x")):
        with pytest.raises(type(error)):
            as_command(lambda error=error: exec("raise error", {"error": error}))()
    assert capsys.readouterr().err == ""
    with pytest.raises(SystemExit) as end:
        as_command(lambda: exec("raise KeyboardInterrupt"))()
    assert end.value.code == 130
    assert capsys.readouterr().err == "error: stopped by Ctrl-C\n"


def test_of_processes_with_the_same_error_one_prints_it(tmp_path, monkeypatch, capsys):
    def printed(rank, message):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / str(rank) / "error.json"))
        with pytest.raises(SystemExit, match="3"):
            end_with(message, code=3)
        return capsys.readouterr().err

    assert [printed(rank, "no space") for rank in (1, 0, 2)] == ["error: no space\n", "", ""]
    assert [printed(rank, "another") for rank in (0, 1)] == ["error: another\n", ""]
    assert printed("gone/away", "no space") == "error: no space\n"  # with the launcher, its folder
    token = "no such repository: hf_CanaryTokenThatNobodyMaySee; --hub_token and hf_hub stay."
    assert printed(0, token) == "error: no such repository: hf_...; --hub_token and hf_hub stay.\n"


def test_threads_and_bars_are_quiet_unless_the_user_says_how():
    names = ("OMP_WAIT_POLICY", "TQDM_MININTERVAL", "TQDM_MAXINTERVAL")
    code = f"import docsplit.runtime.command, os, sys; print(*map(os.environ.get, {names}), 'torch' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name not in names} | {"TQDM_MININTERVAL": "1"}
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True, capture_output=True)
    assert result.stdout.strip() == "PASSIVE 1 30 False", result.stderr


def test_a_command_is_named_as_it_is_typed(monkeypatch, tmp_path):
    text = "    accelerate launch --quiet --multi_gpu --num_processes 2 adapt.py a\n"
    text += "    python search.py b; search.py adds\n    python adapt.py recipes/small.yaml research.py"
    monkeypatch.setattr(sys, "argv", ["somewhere/search.py"])
    assert (command_name("search.py"), running_command()) == ("python search.py", "python search.py")
    assert with_installed_commands(text) == text
    monkeypatch.setattr(sys, "argv", ["bin/docsplit-search"])  # of an installation that one edits
    assert (command_name("adapt.py"), running_command()) == ("docsplit-adapt", "docsplit-search")
    assert with_installed_commands(text).splitlines() == [
        "    accelerate launch --quiet --multi_gpu --num_processes 2 -m adapt a",
        "    docsplit-search b; docsplit-search adds",
        "    docsplit-adapt small research.py",
    ]
    (tmp_path / "docsplit" / "recipes").mkdir(parents=True)
    monkeypatch.setattr(command, "ROOT", tmp_path)  # of an installation
    monkeypatch.setattr(sys, "argv", ["notebook.py"])
    assert (command_name("search.py"), running_command()) == ("docsplit-search", "notebook.py")


def test_the_next_command_is_called_as_the_running_one_was(tmp_path, monkeypatch):
    (tmp_path / "search.py").touch()
    for running, expected in (
        (f"{tmp_path}/adapt.py", f"python {tmp_path}/search.py"),
        ("/usr/bin/docsplit-adapt", "docsplit-search"),
        ("/usr/bin/other_script.py", "python search.py"),
    ):
        monkeypatch.setattr(sys, "argv", [running])
        assert command_line("search.py", "build", "my notes") == f"{expected} build 'my notes'"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_marks_are_for_terminals_that_want_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Style.of(Terminal()).has_marks
    assert not Style.of(io.StringIO()).has_marks
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert not Style.of(Terminal()).has_marks
    monkeypatch.setenv("COLUMNS", "7")
    assert Style.of(Terminal()).width == 40


def test_a_document_has_its_title_first_and_its_id_whole():
    style = Style(80)
    assert style.document("a.txt", "A ship", "  1  ") == "  1  A ship  [a.txt]"
    assert style.document("a.txt", "a.txt") == style.document("a.txt", "") == "a.txt"
    long = style.document("folder/a.txt", "t" * 100)
    assert len(long) == 80
    assert long.endswith("t…  [folder/a.txt]")
    counted = style.document("a.txt", "t" * 100, after=" and 7 copies")
    assert (len(counted), counted.endswith("t…  [a.txt] and 7 copies")) == (80, True)
    assert style.document("i" * 60, "t" * 100) == f"{'t' * 39}…  [{'i' * 60}]"
    assert Style(80, has_marks=True).document("a", "b") == "\033[1mb\033[0m  \033[2m[a]\033[0m"
    assert style.document("a\x1b]0;x\n", "\x1b[31mred\n ship \u202e") == r"\x1b[31mred ship \u202e  [a\x1b]0;x\n]"


def test_nothing_that_acts_on_a_terminal_reaches_it():
    acting = [*range(32), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
    for character in map(chr, [*acting, 0xD800, 0xDFFF]):
        text = f"a{character}b"
        assert shown(text) == f"a{character.encode('unicode_escape').decode()}b"
        assert shown_lines(text) == (text if character in "\t\n" else shown(text))
        line = as_json({text: [text]})
        assert line.isprintable()
        assert json.loads(line) == {text: [text]}
    harmless = "Größe, 大きさ, حجم, क्षत्रिय, 👩\u200d👩\u200d👧, a\u00a0b \\x1b"
    assert shown(harmless) == shown_lines(harmless) == harmless
    assert as_json(harmless) == json.dumps(harmless, ensure_ascii=False)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_what_the_output_cannot_hold_is_printed_as_a_code(encoding):
    """In results, which stay JSON, in logs and in errors."""
    code = """
import sys
from docsplit.runtime.command import as_command, as_json
def main():
    print(as_json({"text": "\U0001f989 caf\u00e9"}))
    print("\U0001f989", file=sys.stderr)
    raise ValueError("\U0001f989 is no name")
as_command(main)()"""
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True)
    assert done.returncode == 1
    assert json.loads(done.stdout.decode(encoding)) == {"text": "\U0001f989 caf\u00e9"}
    owl = "\U0001f989" if encoding == "utf-8" else r"\ud83e\udd89"
    assert done.stderr.decode(encoding).splitlines()[0] == owl
    assert f"error: {owl} is no name" in done.stderr.decode(encoding)


def test_logs_and_errors_of_a_command_are_harmless(capsys, monkeypatch):
    monkeypatch.setattr(logging, "_logRecordFactory", logging.LogRecord)  # as it was, after the test
    handler = logging.StreamHandler(stream := io.StringIO())
    logging.getLogger("documents").addHandler(handler)

    def main():
        command.protect_logs()  # twice is once
        logging.getLogger("documents").warning("%s is\nskipped: %d %%", "a\x1b[2J.txt", 5)
        logging.getLogger("documents").warning("100 % of \x9b2J")
        raise ValueError("b\x1b[2J.txt is\nno text")

    with pytest.raises(SystemExit):
        as_command(main)()
    logging.getLogger("documents").removeHandler(handler)
    assert stream.getvalue() == "a\\x1b[2J.txt is\nskipped: 5 %\n100 % of \\x9b2J\n"
    assert capsys.readouterr().err == "error: b\\x1b[2J.txt is\nno text\n"
