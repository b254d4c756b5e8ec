"""What the end-to-end tests share: labs that report on failure, programs that send and record, and the comparison of sequences.

Two sequences are equal only if they are byte for byte: data, sender and place in the order. Every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import struct
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

from zenjun.daemon.client import Event, Level, Message, SendLevel, SyncConnection, SyncGroup, View, connect_sync
from zenjun.tools.lab import Lab, LabError, Station

from ..stalls import found
from ..timing import rest

T = TypeVar("T")
Options: TypeAlias = Mapping[str, Mapping[str, Any]]
Burst: TypeAlias = tuple[str, SendLevel, list[bytes]]
"""Group, level to wait for, messages."""

PATIENT: Options = {"cluster": {"fail_timeout_ms": 2000}}
"""For tests that are not about failures: a machine that does not run a daemon for half a second shall cost no station."""

_live: weakref.WeakSet[Lab] = weakref.WeakSet()


# ---- labs ----


def is_sized(station: Station) -> bool:
    """How large frames may be has been found out, where that is done."""
    sizes = status(station)["frame_sizes"]
    return sizes is None or bool(sizes["settled"])


@contextlib.contextmanager
def cluster(stations: int, *, ids: Iterable[int] | None = None, options: Options | None = None, **lab: Any) -> Iterator[Lab]:
    """A lab whose daemons (all, or those of ``ids``) are in one instance; a failure carries what every station says. Unless the
    options say otherwise they are patient. The instance need not be the first: who starts late is let into it."""
    given = options or {}
    patient = {**given, "cluster": {**PATIENT["cluster"], **given.get("cluster", {})}}
    with Lab(stations, options=patient, **lab) as up, reported(up):
        chosen = list(up.stations) if ids is None else list(ids)
        up.start_daemons(chosen)
        up.wait_open(90, chosen)
        if not lab.get("loss"):  # else an answer may be late for long
            wait_for(lambda: all(is_sized(up.station(number)) for number in chosen), "frame sizes are known", 40)
        yield up


@contextlib.contextmanager
def reported(lab: Lab) -> Iterator[Lab]:
    """Adds the state of the lab to an exception that leaves the block, and to the report of a test that fails meanwhile."""
    _live.add(lab)
    try:
        yield lab
    except BaseException as error:
        error.add_note(describe(lab))
        raise
    finally:
        _live.discard(lab)


def describe_live() -> str:
    """State of all labs that stand now."""
    return "\n".join(describe(lab) for lab in list(_live))


def describe(lab: Lab) -> str:
    """What each station of a lab says about itself, and the end of its log."""
    out = [f"lab {lab.name}"]
    for station in lab.stations.values():
        try:
            said = station.status(1.0)
            keys = "state blocked instance incarnation members quorum membership window positions drops kernel clients interface"
            brief = {key: said.get(key) for key in keys.split()}
            brief["core"] = {k: v for k, v in said["counters"]["core"].items() if v}
            brief["datapath"] = {k: v for k, v in said["counters"]["datapath"].items() if v}
            text = json.dumps(brief)
        except LabError as error:
            text = f"no status: {error}"
        try:
            log = "\n    ".join(station.log_path.read_text(errors="replace").splitlines()[-25:])
        except OSError:
            log = "no log"
        out.append(f"  station {station.id}: {text}\n    {log}")
    return "\n".join(out)


# ---- conditions ----


def wait_for(condition: Callable[[], T], what: str, timeout_s: float = 60.0) -> T:
    """The condition's value as soon as it is true. Raises AssertionError when the time is over."""
    begun = asked = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() < begun + timeout_s, f"not within {timeout_s:g} s: {what}"
        rest(begun, asked)
        asked = time.monotonic()
    return value


def stays(condition: Callable[[], object], what: str, seconds: float) -> None:
    """The condition holds during the whole time: for what must *not* happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), f"it does not stay so for {seconds:g} s: {what}"
        time.sleep(0.02)


def status(station: Station) -> dict[str, Any]:
    """The station's status; waits for a daemon that is starved. Raises LabError."""
    return dict(station.status(5.0))


def core(station: Station) -> dict[str, int]:
    """Counters of the protocol core."""
    return dict(status(station)["counters"]["core"])


def datapath(station: Station) -> dict[str, int]:
    """Counters of the data path."""
    return dict(status(station)["counters"]["datapath"])


def drops(station: Station) -> Counter[str]:
    """Frames dropped, by reason."""
    return Counter(status(station)["drops"])


def rejected(station: Station) -> Counter[str]:
    """The same without those that a busy machine had no room for, or had seen a moment ago."""
    found = drops(station)
    for reason in ("control_full", "repeated"):
        del found[reason]
    return found


def log_of(station: Station) -> str:
    """What the daemon has written so far."""
    try:
        return station.log_path.read_text(errors="replace")
    except OSError:
        return ""


