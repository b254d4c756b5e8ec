"""Transactions that programs give whole: a binary frame, and no task while nothing has to be waited for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from zenjun.daemon.database import serving, waiting
from zenjun.daemon.database.room import Room
from zenjun.daemon.database.serving import Client
from zenjun.daemon.database.waiting import Waiting
from zenjun.daemon.database.wire import VERSION, Commit, pack_commit, pack_version, unpack_commit, unpack_version
from zenjun.daemon.jsonframes import Frame, FrameError, Frames, pack, pack_binary
from zenjun.proto.service.base import Effect
from zenjun.proto.service.database import messages as m
from zenjun.proto.service.database.machine import Answer, Durability
from zenjun.proto.service.database.rows import Verdict

from ..rules import rule


def txid(number: int) -> m.Txid:
    return m.Txid(1, 2, 3, number)


def commit(number: int, *, data: bytes | None = None, again: bool = False, seconds: float = 20.0, name: str = "shop") -> Commit:
    write = m.encode(m.Write(txid(number), 1 << 32, 7, (bytes(8),), b"body")) if data is None else data
    return Commit(number, again, Durability.MAJORITY, seconds, name, write)


def test_the_frames() -> None:
    asked = commit(1, again=True, seconds=0.5, name="ünicode")._replace(number=1 << 40)
    frame = pack_commit(asked)
    (body,) = cut(frame)
    assert unpack_commit(body) == asked
    head = len(body) - len(asked.data)
    for size in range(head):
        with pytest.raises(ValueError):
            unpack_commit(body[:size])
    assert unpack_commit(body[:head]).data == b"", "what is to be committed is looked at by who knows the request's number"
    for at, wrong in ((9, 2), (10, 3), (11, 255), (15, 255), (16, 0xFF)):
        with pytest.raises(ValueError):
            unpack_commit(body[:at] + bytes([wrong]) + body[at + 1 :])
    assert unpack_commit(cut(pack_commit(asked._replace(seconds=1e9)))[0]).seconds == 86400
    (answer,) = cut(pack_version(5, 1 << 50))
    assert unpack_version(answer) == (5, 1 << 50)
    for wrong_answer in (answer[:-1], answer + b"x"):
        with pytest.raises(ValueError):
            unpack_version(wrong_answer)
    with pytest.raises(FrameError, match="no JSON"):
        list(Frames(100).feed(pack_binary(b"\1")))


def cut(data: bytes) -> list[bytes]:
    """The contents of binary frames."""
    return [frame["body"] for frame in Frames(1 << 20, lambda body: {"body": body}).feed(data)]


def test_an_encoded_write_is_told_from_other_bytes() -> None:
    """What a program gives is sent as it is, so it must be what every site decodes."""
    write = m.Write(txid(9), 5, 6, (bytes(8), bytes([1] * 8)), b"abc")
    data = m.encode(write)
    assert m.is_write(data) and m.decode(data) == write and m.txid_of(data) == txid(9)
    others = [data[:size] for size in range(len(data))] + [m.encode(m.Release(txid(1))), m.encode(m.Synced(1, 2))]
    others += [data[:at] + bytes([255]) + data[at + 1 :] for at in range(len(data))]
    for other in others:
        assert m.is_write(other) == isinstance(m.decode(other), m.Write), other
    assert not m.is_write(data[:33] + (m.READS_MAX + 1).to_bytes(2, "big") + bytes(8 * m.READS_MAX + 8))
    with pytest.raises(ValueError):
        m.pack_write(txid(1).encode(), 1, 1, bytes(8 * m.READS_MAX + 8), b"")


class Machine:
    """It answers when the test says so."""

    def __init__(self) -> None:
        self.long = SimpleNamespace(part_bytes=1000)
        self.me = (1, 2)
        self.sent: list[m.Txid] = []
        self.at_once: list[Effect] = []

    def submit_encoded(self, data: bytes, durability: Durability) -> list[Effect]:
        assert durability is Durability.MAJORITY
        self.sent.append(m.txid_of(data))
        return self.at_once

    def submit(self, write: m.Write, durability: Durability) -> list[Effect]:
        return self.submit_encoded(m.encode(write), durability)


class Site:
    """One database, and the process that has it."""

    name = "shop"
    closed = False

    def __init__(self) -> None:
        self.machine: Machine | None = Machine()
        self.can_write = self.is_free = True
        self.counters: Counter[str] = Counter()
        self.waiting = Waiting(self)  # type: ignore[arg-type]
        self.sites = {"shop": self}
        self.room = Room(1000)
        self.works = asyncio.Event()
        """The thread of the applier has time."""
        self.jobs = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.sessions: dict[m.Txid, tuple[int, int]] = {}
        """Transactions of programs at other stations, and the services with whose sessions they began."""
        self.distant = SimpleNamespace(began=self.sessions.get)
        self.config = SimpleNamespace(
            station=SimpleNamespace(id=1), cluster=SimpleNamespace(stations=3, name="c")
        )  # fmt: skip

    def site(self, name: str) -> Site:
        return self

    def submit(self, data: bytes, durability: Durability) -> None:
        assert self.is_free and self.machine is not None
        self.carry_out(self.machine.submit_encoded(data, durability))

    async def work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.jobs += 1
        await self.works.wait()
        return function(*arguments)

    async def act(self, function: Callable[..., Any], *arguments: Any, is_short: bool = False) -> None:
        self.carry_out(function(*arguments) if is_short else await self.work(function, *arguments))

    def soon(self, what: Any) -> None:
        self.tasks.append(asyncio.create_task(what))

    def carry_out(self, effects: Sequence[Any]) -> None:
        for effect in effects:
            self.waiting.on_effect(effect)

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        return condition()

    def why_not(self) -> str:
        return "no answer"

    def log_begin(self) -> int:
        return 1

    def decide(self, number: int, verdict: Verdict = Verdict.DONE) -> None:
        self.carry_out([Answer(txid(number), verdict, 100 + number)])


class Pipe:
    """What the program is written, and whether it is read from."""

    def __init__(self) -> None:
        self.frames = Frames(1 << 20, lambda body: dict(zip(("id", "version"), unpack_version(body), strict=True)))
        self.got: list[Frame] = []
        self.reads, self.closed = True, False

    def write(self, data: bytes) -> None:
        self.got += self.frames.feed(data)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        self.closed = True


def session(test: Callable[[Client, Site, Pipe], Awaitable[None]], *, hello: bool = True) -> None:
    """A program that has said hello."""

    async def run() -> None:
        site: Any = Site()
        client, pipe = Client(site, 0), Pipe()
        client.connection_made(pipe)  # type: ignore[arg-type]
        if hello:
            client.data_received(pack({"hello": VERSION}))
            assert pipe.got.pop(0)["hello"] == VERSION
        await test(client, site, pipe)
        for task in site.tasks:
            await task

    asyncio.run(run())


def test_several_at_once_have_no_tasks() -> None:
    async def test(client: Client, site: Site, pipe: Pipe) -> None:
        client.data_received(b"".join(pack_commit(commit(number)) for number in (1, 2, 3)))
        assert site.machine is not None and site.machine.sent == [txid(1), txid(2), txid(3)] and not client._tasks
        site.decide(2)
        site.decide(1, Verdict.CONFLICT)
        site.decide(3)
        assert pipe.got[0] == {"id": 2, "version": 102} and pipe.got[2] == {"id": 3, "version": 103}
        assert pipe.got[1]["id"] == 1 and pipe.got[1]["error"]["code"] == "conflict"
        assert site.counters == {"verdict_done": 2, "verdict_conflict": 1} and not client._taskless

    session(test)


def test_while_the_thread_works_they_are_sent_together() -> None:
    """In the order in which they came, also those of a moment in which it has time again."""

    async def test(client: Client, site: Site, pipe: Pipe) -> None:
        site.is_free = False
        client.data_received(b"".join(pack_commit(commit(number)) for number in (1, 2)))
        await asyncio.sleep(0)
        site.is_free = True
        client.data_received(pack_commit(commit(3)))
        await asyncio.sleep(0)
        assert site.machine is not None and not site.machine.sent
        site.works.set()
        await site.tasks[0]
        assert site.machine.sent == [txid(1), txid(2), txid(3)] and site.jobs == 2
        client.data_received(pack_commit(commit(4)))
        assert site.machine.sent[-1] == txid(4) and site.jobs == 2
        site.machine, site.is_free = None, False
        assert not site.waiting.start(commit(5).data, Durability.ALL, 1.0, lambda answer: None)

    session(test)


@rule("K4")
def test_what_is_undecided_is_asked_for_again_under_its_id() -> None:
    """With a task, as one that has been sent before."""

    async def test(client: Client, site: Site, pipe: Pipe) -> None:
        client.data_received(pack_commit(commit(1)))
        site.decide(1, Verdict.UNDECIDED)
        assert not client._taskless and len(client._tasks) == 1
        while site.machine is None or len(site.machine.sent) < 2:
            await asyncio.sleep(0)
        site.decide(1)
        await asyncio.gather(*client._tasks)
        assert pipe.got == [{"id": 1, "ok": {"version": 101}}]

    session(test)


def test_what_is_not_decided_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LATE_S", 0.01)

    async def test(client: Client, site: Site, pipe: Pipe) -> None:
        client.data_received(pack_commit(commit(1, seconds=0.02)) + pack_commit(commit(2)))
        while not pipe.got:
            await asyncio.sleep(0.01)
        assert pipe.got[0]["id"] == 1 and pipe.got[0]["error"]["code"] == "undecided"
        site.decide(1)
        site.decide(2)
        assert pipe.got[1:] == [{"id": 2, "version": 102}]

    session(test)


def test_what_has_to_wait_has_a_task() -> None:
    async def test(client: Client, site: Site, pipe: Pipe) -> None:
        for number, asked in enumerate(
            (commit(0, again=True), commit(1, data=m.encode(m.Write(txid(1), 1, 1, (), bytes(1000)))), commit(2)), 1
        ):
            site.can_write = number != 3
            client.data_received(pack_commit(asked))
            assert len(client._tasks) == 1
            if site.can_write:
                while site.machine is None or len(site.machine.sent) < number:
                    await asyncio.sleep(0)
                site.decide(number - 1)
            await asyncio.gather(*client._tasks)
        assert [frame.get("ok", {}).get("version") for frame in pipe.got] == [100, 101, None]
        assert pipe.got[2]["error"]["code"] == "no-quorum"

    session(test)


@pytest.mark.parametrize("data", [b"", b"\1", m.encode(m.Release(txid(1))), commit(1).data[:30]])
def test_bytes_that_are_no_transaction_are_refused(data: bytes) -> None:
    async def test(client: Client, site: Site, pipe: Pipe) -> None:
        client.data_received(pack_commit(commit(1, data=data)))
        await asyncio.gather(*client._tasks)
        assert [(frame["id"], frame["error"]["code"]) for frame in pipe.got] == [(1, "malformed")] and not pipe.closed
        assert site.machine is not None and not site.machine.sent

    session(test)


def test_a_commit_without_a_hello_or_without_a_head_ends_the_connection() -> None:
    async def test(client: Client, site: Site, pipe: Pipe) -> None:
        client.data_received(pack_commit(commit(1)) if not client.is_greeted else pack_binary(b"\1\2\3"))
        assert pipe.got[0]["error"]["code"] == "protocol" and pipe.closed

    session(test, hello=False)
    session(test)


def test_a_program_with_too_many_under_way_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving.Client, "under_way_max", 3)

    async def test(client: Client, site: Site, pipe: Pipe) -> None:
        for number in (1, 2, 3):
            assert pipe.reads
            client.data_received(pack_commit(commit(number)))
        assert not pipe.reads
        site.decide(2)
        assert pipe.reads
        client.data_received(pack_commit(commit(4)))
        assert not pipe.reads
        client.connection_lost(None)
        for number in (1, 3, 4):
            site.decide(number, Verdict.UNDECIDED)
        assert not client._taskless and not client._tasks, "nobody asks"

    session(test)


@rule("Z5")
def test_a_session_s_transaction_is_not_sent_by_another_service() -> None:
    async def test(client: Client, site: Site, pipe: Pipe) -> None:
        site.sessions |= {txid(1): (1, 1), txid(2): (1, 2)}
        client.data_received(b"".join(pack_commit(commit(number)) for number in (1, 2)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert site.machine is not None and site.machine.sent == [txid(2)]
        assert pipe.got[0]["id"] == 1 and pipe.got[0]["error"]["code"] == "undecided"
        site.decide(2)

    session(test)
