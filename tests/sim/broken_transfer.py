"""State transfer with rules broken on purpose, each as a subclass of what keeps it.

``test_transfer.py`` names the checkers that catch each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from zenjun.proto.service.donor import Donation
from zenjun.proto.service.joiner import Attempt, Building
from zenjun.proto.service.roster import RosterState
from zenjun.proto.service.stateapi import Offer, Place
from zenjun.proto.service.transfer import Transfer
from zenjun.proto.service.transfertypes import Gate
from zenjun.proto.service.transferwire import Active, Ask, OfferMessage, Open, Roster, Start, Who
from zenjun.proto.timers import NEVER

from .transfer import Item, Plan


class SnapshotAtDelivery(Transfer[Item]):
    """X4: does not wait until the program has read as far as the ASK."""

    def _mark(self, now: int, action: Callable[[int], None]) -> None:
        action(now)


class StateAtJoin(Transfer[Item]):
    """X3: keeps the messages from the sending of its ASK on, although the state is that at the ASK's position."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._early: list[tuple[Item, Place, int]] = []

    def on_item(self, now: int, item: Item, place: Place, size: int) -> None:
        if self.gate is Gate.DROP and self._asked:
            self._early.append((item, place, size))
        super().on_item(now, item, place, size)

    def _on_ask(self, now: int, place: Place, sender: Who, m: Ask) -> None:
        super()._on_ask(now, place, sender, m)
        if sender == self.me and self.gate is Gate.KEEP:
            for early in self._early:
                super().on_item(now, *early)
        self._early = []


class DropKept(Transfer[Item]):
    """X9: the messages kept while the state came are not read."""

    def _conclude(self, now: int, attempt: Attempt) -> None:
        super()._conclude(now, attempt)
        if attempt.outcome == "restored":
            self._forget_unread()


class NeverEnd(Transfer[Item]):
    """X9: a snapshot is not closed when the order ends its transfer."""

    def _end_donations(self) -> None:
        pass


class ActiveTooEarly(Transfer[Item]):
    """X9: active before the state has come."""

    def _on_ask(self, now: int, place: Place, sender: Who, m: Ask) -> None:
        super()._on_ask(now, place, sender, m)
        if sender == self.me:
            self._send(Active(m.number))


class OthersWait(Transfer[Item]):
    """X9 as printed: a donor that is busy serves the next joiner later, so with a later snapshot."""

    def _serve(self, now: int, donation: Donation) -> None:
        if not self.donations:
            super()._serve(now, donation)
        else:
            self._late = donation

    _late: Donation | None = None

    def _end_donations(self) -> None:
        super()._end_donations()
        if self._late is not None and not self.donations:
            late, self._late = self._late, None
            super()._serve(0, late)


class OverflowBehindActive(Transfer[Item]):
    """X3, X9: messages that do not fit make it ask again even behind its own ACTIVE."""

    def on_item(self, now: int, item: Item, place: Place, size: int) -> None:
        sent, self._active_sent = self._active_sent, self._active_sent and self.active
        super().on_item(now, item, place, size)
        self._active_sent = self._active_sent or (sent and self._restored)


class _Rules(RosterState):
    """Base of the broken rosters."""


class RosterOverView(_Rules):
    """X2: a newcomer believes the ROSTER of an earlier view."""

    def _on_roster(self, now: int, sender: Who, m: Roster) -> None:
        super()._on_roster(now, sender, m if self.known else m._replace(view=self.view))


class ForgetSince(_Rules):
    """X2: a newcomer ignores what came between the view and its ROSTER."""

    def _on_roster(self, now: int, sender: Who, m: Roster) -> None:
        self._since.clear()
        super()._on_roster(now, sender, m)


class Unlimited(_Rules):
    """X9: a donor takes any number of transfers."""

    def load(self, donor: Who, without: Who | None = None) -> int:
        return 0


class StartBlind(_Rules):
    """X10: the lowest member starts, whatever the others have."""

    def choose(self) -> tuple[Who, ...]:
        return (self.members[0],) if self.members[0] in self.haves else ()


class StaleActive(_Rules):
    """X9, X10: an ACTIVE counts although a START has made another state the group's since its ASK."""

    def _on_active(self, sender: Who, mine: Open | None, m: Active) -> None:
        super()._on_active(sender, Open(sender, m.number, ()), m)

    def _on_start(self, m: Start) -> None:
        self.transfers.setdefault((0, 0), Open((0, 0), 0, ()))
        super()._on_start(m)

    def _apply(self, sender: Who, m: Any) -> None:
        if isinstance(m, Active):
            self.transfers.setdefault(sender, Open(sender, m.number, ()))
        super()._apply(sender, m)


class FirstOffer(Attempt):
    """X5: takes the first offer and compares nothing."""

    def on_offer(self, now: int, donor: Who, m: OfferMessage, building: Building | None) -> Building | None:
        if donor in self.donors and not self._sources and not self.outcome:
            self._offers = {donor: m}
            return self._decide(now, building)
        return super().on_offer(now, donor, m, building)


class NoWindow(Attempt):
    """X6: asks for everything at once."""

    window_max = 10_000


class AskOnce(Attempt):
    """X7: does not ask again, and does not leave out a donor that has gone."""

    def drop(self, now: int, who: Who, *, bad: bool = False, silent: bool = False) -> None:
        pass

    def next_deadline(self) -> int:
        return NEVER


class KeepStaleChunks(Attempt):
    """X7 as printed: says nothing of chunks that an earlier donor listed and this one does not."""

    def _drop_unlisted(self, building: Building) -> None:
        for key in sorted(building.here.keys() - self._listed):
            del building.here[key]


class BeginForgets(Attempt):
    """X8: the old state goes when the new one begins (as the printed ``begin`` says: "forget all")."""

    def _begin(self, now: int, donor: Who, m: OfferMessage, building: Building | None) -> Building | None:
        begun: Any = super()._begin(now, donor, m, building)
        if begun is not None and not m.delta:
            begun.restore.program.table.history = ""
        return begun  # type: ignore[no-any-return]


class NoDigest(Attempt):
    """X8: takes any restored state for the one that was offered."""

    def _finish(self) -> None:
        if self.offer is not None:
            self.offer = self.offer._replace(digest=None)
        super()._finish()


class UnverifiedDelta(Attempt):
    """X4 as printed: a delta needs no digest."""

    def _is_verifiable(self, m: OfferMessage) -> bool:
        return True


class BlameDonor(Attempt):
    """X8 as printed: leaves out the donor of a delta that did not fit."""

    def _is_donors_fault(self, offer: Offer) -> bool:
        return True


class HoldsAll(Donation):
    """X6: a donor keeps every chunk that it has listed."""

    def _hold(self, key: bytes, data: bytes) -> None:
        self._held_bytes += 5_000_000


def machine(part: type[Any]) -> type[Transfer[Item]]:
    """The whole machine with this part broken."""
    if issubclass(part, Transfer):
        return part
    kind = "roster_class" if issubclass(part, RosterState) else "attempt_class" if issubclass(part, Attempt) else "donation_class"
    return type(part.__name__, (Transfer,), {kind: part})


def _early(plan: Plan) -> Plan:
    return replace(plan, early_companion=True)


PLANS: Final[dict[str, Callable[[Plan], Plan]]] = {"two_orders": _early}
"""Rules that the client library keeps, broken in the simulator's own driver."""
