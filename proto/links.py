"""Which of several links to which stations are up, and what data is spread over. Sans-I/O.

A link to a station is *up* if the station is heard there, and says that it hears this one there; *one-way* if it is heard and
says that it does not; else *down*. Both learn it from LINKS, which each station sends on each link for itself, with every
heartbeat and at once when something has changed. Nothing here removes a station: it is heard if it is heard on any link.

Rules J5 to J12 of docs/links.md. Deviations from the design are in docs/deviations.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeAlias

from .wire import STATIONS_MAX, Field, Layout

LINKS_MAX: Final = 4
HEARD_HEARTBEATS: Final = 2.5
"""A station that was heard so many heartbeats ago is heard."""
REST_NS: Final = 10_000_000
"""Least time between two LINKS on a link."""
HOLD_FIRST_NS: Final = 1_000_000_000
HOLD_MAX_NS: Final = 60_000_000_000
FALLS_NS: Final = 600_000_000_000
"""Falls within this time double the hold."""
APART_HEARTBEATS: Final = 1.5
"""A station that was good on one link for so much longer than on another one has not stopped."""
DOUBT_HEARTBEATS: Final = 4
"""A doubt that LINKS has not refuted by then is a fall."""

LINKS: Final = Layout(
    "links",
    (
        Field("number", 1, "of the link that the frame is sent on, from 1"),
        Field("count", 1, "links of the cluster"),
        Field("reports", 1, "n: stations of the roster"),
        Field("links_pad", 1, "0"),
        Field("hears", 8, "bitmap, bit k: station k + 1 is heard on this link"),
        Field("sent", 8, "frames that the source has sent on it"),
    ),
    "LINKS body: what its source hears on one link.",
)
REPORT: Final = Layout(
    "report",
    (
        Field("frames", 4, "frames of that station that have come on the link, modulo 2^32"),
        Field("largest", 2, "bytes (behind the Ethernet header) of the largest PROBE of its last round that has come, 0: none"),
        Field("last_round", 2, "number of that round"),
    ),
    "Follows the LINKS body, once for each station.",
    repeat="reports",
)


@dataclass(frozen=True, slots=True)
class Said:
    """One LINKS."""

    number: int
    count: int
    hears: int
    """Bit k: station k + 1."""
    sent: int
    frames: tuple[int, ...]
    """Of each station, by index."""
    largest: tuple[int, ...]
    rounds: tuple[int, ...]

    def packed(self) -> bytes:
        head = LINKS.struct.pack(self.number, self.count, len(self.frames), 0, self.hears, self.sent)
        rows = zip(self.frames, self.largest, self.rounds, strict=True)
        return head + b"".join(REPORT.struct.pack(frames & 0xFFFFFFFF, largest, last) for frames, largest, last in rows)

    @classmethod
    def read(cls, body: bytes) -> Said | None:
        """None: it is none, or of numbers that cannot be."""
        if len(body) < LINKS.size:
            return None
        number, count, stations, _, hears, sent = LINKS.struct.unpack_from(body)
        if not (1 <= count <= LINKS_MAX and 1 <= number <= count and 1 <= stations <= STATIONS_MAX):
            return None
        if len(body) != LINKS.size + stations * REPORT.size or hears >> stations:
            return None
        rows = tuple(REPORT.struct.iter_unpack(body[LINKS.size :]))
        frames, largest, rounds = zip(*rows, strict=True)
        return cls(number, count, hears, sent, frames, largest, rounds)

    def hears_station(self, station: int) -> bool:
        return bool(self.hears >> (station - 1) & 1)


class State(StrEnum):
    """Of a link to a station."""

    UP = "up"
    ONE_WAY = "one-way"
    """It is heard there, and does not hear this station."""
    DOWN = "down"


class Mode(StrEnum):
    """``links.mode``: what first sendings of data take. All else takes all links."""

    AUTO = "auto"
    DUPLICATE = "duplicate"
    STRIPE = "stripe"
    PASSIVE = "passive"


@dataclass(frozen=True, slots=True)
class Config:
    """What a judge is made for."""

    station: int
    stations: int
    links: tuple[int, ...]
    """Numbers of the links that this station has."""
    count: int
    heartbeat_ns: int
    mode: Mode = Mode.AUTO
    priority: Mapping[int, int] = field(default_factory=dict)
    """By number, for mode passive: the least are used first. 0 for those that are not here."""


# ---- effects


@dataclass(frozen=True, slots=True)
class Say:
    """Send LINKS on a link."""

    link: int
    hears: int


@dataclass(frozen=True, slots=True)
class Use:
    """Spread data over these links; mode DUPLICATE: it takes all. Ends all doubts of the data path."""

    mode: Mode
    links: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """A link to a station has another state."""

    link: int
    station: int
    state: State
    before: State


@dataclass(frozen=True, slots=True)
class Wired:
    """A link is connected with another one: a warning. other 0: not any more."""

    link: int
    other: int
    joined: bool
    """Own frames come back on it. Otherwise a station calls it by another number."""


Effect: TypeAlias = Say | Use | Moved | Wired


@dataclass(slots=True)
class _Doubt:
    """Many frames in a row were lost on a link: since when, and how many frames from here each member had from it then."""

    since: int
    had: dict[int, int] = field(default_factory=dict)
    has: set[int] = field(default_factory=set)
    """Members that have had more since."""


class Judge:
    """The links of one station. Times are monotonic nanoseconds; all inputs are total."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.on_heartbeat(config.heartbeat_ns)
        self._heard: dict[int, Sequence[int]] = {}
        """By link: when each station, by index, was heard last; 0 never."""
        self._said: dict[tuple[int, int], tuple[int, Said]] = {}
        """By (link, station): its last LINKS there, and when it came."""
        self.states: dict[tuple[int, int], State] = {
            (link, station): State.DOWN
            for link in config.links
            for station in range(1, config.stations + 1)
            if station != config.station
        }
        self._whole: dict[int, bool] = dict.fromkeys(config.links, False)
        """Whether the link is up to all members."""
        self._whole_since: dict[int, int] = {}
        self._falls: dict[int, list[int]] = {link: [] for link in config.links}
        self._missed: dict[int, tuple[int, set[int]]] = {}
        """Links that have been lost to members: since when, to which, while it is not known whether these have stopped."""
        self._good: dict[tuple[int, int], int] = {}
        """By (link, station): when it was last heard there and said that it hears this one there; 0 never."""
        self._doubts: dict[int, _Doubt] = {}
        self.wired: dict[int, tuple[int, bool]] = {}
        """Links that are crossed with, or joined to, another one: (other link, whether joined)."""
        self._own_seen: dict[int, int] = {}
        self._used: Use | None = None
        self._hears: dict[int, int] = dict.fromkeys(config.links, 0)
        self._said_at: dict[int, int] = {}
        self._to_say: set[int] = set(config.links)

    # ---- inputs

    def on_heartbeat(self, heartbeat_ns: int) -> None:
        """The cluster's heartbeat is this from now on."""
        self.config = replace(self.config, heartbeat_ns=heartbeat_ns)
        self._heard_ns = int(HEARD_HEARTBEATS * heartbeat_ns)
        self._apart_ns = int(APART_HEARTBEATS * heartbeat_ns)

    def on_links(self, now: int, station: int, link: int, said: Said) -> None:
        """LINKS of a station has come on a link. ``step`` draws the conclusions."""
        if not 1 <= station <= self.config.stations or link not in self.config.links or len(said.frames) != self.config.stations:
            return
        if station == self.config.station:
            return
        self._said[link, station] = now, said
        doubt = self._doubts.get(link)
        if doubt is not None:
            had = doubt.had.setdefault(station, said.frames[self.config.station - 1])
            if said.frames[self.config.station - 1] != had:
                doubt.has.add(station)

    def on_asked(self, link: int) -> None:
        """LINKS is wanted on a link: what has come there has changed."""
        self._to_say.add(link)

    def on_doubt(self, now: int, links: Iterable[int]) -> None:
        """Many frames in a row that went over these links alone had to be sent again."""
        for link in links:
            if link in self.config.links and link not in self._doubts:
                self._doubts[link] = _Doubt(now)
                self._to_say.add(link)

    def step(
        self, now: int, heard: Mapping[int, Sequence[int]], is_open: Collection[int], members: Collection[int]
    ) -> list[Effect]:
        """Judge. heard: by link, when each station (by index) was heard there last; the own one: when own frames came back.
        is_open: links that can send. members: stations that data goes to, this one among them or not.

        Returns effects in order; their number is bounded by links x stations.
        """
        self._heard = dict(heard)
        others = [s for s in members if s != self.config.station]
        effects = self._wiring(now)
        effects += self._judge(now, is_open)
        for link in self.config.links:
            self._weigh(now, link, others)
        use = self._choose(now, is_open, others)
        if use != self._used:
            self._used = use
            effects.append(use)
        return effects + self._speak(now, is_open)

    def deadline_ns(self) -> int:
        """When ``step`` is due at the latest; earlier calls do no harm."""
        due = [self._said_at.get(link, 0) + self.config.heartbeat_ns for link in self.config.links]
        due += [self._said_at.get(link, 0) + REST_NS for link in self._to_say]
        due += [
            self._hold_end(link) for link, whole in self._whole.items() if whole and self._falls[link] and not self._is_used(link)
        ]
        return min(due)

    def hold_until_ns(self, link: int) -> int:
        """Until when data is not spread over a link, although it is up; 0: there is no such time."""
        return self._hold_end(link) if self._whole[link] and self._falls[link] else 0

    @property
    def doubtful(self) -> tuple[int, ...]:
        """Links of which many frames in a row were lost, and nothing has been heard yet."""
        return tuple(sorted(self._doubts))

    @property
    def used(self) -> Use | None:
        """What data is spread over; None: ``step`` has not been called."""
        return self._used

    def said(self, link: int, station: int) -> Said | None:
        """The last LINKS of a station on a link."""
        entry = self._said.get((link, station))
        return entry[1] if entry is not None else None

    # ---- judging

    def _is_fresh(self, now: int, then: int) -> bool:
        return then > 0 and now - then <= self._heard_ns

    def _hears_now(self, now: int, link: int, station: int) -> bool:
        heard = self._heard.get(link, ())
        return station <= len(heard) and self._is_fresh(now, heard[station - 1])

    def _is_told(self, now: int, link: int, station: int) -> bool:
        """Whether the station says, and has said lately, that it hears this one on the link."""
        at, said = self._said.get((link, station), (0, None))
        return said is not None and self._is_fresh(now, at) and said.hears_station(self.config.station)

    def _good_at(self, link: int, station: int) -> int:
        at, said = self._said.get((link, station), (0, None))
        if said is None or not said.hears_station(self.config.station):
            return self._good.get((link, station), 0)
        heard = self._heard.get(link, ())
        return min(at, heard[station - 1]) if station <= len(heard) else 0

    def _state(self, now: int, link: int, station: int) -> State:
        if not self._hears_now(now, link, station):
            return State.DOWN
        return State.UP if self._is_told(now, link, station) else State.ONE_WAY

    def _judge(self, now: int, is_open: Collection[int]) -> list[Effect]:
        effects: list[Effect] = []
        for (link, station), before in self.states.items():
            self._good[link, station] = self._good_at(link, station)
            state = self._state(now, link, station) if link in is_open else State.DOWN
            if state is not before:
                self.states[link, station] = state
                effects.append(Moved(link, station, state, before))
        for link in self.config.links:
            hears = sum(1 << (s - 1) for s in range(1, self.config.stations + 1) if self._hears_other(now, link, s))
            if hears != self._hears[link]:
                self._hears[link] = hears
                self._to_say.add(link)
        return effects

    def _hears_other(self, now: int, link: int, station: int) -> bool:
        return station != self.config.station and self._hears_now(now, link, station)

    def _wiring(self, now: int) -> list[Effect]:
        """Links that are connected with each other, or called otherwise elsewhere."""
        found: dict[int, tuple[int, bool]] = {}
        for (link, _), (at, said) in sorted(self._said.items()):
            if said.number != link and self._is_fresh(now, at):
                found[link] = said.number, False
        for link in self.config.links:
            if self._hears_now(now, link, self.config.station):
                found[link] = next((other for other in self.config.links if other != link), 0), True
        effects: list[Effect] = []
        for link in self.config.links:
            if found.get(link) != self.wired.get(link):
                other, joined = found.get(link, (0, False))
                effects.append(Wired(link, other, joined))
        self.wired = found
        return effects

    def _weigh(self, now: int, link: int, others: Sequence[int]) -> None:
        """Whether the link is up to all members, and since when; whether it has fallen."""
        down = [s for s in others if self.states[link, s] is not State.UP]
        doubt = self._doubts.get(link)
        if doubt is not None and not down and set(others) <= doubt.has:
            del self._doubts[link]
        elif doubt is not None and (down or now - doubt.since > DOUBT_HEARTBEATS * self.config.heartbeat_ns):
            del self._doubts[link]
            if not down:  # it is said to be up, and carries nothing
                self._fall(now, link)
                self._whole_since[link] = now
        whole = bool(others) and not down
        if self._whole[link] and down:
            self._missed[link] = now, set()
        if (missed := self._missed.get(link)) is not None:
            missed[1].update(s for s in down if self._good[link, s])  # a newcomer has not been lost
            if self._has_fallen(link, down) or (whole and missed[1].intersection(others)):
                self._fall(now, link)
                del self._missed[link]
            elif not down:
                del self._missed[link]
        if whole and not self._whole[link]:
            self._whole_since[link] = now
        self._whole[link] = whole

    def _has_fallen(self, link: int, down: Sequence[int]) -> bool:
        """Whether it is the link that fails, not a station that has stopped: a station says so, or was good on another link for
        longer. One that stops was so everywhere until its last LINKS, which are a heartbeat apart at most. A member that is good
        again had not stopped either."""
        for station in down:
            if self.states[link, station] is State.ONE_WAY and self._refuses(link, station):
                return True
            last = self._good[link, station] or self._missed[link][0]
            if any(self._good[other, station] - last > self._apart_ns for other in self.config.links if other != link):
                return True
        return False

    def _refuses(self, link: int, station: int) -> bool:
        """Whether the station says that it does not hear this one on the link, and that it does on another one."""
        said = self.said(link, station)
        if said is None or said.hears_station(self.config.station):
            return False
        return any(self.states[other, station] is State.UP for other in self.config.links if other != link)

    def _fall(self, now: int, link: int) -> None:
        falls = [at for at in self._falls[link] if now - at < FALLS_NS]
        self._falls[link] = [*falls[-15:], now]

    def _hold_end(self, link: int) -> int:
        """When a link that has fallen may carry spread data again, if it stays up."""
        falls = len(self._falls[link])
        hold = min(HOLD_MAX_NS, HOLD_FIRST_NS << (falls - 1)) if falls else 0
        return self._whole_since.get(link, 0) + hold

    def _may_spread(self, now: int, link: int) -> bool:
        return self._whole[link] and link not in self.wired and now >= self._hold_end(link)

    def _is_used(self, link: int) -> bool:
        return self._used is not None and link in self._used.links

    # ---- choosing

    def _choose(self, now: int, is_open: Collection[int], others: Sequence[int]) -> Use:
        everything = Use(Mode.DUPLICATE, tuple(sorted(is_open)))
        if self._doubts or self.config.mode is Mode.DUPLICATE or not others:
            return everything
        good = tuple(link for link in self.config.links if link in is_open and self._may_spread(now, link))
        if self.config.mode is Mode.PASSIVE:
            return self._smallest(now, is_open, others) or everything
        return Use(self.config.mode, good) if len(good) > 1 else everything

    def _smallest(self, now: int, is_open: Collection[int], others: Sequence[int]) -> Use | None:
        """The smallest set of links that reaches all members, of the least priorities; None: there is no such set."""
        held = [link for link in self.config.links if self._falls[link] and now < self._hold_end(link)]

        def cost(links: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...]]:
            return sum(link in held for link in links), len(links), sum(self.config.priority.get(k, 0) for k in links), links

        links = [link for link in self.config.links if link in is_open]
        sets = [c for size in range(1, len(links) + 1) for c in itertools.combinations(links, size)]  # bound: 15
        reaching = [c for c in sets if all(any(self.states[link, s] is State.UP for link in c) for s in others)]
        return Use(Mode.PASSIVE, min(reaching, key=cost)) if reaching else None

    # ---- saying

    def _speak(self, now: int, is_open: Collection[int]) -> list[Effect]:
        effects: list[Effect] = []
        for link in self.config.links:
            last = self._said_at.get(link)
            wait = REST_NS if link in self._to_say else self.config.heartbeat_ns
            if last is not None and now - last < wait:
                continue
            self._said_at[link] = now
            self._to_say.discard(link)
            if link in is_open:
                effects.append(Say(link, self._hears[link]))
        return effects
