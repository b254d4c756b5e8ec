"""The rules of docs/multicast.md broken on purpose, one class each; the letters are those of its table of what the paper prints.

``test_broken.py`` names the checkers that detect each of them. Tokens as printed (letters h, i, j) are in ``printed.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from zenjun.proto.multicast.main import Decision, MainOrder
from zenjun.proto.multicast.records import Data, Decide, DeliverView, Effect, Entry, Flush, Id, Left, Listed, Record, Relay
from zenjun.proto.multicast.station import Station
from zenjun.proto.multicast.tables import Era, Program, TokenTable
from zenjun.proto.multicast.work import Message, Tail

from .link import Frame, LinkEnd
from .net import Host
from .world import World

# ---- what the paper prints


class LoseEarlyDecisions(Station):
    """O7: (a) a decision that comes before the data is lost."""

    def _on_decide(self, source: int, record: Decide) -> None:
        super()._on_decide(source, record)
        self.to_follow = [(name, time) for name, time in self.to_follow if name in self.messages]


class PassMissing(Station):
    """O7: (b) a decided message whose data are missing does not delay those after it."""

    def _follow(self) -> bool:
        for k, (name, _) in enumerate(self.to_follow):
            if name in self.messages and self.messages[name].data is not None:
                self.to_follow.insert(0, self.to_follow.pop(k))
                return super()._follow()
        return False


class _DecideToAll(Station):
    """Base: the coordinator sends the decision to all destinations, and no token host sends it to its followers."""

    def _decide_to(self, m: Message) -> frozenset[int]:
        return m.destinations - {self.me}

    def _followers(self, m: Message) -> frozenset[int]:
        return m.destinations - self._proposers(m) if self._coordinator(m) == self.me else frozenset()

    def _hand_over(self, m: Message) -> None:
        self._delivered(m)

    def _on_decide(self, source: int, record: Decide) -> None:
        super()._on_decide(source, record)
        followed = self._table(record.order).followed(self.me)
        if followed not in (self.me, source):
            self.to_follow += [(name, record.time) for name in record.ids()]


class DecideToAll(_DecideToAll):
    """O7: (f) a follower has its decisions from the coordinator, and delivers in the order in which they come."""


class OwnTimes(_DecideToAll):
    """O6, O7: (c) at a follower an undecided message has the station's own time of receipt."""

    def _on_data(self, data: Data, destinations: frozenset[int]) -> None:
        super()._on_data(data, destinations)
        self.clock += 1
        self._received = {**self._received, data.id: self.clock}

    _received: dict[Id, int] = {}  # noqa: RUF012

    def _follow(self) -> bool:
        times = dict(self.to_follow)
        here = [
            m
            for m in self._current()
            if m.data is not None and not m.delivered and self.me in m.destinations - self._proposers(m)
        ]
        if not here:
            return False
        least = min(here, key=lambda m: (times.get(m.id, self._received.get(m.id, 0)), m.id.origin, m.id.number))
        if least.id not in times:
            return False
        least.time = times[least.id]
        self.to_follow = [(name, time) for name, time in self.to_follow if name != least.id]
        self._hand_over(least)
        return True


class NoClock(Station):
    """O5: (d) what is reported after a decision may have an earlier time."""

    def _raise_clock(self, time: int) -> None:
        pass


class TiesByArrival(Station):
    """O5: (e) equal times are ordered by arrival."""

    def _key(self, m: Message) -> tuple[int, int, int]:
        return (m.key[0], m.input, m.id.number)


class TwoSupers(Station):
    """T3: (g) for a message to two groups the super token hosts of both decide."""

    def _hosts(self, m: Message) -> frozenset[int]:
        table = self._table(m.order)
        assert isinstance(table, TokenTable)
        own = table.groups_of(self.me) & frozenset(m.groups)
        return table.hosts_in(min(own or m.groups))

    def _proposers(self, m: Message) -> frozenset[int]:
        return self._hosts(m) if m.order == "token" else super()._proposers(m)

    def _coordinator(self, m: Message) -> int:
        return min(self._hosts(m)) if m.order == "token" else super()._coordinator(m)


class NoFlush(Station):
    """E2: (k) tokens move at the place of a change, with messages under way."""

    def _freeze(self) -> None:
        decision = self.main.decide()
        self.effects.append(DeliverView(self.era.number, decision.view_times[self.era.number]))
        self.main.forget()
        waiting, self.waiting = self.waiting, []
        for source, record in waiting:
            self._take(source, record)

    def _take(self, source: int, record: Record) -> None:
        if isinstance(record, Data):
            self._on_data(record, self._table(record.order).destinations(record.groups))
        elif not isinstance(record, Relay):
            self._on_record(source, record)

    def _current(self) -> list[Message]:
        return sorted((m for m in self.messages.values() if not m.finished), key=lambda m: m.id)

    def _coordinator(self, m: Message) -> int:
        return super()._coordinator(m) if self._proposers(m) else 0

    def _followers(self, m: Message) -> frozenset[int]:
        return super()._followers(m) if self._table(m.order).groups else frozenset()


