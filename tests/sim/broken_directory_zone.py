"""Zones with holders of their own, with rules broken on purpose: ``test_directory_zone.py`` says what catches each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zenjun.proto.service.directory.asking import Terminal
from zenjun.proto.service.directory.draft import Draft
from zenjun.proto.service.directory.entries import NOWHERE, Place, Who
from zenjun.proto.service.directory.lookup import Answer
from zenjun.proto.service.directory.messages import Due, Holding, Id
from zenjun.proto.service.directory.operations import Row
from zenjun.proto.service.directory.remote import Remote
from zenjun.proto.service.directory.state import State


class AsksAtNoPlace(Remote):
    """L5: a question does not name the place of the program's last answer."""

    def look_up(self, name: str, after: Place, now_ns: int) -> int:
        return super().look_up(name, NOWHERE, now_ns)


class _KeepsAny(Terminal):
    def kept(self, name: str, after: Place, now_ns: int) -> Answer | None:
        return super().kept(name, NOWHERE, now_ns)


class KeepsAny(Remote):
    """L5: a kept answer is given to a program that has seen a later one."""

    def _terminal(self, first: int) -> Terminal:
        return _KeepsAny(self.holders, first)


class NeverLeaves(Remote):
    """Z3: a holder that has left goes on counting as active."""

    def on_view(self, now_ns: int, place: Place, members: Iterable[Who], joined: Iterable[Who]) -> None:
        before = self.active
        super().on_view(now_ns, place, members, joined)
        self.active |= before


class FixedManager(Remote):
    """Z3: the zone is down with its lowest configured holder, whoever else keeps it."""

    def is_down(self, now_ns: int) -> bool:
        return self.joined and min(self.holders) not in {station for station, _ in self.active}


class Unannounced(Remote):
    """M1: after a START nothing says that there are members without a state."""

    def _announce(self) -> None:
        pass


class NotAgain(Remote):
    """W5: an update that was lost with the state is not sent again."""

    def _on_outcome(self, update: Id, body: Row) -> None:
        super()._on_outcome(update, body)
        self.again.clear()


class BlindToViews(Remote):
    """M3: a view, at which leases end, is no reason to look at them."""

    def on_view(self, now_ns: int, place: Place, members: Iterable[Who], joined: Iterable[Who]) -> None:
        look = self._look
        super().on_view(now_ns, place, members, joined)
        self._look = look

    def _on_new_holder(self, now_ns: int, who: Who) -> None:
        look = self._look
        super()._on_new_holder(now_ns, who)
        self._look = look


class RegistersAfterEnd(Remote):
    """M1: a registration that was under way when its lease ended is sent again all the same."""

    def end(self, numbers: Iterable[int]) -> list[Id]:
        before = dict(self._updates), dict(self._registering)
        super().end(numbers)
        self._updates, self._registering = before
        return []


class NoStrangers(State):
    """M1: a process that the state does not know has to wait for the next view."""

    def _hear_stranger(self, draft: Draft, sender: Who, message: Due | Holding) -> None:
        pass


class KnowsHoldersOnly(State):
    """M1: after a START, only processes with a state and those that have said HOLDING are members."""

    def _draft_of(self, sender: Who, new: bool, place: Place) -> Draft:
        return super()._draft_of(sender, False, place)


VARIANTS: dict[str, dict[str, Any]] = {
    "AsksAtNoPlace": {"remote": AsksAtNoPlace},
    "KeepsAny": {"remote": KeepsAny},
    "NeverLeaves": {"remote": NeverLeaves},
    "FixedManager": {"remote": FixedManager},
    "Unannounced": {"remote": Unannounced},
    "NotAgain": {"remote": NotAgain},
    "BlindToViews": {"remote": BlindToViews, "faults": 0.2},
    "RegistersAfterEnd": {"remote": RegistersAfterEnd, "faults": 0.2},
    "NoStrangers": {"state": NoStrangers},
    "KnowsHoldersOnly": {"state": KnowsHoldersOnly},
    "Silent": {"silent": True},
}
"""What is put in place of the honest parts. faults: share of
steps that are faults. Silent: a holder does not repeat HOLDING for who has joined."""
