"""Open indexes answer as `search.py query --json` does, take changes over whole, and answer nobody else."""

import contextlib
import http.client
import json
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from urllib.parse import urlencode

import pytest

import search
from docsplit import Index
from docsplit.data.fusion import FUSIONS
from docsplit.index import api, serving
from docsplit.index.index import read_manifest
from docsplit.index.results import METHODS
from docsplit.index.serving import Server
from docsplit.runtime.files import ROOT
from tests.conftest import make_corpus
from tests.scripts.test_explore import BROWSER, EVIL, needs_browser

TEXTS = {f"{number}.txt": row["text"] for number, row in enumerate(make_corpus(24))} | {
    "russian.txt": "Корабль стоит в гавани. Капитан варит кофе.",
    "arabic.txt": "السفينة في الميناء. القبطان يشرب القهوة.",
    "chinese.txt": "船停在港口。船长喝咖啡。",
    "hindi.txt": "जहाज बंदरगाह में है। कप्तान कॉफी पीता है।",
    "a & b\u2028 ?=#%.txt": f"{EVIL} A volcano & an island, at last.",
    "\udce9\ud800.txt": "Lone surrogates and a geyser.",
}
SHIP = "the captain of a ship"
QUESTIONS = [SHIP, "корабль", "القهوة", "船长", "कप्तान", "volcano & island?", "\ud800 geyser", "\x1b\0"]


@pytest.fixture
def index(scattered, tmp_path):
    return Index.build(TEXTS, scattered, tmp_path / "the.index", passage_words=20)


@contextlib.contextmanager
def serving_from(*directories):
    with Server(0, directories) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(index):
    with serving_from(index.directory) as server:
        yield server


