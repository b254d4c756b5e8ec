"""A disk that fails once, between the parts of writing, and a past that has ended: nothing is lost, nothing is read as it was
before, nothing is said that is not so."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from zenjun.daemon.client import Message, View
from zenjun.daemon.config import parse
from zenjun.daemon.directory.away import Away
from zenjun.daemon.directory.copy import Copy, Heard
from zenjun.daemon.directory.node import ASK, Node
from zenjun.daemon.directory.process import Process
from zenjun.daemon.directory.store import File, Rows
from zenjun.daemon.observe import set_up
from zenjun.proto.service.directory import copying
from zenjun.proto.service.directory.entries import Place, Who
from zenjun.proto.service.directory.messages import (
    ONDISK,
    ROLES_MAX,
    HasApplied,
    Holding,
    Id,
    Malformed,
    OnDisk,
    Update,
    decode,
    encode,
    seal,
)
from zenjun.proto.service.directory.messages import Message as DirectoryMessage
from zenjun.proto.service.directory.operations import Operation, Take
from zenjun.proto.service.directory.parts import Parts
from zenjun.proto.service.directory.questions import Query, Reply
from zenjun.proto.service.directory.questions import encode as encode_question
from zenjun.proto.service.directory.remote import at
from zenjun.proto.service.directory.state import State
from zenjun.proto.service.directory.store import Table
from zenjun.proto.service.stateapi import Offer, Snapshot

from .test_directory_sending import CONFIG, ME, Group, heard, played
from .test_directory_store import WHO, close, copy_at, filled, set_name, update

HOLDER: Who = (1, 5)
AWAY: Who = (3, 7)


@contextmanager
def full(log: Path) -> Iterator[None]:
    """SQLite's log cannot grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def apply(copy: Copy, clock: int, *operations: Operation, number: int = 0) -> Any:
    data = update(number or clock, *operations, flags=ONDISK)
    (result,) = copy.apply([Heard((clock, 1, 0), WHO, data)], later=True).results
    return result


def offer_of(source: Copy, snapshot: Snapshot) -> Offer:
    assert isinstance(snapshot.digest, bytes)
    return Offer(source.state.place, WHO, snapshot.delta, snapshot.digest, -1, -1)


