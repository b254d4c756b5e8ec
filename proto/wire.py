"""The one table of every PDU kind and field (docs/protocol.md is generated from it).

The C header ``core/zj_wire.h``, the scapy layer, the Wireshark dissector, the Spark decoder and the frame tables in the docs
are all made from this module, so that no second place knows an offset. It imports nothing but the standard library's data
modules.

All integers are unsigned and in network byte order. Offsets count from the first byte after the Ethernet header.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import Final, Literal, TypeAlias

VERSION: Final = 1
ETHERTYPE: Final = 0x88B5
"""IEEE Std 802 local experimental EtherType 1; the default, configurable."""
GROUP_MAC: Final = "03:5a:4a:00:00:01"
"""Locally administered group address; outside 01:80:c2:00:00:0x, which bridges do not forward."""
STATIONS_MAX: Final = 64
MESSAGE_MAX: Final = 16 * 1024 * 1024
"""Largest message of a program, bytes."""
ETHERNET_HEADER: Final = 14
MTU_MIN: Final = 576
NAK_RANGES_MAX: Final = 64
OPEN_NAME_MAX: Final = 64
GROUP_NAME_MAX: Final = 128
GROUPS_PER_USER: Final = 4096
"""Groups that all programs of one user may hold at a station at a time, joined or to send to. Each join is a message that costs
Python time and a table entry at every station: 64 connections with all their handles would be 65,000."""


class Kind(IntEnum):
    """PDU kind. The sequenced kinds take a place in their source's stream."""

    DATA = 1
    CONFIRM = 2
    NAK = 3
    OPEN = 4
    STOP = 5
    """Vote to remove stations, of a station that has seen the stop itself."""
    STOP_ACK = 6
    """The same, from a station that acts on the reports of others."""
    RCV = 7
    """A station that is in no instance asks the members of a running one to admit it; laid out as OPEN."""
    RCV_ACK = 8
    """Vote to admit stations."""
    RST = 9
    """Bus: a reset of this epoch is under way; A is what the sender expects. The paper's RST and RST_ACK are this one PDU."""
    RSTC = 10
    """Bus: the sender has seen that all stations expect the same numbers, those in A."""
    # Reserved for the services, so that numbers never move.
    SERVICE = 11


SEQUENCED: Final = frozenset({Kind.DATA, Kind.STOP, Kind.STOP_ACK, Kind.RCV_ACK, Kind.SERVICE})
PROPOSALS: Final = frozenset({Kind.STOP, Kind.STOP_ACK, Kind.RCV_ACK})
"""Votes of the membership agreement (dynamic instance groups): sequenced, so that no station misses one."""
RESETS: Final = frozenset({Kind.RST, Kind.RSTC})
"""Only on a bus; there the kinds of the membership agreement, and NAK, do not exist."""
IMPLEMENTED: Final = frozenset(Kind) - {Kind.SERVICE}


class Flag(IntFlag):
    """Header flags."""

    PACK = 0x01
    """A pack vector (P) follows the ack vector (A)."""
    POLL = 0x02
    """The sender lacks information: a station that has it answers (rule C3)."""
    NEED_ACK = 0x04
    """A program waits for level *ack* of this PDU: confirm P as well (rule C2)."""
    BYE = 0x08
    """The sender leaves on purpose; nothing more will come from this incarnation."""
    FENCED = 0x10
    """The sender has received a different order digest and delivers nothing any more."""
    OP = 0x20
    """DATA: some message in it is delivered on acceptance (message flag OP)."""
    RELAYED = 0x40
    """CONFIRM: sent again by another station, for one that does not receive from its source (without POLL and target)."""
    PAIR = 0x80
    """Of a link of two stations, sent to one address: the vectors have two entries, that of the lower station number first. Not
    of the instance that all stations share."""


class MessageType(IntEnum):
    """What a message inside a DATA PDU is."""

    USER = 0
    GROUP = 1
    """Process-group control (join, leave): handled by the daemons at its place in the order."""
    SERVICE = 2
    REPORT = 3
    """3 to 7 only in PDUs of a link (PAIR); there USER is a message to groups (layout MULTICAST_DATA)."""
    DECIDE = 4
    HELD = 5
    STABLE = 6
    RELAY = 7
    VIEW = 255
    """Never on the wire: the core delivers a view event (layout VIEW) at its position in the order."""


