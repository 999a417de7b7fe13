"""What nocap asks a W&B server itself: who is logged in, and how many rows of a run it has."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from nocap.config.errors import line_of
from nocap.options.tracker.wandb.mirror_place import MirrorPlace

VIEWER = "query Viewer { viewer { entity } }"
PROGRESS = """
query NocapProgress($project: String!, $entity: String, $name: String!) {
  project(name: $project, entityName: $entity) { run(name: $name) { historyLineCount } }
}
"""


def ask(
    settings: Any, query: str, variables: Mapping[str, object], *, timeout_s: float
) -> dict[str, Any]:
    """Return what the server answers to a query.

    Errors:
        OSError: it does not answer, or refuses.
    """
    import urllib.request  # here, as a grid without W&B would pay for both
    from http.client import HTTPException

    secret = base64.b64encode(f"api:{settings.api_key}".encode()).decode()
    content = json.dumps({"query": query, "variables": variables}).encode()
    json_type = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{settings.base_url}/graphql", data=content, headers=json_type
    )
    # not to a server that this one may lead to
    request.add_unredirected_header("Authorization", f"Basic {secret}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            answer = json.load(reply)
        problems = [str(problem["message"]) for problem in answer.get("errors") or ()]
    except (HTTPException, ValueError, LookupError, AttributeError) as error:
        raise OSError(f"no answer to a query: {line_of(error)}") from error
    if problems:
        raise OSError("; ".join(problems))
    return dict(answer.get("data") or {})


def rows_on_server(settings: Any, place: MirrorPlace, *, timeout_s: float) -> int | None:
    """Return how many rows the server has of a run; None: it has no such run.

    Errors:
        OSError: it does not say.
    """
    variables = {"project": place.project, "entity": place.entity or None, "name": place.id}
    data = ask(settings, PROGRESS, variables, timeout_s=timeout_s)
    project = data.get("project") or {}
    run = project.get("run")
    if run is None:
        return None
    return int(run["historyLineCount"] or 0)
