"""What a scenario is, after its file has been read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..histories.history import BUS_SLOTS, SLOTS
from ..histories.multicaster import Task
from ..histories.recorder import Load
from ..lab.impair import Impairment

RANDOM_KINDS: Final = ("kill", "massacre", "stop", "pause", "partition", "cut", "loss", "cable-out", "mtu")
"""What a random phase draws from; ``massacre`` kills several at once."""


class ScenarioError(Exception):
    """A scenario cannot be run as it is written; ``problems`` are lines for a person, each naming the key."""

    def __init__(self, where: str, problems: list[str]) -> None:
        super().__init__("\n".join(f"{where}: {problem}" for problem in problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Kind:
    """Something that can stand on the time line."""

    about: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    ends: str = ""
    """What ``for`` does when the time is over; empty: it does not take ``for``."""
    process: bool = False
    """It needs the daemon of its stations to be there."""
    links: bool = False
    """It takes ``link``: on that one alone."""
    links_min: int = 1
    """Links that there must be."""


_AT = ("stations",)
KINDS: Final[dict[str, Kind]] = {
    "partition": Kind(
        "only stations of one group hear each other; those not named form another", ("groups",), (), "heals", links=True
    ),
    "cut": Kind(
        "frames `from` some stations `to` others are dropped, one way or `both`", ("from", "to"), ("both",), "heals", links=True
    ),
    "heal": Kind("ends all partitions and cuts"),
    "loss": Kind("each station loses this `share` of the frames towards it", ("share",), _AT, "ends", links=True),
    "impair": Kind("impairments of the lab, by the names of `zenjun lab impair`", (), _AT, "ends", links=True),
    "clear": Kind("ends losses and impairments, those of [network] too", (), _AT),
    "pause": Kind("SIGSTOP; a container is frozen", _AT, (), "resumes", True),
    "resume": Kind("SIGCONT, for those paused", _AT),
    "kill": Kind("SIGKILL", _AT, (), "starts again", True),
    "stop": Kind("SIGTERM: the daemon sends BYE", _AT, (), "starts again", True),
    "start": Kind("starts daemons that do not run", _AT),
    "restart": Kind("SIGTERM, and started again when it has ended", _AT, (), "", True),
    "leave": Kind("as `zenjun leave`", _AT, (), "starts again", True),
    "expel": Kind("as `zenjun expel`, given at station `by`", _AT, ("by",)),
    "link-down": Kind("the interface is set down", _AT, (), "up again", links=True),
    "link-up": Kind("and up", _AT, links=True),
    "cable-out": Kind("the hub's port is down: no carrier", _AT, (), "in again", links=True),
    "cable-in": Kind("and up", _AT, links=True),
    "delete-interface": Kind("the interface is gone, as when a card is pulled", _AT, (), "made again", links=True),
    "create-interface": Kind("it is made again, with another index", _AT, links=True),
    "rename": Kind("the interface gets another name", (*_AT, "to"), (), "as before", links=True),
    "mtu": Kind(
        "MTU of the interface, and of the hub's port (or `port_mtu`)", (*_AT, "mtu"), ("port_mtu",), "as before", links=True
    ),
    "mac": Kind("another MAC address", (*_AT, "mac"), links=True),
    "cross": Kind("the cables of links 1 and 2 are exchanged at the switches", _AT, (), "as before", links_min=2),
    "join": Kind("a cable connects the switches of links 1 and 2", (), (), "taken away", links_min=2),
    "load": Kind("what is sent from now on; what is not named stays", (), ("rate", "burst", "sizes", "levels", "senders")),
    "random": Kind("a phase of faults drawn from the seed, out of `faults`", (), ("faults",), "ends, and with it all of them"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Range:
    """How often something may happen; bounds included."""

    low: int = 0
    high: int | None = None

    def __contains__(self, count: int) -> bool:
        return count >= self.low and (self.high is None or count <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"{self.low} or more"
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of the time line and the stations it is about, milliseconds."""

    stations: tuple[int, ...]
    begin_ms: int
    end_ms: int

    def __str__(self) -> str:
        return f"{listing(self.stations)} from {self.begin_ms / 1000:g} s to {self.end_ms / 1000:g} s"


