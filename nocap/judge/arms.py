"""From runs to arms: what a run is without its seed, what differs between arms, what to call them, and which
of them may be compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from statistics import fmean
from typing import Any

from nocap.config.keys import require
from nocap.config.run import keys_that_count
from nocap.store.formats import plural, shorten
from nocap.store.metrics import OF_A_RUN
from nocap.store.record import digest
from nocap.store.runs import UNKNOWN, Config, Found, Machine, Parts, Record, dig, find_one

ABSENT = "—"  # a key that the other option has and this one does not


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Runs that differ in nothing but the seed, as far as config, source and data go. One of which all
    diverged has no finished run."""

    id: str
    label: str
    config: Config
    runs: tuple[Record, ...]  # finished, with a validation loss
    diverged: tuple[Record, ...]

    @property
    def all(self) -> tuple[Record, ...]:
        return (*self.runs, *self.diverged)

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    @cached_property
    def machines(self) -> dict[Machine, str]:
        return {run.machine: run.machine_name for run in self.runs}

    @cached_property
    def values(self) -> dict[str, dict[int, float]]:
        """Metric → seed → measurement. A seed that ran twice, on two machines, counts once, with its mean;
        what was not measured is left out."""
        return {
            name: {seed: fmean(known) for seed in self.seeds if (known := self._measured(name, seed))}
            for name in OF_A_RUN
        }

    def _measured(self, metric: str, seed: int) -> list[float]:
        return [value for run in self.runs if run.seed == seed and (value := run.value(metric)) is not None]

    def summary(self, key: str) -> Any:
        """What the first run that has `key` in its summary has there."""
        return next((value for run in self.runs if (value := run.summary.get(key))), None)


def group(records: Sequence[Record], *, ended: bool = True) -> list[Arm]:
    """The arms that have a finished or a diverged run, or without `ended` any, in the order in which they
    were started.

    Runs of one config whose code or data differ are different arms: nobody may average over an edit in
    between.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(arm_key(record.config, record.parts), []).append(record)
    arms = []
    for members in groups.values():
        finished = tuple(r for r in members if _counts(r) or not (ended or r.status == "diverged"))
        diverged = tuple(r for r in members if r.status == "diverged")
        if finished or diverged:
            arms.append(
                Arm(id=members[0].arm, label="", config=members[0].config, runs=finished, diverged=diverged)
            )
    return labelled([replace(arm, id="+".join([arm.id, *_variant(arm, arms)])) for arm in arms])


def arm_key(config: Config, parts: Parts) -> str:
    """Digest what all runs of an arm have in common: a flat config without the seed, source and data."""
    return digest([config, parts.get("source"), parts.get("data")])


def _counts(run: Record) -> bool:
    """Whether it is finished, with a loss."""
    return run.status == "finished" and (run.val_loss, run.value("val_bpb")) != (None, None)


def _variant(arm: Arm, arms: Sequence[Arm]) -> list[str]:
    """An arm's id names its config; where code or data differ too, these marks name them."""
    twins = [other for other in arms if other.id == arm.id]
    hashes = {part: [digest(twin.all[0].parts.get(part)) for twin in twins] for part in ("source", "data")}
    return [
        f"{part}:{digest(arm.all[0].parts.get(part))[:6]}"
        for part, digests in hashes.items()
        if len(set(digests)) > 1
    ]


# Groups whose change errs more often than pairs of a normal sample do, so that its losses have the cautious
# interval: experiments/seed_noise.
NOISY = ("optimizer",)


def is_noisy(arm: Arm, base: Arm) -> bool:
    """Say whether two arms differ in an option whose change has the cautious interval."""
    return any(chosen(arm, group) != chosen(base, group) for group in NOISY)


def setting(config: Config, key: str) -> str:
    """A config's value as text; the key may belong to an option that this config does not have."""
    return spell(config.get(key, ABSENT))


def swept_keys(configs: Iterable[Config]) -> list[str]:
    """The keys whose values differ between these configs."""
    configs = list(configs)
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({setting(config, key) for config in configs}) > 1]


