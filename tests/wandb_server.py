"""A W&B server on 127.0.0.1, as far as W&B's own client needs one: GraphQL and the file stream. It
keeps what it is sent, and can refuse, fail, hang or start late.

A row lies where the client's offset says, as a line of a file: a row that is sent again under its
own offset is there once, and one under another offset is there twice.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

Json = dict[str, Any]

ENTITY = "somebody"
KEY = "0123456789" * 4
HANG = -1  # in place of a status: the server takes the request and never answers
FEATURES = ["ARTIFACT_TAGS", "EXPAND_DEFINED_METRIC_GLOBS"]


@dataclass(kw_only=True)
class StoredRun:
    """A run as the server has it."""

    id: str
    project: str
    entity: str
    # the last variables of upsertBucket that are not null
    described: Json = field(default_factory=dict)
    lines: dict[str, dict[int, str]] = field(default_factory=dict)  # file → line number → line
    exit_code: int | None = None
    preempting: bool = False

    def file(self, name: str) -> list[str]:
        """Return the lines of a file in their order."""
        return [line for _, line in sorted(self.lines.get(name, {}).items())]

    @property
    def history(self) -> list[Json]:
        return [json.loads(line) for line in self.file("wandb-history.jsonl")]

    @property
    def rows(self) -> list[Json]:
        """Return the rows as they were logged, without the client's own keys."""
        values: list[Json] = []
        for row in self.history:
            values.append({key: value for key, value in row.items() if key[0] != "_"})
        return values

    @property
    def summary(self) -> Json:
        lines = self.file("wandb-summary.json")
        content: Json = json.loads(lines[-1]) if lines else {}
        return content

    @property
    def config(self) -> Json:
        stored = json.loads(self.described.get("config") or "{}")
        return {key: item["value"] for key, item in stored.items() if key != "_wandb"}

    @property
    def hidden(self) -> set[str]:
        """Return the metrics of which the client asked for no panel. In its protocol a metric has
        its name under 1, and its options under 6, where 2 is hidden."""
        content = json.loads(self.described.get("config") or "{}")
        stored = content.get("_wandb", {}).get("value", {})
        values: set[str] = set()
        for metric in stored.get("m", []):
            if "1" in metric and 2 in metric.get("6", []):
                values.add(metric["1"])
        return values

    def bucket(self) -> Json:
        """Return it as GraphQL shows it."""
        place = {"id": "P", "name": self.project, "entity": {"id": "E", "name": self.entity}}
        history = self.file("wandb-history.jsonl")
        text = json.dumps(self.file("wandb-events.jsonl")[-1:])
        return {
            "id": f"bucket-{self.id}",
            "name": self.id,
            "displayName": self.described.get("displayName") or self.id,
            "description": None,
            "config": self.described.get("config") or "{}",
            "sweepName": self.described.get("sweep"),
            "summaryMetrics": json.dumps(self.summary),
            "tags": self.described.get("tags") or [],
            "notes": self.described.get("notes"),
            "project": place,
            "historyLineCount": len(history),
            "eventsLineCount": len(self.file("wandb-events.jsonl")),
            "logLineCount": len(self.file("output.log")),
            "historyTail": json.dumps(history[-1:]),
            "eventsTail": text,
            # without `t` the client takes the run for one that never began
            "wandbConfig": '{"t": 1}',
        }


