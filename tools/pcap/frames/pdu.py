"""One PDU as plain values, straight from the field table: for tools that print, without scapy.

It reads what the scapy layers of ``tools/dissect.py`` read (``as_dict`` there): a test holds them equal on whole, cut and damaged
PDUs. Nothing here raises for what is in a frame. Large captures are decoded in C (``native``); this is for what people look at.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, Final, NamedTuple

from ....proto import wire
from ....proto.core import crc32c

LINK_ETHERNET: Final = 1
LINK_SLL: Final = 113
LINK_SLL2: Final = 276
LINKS: Final = frozenset({LINK_ETHERNET, LINK_SLL, LINK_SLL2})
"""LINKTYPE_ numbers that can be read."""
TAGS: Final = frozenset({0x8100, 0x88A8, 0x9100})
_TAGS_MAX: Final = 8

HEXADECIMAL: Final = frozenset({"cluster", "check", "group", "state", "trans", "digest", "fingerprint", "boot"})
"""Fields that are names or bitmaps rather than quantities: strings of all their hexadecimal digits."""
_ENUMS: Final[dict[str, type[IntEnum]]] = {"kind": wire.Kind, "type": wire.MessageType}
_FLAGS: Final[dict[str, type[IntFlag]]] = {"flags": wire.Flag, "mflags": wire.MessageFlag, "oflags": wire.OpenFlag}
_NAMES: Final = {name: {int(m): m.name for m in members} for name, members in _ENUMS.items()}
_BITS: Final = {
    name: [{int(m): m.name or "" for m in flags}.get(1 << bit, f"bit{bit}") for bit in range(8)] for name, flags in _FLAGS.items()
}
_HEADER: Final = wire.HEADER.struct
_CHECK_AT: Final = wire.HEADER.offset("check")
_CHECK_BYTES: Final = 8
LISTS: Final = {"range": "ranges", "member": "proposed", "change": "changed_stations"}
"""Repeated layout → name of its list."""


@dataclass(frozen=True, slots=True)
class Record:
    """One captured frame."""

    time_ns: int
    """Since 1970-01-01 UTC; 0 if the format keeps no time (simple packet block)."""
    link_type: int
    """LINKTYPE_ number of the interface it was captured on."""
    data: bytes
    """The bytes captured, from the link-layer header on."""
    wire_length: int
    """Bytes the frame had on the wire; more than ``len(data)`` if it was cut."""
    interface: str = ""
    """Name of the interface, if the file has it."""


class Place(NamedTuple):
    """Where a frame's payload begins."""

    ethertype: int
    """Behind all VLAN tags; 0: the frame is too short, or has none."""
    at: int


def place(link_type: int, data: bytes) -> Place | None:
    """Skip the link-layer header; None: a link type that cannot be read."""
    if link_type == LINK_ETHERNET:
        at = 12
    elif link_type == LINK_SLL:
        at = 14
    elif link_type == LINK_SLL2:
        kind = int.from_bytes(data[0:2], "big") if len(data) >= 20 else 0
        return _tagged(data, kind, 20)
    else:
        return None
    if len(data) < at + 2:
        return Place(0, len(data))
    return _tagged(data, int.from_bytes(data[at : at + 2], "big"), at + 2)


def _tagged(data: bytes, ethertype: int, at: int) -> Place:
    for _ in range(_TAGS_MAX):
        if ethertype not in TAGS:
            break
        if len(data) < at + 4:
            return Place(0, len(data))
        ethertype = int.from_bytes(data[at + 2 : at + 4], "big")
        at += 4
    return Place(ethertype, at)


def _values(layout: wire.Layout, data: bytes, at: int) -> dict[str, Any]:
    """Fields as JSON has them."""
    out: dict[str, Any] = {}
    for field, value in zip(layout.fields, layout.struct.unpack_from(data, at), strict=True):
        name = field.name
        if name in _FLAGS:
            out[name] = [text for bit, text in enumerate(_BITS[name]) if value >> bit & 1]
        elif name in _ENUMS:
            out[name] = _NAMES[name].get(value, value)
        elif name in HEXADECIMAL:
            out[name] = f"{value:0{2 * field.width}x}"
        else:
            out[name] = value
    return out


