"""What one seed decides before the run starts: cluster, protocol parameters, load, faults (swarm testing).

Every fault is off in about half of the seeds, so that their combinations, and not only the sum of all, are met.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

US: Final = 1_000
MS: Final = 1_000_000
S: Final = 1_000_000_000
PPM_MAX: Final = 200
"""Largest deviation of a station's monotonic clock from virtual time, parts per million, each way half of it."""

LOADS: Final = ("all_at_once", "single", "bursts", "closed", "steady")


@dataclass(frozen=True, slots=True)
class Faults:
    """What the network and the machines do wrong during the safety phase. Probabilities are per frame and receiver."""

    loss: float = 0.0
    bad_receiver: int = -1
    """Station with ten times the loss (at most 60 %); -1: none."""
    burst_enter: float = 0.0
    """Probability that a link turns bad at a frame; a bad link loses 90 %."""
    burst_leave: float = 0.2
    reorder: float = 0.0
    reorder_ns: int = 2 * MS
    """Largest extra delay of a re-ordered frame."""
    duplicate: float = 0.0
    corrupt: float = 0.0
    """One to three bits flipped."""
    truncate: float = 0.0
    replay: float = 0.0
    """A copy comes again much later, up to ``replay_ns``: maybe in another instance."""
    replay_ns: int = 400 * MS
    garbage_gap_ns: int = 0
    """Mean time between frames nobody of this cluster sent (random bytes, foreign clusters, crafted headers); 0: none."""
    pause_gap_ns: int = 0
    """Mean time between pauses (SIGSTOP) of some station; 0: none. Likewise the next four."""
    pause_ns: int = 30 * MS
    cut_gap_ns: int = 0
    cut_ns: int = 30 * MS
    partition_gap_ns: int = 0
    partition_ns: int = 40 * MS
    flap_gap_ns: int = 0
    """A port of the bridge goes down: its station neither hears nor is heard."""
    flap_ns: int = 30 * MS
    restart_gap_ns: int = 0
    down_ns: int = 30 * MS
    """After a crash, or having left, a station stays away for so long at most."""
    expel_gap_ns: int = 0
    """Mean time between an operator's attempts to expel some station; 0: none."""
    mtu_gap_ns: int = 0
    """Mean time between falls of some interface's MTU, which rises again after ``mtu_ns`` at most."""
    mtu_ns: int = 50 * MS
    memory_gap_ns: int = 0
    """Mean time until some system has no memory for messages of several PDUs, for ``memory_ns`` at most. Never drawn."""
    memory_ns: int = 2 * S
    crash_at_persist: float = 0.0
    """Probability of a crash right before or after a state is made durable."""
    starved: int = -1
    """Station 0.. that gets ``starved_run_ns`` of every ``starved_every_ns`` of its processor; -1: none."""
    starved_run_ns: int = 5 * MS
    starved_every_ns: int = 100 * MS
    starved_loss: float = 0.0
    """Loss of what is sent to that station, by itself."""

    def only_brief_pauses(self, limit_ns: int) -> bool:
        """Whether nothing worse happens to stations than that they pause, for less than *limit_ns*."""
        others = (self.cut_gap_ns, self.partition_gap_ns, self.flap_gap_ns, self.restart_gap_ns, self.mtu_gap_ns)
        return not any(others) and not self.crash_at_persist and bool(self.pause_gap_ns) and self.pause_ns < limit_ns


