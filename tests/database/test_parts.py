"""Transactions longer than a message: in parts, at the place of the last one, and from the beginning when a site joins."""

from __future__ import annotations

import pytest
from zenjun.proto.service.database import messages as m
from zenjun.proto.service.database import parts
from zenjun.proto.service.database.machine import Durability
from zenjun.proto.service.database.parts import UNDER_WAY_MAX, Incoming, Outgoing

from ..rules import rule
from .test_machine import Order, opened

TXID = m.Txid(1, 1, 1, 7)
SIZE = 50


def long(order: Order, number: int, size: int = 1000) -> None:
    """A transaction of station 1."""
    machine = order.machines[1, 1]
    machine.long.part_bytes = SIZE
    assert machine.shared is not None
    body = m.encode_body([(m.Segment.SQL, bytes(size))])
    write = m.Write(TXID._replace(number=number), machine.shared.epoch, machine.rows.position().version, (), body)
    order.take((1, 1), machine.submit(write, Durability.MEMORY))


def test_a_part_as_bytes() -> None:
    part = m.Part(TXID, 3, True, b"data")
    data = m.encode(part)
    assert m.decode(data) == part and len(data) == m.PART_HEAD_BYTES + 4
    assert m.decode(data[:-5]) is None, "its head is cut"
    assert m.decode(data[: m.PART_HEAD_BYTES - 1] + b"\2data") is None


def test_parts_make_the_whole() -> None:
    whole = bytes(range(256)) * 4
    outgoing, incoming = Outgoing(100), Incoming()
    waiting = outgoing.add(TXID, whole)
    assert outgoing.add(TXID, whole) == [] and len(waiting) == UNDER_WAY_MAX
    found = b""
    while not found:
        part = waiting.pop(0)
        data = incoming.take((1, 1), part)
        assert data is not None and len(waiting) < UNDER_WAY_MAX
        waiting += outgoing.came(part)
        found = data
    assert found == whole and part.is_last and not waiting and not incoming.has((1, 1))
    assert outgoing.came(part) == [], "it is no longer under way"


@pytest.mark.parametrize("number", [0, 2, 3])
def test_what_does_not_go_on_is_dropped(number: int) -> None:
    """A part twice, one left out, one of another transaction."""
    incoming = Incoming()
    assert incoming.take((1, 1), m.Part(TXID, 1, False, b"b")) is None
    for k in range(2):
        assert incoming.take((1, 1), m.Part(TXID, k, False, b"a")) == b""
    if number == 0:
        assert incoming.take((1, 1), m.Part(TXID._replace(number=9), 2, False, b"c")) is None
    else:
        assert incoming.take((1, 1), m.Part(TXID, number, False, b"c")) == (b"" if number == 2 else None)
    assert incoming.has((1, 1)) == (number == 2)
    incoming.keep(frozenset({(2, 1)}))
    assert not incoming.facts()


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "WHOLE_MAX", 10)
    incoming = Incoming()
    assert incoming.take((1, 1), m.Part(TXID, 0, False, bytes(10))) == b""
    assert incoming.take((1, 1), m.Part(TXID, 1, True, b"x")) is None and not incoming.has((1, 1))


@rule("K6")
def test_short_ones_do_not_wait_for_a_long_one() -> None:
    order = opened()
    long(order, 1)
    order.deliver(at_most=3)
    order.write((1, 1), 2)
    order.deliver()
    assert order.verdicts() == [(2, "done"), (1, "schema")], "it was decided after the short one, whose author began later"


@rule("K6")
def test_a_site_that_joins_has_what_the_others_have() -> None:
    """Part of a transaction came before its WANT: it comes again from the beginning, and once."""
    order = opened()
    long(order, 1)
    order.deliver(m.Part, at_most=3)
    order.view((1, 1), (2, 1), (3, 2))
    order.deliver(m.Stand)
    order.deliver(m.Want)
    assert all(not (s.parts.facts()) for k in order.machines if (s := order.machines[k].shared) is not None)
    order.give()
    order.deliver()
    assert order.verdicts() == [(1, "schema")]
    assert [machine.dropped["part"] for machine in order.machines.values()] == [UNDER_WAY_MAX] * 3
    long(order, 2)
    order.view((1, 1), (2, 1), (3, 3))
    order.deliver(m.Stand)
    order.deliver(m.Want)
    order.give()
    order.deliver()
    assert order.verdicts() == [(2, "schema")]
    assert [order.machines[k, 1].dropped["part"] for k in (1, 2)] == [UNDER_WAY_MAX] * 2, "nothing of it was void"


def test_parts_of_who_has_gone_are_dropped() -> None:
    order = opened()
    long(order, 1)
    order.deliver(m.Part, at_most=2)
    shared = order.machines[2, 1].shared
    assert shared is not None and shared.parts.has((1, 1))
    order.view((2, 1), (3, 1))
    assert not shared.parts.has((1, 1))


def test_what_is_whole_and_no_transaction_changes_nothing() -> None:
    order = opened()
    order.waiting = [((1, 1), m.encode(m.Part(TXID, 0, True, m.encode(m.Leave(1)))))]
    order.deliver()
    assert order.machines[2, 1].dropped == {"malformed": 1} and order.machines[2, 1].is_active
