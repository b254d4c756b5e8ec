"""The history of one message, from the captures of the stations, for ``zenjun pcap follow``.

The frames come from a walk over each capture in C (``zm_follow``): copies of its PDU, NAKs for it, the first PDU of each station
that acknowledges it (A) and the first that reports that every station has it (P), at every station. The observer (``replay``),
not this module, decides when it reached each level, and what its neighbours in the order are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ....proto import wire
from ..frames.lookup import Capture, Correction, Frame, Notes, Selection, Track, frames
from ..frames.pdu import place
from ..native import lib
from ..work import scratch

CANDIDATES_SHOWN: Final = 10
LEVELS: Final = ("accepted", "ordered", "preack", "acked")
NEIGHBOURS: Final = 2
TEXT_SHOWN: Final = 60
_NAME: Final = re.compile(r"(\d+)(?:\.(\d+))?:(\d+)(?::(\d+))?")
_BACKWARDS_NS: Final = 5_000_000
"""A receipt may seem to come so much before its transmission: clocks are aligned only so well."""


class FollowError(Exception):
    """It is unclear which message is meant; one human-readable line, and further ones to choose from."""


class Name(NamedTuple):
    """How a person names a message."""

    src: int
    incarnation: int | None
    seq: int
    message: int | None
    """Which one in its PDU."""


def name(text: str) -> Name:
    """Reads SRC:SEQ, SRC.INCARNATION:SEQ and both with :INDEX. ValueError."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not like 2:17, 2.367131199:17 or 2:17:0 (source, its incarnation, number, which message)")
    src, seq = int(match[1]), int(match[3])
    if not 1 <= src <= wire.STATIONS_MAX:
        raise ValueError(f"{text!r}: stations are 1..{wire.STATIONS_MAX}")
    if seq >= 1 << 32 or int(match[2] or 0) >= 1 << 32:
        raise ValueError(f"{text!r}: numbers and incarnations have 32 bits")
    return Name(src, int(match[2]) if match[2] else None, seq, int(match[4]) if match[4] else None)


@dataclass
class Sending:
    """One PDU on the wire and who received it: times by the common clock, None: no such frame in that station's capture."""

    what: str
    """``copy``, ``asked``, ``ack``, ``pack`` or ``reset``."""
    pdu: dict[str, Any]
    time_ns: int | None
    """When it was sent; None: its sender has no capture, or it lacks the frame."""
    by: int
    """Station that put it on the wire; 0: not known."""
    receipts: dict[int, int] = field(default_factory=dict)
    """Station → when it arrived there."""
    missing: list[int] = field(default_factory=list)
    """Stations with a capture in which it does not arrive."""

    @property
    def at_ns(self) -> int:
        return self.time_ns if self.time_ns is not None else min(self.receipts.values())