def ask(server, path, body=None, method=None, headers=()):
    """Return the status, what the body says, and the headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    body = json.dumps(body).encode() if isinstance(body, dict) else body
    connection.request(method or ("GET" if body is None else "POST"), path, body, dict(headers))
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    is_json = response.headers["Content-Type"].startswith("application/json")
    return response.status, json.loads(text) if is_json and text else text, response.headers


def asked(server, text, **how):
    status, answer, _ = ask(server, "/query", {"text": text, **how})
    assert status == 200, answer
    return answer


def untimed(answer):
    return {name: value for name, value in answer.items() if not name.endswith("_ms")}


def ids_of(answer):
    return [row["id"] for row in answer["rows"]]


def test_it_prints_what_the_command_prints(server, index, run_here, capsys):
    for number, question in enumerate(QUESTIONS):
        how = {"method": METHODS[number % 3], "fusion": FUSIONS[number % 2], "count": 1 + number}
        options = [word for name, value in how.items() for word in (f"--{name}", value)]
        run_here(search.main, "query", index.directory, question, *options, "--json")
        printed = json.loads(capsys.readouterr().out)
        answer = asked(server, question, **how)
        assert list(answer) == list(printed)
        assert untimed(answer) == untimed(printed)
        form = urlencode({"text": question, **how}, errors="surrogatepass")
        assert untimed(ask(server, f"/query?{form}")[1]) == untimed(printed)
    assert len(asked(server, "ship")["rows"]) == 5  # by default, as the command


def test_ten_at_a_time_get_the_answers_of_one(server, index):
    questions = [f"{text[:60]} {question}" for text in TEXTS.values() for question in QUESTIONS[:2]]
    expected = [[(hit.id, round(hit.score, 5)) for hit in index.search(question, count=7)] for question in questions]
    with ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(lambda question: asked(server, question, count=7), questions))
    assert [[(row["id"], round(row["score"], 5)) for row in answer["rows"]] for answer in answers] == expected


def test_a_change_counts_at_once_and_never_half(server, index):
    """Each change replaces all documents with this word: no answer has documents of two changes."""
    seen, stop = [], threading.Event()

    def write(version):
        index.add({f"{name} {version}": f"Version {version}: a volcano {name}." for name in "abc"})
        return {f"{name} {version}" for name in "abc"}

    def keep_asking():
        while not stop.is_set():
            seen.append(frozenset(ids_of(asked(server, "volcano", method="bm25"))))

    index.delete("a & b\u2028 ?=#%.txt")
    states = [set(), write(0)]
    with ThreadPoolExecutor(3) as threads:
        askers = [threads.submit(keep_asking) for _ in range(3)]
        try:
            for version in range(1, 6):
                states.append(states[-1] | write(version))
                assert set(ids_of(asked(server, "volcano", method="bm25", count=100))) == states[-1]
                index.delete(states[-2])
                states.append(states[-1] - states[-2])
                assert set(ids_of(asked(server, "volcano", method="bm25", count=100))) == states[-1]
        finally:
            stop.set()
        for asker in askers:
            asker.result()
    versions = [{id.split()[1] for id in ids} for ids in seen]
    assert all(len(ids) == 3 or (len(ids) == 5 and len(found) == 2) for ids, found in zip(seen, versions))
    assert len({*map(frozenset, versions)}) > 2


def test_what_cannot_be_read_is_said_and_the_old_answers(server, index, headless, tmp_path):
    before = untimed(asked(server, SHIP))
    index.add({"new": "A volcano."})
    data = index.directory / read_manifest(index.directory).file
    whole = data.read_bytes()
    damaged = bytearray(whole)
    damaged[whole.rindex(b"A volcano.")] ^= 1
    data.write_bytes(damaged)
    status, answer, headers = ask(server, "/query?text=the+captain+of+a+ship")
    assert (status, untimed(answer)) == (200, before)
    assert "has changed since it was written" in headers["Warning"]
    (about,) = ask(server, "/info")[1].values()
    assert "has changed since it was written" in about.pop("trouble")
    assert about["documents"] == len(TEXTS)
    assert "has changed since it was written" in ask(server, "/")[1]
    data.write_bytes(whole)
    status, answer, headers = ask(server, "/query?text=volcano&method=bm25&count=1")
    assert (ids_of(answer), headers["Warning"]) == (["new"], None)
    before = untimed(asked(server, SHIP))
    shutil.move(index.directory, tmp_path / "aside")
    assert untimed(asked(server, SHIP)) == before
    assert "There is no index" in ask(server, "/info")[2]["Warning"]
    built = Index.build({"only": TEXTS["1.txt"], **TEXTS}, headless, index.directory)  # with another encoder
    assert ids_of(asked(server, SHIP)) == [hit.id for hit in built.search(SHIP, 5)]
    assert ask(server, "/info")[2]["Warning"] is None


LONG = "ä" * 10_001
BAD_ARGUMENTS = [  # over HTTP and for agents
    ("query", {}, "The request lacks text."),
    ("query", {"text": 5}, "text is 5, expected str"),
    ("query", {"text": ["a"]}, "text is ['a'], expected str"),
    ("query", {"text": " "}, "The question is empty"),
    ("query", {"text": LONG}, "The text has 10,001 characters: at most 10,000"),
    ("query", {"text": "a", "count": 0}, "count is 0: expected 1 or more"),
    ("query", {"text": "a", "count": 101}, "count is 101: expected at most 100"),
    ("query", {"text": "a", "count": True}, "count is True, expected int"),
    ("query", {"text": "a", "count": "3"}, "count is '3', expected int"),
    ("query", {"text": "a", "count": 2.5}, "count is 2.5, expected int"),
    ("query", {"text": "a", "method": "words"}, "method is 'words': expected one of hybrid"),
    ("query", {"text": "a", "under": "none/"}, "No document of"),
    ("query", {"text": "a", "under": None}, "under is None, expected str"),
    ("query", {"text": "a", "index": "other"}, "There is no index 'other': expected one of"),
    ("query", {"text": "a", "index": 1}, "index is 1, expected"),
    ("query", {"text": "a", "limit": 3}, "The request has 'limit': expected text, count, method"),
    ("document", {"index": "other"}, "The request lacks id."),
    ("document", {"id": 1}, "id is 1, expected str"),
    ("document", {"id": "none"}, "has no document 'none'"),
    ("document", {"id": "1.txt", "start": -1}, "start is below 0"),
    ("document", {"id": "1.txt", "start": "0"}, "start is '0', expected int"),
    ("document", {"id": "1.txt", "characters": 0}, "characters below 1"),
    ("document", {"id": "1.txt", "offset": 30}, "The request has 'offset': expected id, index, start, characters."),
    ("info", {"index": "other"}, "The request has 'index': expected nothing."),
]
REFUSED = [
    ("/query", None, "GET", 400, "The request lacks text."),
    ("/query?text=+", None, "GET", 400, "The question is empty"),
    ("/query?text=a&size=3", None, "GET", 400, "The request has 'size': expected text, count,"),
    ("/query?text=a&count=many", None, "GET", 400, "count is 'many', expected int"),
    ("/query?text=a&text=b", None, "GET", 400, "gives a name twice"),
    ("/query?text=a&weight=nan", None, "GET", 400, "weight nan: expected"),
    ("/query?text=a&fusion=max", None, "GET", 400, "fusion is 'max'"),
    ("/query?text=%E9", None, "GET", 400, "The address is no UTF-8: "),
    ("/query?text", None, "GET", 400, "bad query field"),
    (f"/query?text={'a' * 70_000}", None, "GET", 414, "URI"),
    ("/query", b"x" * 2_000_000, "POST", 413, "The request has 2,000,000 bytes: at most 262,144"),
    ("/query", b"text=a", "POST", 400, "The body is no JSON: Expecting value"),
    ("/query", b"[" * 100_000, "POST", 400, "The body is no JSON: maximum recursion"),
    ("/query", b"[]", "POST", 400, "The body is [], expected dict"),
    ("/nothing", None, "GET", 404, "There is no /nothing: expected /, /query"),
    ("/../search.py", None, "GET", 404, "There is no /../search.py"),
    ("/", b"", "POST", 404, "There is no /: expected"),
    ("/query?text=a", None, "DELETE", 405, "Unsupported method ('DELETE')"),
]


@pytest.fixture(scope="module")
def standing(scattered, tmp_path_factory):
    """A server for requests that change nothing."""
    directory = tmp_path_factory.mktemp("served") / "the.index"
    Index.build(TEXTS, scattered, directory, passage_words=20)
    with serving_from(directory) as server:
        yield server


def test_a_bad_request_is_one_line_with_its_status(standing):
    for path, body, method, status, message in REFUSED:
        given, answer, headers = ask(standing, path, body, method)
        assert (given, list(answer)) == (status, ["error"]), path[:60]
        assert message in answer["error"]
        assert "\n" not in answer["error"]
        assert ("Allow" in headers) == (status == 405)
    for route, arguments, message in BAD_ARGUMENTS:
        given, answer, _ = ask(standing, f"/{route}", arguments)
        assert 400 <= given < 500, arguments
        assert message in answer["error"]
    longest = {"text": "😀" * 10_000, "count": 100}
    assert ask(standing, "/query", json.dumps(longest).encode())[0] == 200  # each letter is twelve bytes there
    with socket.create_connection(("127.0.0.1", standing.server_port), timeout=10) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        assert b'{"error": "Bad request' in connection.recv(10_000)


def sent(server, data):
    """What the server answers to these bytes."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.parametrize("word", ["корабль", "船长", "القهوة", "कप्तान"])
