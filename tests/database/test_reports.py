"""What a site says of its disk: at once if somebody waits for that, otherwise later."""

from __future__ import annotations

import pytest
from zenjun.proto.service.base import Source
from zenjun.proto.service.database import messages as m
from zenjun.proto.service.database.machine import Answer, Durability, Reached
from zenjun.proto.service.database.reports import reporters
from zenjun.proto.service.database.roll import Sites

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


def later(order: Order, who: Source, *, is_late: bool) -> bool:
    """Whether it reports what it owes, some time after its sync."""
    before = len(reported(order))
    if order.machines[who].owes_report:
        order.take(who, order.machines[who].report(is_late=is_late))
    return len(reported(order)) > before


@rule("D1", "D5")
@pytest.mark.parametrize(("origin", "reports"), [((1, 1), (2, 1)), ((2, 1), (3, 1)), ((3, 1), (1, 1))])
def test_as_few_report_at_once_as_are_waited_for(origin: Source, reports: Source) -> None:
    """The origin's own disk needs no message. The others say everything in the end."""
    order, version = committed(origin)
    assert sync(order, *ALL) == [reports] and order.verdicts() == []
    order.deliver()
    assert order.verdicts() == [(1, "done")]
    for each in ALL:
        known = order.machines[each].durable_version()
        assert known == (0 if each == reports else version), "who reports has not heard of another disk"
        assert order.machines[each].owes_report == (each != reports)
        assert not later(order, each, is_late=False)
        assert later(order, each, is_late=True) == (each != reports)
    order.deliver()
    for machine in order.machines.values():
        assert machine.shared is not None and machine.shared.synced == dict.fromkeys(ALL, version)
    assert sync(order, *ALL) == []


@rule("D5")
def test_who_is_slow_is_not_waited_for() -> None:
    """Another disk has it, and its site notices that nothing has been reported."""
    order, _ = committed()
    assert sync(order, (1, 1), (3, 1)) == []
    assert later(order, (3, 1), is_late=False)
    order.deliver()
    assert order.verdicts() == [(1, "done")]


@rule("D5")
def test_a_slow_disk_of_ones_own_is_not_waited_for() -> None:
    order, _ = committed()
    sync(order, (2, 1), (3, 1))
    assert later(order, (3, 1), is_late=True)
    order.deliver()
    assert order.verdicts() == [(1, "done")]


@rule("D1", "D5")
def test_who_waits_for_all_disks_asks_for_their_reports() -> None:
    order, _ = committed(durability=Durability.ALL)
    assert sync(order, (3, 1)) == []
    order.deliver(m.Barrier)
    assert reported(order) == [(3, 1)], "what it has"
    assert sync(order, *ALL) == [(3, 1), (2, 1)], "what it has later; the origin knows its own"
    order.deliver()
    assert order.verdicts() == [(1, "done")] and not order.take_effects(Reached)


@rule("D3", "D5")
def test_who_reads_asks_for_reports() -> None:
    """It waits until enough disks have what it reads; here two have it, and one of these is its own."""
    order, version = committed(origin=(3, 1))
    assert sync(order, (2, 1), (3, 1)) == []
    assert order.machines[2, 1].durable_version() == 0
    order.take((2, 1), order.machines[2, 1].barrier(7))
    order.deliver()
    assert [(who, effect.number) for who, effect in order.take_effects(Reached)] == [((2, 1), 7)]
    assert order.machines[2, 1].durable_version() == version
    order.take((1, 1), order.machines[1, 1].ask_reports())
    order.deliver()
    assert order.machines[1, 1].durable_version() == version
    assert order.take_effects(Answer) and not order.take_effects(Reached)


@rule("D5")
def test_nothing_is_owed_by_who_does_not_follow() -> None:
    order, _ = committed()
    sync(order, *ALL)
    machine = order.machines[3, 1]
    assert machine.owes_report
    machine.on_lost()
    assert not machine.owes_report and machine.report(is_late=True) == [] and machine.ask_reports() == []


@rule("D5")
def test_reporters() -> None:
    """As many as suffice with the origin, whatever that takes; each site has its turn."""
    five = [(k, 1) for k in range(1, 6)]
    sites = Sites(frozenset(range(1, 6)))
    assert reporters(sites, five, (4, 1)) == [(5, 1), (1, 1)]
    assert reporters(sites, five[1:3], (2, 1)) == [(3, 1)], "these do not suffice, and all report"
    assert reporters(sites, five, (9, 1)) == [(1, 1), (2, 1), (3, 1)]
    needs_one = Sites(frozenset(range(1, 4)), frozenset({1}), 2)
    assert reporters(needs_one, five[:3], (2, 1)) == [(3, 1), (1, 1)]
    assert reporters(needs_one, five[:3], (1, 1)) == [(2, 1)]
    assert reporters(Sites(frozenset({1})), five[:1], (1, 1)) == []