def _vector(data: bytes, at: int, stations: int) -> list[int]:
    count = min(stations, max(0, len(data) - at) // 4)
    return [int.from_bytes(data[k : k + 4], "big") for k in range(at, at + 4 * count, 4)]


def _messages(payload: bytes) -> tuple[list[dict[str, Any]], int]:
    """The messages that are whole, and where the first one that is not begins."""
    out, at = [], 0
    fragment_flag = int(wire.MessageFlag.FRAGMENT)
    size_at, flags_at = wire.MESSAGE.offset("size"), wire.MESSAGE.offset("mflags")
    while at + wire.MESSAGE.size <= len(payload):
        size = int.from_bytes(payload[at + size_at : at + size_at + 4], "big")
        fragment = payload[at + flags_at] & fragment_flag
        body = at + wire.MESSAGE.size + (wire.FRAGMENT.size if fragment else 0)
        if body + size > len(payload):
            break
        item = _values(wire.MESSAGE, payload, at)
        if fragment:
            item |= _values(wire.FRAGMENT, payload, at + wire.MESSAGE.size)
        item["data"] = payload[body : body + size].hex()
        out.append(item)
        at = body + size
    return out, at


def _payload(kind: int, payload: bytes) -> tuple[dict[str, Any], int, bool]:
    """Values, how many bytes they took, and whether everything that is announced is there."""
    if kind == wire.Kind.DATA:
        messages, at = _messages(payload)
        return {"messages": messages} if payload else {}, at, True
    layouts = wire.PAYLOAD.get(wire.Kind(kind), ()) if kind in _NAMES["kind"] else ()
    if not layouts or len(payload) < layouts[0].size:
        return {}, 0, False
    out = _values(layouts[0], payload, 0)
    at, whole = layouts[0].size, True
    for layout in layouts[1:]:
        count = out[layout.repeat]
        items: list[dict[str, Any]] = []
        while len(items) < count and at + layout.size <= len(payload):
            items.append(_values(layout, payload, at))
            at += layout.size
        out[LISTS[layout.name]] = items
        whole = whole and len(items) == count
    if "name_length" in out:
        name = payload[at : at + out["name_length"]]
        out["host"] = name.decode(errors="backslashreplace")
        at += len(name)
        whole = whole and len(name) == out["name_length"]
    if wire.OpenFlag.CONFIGURED.name in out.get("oflags", ()):
        out["configuration"], at = _configuration(payload, at)
    return out, at, whole


def _configuration(payload: bytes, at: int) -> tuple[list[dict[str, Any]], int]:
    """What an OPEN says of configurations, if it is all there, and where it ends."""
    texts = at + wire.CONFIGURATION.size
    if texts > len(payload):
        return [], at
    item = _values(wire.CONFIGURATION, payload, at)
    middle = texts + item["options_length"]
    end = middle + item["proposed_length"]
    if end > len(payload):
        return [], at
    item["options"] = payload[texts:middle].decode(errors="backslashreplace")
    item["proposed_options"] = payload[middle:end].decode(errors="backslashreplace")
    return [item], end


def decode(pdu: bytes) -> dict[str, Any] | None:
    """All fields of the PDU that the bytes (what follows the link-layer header, padding too) begin with; None: they are too few.

    As ``dissect.as_dict``: enumerations are names (numbers if unknown), flags lists of names, identifiers and message bytes
    hexadecimal; ``check_ok`` (None: bytes are missing) and ``complete`` are added, ``rest`` holds what could not be read.
    """
    if len(pdu) < _HEADER.size:
        return None
    out = _values(wire.HEADER, pdu, 0)
    raw = dict(zip((f.name for f in wire.HEADER.fields), _HEADER.unpack_from(pdu), strict=True))
    packed = bool(raw["flags"] & wire.Flag.PACK)
    n, length, kind = raw["stations"], raw["length"], raw["kind"]
    out["ack"] = _vector(pdu, _HEADER.size, n)
    at = _HEADER.size + 4 * len(out["ack"])
    if packed:
        out["pack"] = _vector(pdu, at, n)
        at += 4 * len(out["pack"])
    head = wire.payload_offset(n, packed=packed)
    end = head + length
    whole = len(pdu) >= end
    out["check_ok"] = check_ok(pdu, head, end, raw["check"]) if whole else None
    payload = pdu[at : at + length]
    values: dict[str, Any] = {}
    used, good = 0, False
    if at >= head:  # else the vectors are cut, and what follows is unknown
        values, used, good = _payload(kind, payload)
    out["complete"] = bool(whole and good and used == len(payload) and (payload or kind == wire.Kind.DATA))
    out |= values
    if used < len(payload):
        out["rest"] = payload[used:].hex()
    return out


def check_ok(pdu: bytes, head: int, end: int, check: int) -> bool:
    """Whether both checksums fit; ``head``: where the payload begins, ``end``: where it ends."""
    first = crc32c(pdu[_CHECK_AT + _CHECK_BYTES : head], crc32c(pdu[:_CHECK_AT]))
    return bool(first << 32 | crc32c(pdu[head:end]) == check)
