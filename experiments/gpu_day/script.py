"""What the scripts of this folder share: their flags, and how their JSON begins."""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path
from typing import Any

from nocap.config import hardware
from nocap.config.trainer import Device


def parser(about: str | None) -> argparse.ArgumentParser:
    """With --device, --small and --json."""
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--device", type=Device, default=Device.cuda, help="cuda or cpu (default: cuda)"
    )
    made.add_argument(
        "--small", action="store_true", help="a tiny shape, to see that the command works"
    )
    made.add_argument(
        "--json", type=Path, metavar="FILE", help="write what was found, as it is found"
    )
    return made


def report(kind: str, device: Device, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "date": date.today().isoformat(),
        "hardware": hardware.describe(device, 1),
        **more,
    }
