"""Records that somebody else wrote, with digests that agree with them: a digest says that a record
is whole, not that it is friendly."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def seal(folder: Path) -> Path:
    """Write the digests of the folder's files, and of its summary, into the summary."""
    path = folder / "summary.json"
    content = json.loads(path.read_text())
    summary = {key: value for key, value in content.items() if key != "sha256"}
    text = json.dumps(summary, sort_keys=True)
    own = hashlib.sha256(text.encode()).hexdigest()
    files = (folder / name for name in ("config.yaml", "manifest.json", "metrics.jsonl"))
    digests = {}
    for file in files:
        if file.exists():
            digests[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    text = json.dumps({**summary, "sha256": {**digests, path.name: own}})
    path.write_text(text)
    return folder
