"""Reads what corosync's libraries ask, and writes answers and events, by the table."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from ...proto.service.base import Effect
from ...proto.service.corosync import results
from ...proto.service.corosync.messages import Part
from ...proto.service.corosync.results import Address, Code, RingId
from .table import ANSWERS, COUNTED, EVENTS, REQUEST_HEAD, REQUESTS, RESPONSE_HEAD, Layout, Tail, Type

Value: TypeAlias = int | bytes
MapValue: TypeAlias = tuple[int, bytes]
"""A value of libcmap: its type, and its bytes."""
_ID_SIZE: Final = struct.Struct("<i4xi")
_ERROR: Final = struct.Struct("<i4x")
_REQUESTS: Final = {(layout.service, layout.id): layout for layout in REQUESTS}
_ANSWERS: Final = {(layout.service, layout.name): layout for layout in ANSWERS}
_EVENTS: Final = {(layout.service, layout.name): layout for layout in EVENTS}
UNSET_GROUP: Final = ("cpg", "iteration_initialize")
"""libcpg sets its group only when one group is asked for; else it sends what its stack has there, and corosync does not look."""
MEMBER, DEAD = 1, 2
"""States of nodes in libvotequorum."""


class Request(NamedTuple):
    """What a program asks."""

    name: str
    values: Mapping[str, Value]
    """By field; ``data``: the tail."""


def request(service: str, message: bytes) -> Request | None:
    """A request of a library; None for one that is unknown, too short, or says that it is longer than it is. Total."""
    if len(message) < REQUEST_HEAD:
        return None
    number, size = _ID_SIZE.unpack_from(message)
    layout = _REQUESTS.get((service, number))
    if layout is None or size > len(message) or len(message) < layout.size:
        return None
    values = {field.name: _read(message, field.type, field.offset) for field in layout.fields}
    if (service, layout.name) == UNSET_GROUP and values["group"] is None:
        values["group"] = b""
    if None in values.values():
        return None
    if layout.tail is Tail.BYTES:
        length = values[layout.counts[0]]
        if not isinstance(length, int) or length > len(message) - layout.tail_at:
            return None
        values["data"] = message[layout.tail_at : layout.tail_at + length]
    return Request(layout.name, {name: value for name, value in values.items() if value is not None})


def _read(message: bytes, kind: Type, offset: int) -> Value | None:
    found = struct.unpack_from(kind.value, message, offset)
    if kind in COUNTED:
        length, name = found
        return bytes(name[:length]) if length <= len(name) else None
    if kind in (Type.TEXT, Type.PATH):
        return bytes(found[0]).partition(b"\0")[0]
    return int(found[0])


def answer(service: str, name: str, code: Code = Code.OK, values: Mapping[str, Value] | None = None, tail: bytes = b"") -> bytes:
    """The answer to a request: ``name`` as in ``table.ANSWERS``. KeyError for one that is not there."""
    return _write(_ANSWERS[service, name], code, values or {}, tail)


def refusal(message: bytes, code: Code) -> bytes:
    """The answer to a request that is in no table: a header, from which the libraries take the error."""
    number = _ID_SIZE.unpack_from(message)[0] if len(message) >= REQUEST_HEAD else 0
    return _ID_SIZE.pack(number, RESPONSE_HEAD).ljust(REQUEST_HEAD, b"\0") + _ERROR.pack(code)


def event(effect: Effect, *, model: int = 0, context: int = 0) -> bytes:
    """What a program's callback is called with. model: of libquorum; context: of libvotequorum. TypeError for an effect that no
    program hears."""
    match effect:
        case results.Confchg(_, group, members, left, joined):
            counts = {"members": len(members), "joined": len(joined), "left": len(left)}
            return _event("cpg", "confchg", {"group": group, **counts}, addresses((*members, *left, *joined)))
        case results.Totem(_, ring, members):
            return _event("cpg", "totem", {**_ring(ring), "count": len(members)}, _nodes(members))
        case results.Deliver():
            return _deliver(effect)
        case results.Quorum(_, quorate, ring, members):
            values: dict[str, Value] = {"quorate": int(quorate), "seq": ring.seq, "count": len(members)}
            if model == 0:
                return _event("quorum", "quorum_v0", values, _nodes(members))
            return _event("quorum", "quorum_v1", {**values, "node": ring.node}, _nodes(members))
        case results.Nodelist(_, ring, members, joined, left):
            counts = {"members": len(members), "joined": len(joined), "left": len(left)}
            return _event("quorum", "nodelist", {**_ring(ring), **counts}, _nodes((*members, *joined, *left)))
        case results.VotesQuorum(_, quorate, nodes):
            states = b"".join(struct.pack(Tail.STATES.value, node, MEMBER if here else DEAD) for node, here in nodes)
            return _event("votequorum", "quorum", {"quorate": int(quorate), "context": context, "count": len(nodes)}, states)
        case results.VotesNodelist(_, ring, members):
            values = {**_ring(ring), "context": context, "count": len(members)}
            return _event("votequorum", "nodelist", values, _nodes(members))
        case results.VotesExpected(_, expected):
            return _event("votequorum", "expected", {"context": context, "expected": expected}, b"")
    raise TypeError(f"{type(effect).__name__} is not for programs")


def _deliver(effect: results.Deliver) -> bytes:
    message = effect.message
    values: dict[str, Value] = {
        "group": message.process.group,
        "length": message.length,
        "node": effect.node,
        "pid": message.process.pid,
    }
    if message.part is Part.WHOLE:
        return _event("cpg", "deliver", {**values, "length": len(message.data)}, message.data)
    values |= {"fragment": len(message.data), "part": int(message.part)}
    return _event("cpg", "deliver_part", values, message.data)


def map_changed(instance: int, key: bytes, event: int, new: MapValue | None, old: MapValue | None) -> bytes:
    """libcmap: a key that a program tracks. instance: what the program has given with the request. event: a bit of libcmap's
    CMAP_TRACK. None: there is no such value."""
    (new_type, new_data), (old_type, old_data) = new or (0, b""), old or (0, b"")
    values: dict[str, Value] = {"instance": instance, "key": key, "event": event, "new_type": new_type, "old_type": old_type}
    lengths: dict[str, Value] = {"new_length": len(new_data), "old_length": len(old_data)}
    return _event("cmap", "changed", {**values, **lengths}, new_data + old_data)


def shutdown_asked(flags: int) -> bytes:
    """libcfg: somebody wants the stand-in to end."""
    return _event("cfg", "shutdown", {"flags": flags}, b"")


def addresses(found: tuple[Address, ...]) -> bytes:
    """A list of processes as libcpg has it."""
    return b"".join(struct.pack(Tail.ADDRESSES.value, *address) for address in found)


def _nodes(found: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(found)}I", *found)


def _ring(ring: RingId) -> dict[str, Value]:
    return {"node": ring.node, "seq": ring.seq}


def _event(service: str, name: str, values: Mapping[str, Value], tail: bytes) -> bytes:
    return _write(_EVENTS[service, name], Code.OK, values, tail)


def _write(layout: Layout, code: Code, values: Mapping[str, Value], tail: bytes) -> bytes:
    """A message with the header of an answer. An answer whose tail has no counts has a fixed size."""
    size = layout.size + len(tail) if layout.counts else layout.size
    out = bytearray(size)
    _ID_SIZE.pack_into(out, 0, layout.id, size)
    _ERROR.pack_into(out, REQUEST_HEAD, code)
    for field in layout.fields:
        value = values.get(field.name, b"" if field.type in (*COUNTED, Type.TEXT) else 0)
        if field.type in COUNTED and isinstance(value, bytes):
            struct.pack_into(field.type.value, out, field.offset, len(value), value)
        else:
            struct.pack_into(field.type.value, out, field.offset, value)
    out[layout.tail_at : layout.tail_at + len(tail)] = tail if tail else b""
    return bytes(out)
