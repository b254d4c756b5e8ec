"""Records of a link (header flag PAIR): the messages to groups that overlap, and what orders them (docs/multicast.md).

A PDU of a link is decoded like any other one (``pdu.decode``); each of its messages is a record, or a piece of one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ....proto import wire
from ....proto.multicast.codec import Encoded, decode
from ....proto.multicast.records import Data, Decide, Held, Record, Relay, Report, Stable, Timed
from .records import Records

_TYPES: Final = {kind.name: int(kind) for kind in wire.MessageType}


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """One record of a PDU, or the beginning of one in fragments."""

    name: str
    """DATA, REPORT, DECIDE, HELD, STABLE, RELAY; ? if the bytes are none."""
    source: int
    target: int
    """Stations 1..n."""
    record: Record | None

    def __str__(self) -> str:
        r = self.record
        if isinstance(r, Relay):
            return f"RELAY {_data(r.data)}"
        if isinstance(r, Data):
            return f"DATA {_data(r)}"
        if isinstance(r, Timed):
            last = f"..{r.number + r.count - 1}" if r.count > 1 else ""
            return f"{self.name} {r.order} {_era(r.era)}#{r.origin}.{r.number}{last} at {r.time}"
        if isinstance(r, Stable):
            return f"STABLE {r.order} {_era(r.era)} {r.k} {'sent' if r.sent else 'decided'}"
        if isinstance(r, Held):
            return f"HELD {r.order} {_era(r.era)} {r.k}"
        return "no record"


def _era(era: tuple[int, int]) -> str:
    return f"{era[0]}.{era[1]}"


def _data(data: Data) -> str:
    groups = ",".join(f"{group:08x}" for group in data.groups)
    return f"{data.order} {_era(data.id.era)}#{data.id.origin}.{data.id.number} to {groups}"


_NAMES: Final[dict[type[object], str]] = {
    Data: "DATA",
    Report: "REPORT",
    Decide: "DECIDE",
    Held: "HELD",
    Stable: "STABLE",
    Relay: "RELAY",
}


def records(plain: Mapping[str, Any]) -> list[LinkRecord]:
    """The records of a decoded PDU of a link, in their order: none if it is no DATA PDU. Later fragments of a record are left
    out."""
    out: list[LinkRecord] = []
    if "PAIR" not in plain["flags"] or plain["kind"] != "DATA":
        return out
    for message in plain.get("messages", ()):
        if message.get("offset"):
            continue
        kind = _TYPES.get(message["type"], -1) if isinstance(message["type"], str) else message["type"]
        encoded = Encoded(kind, int(message["group"], 16), message["client"], bytes.fromhex(message["data"]))
        record = decode(encoded, plain["src"], plain["incarnation"])
        out.append(LinkRecord(_NAMES.get(type(record), "?"), plain["src"], plain["target"], record))
    return out


def sent_by(station: int, path: str | os.PathLike[str], cluster: int | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Destination address and PDU of the frames of links in a capture that a station has sent. cluster: id; None: any. Raises
    CaptureDamage and OSError."""
    start, pair, ethertype = wire.ETHERNET_HEADER, int(wire.Flag.PAIR), wire.ETHERTYPE.to_bytes(2)
    flags_at, src_at = start + wire.HEADER.offset("flags"), start + wire.HEADER.offset("src")
    least = start + wire.HEADER.size
    for record in Records(path):
        frame = record.data
        if len(frame) < least or frame[12:14] != ethertype or not frame[flags_at] & pair or frame[src_at] != station:
            continue
        if cluster in (None, struct.unpack_from(">I", frame, start)[0]):
            yield frame[:6], frame[start:]
