"""The seven steps with rules broken: F1 to F6 as the paper prints them, or as one may be tempted to write them, and each repair
left out. ``test_seven.py`` names the checkers that catch each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zenjun.proto.service.directory.entries import Place, Who
from zenjun.proto.service.directory.seven import Seven
from zenjun.proto.service.directory.seventypes import Age, Effect, Keep, Lock, Standing
from zenjun.proto.service.directory.sevenwire import NOBODY, Asking, Kind, Message

# ---- as printed


class Restores(Seven):
    """F1, U7: without CONF the source is taken for dead, and the old data is restored."""

    def on_timer(self) -> None:
        lock = self.lock
        if lock is not None and lock.data is not None and lock.asking.owner != self.me:
            self._free()


class SilenceConsents(Seven):
    """F2, U4, U7: no rejection in time is consent."""

    def on_timer(self) -> None:
        if self.standing is Standing.ASKING:
            self._lock_all()


class FixedNumbers(Seven):
    """F3, U3: numbers of nodes are the priorities."""

    def _make_age(self, counter: int) -> Age:
        return Age(0, self.me)

    def _age_of(self, counter: int, owner: Who) -> Age:
        return Age(0, owner)


class FailedList(Seven):
    """F4, U8: who is slow is put on a list of the failed, which goes along with CONF, and is passed over."""

    def on_timer(self) -> None:
        if self.standing is Standing.SENT and self.missing:
            self.failed = {*getattr(self, "failed", ()), self.missing[0]}
            self.done[self.missing[0]] = False
            self._advance()

    def _broadcast(self, m: Message) -> None:
        failed: set[Who] = getattr(self, "failed", set())
        if m.kind is not Kind.CONF or not failed:
            super()._broadcast(m)
            return
        for who in sorted(self.members):
            self._send(m._replace(to=who, kind=Kind.RELEASE if who in failed else Kind.CONF))
        failed.clear()


class ViewEnds(Seven):
    """F6: a view ends every attempt without DATA."""

    def _ends_with(self, lock: Lock, who: Who) -> bool:
        return lock.asking.owner == who or (lock.data is None and lock.asking.owner != self.me)


# ---- repairs left out


class BlindToOthers(Seven):
    """U1: DATA that is sent to another manager is not looked at."""

    def _concerns(self, m: Message) -> bool:
        return m.to in (NOBODY, self.me)


class HoldsNothing(Seven):
    """U1: what comes before the view by which its sender has come is dropped."""

    def _release_held(self) -> None:
        self._held.clear()


class NumberStays(Seven):
    """U1: an attempt keeps its number when it asks again."""

    def _is_own(self, asking: Asking) -> bool:
        return asking[:2] == self._asking[:2]


class AnyLife(Seven):
    """U1: what a member has sent in a former life counts in this one."""

    def _receive(self, sender: Who, m: Message) -> None:
        if sender in self.members and self.members[sender] > m.life:
            self.members[sender] = m.life
        super()._receive(sender, m)


class NeverYields(Seven):
    """U2: an attempt in state 2 does not give way to an older one."""

    def _age_of(self, counter: int, owner: Who) -> Age:
        age = super()._age_of(counter, owner)
        return max(age, self._age) if self.standing is Standing.ASKING else age


class NotAgain(Seven):
    """U2: who has come is not told the REQ again."""

    def _ask_again(self, who: Who) -> None:
        pass


class MostGrant(Seven):
    """U4: the GRANTs of most managers are enough."""

    def _needed(self) -> Iterable[Who]:
        members = sorted(self.members)
        return members[: (len(members) + 1) // 2]


class DoneBeforeDisk(Seven):
    """U5: DONE is said before the DATA is on disk."""

    def take(self) -> list[Effect]:
        return [effect._replace(durable=False) if isinstance(effect, Keep) else effect for effect in super().take()]


class DropsKept(Seven):
    """U6: at the view without its owner the DATA is dropped."""

    def _end_life(self, who: Who, *, commit: bool) -> None:
        super()._end_life(who, commit=False)


class OwnerStays(Seven):
    """U6: a view does not end the lock of who has left."""

    def _ends_with(self, lock: Lock, who: Who) -> bool:
        return False


class NotStruck(Seven):
    """U6: who has left is struck from the view only."""

    def _strike(self, who: Who) -> None:
        pass


class KeepsLock(Seven):
    """U8: a member that was expelled comes back with its lock."""

    def _begin(self, place: Place, members: Iterable[Who]) -> None:
        lock = self.lock
        super()._begin(place, members)
        self.lock = lock


class StartForgets(Seven):
    """U9: what is committed before the own START is passed over."""

    def activate(self, place: Place) -> None:
        self._log.clear()
        super().activate(place)


class NeverClosed(Seven):
    """U10: look-ups do not wait."""

    @property
    def closed(self) -> bool:
        return False


PARTS: dict[str, dict[str, Any]] = {
    **{
        each.__name__: {"machine": each}
        for each in (
            Restores, SilenceConsents, FixedNumbers, FailedList, ViewEnds, BlindToOthers, HoldsNothing, NumberStays, AnyLife,
            NeverYields, NotAgain, MostGrant, DoneBeforeDisk, DropsKept, OwnerStays, NotStruck, KeepsLock, StartForgets,
            NeverClosed,
        )
    },
    "CopiesEarly": {"copies_early": True},
    "KeepsLocks": {"keeps_locks": True},
    "ViewsOvertake": {"views_overtake": True},
    "ForgetsKept": {"forgets_kept": True},
}  # fmt: skip
"""By name, what takes the place of an honest part."""
