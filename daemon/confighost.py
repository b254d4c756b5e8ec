"""Configurations that change while the cluster runs, in the daemon: what an operator asks for, what the order says, what is
durable.

What decides is ``proto/changing.py``, joined with the engine by ``proto/reconfiguring.py`` (docs/adr/0032).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, Protocol

from ..proto.changing import Changing, Hold, Keep, Said, Stand, Tell
from ..proto.configmessages import ConfigMessage, Say
from ..proto.core import Medium
from ..proto.effects import Effect, Opened, Replaced, Told
from ..proto.engine import Engine
from ..proto.engineconfig import EngineConfig, make_quorum, validate
from ..proto.errors import UsageError
from ..proto.gathering import GATHER_NS, Gathering
from ..proto.reconfiguring import Outcome, Reconfiguring, members_of
from ..proto.service.base import Place, ViewEvent
from ..proto.wire import CONFIGURATION, MessageType, mtu_needed, open_bytes
from .config import Config
from .config.adopted import (
    changed,
    differences,
    fingerprint_of,
    options_of,
    read_value,
    roster_of,
    toml_of,
    with_options,
    with_station,
    without_station,
)
from .connections import Connection
from .datapath import DataPath, now_ns
from .observe import Journal
from .services import ServiceHost
from .store import Ran, Store, StoreError

OPEN_BYTES_MAX: Final = 1536
"""Bytes of an OPEN that the core hands to the engine: ``ZJ_CTL_BYTES``."""
HEARD_NS: Final = 3_000_000_000
"""A station that is to be added must have been heard within this time."""


class Host(Protocol):
    """What it asks of the driver."""

    def apply(self, effects: Iterable[Outcome]) -> None:
        """Apply effects that have been followed."""

    def turn_again(self) -> None: ...

    def core_replaced(self) -> None:
        """The engine has another core."""

    @property
    def is_running(self) -> bool: ...


class Settings:
    """What configurations make of this station's file: for the engine, and for people."""

    def __init__(self, file: Config, base: EngineConfig, key_mark: str) -> None:
        """base: the engine's for the file, with what no configuration changes."""
        self.file = file
        self.base = base
        self.key_mark = key_mark
        self.frame_max = base.frame_max
        """Bytes of the largest PDU that the interface carries now."""
        self.one_width = ""
        """Why the highest station number cannot change here while the cluster runs; empty: it can."""
        self.stations = 0
        """n of the engine."""

    def __call__(self, number: int, options: bytes, former: bytes | None) -> EngineConfig:
        """As ``Reconfiguring`` wants it. UsageError for options that cannot be."""
        config = with_options(self.file, options)
        before = with_options(self.file, former) if former is not None else None
        roster = roster_of(config, before)
        c = config.cluster
        own = replace(
            self.base,
            stations=c.stations,
            vacant=tuple(sorted(c.vacant_stations)),
            window_frames=c.window,
            quorum=c.quorum or len(c.roster) // 2 + 1,
            required=tuple(sorted(c.required_stations)),
            number=number,
            options=options,
            fingerprint=fingerprint_of(config, number, roster, self.key_mark),
            **c.times_ns(),
        )
        both = (make_quorum(own), make_quorum(self(0, former, None))) if former is not None and before is not None else ()
        return replace(own, stations=roster.stations, vacant=roster.vacant, outside=roster.outside, both=both)

    def unfit(self, options: bytes) -> str:
        """Why options cannot be those of the next configuration at this station; empty: they can."""
        try:
            n = roster_of(with_options(self.file, options)).stations
            # What no engine takes would end the daemon when it is in force, at all stations.
            for former in (None, options_of(self.file.cluster)):
                validate(self(1, options, former), 1, 0)
        except UsageError as error:
            return str(error)
        if self.one_width and n != self.stations:
            return f"the highest station number cannot change while the cluster runs: {self.one_width}"
        most = min(self.frame_max, OPEN_BYTES_MAX)
        needed = max(mtu_needed(n), open_bytes(n) + CONFIGURATION.size + 2 * len(options))
        return f"it needs PDUs of {needed} bytes; here they have at most {most}" if needed > most else ""


def stand_of(file: Config, remembered: Stand | None) -> Stand:
    """What a station starts with: what it had taken over, or has marked, else its file. A promise, and what it has given up,
    stay: they hide no file."""
    if remembered is not None and (remembered.number or remembered.ballot):
        return remembered
    return (remembered or Stand(0, b""))._replace(options=options_of(file.cluster))


