"""Programs that talk without pause while stations come and go, and the comparison of what they have heard.

A ``Talker`` sits at one station, sends at a steady rate, and writes down everything that comes with the time at which it came.
A life of it is what it got between getting into an instance and being thrown out of it. Any two lives must agree wherever they
overlap.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from zenjun.daemon.client import (
    ClientError,
    ClusterView,
    ConnectionClosed,
    Event,
    Level,
    Message,
    Order,
    Timeout,
    Undecided,
    View,
    connect_sync,
)
from zenjun.tools.lab import Lab, Station

from ..stalls import Finding, found
from .cluster import wait_for

Place: TypeAlias = tuple[int, int, int]
CALL_S = 40.0
"""Deadline of every call; longer than any fault here, so that it only ends what hangs."""


@dataclass(frozen=True)
class Heard:
    """One thing that came, and when (time.monotonic)."""

    at: float
    item: Message | View | Event


class Talker:
    """A program that sends a message every ``pause_s`` (not waited for), and in a second connection one after the other, each
    waited for until it is at preack. Two threads; ``stop`` ends them."""

    def __init__(
        self, station: Station, group: str, *, level: Level = "preack", order: Order = "total", pause_s: float = 0.008
    ) -> None:
        """order op: level is *accepted* whatever is given."""
        self.station = station.id
        self.heard: list[Heard] = []
        self.sure: dict[bytes, float] = {}
        """Messages that were told to be at preack, and when."""
        self.undecided: set[bytes] = set()
        self.ended: ClientError | None = None
        """Why the connections ended, if not by ``stop``."""
        self._group, self._pause_s = group, pause_s
        self._over = threading.Event()
        self._quiet = threading.Event()
        self._insisting = threading.Event()
        path, name = str(station.socket_path), f"talker{station.id}"
        self._connections = [connect_sync(path, name=name, timeout=CALL_S, wait=20.0) for _ in range(2)]
        options = {"order": order} if order == "op" else {"level": level}
        self._mine = self._connections[0].join(group, **options)
        self._second = self._connections[1].join(group, receive=False, **options)
        self.client = self._connections[0].welcome.client
        self._threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (self._talk, self._insist)]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except ConnectionClosed as error:
            self.ended = self.ended or error
        except ClientError as error:
            self.ended = error

    def _talk(self) -> None:
        due, number = time.monotonic(), 0
        while not self._over.is_set():
            now = time.monotonic()
            if now >= due and not self._quiet.is_set():
                self._mine.send(b"%d.%d/%d" % (self.station, self.client, number), "sent")
                number += 1
                due = max(due + self._pause_s, now - 0.1)
            with contextlib.suppress(Timeout):
                items = self._mine.recv_items(max(0.0, min(self._pause_s, due - time.monotonic())))
                now = time.monotonic()
                self.heard += [Heard(now, item) for item in items]

    def _insist(self) -> None:
        number = 0
        while not self._over.is_set():
            if self._quiet.is_set() or not self._insisting.is_set():
                self._over.wait(0.01)
                continue
            data = b"sure %d.%d/%d" % (self.station, self.client, number)
            number += 1
            try:
                self._second.send(data, "preack")
                self.sure[data] = time.monotonic()
            except Undecided:
                self.undecided.add(data)
            self._over.wait(self._pause_s)

    # ---- for the test

    def insist(self) -> None:
        """Send messages that are waited for as well, from now on: when all that have to get them are in the group."""
        self._insisting.set()

    def say_no_more(self) -> None:
        """Only listen from now on."""
        self._quiet.set()

    def stop(self) -> None:
        """End the threads and the connections; the first may be in a call for CALL_S."""
        self._over.set()
        for thread in self._threads:
            thread.join(CALL_S + 5)
            assert not thread.is_alive(), f"the talker at station {self.station} hangs"
        for connection in self._connections:
            with contextlib.suppress(ClientError):
                connection.close(timeout=0.5)

    def views(self) -> list[ClusterView]:
        """Changes of the cluster's members that came so far."""
        return [h.item for h in list(self.heard) if isinstance(h.item, ClusterView)]

    def events(self, name: str) -> list[Heard]:
        """Events of this name that came so far."""
        return [h for h in list(self.heard) if isinstance(h.item, Event) and h.item.name == name]

    def when(self, test: Callable[[ClusterView], object], timeout_s: float = 60.0) -> float:
        """Wait for the first view of the cluster that passes; returns when it came."""

        def found() -> float:
            return next((h.at for h in list(self.heard) if isinstance(h.item, ClusterView) and test(h.item)), 0.0)

        return wait_for(found, f"a view at the talker of station {self.station} ({self.ended})", timeout_s)

    def messages(self) -> list[bytes]:
        """Everything got so far."""
        return [h.item.data for h in list(self.heard) if isinstance(h.item, Message)]

    def longest_gap(self, begin: float, end: float) -> float:
        """Longest time without a message between two times, seconds."""
        times = [h.at for h in self.heard if isinstance(h.item, Message) and begin <= h.at <= end]
        return max((b - a for a, b in itertools.pairwise([begin, *times, end])), default=0.0)

    def lives(self) -> list[list[tuple[Place, object]]]:
        """What came in the order, as (place, content), cut where this station got into another instance; from the own join on."""
        out: list[list[tuple[Place, object]]] = []
        life: list[tuple[Place, object]] | None = None
        for item in (h.item for h in self.heard):
            if isinstance(item, Message):
                assert life is not None, "a message before the own join"
                life.append((item.place, (item.station, item.client, item.data)))
            elif isinstance(item, View):
                if life is None and (self.station, self.client) in [m[:2] for m in item.joined]:
                    out.append(life := [])
                if life is not None:
                    life.append((item.place, (item.members, item.joined, item.left, item.reason)))
            elif isinstance(item, ClusterView):
                if life is not None:
                    life.append((item.place, (item.instance, item.present, item.joined, item.left)))
            elif item.name == "reopened":
                life = None
        return out


