"""Parts of corosync's stand-in that break a rule each. The docstring of each begins with the rule (docs/corosync.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from zenjun.proto.service.base import Effect, Place, Source, Store
from zenjun.proto.service.corosync.cpg import MESSAGE_BYTES, Cpg, Handle, State
from zenjun.proto.service.corosync.messages import List, Mcast, Message, Process, ProcJoin, ProcLeave, Reason
from zenjun.proto.service.corosync.results import Address, Answer, Changed, Code, Disconnect, Meeting, Members
from zenjun.proto.service.corosync.ring import COUNTS_AHEAD, PAST_KEY, Phase, Ring, Round, Table
from zenjun.proto.service.corosync.standin import StandIn
from zenjun.proto.service.corosync.tracking import Trackers
from zenjun.proto.service.corosync.votequorum import Votequorum

# ---- rings


class LetsAnybodyIn(Ring):
    """Y2: who has another nodelist is let in."""

    def _accepted(self, lists: dict[Source, List]) -> dict[Source, int]:
        return {source: said.node for source, said in sorted(lists.items())}


class Forgets(Ring):
    """Y3: a ring's number is not durable."""

    def _reserve(self, count: int, life: int) -> Effect:
        super()._reserve(count, life)
        return Store(PAST_KEY, bytes(16))


class BeyondReserve(Ring):
    """Y3: numbers are used beyond those that are reserved."""

    def _has_reserve(self, counts: int, lives: int) -> bool:
        return self._reserved[0] >= COUNTS_AHEAD


class NoLives(Ring):
    """Y3: the number alone tells rings apart."""

    def _seq(self, lives: dict[int, int]) -> int:
        return self.count


class OneLife(Ring):
    """Y3: a life does not end where a LIST was said."""

    def _alone(self, now_ns: int, linger_ns: int = 0) -> list[Effect]:
        life, was = self.life, self.id
        effects = super()._alone(now_ns, linger_ns)
        if self.id == was:
            self.life = life
        return effects


class ViewsOnly(Ring):
    """Y4: zenjund's views are passed on, and nothing else."""

    def on_blocked(self, now_ns: int, quorum: bool) -> list[Effect]:
        return []

    def on_lost(self, now_ns: int) -> list[Effect]:
        return []


class StaysConnected(Ring):
    """Y5: who goes alone does not close its connection."""

    def _alone(self, now_ns: int, linger_ns: int = 0) -> list[Effect]:
        return [effect for effect in super()._alone(now_ns) if not isinstance(effect, Disconnect)]

    def on_timer(self, now_ns: int) -> list[Effect]:
        """It goes on where it was."""
        if self.phase is Phase.OUT and self._me != (0, 0) and self._retry_at_ns is not None and now_ns >= self._retry_at_ns:
            self._retry_at_ns = None
            self.phase = Phase.WAITING
            return []
        return super().on_timer(now_ns)


class LeavesAtOnce(Ring):
    """Y5: the others see a node leave as soon as it has lost quorum."""

    def _alone(self, now_ns: int, linger_ns: int = 0) -> list[Effect]:
        return super()._alone(now_ns)


class DropsOwn(Ring):
    """Y5: who goes alone drops its own messages under way."""

    def _deliver_own(self) -> list[Effect]:
        return []


class KeepsLists(Ring):
    """Y6: lists are kept over rounds."""

    def _begin_round(self, place: Place, members: frozenset[Source]) -> list[Effect]:
        effects = super()._begin_round(place, members)
        assert self._round is not None
        self._round.lists |= {s: said for s, said in self._old.items() if s in members}
        return effects

    _old: dict[Source, List] = {}  # noqa: RUF012

    def _listed(self, source: Source, said: List) -> list[Effect]:
        self._old = {**self._old, source: said}
        return super()._listed(source, said)


class BehindTheList(Ring):
    """Y6: only what stands behind its sender's LIST counts, as the design had it."""

    def on_message(self, source: Source, data: bytes) -> list[Effect]:
        current = self._round
        before = len(current.since) if current is not None else 0
        effects = super().on_message(source, data)
        if current is not None and source not in current.lists:
            del current.since[before:]
        return effects


class DoesNotWait(Ring):
    """Y6: requests take effect while a round may let the node in."""

    def submit(self, message: Message) -> list[Effect]:
        if self.phase is Phase.SYNCING:
            return self._apply(self.node, message)
        return super().submit(message)


class CountsAnew(Ring):
    """Y6: a joiner does not decide again whether there was room."""

    def _agreed(self, current: Round, before: dict[Source, int]) -> Table:
        table: Table = {node: set(current.lists[source].processes) for source, node in before.items()}
        for source, message in current.since:
            if source in before and isinstance(message, ProcJoin):
                table[before[source]].add(message.process)
            elif source in before and isinstance(message, ProcLeave):
                table[before[source]].discard(message.process)
        return table


class NodeUpAsJoin(Ring):
    """Y8: processes of rings that meet have joined."""

    def _make(self, count: int, *, left: Collection[int], joined: Table, meeting: Meeting | None = None) -> list[Effect]:
        hearer = self._hearer

        class Renamed:
            def on_members(self, change: Members) -> list[Effect]:
                joined = tuple(a._replace(reason=Reason.JOIN) for a in change.joined)
                return hearer.on_members(change._replace(joined=joined))

            def __getattr__(self, name: str) -> Any:
                return getattr(hearer, name)

        self._hearer = Renamed()
        try:
            return super()._make(count, left=left, joined=joined, meeting=meeting)
        finally:
            self._hearer = hearer