@dataclass(frozen=True, slots=True)
class Options:
    """One run. Times in ns, sizes in bytes."""

    stations: int
    window: int
    slots: int
    frame_max: tuple[int, ...]
    """Largest PDU per station; the cluster uses the smallest."""
    first_seq: int
    confirm_delay_ns: int
    nak_delay_ns: int
    nak_retry_ns: int
    nak_retry_max_ns: int
    poll_delay_ns: int
    poll_delay_max_ns: int
    retransmit_gap_ns: int
    heartbeat_ns: int
    fail_timeout_ns: int
    """No sign of life for so long: the station's removal is proposed."""
    adopt_timeout_ns: int
    give_up_timeout_ns: int
    probe_interval_ns: int
    recover_interval_ns: int
    progress_timeout_ns: int
    quorum: int
    """Stations a quorum takes; 0: more than half."""
    required: tuple[int, ...]
    """Stations (1..n) without which there is no quorum."""
    open_interval_ns: int
    open_window_ns: int
    delay_ns: int
    jitter_ns: int
    rate_bps: int
    """Bit rate of every port, both ways."""
    port_queue_ns: int
    """A frame that would wait longer than this at its receiver's port is lost."""
    inbox_frames_max: int
    """Frames a station's receive ring holds."""
    wake_ns: int
    """Longest time from a frame's arrival to its reading."""
    turn_cost_ns: int
    """Processor time of a turn, and then of each frame read and sent in it: the station reads nothing meanwhile."""
    frame_cost_ns: int
    send_cost_ns: int
    load: str
    messages: int
    """Messages of the safety phase, all stations together."""
    sizes: tuple[int, ...]
    clients: int
    """Sending programs per station."""
    need_ack: float
    """Share of messages that ask for level ack."""
    op: float
    """Share of messages that are order-preserving only."""
    safety_ns: int
    heal_ns: int
    """Bound of the time to converge after the last fault."""
    final_messages: int
    """Messages of each station after the network has healed."""
    absent: int
    """So many stations, as far as a quorum is left, stay down when the network heals."""
    faults: Faults
    defects: int = 0
    """Bits of ``enum zj_fault``: deliberately broken variants."""
    defective: tuple[int, ...] = ()
    """The stations that have them."""
    wrapper: str = ""
    """Name of a broken Python-level variant (``variants.py``)."""
    medium: int = 0
    """``Medium``."""
    own_timeout_ns: int = 20 * MS
    rules: tuple[str, ...] = ()
    """Rules of the agreement that the defective stations break (``broken.RULES``)."""
    divided: tuple[int, ...] = ()
    """Stations 0.. whose configuration is another one, until the network heals."""
    other_stations: int = 0
    """What it says of the number of stations (0: the same), the quorum and the required stations (1..n)."""
    other_quorum: int = 0
    other_required: tuple[int, ...] = ()
    direct_from: int = 0
    """Members from which on a confirmation may go to one station alone; 0: never."""

    def text(self) -> str:
        """The options on a few lines; those at their defaults are left out of the faults."""
        base = Faults()
        faults = {
            f.name: getattr(self.faults, f.name) for f in fields(Faults) if getattr(self.faults, f.name) != getattr(base, f.name)
        }
        rest = {k: v for k, v in asdict(self).items() if k != "faults"}
        return (
            " ".join(f"{k}={_short(v)}" for k, v in rest.items())
            + "\nfaults: "
            + " ".join(f"{k}={_short(v)}" for k, v in faults.items())
        )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace(" ", "")


def _faults(rng: random.Random, stations: int, fail_timeout: int, give_up: int) -> Faults:
    def on(share: float = 0.5) -> bool:
        return rng.random() < share

    def blink() -> int:
        """Short against every time-out, or long enough for somebody to be removed, or to give up."""
        return rng.choice((5 * MS, 40 * MS, 150 * MS, 2 * fail_timeout, 4 * fail_timeout, give_up + 2 * fail_timeout))

    return Faults(
        loss=rng.choice((0.005, 0.02, 0.05, 0.1, 0.25)) if on(0.65) else 0.0,
        bad_receiver=rng.randrange(stations) if on(0.2) else -1,
        burst_enter=rng.choice((0.005, 0.02, 0.05)) if on(0.35) else 0.0,
        burst_leave=rng.choice((0.05, 0.2, 0.5)),
        reorder=rng.choice((0.01, 0.1, 0.4)) if on() else 0.0,
        reorder_ns=rng.choice((100 * US, 500 * US, 3 * MS, 12 * MS)),
        duplicate=rng.choice((0.01, 0.1, 0.5)) if on() else 0.0,
        corrupt=rng.choice((0.005, 0.05)) if on() else 0.0,
        truncate=rng.choice((0.005, 0.03)) if on(0.4) else 0.0,
        replay=rng.choice((0.01, 0.05)) if on(0.35) else 0.0,
        garbage_gap_ns=rng.choice((1 * MS, 5 * MS, 20 * MS)) if on(0.4) else 0,
        pause_gap_ns=rng.choice((80 * MS, 250 * MS)) if on(0.4) else 0,
        pause_ns=blink(),
        cut_gap_ns=rng.choice((80 * MS, 250 * MS)) if on(0.35) else 0,
        cut_ns=blink(),
        partition_gap_ns=rng.choice((100 * MS, 300 * MS)) if on(0.35) else 0,
        partition_ns=blink(),
        flap_gap_ns=rng.choice((80 * MS, 250 * MS)) if on(0.25) else 0,
        flap_ns=blink(),
        restart_gap_ns=rng.choice((60 * MS, 150 * MS, 400 * MS)) if on(0.5) else 0,
        down_ns=rng.choice((1 * MS, 20 * MS, 80 * MS, 3 * fail_timeout, give_up + 2 * fail_timeout)),
        expel_gap_ns=rng.choice((100 * MS, 300 * MS)) if on(0.2) else 0,
        mtu_gap_ns=rng.choice((60 * MS, 150 * MS)) if on(0.25) else 0,
        mtu_ns=rng.choice((5 * MS, 40 * MS)),
        crash_at_persist=rng.choice((0.02, 0.1)) if on(0.25) else 0.0,
    )