def machines_differ(arm: Arm, base: Arm) -> str | None:
    """Why times of these two cannot be compared; `None` where they can."""
    if any(machine.fingerprint == UNKNOWN for machine in arm.machines | base.machines):
        return "no record of the hardware"
    for side, what in ((arm, "its runs"), (base, "the baseline's runs")):
        if len(side.machines) > 1:
            return f"{what} are from {len(side.machines)} machines: {shorten(side.machines.values(), most=3)}"
    if not arm.machines or not base.machines:
        return "no run of it finished"
    (machine, name), (base_machine, base_name) = (next(iter(side.machines.items())) for side in (arm, base))
    return None if machine == base_machine else f"other hardware: {name}; the baseline: {base_name}"


def changes(arm: Arm, base: Arm) -> dict[str, object]:
    """The config keys in which `arm` differs from `base`, with its own values."""
    return {key: arm.config.get(key, ABSENT) for key in swept_keys([base.config, arm.config])}


def spell(value: object) -> str:
    """A config value as a person would type it: 4, not 4.0; 0.003; null."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def labelled(arms: Sequence[Arm]) -> list[Arm]:
    """Call arms by the parts of their names that differ, and by the keys that these do not tell apart."""
    names = [_name_parts(arm.all[0]) for arm in arms]
    # a name ends with its ideas, where it has some
    differ = [len(set(column)) > 1 for column in zip_longest(*names, fillvalue="")]
    heads = [[part for part, shown in zip(name, differ, strict=False) if shown] for name in names]
    short = short_keys(swept_keys(arm.config for arm in arms))
    called = []
    for arm, head in zip(arms, heads, strict=True):
        alike = [other for other, other_head in zip(arms, heads, strict=True) if other_head == head]
        differing = swept_keys(other.config for other in alike)
        typed = typed_keys(alike)
        groups = [group for group in typed if len({chosen(other, group) for other in alike}) > 1]
        given = [key for key in differing if key in typed]
        told_apart = len(
            {
                (*(chosen(other, g) for g in groups), *(setting(other.config, key) for key in given))
                for other in alike
            }
        )
        options = [f"{group}={chosen(arm, group)}" for group in groups]
        keys = [
            f"{short.get(key, key)}={setting(arm.config, key)}"
            for key in (given if told_apart == len(alike) else differing)
        ]
        label = " ".join([*head, *options, *keys, *arm.id.split("+")[1:]])
        called.append(replace(arm, label=label or "-".join(_name_parts(arm.all[0]))))
    used = [arm.label for arm in called]  # by versions of nocap that write the same config differently
    return [
        replace(arm, label=f"{arm.label} {arm.id.rpartition('-')[2]}") if used.count(arm.label) > 1 else arm
        for arm in called
    ]


def _typed(run: Record) -> Collection[str]:
    """The keys that somebody gave for it; others follow from these."""
    return [key for attempt in run.manifest["attempts"] for key in attempt["swept"]]


def typed_keys(arms: Iterable[Arm]) -> Collection[str]:
    """List the keys that somebody gave for any of their runs."""
    return dict.fromkeys(key for arm in arms for run in arm.all for key in _typed(run))


def chosen(arm: Arm, group: str) -> str | None:
    """What was chosen in a group."""
    option: str | None = arm.all[0].manifest["options"].get(group)
    return option


def _name_parts(run: Record) -> list[str]:
    return [run.arm] if run.imported else run.name.removesuffix(f"-s{run.seed}").split("-")


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """`lr` for `optimizer.lr`, where no other key here ends the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: tail if last.count(tail) == 1 else key for key, tail in zip(keys, last, strict=True)}