def test_a_flush_that_fails_during_a_sync_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A joiner asks for the state while the writer waits for its sync; the disk is full for a moment."""
    copy = filled(tmp_path, 5)
    rows = copy.rows
    apply(copy, 600, set_name("a"))
    rows.take()
    copy.write(rows, durable=True)
    apply(copy, 601, set_name("b"))

    def broken(new: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(rows, "_write", broken)
    with pytest.raises(sqlite3.OperationalError):
        copy.snapshot(copy.state.place, None)
    monkeypatch.undo()
    rows.written_out()
    assert rows.pending
    apply(copy, 602, set_name("c"))
    rows.take()
    copy.write(rows, durable=True)
    rows.written_out()
    assert rows.get(Table.ENTRY, "b") is not None and not rows.pending
    close(copy)
    again = copy_at(tmp_path)
    assert not again.file.moved, again.file.why
    assert again.state.entry("b") is not None
    close(again)


def test_what_is_settled_is_read_after_a_commit_that_failed(tmp_path: Path) -> None:
    """A snapshot writes the place, and cannot: what is applied afterwards is applied once, as at other stations."""
    copy, other = filled(tmp_path / "a", 50), filled(tmp_path / "b", 50)
    copy.apply([Heard((900, 2, 0), (2, 1), encode(OnDisk(copy.state.place)))], later=True)
    with full(tmp_path / "a" / "directory.db-wal"), pytest.raises(sqlite3.Error):
        copy.snapshot(copy.state.place, None)
    results = [
        [apply(each, 1000, Take("n1")), apply(each, 1001, Take("n1")), apply(each, 1002, Take("n1"), number=1001)]
        for each in (copy, other)
    ]
    assert [r.repeated for r in results[0]] == [False, False, True]
    assert results[0] == results[1] and copying.digest(copy.state) == copying.digest(other.state)
    snapshot = copy.snapshot(copy.state.place, None)
    assert snapshot.digest == copying.digest(copy.state) and snapshot.close is not None
    snapshot.close()
    close(copy, other)


def test_a_delta_that_cannot_be_committed_leaves_the_old_state(tmp_path: Path) -> None:
    """Else the process would say that it has the new one, with the old rows."""
    source, target = filled(tmp_path / "a", 30), filled(tmp_path / "b", 30)
    before = target.have()
    apply(source, 100, set_name("new"))
    for fails in (True, False):
        snapshot = source.snapshot(source.state.place, target.have())
        assert snapshot.delta and snapshot.close is not None
        offer = offer_of(source, snapshot)
        building = target.restore(offer)
        for key, data in snapshot.chunks:
            building.chunk(key, data)
        assert building.end() == snapshot.digest
        if fails:
            with full(tmp_path / "b" / "directory.db-wal"), pytest.raises(sqlite3.Error):
                building.commit(offer)
            assert target.have() == before
        else:
            building.commit(offer)
        snapshot.close()
    assert target.rows.get(Table.ENTRY, "new") is not None
    close(source, target)
    again = copy_at(tmp_path / "b")
    assert not again.file.moved, again.file.why
    close(again)


def test_rows_are_written_anew_while_a_state_comes(tmp_path: Path) -> None:
    """Both go to files of their own."""
    source, target = filled(tmp_path / "a", 200), filled(tmp_path / "b", 3)
    snapshot = source.snapshot(source.state.place, None)
    assert snapshot.close is not None
    offer = offer_of(source, snapshot)
    building = target.restore(offer)
    chunks = list(snapshot.chunks)
    for key, data in chunks[:2]:
        building.chunk(key, data)
    target.file.failed = True
    target.rewrite()
    for key, data in chunks[2:]:
        building.chunk(key, data)
    assert building.end() == snapshot.digest
    building.commit(offer)
    assert copying.digest(target.state) == copying.digest(source.state)
    snapshot.close()
    close(source, target)


def test_no_station_takes_what_others_do_not(tmp_path: Path) -> None:
    """A station does not decode its own messages: what it sends has to be within all bounds."""
    for number in (ROLES_MAX, ROLES_MAX + 1):
        roles = tuple(sorted(("user:x", *(f"group:g{k}" for k in range(number - 1)))))
        data, problem = seal(Update(Id("0" * 16, 1), roles, (set_name("a"),)))
        assert (problem == "") == (number == ROLES_MAX) == (not isinstance(decode(data), Malformed))


def test_disk_is_not_said_of_an_update_that_has_ended_with_its_past(tmp_path: Path) -> None:
    """Applied here alone; the others lose power, and begin without it. Their later places on disk say nothing of it."""

    async def story(process: Process, group: Group) -> None:
        process._active = True
        sent = Update(Id("a" * 16, 1), ("user:root",), (set_name("mine"),), ONDISK)
        pending = process.updates.start(sent, "disk")
        heard(process, 40, sent)
        assert pending.outcome is not None and not pending.done.done()
        connection = process._connection
        process._leave()
        other = filled(tmp_path / "other", 3)
        other.apply([Heard((100, 1, 0), WHO, update(77, set_name("theirs")))])
        snapshot = other.snapshot(other.state.place, None)
        assert snapshot.close is not None
        offer = offer_of(other, snapshot)
        building = process.copy.restore(offer)
        for key, data in snapshot.chunks:
            building.chunk(key, data)
        assert building.end() == snapshot.digest
        building.commit(offer)
        snapshot.close()
        group.sent.clear()
        process._group, process._connection = cast(Any, group), connection
        process._set_active()
        assert sent in group.sent, "it is sent again"
        for clock, station in ((101, 2), (102, 3)):
            inputs = [Heard((clock, station, 0), (station, 1), encode(OnDisk((100, 1, 0))))]
            process._publish(process.copy.apply(inputs, later=True), inputs)
        assert not pending.done.done()
        heard(process, 110, sent)
        for clock, station in ((111, 2), (112, 3)):
            inputs = [Heard((clock, station, 0), (station, 1), encode(OnDisk((110, 1, 0))))]
            process._publish(process.copy.apply(inputs, later=True), inputs)
        assert pending.done.result().place == (110, 1, 0)
        close(other)

    played(tmp_path, story)


def test_what_is_applied_is_answered_at_once_and_written_soon(tmp_path: Path) -> None:
    """By time, by ONDISK, and at the end; and look-ups do not wait for it."""

    def heard_later(process: Process, clock: int, flags: int) -> None:
        sent = Update(Id("a" * 16, clock), ("user:root",), (set_name("x", clock),), flags)
        inputs = [Heard((clock, 1, 0), ME, encode(sent))]
        process._publish(process.copy.apply(inputs, later=True), inputs)
        assert process.answers.lookup("x", b"", process.facts)["addresses"] == [f"tcp://10.0.0.1:{clock}"]

    def stored(process: Process) -> Place:
        with closing(process.copy.file.reader().connection) as connection:
            return State(Rows(connection)).place

    async def story(process: Process, group: Group) -> None:
        heard_later(process, 4, 0)
        assert stored(process) < (4, 1, 0)
        beside = asyncio.create_task(process._disk.run())
        while stored(process) < (4, 1, 0):
            await asyncio.sleep(0.001)
        assert group.sent == []
        heard_later(process, 5, ONDISK)
        while not group.sent:
            await asyncio.sleep(0.001)
        assert group.sent == [OnDisk((5, 1, 0))] and stored(process) == (5, 1, 0)
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        heard_later(process, 6, 0)
        assert stored(process) == (5, 1, 0)
        process._disk.close()
        assert stored(process) == (6, 1, 0)

    played(tmp_path, story)


# ---- a station that does not keep a zone


class Away3(Away):
    """Station 3 without the zone of station 1."""

    def __init__(self) -> None:
        super().__init__(parse(CONFIG.replace("id = 1", "id = 3")), "north", (1,), count(1))
        self.asked: list[Any] = []
        self.ask = lambda station, question: self.asked.append(question)
        self.sent = Group()

    def enter(self, clock: int) -> None:
        """It comes into the zone's group, where a holder is active."""
        welcome = SimpleNamespace(station=AWAY[0], client=AWAY[1])
        self.join(cast(Any, SimpleNamespace(quorum=True, welcome=welcome)), cast(Any, self.sent))
        self.take([view((clock, 1, 0), (HOLDER, AWAY), (AWAY,)), said((clock + 1, 1, 0), HOLDER, Holding(True))])