def _quorum(rng: random.Random, n: int) -> tuple[int, tuple[int, ...]]:
    """Mostly the majority; two stations with one that decides alone; fewer than half with stations that must be there; more than
    half; a majority with one that must be there."""
    if n == 2 and rng.random() < 0.6:
        return 1, (rng.choice((1, 2)),)
    if n == 1 or rng.random() < 0.65:
        return 0, ()
    what = rng.randrange(3)
    if what == 0:
        return rng.randrange(1, n // 2 + 1), tuple(sorted(rng.sample(range(1, n + 1), rng.choice((1, min(2, n))))))
    if what == 1:
        return rng.randrange(n // 2 + 1, n + 1), ()
    return 0, (rng.randrange(1, n + 1),)


def draw(rng: random.Random) -> Options:
    """Options of one run; takes a number of values from ``rng`` that depends on nothing but the values themselves."""
    n = rng.choice((1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6))
    window = rng.choice((1, 2, 4, 8, 16, 32, 64))
    slots = max(4, 1 << (2 * window - 1).bit_length() + rng.choice((0, 0, 1)))
    base = rng.choice((512, 562, 900, 1486, 1486, 2000))
    frame_max = tuple(base if rng.random() < 0.8 else base + rng.choice((4, 100, 700)) for _ in range(n))
    payload = base - 72 - 8 * n
    if rng.random() < 0.45:
        first_seq = (1 << 32) - rng.choice((1, 2, 3, 10, 50, 200))
    else:
        first_seq = rng.choice((0, 0, 0, 1, (1 << 31) - 5, 12345))
    load = rng.choice(LOADS)
    total = rng.choice((10, 40, 120, 250))
    kinds = (
        (0, 1, 10, 64),
        (64,),
        (payload - 20, payload - 12, payload - 11, payload),
        (200, 1300),
        (payload * 2, payload * 3 + 1, 16),
        (payload * window * 2, 64, payload * window * 4 + 7),
        (0, 50, payload + 1, payload * 5),
    )
    sizes = tuple(min(max(s, 0), 60_000) for s in rng.choice(kinds))
    mean = sum(sizes) / len(sizes)
    messages = max(6, int(min(total, 500_000 / (mean + 40))))
    delay = rng.choice((5 * US, 20 * US, 100 * US, 500 * US))
    nak_delay = rng.choice((1, 100 * US, 300 * US, 1 * MS))
    nak_retry = rng.choice((1 * MS, 3 * MS, 8 * MS))
    poll = rng.choice((2 * MS, 5 * MS, 15 * MS))
    heartbeat = rng.choice((20 * MS, 50 * MS))
    fail_timeout = heartbeat * rng.choice((2, 2, 3, 4))
    give_up = fail_timeout * rng.choice((2, 3, 5))
    quorum, required = _quorum(rng, n)
    return Options(
        stations=n,
        window=window,
        slots=slots,
        frame_max=frame_max,
        first_seq=first_seq,
        confirm_delay_ns=rng.choice((1, 50 * US, 200 * US, 1 * MS)),
        nak_delay_ns=nak_delay,
        nak_retry_ns=nak_retry,
        nak_retry_max_ns=nak_retry * rng.choice((4, 10)),
        poll_delay_ns=poll,
        poll_delay_max_ns=poll * rng.choice((4, 10)),
        retransmit_gap_ns=rng.choice((100 * US, 500 * US)),
        heartbeat_ns=heartbeat,
        fail_timeout_ns=fail_timeout,
        adopt_timeout_ns=fail_timeout * rng.choice((1, 2, 3)) // 2,
        give_up_timeout_ns=give_up,
        probe_interval_ns=heartbeat // rng.choice((4, 10)),
        recover_interval_ns=rng.choice((10 * MS, 25 * MS)),
        progress_timeout_ns=fail_timeout * rng.choice((2, 4)),
        quorum=quorum,
        required=required,
        open_interval_ns=rng.choice((5 * MS, 15 * MS)),
        open_window_ns=rng.choice((40 * MS, 80 * MS)),
        delay_ns=delay,
        jitter_ns=rng.choice((0, delay // 2, delay * 2)),
        rate_bps=rng.choice((100_000_000, 1_000_000_000)),
        port_queue_ns=rng.choice((1 * MS, 20 * MS)),
        inbox_frames_max=rng.choice((8, 64, 512, 4096)),
        wake_ns=rng.choice((0, 20 * US, 100 * US)),
        turn_cost_ns=rng.choice((0, 0, 5 * US, 20 * US)),
        frame_cost_ns=rng.choice((0, 0, 300, 1 * US)),
        send_cost_ns=rng.choice((0, 0, 1 * US, 7 * US)),
        load=load,
        messages=messages,
        sizes=sizes,
        clients=rng.choice((1, 1, 2, 3)),
        need_ack=rng.choice((0.0, 0.0, 0.3, 1.0)),
        op=rng.choice((0.0, 0.0, 0.3, 1.0)),
        safety_ns=rng.choice((300 * MS, 600 * MS, 1200 * MS)),
        heal_ns=20 * S,
        final_messages=rng.choice((1, 2)),
        absent=rng.choice((0, 0, 0, 1, 2)),
        faults=_faults(rng, n, fail_timeout, give_up),
    )


def quiet(stations: int = 3, **changes: Any) -> Options:
    """A cluster without any fault and with a fixed 50 µs wire, for scenarios; ``changes`` name fields of ``Options``."""
    base: dict[str, Any] = {
        "stations": stations,
        "window": 32,
        "slots": 64,
        "frame_max": (1486,) * stations,
        "first_seq": 0,
        "confirm_delay_ns": 200 * US,
        "nak_delay_ns": 300 * US,
        "nak_retry_ns": 3 * MS,
        "nak_retry_max_ns": 30 * MS,
        "poll_delay_ns": 5 * MS,
        "poll_delay_max_ns": 50 * MS,
        "retransmit_gap_ns": 500 * US,
        "heartbeat_ns": 50 * MS,
        "fail_timeout_ns": 150 * MS,
        "adopt_timeout_ns": 100 * MS,
        "give_up_timeout_ns": 600 * MS,
        "probe_interval_ns": 10 * MS,
        "recover_interval_ns": 20 * MS,
        "progress_timeout_ns": 600 * MS,
        "quorum": 0,
        "required": (),
        "open_interval_ns": 10 * MS,
        "open_window_ns": 50 * MS,
        "delay_ns": 50 * US,
        "jitter_ns": 0,
        "rate_bps": 1_000_000_000,
        "port_queue_ns": 20 * MS,
        "inbox_frames_max": 4096,
        "wake_ns": 0,
        "turn_cost_ns": 0,
        "frame_cost_ns": 0,
        "send_cost_ns": 0,
        "load": "none",
        "messages": 0,
        "sizes": (64,),
        "clients": 1,
        "need_ack": 0.0,
        "op": 0.0,
        "safety_ns": 100 * MS,
        "heal_ns": 20 * S,
        "final_messages": 0,
        "absent": 0,
        "faults": Faults(),
    }
    base.update(changes)
    return Options(**base)


def crowded(o: Options) -> Options:
    """The seed's faults under a steady load that lasts; stations that come and go all the while; frames that overtake others."""
    return replace(
        o,
        load="steady",
        messages=250,
        sizes=(64, 200),
        window=max(o.window, 8),
        slots=max(o.slots, 64),
        absent=0,
        faults=replace(o.faults, restart_gap_ns=60 * MS, down_ns=20 * MS, reorder=0.4, reorder_ns=3 * MS),
    )


def cut_off(o: Options) -> Options:
    """The seed's faults under such a load, one-way cuts and pauses that are longer than the time-outs."""
    faults = replace(
        o.faults,
        cut_gap_ns=80 * MS,
        cut_ns=4 * o.fail_timeout_ns,
        partition_gap_ns=0,
        bad_receiver=-1,
        pause_gap_ns=80 * MS,
        pause_ns=3 * o.fail_timeout_ns,
    )
    return replace(crowded(o), faults=faults)


def talkative(o: Options) -> Options:
    """Short pauses, some loss, and so many order-preserving messages that some are always under way."""
    faults = Faults(loss=0.15, reorder=0.1, pause_gap_ns=80 * MS, pause_ns=3 * o.fail_timeout_ns)
    return replace(crowded(o), messages=1200, sizes=(16, 64), op=1.0, clients=1, safety_ns=600 * MS, faults=faults)


def stormy(o: Options) -> Options:
    """Five stations of which few may go on; operators, restarts and cuts so often that agreements overlap, on a slow wire."""
    faults = Faults(
        loss=0.2, expel_gap_ns=25 * MS, restart_gap_ns=80 * MS, down_ns=5 * MS, cut_gap_ns=40 * MS, cut_ns=2 * o.fail_timeout_ns
    )
    return replace(
        crowded(o),
        stations=5,
        frame_max=o.frame_max[:1] * 5,
        quorum=2,
        required=(1,),
        messages=150,
        inbox_frames_max=4096,
        safety_ns=1200 * MS,
        delay_ns=500 * US,
        jitter_ns=1 * MS,
        faults=faults,
    )


def calm(o: Options) -> Options:
    """Three stations or more, all well; now and then an operator wants one out that is sending."""
    n = max(3, o.stations)
    return replace(
        crowded(o),
        stations=n,
        frame_max=o.frame_max[:1] * n,
        quorum=0,
        required=(),
        messages=300,
        inbox_frames_max=4096,
        give_up_timeout_ns=o.adopt_timeout_ns + 150 * MS,
        safety_ns=2 * S,
        faults=Faults(loss=0.01, expel_gap_ns=600 * MS),
    )


def halting(o: Options) -> Options:
    """The same, with stations that pause again and again, for as long as it takes to be missed but not to be removed."""
    quiet_ns = 5 * o.heartbeat_ns // 4
    return replace(
        calm(o),
        fail_timeout_ns=5 * quiet_ns,
        adopt_timeout_ns=4 * quiet_ns,
        progress_timeout_ns=3 * quiet_ns,
        give_up_timeout_ns=9 * quiet_ns + 500 * MS,
        safety_ns=4 * S,
        messages=600,
        faults=Faults(loss=0.01, expel_gap_ns=800 * MS, pause_gap_ns=60 * MS, pause_ns=9 * quiet_ns // 4),
    )


def joining(o: Options) -> Options:
    """Four stations of which one may go on with the first; they restart, pause, are cut off and expelled so often, with so much
    loss and such short time-outs, that instances end within moments of a change of members."""
    fail_timeout_ns = 40 * MS
    faults = Faults(
        loss=0.3,
        restart_gap_ns=60 * MS,
        down_ns=5 * MS,
        pause_gap_ns=60 * MS,
        pause_ns=5 * fail_timeout_ns,
        cut_gap_ns=60 * MS,
        cut_ns=fail_timeout_ns,
        expel_gap_ns=100 * MS,
    )
    return replace(
        crowded(o),
        stations=4,
        frame_max=o.frame_max[:1] * 4,
        quorum=2,
        required=(1,),
        messages=150,
        clients=2,
        window=8,
        slots=32,
        inbox_frames_max=4096,
        safety_ns=1500 * MS,
        heartbeat_ns=20 * MS,
        fail_timeout_ns=fail_timeout_ns,
        adopt_timeout_ns=fail_timeout_ns,
        give_up_timeout_ns=60 * MS,
        progress_timeout_ns=100 * MS,
        open_window_ns=20 * MS,
        recover_interval_ns=5 * MS,
        delay_ns=300 * US,
        jitter_ns=500 * US,
        faults=faults,
        final_messages=1,
    )


PROFILES: Final[dict[str, Callable[[Options], Options]]] = {
    f.__name__: f for f in (crowded, cut_off, talkative, stormy, calm, halting, joining)
}
"""What some defects need to be seen: changes of the options that a seed has drawn. Without a defect all is well in them too."""
