"""The part of the data path for groups that overlap (orders abcast and token): links of two stations, messages, level preack."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ...proto.core._core import ffi as core_ffi
from ...proto.core._core import lib as core_lib
from ._datapath import ffi, lib

CLIENTS_MAX: Final[int] = lib.DP_CLIENTS_MAX
MULTI_LEVEL: Final[int] = lib.DP_MULTI_LEVEL
"""Level of ``client_put`` for what waits for level preack of order abcast; that of order token is one more."""


def check(code: int) -> int:
    """A result of the data path; negative: OSError."""
    if code < 0:
        raise OSError(-code, os.strerror(-code))
    return code


class ForeignRecord(NamedTuple):
    """A record that a link has brought, and that is not of the machine's era."""

    source: int
    incarnation: int
    type: int
    group: int
    client: int
    data: bytes


class Overlapping:
    """Orders by number: 0 abcast, 1 token. Eras as one integer (``era_bytes`` of proto/multicast/codec.py)."""

    def __init__(self, dp: Any) -> None:
        """dp: ``struct dp *``."""
        self._dp: Any = dp
        self._pairs = ffi.new("uint64_t[]", 2)
        self._count = ffi.new("uint32_t *")
        self._record = ffi.new("struct dp_record *")
        self._multi_message = ffi.new("struct dp_multi_message *")
        self._multi_api = ffi.cast("struct zj_multi_api *", int(core_ffi.cast("uintptr_t", core_lib.zj_multi_api())))

    # ---- cores of two stations, and what is sent by them

    def pair(self, station: int, core_pointer: int | None) -> None:
        """Frames with flag PAIR of this station (1..n) go to this core, whose timers run in ``turn``; None: to none. The core
        must exist until then."""
        core = ffi.NULL if core_pointer is None else ffi.cast("struct zj_core *", core_pointer)
        check(lib.dp_pair(self._dp, station, core))

    def pair_records(self, station: int, queue_pointer: int, index: int, incarnation: int) -> None:
        """The link's records wait in this queue (``SendQueue``), which must exist as long as its core; index: of the other end
        in the core."""
        check(lib.dp_pair_records(self._dp, station, ffi.cast("struct zj_sendq *", queue_pointer), index, incarnation))

    def pair_malformed(self, station: int) -> int:
        """Messages of the link that were no records, of those that the data path has taken."""
        return int(lib.dp_pair_malformed(self._dp, station))

    def pair_waits(self, station: int, yes: bool) -> None:
        """Room in the core's window is news."""
        check(lib.dp_pair_waits(self._dp, station, yes))

    def pairs(self) -> tuple[int, int]:
        """Bitmaps (bit k: station k + 1), cleared: cores with news, and stations whose frames came while there was no core."""
        lib.dp_pairs(self._dp, self._pairs, self._pairs + 1)
        return self._pairs[0], self._pairs[1]

    def client_hold(self, slot: int, yes: bool) -> None:
        """Read nothing more from this client, or go on."""
        check(lib.dp_client_hold(self._dp, slot, yes))

    def own_sent(self, slot: int, level: int, notify: bool) -> int:
        """A message that ``take`` has given has been sent. Returns its number among the client's messages, from 1."""
        check(lib.dp_own_sent(self._dp, slot, level, notify, self._pairs))
        return int(self._pairs[0])

    def own_done(self, slot: int, number: int, level: int) -> None:
        """It has reached this level and those below. Raises OSError: ENOENT no such message."""
        check(lib.dp_own_done(self._dp, slot, number, level))

    def refuse(self, slot: int, code: str, text: str, *, handle: int) -> None:
        """Refuse a message that ``take`` has given."""
        check(lib.dp_refuse(self._dp, slot, code.encode(), text.encode(), handle))

    # ---- the machine

    def multi_drive(self, machine_pointer: int | None, *, sends: bool, bytes_max: int) -> bool:
        """Give this machine (``FastStation.pointer``) what links bring, and carry out what comes of it, from now on; None: none.
        sends: programs' messages as well, on handles that are ``direct``; else room for one is news. bytes_max: of one message,
        and of all that are not finished. Returns whether it is driven."""
        machine = ffi.NULL if machine_pointer is None else ffi.cast("struct zj_multi *", machine_pointer)
        check(lib.dp_multi_drive(self._dp, self._multi_api, machine, sends, bytes_max))
        return machine_pointer is not None

    def multi_go(self) -> int:
        """Take what links have brought, apply the rules and carry out what comes of it, now. Returns the stations (bit k: station
        k + 1) for which there are records, and no link."""
        return int(lib.dp_multi_go(self._dp))

    def multi_foreign(self) -> ForeignRecord | None:
        """The next record that is not of the machine's era."""
        r = self._record
        if lib.dp_multi_foreign(self._dp, r) != 1:
            return None
        return ForeignRecord(r.source, r.incarnation, r.type, r.group, r.client, bytes(ffi.buffer(r.data, r.size)))

    def multi_deliver(
        self, order: int, origin: int, client: int, number: int, time: int, groups: Sequence[int], content: bytes
    ) -> None:
        """A message is delivered: to all programs that have joined one of the groups, each on its lowest handle."""
        m, data = self._multi_message, ffi.from_buffer(content)
        m.order, m.origin, m.client, m.number, m.time = order, origin, client, number, time
        m.count, m.size, m.data = len(groups), len(content), data
        m.groups[0 : len(groups)] = groups
        check(lib.dp_multi_deliver(self._dp, m))

    def multi_release(self, order: int) -> None:
        """The next one of this order has reached level preack. Raises OSError: EINVAL none has been delivered."""
        check(lib.dp_multi_release(self._dp, order))

    def multi_view(self, order: int, era: int) -> int:
        """The views of an era are at this place of an order. Returns their position, at level MULTI_LEVEL + order."""
        return int(lib.dp_multi_view(self._dp, order, era))

    def multi_settled(self, era: int) -> None:
        """All before this era is closed."""
        lib.dp_multi_settled(self._dp, era)

    def multi_own(self, slot: int | None, number: int, size: int, level: int, notify: bool) -> None:
        """The machine has given this number to a message of a client, None: of one that has gone."""
        check(lib.dp_multi_own(self._dp, CLIENTS_MAX if slot is None else slot, number, size, level, notify))

    def multi_finished(self, number: int) -> None:
        """It has reached level preack."""
        lib.dp_multi_finished(self._dp, number)

    def multi_unfinished(self) -> tuple[int, int]:
        """Messages of programs here that are not finished, and their bytes."""
        lib.dp_multi_unfinished(self._dp, self._count, self._pairs)
        return int(self._count[0]), int(self._pairs[0])

    def multi_goes_first(self, groups: Sequence[int]) -> bool:
        """Whether a message that waits in the data path for room goes before one to these groups."""
        return bool(lib.dp_multi_goes_first(self._dp, len(groups), list(groups)))

    def multi_clear(self) -> None:
        """Forget messages, places, and who is in which of these groups."""
        lib.dp_multi_clear(self._dp)