class MessageFlag(IntFlag):
    """Flags of one message (or piece of one) inside a DATA PDU."""

    FRAGMENT = 0x01
    """A fragment header follows the message header."""
    LAST = 0x02
    """This fragment completes its message; here is the message's place in the order."""
    OP = 0x04
    """FIFO order: delivered on acceptance, in its source's order only."""


class Ordering(IntEnum):
    """How the messages of a process group are ordered on delivery. A group has one, which its first member chooses."""

    TOTAL = 0
    """Total order: all stations deliver all messages of all such groups in one order."""
    FIFO = 1
    """FIFO order (OP in the papers, ``op`` for clients): on acceptance, in each source's order. Messages of it carry message
    flag OP, their PDU header flag OP."""
    ABCAST = 2
    """Only the members' stations receive a message, and those of several groups in one order: ISIS' ABCAST. Never in the streams
    that all stations share (docs/multicast.md)."""
    TOKEN = 3
    """The same, ordered by token hosts."""


Order: TypeAlias = Literal["total", "op", "abcast", "token"]
"""What programs and the status call an ordering."""
ORDER_NAMES: Final[dict[Ordering, Order]] = {
    Ordering.TOTAL: "total",
    Ordering.FIFO: "op",
    Ordering.ABCAST: "abcast",
    Ordering.TOKEN: "token",
}


@dataclass(frozen=True)
class Field:
    """One field: ``width`` bytes, a number if there are 1, 2, 4 or 8; ``symbol`` is the papers' notation where they have one."""

    name: str
    width: int
    help: str
    symbol: str = ""

    @property
    def code(self) -> str:
        return {1: "B", 2: "H", 4: "I", 8: "Q"}.get(self.width, f"{self.width}s")


