"""Indexes that stay open and answer: programs and people over HTTP on this machine alone, agents over stdio (MCP).

Nothing is written. Each index is a snapshot, reader and encoder together, and is replaced whole when a change of its
folder can be read whole. A page of a stranger in the user's browser can reach 127.0.0.1 too, under a name that leads
there (DNS rebinding) or by its own requests: so Host has to be this machine's, and Origin the server's own. The page
is written here, without scripts, so that nothing of a document can run.
"""

import contextlib
import errno
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as OutOfTime
from dataclasses import asdict, dataclass, fields
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from docsplit.data.fusion import FUSIONS, WEIGHT
from docsplit.data.words import Stems
from docsplit.index.api import Index
from docsplit.index.index import MANIFEST_FILE, IndexReader, check_encoder
from docsplit.index.results import (
    METHODS,
    PLAIN_STYLE,
    Answer,
    CommandResult,
    copies_of,
    counted,
    matching_parts,
    shown_part,
)
from docsplit.runtime.command import Style, as_json, shown, shown_lines
from docsplit.runtime.files import Damaged, JsonObject, checked

if TYPE_CHECKING:
    from docsplit.embedding.encoder import Encoder

logger = logging.getLogger(__name__)

LONGEST_QUERY, MOST_HITS, MOST_SECONDS = 10_000, 100, 30  # characters, documents; of one query
LONGEST_BODY = 2**18  # bytes of a request: the longest query in JSON's \u codes, and the rest
PAGE, STYLE = Path(__file__).with_name("serving.html"), Path(__file__).parents[1] / "explorer" / "page.css"
NUMBERS = {"count": int, "weight": float, "start": int, "characters": int}  # of requests
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

Request = TypeVar("Request")


class Refused(ValueError):
    """A request that is not answered, and the status of HTTP that says so."""

    def __init__(self, message: str, status: int = HTTPStatus.BAD_REQUEST):
        super().__init__(message)
        self.status = status


# --- What is answered ---


@dataclass(frozen=True)
class Question:
    """What is asked of indexes; all but the last as in `Index.search`.

    Attributes:
        index: the one that is searched. Default: all.
    """

    text: str
    count: int = 5
    method: str = METHODS[0]
    fusion: str = FUSIONS[0]
    weight: float = WEIGHT
    under: str = ""
    index: str | None = None


@dataclass(frozen=True)
class Reading:
    """A document that is wanted, or the part of its text from `start` on.

    Attributes:
        index: that has it. Default: the only one.
        characters: at most. Default: all.
    """

    id: str
    index: str | None = None
    start: int = 0
    characters: int | None = None


@dataclass(frozen=True)
class Nothing:
    """A request that says no more than its address."""


def stamp_of(directory: Path) -> tuple[int, ...] | None:
    """Return what differs after each change of an index, which replaces the manifest by another file; None: none."""
    with contextlib.suppress(OSError):
        stat = (directory / MANIFEST_FILE).stat()
        return stat.st_ino, stat.st_mtime_ns, stat.st_size
    return None


class Snapshot(Index):
    """An index as it is when it is opened, whatever others change later, with its encoder.

    Args:
        encoders: that are loaded already, of which it takes one that fits.

    Raises:
        ValueError, OSError: if the index or its encoder cannot be read.
    """

    def __init__(self, directory: Path, encoder: str | None, encoders: Iterable["Encoder"]):
        self._stamp = stamp_of(directory)
        super().__init__(directory, encoder)
        manifest = self._reader.manifest
        if manifest.approximate is not None:
            _ = self._reader.cells  # a later change removes the file
        for known in encoders:
            with contextlib.suppress(ValueError):
                check_encoder(manifest, known.description)
                self._encoder = known
        check_encoder(manifest, self.encoder().description)

    def _current(self) -> IndexReader:
        return self._reader

    def is_current(self) -> bool:
        """Whether the folder still has this index."""
        return stamp_of(self.directory) == self._stamp


