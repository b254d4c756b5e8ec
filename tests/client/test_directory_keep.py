"""The directory's client library: answers that it keeps, reads that never go back, updates asked for again (rules L5, W5)."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from zenjun.daemon.client.errors import ConnectionClosed
from zenjun.daemon.directory.wire import pack
from zenjun.daemon.names import NoQuorum, Undecided, connect_directory, connect_directory_sync
from zenjun.daemon.names.protocol import NamesProtocol

Json = dict[str, Any]
Answering = Callable[[int, Json], "Json | None"]
"""Number of the connection (from 1) and request → answer without its id; None: the connection is cut."""

DB: Json = {
    "addresses": ["tcp://10.0.0.7:5432"], "name": "db", "path": ["db"], "version": "5.1.0", "place": "9.1.0", "meta": {},
    "ttl": 1, "zone": "default",
}  # fmt: skip


class FakeDirectory:
    """A directory process for one test: answers as it is told, and remembers what it was asked."""

    def __init__(self, path: Path, answer: Answering, place: str = "9.1.0") -> None:
        self.path = str(path)
        self.asked: list[tuple[int, Json]] = []
        self.streams: list[socket.socket] = []
        self._answer = answer
        self._place = place
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def tell(self, frame: Json) -> None:
        self.streams[-1].sendall(pack(frame))

    def requests(self, do: str) -> list[Json]:
        return [frame for _, frame in self.asked if frame["do"] == do]

    def close(self) -> None:
        self._socket.close()
        for stream in self.streams:
            stream.close()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._socket.accept()
            except OSError:
                return
            self.streams.append(stream)
            threading.Thread(target=self._serve, args=(stream, len(self.streams)), daemon=True).start()

    def _serve(self, stream: socket.socket, number: int) -> None:
        with stream, stream.makefile("rb") as read:
            while head := read.read(4):
                frame = json.loads(read.read(struct.unpack(">I", head)[0]))
                if "hello" in frame:
                    stream.sendall(pack({"hello": 1, "place": self._place}))
                    continue
                self.asked.append((number, frame))
                answer = self._answer(number, frame)
                if answer is None:
                    stream.shutdown(socket.SHUT_RDWR)
                    return
                stream.sendall(pack({"id": frame["id"], **answer}))


Make = Callable[..., FakeDirectory]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Make]:
    made: list[FakeDirectory] = []

    def make(answer: Answering, **options: Any) -> FakeDirectory:
        made.append(FakeDirectory(tmp_path / f"d{len(made)}.sock", answer, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def tracked(_number: int, _frame: Json) -> Json:
    return {"ok": {**DB, "tracked": True}}


# ---- answers that are kept


def test_a_kept_answer_is_given_until_the_process_says_that_it_may_be_wrong(fake: Make) -> None:
    process = fake(tracked)
    with connect_directory_sync(process.path, timeout=60) as d:
        assert [d.lookup("DB").addresses for _ in range(3)] == [("tcp://10.0.0.7:5432",)] * 3
        assert [frame["name"] for frame in process.requests("lookup")] == ["db"]
        process.tell({"forget": ["db"]})
        time.sleep(0.01)
        d.lookup("DB")
        assert len(process.requests("lookup")) == 2
        process.tell({"forget": None})
        time.sleep(0.01)
        d.lookup("DB")
        assert len(process.requests("lookup")) == 3


def test_what_is_not_told_of_is_not_kept(fake: Make) -> None:
    """Cyclic names, stale copies: the process does not say ``tracked``."""
    process = fake(lambda number, frame: {"ok": DB})
    with connect_directory_sync(process.path, timeout=60) as d:
        d.lookup("db")
        d.lookup("db")
        assert len(process.requests("lookup")) == 2
    process = fake(tracked)
    with connect_directory_sync(process.path, timeout=60, keep=False) as d:
        d.lookup("db")
        d.lookup("db")
        assert len(process.requests("lookup")) == 2 and "track" not in process.requests("lookup")[0]


def test_a_fresh_answer_is_always_asked_for_and_keys_differ(fake: Make) -> None:
    process = fake(tracked)
    with connect_directory_sync(process.path, timeout=60) as d:
        d.lookup("db")
        d.lookup("db", fresh=True)
        d.lookup("db", key="k")
        d.lookup("db", key="k")
        assert [(f.get("fresh"), f.get("key")) for f in process.requests("lookup")] == [(None, None), (True, None), (None, "k")]


def test_nothing_is_kept_over_the_end_of_the_connection(fake: Make) -> None:
    process = fake(tracked)
    with connect_directory_sync(process.path, timeout=60) as d:
        d.lookup("db")
        process.streams[0].shutdown(socket.SHUT_RDWR)
        time.sleep(0.01)
        with pytest.raises(ConnectionClosed):
            d.lookup("db")


def test_asyncio_hears_of_changes_while_it_does_nothing_but_look_up(fake: Make) -> None:
    process = fake(tracked)

    async def run() -> None:
        async with connect_directory(process.path, timeout=60) as d, asyncio.timeout(60):
            await d.lookup("db")
            process.tell({"forget": ["db"]})
            while len(process.requests("lookup")) == 1:
                await d.lookup("db")

    asyncio.run(run())


def test_a_change_behind_an_answer_in_the_same_bytes() -> None:
    """The answer was right where it was given; the program that takes it up later must not keep it."""
    protocol = NamesProtocol("test")
    ticket = protocol.lookup("db", None, fresh=False, timeout=None)
    number = protocol._number
    protocol.receive(pack({"id": number, "ok": {**DB, "tracked": True}}) + pack({"forget": ["db"]}))
    assert ticket.result()["addresses"] and protocol.kept("db", None) is None


# ---- reads never go back


def test_another_process_is_told_of_the_place_of_the_last_answer(fake: Make) -> None:
    first, behind, ahead = fake(tracked), fake(tracked, place="8.1.0"), fake(tracked, place="9.2.0")
    with connect_directory_sync(first.path, timeout=60) as d:
        d.lookup("db")
        place = d.place
    assert place == (9, 1, 0) and "after" not in first.requests("lookup")[0]
    with connect_directory_sync(behind.path, timeout=60, place=place, keep=False) as d:
        d.lookup("db")
        d.lookup("db")
    assert [frame.get("after") for frame in behind.requests("lookup")] == ["9.1.0", None], "it has shown to be there"
    with connect_directory_sync(ahead.path, timeout=60, place=place) as d:
        d.lookup("db")
    assert "after" not in ahead.requests("lookup")[0]


# ---- updates asked for again


def done(_number: int, _frame: Json) -> Json:
    return {"ok": {"place": "12.1.0"}}


@pytest.mark.parametrize("cuts", [1, 3])
def test_an_update_whose_connection_breaks_is_asked_for_again_under_its_id(fake: Make, cuts: int) -> None:
    process = fake(lambda number, frame: None if number <= cuts else done(number, frame))
    with connect_directory_sync(process.path, timeout=60) as d:
        assert d.set("db", ["tcp://10.0.0.7:1"]).place == (12, 1, 0)
    asked = process.requests("update")
    assert len(asked) == cuts + 1 and len({(f["c"], f["n"], json.dumps(f["ops"]), f["wait"]) for f in asked}) == 1
    assert [number for number, _ in process.asked] == list(range(1, cuts + 2))

    async def run() -> None:
        other = fake(lambda number, frame: None if number <= cuts else done(number, frame))
        async with connect_directory(other.path, timeout=60) as d:
            assert (await d.set("db", ["tcp://10.0.0.7:1"])).place == (12, 1, 0)
        assert len(other.requests("update")) == cuts + 1

    asyncio.run(run())


def test_undecided_names_the_update_and_its_outcome_can_be_asked_for(fake: Make) -> None:
    outcomes = iter([{"known": False}, {"known": True, "code": "", "text": "", "place": "12.1.0"}])

    def answer(number: int, frame: Json) -> Json | None:
        return {"ok": next(outcomes)} if frame["do"] == "outcome" else None

    process = fake(answer)
    with connect_directory_sync(process.path, timeout=2.0) as d, pytest.raises(Undecided) as caught:
        d.set("db", ["tcp://10.0.0.7:1"])
    assert caught.value.update == (process.requests("update")[0]["c"], 1) and caught.value.code == "undecided"
    with connect_directory_sync(process.path, timeout=60) as d:
        assert d.outcome(caught.value.update) is None
        found = d.outcome(caught.value.update)
        assert found is not None and found.place == (12, 1, 0)


def test_a_process_that_has_not_sent_it_does_not_know_that_nobody_has(fake: Make) -> None:
    refusal = {"error": {"code": "no-quorum", "text": "not done: waiting for zenjund"}}
    process = fake(lambda number, frame: None if number == 1 else refusal if number < 4 else done(number, frame))
    with connect_directory_sync(process.path, timeout=60) as d:
        assert d.set("db", ["tcp://10.0.0.7:1"]).place == (12, 1, 0)
    first = fake(lambda number, frame: refusal)
    with connect_directory_sync(first.path, timeout=60) as d, pytest.raises(NoQuorum):
        d.set("db", ["tcp://10.0.0.7:1"])
    assert len(first.requests("update")) == 1, "the one that it was given to knows"


def test_a_connection_that_was_over_before_is_no_doubt(fake: Make) -> None:
    process = fake(done)
    with connect_directory_sync(process.path, timeout=60) as d:
        process.streams[0].shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionClosed):
            d.poll()
            time.sleep(0.01)
            d.poll()
        with pytest.raises(ConnectionClosed):
            d.set("db", ["tcp://10.0.0.7:1"])
    assert process.requests("update") == []
