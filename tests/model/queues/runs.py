"""One run: stations that send as fast as they may, on links of a rate, whose queues drop what they have no room for.

A station's frame waits in the queue of its own interface, then in the queue of each receiver's port; both have the rate of the
link, and room for so many milliseconds (as the token buckets of the lab). Stations have a turn every ``TICK_NS``. By which link a
frame goes, which link is doubtful and what is missing for good is decided by the daemon's own C (``glue.c``) and the C core. With
``sending`` so is what a link does whose own queue is full (``sending.c``): it refuses, where it otherwise drops.
"""

from __future__ import annotations

import functools
import heapq
import os
import random
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cffi import FFI
from zenjun.proto.core import Core
from zenjun.proto.wire import HEADER, Kind, view_hash

from ...virtual.cores import config

US, MS = 1_000, 1_000_000
TICK_NS: Final = 100 * US
ETHERNET: Final = 14
LATE_NS: Final = 2 * MS
"""For so long a gap was re-ordering, whatever the links' queues, before the rule of today."""
DOUBT_NS: Final = 400 * MS
"""The judge hears two LINKS of each member in so long."""
ROOT = Path(__file__).resolve().parents[3]
DECLARATIONS = """
struct model *model_new(uint32_t self, uint32_t links);
void model_free(struct model *m);
void model_passive(struct model *m, uint32_t link);
void model_batch(struct model *m, const uint8_t *bytes, const uint32_t *sizes, uint32_t count, int pressed, uint64_t now,
                 uint64_t evidence_now, uint32_t *links);
uint32_t model_doubtful(const struct model *m);
void model_trust(struct model *m);
int model_is_double(struct model *m, uint32_t link, const uint8_t *pdu, uint32_t size, uint64_t now);
void model_accepted(struct model *m, uint32_t link, const uint8_t *pdu, uint32_t size, uint64_t now);
int model_passed(struct model *m, uint64_t now, uint32_t *src, uint32_t *below, uint64_t *wait_ns);
"""


SENDING = """
struct model_links *sending_new(uint32_t self, uint32_t links);
void sending_use(struct model_links *m, uint32_t how);
void sending_free(struct model_links *m);
uint32_t sending_batch(struct model_links *m, const uint8_t *bytes, const uint32_t *sizes, uint32_t count, int press,
                       const uint32_t *room, uint64_t now, uint32_t *links);
"""
VARIANTS: Final = {"": 0, "shared_backoff": 1, "stripe_votes": 2}
"""Of what sends: as it is, and with one rule broken."""
BATCH: Final = 64
LINKS_MAX: Final = 4
DUPLICATE: Final = 0
"""``links.mode`` as the C code numbers it."""


class Violation(AssertionError):
    """What must be so is not."""


@functools.cache
def sending(variant: str) -> tuple[Any, Any]:
    """links.c and link.c on queues of this program's, compiled once for each variant."""
    more = [f"-DVARIANT={VARIANTS[variant]}", "-Dsendmmsg=model_sendmmsg", "-Wl,-z,lazy"]
    return compiled("struct model_links;" + SENDING, "sending.c", ("link", "spread"), more)


def library() -> tuple[Any, Any]:
    """The glue with what it joins, compiled once."""
    return glue()


@functools.cache
def glue() -> tuple[Any, Any]:
    return compiled("struct model;" + DECLARATIONS, "glue.c", ("spread", "hearing"), [])