class NobodyDecides(MainOrder):
    """E4: (l) what the dead coordinator has not sent to any station is never decided."""

    def decide(self) -> Decision:
        decision = super().decide()
        known = {m.id for f in (self.flushes or {}).values() for m in f.listed if m.time is not None}
        return replace(decision, messages={i: m for i, m in decision.messages.items() if i in known})


class LoseDecisions(World):
    """L1: (m) a decision is lost on its way, and no station notices that."""

    def transmit(self, host: Host, to: int, record: Record) -> None:
        if not (isinstance(record, Decide) and self._chance(0.05)):
            super().transmit(host, to, record)


# ---- what the design could do without


class NoSeen(Station):
    """O1: a report is not above the originator's clock."""

    def _on_data(self, data: Data, destinations: frozenset[int]) -> None:
        super()._on_data(replace(data, seen=0), destinations)


class NoWait(Station):
    """O3: reported although an earlier message of the program is not decided."""

    def _waits(self, m: Message) -> bool:
        return False


class DecideEarly(Station):
    """O4: decided with the first report."""

    def _is_reported(self, m: Message) -> bool:
        return bool(self.reports[m.id])


class Smallest(Station):
    """O4: the smallest report is decided."""

    def _largest(self, m: Message) -> int:
        return min(self.reports[m.id].values())


class DeliverDecided(Station):
    """O6: a decided message is delivered although a lesser one is undecided."""

    def _key(self, m: Message) -> tuple[int, int, int]:
        return (int(m.time is None), *m.key[:2])


class RunsMix(Station):
    """O8: what came together shares a time, whatever its groups and its program's earlier messages."""

    def _waits(self, m: Message) -> bool:
        return super()._waits(m) and not any(
            e.input == m.input and e.id.number == m.id.number - 1 and e.id.origin == m.id.origin for e in self._current()
        )


class StableAtDelivery(Station):
    """S1: stable as soon as the coordinator has delivered it."""

    def _have_said_held(self, m: Message, stations: object) -> bool:
        return True


class HeldByItself(Station):
    """S1: a token host does not wait for its followers."""

    def _is_held(self, name: Id) -> bool:
        m = self.messages.get(name)
        return m is not None and m.delivered


class NoWordToOutside(Station):
    """S2: an originator outside the groups does not learn that its message is stable."""

    def _sent_by(self, origin: int, order: str) -> Tail[Message]:
        return Tail()


class NeverSettle(Station):
    """S3: HELD and STABLE go with the next record only."""

    @property
    def deadline(self) -> int | None:
        return None


class NoWatermark(Station):
    """S4: a destination learns by STABLE only what it may forget."""

    def _on_finished(self, data: Data) -> None:
        pass


class NoWindow(Station):
    """S4: an originator uses numbers as far as it likes."""

    def send(self, now: int, program: Program, groups: Iterable[int], content: bytes, safe: bool = False) -> Id | None:
        window, self.window = self.window, 1 << 30
        try:
            return super().send(now, program, groups, content, safe)
        finally:
            self.window = window


class SilentLeave(MainOrder):
    """E1: a leave changes the table at its place, and begins no era."""

    def change(self, entry: Entry) -> bool:
        if not isinstance(entry, Left):
            return super().change(entry)
        before = (self.awaited, self.flushes, self.closed, self.decided)
        if super().change(entry):
            tables = self.eras.pop().tables
            self.eras[-1] = replace(self.eras[-1], tables=tables)
            self.awaited, self.flushes, self.closed, self.decided = before
        return False


class FlushWithoutTimes(Station):
    """E3: FLUSH does not contain the known times."""

    def _listed(self) -> tuple[Listed, ...]:
        return tuple(replace(m, time=None) for m in super()._listed())


class NoNext(MainOrder):
    """E4: an undecided message comes after all others, also after later ones of its program."""

    def _time_for(self, later: list[int], clock: int) -> int:
        return clock + 1


class OldLives(MainOrder):
    """E4: a station that has come back counts as the destination that it was."""

    def is_same_life(self, station: int, era: Era) -> bool:
        return station in era.part and station in self.era.part


class AnyFlush(MainOrder):
    """E3: a FLUSH counts for whatever change is under way."""

    def flush(self, entry: Flush) -> bool:
        return super().flush(replace(entry, opens=self.era.number))


