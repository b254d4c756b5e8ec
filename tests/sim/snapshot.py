"""Performance as a snapshot: throughput and latency in virtual time by stations × loss × window, seeded, the same on any machine.

It says how the protocol behaves (rounds, windows, repairs), not how fast a machine is: a station's processor time is a constant.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from .cluster import Simulation
from .facts import PREACK, Message
from .options import MS, US, Faults, Options, S, quiet

FILE: Final = Path(__file__).with_name("snapshot.txt")
STATIONS: Final = (3, 5)
LOSSES: Final = (0.0, 0.01, 0.05)
WINDOWS: Final = (8, 64)
BULK_MESSAGES: Final = 240
BULK_BYTES: Final = 1300
LIGHT_MESSAGES: Final = 150
LIGHT_GAP_NS: Final = 1 * MS
LIMIT_NS: Final = 30 * S
HEAD: Final = """\
Virtual time: 1 Gbit/s, 20 us wire, 15 us a turn, 7 us a frame sent, 0.5 us a frame read; parameters as in a daemon's default.
Throughput: all stations send {bulk} messages of {size} B each at once, until preack everywhere. Latency: one message of 64 B a
millisecond, from the program's call to level preack, at every station.

stations  loss  window  messages/s  frames/msg  p50 us  p99 us  max us
"""


def _options(stations: int, loss: float, window: int) -> Options:
    return quiet(
        stations,
        window=window,
        slots=max(64, 2 * window),
        delay_ns=20 * US,
        turn_cost_ns=15 * US,
        frame_cost_ns=500,
        send_cost_ns=7 * US,
        confirm_delay_ns=200 * US,
        nak_delay_ns=300 * US,
        nak_retry_ns=2 * MS,
        nak_retry_max_ns=100 * MS,
        poll_delay_ns=3 * MS,
        poll_delay_max_ns=200 * MS,
        retransmit_gap_ns=1 * MS,
        heartbeat_ns=250 * MS,
        fail_timeout_ns=1 * S,
        adopt_timeout_ns=1 * S,
        give_up_timeout_ns=5 * S,
        faults=Faults(loss=loss),
    )


def _open(options: Options) -> Simulation:
    """A cluster that has opened and has nothing to say; loss begins now, so that opening costs nothing of it."""
    sim = Simulation(1, options)
    sim.network.faults = replace(options.faults, loss=0.0)
    sim.start()
    sim.clockwork.run(500 * MS)
    sim.network.faults = options.faults
    return sim


def _released(sim: Simulation) -> bool:
    total = sum(len(taken) for stream in sim.facts.streams.values() for taken in stream.taken.values())
    stays = sim.facts.stays
    return all(s is not None and s.released[PREACK] == total for s in stays) and not any(s.queues[0] for s in sim.stations)


def throughput(options: Options) -> tuple[float, float]:
    """(messages per second delivered at the slowest station, frames per message)."""
    sim = _open(options)
    began, frames = sim.clockwork.now, sim.network.sent
    for _ in range(BULK_MESSAGES):
        for s in range(options.stations):
            sim.submit(s, 0, BULK_BYTES)
    if not sim.clockwork.run(began + LIMIT_NS, lambda: _released(sim)):
        raise AssertionError("the bulk load does not come to its end")
    count = BULK_MESSAGES * options.stations
    return count * S / (sim.clockwork.now - began), (sim.network.sent - frames) / count


def latency(options: Options) -> list[int]:
    """Times from submission to preack in ns, of each message at each station, sorted."""
    sim = _open(options)
    began = sim.clockwork.now
    sent: list[tuple[int, Message]] = []
    due = [0] * options.stations
    times: list[int] = []

    def submit(k: int) -> None:
        sent.append((sim.clockwork.now, sim.submit(k % options.stations, 0, 64)))

    for k in range(LIGHT_MESSAGES):
        sim.clockwork.at(began + k * LIGHT_GAP_NS, lambda k=k: submit(k))  # type: ignore[misc]

    def look() -> bool:
        for s, stay in enumerate(sim.facts.stays):
            if stay is None:
                continue
            for record in stay.records[due[s] : stay.released[PREACK]]:
                at = next(at for at, m in reversed(sent) if m.station == record.src and m.data == record.data)
                times.append(sim.clockwork.now - at)
            due[s] = stay.released[PREACK]
        return min(due) == LIGHT_MESSAGES

    if not sim.clockwork.run(began + LIMIT_NS, look):
        raise AssertionError("the light load does not come to its end")
    return sorted(times)


def make() -> str:
    """The whole table as text."""
    out = [HEAD.format(bulk=BULK_MESSAGES, size=BULK_BYTES)]
    for n in STATIONS:
        for loss in LOSSES:
            for window in WINDOWS:
                o = _options(n, loss, window)
                rate, frames = throughput(o)
                t = latency(o)
                times = f"{t[len(t) // 2] / US:6.0f}  {t[len(t) * 99 // 100] / US:6.0f}  {t[-1] / US:6.0f}"
                out.append(f"{n:8d}  {loss:4.0%}  {window:6d}  {rate:10.0f}  {frames:10.2f}  {times}\n")
    return "".join(out)
