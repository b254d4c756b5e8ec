"""scapy layers for every PDU kind, generated from the field table in ``proto/wire.py``.

    >>> from zenjun.tools.dissect import *
    >>> Ether() / Zenjun(cluster=cluster_id("demo"), src=1, ack=[1, 0, 0]) / ZenjunData(messages=[ZenjunMessage(data=b"hello")])

Building fills in what is left out: lengths, counts and both checksums. Dissecting never raises: a frame too short for the
header becomes ``Raw``, and in a PDU that was cut (by the snap length, say) whatever does not hold a whole structure is ``Raw``.
What follows the PDU's own length is Ethernet padding and becomes ``Padding``. ``Zenjun.check_ok`` tells whether the
checksums fit, ``complete()`` whether everything was understood, ``as_dict()`` gives plain values.

The layers are bound to ``wire.ETHERTYPE`` under Ethernet, 802.1Q and Linux cooked captures; ``bind()`` adds another EtherType.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntFlag
from typing import Any, ClassVar, Final

from ..proto import wire
from ..proto.wire import cluster_id, group_id

try:
    from scapy.fields import (
        ByteEnumField,
        ConditionalField,
        Field,
        FieldLenField,
        FieldListField,
        FlagsField,
        IntField,
        PacketListField,
        StrLenField,
    )
    from scapy.layers.l2 import CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q, Ether
    from scapy.packet import NoPayload, Packet, Padding, Raw, bind_bottom_up, bind_layers, bind_top_down
except ImportError as error:  # pragma: no cover - the test runs it in an interpreter of its own
    raise ImportError(f"the dissector needs scapy: pip install 'scapy>=2.5,<3' ({error})") from None

__all__ = [
    "Dot1Q",
    "Ether",
    "Padding",
    "Raw",
    "Zenjun",
    "ZenjunConfiguration",
    "ZenjunConfirm",
    "ZenjunData",
    "ZenjunMember",
    "ZenjunMessage",
    "ZenjunNak",
    "ZenjunOpen",
    "ZenjunRange",
    "as_dict",
    "bind",
    "cluster_id",
    "complete",
    "crc32c",
    "find",
    "group_id",
    "pdu_check",
]


def _crc32c_table() -> tuple[int, ...]:
    """Table of the reflected Castagnoli polynomial, one byte at a time."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC32C: Final = _crc32c_table()


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C (Castagnoli) of ``data``; ``crc`` is that of the bytes before it.

    Independent of the C core's, so that each tests the other.
    """
    crc ^= 0xFFFFFFFF
    table = _CRC32C
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


_CHECK_AT: Final = wire.HEADER.offset("check")
_CHECK_WIDTH: Final = 8


def pdu_check(head: bytes, payload: bytes) -> int:
    """Value of the ``check`` field; ``head`` is header and vectors (check itself is skipped), ``payload`` what follows."""
    covered = head[:_CHECK_AT] + head[_CHECK_AT + _CHECK_WIDTH :]
    return crc32c(covered) << 32 | crc32c(payload)


# ---- fields, made from the table ----

_HEX: Final = frozenset({"cluster", "check", "group", "state", "trans", "digest", "fingerprint", "boot"})
"""Fields that are names or bitmaps rather than quantities: shown in hexadecimal."""


class _Hex(Field[int, int]):
    """An integer shown with all its hexadecimal digits."""

    def i2repr(self, pkt: Packet | None, x: int) -> str:
        return f"0x{x or 0:0{2 * self.sz}x}"


def _flag_names(flags: type[IntFlag]) -> list[str]:
    known = {int(flag): flag.name or "" for flag in flags}
    return [known.get(1 << bit, f"bit{bit}") for bit in range(8)]


_ENUMS: Final = {
    "kind": {int(kind): kind.name for kind in wire.Kind},
    "type": {int(kind): kind.name for kind in wire.MessageType},
}
_FLAGS: Final = {"flags": wire.Flag, "mflags": wire.MessageFlag, "oflags": wire.OpenFlag}
_COUNTS: Final = {
    ("header", "stations"): "ack",
    ("nak", "count"): "ranges",
    ("open", "members"): "proposed",
    ("proposal", "changes"): "changed_stations",
}
"""Count fields and the lists whose length they give."""
_TEXTS: Final = frozenset({"host", "options", "proposed_options"})
_LENGTHS: Final = {
    ("message", "size"): "data",
    ("open", "name_length"): "host",
    ("configuration", "options_length"): "options",
    ("configuration", "proposed_length"): "proposed_options",
}
_DEFAULTS: Final = {"version": wire.VERSION, "kind": int(wire.Kind.DATA), "src": 1, "span": 1, "stream": 1, "station": 1}
_LATER: Final = frozenset({"length", "check"})
"""Computed once the payload is known (``Zenjun.post_build``) when left ``None``."""


def _fields(layout: wire.Layout) -> list[Any]:
    """scapy fields of one layout, in its order."""
    out: list[Any] = []
    for field in layout.fields:
        key = (layout.name, field.name)
        default = None if field.name in _LATER else _DEFAULTS.get(field.name, 0)
        if key in _COUNTS:
            out.append(FieldLenField(field.name, None, count_of=_COUNTS[key], fmt=field.code))
        elif key in _LENGTHS:
            out.append(FieldLenField(field.name, None, length_of=_LENGTHS[key], fmt=field.code))
        elif field.name in _ENUMS:
            out.append(ByteEnumField(field.name, default, _ENUMS[field.name]))
        elif field.name in _FLAGS:
            out.append(FlagsField(field.name, 0, 8 * field.width, _flag_names(_FLAGS[field.name])))
        elif field.name in _HEX:
            out.append(_Hex(field.name, default, field.code))
        else:
            out.append(Field(field.name, default, field.code))
    return out


class _Vector(FieldListField):
    """A vector of n sequence numbers; takes as many whole ones as there are, so that a cut frame leaves the rest to ``Raw``."""

    def __init__(self, name: str) -> None:
        super().__init__(name, [], IntField("next", 0))

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, list[int]]:
        count = min(pkt.stations, len(s) // 4)
        return s[4 * count :], [int.from_bytes(s[at : at + 4], "big") for at in range(0, 4 * count, 4)]


class _Items(PacketListField):
    """A list of like structures that ends where no whole one follows (or after ``limit(pkt)``)."""

    __slots__ = ["limit", "whole"]

    def __init__(self, name: str, cls: type[Packet], whole: Callable[[bytes], int], limit: Callable[[Packet], int]) -> None:
        """``whole(bytes)`` is the size of the item that the bytes begin with, 0 if they do not hold all of it."""
        super().__init__(name, [], cls)
        self.whole = whole
        self.limit = limit

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, list[Any]]:
        items: list[Any] = []
        limit = self.limit(pkt)
        while len(items) < limit and (size := self.whole(s)):
            items.append(self.cls(s[:size], _parent=pkt))  # type: ignore[call-arg]
            s = s[size:]
        return s, items


def _fixed(layout: wire.Layout) -> Callable[[bytes], int]:
    return lambda s: layout.size if len(s) >= layout.size else 0


_MESSAGE_SIZE: Final = (wire.MESSAGE.offset("size"), wire.MESSAGE.offset("size") + 4)
_MESSAGE_FLAGS: Final = wire.MESSAGE.offset("mflags")


def _whole_message(s: bytes) -> int:
    """Size of the message, with its headers, that ``s`` begins with; 0 if it is not all there."""
    if len(s) < wire.MESSAGE.size:
        return 0
    size = wire.MESSAGE.size + int.from_bytes(s[slice(*_MESSAGE_SIZE)], "big")
    if s[_MESSAGE_FLAGS] & wire.MessageFlag.FRAGMENT:
        size += wire.FRAGMENT.size
    return size if size <= len(s) else 0


def _whole_configuration(s: bytes) -> int:
    """The same for what an OPEN says of configurations."""
    if len(s) < wire.CONFIGURATION.size:
        return 0
    *_, options, proposed = wire.CONFIGURATION.struct.unpack_from(s)
    size = wire.CONFIGURATION.size + int(options) + int(proposed)
    return size if size <= len(s) else 0


# ---- layers ----


class _Item(Packet):
    """A structure inside a list: nothing follows it."""

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        return b"", s


class ZenjunMessage(_Item):
    """One message, or one fragment of one, in a DATA PDU. ``total`` and ``offset`` exist if the FRAGMENT flag is set."""

    name = "zenjun message"
    fields_desc: ClassVar[list[Any]] = [
        *_fields(wire.MESSAGE),
        *(ConditionalField(field, lambda pkt: bool(pkt.mflags & wire.MessageFlag.FRAGMENT)) for field in _fields(wire.FRAGMENT)),
        StrLenField("data", b"", length_from=lambda pkt: pkt.size),
    ]


class ZenjunRange(_Item):
    """One run of missing PDUs in a NAK."""

    name = "zenjun range"
    fields_desc: ClassVar[list[Any]] = _fields(wire.RANGE)


class ZenjunMember(_Item):
    """One member of the instance that an OPEN proposes."""

    name = "zenjun member"
    fields_desc: ClassVar[list[Any]] = _fields(wire.MEMBER)


class ZenjunChange(_Item):
    """One station that a vote removes or admits."""

    name = "zenjun change"
    fields_desc: ClassVar[list[Any]] = _fields(wire.CHANGE)


class ZenjunData(Packet):
    """DATA payload: ``messages``, packed one after the other."""

    name = "zenjun DATA"
    fields_desc: ClassVar[list[Any]] = [_Items("messages", ZenjunMessage, _whole_message, lambda _pkt: 0xFFFF)]


class ZenjunConfirm(Packet):
    """CONFIRM payload: state bitmaps and order digest."""

    name = "zenjun CONFIRM"
    fields_desc: ClassVar[list[Any]] = _fields(wire.CONFIRM)


class ZenjunNak(Packet):
    """NAK payload: ``ranges`` of what is missing of one stream."""

    name = "zenjun NAK"
    fields_desc: ClassVar[list[Any]] = [
        *_fields(wire.NAK),
        _Items("ranges", ZenjunRange, _fixed(wire.RANGE), lambda pkt: int(pkt.count)),
    ]


class ZenjunConfiguration(_Item):
    """What the sender of an OPEN says of configurations, with its ``options`` and ``proposed_options`` (JSON)."""

    name = "zenjun configuration"
    fields_desc: ClassVar[list[Any]] = [
        *_fields(wire.CONFIGURATION),
        StrLenField("options", b"", length_from=lambda pkt: pkt.options_length),
        StrLenField("proposed_options", b"", length_from=lambda pkt: pkt.proposed_length),
    ]


class ZenjunOpen(Packet):
    """OPEN payload: the instance ``proposed`` (its members), the sender's ``host`` name (UTF-8), and one ``configuration`` if the
    CONFIGURED flag is set."""

    name = "zenjun OPEN"
    fields_desc: ClassVar[list[Any]] = [
        *_fields(wire.OPEN),
        _Items("proposed", ZenjunMember, _fixed(wire.MEMBER), lambda pkt: int(pkt.members)),
        StrLenField("host", b"", length_from=lambda pkt: pkt.name_length),
        ConditionalField(
            _Items("configuration", ZenjunConfiguration, _whole_configuration, lambda _pkt: 1),
            lambda pkt: bool(pkt.oflags & wire.OpenFlag.CONFIGURED),
        ),
    ]


class ZenjunVote(Packet):
    """STOP, STOP_ACK and RCV_ACK payload: the members of the proposed instance, and the ``changed_stations``."""

    name = "zenjun vote"
    fields_desc: ClassVar[list[Any]] = [
        *_fields(wire.PROPOSAL),
        _Items("changed_stations", ZenjunChange, _fixed(wire.CHANGE), lambda pkt: int(pkt.changes)),
    ]


class ZenjunReset(Packet):
    """RST and RSTC payload (medium bus)."""

    name = "zenjun reset"
    fields_desc: ClassVar[list[Any]] = _fields(wire.RESET)


PAYLOADS: Final[dict[wire.Kind, tuple[type[Packet], int]]] = {
    wire.Kind.DATA: (ZenjunData, 1),
    wire.Kind.CONFIRM: (ZenjunConfirm, wire.CONFIRM.size),
    wire.Kind.NAK: (ZenjunNak, wire.NAK.size),
    wire.Kind.OPEN: (ZenjunOpen, wire.OPEN.size),
    wire.Kind.RCV: (ZenjunOpen, wire.OPEN.size),
    **dict.fromkeys(sorted(wire.PROPOSALS), (ZenjunVote, wire.PROPOSAL.size)),
    **dict.fromkeys(sorted(wire.RESETS), (ZenjunReset, wire.RESET.size)),
}
"""Payload layer of each kind and the fewest bytes that it can be read from."""


class Zenjun(Packet):
    """Header, ack vector, and pack vector if the PACK flag is set.

    ``stations``, ``length`` and ``check`` are filled in when left out.
    """

    name = "zenjun"
    fields_desc: ClassVar[list[Any]] = [
        *_fields(wire.HEADER),
        _Vector("ack"),
        ConditionalField(_Vector("pack"), lambda pkt: bool(pkt.flags & wire.Flag.PACK)),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *_args: Any, **_kargs: Any) -> type[Packet]:
        """``Raw`` instead of this layer for what is too short to be a header."""
        if _pkt is not None and 0 < len(_pkt) < wire.HEADER.size:
            return Raw
        return cls

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        return s[: self.length], s[self.length :]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        layer, least = PAYLOADS.get(self.kind, (Raw, 1))
        vectors = 2 if self.flags & wire.Flag.PACK else 1
        cut = len(self.ack) + len(self.pack or ()) < vectors * self.stations
        return Raw if cut or len(payload) < least else layer

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        if self.length is None:
            at = wire.HEADER.offset("length")
            pkt = pkt[:at] + len(pay).to_bytes(2, "big") + pkt[at + 2 :]
        if self.check is None:
            value = pdu_check(pkt, pay).to_bytes(_CHECK_WIDTH, "big")
            pkt = pkt[:_CHECK_AT] + value + pkt[_CHECK_AT + _CHECK_WIDTH :]
        return pkt + pay

    @property
    def check_ok(self) -> bool | None:
        """Whether both checksums fit the PDU's bytes; ``None`` if some of them are missing (cut frame)."""
        pdu, head, end = self._extent()
        if len(pdu) < end:
            return None
        check = int.from_bytes(pdu[_CHECK_AT : _CHECK_AT + _CHECK_WIDTH], "big")
        return check == pdu_check(pdu[:head], pdu[head:end])

    def _extent(self) -> tuple[bytes, int, int]:
        """The PDU's bytes without padding, where its payload begins, where it should end."""
        pdu = self.do_build()
        head = wire.payload_offset(pdu[wire.HEADER.offset("stations")], packed=bool(self.flags & wire.Flag.PACK))
        at = wire.HEADER.offset("length")
        return pdu, head, head + int.from_bytes(pdu[at : at + 2], "big")

    @property
    def cut(self) -> bool:
        """Whether bytes of the PDU are missing at its end."""
        pdu, _, end = self._extent()
        return len(pdu) < end

    def mysummary(self) -> str:
        kind = _ENUMS["kind"].get(self.kind, str(self.kind))
        return f"zenjun {self.src} {kind} seq {self.seq}"


