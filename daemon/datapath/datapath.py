"""Thin typed face of the C data path (``dp.h``): packet sockets, client sockets and their queues, one descriptor for the loop.

One thread owns a ``DataPath``; calls release the GIL. Times are monotonic nanoseconds (``now_ns``). Negative errno values become
``OSError``. The results of ``take`` and ``group`` are copies and may be kept.

If a turn returns a request, serve it and turn again: the descriptor stays readable until then.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum, IntFlag
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias

from ...proto.core import Message
from ...proto.envelope import Drop
from ...proto.wire import STATIONS_MAX, Ordering
from ._datapath import ffi, lib
from .guarding import Sealing, guarded
from .overlapping import Overlapping, check
from .unattended import TIME_MAX, Unattended
from .vault import Derived, SecretKey, lent

CLIENTS_MAX: Final[int] = lib.DP_CLIENTS_MAX
LAST_WORDS_MAX: Final[int] = lib.DP_LAST_WORDS_MAX
"""Clients that have been cut off and for which the reason is kept."""
E_PROTOCOL: Final[int] = lib.DP_E_PROTOCOL
"""``Take.error``: the client sent a malformed frame; it has got an ERROR and is being closed."""
E_SLOW: Final[int] = lib.DP_E_SLOW
"""``Take.error``: more than ``queue_bytes_max`` waited for the client; it has got an ERROR and is being closed."""
E_MANY: Final[int] = lib.DP_E_MANY
"""``Take.error``: its user's programs took too much memory (``user_limits``); it has got an ERROR and is being closed."""
LINKS_MAX: Final[int] = lib.DP_LINKS_MAX
HEARD: Final = struct.Struct("=QQII")
"""``struct dp_heard``."""
TURN: Final = struct.Struct("=IIQQ")
"""``struct dp_turn_result``."""

Bytes: TypeAlias = bytes | bytearray | memoryview


class Want(IntFlag):
    """Why ``turn`` came back (``enum dp_want``)."""

    CONTROL = lib.DP_W_CONTROL
    GROUP = lib.DP_W_GROUP
    CLIENT = lib.DP_W_CLIENT
    DEADLINE = lib.DP_W_DEADLINE
    LINK = lib.DP_W_LINK
    TRUST = lib.DP_W_TRUST
    FENCED = lib.DP_W_FENCED
    MORE = lib.DP_W_MORE
    PAIR = lib.DP_W_PAIR
    SAID = lib.DP_W_SAID


class MaySend(IntEnum):
    """What becomes of a SEND on a handle (``enum dp_may``)."""

    NO = lib.DP_MAY_NOT
    """Refused with ``not-member``."""
    YES = lib.DP_MAY_SEND
    WAIT = lib.DP_MAY_WAIT
    """It waits at the head of its client's input, with everything after it, until the handle is bound again or dropped."""


class Spreading(IntEnum):
    """What first sendings of own DATA take (``enum dp_spreading``)."""

    ALL = lib.DP_SPREAD_ALL
    AUTO = lib.DP_SPREAD_AUTO
    """One link each while the station is busy, else all."""
    STRIPE = lib.DP_SPREAD_STRIPE
    SET = lib.DP_SPREAD_SET
    """All links of the set."""


class Heard(NamedTuple):
    """What has come of a station on a link (``struct dp_heard``)."""

    heard_ns: int
    """When a frame that it sends itself came last, 0: never."""
    frames: int
    """Of which it is the source."""
    largest: int
    """Bytes behind the Ethernet header of the largest PROBE of the round, 0: none has come."""
    round: int
    """Of its last PROBE."""


class Turn(NamedTuple):
    """Outcome of one turn. ``want``: ``Want`` bits; ``status``: ``zj_status`` bits of the last step; ``next_due``: when the
    timer fires if nothing else happens, ``TIME_MAX`` never."""

    want: int
    status: int
    now: int
    next_due: int


class LinkInfo(NamedTuple):
    """What ``link_open`` found."""

    ifindex: int
    mac: bytes
    mtu: int
    ring_bytes: int
    """Of receive ring; less than configured where the kernel is short of memory."""


