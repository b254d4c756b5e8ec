"""PDUs as text: one line, all fields, bytes. ``zenjun sniff`` and ``zenjun pcap show`` print with it.

Values are the dictionaries of ``pdu.decode``. Colours and folding only where the reader is a terminal (``Style``).
"""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import IO, Any, Final

from ....daemon.terminal import printable
from ....proto import wire
from .links import records
from .problem import Problem

VECTOR_PLAIN_MAX: Final = 8
"""Longer vectors are written with repeats."""
SIZES_SHOWN: Final = 6
RECORDS_SHOWN: Final = 6
WIDTH_MIN: Final = 30
_SEQUENCED: Final = frozenset(kind.name for kind in wire.SEQUENCED)
_COLOURS: Final = {
    "CONFIRM": "2",
    "NAK": "33",
    "OPEN": "36",
    "RCV": "36",
    "STOP": "35",
    "STOP_ACK": "35",
    "RCV_ACK": "35",
    "RST": "31",
    "RSTC": "31",
    "DATA": "32",
}
_BAD: Final = "1;31"
_FLAG: Final = "33"

PROBLEMS: Final = {
    Problem.CUT: "CUT",
    Problem.SHORT: "TOO SHORT",
    Problem.VERSION: "UNKNOWN VERSION",
    Problem.KIND: "UNKNOWN KIND",
    Problem.STATIONS: "IMPOSSIBLE NUMBER OF STATIONS",
    Problem.SOURCE: "NO SUCH STATION",
    Problem.LENGTH: "LONGER THAN ITS FRAME",
    Problem.CHECK: "BAD CHECKSUM",
    Problem.PAYLOAD: "MALFORMED",
}


@dataclass(frozen=True)
class Style:
    """How lines are laid out. width 0: never folded."""

    colour: bool = False
    width: int = 0

    @classmethod
    def of(cls, out: IO[str]) -> Style:
        """What the stream's reader can take: a terminal that is not dumb gets colours (unless NO_COLOR) and its own width."""
        try:
            terminal = out.isatty()
        except (AttributeError, ValueError):
            terminal = False
        if not terminal:
            return cls()
        dumb = os.environ.get("TERM", "dumb") == "dumb"
        return cls(not dumb and not os.environ.get("NO_COLOR"), max(WIDTH_MIN, shutil.get_terminal_size().columns))

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.colour and colour else text


