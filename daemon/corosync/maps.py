"""The maps of libcmap: typed keys, who may change them, and who hears of changes. No I/O.

Names, types, bounds and the list of read-only keys are corosync's (cmap_keys.7, cmap_overview.3).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple, TypeAlias

from ...proto.service.corosync.results import Code

KEY_MIN, KEY_MAX = 3, 255
VALUE_MAX: Final = 16 << 10
KEYS_MAX: Final = 100_000
"""Of a map: what programs set is bounded."""
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
        self._sorted: list[bytes] | None = None
        self._trackers: dict[int, Tracker] = {}
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
        """Keys that begin so, sorted; as of the first step."""
        if self._sorted is None:
            self._sorted = sorted(self._values)
        return iter([key for key in self._sorted if key.startswith(prefix)])

    # ---- what programs do

    def set(self, key: bytes, kind: int, data: bytes) -> Code:
        if not is_name(key):
            return Code.NAME_TOO_LONG
        if is_read_only(key):
            return Code.ACCESS
        value = _valid(kind, data)
        if value is None:
            return Code.INVALID_PARAM
        if key not in self._values and len(self._values) >= KEYS_MAX:
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
        self._trackers[self._last] = Tracker(key, Track(flags), heard)
        return self._last

    def untrack(self, number: int) -> None:
        self._trackers.pop(number, None)

    # ---- changes

    def _store(self, key: bytes, value: Value) -> None:
        old = self._values.get(key)
        if old == value:
            return
        self._values[key] = value
        if old is None:
            self._sorted = None
        self._tell(key, Track.ADD if old is None else Track.MODIFY, value, old)

    def _remove(self, key: bytes) -> bool:
        old = self._values.pop(key, None)
        if old is None:
            return False
        self._sorted = None
        self._tell(key, Track.DELETE, None, old)
        return True

    def _tell(self, key: bytes, event: Track, new: Value | None, old: Value | None) -> None:
        for tracker in list(self._trackers.values()):
            is_his = key.startswith(tracker.key) if tracker.flags & Track.PREFIX else key == tracker.key
            if is_his and tracker.flags & event:
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
