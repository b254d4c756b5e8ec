"""The C core (``zj.h``) as one typed class: no protocol of its own.

Stations are indices 0..n-1 here, as in C. Times are monotonic nanoseconds that never decrease. One thread owns a ``Core``.
Messages and frames cross in batches: one call fills a buffer that lives as long as the object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ..errors import InvariantError, UsageError, invariant
from ..wire import Ordering
from ._core import ffi, lib
from .records import Commit, Control, Drop, Fence, Message, Peer, Positions, Start, Vote

API_VERSION: Final[int] = lib.ZJ_API_VERSION
DELIVER_BYTES: Final = 256 * 1024
DELIVER_MAX: Final = 1024
TX_BYTES: Final = 256 * 1024
TX_MAX: Final = 256
NEVER: Final = 2**64 - 1
MESSAGE: Final = struct.Struct("=QQIIIHHBBBB4x")
"""``struct zj_face_message``; its size is asserted there and below."""
PEER: Final = struct.Struct("=9Q4I6s????6xQQQII")
"""``struct zj_peer``, for one read instead of one per field; its size and fields are asserted below."""


def _check_build() -> None:
    """The module was built from another state of the sources, or the struct format here does not fit: better now than in a
    frame."""
    api = lib.zj_api()
    if api.version != API_VERSION or api.size != ffi.sizeof("struct zj_api"):
        raise InvariantError("proto/core/_core does not fit its sources: build it again (python -m tools.cmodules core)")
    if ffi.sizeof("struct zj_face_message") != MESSAGE.size:
        raise InvariantError("struct zj_face_message does not fit proto/core/core.py")
    fields = tuple(name for name, _ in ffi.typeof("struct zj_peer").fields if name != "pad")
    if ffi.sizeof("struct zj_peer") != PEER.size or fields != Peer._fields:
        raise InvariantError("struct zj_peer does not fit proto/core/core.py")


_check_build()
DROP_NAMES: Final[tuple[str, ...]] = tuple(ffi.string(lib.zj_drop_name(d)).decode() for d in range(lib.ZJ_DROP_COUNT))
_COUNTERS: Final[tuple[str, ...]] = tuple(name for name, _ in ffi.typeof("struct zj_counters").fields if name != "drops")
_POSITIONS: Final = struct.Struct("=3Q")
# What is called in every turn, looked up once.
_is_open: Final = lib.zj_is_open
_flushing: Final = lib.zj_flushing
_flushed: Final = lib.zj_flushed
_rx: Final = lib.zj_rx
_step: Final = lib.zj_step
_tx: Final = lib.zj_face_tx
_deliver: Final = lib.zj_face_deliver
_get_positions: Final = lib.zj_positions
_next_control: Final = lib.zj_control
_next_vote: Final = lib.zj_proposal
_nak_due: Final = lib.zj_nak_due
_poll_due: Final = lib.zj_poll_due
_confirm_due: Final = lib.zj_confirm_due
_silence_due: Final = lib.zj_silence_due
_get_peer: Final = lib.zj_peer
_starves: Final = lib.zj_starves
_unpack: Final = ffi.unpack


def _create(fields: dict[str, Any]) -> Any:
    """A ``zj_core`` that goes with its last reference. UsageError, MemoryError."""
    try:
        config = ffi.new("struct zj_config *", {"size": ffi.sizeof("struct zj_config"), **fields})
    except OverflowError as error:
        raise UsageError(f"core: {error}") from None
    out = ffi.new("zj_core **")
    result = lib.zj_create(config, out)
    if result == -2:
        raise MemoryError("core: cannot reserve its buffers")
    if result != 0:
        raise UsageError(f"core: a value is out of bounds: {fields}")
    return ffi.gc(out[0], lib.zj_destroy, lib.zj_memory(out[0]))


class Core:
    """One cluster's streams, order and levels at one station (``zj_core``). All memory is reserved in the constructor, but for
    messages of several PDUs (``assembling_bytes``)."""

    def __init__(
        self,
        *,
        stations: int,
        self_index: int,
        cluster: int,
        window: int,
        slots: int,
        frame_max: int,
        message_max: int,
        confirm_delay_ns: int,
        nak_delay_ns: int,
        nak_retry_ns: int,
        nak_retry_max_ns: int,
        poll_delay_ns: int,
        poll_delay_max_ns: int,
        retransmit_gap_ns: int,
        first_seq: int = 0,
        faults: int = 0,
        seed: int = 0,
        medium: int = 0,
        answer_each: int = 0,
        own_timeout_ns: int = 20_000_000,
        pair: tuple[int, int] = (0, 0),
        direct: int = 0,
        nak_even: int = 0,
        poll_own: int = 0,
        tagged: bool = False,
    ) -> None:
        """Fields of ``struct zj_config`` (``self_index`` is its ``self``), same bounds. UsageError if one is out of bounds,
        MemoryError."""
        fields = {
            "stations": stations,
            "cluster": cluster,
            "window": window,
            "slots": slots,
            "frame_max": frame_max,
            "message_max": message_max,
            "confirm_delay_ns": confirm_delay_ns,
            "nak_delay_ns": nak_delay_ns,
            "nak_retry_ns": nak_retry_ns,
            "nak_retry_max_ns": nak_retry_max_ns,
            "poll_delay_ns": poll_delay_ns,
            "poll_delay_max_ns": poll_delay_max_ns,
            "retransmit_gap_ns": retransmit_gap_ns,
            "first_seq": first_seq,
            "faults": faults,
            "seed": seed,
            "medium": medium,
            "answer_each": answer_each,
            "own_timeout_ns": own_timeout_ns,
            "direct": direct,
            "nak_even": nak_even,
            "poll_own": poll_own,
            "tagged": tagged,
        }
        self.stations = stations
        self.index = self_index
        self._core = _create(fields | {"self": self_index, "pair": list(pair)})
        self._now = 0
        self._allocate()

    def _allocate(self) -> None:
        """The buffers that calls fill."""
        self._offer: Any = ffi.new("struct zj_offer *")
        self._partial: tuple[int, int, int, Ordering, bytes] | None = None
        self._backlog: list[Message] = []
        self._deliver_buffer: Any = ffi.new("uint8_t[]", DELIVER_BYTES)
        self._deliver_bytes = ffi.buffer(self._deliver_buffer)
        self._records: Any = ffi.new("struct zj_face_message[]", DELIVER_MAX)
        self._record_bytes = ffi.buffer(self._records)
        self._large: Any = ffi.new("struct zj_message *")
        self._vector: Any = ffi.new("uint32_t[]", self.stations)
        self._tx_buffer: Any = ffi.new("uint8_t[]", TX_BYTES)
        self._tx_bytes = ffi.buffer(self._tx_buffer)
        self._tx_sizes: Any = ffi.new("uint32_t[]", TX_MAX)
        self._positions: Any = ffi.new("uint64_t[]", 3)
        self._position_bytes = ffi.buffer(self._positions)
        self._pair: Any = ffi.new("uint64_t[]", 3)
        self._u32: Any = ffi.new("uint32_t *")
        self._control: Any = ffi.new("struct zj_control *")
        self._peer: Any = ffi.new("struct zj_peer *")
        self._peer_bytes = ffi.buffer(self._peer)
        self._vote: Any = ffi.new("struct zj_vote *")
        self._matrix: Any = ffi.new("uint64_t[]", self.stations * self.stations)
        self._counters: Any = lib.zj_counters(self._core)

    # ---- for C code of other modules: addresses, valid as long as this object exists
    @property
    def api_pointer(self) -> int:
        """Address of ``struct zj_api``."""
        return int(ffi.cast("uintptr_t", lib.zj_api()))

    @property
    def handle(self) -> Any:
        """The ``zj_core``, for other functions of this module."""
        return self._core

    @property
    def handle_pointer(self) -> int:
        """Address of the ``zj_core``."""
        return int(ffi.cast("uintptr_t", self._core))

    # ---- start and end of an instance
    @property
    def memory_bytes(self) -> int:
        """Reserved at creation."""
        return int(lib.zj_memory(self._core))

    @property
    def assembling_bytes(self) -> int:
        """Memory that messages of several PDUs are put together in now: less than twice what has come of them and 16 KiB, for
        each station and each of both services; none a second or two after the last one."""
        return int(lib.zj_assembling(self._core))

    @property
    def starves(self) -> bool:
        """Delivery waits because the system refuses memory for a message of several PDUs."""
        return bool(_starves(self._core))

    def refuse_memory(self, yes: bool) -> None:
        """For tests: as if the system refused it, from now on, or no more."""
        lib.zj_refuse_memory(self._core, yes)

    def open(self, now: int, instance: int, view: int, incarnations: Sequence[int], frame_max: int) -> None:
        """Enter an instance by the OPEN agreement. ``view``: its view hash; ``incarnations`` by index, 0: no member;
        ``frame_max``: largest PDU that all members take, bytes."""
        invariant(len(incarnations) == self.stations, "an incarnation for every station, or 0")
        self._now = now
        self._partial = None
        result = lib.zj_open(self._core, now, instance, view, list(incarnations), frame_max)
        invariant(result == 0, "zj_open refused an agreed instance")

    def join(
        self, now: int, instance: int, view: int, starts: Sequence[Start], place_clock: int, place_src: int, frame_max: int
    ) -> None:
        """Enter a running instance as a joiner (rule 5): ``starts`` by index. It delivers the view event at (``place_clock``,
        ``place_src``) first, and then what follows it."""
        invariant(len(starts) == self.stations, "a start for every station")
        self._now = now
        self._partial = None
        records = [
            {"clock": s.clock, "seq": s.seq, "incarnation": s.incarnation if s.role else 0, "role": s.role} for s in starts
        ]
        start = ffi.new("struct zj_start[]", records)
        result = lib.zj_join(self._core, now, instance, view, start, place_clock, place_src, frame_max)
        invariant(result == 0, "zj_join refused an agreed instance")

    def close(self) -> None:
        """Leave the instance. A message that was half taken is forgotten."""
        self._partial = None
        lib.zj_close(self._core)

    @property
    def is_open(self) -> bool:
        return bool(_is_open(self._core))

    def reached(self) -> tuple[int, int]:
        """The position of level preack, final if ``close`` comes next: (view hash of the last view event before it, 0: none; PDUs
        since then). Unlike with ``positions`` it does not count as reported."""
        lib.zj_reached(self._core, self._u32, self._pair)
        return self._u32[0], self._pair[0]

    def flush(self, view: int, count: int) -> None:
        """After ``close``: every station that continues holds the first ``count`` PDUs of the order after the event of ``view``
        (a hash). ``deliver`` gives those that it has not given yet, and the view events among them, and ``positions`` counts them
        as reached at every level, until the next ``open`` or ``join``. An unknown hash: nothing is flushed."""
        lib.zj_flush(self._core, view, count)

    @property
    def flushing(self) -> bool:
        """Between ``flush`` and ``open`` or ``join``."""
        return bool(_flushing(self._core))

    @property
    def flushed(self) -> bool:
        """All of it has been delivered, and ``positions`` has been asked since; also if nothing is being flushed."""
        return bool(_flushed(self._core))

    def set_frame_max(self, frame_max: int) -> None:
        """The own interface carries PDUs of this size, bytes."""
        lib.zj_set_frame_max(self._core, frame_max)

    # ---- frames
    def rx(self, now: int, pdu: bytes, mac: bytes) -> int:
        """Take one PDU that came from ``mac`` (6 bytes). Returns a ``Drop`` number, 0: processed."""
        return int(_rx(self._core, now, pdu, len(pdu), mac))

    def pair_rx(self, now: int, pdu: bytes, mac: bytes, to_group: bool) -> int:
        """The same of a link, whose frames come to the group address or to the own one."""
        return int(lib.zj_pair_rx(self._core, now, pdu, len(pdu), mac, to_group))

    def pair_to_group(self, pdu: bytes) -> bool:
        """This frame of a link goes to the group address now (docs/multicast.md, rule L2)."""
        return bool(lib.zj_pair_to_group(self._core, pdu))

    def step(self, now: int, drained: bool) -> int:
        """After a batch; ``drained``: nothing more is waiting to be received. Returns ``Status`` bits."""
        self._now = now
        return int(_step(self._core, now, drained))

    def tx(self, now: int | None = None) -> list[bytes]:
        """Take all frames off the transmit queue. ``now``: of the sending; default, that of the last ``step``."""
        at = self._now if now is None else now
        out: list[bytes] = []
        while count := _tx(self._core, at, self._tx_buffer, TX_BYTES, self._tx_sizes, TX_MAX):
            start = 0
            for size in _unpack(self._tx_sizes, count):
                out.append(self._tx_bytes[start : start + size])
                start += size
        return out

    # ---- messages
    def offer(
        self,
        data: bytes,
        *,
        group: int,
        client: int,
        type: int = 0,
        need_ack: bool = False,
        ordering: Ordering = Ordering.TOTAL,
    ) -> bool:
        """Send a whole message, to be delivered in ``ordering``. False: not (wholly) taken; offer the very same again after a
        later ``step``. Raises UsageError for another message while one is partly taken, for one larger than ``message_max``, and
        for an ordering that the medium does not have."""
        offered = (group, client, type, ordering, data)
        if self._partial is None:
            self._offer.done = 0
        elif self._partial != offered:
            raise UsageError("another message is only partly taken: offer that one again")
        offer = self._offer
        pinned = ffi.from_buffer("uint8_t[]", data)
        offer.data = pinned
        offer.size = len(data)
        offer.group = group
        offer.client = client
        offer.type = type
        offer.need_ack = need_ack
        offer.ordering = ordering
        result = lib.zj_offer(self._core, offer)
        if result < 0:
            raise UsageError(f"a message of {len(data)} bytes cannot be sent")
        self._partial = offered if result == 0 and offer.done else None
        return bool(result)

    def collect(self) -> None:
        """Take what can be delivered now out of the core, for the next ``deliver``: before the instance may end."""
        self._backlog = self.deliver()

    def deliver(self) -> list[Message]:
        """Everything that can be delivered now, in the total order."""
        out = self._backlog
        self._backlog = []
        large = self._large
        while True:
            count = _deliver(self._core, self._deliver_buffer, DELIVER_BYTES, self._records, DELIVER_MAX, large)
            if not count and not large.data:
                return out
            buffer = self._deliver_bytes
            for record in MESSAGE.iter_unpack(self._record_bytes[: count * MESSAGE.size]):
                clock, position, offset, size, *rest = record
                out.append(Message(buffer[offset : offset + size], clock, position, *rest))
            if large.data:
                m = large
                data = bytes(ffi.buffer(m.data, m.size))
                out.append(Message(data, m.clock, m.position, m.group, m.client, m.index, m.src, m.type, m.stage, m.view_src))
            elif count < DELIVER_MAX:
                return out

    def positions(self) -> Positions:
        _get_positions(self._core, self._positions)
        return Positions(*_POSITIONS.unpack(self._position_bytes))

    def want_ack(self, yes: bool) -> None:
        """A program here waits for level ack."""
        lib.zj_want_ack(self._core, yes)

    @property
    def unstable(self) -> bool:
        """Own messages have not all reached level preack."""
        return bool(lib.zj_unstable(self._core))

    # ---- membership
    def proposals(self) -> list[Vote]:
        """Take all votes that have been accepted, each stream's in its order. While one waits nothing is delivered."""
        out: list[Vote] = []
        v = self._vote
        while _next_vote(self._core, v):
            out.append(Vote(v.src, v.kind, v.instance, v.seq, v.clock, bytes(ffi.buffer(v.data, v.size))))
        return out

    def propose(self, now: int, kind: int, payload: bytes) -> tuple[int, int, bytes] | None:
        """Put an own vote into the own stream, regardless of the window. Returns its (seq, clock, PDU). None: no buffer is free,
        try again after a later ``step``."""
        if lib.zj_propose(self._core, now, kind, payload, len(payload), self._pair, self._pair + 1) != 0:
            return None
        seq, clock = self._pair[0], self._pair[1]
        data = lib.zj_kept(self._core, self.index, seq, self._u32)
        return seq, clock, bytes(ffi.buffer(data, self._u32[0]))

    def limit(self, now: int, index: int, limit: int | None) -> None:
        """Rule 1: nothing at or beyond ``limit`` (64 bits, as ``Peer.req``) is accepted from that station, and no promise of it
        counts. It is never below what has been accepted; None withdraws it."""
        lib.zj_limit(self._core, now, index, NEVER if limit is None else limit)

    def wait_for(self, index: int, clock: int | None, frame_max: int = 0) -> None:
        """Rule 5: that station is in the wait set although no member, and known to have passed the clock. None: not any more. Own
        PDUs stay within ``frame_max`` bytes (0: unknown) meanwhile."""
        lib.zj_wait_for(self._core, index, NEVER if clock is None else clock, frame_max)

    def all_have(self, stations: int, seqs: Mapping[int, int]) -> bool:
        """Is every station of the bitmap known to have the PDU ``seqs[k]`` of every station (index) k of it?"""
        return bool(lib.zj_all_have(self._core, stations, [seqs.get(k, 0) for k in range(self.stations)]))

    def report_progress(self, yes: bool) -> None:
        """``step`` reports CONTROL whenever something has been accepted or acknowledged since ``proposals`` was last asked."""
        lib.zj_report_progress(self._core, yes)

    def commit(self, now: int, change: Commit) -> bool:
        """Apply a decided proposal. False: not all that a joiner sent in its former incarnation is delivered yet; deliver, and
        call again. InvariantError if it does not follow the present instance."""
        fields = change._asdict()
        fields["incarnations"] = list(change.incarnations)
        fields["vote_seq"] = [change.vote_seq.get(k, 0) for k in range(self.stations)]
        result = lib.zj_commit(self._core, now, ffi.new("struct zj_commit *", fields))
        invariant(result >= 0, f"zj_commit refused {change}")
        return bool(result == 0)

    def set_state(self, state: int, trans: int) -> None:
        """Bitmaps of the CONFIRMs from now on."""
        lib.zj_set_state(self._core, state, trans)

    def block(self, yes: bool) -> None:
        """No quorum: messages are not taken, and nothing is sent but confirmations and votes."""
        lib.zj_block(self._core, yes)

    def probe(self, now: int, index: int) -> None:
        """Queue a CONFIRM that asks this station to answer."""
        lib.zj_probe(self._core, now, index)

    # ---- reset (bus medium)
    def phase(self) -> tuple[int, int]:
        """(``Phase``, epoch)."""
        return int(lib.zj_phase(self._core, self._u32)), int(self._u32[0])

    def vector(self) -> tuple[int, ...]:
        """What this station expects from each, 32 bits as on the wire."""
        lib.zj_vector(self._core, self._vector)
        return tuple(ffi.unpack(self._vector, self.stations))

    def reset_enter(self, epoch: int) -> None:
        """R1, R2: nothing is accepted, and nothing but RST and RSTC sent, until ``reset_done``."""
        lib.zj_reset_enter(self._core, epoch)

    def reset_cut(self, vector: Sequence[int], index: int) -> bool:
        """R3: remove from the log what the station ``index``, which has sent this vector, lacks. True: PDUs were removed. If an
        acknowledged one had to be removed, the order has diverged (``fence``)."""
        return bool(lib.zj_reset_cut(self._core, list(vector), index))

    def reset_agree(self) -> None:
        """R4: all vectors are equal; from now on a PDU of the epoch other than RST and RSTC ends the reset."""
        lib.zj_reset_agree(self._core)

    def reset_done(self) -> None:
        """R5: the log is acknowledged as a whole, and own PDUs that are not in it are sent again."""
        lib.zj_reset_done(self._core)

    def reset_say(self, kind: int, epoch: int, vector: Sequence[int]) -> bool:
        """Queue a RST or RSTC. False: the queue is full."""
        return bool(lib.zj_reset_say(self._core, kind, epoch, list(vector)) == 0)

    def secured(self) -> int:
        """Number of PDUs after those in ``reached`` that some member may have delivered, as far as this station can know."""
        return int(lib.zj_secured(self._core))

    def receipts(self) -> tuple[int, int, int, int]:
        """Positions in the receipt log: delivered, acknowledged, pre-acknowledged, accepted."""
        out = ffi.new("uint64_t[]", 4)
        lib.zj_receipts(self._core, out)
        return out[0], out[1], out[2], out[3]

    def entry(self, position: int) -> tuple[int, int] | None:
        """(station index, 64-bit number) of the PDU at a position of the log; None: it is not, or no longer, known."""
        if not lib.zj_entry(self._core, position, self._u32, self._pair):
            return None
        return int(self._u32[0]), int(self._pair[0])

    # ---- for the engine
    def control(self) -> list[Control]:
        """Take all waiting control PDUs."""
        out: list[Control] = []
        c = self._control
        while _next_control(self._core, c):
            out.append(Control(bytes(ffi.buffer(c.data, c.size)), c.drop, bytes(c.mac)))
        return out

    def nak_due_ns(self) -> int:
        return int(_nak_due(self._core))

    def poll_due_ns(self) -> int:
        return int(_poll_due(self._core))

    def confirm_due_ns(self) -> int:
        return int(_confirm_due(self._core))

    def nak(self, now: int) -> int:
        """Queue the NAKs that are due; returns how many."""
        return int(lib.zj_nak(self._core, now))

    def passed(self, index: int, below: int, wait_ns: int) -> None:
        """Frames come over several links: what is missing of that station below this number (32 bits) is lost, the rest may be
        on its way for so much longer."""
        lib.zj_passed(self._core, index, below, wait_ns)

    def poll(self, now: int) -> int:
        """Queue the POLL that is due (rule C4); returns how many."""
        return int(lib.zj_poll(self._core, now))

    def heartbeat(self, now: int, flags: int = 0) -> None:
        """Queue a CONFIRM with these ``wire.Flag`` bits."""
        lib.zj_heartbeat(self._core, now, flags)

    # ---- heartbeats and silence (beat.c)
    def set_beats(self, interval_ns: int, *, pause_ns: int, late_ns: int) -> None:
        """interval_ns: between two heartbeats. pause_ns: a station that did not look for longer counts a pause. late_ns: what is
        served so much too late counts as late."""
        lib.zj_beats(self._core, interval_ns, pause_ns, late_ns)

    def begin_beats(self, now: int) -> None:
        """The first heartbeat is due an interval from now."""
        lib.zj_beats_begin(self._core, now)

    def end_beats(self) -> None:
        """There are no more."""
        lib.zj_beats_end(self._core)

    def tick(self, now: int) -> None:
        """This station runs now; ``beat`` does it as well."""
        lib.zj_tick(self._core, now)

    def beat(self, now: int) -> bool:
        """Queue the heartbeat that is due, or with which this station joins another's. Whether one was queued."""
        return bool(lib.zj_beat(self._core, now))

    def beat_due_ns(self) -> int:
        """When to call ``beat``, or ``NEVER``."""
        return int(lib.zj_beat_due(self._core))

    def watch(self, members: Iterable[int], *, since_ns: int, quiet_ns: int, lag_at_ns: int) -> None:
        """What ``silence_due_ns`` looks at. since_ns: the members (indices) count as heard then, or later. quiet_ns: who was
        not heard for so long is to be asked; 0: nobody is. lag_at_ns: when to look if PDUs are not everywhere, or
        memory lacks."""
        lib.zj_watch(self._core, sum(1 << index for index in members), since_ns, quiet_ns, lag_at_ns)

    def silence_due_ns(self) -> int:
        """When the engine has to look at who is silent, as far as it is known now, or ``NEVER``."""
        return int(_silence_due(self._core))

    @property
    def pauses(self) -> int:
        """How often this station has not run for longer than pause_ns."""
        return int(lib.zj_pauses(self._core))

    def late(self) -> tuple[int, int]:
        """How often this station was late with a heartbeat or a look, and when it last was."""
        count = int(lib.zj_late(self._core, self._pair))
        return count, self._pair[0]

    def peer(self, index: int) -> Peer:
        _get_peer(self._core, index, self._peer)
        return tuple.__new__(Peer, PEER.unpack(self._peer_bytes))  # Peer._make, which is called n times a turn, without a call

    def matrix(self) -> list[list[int]]:
        """``al[h][j]``: what station j next expects from station h, as known here."""
        n = self.stations
        lib.zj_matrix(self._core, self._matrix)
        flat = ffi.unpack(self._matrix, n * n)
        return [flat[h * n : (h + 1) * n] for h in range(n)]

    def is_too_long(self, size: int) -> bool:
        """Whether an own PDU that not every station has is larger than so many bytes."""
        return bool(lib.zj_too_long(self._core, size))

    @property
    def pdu_max(self) -> int:
        """Bytes of the largest PDU that is built now."""
        return int(lib.zj_pdu_max(self._core))

    def limit_size(self, limit: int, base: int) -> None:
        """PDUs built from now on have at most so many bytes, whatever the stations can receive. base: see ``asked_again``."""
        lib.zj_limit_size(self._core, limit, base)

    @property
    def asked_again(self) -> int:
        """How often a PDU of more than ``base`` bytes was asked for that had been sent again before."""
        return int(lib.zj_asked_again(self._core))

    @property
    def pressed(self) -> bool:
        """At least half of what may be in flight is."""
        return bool(lib.zj_pressed(self._core))

    def last_tx_ns(self) -> int:
        """Time at which a frame for all was last taken to be sent; at opening, that time."""
        return int(lib.zj_last_tx(self._core))

    def last_word_ns(self) -> int:
        """The same, of a frame for anybody."""
        return int(lib.zj_last_word(self._core))

    def counters(self) -> dict[str, int]:
        """Every field of ``struct zj_counters`` but ``drops``."""
        c = self._counters
        return {name: getattr(c, name) for name in _COUNTERS}

    def drops(self) -> dict[str, int]:
        """Frames dropped by reason (``zj_drop_name``), reasons that never happened left out."""
        counts = ffi.unpack(self._counters.drops, lib.ZJ_DROP_COUNT)
        return {name: count for name, count in zip(DROP_NAMES, counts, strict=True) if count}

    def dropped(self, reason: Drop) -> int:
        return int(self._counters.drops[reason])

    @property
    def memory_refused(self) -> int:
        """How often the order had to wait because the system had no memory for a message of several PDUs."""
        return int(self._counters.memory_refused)

    def digest(self) -> tuple[int, int, int]:
        """(instance, PDUs delivered since its view event, running digest of the order there): stations of equal first two have
        equal digests, also one that has joined; (0, 0, 0): no view has been delivered."""
        lib.zj_digest(self._core, self._u32, self._pair, self._pair + 1)
        return self._u32[0], self._pair[0], self._pair[1]

    def fence(self) -> Fence | None:
        """Why nothing is delivered any more; None: it is."""
        if not lib.zj_fence(self._core, self._u32, self._pair, self._pair + 1, self._pair + 2):
            return None
        return Fence(self._u32[0], *ffi.unpack(self._pair, 3))

    @property
    def clock(self) -> int:
        return int(lib.zj_clock(self._core))

    @property
    def payload_max(self) -> int:
        """Bytes of the largest message that is not fragmented now."""
        return int(lib.zj_payload_max(self._core))


def add_checksum(pdu: bytes) -> bytes:
    """The PDU with its checksum written."""
    buffer = bytearray(pdu)
    lib.zj_add_checksum(ffi.from_buffer("uint8_t[]", buffer), len(buffer))
    return bytes(buffer)


def check(pdu: bytes, cluster: int, stations: int) -> int:
    """Check a PDU by itself; a ``Drop`` number."""
    return int(lib.zj_check(pdu, len(pdu), cluster, stations))


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C (Castagnoli)."""
    return int(lib.zj_crc32c(crc, data, len(data)))
