"""The C core under what a hostile reviewer thought of. Each test states the rule it protects."""

from __future__ import annotations

from test_core_face import config
from zenjun.proto.core import Core, Message

MS = 1_000_000
US = 1_000


class Ring:
    """Some cores on a medium without loss: what one sends in a turn the others receive in the next."""

    def __init__(self, n: int, **changes: int) -> None:
        self.now = MS
        self.cores = [Core(**config(stations=n, self_index=i, seed=i, message_max=100_000, **changes)) for i in range(n)]
        self.delivered: list[list[Message]] = [[] for _ in self.cores]
        for core in self.cores:
            core.open(self.now, 1, tuple(range(1, n + 1)), 1500)

    def turn(self, sends: bool = False) -> None:
        """Everybody steps and sends, then everybody receives and delivers."""
        self.now += 10 * US
        frames = []
        for i, core in enumerate(self.cores):
            if sends:
                core.offer(b"m", group=1, client=1)
            core.step(self.now, True)
            frames += [(i, pdu) for pdu in core.tx()]
        for i, core in enumerate(self.cores):
            for source, pdu in frames:
                if source != i:
                    assert core.rx(self.now, pdu, bytes([2, 0, 0, 0, 0, source])) == 0
            self.delivered[i] += core.deliver()

    def known_to_all(self, i: int) -> int:
        """Length of the prefix of i's order of which everybody has told i, in P, that everybody has it."""
        acked = [self.cores[i].peer(h).acked for h in range(len(self.cores))]
        seen = [0] * len(self.cores)
        for message in self.delivered[i]:  # one message per PDU
            if seen[message.src] >= acked[message.src]:
                return message.position
            seen[message.src] += 1
        return len(self.delivered[i])


def test_level_ack_is_never_reported_before_everybody_has_said_it() -> None:
    """Level 3: p.seq < min over j of pack_j[p.src]. Stations that send without pause need no CONFIRM, so no P vector goes out
    unless somebody asks for it; the order's log fills all the same, and what leaves it must really have reached the level."""
    ring = Ring(3)
    for _ in range(600):  # 1,800 PDUs, three and a half logs
        ring.turn(sends=True)
        for i, core in enumerate(ring.cores):
            assert core.positions().ack <= ring.known_to_all(i)
    assert min(core.positions().ack for core in ring.cores) > 1_000  # and it does move
