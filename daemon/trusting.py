"""Sessions in the daemon: feeds ``proto.trust`` with HELLO and time, and applies its effects to the data path.

The data path derives keys (``datapath/vault.c``), seals and opens (``datapath/sealed.c``). Nothing of a key or session is ever
logged.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from ..proto.engine import Engine
from ..proto.envelope import ENCRYPTED, ENVELOPE, Envelope, Hello, Suite
from ..proto.errors import UsageError
from ..proto.ownnumber import AGE_TIE_MS
from ..proto.trust import (
    SESSION_FRAMES,
    SILENT_NS,
    Behind,
    Config,
    Effect,
    Facts,
    ForgetSession,
    ReadSession,
    SealUnder,
    SendHello,
    Trust,
    Twin,
    Unlike,
    Unread,
)
from .datapath import DataPath, Derived, Sealing, SecretKey, now_ns
from .exits import Exit
from .key import LONG_KEY_BYTES, hello_info, sending_info
from .observe import Journal

BOOT_JUMP_NS: Final = 100_000_000
"""By so much more has the machine aged than this process: it was asleep."""
HELLO_SLICE_NS: Final = 1_000_000
"""HELLOs are served for so long at a time; then they rest for HELLO_REST times what that took, so that recorded ones that come
without end take a fifth of the processor at most."""
HELLO_REST: Final = 4
SUITES: Final = {"authenticate": int(Suite.AES_256_GCM), "encrypt": Suite.AES_256_GCM + ENCRYPTED}
"""By ``cluster.security``."""


def suite_of(security: str, size: int, medium: str) -> int:
    """What frames are sealed with, by the bytes of the newest key (0: none); 0: not by sessions. Raises UsageError if key and
    options do not fit each other."""
    if security != "auto" and size != LONG_KEY_BYTES:
        has = "has one of 32" if size else "has none"
        raise UsageError(f'cluster.security = "{security}" needs a key of 64 hexadecimal digits; this station {has}')
    if size != LONG_KEY_BYTES:
        return 0
    if medium == "bus":
        raise UsageError("a bus takes a key of 32 hexadecimal digits: sessions are for switched networks")
    return SUITES["authenticate" if security == "auto" else security]


def sealing_of(key: SecretKey, cluster: str, stations: int, suite: int, pause_ns: int) -> Sealing:
    """For the data path."""
    return Sealing(stations, suite, Derived(key, hello_info(cluster)), pause_ns, key.id)


def word(suite: int) -> str:
    """What ``cluster.security`` is called where frames are sealed so."""
    return next((name for name, number in SUITES.items() if number == suite), f"suite {suite}")


class Secret(NamedTuple):
    """What a station's sessions are made with."""

    keys: dict[int, SecretKey]
    """By id, the newest one last."""
    cluster: str
    suite: int
    retired: tuple[int, ...] = ()
    """Ids of keys that are read no more."""


class Host(Protocol):
    """The daemon that the sessions are of."""

    def give_up(self, code: Exit, message: str) -> None: ...