def compiled(declarations: str, source: str, parts: tuple[str, ...], more: list[str]) -> tuple[Any, Any]:
    """A file of this folder with these of the data path; what they call besides is never called."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("these runs need a C compiler")
    own, core = ROOT / "daemon" / "datapath", ROOT / "proto" / "core"
    with tempfile.TemporaryDirectory(prefix="zenjun-queues.") as folder:
        target = Path(folder) / "queues.so"
        sources = [Path(__file__).with_name(source), *(own / f"{name}.c" for name in parts)]
        flags = ["-std=gnu11", "-O2", "-shared", "-fPIC", f"-I{own}", f"-I{core}", *more]
        subprocess.run([compiler, *flags, *map(str, sources), "-o", str(target)], check=True, timeout=60)
        ffi = FFI()
        ffi.cdef(declarations)
        return ffi, ffi.dlopen(str(target), os.RTLD_LAZY)


@dataclass(frozen=True)
class Rules:
    """fixed_wait: a gap is re-ordering for 2 ms whatever has come since. count_only: eight frames in a row that were lost make a
    link doubtful, however fast. own_progress: a station that goes on sending does not poll. Each was a rule."""

    fixed_wait: bool = False
    count_only: bool = False
    own_progress: bool = False


@dataclass
class Wire:
    """A queue with a rate and so much room; what leaves it arrives."""

    byte_ns: float
    room_ns: float
    free_at: float = 0.0
    dropped: int = 0

    def fits(self, now: float, size: int) -> int:
        """Frames of this size that ``put`` would take now."""
        left = self.room_ns - max(0.0, self.free_at - now)
        return 1 + int(left / (size * self.byte_ns)) if left >= 0 else 0

    def put(self, now: float, size: int) -> float | None:
        """When the frame has left it; None: there was no room."""
        if self.free_at - now > self.room_ns:
            self.dropped += 1
            return None
        self.free_at = max(self.free_at, now) + size * self.byte_ns
        return self.free_at


@dataclass
class Station:
    """A core, what chooses links for it, and what has come."""

    core: Core
    model: Any
    arrived: list[list[tuple[float, int, bytes, bytes]]]
    """By link, ordered by time."""
    last: int
    next: float
    """When it has the next message to send."""
    delivered: int = 0
    gap_ns: int = 0
    doubts: list[tuple[int, int]] = field(default_factory=list)
    """When which links (bits) became doubtful."""
    sending: Any = None
    """What sends, where queues refuse; and what it has not taken yet."""
    rest: list[bytes] = field(default_factory=list)
    sent: set[int] = field(default_factory=set)
    """Numbers of own DATA that have been sent once."""
    was_full: bool = False
    trusted_at: int = 0
    """When the judge will have heard more of the link in doubt; 0: there is none."""


class Run:
    """Stations, links and time. Nanoseconds; rates in Mbit/s."""

    def __init__(
        self, seed: int, links: int, rates: tuple[float, ...], *, stations: int = 3, room_ms: float = 50.0, size: int = 1300,
        loss: tuple[float, ...] = (), passive: bool = False, each_s: float = 0.0, rules: Rules | None = None,
        variant: str | None = None, duplicate: bool = False, own_ms: float = 0.0,
    ) -> None:  # fmt: skip
        """loss: by link, of each frame at each port. passive: data takes the first link. each_s: messages that a station sends
        in a second, 0: as many as go. variant: of ``VARIANTS``, queues of interfaces refuse; None: they drop. duplicate: then all
        frames take all links. own_ms: what their queues hold, if that is less."""
        self.variant, self.duplicate = variant, duplicate
        self.rules = rules or Rules()
        self.random = random.Random(seed)
        self.ffi, self.lib = library()
        self.n, self.links = stations, links
        self.loss = loss or (0.0,) * links
        self.dead: set[int] = set()
        self.passive, self.each_ns = passive, 1e9 / each_s if each_s else 0.0
        self.now = 1_000 * MS
        self.message = bytes(size)
        self._under_way: list[tuple[float, int, int, int, bytes]] = []
        self._order = 0
        window = max(16, min(256, 1000 // stations**2))
        options = {
            "stations": stations,
            "window": window,
            "slots": 1024,
            "confirm_delay_ns": 200 * US,
            "nak_delay_ns": 200 * US,
            "nak_retry_ns": 2 * MS,
            "nak_retry_max_ns": 100 * MS,
            "nak_even": 3,
            "poll_delay_ns": 5 * MS,
            "poll_delay_max_ns": 200 * MS,
            "poll_own": 0 if self.rules.own_progress else 3,
        }
        self.stations = [self._station(k, options) for k in range(stations)]
        made = {k: (8_000.0 / rate, room_ms * MS) for k, rate in enumerate(rates)}
        self.egress = {(s, k): Wire(made[k][0], own_ms * MS or made[k][1]) for s in range(stations) for k in range(links)}
        self.ports = {(s, k): Wire(*made[k]) for s in range(stations) for k in range(links)}

    def _station(self, index: int, options: dict[str, int]) -> Station:
        core = Core(**config(self_index=index, seed=self.random.getrandbits(32), **options))
        lives = (1,) * self.n
        core.open(self.now, 1, view_hash(1, lives), lives, 1500)
        model = self.ffi.gc(self.lib.model_new(index, self.links), self.lib.model_free)
        if self.passive:
            self.lib.model_passive(model, 0)
        made = Station(core, model, [[] for _ in range(self.links)], last=self.now, next=self.now + index * self.each_ns / self.n)
        if self.variant is not None:
            ffi, lib = sending(self.variant)
            made.sending = ffi.gc(lib.sending_new(index, self.links), lib.sending_free)
            if self.duplicate:
                lib.sending_use(made.sending, DUPLICATE)
        return made

    def run(self, ms: float) -> None:
        end = self.now + int(ms * MS)
        while self.now < end:
            self.now += TICK_NS
            self._carry()
            for index, station in enumerate(self.stations):
                self._turn(index, station)

    # ---- frames

    def _carry(self) -> None:
        while self._under_way and self._under_way[0][0] <= self.now:
            at, order, index, link, pdu = heapq.heappop(self._under_way)
            if link in self.dead:
                continue
            for other, station in enumerate(self.stations):
                if other == index or self.random.random() < self.loss[link]:
                    continue
                arrives = self.ports[other, link].put(at, len(pdu) + ETHERNET)
                if arrives is not None:
                    station.arrived[link].append((arrives, order, pdu, bytes((2, 0, 0, 0, link, index + 1))))

    def _refusing(self, index: int, station: Station) -> None:
        """As ``links_transmit`` does: what no link has taken comes again in the next turn."""
        ffi, lib = sending(self.variant or "")
        station.rest += station.core.tx(self.now)
        pressed, done = station.core.pressed, 1
        while station.rest and done:
            frames = station.rest[:BATCH]
            largest = max(map(len, frames)) + ETHERNET
            room = [self.egress[index, k].fits(self.now, largest) for k in range(self.links)]
            station.was_full |= min(room) < len(frames)
            links = ffi.new("uint32_t[]", len(frames))
            sizes, rooms = [len(f) for f in frames], room + [0] * (LINKS_MAX - self.links)
            done = lib.sending_batch(station.sending, b"".join(frames), sizes, len(frames), pressed, rooms, self.now, links)
            for pdu, taken in zip(frames[:done], links, strict=False):
                self._check_links(index, station, pdu, taken)
                self._put(index, pdu, taken)
            del station.rest[:done]

    def _check_links(self, index: int, station: Station, pdu: bytes, taken: int) -> None:
        """J4: but for first sendings of own data everything takes all links, which can all take it until one was full."""
        number = int.from_bytes(pdu[HEADER.offset("seq") :][:4], "big")
        is_first = (
            pdu[HEADER.offset("kind")] == Kind.DATA and pdu[HEADER.offset("src")] == index + 1 and number not in station.sent
        )
        if is_first:
            station.sent.add(number)
        elif not station.was_full and taken != (1 << self.links) - 1:
            raise Violation(f"station {index + 1} sends a frame of kind {pdu[HEADER.offset('kind')]} on links {taken:b} only")

    def _put(self, index: int, pdu: bytes, taken: int) -> None:
        for link in range(self.links):
            if taken >> link & 1:
                leaves = self.egress[index, link].put(self.now, len(pdu) + ETHERNET)
                if leaves is not None:
                    self._order += 1
                    heapq.heappush(self._under_way, (leaves, self._order, index, link, pdu))

    def _send(self, index: int, station: Station) -> None:
        if self.variant is not None:
            self._refusing(index, station)
            return
        frames = station.core.tx(self.now)
        if not frames:
            return
        links = self.ffi.new("uint32_t[]", len(frames))
        evidence_now = 10_000 * self.now + self._order if self.rules.count_only else self.now
        pressed = station.core.pressed
        self.lib.model_batch(
            station.model, b"".join(frames), [len(f) for f in frames], len(frames), pressed, self.now, evidence_now, links
        )
        for pdu, taken in zip(frames, links, strict=True):
            self._put(index, pdu, taken)

    # ---- a turn, as daemon/datapath/turn.c has it

    def _turn(self, index: int, station: Station) -> None:
        core, model, now = station.core, station.model, self.now
        for link, arrived in enumerate(station.arrived):
            count = 0
            for at, _, pdu, mac in arrived:
                if at > now:
                    break
                count += 1
                if self.links > 1 and self.lib.model_is_double(model, link, pdu, len(pdu), now):
                    continue
                if core.rx(now, pdu, mac) == 0 and self.links > 1:
                    self.lib.model_accepted(model, link, pdu, len(pdu), now)
            del arrived[:count]
        while station.next <= now and core.offer(self.message, group=1, client=1):
            station.next += self.each_ns
        core.step(now, True)
        if self.links > 1:
            self._tell_passed(station)
        if core.nak_due_ns() <= now:
            core.nak(now)
        if core.poll_due_ns() <= now:
            core.poll(now)
        self._send(index, station)
        self._doubt(station)
        if got := core.deliver():
            station.delivered += len(got)
            station.gap_ns = max(station.gap_ns, now - station.last)
            station.last = now

    def _tell_passed(self, station: Station) -> None:
        src, below, wait_ns = (self.ffi.new(f"{kind} *") for kind in ("uint32_t", "uint32_t", "uint64_t"))
        while self.lib.model_passed(station.model, self.now, src, below, wait_ns):
            if self.rules.fixed_wait:
                station.core.passed(src[0], station.core.peer(src[0]).req & 0xFFFFFFFF, LATE_NS)
            else:
                station.core.passed(src[0], below[0], wait_ns[0])

    def _doubt(self, station: Station) -> None:
        doubtful = int(self.lib.model_doubtful(station.model))
        if doubtful and not station.trusted_at:
            station.doubts.append((self.now, doubtful))
            station.trusted_at = self.now + DOUBT_NS
        elif doubtful and self.now >= station.trusted_at:
            if not any(doubtful >> link & 1 for link in self.dead):
                self.lib.model_trust(station.model)
            station.trusted_at = 0

    # ---- figures

    @property
    def delivered(self) -> int:
        """Messages, at the station that has least."""
        return min(station.delivered for station in self.stations)

    @property
    def again(self) -> float:
        """Frames sent again for each one sent first."""
        counts = [station.core.counters() for station in self.stations]
        return sum(c["tx_retransmit"] + c["tx_relay"] for c in counts) / max(1, sum(c["tx_data"] for c in counts))

    @property
    def doubts(self) -> list[tuple[int, int]]:
        return sorted(doubt for station in self.stations for doubt in station.doubts)

    def summary(self) -> str:
        dropped = sum(wire.dropped for wires in (self.egress, self.ports) for wire in wires.values())
        gap = max(station.gap_ns for station in self.stations) / MS
        return (
            f"{self.delivered} messages, {self.again:.3f} again, {dropped} dropped, {len(self.doubts)} doubts, gap {gap:.1f} ms"
        )
