"""How large the frames of this station may be: what has been shown to pass, on each link, to each member. Sans-I/O.

What an interface says is an upper bound only: something between may carry less, in one direction or both, and may begin to do so
at any time. PROBEs of several sizes are sent on each link; LINKS of the others says which was the largest that came. A size that
has come at every member is *proven* on the link. Before, and after a hole has been found, the *base* holds.

All sizes here are bytes behind the Ethernet header (what an MTU counts), envelope and tag included. Rules J13 to J16 and J19 of
docs/links.md; deviations from the design are in docs/deviations.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeAlias

from .envelope import PROBE

BASE: Final = 1280
"""Passes wherever IPv6 may (RFC 8200), so that it is believed without a proof."""
SIZES: Final = (9000, 8000, 4000, 1500, 1450, 1400, 1280, 1000, 800, 576)
"""What is tried at first, besides the interface's own: jumbo frames, Ethernet, and what tunnels leave of it."""
STEP: Final = 8
"""The largest size that passes is found to so many bytes."""
MS: Final = 1_000_000
FAR: Final = 1 << 62
WAIT_NS: Final = 60 * MS
"""An answer comes within, or a try counts as lost."""
BURST_REST_NS: Final = 50 * MS
TRY_NS: Final = 100 * MS
"""Between two tries while the largest size is looked for."""
CHECK_REST_NS: Final = 10 * MS
CHECKS: Final = 2
"""Tries, each answered with a smaller size than the one proven, that show a hole: one may be lost by chance."""
SILENT: Final = 4
"""Tries of a size that nobody answers, each twice as long as the one before, until it counts as one that does not pass."""
AGAIN_NS: Final = 10_000 * MS
"""Between two looks at what is proven, and after which a station that has said nothing is not there."""
HOLD_FIRST_NS: Final = 1_000 * MS
HOLD_MAX_NS: Final = 60_000 * MS
FALLS_NS: Final = 600_000 * MS
"""Falls within this time double the hold."""
GRACE_NS: Final = 50 * MS
"""So long a link that a station comes to is not held against the others, before anything is proven there."""
WAKE_REST_NS: Final = 1_000 * MS
"""Between two times that a station of which nothing is known makes this one look."""
ANSWER_REST_NS: Final = 10 * MS
"""Between two answers on a link, with up to 8 stations; with more as many times longer, so that all together load no network."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a machine is made for."""

    station: int
    stations: int
    links: tuple[int, ...]
    """Numbers of the links that this station has."""
    needed: int
    """Of a frame that has room for every PDU that cannot be split."""
    most: int
    """Of the largest frame for which there is a buffer."""
    speaks: bool = True
    """LINKS leaves now and then; otherwise something else sees to that."""


# ---- effects