def test_letters_of_an_address_may_stand_as_they_are(standing, word):
    """As curl, wget and old clients send them, in UTF-8; in another encoding they are refused."""
    rest = " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    answer = sent(standing, f"GET /query?method=bm25&count=1&text={word}{rest}".encode())
    found = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (found["query"], ids_of(found)) == (word, ids_of(asked(standing, word, method="bm25", count=1)))
    assert word in sent(standing, f"GET /?text={word}{rest}".encode()).decode()
    latin = f"GET /query?text=Bücher{rest}".encode("latin-1")
    assert b"The address is no UTF-8" in sent(standing, latin)


def test_a_lone_surrogate_is_answered_on_the_page_and_over_http(standing):
    for path in ("/?text=%ED%A0%80", "/?text=ship&id=%ED%A0%80", "/query?text=%ED%A0%80"):
        status, answer, _ = ask(standing, path)
        assert status == (404 if "id=" in path else 200)
        assert answer["query"] == "\ud800" if "query" in path else 'value="' in answer


def test_a_client_that_goes_away_leaves_no_traceback(standing, capfd):
    for part in (
        b"",
        b"GET /info HTTP/1.1\r\nHo",
        b"POST /query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{",
    ):
        with socket.create_connection(("127.0.0.1", standing.server_port), timeout=10) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends by a reset
            connection.sendall(part)
            time.sleep(0.1)
    assert ask(standing, "/info")[0] == 200
    assert capfd.readouterr().err == ""


