"""Sessions: which random number each station seals its frames under, and how the others know that it is alive now.

A recorded frame has a right tag for ever. It is worthless because frames count only under a *session* that has been proven to
this life of this daemon: the station sent a HELLO for it that *echoes* a challenge which this daemon drew within the last
CHALLENGE_NS. Only who has the key and is alive now can make such a HELLO. A session is random, made anew by each life, and never
stored: whatever is restored, copied or lost, no session comes twice.

``Trust`` is one station's part, without I/O: time, wall clock and received HELLOs come in, effects go out, random bytes come from
the function that its constructor takes. Tags are made and checked by the driver; only a HELLO whose tag is right reaches this
module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, TypeAlias

from .envelope import SESSION_BYTES, Echo, Hello
from .timers import Timers

MS: Final = 1_000_000
CHALLENGE_NS: Final = 2_000 * MS
"""An echo of an older challenge proves nothing. A session that has ended is not proven again for so long: the HELLO that would do
it may be a recorded one, and its window would begin below numbers that were seen."""
SILENT_NS: Final = 2_000 * MS
"""The former session of a station is read until nothing has come under it for so long."""
HELLO_GAP_NS: Final = 10 * MS
"""Between two HELLOs, whatever arrives: all that an attacker can cause by sending old ones."""
JITTER_NS: Final = 2 * MS
RETRY_FIRST_NS: Final = 20 * MS
RETRY_MAX_NS: Final = 640 * MS
ANSWER_MAX_NS: Final = 160 * MS
"""Between two answers to HELLOs of one session that return no good challenge, at most: the first one is answered at once, so that
who is alive returns one, and the next after RETRY_FIRST_NS, doubled each time. Below the least time after which a station that is
not read is suspected."""
ANSWERED_MAX: Final = 16
"""Sessions of a station that are told apart in this; all others count as one."""
ROUND_NS: Final = 10_000 * MS
"""Between two HELLOs of a station that everybody believes."""
HEARD_NS: Final = 2 * ROUND_NS
"""A station whose last fresh HELLO is older does not count where a key is chosen."""
SWITCH_NS: Final = 1_000 * MS
"""A session that has been announced is used after this, also if somebody has not proven it."""
SESSION_AGE_NS: Final = 24 * 3600 * 1_000 * MS
SESSION_FRAMES: Final = 2**32
OWN_MAX: Final = 64
"""Own sessions remembered: a HELLO of one of them is an own one that came back."""
CHALLENGES_MAX: Final = CHALLENGE_NS // HELLO_GAP_NS + 1


class Name(Enum):
    """Deadlines of this module."""

    HELLO = auto()
    SWITCH = auto()
    AGE = auto()


@dataclass(frozen=True, slots=True)
class Config:
    """What a station says of itself. Numbers as in ``envelope.HELLO``."""

    station: int
    stations: int
    suite: int
    boot: int
    fingerprint: int
    keys: tuple[int, ...]
    """Ids of the keys that it reads at its start, the newest one last."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a HELLO says besides, at the time of its sending."""

    clock: int = 0
    """Wall clock, ns."""
    next: int = 1
    """Number of the next frame under the session that is in use."""
    incarnation: int = 0
    instance: int = 0
    age_ms: int = 0


@dataclass(frozen=True, slots=True)
class SendHello:
    """Send a HELLO now, on every link, each of its parts with a tag."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class SealUnder:
    """Seal under this session from the next frame on, from number 1."""

    session: bytes
    key: int
    """Id of the key that the session's is made of."""


@dataclass(frozen=True, slots=True)
class ReadSession:
    """A session has been proven: open frames that this station seals under it, from this number on."""

    tx: int
    session: bytes
    first: int
    key: int


@dataclass(frozen=True, slots=True)
class ForgetSession:
    """Read nothing of this session any more."""

    tx: int
    session: bytes