class ConfigHost(ServiceHost):
    """One station's."""

    MESSAGES = frozenset({MessageType.SERVICE})
    host: Host

    def __init__(
        self, both: Reconfiguring, settings: Settings, store: Store, *, engine: Engine, dp: DataPath, journal: Journal
    ) -> None:
        self.both = both
        self.settings = settings
        self._store = store
        self._engine = engine
        self._dp = dp
        self._journal = journal
        self._outbox: deque[bytes] = deque()
        self._held = False
        """An attempt is under way."""
        self._owes_ready = False
        """This station has not said READY in this instance, and is waited for."""
        self.joins_wait: Callable[[], bool] = lambda: False
        """Whether programs' joins have not gone yet: there are too many to go at once."""
        self._instead: Tell | None = None
        """What is told in place of the next: a mark could not be written."""
        self._gathering = Gathering()
        self.last: tuple[str, bool | None] = ("", None)
        """What was said last of an attempt, and whether it was carried out."""
        self.attempts = 0
        """Attempts that have ended here, one way or the other."""

    # ---- effects

    def follow(self, effects: Iterable[Effect]) -> list[Outcome]:
        """What the engine has just returned."""
        return self.both.follow(now_ns(), effects)

    def handle(self, effect: Keep | Tell | Hold | Said | Replaced) -> None:
        """Raises StoreError."""
        match effect:
            case Keep(stand, is_mark):
                self._keep(stand, is_mark=is_mark)
            case Tell(data):
                self._outbox.append(data if self._instead is None else self._instead.data)
                self._instead = None
            case Hold(yes):
                self._held = yes
                self._hold()
            case Said(text, warning, outcome):
                (self._journal.warning if warning else self._journal.info)("configuration", text)
                if outcome is not None:
                    self.last = text, outcome
                    self.attempts += 1
                if outcome:
                    self.tell_file()
            case Replaced():
                self.settings.stations = self._engine.config.stations
                self.host.core_replaced()

    def _keep(self, stand: Stand, *, is_mark: bool) -> None:
        """A full disk ends an attempt, not a member. Raises StoreError."""
        try:
            self._store.keep(stand)
        except StoreError as exc:
            if not is_mark:
                raise
            self._journal.error("configuration", str(exc))
            self._instead = self.both.changing.unmarked(str(exc))

    @property
    def gathers(self) -> bool:
        """V7: programs are held until the groups of all members are whole again."""
        return self._gathering.holds

    def _hold(self) -> None:
        self._dp.hold(self._held or self.gathers or not self._engine.core.is_open or not self.host.is_running)

    def _gather(self, step: Callable[[], object]) -> None:
        """It may be what was waited for last."""
        before = self.gathers
        step()
        if before and not self.gathers:
            self._hold()

    def opened(self, effect: Opened) -> None:
        """An instance begins: what is noted as the configuration that this station has run under."""
        config = self.present
        self._gathering.end()
        if self.both.changing.number and not effect.joined:
            self._gathering.begin(now_ns(), members_of(effect.incarnations))
        self._store.present = Ran(self._engine.config.fingerprint, config.agreed_with(self.settings.key_mark))

    # ---- what an operator asks for

    @property
    def present(self) -> Config:
        """The options in effect."""
        return with_options(self.settings.file, self.both.changing.options)

    def command(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """``show``, or propose to ``set`` an option, ``add`` or ``remove`` a station. Raises UsageError."""
        changing, file = self.both.changing, self.settings.file
        step = arguments["step"]
        if step == "show":
            return {"message": toml_of(self.present), **self.status()}
        if file.cluster.medium == "bus":
            raise UsageError('cluster.medium is "bus": its options change with all stations stopped only (docs/changing.md)')
        before = changing.stand.options
        if step == "set":
            name = arguments["option"]
            value = read_value(name, arguments["value"])
            if getattr(self.present.cluster, name) == value:
                raise UsageError(f"{name} is that already")
            options = changed(file, before, **{name: value})
        elif step == "add":
            options = with_station(file, before, arguments["station"])
        else:
            if arguments["station"] == file.station.id:
                raise UsageError(f"station {file.station.id} is this one: ask another station to remove it")
            options = without_station(file, before, arguments["station"])
        self._refuse_without_quorum(options, arguments)
        outcomes = self.both.propose(options)
        number = changing.stand.number + 1
        self.host.apply(outcomes)
        self.host.turn_again()
        return {
            "message": f"configuration {number} has been proposed",
            "number": number,
            "options": json.loads(options),
            "attempts": self.attempts,
        }

    def _refuse_without_quorum(self, options: bytes, arguments: dict[str, Any]) -> None:
        membership, now = self._engine.membership, now_ns()
        if self._engine.config.outside:
            raise UsageError("this station is not in the roster: ask one that is")
        if not self._engine.instance or not membership.has_quorum:
            raise UsageError("there is no quorum: nothing can be changed now")
        lately = {s: told for s, (at, told) in self.both.heard.items() if now - at < HEARD_NS}
        if arguments["step"] == "add" and not arguments.get("absent"):
            station = arguments["station"]
            if station not in lately:
                raise UsageError(
                    f"station {station} is not heard: start its daemon first, with the same [cluster] options as here "
                    "(--absent: all the same)"
                )
            if self._differs(lately[station]):
                raise UsageError(
                    f"station {station} could never be let in: it differs in [cluster] options that do not change while "
                    "a cluster runs, in [links], or in its key. Compare its file with the one here (--absent: all the same)"
                )
        there = {*membership.members, *lately}
        config = self.settings(self.both.changing.stand.number + 1, options, None)
        if not make_quorum(replace(config, outside=False))(there):
            raise UsageError(f"of the new configuration only stations {sorted(there)} are there: that is no quorum of it")

    def _differs(self, told: Told) -> bool:
        """Whether a station outside has, by its fingerprint, others of the options that no configuration changes."""
        if told.claim.ballot:
            return False
        file = self.settings.file
        config = with_options(replace(file, station=replace(file.station, id=told.station)), told.claim.options)
        return fingerprint_of(config, told.claim.number, roster_of(config), self.settings.key_mark) != told.fingerprint

    def status(self) -> dict[str, Any]:
        """``configuration`` of docs/status.md."""
        changing = self.both.changing
        return {
            "number": changing.stand.number,
            "options": json.loads(changing.options),
            "in_roster": not self._engine.config.outside,
            "under_way": changing.under_way,
            "undecided": changing.joint is not None,
            "changes": changing.changes,
            "attempts": self.attempts,
            "last": self.last[0] or None,
            "carried_out": self.last[1],
            "file_differs": list(differences(self.settings.file, self.present).values()),
        }

    def tell_file(self) -> None:
        """The file is not what counts."""
        if (found := differences(self.settings.file, self.present)) and self.both.changing.stand.number:
            self._journal.warning(
                "options",
                f"configuration {self.both.changing.stand.number} is in force here, not the file: {'; '.join(found.values())}. "
                "zenjun cluster show --toml prints what the file should have",
            )

    # ---- what the order says

    def on_message(self, place: Place, client: int, data: bytes, position: int) -> None:
        if client:
            return
        said = ConfigMessage.read(data)
        if said is not None and said.say is Say.READY:
            self._gather(lambda: self._gathering.ready(place[1]))
        else:
            self.both.on_message(position, place[0], place[1], data)

    def on_view(self, place: Place, view: ViewEvent, position: int) -> None:
        self._gather(lambda: self._gathering.members(view.members))
        self.both.on_view(position, view.instance, view.members)

    @property
    def waiting(self) -> bool:
        return bool(self._outbox) or self._owes_ready or self.both.waiting

    def flush(self) -> None:
        self._gather(self._look_who_is_ready)
        if outcomes := self.both.look(now_ns()):
            self.host.apply(outcomes)
            self.host.turn_again()
        if self._owes_ready and not self.joins_wait():  # behind what puts programs into their groups
            self._owes_ready = False
            self._outbox.append(ConfigMessage(Say.READY, self.both.changing.number).packed())
        while self._outbox and self._dp.send(0, 0, MessageType.SERVICE, self._outbox[0]):
            self._outbox.popleft()

    def _look_who_is_ready(self) -> None:
        if late := self._gathering.look(now_ns()):
            named = ", ".join(map(str, sorted(late)))
            self._journal.warning(
                "configuration",
                f"station {named} has not put its programs into their groups for {GATHER_NS // 10**9} s: programs here go on, "
                "and those of that station miss what is sent until they are members again",
            )

    def suspend(self) -> None:
        self._gathering.end()
        self._owes_ready = False
        self._outbox.clear()  # the next instance may have other members

    # ---- what does not concern it

    def open(self, instance: int, *, joined: bool) -> None:
        pass

    def begin(self) -> None:
        self._owes_ready = self.gathers

    def end(self) -> None:
        pass

    def forget(self, connection: Connection, *, death: bool) -> None:
        pass


def make(file: Config, base: EngineConfig, store: Store, key_mark: str) -> tuple[Settings, Changing, EngineConfig]:
    """Before the engine: its settings, which may be other ones than those of the file. UsageError."""
    stand = stand_of(file, store.stand)
    settings = Settings(file, base, key_mark)
    newcomer = not stand.number and not stand.ballot and store.ran is None
    changing = Changing(file.station.id, stand, newcomer=newcomer, unfit=settings.unfit)
    if base.medium == Medium.BUS:
        return settings, changing, replace(base, options=stand.options)
    wanted = settings(changing.number, changing.options, changing.joint)
    settings.stations = wanted.stations
    return settings, changing, wanted
