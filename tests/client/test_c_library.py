"""libzenjun against the tests' own daemon: what it says, what it makes of answers, and of everything that goes wrong."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ..timing import in_time
from .clibrary import SOURCES, Failed, Library, Link, abi, build, compiled, link
from .fake_daemon import MESSAGE_MAX, FakeThread, fake_daemon

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLE = ROOT / "docs" / "examples" / "talk.c"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libzenjun")
    build(folder, "CC=gcc")
    return folder


@pytest.fixture(scope="module")
def library(built: Path) -> Library:
    return Library(built / "libzenjun.so")


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeThread]:
    with fake_daemon(tmp_path) as fake:
        yield fake


@pytest.fixture
def c(library: Library, fake: FakeThread) -> Iterator[Link]:
    with link(library, fake.daemon.path) as made:
        yield made


# ---- what it is


def test_the_header_and_the_library_are_clean(tmp_path: Path) -> None:
    """Both compilers, as C and as C++, with everything that they warn about by default."""
    build(tmp_path / "clang", "CC=clang")
    lone = tmp_path / "lone.c"
    lone.write_text("#include <zenjun.h>\nint main(void) { return zenjun_version() == 0; }\n")
    for compiler, *flags in (
        ("gcc", "-std=c11", "-x", "c"), ("clang", "-std=c11", "-x", "c"), ("g++", "-std=c++11", "-x", "c++"),
        ("clang++", "-std=c++17", "-x", "c++"),
    ):  # fmt: skip
        command = [compiler, *flags, "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", f"-I{SOURCES}"]
        command += ["-x", "c++" if "++" in compiler else "c", str(lone), "-x", "none", "-o", str(tmp_path / "lone")]
        command.append(str(tmp_path / "clang" / "libzenjun.a"))
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        assert subprocess.run([tmp_path / "lone"], timeout=60, check=False).returncode == 0


def test_the_abi_is_the_one_that_is_stored(built: Path) -> None:
    """Lines may be added to the stored list, for what is new; none may change or go."""
    assert abi(built / "libzenjun.so") == (HERE / "libzenjun.abi").read_text().splitlines()
    elf = subprocess.run(["readelf", "-d", built / "libzenjun.so"], capture_output=True, text=True, check=True, timeout=60).stdout
    needed = [line.split("[")[1].rstrip("]") for line in elf.splitlines() if "(NEEDED)" in line]
    assert needed == ["libc.so.6"] and "[libzenjun.so.1]" in elf


def test_it_is_installed_and_found_by_pkg_config(tmp_path: Path) -> None:
    prefix = tmp_path / "usr"
    make = ["make", "-s", "-C", str(SOURCES), f"BUILD={tmp_path / 'build'}", f"PREFIX={prefix}", "install"]
    subprocess.run(make, check=True, timeout=240)
    where = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "zenjun"], env=where, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    subprocess.run(["gcc", "-o", tmp_path / "talk", EXAMPLE, *flags], check=True, timeout=240)
    env = {**os.environ, "LD_LIBRARY_PATH": str(prefix / "lib"), "ZENJUN_SOCKET": str(tmp_path / "nobody")}
    lone = tmp_path / "lone.c"
    lone.write_text("#include <stdio.h>\n#include <zenjun.h>\nint main(void) { return puts(zenjun_version()) < 0; }\n")
    subprocess.run(["gcc", "-o", tmp_path / "lone", lone, *flags], check=True, timeout=240)
    assert (
        subprocess.run([tmp_path / "lone"], env=env, capture_output=True, text=True, timeout=60, check=True).stdout == "1.0.0\n"
    )
    assert (prefix / "share" / "man" / "man3" / "libzenjun.3").exists()


def test_every_function_is_on_the_page_and_in_the_manual() -> None:
    names = re.findall(r"^    (zenjun_\w+);$", (SOURCES / "libzenjun.map").read_text(), re.MULTILINE)
    assert len(names) > 20
    for page in (ROOT / "docs" / "c-library.md", SOURCES / "libzenjun.3"):
        text = page.read_text()
        assert not [name for name in names if name not in text], page


# ---- what it does


def test_messages_views_and_counts(library: Library, fake: FakeThread) -> None:
    with link(library, fake.daemon.path, "one") as a, link(library, fake.daemon.path, "two") as b:
        assert (a.welcome.station, a.welcome.stations, a.welcome.message_max, library.text(a.welcome.cluster)) == (
            1, 3, MESSAGE_MAX, "test",
        )  # fmt: skip
        mark = a.ffi.new("int *")
        g = a.join("g", context=mark)
        first = a.until("VIEW")
        assert first.handle == g and first.context == mark and first.view.here
        assert a.members(first.view.members, first.view.members_count) == [(1, a.welcome.client, "one")]
        h = b.joined("g")
        second = a.until("VIEW")
        assert a.members(second.view.joined, second.view.joined_count) == [(1, b.welcome.client, "two")]
        assert library.text(second.view.reason) == "join" and second.view.place.clock > 0
        number = a.send(g, b"he", b"", b"llo")
        a.wait_sent(number, 2)
        assert number == 1 and list(a.facts.done) == [1, 1, 1]
        for link_, own in ((a, 1), (b, 0)):
            m = link_.until("MESSAGE")
            assert (link_.data(m), m.own, m.place.station, m.client) == (b"hello", own, 1, a.welcome.client)
        done = a.until("DONE")
        assert list(done.done) == [1, 1, 1]
        assert b.lib.zenjun_leave(b.z, h) == 0
        last = b.until("VIEW", lambda item: not item.view.here)
        assert last.handle == h
        with pytest.raises(Failed, match="bad-handle"):
            b.send(h, b"x")
        assert b.joined("g") not in (0, h)
        assert a.close() == 0


def test_the_loop_of_a_program_that_waits_by_itself(c: Link) -> None:
    """Nothing waits but poll; every message comes once."""
    g = c.join("g")
    got: list[bytes] = []
    sent = 0
    end = time.monotonic() + 60
    while len(got) < 500 and time.monotonic() < end:
        try:
            while sent < 500:
                c.send(g, b"%d" % sent, level=-1)
                sent += 1
        except Failed as error:
            assert error.name == "again"
        c.step()
        while (item := c.next()) is not None:
            if item.kind == c.lib.ZENJUN_MESSAGE:
                got.append(c.data(item))
        events = c.lib.zenjun_events(c.z)
        assert events & select.POLLIN
        poller = select.poll()
        poller.register(c.lib.zenjun_fd(c.z), events)
        if len(got) < 500:
            poller.poll(1000)
    assert got == [b"%d" % i for i in range(500)]


def test_large_messages_and_their_limits(c: Link) -> None:
    g = c.joined("g")
    for size in (0, 65_535, 65_536, 300_000, MESSAGE_MAX):
        data = os.urandom(size)
        half = size // 2
        c.wait_sent(c.send(g, data[:half], data[half:]))
        assert c.message() == data
    with pytest.raises(Failed, match="too-large"):
        c.send(g, bytes(MESSAGE_MAX + 1))
    with pytest.raises(Failed, match="too-large"):
        c.send(g, bytes(MESSAGE_MAX), b"x")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("",), "name"), (("x" * 129,), "name"), (("g", 3), "level"), (("g", -2), "level"), (("g", 1, 1), "level"),
        (("g", 0, 4), "invalid"), (("g", 0, 0, 32), "invalid"), (("g", 2, 2), "level"), (("g", 2, 3), "level"),
    ],
)  # fmt: skip
def test_joins_that_cannot_be(c: Link, arguments: tuple[object, ...], error: str) -> None:
    with pytest.raises(Failed, match=f"^{error}$"):
        c.join(*arguments)  # type: ignore[arg-type]


def test_a_daemon_without_orders_for_several_groups(c: Link) -> None:
    """It would close the connection, for it does not know the frame."""
    g = c.joined("g")
    with pytest.raises(Failed, match=r"^groups$"):
        c.send_to([g], b"x")
    c.wait_sent(c.send(g, b"y"))


def test_refused_joins_and_messages(c: Link, fake: FakeThread) -> None:
    """A refusal is an item, and ends the wait for it. A refused message keeps its number, and those of others stay what they
    were."""
    g = c.joined("g")
    bad = c.join("refused")
    assert c.lib.zenjun_wait_joined(c.z, bad, 5000) == c.lib.ZENJUN_E_NAME_COLLISION
    item = c.until("REFUSED")
    assert item.handle == bad and item.refusal.number == 0 and c.library.text(item.refusal.code) == "name-collision"
    with pytest.raises(Failed, match="bad-handle"):
        c.send(bad, b"x")
    numbers = [c.send(g, data, level=2) for data in (b"1", b"refuse me", b"refuse me", b"2", b"refuse me", b"3")]
    assert numbers == [1, 2, 3, 4, 5, 6]
    c.wait_sent(6, 2)
    for number in (2, 3, 5):
        with pytest.raises(Failed, match="closed-group"):
            c.wait_sent(number, 2)
    for number in (1, 4):
        c.wait_sent(number, 2)
    assert [c.until("REFUSED").refusal.number for _ in range(3)] == [2, 3, 5]
    assert list(c.facts.done) == [6, 6, 6]
    assert fake.daemon.clients[c.welcome.client].sends == 3


def test_a_join_that_is_refused_after_it_was_left(c: Link) -> None:
    """Both are refused, the LEAVE because there is no such handle, which can be used again: there are fewer than this joins."""
    for _ in range(1100):
        h = c.join("refused")
        assert c.lib.zenjun_leave(c.z, h) == 0
        for code in ("name-collision", "bad-handle"):
            item = c.until("REFUSED")
            assert (item.handle, c.library.text(item.refusal.code)) == (h, code)
    g = c.joined("g")
    c.wait_sent(c.send(g, b"x"))
    assert c.message() == b"x"


def test_a_limit_of_nothing_is_refused(c: Link) -> None:
    """With it no call would ever read, or send."""
    for setting in (c.lib.ZENJUN_INBOX_MAX, c.lib.ZENJUN_OUTPUT_MAX):
        assert c.lib.zenjun_set(c.z, setting, 0) == c.lib.ZENJUN_E_INVALID
        assert c.lib.zenjun_set(c.z, setting, 1) == 0
    c.joined("g")


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_items_that_grow_do_not_add_up(c: Link, fake: FakeThread) -> None:
    """What an item is made of has the room of the largest one, not of all that were larger than those before."""
    before = 0
    for k in range(60):
        size = (1 << 20) + (k << 14)
        fake.call(partial(fake.daemon.event, event="closed", instance=7, reason="r" * size, station=2))
        assert len(c.library.text(c.until("EVENT").event.reason)) == size
        before = before or resident()
    assert resident() - before < 40 << 20, "about 2 MiB are in use"


def test_a_handle_that_only_sends_and_one_that_hears_nothing(library: Library, fake: FakeThread) -> None:
    with link(library, fake.daemon.path) as a, link(library, fake.daemon.path) as b:
        g = a.joined("open", flags=a.lib.ZENJUN_OPEN | a.lib.ZENJUN_DISCARD)
        s = b.join("open", flags=b.lib.ZENJUN_SEND_ONLY)
        assert b.recv().kind == b.lib.ZENJUN_READY
        n = b.join("closed", flags=b.lib.ZENJUN_SEND_ONLY)
        assert b.lib.zenjun_wait_joined(b.z, n, 5000) == b.lib.ZENJUN_E_CLOSED_GROUP
        b.wait_sent(b.send(s, b"x"))
        a.wait_sent(a.send(g, b"y"))
        a.ask("stations")
        while (item := a.recv()).kind != a.lib.ZENJUN_REPLY:
            assert item.kind == a.lib.ZENJUN_DONE
        assert b.lib.zenjun_leave(b.z, s) == 0
        with pytest.raises(Failed, match="bad-handle"):
            b.send(s, b"x")


def test_requests(c: Link, fake: FakeThread) -> None:
    c.joined("g")
    asked = [c.ask("status"), c.ask("members", b"g"), c.ask("stations"), c.ask("expel", 2), c.ask("expel", 9)]
    got = {}
    for _ in asked:
        item = c.until("REPLY")
        r = item.reply
        got[r.id] = (
            c.library.text(c.lib.zenjun_error_name(r.error)),
            c.library.text(r.message),
            c.members(r.members, r.members_count),
            [(s.station, s.incarnation, c.library.text(s.host), s.member, c.library.text(s.peer_state)) for s in
             (r.stations[i] for i in range(r.stations_count))],
        )  # fmt: skip
    assert got[asked[0]][0] == "ok"
    assert got[asked[1]][2] == [(1, c.welcome.client, "c")]
    assert got[asked[2]][3] == [(s, 10 + s, f"host{s}", 1, "A") for s in (1, 2, 3)]
    assert got[asked[3]] == ("ok", "station 2 goes", [], [])
    assert got[asked[4]][:2] == ("refused", "because of refused")
    for _ in range(64):
        c.ask("status")
    with pytest.raises(Failed, match="again"):
        c.ask("status")
    for _ in range(64):
        c.until("REPLY")
    c.ask("leave_cluster")
    assert c.library.text(c.until("REPLY").reply.message) == "this station leaves"


def test_events_and_what_they_cost(c: Link, fake: FakeThread) -> None:
    """The end of an instance: what was under way is undecided, what comes after it counts on."""
    g = c.joined("g")
    c.until("VIEW")
    assert c.facts.quorum == 1 and c.facts.instance == 7
    fake.daemon.hold = True
    for data in (b"1", b"2", b"3", b"4"):
        last = c.send(g, data, level=2)
    with pytest.raises(Failed, match="timeout"):
        c.wait_sent(last, 2, 50)
    me = fake.daemon.clients[c.welcome.client]
    fake.call(lambda: fake.daemon.done_all(me, (3, 2, 1)))
    fake.call(lambda: fake.daemon.event(event="blocked", quorum=False, stations=[{"station": 3, "reason": "silent"}]))
    blocked = c.until("EVENT").event
    assert (blocked.quorum, blocked.stations_count, blocked.stations[0].station) == (0, 1, 3)
    assert c.library.text(blocked.stations[0].reason) == "silent" and not c.facts.quorum
    fake.call(lambda: fake.daemon.event(event="closed", instance=7, reason="told", station=2))
    assert c.until("EVENT").event.station == 2
    fake.call(
        lambda: fake.daemon.event(event="reopened", instance=8, members=[1, 2], joined=True, undecided=2, first=3, unsafe=True)
    )
    with pytest.raises(Failed, match="undecided"):
        c.wait_sent(4, 1)
    back = c.until("EVENT").event
    assert (back.type, back.admitted, back.unsafe, back.undecided, back.undecided_first) == (
        c.lib.ZENJUN_EVENT_REOPENED, 1, 1, 2, 3,
    )  # fmt: skip
    assert c.facts.quorum == 1 and c.facts.instance == 8
    outcome = {}
    for number in (1, 2, 3, 4):
        for level in (0, 1, 2):
            outcome[number, level] = c.library.text(c.lib.zenjun_error_name(c.lib.zenjun_wait_sent(c.z, number, level, 0)))
    assert [k for k, name in outcome.items() if name != "ok"] == [(2, 2), (3, 1), (3, 2), (4, 0), (4, 1), (4, 2)]
    assert set(outcome.values()) == {"ok", "undecided"}
    fake.daemon.hold = False
    fake.daemon.clients[c.welcome.client].sends = 4
    c.wait_sent(c.send(g, b"5", level=2), 2)
    fake.call(lambda: fake.daemon.event(event="view", instance=9, members=[[1, 5, "h"]], joined=[], left=[2], clock=4, station=1,
                                        index=70000))  # fmt: skip
    view = c.until("EVENT").event
    assert (view.left[0].station, view.stations[0].incarnation, view.place.index) == (2, 5, 70000)
    fake.call(lambda: fake.daemon.event(event="fenced", at=[1, 2, 3]))
    assert c.until("EVENT").event.type == c.lib.ZENJUN_EVENT_FENCED and c.facts.fenced
    fake.call(lambda: fake.daemon.event(event="new in a later version", instance=9))
    assert c.until("EVENT").event.type == c.lib.ZENJUN_EVENT_OTHER


def test_a_message_waits_for_its_level_while_others_are_unread(c: Link, fake: FakeThread) -> None:
    """Reading goes on while a call waits for an answer, and what came is all there; who does not read at all is told."""
    g = c.joined("g")
    c.lib.zenjun_set(c.z, c.lib.ZENJUN_INBOX_MAX, 20_000)
    for i in range(100):
        c.wait_sent(c.send(g, b"%4d" % i + bytes(1000)))
    assert c.facts.unread > 100_000 and c.lib.zenjun_events(c.z) == 0
    with pytest.raises(Failed, match="inbox-full"):
        for i in range(100, 400):
            c.wait_sent(c.send(g, b"%4d" % i + bytes(1000)))
    before = c.facts.unread
    c.step()
    assert c.facts.unread == before
    got = [c.message()[:4] for _ in range(100)]
    assert got == [b"%4d" % i for i in range(100)]


def test_a_daemon_that_takes_nothing(c: Link, fake: FakeThread) -> None:
    """Sends fail with `again` when output_max waits, and go on when the daemon does."""
    g = c.joined("g", flags=c.lib.ZENJUN_DISCARD)
    c.lib.zenjun_set(c.z, c.lib.ZENJUN_OUTPUT_MAX, 100_000)
    fake.daemon.deaf = True
    sent = 0
    for _ in range(20):  # its thread may read what lies in the sockets only now, which makes room again
        with pytest.raises(Failed, match="again"):
            while sent < 10_000:
                sent = c.send(g, bytes(1000))
        assert 100_000 <= c.facts.unwritten < 102_000 and c.facts.sent == sent
        try:
            c.wait_sent(sent, -1, 20)
        except Failed as failed:
            assert "timeout" in str(failed)
            break
    else:
        raise AssertionError("it takes all that it is sent")
    fake.daemon.deaf = False
    c.wait_sent(sent, 2)
    assert c.facts.unwritten == 0


# ---- ends


def test_a_daemon_that_stops_and_one_that_comes_back(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "zenjund.sock"
    with pytest.raises(Failed, match="not-reachable"):
        Link(library, str(path))
    with fake_daemon(tmp_path) as fake:
        c = Link(library, str(path))
        g = c.joined("g")
        c.wait_sent(c.send(g, b"kept"))
        fake.call(fake.daemon.go_away)
        with pytest.raises(Failed, match="closing"):
            c.wait_sent(c.send(g, b"lost"))
        assert c.message() == b"kept", "what came before the end can be taken after it"
        with pytest.raises(Failed, match="closing"):
            c.message()
        assert c.facts.ended == c.lib.ZENJUN_E_CLOSING and not c.facts.quorum
        with pytest.raises(Failed, match="closing"):
            c.join("h")
        assert c.close() == c.lib.ZENJUN_E_CLOSING
    path.unlink(missing_ok=True)
    begun, over = threading.Event(), threading.Event()

    def later() -> None:
        begun.wait(60)
        time.sleep(0.1)
        with fake_daemon(tmp_path):
            over.wait(120)

    thread = threading.Thread(target=later)
    thread.start()
    try:
        begun.set()
        with link(library, path, patience_ms=60_000) as d:
            assert d.joined("g")
    finally:
        over.set()
        thread.join(60)


def test_refusals_and_silence_at_the_start(library: Library, fake: FakeThread) -> None:
    fake.daemon.refuse = ("busy", "no room")
    with pytest.raises(Failed, match="busy"):
        Link(library, str(fake.daemon.path), patience_ms=100)
    fake.daemon.refuse = ("invented", "in a later version")
    with pytest.raises(Failed, match="other"):
        Link(library, str(fake.daemon.path))
    fake.daemon.refuse = None
    fake.daemon.deaf = True
    with pytest.raises(Failed, match="timeout"):
        Link(library, str(fake.daemon.path), timeout_ms=50)
    fake.daemon.deaf = False
    with pytest.raises(Failed, match="invalid"):
        Link(library, "/" + "x" * 200)


def test_why_the_daemon_closes(c: Link, fake: FakeThread) -> None:
    """The reason outlives a write that fails."""
    g = c.joined("g")
    daemon = fake.daemon
    fake.call(lambda: daemon.error(daemon.clients[c.welcome.client], "slow-receiver", fatal=True))
    with pytest.raises(Failed, match="slow-receiver"):
        while True:
            c.send(g, bytes(1000), level=-1)
            c.step()
    assert c.reason == "because of slow-receiver"


def test_in_a_forked_child(c: Link) -> None:
    """No call does anything there: also not what needs no socket, an item that is here, a message that is queued."""
    g = c.joined("g")
    c.wait_sent(c.send(g, b"before"), 2)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            lib = c.lib
            forked = lib.ZENJUN_E_FORKED
            item, vector = c.ffi.new("const struct zenjun_item **"), c.ffi.new("struct iovec[1]")
            said = [
                lib.zenjun_next(c.z, item),
                lib.zenjun_recv(c.z, item, 0),
                lib.zenjun_send(c.z, g, vector, 1, 0, c.ffi.NULL),
                lib.zenjun_wait_sent(c.z, 1, 0, 0),
                lib.zenjun_wait(c.z, 0),
                lib.zenjun_wait_joined(c.z, g, 0),
                lib.zenjun_step(c.z),
                lib.zenjun_leave(c.z, g),
                lib.zenjun_close(c.z, 1000),
            ]
            code = 0 if said == [forked] * len(said) else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    c.wait_sent(c.send(g, b"mine"))
    assert [c.message(), c.message()] == [b"before", b"mine"]


def test_a_signal_ends_a_wait(c: Link) -> None:
    """Nothing is lost by it, and the call can be made again."""
    g = c.joined("g")
    c.until("VIEW")
    ran: list[int] = []
    old = signal.signal(signal.SIGALRM, lambda *_: ran.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)  # again and again: the first may come before it waits
        begin = time.monotonic()
        with pytest.raises(Failed, match="interrupted"):
            c.recv(20_000)
        in_time(time.monotonic() - begin < 10, "the end of the wait")
        assert ran
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    c.wait_sent(c.send(g, b"after"))
    assert c.message() == b"after"


BODY = b'{"event":"open"}'
VIOLATIONS = {
    "unknown type": struct.pack("<IBBH", 0, 99, 0, 0),
    "too long": struct.pack("<IBBH", (1 << 24) + (1 << 16) + 1, 66, 0, 0),
    "message without place": struct.pack("<IBBH", 3, 66, 0, 1) + b"abc",
    "handle out of bounds": struct.pack("<IBBH", 16, 66, 0, 1024) + bytes(16),
    "done of more than was sent": struct.pack("<IBBH3Q", 24, 69, 0, 0, 1, 0, 0),
    "done too short": struct.pack("<IBBH", 3, 69, 0, 0) + b"abc",
    "no JSON": struct.pack("<IBBH", 3, 68, 0, 0) + b"abc",
    "no object": struct.pack("<IBBH", 2, 68, 0, 0) + b"[]",
    "more than one": struct.pack("<IBBH", len(BODY) + 2, 68, 0, 0) + BODY + b"{}",
    "too deep": struct.pack("<IBBH", 1000, 68, 0, 0) + b'{"x":' + b"[" * 995,
    "no such request": struct.pack("<IBBHIHH", 10, 74, 0, 0, 77, 0, 0) + b"{}",
    "refused but never sent": struct.pack("<IBBH", 10, 70, 0, 0) + b'{"send":1}',
    "second welcome": struct.pack("<IBBH", 2, 65, 0, 0) + b"{}",
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_ends_the_connection(c: Link, fake: FakeThread, name: str) -> None:
    """What came before it is handed out; nothing of what comes behind it."""
    c.joined("g")
    daemon = fake.daemon
    good = struct.pack("<IBBH", 17, 66, 0, 1) + bytes(16) + b"x"
    fake.call(lambda: daemon.clients[c.welcome.client].writer.write(good + VIOLATIONS[name] + good))
    assert c.message() == b"x"
    with pytest.raises(Failed, match=r"^protocol$"):
        c.recv()
    assert c.reason


def test_frames_cut_at_every_byte(library: Library, tmp_path: Path) -> None:
    """A daemon that writes byte by byte says the same."""
    path = tmp_path / "s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)
    view = b'{"group":"g","clock":1,"station":1,"index":0,"instance":7,"reason":"join","joined":[],"left":[],'
    view += b'"members":[[1,2,"\\u00e4\\ud83d\\ude00\\u0000\\n"]]}'
    welcome = b'{"version":3,"station":1,"stations":1,"cluster":"x","client":2,"message_max":9,"queue_bytes_max":9,"instance":7}'

    def serve() -> None:
        peer, _ = server.accept()
        frames = [(65, 0, welcome), (67, 1, view), (66, 1, bytes(16) + b"data")]
        for kind, handle, body in frames:
            data = struct.pack("<IBBH", len(body), kind, 0, handle) + body
            for at in range(len(data)):
                if kind != 65 or at > 40:
                    time.sleep(0.0002)
                peer.send(data[at : at + 1])
            if kind == 65:
                asked = b""
                while not asked.endswith(b"\0\0\0\0g"):  # HELLO and JOIN, in as many pieces as they come
                    asked += peer.recv(1000)
        peer.send(b"\1")
        peer.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with link(library, path) as c:
            c.join("g")
            c.step()
            item = c.until("VIEW")
            assert c.members(item.view.members, 1) == [(1, 2, "ä\U0001f600\ufffd\n")]
            assert c.message() == b"data"
            with pytest.raises(Failed, match="disconnected"):
                c.recv()
            assert "in the middle of a frame" in c.reason
    finally:
        thread.join(60)
        server.close()


# ---- the example of the page


def talk(program: list[str], socket_path: Path, lines: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "ZENJUN_SOCKET": str(socket_path)}
    return subprocess.run(program, input=lines, capture_output=True, text=True, env=env, timeout=240, check=False)


def test_the_example_of_the_page(built: Path, fake: FakeThread, tmp_path: Path) -> None:
    """It stands in the page as it is compiled here; under valgrind it leaves nothing behind."""
    assert f"```c\n{EXAMPLE.read_text()}```" in (ROOT / "docs" / "c-library.md").read_text()
    program = compiled(tmp_path / "talk", EXAMPLE, built)
    assert shutil.which("valgrind"), "valgrind is missing: apt-get install valgrind"
    checked = ["valgrind", "-q", "--leak-check=full", "--error-exitcode=9", "--track-fds=no", str(program), "me"]
    for command in ([str(program), "me"], checked):
        done = talk(command, fake.daemon.path, "one\ntwo\n")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[:3] == ["1 in the group (join)", "station 1: one", "station 1: two"]
    done = talk([str(program)], tmp_path / "nobody", "")
    assert done.returncode == 1 and "no daemon answers" in done.stderr
