"""A question to `search.py serve`, beside the command `search.py query` and beside txtai's server.

    python -m benchmarks.speed.serving notes.index
    python -m benchmarks.speed.serving notes.index --minutes 1 --peer venv/bin/python   # which has txtai[api]

Questions are the beginnings of passages of the index, each asked once; servers are processes of their own.

    command     one process of search.py query a question
    one         one question after another, after the first
    ten         ten questions at a time: seconds that each waits, and questions answered in a second
    processor   seconds of all cores for a question, asked one after another
    memory      what the server has allocated; mapped files do not count

txtai's index has the same documents whole, with the same encoder, as hybrid search of its defaults makes it. The
change is asked of a copy: minutes of questions, ten at a time, while another process syncs a folder of it twenty times
between. Each sync puts a new word into the folder, which has to be found at once. Memory is looked up after each sync.
"""

import contextlib
import http.client
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from benchmarks.speed.meters import kilobytes, make_parser, seconds_of, write_results
from docsplit.index.api import Index
from docsplit.index.index import IndexReader
from docsplit.runtime.files import ROOT, versions
from docsplit.runtime.launching import hardware

COMMANDS, QUESTIONS, SYNCS, NOTES, WORDS = 3, 200, 20, 50, 12
SEARCH = [sys.executable, str(ROOT / "search.py")]
BUILD_PEER = """
import json, sys
from txtai import Embeddings
encoder, documents, folder = sys.argv[1:]
index = Embeddings(path=encoder, hybrid=True, content=True)
index.index((row["id"], row["text"]) for row in map(json.loads, open(documents)))
index.save(folder)
"""
SERVE_PEER = """
import sys, uvicorn
uvicorn.run("txtai.api:app", host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""


class Client:
    """One connection to a server, which stays open."""

    def __init__(self, port: int, path: str):
        self.connection, self.path = http.client.HTTPConnection("127.0.0.1", port, timeout=60), path

    def ask(self, question: str) -> Any:
        """Return the answer to a question; an OSError for a status that is no success."""
        self.connection.request("GET", self.path + quote(question))
        response = self.connection.getresponse()
        answer = json.loads(response.read())
        if response.status != http.HTTPStatus.OK:
            raise OSError(f"{response.status}: {answer}")
        return answer


@contextlib.contextmanager
def ours(index: Path) -> Iterator[tuple[int, int]]:
    """Start search.py serve, and return its port and its process."""
    command = [*SEARCH, "serve", str(index), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = urlsplit(json.loads(server.stdout.readline())["url"]).port
        assert port is not None
        try:
            yield port, server.pid
        finally:
            server.kill()


@contextlib.contextmanager
def theirs(python: Path, index: Path, folder: Path) -> Iterator[tuple[int, int]]:
    """Index the same documents by txtai, start its server, and return its port and its process."""
    reader = IndexReader(index)
    rows = ({"id": segment.ids[row], "text": segment.texts[row]} for segment, row in reader.documents())
    (folder / "documents.jsonl").write_text("\n".join(map(json.dumps, rows)))
    encoder = reader.manifest.encoder["name"]
    build = [str(python), "-c", BUILD_PEER, encoder, str(folder / "documents.jsonl"), str(folder / "index")]
    subprocess.run(build, check=True)
    (folder / "config.yml").write_text(json.dumps({"path": str(folder / "index"), "embeddings": {"path": encoder}}))
    port, environment = 8799, os.environ | {"CONFIG": str(folder / "config.yml")}
    with subprocess.Popen([str(python), "-c", SERVE_PEER, str(port)], env=environment) as server:
        try:
            while True:
                time.sleep(0.5)
                with contextlib.suppress(ConnectionError):
                    Client(port, "/count?").ask("")
                    break
            yield port, server.pid
        finally:
            server.kill()


def processor_seconds(process: int) -> float:
    """Return the seconds of all cores that a process has had (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def measure(port: int, process: int, path: str, questions: list[str]) -> dict[str, float]:
    """Measure a server: one question after another, then ten at a time."""
    client = Client(port, path)
    for question in questions[:5]:
        client.ask(question)
    before = processor_seconds(process)
    single = [seconds_of(client.ask, question) for question in questions[5:55]]
    each = (processor_seconds(process) - before) / len(single)
    local = threading.local()

    def ask(question: str) -> float:
        if not hasattr(local, "client"):
            local.client = Client(port, path)
        return seconds_of(local.client.ask, question)

    started = time.perf_counter()
    with ThreadPoolExecutor(10) as threads:
        waited = list(threads.map(ask, questions[55:]))
    return {
        "one": statistics.median(single),
        "ten": statistics.median(waited),
        "ten_a_second": len(waited) / (time.perf_counter() - started),
        "processor": each,
        "memory": 1024 * kilobytes(f"/proc/{process}/status", "RssAnon"),
    }


def measure_changes(index: Path, folder: Path, questions: list[str], minutes: float) -> dict[str, Any]:
    """Ask a copy of an index for minutes, ten at a time, with syncs between: errors and memory."""
    copy, notes = folder / "changing.index", folder / "notes"
    shutil.copytree(index, copy)
    notes.mkdir()
    failures, memory, asked, stop = list[str](), list[int](), itertools.count(), threading.Event()

    def word_of(version: int) -> str:
        return f"zyx{chr(ord('a') + version)}"  # a number would be a word of its own

    def write(version: int) -> str:
        for number in range(NOTES):
            (notes / f"{number}.txt").write_text(f"Note {number} of a {word_of(version)}. {questions[number]}.")
        return word_of(version)

    def keep_asking(number: int, port: int) -> None:
        client = Client(port, "/query?count=10&text=")
        while not stop.is_set():
            try:
                if not client.ask(questions[next(asked) % len(questions)])["rows"]:
                    failures.append("no hit")
            except Exception as error:
                failures.append(repr(error))
                client = Client(port, "/query?count=10&text=")

    write(0)
    changing = Index(copy)
    changing.add(notes)
    with ours(copy) as (port, process), ThreadPoolExecutor(10) as threads:
        for number in range(10):
            threads.submit(keep_asking, number, port)
        try:
            for version in range(1, SYNCS + 1):
                until, word = time.monotonic() + 60 * minutes / SYNCS, write(version)
                changing.sync(notes)
                rows = Client(port, "/query?count=100&method=bm25&text=").ask(word)["rows"]
                old = Client(port, "/query?count=100&method=bm25&text=").ask(word_of(version - 1))["rows"]
                if len(rows) != NOTES or old:
                    failures.append(f"{len(rows)} of {NOTES} notes with {word}, {len(old)} with the word before")
                memory.append(1024 * kilobytes(f"/proc/{process}/status", "RssAnon"))
                time.sleep(max(until - time.monotonic(), 0))
        finally:
            stop.set()
    return {"minutes": minutes, "syncs": SYNCS, "questions": next(asked), "failures": failures[:10], "memory": memory}


def markdown(results: dict[str, Any]) -> str:
    """Write the tables, with what the rows mean, which this module's docstring says."""
    *_, measures, about = (__doc__ or "").strip().split("\n\n")
    rows, changes = results["rows"], results["changes"]
    lines = [f"| | {' | '.join(rows)} |", f"|---|{'---|' * len(rows)}"]
    for name, unit, factor in (
        ("one", "ms", 1e3), ("ten", "ms", 1e3), ("ten_a_second", "a second", 1), ("processor", "ms", 1e3),
        ("memory", "MB", 1e-6),
    ):  # fmt: skip
        cells = [f"{round(factor * row[name]):,} {unit}" if name in row else "" for row in rows.values()]
        lines.append(f"| {name.partition('_')[0]} | {' | '.join(cells)} |")
    megabytes = ", ".join(f"{part / 1e6:,.0f}" for part in changes["memory"])
    said = (
        f"{changes['minutes']:g} minutes: {changes['questions']:,} questions, {changes['syncs']} syncs, "
        f"{len(changes['failures'])} failures. Megabytes after each sync: {megabytes}."
    )
    head = f"{results['hardware']}; {results['documents']:,} documents, {results['encoder']}."
    return f"# Serving\n\n{head}\n\n{measures}\n\n" + "\n".join(lines) + f"\n\n{about}\n\n{said}\n"


def main() -> None:
    """Measure all, and write JSON and tables."""
    parser = make_parser(__doc__, "serving.json")
    parser.add_argument("index", type=Path)
    parser.add_argument("--minutes", type=float, default=10, help="of questions with syncs between (default: 10)")
    parser.add_argument("--peer", type=Path, help="python of an environment with txtai[api]")
    options = parser.parse_args()
    reader = IndexReader(options.index)
    chosen = itertools.islice(reader.passages(), 0, None, max(reader.num_passages() // QUESTIONS, 1))
    beginnings = [" ".join(about["text"].split()[:WORDS]) for about, _ in chosen]
    questions = [*itertools.islice(itertools.cycle(beginnings), QUESTIONS)]
    rows: dict[str, dict[str, float]] = {}
    results: dict[str, Any] = {
        "documents": len(reader), "encoder": Path(reader.manifest.encoder["name"]).name, "rows": rows,
        "hardware": hardware("cpu"), "versions": versions(),
    }  # fmt: skip

    def command(question: str) -> Any:
        return subprocess.run(
            [*SEARCH, "query", str(options.index), question, "--json"], check=True, capture_output=True
        )

    before = children_seconds()
    waited = [seconds_of(command, question) for question in questions[:COMMANDS]]
    rows["search.py query"] = {
        "one": statistics.median(waited), "processor": (children_seconds() - before) / COMMANDS,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with ours(options.index) as (port, process):
            rows["search.py serve"] = measure(port, process, "/query?count=10&text=", questions)
        if options.peer:
            with theirs(options.peer, options.index, folder) as (port, process):
                rows["txtai"] = measure(port, process, "/search?limit=10&query=", questions)
        results["changes"] = measure_changes(options.index, folder, questions, options.minutes)
    write_results(options.output, results, markdown(results))
    print(markdown(results))


def children_seconds() -> float:
    """Return the seconds of all cores that finished processes of this one have had."""
    return os.times().children_user + os.times().children_system


if __name__ == "__main__":
    main()
