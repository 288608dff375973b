"""Of several processes with the same error one prints it, and the launcher repeats it."""

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from docsplit.runtime import command as ending
from docsplit.runtime.command import end_with, say


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

    monkeypatch.setattr(ending, "PATIENCE", 0.01)
    return become


def errors_of(capsys, message):
    with pytest.raises(SystemExit, match="1"):
        end_with(message)
    return capsys.readouterr().err


def test_a_token_that_was_typed_in_the_wrong_place_is_not_printed(capsys):
    message = "no such repository: hf_CanaryTokenThatNobodyMaySee; --hub_token and hf_hub stay."
    assert errors_of(capsys, message) == "error: no such repository: hf_...; --hub_token and hf_hub stay.\n"


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


def test_whoever_sees_it_first_says_what_an_error_is_about(launch, capsys, monkeypatch):
    """The first process may be the one that is lost, so nobody waits for it."""
    monkeypatch.setattr(ending.time, "sleep", None)
    for rank, words, said in (
        (1, "rank 0 is stopped", "error of process 1: rank 0 is stopped\n"),
        (2, "rank 0 was killed", ""),
    ):
        launch(rank)
        say(words, about="lost")
        assert capsys.readouterr().err == said


def test_another_process_waits_for_the_first_one_and_prints_what_that_does_not(launch, capsys, monkeypatch):
    monkeypatch.setattr(ending, "PATIENCE", 60)
    launch(1)

    def first_one_prints(seconds):
        launch(0)
        assert errors_of(capsys, "no space") == "error: no space\n"
        launch(1)

    monkeypatch.setattr(ending.time, "sleep", first_one_prints)
    assert errors_of(capsys, "no space") == ""


def test_an_error_is_printed_where_the_launcher_has_gone(launch, capsys, tmp_path, monkeypatch):
    launch(0)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "0" / "error.json"))
    assert errors_of(capsys, "no space") == "error: no space\n"


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_process_prints_what_another_was_about_to_print_when_it_was_killed(is_killed, launch, capsys, monkeypatch):
    def killed(line, **options):
        raise InterruptedError

    launch(1)
    with monkeypatch.context() as patched:
        patched.setattr("builtins.print", killed)
        with pytest.raises(InterruptedError):
            say("rank 0 was killed", about="lost")
    file = launch(2)
    if not is_killed:  # it prints meanwhile
        (claim,) = (path for path in file.parents[1].iterdir() if path.is_file())
        monkeypatch.setattr(ending, "PATIENCE", 60)
        monkeypatch.setattr(ending.time, "sleep", lambda seconds: claim.write_text("printed"))
    say("rank 0 is stopped", about="lost")
    assert capsys.readouterr().err == ("error of process 2: rank 0 is stopped\n" if is_killed else "")
