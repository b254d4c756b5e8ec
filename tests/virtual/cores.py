"""C cores on the virtual segment. The test drives them step by step, and says which frame reaches which station."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from zenjun.proto.core import Core, Message
from zenjun.proto.wire import MESSAGE_MAX, Kind, view_hash

from .pdus import peek
from .segment import MS, NEVER, US, Segment

PROMPT: Final[dict[str, Any]] = {
    "window": 16,
    "slots": 64,
    "message_max": 1 << 20,
    "confirm_delay_ns": MS // 5,
    "nak_delay_ns": MS // 5,
    "nak_retry_ns": 2 * MS,
    "nak_retry_max_ns": 100 * MS,
    "poll_delay_ns": 5 * MS,
    "poll_delay_max_ns": 200 * MS,
}
"""Other settings than ``config`` has: few buffers, and confirmations long before the next poll."""


def config(**changes: int) -> dict[str, Any]:
    """Settings of a core, of one station unless ``changes`` say otherwise."""
    return {
        "stations": 1,
        "self_index": 0,
        "cluster": 1,
        "window": 64,
        "slots": 128,
        "frame_max": 1500,
        "message_max": MESSAGE_MAX,
        "confirm_delay_ns": MS,
        "nak_delay_ns": MS,
        "nak_retry_ns": MS,
        "nak_retry_max_ns": 10 * MS,
        "poll_delay_ns": MS,
        "poll_delay_max_ns": 10 * MS,
        "retransmit_gap_ns": MS,
        **changes,
    }


@dataclass(eq=False)
class CoreStation:
    """One core, its MAC address, and the results of what it received."""

    core: Core
    drops: list[int] = field(default_factory=list)
    """Result of each reception (``Drop``; 0: taken)."""

    @property
    def mac(self) -> bytes:
        return bytes((2, 0, 0, 0, 0, self.core.index + 1))

    def collect(self) -> list[bytes]:
        return self.core.tx()

    def on_frames(self, now: int, batch: list[tuple[bytes, bytes]]) -> None:
        self.drops += [self.core.rx(now, pdu, mac) for pdu, mac in batch]

    def next_deadline_ns(self) -> int:
        return NEVER

    def on_timeout(self, now: int) -> None:
        raise AssertionError("the test drives the cores itself")


class Cores(Segment[CoreStation]):
    """n cores, of which the members are in an instance.

    members: indices; None is all. incarnations: of all stations, 0 for one that is no member; None is 1 for each member.
    view: None is the hash of instance and incarnations. per_core: further settings of single cores. options: ``config``'s.
    """

    def __init__(
        self,
        n: int,
        *,
        members: Iterable[int] | None = None,
        instance: int = 1,
        incarnations: Sequence[int] | None = None,
        view: int | None = None,
        now: int = MS,
        echo: bool = False,
        per_core: Mapping[int, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        self.n = n
        of = per_core or {}
        self.cores = [Core(**config(**{"stations": n, "self_index": k, "seed": k, **options, **of.get(k, {})})) for k in range(n)]
        super().__init__(map(CoreStation, self.cores), now=now, echo=echo)
        self.members = tuple(range(n) if members is None else members)
        self.incarnations = tuple(incarnations or (int(k in self.members) for k in range(n)))
        self.instance = instance
        self.got: list[list[Message]] = [[] for _ in self.cores]
        """What each station has delivered."""
        hash_ = view_hash(instance, self.incarnations) if view is None else view
        for k in self.members:
            self.cores[k].open(now, instance, hash_, self.incarnations, options.get("frame_max", 1500))

    def __getitem__(self, k: int) -> Core:
        return self.cores[k]

    def offer(self, k: int, data: bytes = b"p", **options: Any) -> None:
        """Give station k a message that it takes at once."""
        assert self.cores[k].offer(data, group=1, client=1, **options)

    def step(self, k: int, advance_ns: int = US, *, timers: bool = False) -> list[bytes]:
        """What station k broadcasts now. timers: also what it asks for because it is due."""
        self.now += advance_ns
        core = self.cores[k]
        core.step(self.now, True)
        if timers:
            core.nak(self.now)
            core.poll(self.now)
        return self.stations[k].collect()

    def send(self, k: int, data: bytes = b"p", **options: Any) -> bytes:
        """Station k broadcasts a DATA PDU, which is not carried yet."""
        self.offer(k, data, **options)
        return next(pdu for pdu in self.step(k) if peek(pdu, "kind") == Kind.DATA)

    def give(self, source: int, to: int, pdu: bytes) -> int:
        """One PDU reaches one station; returns why it was dropped (``Drop``), 0 if it was not."""
        self.stations[to].on_frames(self.now, [(pdu, self.stations[source].mac)])
        return self.stations[to].drops[-1]

    def answer(self, to: int, *pdus: bytes) -> list[bytes]:
        """The PDUs reach one station, which takes them all; returns what it broadcasts then."""
        for pdu in pdus:
            assert self.give(peek(pdu, "src") - 1, to, pdu) == 0
        return self.step(to)

    def broadcast(self, *pdus: bytes, lost: Iterable[int] = ()) -> None:
        """The PDUs reach all stations but those that lose them."""
        held = [self.stations[k] for k in lost]
        before, self.lost = self.lost, lambda source, to, pdu: to in held
        self.carry([(self.stations[peek(pdu, "src") - 1], pdu) for pdu in pdus])
        self.lost = before

    def deliver(self, k: int) -> list[Message]:
        """What station k delivers now; it is in ``got``, too."""
        now = self.cores[k].deliver()
        self.cores[k].positions()
        self.got[k] += now
        return now
