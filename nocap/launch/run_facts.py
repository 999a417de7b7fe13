"""What trackers are told of a run, from its config, its manifest and the numbers of its parameters.
No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nocap.config.keys import flat
from nocap.config.outgoing_text import redact
from nocap.judge.arm_labels import short_keys
from nocap.judge.arms import arm_key, spell
from nocap.options.tracker import RunFacts
from nocap.store.attempt_entry import AttemptEntry, attempts_in
from nocap.store.times import moment


def run_facts(
    config: Mapping[str, Any],
    run_dir: Path,
    manifest: Mapping[str, Any],
    *,
    params: Mapping[str, int] | None = None,
) -> RunFacts:
    """Return what a tracker is told of a run. `config`: as its record has it; `params`: the numbers
    of its parameters."""
    options = manifest["options"]
    attempts = attempts_in(manifest)
    seed = int(config["seed"])
    swept = _swept(config, manifest)
    arm = _arm_name(manifest, run_dir, swept, seed=seed)
    parts = manifest["parts"]
    counted = dict(flat(parts["config"]))
    own = dict(flat(redact(parts["config"])))
    own.pop("seed", None)
    short = short_keys(list(swept))
    shown = {short[key]: value for key, value in swept.items()}
    tags = (arm, *_tags(options))
    return RunFacts(
        identity=manifest["identity"],
        name=f"{arm} s{seed}",
        arm=arm,
        arm_id=arm_key(own, parts),
        seed=seed,
        run_dir=run_dir,
        config=config,
        group=attempts[-1].grid,
        tags=tags,
        options=options,
        swept=shown,
        counted=counted,
        about=_about(manifest, params),
        born=born(manifest),
        attempts=tuple(_starts(attempts)),
    )


def _swept(config: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the groups and keys that set the run apart from those beside it, with its values."""
    values = dict(flat(config)) | dict(manifest["options"])
    swept = attempts_in(manifest)[-1].swept
    return {key: values[key] for key in swept if key in values}


def _arm_name(
    manifest: Mapping[str, Any], run_dir: Path, swept: Mapping[str, Any], *, seed: int
) -> str:
    """Name a run's arm: by what its grid sweeps, or by the run's name and what was typed."""
    short = short_keys(list(swept))
    words = list[str]()
    for key, value in swept.items():
        if key == "seed":
            continue
        if key in manifest["options"] and value != "none":
            words.append(str(value))
        else:
            words.append(f"{short[key]}={spell(value)}")
    if attempts_in(manifest)[-1].is_cell and words:
        return " ".join(words)
    name = str(manifest.get("name") or run_dir.name).removesuffix(f"-s{seed}")
    return " ".join([name, *words])


def _tags(options: Mapping[str, str]) -> Iterator[str]:
    """Yield a tag for each option."""
    for group, names in options.items():
        for name in names.split(","):
            yield f"{group}={name}"


def _about(manifest: Mapping[str, Any], params: Mapping[str, int] | None) -> dict[str, Any]:
    """Return the code, the machine and the parameters of a run."""
    commit = (manifest["git"] or {}).get("commit")
    found = {"commit": commit, "hardware": manifest["hardware"], "params": params or {}}
    return {name: value for name, value in flat(found) if value is not None}


def born(manifest: Mapping[str, Any]) -> str:
    """Return when and where a run's first attempt started, which another training of the same
    config does not share."""
    first = attempts_in(manifest)[0]
    return f"{first.started} {first.host}"


def _starts(attempts: Sequence[AttemptEntry]) -> Iterator[tuple[float, float]]:
    """Yield when each attempt started, and the seconds that the run had spent by then."""
    for attempt in attempts:
        at = moment(str(attempt.started))
        if at is not None:
            yield at, attempt.spent_s
