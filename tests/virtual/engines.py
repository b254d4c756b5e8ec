"""Whole engines on the virtual segment, each with its disk, its effects and what it has delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from zenjun.daemon.config.options import ClusterOptions
from zenjun.proto.core import Medium, Message, Positions
from zenjun.proto.effects import Blocked, Changed, Effect, Persist, Send
from zenjun.proto.engine import EngineConfig
from zenjun.proto.openpdu import decode_header
from zenjun.proto.wire import MESSAGE_MAX, Kind, MessageType

from ..sim import broken
from .segment import MS, NEVER, Segment

START: Final = 1_000_000 * MS
LATENCY: Final = 50_000
TIMES: Final = ClusterOptions(name="test", stations=3).times_ns()
"""As users have them by default."""
CONFIG: Final = EngineConfig(
    cluster="test", stations=3, station=1, window_frames=128, frame_max=1500, message_max=MESSAGE_MAX, **TIMES
)


@dataclass(eq=False)
class Node:
    """A daemon without a machine: one engine, what it delivered and what it asked for."""

    config: EngineConfig
    rules: frozenset[str] = frozenset()
    """Broken on purpose (tests/sim/broken.py)."""
    disk: tuple[int, int] = (0, 0)
    effects: list[Effect] = field(default_factory=list)
    delivered: list[Message] = field(default_factory=list)
    views: list[Message] = field(default_factory=list)
    """View events, at their place in the order."""
    sent: list[bytes] = field(default_factory=list)
    """Not on the segment yet."""
    before: Positions | None = None
    """Of the last instance, when the rest of it was delivered between it and the next one."""
    boots: int = 0
    paused: bool = False
    """It does nothing; what it receives waits."""
    backlog: list[tuple[bytes, bytes]] = field(default_factory=list)

    @property
    def mac(self) -> bytes:
        return bytes([2, 0, 0, 0, 0, self.config.station])

    def boot(self, now: int) -> None:
        self.boots += 1
        config = replace(self.config, boot=self.config.station * 1000 + self.boots)
        self.engine = broken.engine(self.rules)(config, incarnation=self.disk[0] + 1, instance=self.disk[1])
        self.engine.set_mac(self.mac)
        self.apply(now, self.engine.start(now))

    def apply(self, now: int, effects: list[Effect]) -> None:
        self.effects += effects
        for effect in effects:
            match effect:
                case Persist(incarnation, instance):
                    self.disk = (incarnation, instance)
                case Send(pdu):
                    self.sent.append(pdu)
                case _:
                    pass
        for message in self.engine.core.deliver():
            (self.views if message.type == MessageType.VIEW else self.delivered).append(message)
        positions = self.engine.core.positions()
        self.before = positions if self.engine.core.flushing else self.before
        self.sent += self.engine.core.tx(now)

    # ---- as the segment sees it

    def collect(self) -> list[bytes]:
        sent, self.sent = self.sent, []
        return sent

    def on_frames(self, now: int, batch: list[tuple[bytes, bytes]]) -> None:
        self.backlog += batch
        if self.backlog and not self.paused:
            waiting, self.backlog = self.backlog, []
            self.apply(now, self.engine.on_frames(now, waiting))

    def next_deadline_ns(self) -> int:
        return NEVER if self.paused else self.engine.next_deadline_ns()

    def on_timeout(self, now: int) -> None:
        self.apply(now, self.engine.on_timeout(now))

    # ---- what it reported

    def reported(self, kind: type[Effect]) -> list[Any]:
        return [e for e in self.effects if isinstance(e, kind)]

    def left(self) -> list[tuple[int, ...]]:
        """The stations removed, instance by instance."""
        return [changed.left for changed in self.reported(Changed)]

    def blocked(self) -> tuple[tuple[int, str], ...]:
        """As last reported."""
        reports = self.reported(Blocked)
        return reports[-1].stations if reports else ()


class Cluster(Segment[Node]):
    """n engines, booted.

    changes: fields of their ``EngineConfig``. rules: broken in all of them (tests/sim/broken.py). files: what is different at
    single stations, by number; if given, these are the stations, whatever n.
    """

    def __init__(
        self,
        n: int = 3,
        rules: frozenset[str] = frozenset(),
        files: Mapping[int, Mapping[str, Any]] | None = None,
        **changes: Any,
    ) -> None:
        base = replace(CONFIG, **{"stations": n, **changes})
        own = files or {k: {} for k in range(1, n + 1)}
        configs = [replace(base, station=k, seed=k - 1, host_name=f"host{k}", **own[k]) for k in sorted(own)]
        self.nodes = [Node(config, rules) for config in configs]
        super().__init__(self.nodes, now=START, latency_ns=LATENCY, echo=base.medium == Medium.BUS)
        for node in self.nodes:
            node.boot(self.now)

    def send(self, i: int, *payloads: bytes, need_ack: bool = False) -> None:
        node = self.nodes[i]
        for payload in payloads:
            for _ in range(10_000):
                if node.engine.offer(self.now, 1, 1, 0, payload, need_ack):
                    break
                node.apply(self.now, node.engine.on_frames(self.now, []))
                self.run(MS)
            else:
                raise AssertionError("never taken")
        node.apply(self.now, node.engine.on_frames(self.now, []))

    def orders(self) -> list[list[tuple[int, bytes]]]:
        """(source, message) as each station has delivered them."""
        return [[(m.src, m.data) for m in node.delivered] for node in self.nodes]

    def kinds(self) -> list[Kind]:
        """Of all frames sent."""
        return [Kind(header["kind"]) for frame in self.frames if (header := decode_header(frame))]


def opened(n: int = 3, **changes: Any) -> Cluster:
    """A cluster in its first instance."""
    cluster = Cluster(n, **changes)
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes))
    cluster.run(20 * MS)
    return cluster


def settled(cluster: Cluster, count: int) -> bool:
    """Has each station delivered this many messages?"""
    return all(len(node.delivered) == count for node in cluster.nodes)
