"""The table of messages between corosync's libraries and their server: libcpg, libquorum, libvotequorum, libcmap, libcfg.

The libraries write C structs of one machine: little-endian here, each message with a header of libqb, most fields on a multiple
of 8 bytes, whatever was in memory in between. The messages of cpg and votequorum are the same from corosync 2.4.5 to 3.1.9; those
of quorum have grown. Offsets are facts of corosync's include/corosync/ipc_*.h; tests compare them with what the libraries of
Debian 12 write and read.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

REQUEST_HEAD: Final = 16
"""int32 id at 0, int32 size at 8."""
RESPONSE_HEAD: Final = 24
"""int32 id at 0, int32 size at 8, int32 error at 16; events have it too, and two of libcpg's requests."""
PROCESSORS_MAX: Final = 384
"""Entries of the list in the answer to cpg_membership_get, used or not."""


class Type(Enum):
    """Of a field: its format in ``struct``, with what follows it in the same field."""

    U8 = "<B"
    I32 = "<i"
    U32 = "<I"
    U64 = "<Q"
    NAME = "<I4x128s"
    """A name of libcpg: its length, and 128 bytes."""
    KEY = "<H6x256s"
    """A key of libcmap: its length, and 256 bytes."""
    REASON = "<H256s"
    """A reason of libcfg: its length, and 256 bytes."""
    TEXT = "<255s"
    PATH = "<128s"


class Tail(Enum):
    """What follows the fields, as often as a field says: the format of one entry."""

    NONE = ""
    BYTES = "<s"
    NODES = "<I"
    ADDRESSES = "<I4xI4xI4x"
    """Node id, pid, reason."""
    STATES = "<II"
    """Node id, state."""


COUNTED: Final = (Type.NAME, Type.KEY, Type.REASON)
"""Bytes behind their length."""


class Field(NamedTuple):
    name: str
    type: Type
    offset: int


class Layout(NamedTuple):
    """A message: ``size`` bytes, and its tail."""

    service: str
    name: str
    id: int
    fields: tuple[Field, ...]
    size: int
    tail: Tail = Tail.NONE
    tail_at: int = 0
    """Where the tail begins. It may be before ``size``: then as many bytes at the end are padding, as in corosync."""
    counts: tuple[str, ...] = ()
    """The fields that count entries; the tail has all of them, one list after another."""


def _layout(
    service: str, name: str, number: int, fields: str, size: int, tail: Tail = Tail.NONE, at: int = 0, by: str = ""
) -> Layout:
    """fields: "name:type@offset", in the order of their offsets. by: the counting fields."""
    found = []
    for text in fields.split():
        field, _, where = text.partition(":")
        kind, _, offset = where.partition("@")
        found.append(Field(field, Type[kind.upper()], int(offset)))
    return Layout(service, name, number, tuple(found), size, tail, at, tuple(by.split()))


_GROUP_PID: Final = "group:name@16 pid:u32@152"
_NAMED: Final = "name:text@16"
_KEYED: Final = "key:key@16"

