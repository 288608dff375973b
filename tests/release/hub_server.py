"""A Hub of the tests' own, over HTTP: repositories in memory, with the calls that huggingface_hub makes."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

TOKEN = "hf_CanaryTokenThatNobodyMaySee"
USER = "tester"


class HubServer(ThreadingHTTPServer):
    """Use as a context manager; `url` is what HF_ENDPOINT should be.

    Attributes:
        files: repository -> path -> bytes.
        private: repository -> bool.
        commits: (repository, message, paths) in order.
        failures: how many of the next commits fail, by "error" (status 500) or "drop" (the connection ends).
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.commits: list[tuple[str, str, list[str]]] = []
        self.objects: dict[str, bytes] = {}
        self.failures: list[str] = []
        self.times_emptied = 0
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def empty(self):
        """As new, but for the names of commits: what somebody has in a cache is not taken for what comes now."""
        for state in (self.files, self.private, self.commits, self.objects, self.failures):
            state.clear()
        self.times_emptied += 1

    def sha(self, repo):
        return hashlib.sha1(json.dumps([self.times_emptied, len(self.commits), repo]).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, value, status=200, headers=()):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in dict(headers).items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code, message):
        self.reply({"error": message}, status, {"X-Error-Code": code, "X-Error-Message": message})

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def handle_call(self):
        path, content = unquote(urlparse(self.path).path), self.body()
        writes = self.command in ("POST", "PUT") and not path.startswith("/objects/") and "validate-yaml" not in path
        writes = writes or path.endswith("/auth-check/write")
        if writes and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401, "", "Invalid username or password.")
        for method, pattern, call in CALLS:
            if method == self.command and (match := re.fullmatch(pattern, path)):
                return call(self, content, *match.groups())
        return self.refuse(404, "", f"no such call: {self.command} {path}")

    do_GET = do_POST = do_PUT = do_HEAD = handle_call

    def create(self, content):
        wish = json.loads(content)
        repo = f"{wish.get('organization') or USER}/{wish['name']}"
        if not repo.startswith(f"{USER}/"):
            return self.refuse(403, "", "You may not create this.")
        if repo in self.server.files:
            return self.reply(
                {"error": "You already created this model repo", "url": f"{self.server.url}/{repo}"}, 409
            )
        self.server.files[repo] = {}
        self.server.private[repo] = wish.get("visibility") == "private" or bool(wish.get("private"))
        return self.reply({"url": f"{self.server.url}/{repo}", "name": repo, "id": repo})

    def preupload(self, content, repo):
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith((".safetensors", ".pt", ".png")) else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(content)["files"]
        ]
        self.reply({"files": files})

    def lfs_batch(self, content, repo):
        objects = [
            file | {"actions": {"upload": {"href": f"{self.server.url}/objects/{file['oid']}"}}}
            for file in json.loads(content)["objects"]
        ]
        self.reply({"transfer": "basic", "objects": objects})

    def put_object(self, content, oid):
        assert hashlib.sha256(content).hexdigest() == oid
        self.server.objects[oid] = content
        self.reply({})

    def commit(self, content, repo):
        if self.server.failures:
            if self.server.failures.pop(0) == "error":
                return self.refuse(500, "", "Internal error")
            self.close_connection = True
            return self.connection.close()
        if repo not in self.server.files:
            return self.refuse(404, "RepoNotFound", "Repository not found")
        message, paths = "", []
        for line in content.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
                continue
            if entry["key"] == "deletedFile":
                del self.server.files[repo][value["path"]]
                continue
            paths.append(value["path"])
            is_lfs = entry["key"] == "lfsFile"
            data = self.server.objects[value["oid"]] if is_lfs else base64.b64decode(value["content"])
            self.server.files[repo][value["path"]] = data
        self.server.commits.append((repo, message, paths))
        sha = self.server.sha(repo)
        return self.reply({"commitUrl": f"{self.server.url}/{repo}/commit/{sha}", "commitOid": sha})

    def validate(self, content):
        self.reply({"errors": [], "warnings": []})

    def info(self, content, repo):
        if repo not in self.server.files:
            return self.refuse(404, "RepoNotFound", "Repository not found")
        siblings = [{"rfilename": path} for path in self.server.files[repo]]
        return self.reply(
            {"id": repo, "modelId": repo, "sha": self.server.sha(repo), "siblings": siblings, "private": False,
             "tags": [], "downloads": 0, "likes": 0}
        )  # fmt: skip

    def may_write(self, content, repo):
        if not repo.startswith(f"{USER}/"):
            return self.refuse(403, "", "You may not write here.")
        return self.reply({})

    def tree(self, content, repo):
        files = self.server.files.get(repo, {})
        self.reply(
            [
                {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for path, data in files.items()
            ]
        )

    def resolve(self, content, repo, path):
        if repo not in self.server.files:
            return self.refuse(404, "RepoNotFound", "Repository not found")
        if path not in self.server.files[repo]:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        data = self.server.files[repo][path]
        headers = {"X-Repo-Commit": self.server.sha(repo), "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        return self.reply(data, 200, headers)


REPO = r"([\w.-]+/[\w.-]+)"
CALLS = [
    ("POST", "/api/repos/create", Handler.create),
    ("POST", "/api/validate-yaml", Handler.validate),
    ("POST", f"/api/models/{REPO}/preupload/main", Handler.preupload),
    ("POST", f"/{REPO}.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", "/objects/([0-9a-f]+)", Handler.put_object),
    ("POST", f"/api/models/{REPO}/commit/main", Handler.commit),
    ("GET", f"/api/models/{REPO}/auth-check/write", Handler.may_write),
    ("GET", rf"/api/models/{REPO}(?:/revision/[\w-]+)?", Handler.info),
    ("GET", rf"/api/models/{REPO}/tree/[\w-]+(?:/.*)?", Handler.tree),
    ("HEAD", rf"/{REPO}/resolve/[\w-]+/(.*)", Handler.resolve),
    ("GET", rf"/{REPO}/resolve/[\w-]+/(.*)", Handler.resolve),
]