@dataclass
class Life:
    """Everything that is known of one message's PDU."""

    pdu: dict[str, Any]
    size: int
    index: int | None
    sendings: list[Sending] = field(default_factory=list)
    heard: dict[int, dict[str, dict[int, int]]] = field(default_factory=dict)
    """Station → ``ack`` and ``pack`` → speaker → when it first heard that from it."""
    seen: dict[int, int] = field(default_factory=dict)
    """Station → first copy, sent or received."""
    copies: dict[int, int] = field(default_factory=dict)
    levels: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Station → accepted, ordered, preack, acked (ns or None), position, before and after (places beside it)."""
    fragments: list[dict[str, Any]] = field(default_factory=list)
    """Of a fragmented message: its PDUs, with when each was first sent or seen."""
    stations: tuple[int, ...] = ()
    conflicts: int = 0
    bus: bool = False
    """The captures are of a bus: the order is that of arrival, and the clock has the epoch."""

    @property
    def place(self) -> dict[str, int] | None:
        """(clock, source) in the total order; on a bus the clock is made of the position, if that is known."""
        clock = int(self.pdu["clock"])
        if self.bus:
            known = next((v for v in self.levels.values() if v["position"] is not None and v["view"] is not None), None)
            if known is None:
                return None
            clock = (known["view"] << 32) + known["position"]
        return {"clock": clock, "src": int(self.pdu["src"])}

    @property
    def begin_ns(self) -> int:
        return min([s.at_ns for s in self.sendings] + list(self.seen.values()), default=0)


def find(captures: Sequence[Capture], wanted: Name | bytes, ethertype: int, notes: Notes) -> tuple[Frame, int | None]:
    """A copy of the PDU that is meant, and which of its messages. FollowError if there is none, or several."""
    selection = Selection(ethertype)
    if isinstance(wanted, bytes):
        selection.text, selection.kinds = wanted, frozenset({int(wire.Kind.DATA)})
    else:
        selection.sources, selection.seqs = frozenset({wanted.src}), (wanted.seq, wanted.seq)
        selection.incarnation = wanted.incarnation
        selection.kinds = frozenset(int(kind) for kind in wire.SEQUENCED)
    found: dict[tuple[Any, ...], Frame] = {}
    for capture in captures:
        for frame in frames(capture, selection, notes):
            plain = frame.decoded()
            if frame.problem or plain is None:
                continue
            # On a bus a reset makes a station send its PDUs again with other vectors: the payload's checksum stays.
            key = (plain["cluster"], plain["src"], plain["incarnation"], plain["seq"], plain["check"][8:])
            found.setdefault(key, frame)
            if len(found) > CANDIDATES_SHOWN:
                break
    if not found:
        raise FollowError("no PDU has this text" if isinstance(wanted, bytes) else "no such PDU in these captures")
    if len(found) > 1:
        raise FollowError("\n".join(["several are meant; say which:", *_choices(found, wanted)]))
    frame = next(iter(found.values()))
    return frame, _index(frame, wanted)


def _choices(found: Mapping[tuple[Any, ...], Frame], wanted: Name | bytes) -> list[str]:
    out = []
    for (cluster, src, incarnation, seq, _), frame in found.items():
        index = _index(frame, wanted)
        tail = f":{index}" if index is not None else ""
        out.append(f"  {src}.{incarnation}:{seq}{tail}  (cluster {cluster})")
    return out[:CANDIDATES_SHOWN] + (["  …"] if len(out) > CANDIDATES_SHOWN else [])


def _index(frame: Frame, wanted: Name | bytes) -> int | None:
    plain = frame.decoded() or {}
    messages = plain.get("messages", [])
    if isinstance(wanted, bytes):
        return next((k for k, m in enumerate(messages) if wanted in bytes.fromhex(m["data"])), None)
    if wanted.message is not None and wanted.message >= len(messages):
        raise FollowError(f"this PDU has {len(messages)} messages, numbered from 0")
    return wanted.message if wanted.message is not None else (0 if len(messages) == 1 else None)


def follow(
    captures: Sequence[Capture],
    wanted: Name | bytes,
    *,
    ethertype: int = wire.ETHERTYPE,
    correct: Correction | None = None,
    notes: Notes | None = None,
) -> Life:
    """Collect the history of a message. Files of one station are one capture. Raises FollowError, OSError."""
    notes = notes if notes is not None else Notes()
    first, index = find(captures, wanted, ethertype, notes)
    plain = first.decoded()
    assert plain is not None
    life = Life(plain, len(first.data), index)
    track = Track(int(plain["cluster"], 16), plain["src"], plain["incarnation"], plain["instance"], plain["seq"], ethertype)
    events: list[Frame] = []
    for capture in captures:
        for frame in frames(capture, track, notes):
            if frame.time_ns is not None and correct is not None:
                frame = frame.at(correct(capture.station, frame.time_ns))
            events.append(frame)
    life.stations = tuple(sorted({c.station for c in captures if c.station}))
    _arrange(life, events)
    if index is not None and "FRAGMENT" in plain["messages"][index]["mflags"]:
        life.fragments = _fragments(captures, plain, plain["messages"][index], ethertype, correct)
    return life


def _key(frame: Frame) -> bytes:
    """The PDU's bytes without padding."""
    found = place(frame.link, frame.data)
    assert found is not None
    pdu = frame.data[found.at :]
    size = wire.payload_offset(pdu[7], packed=bool(pdu[6] & wire.Flag.PACK)) + int.from_bytes(pdu[10:12], "big")
    return pdu[:size]