REQUESTS: Final = (
    _layout("cpg", "join", 0, f"{_GROUP_PID} flags:u32@160", 168),
    _layout("cpg", "leave", 1, _GROUP_PID, 160),
    _layout("cpg", "mcast", 2, "guarantee:u32@24 length:u32@32", 40, Tail.BYTES, 40, "length"),
    _layout("cpg", "membership", 3, "group:name@16", 152),
    _layout("cpg", "local_get", 4, "", 16),
    _layout("cpg", "iteration_initialize", 5, "group:name@16 type:u32@152", 160),
    _layout("cpg", "iteration_next", 6, "iteration:u64@16", 24),
    _layout("cpg", "iteration_finalize", 7, "iteration:u64@16", 24),
    _layout("cpg", "finalize", 8, "", 16),
    _layout("cpg", "map", 9, "size:u64@16 path:path@24", 152),
    _layout("cpg", "unmap", 10, "size:u64@16 number:u64@24", 32),
    _layout("cpg", "mcast_mapped", 11, "number:u64@16", 24),
    _layout(
        *("cpg", "mcast_part", 12, "guarantee:u32@24 length:u32@32 fragment:u32@40 part:u32@48", 56),
        *(Tail.BYTES, 56, "fragment"),
    ),
    _layout("quorum", "getquorate", 0, "", 16),
    _layout("quorum", "trackstart", 1, "flags:u32@16", 24),
    _layout("quorum", "trackstop", 2, "", 16),
    _layout("quorum", "gettype", 3, "", 16),
    _layout("quorum", "model_gettype", 4, "model:u32@16", 24),
    _layout("votequorum", "getinfo", 0, "node:u32@16", 24),
    _layout("votequorum", "setexpected", 1, "expected:u32@16", 24),
    _layout("votequorum", "setvotes", 2, "votes:u32@16 node:u32@20", 24),
    _layout("votequorum", "trackstart", 3, "context:u64@16 flags:u32@24", 32),
    _layout("votequorum", "trackstop", 4, "", 16),
    _layout("votequorum", "qdevice_register", 5, _NAMED, 272),
    _layout("votequorum", "qdevice_unregister", 6, _NAMED, 272),
    _layout("cmap", "set", 0, f"{_KEYED} length:u64@280 type:u8@288", 296, Tail.BYTES, 296, "length"),
    _layout("cmap", "delete", 1, _KEYED, 280),
    _layout("cmap", "get", 2, f"{_KEYED} length:u64@280", 288),
    _layout("cmap", "adjust", 3, f"{_KEYED} step:i32@280", 288),
    _layout("cmap", "iter_init", 4, "prefix:key@16", 280),
    _layout("cmap", "iter_next", 5, "iteration:u64@16", 24),
    _layout("cmap", "iter_finalize", 6, "iteration:u64@16", 24),
    _layout("cmap", "track_add", 7, f"{_KEYED} flags:i32@280 instance:u64@288", 296),
    _layout("cmap", "track_delete", 8, "track:u64@16", 24),
    _layout("cmap", "set_map", 9, "map:i32@16", 24),
    _layout("cfg", "ring_status", 0, "", 16),
    _layout("cfg", "kill_node", 2, "node:u32@16 reason:reason@24", 288),
    _layout("cfg", "try_shutdown", 3, "flags:u32@16", 24),
    _layout("cfg", "reply_shutdown", 4, "response:u32@16", 24),
    _layout("cfg", "node_addresses", 5, "node:u32@16", 24),
    _layout("cfg", "local_get", 6, "", 16),
    _layout("cfg", "reload", 7, "", 16),
    _layout("cfg", "reopen_logs", 8, "", 16),
    _layout("cfg", "node_status", 9, "node:u32@16 version:u32@24", 32),
    _layout("cfg", "trackstart", 10, "flags:u8@16", 24),
    _layout("cfg", "trackstop", 11, "", 16),
)
"""What the libraries ask. The rest of quorum devices is not in it."""

MAPPED_NUMBER: Final = 8
"""In a file that libcpg maps: u64, what the server has called it; libcpg sends it back. corosync writes an address there."""
MAPPED_LENGTH: Final = 48
"""u32: bytes of the message. Before it stands the rest of a request ``mcast``, which begins at 16."""
MAPPED_DATA: Final = 56

_LISTS: Final = "members:u32@160 joined:u32@168 left:u32@176"
LINKS_MAX: Final = 16
"""In the answer about ring status, used or not: names of 128 bytes, then texts of 512."""
LINK_BYTES: Final = 520
"""Of one of 8 links in a node's status: enabled, connected, dynamic (u8), at 4 the MTU (u32), two addresses of 256 bytes."""
_STATUS: Final = "version:u32@24 node:u32@28 reachable:u8@32 remote:u8@33 external:u8@34 wire_min:u8@35 wire_max:u8@36 wire:u8@37"
_INFO: Final = "node:u32@24 state:u32@28 votes:u32@32 expected:u32@36 highest:u32@40 total:u32@44 quorum:u32@48 flags:u32@52"

