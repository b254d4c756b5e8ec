"""Traffic of stations whose clocks are wrong in known ways, as their captures would show it."""

from __future__ import annotations

import heapq
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from zenjun.proto import wire
from zenjun.proto.core import crc32c

from .built import Rec, frame

START_NS = 1_800_000_000 * 10**9
CLUSTER = wire.cluster_id("traffic")
Delay = Callable[[int, int, random.Random], int]
"""(from, to, source of chance) → ns."""


def pdu(
    kind: wire.Kind,
    src: int,
    seq: int,
    ack: list[int],
    payload: bytes = b"",
    *,
    pack: list[int] | None = None,
    clock: int = 0,
    incarnation: int = 1,
    instance: int = 1,
    flags: int = 0,
    target: int = 0,
) -> bytes:
    """Bytes of a PDU with its checksums, quicker than scapy builds it."""
    flags |= wire.Flag.PACK if pack is not None else 0
    head = wire.HEADER.struct.pack(
        CLUSTER, wire.VERSION, kind, flags, len(ack), src, target, len(payload), incarnation, instance, seq & 0xFFFFFFFF, clock,
        100, 1500, 0, 0,
    )  # fmt: skip
    vectors = struct.pack(f">{len(ack)}I", *ack) + (struct.pack(f">{len(pack)}I", *pack) if pack is not None else b"")
    at = wire.HEADER.offset("check")
    check = crc32c(vectors, crc32c(head[:at])) << 32 | crc32c(payload)
    return head[:at] + struct.pack(">Q", check) + head[at + 8 :] + vectors + payload


def data(text: bytes, group: str = "g") -> bytes:
    """Payload of one message."""
    return wire.MESSAGE.struct.pack(len(text), wire.group_id(group), 1, 0, 0) + text


def confirm(position: int = 0, digest: int = 0) -> bytes:
    return wire.CONFIRM.struct.pack(0, 0, position, digest, 1, 7)


@dataclass
class Clock:
    """What a station's clock says: wrong by an offset that drifts. steps: (true ns since the start, ns added from then on)."""

    offset_ns: int = 0
    ppm: float = 0.0
    steps: tuple[tuple[int, int], ...] = ()

    def reads(self, true_ns: int) -> int:
        jumped = sum(by for at, by in self.steps if true_ns >= at)
        return START_NS + true_ns + self.offset_ns + round(true_ns * self.ppm * 1e-6) + jumped


@dataclass
class Traffic:
    """Stations that send DATA and CONFIRM at random times. Captures are in ``records`` after ``run``."""

    clocks: dict[int, Clock]
    delay: Delay
    loss: float = 0.0
    duration_ns: int = 2 * 10**9
    every_ns: int = 20_000_000
    begins: dict[int, int] = field(default_factory=dict)
    """When a station's capture begins, true ns since the start."""
    repeats: float = 0.1
    """Fraction of DATA sent again, by its source or by another station."""
    silent: frozenset[int] = frozenset()
    seed: int = 1
    records: dict[int, list[Rec]] = field(default_factory=dict)
    directions: bool = True

    def run(self) -> Traffic:
        chance = random.Random(self.seed)
        n = max(self.clocks)
        events: list[tuple[int, int, int, str, bytes]] = []
        counter = 0

        def push(at: int, station: int, what: str, what_bytes: bytes) -> None:
            nonlocal counter
            counter += 1
            heapq.heappush(events, (at, counter, station, what, what_bytes))

        for station in self.clocks:
            self.records[station] = []
            if station not in self.silent:
                push(chance.randrange(self.every_ns), station, "turn", b"")
        seqs = dict.fromkeys(self.clocks, 0)
        while events:
            now, _, station, what, raw = heapq.heappop(events)
            if what == "turn":
                if now > self.duration_ns:
                    continue
                push(now + chance.randint(1, 2 * self.every_ns), station, "turn", b"")
                ack = [seqs.get(j, 0) for j in range(1, n + 1)]
                if chance.random() < 0.5:
                    raw = pdu(wire.Kind.DATA, station, seqs[station], ack, data(b"%d" % now), clock=now)
                    seqs[station] += 1
                else:
                    raw = pdu(
                        wire.Kind.CONFIRM, station, seqs[station], ack, confirm(seqs[station]), pack=ack, clock=now // 10**9
                    )
            if what in ("turn", "again"):
                self._seen(station, now, raw, 2, station)
                for other in self.clocks:
                    if other != station and chance.random() >= self.loss:
                        push(now + self.delay(station, other, chance), other, "arrives", raw)
                if raw[5] == wire.Kind.DATA and what == "turn" and chance.random() < self.repeats:
                    who = chance.choice(sorted(self.clocks))
                    if who == station:
                        push(now + chance.randint(1, 50_000_000), who, "again", raw)
            else:
                self._seen(station, now, raw, 1, raw[8])
                if raw[5] == wire.Kind.DATA and chance.random() < self.repeats:  # sends it for somebody else who lacks it
                    push(now + chance.randint(1, 50_000_000), station, "again", raw) if chance.random() < 0.2 else None
        return self

    def _seen(self, station: int, now: int, raw: bytes, direction: int, by: int) -> None:
        if now >= self.begins.get(station, 0):
            said = direction if self.directions else 0
            self.records[station].append(Rec(self.clocks[station].reads(now), frame(raw, by), said))