def choose_baseline(arms: Sequence[Arm], wanted: str | None) -> Arm:
    """The arm that `wanted` names: its id, its label, one of its runs, parts of its readable name (`gqa
    gelu3x`), or what was set (`attention=gqa`, `mlp.expansion=4`), several with spaces or commas between.
    None: the arm that was asked for first.

    Errors:
        ValueError: no arm is called so, or several are.
    """
    if wanted is None:
        return arms[0]
    exact = [
        arm
        for arm in arms
        if wanted in {arm.id, arm.label, *(x for r in arm.all for x in (r.identity, r.name, r.folder.name))}
    ]
    matches = exact or [
        arm for arm in arms if all(has(arm.all[0], part) for part in wanted.replace(",", " ").split())
    ]
    if not matches:
        with suppress(ValueError):
            folder = find_one(wanted).name
            matches = [arm for arm in arms if folder in {run.folder.name for run in arm.all}]
    if len(matches) != 1:
        have = shorten((repr(arm.label) for arm in (matches or arms)), most=12)
        raise ValueError(f"--baseline must name one arm ({have}), got {wanted!r}")
    return matches[0]


def has(run: Record, part: str) -> bool:
    """`gqa`; `mlp.expansion=4` or `expansion=4`; `attention=gqa`, a group and its option as the command line
    has them."""
    key, equals, value = part.partition("=")
    if not equals:
        return part in _name_parts(run)
    options = run.manifest["options"]  # older records have none: their names are all there is
    is_group = any(k.startswith(f"{key}.") for k in run.config)
    chosen = str(options[key]).split(",") if key in options else _name_parts(run) if is_group else []
    return value in chosen or any(
        _is(v, value) for k, v in run.config.items() if k == key or k.endswith(f".{key}")
    )


def _is(value: Any, word: str) -> bool:
    """`3e-3` is 0.003."""
    with suppress(ValueError):
        return spell(value) == word or (type(value) in (int, float) and float(word) == value)
    return False


# --- what may be compared ------------


VAL = "data.val"  # which tokens validation reads


def validation_keys(records: Sequence[Record]) -> list[str]:
    """List the keys by which these losses are comparable: those that each record names, and today's for a
    record that names none. Where one differs, two losses measure different things: another group, unless
    declared."""
    keys = dict.fromkeys(key for record in records for key in record.manifest["measured"])
    if not all(record.manifest["measured"] for record in records):
        keys |= dict.fromkeys(keys_that_count("losses"))
    return [*(key for key in keys if not key.endswith(".kind")), VAL]


def value_of(record: Record, key: str) -> str:
    """Return what a run has in a key of `validation_keys`."""
    return record.tokens_hash("val")[:12] if key == VAL else setting(record.config, key)


# Where these differ, the difference cannot be put down to the change: confounded, unless declared.
CONFOUNDERS = ("kernel", "data", "source", "torch", "steps")
_KERNEL_KEYS = {"attention.kernel", "attention.local_kernel"}
EQUAL_TIME = 0.01  # by how much times, or epochs of a log, may differ that one budget ended


def covers(allowed: str, key: str) -> bool:
    """`data` allows `data.val` too."""
    return key == allowed or key.startswith(f"{allowed}.")


def is_declared(key: str, allow: Collection[str]) -> bool:
    return any(covers(allowed, key) for allowed in allow)


def declarable(records: Sequence[Record]) -> list[str]:
    """List what `allow` can declare of these runs."""
    return [*validation_keys(records), *CONFOUNDERS]


def declaring(records: Sequence[Record], allow: Collection[str]) -> list[str]:
    """List those of `allow` that declare something of these runs."""
    known = declarable(records)
    return [key for key in allow if _names_one(key, known)]


def _names_one(key: str, known: Collection[str]) -> bool:
    return any(covers(key, other) for other in known)


def confounders(arm: Arm, base: Arm, *, allowed: Collection[str]) -> list[str]:
    """What differs between two arms besides the config keys that are asked about, and was not declared."""
    changed = set(changes(arm, base))
    differs = {
        "kernel": _kernel_differs(arm, base, changed),
        # Another amount or source of training data may be the very question, and then the config says so.
        "data": _differ(arm, base, lambda run: run.tokens_hash("train"))
        and not any(key.startswith("data.") for key in changed),
        "source": _source_differs(arm, base),
        "torch": _differ(
            arm, base, lambda run: str(dig(run.parts, "environment", "torch")).partition("+")[0]
        ),
        "steps": lengths_differ(arm, base) and not _is_swept("trainer.steps", "experiment", arm, base),
    }
    return [key for key in CONFOUNDERS if differs[key] and not is_declared(key, allowed)]


