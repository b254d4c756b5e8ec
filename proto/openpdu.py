"""OPEN and RCV on the wire: what a sensible one holds, to bytes and back.

Offsets come from the table in ``wire.py`` alone. Decoding is total: whatever the bytes, a record or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from .errors import invariant
from .wire import (
    CONFIGURATION,
    CONFIGURATION_MAX,
    HEADER,
    MEMBER,
    OPEN,
    OPEN_NAME_MAX,
    VERSION,
    Kind,
    Layout,
    OpenFlag,
    payload_offset,
)

INCARNATION_MAX: Final = 2**32 - 2**16 - 1
"""Largest incarnation accepted from a station: later ones must still fit into the field."""
INSTANCE_MAX: Final = 2**30 - 2**16 - 1
"""Largest instance number accepted from a station: clocks start at instance << 32 and must stay below 2**62."""
FRAME_MAX_MIN: Final = 512

Members: TypeAlias = tuple[tuple[int, int], ...]
"""(station, incarnation), sorted by station."""
BY_VOTES: Final = 1 << 63
"""In ``reached``: the view began by votes in a running instance, not by an OPEN agreement. A proposal to open and one that is
voted for may have the same number and members, and so the same view hash. At most one of them can ever begin, and a station that
has agreed to the former must not take the latter for it."""
Pasts: TypeAlias = tuple[tuple[int, int, int], ...]
"""(station, view hash, reached), sorted by station: members that were in an instance before, and their ``Past``."""


class Past(NamedTuple):
    """What a daemon's process brings from the instance it was in last; it never changes once that has ended."""

    view: int
    """View hash (``wire.view_hash``) of the last view event at level preack here, 0: it was in no instance."""
    reached: int
    """How many PDUs after that event had reached level preack here. Every member of that view has accepted all of them. Plus
    ``BY_VOTES``. On a bus: ``BusReached``."""


NO_PAST: Final = Past(0, 0)

_INSTANCE_BITS: Final = 18
_COUNT_BITS: Final = 23
_SECURED_BITS: Final = 22


class BusReached(NamedTuple):
    """The content of ``Past.reached`` on a bus, in 63 bits: the highest bit stays 0. Members of one instance are never further
    apart than their logs are long, at most 2**21 PDUs, so counts are sent modulo 2**23."""

    instance: int
    """That the view is of, modulo 2**18."""
    acknowledged: int
    """PDUs of the instance that are acknowledged here, modulo 2**23."""
    secured: int
    """How many more the sender holds that others may have acknowledged, 0..2**22 - 1 (docs/protocol.md, "Membership on a
    bus")."""

    @classmethod
    def parse(cls, reached: int) -> BusReached:
        """Total: any 64 bits."""
        upper, secured = reached >> _SECURED_BITS, reached & (1 << _SECURED_BITS) - 1
        return cls(upper >> _COUNT_BITS & (1 << _INSTANCE_BITS) - 1, upper & (1 << _COUNT_BITS) - 1, secured)

    def packed(self) -> int:
        """Numbers of any size; what is modulo is cut, ``secured`` is at most what fits."""
        instance = self.instance & (1 << _INSTANCE_BITS) - 1
        count = instance << _COUNT_BITS | self.acknowledged & (1 << _COUNT_BITS) - 1
        return count << _SECURED_BITS | min(self.secured, (1 << _SECURED_BITS) - 1)

    def is_after(self, other: BusReached) -> bool:
        """Of a later instance, by serial number arithmetic (RFC 1982)."""
        return 0 < (self.instance - other.instance) % (1 << _INSTANCE_BITS) < 1 << (_INSTANCE_BITS - 1)

    def ahead_of(self, other: BusReached) -> int:
        """PDUs acknowledged here and not there, by serial number arithmetic; negative: the other way round."""
        half = 1 << (_COUNT_BITS - 1)
        return (self.acknowledged - other.acknowledged + half) % (2 * half) - half


class OpenProposal(NamedTuple):
    """An instance that is proposed or agreed."""

    instance: int
    members: Members
    pasts: Pasts = ()

    def incarnation_of(self, station: int) -> int:
        """0 if it is no member."""
        return next((incarnation for member, incarnation in self.members if member == station), 0)


CONFIGURATIONS_MAX: Final = 2**32 - 1
"""The last number that a configuration can have: none follows it."""


