"""Which differences between runs forbid a verdict: in validation, kernel, data, code, torch or
steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from nocap.config.run import keys_that_count
from nocap.display import shorten
from nocap.judge.arms import ABSENT, Arm, changes, chosen, command_keys, setting, spell, swept_keys
from nocap.store.record import UNKNOWN, Record

# Groups whose change errs more often than pairs of a normal sample do, so that its losses have the
# cautious interval: experiments/seed_noise.
NOISY = ("optimizer",)
VAL = "data.val"  # which tokens validation reads
# Where these differ, the difference cannot be put down to the change: confounded, unless declared.
CONFOUNDERS = ("kernel", "data", "source", "torch", "steps")
EQUAL_TIME = 0.01  # by how much times, or epochs of a log, may differ that one budget ended
_KERNEL_KEYS = {"attention.kernel", "attention.local_kernel"}


def is_noisy(arm: Arm, base: Arm) -> bool:
    """Say whether two arms differ in an option whose change has the cautious interval."""
    return any(chosen(arm, group) != chosen(base, group) for group in NOISY)


def machines_differ(arm: Arm, base: Arm) -> str | None:
    """Say why times of these two cannot be compared; `None`: they can."""
    if any(machine.fingerprint == UNKNOWN for machine in arm.machines | base.machines):
        return "no record of the hardware"
    several = _several_machines(arm, "its runs") or _several_machines(base, "the baseline's runs")
    if several is not None:
        return several
    if not arm.machines or not base.machines:
        return "the arm or the baseline has no finished run"
    [(machine, name)] = arm.machines.items()
    [(base_machine, base_name)] = base.machines.items()
    if machine == base_machine:
        return None
    return f"other hardware: {name}; the baseline: {base_name}"


def _several_machines(arm: Arm, subject: str) -> str | None:
    if len(arm.machines) < 2:
        return None
    names = shorten(arm.machines.values(), most=3)
    return f"{subject} are from {len(arm.machines)} machines: {names}"


# --- what a loss measures -------------------------------------------------------------------------


def validation_keys(records: Sequence[Record]) -> list[str]:
    """List the keys by which these losses are comparable: those that each record names, and today's
    for a record that names none. Where one differs, two losses measure different things: another
    group, unless declared."""
    keys: dict[str, None] = {}
    for record in records:
        keys |= dict.fromkeys(record.manifest["measured"])
    if not all(record.manifest["measured"] for record in records):
        keys |= dict.fromkeys(keys_that_count("losses"))
    settings = [key for key in keys if not key.endswith(".kind")]
    return [*settings, VAL]


def value_of(record: Record, key: str) -> str:
    """Return what a run has in a key of `validation_keys`."""
    if key == VAL:
        return record.tokens_hash("val")[:12]
    return setting(record.config, key)


# --- what is declared -----------------------------------------------------------------------------


def covers(allowed: str, key: str) -> bool:
    """Say whether `--allow` of the one declares the other: `data` allows `data.val` too."""
    return key == allowed or key.startswith(f"{allowed}.")


def is_declared(key: str, allow: Collection[str]) -> bool:
    """Say whether `allow` declares a key."""
    return any(covers(allowed, key) for allowed in allow)


def declarable(records: Sequence[Record]) -> list[str]:
    """List what `allow` can declare of these runs."""
    return [*validation_keys(records), *CONFOUNDERS]


def declaring(records: Sequence[Record], allow: Collection[str]) -> list[str]:
    """List those of `allow` that declare something of these runs."""
    known = declarable(records)
    return [key for key in allow if is_declaring(key, known)]


def is_declaring(key: str, known: Collection[str]) -> bool:
    """Say whether a key of `--allow` declares something of what is known to be declarable."""
    return any(covers(key, other) for other in known)


# --- what confounds a change ----------------------------------------------------------------------


def confounders(arm: Arm, base: Arm, *, allowed: Collection[str]) -> list[str]:
    """List what differs between two arms besides the config keys that are asked about, and was not
    declared."""
    changed = set(changes(arm, base))
    # Another amount or source of training data may be the very question, and then the config says
    # so.
    is_data_asked = any(key.startswith("data.") for key in changed)
    differs = {
        "kernel": _kernel_differs(arm, base, changed),
        "data": _differ(arm, base, _train_tokens) and not is_data_asked,
        "source": _source_differs(arm, base),
        "torch": _differ(arm, base, torch_version),
        "steps": lengths_differ(arm, base)
        and not _is_swept("trainer.steps", "experiment", arm, base),
    }
    return [key for key in CONFOUNDERS if differs[key] and not is_declared(key, allowed)]


def _differ(arm: Arm, base: Arm, property_of: Callable[[Record], str]) -> bool:
    own = {property_of(run) for run in arm.all}
    theirs = {property_of(run) for run in base.all}
    return own != theirs


def _train_tokens(run: Record) -> str:
    return run.tokens_hash("train")


def torch_version(run: Record) -> str:
    """Return the version of torch that trained a run, without what a build adds to it."""
    return run.torch.partition("+")[0]


def _is_swept(key: str, group: str, arm: Arm, base: Arm) -> bool:
    """Say whether a command swept this key, or the group whose options bring it, and the two arms
    differ in that."""
    in_commands = command_keys([arm, base])
    if group in in_commands and chosen(arm, group) != chosen(base, group):
        return True
    return key in in_commands and key in changes(arm, base)


def _source_differs(arm: Arm, base: Arm) -> bool:
    """Say whether a module that both use is not the same. What only one of them uses is the option
    that was asked about, or comes with it."""
    # all runs of an arm have them alike
    hashes = arm.all[0].source
    base_hashes = base.all[0].source
    shared = hashes.keys() & base_hashes.keys()
    return any(hashes[module] != base_hashes[module] for module in shared)


# --- lengths --------------------------------------------------------------------------------------


def lengths_differ(arm: Arm, base: Arm) -> bool:
    """Say whether runs ended at other lengths: neither after as many steps or tokens, nor after as
    much time. Logs count their last step from 0 or from 1."""
    if steps_alike(arm, base) and _logged_alike(arm, base):
        return False
    return not (_tokens_alike(arm, base) or equal_time(arm, base))


def steps_alike(arm: Arm, base: Arm) -> bool:
    """Say whether the runs of both ended after as many steps, or not all of them say how many."""
    steps = _known(run.steps for run in (*arm.runs, *base.runs))
    return steps is None or max(steps) - min(steps) <= 1


def _tokens_alike(arm: Arm, base: Arm) -> bool:
    tokens = _known(run.tokens for run in (*arm.runs, *base.runs))
    return tokens is not None and max(tokens) == min(tokens)


def _known(counts: Iterable[float | None]) -> list[float] | None:
    """Return these counts; `None`: one of them is not known, or there is none."""
    every = list(counts)
    known = [count for count in every if count is not None]
    if not known or len(known) < len(every):
        return None
    return known


def _logged_alike(arm: Arm, base: Arm) -> bool:
    """Say whether logs that have no steps end alike, by their epochs or tokens."""
    lengths = [run.imported.get("length") for run in (*arm.runs, *base.runs)]
    known = [length for length in lengths if length is not None]
    return not known or max(known) - min(known) <= EQUAL_TIME * max(known)


def equal_time(arm: Arm, base: Arm) -> bool:
    """Say whether an equal budget of time can have ended the runs of both."""
    times = [*arm.values["train_s"].values(), *base.values["train_s"].values()]
    are_known = len(times) == len(arm.seeds) + len(base.seeds)
    return are_known and one_budget(times)


def one_budget(times: Sequence[float]) -> bool:
    """Say whether one budget of time can have ended runs: no time is 0, and all are nearly
    equal."""
    if not times or min(times) <= 0:
        return False
    return max(times) - min(times) <= EQUAL_TIME * max(times)


# --- kernels --------------------------------------------------------------------------------------


def kernels(arm: Arm) -> Mapping[str, str]:
    """Return the kernels of an arm's training and validation."""
    known: Mapping[str, str] = arm.summary("kernel") or {}
    return known


