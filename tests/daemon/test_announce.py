"""The sentences about what happens to a cluster: journal entries, and the status line of the service manager."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from zenjun.daemon.announce import NOBODY_SEEN_NS, Announcer
from zenjun.daemon.observe import Journal, Notifier
from zenjun.proto.effects import Blocked, Changed, Closed, Fenced, Notice, Opened
from zenjun.proto.engine import Engine

SECOND = 1_000_000_000


class Said:
    """An announcer, with what it has written."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.statuses: list[str] = []
        self.membership = SimpleNamespace(members=(1, 2, 3))
        self.core = SimpleNamespace(peer=lambda index: SimpleNamespace(heard_ns=SECOND if index == 1 else 0))
        self.config = SimpleNamespace(fail_timeout_ns=SECOND // 2, stations=3)
        self.states = ["self", "never seen", "never seen"]
        logger = logging.Logger("announce", logging.DEBUG)
        handler = logging.Handler()
        handler.emit = self._emit  # type: ignore[method-assign]
        logger.addHandler(handler)
        notifier = SimpleNamespace(status=self.statuses.append)
        self.announcer = Announcer(cast(Engine, self), Journal(logger), cast(Notifier, notifier), 0)

    def peers(self, now: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(state=state) for state in self.states]

    def _emit(self, record: logging.LogRecord) -> None:
        self.lines.append((cast(Any, record).zj_event, record.getMessage()))


@pytest.fixture
def said() -> Said:
    return Said()


def opened(joined: bool = False) -> Opened:
    return Opened(instance=5, incarnations=(7, 8, 9), frame_max=1500, joined=joined)


def test_an_instance_opens_changes_and_ends(said: Said) -> None:
    a = said.announcer
    a.opened(opened())
    a.opened(opened(joined=True))
    assert a.instance == 5
    a.changed(Changed(instance=6, incarnations=(7, 0, 9), left=(2,), joined=()), SECOND)
    a.changed(Changed(instance=7, incarnations=(7, 8, 9), left=(), joined=(2,)), SECOND)
    assert a.instance == 7
    a.closed(Closed(instance=7, reason="no quorum", station=2, expelled=False), SECOND)
    a.closed(Closed(instance=7, reason="silent", station=1, expelled=True), SECOND)
    assert a.instance == 0
    assert said.lines == [
        ("open", "instance 5 of stations 1, 2, 3"),
        ("open", "admitted to instance 5 of stations 1, 2, 3"),
        ("view", "instance 6 goes on without station 2: stations 1, 3"),
        ("view", "instance 7 goes on with station 2: stations 1, 2, 3"),
        ("closed", "out of instance 7: no quorum"),
        ("closed", "expelled from instance 7: silent"),
    ]
    assert said.statuses[:3] == ["instance 5 of stations 1, 2, 3 is open"] * 2 + ["instance 6 of stations 1, 2, 3 is open"]
    assert said.statuses[-1] == "expelled from instance 7: silent; trying to get back in"


def test_who_is_waited_for(said: Said) -> None:
    a = said.announcer
    a.blocked(Blocked((), True), SECOND)
    assert said.lines == [] and said.statuses == [], "nobody was"
    a.blocked(Blocked(((2, "silent"),), True), 2 * SECOND)
    a.blocked(Blocked((), True), 2 * SECOND)
    a.opened(opened())
    said.lines.clear()
    a.blocked(Blocked(((2, "silent"), (3, "left")), True), 2 * SECOND)
    a.blocked(Blocked(((2, "silent"),), False), 2 * SECOND)
    a.blocked(Blocked(((2, "joining"),), True), 2 * SECOND)
    a.blocked(Blocked((), True), 2 * SECOND)
    assert said.lines == [
        ("blocked", "about to go on without station 2 (silent, not heard for 1000 ms, fail_timeout_ms 500), station 3 (left)"),
        ("blocked", "no quorum without station 2 (silent, not heard for 1000 ms, fail_timeout_ms 500): blocked"),
        ("blocked", "letting in station 2 (joining)"),
        ("unblocked", "nobody is waited for"),
    ]
    assert said.statuses[:2] == ["waiting for station 2 (silent)", "opening"]
    assert said.statuses[-1] == "instance 5 of stations 1, 2, 3 is open"


def test_notices_and_a_fence(said: Said) -> None:
    a = said.announcer
    a.notice(Notice("foreign", "station 3 runs under other options"), "it does: window_frames", SECOND)
    assert said.statuses == ["station 3 runs under other options"]
    a.nobody_seen("eth0, eth1", 12 * SECOND)
    a.opened(opened())
    count = len(said.statuses)
    a.notice(Notice("foreign", "another one"), "another one", SECOND)
    assert len(said.statuses) == count, "an open instance is worth more of the status line"
    a.fenced(Fenced(station=2, position=10, own=1, theirs=2))
    assert said.statuses[-1].startswith("fenced: the order here differs from station 2's at position 10")
    assert [event for event, _ in said.lines] == ["foreign", "nobody seen", "open", "foreign", "fenced"]
    assert said.lines[0][1] == "it does: window_frames"
    assert said.lines[1][1].startswith("no other station has been heard on eth0, eth1 for 12 s: are they on the same segment")


def test_what_to_check_is_said_once_in_an_opening_in_which_nobody_is_heard(said: Said) -> None:
    a, links = said.announcer, cast(Any, SimpleNamespace(is_open=True, names="eth0"))
    a.look_for_others(NOBODY_SEEN_NS, links)
    assert said.lines == [], "not yet"
    a.look_for_others(NOBODY_SEEN_NS + 1, cast(Any, SimpleNamespace(is_open=False, names="eth0")))
    assert said.lines == [], "that would be the link's fault"
    said.states[1] = "up"
    a.look_for_others(NOBODY_SEEN_NS + 1, links)
    assert said.lines == [], "station 2 was heard"
    said.states[1] = "never seen"
    for _ in range(2):
        a.look_for_others(NOBODY_SEEN_NS + 1, links)
    assert [event for event, _ in said.lines] == ["nobody seen"]
    a.closed(Closed(instance=7, reason="silent", station=1, expelled=False), NOBODY_SEEN_NS)
    a.look_for_others(2 * NOBODY_SEEN_NS, links)
    a.look_for_others(2 * NOBODY_SEEN_NS + 1, links)
    assert [event for event, _ in said.lines] == ["nobody seen", "closed", "nobody seen"]
