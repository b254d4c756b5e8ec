"""What must hold in the world of ``trust.py``, whatever the network and the attacker do."""

from __future__ import annotations

from typing import NamedTuple

from zenjun.proto.envelope import Drop, Envelope, Reader
from zenjun.proto.trust import HELLO_GAP_NS, Trust
from zenjun.proto.wire import HEADER, SEQUENCED, Flag, Kind


class Violation(Exception):
    """A rule that was broken, first its name."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Who(NamedTuple):
    """One life of one daemon."""

    number: int
    mac: bytes
    life: int


class Sealed(NamedTuple):
    """A frame as its sender made it."""

    session: bytes
    number: int
    pdu: bytes
    at_ns: int
    mac: bytes
    """Of its sender: two daemons may have one station number."""


class Checks:
    """One run's."""

    def __init__(self) -> None:
        self._frames: dict[tuple[bytes, int], bytes] = {}
        self._sealed: dict[tuple[bytes, int], Sealed] = {}
        self._by_prefix: dict[tuple[bytes, int], Sealed] = {}
        self._taken: set[tuple[Who, bytes]] = set()
        self._readable: set[tuple[Who, bytes, int]] = set()
        self._newest: dict[tuple[Who, bytes], int] = {}
        self._hellos: dict[Who, int] = {}
        self.accepted = 0
        self.hellos = 0
        self.dropped = dict.fromkeys(Drop, 0)
        self.twins = 0

    def on_sealed(self, sealed: Sealed, frame: bytes) -> None:
        """A number is used for one content only: a second one breaks the cipher."""
        key = sealed.session, sealed.number
        if self._frames.setdefault(key, frame) != frame:
            raise Violation("one seal per number", f"two frames under number {sealed.number}")
        self._sealed[key] = sealed
        self._by_prefix[sealed.session[:4], sealed.number] = sealed

    def on_sent_to(self, who: Who, reader: Reader | None, sealed: Sealed | None) -> None:
        """Whether the receiver could read it when it was sent."""
        if sealed is None or reader is None:
            return
        if any(read.session == sealed.session for read in reader.sessions.values()):
            self._readable.add((who, sealed.session, sealed.number))

    def on_hello_sent(self, who: Who, now: int) -> None:
        last = self._hellos.get(who)
        if last is not None and now - last < HELLO_GAP_NS:
            raise Violation("few HELLOs", f"station {who.number} says HELLO {now - last} ns after the last one")
        self._hellos[who] = now
        self.hellos += 1

    def on_taken(
        self,
        who: Who,
        began_ns: int,
        envelope: Envelope | None,
        frame: bytes,
        taken: bytes | Drop,
        before: dict[tuple[int, bytes], int],
    ) -> None:
        """What a receiver believes was sent so, to this life of it, and is believed once."""
        station = who.number
        if isinstance(taken, Drop):
            self.dropped[taken] += 1
            return
        self.accepted += 1
        sealed = self._by_prefix.get((envelope.session, envelope.number)) if envelope is not None else None
        if envelope is None or sealed is None or sealed.pdu != taken or self._frames[sealed.session, sealed.number] != frame:
            raise Violation("as it was sent", f"station {station} believes a frame that nobody made: {frame[:24].hex()}")
        if sealed.at_ns < began_ns:
            raise Violation("of this life", f"station {station} believes a frame from before its own start")
        key = who, sealed.pdu
        if key in self._taken:
            raise Violation("once", f"station {station} believes number {sealed.number} twice")
        self._taken.add(key)
        kind, flags, src = (taken[HEADER.offset(name)] for name in ("kind", "flags", "src"))
        if kind in SEQUENCED:
            return
        if src != envelope.tx and not (kind == Kind.CONFIRM and flags & Flag.RELAYED):
            raise Violation("no other's word", f"station {station} believes station {envelope.tx} about {src}")
        newest = self._newest.get((who, sealed.mac), 0)
        if envelope.number < before.get((envelope.tx, envelope.session), 0) or sealed.at_ns < newest:
            raise Violation("newest word", f"station {station} believes an older word of {envelope.tx} after a newer one")
        self._newest[who, sealed.mac] = sealed.at_ns

    def on_good_dropped(self, who: Who, sealed: Sealed, why: Drop) -> None:
        """What comes from its sender and could be read is taken, unless it was before, or has been said anew."""
        if (who, sealed.session, sealed.number) not in self._readable or why in (Drop.REORDERED, Drop.SPOOFED):
            return
        if why is Drop.REPLAYED and (who, sealed.pdu) in self._taken:
            return
        if why is Drop.REPLAYED and sealed.pdu[HEADER.offset("kind")] not in SEQUENCED:
            return  # the copy before it came as REORDERED
        raise Violation(
            "good frames count", f"station {who.number} drops number {sealed.number} of a session that it reads: {why}"
        )

    def on_key_used(self, who: Who, session: bytes, members: list[tuple[int, Reader | None]]) -> None:
        """The first session under another key: every member reads it by then."""
        for number, reader in members:
            if reader is not None and all(read.session != session for read in reader.sessions.values()):
                raise Violation(
                    "no key before its time", f"station {who.number} seals with a key that station {number} does not read"
                )

    def all_have(self, key: int, stations: list[tuple[int, Trust | None]]) -> None:
        """The change is done everywhere, and the former key is gone."""
        for number, trust in stations:
            if trust is not None and (trust.key != key or trust.keys != (key,)):
                raise Violation("the change is done", f"station {number} seals with {trust.key} and reads {trust.keys}")

    def on_twin(self, now: int, is_one: bool) -> None:
        if not is_one:
            raise Violation("no false twin", f"a station ends for another one with its number at {now} ns, and there is none")
        self.twins += 1

    def at_the_end(self, now: int, stations: list[tuple[int, Trust | None]], twin: bool) -> None:
        """After the quiet time all believe each other, both ways."""
        if twin:
            if not self.twins:
                raise Violation("twins are found", "two daemons used one number, and neither has seen it")
            return
        for number, trust in stations:
            for other, theirs in stations:
                if trust is None or theirs is None or number == other:
                    continue
                if trust.session_of(other) != theirs.session:
                    raise Violation("all are believed", f"station {number} does not read station {other} at {now} ns")
                if not theirs.is_proven_at(number):
                    raise Violation("all are believed", f"station {other} does not know that station {number} reads it")