class Trusting:
    """One station's sessions. ``serve`` and ``tick`` are called from the daemon's turn and chores."""

    def __init__(
        self,
        secret: Secret,
        *,
        engine: Engine,
        dp: DataPath,
        journal: Journal,
        pause_ns: int,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """pause_ns: a process that did not run for so long takes another session."""
        c = engine.config
        own = Config(c.station, c.stations, secret.suite, c.boot, c.fingerprint, tuple(secret.keys))
        self.trust = Trust(own, entropy=os.urandom)
        self._secret = secret
        self._engine = engine
        self._dp = dp
        self._journal = journal
        self._pause_ns = pause_ns
        self._wall_ns = wall_ns
        self._began_ns = 0
        self._hear_ns = 0
        self._written_ns = 0
        """When this process had waited for its disk last."""
        self._sealed_ns = 0
        self._asleep_ns = _asleep_ns()
        self._hello_keys()
        self.host: Host | None = None

    # ---- the daemon's calls

    @property
    def has_begun(self) -> bool:
        return bool(self.trust.session)

    def start(self, now: int) -> None:
        """With the first link."""
        self._began_ns = now
        self._apply(now, self.trust.start(now, self._facts(now)))

    def on_link(self, now: int) -> None:
        """A link has been opened: at once, or soon, its stations hear a HELLO."""
        if not self.has_begun:
            self.start(now)
        self.trust.on_link(now)

    def set_keys(self, now: int, keys: dict[int, SecretKey], retired: Iterable[int] = ()) -> None:
        """Read these from now on, by id, the one that is sealed with among them."""
        self._secret = self._secret._replace(keys=dict(keys), retired=tuple(retired))
        self._hello_keys()
        self._apply(now, self.trust.set_keys(now, tuple(keys)))

    def seal_with(self, now: int, key: int) -> None:
        """Take a session under this key."""
        self._members()
        self._apply(now, self.trust.seal_with(now, key))

    def _hello_keys(self) -> None:
        info = hello_info(self._secret.cluster)
        self._dp.hello_keys({i: Derived(key, info) for i, key in self._secret.keys.items()})

    def deadline_ns(self) -> int:
        return self.trust.deadline_ns()

    def woke(self, now: int, planned_ns: int) -> None:
        """Before a frame leaves: if this process or the machine has slept, a copy of it may run elsewhere."""
        asleep_ns = _asleep_ns()
        slept = asleep_ns - self._asleep_ns > BOOT_JUMP_NS
        self._asleep_ns = asleep_ns
        if self.has_begun and (slept or 0 < max(planned_ns, self._written_ns) < now - self._pause_ns):
            self._renew_at_once(now)

    def has_written(self, since_ns: int) -> None:
        """This process has waited for its disk since then. That is no pause, however slow the disk is: the clocks would say if
        the machine had been asleep meanwhile."""
        if self._dp.has_written(since_ns):
            self._written_ns = now_ns()

    def serve(self, now: int) -> None:
        """HELLOs that have come, a session that the data path needs, deadlines."""
        if not self.has_begun:
            return
        if self._dp.is_asleep:
            self._renew_at_once(now)
        self._members()
        self._hear(now)
        if self.trust.deadline_ns() <= now:
            self._apply(now, self.trust.on_timeout(now, self._facts(now)))

    def _hear(self, now: int) -> None:
        began = time.monotonic_ns()
        if began < self._hear_ns:
            return
        ended = began
        for station in self._dp.unread():
            self.trust.on_unread(now, station)
        while ended - began < HELLO_SLICE_NS and (frame := self._dp.hello_take()) is not None:  # bound: three of each station
            envelope = Envelope.read(frame)
            hello = Hello.read(envelope, frame[ENVELOPE.size :]) if envelope is not None else None
            if hello is not None:
                self._apply(now, self.trust.on_hello(now, self._facts(now), hello))
            ended = time.monotonic_ns()
        self._hear_ns = ended + HELLO_REST * (ended - began)
        self._dp.hello_rest(self._hear_ns)

    def tick(self, now: int) -> None:
        """Once a second: sessions that have fallen silent or are used up, and HELLOs of another key."""
        if not self.has_begun:
            return
        for tx, session in self.trust.former():
            if now - self._dp.session_heard_ns(tx, session) > SILENT_NS:
                self._apply(now, self.trust.on_silent(now, tx, session))
        if self._dp.next_number > SESSION_FRAMES:
            self.trust.renew(now)
        if (frame := self._dp.hello_strange()) is not None:
            self._tell_strange(now, frame)

    def status(self, now: int) -> dict[str, Any]:
        """``sessions`` of docs/status.md."""
        others = [s for s in range(1, self._engine.config.stations + 1) if s != self._engine.config.station]
        return {
            "security": word(self._secret.suite),
            "frames": max(0, self._dp.next_number - 1),
            "key": f"{self.trust.key:08x}",
            "keys": [f"{i:08x}" for i in self.trust.keys],
            "age_s": max(0, now - self._sealed_ns) // 1_000_000_000,
            "stations": {
                str(s): {
                    "proven": self.trust.session_of(s) is not None,
                    "reads_own": self.trust.is_proven_at(s),
                    "key": f"{self.trust.sends(s):08x}" if self.trust.sends(s) else None,
                    "keys": [f"{i:08x}" for i in self.trust.reads(s)],
                }
                for s in others
            },
        }

    # ---- inside

    def _facts(self, now: int) -> Facts:
        return Facts(
            clock=self._wall_ns(),
            next=self._dp.next_number,
            incarnation=self._engine.incarnation,
            instance=self._instance(),
            age_ms=(now - self._began_ns) // 1_000_000,
        )

    def _instance(self) -> int:
        return self._engine.instance

    def _members(self) -> None:
        self.trust.members = frozenset(self._engine.membership.members if self._instance() else ())

    def _renew_at_once(self, now: int) -> None:
        self._journal.info("session", "this process did not run for a while: it goes on under another session")
        self._apply(now, self.trust.restart(now, self._facts(now)))

    def _apply(self, now: int, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendHello(hello):
                    for body in hello.bodies():
                        self._dp.hello_send(body)
                case SealUnder(session, key):
                    self._dp.seal_under(session, self._key_of(session, key))
                    self._sealed_ns = now
                case ReadSession(tx, session, first, key):
                    self._dp.session_read(tx, session, self._key_of(session, key), first)
                case ForgetSession(tx, session):
                    self._dp.session_forget(tx, session)
                case Twin(hello):
                    self._on_twin(now, hello)
                case Unlike() | Unread() | Behind():
                    self._warn(now, type(effect).__name__.lower(), self._apart(effect))

    def _apart(self, effect: Unlike | Unread | Behind) -> str:
        """Why nothing is read of a station that has a key of this one's."""
        match effect:
            case Unlike(tx, suite):
                own = word(self._secret.suite)
                text = f'station {tx} has this cluster\'s key and cluster.security = "{word(suite)}"; here it is "{own}"'
            case Unread(tx, key):
                text = f"station {tx} seals with key {key:08x}, which this station does not have"
            case Behind(tx, key):
                text = f"station {tx} does not have key {key:08x}, which is sealed with here"
        return f"{text}: nothing of it is read"

    def _key_of(self, session: bytes, key: int) -> Derived:
        return Derived(self._secret.keys[key], sending_info(self._secret.cluster, session, self._secret.suite))

    def _on_twin(self, now: int, hello: Hello) -> None:
        """The one in an instance stays, then the older one; at nearly the same age the one with the smaller boot number: as where
        frames prove nothing (``Opening``), but only between daemons that have proven to each other that they are alive."""
        number = self._engine.config.station
        own, other = self._instance(), hello.instance
        age_ms = (now - self._began_ns) // 1_000_000
        if own or other:
            yields = other > own
        elif abs(age_ms - hello.age_ms) < AGE_TIE_MS:
            own_life = self._engine.config.boot, self.trust.session  # copies of one memory have the same boot number
            yields = (hello.boot, hello.session) < own_life
        else:
            yields = age_ms < hello.age_ms
        both = f"station number {number} is used twice, by daemons that have this cluster's key"
        if yields and self.host is not None:
            self.host.give_up(Exit.REFUSED, f"{both}; the other one was here first, this one stops")
        else:
            self._warn(now, "duplicate", f"{both}; the other one is told to stop")

    def _tell_strange(self, now: int, frame: bytes) -> None:
        envelope = Envelope.read(frame)
        hello = Hello.read(envelope, frame[ENVELOPE.size :]) if envelope is not None else None
        if hello is None:
            return
        if len(hello.keys) > 1 and set(hello.keys) & set(self.trust.keys):
            return  # its copy under the common key counts
        keys, own = ", ".join(f"{key:08x}" for key in hello.keys), ", ".join(f"{key:08x}" for key in self.trust.keys)
        reason = "the tag is wrong"
        if not set(hello.keys) & set(self.trust.keys):
            is_past = set(hello.keys) <= set(self._secret.retired)
            reason = f"its key is {keys}, {'retired here' if is_past else f'this station has {own}'}"
        self._warn(now, "hello", f"a HELLO in the name of station {hello.tx} is dropped: {reason}")

    def _warn(self, now: int, key: str, text: str) -> None:
        self._journal.event(logging.WARNING, key, text, now=now, key=key)


def _asleep_ns() -> int:
    """How long this machine has been suspended since it started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
