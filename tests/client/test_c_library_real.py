"""libzenjun against real daemons: what the tests' own daemon cannot vouch for."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.daemon.client import connect_sync
from zenjun.tools.lab import Lab

from .clibrary import Failed, Library, Link, build, compiled, link
from .reallab import MIB, path, real_lab
from .test_c_library import EXAMPLE

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libzenjun")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def library(built: Path) -> Library:
    return Library(built / "libzenjun.so")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with real_lab() as made:
        yield made


def test_two_libraries_see_one_sequence(library: Library, lab: Lab) -> None:
    """Programs on libzenjun and in Python send at once at 1 % loss, each at another level: one order of messages and views."""
    count = 300
    got: dict[int, list[tuple[tuple[int, int, int], bytes]]] = {}
    failed: list[BaseException] = []
    ready = threading.Barrier(3)

    def in_c(station: int, level: int) -> None:
        with link(library, path(lab, station), "c") as c:
            g = c.join("mixed", level)
            c.until("VIEW", lambda item: item.view.members_count == 3)
            ready.wait(30)
            for i in range(count):
                last = c.send(g, b"%d-" % station, b"%d" % i, level=level if i == count - 1 else -1)
            c.wait_sent(last, level)
            got[station] = []
            while len(got[station]) < 3 * count:
                m = c.until("MESSAGE")
                got[station].append(((m.place.clock, m.place.station, m.place.index), c.data(m)))
            ready.wait(30)

    def in_python(station: int) -> None:
        with connect_sync(path(lab, station), timeout=30) as c:
            g = c.join("mixed")
            while len(g.members) < 3:
                g.recv_items()
            ready.wait(30)
            g.send_many([b"%d-%d" % (station, i) for i in range(count)])
            got[station] = [(m.place, m.data) for m in (g.recv() for _ in range(3 * count))]
            ready.wait(30)

    def run(part: object, *arguments: int) -> None:
        try:
            part(*arguments)  # type: ignore[operator]
        except BaseException as error:
            failed.append(error)
            ready.abort()

    threads = [
        threading.Thread(target=run, args=arguments) for arguments in ((in_c, 1, 0), (in_c, 2, 2), (in_python, 3))
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert not failed, failed
    assert got[1] == got[2] == got[3]
    assert [d for _, d in got[1] if d.startswith(b"2-")] == [b"2-%d" % i for i in range(count)]


def test_sizes_up_to_the_limit_and_requests(library: Library, lab: Lab) -> None:
    with link(library, path(lab, 1), "big") as c, link(library, path(lab, 3)) as d:
        g, h = c.joined("sizes"), d.joined("sizes", flags=d.lib.ZENJUN_OPEN)
        limit = c.welcome.message_max
        for size in (0, 1, c.welcome.payload_max, c.welcome.payload_max + 1, MIB, limit):
            data = os.urandom(size)
            c.wait_sent(c.send(g, data, level=2), 2)
            assert d.message() == data and c.message() == data
        asked = c.ask("members", b"sizes")
        reply = c.until("REPLY", lambda item: item.reply.id == asked).reply
        assert (1, c.welcome.client, "big") in c.members(reply.members, reply.members_count)
        c.ask("stations")
        reply = c.until("REPLY").reply
        assert [reply.stations[i].station for i in range(reply.stations_count)] == [1, 2, 3]
        c.ask("status")
        assert '"station"' in library.text(c.until("REPLY").reply.json)
        c.ask("expel", 1)
        assert c.until("REPLY").reply.error == c.lib.ZENJUN_E_REFUSED
        closed = c.join("sizes", flags=c.lib.ZENJUN_SEND_ONLY)
        assert c.lib.zenjun_wait_joined(c.z, closed, 20_000) == c.lib.ZENJUN_E_CLOSED_GROUP
        assert h and c.close() == 0


def test_a_message_to_several_groups(library: Library, lab: Lab) -> None:
    """One message for each program, in one order with others; what cannot be is refused, and the numbers stay."""
    with link(library, path(lab, 1), "c") as c, connect_sync(path(lab, 2), timeout=30) as two:
        b = two.join("to-b", order="token", open_group=True)
        both = [c.joined("to-a", order=3), c.joined("to-b", order=3)]
        c.until("VIEW", lambda item: item.handle == both[1])
        for parts in ([b"x", b"", b"y" * 5000], [b""], [bytes(200_000)]):
            c.wait_sent(c.send_to(both, *parts))
            m = c.until("MESSAGE")
            assert (c.data(m), m.handle, m.own) == (b"".join(parts), both[0], 1)
            assert b.recv(30).data == b"".join(parts)
        last = c.send_to([both[1]], b"only b")
        assert c.until("MESSAGE").handle == both[1] and b.recv(30).data == b"only b"
        for handles, error in (([], "invalid"), ([both[0]] * 17, "invalid"), ([both[0], 60_000], "bad-handle")):
            with pytest.raises(Failed, match=error):
                c.send_to(handles, b"x")
        with pytest.raises(Failed, match="too-large"):
            c.send_to(both, bytes(c.welcome.message_max + 1))
        total = c.joined("to-c")
        refused = c.send_to([both[0], total], b"x")
        assert refused == last + 1
        with pytest.raises(Failed, match="order-mismatch"):
            c.wait_sent(refused)
        c.wait_sent(c.send_to(both, b"end"))
        assert b.recv(30).data == b"end"


def test_a_slow_receiver_is_cut_off_with_a_reason(library: Library, lab: Lab) -> None:
    with link(library, path(lab, 1)) as c, link(library, path(lab, 1)) as slow:
        g = c.joined("slow", flags=c.lib.ZENJUN_DISCARD)
        slow.joined("slow")
        for i in range(1500):
            number = c.send(g, bytes(10_000), level=1 if i % 50 == 49 else -1)
            if i % 50 == 49:
                c.wait_sent(number)
        with pytest.raises(Failed, match="slow-receiver"):
            while True:
                slow.recv()
        assert "queue_bytes_max" in slow.reason
        c.wait_sent(c.send(g, b"still here"))


def test_a_daemon_that_is_killed_and_one_that_was_expelled(library: Library, lab: Lab) -> None:
    """SIGKILL: the connection ends, and another one finds the next life. SIGSTOP until the others go on: events, and back into
    the groups without a request."""
    with link(library, path(lab, 1)) as c:
        g = c.joined("fates")
        d = Link(library, path(lab, 3))
        d.joined("fates")
        lab.station(3).signal(signal.SIGKILL)
        lab.station(3).daemon.wait(10)  # type: ignore[union-attr]
        with pytest.raises(Failed, match="disconnected"):
            while True:
                d.recv()
        d.close(0)
        view = c.until("VIEW", lambda item: library.text(item.view.reason) == "death").view
        assert view.members_count == 1 and view.left[0].station == 3
        c.wait_sent(c.send(g, b"without it"))
        lab.station(3).start_daemon()
        with link(library, path(lab, 3), patience_ms=20_000) as d:
            d.joined("fates")
            before = d.facts.instance
            lab.station(3).signal(signal.SIGSTOP)
            try:
                c.until("EVENT", lambda item: any(item.event.left[i].station == 3 for i in range(item.event.left_count)))
            finally:
                lab.station(3).signal(signal.SIGCONT)
            d.until("EVENT", lambda item: item.event.type == d.lib.ZENJUN_EVENT_EXPELLED)
            back = d.until("EVENT", lambda item: item.event.type == d.lib.ZENJUN_EVENT_REOPENED).event
            assert back.admitted and back.instance > before
            joined = d.until("VIEW", lambda item: item.view.here).view
            assert joined.members_count == 2
            c.wait_sent(c.send(g, b"back"))
            assert d.message() == b"back"


def test_the_example(built: Path, lab: Lab, tmp_path: Path) -> None:
    program = compiled(tmp_path / "talk", EXAMPLE, built, "-fsanitize=undefined")
    env = {**os.environ, "ZENJUN_SOCKET": path(lab, 2)}
    done = subprocess.run([program, "me"], input="hello\n", capture_output=True, text=True, env=env, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "") and "station 2: hello\n" in done.stdout