class OwnNodeDown(Ring):
    """Y8: who goes alone tells its programs that they were on a node that is down."""

    def _make_alone(self, left: Collection[int]) -> list[Effect]:
        effects: list[Effect] = []
        if left:
            own, self.table[self.node] = self.table[self.node], set()
            for process in sorted(own):
                gone = (self.addresses(process.group), process)
                effects += self._tell_gone(*gone)
            self.table[self.node] = own
        return effects + super()._make_alone(left)

    def _tell_gone(self, members: tuple[Any, ...], process: Process) -> list[Effect]:
        left = (Address(self.node, process.pid, Reason.NODEDOWN),)
        return self._hearer.on_members(Members(process.group, members, left, ()))


# ---- process groups


class OnlyChanged(Cpg):
    """Y7: a ring is told to those whose groups have changed."""

    touched: frozenset[bytes] = frozenset()

    def on_members(self, change: Members) -> Iterator[Effect]:
        self.touched |= {change.group}
        return super().on_members(change)

    def on_changed(self, changed: Changed) -> Iterator[Effect]:
        touched, self.touched = self.touched, frozenset()
        self.told = (changed.ring, changed.members)
        for effect in super().on_changed(changed):
            process = self.handles[effect.handle].process  # type: ignore[attr-defined]
            if process is not None and process.group in touched:
                yield effect


class SamePid(Cpg):
    """Y9: a process may come back while its former connection's end has no place yet."""

    def _may_join(self, handle: Handle, process: Process) -> Code:
        self.going.clear()
        return super()._may_join(handle, process)


class AnyEnd(Cpg):
    """Y9: the place of an older process's leave is taken for that of the connection's end, which is still under way."""

    def on_members(self, change: Members) -> Iterator[Effect]:
        self.going -= {Process(change.group, a.pid) for a in change.left if a.node == self.ring.node}
        return super().on_members(change)


class DropsOverload(Cpg):
    """Y10: what is too much is dropped, as corosync does it."""

    def mcast(self, number: int, data: bytes) -> list[Effect]:
        if self.room.of(number) > MESSAGE_BYTES + 4:
            return [Answer(number, Code.OK)]
        return super().mcast(number, data)


class DeafLeaver(Cpg):
    """Y10: who leaves hears nothing from then on."""

    def on_delivered(self, node: int, message: Mcast) -> Iterator[Effect]:
        for effect in super().on_delivered(node, message):
            if self.handles[effect.handle].state is not State.LEAVING:  # type: ignore[attr-defined]
                yield effect


class PassesParts(Cpg):
    """Y10: parts go to who lacks the first one."""

    def _has_beginning(self, handle: Handle, node: int, message: Mcast) -> bool:
        return True


# ---- quorum


class GroupsFirst(StandIn):
    """Y7: quorum is told last, also if it is lost."""

    def on_changed(self, changed: Changed, changes: list[Effect]) -> list[Effect]:
        groups = [*changes, *self.cpg.on_changed(changed)]
        self.votequorum.on_changed(changed)
        return [*groups, *self.trackers.on_changed(changed)]


class QuorumFirst(Trackers):
    """Y7: quorum is told before the nodes."""

    def on_changed(self, changed: Changed) -> Iterator[Effect]:
        return reversed(list(super().on_changed(changed)))


class CountsSeen(Votequorum):
    """Y11: votes of nodes that have left count."""

    @property
    def total(self) -> int:
        return sum(self.votes.values())


class OwnExpected(Votequorum):
    """Y11: everybody keeps its own expected votes."""

    def _meet(self, meeting: Meeting) -> None:
        own = self.expected
        super()._meet(meeting)
        self.expected = own


class ForgetsVotes(Votequorum):
    """Y11: who is let in takes votes as of the round's place."""

    def _take_over(self, meeting: Meeting) -> None:
        super()._take_over(meeting._replace(since=()))


class NeverWaits(Votequorum):
    """Y11: nobody waits for all."""

    def _decide(self) -> None:
        self.waiting = False
        super()._decide()


class WaitsOnce(Votequorum):
    """Y11: who has lost quorum does not wait again."""

    def _decide(self) -> None:
        waiting = self.waiting
        super()._decide()
        self.waiting = self.waiting and waiting


class AnyHalf(Votequorum):
    """Y12: any half of the votes breaks the tie."""

    def _breaks_tie(self) -> bool:
        return self.config.auto_tie_breaker and self.total * 2 == self.expected


PARTS: dict[str, dict[str, Any]] = {
    **{c.__name__: {"ring": c} for c in (LetsAnybodyIn, Forgets, NoLives, OneLife, ViewsOnly, StaysConnected, DropsOwn)},
    **{c.__name__: {"ring": c} for c in (KeepsLists, BehindTheList, DoesNotWait, CountsAnew, NodeUpAsJoin, OwnNodeDown)},
    **{c.__name__: {"cpg": c} for c in (OnlyChanged, SamePid, AnyEnd, DropsOverload, DeafLeaver, PassesParts)},
    "BeyondReserve": {"ring": BeyondReserve},
    "LeavesAtOnce": {"ring": LeavesAtOnce},
    "GroupsFirst": {"standin": GroupsFirst},
    "QuorumFirst": {"trackers": QuorumFirst},
    **{c.__name__: {"votequorum": c} for c in (CountsSeen, OwnExpected, ForgetsVotes, NeverWaits, WaitsOnce, AnyHalf)},
}
"""Name to the classes in place of the honest ones."""
