"""Verdicts on groups that overlap (orders ``abcast`` and ``token``), from the frames of links and what CLOSED says in the order.

A link's PDUs are numbered, so what a station got on it is known from any capture that has the PDU, in the order in which its
daemon took it. With one time for each message, and every follower's decisions in the order of times, any two stations have what
they share in one order (docs/multicast.md, O6 and O7).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from ....proto import wire
from ....proto.multicast.codec import CLOSED, Part, decode_digests, decode_part
from ....proto.multicast.records import Data, Decide, Id, Relay, Report, Timed
from ....proto.multicast.tables import EraNumber
from ....proto.wire import Flag, Kind, MessageFlag, MessageType
from ..frames.files import Capture
from ..frames.links import LinkRecord, records
from ..frames.pdu import decode, place
from ..frames.records import Records
from ..frames.sealed import sealed
from .evidence import Where
from .judgement import ERAS, FOLLOWED, GENUINE, TIMES, Verdict

_FLAGS_AT: Final = wire.HEADER.offset("flags")
_KIND_AT: Final = wire.HEADER.offset("kind")


class Link(NamedTuple):
    """PDUs in one direction, which their numbers order."""

    cluster: str
    source: int
    target: int
    incarnation: int
    instance: int


@dataclass(frozen=True, slots=True)
class Told:
    """A record, and a frame that has it."""

    record: LinkRecord
    where: Where


class LinkCourt:
    """``read`` each capture, then ``judge``."""

    def __init__(self) -> None:
        self._pdus: defaultdict[Link, dict[int, list[Told]]] = defaultdict(dict)
        self._stations: set[int] = set()
        """Whose captures there are."""
        self._parts: dict[tuple[int, int, int, EraNumber], list[Part]] = {}
        self._digests: dict[tuple[str, EraNumber, EraNumber, int], tuple[int, int, Where]] = {}
        """First one of each group in an era, as of a change: digest, station, frame."""
        self.verdicts = {name: Verdict(name) for name in (TIMES, FOLLOWED, GENUINE, ERAS)}

    # ---- reading

    def read(self, capture: Capture, ethertype: int = wire.ETHERTYPE) -> None:
        """Take what is in a capture. Raises OSError, CaptureDamage."""
        self._stations.add(capture.station)
        for index, frame in enumerate(Records(capture.path)):
            at = place(frame.link_type, frame.data)
            if at is None or at.ethertype != ethertype:
                continue
            pdu: bytes | None = frame.data[at.at :]
            envelope = sealed(frame.data[at.at :])
            if envelope is not None:
                pdu = envelope.pdu
            if pdu is None or len(pdu) < wire.HEADER.size or pdu[_KIND_AT] != Kind.DATA:
                continue
            if not pdu[_FLAGS_AT] & Flag.PAIR and not _has_group_message(pdu):
                continue
            plain = decode(pdu)
            if plain is None or not plain["check_ok"]:
                continue
            where = Where(capture.station, capture.file, index, frame.time_ns or None)
            if "PAIR" in plain["flags"]:
                self._take(plain, where)
            else:
                self._take_closed(plain, where)

    def _take(self, plain: Mapping[str, Any], where: Where) -> None:
        link = Link(plain["cluster"], plain["src"], plain["target"], plain["incarnation"], plain["instance"])
        if plain["seq"] not in self._pdus[link]:
            self._pdus[link][plain["seq"]] = [Told(r, where) for r in records(plain)]

    def _take_closed(self, plain: Mapping[str, Any], where: Where) -> None:
        for message in plain["messages"]:
            if message["type"] != MessageType.GROUP.name or message["client"] or "FRAGMENT" in message["mflags"]:
                continue
            part = decode_part(bytes.fromhex(message["data"]))
            if part is None or part.operation != CLOSED:
                continue
            key = (where.file, plain["src"], plain["incarnation"], part.opens)
            parts = self._parts.setdefault(key, [])
            parts.append(part)
            if part.last:
                del self._parts[key]
                self._on_closed(plain, part.opens, b"".join(p.body for p in parts), where)

    def _on_closed(self, plain: Mapping[str, Any], opens: EraNumber, body: bytes, where: Where) -> None:
        """Rule E6: who opens an era says what it has delivered in those before."""
        for era, group, digest in decode_digests(body) or ():
            key = (plain["cluster"], opens, era, group)
            first, station, there = self._digests.setdefault(key, (digest, plain["src"], where))
            self.verdicts[ERAS].compared += plain["src"] != station
            if first != digest:
                who = f"stations {station} and {plain['src']}"
                text = f"group {group:08x} in era {_era(era)}: {who} have delivered different messages"
                self.verdicts[ERAS].add(text, partial(_frames, there, where))

    # ---- judging

    def judge(self) -> dict[str, Verdict]:
        """The verdicts; call once. None if no frame of a link is whole: damaged ones look like some."""
        if not self._pdus:
            return {}
        to: defaultdict[tuple[str, Id], set[int]] = defaultdict(set)
        reported: dict[tuple[str, int, Id], tuple[int, Where]] = {}
        for link, told in self._all():
            record = told.record.record
            if isinstance(record, Data):
                to[link.cluster, record.id].add(link.target)
            elif isinstance(record, Relay):
                to[link.cluster, record.data.id].add(link.target)
            elif isinstance(record, Report):
                for name in record.ids():
                    reported.setdefault((link.cluster, link.source, name), (record.time, told.where))
        self._judge_times(reported)
        self._judge_genuine(to)
        self._judge_followed(reported)
        return self.verdicts

    def _all(self) -> Iterator[tuple[Link, Told]]:
        for link, pdus in self._pdus.items():
            for seq in sorted(pdus):
                for told in pdus[seq]:
                    yield link, told

    def _judge_times(self, reported: Mapping[tuple[str, int, Id], tuple[int, Where]]) -> None:
        """One time for each message, not below what was reported of it."""
        verdict = self.verdicts[TIMES]
        decided: dict[tuple[str, Id], tuple[int, Where]] = {}
        for link, told in self._all():
            record = told.record.record
            for name in record.ids() if isinstance(record, Decide) else ():
                assert isinstance(record, Decide)
                verdict.compared += 1
                first, there = decided.setdefault((link.cluster, name), (record.time, told.where))
                if first != record.time:
                    text = f"message {_name(name)} has the times {first} and {record.time}"
                    verdict.add(text, partial(_frames, there, told.where))
        for (cluster, station, name), (time, where) in reported.items():
            known = decided.get((cluster, name))
            if known is not None and known[0] < time:
                text = f"message {_name(name)} has time {known[0]}, station {station} has reported {time}"
                verdict.add(text, partial(_frames, where, known[1]))

    def _judge_genuine(self, to: Mapping[tuple[str, Id], set[int]]) -> None:
        """Only the stations that a message was sent to, and its originator, have to do with it. Where the originator's capture is
        missing, it is not known to whom it was sent."""
        verdict = self.verdicts[GENUINE]
        for link, told in self._all():
            record = told.record.record
            for name in record.ids() if isinstance(record, Timed) else ():
                targets = to.get((link.cluster, name))
                if targets is None or name.origin not in self._stations:
                    continue
                verdict.compared += 1
                strangers = {link.source, link.target} - targets - {name.origin}
                if strangers:
                    text = (
                        f"{told.record.name} of message {_name(name)} concerns station {min(strangers)}, which it was not sent to"
                    )
                    verdict.add(text, partial(_frames, told.where))

    def _judge_followed(self, reported: Mapping[tuple[str, int, Id], tuple[int, Where]]) -> None:
        """Who does not report a message gets decisions in its own order of delivery (O7): they ascend."""
        verdict = self.verdicts[FOLLOWED]
        last: dict[tuple[Link, EraNumber, str], tuple[tuple[int, int, int], Where]] = {}
        for link, told in self._all():
            record = told.record.record
            if not isinstance(record, Decide) or record.order != "token" or link.target not in self._stations:
                continue
            for name in record.ids():
                if (link.cluster, link.target, name) in reported:
                    continue
                verdict.compared += 1
                key = (record.time, name.origin, name.number)
                before = last.get((link, name.era, record.order))
                if before is not None and before[0] >= key:
                    text = f"station {link.target} gets message {_name(name)} at {record.time} after one at {before[0][0]}"
                    verdict.add(text, partial(_frames, before[1], told.where))
                last[link, name.era, record.order] = (key, told.where)


def judge(captures: Iterable[Capture], ethertype: int = wire.ETHERTYPE) -> dict[str, Verdict]:
    """Verdicts of captures that have frames of links; none if there are no such captures. Raises OSError, CaptureDamage."""
    concerned = [c for c in captures if c.pairs and c.station and c.problem is None]
    court = LinkCourt()
    for capture in concerned:
        court.read(capture, ethertype)
    return court.judge()


def _has_group_message(pdu: bytes) -> bool:
    """Whether a DATA PDU has a message of the daemons: nothing else is decoded."""
    n, packed = pdu[wire.HEADER.offset("stations")], bool(pdu[_FLAGS_AT] & Flag.PACK)
    at = wire.payload_offset(n, packed=packed)
    end = min(len(pdu), at + struct.unpack_from(">H", pdu, wire.HEADER.offset("length"))[0])
    size_at, flags_at, type_at = (wire.MESSAGE.offset(name) for name in ("size", "mflags", "type"))
    while at + wire.MESSAGE.size <= end:
        if pdu[at + type_at] == MessageType.GROUP:
            return True
        fragment = wire.FRAGMENT.size if pdu[at + flags_at] & MessageFlag.FRAGMENT else 0
        at += wire.MESSAGE.size + fragment + struct.unpack_from(">I", pdu, at + size_at)[0]
    return False


def _frames(*places: Where) -> list[Where]:
    return list(places)


def _era(era: EraNumber) -> str:
    return f"{era.instance}.{era.change}"


def _name(name: Id) -> str:
    return f"{_era(name.era)}#{name.origin}.{name.number}"
