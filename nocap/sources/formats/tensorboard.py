"""TensorBoard's event files, `events.out.tfevents.SECONDS.HOST.PID.N`, without TensorFlow: scalars
by their tags, as torch's writer and TensorFlow's write them. The files of a folder are pieces of
one run: a resumed run's steps overlap, and the later piece counts. `wall_time` counts whatever the
program did, so it is no time of training."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from nocap.config.keys import require
from nocap.sources.log_reading import CutError, Row, Sample, opened

PATTERN = "*tfevents*"
SURE = True

# of a protocol buffer: how long what follows a tag is
VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
LENGTH = struct.Struct("<Q")
CRC = 4  # bytes of a checksum, which TensorBoard itself does not check by default
Field = tuple[int, int | bytes]  # its number and value


def recognises(sample: Sample) -> bool:
    return b"brain.Event:" in sample.head[:64]


def run_of(path: Path) -> str:
    return str(path.parent)


def read(*paths: Path) -> Iterator[Row]:
    """Yield the scalars, each a row, in the order in which the files were begun."""
    cut = list[str]()
    for path in sorted(paths, key=_begun):
        try:
            for event in _events(path):
                yield from _scalars(event)
        except CutError as error:
            cut.append(f"{path.name}: {error}")
    if cut:
        raise CutError("; ".join(cut))


def _begun(path: Path) -> tuple[int, str]:
    match = re.search(r"tfevents\.(\d+)", path.name)
    return int(match[1]) if match else 0, path.name


def _events(path: Path) -> Iterator[bytes]:
    with opened(path) as file:
        while head := file.read(LENGTH.size + CRC):
            size = LENGTH.unpack(head[: LENGTH.size])[0] if len(head) == LENGTH.size + CRC else 0
            require(
                size < 2**30,
                "an event",
                "have less than a gigabyte (the file may be damaged)",
                size,
            )
            event = file.read(size + CRC)
            if len(head) < LENGTH.size + CRC or len(event) < size + CRC:
                raise CutError("its last event is incomplete, so nocap leaves out this event")
            yield event[:size]


def _scalars(event: bytes) -> Iterator[Row]:
    fields = dict(_fields(event))  # 2: the step; 5: a summary, whose 1 are values
    for number, value in _fields(_bytes(fields.get(5))):
        if number != 1:
            continue
        own = dict(_fields(_bytes(value)))  # 1: the tag; 2: a number; 8: a tensor
        scalar = own[2] if 2 in own else _of_tensor(_bytes(own.get(8)))
        if isinstance(scalar, bytes) and len(scalar) == 4:
            tag = _bytes(own.get(1)).decode(errors="replace")
            yield {tag: struct.unpack("<f", scalar)[0], "step": fields.get(2, 0)}


def _of_tensor(tensor: bytes) -> int | bytes | None:
    """Return the four bytes of a tensor that is one float: 1 is its type, 4 its content, 5 its
    numbers."""
    fields = dict(_fields(tensor))
    is_float = fields.get(1) == 1
    return fields.get(4, fields.get(5)) if is_float else None


def _bytes(value: int | bytes | None) -> bytes:
    return value if isinstance(value, bytes) else b""


def _fields(message: bytes) -> Iterator[Field]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        size = {EIGHT: 8, FOUR: 4}.get(tag & 7)
        if tag & 7 == BYTES:
            size, at = _varint(message, at)
        require(
            size is not None and at + size <= len(message),
            "an event",
            "be complete",
            "a damaged one",
        )
        assert size is not None
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        require(at < len(message) and shift < 64, "an event", "be complete", "a damaged one")
        byte = message[at]
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if byte < 128:
            return value, at
