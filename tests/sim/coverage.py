"""What one run has met, as a set of short texts: a hunt keeps what shows something new.

peer a stop_seen            one station's peer state for another has moved (proto/peerstate.py)
opening proposing agreed    the state of an opening has moved (proto/opening.py)
reset running ended         the state of a bus's reset has moved (proto/reset.py)
sent NAK busy               a PDU of this kind was sent in this phase: opening, flush, busy (an agreement goes on), reset, calm
faults cut pause            both were possible in one run
ends crashed 3              so many lives in instances ended like that (counted up to 4, then 8, 16, 32, …)
depth 3                     so many different proposals were voted on in one instance
stations 8                  of so many
resets 4, instances 8       a bus's, counted as ends
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from itertools import combinations
from typing import Final

from zenjun.proto.core import Phase

from . import frames
from .bus import BusSimulation
from .cluster import Simulation
from .options import Faults

DEPTH_MAX: Final = 6
_RUN: Final = int(Phase.RUN)
_FAULTS: Final = (
    *(f.name for f in fields(Faults) if f.name.endswith("_gap_ns")),
    *(
        "loss",
        "bad_receiver",
        "burst_enter",
        "reorder",
        "duplicate",
        "corrupt",
        "truncate",
        "replay",
        "crash_at_persist",
        "starved",
    ),
)


def bucket(count: int) -> int:
    """Counts up to 4 as they are, then the power of two that they have reached."""
    return count if count < 5 else 1 << (count.bit_length() - 1)


class Watch:
    """Looks at one simulation from before its run."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._bus = isinstance(sim, BusSimulation)
        self._sent: set[str] = set()
        self._next = sim.on_frame
        sim.on_frame = self._see

    def _see(self, station: int, f: frames.Frame) -> None:
        engine = self._sim.stations[station].engine
        phase = "calm"
        if engine is None or not engine.core.is_open:
            phase = "flush" if engine is not None and engine.core.flushing else "opening"
        elif engine.membership.busy:
            phase = "busy"
        elif self._bus and engine.core.phase()[0] != _RUN:
            phase = "reset"
        self._sent.add(f"sent {frames.name(f.kind)} {phase}")
        if self._next is not None:
            self._next(station, f)

    def met(self) -> frozenset[str]:
        """After the run, and after ``Simulation.work``, which counts the moves of stations that are still up."""
        sim = self._sim
        out = set(self._sent)
        out.add(f"stations {sim.options.stations}")
        for station in sim.stations:
            out |= {name for name in station.work if name.startswith(("peer ", "opening ", "reset "))}
        base = Faults()
        on = sorted(n.removesuffix("_gap_ns") for n in _FAULTS if getattr(sim.options.faults, n) != getattr(base, n))
        out |= {f"faults {a} {b}" for a, b in combinations(on, 2)}
        if isinstance(sim, BusSimulation):
            out.add(f"instances {bucket(len(sim.members))}")
            out.add(f"resets {bucket(sum(station.work['resets'] for station in sim.stations))}")
        ends: Counter[str] = Counter()
        for stay in sim.facts.past:
            ends["expelled" if stay.expelled else "crashed" if stay.crashed else "given up"] += 1
        out |= {f"ends {how} {bucket(count)}" for how, count in ends.items()}
        votes: dict[int, set[frames.Proposal]] = {}
        for stream in sim.facts.streams.values():
            for vote in stream.votes:
                votes.setdefault(vote.instance, set()).add(vote.proposal)
        if votes:
            deepest = max(len(proposals) for proposals in votes.values())
            out |= {f"depth {k}" for k in range(1, min(deepest, DEPTH_MAX) + 1)}
        return frozenset(out)