def _differ(arm: Arm, base: Arm, property_of: Callable[[Record], str]) -> bool:
    return {property_of(run) for run in arm.all} != {property_of(run) for run in base.all}


def _is_swept(key: str, group: str, arm: Arm, base: Arm) -> bool:
    """Say whether a command swept this key, or the group whose options bring it, and the two arms differ in
    that."""
    typed = typed_keys([arm, base])
    by_group = group in typed and chosen(arm, group) != chosen(base, group)
    return by_group or (key in typed and key in changes(arm, base))


def lengths_differ(arm: Arm, base: Arm) -> bool:
    """Say whether runs ended at other lengths: neither after as many steps or tokens, nor after as much
    time. Logs count their last step from 0 or from 1."""
    alike = steps_alike(arm, base) and _logged_alike(arm, base)
    return not (alike or _within(arm, base, "tokens", most=0.0) or equal_time(arm, base))


def _logged_alike(arm: Arm, base: Arm) -> bool:
    """Say whether logs that have no steps end alike, by their epochs or tokens."""
    lengths = [run.imported.get("length") for run in (*arm.runs, *base.runs)]
    known = [length for length in lengths if length is not None]
    return not known or max(known) - min(known) <= EQUAL_TIME * max(known)


def equal_time(arm: Arm, base: Arm) -> bool:
    """Say whether an equal budget of time can have ended the runs of both."""
    times = [*arm.values["train_s"].values(), *base.values["train_s"].values()]
    return len(times) == len(arm.seeds) + len(base.seeds) and one_budget(times)


def one_budget(times: Sequence[float]) -> bool:
    """Say whether one budget of time can have ended runs: no time is 0, and all are nearly equal."""
    if not times or min(times) <= 0:
        return False
    return max(times) - min(times) <= EQUAL_TIME * max(times)


def steps_alike(arm: Arm, base: Arm) -> bool:
    """Say whether the runs of both ended after as many steps, or say nothing of their steps."""
    return _within(arm, base, "steps", most=1.0)


def _within(arm: Arm, base: Arm, count: str, *, most: float) -> bool:
    """Say whether a count is the same in all runs of both, within so much. Steps that are not known differ
    in nothing."""
    counts = [run.summary.get(count) for run in (*arm.runs, *base.runs)]
    known = [x for x in counts if x is not None]
    if len(known) < len(counts) or not known:
        return count == "steps"
    return max(known) - min(known) <= most


def _source_differs(arm: Arm, base: Arm) -> bool:
    """Whether a module that both use is not the same. What only one of them uses is the option that was asked
    about, or comes with it."""
    # an arm's runs have one
    hashes, base_hashes = (side.all[0].parts.get("source") or {} for side in (arm, base))
    return any(hashes[module] != base_hashes[module] for module in hashes.keys() & base_hashes.keys())


def _kernel_differs(arm: Arm, base: Arm, changed: set[str]) -> bool:
    """Whether another kernel comes along unasked.

    Asked for: a command swept the attention, or its kernel; the kernel's keys are all that changed; or the
    kind of attention changed and brings its own, the configured kernel being the same. So `sliding` against
    `flash` is fair, and a run of `gqa` against one of the materialised `mha` is not.
    """
    known = kernels(arm) and kernels(base)
    if not known or kernels(arm) == kernels(base) or kernel_is_swept(arm, base):
        return False
    asked = bool(changed & _KERNEL_KEYS) and changed <= _KERNEL_KEYS
    configured = {setting(side.config, "attention.kernel") for side in (arm, base)}
    # an option from outside may have no such key
    of_its_kind = "attention.kind" in changed and len(configured - {ABSENT}) < 2
    return not (asked or of_its_kind)


def kernels(arm: Arm) -> Mapping[str, str]:
    """Return the kernels of an arm's training and validation."""
    known: Mapping[str, str] = arm.summary("kernel") or {}
    return known


