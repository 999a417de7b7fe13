"""One run, as `nocap runs show` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nocap.runs.columns import Listed, age, size_of
from nocap.store.checkpoints import FOLDER, saved_steps
from nocap.store.formats import shorten, size
from nocap.store.runs import dig
from nocap.training.terminal import table


def shown(run: Listed, used_by: Sequence[str]) -> str:
    return "\n".join([_result(run), *(f"  {label:<11} {text}" for label, text in _facts(run, used_by) if text)])


def _result(run: Listed) -> str:
    try:
        return table(run.record.summary, run_dir=run.folder)
    except (AttributeError, KeyError, TypeError):  # it has not ended, or an older nocap wrote it
        return f"  {'run':<11} {run.record.name}  {run.status}\n  {'record':<11} {run.folder}"


def _facts(run: Listed, used_by: Sequence[str]) -> Iterator[tuple[str, str]]:
    record, manifest = run.record, run.record.manifest
    attempts = manifest.get("attempts") or []
    yield "identity", record.identity
    yield "arm", record.arm
    yield "started", f"{record.started}, {len(attempts)} attempt(s), the last {age(run.age_s)} ago on {run.attempt.get('host') or '?'}"
    yield "machine", record.machine_name
    yield "code", _code(run)
    steps = saved_steps(run.folder)
    held = size_of(run.folder / FOLDER) if steps else 0
    kept = f", of that {size(held)} in checkpoints of steps {shorten(map(str, sorted(steps)), most=8)}" if steps else ""
    yield "disk", f"{size(run.size)}{kept}"
    for label, key in (("begins from", "init"), ("learns from", "teachers")):
        found = manifest.get(key) or {}
        names = [found] if key == "init" and found else list(found.values())
        yield label, ", ".join(str(one.get("path")) for one in names if one)
    yield "used by", shorten(used_by, most=8) if used_by else ""


def _code(run: Listed) -> str:
    manifest = run.record.manifest
    versions = manifest.get("versions") or {}
    commit = str(dig(manifest, "git", "commit") or "")[:12]
    parts = [f"commit {commit}" if commit else "", *(f"{name} {versions[name]}" for name in ("nocap", "torch") if name in versions)]
    return ", ".join(filter(None, parts))
