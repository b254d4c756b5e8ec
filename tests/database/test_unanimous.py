"""Mode unanimous, one rule at a time: what is too rare for the simulation."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from zenjun.daemon.database.copy import GatedRows
from zenjun.daemon.database.files import Files
from zenjun.daemon.database.unanimous import UnanimousSite
from zenjun.daemon.observe import Journal
from zenjun.proto.service.database import messages as m
from zenjun.proto.service.database.given import decode_given, encode_given
from zenjun.proto.service.database.machine import Durability, Failed, Machine
from zenjun.proto.service.database.rows import RowsFailed
from zenjun.proto.service.database.unanimous import Unanimous

from ..rules import rule
from ..timing import in_time
from .test_machine import ALL, MemoryRows, Order

ONE, TWO, THREE = (1, 1), (2, 1), (3, 1)


class Agreeing(Order):
    machine_class = Unanimous

    def shows(self) -> list[bool]:
        return [machine.rows.is_open for _, machine in sorted(self.machines.items()) if isinstance(machine.rows, MemoryRows)]

    def sync(self, *who: tuple[int, int]) -> None:
        for each in who:
            machine = self.machines[each]
            self.take(each, machine.on_synced(machine.rows.position().version))
        self.deliver()


@pytest.fixture
def order() -> Agreeing:
    """Three sites that show what they have."""
    made = Agreeing()
    made.view(ONE, TWO, THREE)
    made.deliver()
    made.sync(ONE, TWO, THREE)
    assert made.shows() == [True, True, True]
    return made


def shared_of(machine: Machine) -> Any:
    assert machine.shared is not None
    return machine.shared


def test_the_steps(order: Agreeing) -> None:
    order.write(ONE, 7)
    order.deliver(m.Close)
    assert order.shows() == [False, False, False]
    order.deliver(m.Grant, at_most=2)
    order.deliver(m.Write)
    assert [machine.rows.position().version for machine in order.machines.values()] == [1, 1, 1], "one has not granted"
    order.deliver(m.Grant)
    order.deliver(m.Write)
    assert [machine.rows.position().version for machine in order.machines.values()] == [2, 2, 2]
    order.sync(ONE, TWO)
    assert order.shows() == [False, False, False] and not order.verdicts(), "one disk has not got it"
    order.sync(THREE)
    assert order.shows() == [True, True, True] and order.verdicts() == [(7, "done")]


@rule("N4")
def test_data_without_the_lock_do_not_count(order: Agreeing) -> None:
    order.write(ONE, 7)
    order.deliver(m.Close)
    epoch = shared_of(order.machines[ONE]).epoch
    for txid in (m.Txid(2, 1, 1, 1), m.Txid(1, 1, 1, 7)):
        order.waiting.append((TWO, m.encode(m.Write(txid, epoch, 1, (), b""))))
    order.deliver(m.Write)
    assert [machine.rows.position().version for machine in order.machines.values()] == [1, 1, 1]
    order.deliver()
    order.sync(ONE, TWO, THREE)
    assert order.verdicts() == [(7, "done")]


@rule("N3")
def test_a_site_that_was_put_out_is_waited_for(order: Agreeing) -> None:
    """A comparison puts station 3 out, which is slow and still shows what it has: data wait until it says that it has gone."""
    slow = order.machines.pop(THREE)
    order.take(ONE, order.machines[ONE].compare())
    order.deliver(m.Check)
    other = order.machines[ONE].rows.position()._replace(digest=bytes(16))
    order.waiting.append((THREE, m.encode(m.Answered(other))))
    order.deliver(m.Answered)
    assert shared_of(order.machines[ONE]).active == {ONE, TWO}
    order.write(ONE, 7)
    order.deliver()
    assert isinstance(slow.rows, MemoryRows) and slow.rows.is_open and order.machines[ONE].rows.position().version == 1
    order.waiting.append((THREE, m.encode(m.Leave(shared_of(order.machines[ONE]).epoch))))
    order.deliver()
    assert order.machines[ONE].rows.position().version == 2


@rule("N3")
def test_copies_that_differ_are_put_out_before_anything_is_changed(order: Agreeing) -> None:
    rows = order.machines[THREE].rows
    assert isinstance(rows, MemoryRows)
    rows.entries[-1] = rows.entries[-1]._replace(position=rows.position()._replace(digest=bytes(16)))
    order.write(ONE, 7)
    order.deliver(m.Close, m.Grant)
    assert [who for who, effect in order.take_effects(Failed) if effect.is_damaged] == [THREE]
    assert order.machines[ONE].rows.position().version == 1
    order.deliver()
    order.sync(ONE, TWO)
    assert order.verdicts() == [(7, "done")] and order.shows() == [True, True, False]


@rule("N7")
def test_without_quorum_nothing_is_shown(order: Agreeing) -> None:
    machine = order.machines[TWO]
    assert isinstance(machine, Unanimous)
    machine.on_quorum(quorum=False)
    assert order.shows() == [True, False, True]
    machine.on_quorum(quorum=True)
    assert order.shows() == [True, True, True]
    machine.on_lost()
    assert order.shows() == [True, False, True]


@rule("N6")
def test_a_program_that_gives_up_ends_nothing_that_is_to_be_committed(order: Agreeing) -> None:
    order.write(ONE, 7)
    order.deliver(m.Close, m.Grant, m.Write)
    order.take(ONE, order.machines[ONE].unlock(m.Txid(1, 1, 1, 7)))
    order.deliver()
    assert order.shows() == [False, False, False]
    order.sync(ONE, TWO, THREE)
    assert order.verdicts() == [(7, "done")]


def test_asked_for_twice(order: Agreeing) -> None:
    """The second request finds the transaction decided: it holds nobody up."""
    order.write(ONE, 7)
    order.deliver(m.Close, m.Grant, m.Write)
    order.sync(ONE, TWO, THREE)
    write = m.Write(m.Txid(1, 1, 1, 7), shared_of(order.machines[ONE]).epoch, 1, (), b"")
    order.waiting.append((ONE, m.encode(m.Close(write.txid, write.epoch))))
    order.deliver()
    assert order.shows() == [True, True, True] and not shared_of(order.machines[ONE]).locks
    order.take(ONE, order.machines[ONE].submit(write, Durability.MEMORY))
    order.deliver()
    assert [text for _, text in order.verdicts()] == ["done", "done"] and order.machines[ONE].rows.position().version == 2


def test_the_state_that_is_given(order: Agreeing) -> None:
    order.write(ONE, 7)
    order.write(TWO, 8)
    order.deliver(m.Close)
    order.deliver(m.Grant, at_most=1)
    given = order.machines[ONE].give((1 << 33, 1, 0))
    again = decode_given(encode_given(given))
    assert again.shared.agreement == given.shared.agreement and again.shared.locks == given.shared.locks
    assert len(again.shared.agreement.closing) == 2 and None in again.shared.agreement.grants.values()
    for size in range(len(encode_given(given))):
        with pytest.raises(ValueError):
            decode_given(encode_given(given)[:size])


class Here(UnanimousSite):
    """Station 1's site, whose machine takes the order in step with the others."""

    def __init__(self, order: Agreeing, folder: Path) -> None:
        super().__init__("shop", Files(folder, "shop"), ALL, Journal(logging.getLogger("unanimous")), bytes(16))
        self.machine = order.machines[ONE]
        self.quorum = lambda: True
        self.position = self.machine.rows.position()

    async def sent(self) -> object:
        """The next message that it sends."""
        _, data = await asyncio.wait_for(self._out.queue.get(), 60)
        return m.decode(data)