def test_nobody_else_is_answered(standing):
    """Neither other machines, nor pages of others by another name of this one or by their own requests."""
    port = standing.server_port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=10)
    evil = "evil.example"
    for host in (evil, f"{evil}:{port}", f"127.0.0.1.{evil}", f"localhost@{evil}", "", "[::1]"):
        for path, body in (("/", None), ("/info", None), ("/query", {"text": "ship"})):
            status, answer, _ = ask(standing, path, body, headers={"Host": host})
            assert (status, list(answer)) == (403, ["error"]), host
    own = f"http://127.0.0.1:{port}"
    for origin in (f"http://{evil}", "null", "http://localhost:1", own.replace("http", "https"), f"{own}.{evil}"):
        status, answer, headers = ask(standing, "/query", {"text": "ship"}, headers={"Origin": origin})
        assert (status, answer["error"]) == (403, f"Origin is {origin}: pages of others are not answered.")
        assert "Access-Control-Allow-Origin" not in headers
    assert ask(standing, "/info", headers={"Origin": own})[0] == 200
    assert ask(standing, "/info", headers={"Host": f"LOCALHOST:{port}"})[0] == 200
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:  # two hosts
        connection.sendall(b"GET /info HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n")
        assert b" 403 " in connection.recv(10_000)


def test_a_query_has_its_time_and_others_go_on(standing, monkeypatch):
    answer = Index.answer

    def slow(index, text, *more, **how):
        if text == "slow":
            time.sleep(1)
        return answer(index, text, *more, **how)

    monkeypatch.setattr(Index, "answer", slow)
    monkeypatch.setattr(serving, "MOST_SECONDS", 0.3)
    status, said, _ = ask(standing, "/query?text=slow")
    assert (status, said["error"][:42]) == (504, "The answer takes longer than 0.3 seconds: ")
    monkeypatch.setattr(serving, "MOST_SECONDS", 30)
    assert ask(standing, "/query?text=ship")[0] == 200


def test_a_document_is_read_whole_or_in_part(standing):
    ((index, about),) = ask(standing, "/info")[1].items()
    assert about["documents"] == len(TEXTS)
    for name, text in TEXTS.items():
        stored = text.encode(errors="replace").decode()
        about = {"index": index, "id": name, "title": asked(standing, text, count=1)["rows"][0]["title"]}
        expected = about | {"text": stored, "start": 0, "characters": len(stored)}
        assert ask(standing, "/document", {"id": name})[1] == expected
        form = urlencode({"id": name, "start": 3, "characters": 7}, errors="surrogatepass")
        part = ask(standing, f"/document?{form}")[1]
        assert part == expected | {"text": stored[3:10], "start": 3}
    assert ask(standing, "/", method="HEAD")[1] == ""


def test_several_indexes_answer_by_their_names_with_one_encoder(index, scattered, tmp_path, monkeypatch):
    other = Index.build({"1.txt": "A volcano.", "2.txt": TEXTS["2.txt"]}, scattered, tmp_path / "other.index")
    loaded, load = [], serving.Index.encoder
    monkeypatch.setattr(serving.Index, "encoder", lambda index: loaded.append(load(index)) or loaded[-1])
    with serving_from(index.directory, other.directory) as server:
        assert len({*map(id, loaded)}) == 1
        answer = asked(server, "a volcano", count=2)["indexes"]
        assert list(answer) == [str(index.directory), str(other.directory)]
        for one in (index, other):
            assert ids_of(answer[str(one.directory)]) == [hit.id for hit in one.search("a volcano", 2)]
        named = {"index": str(other.directory)}
        assert ids_of(asked(server, "a volcano", count=1, **named)) == ["1.txt"]
        assert ask(server, "/document", {"id": "1.txt"})[1]["error"].startswith("Say which index has the document: ")
        assert ask(server, "/document", {"id": "1.txt", **named})[1]["text"] == "A volcano."
        page = ask(server, f"/?{urlencode({'text': 'a volcano', 'id': '1.txt', 'of': str(other.directory)})}")[1]
        assert "<option>" in page
        assert '<div id="text">A volcano.</div>' in page
    with pytest.raises(ValueError, match="is named twice"):
        Server(0, [index.directory, tmp_path / "." / "the.index"])


def test_the_command_says_where_it_answers(index, run_here, capsys, failure_of, monkeypatch):
    monkeypatch.setattr(Server, "serve_forever", lambda self: None)
    run_here(search.main, "serve", index.directory, "--port", 0, "--json")
    said = json.loads(capsys.readouterr().out)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", said["url"])
    assert said["indexes"][str(index.directory)]["documents"] == len(TEXTS)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        message = failure_of(search.main, "serve", index.directory, "--port", taken.getsockname()[1])
        assert message.endswith("is taken: name another with --port, or 0 for any that is free.")
    assert "There is no index in" in failure_of(search.main, "serve", index.directory / "none", "--port", 0)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert failure_of(search.main, "serve", index.directory, "--mcp") == (
        '--mcp needs the package mcp: pip install "mcp>=2.3,<3".'
    )