class Claim(NamedTuple):
    """What a station says of configurations (``changing.py``). Options are opaque here."""

    number: int
    """Of its configuration."""
    options: bytes
    ballot: int = 0
    """At which the next configuration, ``number`` + 1, was proposed, as far as the station knows; 0: none is."""
    proposed: bytes = b""
    """Its options."""
    kept: int = 0
    """An instance under ``number`` in which something has reached level preack; 0: none is known that matters."""


NO_CLAIM: Final = Claim(0, b"")


@dataclass(frozen=True, slots=True)
class OpenPdu:
    """A sensible OPEN PDU; ``proposal`` is None before the sender has issued one."""

    src: int
    incarnation: int
    frame_max: int
    proposal: OpenProposal | None
    highest: int
    fingerprint: int
    age_ms: int
    boot: int
    started: bool
    host: str
    past: Past = NO_PAST
    """The sender's; equal to the one in its proposal."""
    outdated: bool = False
    """``proposal`` is none: its members are the sender, and a station whose highest incarnation it reports."""
    recovering: bool = False
    """RCV: it asks a running instance to admit it. It proposes nothing then."""
    claim: Claim | None = None
    """None: configurations have never changed, as far as it knows."""


def pack(layout: Layout, **values: int) -> bytes:
    """Bytes of a layout from the table; fields that are not named are 0."""
    packed = layout.struct.pack(*[values.pop(name, 0) for name in layout.names])
    invariant(not values, f"{layout.name} has no such field: {values}")
    return packed


def unpack(layout: Layout, data: bytes, at: int) -> dict[str, int]:
    """A layout's fields by name, from ``at`` on. The caller has checked that there are enough bytes."""
    return dict(zip(layout.names, layout.struct.unpack_from(data, at), strict=True))


def encode_open(pdu: OpenPdu, *, cluster: int, stations: int, checksum: Callable[[bytes], bytes]) -> bytes:
    """The PDU's bytes. ``checksum`` returns them with the checksum written."""
    name = pdu.host.encode()[:OPEN_NAME_MAX]
    members = pdu.proposal.members if pdu.proposal else ((pdu.src, pdu.incarnation),)
    pasts = {station: past for station, *past in pdu.proposal.pasts} if pdu.proposal else {pdu.src: pdu.past}
    number = pdu.proposal.instance if pdu.proposal else 0
    payload = pack(
        OPEN,
        proposal=number,
        highest=pdu.highest,
        fingerprint=pdu.fingerprint,
        age_ms=min(pdu.age_ms, 2**32 - 1),
        boot=pdu.boot,
        members=len(members),
        oflags=(OpenFlag.STARTED if pdu.started else 0)
        | (OpenFlag.OUTDATED if pdu.outdated else 0)
        | (OpenFlag.CONFIGURED if pdu.claim else 0),
        name_length=len(name),
    )
    for station, incarnation in members:
        past, reached = pasts.get(station, NO_PAST)
        payload += pack(MEMBER, station=station, member_incarnation=incarnation, past=past, reached=reached)
    payload += name + (_encode_claim(pdu.claim) if pdu.claim else b"")
    header = pack(
        HEADER,
        cluster=cluster,
        version=VERSION,
        kind=Kind.RCV if pdu.recovering else Kind.OPEN,
        stations=stations,
        src=pdu.src,
        length=len(payload),
        incarnation=pdu.incarnation,
        instance=number if pdu.started else 0,
        frame_max=pdu.frame_max,
    )
    return checksum(header + bytes(4 * stations) + payload)


def decode_header(data: bytes) -> dict[str, int] | None:
    """The header's fields by name; None if there are not enough bytes."""
    return unpack(HEADER, data, 0) if len(data) >= HEADER.size else None


