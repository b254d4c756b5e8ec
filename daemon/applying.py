"""Applies the effects of the engine (``proto/effects.py``) in their order: to disk, links, data path and programs.

``Persist`` is a barrier: a synchronous fsync on this thread, so no later effect, and no frame that the engine queued, leaves
before the numbers are durable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..proto.changing import Hold, Keep, Said, Tell
from ..proto.effects import Blocked, Changed, Closed, Effect, Fenced, Notice, Opened, Persist, Refused, Replaced, Send
from ..proto.engine import Engine
from ..proto.reconfiguring import Outcome
from .announce import Announcer
from .confighost import ConfigHost
from .datapath import DataPath, now_ns
from .exits import Exit
from .links import Links
from .sessions import Sessions
from .store import Store


class Host(Protocol):
    """What applying an effect asks of the driver."""

    @property
    def is_running(self) -> bool:
        """Whether programs may send: the daemon is not stopping."""

    def give_up(self, code: Exit, message: str) -> None:
        """End the daemon."""

    def turn_again(self) -> None:
        """Another turn of the data path is due before the daemon sleeps."""


class Applier:
    """Applies the effects of one engine. One thread."""

    def __init__(
        self,
        host: Host,
        engine: Engine,
        *,
        dp: DataPath,
        clients: Sessions,
        store: Store,
        links: Links,
        announcer: Announcer,
        configs: ConfigHost | None = None,
    ) -> None:
        self._host = host
        self._engine = engine
        self._dp = dp
        self._clients = clients
        self._store = store
        self._links = links
        self._announcer = announcer
        self._configs = configs
        self.has_fenced = False
        """The order here has once differed from another station's. Stays so: what programs have got cannot be taken back."""

    def apply(self, effects: Iterable[Effect]) -> None:
        """Apply what the engine has just returned, in order. What follows a ``Refused`` is dropped. Raises StoreError."""
        self.apply_followed(self._configs.follow(effects) if self._configs is not None else effects)

    def apply_followed(self, effects: Iterable[Outcome]) -> None:
        """The same for effects that ``ConfigHost`` has followed."""
        for effect in effects:
            match effect:
                case Persist(incarnation, instance):
                    self._store.persist(incarnation, instance)
                case Send(pdu):
                    if self._links.is_open:
                        self._dp.links_send(pdu)
                case Opened():
                    self._on_opened(effect)
                case Changed():
                    self._on_changed(effect)
                case Closed():
                    self._on_closed(effect)
                case Blocked():
                    self._on_blocked(effect)
                case Fenced():
                    self._on_fenced(effect)
                case Refused(message):
                    self._host.give_up(Exit.REFUSED, message)
                    return
                case Notice(kind, message):
                    self._announcer.notice(effect, self._store.explained(kind, message), now_ns())
                case Keep() | Tell() | Hold() | Said() | Replaced() if self._configs is not None:
                    self._configs.handle(effect)
            self._host.turn_again()

    def _on_opened(self, effect: Opened) -> None:
        if self._configs is not None:
            self._configs.opened(effect)
        self._store.note_ran()
        self._clients.payload_max = self._engine.core.payload_max
        # The data path forgets the last instance only now: its counts jump with that, and `reopened` has to come before them.
        self._clients.on_opened(
            effect.instance, effect.incarnations, self._dp.reset(), joined=effect.joined, frame_max=effect.frame_max
        )
        if self._host.is_running:
            self._dp.hold(self._configs is not None and self._configs.gathers)
        self._announcer.opened(effect)

    def _on_changed(self, effect: Changed) -> None:
        self._clients.payload_max = self._engine.core.payload_max
        self._clients.on_changed(effect.instance, effect.incarnations)
        self._announcer.changed(effect, now_ns())

    def _on_closed(self, effect: Closed) -> None:
        self._dp.hold(True)
        self._clients.on_closed(effect.reason, effect.station, expelled=effect.expelled)
        self._announcer.closed(effect, now_ns())

    def _on_blocked(self, effect: Blocked) -> None:
        self._announcer.blocked(effect, now_ns())
        if self._announcer.instance or effect.stations:
            self._clients.on_blocked(effect.stations, effect.quorum)
            self._clients.multicast.on_quorum()

    def _on_fenced(self, effect: Fenced) -> None:
        self.has_fenced = True
        self._announcer.fenced(effect)
        self._clients.on_fenced(effect.station, effect.position)