_bound: set[type[Packet]] = set()
for _kind, (_layer, _least) in PAYLOADS.items():
    if _layer in _bound:  # built without a kind it is of the first one
        bind_bottom_up(Zenjun, _layer, kind=int(_kind))
    else:
        bind_layers(Zenjun, _layer, kind=int(_kind))
    _bound.add(_layer)


def bind(ethertype: int = wire.ETHERTYPE) -> None:
    """Dissect frames of this EtherType (0x0600..0xffff) as zenjun, and build new ones with it and the group address."""
    if not 0x0600 <= ethertype <= 0xFFFF:
        raise ValueError(f"EtherType {ethertype:#x} is not in 0x0600..0xffff")
    for lower, field in ((Ether, "type"), (Dot1Q, "type"), (Dot1AD, "type"), (CookedLinux, "proto"), (CookedLinuxV2, "proto")):
        bind_bottom_up(lower, Zenjun, **{field: ethertype})
        top_down = {field: ethertype, "dst": wire.GROUP_MAC} if lower is Ether else {field: ethertype}
        bind_top_down(lower, Zenjun, **top_down)


bind()


# ---- for programs ----


def find(frame: Packet) -> Zenjun | None:
    """The zenjun layer of a frame, if it has one."""
    layer = frame.getlayer(Zenjun)
    return layer if isinstance(layer, Zenjun) else None


