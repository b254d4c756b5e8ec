"""Some cores on a medium in the test's hands, and the membership agreement done by hand: what the engine does, step by step."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from zenjun.proto.core import Commit, Message, Stage, Vote
from zenjun.proto.wire import CHANGE, PROPOSAL, Kind, MessageType, view_hash

from ..virtual.cores import Cores
from ..virtual.segment import MS, NEVER

FRAME_MAX = 600
SETTLE_ROUNDS = 60

Filter = Callable[[int, int, bytes], bool]
"""(from, to, PDU) -> does it arrive?"""


class Start(NamedTuple):
    role: int = 0
    incarnation: int = 0
    seq: int = 0
    clock: int = 0


class Own(NamedTuple):
    """A vote as its own station cast it."""

    seq: int
    clock: int
    pdu: bytes


@dataclass
class Change:
    """A decided proposal, as far as all stations see it alike."""

    instance: int
    incarnations: tuple[int, ...]
    joined: tuple[int, ...]
    votes: dict[int, Own]

    @property
    def place(self) -> tuple[int, int]:
        return max((vote.clock, k) for k, vote in self.votes.items())

    @property
    def view(self) -> int:
        return view_hash(self.instance, self.incarnations)


def bits(stations: Iterable[int]) -> int:
    """Bitmap of indices."""
    return sum(1 << k for k in set(stations))


def ahead(a: int, b: int) -> int:
    """How far number a is ahead of b on the wire, where numbers wrap."""
    return (a - b + 2**31) % 2**32 - 2**31


def proposal(members: Iterable[int], changes: Sequence[tuple[int, int]]) -> bytes:
    """Payload of a vote; stations are indices."""
    head = PROPOSAL.struct.pack(0, 0, bits(members), len(changes))
    return head + b"".join(CHANGE.struct.pack(k + 1, value & 0xFFFFFFFF) for k, value in changes)


class Rig(Cores):
    """``members`` open an instance; the other stations' cores exist and are closed."""

    def __init__(
        self,
        n: int,
        members: tuple[int, ...],
        changes: Mapping[str, Any] | None = None,
        per_core: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        base = {"frame_max": FRAME_MAX, "message_max": 20_000, **(changes or {})}
        incarnations = tuple(10 + k if k in members else 0 for k in range(n))
        super().__init__(n, members=members, incarnations=incarnations, per_core=per_core, **base)
        self.alive = set(members)
        self.mute: set[int] = set()  # these do not deliver
        self.votes: list[list[Vote]] = [[] for _ in self.cores]

    # ---- the medium

    def step(self, k: int, advance_ns: int = 0, *, timers: bool = True) -> list[bytes]:
        return super().step(k, advance_ns, timers=timers)

    def take(self, k: int) -> list[Message]:
        """Votes, then messages of station k."""
        self.votes[k] += self.cores[k].proposals()
        if k not in self.mute:
            return self.deliver(k)
        self.cores[k].positions()
        return []

    def turn(self, passes: Filter = lambda source, to, pdu: True, wait: int = 2 * MS) -> int:
        """All stations alive step and send, then all receive and deliver; returns how many frames were sent."""
        self.now += wait
        sent = [(k, pdu) for k in sorted(self.alive) for pdu in self.step(k)]
        for source, pdu in sent:
            for to in sorted(self.alive - {source}):
                if passes(source, to, pdu):
                    self.give(source, to, pdu)
        for k in sorted(self.alive):
            self.take(k)
        return len(sent)

    def settle(self, passes: Filter = lambda source, to, pdu: True) -> None:
        """Until no station sends any more; then nothing is pending either."""
        silent = 0
        for _ in range(SETTLE_ROUNDS):
            silent = silent + 1 if not self.turn(passes, 20 * MS) else 0
            if silent == 3:  # in a first one a timer may just have been set
                break
        else:
            raise AssertionError("does not fall silent")
        for k in self.alive:
            assert self.cores[k].nak_due_ns() == self.cores[k].poll_due_ns() == NEVER

    # ---- the agreement

    def cast(
        self, voters: Iterable[int], kind: Kind, members: Iterable[int], changes: Sequence[tuple[int, int]]
    ) -> dict[int, Own]:
        """All of these propose the same now."""
        payload, votes = proposal(members, changes), {}
        for k in voters:
            own = self.cores[k].propose(self.now, kind, payload)
            assert own is not None
            votes[k] = Own(*own)
        return votes

    def decided(self, votes: dict[int, Own]) -> bool:
        """Everybody knows that every voter has every vote."""
        for k in votes:
            seqs = {k: votes[k].seq} | {v.src: v.seq for v in self.votes[k] if v.src in votes and v.pdu == votes[v.src].pdu}
            if len(seqs) < len(votes) or not self.cores[k].all_have(bits(votes), seqs):
                return False
        return True

    def agree(self, votes: dict[int, Own], turns: int = 20) -> None:
        """Let frames pass until the proposal is decided everywhere."""
        for _ in range(turns):
            if self.decided(votes):
                return
            self.turn()
        raise AssertionError("not decided")

    def stop(self, gone: Iterable[int], kind: Kind = Kind.STOP) -> Change:
        """Close, equalise by raising limits, vote, decide: all but the commit."""
        gone = sorted(gone)
        voters = [k for k, inc in enumerate(self.incarnations) if inc and k not in gone]
        for k in voters:
            for h in gone:
                self.cores[k].limit(self.now, h, self.cores[k].peer(h).req)
        for h in gone:
            most = max((self.cores[k].peer(h).req for k in voters), key=lambda req: ahead(req, self.cores[voters[0]].peer(h).req))
            for k in voters:
                mine = self.cores[k].peer(h).req
                self.cores[k].limit(self.now, h, mine + ahead(most, mine))
        for _ in range(20):
            if all(self.cores[k].peer(h).req == self.cores[k].peer(h).limit for k in voters for h in gone):
                break
            self.turn()
        req = {h: self.cores[voters[0]].peer(h).req & 0xFFFFFFFF for h in gone}
        votes = self.cast(voters, kind, voters, [(h, req[h]) for h in gone])
        self.agree(votes)
        lives = tuple(0 if k in gone else inc for k, inc in enumerate(self.incarnations))
        return Change(self.instance + 1, lives, (), votes)

    def let_in(self, joiners: dict[int, int]) -> Change:
        """Vote for {station: incarnation}, wait for them, decide: all but the commits and the joins."""
        voters = [k for k, inc in enumerate(self.incarnations) if inc]
        votes = self.cast(voters, Kind.RCV_ACK, {*voters, *joiners}, sorted(joiners.items()))
        for k in voters:
            for h in joiners:
                self.cores[k].wait_for(h, votes[k].clock - 1)
        self.agree(votes)
        lives = tuple(joiners.get(k, inc) for k, inc in enumerate(self.incarnations))
        return Change(self.instance + 1, lives, tuple(joiners), votes)

    def seq_at(self, k: int, voter: int, change: Change) -> int:
        """Number of a voter's vote as station k counts."""
        if k == voter:
            return change.votes[k].seq
        return next(v.seq for v in self.votes[k] if v.src == voter and v.pdu == change.votes[voter].pdu)

    def commit(self, k: int, change: Change) -> bool:
        """Station k, a voter, carries it out."""
        clock, src = change.place
        seqs = {voter: self.seq_at(k, voter, change) for voter in change.votes}
        members = bits(h for h, inc in enumerate(change.incarnations) if inc)
        done = self.cores[k].commit(
            self.now,
            Commit(change.instance, change.view, members, bits(change.joined), clock, src, change.incarnations, seqs, FRAME_MAX),
        )
        if done:
            self.cores[k].heartbeat(self.now)
        return done

    def enter(self, k: int, change: Change) -> None:
        """Station k starts as a joiner."""
        starts = [
            Start(2, inc) if h in change.joined
            else Start(1, inc, change.votes[h].seq & 0xFFFFFFFF, change.votes[h].clock) if inc
            else Start()
            for h, inc in enumerate(change.incarnations)
        ]  # fmt: skip
        clock, src = change.place
        self.cores[k].join(self.now, change.instance, change.view, starts, clock, src, FRAME_MAX)
        self.cores[k].heartbeat(self.now)
        self.alive.add(k)
        self.got[k].clear()
        self.votes[k].clear()

    def carry_out(self, change: Change) -> None:
        """Everybody at once."""
        for k in change.votes:
            assert self.commit(k, change)
        for k in change.joined:
            self.enter(k, change)
        self.instance, self.incarnations = change.instance, change.incarnations
        self.alive &= {k for k, inc in enumerate(change.incarnations) if inc}

    # ---- what came out

    def shown(self, k: int) -> list[bytes | int]:
        """Messages of station k in the total order, and view events as their instance numbers."""
        return [
            struct.unpack_from(">I", m.data)[0] if m.type == MessageType.VIEW else m.data
            for m in self.got[k]
            if m.stage == Stage.DELIVERED
        ]

    def levels(self, k: int) -> tuple[int, int, int]:
        return tuple(self.cores[k].positions())  # type: ignore[return-value]

    def no_fence(self) -> None:
        assert [core.fence() for core in self.cores] == [None] * self.n