def seconds(time_ns: int | None) -> str:
    """Time of day, to the nanosecond, in the reader's time zone."""
    if time_ns is None:
        return "no time"
    when = datetime.fromtimestamp(time_ns // 1_000_000_000).strftime("%H:%M:%S")
    return f"{when}.{time_ns % 1_000_000_000:09d}"


def span(ns: int) -> str:
    """A signed time in the unit that suits it: 1.234 ms."""
    size = abs(ns)
    for unit, name in ((1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs")):
        if size >= unit:
            return f"{ns / unit:.3f} {name}"
    return f"{ns} ns"


def numbers(values: Iterable[int]) -> str:
    return ",".join(str(value) for value in values)


def vector(values: Sequence[int]) -> str:
    """All entries; of long vectors runs of equal ones as ``7×60``."""
    if len(values) <= VECTOR_PLAIN_MAX:
        return numbers(values)
    runs = ((value, sum(1 for _ in run)) for value, run in groupby(values))
    return ",".join(str(value) if count == 1 else f"{value}×{count}" for value, count in runs)


def stations(bitmap: str | int) -> str:
    """Stations of a bitmap."""
    bits = int(bitmap, 16) if isinstance(bitmap, str) else bitmap
    return numbers(j + 1 for j in range(64) if bits >> j & 1) or "none"


def ranges(values: Iterable[dict[str, int]]) -> str:
    """Ranges of a NAK: 3 or 3..7; they wrap."""
    return " ".join(
        str(r["first"]) if r["span"] == 1 else f"{r['first']}..{r['first'] + r['span'] - 1 & 0xFFFFFFFF}" for r in values
    )


def body(plain: dict[str, Any]) -> str:
    """What the kind adds to the line."""
    kind = plain["kind"]
    if kind == "DATA" and "messages" in plain:
        messages = plain["messages"]
        size = sum(message["size"] for message in messages)
        pieces = [
            f"{message['offset']}+{message['size']}/{message['total']}" for message in messages if "FRAGMENT" in message["mflags"]
        ]
        if "PAIR" in plain["flags"]:
            told = [str(record) for record in records(plain)]
            more = f"; {len(told) - RECORDS_SHOWN} more" if len(told) > RECORDS_SHOWN else ""
            return "; ".join(told[:RECORDS_SHOWN]) + more + (f"  fragment {' '.join(pieces)}" if pieces else "")
        sizes = f" ({numbers(m['size'] for m in messages)})" if 1 < len(messages) <= SIZES_SHOWN else ""
        plural = "" if len(messages) == 1 else "s"
        return f"{len(messages)} message{plural} {size} B{sizes}" + (f"  fragment {' '.join(pieces)}" if pieces else "")
    if kind == "CONFIRM" and "digest" in plain:
        held = f"  stopped {stations(plain['state'])}" if int(plain["state"], 16) else ""
        agreed = f"  agreeing {stations(plain['trans'])}" if int(plain["trans"], 16) else ""
        bound = plain["bound"]
        passed = (
            ""
            if not bound
            else "  for all"
            if bound == wire.NO_BOUND
            else f"  for all, who have passed {plain['clock'] - bound + 1}"
        )
        return f"position {plain['position']}  digest {plain['digest']}{held}{agreed}{passed}"
    if kind == "NAK" and "ranges" in plain:
        return f"asks station {plain['target']} for stream {plain['stream']}: {ranges(plain['ranges'])}"
    if kind in ("OPEN", "RCV") and "proposed" in plain:
        members = numbers(member["station"] for member in plain["proposed"])
        started = "started " if "STARTED" in plain["oflags"] else ""
        return f"{started}instance {plain['proposal']} of {members or 'nobody yet'}  host {plain['host']!r}"
    if kind in ("STOP", "STOP_ACK", "RCV_ACK") and "changed_stations" in plain:
        verb = "admits" if kind == "RCV_ACK" else "removes"
        changes = ", ".join(f"{c['changed']} at {c['value']}" for c in plain["changed_stations"])
        return f"{verb} {changes}  members {stations(plain['members'])}"
    if kind in ("RST", "RSTC") and "epoch" in plain:
        return f"epoch {plain['epoch']}"
    return ""


def flaws(plain: dict[str, Any], problem: Problem = Problem.NONE) -> list[str]:
    """What is wrong with the PDU, in capitals."""
    out = []
    if plain["check_ok"] is False:
        out.append(PROBLEMS[Problem.CHECK])
    if not plain["complete"]:
        out.append("CUT" if plain["check_ok"] is None else "MALFORMED")
    text = PROBLEMS.get(problem, "")
    if text and text not in out:
        out.append(text)
    return out


def parts(plain: dict[str, Any], style: Style, problem: Problem = Problem.NONE) -> list[str]:
    """The line's pieces: station, kind, seq, instance, clock, vectors, flags, what the kind adds, what is wrong."""
    kind = str(plain["kind"])
    out = [
        f"station {plain['src']}.{plain['incarnation']}",
        style.paint(f"{kind:8}", _COLOURS.get(kind, "")),
        f"{'seq' if kind in _SEQUENCED else 'next'} {plain['seq']}",
        f"instance {plain['instance']}",
        f"clock {plain['clock']}",
        f"ack {vector(plain['ack'])}",
    ]
    if "pack" in plain:
        out.append(f"pack {vector(plain['pack'])}")
    flags = [flag for flag in plain["flags"] if flag != "PACK"]
    if flags:
        out.append(style.paint("+".join(flags), _FLAG))
    if kind != "NAK" and plain["target"]:
        alone = kind == "CONFIRM" and not {"POLL", "PAIR"} & set(plain["flags"])
        out.append(f"to station {plain['target']} alone" if alone else f"target {plain['target']}")
    if added := body(plain):
        out.append(added)
    out += [style.paint(flaw, _BAD) for flaw in flaws(plain, problem)]
    return out


def _length(text: str) -> int:
    """Columns that a piece takes: colours take none."""
    plain = text.split("\x1b[")
    return len(plain[0]) + sum(len(piece.partition("m")[2]) for piece in plain[1:])


def fold(pieces: Sequence[str], width: int, indent: int = 4) -> str:
    """Pieces in a line, two blanks between them; the rest follows on further lines, indented. A piece that is too long for a line
    of its own is broken between words."""
    if not width:
        return "  ".join(pieces)
    lines: list[str] = []
    now = ""
    for piece in pieces:
        if now.strip() and _length(now) + 2 + _length(piece) > width:
            lines.append(now)
            now = " " * indent
        while _length(piece) > width - indent and "\x1b" not in piece and len(piece) > width - indent:
            cut = max(piece.rfind(" ", 0, width - indent), piece.rfind(",", 0, width - indent - 1) + 1)
            cut = cut if cut > 0 else width - indent
            lines.append((now or " " * indent) + piece[:cut])
            piece, now = piece[cut:].lstrip(" "), " " * indent
        now += ("  " if now.strip() else "") + piece
    return "\n".join([*lines, now] if now.strip() else lines)


def line(when: str, plain: dict[str, Any], style: Style, *before: str, problem: Problem = Problem.NONE) -> str:
    """One PDU as one line (of a terminal: as many as it takes)."""
    return fold([when, *before, *parts(plain, style, problem)], style.width)


def details(plain: dict[str, Any], width: int = 0) -> Iterator[str]:
    """All fields of a PDU, one line each."""
    for name, value in plain.items():
        entries = value if isinstance(value, list) and value and isinstance(value[0], dict) else None
        texts = ["  ".join(f"{k} {_value(v)}" for k, v in entry.items()) for entry in entries] if entries else [_value(value)]
        for text in texts:
            first = f"    {name:20} "
            if width and len(first) + len(text) > width:
                yield first.rstrip()
                yield from textwrap.wrap(text, width, initial_indent=" " * 8, subsequent_indent=" " * 8)
            else:
                yield first + text


def _value(value: Any) -> str:
    if isinstance(value, list):
        return numbers(value) or "-"
    return printable(value)


def hexadecimal(data: bytes, width: int = 0) -> Iterator[str]:
    """Offset, bytes, and what they are as ASCII."""
    each = 16 if not width or width >= 78 else 8
    for at in range(0, len(data), each):
        row = data[at : at + each]
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in row)
        yield f"    {at:04x}  {row.hex(' '):{3 * each - 1}}  {text}"
