"""What makes two runs the same run: config with its seed, source of what computes its numbers, data, environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nocap.config import hardware
from nocap.config.keys import flat
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.store.record import digest as digest
from nocap.store.source import source_hashes


def identity_parts(run: Run, *, data_fingerprint: str) -> dict[str, Any]:
    """The parts, each comparable by itself: `nocap.runs why` shows where two runs part ways.

    A run with `trainer.init_from` has one more, `init`, and one that learns from another run has `teachers`: see `nocap.launch.sources`.
    """
    on_cpu = run.trainer.device is Device.cpu
    return {
        "config": config_that_counts(run),
        "source": source_hashes(run),
        "data": data_fingerprint,
        "environment": {
            "torch": hardware.torch_build()["version"],
            "device": hardware.device_name(run.trainer.device),
            "threads": run.trainer.threads if on_cpu else None,
        },
    }


def config_that_counts(run: Run) -> dict[str, Any]:
    """The resolved config without the keys that change no number: how a run is shown, stored or spread over devices."""
    config = run.that_count("identity", to_plain(run))
    if run.trainer.device is Device.cuda:
        config["trainer"].pop("threads")
    return config


# Keys of the config whose defaults follow from the machine.
OF_THE_MACHINE = ("threads", "device", "precision", "val_precision", "compile")


def differing(was: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """What makes two runs differ, `config` where that is more than the machine, each in words."""
    found = {}
    configs = [dict(flat(side.get("config") or {})) for side in (was, now)]
    keys = [key for key in dict.fromkeys(key for config in configs for key in config) if configs[0].get(key) != configs[1].get(key)]
    if any(key.removeprefix("trainer.") not in OF_THE_MACHINE for key in keys) or any(
        was.get(part) != now.get(part) for part in ("init", "teachers")
    ):
        found["config"] = ", ".join(keys)
    places = {key: [config.get(f"trainer.{key}") for config in configs] for key in OF_THE_MACHINE if f"trainer.{key}" in keys} | {
        key: [(side.get("environment") or {}).get(key) for side in (was, now)] for key in ("device", "threads", "torch")
    }
    found |= {key: f"{key} ({values[0]}, now {values[1]})" for key, values in places.items() if values[0] != values[1]}
    mine, theirs = now["source"], was.get("source") or {}
    if changed := [module for module in dict.fromkeys([*theirs, *mine]) if theirs.get(module) != mine.get(module)]:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        found["code"] = f"code ({', '.join(changed[:3])}{more})"
    if was.get("data") != now.get("data"):
        found["data"] = "data"
    return found
