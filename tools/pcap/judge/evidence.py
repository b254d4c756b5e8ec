"""Frames that prove something, fetched from the captures and written as lines; and whether a capture itself reports losses."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ....proto import wire

SPAN_NS: Final = 1_000_000
"""Frames are looked for by time first: a capture's time stamps may run back by so much."""
_ISB: Final = 5
_ISB_IFRECV: Final = 4
_ISB_IFDROP: Final = 5
_TAIL_BLOCKS: Final = 64
_TAIL_BYTES: Final = 1 << 16


@dataclass(slots=True)
class Where:
    """One frame: ``note`` tells what it is evidence of. ``text``: the PDU in one line, once it has been looked up."""

    station: int
    file: int
    frame: int
    time_ns: int | None
    note: str = ""
    path: str = ""
    text: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "station": self.station,
            "file": self.path or self.file,
            "frame": self.frame,
            "time_ns": self.time_ns,
            "note": self.note,
            "pdu": self.text,
        }


@dataclass(frozen=True, slots=True)
class Source:
    """A capture file as the verdicts need it. whole: it ends with a record, and no frame is cut. dropped: frames missing in it by
    its own report; None: it has none."""

    file: int
    path: str
    station: int
    own_mac: int = 0
    last_ns: int | None = None
    whole: bool = True
    dropped: int | None = None


def look_up(places: Iterable[Where], sources: dict[int, Source], ethertype: int = wire.ETHERTYPE) -> None:
    """Fill in path and text. A file that is not there any more leaves the text empty."""
    by: dict[int, list[Where]] = {}
    for place in places:
        by.setdefault(place.file, []).append(place)
    for number, wanted in by.items():
        source = sources.get(number)
        if source is None:
            continue
        for place in wanted:
            place.path = source.path
        try:
            _fill(source, wanted, ethertype)
        except OSError:
            continue


def _fill(source: Source, wanted: list[Where], ethertype: int) -> None:
    from ..frames.lookup import Capture, Notes, Selection, frames
    from ..frames.text import Style, line, seconds

    selection = Selection(ethertype)
    times = [place.time_ns for place in wanted]
    if all(t is not None for t in times):
        known = [t for t in times if t is not None]
        selection.since_ns, selection.until_ns = min(known) - SPAN_NS, max(known) + SPAN_NS
    by: dict[int, list[Where]] = {}
    for place in wanted:
        by.setdefault(place.frame, []).append(place)
    for frame in frames(Capture(source.path, source.station, source.own_mac), selection, Notes()):
        for place in by.pop(frame.index, ()):
            plain = frame.decoded()
            direction = ("?", "in", "out")[frame.direction]
            place.time_ns = frame.time_ns
            place.text = "" if plain is None else line(seconds(frame.time_ns), plain, Style(), f"s{source.station} {direction}")
        if not by:
            break


def dropped(path: str, frames: int | None = None) -> int | None:
    """How many frames a pcapng file says the capture lost (its last interface statistics), or received and does not hold:
    *frames* is how many there are in it (who filters captures copies their statistics). None: it says nothing, is of another
    format or compressed."""
    try:
        with Path(path).open("rb") as file:
            if file.read(4) != b"\x0a\x0d\x0d\x0a":
                return None
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
    except OSError:
        return None
    return _dropped(tail, frames)


def _dropped(tail: bytes, frames: int | None) -> int | None:
    """Blocks end with their length, so that they can be read from the end."""
    found: int | None = None
    end = len(tail)
    for _ in range(_TAIL_BLOCKS):
        if end < 12:
            break
        for order in "<>":
            size = struct.unpack_from(order + "I", tail, end - 4)[0]
            if 12 <= size <= end and size % 4 == 0 and struct.unpack_from(order + "I", tail, end - size + 4)[0] == size:
                break
        else:
            break
        start = end - size
        if struct.unpack_from(order + "I", tail, start)[0] == _ISB:
            options = tail[start + 20 : end - 4]
            lost, received = _option(order, options, _ISB_IFDROP), _option(order, options, _ISB_IFRECV)
            if lost is not None:
                missing = max(0, received - frames) if received is not None and frames is not None else 0
                found = max(found or 0, lost, missing)
        elif found is not None:
            break
        end = start
    return found


def _option(order: str, options: bytes, wanted: int) -> int | None:
    at = 0
    while at + 4 <= len(options):
        code, size = struct.unpack_from(order + "HH", options, at)
        if code == 0:
            break
        if code == wanted and size == 8 and at + 12 <= len(options):
            return int(struct.unpack_from(order + "Q", options, at + 4)[0])
        at += 4 + (size + 3 & ~3)
    return None