def _two_in_a_row(order: Agreeing) -> None:
    """The first transaction is over; a second one has the lock."""
    order.write(TWO, 7)
    order.write(TWO, 8)
    order.deliver(m.Close, m.Grant, m.Write)
    order.sync(ONE, TWO, THREE)


@rule("N2")
def test_programs_that_have_waited_read_between_two_transactions(
    order: Agreeing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site grants when they have begun, or after a time, which does not come here."""
    monkeypatch.setattr("zenjun.daemon.database.unanimous.READERS_S", math.inf)

    async def run() -> None:
        site = Here(order, tmp_path)
        machine = order.machines[ONE]
        assert isinstance(machine, Unanimous)
        order.write(THREE, 1)
        order.deliver(m.Close)
        programs = [asyncio.create_task(site.readable(name, 20)) for name in ("one", "two")]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert machine.has_readers and not any(program.done() for program in programs)
        _two_in_a_row(order)
        assert machine.owes_grant and machine.is_open, "the second transaction has the lock"
        site.carry_out([])
        assert await asyncio.gather(*programs) == [True, True]
        site.began("one")
        await asyncio.sleep(0.05)
        assert machine.owes_grant
        site.began("two")
        assert isinstance(await site.sent(), m.Grant)
        assert not machine.is_open and not machine.has_readers and not machine.owes_grant

    asyncio.run(run())


@rule("N2")
def test_a_program_that_does_not_begin_is_not_waited_for(order: Agreeing, tmp_path: Path) -> None:
    async def run() -> None:
        site = Here(order, tmp_path)
        machine = order.machines[ONE]
        assert isinstance(machine, Unanimous) and await site.readable("one", 20)
        order.write(TWO, 7)
        order.deliver(m.Close)
        assert machine.owes_grant and machine.is_open
        deadline = time.monotonic() + 60
        while machine.owes_grant:
            await site.turn(machine)
            await asyncio.sleep(0.02)
            in_time(time.monotonic() < deadline, "the grant")
        assert isinstance(await site.sent(), m.Grant) and not machine.is_open

    asyncio.run(run())


@rule("N2")
def test_a_copy_that_cannot_be_marked(tmp_path: Path) -> None:
    """A program that begins a transaction then finds no file, until the copy is opened again, which shows nothing yet."""
    files = Files(tmp_path, "shop")
    files.folder.mkdir()
    rows = GatedRows(files, bytes(16), files.open())
    rows.create(bytes(16))
    rows.gate(is_open=True)
    rows.connection.execute("PRAGMA query_only = 1")
    with pytest.raises(RowsFailed):
        rows.gate(is_open=False)
    path = rows.path
    rows.close()
    assert not files.link.exists() and files.present() == path
    files.next().touch()  # a copy that had begun to come does not take its place
    again = GatedRows(files, bytes(16), files.open())
    assert again.path == path and files.link.exists()
    assert again.connection.execute("SELECT open FROM zenjun_gate").fetchall() == [(0,)]
    again.close()
    with pytest.raises(apsw.CantOpenError):
        apsw.Connection(str(tmp_path / "shop.shut"), flags=apsw.SQLITE_OPEN_READONLY)