def complete(pdu: Zenjun) -> bool:
    """Whether all of the PDU was there and understood: whole vectors, as many items as their counts say, nothing left over."""
    body = pdu.payload
    if pdu.cut:
        return False
    if isinstance(body, ZenjunNak) and len(body.ranges) != body.count:
        return False
    if isinstance(body, ZenjunVote) and len(body.changed_stations) != body.changes:
        return False
    if isinstance(body, ZenjunOpen) and (len(body.proposed) != body.members or len(body.host) != body.name_length):
        return False
    if isinstance(body, (NoPayload, Padding)):
        return bool(pdu.length == 0 and pdu.kind == wire.Kind.DATA)
    while not isinstance(body, (NoPayload, Padding)):
        if isinstance(body, Raw):
            return False
        body = body.payload
    return True


def _plain(layer: Packet) -> Iterator[tuple[str, Any]]:
    for described in layer.fields_desc:
        field = described
        if isinstance(field, ConditionalField):
            if not field.cond(layer):
                continue
            field = field.fld
        value = layer.getfieldval(field.name)
        if value is None:
            continue
        if isinstance(field, FlagsField):
            yield field.name, str(value).split("+") if value else []
        elif isinstance(field, _Items):
            yield field.name, [dict(_plain(item)) for item in value]
        elif isinstance(field, ByteEnumField):
            yield field.name, _ENUMS[field.name].get(value, value)
        elif isinstance(field, _Hex):
            yield field.name, f"{value:0{2 * field.sz}x}"
        elif isinstance(value, bytes):
            yield field.name, value.decode(errors="backslashreplace") if field.name in _TEXTS else value.hex()
        else:
            yield field.name, value


def as_dict(pdu: Zenjun) -> dict[str, Any]:
    """All fields of header and payload as values that JSON can hold.

    Enumerations are names (numbers if unknown), flags lists of names, 64-bit identifiers and message bytes hexadecimal strings;
    ``check_ok`` and ``complete`` are added, ``rest`` (hexadecimal) holds what could not be read.
    """
    out = dict(_plain(pdu))
    out["check_ok"] = pdu.check_ok
    out["complete"] = complete(pdu)
    body = pdu.payload
    while not isinstance(body, (NoPayload, Padding)):
        if isinstance(body, Raw):
            out["rest"] = bytes(body.load).hex()
        else:
            out.update(_plain(body))
        body = body.payload
    return out
