"""Requests at random to a stand-in: ``python -m tests.daemon.corosync_fuzz SEED COUNT``. Ends with 0 if it still serves all.

A message has the number of a request or another one, a header that says its length, the fields of the table with numbers at the
edges or bytes at random, and sometimes is cut. Connections are ended without a word now and then.
"""

from __future__ import annotations

import random
import struct
import sys
from typing import Any, Final

from cffi import FFI
from zenjun.daemon.corosync.ipc import SERVICES
from zenjun.daemon.corosync.table import COUNTED, REQUEST_HEAD, REQUESTS, Layout, Type

from .corosync_ipc_rig import CLIENT

EDGES: Final = (0, 1, 2, 3, 7, 16, 127, 128, 129, 255, 256, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63, 2**64 - 1)
BUFFER: Final = 1 << 20
LARGE: Final = 200_000
WIDTHS: Final = {Type.U8: 1, Type.I32: 4, Type.U32: 4, Type.U64: 8}
ENDS_IT: Final = frozenset({("cfg", 2), ("cfg", 3)})
"""A node killed, a shutdown: an order to end, which the stand-in obeys."""


def field(rng: random.Random, kind: Type) -> bytes:
    if kind in WIDTHS:
        return (rng.choice(EDGES) % (1 << 8 * WIDTHS[kind])).to_bytes(WIDTHS[kind], "little")
    size = struct.calcsize(kind.value)
    body = bytearray(rng.choice((bytes(size), rng.randbytes(size), b"my.key".ljust(size, b"\0"), b"a" * size)))
    if kind in COUNTED:
        body[: 8 if kind is Type.KEY else 4] = struct.pack("<H6x" if kind is Type.KEY else "<I", rng.choice(EDGES) & 0xFFFF)
    return bytes(body[:size])


def message(rng: random.Random, layout: Layout) -> bytes:
    out = bytearray(layout.size + rng.choice((0, 0, 1, 40, 5000, LARGE if rng.random() < 0.02 else 8)))
    for each in layout.fields:
        value = field(rng, each.type)
        out[each.offset : each.offset + len(value)] = value
    number = layout.id if rng.random() < 0.9 else rng.choice((-1, 9, 10, 11, 13, 99, 0x7FFFFFFF))
    if (layout.service, number) in ENDS_IT or number in (-3,):
        number = 99
    size = len(out) if rng.random() < 0.95 else rng.choice((0, 15, len(out) + 1, 0x7FFFFFFF, -1))
    struct.pack_into("<i4xi", out, 0, number, size)
    return bytes(out[: rng.randrange(REQUEST_HEAD, len(out) + 1)] if rng.random() < 0.1 else out)


def main(seed: int, count: int) -> int:
    rng, ffi = random.Random(seed), library()
    ffi.cdef(CLIENT)
    qb = ffi.dlopen("libqb.so.100")
    connections: dict[str, list[Any]] = {name: [] for name in SERVICES}
    buffer = ffi.new("char[]", BUFFER)

    def connect(name: str) -> Any:
        c = qb.qb_ipcc_connect(name.encode(), BUFFER)
        if c == ffi.NULL:
            sys.exit(f"seed {seed}: the stand-in does not serve {name} any more")
        return c

    for _ in range(count):
        layout = rng.choice(REQUESTS)
        mine = connections[layout.service]
        if len(mine) < 3:
            mine.append(connect(layout.service))
        c = rng.choice(mine)
        data = message(rng, layout)
        sent = qb.qb_ipcc_send(c, data, len(data))
        got = qb.qb_ipcc_recv(c, buffer, BUFFER, 0)
        if rng.random() < 0.5:
            qb.qb_ipcc_event_recv(c, buffer, BUFFER, 0)
        if rng.random() < 0.02 or (sent < 0 and sent != -11) or (got < 0 and got not in (-11, -110)):
            mine.remove(c)
            qb.qb_ipcc_disconnect(c)
    for mine in connections.values():
        for c in mine:
            qb.qb_ipcc_disconnect(c)
    return 0


def library() -> Any:
    return FFI()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
