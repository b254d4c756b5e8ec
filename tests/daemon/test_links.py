"""A link's driver and the set of them, on a data path and an interface that the tests steer."""

from __future__ import annotations

import errno
import logging
from asyncio import TimerHandle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from zenjun.daemon import link as module
from zenjun.daemon.datapath import DataPath, LinkInfo, now_ns
from zenjun.daemon.exits import Exit
from zenjun.daemon.link import Limits
from zenjun.daemon.links import Links
from zenjun.daemon.netlink import IFF_BROADCAST, IFF_LOWER_UP, IFF_UP, LOOK_AGAIN_NS, Change, InterfaceTracker, Link
from zenjun.daemon.observe import Journal, Notifier

UP = Link(index=3, name="eth0", flags=IFF_UP | IFF_LOWER_UP | IFF_BROADCAST, kind=1, mtu=1500, mac="02:5a:4a:00:00:01")
DOWN = replace(UP, flags=IFF_BROADCAST)
LOOPBACK = replace(UP, kind=772)


class Monitor:
    """Looks at what ``interfaces`` has under its name."""

    interfaces: dict[str, Link | None]

    def __init__(self, name: str, on_change: Callable[[Change], None]) -> None:
        self.tracker = InterfaceTracker(name)
        self._on_change = on_change
        self.looks = 0

    def fileno(self) -> int:
        return 99

    def start(self) -> None:
        self.look()

    def close(self) -> None:
        pass

    def on_readable(self) -> None:
        self.look()

    def look(self) -> None:
        self.looks += 1
        link = self.interfaces[self.tracker.name]
        change = self.tracker.look(link if self.tracker.index else None, link)
        if change is not None:
            self._on_change(change)


class Path:
    """A data path's part about links."""

    def __init__(self) -> None:
        self.open: dict[int, str] = {}
        self.errors: dict[int, int] = {}
        self.refusal: OSError | None = None
        self.unsealed = 0

    def link_open(self, name: str, link: int) -> LinkInfo:
        if self.refusal is not None:
            raise self.refusal
        interface = Monitor.interfaces[name]
        assert interface is not None
        self.open[link] = name
        self.errors.pop(link, None)
        return LinkInfo(interface.index, bytes.fromhex(interface.mac.replace(":", "")), interface.mtu, 1 << 20)

    def link_close(self, link: int) -> None:
        del self.open[link]

    def link_error(self, link: int) -> int:
        return self.errors.get(link, 0)

    def link_counters(self, link: int) -> dict[str, int]:
        return {"rx_unsealed": self.unsealed, "rx_version": 0}