class Take(NamedTuple):
    """A client's control frame or, with type 0, its end: ``error`` 0 closed, ``E_PROTOCOL``, ``E_SLOW``, or negative errno."""

    slot: int
    type: int
    flags: int
    handle: int
    error: int
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


class Lost(NamedTuple):
    """What the end of an instance costs a client (``struct dp_lost``).

    undecided: own messages not at preack; forgotten: messages held back for a level, which it will never get; unsafe: it got
    messages at level ordered that are not at preack."""

    undecided: int
    forgotten: int
    unsafe: bool


class ClientInfo(NamedTuple):
    """One client's numbers. Bytes: ``queued_bytes`` to be written to it, ``unsent_bytes`` read from it and not yet used.
    Messages: ``sent`` taken by the core, ``delivered`` queued for it, ``done`` own ones at ordered, preack, ack."""

    queued_bytes: int
    unsent_bytes: int
    sent: int
    delivered: int
    done: tuple[int, int, int]
    client: int
    closing: bool
    paused: bool
    throttled: bool


class CorePointers(Protocol):
    """What a ``DataPath`` needs of ``zenjun.proto.core.Core``: addresses of ``struct zj_api`` and of the core."""

    @property
    def api_pointer(self) -> int: ...

    @property
    def handle_pointer(self) -> int: ...


def now_ns() -> int:
    """CLOCK_MONOTONIC."""
    return int(lib.dp_now())


def link_filter(ethertype: int, cluster: int) -> list[tuple[int, int, int, int]]:
    """The classic BPF program of the packet socket as (code, jt, jf, k)."""
    count = lib.dp_filter(ethertype, cluster, ffi.NULL, 0)
    buffer = ffi.new("uint8_t[]", count * 8)
    lib.dp_filter(ethertype, cluster, buffer, count * 8)
    return [(code, jt, jf, k) for code, jt, jf, k in struct.iter_unpack("=HBBI", ffi.buffer(buffer))]


