"""The maps of libcmap: typed keys, who may change them, and who hears of changes. No I/O.

Names, types, bounds and the list of read-only keys are corosync's (cmap_keys.7, cmap_overview.3).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple, TypeAlias

from ...proto.service.corosync.results import Code

KEY_MIN, KEY_MAX = 3, 255
VALUE_MAX: Final = 16 << 10
KEYS_MAX: Final = 100_000
VALUES_MAX: Final = 64 << 20
"""Bytes of all values. Of a map: what programs set is bounded."""
TRACKERS_ALL: Final = 2048
"""Of a map. Whoever sets a key makes an event for each that wants to hear of it."""
USERS: Final = b"uidgid."
USERS_MAX: Final = 1024
"""Keys below: who may connect is read from all of them after each change."""
_NAME: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:")


class Type(IntEnum):
    """Of a value; numbers of libcmap."""

    I8 = 1
    U8 = 2
    I16 = 3
    U16 = 4
    I32 = 5
    U32 = 6
    I64 = 7
    U64 = 8
    FLOAT = 9
    DOUBLE = 10
    STRING = 11
    BINARY = 12

    def pack(self, of: int | float | str) -> Value:
        """ValueError, struct.error: it does not fit."""
        if self is Type.STRING:
            return Value(self, str(of).encode() + b"\0")
        return Value(self, struct.pack(_FORMATS[self], of))


class Value(NamedTuple):
    type: Type
    data: bytes


U8, U16, U32, U64, STRING = Type.U8, Type.U16, Type.U32, Type.U64, Type.STRING
_FORMATS: Final = {
    Type.I8: "<b",
    Type.U8: "<B",
    Type.I16: "<h",
    Type.U16: "<H",
    Type.I32: "<i",
    Type.U32: "<I",
    Type.I64: "<q",
    Type.U64: "<Q",
    Type.FLOAT: "<f",
    Type.DOUBLE: "<d",
}
_WHOLE: Final = frozenset({Type.I8, Type.U8, Type.I16, Type.U16, Type.I32, Type.U32, Type.I64, Type.U64})


class Track(IntFlag):
    """What a tracker wants to hear of; numbers of libcmap."""

    DELETE = 1
    MODIFY = 2
    ADD = 4
    PREFIX = 8


Heard: TypeAlias = Callable[[bytes, Track, Value | None, Value | None], None]
"""Key, one of DELETE, MODIFY, ADD, the new value, the old one."""


@dataclass(frozen=True, slots=True)
class Tracker:
    key: bytes
    """Empty, with PREFIX: all keys."""
    flags: Track
    heard: Heard

    @property
    def place(self) -> tuple[bool, bytes]:
        """Where it is looked for."""
        return bool(self.flags & Track.PREFIX), self.key


READ_ONLY: Final = (
    *(b"internal_configuration.", b"runtime.", b"uidgid.config.", b"system.", b"nodelist.", b"stats."),
    *(b"totem.crypto_cipher", b"totem.crypto_hash", b"totem.crypto_model", b"totem.keyfile", b"totem.key", b"totem.secauth"),
    *(b"totem.ip_version", b"totem.transport", b"totem.cluster_name", b"totem.netmtu", b"totem.threads", b"totem.version"),
    *(b"totem.nodeid", b"config.reload_in_progress", b"config.totemconfig_reload_in_progress", b"zenjun."),
)
"""Keys that programs may not change; those that end in a point with all below them. corosync has a list of the parts of
``runtime.``; here all of it is the stand-in's."""


def is_read_only(key: bytes) -> bool:
    return any(key.startswith(name) if name.endswith(b".") else key == name for name in READ_ONLY)


def is_name(key: bytes) -> bool:
    return KEY_MIN <= len(key) <= KEY_MAX and _NAME.issuperset(key)