def process_alive(station: Station) -> bool:
    """Whether the daemon last started there still runs."""
    daemon = station.daemon
    return daemon is not None and daemon.poll() is None


# ---- members ----


def instances_of(lab: Lab, ids: Iterable[int] | None = None) -> set[int]:
    """Instances that these stations (default: all) are in."""
    return {int(status(lab.station(number))["instance"]) for number in (lab.stations if ids is None else ids)}


def members_of(station: Station) -> dict[int, int]:
    """Incarnations of the members of the station's instance, by station; empty in no instance."""
    return {int(number): int(incarnation) for number, incarnation in status(station)["members"]}


def together(lab: Lab, ids: Iterable[int] | None = None, timeout_s: float = 60.0) -> int:
    """Wait until these stations (default: all) are in one instance of exactly them, and say so; returns its number."""
    wanted = sorted(lab.stations if ids is None else ids)

    def agreed() -> int:
        try:
            told = [status(lab.station(number)) for number in wanted]
        except LabError:  # one is still starting
            return 0
        one = len({t["instance"] for t in told}) == 1 and all([m[0] for m in t["members"]] == wanted for t in told)
        return int(told[0]["instance"]) if one and all(t["state"] == "open" for t in told) else 0

    return wait_for(agreed, f"one instance of {wanted}", timeout_s)


def kill(*stations: Station) -> None:
    """SIGKILL to all of them, then wait until they are dead."""
    for station in stations:
        station.signal(signal.SIGKILL)
    for station in stations:
        assert station.daemon is not None
        station.daemon.wait(60)


def waited_for(station: Station) -> dict[int, str]:
    """Whom the station cannot do without (no quorum), or is about to remove, and why."""
    told = status(station)
    found = {int(w["for"]): str(w["reason"]) for w in told["membership"]["waiting"] if w["station"] == station.id}
    return found | {int(entry["station"]): str(entry["reason"]) for entry in told["blocked"]}


# ---- programs ----


class Program:
    """A program at one station: its connection, the groups it is in, and everything it got, in order, by group."""

    def __init__(self, station: Station, groups: Mapping[str, Level], name: str = "", timeout_s: float = 60.0) -> None:
        """groups: name → level of delivery. timeout_s: of every call."""
        self.station = station.id
        self.connection: SyncConnection = connect_sync(
            str(station.socket_path), name=name or f"p{station.id}", timeout=timeout_s, wait=60.0
        )
        self.groups: dict[str, SyncGroup] = {g: self.connection.join(g, level) for g, level in groups.items()}
        self.items: dict[str, list[Message | View | Event]] = defaultdict(list)

    @property
    def client(self) -> int:
        """Its number at its daemon."""
        return self.connection.welcome.client

    def messages(self, group: str) -> list[Message]:
        """Messages of a group got so far."""
        return [item for item in self.items[group] if isinstance(item, Message)]

    def views(self, group: str) -> list[View]:
        """Views of a group got so far."""
        return [item for item in self.items[group] if isinstance(item, View)]

    def events(self, name: str) -> list[Event]:
        """Events of this name got so far, in any group."""
        return [i for items in self.items.values() for i in items if isinstance(i, Event) and i.name == name]

    def read(self, group: str, timeout_s: float) -> None:
        """Take what is there, waiting for something. Raises Timeout."""
        self.items[group] += self.groups[group].recv_items(timeout_s)

    def read_messages(self, group: str, count: int, timeout_s: float = 60.0) -> list[Message]:
        """Read until ``count`` messages of the group have been got in all."""
        deadline = time.monotonic() + timeout_s
        have = len(self.messages(group))
        while have < count:
            new = self.groups[group].recv_items(max(0.01, deadline - time.monotonic()))
            have += sum(isinstance(item, Message) for item in new)
            self.items[group] += new
        return self.messages(group)

    def read_event(self, group: str, name: str, timeout_s: float = 60.0) -> Event:
        """Read until an event of this name comes."""
        deadline = time.monotonic() + timeout_s
        before = len(self.items[group])
        while True:
            for item in self.items[group][before:]:
                if isinstance(item, Event) and item.name == name:
                    return item
            before = len(self.items[group])
            self.read(group, max(0.01, deadline - time.monotonic()))

    def send(self, bursts: Iterable[Burst]) -> None:
        """Send them one burst after the other, each pipelined until its level is reached."""
        for group, level, messages in bursts:
            self.groups[group].send_many(messages, level)

    def close(self) -> None:
        self.connection.close()


@contextlib.contextmanager
def programs(
    lab: Lab, groups: Mapping[str, Level], *, per_station: int = 1, ids: Iterable[int] | None = None, timeout_s: float = 60.0
) -> Iterator[list[Program]]:
    """Programs at the stations, all in the same groups before the block begins."""
    out: list[Program] = []
    try:
        for number in lab.stations if ids is None else ids:
            for k in range(per_station):
                out.append(Program(lab.station(number), groups, f"p{number}.{k}", timeout_s))
        yield out
    finally:
        for program in out:
            with contextlib.suppress(Exception):
                program.connection.close(timeout=0.5)