_WHAT: Final = (
    (lib.ZM_IS_COPY, "copy"),
    (lib.ZM_IS_ASKED, "asked"),
    (lib.ZM_IS_ACK, "ack"),
    (lib.ZM_IS_PACK, "pack"),
    (lib.ZM_IS_RESET, "reset"),
)


def _arrange(life: Life, events: list[Frame]) -> None:
    """Sendings with their receipts, from the frames of all stations."""
    addresses = {f.source_mac: f.capture.station for f in events if f.direction == 2 and f.source_mac}
    timed = [f for f in events if f.time_ns is not None]
    timed.sort(key=lambda f: (f.time_ns or 0, f.direction != 2))
    sendings: dict[bytes, list[Sending]] = {}
    for frame in timed:
        plain = frame.decoded()
        if plain is None or frame.time_ns is None:
            continue
        what = [text for flag, text in _WHAT if frame.why & flag]
        for text in ("ack", "pack"):
            if text in what and frame.direction != 2:
                heard = life.heard.setdefault(frame.capture.station, {"ack": {}, "pack": {}})
                heard[text].setdefault(plain["src"], frame.time_ns)
        station = frame.capture.station
        if "copy" in what:
            life.copies[station] = life.copies.get(station, 0) + 1
            life.seen.setdefault(station, frame.time_ns)
        key = _key(frame)
        if frame.direction == 2:
            made = Sending("+".join(what), plain, frame.time_ns, station)
            sendings.setdefault(key, []).append(made)
            life.sendings.append(made)
        else:
            by = addresses.get(frame.source_mac, 0) or (plain["src"] if plain["kind"] not in _SENT_AGAIN else 0)
            _receive(life, sendings, key, frame, plain, what, by)
    for sending in life.sendings:
        others = [s for s in life.stations if s != sending.by]
        sending.missing = [s for s in others if s not in sending.receipts]
    life.sendings.sort(key=lambda s: s.at_ns)


_SENT_AGAIN: Final = frozenset(kind.name for kind in wire.SEQUENCED)


def _receive(
    life: Life, sendings: dict[bytes, list[Sending]], key: bytes, frame: Frame, plain: dict[str, Any], what: list[str], by: int
) -> None:
    """Puts a receipt to the latest transmission that it can be of; one that no capture shows is made up."""
    assert frame.time_ns is not None
    station = frame.capture.station
    for made in reversed(sendings.get(key, [])):
        if station not in made.receipts and by in (made.by, 0) and made.at_ns <= frame.time_ns + _BACKWARDS_NS:
            made.receipts[station] = frame.time_ns
            return
    # The sender has no capture here, or its capture lacks the frame. What is only news to this station is in ``heard``.
    if not {"copy", "asked", "reset"} & set(what) and by in life.stations:
        return
    made = Sending("+".join(what), plain, None, by, {station: frame.time_ns})
    sendings.setdefault(key, []).append(made)
    life.sendings.append(made)