@dataclass(frozen=True, slots=True)
class Pick:
    """Stations as a file names them: some numbers, or a number of them drawn from the seed (``draw`` 0: none is drawn)."""

    numbers: tuple[int, ...] = ()
    draw: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the time line; times are ranges of milliseconds, out of which the seed takes one."""

    do: str
    t: tuple[int, int]
    lasts: tuple[int, int] | None = None
    stations: Pick = Pick()
    others: Pick = Pick()
    groups: tuple[tuple[int, ...], ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    """Its other keys: changes of impairments by the names of ``Impairment``, of the load by those of ``Load``, ``mtu``, …"""
    link: int = 0
    """On this one alone; 0: frames of all, the interface on the first."""


@dataclass(frozen=True, slots=True)
class Expect:
    """What must come of it, besides all checks."""

    members: tuple[int, ...] = ()
    """Stations of the one instance at the end; the daemons of the others are left as the time line leaves them."""
    changes: Range | None = None
    """Instances after the first one."""
    removed: tuple[int, ...] | None = None
    """Exactly these stations were removed, or left, at some time."""
    silence_max: float | None = None
    """Longest time without any delivery before everything is healed, in fail timeouts."""
    sent: Range = Range(1)
    """Messages that were reported to their sender as done."""
    refused: Range | None = None
    orders_refused: Range = Range(0, 0)
    """`expel` and `leave` that a daemon did not take."""
    lost: Range | None = None
    """Frames dropped by impairments; of all stations that keep their cable."""
    cut: Range | None = None
    """Frames dropped by partitions and cuts."""
    said: tuple[str, ...] = ()
    """Each is in the log of some daemon."""
    silent: tuple[Window, ...] = ()
    """Programs there get no message at a safe level, and no confirmation that one is safe."""
    serves: tuple[Window, ...] = ()
    """Programs there are given something at a safe level, sent within the window."""


@dataclass(frozen=True, slots=True)
class Joining:
    """A program that joins others with a state while messages flow, and what must come of it."""

    joiner: int
    """Station of the program that joins; at all others one is there from the beginning."""
    at_ms: int
    size: int
    """Bytes of the state."""
    rate: float
    """Messages per second of all that are there from the beginning, together."""
    gap_ms: int
    """Longest time without a delivery at a program that gives its state."""
    within_ms: int
    """Until the joiner has the state, from the end of the time line."""


@dataclass(frozen=True, slots=True)
class Switching:
    """A name that a schedule switches while one station's clock is wrong, and what must come of it."""

    wrong: int
    """Station whose clock is wrong; the schedule is set there."""
    clock_s: int
    """By how much, seconds; negative: behind."""
    at_ms: int
    """When the slot begins, on the time line; up to a second later, since slots begin at whole seconds."""
    within_ms: int
    """From the slot's instant until all stations answer with its address."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario for a number of stations."""

    name: str
    about: str
    stations: int
    seed: int
    end_ms: int
    """When the load ends, faults end, and all stations must come together."""
    timeline: tuple[Entry, ...]
    expect: Expect
    needs: tuple[str, ...] = ()
    absent: tuple[int, ...] = ()
    """Stations whose daemons are not started at the beginning."""
    medium: str = "switched"
    links: int = 1
    mtu: int = 1500
    impairment: Impairment = field(default_factory=Impairment)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    loads: Mapping[int, Load] = field(default_factory=dict)
    """By station."""
    groups: int = 1
    joining: Joining | None = None
    switching: Switching | None = None
    multicasting: Task | None = None
    """Programs in groups that overlap."""
    quorum: int = 0
    """Stations that an instance needs."""
    fail_timeout_ms: int = 400
    source: str = ""

    @property
    def levels(self) -> tuple[str, ...]:
        """Of delivery: a program for each at each station."""
        return BUS_SLOTS if self.medium == "bus" else SLOTS


def listing(stations: tuple[int, ...] | list[int]) -> str:
    """Station numbers in a few characters: 1,2,5."""
    return ",".join(map(str, stations)) or "none"