class WandbServer:
    """What the server knows and how it behaves."""

    def __init__(self, port: int = 0) -> None:
        self.runs = dict[str, StoredRun]()
        self.deleted = set[str]()  # ids that it does not take again
        self.operations = list[str]()  # the names of all GraphQL requests
        self.artifacts = list[Json]()  # the input of each createArtifact
        self.alerts = list[Json]()
        self.posts = 0  # to the file stream
        self.refused = 0  # requests that it failed
        self._status = 200
        self._after = 0
        self._released = threading.Event()
        self._lock = threading.Lock()
        self._answers = {
            "Viewer": self._viewer,
            "ServerFeaturesQuery": self._features,
            "RunResumeStatus": self._resume_status,
            "NocapProgress": self._progress,
            "UpsertBucket": self._upsert,
            "ArtifactType": lambda variables: (200, {"data": {"project": None}}),
            "CreateArtifact": self._create_artifact,
            "CommitArtifact": lambda variables: (
                200,
                {"data": {"commitArtifact": {"artifact": {"id": "A"}}}},
            ),
            "NotifyScriptableRunAlert": self._alert,
            "CreateRunFiles": self._create_files,
        }
        post = _Handler.do_POST
        handler = type("Handler", (_Handler,), {"state": self, "do_GET": post, "do_PUT": post})
        self._http = _Quiet(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        often = {"poll_interval": 0.02}
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs=often, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def fail(self, status: int, *, after: int = 0) -> None:
        """Answer everything with this status, or HANG, once `after` more posts came to the file
        stream; 200 works again."""
        self._status = status
        self._after = self.posts + after
        if status != HANG:
            self._released.set()
            self._released = threading.Event()

    def delete(self, run_id: str) -> None:
        """Delete a run as a person does on the page."""
        del self.runs[run_id]
        self.deleted.add(run_id)

    def status(self) -> int:
        """Return what the next request gets."""
        if self.posts >= self._after:
            return self._status
        return 200

    def wait_released(self) -> None:
        self._released.wait()

    # --- what it is asked -------------------------------------------------------------------------

    def graphql(self, body: Json) -> tuple[int, Json]:
        query = body["query"]
        variables = body.get("variables") or {}
        found = re.search(r"\b(?:query|mutation)\s+(\w+)", query)
        if found:
            name = found[1]
        else:
            name = ""
        with self._lock:
            self.operations.append(name)
            answer = self._answers.get(name)
            if answer:
                return answer(variables)
            return (200, {"data": {}})

    def _viewer(self, variables: Json) -> tuple[int, Json]:
        teams = {"edges": [{"node": {"name": ENTITY}}]}
        viewer = {
            "id": "U",
            "entity": ENTITY,
            "username": ENTITY,
            "email": "",
            "flags": "{}",
            "teams": teams,
        }
        return 200, {"data": {"viewer": viewer}}

    def _features(self, variables: Json) -> tuple[int, Json]:
        features = [{"name": name, "isEnabled": True} for name in FEATURES]
        return 200, {"data": {"serverInfo": {"features": features}}}

    def _resume_status(self, variables: Json) -> tuple[int, Json]:
        entity = variables.get("entity") or ENTITY
        run = self.runs.get(variables["name"])
        if run:
            bucket = run.bucket()
        else:
            bucket = None
        place = {"id": "P", "name": variables["project"], "entity": {"id": "E", "name": entity}}
        return 200, {"data": {"model": {**place, "bucket": bucket}}}

    def _progress(self, variables: Json) -> tuple[int, Json]:
        run = self.runs.get(variables["name"])
        project = {"run": run.bucket() if run else None}
        return 200, {"data": {"project": project}}

    def _upsert(self, variables: Json) -> tuple[int, Json]:
        run_id = variables.get("name") or variables["id"].removeprefix("bucket-")
        if run_id in self.deleted:
            text = f"run {run_id} was previously created and deleted; try a new run name"
            return 409, {"errors": [{"message": text}], "data": {"upsertBucket": None}}
        inserted = run_id not in self.runs
        entity = variables.get("entity") or ENTITY
        run = self.runs.setdefault(
            run_id, StoredRun(id=run_id, project=variables.get("project") or "", entity=entity)
        )
        run.described |= {key: value for key, value in variables.items() if value is not None}
        return 200, {"data": {"upsertBucket": {"bucket": run.bucket(), "inserted": inserted}}}

    def _create_artifact(self, variables: Json) -> tuple[int, Json]:
        self.artifacts.append(variables["input"])
        artifact: Json = {"id": "A", "digest": "d", "state": "COMMITTED", "aliases": []}
        sequence = {"id": "S", "name": "", "latestArtifact": {"id": "A", "versionIndex": 0}}
        return 200, {
            "data": {"createArtifact": {"artifact": {**artifact, "artifactSequence": sequence}}}
        }

    def _alert(self, variables: Json) -> tuple[int, Json]:
        self.alerts.append(variables)
        return 200, {"data": {"notifyScriptableRunAlert": {"success": True}}}

    def _create_files(self, variables: Json) -> tuple[int, Json]:
        files = []
        for name in variables["files"]:
            files.append({"name": name, "uploadUrl": f"{self.url}/upload/{name}"})
        return 200, {
            "data": {"createRunFiles": {"runID": "R", "uploadHeaders": [], "files": files}}
        }

    def file_stream(self, run_id: str, body: Json) -> tuple[int, Json]:
        with self._lock:
            self.posts += 1
            run = self.runs.get(run_id)
            if run is None:
                return 404, {"error": "run not found"}
            for name, part in (body.get("files") or {}).items():
                kept = run.lines.setdefault(name, {})
                for place, line in enumerate(part["content"], start=part["offset"]):
                    kept[place] = line
            run.preempting = run.preempting or bool(body.get("preempting"))
            if body.get("complete"):
                run.exit_code = body.get("exitcode")
            return 200, {"exitcode": None, "limits": {}}


class _Quiet(ThreadingHTTPServer):
    """A client that is killed leaves its connection: no traceback for that."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    state: WandbServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status = self.state.status()
        self.state.refused += status != 200
        if status == HANG:
            self.state.wait_released()
            self.close_connection = True
            return
        content: Json = {"errors": [{"message": f"status {status}"}]}
        if status == 200 and self.path == "/graphql":
            status, content = self.state.graphql(json.loads(body))
        elif status == 200 and self.path.endswith("/file_stream"):
            run_id = unquote(self.path.split("/")[-2])
            status, content = self.state.file_stream(run_id, json.loads(body))
        elif status == 200:
            content = {}
        self._answer(status, content)

    def _answer(self, status: int, content: Json) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def wandb_server(port: int = 0) -> Iterator[WandbServer]:
    """Serve inside of the block."""
    server = WandbServer(port)
    try:
        yield server
    finally:
        server.close()