def _fragments(
    captures: Sequence[Capture], plain: dict[str, Any], message: dict[str, Any], ethertype: int, correct: Correction | None
) -> list[dict[str, Any]]:
    """The PDUs that carry the pieces of a message, by their numbers."""
    around = message["total"] // max(1, min(message["size"], message["total"])) + 64
    seq = plain["seq"]
    selection = Selection(
        ethertype,
        frozenset({int(wire.Kind.DATA)}),
        frozenset({plain["src"]}),
        seqs=((seq - around) % (1 << 32), (seq + around) % (1 << 32)),
        incarnation=plain["incarnation"],
        cluster=int(plain["cluster"], 16),
    )
    pieces: dict[int, dict[str, Any]] = {}
    for capture in captures:
        for frame in frames(capture, selection, Notes()):
            found = frame.decoded()
            if frame.problem or found is None:
                continue
            for m in found["messages"]:
                if "FRAGMENT" in m["mflags"] and m["total"] == message["total"]:
                    piece = pieces.setdefault(
                        found["seq"], {"seq": found["seq"], "offset": m["offset"], "size": m["size"], "stations": {}}
                    )
                    time_ns = frame.time_ns
                    if time_ns is not None and correct is not None:
                        time_ns = correct(capture.station, time_ns)
                    piece["stations"].setdefault(capture.station, time_ns)
    ordered = sorted(pieces.values(), key=lambda p: (p["seq"] - seq + (1 << 31)) % (1 << 32))
    return _one_message(ordered, seq)


def _one_message(pieces: list[dict[str, Any]], seq: int) -> list[dict[str, Any]]:
    """Of all pieces around, those that belong together with the one in PDU ``seq``: offsets rise from 0."""
    at = next((k for k, p in enumerate(pieces) if p["seq"] == seq), None)
    if at is None:
        return []
    first = at
    while first > 0 and pieces[first]["offset"] > 0 and pieces[first - 1]["offset"] < pieces[first]["offset"]:
        first -= 1
    last = at
    while last + 1 < len(pieces) and pieces[last + 1]["offset"] > pieces[last]["offset"]:
        last += 1
    return pieces[first : last + 1]


def add_levels(
    life: Life,
    captures: Sequence[Capture],
    *,
    ethertype: int = wire.ETHERTYPE,
    correct: Correction | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Take the levels from the observer, which replays each station's captures. Needs pyarrow and temporary files. OSError."""
    from . import levels  # Arrow, too: only calls that ask for levels pay for it

    with scratch.folder("follow") as folder:
        for station in life.stations:
            mine = [c for c in captures if c.station == station]
            if progress is not None:
                progress(f"replaying station {station}")
            totals = levels.replay(
                list(enumerate(c.path for c in mine)),
                station,
                folder,
                ethertype=ethertype,
                own_mac=next((c.own_mac for c in mine if c.own_mac), 0),
            )
            life.bus = life.bus or bool(totals.bus)
            path = folder / "order" / f"station={station}" / "part-0.parquet"
            if path.exists():
                found = levels.in_order(path, life.pdu, LEVELS, NEIGHBOURS)
                if found is not None:
                    if correct is not None:
                        times = {level: found[level] for level in LEVELS}
                        found |= {level: None if t is None else correct(station, t) for level, t in times.items()}
                    life.levels[station] = found
                path.unlink()


# ---- as JSON ----


def _by_name(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in sorted(values.items())}


def as_json(life: Life) -> dict[str, Any]:
    """Everything, times in ns by the common clock."""
    plain = life.pdu
    head = {key: plain[key] for key in ("cluster", "kind", "src", "incarnation", "instance", "seq", "clock", "flags", "check")}
    messages = plain.get("messages", [])
    return {
        "pdu": head | {"bytes": life.size, "messages": messages},
        "index": life.index,
        "place": life.place,
        "sendings": [
            {
                "what": s.what.split("+"),
                "kind": s.pdu["kind"],
                "src": s.pdu["src"],
                "seq": s.pdu["seq"],
                "by": s.by or None,
                "time_ns": s.time_ns,
                "receipts": _by_name(s.receipts),
                "missing": s.missing,
            }
            for s in life.sendings
        ],
        "fragments": [f | {"stations": _by_name(f["stations"])} for f in life.fragments],
        "conflicts": life.conflicts,
        "stations": {
            str(station): {
                "first_ns": life.seen.get(station),
                "copies": life.copies.get(station, 0),
                "heard": {what: _by_name(life.heard.get(station, {}).get(what, {})) for what in ("ack", "pack")},
            }
            | life.levels.get(station, {})
            for station in life.stations
        },
    }