@dataclass(frozen=True, slots=True)
class Twin:
    """Another daemon that has the key and is alive now uses this station's number."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Unlike:
    """A station has the key but seals otherwise: nothing of it is read."""

    tx: int
    suite: int


@dataclass(frozen=True, slots=True)
class Unread:
    """A station is alive and seals under a key that this one does not have: nothing of it is read."""

    tx: int
    key: int


@dataclass(frozen=True, slots=True)
class Behind:
    """A station is alive and does not have the key that this one seals with: nothing of it is read."""

    tx: int
    key: int


Effect: TypeAlias = SendHello | SealUnder | ReadSession | ForgetSession | Twin | Unlike | Unread | Behind


@dataclass(slots=True)
class Known:
    """A session that is proven here."""

    session: bytes
    key: int
    returned_ns: int
    """When the challenge was drawn that a HELLO for it has returned, the latest of them: which of two sessions is the newer one,
    in whatever order their HELLOs arrive."""


@dataclass(slots=True)
class Partner:
    """What this station knows of another one; of its own number, about a daemon that uses it as well."""

    some: int = 0
    """Challenge of one of the HELLOs heard since this station has spoken, each with the same chance: whoever sends one recorded
    HELLO behind each new one hides half of them, not all."""
    heard: int = 0
    """HELLOs since this station has spoken."""
    latest: int = 0
    """Challenge of the HELLO with the latest clock: recorded ones cannot crowd it out of ``some`` and here."""
    latest_clock: int = -1
    fresh: int = 0
    """Challenge of the last HELLO that was fresh itself. Clocks go back, and a recorded HELLO from before has the latest one for
    ever; this it cannot replace."""
    fresh_ns: int = -CHALLENGE_NS
    sessions: list[Known] = field(default_factory=list)
    """That are proven here, the newest one first; at most two."""
    answers: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """By first bytes of a session whose HELLOs are not fresh: when it may be answered again, and for how long it waits then."""
    ended: list[tuple[bytes, int]] = field(default_factory=list)
    """Sessions that are read no more, and since when; of the last CHALLENGE_NS."""
    has_proven: bytes = b""
    """First bytes of this station's session that is proven there."""
    waits: bool = False
    """It has been heard, and has not said that this station's session is proven there."""
    unread_ns: int = 0
    """A frame of no known session brings no HELLO before this."""
    is_to_hear: bool = False
    """It is to have a fresh HELLO of this station, which has other keys since the last one."""
    keys: tuple[int, ...] = ()
    """Those that it reads, by its last fresh HELLO,"""
    sends: int = 0
    """the one it seals with,"""
    is_inside: bool = False
    """and whether it is in an instance."""

    def has_ended(self, session: bytes, now: int) -> bool:
        self.ended = [(gone, at) for gone, at in self.ended if now - at <= CHALLENGE_NS]
        return any(gone == session for gone, _ in self.ended)

    def find(self, session: bytes) -> Known | None:
        """The one that frames would name as they name this one."""
        return next((known for known in self.sessions if known.session[:4] == session[:4]), None)

    def answer_at(self, now: int, session: bytes) -> int:
        """When a HELLO of this session, which is not fresh, is to be answered: a recorded one may come again and again."""
        self.answers = {known: (at, gap) for known, (at, gap) in self.answers.items() if now - at <= ROUND_NS}
        which = session[:4] if session[:4] in self.answers or len(self.answers) < ANSWERED_MAX else b""
        at, gap = self.answers.get(which, (now, RETRY_FIRST_NS))
        if now >= at:
            self.answers[which] = now + gap, min(2 * gap, ANSWER_MAX_NS)
        return max(now, at)

    def echo(self, now: int) -> Echo:
        """Proven is the newest session. Of the challenges that of a fresh HELLO comes first, while it can still prove something;
        then that of the latest clock."""
        proven = int.from_bytes(self.sessions[0].session[:4], "big") if self.sessions else 0
        fresh = self.fresh if now - self.fresh_ns <= CHALLENGE_NS else 0
        first, second, *_ = [*dict.fromkeys(c for c in (fresh, self.latest, self.some) if c), 0, 0]
        return Echo(proven, first, second)