def view(place: Place, members: tuple[Who, ...], joined: tuple[Who, ...]) -> View:
    return View("g", cast(Any, members), cast(Any, joined), (), "join", place, 1)


def said(place: Place, sender: Who, message: DirectoryMessage) -> Message:
    return Message(encode(message), "g", sender[0], sender[1], place, sender == AWAY)


def test_disk_is_not_said_elsewhere_of_what_the_holder_has_lost() -> None:
    """The only holder has answered what came of an update, and loses power before its sync."""

    async def story() -> None:
        away = Away3()
        away.enter(1)
        sent = Update(Id("a" * 16, 1), ("user:root",), (set_name("x.north"),), ONDISK)
        pending = away.updates.start(sent, "disk")
        away.start(sent.id)
        away.take([said((10, 1, 0), AWAY, sent)])
        away.hear(1, Reply(away.asked[-1].request, (10, 1, 0), {"p": "10.1.0", "c": "", "i": 0, "t": ""}))
        assert pending.outcome is not None and not pending.done.done()
        away.asked.clear()
        away.sent.sent.clear()
        again = (HOLDER[0], HOLDER[1] + 1)
        away.take([view((20, 1, 0), (AWAY,), ()), view((30, 1, 0), (again, AWAY), (again,))])
        away.take([said((40, 1, 0), again, Holding(True)), said((50, 1, 0), again, OnDisk((40, 1, 0)))])
        assert not pending.done.done()
        (question,) = [q for q in away.asked if isinstance(q, Query) and q.kind == "outcome"]
        away.hear(1, Reply(question.request, (50, 1, 0), {}))
        assert [m for m in away.sent.sent if isinstance(m, Update)] == [sent], "it is sent again"

    asyncio.run(story())


def test_roles_are_asked_for_again_after_the_connection() -> None:
    """An answer that a connection took with it would stop all changes of the zone here."""

    async def story() -> None:
        away = Away3()
        for clock in (1, 11):
            away.enter(clock)
            away.turn()
            assert [q.kind for q in away.asked if isinstance(q, Query)] == ["zones"]
            away.leave()
            away.asked.clear()

    asyncio.run(story())


def test_what_others_ask_or_answer_ends_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        copy = Copy(File(tmp_path, "c", 1), "north")
        node = Node(parse(CONFIG), Parts(3, (), {"north": (1,)}), {"north": copy}, set_up("text", "error"))
        process = node.held["north"]
        process._active, process._stale = True, False
        process._connection = cast(Any, SimpleNamespace(quorum=True))
        node._take([Message(encode_question(at(1), Query(1, "north", "parts", {"t": ""})), ASK, 2, 9, (5, 2, 0), False)])
        copy.rows.close()
        away = Away3()
        away.enter(1)
        away.turn()
        away.hear(1, Reply(away.asked[-1].request, (2, 1, 0), {"z": ["{}"]}))
        away.turn()
        assert len(away.asked) == 2, "it asks again"

    asyncio.run(story())


def test_a_place_far_away_floods_no_group() -> None:
    """A program names a place that no message has yet."""

    async def story() -> None:
        away = Away3()
        away.enter(1)
        waiting = asyncio.create_task(away.reached((1 << 50, 1, 0)))
        for clock in range(10, 1000):
            await asyncio.sleep(0)
            if away._heard:
                away.take([said((clock, 1, 0), AWAY, HasApplied((0, 0, 0)))])
        assert 0 < sum(isinstance(m, HasApplied) for m in away.sent.sent) < 100
        waiting.cancel()

    asyncio.run(story())
