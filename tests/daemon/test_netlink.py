"""The interface watch: first what a look means (no kernel), then the monitor on a real kernel in a namespace of its own."""

from __future__ import annotations

import ctypes
import functools
import os
import select
import signal
import socket
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from zenjun.daemon.netlink import (
    ARPHRD_ETHER,
    IFF_BROADCAST,
    IFF_LOOPBACK,
    IFF_LOWER_UP,
    IFF_UP,
    Change,
    InterfaceTracker,
    Link,
    LinkMonitor,
    LinkState,
)

from ..timing import in_time

READY = IFF_UP | IFF_BROADCAST | IFF_LOWER_UP


def link(index: int = 5, name: str = "eth0", flags: int = READY, mtu: int = 1500, mac: str = "02:00:00:00:00:01") -> Link:
    return Link(index, name, flags, ARPHRD_ETHER, mtu, mac)


def words(change: Change | None) -> list[str]:
    assert change is not None
    return [word for word, _ in change.what]


def watching(first: Link | None = None) -> InterfaceTracker:
    tracker = InterfaceTracker("eth0")
    tracker.look(None, first)
    return tracker


def test_first_look_says_what_it_waits_for_case_73() -> None:
    cases = {
        None: (LinkState.ABSENT, "waiting for interface eth0: it does not exist"),
        link(flags=IFF_BROADCAST): (LinkState.DOWN, "waiting for interface eth0: eth0 is down"),
        link(flags=READY | IFF_LOOPBACK): (LinkState.UNFIT, "loopback"),
        link(flags=READY & ~IFF_BROADCAST): (LinkState.UNFIT, "cannot broadcast"),
        link(mtu=0): (LinkState.UNFIT, "MTU of 0 bytes; at least 576"),
        link(): (LinkState.UP, "interface eth0 is up (index 5, MTU 1500, 02:00:00:00:00:01)"),
    }
    for first, (state, text) in cases.items():
        change = InterfaceTracker("eth0").look(None, first)
        assert change is not None and change.state is state and change.reopen and text in change.what[0][1]
    odd = InterfaceTracker("ib0").look(None, Link(3, "ib0", READY, 32, 2044, "80:00"))
    assert odd is not None and odd.state is LinkState.UNFIT and "not an Ethernet interface" in odd.what[0][1]


def test_nothing_new_is_nothing() -> None:
    tracker = watching(link())
    assert tracker.look(link(), link()) is None
    assert watching(None).look(None, None) is None


def test_down_and_up() -> None:
    tracker = watching(link())
    down = tracker.look(link(flags=IFF_BROADCAST), link(flags=IFF_BROADCAST))
    assert words(down) == ["down"] and down is not None and down.reopen and tracker.state is LinkState.DOWN
    up = tracker.look(link(), link())
    assert words(up) == ["up"] and up is not None and up.reopen


def test_recreated_under_the_same_name_case_69() -> None:
    tracker = watching(link())
    change = tracker.look(None, link(index=9))  # merged events: no moment of absence was seen
    assert words(change) == ["recreated"] and change is not None and change.reopen and tracker.index == 9
    same = tracker.look(link(index=9), link(index=9), gone=True)  # even the number may be the same again
    assert words(same) == ["recreated"] and same is not None and same.reopen
    assert words(tracker.look(None, None)) == ["absent"] and tracker.index == 0
    assert words(tracker.look(None, link(index=12))) == ["up"]


def test_renamed_follows_the_index_until_it_ends() -> None:
    tracker = watching(link())
    renamed = tracker.look(link(name="lan1"), None)
    assert words(renamed) == ["renamed"] and renamed is not None and not renamed.reopen and "still using it" in renamed.what[0][1]
    assert tracker.look(link(name="lan1"), link(index=9)) is None, "a newcomer of the old name does not take over"
    assert words(tracker.look(None, link(index=9))) == ["recreated"]