def kernel_is_swept(arm: Arm, base: Arm) -> bool:
    """Say whether a command swept the attention or its kernel, and the two arms differ in that."""
    return any(_is_swept(key, "attention", arm, base) for key in _KERNEL_KEYS)


def _kernel_differs(arm: Arm, base: Arm, changed: set[str]) -> bool:
    """Say whether another kernel comes along unasked.

    Asked for: a command swept the attention, or its kernel; the kernel's keys are all that changed;
    the kind of attention changed and brings its own, the configured kernel being the same; or
    documents came, which on CUDA bring FlexAttention in place of `fused`. So `sliding` against
    `flash` is fair, and a run of `gqa` against one of the materialised `mha` is not.
    """
    own = kernels(arm)
    theirs = kernels(base)
    if not own or not theirs or own == theirs or kernel_is_swept(arm, base):
        return False
    is_only_change = bool(changed & _KERNEL_KEYS) and changed <= _KERNEL_KEYS
    configured = {setting(side.config, "attention.kernel") for side in (arm, base)}
    # an option from outside may have no such key
    comes_with_kind = "attention.kind" in changed and len(configured - {ABSENT}) < 2
    comes_with_documents = "data.document_mask" in changed and configured <= {"fused", "flex"}
    return not (is_only_change or comes_with_kind or comes_with_documents)


def kernel_control(arm: Arm, base: Arm, arms: Sequence[Arm]) -> tuple[str, Arm | None] | None:
    """Return what tells an arm's change from that of the kernel which came with it: how the
    baseline would have that kernel, and the arm that has it so; `None`: no kernel came along, or
    the baseline's kind of attention cannot have it."""
    changed = set(changes(arm, base))
    keys = sorted(changed & _KERNEL_KEYS)
    came_along = bool(keys) and kernels(arm) != kernels(base) and kernel_is_swept(arm, base)
    if not came_along or changed <= _KERNEL_KEYS or "attention.kind" in changed:
        return None
    kernel = {key: arm.config[key] for key in keys if key in arm.config}
    control = {**base.config, **kernel}
    text = " ".join(f"{key}={spell(value)}" for key, value in kernel.items())
    for other in arms:
        if not swept_keys([other.config, control]):
            return text, other
    return text, None
