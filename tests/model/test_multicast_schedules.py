"""Single schedules: each refuted a rule of the plan (docs/deviations.md), or is too rare for chance to find."""

from __future__ import annotations

from dataclasses import replace

import pytest
from zenjun.proto.multicast.records import Closed, Deliver, Effect, Entry, Joined, ViewEvent
from zenjun.proto.multicast.station import Station
from zenjun.proto.multicast.tables import Program

from ..rules import rule
from ..sim.violation import Violation
from .multicast import broken
from .multicast.checks import CHECKERS
from .multicast.net import MS, US, Host, Net


class Schedule(Net):
    """A frame takes 100 us, but for the links named in ``slow``; all from the moment at which they are named."""

    def __init__(self, order: str, groups: dict[int, tuple[int, ...]], kind: type[Station] = Station, window: int = 256) -> None:
        super().__init__(kind, window, settle=1 * MS)
        self.slow: dict[tuple[int, int], int] = {}
        stations = sorted({z for members in groups.values() for z in members} | {9})
        self.got: dict[int, list[int]] = {z: [] for z in stations}
        """Contents, by station: 1 for the first message sent, and so on."""
        joins = [Joined(Program(z, 1, 1), g, order) for g, members in groups.items() for z in members]
        self.start(dict.fromkeys(stations, 1), joins)
        self.rest()

    def link_delay(self, source: int, target: int) -> int:
        return self.slow.get((source, target), 100 * US)

    def order_delay(self, station: int) -> int:
        return 50 * US

    def rest(self, time: int = 5 * MS) -> None:
        self.run_until(self.now + time)

    def apply(self, host: Host, effects: list[Effect]) -> None:
        self.got[host.station] += [int(e.content) for e in effects if isinstance(e, Deliver)]
        super().apply(host, effects)

    def stop(self, station: int) -> None:
        """A station stops, with what it has sent and has not come, and is removed."""
        self.hosts[station, 1].alive = False
        for (source, _), link in self.links.items():
            if source == (station, 1):
                link.flying.clear()
                link.queue.clear()
        del self.members[station]
        self.checks.removed = True
        self.append(ViewEvent(2, tuple(self.members.items())))

    def end(self) -> str:
        """The checker that fails, if any."""
        try:
            self.rest(100 * MS)
            self.checks.at_end()
        except Violation as violation:
            return violation.checker
        return ""


def answered(kind: type[Station]) -> Schedule:
    """Station 1 answers to {2} what it has had from 9 at level ordered, and 2 has not; the clock of 1 is ahead."""
    run = Schedule("abcast", {1: (1, 2), 2: (2,), 3: (1,)}, kind)
    for _ in range(5):
        run.send(1, [3])
    run.slow[9, 2] = 800 * US
    run.send(9, [1])
    run.rest(1100 * US)
    assert run.got[1][-1] == 6 and not run.got[2]
    run.send(1, [2])
    return run


@rule("O1")
def test_an_answer_comes_behind_what_it_answers() -> None:
    run = answered(Station)
    assert run.end() == ""
    assert run.got[2] == [6, 7]
    assert answered(broken.NoSeen).end() == "program"


def half_told(kind: type[Station]) -> Schedule:
    """Groups {1, 2, 3}, {2, 3, 4}, {1, 5}: 1 decides, 3 follows 2, and what 2 tells 3 is long on its way."""
    run = Schedule("token", {1: (1, 2, 3), 2: (2, 3, 4), 3: (1, 5)}, kind)
    run.slow[2, 3] = 50 * MS
    run.send(9, [1], safe=True)
    return run


@rule("S1")
def test_a_token_host_speaks_for_its_followers() -> None:
    """Else what 1 has released has another place at 3, when 2 has stopped."""
    for kind, unfinished, found in ((Station, 1, ""), (broken.HeldByItself, 0, "one_time")):
        run = half_told(kind)
        run.rest(1 * MS)
        originator = run.hosts[9, 1].machine
        assert originator is not None
        assert len(originator.unfinished) == unfinished and run.got[1] == [1] and not run.got[3]
        run.stop(2)
        assert run.end() == found and run.got[3] == [1]


def held_longest(kind: type[Station], only: frozenset[str] = frozenset()) -> tuple[int, str]:
    """Stations 1, 2, 3 decide, each for a group of its own with 4, whose STABLE from each of them takes long. The most messages
    that 4 holds while these checkers judge, and the checker that fails at the end."""
    groups: dict[int, tuple[int, ...]] = {1: (1, 4), 2: (2, 4), 3: (3, 4), 4: (1, 6), 5: (2, 6), 6: (3, 6)}
    run = Schedule("token", groups, kind, window=2)
    run.checks.only = only
    longest = 0
    for group in (1, 2, 3):
        for _ in range(2):
            assert run.send(9, [group], safe=True) is not None
        run.rest(350 * US)
        run.slow[group, 4] = 90 * MS
        run.rest(2 * MS)
        machine = run.hosts[4, 1].machine
        assert machine is not None
        longest = max(longest, sum(m.data is not None for m in machine.messages.values()))
    run.checks.only = CHECKERS - {"bounded"}
    return longest, run.end()


@rule("S4")
def test_what_a_destination_holds_is_bounded() -> None:
    assert held_longest(Station) == (2, "")
    assert held_longest(broken.NoWatermark) == (6, "")


@rule("S4")
@pytest.mark.parametrize("kind", [Station, broken.NoWatermark])
def test_the_checker_sees_what_a_destination_holds(kind: type[Station]) -> None:
    """Rule M11, by ``bounded`` alone."""
    only = frozenset({"bounded"})
    if kind is Station:
        held_longest(kind, only)
        return
    with pytest.raises(Violation) as caught:
        held_longest(kind, only)
    assert caught.value.checker == "bounded"


def sent_at_once(kind: type[Station]) -> None:
    """Three messages where the window has room for two."""
    run = Schedule("token", {1: (1, 2)}, kind, window=2)
    run.checks.only = frozenset({"bounded"})
    for _ in range(3):
        run.send(9, [1])


@rule("S4")
def test_the_checker_sees_a_window_that_is_not_kept() -> None:
    sent_at_once(Station)
    with pytest.raises(Violation) as caught:
        sent_at_once(broken.NoWindow)
    assert caught.value.checker == "bounded"


class SaysNothing(Schedule):
    """Of 2 it is not heard what it has delivered."""

    def broadcast(self, host: Host, entry: Entry) -> None:
        super().broadcast(host, replace(entry, digests=()) if isinstance(entry, Closed) and host.station == 2 else entry)


@rule("E6")
def test_who_says_nothing_of_a_group_has_delivered_nothing_to_it() -> None:
    for kind, sends, found in ((Schedule, True, ""), (SaysNothing, False, ""), (SaysNothing, True, "digest")):
        run = kind("token", {1: (1, 2), 2: (2,)})
        run.checks.only = frozenset({"digest"})
        if sends:
            run.send(9, [1])
            run.rest()
        run.append(Joined(Program(1, 1, 2), 2, "token"))
        assert run.end() == found