ANSWERS: Final = (
    _layout("cpg", "join", 0, "", 24),
    _layout("cpg", "leave", 1, "", 24),
    _layout("cpg", "membership", 3, "count:u32@24", 32 + 24 * PROCESSORS_MAX, Tail.ADDRESSES, 32),
    _layout("cpg", "local_get", 7, "node:u32@24", 32),
    _layout("cpg", "iteration_initialize", 9, "iteration:u64@24", 32),
    _layout("cpg", "iteration_next", 10, "group:name@24 node:u32@160 pid:u32@164", 168),
    _layout("cpg", "iteration_finalize", 11, "", 24),
    _layout("cpg", "finalize", 12, "", 24),
    _layout("cpg", "map", 14, "", 24),
    _layout("cpg", "unmap", 15, "", 24),
    _layout("cpg", "mcast_mapped", 16, "", 24),
    _layout("cpg", "mcast_part", 18, "", 24),
    _layout("quorum", "getquorate", 0, "quorate:u32@24", 32),
    _layout("quorum", "trackstart", 1, "", 24),
    _layout("quorum", "trackstop", 2, "", 24),
    _layout("quorum", "gettype", 4, "type:u32@24", 32),
    _layout("quorum", "model_gettype", 5, "type:u32@24", 32),
    _layout("votequorum", "status", 0, "", 24),
    _layout("votequorum", "getinfo", 1, f"{_INFO} device:u32@56 name:text@60", 320),
    _layout("cmap", "set", 0, "", 24),
    _layout("cmap", "delete", 1, "", 24),
    _layout("cmap", "get", 2, "length:u64@24 type:u8@32", 40, Tail.BYTES, 40, "length"),
    _layout("cmap", "adjust", 3, "", 24),
    _layout("cmap", "iter_init", 4, "iteration:u64@24", 32),
    _layout("cmap", "iter_next", 5, "key:key@24 length:u64@288 type:u8@296", 304),
    _layout("cmap", "iter_finalize", 6, "", 24),
    _layout("cmap", "track_add", 7, "track:u64@24", 32),
    _layout("cmap", "track_delete", 8, "instance:u64@24", 32),
    _layout("cmap", "set_map", 10, "", 24),
    _layout("cfg", "ring_status", 0, "count:u32@24", 32 + LINKS_MAX * (128 + 512), Tail.BYTES, 32),
    _layout("cfg", "kill_node", 8, "", 24),
    _layout("cfg", "try_shutdown", 9, "", 24),
    _layout("cfg", "node_addresses", 11, "family:u32@24 count:u32@28", 32, Tail.BYTES, 32, "count"),
    _layout("cfg", "local_get", 12, "node:u32@24", 32),
    _layout("cfg", "reply_shutdown", 13, "", 24),
    _layout("cfg", "reopen_logs", 14, "", 24),
    _layout("cfg", "reload", 15, "", 24),
    _layout("cfg", "node_status", 16, _STATUS, 40 + 8 * LINK_BYTES, Tail.BYTES, 40),
    _layout("cfg", "trackstart", 0, "", 24),
    _layout("cfg", "trackstop", 0, "", 24),
)
"""What the libraries wait for."""

_RING: Final = "node:u32@24 seq:u64@32"
_VALUES: Final = "new_type:u8@304 old_type:u8@312 new_length:u64@320 old_length:u64@328"

EVENTS: Final = (
    _layout("cpg", "confchg", 4, f"group:name@24 {_LISTS}", 184, Tail.ADDRESSES, 184, "members left joined"),
    _layout(
        *("cpg", "deliver", 5, "group:name@24 length:u32@160 node:u32@168 pid:u32@176", 184),
        *(Tail.BYTES, 184, "length"),
    ),
    _layout("cpg", "totem", 13, f"{_RING} count:u32@40", 48, Tail.NODES, 44, "count"),
    _layout(
        *("cpg", "deliver_part", 17, "group:name@24 length:u32@160 fragment:u32@168 node:u32@176 pid:u32@184 part:u32@192", 200),
        *(Tail.BYTES, 200, "fragment"),
    ),
    _layout("quorum", "quorum_v0", 3, "quorate:u32@24 seq:u64@32 count:u32@40", 48, Tail.NODES, 44, "count"),
    _layout("quorum", "quorum_v1", 6, "quorate:u32@24 node:u32@32 seq:u64@40 count:u32@48", 56, Tail.NODES, 52, "count"),
    _layout(
        "quorum", "nodelist", 7, f"{_RING} members:u32@40 joined:u32@48 left:u32@56", 64, Tail.NODES, 60, "members joined left"
    ),
    _layout("votequorum", "quorum", 3, "quorate:u32@24 context:u64@32 count:u32@40", 48, Tail.STATES, 48, "count"),
    _layout("votequorum", "expected", 4, "context:u64@24 expected:u32@32", 40),
    _layout("votequorum", "nodelist", 5, "context:u64@24 node:u32@32 seq:u64@40 count:u32@48", 56, Tail.NODES, 56, "count"),
    _layout(
        *("cmap", "changed", 9, f"instance:u64@24 key:key@32 event:i32@296 {_VALUES}", 336),
        *(Tail.BYTES, 336, "new_length old_length"),
    ),
    _layout("cfg", "shutdown", 10, "flags:u32@24", 32),
)
"""What reaches a program's callbacks."""