@dataclass(frozen=True, slots=True)
class Probe:
    """Send a PROBE."""

    link: int
    round: int
    size: int
    answer: bool
    """It is to be answered at once."""

    def body(self) -> bytes:
        """What the frame's body begins with."""
        return PROBE.struct.pack(self.link, self.answer, self.round, self.size, 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """Send LINKS on a link, with the rounds and largest sizes of PROBEs that have come there."""

    link: int


class Why(StrEnum):
    """What sets the limit."""

    ALONE = "alone"
    """There is no other member."""
    INTERFACE = "interface"
    """Everything that the interface, or a station's, carries passes."""
    PROVEN = "proven"
    """Less passes than the interfaces say."""
    UNPROVEN = "unproven"
    """Nothing has been heard yet of what passes."""
    HOLD = "hold"
    """More passes again, but a hole has been found not long ago."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Frames are at most ``size``; ``base`` is what is believed in any case. link, station: for which way, 0: for none."""

    size: int
    base: int
    why: Why
    link: int = 0
    station: int = 0


@dataclass(frozen=True, slots=True)
class Hole:
    """Frames above the base are lost on a link to a station (0: refused by the own interface): a warning."""

    link: int
    station: int
    size: int


Effect: TypeAlias = Probe | Answer | Limit | Hole


class _Kind(StrEnum):
    BURST = "burst"
    """All sizes: what passes?"""
    TRY = "try"
    """One size, on the way to the largest that passes."""
    CHECK = "check"
    """Does the present size still pass?"""
    SLOW = "slow"
    """The same without haste, and does the next one?"""


@dataclass
class Way:
    """One link."""

    number: int
    round: int
    """Of the last try."""
    mtu: int = 0
    """Of the interface, as last seen; 0: never."""
    is_open: bool = False
    proven: dict[int, int] = field(default_factory=dict)
    """By station: the largest size that it has had."""
    heard: dict[int, int] = field(default_factory=dict)
    """By station: when it was last heard here,"""
    since: dict[int, int] = field(default_factory=dict)
    """and since when,"""
    woken: dict[int, int] = field(default_factory=dict)
    """and when it last made this station look."""
    kind: _Kind = _Kind.BURST
    sizes: tuple[int, ...] = ()
    """Of the try, the largest first; empty: there was none."""
    at: int = 0
    is_slow: bool = False
    """It was a slow one."""
    judged: bool = True
    answers: dict[int, int] = field(default_factory=dict)
    due: int = 0
    """When the next try is."""
    burst_at: int = 0
    burst_wait: int = TRY_NS
    fails: int = 0
    """Tries of the present size in a row that came to less,"""
    silent: int = 0
    """and those that brought no answer."""
    trying: int = 0
    high: int = 0
    """The smallest size that does not pass, as far as is known; 0: none."""
    asked: bool = False
    answered_at: int = 0

    @property
    def is_bursting(self) -> bool:
        return self.kind is _Kind.BURST and not self.judged

    def begin(self, at: int) -> None:
        """Find out from the beginning, not before this time."""
        self.kind, self.judged, self.fails, self.due = _Kind.BURST, True, 0, at


class Sizes:
    """The frame sizes of one station. Times are monotonic nanoseconds; all inputs are total."""

    def __init__(self, config: Config, below: Callable[[int], int]) -> None:
        """below: draws a number below another one, for the first number of rounds, and to spread tries over time."""
        self.config = config
        self._below = below
        self.ways = {link: Way(link, 1 + below(0xFFFF)) for link in config.links}
        self.limit = Limit(BASE, BASE, Why.UNPROVEN)
        self._told = False
        self._members: frozenset[int] = frozenset()
        self.ceiling = config.most
        """The largest frame that all members say they can receive, as last told."""
        self._falls: list[int] = []
        self._hold_until = 0
        self._check_at = 0
        self._suspected = False
        self._holes: list[Hole] = []
        self._answer_rest = _answer_rest(config.stations)

    # ---- inputs

    def on_stations(self, stations: int, needed: int) -> None:
        """Numbers of stations are up to this now, and frames need so much. What is known of stations that are left stays."""
        self.config = replace(self.config, stations=stations, needed=needed)
        self._answer_rest = _answer_rest(stations)
        for way in self.ways.values():
            for rows in (way.proven, way.heard, way.since, way.woken, way.answers):
                for station in [k for k in rows if k > stations]:
                    del rows[station]

    def on_interface(self, now: int, link: int, mtu: int) -> None:
        """A link has been opened on an interface of this MTU; 0: it is closed, and keeps what it was known for."""
        way = self.ways[link]
        way.is_open = mtu > 0
        if not mtu:
            return
        way.mtu = min(mtu, self.config.most)
        way.proven = {station: min(proven, way.mtu) for station, proven in way.proven.items()}
        way.burst_wait = TRY_NS
        way.begin(now)

    def on_probe(self, now: int, link: int, station: int) -> None:
        """A PROBE of a station has come that wants an answer."""
        if link in self.ways and self._is_other(station):
            self.ways[link].asked = True
            self._note(self.ways[link], now, station)

    def on_said(self, now: int, link: int, station: int, round: int, largest: int) -> None:
        """LINKS of a station: the last round of this station's PROBEs that it has heard on the link, and the largest of them."""
        if link not in self.ways or not self._is_other(station):
            return
        way = self.ways[link]
        if self._is_present(way, round) and largest in way.sizes:
            way.answers[station] = max(largest, way.answers.get(station, 0))
            way.proven[station] = max(largest, way.proven.get(station, 0))
        self._note(way, now, station)

    def on_large(self, now: int, links: Iterable[int]) -> None:
        """The interfaces of these links have refused a frame above the base that they should carry."""
        for link in links:
            if link in self.ways:
                self._fall(self.ways[link], now, list(self.ways[link].proven), self.ways[link].mtu, 0)

    def on_again(self) -> None:
        """Frames above the base have been asked for again after they had been sent again: are they too large for something?"""
        self._suspected = True

    def step(self, now: int, members: Collection[int], ceiling: int) -> list[Effect]:
        """Judge. members: stations that data goes to, those about to join included, this one or not; empty: no instance.
        ceiling: the largest frame that all of them say they can receive. Returns effects in order; their number is bounded by
        links x sizes."""
        self._follow_members(now, frozenset(s for s in members if self._is_other(s)))
        if ceiling != self.ceiling:
            self.ceiling = ceiling
            for way in self.ways.values():
                if not way.is_bursting:
                    way.begin(max(now, way.burst_at + BURST_REST_NS))
        effects: list[Effect] = []
        for way in self.ways.values():
            if way.is_open and self.config.stations > 1:
                effects += self._look(way, now)
                effects += self._answer(way, now)
        self._suspected = False
        effects += self._holes
        self._holes = []
        limit = self._decide(now)
        if limit != self.limit or not self._told:
            self.limit, self._told = limit, True
            effects.append(limit)
        return effects

    def deadline_ns(self) -> int:
        """When ``step`` is due at the latest; earlier calls do no harm."""
        due = [self._hold_until] if self.limit.why is Why.HOLD else []
        for way in self.ways.values():
            if way.is_open and self.config.stations > 1:
                due.append(way.due if way.judged else way.at + WAIT_NS)
                if way.asked or self.config.speaks:
                    due.append(way.answered_at + (self._answer_rest if way.asked else AGAIN_NS))
        return min(due, default=FAR)

    @property
    def is_settled(self) -> bool:
        """Nothing is being looked for: the limit is as good as it will be while nothing changes. With no other member there is
        nobody who could answer."""
        if not self._members:
            return True
        return self.limit.why is not Why.HOLD and all(w.kind is _Kind.SLOW for w in self.ways.values() if w.is_open)

    @property
    def base(self) -> int:
        """What is believed without a proof."""
        return min([max(BASE, self.config.needed), *(way.mtu for way in self.ways.values() if way.mtu)])

    # ---- who is there

    def _is_other(self, station: int) -> bool:
        return 1 <= station <= self.config.stations and station != self.config.station

    def _is_present(self, way: Way, round: int) -> bool:
        """Whether it is an answer to the last try."""
        return round == way.round

    def _note(self, way: Way, now: int, station: int) -> None:
        """A station is there. If it is not known what passes to it: find out."""
        if now - way.heard.get(station, -FAR) > 2 * AGAIN_NS:
            way.since[station] = now
        way.heard[station] = now
        if station not in way.proven and not way.is_bursting and now - way.woken.get(station, -FAR) > WAKE_REST_NS:
            way.woken[station] = now
            way.burst_wait = TRY_NS
            spread = self._below(max(1, self.config.stations * MS // 4))
            way.begin(max(now + spread, way.burst_at + BURST_REST_NS))

    def _follow_members(self, now: int, members: frozenset[int]) -> None:
        if members == self._members:
            return
        gone = self._members - members if members else ()
        self._members = members
        for way in self.ways.values():
            for station in gone:  # it may come back on another way
                way.proven.pop(station, None)
            if any(station not in way.proven for station in members) and not way.is_bursting:
                way.burst_wait = TRY_NS
                way.begin(max(now, way.burst_at + BURST_REST_NS))

    def _targets(self, way: Way, now: int) -> frozenset[int]:
        """Whose answers count: members that are heard on the link; without an instance, all that are heard."""
        there = frozenset(station for station, at in way.heard.items() if now - at < 2 * AGAIN_NS)
        return there & self._members if self._members else there

    # ---- trying

    def _look(self, way: Way, now: int) -> list[Effect]:
        if not way.judged and (now >= way.at + WAIT_NS or self._is_answered(way, now)):
            way.judged = True
            self._judge(way, now)
        size = self._size(way, now)
        if self._suspected and now >= self._check_at and not way.is_bursting and size > self.base:
            self._check(way, now, 0)
        if way.kind is _Kind.SLOW and 0 < way.high <= size < self._top(way):
            way.begin(max(now, way.burst_at + BURST_REST_NS))  # what did not pass does now: and more?
        if not way.judged or now < way.due:
            return []
        if way.kind is _Kind.SLOW and way.is_slow and any(way.answers.get(s, 0) < size for s in self._targets(way, now)):
            self._check(way, now, 0)
        return self._send(way, now, size)

    def _check(self, way: Way, now: int, fails: int) -> None:
        if way.kind is not _Kind.CHECK:
            way.kind, way.judged, way.due, way.fails, way.silent = _Kind.CHECK, True, now, fails, 0

    def _is_answered(self, way: Way, now: int) -> bool:
        """Nothing is gained by waiting. A check is over with the first bad answer: what is larger was sent before what came."""
        answers = [way.answers.get(station, 0) for station in self._targets(way, now)]
        if way.kind is _Kind.CHECK and any(0 < answer < way.sizes[0] for answer in answers):
            return True
        return bool(answers) and min(answers) >= way.sizes[0]

    def _top(self, way: Way) -> int:
        return min(way.mtu, self.ceiling)

    def _size(self, way: Way, now: int) -> int:
        """What is proven to all that count; 0: not to each."""
        return min((way.proven.get(station, 0) for station in self._targets(way, now)), default=0)

    def _sizes(self, way: Way, size: int) -> set[int]:
        top, below = self._top(way), self.base if size > self.base else self.config.needed
        match way.kind:
            case _Kind.BURST:
                return {top, *(s for s in SIZES if self.config.needed <= s < top)}
            case _Kind.TRY:
                return {way.trying, below}
            case _Kind.CHECK:
                return {size, below, self.config.needed}
            case _Kind.SLOW:
                return {size, below, min(way.high, top)}

    def _send(self, way: Way, now: int, size: int) -> list[Effect]:
        way.sizes = tuple(sorted(self._sizes(way, size) - {0}, reverse=True))
        way.round = way.round % 0xFFFF + 1
        way.at, way.answers = now, {}
        slow = way.is_slow = way.judged = way.kind is _Kind.SLOW
        way.due = now + (AGAIN_NS + self._below(AGAIN_NS // 10) if slow else TRY_NS)
        if way.kind is _Kind.BURST:
            way.burst_at = now
        return [Probe(way.number, way.round, s, not slow) for s in way.sizes]

    # ---- judging a try

    def _judge(self, way: Way, now: int) -> None:
        targets = self._targets(way, now)
        silent = [s for s in targets if s not in way.answers]
        less = [s for s in targets if 0 < way.answers.get(s, 0) < min(self._size(way, now), way.sizes[0])]
        match way.kind:
            case _Kind.BURST:
                self._judge_burst(way, now, bool(silent or not targets), less)
            case _Kind.TRY:
                self._judge_try(way, now, self._size(way, now), bool(silent))
            case _Kind.CHECK:
                self._judge_check(way, now, silent, less)

    def _judge_burst(self, way: Way, now: int, silent: bool, less: list[int]) -> None:
        size = self._size(way, now)
        if silent:
            way.due = way.at + way.burst_wait
            way.burst_wait = min(2 * way.burst_wait, AGAIN_NS)
        elif less:  # less than once: by chance?
            self._check(way, now, 1)
        elif size >= way.sizes[0]:
            way.high = 0
            self._rest(way, now)
        else:
            way.proven.update(way.answers)  # more than counts may be less than it was
            way.high = way.trying = min(s for s in way.sizes if s > size)
            way.kind, way.fails, way.silent = _Kind.TRY, 1, 0

    def _judge_try(self, way: Way, now: int, size: int, silent: bool) -> None:
        if size >= way.high:  # what did not pass does now
            way.begin(way.due)
            return
        if silent and size < way.trying and way.silent < SILENT:  # that says nothing: it may be late
            way.silent += 1
            way.due = way.at + (TRY_NS << way.silent)
            return
        way.silent = 0
        way.fails = 0 if size >= way.trying else way.fails + 1
        if way.fails >= 2:
            way.high, way.fails = way.trying, 0
        if way.high - size <= STEP:
            self._rest(way, now)
        elif not way.fails:
            way.trying = max((size + way.high) // 2 // STEP * STEP, size + 1)

    def _judge_check(self, way: Way, now: int, silent: list[int], less: list[int]) -> None:
        way.due = now
        if less:
            way.fails += 1
            if way.fails >= CHECKS:
                self._fall(way, now, less, way.sizes[0], less[0])
        elif silent and way.silent < CHECKS:
            way.silent += 1
        elif way.sizes[0] < self._top(way) and not 0 < way.high - way.sizes[0] <= STEP:  # more may pass, and was being looked for
            way.begin(max(now, way.burst_at + TRY_NS))
        else:
            self._rest(way, now)

    def _rest(self, way: Way, now: int) -> None:
        way.kind, way.due, way.fails, way.is_slow = _Kind.SLOW, now + AGAIN_NS, 0, False

    def _fall(self, way: Way, now: int, stations: Iterable[int], size: int, station: int) -> None:
        """A hole: to these stations a size that was proven passes no more."""
        for s in stations:
            lower = self.base if way.proven.get(s, 0) > self.base else way.answers.get(s, self.config.needed)
            way.proven[s] = min(way.proven.get(s, lower), lower)
        self._holes.append(Hole(way.number, station, size))
        self._falls = [*(at for at in self._falls[-7:] if now - at < FALLS_NS), now]
        self._hold_until = now + min(HOLD_MAX_NS, HOLD_FIRST_NS << (len(self._falls) - 1))
        way.burst_wait = TRY_NS
        way.begin(now)

    # ---- answering

    def _answer(self, way: Way, now: int) -> list[Effect]:
        wait = self._answer_rest if way.asked else AGAIN_NS
        if not (way.asked or self.config.speaks) or now < way.answered_at + wait:
            return []
        way.asked, way.answered_at = False, now
        return [Answer(way.number)]

    # ---- the limit

    def _decide(self, now: int) -> Limit:
        used = [way for way in self.ways.values() if way.mtu]
        base = self.base
        limit = Limit(min((way.mtu for way in used), default=base), base, Why.ALONE)
        for way in used:
            for station in sorted(self._members):
                if self._counts(way, now, station):
                    proven = way.proven.get(station, 0)
                    size = min(proven or base, way.mtu)  # what they can receive the core knows, and sooner
                    if size < limit.size or limit.why is Why.ALONE:
                        why = Why.INTERFACE if size >= self._top(way) else Why.PROVEN if proven else Why.UNPROVEN
                        limit = Limit(size, base, why, way.number, station)
        if self._members and self._told and limit.size > self.limit.size and now < self._hold_until:
            return replace(self.limit, why=Why.HOLD, base=base)
        return replace(limit, size=max(limit.size, min(base, self.config.needed)))

    def _counts(self, way: Way, now: int, station: int) -> bool:
        """Whether a link sets a limit to frames for a station: also while it is down, so that its loss changes none; but not when
        the station has never been there, or has just come there and is reached by another link."""
        if station in way.proven or not any(station in other.proven for other in self.ways.values()):
            return True
        return station in way.heard and now - way.since[station] >= GRACE_NS


def _answer_rest(stations: int) -> int:
    return ANSWER_REST_NS * max(1, -(-stations // 8))