@dataclass(frozen=True)
class Layout:
    """Fields one after the other without padding. ``repeat`` names the count field if the layout is repeated in a list."""

    name: str
    fields: tuple[Field, ...]
    help: str
    repeat: str = ""

    @cached_property
    def size(self) -> int:
        return sum(f.width for f in self.fields)

    @cached_property
    def struct(self) -> struct.Struct:
        return struct.Struct(">" + "".join(f.code for f in self.fields))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the fields, in their order."""
        return tuple(f.name for f in self.fields)

    def offset(self, name: str) -> int:
        at = 0
        for f in self.fields:
            if f.name == name:
                return at
            at += f.width
        raise KeyError(name)


HEADER: Final = Layout(
    "header",
    (
        Field("cluster", 4, "CRC-32 of the cluster name; first, so that the kernel filter can look at it"),
        Field("version", 1, "protocol version, 1"),
        Field("kind", 1, "PDU kind"),
        Field("flags", 1, "header flags"),
        Field("stations", 1, "n, length of the vectors: stations of the roster; PAIR: 2", "n"),
        Field("src", 1, "source station, 1..n", "p.SRC"),
        Field(
            "target",
            1,
            "NAK: station asked to retransmit; POLL: station asked to answer, or 0; CONFIRM without POLL: the only station that"
            " it is sent to, or 0; PAIR: the other; otherwise 0",
        ),
        Field("length", 2, "payload bytes after the vectors; what follows is padding"),
        Field("incarnation", 4, "of the source: grows with each restart of its daemon"),
        Field("instance", 4, "instance that the source was in when it sent this"),
        Field("seq", 4, "sequenced kinds: number in the stream; others: the source's next number", "p.SEQ"),
        Field(
            "clock",
            8,
            "logical clock; unsequenced: every later sequenced PDU of the source has a larger one; bus: instance << 32 | epoch",
        ),
        Field("free_buffers", 4, "receive buffers that the source has free, in PDUs, times n", "p.BUF"),
        Field("frame_max", 2, "largest PDU that the source can receive now, bytes"),
        Field("bound", 2, "CONFIRM that speaks for all: 1 + (clock - T), 65535: no T (rule C8); otherwise 0"),
        Field("check", 8, "CRC-32C of header (without this field) and vectors << 32 | CRC-32C of the payload"),
    ),
    "Common header of every PDU; ack[n] follows, then pack[n] if the PACK flag is set, then the payload.",
)

MESSAGE: Final = Layout(
    "message",
    (
        Field("size", 4, "bytes of this message, or of this fragment, in this PDU"),
        Field("group", 4, "CRC-32 of the group's name"),
        Field("client", 2, "sending program, numbered by its daemon; 0 is the daemon itself"),
        Field("type", 1, "message type"),
        Field("mflags", 1, "message flags"),
    ),
    "DATA payload: messages one after the other, each a message header, a fragment header if FRAGMENT is set, and its bytes.",
)

FRAGMENT: Final = Layout(
    "fragment",
    (
        Field("total", 4, "bytes of the whole message"),
        Field("offset", 4, "position of this fragment in the message, bytes"),
    ),
    "Follows the message header if FRAGMENT is set. One fragmented message per station at a time; whole ones may come between.",
)

CONFIRM: Final = Layout(
    "confirm",
    (
        Field("state", 8, "bitmap, bit j - 1: station j is regarded as stopped (peer state S, AS or SSA)", "STATE"),
        Field("trans", 8, "bitmap: station j is being agreed (AS, SA)", "TRANS"),
        Field("position", 8, "number of PDUs delivered since the view event of instance `counted` that the digest covers"),
        Field("digest", 8, "running digest of the delivered order at that position"),
        Field("counted", 4, "instance whose view event the position counts from"),
        Field("view", 4, "view hash of the instance in the header: its number and its members' incarnations"),
    ),
    "CONFIRM payload. A CONFIRM on a timer is the heartbeat.",
)

NAK: Final = Layout(
    "nak",
    (
        Field("stream", 1, "station whose PDUs are missing, 1..n"),
        Field("count", 1, "number of ranges, 1..64"),
        Field("pad", 2, "0"),
        Field("stream_incarnation", 4, "incarnation of that stream"),
    ),
    "NAK payload, followed by `count` ranges.",
)

RANGE: Final = Layout(
    "range",
    (Field("first", 4, "first missing seq"), Field("span", 4, "number of PDUs from there, at least 1")),
    "One run of missing PDUs.",
    repeat="count",
)

OPEN: Final = Layout(
    "open",
    (
        Field("proposal", 4, "instance number proposed; 0: nothing proposed yet"),
        Field("highest", 4, "highest instance number the sender has ever proposed or seen"),
        Field("fingerprint", 4, "CRC-32 of the options that must be equal in the whole cluster"),
        Field("age_ms", 4, "how long the sender's daemon has been running; decides between two daemons with one station number"),
        Field("boot", 8, "random number that the daemon draws when it starts"),
        Field("members", 1, "number of members in the proposal; nothing proposed: 1, the sender itself"),
        Field("oflags", 1, "open flags"),
        Field("name_length", 2, "bytes of the host name after the members"),
    ),
    "OPEN payload, followed by `members` members and the host name (UTF-8).",
)

MEMBER: Final = Layout(
    "member",
    (
        Field("station", 1, "station, 1..n"),
        Field("member_incarnation", 4, "its incarnation"),
        Field("past", 4, "view hash of the last view that its daemon process had delivered at level preack, 0: none"),
        Field(
            "reached", 8, "PDUs after that view that were at preack there when its instance ended; highest bit: began by votes"
        ),
    ),
    "One member of a proposed instance, and how far it got in the last one: all deliver up to the highest of these first.",
    repeat="members",
)


PROPOSAL: Final = Layout(
    "proposal",
    (
        Field("state", 8, "as in CONFIRM", "STATE"),
        Field("trans", 8, "as in CONFIRM; clear for a stop that its sender is sure of", "TRANS"),
        Field("members", 8, "bitmap, bit j - 1: station j is in the proposed instance"),
        Field("changes", 1, "number of changes, 1..64"),
    ),
    "STOP, STOP_ACK and RCV_ACK payload, followed by `changes` changes. Proposes instance + 1 of the header's instance.",
)

CHANGE: Final = Layout(
    "change",
    (
        Field("changed", 1, "station, 1..n"),
        Field("value", 4, "removed: the next seq accepted from it; admitted: its incarnation", "REQ"),
    ),
    "One station that is removed (STOP, STOP_ACK) or admitted (RCV_ACK). Sorted by station.",
    repeat="changes",
)

RESET: Final = Layout(
    "reset",
    (
        Field("epoch", 4, "number of the reset within the instance, from 1"),
        Field("reset_view", 4, "view hash of the instance, as in CONFIRM"),
    ),
    "RST and RSTC payload (bus medium).",
)

VIEW: Final = Layout(
    "view",
    (
        Field("vinstance", 4, "number of the instance that begins here"),
        Field("hash", 4, "its view hash"),
        Field("operational", 8, "bitmap, bit j - 1: station j is a member"),
        Field("joined", 8, "bitmap: it was no member before"),
        Field("left", 8, "bitmap: it was before, in this or another incarnation"),
    ),
    "A view event as the core delivers it (never on the wire), followed by n incarnations of 4 bytes, 0: no member.",
)


class OpenFlag(IntFlag):
    """Flags in an OPEN payload."""

    STARTED = 0x01
    """The sender has started the instance it names here; nothing later can have been agreed without it."""
    OUTDATED = 0x02
    """No proposal: the members are the sender, and a station that asks to join with an incarnation that is not new; its
    highest one is listed."""
    CONFIGURED = 0x04
    """A configuration header follows the host name, then the options and the proposed options that it counts. In a cluster
    whose configuration has been changed while it ran, or is being changed."""


CONFIGURATION: Final = Layout(
    "configuration",
    (
        Field("number", 4, "of the sender's configuration; 0: that of the files"),
        Field(
            "kept",
            4,
            "an instance under it in which something has reached preack, after the ballots that the sender has seen; 0: none",
        ),
        Field(
            "ballot",
            8,
            "place in the order, or number of a proposal * 2^32, at which the next configuration is proposed; 0: none is",
        ),
        Field("options_length", 2, "bytes of its options"),
        Field("proposed_length", 2, "bytes of the options of the next one"),
    ),
    "At the end of an OPEN with open flag CONFIGURED (docs/changing.md). Options: JSON objects in UTF-8.",
)
CONFIGURATION_MAX: Final = 512
"""Bytes of the options of one configuration at most."""
LAYOUTS: Final = (HEADER, MESSAGE, FRAGMENT, CONFIRM, NAK, RANGE, OPEN, MEMBER, PROPOSAL, CHANGE, RESET, VIEW, CONFIGURATION)

PAYLOAD: Final[dict[Kind, tuple[Layout, ...]]] = {
    Kind.DATA: (MESSAGE, FRAGMENT),
    Kind.CONFIRM: (CONFIRM,),
    Kind.NAK: (NAK, RANGE),
    Kind.OPEN: (OPEN, MEMBER),
    Kind.RCV: (OPEN, MEMBER),
    Kind.STOP: (PROPOSAL, CHANGE),
    Kind.STOP_ACK: (PROPOSAL, CHANGE),
    Kind.RCV_ACK: (PROPOSAL, CHANGE),
    Kind.RST: (RESET,),
    Kind.RSTC: (RESET,),
}


VECTOR_ENTRY: Final = 4
"""Bytes of a sequence number in a vector."""


def payload_offset(stations: int, *, packed: bool) -> int:
    """Where the payload of a PDU begins, after the header and one vector, or two: ``packed`` (``Flag.PACK``)."""
    return HEADER.size + VECTOR_ENTRY * stations * (2 if packed else 1)


def confirm_bytes(stations: int) -> int:
    """Bytes of a CONFIRM (after the Ethernet header) in a cluster of this number of stations."""
    return payload_offset(stations, packed=True) + CONFIRM.size


def open_bytes(stations: int, name_bytes: int = OPEN_NAME_MAX) -> int:
    """Bytes of an OPEN that proposes all stations, with a host name of this number of bytes."""
    return payload_offset(stations, packed=False) + OPEN.size + MEMBER.size * stations + name_bytes


def nak_bytes(stations: int, ranges: int = 1) -> int:
    """Bytes of a NAK with this number of ranges (it carries both vectors)."""
    return payload_offset(stations, packed=True) + NAK.size + RANGE.size * ranges


def proposal_bytes(stations: int) -> int:
    """Bytes of the largest proposal: one change for each other station."""
    return payload_offset(stations, packed=False) + PROPOSAL.size + CHANGE.size * max(1, stations - 1)


def data_bytes(stations: int, message_bytes: int = 1, fragment: bool = False) -> int:
    """Bytes of a DATA PDU with the pack vector and one message (or fragment) of this number of bytes."""
    extra = FRAGMENT.size if fragment else 0
    return payload_offset(stations, packed=True) + MESSAGE.size + extra + message_bytes


def mtu_needed(stations: int) -> int:
    """Smallest interface MTU on which every PDU kind of a cluster of this number of stations fits, with the longest host name."""
    return max(
        MTU_MIN,
        confirm_bytes(stations),
        open_bytes(stations),
        nak_bytes(stations, 4),
        proposal_bytes(stations),
        data_bytes(stations, fragment=True),
    )


def cluster_id(name: str) -> int:
    """The 32-bit number that represents a cluster's name on the wire."""
    return zlib.crc32(name.encode())