def decode_open(data: bytes, stations: int) -> OpenPdu | None:
    """The inverse, total: None for anything that is not a sensible OPEN or RCV of a cluster of n. The checksum has been checked
    before."""
    header = decode_header(data)
    if header is None or header["kind"] not in (Kind.OPEN, Kind.RCV) or header["stations"] != stations or header["flags"]:
        return None
    at = payload_offset(stations, packed=False)
    end = at + header["length"]
    if header["length"] < OPEN.size or end > len(data) or not 1 <= header["src"] <= stations:
        return None
    fields = unpack(OPEN, data, at)
    at += OPEN.size
    if fields["members"] > stations or fields["name_length"] > OPEN_NAME_MAX:
        return None
    name_at = at + fields["members"] * MEMBER.size
    name_end = name_at + fields["name_length"]
    claim = _decode_claim(data[name_end:end]) if fields["oflags"] & OpenFlag.CONFIGURED else None
    if (claim is None and name_end != end) or (claim is None and fields["oflags"] & OpenFlag.CONFIGURED):
        return None
    listed = _decode_members(data[at : at + fields["members"] * MEMBER.size], stations)
    if listed is None or not 1 <= header["incarnation"] <= INCARNATION_MAX:
        return None
    members, pasts = listed
    if not fields["proposal"] <= fields["highest"] <= INSTANCE_MAX:
        return None
    started = bool(fields["oflags"] & OpenFlag.STARTED)
    if dict(members).get(header["src"]) != header["incarnation"]:
        return None  # no station proposes a set without itself
    proposal = OpenProposal(fields["proposal"], members, pasts) if fields["proposal"] else None
    if proposal is None and (len(members) != 1 or started):
        return None
    if proposal is not None and header["kind"] == Kind.RCV:
        return None
    if header["frame_max"] < FRAME_MAX_MIN:
        return None
    return OpenPdu(
        src=header["src"],
        incarnation=header["incarnation"],
        frame_max=header["frame_max"],
        proposal=proposal,
        highest=fields["highest"],
        fingerprint=fields["fingerprint"],
        age_ms=fields["age_ms"],
        boot=fields["boot"],
        started=started,
        host=printable(data[name_at:name_end].decode(errors="replace")),
        past=next((Past(past, reached) for station, past, reached in pasts if station == header["src"]), NO_PAST),
        outdated=bool(fields["oflags"] & OpenFlag.OUTDATED),
        recovering=header["kind"] == Kind.RCV,
        claim=claim,
    )


def _encode_claim(claim: Claim) -> bytes:
    head = pack(
        CONFIGURATION,
        number=claim.number,
        kept=claim.kept,
        ballot=claim.ballot,
        options_length=len(claim.options),
        proposed_length=len(claim.proposed),
    )
    return head + claim.options + claim.proposed


def _decode_claim(data: bytes) -> Claim | None:
    """Total: None for what is no claim that fills ``data``."""
    if len(data) < CONFIGURATION.size:
        return None
    head = unpack(CONFIGURATION, data, 0)
    options, end = CONFIGURATION.size, CONFIGURATION.size + head["options_length"]
    if max(head["options_length"], head["proposed_length"]) > CONFIGURATION_MAX or end + head["proposed_length"] != len(data):
        return None
    if head["ballot"] and head["number"] == CONFIGURATIONS_MAX:
        return None
    if bool(head["ballot"]) != bool(head["proposed_length"]) or not head["options_length"] or head["kept"] > INSTANCE_MAX:
        return None
    return Claim(head["number"], data[options:end], head["ballot"], data[end:], head["kept"])


@lru_cache(maxsize=256)
def _decode_members(data: bytes, stations: int) -> tuple[Members, Pasts] | None:
    """What an OPEN lists. n stations that agree send the same bytes n times, again and again: it is worth remembering."""
    members: list[tuple[int, int]] = []
    pasts: list[tuple[int, int, int]] = []
    for at in range(0, len(data), MEMBER.size):  # at most n
        member = unpack(MEMBER, data, at)
        members.append((member["station"], member["member_incarnation"]))
        if member["past"]:
            pasts.append((member["station"], member["past"], member["reached"]))
        elif member["reached"]:
            return None
    numbers = [station for station, _ in members]
    if numbers != sorted(set(numbers)) or (numbers and not 1 <= numbers[0] <= numbers[-1] <= stations):
        return None
    if not all(1 <= incarnation <= INCARNATION_MAX for _, incarnation in members):
        return None
    return tuple(members), tuple(pasts)


def printable(text: str) -> str:
    """Safe to show: a host name comes from the wire."""
    return "".join(c if c.isprintable() else "?" for c in text)


def mac_text(mac: bytes) -> str:
    return mac.hex(":") if mac else "unknown address"
