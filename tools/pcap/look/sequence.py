"""A message's history as text: a summary in some lines, and a sequence diagram over the stations.

The diagram has a column for each station; where the terminal is too narrow for that it becomes a list.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ..frames.text import Style, fold, numbers, seconds, span
from .follow import LEVELS, TEXT_SHOWN, Life, Sending

TIME_COLUMNS: Final = 12
COLUMN_MIN: Final = 11
COLUMN_MAX: Final = 20
NOTE_COLUMNS: Final = 24
_COLOURS: Final = {"copy": "32", "asked": "33", "reset": "31", "ack": "", "pack": "2"}


@dataclass(frozen=True)
class Signs:
    """What lines and points are drawn with."""

    point: str = "●"
    line: str = "─"
    right: str = "▶"
    left: str = "◀"
    back: str = "◎"
    lost: str = "✗"
    life: str = "│"


UNICODE: Final = Signs()
ASCII: Final = Signs("o", "-", ">", "<", "@", "x", "|")


def plural(times: int) -> str:
    return "once" if times == 1 else f"{times} times"


def brief(ns: int) -> str:
    """A time in few characters."""
    size = abs(ns)
    for unit, name in ((1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs")):
        if size >= unit:
            return f"{ns / unit:.3g}{name}"
    return f"{ns}ns"


def _note(sending: Sending, life: Life) -> str:
    """The text at the end of a row."""
    pdu = sending.pdu
    what = sending.what.split("+")
    if "copy" in what:
        again = sum(1 for s in life.sendings if "copy" in s.what and s.at_ns < sending.at_ns)
        if again and sending.by != pdu["src"]:
            return f"{pdu['kind']} sent again for {pdu['src']}"
        return f"{pdu['kind']} {pdu['seq']}" + (" sent again" if again else "")
    if "asked" in what:
        return f"NAK: {pdu['src']} asks {pdu['target']}"
    if "reset" in what:
        return f"{pdu['kind']}, epoch {pdu.get('epoch', '?')}"
    says = {"ack": f"{pdu['src']} has it", "pack": f"{pdu['src']} knows: all have it"}
    told = says["pack"] if "pack" in what and "ack" not in what else says["ack"] + (", knows all have" if "pack" in what else "")
    return f"{pdu['kind']}: {told}"


def _moments(life: Life) -> list[tuple[int, int, str]]:
    """(time, station, levels reached) in order; those of one moment together."""
    found: dict[tuple[int, int], list[str]] = {}
    for station, levels in life.levels.items():
        for level in LEVELS:
            if levels.get(level) is not None:
                found.setdefault((levels[level], station), []).append(level)
    return sorted((time, station, "+".join(names)) for (time, station), names in found.items())


def diagram(life: Life, style: Style, signs: Signs = UNICODE) -> Iterator[str]:
    """Rows in order of time."""
    n = len(life.stations)
    width = style.width or max(100, min(200, TIME_COLUMNS + COLUMN_MAX * n + NOTE_COLUMNS))
    room = (width - TIME_COLUMNS - NOTE_COLUMNS) // max(1, n)
    if room < COLUMN_MIN:
        yield from _list(life, style)
        return
    column = min(COLUMN_MAX, room)
    places = {station: TIME_COLUMNS + 2 + column * k for k, station in enumerate(life.stations)}
    size = TIME_COLUMNS + column * n
    head = [" "] * size
    for station, at in places.items():
        _put(head, at - 1, f"s{station}")
    yield "".join(head).rstrip()
    rows: list[tuple[int, str]] = []
    for s in life.sendings:
        note, *more = textwrap.wrap(_note(s, life), max(8, width - size - 1)) or [""]
        rows.append((s.at_ns, f"{_arrows(s, life, places, size, column, style, signs)} {note}"))
        rows += [(s.at_ns, "".join(_empty(places, size, signs)) + " " + text) for text in more]
    for time, station, names in _moments(life):
        canvas = _empty(places, size, signs)
        _put(canvas, places[station], f"{signs.life} {names}")
        rows.append((time, _timed(canvas, time, life)))
    rows.sort(key=lambda row: row[0])
    yield from (text for _, text in rows)


def _empty(places: dict[int, int], size: int, signs: Signs) -> list[str]:
    canvas = [" "] * size
    for at in places.values():
        canvas[at] = signs.life
    return canvas


def _put(canvas: list[str], at: int, text: str) -> None:
    for k, sign in enumerate(text):
        if 0 <= at + k < len(canvas):
            canvas[at + k] = sign


def _timed(canvas: list[str], time_ns: int, life: Life) -> str:
    passed = time_ns - life.begin_ns
    _put(canvas, 0, f"{'+' if passed >= 0 else ''}{brief(passed)}".rjust(TIME_COLUMNS - 2))
    return "".join(canvas).rstrip()


def _arrows(sending: Sending, life: Life, places: dict[int, int], size: int, column: int, style: Style, signs: Signs) -> str:
    """One PDU on its way."""
    canvas = _empty(places, size, signs)
    start = places.get(sending.by)
    others = {s: t for s, t in sending.receipts.items() if s in places}
    if start is not None:
        lost = [s for s in sending.missing if s in places]
        for station in sorted([*others, *lost], key=lambda s: -abs(places[s] - start)):
            at = places[station]
            step = 1 if at > start else -1
            for x in range(start + step, at, step):
                canvas[x] = signs.line
        for station in lost:
            canvas[places[station]] = signs.lost
    for station, time in others.items():
        at = places[station]
        if start is None:
            canvas[at] = signs.right
        elif station == sending.by:
            continue
        else:
            canvas[at] = signs.right if at > start else signs.left
        if sending.time_ns is not None:
            _put(canvas, at + 1, brief(time - sending.time_ns)[: column - 2])
    if start is not None:
        canvas[start] = signs.back if sending.by in others else signs.point
    what = sending.what.split("+")[0]
    return style.paint(_timed(canvas, sending.at_ns, life).ljust(size), _COLOURS[what])


def _list(life: Life, style: Style) -> Iterator[str]:
    rows: list[tuple[int, list[str]]] = []
    for s in life.sendings:
        pieces = [_note(s, life), f"from s{s.by}" if s.by else "from a station without capture"]
        for station, time in sorted(s.receipts.items()):
            pieces.append(f"at s{station} " + (f"after {span(time - s.time_ns)}" if s.time_ns is not None else seconds(time)))
        if s.missing:
            pieces.append("not at " + ", ".join(f"s{k}" for k in s.missing))
        rows.append((s.at_ns, pieces))
    rows += [(time, [f"s{station}: {names}"]) for time, station, names in _moments(life)]
    for time, pieces in sorted(rows, key=lambda row: row[0]):
        yield fold([f"+{span(time - life.begin_ns)}", *pieces], style.width)


def _text_of(message: dict[str, Any]) -> str:
    data = bytes.fromhex(message["data"])
    shown = data[:TEXT_SHOWN].decode(errors="replace")
    return repr(shown if all(c.isprintable() for c in shown) else data[:TEXT_SHOWN])[: TEXT_SHOWN + 4] + (
        " …" if len(data) > TEXT_SHOWN else ""
    )


def summary(life: Life, style: Style) -> Iterator[str]:
    """What is known, in lines."""
    pdu = life.pdu
    identity = f"{pdu['src']}.{pdu['incarnation']}:{pdu['seq']}"
    pieces = [f"{pdu['kind']} {identity}", f"instance {pdu['instance']}", f"{life.size} bytes"]
    if life.bus:
        pieces.append(f"epoch {pdu['clock'] & 0xFFFFFFFF}")
    if life.place is not None:
        pieces.append(f"place (clock {life.place['clock']}, station {life.place['src']})")
    yield fold(pieces, style.width)
    for k, message in enumerate(pdu.get("messages", [])):
        if life.index is not None and k != life.index:
            continue
        about = [f"message {k}", f"{message['size']} bytes", str(message["type"]), f"group {message['group']}"]
        if "FRAGMENT" in message["mflags"]:
            about.append(f"fragment {message['offset']}+{message['size']} of {message['total']}")
        yield fold([*about, f"client {message['client']}", _text_of(message)], style.width)
    if life.index is None and len(pdu.get("messages", [])) > 1:
        yield f"(name one of its messages with {identity}:INDEX)"
    for f in life.fragments:
        begin = min((t for t in f["stations"].values() if t is not None), default=None)
        where = numbers(sorted(f["stations"]))
        yield fold(
            [f"  piece in PDU {f['seq']}", f"{f['offset']}+{f['size']}", f"first {seconds(begin)}", f"at stations {where}"],
            style.width,
        )
    copies = [s for s in life.sendings if "copy" in s.what.split("+")]
    asked = [s for s in life.sendings if "asked" in s.what.split("+")]
    yield fold(
        [
            f"sent {plural(len(copies))}",
            f"by {numbers(sorted({s.by for s in copies if s.by})) or 'a station without capture'}",
            f"asked for {plural(len(asked))}" if asked else "never asked for",
            f"begins {seconds(life.begin_ns)}",
        ],
        style.width,
    )
    for station in life.stations:
        yield fold(_station(life, station), style.width)


def _station(life: Life, station: int) -> list[str]:
    pieces = [f"station {station}"]
    first = life.seen.get(station)
    if first is None:
        pieces.append("never there")
    else:
        copies = life.copies.get(station, 0)
        pieces.append(f"first at +{span(first - life.begin_ns)}" + (f", {copies} copies" if copies > 1 else ""))
    levels = life.levels.get(station)
    if levels is None:
        return [*pieces, "not in its order"] if life.levels else pieces
    pieces += [f"{level} +{span(levels[level] - life.begin_ns)}" for level in LEVELS if levels[level] is not None]
    pieces += [f"not {level}" for level in LEVELS if levels[level] is None]
    if levels["position"] is not None:
        pieces.append(f"position {levels['position']} of view {levels['view']}")
    if levels["before"]:
        pieces.append(f"behind {levels['before'][-1]}")
    if levels["after"]:
        pieces.append(f"before {levels['after'][0]}")
    return pieces