def group_id(name: str) -> int:
    """The 32-bit number that represents a process group's name on the wire; daemons refuse a second name with the same one."""
    return zlib.crc32(name.encode())


def view_hash(instance: int, incarnations: Sequence[int]) -> int:
    """The 32-bit number that represents an instance and its members on the wire, never 0. ``incarnations``: of stations 1..n,
    0: no member."""
    return zlib.crc32(struct.pack(f">{1 + len(incarnations)}I", instance, *incarnations)) or 1


NO_BOUND: Final = 0xFFFF
"""``bound`` of a CONFIRM that speaks for all and says nothing of clocks: T is too far behind."""


def addressee(pdu: bytes) -> int:
    """The station (1..n) that a PDU of the wire is sent to alone; 0: to all."""
    header = HEADER.struct.unpack_from(pdu)
    kind, flags, target = (header[_HEADER_AT[name]] for name in ("kind", "flags", "target"))
    return int(target) if kind == Kind.CONFIRM and not flags & (Flag.POLL | Flag.PAIR) else 0


_HEADER_AT: Final = {name: at for at, name in enumerate(HEADER.names)}


def c_header() -> str:
    """Text of ``core/zj_wire.h``: sizes, offsets and numbers, all from the tables above."""
    out = [
        "/* Generated from proto/wire.py by `python -m zenjun.tools.generate`; a test fails when it is stale. */",
        "#ifndef ZJ_WIRE_H",
        "#define ZJ_WIRE_H",
        "",
    ]

    def define(name: str, value: int) -> None:
        out.append(f"#define {name} {value}u")

    define("ZJW_VERSION", VERSION)
    define("ZJW_STATIONS_MAX", STATIONS_MAX)
    define("ZJW_MESSAGE_MAX", MESSAGE_MAX)
    define("ZJW_NAK_RANGES_MAX", NAK_RANGES_MAX)
    define("ZJW_OPEN_NAME_MAX", OPEN_NAME_MAX)
    for enum, prefix in (
        (Kind, "ZJW_KIND"),
        (Flag, "ZJW_FLAG"),
        (MessageType, "ZJW_TYPE"),
        (MessageFlag, "ZJW_MFLAG"),
        (OpenFlag, "ZJW_OFLAG"),
        (Ordering, "ZJW_ORDERING"),
    ):
        out.append("")
        for item in enum:
            define(f"{prefix}_{item.name}", int(item))
    for layout in LAYOUTS:
        out.append(f"\n/* {layout.help} */")
        define(f"ZJW_SIZEOF_{layout.name.upper()}", layout.size)
        for f in layout.fields:
            symbol = f"ZJW_{layout.name}_{f.name}".upper()
            out.append(f"#define {symbol} {layout.offset(f.name)}u /* u{8 * f.width}: {f.help} */")
    out += ["", "#endif", ""]
    return "\n".join(out)
