"""Stations that leave out one rule of sessions or envelopes; ``test_trust.py`` says which check catches each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from zenjun.proto.envelope import ENVELOPE, TAG_BYTES, Drop, Echo, Envelope, Hello, Read, Reader, What, Window
from zenjun.proto.trust import Effect, ForgetSession, Partner, ReadSession, Trust, Twin
from zenjun.proto.wire import HEADER, SEQUENCED

from .trust import Parts


class NoEcho(Trust):
    """Any HELLO with a right tag proves its session."""

    def _returned_ns(self, now: int, said: Echo) -> int | None:
        return now


class StaleChallenge(Trust):
    """A challenge is good for as long as this life lasts, and so is the proof that answers it."""

    _all: Mapping[int, int] = MappingProxyType({})

    def _returned_ns(self, now: int, said: Echo) -> int | None:
        self._all = {**self._all, **self._challenges}
        return max((self._all[c] for c in (said.echo, said.other) if c in self._all), default=None)


class DropOldAtOnce(Trust):
    """The former session ends when the next one is proven."""

    def _prove(self, now: int, partner: Partner, hello: Hello, returned_ns: int) -> list[Effect]:
        effects = super()._prove(now, partner, hello, returned_ns)
        if any(isinstance(effect, ReadSession) for effect in effects):
            for gone in partner.sessions[1:]:
                partner.sessions.remove(gone)
                effects.append(ForgetSession(hello.tx, gone.session))
        return effects


class LatestClock(Trust):
    """Of the challenges heard the last one is returned, and that of the latest clock."""

    def _hear(self, now: int, partner: Partner, hello: Hello, returned_ns: int | None) -> None:
        super()._hear(now, partner, hello, returned_ns)
        partner.some, partner.fresh = hello.challenge, 0


class MacDecides(Trust):
    """A HELLO with the own number from another address is another daemon's."""

    def see_mac(self, hello: Hello, mac: bytes, own: bytes) -> list[Effect]:
        return [Twin(hello)] if hello.tx == self.config.station and mac != own else []


class WindowFirst(Reader):
    """The window moves before the tag has been looked at."""

    def _take(self, frame: bytes, now: int) -> bytes | Drop:
        envelope = Envelope.read(frame)
        read = self.sessions.get((envelope.tx, envelope.session)) if envelope is not None else None
        taken = super()._take(frame, now)
        if taken is Drop.TAG and read is not None and envelope is not None:
            read.window.mark(envelope.number)
        return taken


class Window64(Reader):
    """A window of 64 numbers."""

    class Small(Window):
        SIZE = 64

    def add(self, tx: int, session: bytes, first: int, now: int) -> None:
        super().add(tx, session, first, now)
        self.sessions[tx, session[:4]].window = self.Small(first)


class AnySource(Reader):
    """Who sends a PDU may say whose it is."""

    def _of_sender(self, envelope: Envelope, read: object, pdu: bytes) -> bytes | Drop:
        changed = bytearray(pdu)
        changed[HEADER.offset("src")] = envelope.tx
        taken = super()._of_sender(envelope, read, bytes(changed))  # type: ignore[arg-type]
        return taken if isinstance(taken, Drop) else pdu


class OldFlags(Reader):
    """An unsequenced PDU counts whenever it comes."""

    def _of_sender(self, envelope: Envelope, read: object, pdu: bytes) -> bytes | Drop:
        taken = super()._of_sender(envelope, read, pdu)  # type: ignore[arg-type]
        return pdu if taken is Drop.REORDERED else taken


class OldSession(Reader):
    """What a former session says counts beside the present one."""

    def _is_followed(self, tx: int, read: Read) -> bool:
        return False


class AcceptV1(Reader):
    """A frame without an envelope is taken as ever."""

    def _take(self, frame: bytes, now: int) -> bytes | Drop:
        taken = super()._take(frame, now)
        return frame if taken is Drop.VERSION and frame[HEADER.offset("kind")] in SEQUENCED else taken


class KeyOptional(Reader):
    """A frame of suite 0 needs no tag."""

    def _take(self, frame: bytes, now: int) -> bytes | Drop:
        taken = super()._take(frame, now)
        envelope = Envelope.read(frame)
        if taken is Drop.SUITE and envelope is not None and envelope.suite == 0 and envelope.what == What.PDU:
            return frame[ENVELOPE.size : -TAG_BYTES]
        return taken


BROKEN: Final[dict[str, tuple[Parts, frozenset[str]]]] = {
    "no_echo": (Parts(trust=NoEcho), frozenset({"of this life", "once"})),
    "stale_challenge": (Parts(trust=StaleChallenge), frozenset({"once", "all are believed"})),
    "window_first": (Parts(reader=WindowFirst), frozenset({"good frames count"})),
    "window_64": (Parts(reader=Window64), frozenset({"good frames count"})),
    "stored_session": (Parts(stored_session=True), frozenset({"one seal per number"})),
    "mac_decides": (Parts(trust=MacDecides), frozenset({"no false twin"})),
    "any_source": (Parts(reader=AnySource), frozenset({"no other's word"})),
    "old_flags": (Parts(reader=OldFlags), frozenset({"newest word"})),
    "old_session": (Parts(reader=OldSession), frozenset({"newest word"})),
    "seal_per_link": (Parts(seal_per_link=True), frozenset({"one seal per number"})),
    "drop_old_at_once": (Parts(trust=DropOldAtOnce), frozenset({"good frames count", "once"})),
    "accept_v1": (Parts(reader=AcceptV1), frozenset({"as it was sent"})),
    "key_optional": (Parts(reader=KeyOptional), frozenset({"as it was sent"})),
}
"""By the names of chapter 80: what is broken, and the rules that it may break first."""

SHADOWED: Final = Parts(trust=LatestClock)
"""Caught where somebody sends a recorded HELLO behind each new one: "all are believed"."""

BROKEN_KEYS: Final = {
    "switch_unordered": Parts(switch_unordered=True),
    "retire_early": Parts(retire_early=True),
    "nobody_tells": Parts(nobody_tells=True),
    "retired_untold": Parts(retired_untold=True),
}
"""Caught where a key changes."""
