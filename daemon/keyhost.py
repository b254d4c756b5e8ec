"""Keys that change while data flows: what an operator asks for, and what the order says (``proto/service/keys.py``)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from ..proto.engine import Engine
from ..proto.envelope import KEYS_MAX
from ..proto.errors import UsageError
from ..proto.service.base import Place, ViewEvent
from ..proto.service.keys import Holder, KeyChange, KeyOrder, Step, why_not
from ..proto.wire import MessageType
from .connections import Connection
from .datapath import DataPath, SecretKey, now_ns
from .keyring import Keyring
from .observe import Journal
from .services import ServiceHost
from .trusting import Trusting

RETIRED_TOLD: Final = 8
"""So many of the keys that were retired are told to those who come, the last ones: a file has four at most."""


def away(stations: int, vacant: Iterable[int], members: Iterable[int]) -> list[int]:
    """Stations of the roster, 1..stations, that are no members. A number that no station has is none."""
    return sorted(set(range(1, stations + 1)) - set(vacant) - set(members))


class KeyHost(ServiceHost):
    """One station's."""

    MESSAGES = frozenset({MessageType.SERVICE})

    def __init__(self, trusting: Trusting, keyring: Keyring, *, engine: Engine, dp: DataPath, journal: Journal) -> None:
        self.trusting = trusting
        self._keyring = keyring
        self._engine = engine
        self._dp = dp
        self._journal = journal
        self._outbox: deque[bytes] = deque()
        self._order = KeyOrder(engine.config.station)

    # ---- what an operator asks for

    def command(self, step: str, arguments: dict[str, Any]) -> str:
        """``add`` a key, ``rotate`` to one, or ``retire`` it; a line for people. Raises UsageError."""
        if step == "add":
            return self._take_over(self._keyring.with_key(arguments["key"]))
        members = self._engine.membership.members if self._engine.instance else ()
        if not members:
            raise UsageError("this station is in no instance: keys change in the order of one")
        change = KeyChange(Step.ROTATE if step == "rotate" else Step.RETIRE, self._id(step, arguments))
        absent = away(self._engine.config.stations, self._engine.config.vacant, members)
        if why := why_not(change, [self._holder(s) for s in members], absent, bool(arguments.get("without_absent"))):
            raise UsageError(why)
        if change.step is Step.ROTATE and change.key == self.trusting.trust.wanted:
            return f"this station seals with key {change.key:08x} already"
        self._outbox.append(change.packed())
        self.flush()
        return f"key {change.key:08x}: the change has been proposed"

    def reload(self) -> None:
        """SIGHUP: what has come into the file is read from now on. None is dropped: the file may be an older copy than what was
        handed over, and to drop one is what ``retire`` is for."""
        try:
            keys = {**self._keyring.keys, **self._keyring.read()}
            if len(keys) > KEYS_MAX:
                raise UsageError(f"with those of the file there would be {len(keys)}, more than {KEYS_MAX}")
            text = self._take_over(keys)
        except UsageError as exc:
            self._keyring.hold(self._keyring.keys)
            self._journal.error("key", f"the keys stay as they are: {exc}")
        else:
            self._journal.info("key", text)

    def _id(self, step: str, arguments: dict[str, Any]) -> int:
        if given := arguments.get("id", ""):
            return int(given, 16)
        if step == "retire":
            raise UsageError("which key is to be retired?")
        return next(reversed(self._keyring.keys))

    def _holder(self, station: int) -> Holder:
        trust = self.trusting.trust
        if station == trust.config.station:
            return Holder(station, trust.keys, trust.uses(station))
        return Holder(station, trust.reads(station), trust.uses(station))

    def _take_over(self, keys: dict[int, SecretKey]) -> str:
        self.trusting.set_keys(now_ns(), keys, self._keyring.retired)
        self._keyring.hold(keys)
        return f"this station reads the keys {', '.join(f'{i:08x}' for i in keys)}"

    # ---- what the order says

    def on_message(self, place: Place, client: int, data: bytes, position: int) -> None:
        change = KeyChange.read(data)
        if change is None or client:
            return
        if self._order.on_change(change) and not (change.step is Step.TELL and change.key == self.trusting.trust.wanted):
            self._do(change, place)
        self._tell()

    def _do(self, change: KeyChange, place: Place) -> None:
        now, name = now_ns(), f"{change.key:08x}"
        if change.key not in self._keyring.keys:
            if change.step is not Step.RETIRE:
                self._journal.error(
                    "key", f"the cluster goes over to key {name}, which this station does not have: it cannot follow"
                )
            return
        if change.step is not Step.RETIRE:
            self.trusting.seal_with(now, change.key)
            asked = "asked" if change.step is Step.ROTATE else "says that the others have"
            self._journal.info("key", f"this station goes over to key {name}, as station {place[1]} {asked}")
        elif self.trusting.trust.wanted == change.key:
            self._journal.error("key", f"key {name} is retired, and this station seals with it: it goes on")
        else:
            self._retire(now, change.key, place[1])

    def _retire(self, now: int, key: int, by: int) -> None:
        began = now_ns()
        try:
            self._keyring.retire(key)
            self.trusting.has_written(began)
        except OSError as exc:  # after the next start it would be read again
            self._journal.event(
                logging.ERROR, "key", f"that key {key:08x} is retired cannot be written down: {exc.strerror}", now=now
            )
        self.trusting.set_keys(now, self._keyring.keys, self._keyring.retired)
        self._journal.info("key", f"key {key:08x} is retired, as station {by} asked")

    def flush(self) -> None:
        while self._outbox and self._dp.send(0, 0, MessageType.SERVICE, self._outbox[0]):
            self._outbox.popleft()

    @property
    def waiting(self) -> bool:
        return bool(self._outbox)

    def end(self) -> None:
        self._outbox.clear()  # the next instance may have other members

    # ---- who has come is told

    def open(self, instance: int, *, joined: bool) -> None:
        self._order.open(instance, self._engine.membership.members, joined=joined)

    def begin(self) -> None:
        self._tell()

    def on_view(self, place: Place, view: ViewEvent, position: int) -> None:
        self._order.on_view(view)
        self._tell()

    def _tell(self) -> None:
        """Whoever was away, or has lost its state folder, still has the keys that were retired meanwhile."""
        if (word := self._order.word(self.trusting.trust.wanted)) is not None:
            self._outbox.append(word.packed())
            self._outbox.extend(KeyChange(Step.RETIRE, i).packed() for i in self._keyring.retired[-RETIRED_TOLD:])
            self.flush()

    # ---- what does not concern it

    def suspend(self) -> None:
        pass

    def forget(self, connection: Connection, *, death: bool) -> None:
        pass
