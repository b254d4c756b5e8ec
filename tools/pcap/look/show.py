"""PDUs of captures, printed as they match: what ``zenjun pcap show`` does.

Nothing is collected: a capture larger than memory is read once, and printing begins with the first match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Any, Final

from ..frames.lookup import Frame
from ..frames.problem import Problem
from ..frames.sealed import pieces
from ..frames.text import Style, details, fold, hexadecimal, line, seconds

DIRECTIONS: Final = {0: "?  ", 1: "in ", 2: "out"}
_UNITS: Final = {"ns": 1, "us": 1000, "µs": 1000, "ms": 1_000_000, "s": 1_000_000_000, "": 1_000_000_000, "m": 60_000_000_000}
_RELATIVE: Final = re.compile(r"\+?(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m)?")
_EPOCH: Final = re.compile(r"@(\d+)(?:\.(\d{1,9}))?")
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?")
_ISO: Final = re.compile(r"(.*?\d\d:\d\d:\d\d)\.(\d{1,9})(.*)")


@dataclass(frozen=True)
class When:
    """A human-readable time: ``ns`` since the capture began, since midnight of the day it began, or since 1970."""

    ns: int
    counts_from: str
    """``begin``, ``midnight`` or ``epoch``."""

    def absolute(self, begin_ns: int | None) -> int:
        """Since 1970 UTC; begin_ns: of the capture. ValueError if it is needed and not known."""
        if self.counts_from == "epoch":
            return self.ns
        if begin_ns is None:
            raise ValueError("where the capture begins is not known: give the date as well, like 2026-01-31T12:00:00")
        if self.counts_from == "begin":
            return begin_ns + self.ns
        day = datetime.fromtimestamp(begin_ns // 1_000_000_000)
        midnight = day.replace(hour=0, minute=0, second=0)
        return int(midnight.timestamp()) * 1_000_000_000 + self.ns


def moment(text: str) -> When:
    """Reads 1.5, +250ms, 12:34:56.789, 2026-01-31T12:34:56.789 (with Z or +01:00; else local), @1769859296.789. ValueError."""
    said = text.strip()
    if match := _RELATIVE.fullmatch(said):
        return When(_scaled(match[1], _UNITS[match[2] or ""]), "begin")
    if match := _EPOCH.fullmatch(said):
        return When(int(match[1]) * 1_000_000_000 + _fraction(match[2]), "epoch")
    if match := _CLOCK.fullmatch(said):
        hours, minutes, secs = int(match[1]), int(match[2]), int(match[3] or 0)
        if hours < 24 and minutes < 60 and secs < 60:
            return When((hours * 3600 + minutes * 60 + secs) * 1_000_000_000 + _fraction(match[4]), "midnight")
    whole, fraction = said, 0
    if match := _ISO.fullmatch(said):  # fromisoformat keeps microseconds only
        whole, fraction = match[1] + match[3], _fraction(match[2])
    try:
        when = datetime.fromisoformat(whole)
        return When(int(when.timestamp()) * 1_000_000_000 + fraction, "epoch")
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time like +1.5, 250ms, 12:34:56, 2026-01-31T12:34:56 or @1769859296.5") from None


def _scaled(number: str, unit_ns: int) -> int:
    whole, _, fraction = number.partition(".")
    return int(whole or 0) * unit_ns + (int(fraction) * unit_ns // 10 ** len(fraction) if fraction else 0)


def _fraction(digits: str | None) -> int:
    return int((digits or "").ljust(9, "0")[:9])


def numbers(text: str) -> tuple[int, int]:
    """First and last of ``7`` or ``7-12``, 32 bits; the range may wrap. ValueError."""
    first, dash, last = text.partition("-")
    try:
        low, high = int(first), int(last if dash else first)
    except ValueError:
        raise ValueError(f"{text!r} is not like 7 or 7-12") from None
    if not (0 <= low < 1 << 32 and 0 <= high < 1 << 32):
        raise ValueError(f"{text!r}: numbers of PDUs have 32 bits")
    return low, high


@dataclass
class Printer:
    """Writes frames; ``printed`` counts them."""

    out: IO[str]
    style: Style
    verbose: bool = False
    bytes: bool = False
    as_json: bool = False
    relative: bool = False
    many: bool = False
    """Frames of several captures: each line names its station."""
    printed: int = 0
    problems: dict[str, int] = field(default_factory=dict)
    _begin: int | None = None

    def when(self, frame: Frame) -> str:
        if not self.relative or frame.time_ns is None:
            return seconds(frame.time_ns)
        if self._begin is None:
            self._begin = frame.time_ns
        passed = frame.time_ns - self._begin
        return f"{'-' if passed < 0 else ''}{abs(passed) // 1_000_000_000}.{abs(passed) % 1_000_000_000:09d}".rjust(14)

    def show(self, frame: Frame) -> None:
        """One frame."""
        self.printed += 1
        plain = frame.decoded()
        sealed = frame.sealed if frame.problem is Problem.ASIDE else None
        if self.as_json:
            rest = {"rest": frame.pdu.hex()} if sealed is None else sealed.as_dict()
            self.out.write(json.dumps(about(frame) | (plain or rest)) + "\n")
            return
        station = f"s{frame.capture.station or '?'}"
        before = [f"{station} {DIRECTIONS[frame.direction]}"]
        if sealed is not None:
            self.out.write(fold([self.when(frame), *before, *pieces(sealed)], self.style.width) + "\n")
        elif plain is None:
            what = "CUT" if frame.problem is Problem.ASIDE else "TOO SHORT for a header"
            short = f"{what}: {len(frame.data)} of {frame.wire} bytes captured"
            self.out.write(fold([self.when(frame), *before, self.style.paint(short, "1;31")], self.style.width) + "\n")
        else:
            self.out.write(line(self.when(frame), plain, self.style, *before, problem=frame.problem) + "\n")
        if self.verbose:
            self._details(frame, plain)
        if self.bytes:
            self.out.writelines(text + "\n" for text in hexadecimal(frame.data, self.style.width))

    def _details(self, frame: Frame, plain: dict[str, Any] | None) -> None:
        where = {"file": frame.capture.name, "frame": frame.index, "offset": frame.offset, "bytes": frame.wire}
        if len(frame.data) != frame.wire:
            where["captured"] = len(frame.data)
        self.out.writelines(text + "\n" for text in details(where | (plain or {}), self.style.width))


def about(frame: Frame) -> dict[str, Any]:
    """Where and when a frame was captured, as JSON has it."""
    return {
        "time_ns": frame.time_ns,
        "station": frame.capture.station or None,
        "direction": DIRECTIONS[frame.direction].strip(),
        "file": frame.capture.path,
        "frame": frame.index,
        "offset": frame.offset,
        "bytes": frame.wire,
        "problem": None if frame.problem in (Problem.NONE, Problem.ASIDE) else frame.problem.name.lower(),
    }


def show(frames: Iterable[Frame], printer: Printer, count: int | None) -> None:
    """Print frames until there are no more, or this number is printed."""
    for frame in frames:
        printer.show(frame)
        if count is not None and printer.printed >= count:
            return