def test_mtu_mac_and_carrier() -> None:
    tracker = watching(link())
    mtu = tracker.look(link(mtu=9000), link(mtu=9000))
    assert words(mtu) == ["mtu"] and mtu is not None and mtu.reopen and mtu.what[0][1] == "MTU of eth0 changed from 1500 to 9000"
    mac = tracker.look(link(mtu=9000, mac="02:00:00:00:00:02"), None)
    assert words(mac) == ["mac"] and mac is not None and mac.reopen
    lost = tracker.look(link(mtu=9000, mac="02:00:00:00:00:02", flags=READY & ~IFF_LOWER_UP), None)
    assert words(lost) == ["carrier"] and lost is not None and not lost.reopen and lost.state is LinkState.UP
    less = tracker.look(link(mtu=1400, mac="02:00:00:00:00:02", flags=READY & ~IFF_LOWER_UP), None)
    assert words(less) == ["mtu"] and less is not None and not less.reopen, "its ring has room for what is smaller"
    small = tracker.look(link(mtu=100, mac="02:00:00:00:00:02", flags=READY & ~IFF_LOWER_UP), None)
    assert small is not None and small.state is LinkState.UNFIT and small.reopen and set(words(small)) == {"mtu", "unfit"}


def isolated(test: Callable[[], None]) -> Callable[[], None]:
    """Run the test in a forked child with a user and network namespace of its own; it goes away with the child."""

    @functools.wraps(test)
    def run() -> None:
        reader, writer = os.pipe()
        uid, gid = os.getuid(), os.getgid()
        pid = os.fork()
        if pid == 0:
            status, text = 1, ""
            try:
                os.close(reader)
                signal.alarm(250)
                if ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x40000000) < 0:
                    status, text = 2, os.strerror(ctypes.get_errno())
                else:
                    Path("/proc/self/setgroups").write_text("deny")
                    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
                    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
                    test()
                    status = 0
            except BaseException:
                text = traceback.format_exc()
            finally:
                os.write(writer, text.encode()[:60_000])
                os._exit(status)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read().decode()
        _, wait_status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(wait_status)
        if code == 2:
            pytest.skip(f"no network namespaces here: {text}")
        assert code == 0, text or f"child ended with {code}"

    return run


def ip(*words: str) -> None:
    subprocess.run(["ip", *" ".join(words).split()], check=True, timeout=240, capture_output=True)


