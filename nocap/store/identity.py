"""What makes two runs the same run: config with its seed, source of what computes its numbers,
data, environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nocap.config import hardware
from nocap.config.keys import flat
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.display import shorten

# for `nocap.data.shard_cache`, which says why
from nocap.store.source_hashes import hashes as hashes
from nocap.store.source_hashes import source_hashes


def identity_parts(run: Run, *, data_fingerprint: str) -> dict[str, Any]:
    """Return the parts, each comparable by itself: `nocap.runs why` shows where two runs part ways.

    A run with `trainer.init_from` has one more, `init`, and one that learns from another run has
    `teachers`: see `nocap.launch.earlier_runs`.
    """
    return {
        "config": config_that_counts(run),
        "source": source_hashes(run),
        "data": data_fingerprint,
        "environment": {
            "torch": hardware.torch_build()["version"],
            "device": hardware.device_name(run.trainer.device),
            "threads": _threads_that_count(run),
        },
    }


def _threads_that_count(run: Run) -> int | None:
    """Return the threads on a CPU; on a GPU they change no number."""
    if run.trainer.device is Device.cpu:
        return run.trainer.threads
    return None


def config_that_counts(run: Run) -> dict[str, Any]:
    """Return the resolved config without the keys that change no number: how a run is shown, stored
    or spread over devices."""
    config = run.that_count("identity", to_plain(run))
    if run.trainer.device is Device.cuda:
        config["trainer"].pop("threads")
    return config


# Keys of the config whose defaults follow from the machine.
OF_THE_MACHINE = ("threads", "malloc", "device", "precision", "val_precision", "compile")


def differing_keys(was: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """List the keys in which two flat mappings differ, those of the first in front."""
    return [key for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key)]


def differing(was: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return what makes two runs differ, each in words: a setting of the machine, `code`, `data`,
    and `config` where it is more than these."""
    before = dict(flat(was))
    after = dict(flat(now))
    keys = differing_keys(before, after)
    reasons = dict[str, str]()
    config_keys = list[str]()
    modules = list[str]()
    for key in keys:
        of_machine = key.removeprefix("config.trainer.") in OF_THE_MACHINE
        if key.startswith("source."):
            modules.append(key.removeprefix("source."))
        elif key.startswith("environment.") or of_machine:
            name = key.rpartition(".")[2]
            reasons[name] = f"{name} ({before.get(key)}, now {after.get(key)})"
        elif key != "data":
            config_keys.append(key)
    if config_keys:
        reasons["config"] = ", ".join(config_keys)
    if modules:
        reasons["code"] = f"code ({shorten(modules)})"
    if "data" in keys:
        reasons["data"] = "data"
    return reasons
