"""Profiles that make rare situations frequent, and all changes of options by name: what a hunt mixes, a case is written with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

from .options import MS, PROFILES, US, Faults, Options, S, crowded


def _of(o: Options, n: int) -> Options:
    """The same with n stations: frame sizes, required stations, quorum and the bad receiver as far as they fit."""
    required = tuple(s for s in o.required if s <= n)
    return replace(
        o,
        stations=n,
        frame_max=(o.frame_max * n)[:n],
        required=required,
        quorum=o.quorum if o.quorum <= n and (required or 2 * o.quorum > n) else 0,
        divided=tuple(s for s in o.divided if s < n),
        faults=replace(
            o.faults,
            bad_receiver=o.faults.bad_receiver if o.faults.bad_receiver < n else -1,
            starved=min(o.faults.starved, n - 1),
        ),
    )


def overlapping(o: Options) -> Options:
    """Openings and votes at the same time: partitions about as long as the time-outs, machines that lose power all the while."""
    faults = replace(
        o.faults,
        partition_gap_ns=120 * MS,
        partition_ns=o.fail_timeout_ns + o.give_up_timeout_ns,
        restart_gap_ns=100 * MS,
        down_ns=o.fail_timeout_ns,
        crash_at_persist=0.05,
    )
    return replace(_of(o, max(3, o.stations)), load="steady", messages=120, sizes=(64, 200), safety_ns=1500 * MS, faults=faults)


def lives(o: Options) -> Options:
    """Several lives in a row, each shorter than the time-outs: nobody is sure which of them is meant."""
    faults = replace(o.faults, restart_gap_ns=25 * MS, down_ns=4 * MS, crash_at_persist=0.15, replay=0.05, replay_ns=400 * MS)
    return replace(_of(o, max(3, o.stations)), load="steady", messages=120, sizes=(64,), safety_ns=900 * MS, faults=faults)


def crossing(o: Options) -> Options:
    """Operators want two stations out, or each other, within a round trip of a slow wire."""
    faults = Faults(loss=0.1, expel_gap_ns=12 * MS, cut_gap_ns=150 * MS, cut_ns=o.fail_timeout_ns, down_ns=5 * MS)
    return replace(
        _of(o, max(4, o.stations)),
        quorum=2,
        required=(1,),
        load="steady",
        messages=150,
        sizes=(64, 200),
        delay_ns=500 * US,
        jitter_ns=2 * MS,
        inbox_frames_max=4096,
        safety_ns=900 * MS,
        faults=faults,
    )


def wide(o: Options) -> Options:
    """Eight to twelve stations, after the stations and the window drawn; fewer messages, for each costs more."""
    n = 8 + (o.stations + o.window) % 5
    return replace(_of(o, n), messages=min(o.messages, 60), inbox_frames_max=max(o.inbox_frames_max, 512), frame_max=(1486,) * n)


def divided(o: Options) -> Options:
    """Two configurations of one cluster, each of which lets the stations that have it open alone: another number of stations, or
    another quorum. All are switched on at once and hear each other; when the network heals the files are made equal."""
    n = max(2, o.stations)
    o = _of(o, n)
    part = 1 + (o.messages + o.slots.bit_length() + o.clients) % (n - 1)
    f = o.faults
    return replace(
        o,
        quorum=n - part,
        required=(1,),
        divided=tuple(range(n - part, n)),
        other_stations=n + 2 if 2 * part <= n and o.clients == 1 else 0,
        other_quorum=part,
        other_required=(n,),
        inbox_frames_max=max(o.inbox_frames_max, 64),
        absent=0,
        safety_ns=600 * MS,
        faults=Faults(reorder=f.reorder, reorder_ns=f.reorder_ns, duplicate=f.duplicate),
    )


def starved(o: Options) -> Options:
    """All well but for one station that gets little of its processor and loses much of what is sent to it; little is sent, and
    time-outs are those of a cluster whose files do not name them."""
    n = max(3, o.stations)
    return replace(
        _of(o, n),
        quorum=0,
        required=(),
        load="steady",
        messages=6,
        sizes=(64,),
        window=max(o.window, 16),
        slots=max(o.slots, 64),
        heartbeat_ns=200 * MS,
        fail_timeout_ns=400 * MS,
        adopt_timeout_ns=300 * MS,
        give_up_timeout_ns=2 * S,
        probe_interval_ns=10 * MS,
        progress_timeout_ns=2 * S,
        inbox_frames_max=4096,
        absent=0,
        safety_ns=8 * S,
        faults=Faults(starved=n - 1, starved_loss=0.3),
    )


def meagre(o: Options) -> Options:
    """One system after the other has no memory for large messages, for less than a time-out or much longer."""
    n = max(3, o.stations)
    f = o.faults
    return replace(
        _of(o, n),
        load="steady",
        messages=100,
        sizes=(64, 200, 12_000),
        progress_timeout_ns=300 * MS,
        safety_ns=2 * S,
        faults=replace(f, loss=min(f.loss, 0.05), restart_gap_ns=0, memory_gap_ns=150 * MS, memory_ns=1500 * MS),
    )


def doubtful(o: Options) -> Options:
    """Stations that are not heard for about as long as makes them suspected, all the while, and votes that are long on their way:
    what a station has voted for is decided when it does not want it any more."""
    n = max(3, o.stations)
    wait = o.fail_timeout_ns
    faults = Faults(
        loss=0.02,
        pause_gap_ns=max(10 * MS, wait // 2),
        pause_ns=2 * wait,
        cut_gap_ns=max(8 * MS, wait // 2),
        cut_ns=2 * wait,
        restart_gap_ns=2 * wait + 40 * MS,
        down_ns=wait // 2,
    )
    return replace(
        _of(o, n),
        load="steady",
        messages=80,
        sizes=(64,),
        delay_ns=2 * MS,
        jitter_ns=4 * MS,
        inbox_frames_max=4096,
        safety_ns=1500 * MS,
        faults=faults,
    )


def lone(o: Options) -> Options:
    """Mostly one message at a time, now of this station, now of that one, where frames are lost and stations come and go: most
    confirmations go to one station, and CONFIRMs speak for all, whose members change."""
    f = o.faults
    faults = Faults(
        loss=0.05,
        reorder=f.reorder,
        reorder_ns=f.reorder_ns,
        duplicate=f.duplicate,
        cut_gap_ns=f.cut_gap_ns,
        cut_ns=min(f.cut_ns, 40 * MS),
        restart_gap_ns=f.restart_gap_ns,
        down_ns=min(f.down_ns, 80 * MS),
    )
    return replace(
        _of(o, max(4, o.stations)),
        load="steady",
        messages=200,
        sizes=(64,),
        need_ack=0.0,
        inbox_frames_max=4096,
        safety_ns=900 * MS,
        direct_from=4,
        faults=faults,
    )


def alone(o: Options) -> Options:
    """The same with confirmations to one station alone."""
    return replace(o, direct_from=4)


def louder(o: Options) -> Options:
    """The same with every fault of machines that it has twice as often."""
    gaps = {f.name: getattr(o.faults, f.name) // 2 for f in fields(Faults) if f.name.endswith("_gap_ns")}
    return replace(o, faults=replace(o.faults, **gaps))


def lossy(o: Options) -> Options:
    """The same with a loss of 15 % at least."""
    return replace(o, faults=replace(o.faults, loss=max(o.faults.loss, 0.15)))


def longer(o: Options) -> Options:
    """The same for twice as long."""
    return replace(o, safety_ns=min(2 * o.safety_ns, 4 * S), messages=min(2 * o.messages, 600))


RARE: Final[dict[str, Callable[[Options], Options]]] = {
    f.__name__: f for f in (overlapping, lives, crossing, wide, divided, starved, meagre, doubtful, lone)
}
MORE: Final[dict[str, Callable[[Options], Options]]] = {f.__name__: f for f in (louder, lossy, longer, alone)}
"""What a mutation adds to a profile."""
CHANGES: Final[dict[str, Callable[[Options], Options]]] = {**PROFILES, "crowded": crowded, **RARE, **MORE}


def apply(names: str, settings: dict[str, Any] | None = None) -> Callable[[Options], Options]:
    """Changes ``a+b`` one after the other, then single options (``faults.loss`` and the like for those of the faults).
    KeyError: no such change; TypeError: no such option."""
    changes = [CHANGES[name] for name in names.split("+") if name]
    single = dict(settings or {})

    def change(o: Options) -> Options:
        for one in changes:
            o = one(o)
        if "stations" in single:
            o = _of(o, single["stations"])
        faults = {k.removeprefix("faults."): v for k, v in single.items() if k.startswith("faults.")}
        rest = {k: v for k, v in single.items() if not k.startswith("faults.") and k != "stations"}
        return replace(o, faults=replace(o.faults, **faults), **rest)

    return change
