"""An engine whose configuration may change while it runs: ``Engine`` and ``Changing``, joined (docs/adr/0032).

The driver passes each list of the engine's effects through ``follow``, each message of a daemon of type SERVICE to
``on_message``, each view event to ``on_view``, and looks with ``look`` after each delivery and at times. Effects come back, in
order. Sans-I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from .changing import Adopt, Changing, Hold, Keep, Said, Settled, Tell
from .changing import Effect as Decided
from .effects import Accept, Closed, Effect, Opened, Promise, Told
from .engine import Engine
from .engineconfig import EngineConfig

Outcome: TypeAlias = Effect | Keep | Tell | Hold | Said
"""What is left for the driver."""
AT_ONCE: Final = 2**64 - 1
"""Position of a view event with nothing before it."""
LOOK_NS: Final = 500_000_000


class Reconfiguring:
    """One station's."""

    def __init__(self, engine: Engine, changing: Changing, settings: Callable[[int, bytes, bytes | None], EngineConfig]) -> None:
        """settings: of the engine for the configuration of this number and these options; with options of the former one if a
        quorum of both is needed, and then it lists the stations of both. It raises nothing for options that ``Changing``
        takes."""
        self.engine = engine
        self.changing = changing
        self._settings = settings
        # Delivered, and not at preack: the position, and what is to be judged then.
        self._waits: deque[tuple[int, Callable[[int], list[Decided]]]] = deque()
        self.heard: dict[int, tuple[int, Told]] = {}
        """When an OPEN of a station with a claim came last, ns, and what it said, by station."""
        self._looked_ns = 0
        engine.claim = lambda: changing.claim(engine.config.outside)

    @property
    def waiting(self) -> bool:
        """Something that was delivered has not reached preack: call ``look`` after the next turn."""
        return bool(self._waits)

    def follow(self, now: int, effects: Iterable[Effect]) -> list[Outcome]:
        """What the engine has just returned. What others have told comes last: the engine has gone on. So does what follows from
        the end of an instance: numbers that the engine has made durable behind it are lower than those of the next engine."""
        out: list[Outcome] = []
        told: list[Told] = []
        has_ended = False
        for effect in effects:
            match effect:
                case Told():
                    told.append(effect)
                case Promise(instance):
                    out += self._apply(now, self.changing.promise(instance))
                case Accept(instance):
                    out += self._apply(now, self.changing.accept(instance))
                case Opened():
                    if has_ended:
                        out += self._apply(now, self.changing.ended())
                    has_ended = False
                    self._waits.clear()
                    out.append(effect)
                    out += self._apply(now, self.changing.begun(effect.instance, members_of(effect.incarnations)))
                case Closed():
                    has_ended = True
                    out.append(effect)
                case _:
                    out.append(effect)
        if has_ended:
            out += self._apply(now, self.changing.ended())
        for each in told:
            self.heard[each.station] = now, each
            out += self._apply(now, self.changing.hear(now, each.claim, each.station))
        return out

    def on_message(self, position: int, clock: int, station: int, data: bytes) -> None:
        """One of type SERVICE of a daemon, at level ordered, of this station (1..n). position: of its PDU, clock: of its
        place."""
        self._waits.append((position, lambda now: self.changing.on_message(now, clock, station, data)))

    def on_view(self, position: int, instance: int, members: Iterable[int]) -> None:
        """A view event, at level ordered."""
        found = tuple(members)

        def judge(now: int) -> list[Decided]:
            return self.changing.on_view(instance, found) if self.changing.members else []

        self._waits.append((position, judge))

    def look(self, now: int) -> list[Outcome]:
        """What has reached preack, and what time says."""
        out: list[Outcome] = []
        while self._waits and self._has_reached(self._waits[0][0]):
            out += self._apply(now, self._waits.popleft()[1](now))
        if now - self._looked_ns >= LOOK_NS:
            self._looked_ns = now
            out += self._apply(now, self.changing.on_time(now))
        return out

    def propose(self, options: bytes) -> list[Outcome]:
        """An operator wants these options. UsageError if that cannot be."""
        return [Tell(self.changing.propose(options))]

    def _has_reached(self, position: int) -> bool:
        return position == AT_ONCE or position < self.engine.core.positions().preack

    def _apply(self, now: int, decided: Iterable[Decided]) -> list[Outcome]:
        out: list[Outcome] = []
        for each in decided:
            self._bar()
            match each:
                case Adopt(number, options, former, reason):
                    out += self.follow(now, self.engine.reconfigure(now, self._settings(number, options, former), reason))
                case Settled(number, options, reason):
                    config = self._settings(number, options, None)
                    if config.fingerprint == self.engine.config.fingerprint:
                        self.engine.settle()
                    else:
                        out += self.follow(now, self.engine.reconfigure(now, config, reason))
                case _:
                    out.append(each)
        self._bar()
        return out

    def _bar(self) -> None:
        """With a mark whose attempt is under way, the station opens nothing."""
        self.engine.opening.barred = self.changing.under_way and bool(self.changing.stand.ballot)


def members_of(incarnations: Iterable[int]) -> list[int]:
    """Station numbers; incarnations: by index, 0: no member."""
    return [station for station, life in enumerate(incarnations, 1) if life]