def test_the_page_marks_words_and_runs_nothing(standing):
    status, page, headers = ask(standing, f"/?{urlencode({'text': 'volcano <b>'})}")
    assert status == 200
    assert '<mark class="hit">volcano</mark> &amp; an island' in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "<script" not in page
    assert 'value="volcano &lt;b&gt;"' in page
    links = [link.replace("&amp;", "&") for link in re.findall(r'<a href="(/[^"#]*)', page)]
    texts = [re.search('<div id="text">(.*?)</div>', ask(standing, link)[1], re.DOTALL)[1] for link in links[:-1]]
    assert any("at last." in text for text in texts)
    assert len(links) == 11  # the last one shows more
    assert ask(standing, links[-1])[1].count("<li>") == 20
    status, page, _ = ask(standing, "/?id=none")
    assert (status, "has no document &#39;none&#39;" in page) == (404, True)


def test_the_page_says_what_the_command_says_of_hits(scattered, tmp_path, monkeypatch):
    texts = {"a.md": "# Volcano\n\n**Hot** `lava_flow`.", "b.md": "# Volcano\n**Hot** `lava_flow`.", "c.md": "A ship."}
    index = Index.build(texts, scattered, tmp_path / "the.index")
    monkeypatch.setattr(api, "LEAST", 2)  # what nothing fits
    with serving_from(index.directory) as server:
        answer, page = asked(server, "volcano -hot"), ask(server, "/?text=volcano+-hot")[1]
    (first, copies), (second, none) = ((row["id"], row["copies"]) for row in answer["rows"])
    assert ({first, *copies}, second, none) == ({"a.md", "b.md"}, "c.md", [])
    assert (answer["fits"], len(answer["notes"])) == (False, 2)
    assert all(f'<p role="status">{note}</p>' in page for note in answer["notes"])
    assert f'<p class="id">{first} and 1 copy</p>' in page
    assert re.search(r"score 1\.00: cosine \S+ passage, \S+ document; BM25 \S+, 2 of 2 words", page)
    assert '<mark class="hit">Hot</mark> lava_flow.' in page


@needs_browser
def test_the_page_works_in_a_browser(standing):
    form = urlencode({"text": "volcano island", "id": "a & b\u2028 ?=#%.txt"})
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom",
        f"http://127.0.0.1:{standing.server_port}/?{form}",
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "<title>volcano island</title>" in dom
    assert '<mark class="hit">volcano</mark> &amp; an <mark class="hit">island</mark>, at last.' in dom
    assert "&lt;script&gt;document.title = 'taken over'&lt;/script&gt;" in dom.partition('<div id="text">')[2]


def test_an_agent_searches_and_reads(index):
    pytest.importorskip("mcp.server.mcpserver", reason='pip install "mcp>=2.3,<3"')
    import asyncio

    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    words = [str(ROOT / "search.py"), "serve", str(index.directory), "--mcp"]
    tools_of = {"query": "search", "document": "read", "info": "info"}

    async def talk():
        async with Client(StdioServerParameters(command=sys.executable, args=words)) as client:
            tools = (await client.list_tools()).tools
            calls = [
                ("search", {"text": SHIP, "count": 3}),
                ("read", {"id": "russian.txt"}),
                ("info", {}),
                *((tools_of[route], arguments) for route, arguments, _ in BAD_ARGUMENTS),
            ]
            return tools, [await client.call_tool(*call) for call in calls]

    tools, results = asyncio.run(talk())
    assert {tool.name for tool in tools} == {"search", "read", "info"}
    assert all(tool.annotations.read_only_hint for tool in tools)
    texts = [result.content[0].text for result in results]
    assert [result.is_error for result in results] == [False] * 3 + [True] * len(BAD_ARGUMENTS)
    for (_, arguments, message), text in zip(BAD_ARGUMENTS, texts[3:], strict=True):
        assert message in text, arguments
    found, read, info = map(json.loads, texts[:3])
    assert ids_of(found) == [hit.id for hit in index.search(SHIP, 3)]
    assert {name for name in found if not name.endswith("_ms")} == untimed(asdict(index.answer(SHIP, 3))).keys()
    assert found["fits"]
    assert read["text"] == TEXTS["russian.txt"]
    assert info[str(index.directory)]["documents"] == len(TEXTS)