def in_parallel(calls: Sequence[Callable[[], T]], timeout_s: float = 120.0) -> list[T]:
    """Results of the calls, each made in a thread of its own at the same time."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        start.wait(60)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(timeout_s) for future in [pool.submit(run, call) for call in calls]]


def payload(program: Program, number: int, size: int, rng: random.Random) -> bytes:
    """A message that tells its sender and number, filled up with noise to ``size`` bytes (more if the label is longer)."""
    label = b"%d.%d/%d:" % (program.station, program.client, number)
    return label + rng.randbytes(max(0, size - len(label)))


def plan(
    sender: Program,
    count: int,
    rng: random.Random,
    *,
    size_max: int = 300,
    levels: Sequence[SendLevel] = ("preack",),
    chunk: int = 50,
) -> list[Burst]:
    """``count`` messages of mixed sizes over all groups of the sender, in bursts at each of the levels in turn."""
    names = sorted(sender.groups)
    bursts: list[Burst] = []
    for at in range(0, count, chunk):
        messages = [payload(sender, k, rng.randrange(size_max), rng) for k in range(at, min(count, at + chunk))]
        k = at // chunk
        bursts.append((names[k % len(names)], levels[(k // len(names)) % len(levels)], messages))
    return bursts


def exchange(members: Sequence[Program], plans: Sequence[Sequence[Burst]], timeout_s: float = 90.0) -> None:
    """Everybody sends its plan at the same time and reads until it has everybody's messages; then all sequences are compared."""
    totals: Counter[str] = Counter()
    for bursts in plans:
        for group, _, messages in bursts:
            totals[group] += len(messages)
    before = {(id(m), g): len(m.messages(g)) for m in members for g in totals}
    deadline = time.monotonic() + timeout_s

    def part(member: Program, bursts: Sequence[Burst]) -> None:
        member.send(bursts)
        for group, count in totals.items():
            member.read_messages(group, before[id(member), group] + count, max(0.1, deadline - time.monotonic()))

    in_parallel([lambda m=m, b=b: part(m, b) for m, b in zip(members, plans, strict=True)], timeout_s + 10)  # type: ignore[misc]
    for group in totals:
        sent = [
            (m.station, m.client, data)
            for m, bursts in zip(members, plans, strict=True)
            for g, _, messages in bursts
            if g == group
            for data in messages
        ]
        compare(group, [m.messages(group)[before[id(m), group] :] for m in members], sent)


# ---- comparison ----


def canonical(sequence: Iterable[Message]) -> list[bytes]:
    """Each message with place and sender as bytes."""
    return [struct.pack(">QIIII", *m.place, m.station, m.client) + m.data for m in sequence]


def compare(what: str, sequences: Sequence[Sequence[Message]], sent: Sequence[tuple[int, int, bytes]] | None = None) -> None:
    """All sequences are the same bytes, places grow, and they are exactly what was sent, each sender's in its order.

    sent: (station, client, data), those of one sender in the order of sending; None: not known.
    """
    wanted = canonical(sequences[0])
    for at, sequence in enumerate(sequences):
        got = canonical(sequence)
        if got != wanted:
            first = next((k for k, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
            raise AssertionError(
                f"{what}: sequence {at} ({len(got)}) differs from sequence 0 ({len(wanted)}) at {first}: "
                f"{got[first : first + 1]!r:.200} against {wanted[first : first + 1]!r:.200}"
            )
    places = [m.place for m in sequences[0]]
    found(all(a < b for a, b in itertools.pairwise(places)), f"{what}: places do not grow")
    if sent is None:
        return
    by_sender: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    for m in sequences[0]:
        by_sender[m.station, m.client].append(m.data)
    expected: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    for station, client, data in sent:
        expected[station, client].append(data)
    assert by_sender.keys() == expected.keys(), f"{what}: senders {by_sender.keys()} instead of {expected.keys()}"
    for key, messages in expected.items():
        got_data = by_sender[key]
        found(not Counter(got_data) - Counter(messages), f"{what}: of sender {key} messages came that were not sent, or twice")
        assert got_data == messages, (
            f"{what}: of sender {key} {len(got_data)} messages came instead of {len(messages)}; lost "
            f"{len(Counter(messages) - Counter(got_data))}, too many {len(Counter(got_data) - Counter(messages))}"
        )


def same_views(members: Sequence[Program], group: str) -> None:
    """From the last join on everybody has seen the same views at the same places; later views only drop out at the front."""
    histories = [[(v.place, v.instance, v.members, v.joined, v.left, v.reason) for v in m.views(group)] for m in members]
    shortest = min(map(len, histories))
    assert shortest, f"a member of {group} has seen no view"
    tails = [h[-shortest:] for h in histories]
    assert all(tail == tails[0] for tail in tails), f"views of {group} differ: {tails}"
