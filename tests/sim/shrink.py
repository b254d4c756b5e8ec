"""A failing case made small: fewer stations, faults and messages, a shorter run, as long as the same checker fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Final

from .case import Case, Run, run
from .options import MS, Faults, Options

_PLAIN: Final = {
    "jitter_ns": 0,
    "wake_ns": 0,
    "turn_cost_ns": 0,
    "frame_cost_ns": 0,
    "send_cost_ns": 0,
    "absent": 0,
    "op": 0.0,
    "need_ack": 0.0,
    "clients": 1,
    "final_messages": 1,
    "sizes": (64,),
    "first_seq": 0,
    "load": "steady",
    "inbox_frames_max": 4096,
    "rate_bps": 1_000_000_000,
}
"""Options at which nothing happens on their account."""
SHORTEST_NS: Final = 50 * MS
_DURATIONS: Final = ("pause_ns", "cut_ns", "partition_ns", "flap_ns", "down_ns", "mtu_ns")


def smaller(case: Case, o: Options) -> Iterator[Case]:
    """Cases one step smaller than this one, whose options are ``o``: what saves most comes first."""
    if o.stations > 2:
        yield case.set(stations=o.stations - 1)
    base = Faults()
    on = [f.name for f in fields(Faults) if f.name not in _DURATIONS and getattr(o.faults, f.name) != getattr(base, f.name)]
    for name in on:
        if name not in ("reorder_ns", "replay_ns", "burst_leave"):
            yield case.set(**{f"faults__{name}": getattr(base, name)})
    if o.safety_ns > SHORTEST_NS:
        for share in (2, 3):
            yield case.set(safety_ns=o.safety_ns * (share - 1) // share // MS * MS)
    if o.messages > 1:
        yield case.set(messages=o.messages // 2)
        yield case.set(messages=o.messages - 1)
    for name, value in _PLAIN.items():
        if getattr(o, name) != value:
            yield case.set(**{name: value})
    for name in on:  # the same thing, but less often
        if name.endswith("_gap_ns") and 0 < getattr(o.faults, name) < o.safety_ns:
            yield case.set(**{f"faults__{name}": 2 * getattr(o.faults, name)})


def shrink(case: Case, seconds: float, say: Callable[[str], None] = lambda _: None, start: Callable[[Case], Run] = run) -> Run:
    """The smallest case found in so many seconds in which the same checker fails first. The case itself must fail:
    ValueError. start: runs a case. Options that were dropped are not tried again at once, so that a long list of them ends."""
    until = time.monotonic() + seconds
    best = start(case)
    if not best.checker:
        raise ValueError(f"{case.command()}: nothing fails")
    smallest = False
    while not smallest:
        smallest = True
        for candidate in smaller(best.case, best.result.options):
            if time.monotonic() > until:
                return best
            tried = start(candidate)
            if tried.checker == best.checker:
                say(f"{best.checker} still: {candidate.command()}")
                best, smallest = tried, False
                break
    return best