class Trust:
    """The sessions of one station. Each input returns effects, to be applied in their order; none raises for what it receives."""

    def __init__(self, config: Config, *, entropy: Callable[[int], bytes]) -> None:
        """entropy: so many random bytes, of the kernel's in a daemon."""
        self.config = config
        self._entropy = entropy
        self._timers = Timers(Name)
        self._partners = {station: Partner() for station in range(1, config.stations + 1)}
        self._challenges: dict[int, int] = {}
        """Those of the last CHALLENGE_NS, in their order, and when each was drawn."""
        self._said_ns = -HELLO_GAP_NS
        self._young_ns = 0
        """Until then the present session, or the announced one, is new: somebody may not have heard of it, and not be heard."""
        self._retry_ns = RETRY_FIRST_NS
        self.members: frozenset[int] = frozenset()
        """Stations whose proof a new session waits for."""
        self.session = b""
        """That is sealed under."""
        self.announced: bytes | None = None
        """That will be, when the members have proven it."""
        self._own: deque[bytes] = deque(maxlen=OWN_MAX)
        self.keys = config.keys
        """Ids of the keys that this station reads, the newest one last; ``set_keys`` changes them."""
        self.key = config.keys[-1]
        """That it seals with: that of ``session`` or, where one is announced, of that one."""
        self.wanted = self.key
        """That it is to seal with: another one while a session under ``key`` is announced and not used yet."""
        self._session_key = self.key
        """Of ``session``."""

    # ---- inputs

    def start(self, now: int, facts: Facts) -> list[Effect]:
        """Begin with a session of this life; nobody is believed."""
        self.session = self._new_session(now)
        self._timers.set(Name.AGE, now + SESSION_AGE_NS)
        return [SealUnder(self.session, self.key), *self._say(now, facts)]

    def on_hello(self, now: int, facts: Facts, hello: Hello) -> list[Effect]:
        """A HELLO with a right tag. It may be years old."""
        own = self.config.station
        if not 1 <= hello.tx <= self.config.stations or hello.stations != self.config.stations:
            return []
        if hello.tx == own and hello.session in self._own:
            return []  # an own one that came back
        said = hello.said_to(own)
        if said is None:
            return []
        if hello.suite != self.config.suite:
            return [Unlike(hello.tx, hello.suite)]
        partner = self._partners[hello.tx]
        returned_ns = self._returned_ns(now, said)
        self._hear(now, partner, hello, returned_ns)
        effects: list[Effect] = []
        if returned_ns is None:
            partner.waits = partner.waits or partner.has_proven != self._saying[:4]
            self._hello_at(partner.answer_at(now, hello.session) + self._random() % JITTER_NS)
        elif hello.tx == own:
            effects.append(Twin(hello))
        else:
            effects += self._prove(now, partner, hello, returned_ns)
            self._note(now, partner, hello, said)
            if not facts.instance:
                self._choose(now)
        if returned_ns is not None:
            partner.answers.pop(hello.session[:4], None)
            if effects or partner.waits or partner.is_to_hear:
                partner.is_to_hear = False
                self._hello_at(now + self._random() % JITTER_NS)
        return effects

    def on_unread(self, now: int, tx: int) -> None:
        """A frame has come in the name of a station, under a session that is not proven here. If the station is alive, one of
        the two has missed what the other has said: it is to hear a HELLO, which it answers. Once in RETRY_MAX_NS, whatever is
        sent again."""
        partner = self._partners.get(tx)
        if partner is None or tx == self.config.station or now < partner.unread_ns:
            return
        partner.unread_ns = now + RETRY_MAX_NS
        self._hello_at(now + self._random() % JITTER_NS)

    def on_timeout(self, now: int, facts: Facts) -> list[Effect]:
        """Early calls are harmless."""
        effects = self._switch(now) if self._timers.due(Name.SWITCH, now) else []
        if effects:
            facts = replace(facts, next=1)
        if self._timers.due(Name.AGE, now):
            effects += self.renew(now)
        if self._timers.due(Name.HELLO, now):
            effects += self._say(now, facts)
        return effects

    def on_silent(self, now: int, tx: int, session: bytes) -> list[Effect]:
        """Nothing has come under this session for SILENT_NS: if it is a former one, it has ended."""
        partner = self._partners[tx]
        if all(known.session != session for known in partner.sessions[1:]):
            return []
        return self._end(now, tx, session)

    def on_link(self, now: int) -> None:
        """A link has come up: its stations are to hear a HELLO soon."""
        if self.session:
            self._hello_at(now)

    def renew(self, now: int) -> list[Effect]:
        """Take another session, in peace: after SESSION_FRAMES frames, or SESSION_AGE_NS (by itself). It is announced, and used
        when all members have proven it."""
        if self.announced is None:
            self.announced = self._new_session(now)
            self._timers.set(Name.SWITCH, now + SWITCH_NS)
            self._hello_at(now)
        self._timers.set(Name.AGE, now + SESSION_AGE_NS)
        return []

    def restart(self, now: int, facts: Facts) -> list[Effect]:
        """This process did not run for a while: a copy of it may be running elsewhere, and no frame more may leave under the
        session that both have."""
        self.announced = None
        self._timers.stop(Name.SWITCH)
        self._timers.set(Name.AGE, now + SESSION_AGE_NS)
        self.key = self.wanted
        self.session, self._session_key = self._new_session(now), self.key
        self._hello_at(now)
        return [SealUnder(self.session, self.key), *self.on_timeout(now, replace(facts, next=1))]

    # ---- keys

    def set_keys(self, now: int, keys: tuple[int, ...]) -> list[Effect]:
        """Read these from now on, at least one; sessions of others under other keys end. If what is to be sealed with is not
        among them, the newest one is."""
        self.keys = keys
        self.wanted = self.wanted if self.wanted in keys else keys[-1]
        if self.key not in keys:
            self.key, self.announced = self.wanted, None
            self.renew(now)
        for partner in self._partners.values():
            partner.is_to_hear = bool(partner.keys)
        self._retry_ns = RETRY_FIRST_NS
        self._hello_at(now)
        gone = [(tx, k.session) for tx, partner in self._partners.items() for k in partner.sessions if k.key not in keys]
        return [effect for tx, session in gone for effect in self._end(now, tx, session)]

    def seal_with(self, now: int, key: int) -> list[Effect]:
        """Take a session under this key, one of ``keys``: announced, and used when all members have proven it, or in SWITCH_NS.
        One session at a time is announced, for two are read of a station: that in use is the other one. No effects: HELLO
        follows."""
        self.wanted = key
        if key != self.key and self.announced is None:
            self.key = key
            self.renew(now)
        return []

    def reads(self, station: int) -> tuple[int, ...]:
        """The keys that a station reads, as it has said itself; empty: it has said nothing."""
        return self._partners[station].keys

    def sends(self, station: int) -> int:
        """The key that a station seals with, 0: it has said nothing."""
        return self._partners[station].sends

    def uses(self, station: int) -> frozenset[int]:
        """The keys under which frames of a station may still come: of its sessions that are read, and of the announced one."""
        if station == self.config.station:
            return frozenset((self.key, self._session_key, self.wanted))
        partner = self._partners[station]
        return frozenset((partner.sends, *(known.key for known in partner.sessions)))

    def _choose(self, now: int) -> None:
        """In no instance: the key of the members of one that is heard, else the newest that all who are heard read."""
        heard = [p for p in self._partners.values() if now - p.fresh_ns <= HEARD_NS and p.keys]
        inside = [p.sends for p in heard if p.is_inside]
        common = [key for key in self.keys if all(key in p.keys for p in heard)]
        wanted = [key for key in self.keys if key in inside] or common
        if wanted:
            self.seal_with(now, wanted[-1])

    # ---- reads

    def deadline_ns(self) -> int:
        return self._timers.next_ns()

    def session_of(self, station: int) -> bytes | None:
        """The station's present session, if one is proven here."""
        sessions = self._partners[station].sessions
        return sessions[0].session if sessions else None

    def former(self) -> list[tuple[int, bytes]]:
        """Sessions that are read only until they fall silent."""
        return [(tx, known.session) for tx, partner in self._partners.items() for known in partner.sessions[1:]]

    def is_proven_at(self, station: int) -> bool:
        """Whether the station has said that it reads this one's session."""
        return self._partners[station].has_proven == self._saying[:4]

    # ---- sessions

    @property
    def _saying(self) -> bytes:
        """The session that HELLO is about."""
        return self.announced if self.announced is not None else self.session

    def _new_session(self, now: int) -> bytes:
        """Random, and its first bytes unlike those of the others of this life: by them frames name it. 0 is no session."""
        while True:
            session = self._entropy(SESSION_BYTES)
            if session[:4] != bytes(4) and all(session[:4] != other[:4] for other in self._own):
                break
        self._own.append(session)
        self._retry_ns = RETRY_FIRST_NS
        self._young_ns = now + ROUND_NS
        for partner in self._partners.values():
            partner.waits = partner.waits or partner.has_proven != b""
            partner.has_proven = b""
        return session

    def _random(self) -> int:
        return int.from_bytes(self._entropy(4), "big")

    def _returned_ns(self, now: int, said: Echo) -> int | None:
        """When the challenge was drawn that it returns, if this life has drawn it lately: then it is no recorded one."""
        drawn = [at for at in (self._challenges.get(said.echo), self._challenges.get(said.other)) if at is not None]
        return max(drawn) if drawn and now - max(drawn) <= CHALLENGE_NS else None

    def _hear(self, now: int, partner: Partner, hello: Hello, returned_ns: int | None) -> None:
        """Keep its challenge, to be returned."""
        partner.heard += 1
        if self._random() % partner.heard == 0:
            partner.some = hello.challenge
        if returned_ns is not None:
            partner.fresh, partner.fresh_ns = hello.challenge, now
        if returned_ns is not None or hello.clock > partner.latest_clock:
            partner.latest, partner.latest_clock = hello.challenge, hello.clock

    def _prove(self, now: int, partner: Partner, hello: Hello, returned_ns: int) -> list[Effect]:
        known = partner.find(hello.session)
        if known is not None:  # it is read already, and its window stays where it is
            known.returned_ns = max(known.returned_ns, returned_ns)
            partner.sessions.sort(key=lambda k: -k.returned_ns)
            return []
        if partner.has_ended(hello.session, now) or (partner.sessions and returned_ns < partner.sessions[0].returned_ns):
            return []  # held back on its way: the station has taken another session since
        if (key := hello.key) not in self.keys:
            return [Unread(hello.tx, key)]
        if self.key not in hello.keys:  # it would be heard and hear nothing
            return [Behind(hello.tx, self.key)]
        effects = [effect for gone in partner.sessions[1:] for effect in self._end(now, hello.tx, gone.session)]
        partner.sessions.insert(0, Known(hello.session, key, returned_ns))
        return [*effects, ReadSession(hello.tx, hello.session, max(1, hello.next), key)]

    def _end(self, now: int, tx: int, session: bytes) -> list[Effect]:
        partner = self._partners[tx]
        partner.sessions = [known for known in partner.sessions if known.session != session]
        partner.ended.append((session, now))
        return [ForgetSession(tx, session)]

    def _switch(self, now: int) -> list[Effect]:
        self._timers.stop(Name.SWITCH)
        if self.announced is None:
            return []
        self.session, self.announced, self._session_key = self.announced, None, self.key
        used = SealUnder(self.session, self.key)
        self.seal_with(now, self.wanted)
        return [used]

    # ---- HELLO

    def _note(self, now: int, partner: Partner, hello: Hello, said: Echo) -> None:
        """Whether the station reads what is sealed here, as a fresh HELLO says; the last member that had to ends the wait of
        a new session."""
        partner.keys, partner.sends, partner.is_inside = hello.keys, hello.key, hello.instance > 0
        known = partner.find(hello.session)
        if known is not None:
            partner.has_proven = said.proven.to_bytes(4, "big") if said.proven else b""
        believed = known is not None and partner.has_proven == self._saying[:4]
        if not believed and not partner.waits:
            self._retry_ns = RETRY_FIRST_NS
        partner.waits = not believed
        if self.announced is not None and all(self.is_proven_at(s) for s in self.members if s != self.config.station):
            self._timers.set(Name.SWITCH, now)

    def _hello_at(self, at: int) -> None:
        self._timers.set_earlier(Name.HELLO, max(at, self._said_ns + HELLO_GAP_NS))

    def _say(self, now: int, facts: Facts) -> list[Effect]:
        challenge = int.from_bytes(self._entropy(8), "big") | 1  # 0 is none
        self._challenges[challenge] = now
        if len(self._challenges) > CHALLENGES_MAX:
            del self._challenges[next(iter(self._challenges))]
        self._said_ns = now
        waits = any(partner.waits or partner.is_to_hear for partner in self._partners.values())
        others = (s for s in self._partners if s != self.config.station)
        waits = waits or (now < self._young_ns and not all(self.is_proven_at(s) for s in others))
        self._timers.set(Name.HELLO, now + (self._retry_ns if waits or not self._is_known() else ROUND_NS))
        self._retry_ns = min(2 * self._retry_ns, RETRY_MAX_NS)
        c = self.config
        hello = Hello(
            tx=c.station,
            suite=c.suite,
            session=self._saying,
            challenge=challenge,
            clock=facts.clock,
            next=1 if self.announced is not None else facts.next,
            boot=c.boot,
            incarnation=facts.incarnation,
            instance=facts.instance,
            fingerprint=c.fingerprint,
            age_ms=min(facts.age_ms, 2**32 - 1),
            keys=self.keys,
            sending=self.keys.index(self.key),
            echoes=tuple(partner.echo(now) for partner in self._partners.values()),
            stations=c.stations,
        )
        for partner in self._partners.values():
            partner.heard = 0
        return [SendHello(hello)]

    def _is_known(self) -> bool:
        """Whether anybody believes this station: until then it says HELLO as often as while somebody waits."""
        return self.config.stations == 1 or any(partner.has_proven for partner in self._partners.values())
