"""The async and the sync client over a real Unix socket, against a daemon of the tests."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from zenjun.daemon.client import (
    BadLevel,
    BadName,
    Busy,
    ClosedGroup,
    ClusterView,
    Connection,
    ConnectionClosed,
    Event,
    Group,
    InboxFull,
    Item,
    Message,
    NameCollision,
    NotMember,
    NotPermitted,
    NotReachable,
    OrderMismatch,
    Refused,
    SlowReceiver,
    SyncConnection,
    Timeout,
    TooLarge,
    Undecided,
    View,
    connect,
    connect_sync,
    sessions,
    sessions_sync,
)

from ..timing import in_time
from .fake_daemon import MESSAGE_MAX, FakeDaemon, FakeThread, fake_daemon, fill

Story = Callable[[FakeDaemon, str], Awaitable[None]]
STORY_S = 120.0
SOON_S = 10.0
"""By then a call has ended that ends after 0.1 s."""


@pytest.fixture(params=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Story], None]:
    """Runs a story with a daemon in the same loop, on either loop, within `STORY_S`."""

    def run(story: Story) -> None:
        async def main() -> None:
            daemon = FakeDaemon(tmp_path / "z.sock")
            await daemon.start()
            try:
                async with asyncio.timeout(STORY_S):
                    await story(daemon, str(daemon.path))
            finally:
                await daemon.stop()

        if request.param == "uvloop":
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(main())
        else:
            asyncio.run(main())

    return run


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeThread]:
    with fake_daemon(tmp_path) as fake:
        yield fake


def sync(fake: FakeThread, **options: Any) -> SyncConnection:
    return connect_sync(str(fake.daemon.path), **{"timeout": 60.0, **options})


# ---- async


def test_ten_lines(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        async with connect(path, name="ten") as c, connect(path, name="other") as d:
            assert (c.welcome.station, c.welcome.message_max, c.closed) == (1, MESSAGE_MAX, False)
            chat, other = await c.join("chat"), await d.join("chat")
            await chat.send(b"hello")
            async for m in other:
                assert m == Message(b"hello", "chat", 1, c.welcome.client, m.place, False)
                break
            m = await chat.recv()
            assert m.own and m.data == b"hello"
            assert [x.name for x in chat.members] == ["ten", "other"]
        assert c.closed

    play(story)


def test_items_in_order_and_view_follows_reading(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        async with connect(path) as c, connect(path, name="b") as d:
            g = await c.join("g")
            assert g.view is not None and len(g.view.members) == 1
            await g.send(b"1")
            h = await d.join("g")
            await h.send(b"2")
            await h.leave()
            await g.send(b"3", "ack")
            assert len(g.members) == 1
            seen: list[object] = []
            async for item in g.items(timeout=60):
                assert not isinstance(item, Event)
                seen.append(item.data if isinstance(item, Message) else (item.joined or item.left, len(g.members)))
                if seen[-1] == b"3":
                    break
            b = (1, d.welcome.client, "b")
            assert seen == [(((1, c.welcome.client, c_name(c)),), 1), b"1", ((b,), 2), b"2", ((b,), 1), b"3"]

    def c_name(c: Connection) -> str:
        return next(x.name for x in daemons[0].clients.values() if x.number == c.welcome.client)

    daemons: list[FakeDaemon] = []

    async def with_daemon(daemon: FakeDaemon, path: str) -> None:
        daemons.append(daemon)
        await story(daemon, path)

    play(with_daemon)


def test_many_messages_every_way_of_reading(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        async with connect(path) as c, connect(path) as d:
            g, h = await c.join("g", no_self=True), await d.join("g")
            data = [b"%d" % i for i in range(5000)]
            sending = asyncio.create_task(g.send_many(data, window=500))
            got: list[bytes] = []
            while len(got) < 2000:
                got += [m.data for m in await h.recv_batch()]
            async for m in h.messages(timeout=60):
                got.append(m.data)
                if len(got) >= 4000:
                    break
            while len(got) < 5000:
                got.append((await h.recv()).data)
            assert got == data and await sending == 5000
            with pytest.raises(Timeout, match=r"waiting for a message of group 'g': nothing after 0\.01 s"):
                await h.recv(timeout=0.01)

    play(story)


def test_large_messages_both_ways_at_once(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        async with connect(path, timeout=60) as c:
            g = await c.join("g")
            big = [os.urandom(MESSAGE_MAX) for _ in range(6)]
            sending = asyncio.gather(*(g.send(b) for b in big))
            got = [(await g.recv()).data for _ in big]
            await sending
            assert got == big
            before = len(daemon.received)
            with pytest.raises(TooLarge):  # case 123: nothing is sent
                await g.send(bytes(MESSAGE_MAX + 1))
            assert await c.status() and len(daemon.received) == before + 1

    play(story)


def test_case_147_every_call_against_a_stopped_daemon(play: Callable[[Story], None]) -> None:
    """Each call raises TimeoutError within its deadline, and the connection is usable when the daemon goes on."""

    async def story(daemon: FakeDaemon, path: str) -> None:
        async with connect(path) as c:
            g = await c.join("g")
            c._timeout = 0.1  # of the connection, from now on: only what is called below is to come to nothing
            daemon.deaf = True
            calls: list[Callable[[], Awaitable[object]]] = [
                c.status, c.members, lambda: c.members("g"), lambda: c.join("h"), lambda: c.join("i", send_only=True),
                lambda: g.send(b"x"), lambda: g.send(b"x", "ack"), lambda: g.send_many([b"y"] * 10), g.recv, g.recv_batch,
                g.recv_items,
            ]  # fmt: skip
            for call in calls:
                begin = time.monotonic()
                with pytest.raises(TimeoutError):
                    await call()
                in_time(time.monotonic() - begin < SOON_S, "a call that ends after 0.1 s")
            with pytest.raises(TimeoutError):  # back-pressure of the socket
                await asyncio.gather(*(g.send(bytes(MESSAGE_MAX), None) for _ in range(3)))
            with pytest.raises(TimeoutError):
                await connect(path, timeout=0.1)
            daemon.deaf = False
            assert await c.status(timeout=60) == daemon.status
            await g.send(b"again", timeout=60)
            assert b"again" in [m.data for m in await g.recv_batch()] or (await g.recv(60)).data
            assert (await c.join("h", timeout=60)).members

    play(story)


def test_close_against_a_stopped_daemon_and_twice(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        c = await connect(path)
        daemon.deaf = True
        begin = time.monotonic()
        assert await c.close(timeout=0.1) is False
        in_time(time.monotonic() - begin < SOON_S, "a call that ends after 0.1 s")
        assert await c.close() is True
        with pytest.raises(ConnectionClosed):
            await c.status()
        daemon.deaf = False
        d = await connect(path)
        g = await d.join("g")
        await g.send(b"x", None)
        assert await d.close() is True
        assert (6, 0, 0, b"") in daemon.received
        assert [m async for m in g] == []

    play(story)


def test_leave_and_join_again(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        async with connect(path) as c:
            for i in range(5):
                async with await c.join("g") as g:
                    await g.send(b"%d" % i)
                assert [m.data async for m in g] == [b"%d" % i]
                with pytest.raises(NotMember):
                    await g.send(b"x")
                with pytest.raises(NotMember):
                    await g.recv()

    play(story)


def test_errors_have_types(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        async with connect(path) as c:
            with pytest.raises(NameCollision, match="because of name-collision"):
                await c.join("refused")
            with pytest.raises(ClosedGroup):
                await c.join("closed", send_only=True)
            with pytest.raises(NotMember, match="sending only"):
                await (await c.join("open", send_only=True)).recv()
            with pytest.raises(BadName):
                await c.join("")
            with pytest.raises(ValueError, match="one of"):
                await c.join("g", "safe")  # type: ignore[arg-type]
            g = await c.join("g")
            with pytest.raises(ValueError, match="one of"):
                await g.send(b"", "best")  # type: ignore[arg-type]
            results = await asyncio.gather(g.send(b"1"), g.send(b"refuse me"), g.send(b"2"), return_exceptions=True)
            assert [type(r).__name__ for r in results] == ["NoneType", "ClosedGroup", "NoneType"]
            await g.send(b"3", timeout=20)

    play(story)


def test_reopened_raises_undecided(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        events: list[Event] = []
        async with connect(path, on_event=events.append) as c:
            g = await c.join("g")
            await g.send(b"1")
            daemon.hold = True
            sending = asyncio.create_task(g.send_many([b"x"] * 10))
            assert (await g.recv()).data == b"1" and (await g.recv()).data == b"x"
            daemon.event(event="reopened", instance=8, members=[1, 2, 3], undecided=10, first=2)
            with pytest.raises(Undecided) as caught:
                await sending
            assert caught.value.completed == 0
            assert [e.name for e in events] == ["reopened"] and c.instance == 8
            daemon.hold = False
            await g.send(b"y")

    play(story)


def test_blocked_shows_in_the_timeout(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        async with connect(path) as c:
            g = await c.join("g")
            daemon.hold = True
            daemon.event(event="blocked", stations=[{"station": 3, "reason": "silent"}])
            while not c.blocked:
                await asyncio.sleep(0.001)
            with pytest.raises(Timeout, match=r"sending: nothing after 0.1 s; the cluster waits for station 3 \(silent\)"):
                await g.send(b"x", timeout=0.1)
            assert c.blocked == ((3, "silent"),)

    play(story)


def test_slow_receiver_reads_its_last_messages_then_the_reason(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        c = await connect(path)
        g = await c.join("g")
        await g.send(b"last")
        daemon.error(next(iter(daemon.clients.values())), "slow-receiver", fatal=True)
        got = []
        with pytest.raises(SlowReceiver, match="because of slow-receiver"):
            async for m in g:
                got.append(m.data)
        assert got == [b"last"]
        with pytest.raises(SlowReceiver):
            await g.send(b"x")
        assert await c.close() is False

    play(story)


def test_unread_inbox_stops_reading_and_starts_again(play: Callable[[Story], None]) -> None:
    """Back-pressure: what a program does not read stays with the daemon, so that it can see who is slow."""

    async def story(daemon: FakeDaemon, path: str) -> None:
        async with connect(path, inbox_bytes_max=10_000) as c, connect(path) as d:
            g, h = await c.join("g"), await d.join("g", receive=False)
            sending = asyncio.create_task(h.send_many([bytes(1000)] * 3000, None))
            for _ in range(1000):
                if not c._link.reading:
                    break
                await asyncio.sleep(0.002)
            assert not c._link.reading and c._protocol.inbox_bytes < 400_000
            with pytest.raises(Timeout, match="unread in the groups"):
                await c.status(timeout=0.2)
            total = 0
            while total < 3000:
                total += len(await g.recv_batch())
            assert total == 3000 and await sending == 3000
            assert await c.status()

    play(story)


def test_case_93_waits_for_the_daemon(tmp_path: Path) -> None:
    """connect(wait=...) goes on until the daemon appears; sessions() connects again after it has gone."""

    async def main() -> None:
        path = str(tmp_path / "z.sock")
        with pytest.raises(NotReachable, match="no such socket"):
            await connect(path)
        begin = time.monotonic()
        with pytest.raises(NotReachable):
            await connect(path, wait=0.15)
        assert time.monotonic() - begin > 0.1
        in_time(time.monotonic() - begin < SOON_S, "a call that ends after 0.15 s")
        waiting = asyncio.create_task(connect(path, wait=60)._open())
        await asyncio.sleep(0)
        daemon = FakeDaemon(Path(path))
        await daemon.start()
        c = await waiting
        await c.close()
        lives = 0
        async for c in sessions(path, wait=60):
            try:
                g = await c.join("g")
                lives += 1
                if lives == 2:
                    break
                await daemon.stop()
                daemon = FakeDaemon(Path(path))
                await g.recv()
            except ConnectionClosed:
                await daemon.start()
                continue
        assert lives == 2
        await daemon.stop()

    asyncio.run(asyncio.wait_for(main(), STORY_S))


def test_refusals_at_hello(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        daemon.refuse = ("busy", "64 clients already")
        with pytest.raises(Busy, match="64 clients already"):
            await connect(path)

    play(story)


def test_a_cancelled_call_leaves_the_connection_usable(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        async with connect(path) as c:
            g = await c.join("g")
            daemon.deaf = True
            tasks = [asyncio.create_task(t) for t in (g.recv(), g.send(b"x"), c.status(), c.join("h"))]
            await asyncio.sleep(0.02)
            for t in tasks:
                t.cancel()
            assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
            daemon.deaf = False
            assert await c.status()
            await g.send(b"y")
            assert [(await g.recv()).data for _ in range(2)] == [b"x", b"y"]
            assert await c.join("h")

    play(story)


def test_one_reader_at_a_time(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        async with connect(path) as c:
            g = await c.join("g")
            await g.recv_items()
            first = asyncio.create_task(g.recv())
            await asyncio.sleep(0.01)
            with pytest.raises(RuntimeError, match="two tasks"):
                await g.recv()
            await g.send(b"x")
            assert (await first).data == b"x"

    play(story)


def test_operators_order_and_stations(play: Callable[[Story], None]) -> None:
    async def story(daemon: FakeDaemon, path: str) -> None:
        events: list[Event] = []
        async with connect(path, on_event=events.append) as c, connect(path) as d:
            assert await c.expel(2) == "station 2 goes"
            with pytest.raises(Refused):
                await c.expel(1)
            g = await c.join("fast", order="op")
            assert (g.order, g.level) == ("op", "ordered")
            with pytest.raises(OrderMismatch):
                await d.join("fast")
            with pytest.raises(BadLevel):
                await d.join("fast", "preack", order="op")
            h = await d.join("fast", "accepted", order="op")
            await h.send(b"x")
            assert (await g.recv()).data == b"x"
            assert [(s.station, s.incarnation, s.host, s.peer_state, s.member) for s in await c.stations()] == [
                (k, 10 + k, f"host{k}", "A", True) for k in (1, 2, 3)
            ]
            daemon.event(
                event="view", instance=9, members=[[1, 5, "a"]], joined=[], left=[2, 3], clock=10**6, station=1, index=65535
            )
            await g.send(b"y")
            got = [i async for i in _until(g, b"y")]
            assert isinstance(got[-2], ClusterView) and (got[-2].members, got[-2].left) == ((1,), (2, 3)) == (
                events[0].members,
                (2, 3),
            )
            daemon.operator = False
            with pytest.raises(NotPermitted):
                await c.leave_cluster()
            daemon.operator = True
            assert await c.leave_cluster() == "this station leaves"

    async def _until(g: Group, data: bytes) -> AsyncIterator[Item]:
        async for item in g.items(timeout=60):
            yield item
            if isinstance(item, Message) and item.data == data:
                return

    play(story)


def test_descriptors_do_not_leak(play: Callable[[Story], None]) -> None:
    """Cases 143 and 145: nothing is left registered, nothing closed twice."""

    async def story(daemon: FakeDaemon, path: str) -> None:
        async def once() -> None:
            async with connect(path) as c:
                await (await c.join("g")).send(b"x")

        await once()
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(30):
            await once()
        for _ in range(1000):
            if len(list(Path("/proc/self/fd").iterdir())) <= before:
                break
            await asyncio.sleep(0.002)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before

    play(story)


# ---- sync


def test_sync_ten_lines(fake: FakeThread) -> None:
    with sync(fake, name="a") as c, sync(fake, name="b") as d:
        chat, other = c.join("chat"), d.join("chat")
        chat.send(b"hello", "ack")
        for m in other.messages(timeout=60):
            assert m.data == b"hello" and not m.own
            break
        assert chat.recv().own
        assert [x.name for x in d.members("chat")] == ["a", "b"]
        assert [x.station for x in d.members()] == [1, 2, 3]
        assert c.status() == fake.daemon.status
    assert c.closed and d.closed


def test_sync_operators_order_and_stations(fake: FakeThread) -> None:
    with sync(fake) as c:
        assert c.expel(3) == "station 3 goes" and c.leave_cluster() == "this station leaves"
        with pytest.raises(Refused):
            c.expel(7)
        fake.daemon.operator = False
        with pytest.raises(PermissionError):
            c.expel(3)
        assert c.join("fast", order="op").order == "op"
        with sync(fake) as d, pytest.raises(OrderMismatch):
            d.join("fast", "ack")
        assert [s.host for s in c.stations()] == ["host1", "host2", "host3"]


def test_sync_many_and_large(fake: FakeThread) -> None:
    with sync(fake, timeout=60.0) as c:
        g = c.join("g")
        data = [b"%d" % i for i in range(3000)] + [bytes(MESSAGE_MAX)] * 12
        assert g.send_many(data, window=200) == 3012
        got: list[bytes] = []
        while len(got) < len(data):
            got += [m.data for m in g.recv_batch()]
        assert got == data
        with pytest.raises(Timeout):
            g.recv(timeout=0.01)


def test_sync_case_147_every_call_against_a_stopped_daemon(fake: FakeThread) -> None:
    with sync(fake) as c:
        g = c.join("g")
        g.recv_items()
        fake.daemon.deaf = True
        calls: list[Callable[[], object]] = [
            lambda: c.status(0.1), lambda: c.members("", 0.1), lambda: c.join("h", timeout=0.1),
            lambda: g.send(b"x", timeout=0.1), lambda: g.send_many([b"y"] * 9, timeout=0.1),
            lambda: g.recv(0.1), lambda: g.recv_batch(0.1),
            lambda: g.recv_items(0.1), lambda: next(g.messages(0.1)), lambda: next(g.items(0.1)),
            lambda: fill(g, MESSAGE_MAX, 3),
            lambda: connect_sync(str(fake.daemon.path), timeout=0.1),
        ]  # fmt: skip
        for call in calls:
            begin = time.monotonic()
            with pytest.raises(TimeoutError):
                call()
            in_time(time.monotonic() - begin < SOON_S, "a call that ends after 0.1 s")
        fake.daemon.deaf = False
        assert c.status() == fake.daemon.status
        g.send(b"again")
        assert c.join("h").members


def test_sync_case_93_waits_for_the_daemon(tmp_path: Path) -> None:
    path = str(tmp_path / "zenjund.sock")
    with pytest.raises(NotReachable, match="no such socket"):
        connect_sync(path)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    with pytest.raises(NotReachable, match="nobody listens"):
        connect_sync(path, wait=0.05)
    Path(path).unlink()
    got: list[int] = []

    def wait() -> None:
        with connect_sync(path, wait=60) as c:
            got.append(c.welcome.station)

    thread = threading.Thread(target=wait)
    thread.start()
    with fake_daemon(tmp_path):
        thread.join(60)
    assert got == [1]


def test_sync_sessions(fake: FakeThread) -> None:
    lives = 0
    for c in sessions_sync(str(fake.daemon.path), wait=60, timeout=30.0):
        try:
            g = c.join("g")
            lives += 1
            if lives == 2:
                break
            fake.call(fake.daemon.hang_up)
            g.recv()
        except ConnectionClosed:
            continue
    assert lives == 2


def test_sync_slow_receiver_while_writing(fake: FakeThread) -> None:
    """The reason is found even if it is a write that fails."""
    c = sync(fake)
    g = c.join("g")
    fake.call(lambda: fake.daemon.error(next(iter(fake.daemon.clients.values())), "slow-receiver", fatal=True))
    with pytest.raises(SlowReceiver):
        for _ in range(1000):
            g.send(bytes(1000), None)
            time.sleep(0.001)
    c.close()


def test_sync_inbox_full_is_said(fake: FakeThread) -> None:
    with sync(fake, inbox_bytes_max=1000) as c, sync(fake) as d:
        g, h = c.join("g"), d.join("g", receive=False)
        h.send_many([bytes(1000)] * 400)
        with pytest.raises(InboxFull, match="unread in the groups"):
            for _ in range(100):
                g.send(b"x")
        total = 0
        while total < 400:
            total += len(g.recv_batch())
        g.send(b"y")


def test_sync_two_threads_at_once_are_found(fake: FakeThread) -> None:
    with sync(fake) as c:
        g = c.join("g")
        g.recv_items()
        errors: list[BaseException] = []
        held = threading.Event()
        lock = c._alone._lock

        class Told:
            """The connection's lock, which tells when somebody has it: who tried it meanwhile would be the second thread."""

            release = staticmethod(lock.release)

            @staticmethod
            def acquire(blocking: bool) -> bool:
                got = lock.acquire(blocking=blocking)
                if got:
                    held.set()
                return got

        c._alone._lock = Told()  # type: ignore[assignment]

        def read() -> None:
            try:
                g.recv(timeout=60)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        assert held.wait(60), "the other thread reads"
        with pytest.raises(RuntimeError, match="two threads"):
            g.send(b"x")
        with sync(fake) as d:
            d.join("g", receive=False).send(b"end")
        thread.join(60)
        assert not errors


def test_sync_leave_and_undecided(fake: FakeThread) -> None:
    with sync(fake) as c:
        for _ in range(3):
            with c.join("g") as g:
                g.send(b"x")
            assert [m.data for m in g] == [b"x"]
        g = c.join("g")
        items = [type(i) for i in g.recv_items()]
        assert items == [View]
        fake.daemon.hold = True
        with g.pipeline("ack", timeout=0.2) as p:
            for _ in range(5):
                p.put(b"1")
            with pytest.raises(Timeout) as caught:
                p.wait()
            assert caught.value.completed == 0
            fake.call(lambda: fake.daemon.event(event="reopened", instance=8, undecided=5, first=4, members=[1]))
            with pytest.raises(Undecided):
                p.wait()
