"""A simulation that finds nothing proves nothing until it has found what was put there.

Every defect is caught, by the checker that should; every checker can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from zenjun.proto.core import Fault

from .checkers import CHECKERS
from .cluster import Result, simulate
from .options import Faults, Options, S
from .variants import names

SEEDS_MAX = 60
"""Seeds until a defect must have been caught."""

ONE_STATION = {Fault.SWAP}
"""Defects given to station 1 alone: at all stations they would cancel out."""

CAUGHT_BY: dict[Fault | str, set[str]] = {
    Fault.ARRIVAL_ORDER: {"total_order", "place"},
    Fault.SKIP_GAP: {"fifo", "place", "total_order", "digest"},
    Fault.DUPLICATE: {"no_duplicate"},
    Fault.EARLY_PREACK: {"preack_honest"},
    Fault.EARLY_ACK: {"ack_honest"},
    Fault.NO_CHECK: {"no_invention", "digest", "flow", "liveness"},
    Fault.NO_WAIT: {"total_order", "place"},
    Fault.DEAF_NAK: {"liveness"},
    Fault.CHATTER: {"silence"},
    Fault.FREE_EARLY: {"monotonic"},
    Fault.FLOOD: {"flow"},
    Fault.EARLY_PROMISE: {"total_order", "place", "preack_honest"},
    Fault.SWAP: {"total_order", "place", "digest"},
    Fault.NO_FLUSH: {"going_on"},
    "reordering": {"total_order", "fifo"},
    "repeating": {"no_duplicate"},
    "forgetting": {"fifo", "total_order"},
    "inventing": {"no_invention"},
    "impatient": {"instances"},
    "amnesiac": {"instances"},
    "misinformed": {"instances"},
    "wavering": {"monotonic"},
    "growing": {"bounded"},
}
"""Which checker may be the first to see each defect."""

ALONE: dict[str, Fault | str] = {
    "total_order": Fault.NO_WAIT,
    "place": Fault.ARRIVAL_ORDER,
    "no_duplicate": Fault.DUPLICATE,
    "no_invention": Fault.NO_CHECK,
    "fifo": Fault.SKIP_GAP,
    "causality": Fault.ARRIVAL_ORDER,
    "preack_honest": Fault.EARLY_PREACK,
    "ack_honest": Fault.EARLY_ACK,
    "instances": "amnesiac",
    "going_on": Fault.NO_FLUSH,
    "flow": Fault.FLOOD,
    "monotonic": "wavering",
    "digest": Fault.SWAP,
    "bounded": "growing",
    "silence": Fault.CHATTER,
    "liveness": Fault.FREE_EARLY,
}
"""For each checker a defect that it finds with all others switched off."""


def broken(defect: Fault | str) -> Callable[[Options], Options]:
    """Options of a seed with the defect in, and with the faults of the network that show it."""

    def change(o: Options) -> Options:
        everybody = tuple(range(o.stations))
        o = replace(o, heal_ns=3 * S, messages=max(o.messages, 40), load="bursts" if o.load == "single" else o.load)
        if isinstance(defect, str):
            return replace(o, wrapper=defect, defective=(0,))
        if defect == Fault.NO_CHECK:
            o = replace(o, faults=replace(o.faults, corrupt=0.05))
        if defect == Fault.EARLY_ACK:
            o = replace(o, need_ack=1.0)
        if defect == Fault.CHATTER:  # nothing else is needed, and a slow wire keeps the storm short
            o = replace(o, faults=Faults(), delay_ns=500_000, jitter_ns=0)
        return replace(o, defects=int(defect), defective=(0,) if defect in ONE_STATION else everybody)

    return change


def hunt(defect: Fault | str, only: Iterable[str] = ()) -> Result:
    """Seeds 0, 1, … until something is caught."""
    for seed in range(SEEDS_MAX):
        result = simulate(seed, change=broken(defect), only=only)
        if result.violation is not None:
            return result
    raise AssertionError(f"{defect!r}: not caught in {SEEDS_MAX} seeds")


def name_of(defect: object) -> str:
    return defect.name.lower() if isinstance(defect, Fault) and defect.name else str(defect)


@pytest.mark.parametrize("defect", CAUGHT_BY, ids=name_of)
def test_defect_is_caught_by(defect: Fault | str) -> None:
    result = hunt(defect)
    assert result.violation is not None
    assert result.violation.checker in CAUGHT_BY[defect], result.report


@pytest.mark.parametrize("checker", ALONE)
def test_checker_alone_can_fail(checker: str) -> None:
    result = hunt(ALONE[checker], only=(checker,))
    assert result.violation is not None
    assert result.violation.checker == checker, result.report


def test_nothing_is_left_out() -> None:
    assert set(ALONE) == set(CHECKERS)
    assert {d for d in CAUGHT_BY if isinstance(d, Fault)} == set(Fault)
    assert {d for d in CAUGHT_BY if isinstance(d, str)} == set(names())
    assert all(by <= set(CHECKERS) for by in CAUGHT_BY.values())


@pytest.mark.parametrize("defect", [Fault.SWAP, Fault.ARRIVAL_ORDER, Fault.NO_WAIT], ids=name_of)
def test_digest_alarm_fences_whoever_diverges(defect: Fault) -> None:
    """Spec chapter 20, "Divergence is detected": with no checker but the alarm itself, a wrong order does not go unnoticed."""
    result = hunt(defect, only=("digest",))
    assert result.violation is not None
    assert "is fenced" in result.violation.text
