"""What makes two runs the same run: config with its seed, source of what computes its numbers, data, environment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from nocap.config import hardware
from nocap.config.compose import to_plain
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.store.source import source_hashes


def identity_parts(run: Run, *, data_fingerprint: str) -> dict[str, Any]:
    """The parts, each comparable by itself: `nocap.compare --why` shows where two runs part ways.

    A run with `trainer.init_from` has one more, `init`: see `nocap.launch.init_checkpoint`.
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


def digest(parts: Mapping[str, Any]) -> str:
    """Twelve hex digits of the parts' canonical JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