class Daemon:
    """What the links belong to."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, int]] = []
        self.ended: tuple[Exit, str] | None = None
        self.timers: list[Callable[[], None]] = []
        self.links: Links
        self.lines: list[str] = []

    def link_opened(self, name: str, info: LinkInfo) -> None:
        self.opened.append((name, info.mtu))

    def link_unfit(self, why: str) -> bool:
        if self.links.are_unfit:
            self.give_up(Exit.INTERFACE, why)
        return self.links.are_unfit

    def give_up(self, code: Exit, message: str) -> None:
        self.ended = self.ended or (code, message)

    def turn_soon(self) -> None:
        pass

    def later(self, seconds: float, action: Callable[[], None]) -> TimerHandle:
        self.timers.append(action)
        return cast(TimerHandle, self)

    def cancel(self) -> None:
        self.timers.clear()


class Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


Make = Callable[..., tuple[Daemon, Path, Links]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(module, "LinkMonitor", Monitor)

    def links(interfaces: dict[str, Link | None], **limits: Any) -> tuple[Daemon, Path, Links]:
        Monitor.interfaces = interfaces
        daemon, path = Daemon(), Path()
        logger = logging.Logger("links", logging.DEBUG)
        logger.addHandler(Lines(daemon.lines))
        daemon.links = Links(
            dict(enumerate(interfaces, 1)),
            dp=cast(DataPath, path),
            host=daemon,
            limits=Limits(**{"stations": 3, "mtu_needed": 600, "frame_max": 9000, "overhead": 0} | limits),
            journal=Journal(logger),
            notifier=Notifier({}, 1),
        )
        daemon.links.start()
        return daemon, path, daemon.links

    return links


def test_the_set_is_as_wide_as_its_narrowest_link(make: Make) -> None:
    daemon, path, links = make({"eth0": UP, "eth1": replace(UP, index=4, name="eth1", mtu=1200)}, overhead=8)
    assert path.open == {0: "eth0", 1: "eth1"} and daemon.opened == [("eth0", 1500), ("eth1", 1200)]
    assert links.is_open and links.mtu == 1200 and links.pdu_max == 1192 and links.names == "eth0, eth1"
    assert [status["mtu"] for status in links.status()] == [
        {"bytes": 1492, "source": "interface"},
        {"bytes": 1192, "source": "interface"},
    ]
    assert len(links.readers()) == 2


def test_the_loss_of_one_link_leaves_the_set_open_and_its_mtu(make: Make) -> None:
    _, path, links = make({"eth0": UP, "eth1": replace(UP, index=4, name="eth1", mtu=1200)})
    path.errors[1] = -errno.ENETDOWN
    Monitor.interfaces["eth1"] = replace(UP, index=4, name="eth1", mtu=1200, flags=IFF_BROADCAST)
    links.on_error(now_ns())
    assert path.open == {0: "eth0"} and links.is_open and links.mtu == 1200
    assert [status["state"] for status in links.status()] == ["up", "down"]
    path.errors[0] = -errno.ENETDOWN
    Monitor.interfaces["eth0"] = None
    links.on_error(now_ns())
    assert path.open == {} and not links.is_open and [status["state"] for status in links.status()] == ["absent", "down"]


def test_no_links(make: Make) -> None:
    _, path, links = make({})
    assert not links.is_open and links.mtu == 0 and links.status() == [] and path.open == {}


def test_frames_stay_within_what_the_station_may_take(make: Make) -> None:
    daemon, _, links = make({"eth0": UP}, frame_max=1000, overhead=8)
    assert links.pdu_max == 1000
    assert links.status()[0]["mtu"] == {"bytes": 1000, "source": "configuration"}
    assert daemon.lines[-1] == "eth0 carries 1500 bytes; frames stay within 1008 (station.mtu, or as at the start)"


def test_an_mtu_too_small_closes_the_link_until_it_grows(make: Make) -> None:
    daemon, path, links = make({"eth0": UP}, mtu_needed=1501)
    assert path.open == {} and not links.is_open and not daemon.opened and daemon.ended is None
    assert daemon.lines[-1] == "eth0 carries 1500 bytes; 3 stations need an MTU of at least 1501"
    Monitor.interfaces["eth0"] = replace(UP, mtu=1501)
    links.readers()[0][1]()
    assert path.open == {0: "eth0"} and daemon.opened == [("eth0", 1501)]


def test_a_smaller_mtu_keeps_the_socket(make: Make) -> None:
    """What waits in its ring is not lost, and no large ring is made in the middle of the work. A larger one opens it anew."""
    daemon, path, links = make({"eth0": replace(UP, mtu=9000)}, frame_max=9000)
    (link,) = links
    path.refusal = OSError(errno.ENOMEM, "not to be asked")
    for flags, can_send in ((UP.flags, True), (UP.flags & ~IFF_LOWER_UP, False)):
        Monitor.interfaces["eth0"] = replace(UP, mtu=1500, flags=flags)
        links.readers()[0][1]()
        assert link.is_open and link.can_send is can_send and links.mtu == links.pdu_max == 1500
    assert daemon.opened == [("eth0", 9000), ("eth0", 1500)] and links.status()[0]["mtu"]["bytes"] == 1500
    path.refusal = None
    Monitor.interfaces["eth0"] = replace(UP, mtu=1501)
    links.readers()[0][1]()
    assert daemon.opened[2:] == [("eth0", 1501)] and links.mtu == 1501
    Monitor.interfaces["eth0"] = replace(UP, mtu=599)
    links.readers()[0][1]()
    assert path.open == {} and daemon.lines[-1] == "eth0 carries 599 bytes; 3 stations need an MTU of at least 600"


def test_a_refused_socket_is_tried_again(make: Make) -> None:
    daemon, path, links = make({"eth0": DOWN})
    path.refusal = OSError(errno.ENOMEM, "no memory")
    Monitor.interfaces["eth0"] = UP
    links.readers()[0][1]()
    assert daemon.lines[-1] == "cannot open a packet socket on eth0: no memory; trying again" and len(daemon.timers) == 1
    daemon.timers.pop()()
    assert len(daemon.timers) == 1 and not links.is_open
    path.refusal = None
    daemon.timers.pop()()
    assert links.is_open and daemon.timers == []
    links.close()
    assert path.open == {}


def test_an_error_of_the_socket_opens_it_anew(make: Make) -> None:
    daemon, path, links = make({"eth0": UP})
    path.errors[0] = -errno.EIO
    links.on_error(now_ns())
    assert daemon.lines[-1] == "the packet socket reports: Input/output error; opening it anew" and path.open == {}
    daemon.timers.pop()()
    assert path.open == {0: "eth0"} and len(daemon.opened) == 2
    links.on_error(now_ns())
    assert len(daemon.opened) == 2, "another link's"


def test_what_ends_the_daemon(make: Make) -> None:
    """A socket that the kernel will never give; interfaces none of which can ever be used, but not one beside a good one."""
    assert make({"eth0": LOOPBACK})[0].ended == (Exit.INTERFACE, LOOPBACK.why_not())
    assert make({"eth0": UP, "eth1": replace(LOOPBACK, index=4, name="eth1")})[0].ended is None
    daemon, path, links = make({"eth0": DOWN})
    assert daemon.ended is None
    path.refusal = PermissionError(errno.EPERM, "no")
    Monitor.interfaces["eth0"] = UP
    links.readers()[0][1]()
    assert daemon.ended is not None and daemon.ended[0] is Exit.RIGHTS and "PrivateUsers=no" in daemon.ended[1]


def test_chores(make: Make) -> None:
    """A closed link's interface is looked at now and then; frames of another key are reported when there are more of them."""
    daemon, path, links = make({"eth0": DOWN}, overhead=8)
    Monitor.interfaces["eth0"] = UP
    links.tick(now_ns())
    assert not links.is_open
    links.tick(now_ns() + LOOK_AGAIN_NS)
    assert links.is_open
    before = len(daemon.lines)
    path.unsealed = 5
    links.tick(now_ns())
    links.tick(now_ns())
    assert len(daemon.lines) == before + 1 and "arrive on eth0 (5 so far): they are dropped" in daemon.lines[-1]
