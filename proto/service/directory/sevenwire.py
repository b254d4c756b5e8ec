"""Messages of the seven steps (group ``zenjun.dir.seven``): encoding and decoding.

A message is a fixed header, and for DATA the bytes that are to be committed. ``decode`` never raises: it gives None for what
``encode`` did not make.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from .entries import NOWHERE, Place, Who

MAGIC: Final = b"Z7"
FORMAT: Final = 1
NOBODY: Final[Who] = (0, 0)
_HEADER: Final = struct.Struct(">2sBBQHHHQQHHIHQQBQHHQHH")
_STATION_MAX: Final = 64
_COPY: Final = 1
_DURABLE: Final = 2
_ACTIVE: Final = 4


class Kind(IntEnum):
    """The steps of an attempt that are messages."""

    REQ = 1
    """② The owner asks for the lock of each manager."""
    GRANT = 2
    """③ A manager gives its lock."""
    RELEASE = 3
    """The owner gives all locks back, and will ask again."""
    DATA = 4
    """④ What is to be committed."""
    DONE = 5
    """⑤ A manager has it."""
    CONF = 6
    """⑥ All have it: it is committed."""
    HERE = 7
    """The sender has come into the group and reads what is sent from here on."""


class Asking(NamedTuple):
    """One asking of an attempt: the owner, the place of the view by which it joined the group, and the number of the asking since
    then."""

    owner: Who
    life: Place
    number: int


class Message(NamedTuple):
    """A message of the seven steps.

    life:    place of the view by which its sender joined the group.
    asking:  the asking that it belongs to. In all but GRANT and DONE the sender's own; in HERE its number is 0.
    to:      its receiver, ``NOBODY``: all.
    age:     REQ: counter of the attempt's age.
    copying: REQ, DATA: the attempt is COPY, which changes no row of names.
    durable: DATA: it has to be on disk before DONE. DONE: it is.
    active:  GRANT, DONE: the sender's copy is the group's.
    base:    DATA: place of the state that it changes. GRANT: place of the sender's state.
    place:   DATA: place of the changed state.
    """

    kind: Kind
    life: Place
    asking: Asking
    to: Who = NOBODY
    age: int = 0
    copying: bool = False
    durable: bool = False
    active: bool = False
    base: Place = NOWHERE
    place: Place = NOWHERE
    data: bytes = b""


def encode(m: Message) -> bytes:
    """The bytes of a message."""
    flags = _COPY * m.copying | _DURABLE * m.durable | _ACTIVE * m.active
    a = m.asking
    head = _HEADER.pack(
        MAGIC, FORMAT, m.kind, *m.life, a.owner[0], a.owner[1], *a.life, a.number, *m.to, m.age, flags, *m.base, *m.place
    )  # fmt: skip
    return head + m.data


def decode(data: bytes) -> Message | None:
    """The message of these bytes; None: no correct station has sent them."""
    if len(data) < _HEADER.size:
        return None
    magic, form, kind, *n = _HEADER.unpack_from(data)
    if magic != MAGIC or form != FORMAT or not Kind.REQ <= kind <= Kind.HERE:
        return None
    flags = n[12]
    message = Message(
        Kind(kind),
        (n[0], n[1], n[2]),
        Asking((n[3], n[4]), (n[5], n[6], n[7]), n[8]),
        (n[9], n[10]),
        n[11],
        bool(flags & _COPY),
        bool(flags & _DURABLE),
        bool(flags & _ACTIVE),
        (n[13], n[14], n[15]),
        (n[16], n[17], n[18]),
        data[_HEADER.size :],
    )
    if not 1 <= n[3] <= _STATION_MAX or (message.data and kind != Kind.DATA) or encode(message) != data:
        return None
    return message
