"""A server that W&B's own client takes for W&B: GraphQL, the file stream, and uploads, as far as a mirror needs
them. It keeps what it was sent, and can be told to fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
HISTORY = "wandb-history.jsonl"
SUMMARY = "wandb-summary.json"
ENTITY = {"id": "e", "name": "me"}


@dataclass
class ServedRun:
    """A run as the server has it."""

    id: str
    project: str
    facts: Json = field(default_factory=dict)  # of the last UpsertBucket: displayName, groupName, config, …
    lines: dict[int, str] = field(default_factory=dict)  # of its history, by their offset
    summary: Json = field(default_factory=dict)
    exit_code: int | None = None
    is_preempting: bool = False

    @property
    def rows(self) -> list[Json]:
        """List its history, in the order of its lines."""
        return [json.loads(self.lines[offset]) for offset in sorted(self.lines)]

    @property
    def config(self) -> Json:
        """Return its config, without W&B's own part."""
        values: Json = json.loads(self.facts.get("config") or "{}")
        return {key: each["value"] for key, each in values.items() if key != "_wandb"}


@dataclass
class Failure:
    """What the server answers to the file stream's posts after the first so many."""

    status: int  # 0: it never answers
    after: int


class WandbServer:
    """What was sent, and what fails."""

    def __init__(self) -> None:
        self.runs: dict[str, ServedRun] = {}
        self.failure: Failure | None = None
        self.posts = 0  # to the file stream
        self.unknown: list[str] = []  # operations of GraphQL that nobody taught it
        self.operations: list[str] = []
        self.uploads: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.released = threading.Event()  # who hangs
        self.address = ""

    # --- GraphQL --------------------------------------------------------------------------------------------

    def answer(self, query: str, variables: Json) -> Json:
        """Answer an operation of GraphQL."""
        name = query.split("(", 1)[0].split("{", 1)[0].split()[-1]
        self.operations.append(name)
        known = getattr(self, f"_{name}", None)
        if known is None:
            self.unknown.append(name)
            return {}
        answered: Json = known(variables)
        return answered

    def _Viewer(self, variables: Json) -> Json:
        return {"viewer": {**ENTITY, "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}

    def _ServerFeaturesQuery(self, variables: Json) -> Json:
        return {"serverInfo": {"features": []}}

    def _RunResumeStatus(self, variables: Json) -> Json:
        run = self.runs.get(variables["name"])
        project = {"id": "p", "name": variables["project"], "entity": ENTITY}
        if run is None:
            return {"model": {**project, "bucket": None}}
        return {"model": {**project, "bucket": self._bucket(run)}}

    def _UpsertBucket(self, variables: Json) -> Json:
        name = variables["name"]
        is_new = name not in self.runs
        run = self.runs.setdefault(name, ServedRun(id=name, project=variables.get("project") or ""))
        run.facts |= {key: value for key, value in variables.items() if value is not None}
        return {"upsertBucket": {"bucket": self._bucket(run), "inserted": is_new}}

    def _bucket(self, run: ServedRun) -> Json:
        tail = [run.lines[offset] for offset in sorted(run.lines)[-1:]]
        return {
            "id": run.id,
            "name": run.id,
            "displayName": run.facts.get("displayName", run.id),
            "description": "",
            "config": run.facts.get("config", "{}"),
            "wandbConfig": "{}",
            "sweepName": None,
            "project": {"id": "p", "name": run.project, "entity": ENTITY},
            "historyLineCount": len(run.lines),
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": json.dumps(tail),
            "eventsTail": "[]",
            "summaryMetrics": json.dumps(run.summary),
            "tags": run.facts.get("tags", []),
        }

    def _RunStoppedStatus(self, variables: Json) -> Json:
        return {"project": {"run": {"stopped": False}}}

    def _CreateRunFiles(self, variables: Json) -> Json:
        files = [{"name": name, "uploadUrl": f"{self.address}/upload/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}

    # --- the file stream ------------------------------------------------------------------------------------

    def stream(self, run_id: str, sent: Json) -> int:
        """Take a post, and return the status of the answer; 0: there is none."""
        with self.lock:
            self.posts += 1
            if self.failure is not None and self.posts > self.failure.after:
                return self.failure.status
            run = self.runs.get(run_id)
            if run is None:
                return 404
            files = sent.get("files") or {}
            history = files.get(HISTORY)
            if history is not None:
                for number, line in enumerate(history["content"]):
                    run.lines[history["offset"] + number] = line
            if SUMMARY in files:
                run.summary = json.loads(files[SUMMARY]["content"][-1])
            run.is_preempting |= bool(sent.get("preempting"))
            if "exitcode" in sent:
                run.exit_code = sent["exitcode"]
        return 200


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: WandbServer  # set where the server is started

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, status: int, content: Json) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        sent = json.loads(self._body() or b"{}")
        if self.path == "/graphql":
            self._send(200, {"data": self.served.answer(sent["query"], sent.get("variables") or {})})
            return
        status = self.served.stream(self.path.split("/")[4], sent)
        if status == 0:
            self.served.released.wait()
            self.close_connection = True
            return
        self._send(status, {} if status == 200 else {"error": "as it was told"})

    def do_PUT(self) -> None:
        self.served.uploads[self.path] = self._body()
        self._send(200, {})

    def do_GET(self) -> None:
        self._send(200, {})


@contextmanager
def serving(port: int = 0) -> Iterator[WandbServer]:
    """Serve on this machine until the block ends."""
    served = WandbServer()
    handler = type("Handler", (_Handler,), {"served": served})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    served.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.released.set()
        server.shutdown()
        server.server_close()
