"""W&B's runs: the file of a run that was written offline or online, or a project's runs from the
server by wandb's public API.

    python -m nocap.compare --format wandb ENTITY/PROJECT           an arm a group
    python -m nocap.compare --format wandb ENTITY/PROJECT/GROUP     an arm a job type

A run on the server without a group, or job type, is an arm of its own name. Keys of its config are
columns too, as in --columns arm=config/optimizer. Files of one id are pieces of a run that was
resumed. `_step` counts calls of `log`, unless the program gave its own.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from nocap.config.keys import flat, require
from nocap.sources.log_reading import Row, Sample

PATTERN = "run-*.wandb"
SURE = True
REMOTE = True  # a path that is no file is a name on the server
# LevelDB's log format: blocks of parts, each with its checksum
HEAD = b":W&B\xe1\xbe\x00"
BLOCK = 2**15
PART = struct.Struct("<IHB")
ENDS = (1, 4)  # kinds of parts: whole records, and last parts


def recognises(sample: Sample) -> bool:
    return sample.head.startswith(HEAD)


def run_of(path: Path) -> str:
    """Name the run by its id, beside the folders of the same project; a place on the server by
    itself."""
    if not path.is_file():
        return str(path)
    return str(path.parents[1] / path.name)


def read(*paths: Path) -> Iterator[Row]:
    for path in sorted(paths, key=lambda path: path.parent.name):  # which begins with a time
        yield from _of_file(path) if path.is_file() else _of_server(str(path))


def _of_server(server_path: str) -> Iterator[Row]:
    parts = server_path.split("/")
    require(len(parts) in (2, 3), "it", "be ENTITY/PROJECT or ENTITY/PROJECT/GROUP", server_path)
    import wandb

    group = parts[2:]
    wandb.setup(settings=wandb.Settings(silent=True))
    if not wandb.login(prompt=False, verify=False):
        raise ValueError("W&B needs a login: type wandb login, or set WANDB_API_KEY")
    filters = {"group": group[0]} if group else {}
    for run in wandb.Api().runs(
        "/".join(parts[:2]), filters=filters, order="+created_at", lazy=False
    ):
        arm = run.job_type if group else run.group
        yield {
            "run": f"{run.name} {run.id}",
            "arm": arm or run.name,
            "ended": run.state,
            **_config(run.config),
            **_machine(run.metadata or {}),
        }
        yield from run.scan_history()


def _of_file(path: Path) -> Iterator[Row]:
    """Yield the runs of a file. A run without an end was killed."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    ended = "not finished"
    for content in _records(path):
        record = Record.FromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            group = {"arm": record.run.run_group} if record.run.run_group else {}
            facts = {
                "run": record.run.display_name,
                "started": record.run.start_time.seconds,
                **group,
            }
            yield {**facts, **_config(_items(record.run.config.update))}
        elif kind == "config":
            yield _config(_items(record.config.update))
        elif kind == "environment" and record.environment.gpu_type:
            yield _machine(
                {"gpu": record.environment.gpu_type, "gpu_count": record.environment.gpu_count}
            )
        elif kind == "history":
            yield dict(flat(_items(record.history.item), "/"))
        elif kind == "exit":
            ended = "failed" if record.exit.exit_code else "finished"
    yield {"ended": ended}


def _items(items: Iterable[Any]) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _config(config: dict[str, Any]) -> Row:
    return {
        f"config/{key}": value for key, value in flat(config, "/") if not key.startswith("_wandb")
    }


def _machine(facts: dict[str, Any]) -> Row:
    return (
        {"hardware": f"{facts.get('gpu_count') or 1} × {facts['gpu']}"} if facts.get("gpu") else {}
    )


def _records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file.

    Errors:
        ValueError: it is no such file, or damaged; what a kill cut off at its end is left out.
    """
    with path.open("rb") as file:
        require(
            file.read(len(HEAD)) == HEAD, "it", "begin with the header of a W&B file", "other bytes"
        )
        content = b""
        at = len(HEAD)
        while True:
            rest = BLOCK - at % BLOCK
            if rest < PART.size:  # a part's head is never split
                at += len(file.read(rest))
                continue
            head = file.read(PART.size)
            if len(head) < PART.size:
                return
            checksum, length, kind = PART.unpack(head)
            body = file.read(length)
            if len(body) < length:
                return
            require(
                crc32(body, crc32(bytes([kind]))) == checksum,
                f"byte {at}",
                "begin a block with a correct checksum (the file may be damaged)",
                "another checksum",
            )
            content += body
            at += PART.size + length
            if kind in ENDS:
                yield content
                content = b""