class DataPath(Overlapping, Unattended):
    """One cluster's data path at this station."""

    def __init__(
        self,
        core: CorePointers,
        *,
        station_index: int,
        ethertype: int,
        cluster: int,
        group_mac: bytes,
        links: int = 1,
        ring_bytes: int = 8 * 1024 * 1024,
        send_bytes: int = 0,
        message_max: int = 16 * 1024 * 1024,
        queue_bytes_max: int = 64 * 1024 * 1024,
        rest_ns: int = 50_000,
        linger_ns: int = 50_000,
        slice_ns: int = 5_000_000,
        stay_ns: int = 0,
        key: bytes | SecretKey = b"",
        sealing: Sealing | None = None,
        stations: int = STATIONS_MAX,
        frame_max: int = 65535,
    ) -> None:
        """core: must exist as long as this object, which alone uses it while ``turn`` runs.
        cluster: first word of every PDU; group_mac: six bytes with the multicast bit.
        links: 0..LINKS_MAX; frames are sent on each, and received from any.
        ring_bytes: receive ring of a link, 256 KiB .. 1 GiB; send_bytes: its socket's send buffer, 0 for a large one;
        message_max: at most 16 MiB; queue_bytes_max: per client, at most 1 GiB.
        rest_ns: sleep between batches under load, 0 never; linger_ns: wait inside a turn while news is expected;
        slice_ns: longest stay in one turn with work left; stay_ns: while events follow each other, time from its beginning for
        which a turn waits for the next one, 0 never.
        stations: n; frame_max: bytes of the largest PDU that is put together of PIECEs.
        key: KEY_BYTES, or none: then every frame sent has a seal under it, and frames without one are dropped and counted.
        sealing: then every frame sent proves its sender, and others are dropped and counted; instead of a key. No frame leaves
        before ``seal_under``.
        Raises OSError: EINVAL for values out of range, ENOMEM, EMFILE; ENOTSUP libcrypto lacks what sealing needs.
        """
        config = ffi.new("struct dp_config *")
        config.size = ffi.sizeof("struct dp_config")
        config.self = station_index
        config.ethertype = ethertype
        config.cluster = cluster
        config.links = links
        config.group_mac = group_mac
        config.ring_bytes = ring_bytes
        config.send_bytes = send_bytes
        config.message_max = message_max
        config.queue_bytes_max = queue_bytes_max
        config.rest_ns = rest_ns
        config.linger_ns = linger_ns
        config.slice_ns = slice_ns
        config.stay_ns = stay_ns
        config.stations, config.frame_max = stations, frame_max
        self._core = core
        self._former_core: CorePointers | None = None
        out = ffi.new("struct dp **")
        api = ffi.cast("struct zj_api *", core.api_pointer)
        with guarded(config, key, sealing) as self._key:
            check(lib.dp_create(config, api, ffi.cast("struct zj_core *", core.handle_pointer), out))
        super().__init__(out[0])
        self._result = ffi.new("struct dp_turn_result *")
        self._result_bytes = ffi.buffer(self._result)
        self._taken = ffi.new("struct dp_take *")
        self._message = ffi.new("struct dp_group *")
        self._info = ffi.new("struct dp_client_info *")
        self._slot = ffi.new("uint32_t *")
        self._heard = ffi.new("struct dp_heard[]", STATIONS_MAX)
        self._said = ffi.new("struct dp_said *")

    # ---- start and end

    def close(self) -> None:
        """Close the link and every client at once. The descriptor must be out of the loop. Harmless when repeated."""
        if self._dp is not None:
            lib.dp_destroy(self._dp)
            self._dp = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_dp", None) is not None:
            self.close()

    def fileno(self) -> int:
        """Readable when ``turn`` has work. Owned by this object."""
        return int(lib.dp_fd(self._dp))

    # ---- the turn

    def turn(self, deadline: int, until: int = TIME_MAX) -> Turn:
        """Receive, offer, step, send, deliver and write until idle or a reason to come back; at most about ``slice_ns``, or
        ``stay_ns`` if that is longer.

        deadline: of the engine, absolute; ``Want.DEADLINE`` is set once it, or the core's POLL timer, is over and
        the ring has been emptied. until: when it waits no longer for what comes next, absolute.
        """
        lib.dp_turn(self._dp, min(deadline, TIME_MAX), until, self._result)
        return Turn._make(TURN.unpack(self._result_bytes))

    def flush(self) -> None:
        """Send what the core has queued since the last turn."""
        lib.dp_flush(self._dp)

    # ---- links: by index, 0..links - 1

    def link_open(self, name: str, link: int = 0) -> LinkInfo:
        """Open the packet socket of a link on an interface (closing the former one); frames count from here.

        Raises OSError: EPERM without CAP_NET_RAW, ENODEV no such interface, ENETDOWN it is down, EAFNOSUPPORT not Ethernet,
        ENOMEM; EINVAL no such link.
        """
        info = ffi.new("struct dp_link_info *")
        check(lib.dp_link_open(self._dp, link, os.fsencode(name), info))
        return LinkInfo(info.ifindex, bytes(info.mac), info.mtu, info.ring_bytes)

    def link_close(self, link: int = 0) -> None:
        lib.dp_link_close(self._dp, link)

    def link_error(self, link: int = 0) -> int:
        """Negative errno that ended the link, 0 none; stays until the link is opened again or closed."""
        return int(lib.dp_link_error(self._dp, link))

    def link_counters(self, link: int = 0) -> dict[str, int]:
        """``struct dp_link_counters``, kernel drops up to now included. Raises OSError: EINVAL no such link."""
        counters = ffi.new("struct dp_link_counters *")
        check(lib.dp_link_counters(self._dp, link, counters))
        return _numbers(counters, LINK_COUNTERS)

    def links_send(self, pdu: Bytes) -> bool:
        """Send one PDU now on every link. False: none has taken it (no link, link dead, full queue, too long), which is counted;
        try again later."""
        return bool(lib.dp_links_send(self._dp, ffi.from_buffer(pdu), len(pdu)) == 0)

    # ---- sessions, of a data path with ``sealing``: named by their first four bytes

    def seal_under(self, session: bytes, key: bytes | Derived) -> None:
        """Seal with this key from the next frame on, from number 1. Raises OSError."""
        with lent([key]) as pointer:
            check(lib.dp_seal_under(self._dp, session[:4], pointer))

    def session_read(self, station: int, session: bytes, key: bytes | Derived, first: int) -> None:
        """Take frames of the station (1..n) sealed under the session, from this number on. OSError: ENOSPC two are read."""
        with lent([key]) as pointer:
            check(lib.dp_session_read(self._dp, station - 1, session[:4], pointer, first))

    def session_forget(self, station: int, session: bytes) -> None:
        """Raises OSError: ENOENT it is not read."""
        check(lib.dp_session_forget(self._dp, station - 1, session[:4]))

    def session_heard_ns(self, station: int, session: bytes) -> int:
        """When the last frame of the session came, or it was begun to be read; 0: it is not read."""
        return int(lib.dp_session_heard(self._dp, station - 1, session[:4]))

    @property
    def is_asleep(self) -> bool:
        """This process (for ``pause_ns``) or the machine did not run: nothing is sealed before ``seal_under``."""
        return bool(lib.dp_asleep(self._dp))

    def as_if_slept(self, ns: int) -> None:
        """For tests: as if the machine had been asleep for so long since it was last asked."""
        check(lib.dp_as_if_slept(self._dp, ns))

    @property
    def next_number(self) -> int:
        """Of the next frame that is sealed."""
        return int(lib.dp_next_number(self._dp))

    def seal_frame(self, pdu: Bytes) -> bytes:
        """The frame of a PDU as it would be sent, for tests. Raises OSError: EAGAIN nothing can be sealed now."""
        out = ffi.new("uint8_t[]", len(pdu) + 64)
        size = check(lib.dp_seal_frame(self._dp, ffi.from_buffer(pdu), len(pdu), out))
        return bytes(ffi.buffer(out, size))

    def open_frame(self, frame: Bytes, now: int) -> bytes | str:
        """The PDU of a received frame, or the counter of its refusal, for tests."""
        out, size = ffi.new("uint8_t[]", max(1, len(frame))), ffi.new("uint32_t *")
        refusal = lib.dp_open_frame(self._dp, ffi.from_buffer(frame), len(frame), now, out, size)
        if refusal:
            return next(name for name, at in REFUSALS.items() if at == refusal)
        return bytes(ffi.buffer(out, size[0]))

    def hello_send(self, body: bytes) -> bool:
        """Send a HELLO with this body now on every link. False: none has taken it."""
        return bool(lib.dp_hello_send(self._dp, body, len(body)) == 0)

    def hello_take(self) -> bytes | None:
        """Envelope and body of a HELLO that has come and whose tag is right: of each station up to three, that with the latest
        clock, the last one that returns a challenge of ours, and one of the others."""
        return self._hello(lib.dp_hello_take)

    def hello_keys(self, keys: Mapping[int, bytes] | Mapping[int, Derived]) -> None:
        """The keys of HELLO from now on, by id, 1 to KEYS_MAX of SESSION_KEY_BYTES. Raises OSError: EINVAL."""
        with lent(list(keys.values())) as pointer:
            check(lib.dp_hello_keys(self._dp, len(keys), pointer, list(keys)))

    def hello_rest(self, until_ns: int) -> None:
        """Until then HELLOs wait."""
        lib.dp_hello_rest(self._dp, until_ns)

    def unread(self) -> list[int]:
        """Stations (1..) of which frames of no known session have come, each once in 640 ms; cleared."""
        bits = int(lib.dp_unread(self._dp))
        return [i + 1 for i in range(bits.bit_length()) if bits >> i & 1]

    def has_written(self, since_ns: int) -> bool:
        """This process has waited for its disk since then: that is no pause. False: it took too long, or it was a pause."""
        return bool(lib.dp_has_written(self._dp, since_ns))

    def hello_strange(self) -> bytes | None:
        """Envelope and body of the last HELLO whose tag is wrong, once."""
        return self._hello(lib.dp_hello_strange)

    def _hello(self, take: Any) -> bytes | None:
        out = ffi.new("struct dp_hello *")
        return bytes(ffi.buffer(out.data, out.size)) if take(self._dp, out) == 1 else None

    # ---- several links

    def links_use(self, how: Spreading, links: Iterable[int]) -> None:
        """Which of these links (indices) first sendings of own DATA take; what else is sent takes all. Ends all doubts."""
        check(lib.dp_links_use(self._dp, int(how), sum(1 << link for link in links)))

    def link_weight(self, link: int, mbit: int) -> None:
        """The rate by which frames are spread; 0: as the others that have none."""
        check(lib.dp_link_weight(self._dp, link, mbit))

    def links_doubtful(self) -> list[int]:
        """Links of which many frames in a row had to be sent again. While there is one, nothing is spread."""
        bits = int(lib.dp_links_doubtful(self._dp))
        return [link for link in range(LINKS_MAX) if bits >> link & 1]

    def links_heard(self, link: int) -> list[Heard]:
        """What has come on a link, by station from 1. Raises OSError: EINVAL no such link."""
        check(lib.dp_links_heard(self._dp, link, self._heard))
        return [Heard(*row) for row in HEARD.iter_unpack(ffi.buffer(self._heard))]

    def links_say(self, link: int, body: bytes) -> bool:
        """Send LINKS with this body on one link. False: it has not taken it."""
        return bool(lib.dp_links_say(self._dp, link, body, len(body)) == 0)

    def links_said(self) -> tuple[int, int, bytes] | None:
        """A LINKS that has come: station, link (index) and body; the last one of each station on each link."""
        said = self._said
        if lib.dp_links_said(self._dp, said) != 1:
            return None
        return int(said.tx) + 1, int(said.link), bytes(ffi.buffer(said.data, said.size))

    # ---- frame sizes

    def probe(self, link: int, body: bytes, size: int) -> bool:
        """Send a PROBE of this size, bytes behind the Ethernet header, on a link; body: what it begins with. False: it has not
        taken it."""
        return bool(lib.dp_probe(self._dp, link, body, len(body), size) == 0)

    def links_asked(self) -> list[int]:
        """Links on which a PROBE that wants an answer has come since the last call."""
        bits = int(lib.dp_links_asked(self._dp))
        return [link for link in range(LINKS_MAX) if bits >> link & 1]

    def limit_size(self, limit: int, base: int) -> None:
        """PDUs of more than ``limit`` bytes are sent in PIECEs, and none is built. base: what passes in any case. While an
        interface has refused a larger one, the limit is base. Raises OSError: EINVAL base is the larger one."""
        check(lib.dp_limit_size(self._dp, limit, base))

    def links_large(self) -> tuple[list[int], int]:
        """Links of which the interface has refused a PDU above the base since the last call, and how many such PDUs the other
        stations have asked for again after they had been sent again."""
        bits = int(lib.dp_links_large(self._dp, self._slot))
        return [link for link in range(LINKS_MAX) if bits >> link & 1], int(self._slot[0])

    # ---- clients

    def client_add(self, fd: int, number: int) -> int:
        """Take a connected stream socket over; returns its slot. ``fd`` belongs to the data path from here on.

        number: not in use, and not used lately: its former owner's messages may still be under way.
        Raises OSError, the descriptor staying the caller's: EUSERS no free slot, EEXIST number in use, ENOMEM.
        """
        check(lib.dp_client_add(self._dp, fd, number, self._slot))
        return int(self._slot[0])

    def client_bound(self, slot: int, user: int) -> None:
        """``user_limits`` and ``user_rates`` hold for this client, together with the others of its user."""
        check(lib.dp_client_bound(self._dp, slot, user))

    def user_limits(self, queue_bytes: int, input_bytes: int, queue_bytes_users: int = 0) -> None:
        """Memory for the queues, and unfinished input, of one user's programs, and for all users' queues; 0: no limit."""
        lib.dp_user_limits(self._dp, queue_bytes, input_bytes, queue_bytes_users)

    def user_rates(self, messages: int, size: int) -> None:
        """Messages, and bytes of them, that one user's programs may send in a second; 0: no limit."""
        lib.dp_user_rates(self._dp, messages, size)

    def client_remove(self, slot: int, *, hard: bool, linger_ns: int = 0) -> None:
        """Give a slot up. hard: close now; otherwise write out what is queued and released, at most ``linger_ns`` long."""
        check(lib.dp_client_remove(self._dp, slot, hard, linger_ns))

    def client_cut_off(self, slot: int, keep_ns: int) -> None:
        """Give up the slot of a client that is cut off. What is queued, its ERROR last, waits for it for at most ``keep_ns``; of
        more than LAST_WORDS_MAX such clients, or if they have together more queued than one client may have, the oldest goes."""
        check(lib.dp_client_cut_off(self._dp, slot, keep_ns))

    def client_put(
        self,
        slot: int,
        type: int,
        *,
        flags: int = 0,
        handle: int = 0,
        body: Bytes = b"",
        position: int = 0,
        level: int = 0,
        urgent: bool = False,
    ) -> bool:
        """Queue a frame after the queued ones, held until ``position`` has passed at ``level``; urgent: before all that are not
        partly written. False: the client is being closed, or takes no more."""
        code = lib.dp_client_put(self._dp, slot, type, flags, handle, ffi.from_buffer(body), len(body), position, level, urgent)
        if code in _CLIENT_GONE:
            return False
        check(code)
        return True

    def handle(
        self,
        slot: int,
        handle: int,
        group: int,
        *,
        may_send: MaySend | bool,
        ordering: Ordering = Ordering.TOTAL,
        direct: bool = False,
    ) -> None:
        """SENDs on the handle go to the group from here on, delivered in this ordering. direct, for orders abcast and token:
        without asking ``take`` first, while ``multi_drive`` says so."""
        check(lib.dp_handle(self._dp, slot, handle, group, int(may_send), ordering, direct))

    def handle_drop(self, slot: int, handle: int) -> None:
        """SENDs on the handle are refused from here on. Raises OSError: ENOENT it was not bound."""
        check(lib.dp_handle_drop(self._dp, slot, handle))

    def join(
        self, slot: int, handle: int, group: int, level: int, no_self: bool = False, ordering: Ordering = Ordering.TOTAL
    ) -> None:
        """Deliver the group's messages from this place of the order on. ``ordering`` FIFO: those in FIFO order as well, on
        acceptance; ABCAST, TOKEN: those of ``multi_deliver``. Raises OSError: EEXIST already joined, EINVAL a level that the
        order has not."""
        check(lib.dp_join(self._dp, slot, handle, group, level, no_self, ordering))

    def leave(self, slot: int, group: int) -> None:
        """Deliver no more of the group from this place on. Raises OSError: ENOENT not joined."""
        check(lib.dp_leave(self._dp, slot, group))

    def need_ack(self, group: int, yes: bool) -> None:
        """Whether messages to the group need level ack (a program takes delivery there)."""
        check(lib.dp_need_ack(self._dp, group, yes))

    def need_preack(self, group: int, yes: bool) -> None:
        """Whether somebody waits for level preack of messages to the group, which is of order abcast or token."""
        check(lib.dp_need_preack(self._dp, group, yes))

    def hold(self, yes: bool) -> None:
        """Take no new messages from clients; ``send``'s still go."""
        lib.dp_hold(self._dp, yes)

    def unsent(self) -> int:
        """Messages read from clients, or given to ``send``, that the core has not taken."""
        return int(lib.dp_unsent(self._dp))

    def send(self, client: int, group: int, type: int, data: Bytes, *, need_ack: bool = True) -> bool:
        """Queue a message of the daemon's own, ahead of what clients send later. False: 1 MiB is queued already.

        Raises OSError: EMSGSIZE larger than message_max.
        """
        code = lib.dp_send(self._dp, client, group, type, need_ack, ffi.from_buffer(data), len(data))
        if code == _FULL:
            return False
        check(code)
        return True

    def set_core(self, core: CorePointers, stations: int) -> None:
        """Between two instances: turn this core, of so many stations, from now on; then ``reset``."""
        lib.dp_core(self._dp, ffi.cast("struct zj_core *", core.handle_pointer), stations)
        self._core, self._former_core = core, self._core  # what is held back may be the former one's until ``reset``

    # ---- the end of an instance, and what Python takes

    def lost(self) -> dict[int, Lost]:
        """What ``reset`` would cost each client now, by slot; clients without a cost are left out."""
        return self._lost(lib.dp_lost)

    def reset(self) -> dict[int, Lost]:
        """An instance has ended: drop what was held for a level, and what ``send`` was given and the core has not taken. Returns
        what that costs each client, as ``lost``."""
        return self._lost(lib.dp_reset)

    def _lost(self, function: Any) -> dict[int, Lost]:
        table = ffi.new("struct dp_lost[]", CLIENTS_MAX)
        check(function(self._dp, table))
        rows = enumerate(struct.iter_unpack("=QQII", ffi.buffer(table)))
        return {slot: Lost(row[0], row[1], row[2] != 0) for slot, row in rows if any(row)}

    def take(self) -> Take | None:
        """The next control frame or end of a client."""
        t = self._taken
        if lib.dp_take(self._dp, t) != 1:
            return None
        data = bytes(ffi.buffer(t.data, t.size)) if t.size else b""
        return Take(t.slot, t.type, t.flags, t.handle, t.error, data)

    def group(self) -> Message | None:
        """The message at which delivery has stopped; ``group_done`` continues it."""
        m = self._message
        if lib.dp_group(self._dp, m) != 1:
            return None
        data = bytes(ffi.buffer(m.data, m.size)) if m.size else b""
        return Message(data, m.clock, m.position, m.group, m.client, m.index, m.src, m.type, view_src=m.view_src)

    def group_done(self) -> None:
        lib.dp_group_done(self._dp)

    # ---- numbers

    def client_info(self, slot: int) -> ClientInfo:
        """Raises OSError: ENOENT no such slot."""
        i = self._info
        check(lib.dp_client_info(self._dp, slot, i))
        done = (i.done[0], i.done[1], i.done[2])
        return ClientInfo(
            i.queued_bytes, i.unsent_bytes, i.sent, i.delivered, done, i.client, *map(bool, (i.closing, i.paused, i.throttled))
        )

    def clients_left(self) -> int:
        """Slots in use, also those given up that are still being written out, but not those of clients cut off."""
        return int(lib.dp_clients(self._dp))

    def counters(self) -> dict[str, int]:
        """``struct dp_counters``, kernel drops up to now included; of all links together."""
        counters = ffi.new("struct dp_counters *")
        lib.dp_counters(self._dp, counters)
        return _numbers(counters, COUNTERS)

    def memory(self) -> int:
        """Bytes reserved: rings, input buffers, queues."""
        return int(lib.dp_memory(self._dp))


REFUSALS: Final = {
    "rx_unsealed": int(lib.DP_R_SEAL),
    **{f"rx_{drop}": int(getattr(lib, f"DP_R_{drop.name}")) for drop in Drop},
    "rx_hello": int(lib.DP_R_HELLO),
    "rx_links": int(lib.DP_R_LINKS),
    "rx_probe": int(lib.DP_R_PROBE),
    "rx_piece": int(lib.DP_R_PIECE),
}
"""Counters of frames that the guard has not passed on, each with its place in ``rx_refused``."""


def _names(struct_name: str) -> tuple[str, ...]:
    return tuple(name for name, _ in ffi.typeof(struct_name).fields if name != "rx_refused")


def _numbers(counters: Any, names: tuple[str, ...]) -> dict[str, int]:
    refused = {name: int(counters.rx_refused[at]) for name, at in REFUSALS.items()}
    return {name: int(getattr(counters, name)) for name in names} | refused


COUNTERS: Final = _names("struct dp_counters")
LINK_COUNTERS: Final = _names("struct dp_link_counters")
_CLIENT_GONE: Final = frozenset({-errno.EPIPE, -errno.ENOBUFS})
_FULL: Final = -errno.ENOBUFS
