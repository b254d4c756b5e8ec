"""What has happened to the cluster, human-readable: entries of the journal, and the status line of the service manager.

``Announcer`` is given each effect of the engine, and keeps what the next sentence refers to: the instance, and whether stations
are waited for. It changes nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ..proto.effects import Blocked, Changed, Closed, Fenced, Notice, Opened
from ..proto.engine import Engine
from .links import Links
from .observe import Journal, Notifier

MS: Final = 1_000_000
NOBODY_SEEN_NS: Final = 10_000_000_000
"""Time without another station in an opening after which a notice says what to check."""


class Announcer:
    """Announces the effects of one engine."""

    def __init__(self, engine: Engine, journal: Journal, notifier: Notifier, now: int) -> None:
        self._engine = engine
        self._journal = journal
        self._notifier = notifier
        self.instance = 0
        """Number of the instance that is open, 0: none."""
        self._is_waiting = False
        """The last thing announced of other stations was that they are waited for."""
        self._opening_since_ns = now
        self._has_hinted = False
        """What to check has been announced, in this opening."""

    def opened(self, effect: Opened) -> None:
        self.instance = effect.instance
        members = _members(effect.incarnations)
        text = f"{'admitted to ' if effect.joined else ''}instance {effect.instance} of {_words(members)}"
        self._journal.info("open", text, instance=effect.instance, members=members, frame_max=effect.frame_max)
        self._notifier.status(self.is_open())

    def changed(self, effect: Changed, now: int) -> None:
        self.instance = effect.instance
        what = [f"without {_words(effect.left)}"] if effect.left else []
        what += [f"with {_words(effect.joined)}"] if effect.joined else []
        members = _members(effect.incarnations)
        text = f"instance {effect.instance} goes on {' and '.join(what)}: {_words(members)}"
        level = logging.WARNING if effect.left else logging.INFO
        self._journal.event(
            level, "view", text, now=now, key=str(effect.instance), instance=effect.instance, members=members,
            joined=list(effect.joined), left=list(effect.left),
        )  # fmt: skip
        self._notifier.status(self.is_open())

    def closed(self, effect: Closed, now: int) -> None:
        self.instance = 0
        self._opening_since_ns, self._has_hinted = now, False
        text = f"{'expelled from' if effect.expelled else 'out of'} instance {effect.instance}: {effect.reason}"
        self._journal.warning("closed", text, instance=effect.instance, station=effect.station, expelled=effect.expelled)
        self._notifier.status(f"{text}; trying to get back in")

    def blocked(self, effect: Blocked, now: int) -> None:
        stations, quorum = effect.stations, effect.quorum
        was_waiting, self._is_waiting = self._is_waiting, bool(stations)
        if stations:
            text = self._waiting_for(stations, quorum, now)
            self._journal.event(
                logging.WARNING,
                "blocked",
                text,
                now=now,
                key=str((stations, quorum)),
                stations=[s for s, _ in stations],
                quorum=quorum,
            )
            self._notifier.status(text)
        elif was_waiting:
            self._journal.event(logging.INFO, "unblocked", "nobody is waited for", now=now)
            self._notifier.status(self.is_open() if self.instance else "opening")

    def _waiting_for(self, stations: Sequence[tuple[int, str]], quorum: bool, now: int) -> str:
        words = ", ".join(f"station {station} ({reason}{self._since(station, reason, now)})" for station, reason in stations)
        if all(reason == "joining" for _, reason in stations):
            return f"letting in {words}"
        if not self.instance:
            return f"waiting for {words}"
        return f"about to go on without {words}" if quorum else f"no quorum without {words}: blocked"

    def _since(self, station: int, reason: str, now: int) -> str:
        """How long a silent member has not been heard, beside what is allowed."""
        heard_ns = self._engine.core.peer(station - 1).heard_ns
        if reason != "silent" or not self.instance or not heard_ns:
            return ""
        allowed = self._engine.config.fail_timeout_ns // MS
        return f", not heard for {max(0, now - heard_ns) // MS} ms, fail_timeout_ms {allowed}"

    def fenced(self, effect: Fenced) -> None:
        text = (
            f"the order here differs from station {effect.station}'s at position {effect.position}: nothing is delivered any "
            f"more (digest {effect.own:016x} here, {effect.theirs:016x} there)"
        )
        self._journal.error("fenced", text, station=effect.station, position=effect.position)
        self._notifier.status("fenced: " + text)

    def notice(self, effect: Notice, explained: str, now: int) -> None:
        """explained: the notice's message with what this station knows about it, for the journal."""
        self._journal.event(logging.WARNING, effect.kind, explained, now=now)
        if not self.instance:
            self._notifier.status(effect.message)

    def look_for_others(self, now: int, links: Links) -> None:
        """If no other station has been heard for long while opening, announce once what to check."""
        elapsed_ns = now - self._opening_since_ns
        is_alone = self._engine.config.stations == 1
        if is_alone or self.instance or self._has_hinted or elapsed_ns <= NOBODY_SEEN_NS or not links.is_open:
            return
        if all(peer.state in ("self", "never seen") for peer in self._engine.peers(now)):
            self._has_hinted = True
            self.nobody_seen(links.names, elapsed_ns)

    def nobody_seen(self, interfaces: str, elapsed_ns: int) -> None:
        """No other station has been heard for this long."""
        text = (
            f"no other station has been heard on {interfaces} for {elapsed_ns // (1000 * MS)} s: are they on the same segment "
            "and VLAN, with the same cluster name, EtherType and key? (CAP_NET_RAW alone puts no container on the LAN: "
            "docs/daemon.md)"
        )
        self._journal.warning("nobody seen", text)
        self._notifier.status(text)

    def is_open(self) -> str:
        """The open instance and its members."""
        return f"instance {self.instance} of {_words(self._engine.membership.members)} is open"


def _members(incarnations: Sequence[int]) -> list[int]:
    """Stations with an incarnation in the instance."""
    return [k for k, incarnation in enumerate(incarnations, 1) if incarnation]


def _words(stations: Sequence[int]) -> str:
    return f"station{'s' if len(stations) != 1 else ''} {', '.join(map(str, stations))}"
