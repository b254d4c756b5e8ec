"""Captures of a run that never was, of any size, made in C: for benchmarks and tests.

The PDUs are valid, checksums and all: n stations take turns, each accepts everything before it sends, nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ....proto import wire
from ...lab.capture import PcapngWriter
from ..native import ffi, lib

_PIECE_BYTES: Final = 8 << 20
START_NS: Final = 1_700_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Generated:
    """What was written, over all files."""

    files: list[Path]
    frames: int
    bytes: int
    messages: int


def captures(
    folder: Path,
    *,
    stations: int = 3,
    seen_by: Sequence[int] = (),
    bytes_each: int = 0,
    pdus: int = 0,
    confirm_every: int = 4,
    step_ns: int = 10_000,
    seed: int = 1,
) -> Generated:
    """Write ``sN.pcapng`` of each station of *seen_by* (default: all): at least *bytes_each* long or, if that is 0, of a run of
    *pdus* DATA. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = bytearray(_PIECE_BYTES)
    view = ffi.from_buffer(buffer)
    files, frames, total, messages = [], 0, 0, 0
    for station in seen_by or range(1, stations + 1):
        path = folder / f"s{station}.pcapng"
        run = ffi.new(
            "struct zp_generate *",
            {
                "stations": stations,
                "station": station,
                "cluster": wire.cluster_id("generated"),
                "instance": 1,
                "incarnation": 1000,
                "confirm_every": confirm_every,
                "start_ns": START_NS,
                "step_ns": step_ns,
                "seed": seed,
            },
        )
        with path.open("wb") as file:
            PcapngWriter(file, "zenjun generated").interface("eth0", "")
            until = pdus or (1 << 62)
            while run.next < until and (not bytes_each or file.tell() < bytes_each):
                size = lib.zp_generate(run, ffi.cast("uint8_t *", view), len(buffer), until)
                with memoryview(buffer) as piece:
                    file.write(piece[:size])
            total += file.tell()
        files.append(path)
        frames += int(run.frames)
        messages += int(run.messages)
    return Generated(files, frames, total, messages)
