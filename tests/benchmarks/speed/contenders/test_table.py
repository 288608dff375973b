"""The table of contenders is served over a pipe, and what is not installed is left out."""

from benchmarks.speed.contenders.encoding import EncodingContender
from benchmarks.speed.contenders.table import CONTENDERS, serve


def test_what_is_not_installed_is_left_out(job, monkeypatch):
    class Missing(EncodingContender):
        def __init__(self, job):
            import a_package_that_is_missing  # noqa: F401

    class Pipe:
        def __init__(self):
            self.answers = []
            self.requests = iter([("prepare",), None])

        def recv(self):
            return next(self.requests)

        def send(self, answer):
            self.answers.append(answer)

    monkeypatch.setitem(CONTENDERS, "missing", Missing)
    pipe = Pipe()
    serve("missing", job, pipe)
    assert pipe.answers == [("unavailable", "a_package_that_is_missing is not installed")]