class Map:
    """One map. ``put`` and ``drop`` are the stand-in's own, the others those of programs."""

    def __init__(self) -> None:
        self._values: dict[bytes, Value] = {}
        self._sorted: list[bytes] = []
        """Its keys."""
        self._bytes = 0
        """Of its values."""
        self._trackers: dict[int, Tracker] = {}
        self._wanted: dict[tuple[bool, bytes], dict[int, Tracker]] = {}
        """Trackers by PREFIX and key."""
        self._last = 0

    # ---- what the stand-in does

    def put(self, key: str, value: Value) -> None:
        self._store(key.encode(), value)

    def drop(self, key: str) -> None:
        self._remove(key.encode())

    def value(self, key: str) -> int | str | None:
        """Whole numbers and texts; None for another type, or if there is no such key."""
        found = self._values.get(key.encode())
        if found is None:
            return None
        if found.type in _WHOLE:
            return int(struct.unpack(_FORMATS[found.type], found.data)[0])
        return found.data.partition(b"\0")[0].decode(errors="replace") if found.type is STRING else None

    def below(self, prefix: bytes) -> Iterator[bytes]:
        """Keys that begin so, sorted, each as of its step."""
        at = bisect_left(self._sorted, prefix)
        while at < len(self._sorted) and (key := self._sorted[at]).startswith(prefix):
            yield key
            at = bisect_right(self._sorted, key)

    def count(self, prefix: bytes) -> int:
        """Keys that begin so."""
        return bisect_left(self._sorted, prefix + b"\xff") - bisect_left(self._sorted, prefix)

    # ---- what programs do

    def set(self, key: bytes, kind: int, data: bytes) -> Code:
        if not is_name(key):
            return Code.NAME_TOO_LONG
        if is_read_only(key):
            return Code.ACCESS
        value = _valid(kind, data)
        if value is None:
            return Code.INVALID_PARAM
        old = self._values.get(key)
        if old is None and (len(self._values) >= KEYS_MAX or (key.startswith(USERS) and self.count(USERS) >= USERS_MAX)):
            return Code.NO_MEMORY
        if self._bytes + len(value.data) - (len(old.data) if old else 0) > VALUES_MAX:
            return Code.NO_MEMORY
        self._store(key, value)
        return Code.OK

    def get(self, key: bytes) -> Value | None:
        return self._values.get(key)

    def delete(self, key: bytes) -> Code:
        if is_read_only(key):
            return Code.ACCESS
        return Code.OK if self._remove(key) else Code.NOT_EXIST

    def adjust(self, key: bytes, step: int) -> Code:
        """Add to a whole number, which wraps around as in C."""
        if is_read_only(key):
            return Code.ACCESS
        found = self._values.get(key)
        if found is None:
            return Code.NOT_EXIST
        if found.type not in _WHOLE:
            return Code.INVALID_PARAM
        bits = 8 * len(found.data)
        number = (int.from_bytes(found.data, "little") + step) % (1 << bits)
        self._store(key, Value(found.type, number.to_bytes(bits // 8, "little")))
        return Code.OK

    def track(self, key: bytes, flags: int, heard: Heard) -> int:
        """The number of a tracker; 0: the key or the flags are none."""
        if flags & ~15 or not (is_name(key) or (flags & Track.PREFIX and (not key or _NAME.issuperset(key)))):
            return 0
        self._last += 1
        tracker = self._trackers[self._last] = Tracker(key, Track(flags), heard)
        self._wanted.setdefault(tracker.place, {})[self._last] = tracker
        return self._last

    @property
    def has_room(self) -> bool:
        """One more tracker may be."""
        return len(self._trackers) < TRACKERS_ALL

    def untrack(self, number: int) -> None:
        tracker = self._trackers.pop(number, None)
        if tracker is not None:
            del self._wanted[tracker.place][number]
            if not self._wanted[tracker.place]:
                del self._wanted[tracker.place]

    # ---- changes

    def _store(self, key: bytes, value: Value) -> None:
        old = self._values.get(key)
        if old == value:
            return
        self._values[key] = value
        self._bytes += len(value.data) - (len(old.data) if old else 0)
        if old is None:
            insort(self._sorted, key)
        self._tell(key, Track.ADD if old is None else Track.MODIFY, value, old)

    def _remove(self, key: bytes) -> bool:
        old = self._values.pop(key, None)
        if old is None:
            return False
        self._bytes -= len(old.data)
        del self._sorted[bisect_left(self._sorted, key)]
        self._tell(key, Track.DELETE, None, old)
        return True

    def _tell(self, key: bytes, event: Track, new: Value | None, old: Value | None) -> None:
        wanted = dict(self._wanted.get((False, key), {}))
        for end in range(len(key) + 1):
            wanted |= self._wanted.get((True, key[:end]), {})
        for _, tracker in sorted(wanted.items()):
            if tracker.flags & event:
                tracker.heard(key, event, new, old)


def _valid(kind: int, data: bytes) -> Value | None:
    """A value as it is kept: a text has one zero, at its end."""
    if len(data) > VALUE_MAX:
        return None
    try:
        found = Type(kind)
    except ValueError:
        return None
    if found is STRING:
        text, _, rest = data.partition(b"\0")
        return None if rest else Value(found, text + b"\0")
    if found in _FORMATS and len(data) != struct.calcsize(_FORMATS[found]):
        return None
    return Value(found, data)
