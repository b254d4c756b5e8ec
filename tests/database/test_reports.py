"""What a site says of its disk: at once if another site may wait for that, otherwise later."""

from __future__ import annotations

import pytest
from zenjun.proto.service.base import Source
from zenjun.proto.service.database import messages as m
from zenjun.proto.service.database.machine import Answer, Durability, Reached

from ..rules import rule
from .test_machine import Order, opened

ALL = [(1, 1), (2, 1), (3, 1)]


def committed(origin: Source = (1, 1), durability: Durability = Durability.MAJORITY) -> tuple[Order, int]:
    order = opened()
    order.write(origin, 1, durability)
    order.deliver(m.Write)
    return order, order.machines[origin].rows.position().version


def sync(order: Order, *who: Source) -> list[Source]:
    """The disks of these have everything; who reports that at once."""
    for each in who:
        order.take(each, order.machines[each].on_synced(order.machines[each].rows.position().version))
    return reported(order)


def reported(order: Order) -> list[Source]:
    return [source for source, data in order.waiting if isinstance(m.decode(data), m.Synced)]


@rule("D1", "D5")
@pytest.mark.parametrize("origin", ALL)
def test_the_origin_needs_no_report_of_its_own(origin: Source) -> None:
    """The others report at once, and it says everything in the end."""
    order, version = committed(origin)
    others = [each for each in ALL if each != origin]
    assert sync(order, *ALL) == others and order.verdicts() == []
    order.deliver()
    assert order.verdicts() == [(1, "done")]
    assert {machine.durable_version() for machine in order.machines.values()} == {version}
    assert [each for each in ALL if order.machines[each].owes_report] == [origin]
    order.take(origin, order.machines[origin].report())
    order.deliver()
    for machine in order.machines.values():
        assert machine.shared is not None and machine.shared.synced == dict.fromkeys(ALL, version)
        assert not machine.owes_report and machine.report() == []
    assert sync(order, *ALL) == []


@rule("D1", "D5")
@pytest.mark.parametrize("slow", ALL)
def test_no_disk_is_waited_for_by_itself(slow: Source) -> None:
    """Any two of three suffice, the origin's among them or not; who wants all waits for it."""
    order, _ = committed()
    order.write((1, 1), 2, Durability.ALL)
    order.deliver(m.Write)
    sync(order, *[each for each in ALL if each != slow])
    order.deliver()
    assert order.verdicts() == [(1, "done")]
    sync(order, slow)
    order.deliver()
    assert order.verdicts() == [(2, "done")]


@rule("D3", "D5")
def test_who_reads_asks_for_reports() -> None:
    """It waits until enough disks have what it reads; here two have it, its own and that of the transaction's site."""
    order, version = committed(origin=(3, 1))
    assert sync(order, (3, 1)) == [] and sync(order, (2, 1)) == [(2, 1)]
    order.waiting.clear()
    assert order.machines[2, 1].durable_version() == 0
    order.take((2, 1), order.machines[2, 1].barrier(7))
    order.deliver()
    assert [(who, effect.number) for who, effect in order.take_effects(Reached)] == [((2, 1), 7)]
    assert order.machines[2, 1].durable_version() == version
    order.take((1, 1), order.machines[1, 1].ask_reports())
    order.deliver()
    assert not order.take_effects(Reached) and not order.take_effects(Answer)


@rule("D5")
def test_what_is_asked_for_before_the_disk_has_it() -> None:
    order, _ = committed(origin=(3, 1))
    order.take((2, 1), order.machines[2, 1].ask_reports())
    order.deliver()
    assert reported(order) == [] and sync(order, (3, 1)) == [(3, 1)]


@rule("D5")
def test_nothing_is_owed_by_who_does_not_follow() -> None:
    order, _ = committed(origin=(3, 1))
    sync(order, *ALL)
    machine = order.machines[3, 1]
    assert machine.owes_report
    machine.on_lost()
    assert not machine.owes_report and machine.report() == [] and machine.ask_reports() == []