class OpenIndexes:
    """Indexes by the names of their folders, as these were given.

    Args:
        encoder: where the encoder of all is now. Default: where each was.

    Attributes:
        troubles: by name, why an index is answered from as it was: what its folder has now cannot be read.

    Raises:
        ValueError, OSError: if one is named twice, or cannot be read.
    """

    def __init__(self, directories: Sequence[Path], encoder: str | None = None):
        if len({directory.resolve() for directory in directories}) < len(directories):
            raise ValueError(f"An index is named twice ({', '.join(map(str, directories))}): name each once.")
        self.troubles: dict[str, str] = {}
        self._encoder_path, self._snapshots, self._lock = encoder, dict[str, Snapshot](), threading.Lock()
        self._threads = ThreadPoolExecutor(4)  # questions at once: each has threads of its own for matrices
        for directory in directories:
            self._open(directory)

    def _open(self, directory: Path) -> None:
        encoders = [snapshot.encoder() for snapshot in self._snapshots.values()]
        self._snapshots[str(directory)] = Snapshot(directory, self._encoder_path, encoders)

    def current(self, name: str) -> Snapshot:
        """Return an index as it is now, or, if that cannot be read, as it was last."""
        with self._lock:
            try:
                if not self._snapshots[name].is_current():
                    self._open(self._snapshots[name].directory)
                self.troubles.pop(name, None)
            except Exception as error:  # whatever is wrong with the new one, the old one answers
                trouble = f"{error} Until then answers come from the index as it was."
                if self.troubles.get(name) != trouble:
                    logger.warning(trouble)
                self.troubles[name] = trouble
            return self._snapshots[name]

    def named(self, name: str | None) -> list[str]:
        """Return the names of the indexes that are meant: one, or all.

        Raises:
            Refused: if there is no such index.
        """
        if name is not None and name not in self._snapshots:
            expected = f"expected one of {', '.join(self._snapshots)}"
            raise Refused(f"There is no index {name!r}: {expected}.", HTTPStatus.NOT_FOUND)
        return [*self._snapshots] if name is None else [name]

    def answers(self, asked: Question) -> dict[str, Answer]:
        """Search the indexes that are meant, each by itself: scores of two indexes cannot be compared.

        Raises:
            Refused: for a question that is too long, too many hits or an unknown index, or if time is over.
            ValueError: as `Index.search` does.
        """
        if len(asked.text) > LONGEST_QUERY:
            too_long = f"The text has {len(asked.text):,} characters: at most {LONGEST_QUERY:,} are searched for."
            raise Refused(too_long, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if asked.count > MOST_HITS:
            raise Refused(f"count is {asked.count}: expected at most {MOST_HITS}.")
        names, how = self.named(asked.index), asdict(asked)
        del how["text"], how["index"]
        found = self._threads.submit(lambda: {name: self.current(name).answer(asked.text, **how) for name in names})
        try:
            return found.result(MOST_SECONDS)
        except OutOfTime:
            found.cancel()
            over = f"The answer takes longer than {MOST_SECONDS} seconds: ask again later, or of a part (`under`)."
            raise Refused(over, HTTPStatus.GATEWAY_TIMEOUT) from None

    def query(self, asked: Question) -> JsonObject:
        """Answer a question as `search.py query --json` does; of several indexes, by name."""
        found = {name: asdict(answer) for name, answer in self.answers(asked).items()}
        return found.popitem()[1] if len(found) == 1 else {"indexes": found}

    def read(self, asked: Reading) -> JsonObject:
        """Return id, title and text of a document, or a part of the text; `characters` counts all of it.

        Raises:
            Refused: if there is no such document, or several indexes may be meant.
        """
        name, *more = self.named(asked.index)
        if more:
            raise Refused(f"Say which index has the document: {', '.join([name, *more])}.")
        if asked.start < 0 or (asked.characters is not None and asked.characters < 1):
            raise Refused("start is below 0 or characters below 1: expected a part of the text.")
        try:
            document = self.current(name).document(asked.id)
        except ValueError:
            what = f"{name} has no document {asked.id!r}: ids are those of hits."
            raise Refused(what, HTTPStatus.NOT_FOUND) from None
        about, text = {"index": name, "id": document.id, "title": document.title}, document.text
        end = len(text) if asked.characters is None else asked.start + asked.characters
        return about | {"text": text[asked.start : end], "start": asked.start, "characters": len(text)}

    def info(self) -> JsonObject:
        """Describe each index by its name, as `search.py info --json` does, and its `trouble`."""
        about = {name: asdict(self.current(name).info()) for name in self._snapshots}
        return {name: told | {"trouble": self.troubles.get(name)} for name, told in about.items()}


# --- HTTP ---


ROUTES: dict[str, tuple[type, Callable[[OpenIndexes, Any], JsonObject]]] = {
    "/query": (Question, OpenIndexes.query),
    "/document": (Reading, OpenIndexes.read),
    "/info": (Nothing, lambda indexes, _: indexes.info()),
}


def request_of(kind: type[Request], given: JsonObject, names: Iterable[str] | None = None) -> Request:
    """Read a request.

    Args:
        names: that it may have; None: all that its kind has.

    Raises:
        ValueError: if it has another name, lacks one, or has a value of another type.
    """
    names = [field.name for field in fields(kind)] if names is None else list(names)  # type: ignore[arg-type]
    if unknown := given.keys() - names:
        raise Refused(f"The request has {min(unknown)!r}: expected {', '.join(names) or 'nothing'}.")
    return checked(given, kind, "The request")


def parts_of(address: str) -> tuple[str, JsonObject]:
    """Read an address: its path, and what stands behind the question mark.

    Args:
        address: as `http.server` reads it, in latin-1. Its letters may be escaped, or stand there as UTF-8 has them.

    Raises:
        ValueError: if it is no UTF-8, no form, or gives a name twice.
    """
    try:
        path, _, form = address.encode("latin-1").decode(errors="surrogatepass").partition("?")
        pairs = parse_qsl(
            form, keep_blank_values=True, strict_parsing=bool(form), errors="surrogatepass", max_num_fields=20
        )
    except UnicodeDecodeError as error:
        raise Refused(f"The address is no UTF-8: {error.reason} at byte {error.start} of a part.") from error
    given: JsonObject = dict(pairs)
    if len(given) < len(pairs):
        raise Refused("The request gives a name twice: give each once.")
    for name in given.keys() & NUMBERS:
        with contextlib.suppress(ValueError):
            given[name] = NUMBERS[name](given[name])
    return path, given


def posted_in(body: bytes) -> JsonObject:
    """Read a JSON object that was posted; a ValueError if it is none."""
    try:
        return checked(json.loads(body), dict, "The body")
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"The body is no JSON: {error}.") from error


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: "Server"
    protocol_version, timeout, disable_nagle_algorithm = "HTTP/1.1", MOST_SECONDS, True

    def do_GET(self) -> None:
        """Answer with the page, or with JSON."""
        try:
            body = self._body()
            self._refuse_strangers()
            path, given = parts_of(self.path)
            if path == "/" and self.command != "POST":
                status, page = page_of(self.server.indexes, request_of(Shown, given))
                self._send(status, page, "text/html")
                return
            if path not in ROUTES:
                raise Refused(f"There is no {path}: expected /, {', '.join(ROUTES)}.", HTTPStatus.NOT_FOUND)
            kind, answer = ROUTES[path]
            given = posted_in(body) if self.command == "POST" else given
            self._send(HTTPStatus.OK, as_json(answer(self.server.indexes, request_of(kind, given))))
        except ConnectionError:  # nobody waits for the answer
            self.close_connection = True
        except Exception as error:
            self._send(*refusal_of(error))

    do_POST = do_HEAD = do_GET

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not re.fullmatch("[0-9]{1,18}", length):
            raise Refused("Content-Length has to say how long the request is.", HTTPStatus.LENGTH_REQUIRED)
        if int(length) > LONGEST_BODY:
            self.rfile.read(min(int(length), 2**24))  # else the answer may be lost with what was not read
            too_long = f"The request has {int(length):,} bytes: at most {LONGEST_BODY:,} are read."
            raise Refused(too_long, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return self.rfile.read(int(length))

    def _refuse_strangers(self) -> None:
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        if len(hosts) != 1 or not re.fullmatch(r"(127\.0\.0\.1|localhost)(:[0-9]+)?", hosts[0].lower()):
            expected = "expected 127.0.0.1 or localhost"
            raise Refused(f"Host is {', '.join(hosts) or 'missing'}: {expected}.", HTTPStatus.FORBIDDEN)
        if foreign := [origin for origin in origins if origin.lower() != f"http://{hosts[0].lower()}"]:
            raise Refused(f"Origin is {foreign[0]}: pages of others are not answered.", HTTPStatus.FORBIDDEN)

    def _send(self, status: int, text: str, kind: str = "application/json") -> None:
        content = text.encode(errors="replace")  # a lone surrogate of a question, on the page
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            for trouble in [*self.server.indexes.troubles.values()]:
                self.send_header("Warning", f"199 - {json.dumps(trouble)}")
            for name, value in HEADERS.items():
                self.send_header(name, value)
            if status == HTTPStatus.METHOD_NOT_ALLOWED:
                self.send_header("Allow", "GET, HEAD, POST")
            if status >= HTTPStatus.BAD_REQUEST:  # what else the connection brings may be the rest of a bad request
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what `http.server` cannot read, in JSON as all else."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._send(status, as_json({"error": message or status.phrase}))

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log no request: the questions of people are in them."""


def refusal_of(error: BaseException) -> tuple[int, str]:
    """Return the status that an error means, and a line of JSON that says what is wrong."""
    if isinstance(error, Refused):
        status = error.status
    elif isinstance(error, Damaged | OSError):
        status = HTTPStatus.SERVICE_UNAVAILABLE
    elif isinstance(error, ValueError):
        status = HTTPStatus.BAD_REQUEST
    else:
        logger.error("A request failed.", exc_info=error)
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    return status, as_json({"error": str(error) or type(error).__name__})


class Server(ThreadingHTTPServer):
    """Answers from these indexes on a port of 127.0.0.1; 0: any that is free.

    Raises:
        ValueError, OSError: if the port is taken, or an index cannot be opened.
    """

    request_queue_size = 128

    def __init__(self, port: int, directories: Sequence[Path], encoder: str | None = None):
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise ValueError(f"Port {port} is taken: name another with --port, or 0 for any that is free.") from error
        try:
            self.indexes = OpenIndexes(directories, encoder)
        except BaseException:
            self.server_close()
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a client that went away while it was read; its thread ends."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def address(self) -> "Address":
        """Say where it answers."""
        return Address(f"http://127.0.0.1:{self.server_port}/", self.indexes.info())


@dataclass
class Address(CommandResult):
    """Where indexes answer, and what they hold."""

    url: str
    indexes: JsonObject

    def lines(self, style: Style = PLAIN_STYLE) -> list[str]:
        """Write the address, and a line for each index."""
        indexes = [f"{shown(name)}: {counted(about['documents'], 'document')}" for name, about in self.indexes.items()]
        return [*indexes, f"{style.bold(self.url)} answers; Ctrl-C ends."]


# --- The page ---


@dataclass(frozen=True)
class Shown:
    """What the page shows: hits for `text` in `index` or in all, and the document `id` of the index `of`."""

    text: str = ""
    count: int = 10
    index: str | None = None
    id: str | None = None
    of: str | None = None


def page_of(indexes: OpenIndexes, asked: Shown) -> tuple[int, str]:
    """Write the page, and return the status and the HTML."""
    from jinja2 import Environment

    def link(**changes: Any) -> str:
        given = asdict(asked) | {"id": None, "of": None} | changes
        known = {name: value for name, value in given.items() if value not in (None, "")}
        return f"/?{urlencode(known, errors='surrogatepass')}"

    status, error, found, document = int(HTTPStatus.OK), "", dict[str, Answer](), None
    try:
        if asked.text.strip():
            found = indexes.answers(Question(asked.text, asked.count, index=asked.index or None))
        if asked.id is not None:
            document = indexes.read(Reading(asked.id, asked.of))
    except Exception as wrong:
        status, line = refusal_of(wrong)
        error = json.loads(line)["error"]
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"line": shown, "lines": shown_lines}
    html = environment.from_string(PAGE.read_text(encoding="utf-8")).render(
        style=STYLE.read_text(encoding="utf-8"), asked=asked, link=link, error=error, document=document,
        indexes=indexes.info(), found={name: (answer.notes, list(hits_of(answer))) for name, answer in found.items()},
        more=min(2 * asked.count, MOST_HITS), longest=LONGEST_QUERY,
    )  # fmt: skip
    return status, html


def hits_of(answer: Answer) -> Iterable[JsonObject]:
    """Return what the page shows of each hit."""
    stems = Stems(answer.language)
    for hit in answer.rows:
        passage, matched = hit.passage or "", {*stems.of(" ".join(hit.words))}
        parts = matching_parts(shown(shown_part(passage, hit.title, matched, stems, len(passage))), matched, stems)
        yield {
            "id": hit.id,
            "title": hit.title or hit.id,
            "reasons": answer.reasons(hit),
            "parts": parts,
            "copies": copies_of(hit),
        }


# --- Agents ---


def serve_agent(indexes: OpenIndexes) -> None:
    """Answer an agent over standard input and output (https://modelcontextprotocol.io) until it closes them.

    Raises:
        ValueError: if the package mcp is missing, or an older one.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise ValueError('--mcp needs the package mcp: pip install "mcp>=2.3,<3".') from error

    class Tools(MCPServer):
        """Refuses what the package would leave out or turn into another type, as over HTTP."""

        async def call_tool(self, name: str, arguments: dict[str, Any], *more: Any) -> Any:
            if (kind := {"search": Question, "read": Reading, "info": Nothing}.get(name)) is not None:
                known = {tool.name: tool.input_schema.get("properties", {}) for tool in await self.list_tools()}
                try:
                    request_of(kind, arguments, known[name])
                except ValueError as error:
                    raise ToolError(str(error)) from error
            return await super().call_tool(name, arguments, *more)

    def told(answer: Callable[[], JsonObject]) -> str:
        try:
            return as_json(answer() | ({"troubles": {**indexes.troubles}} if indexes.troubles else {}))
        except (ValueError, OSError) as error:
            raise ToolError(str(error)) from error

    held = ", ".join(f"{name} ({counted(len(indexes.current(name)), 'document')})" for name in indexes.named(None))
    server = Tools("docsplit", instructions=f"Searches these indexes of documents: {held}.", log_level="WARNING")
    tool = server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)

    @tool
    def search(text: str, count: int = 5, method: str = METHODS[0], under: str = "", index: str | None = None) -> str:
        """Find documents for a question, the best first, each with its best passage; a score compares hits of one
        question in one index alone.

        method: `hybrid` by meaning and words, `dense` by meaning, `bm25` by words. under: what ids begin with, such as
        a folder. index: one of those that `info` names; default: all, each by itself.
        """
        return told(lambda: indexes.query(Question(text, count, method, under=under, index=index)))

    @tool
    def read(id: str, index: str | None = None, start: int = 0, characters: int = 20_000) -> str:
        """Read a document by the id of a hit, so many characters from `start` on; `characters` of the answer says how
        many it has. index: that has it, where there are several.
        """
        return told(lambda: indexes.read(Reading(id, index, start, characters)))

    @tool
    def info() -> str:
        """Say which indexes there are and what each holds."""
        return told(indexes.info)

    server.run()