class OnePlace(MainOrder):
    """E6: all eras that a change ends have the same places."""

    def _decide_era(self, messages: list[Listed], clock: int) -> dict[Id, Listed]:
        return super()._decide_era(messages, self.clock)


class DecideWhenFrozen(Station):
    """E2: the earlier eras continue until the change is decided."""

    _late = False
    _was_late = False
    _before: Era

    @property
    def era(self) -> Era:
        return self._before if self._late else self.main.era

    def _freeze(self) -> None:
        was_open = self.is_open or self._late
        self._late = False
        super()._freeze()
        self._late = was_open and self._decision is None
        if self._late and not self._was_late:
            self._before = self.main.eras[-2]
        self._was_late = self._late

    def _decide_change(self) -> None:
        self._late = False
        super()._decide_change()

    def _coordinator(self, m: Message) -> int:
        return super()._coordinator(m) if self._proposers(m) else 0

    def _is_reported(self, m: Message) -> bool:
        return bool(self.reports[m.id]) and super()._is_reported(m)

    def after(self, now: int) -> list[Effect]:
        if self._late:
            self._advance()
        return super().after(now)

    def _take(self, source: int, record: Record) -> None:
        self.is_open = self._late or self.is_open
        super()._take(source, record)
        self.is_open = self.is_open and not self._late


class OpenEarly(Station):
    """E6: the era is open before what was left is delivered."""

    def _deliver_left(self) -> None:
        if not self.is_open and self._decision is not None:
            left, self._left = self._left, []
            super()._deliver_left()
            self._left = left
        for m in [m for m in self._left if m.data is not None]:
            self._left.remove(m)
            self._delivered(m)


class DeliverForgotten(Station):
    """E5: what is not known any more is delivered again."""

    def _forget(self, m: Message) -> None:
        pass

    def _is_left(self, m: Message) -> bool:
        return self.me in m.destinations and (m.finished or not m.delivered)


class NoRelay(Station):
    """E5: no station relays what a dead station has sent to some."""

    def _relay(self, decision: Decision) -> None:
        pass


class ForgetAtDelivery(Station):
    """S1: the data are forgotten as soon as they are delivered here."""

    def _delivered(self, m: Message) -> None:
        super()._delivered(m)
        if not self._is_own(m):
            m.data = None


class TakeFrozen(Station):
    """E7: records of a later era are taken before it is open."""

    def _take(self, source: int, record: Record) -> None:
        if not self.is_open and not isinstance(record, Data | Relay):
            self._on_record(source, record)
        else:
            super()._take(source, record)


class LinksNotEmptied(World):
    """E2: what the links have accepted is not taken at the place of a change."""

    def empty_links(self, host: Host) -> None:
        if self._chance(0.5):
            host.inbox.clear()


class ToEverybody(Station):
    """O1: a message goes to all stations."""

    def _receivers(self, destinations: frozenset[int]) -> frozenset[int]:
        return frozenset(self.main.members)


# ---- links


class NoPoll(LinkEnd):
    """L1: a sender without confirmations does not poll, so the last PDUs may be lost forever."""

    def _poll(self, now: int) -> None:
        self.poll_at = None


class NoFallback(LinkEnd):
    """L2: frames go to the other one's address whatever happens."""

    def _to_group(self, kind: str) -> bool:
        return not self.is_heard


class AnswerByAddress(LinkEnd):
    """L2, as designed: a station that receives a frame at the group address answers to the sender's address."""

    def _to_group(self, kind: str) -> bool:
        return not self.is_heard or self.now < self.falls_back


class CalledForGood(LinkEnd):
    """L2, first form: who has been asked at the group address stays as long as the other one's frames come there."""

    is_called = False

    def on_frame(self, now: int, frame: Frame) -> list[tuple[Record, ...]]:
        calls = self.is_called or now < self.falls_back or (frame.kind == "POLL" and self.is_heard)
        if self._is_mine(frame):
            self.is_called = frame.to_group and calls
        return super().on_frame(now, frame)

    def _to_group(self, kind: str) -> bool:
        return not self.is_heard or self.now < self.falls_back or self.is_called


class CallersCall(LinkEnd):
    """L2: an end that is only called sends its POLLs to the group address, too."""

    def _to_group(self, kind: str) -> bool:
        return super()._to_group("CONFIRM")


class NakAnswers(LinkEnd):
    """L2: a NAK counts as an answer to a POLL."""

    def _answers(self, frame: Frame) -> bool:
        return True


class AnyLink(LinkEnd):
    """L3: frames of an earlier link between the two stations are taken."""

    def _is_mine(self, frame: Frame) -> bool:
        return True


class NeverStuck(LinkEnd):
    """L4: no station is removed because a link is blocked."""

    def is_stuck(self, now: int) -> bool:
        return False
