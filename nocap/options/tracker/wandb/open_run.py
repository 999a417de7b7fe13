"""Open the W&B run that mirrors a record: online or offline, with its name, its group, its tags and
its config."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from typing import Any

from nocap.config.errors import line_of
from nocap.config.keys import flat
from nocap.options.tracker import RunFacts
from nocap.options.tracker.wandb.keys import WandbKeys
from nocap.options.tracker.wandb.login import login, teardown
from nocap.options.tracker.wandb.mirror_place import MirrorPlace, agents_id, own_id, place_of
from nocap.options.tracker.wandb.mirror_session import WandbSession, upload_s, warn
from nocap.options.tracker.wandb.names import (
    AXES,
    LONGEST_NAME,
    LONGEST_TAG,
    SHOWN,
    curve_name,
    cut,
)
from nocap.options.tracker.wandb.queries import rows_on_server


def open_session(tracker: WandbKeys, facts: RunFacts) -> WandbSession:
    """Open a session online, or offline with the reason in a line. Its place is written first: a
    mirror that cannot be opened is left to `nocap.runs sync`."""
    place_of(facts).write(facts.run_dir)
    problem = ""
    deadline = time.monotonic() + tracker.init_timeout_s
    online = tracker.may_send()
    try:
        settings = login(online=online)
        if settings is not None:
            return open_online(tracker, facts, settings, timeout_s=deadline - time.monotonic())
        if online and tracker.needs_login():
            problem = "no login"
    except Exception as error:  # whatever its client raises
        problem = line_of(error)
        # The failed attempt still holds the id: without this, the offline run is refused ("run ID
        # is in use").
        teardown()
    place = place_of(facts)
    run = _init(tracker, facts, place, mode="offline", timeout_s=float(tracker.init_timeout_s))
    if problem:
        warn(f"offline: {problem}")
    return WandbSession(tracker, run, place, facts)


def open_online(
    tracker: WandbKeys, facts: RunFacts, settings: Any, *, timeout_s: float, resent: bool = False
) -> WandbSession:
    """Open a session of a run on the server, with this login, within this time."""
    deadline = time.monotonic() + timeout_s
    place = _place_on_server(tracker, facts, settings, timeout_s=timeout_s)
    place.write(facts.run_dir)
    left_s = max(1.0, deadline - time.monotonic())
    run = _init(tracker, facts, place, mode="online", timeout_s=left_s, resent=resent)
    place = replace(place, entity=run.entity, project=run.project, server=settings.base_url)
    place.write(facts.run_dir)
    return WandbSession(tracker, run, place, facts, resent=resent)


def _place_on_server(
    tracker: WandbKeys, facts: RunFacts, settings: Any, *, timeout_s: float
) -> MirrorPlace:
    """Return where a run is sent, with the rows that the server has of it. One that was deleted
    there has another id: a server does not take the old one.

    Errors:
        OSError: the server does not answer.
    """
    before = place_of(facts)
    if not before.server and not agents_id():  # it is nowhere yet
        return before
    entity = tracker.entity or before.entity
    place = replace(before, server=settings.base_url, project=tracker.project, entity=entity)
    rows = rows_on_server(settings, place, timeout_s=timeout_s)
    if place != before:
        return replace(place, rows=rows or 0, report="", end="")
    if rows is not None:
        return replace(place, rows=rows)
    n_deleted = place.deleted + 1
    new_id = f"{own_id(facts.identity, facts.born)}-{n_deleted + 1}"
    warn(f"run {place.id} was deleted on the server, so nocap sends it again as {new_id}")
    # it is nowhere yet
    return replace(place, id=new_id, deleted=n_deleted, server="", report="", end="")


def _init(
    tracker: WandbKeys,
    facts: RunFacts,
    place: MirrorPlace,
    *,
    mode: str,
    timeout_s: float,
    resent: bool = False,
) -> Any:
    import wandb

    _forget_attempts(facts)
    group = tracker.group or facts.group
    if group:
        group = cut(group, LONGEST_NAME)
    tags = [cut(tag, LONGEST_TAG) for tag in (*tracker.tags, *facts.tags) if tag]
    measures_system = tracker.system
    if measures_system is None:
        measures_system = dict(flat(facts.config)).get("trainer.device") == "cuda"
    settings = wandb.Settings(
        init_timeout=timeout_s,
        finish_timeout=upload_s(tracker, resent=resent),
        finish_timeout_raises=True,
        silent=True,
        # The local record has the console, the code, the hardware and the versions. A command line
        # could also carry a secret.
        console="off",
        save_code=False,
        disable_code=True,
        disable_git=True,
        x_disable_meta=True,
        x_disable_stats=not measures_system,
        x_save_requirements=False,
    )
    init: Any = wandb.init
    run = init(
        name=cut(_name(tracker, facts), LONGEST_NAME),
        group=group,
        job_type=cut(tracker.job_type or facts.arm, LONGEST_NAME),
        notes=tracker.notes,
        tags=list(dict.fromkeys(tags)),
        config=_config(facts),
        id=place.id,
        project=tracker.project,
        entity=tracker.entity,
        dir=facts.run_dir,
        mode=mode,
        resume="allow",
        reinit="finish_previous",
        settings=settings,
    )
    for axis in AXES:
        run.define_metric(axis, hidden=True, summary="none")  # no panel of its own
    for name in SHOWN:
        run.define_metric(curve_name(name), step_metric="step")
    run.define_metric("*", step_metric="step", summary="none")
    return run


def _name(tracker: WandbKeys, facts: RunFacts) -> str:
    """Name a run: as the tracker says, and among the runs of a grid by what sets it apart, too."""
    if not tracker.name:
        return facts.name
    if not facts.group:
        return tracker.name
    return f"{tracker.name} {facts.name}"


def _config(facts: RunFacts) -> dict[str, object]:
    """Return the keys that make the run what it is, under the names that a command line has for
    them: an option's name is its group's value, as a sweep's agent has it."""
    config = {**facts.counted, **facts.options, **facts.about}
    config["arm"] = facts.arm
    config["arm_id"] = facts.arm_id
    config["identity"] = facts.identity
    if facts.swept:
        config["swept"] = ", ".join(facts.swept)
    return config


def _forget_attempts(facts: RunFacts) -> None:
    """Remove the folders of earlier sessions: their rows come again from the record, and what is
    not there cannot be uploaded a second time."""
    for folder in facts.run_dir.glob("wandb/*run-*"):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