def kernel_is_swept(arm: Arm, base: Arm) -> bool:
    return any(_is_swept(key, "attention", arm, base) for key in _KERNEL_KEYS)


def kernel_control(arm: Arm, base: Arm, arms: Sequence[Arm]) -> tuple[str, Arm | None] | None:
    """Return what tells an arm's change from that of the kernel which came with it: how the baseline would
    have that kernel, and the arm that has it so; `None`: no kernel came along, or the baseline's kind of
    attention cannot have it."""
    changed = set(changes(arm, base))
    came = bool(changed & _KERNEL_KEYS) and kernels(arm) != kernels(base) and kernel_is_swept(arm, base)
    if not came or changed <= _KERNEL_KEYS or "attention.kind" in changed:
        return None
    differing = {key: arm.config[key] for key in _KERNEL_KEYS & changed if key in arm.config}
    wanted = {**base.config, **differing}
    there = next((other for other in arms if not swept_keys([other.config, wanted])), None)
    return " ".join(f"{key}={spell(value)}" for key, value in differing.items()), there


# --- groups -------------------------------------------------------------------------------------------------


def select(
    runs: Found, *, wanted: str | None = None, baseline: str | None = None, allow: Collection[str] = ()
) -> Found:
    """The runs of one group, whose losses measure the same: of that with the id `wanted`, else of the largest
    that has the baseline. What `allow` declares parts no runs. A line names each group left out.

    Errors:
        ValueError: an unknown `allow` or group.
    """
    known = declarable(runs.records)
    for key in allow:
        require(_names_one(key, known), "--allow", f"be one of {', '.join(known)}", repr(key))
    strict = [key for key in validation_keys(runs.records) if not is_declared(key, allow)]
    groups: dict[str, list[Record]] = {}  # by what they measure: the same id whatever other runs there are
    for record in runs.records:
        settings = {key: value_of(record, key) for key in strict}
        own = {key: value for key, value in settings.items() if value != ABSENT}
        groups.setdefault(digest(own)[:6], []).append(record)
    ranked = sorted(
        groups,
        key=lambda name: (sum(run.status == "finished" for run in groups[name]), len(groups[name])),
        reverse=True,
    )
    require(wanted is None or wanted in ranked, "--group", f"be one of {', '.join(ranked)}", repr(wanted))
    suitable = [
        name
        for name in ranked
        if (name == wanted if wanted else baseline is None or _has(groups[name], baseline))
    ]
    if not groups:
        return runs
    chosen = groups[(suitable or ranked)[0]]
    lines = [_left_out(name, groups[name], chosen, strict) for name in ranked if groups[name] is not chosen]
    return replace(runs, records=chosen, problems=[*runs.problems, *lines])


def _has(records: Sequence[Record], baseline: str) -> bool:
    try:
        choose_baseline(group(records), baseline)
    except ValueError:
        return False
    return True


def declared(records: Sequence[Record], *, allow: Collection[str]) -> Iterator[str]:
    """Say of each validation key that `allow` declares how the runs differ in it."""
    for key in validation_keys(records):
        if not is_declared(key, allow):
            continue
        names: dict[str, list[str]] = {}
        for record in records:
            names.setdefault(value_of(record, key), []).append(record.folder.name)
        if len(names) > 1:
            values = (f"{value} in {len(have)} ({shorten(have, most=2)})" for value, have in names.items())
            yield f"declared: {key} is {', '.join(values)}"


def _left_out(name: str, other: Sequence[Record], chosen: Sequence[Record], keys: Sequence[str]) -> str:
    pairs = {key: (value_of(other[0], key), value_of(chosen[0], key)) for key in keys}
    differ = {key: f"{key} is {value}, not {ours}" for key, (value, ours) in pairs.items() if value != ours}
    names = shorten((record.folder.name for record in other), most=2)
    flags = " ".join(f"--allow {key}" for key in differ)
    return (
        f"{plural(len(other), 'run')} left out ({names}): {', '.join(differ.values())}; the "
        f"same command with --group {name} compares "
        f"{'them' if len(other) > 1 else 'it'}, with {flags} across the difference"
    )