class Seen:
    """A monitor and what it reported."""

    def __init__(self, name: str = "eth0") -> None:
        self.changes: list[Change] = []
        self.monitor = LinkMonitor(name, self.changes.append)
        self.monitor.start()

    def words(self) -> list[str]:
        return [word for change in self.changes for word, _ in change.what]

    def pump(self, until: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Serve the monitor as the loop would, until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while not until():
            left = deadline - time.monotonic()
            in_time(left > 0, f"seen {self.words()}")
            if select.select([self.monitor.fileno()], [], [], left)[0]:
                self.monitor.on_readable()

    def rest(self) -> None:
        """Until the kernel has had nothing to tell for a while: it tells of a carrier on its own, later than what changed it."""
        deadline = time.monotonic() + 60.0
        while select.select([self.monitor.fileno()], [], [], 0.3)[0]:
            in_time(time.monotonic() < deadline, f"no end: {self.monitor.looks} looks, {self.monitor.events} events")
            self.monitor.on_readable()

    def drain(self) -> None:
        while select.select([self.monitor.fileno()], [], [], 0)[0]:
            self.monitor.on_readable()


@isolated
def test_real_life_cycle() -> None:
    seen = Seen()
    assert seen.words() == ["absent"]
    ip("link add eth0 type veth peer name peer0")
    seen.pump(lambda: "down" in seen.words())
    ip("link set eth0 up")
    seen.pump(lambda: "up" in seen.words())
    ip("link set eth0 mtu 1400")
    seen.pump(lambda: "mtu" in seen.words())
    ip("link set eth0 address 02:00:00:00:00:77")
    seen.pump(lambda: "mac" in seen.words())
    ip("link set eth0 down")
    ip("link set eth0 name lan7")
    seen.pump(lambda: "renamed" in seen.words())
    assert seen.monitor.tracker.link is not None and seen.monitor.tracker.link.name == "lan7"
    ip("link del lan7")
    seen.pump(lambda: seen.words()[-1] == "absent")
    ip("link add eth0 type veth peer name peer0")
    seen.pump(lambda: seen.monitor.tracker.state is LinkState.DOWN)
    seen.monitor.close()
    seen.monitor.close()


@isolated
def test_recreated_within_milliseconds_case_69() -> None:
    ip("link add eth0 type veth peer name peer0")
    ip("link set eth0 up")
    seen = Seen()
    for round_ in range(5):
        tracker, before = seen.monitor.tracker, seen.monitor.tracker.index
        batch = "link del eth0\nlink add eth0 type veth peer name peer0\nlink set eth0 up\n"
        subprocess.run(["ip", "-batch", "-"], input=batch.encode(), check=True, timeout=240)
        seen.pump(lambda t=tracker, before=before: t.index not in (0, before) and t.state is LinkState.UP)  # type: ignore[misc]
        assert sum(change.reopen for change in seen.changes) > round_
    seen.rest()  # silence afterwards: no busy loop


@isolated
def test_recreated_with_the_same_index() -> None:
    ip("link add eth0 index 77 type veth peer name peer0")
    ip("link set eth0 up")
    seen = Seen()
    ip("link del eth0")
    ip("link add eth0 index 77 type veth peer name peer0")
    ip("link set eth0 up")
    seen.pump(lambda: any(change.reopen for change in seen.changes[1:]) and seen.monitor.tracker.state is LinkState.UP)
    assert seen.monitor.tracker.index == 77


@isolated
def test_other_interfaces_have_no_effect_case_79() -> None:
    ip("link add eth0 type veth peer name peer0")
    ip("link set eth0 up")
    seen = Seen()
    ip("link add other type veth peer name other1")
    seen.rest()
    looks, changes = seen.monitor.looks, len(seen.changes)
    batch = "link set other up\nlink set other down\n" * 500
    with subprocess.Popen(["ip", "-batch", "-"], stdin=subprocess.PIPE) as flapper:
        assert flapper.stdin is not None
        flapper.stdin.write(batch.encode())
        flapper.stdin.close()
        deadline = time.monotonic() + 60
        while flapper.poll() is None and time.monotonic() < deadline:
            if select.select([seen.monitor.fileno()], [], [], 0.01)[0]:
                seen.monitor.on_readable()
        assert flapper.wait(60) == 0
    seen.drain()
    assert seen.monitor.foreign > 0 and len(seen.changes) == changes
    # For each overrun one look at once, and one when the queue was empty.
    assert seen.monitor.overruns <= seen.monitor.looks - looks <= 2 * seen.monitor.overruns


@isolated
def test_lost_events_are_made_up_for_by_a_look() -> None:
    ip("link add eth0 type veth peer name peer0")
    ip("link set eth0 up")
    seen = Seen()
    seen.monitor._events.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
    before = seen.monitor.tracker.index
    batch = "link add other type veth peer name other1\n" + "link set other up\nlink set other down\n" * 50
    batch += "link del eth0\nlink add eth0 type veth peer name peer0\nlink set eth0 up\n"
    subprocess.run(["ip", "-batch", "-"], input=batch.encode(), check=True, timeout=240)
    seen.pump(lambda: seen.monitor.overruns > 0 and seen.monitor.tracker.index not in (0, before))
    assert seen.monitor.tracker.state is LinkState.UP and seen.changes[-1].reopen


@isolated
def test_a_port_leaving_its_bridge_is_not_the_end_of_the_interface() -> None:
    ip("link add eth0 type veth peer name peer0")
    ip("link add br0 type bridge")
    ip("link set eth0 up")
    ip("link set eth0 master br0")
    seen = Seen()
    ip("link set eth0 nomaster")
    ip("link set eth0 mtu 1300")
    seen.pump(lambda: "mtu" in seen.words())
    assert "recreated" not in seen.words() and "absent" not in seen.words()


FLOOD = "\n".join(f"link add d{i} type veth peer name e{i}\nlink del d{i}" for i in range(100))
"""More events than the socket's buffer takes."""


@isolated
def test_what_was_dropped_before_the_queue_was_empty_is_made_up_for() -> None:
    """The kernel tells of dropped events once, and again only after the queue has been empty: those dropped in between."""
    ip("link add eth0 type veth peer name peer0")
    ip("link set peer0 up")
    seen = Seen()
    subprocess.run(["ip", "-batch", "-"], input=FLOOD.encode(), check=True, timeout=240)
    seen.monitor.on_readable()  # the overrun, some of the events that fit, and a look: still down
    assert seen.monitor.overruns == 1 and seen.words() == ["down"]
    ip("link set eth0 up")  # there is no room for this event
    subprocess.run(["ip", "-batch", "-"], input=FLOOD.encode(), check=True, timeout=240)
    seen.rest()
    assert seen.words() == ["down", "up"], (seen.monitor.overruns, seen.monitor.looks)
    assert seen.monitor.looks <= 1 + 2 * seen.monitor.overruns + seen.monitor.events, "at most two looks for an overrun"