@contextlib.contextmanager
def talking(
    lab: Lab, group: str, ids: Sequence[int], *, level: Level = "preack", order: Order = "total", pause_s: float = 0.008
) -> Iterator[dict[int, Talker]]:
    """Talkers at these stations, by station, all in the group before the block begins."""
    talkers: dict[int, Talker] = {}
    try:
        for number in ids:
            talkers[number] = Talker(lab.station(number), group, level=level, order=order, pause_s=pause_s)
        first = talkers[ids[0]]
        wait_for(lambda: len({m.split(b".")[0] for m in first.messages() if m[:1] != b"s"}) == len(ids), "all are talking")
        for talker in talkers.values():
            talker.insist()
        yield talkers
    finally:
        for talker in talkers.values():
            talker.say_no_more()
        for talker in talkers.values():
            talker.stop()


def finish(lab: Lab, group: str, talkers: Sequence[Talker]) -> None:
    """Everybody falls silent; one more message of another program ends the order for all of them, and is waited for.

    All must still be connected, and in one instance.
    """
    for talker in talkers:
        assert talker.ended is None, f"the talker at station {talker.station}: {talker.ended!r}"
        talker.say_no_more()
    end = b"end of it %d" % time.monotonic_ns()
    with connect_sync(str(lab.station(talkers[0].station).socket_path), name="last", timeout=CALL_S, wait=5.0) as last:
        watched = {(t.station, t.client) for t in talkers}
        wait_for(lambda: watched <= {(m.station, m.client) for m in last.members(group)}, "all are in the group again")
        order = next(g for g in last.status()["groups"] if g["name"] == group).get("order", "total")
        last.join(group, order=order, receive=False).send(end)
    for talker in talkers:
        wait_for(lambda t=talker: end in t.messages()[-200:], f"the end comes at station {talker.station}", 20)  # type: ignore[misc]


def agree(talkers: Sequence[Talker]) -> None:
    """Between the places where two lives both have begun and neither has ended they are the same, views included; places grow."""
    lives = [(t.station, life) for t in talkers for life in t.lives() if life]
    for station, life in lives:
        places = [place for place, _ in life]
        found(places == sorted(places), f"station {station}: places go back")
    for (a, one), (b, other) in itertools.combinations(lives, 2):
        low, high = max(one[0][0], other[0][0]), min(one[-1][0], other[-1][0])
        mine, theirs = ([entry for entry in life if low < entry[0] < high] for life in (one, other))
        if mine != theirs:
            at = next((k for k, (x, y) in enumerate(zip(mine, theirs, strict=False)) if x != y), min(len(mine), len(theirs)))
            raise Finding(
                f"stations {a} and {b} differ between {low} and {high} ({len(mine)} and {len(theirs)} entries) at {at}: "
                f"{mine[at : at + 2]} against {theirs[at : at + 2]}"
            )


def nothing_sure_is_lost(talkers: Sequence[Talker], survivors: Sequence[Talker]) -> None:
    """What anybody was told to be at preack has come to everybody who was there all the time."""
    for survivor in survivors:
        have = set(survivor.messages())
        for talker in talkers:
            lost = talker.sure.keys() - have
            found(
                not lost,
                f"confirmed at station {talker.station}, missing at {survivor.station}: {sorted(lost)[:5]} ({len(lost)})",
            )


def one_view_each(talkers: Sequence[Talker], quorum: int) -> dict[int, tuple[int, ...]]:
    """An instance number has one set of members, with quorum; returns them."""
    seen: dict[int, tuple[int, ...]] = {}
    for talker in talkers:
        told = [h.item for h in talker.heard if isinstance(h.item, Event) and h.item.name in ("view", "open", "reopened")]
        for event in told:
            members = tuple(sorted(event.members))
            found(seen.setdefault(event.instance, members) == members, f"instance {event.instance}: {members}, {seen}")
            found(len(members) >= quorum, f"instance {event.instance} has only {members}")
    return seen
