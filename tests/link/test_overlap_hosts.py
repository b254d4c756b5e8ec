"""Hosts of groups on real data paths and links: programs and stations come and go with messages under way."""

from __future__ import annotations

import time

import pytest
from zenjun.daemon.clientwire import Frame

from ..rules import rule
from .overlap_hosts import ORDERED, PREACK, Net, simulate
from .rig import WAIT_S, frame


@pytest.mark.parametrize("seed", [1, 3])
def test_changes_with_messages_under_way(seed: int) -> None:
    simulate(seed)


@rule("E1")
def test_joins_that_come_all_at_once_begin_one_era_behind_the_other() -> None:
    """Else each era is overtaken by the next and kept until the last is closed, and every station says for each what it has not
    finished: with some hundred groups stations are too busy to be heard, are removed, come back, and join again."""
    net = Net(3, 1)
    groups, eras, waited = 40, 0, False
    try:
        program = net.all[1].connect()
        for k in range(groups):
            program.join(f"g{k}", ORDERED)
        end = time.monotonic() + WAIT_S
        while any(len(s.host._groups.names()) < groups or not s.multicast.may_change for s in net.all.values()):
            assert time.monotonic() < end, f"not within {WAIT_S} s"
            net.turn()
            waited |= net.all[1].host.joins_wait
            machines = [s.multicast.member.machine for s in net.all.values()]
            eras = max([eras, *(len(machine.main.eras) for machine in machines if machine is not None)])
        assert eras <= 4
        assert waited and not net.all[1].host.joins_wait, "who is to say that its programs are members knows"
    finally:
        net.close()


@rule("L3")
def test_the_first_message_to_a_station_opens_the_link() -> None:
    """The data path has a record for a station that there is no link to yet, and nothing else happens."""
    net = Net(2, 1)
    try:
        one, two = (s.connect() for s in net.all.values())
        two.join("g", ORDERED)
        net.settle()
        one.join("g", ORDERED)
        net.settle()
        assert not any(s.multicast.has_links for s in net.all.values()), "at rest such a daemon has nothing to look at"
        one.send(frame(Frame.SEND, b"x", handle=1, flags=PREACK))
        net.until(lambda: two.got == [b"x"])
        assert all(s.multicast.has_links for s in net.all.values())
    finally:
        net.close()
