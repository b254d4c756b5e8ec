"""The checker of what is bounded, by hand-made histories."""

from __future__ import annotations

from .checkers import Bounded
from .test_checkers import History, fails


def test_bounded_memory() -> None:
    h = History(Bounded)
    h.turn()
    h.cores[0].memory += 1
    with fails("bounded"):
        h.turn()


def test_bounded_assembling() -> None:
    """Each of the stations may have a message of 16 MiB under way in each ordering."""
    h = History(Bounded)
    h.cores[0].assembling = 2 * h.facts.stations * (16 << 20)
    h.turn()
    h.cores[0].assembling += 1
    with fails("bounded"):
        h.turn()


def test_bounded_turn() -> None:
    h = History(Bounded)
    with fails("bounded"):
        h.turn(1000)


def test_bounded_wait_for_memory() -> None:
    """One message's wait: another one's is another."""
    h = History(Bounded)
    h.facts.starving_ns = 100
    for which, now in ((1, 0), (1, 100), (0, 120), (2, 130), (2, 230)):
        h.cores[0].waits, h.facts.now_ns = which, now
        h.turn()
    h.facts.now_ns = 231
    with fails("bounded"):
        h.turn()
