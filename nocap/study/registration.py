"""When each claim was registered: an append-only file in the study's own folder, written before anything of it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from nocap.store.measurement import now

FILE = "registered.jsonl"  # a line per claim: {"claim": id, "hash": …, "at": ISO 8601}


def register(folder: Path, claims: Mapping[str, str]) -> None:
    """Add the claims (id → hash) that are not there. One that changed is another claim, registered now."""
    known = registered(folder)
    new = [{"claim": name, "hash": hashed, "at": now()} for name, hashed in claims.items() if hashed not in known]
    if not new:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in new)
        file.flush()
        os.fsync(file.fileno())


def registered(folder: Path) -> dict[str, datetime]:
    """Hash → when a claim of it was first registered.

    Errors:
        ValueError: a line that is no registration.
    """
    path, found = folder / FILE, dict[str, datetime]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else [], start=1):
        try:
            content = json.loads(line)
            found.setdefault(str(content["hash"]), datetime.fromisoformat(content["at"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: line {number} must be a registration, got {line[:80]!r}") from error
    return found
