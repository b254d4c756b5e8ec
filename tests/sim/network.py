"""The virtual segment: a switch with one port per station, its faults, and a heap of (time, frame)."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Final

from zenjun.proto import wire

from . import frames
from .options import Faults, Options
from .trace import Trace

FRAME_MIN: Final = 60 - wire.ETHERNET_HEADER
"""PDU bytes after the wire has padded a short frame."""
_OVERHEAD_BITS: Final = (14 + 4 + 20) * 8
"""Ethernet header, frame check sequence, preamble and gap."""
_KEPT_MAX: Final = 64
"""Old frames remembered as raw material for garbage."""


def draw_below(rng: random.Random, limit: int) -> int:
    """``rng.randrange(limit)``, by the same draws, without what that does besides."""
    bits = limit.bit_length()
    drawn = rng.getrandbits(bits)
    while drawn >= limit:
        drawn = rng.getrandbits(bits)
    return drawn


class Clockwork:
    """Virtual time in ns and everything that is to happen in it, in order of (time, age)."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: int, action: Callable[[], None]) -> None:
        self._count += 1
        now = self.now
        heapq.heappush(self._heap, (when if when > now else now, self._count, action))

    def run(self, until: int, done: Callable[[], bool] | None = None) -> bool:
        """Let time pass up to ``until`` or until ``done()``, asked after each event; True if it was done."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            self.now, _, action = pop(heap)
            action()
            if done is not None and done():
                return True
        self.now = until
        return False


class Network:
    """Carries PDUs between stations 0..n-1. ``receive(station, pdu, mac)`` is called when a copy arrives."""

    def __init__(
        self,
        options: Options,
        rng: random.Random,
        clockwork: Clockwork,
        trace: Trace,
        receive: Callable[[int, bytes, bytes], None],
    ) -> None:
        self._o = options
        self._rng = rng
        self._clock = clockwork
        self._trace = trace
        self._receive = receive
        self.faults: Faults = options.faults
        self.cuts: set[tuple[int, int]] = set()
        """(from, to) pairs that carry nothing."""
        self.island: frozenset[int] = frozenset()
        """Stations split off from the others."""
        self.ports_down: set[int] = set()
        """Stations whose port of the bridge carries nothing."""
        self._bad_links: set[tuple[int, int]] = set()
        self._uplink_free = [0] * options.stations
        self._port_free = [0] * options.stations
        self._kept: list[bytes] = []
        self.sent = 0
        """Frames broadcast so far."""
        self.delivered = 0
        self.drop_next: Callable[[int, int, bytes], bool] | None = None
        """For scenarios: (from, to, pdu) → lose this copy?"""

    def heal(self) -> None:
        """No more faults; what is on its way still arrives."""
        self.faults = Faults()
        self.cuts.clear()
        self.island = frozenset()
        self.ports_down.clear()
        self._bad_links.clear()

    def send(self, src: int, pdu: bytes, mac: bytes) -> None:
        """One frame from ``src`` to whom it is for, in most cases everybody else; each copy has its own fate."""
        self.sent += 1
        number = self.sent
        now = self._clock.now
        wire_ns = (max(len(pdu), FRAME_MIN) * 8 + _OVERHEAD_BITS) * 1_000_000_000 // self._o.rate_bps
        leaves = max(now, self._uplink_free[src]) + wire_ns
        self._uplink_free[src] = leaves
        if len(self._kept) < _KEPT_MAX:
            self._kept.append(pdu)
        elif self._rng.random() < 0.05:
            self._kept[self._rng.randrange(_KEPT_MAX)] = pdu
        only = wire.addressee(pdu)
        for dst in range(self._o.stations):
            if dst != src and only in (0, dst + 1):
                self._copy(src, dst, pdu, mac, leaves, wire_ns, number)

    def _copy(self, src: int, dst: int, pdu: bytes, mac: bytes, leaves: int, wire_ns: int, number: int) -> None:
        o, faults, rng = self._o, self.faults, self._rng
        lost = (
            (bool(self.cuts) and (src, dst) in self.cuts)
            or (bool(self.island) and (src in self.island) != (dst in self.island))
            or self._lost(src, dst)
            or (bool(self.ports_down) and (src in self.ports_down or dst in self.ports_down))
        )
        if self.drop_next is not None and self.drop_next(src, dst, pdu):
            lost = True
        if lost:
            self._trace.add(self._clock.now, dst, f"lost #{number}")
            return
        jitter = draw_below(rng, o.jitter_ns + 1) if o.jitter_ns else 0
        arrives = max(leaves + o.delay_ns + jitter, self._port_free[dst] if not jitter else 0)
        if arrives - leaves - o.delay_ns - jitter > o.port_queue_ns:
            self._trace.add(self._clock.now, dst, f"tail-dropped #{number}")
            return
        self._port_free[dst] = max(self._port_free[dst], arrives) + wire_ns
        if faults.reorder and rng.random() < faults.reorder:
            arrives += rng.randrange(faults.reorder_ns)
        copies = [arrives]
        if faults.duplicate and rng.random() < faults.duplicate:
            copies.append(arrives + rng.randrange(faults.reorder_ns))
        if faults.replay and rng.random() < faults.replay:
            copies.append(arrives + rng.randrange(faults.replay_ns))
        for when in copies:
            body = self._damage(pdu)
            self._put(when, dst, body, mac)

    def _lost(self, src: int, dst: int) -> bool:
        faults, rng = self.faults, self._rng
        if faults.burst_enter:
            link = (src, dst)
            if link in self._bad_links:
                if rng.random() < faults.burst_leave:
                    self._bad_links.discard(link)
            elif rng.random() < faults.burst_enter:
                self._bad_links.add(link)
            if link in self._bad_links and rng.random() < 0.9:
                return True
        loss = min(faults.loss * 10, 0.6) if dst == faults.bad_receiver else faults.loss
        if dst == faults.starved and faults.starved_loss:
            loss = max(loss, faults.starved_loss)
        return bool(loss) and rng.random() < loss

    def _damage(self, pdu: bytes) -> bytes:
        """Padding always (short frames, and now and then a trailer), other damage by chance."""
        faults, rng = self.faults, self._rng
        if faults.corrupt and rng.random() < faults.corrupt:
            flipped = bytearray(pdu)
            for _ in range(rng.randrange(1, 4)):
                bit = rng.randrange(len(flipped) * 8)
                flipped[bit >> 3] ^= 1 << (bit & 7)
            pdu = bytes(flipped)
        if faults.truncate and rng.random() < faults.truncate:
            return pdu[: rng.randrange(len(pdu))]
        if len(pdu) < FRAME_MIN:
            pdu += b"\xaa" * (FRAME_MIN - len(pdu))
        if rng.random() < 0.02:
            pdu += rng.randbytes(rng.choice((4, 6)))
        return pdu

    def _put(self, when: int, dst: int, pdu: bytes, mac: bytes) -> None:
        def arrive() -> None:
            self.delivered += 1
            self._receive(dst, pdu, mac)

        self._clock.at(when, arrive)

    def garbage(self) -> None:
        """One frame that no station of this cluster has sent reaches some station."""
        rng = self._rng
        dst = rng.randrange(self._o.stations)
        mac = b"\x02\xee" + rng.randbytes(4)
        old = rng.choice(self._kept) if self._kept else rng.randbytes(100)
        what = rng.randrange(5)
        if what == 0:
            pdu = rng.randbytes(rng.choice((0, 1, 45, 46, 63, 64, 100, 1400)))
        elif what == 1:  # a foreign cluster, intact
            pdu = frames.add_checksum(frames.patch(old, "cluster", rng.getrandbits(32)))
        elif what == 2:  # right checksum, impossible header
            field, value = rng.choice(
                (
                    ("version", 2),
                    ("kind", 0),
                    ("kind", 200),
                    ("stations", 0),
                    ("stations", 64),
                    ("src", 0),
                    ("src", 65),
                    ("length", 65535),
                )
            )
            pdu = frames.add_checksum(frames.patch(old, field, value))
        elif what == 3:  # our header, noise behind it
            pdu = old[: rng.randrange(len(old))] + rng.randbytes(rng.randrange(1, 60))
            if pdu.startswith(old):
                pdu = old[:-1]  # by chance the noise was what had been there: a replay, which only a key keeps out
        else:  # one field changed without the checksum
            field = rng.choice(wire.HEADER.fields).name
            width = next(f.width for f in wire.HEADER.fields if f.name == field)
            pdu = frames.patch(old, field, rng.getrandbits(8 * width))
            if pdu == old:
                pdu = old[:-1]
        self._trace.add(self._clock.now, dst, f"garbage kind {what}, {len(pdu)} bytes")
        self._put(self._clock.now, dst, pdu, mac)
