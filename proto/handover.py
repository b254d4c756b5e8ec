"""Hand-over between two instances: how far this station has the one that ends, and what of it is delivered before the next one.

Each OPEN brings its sender's past: the last view that had reached level preack there, and how many PDUs after it. A station that
starts the agreed instance first delivers the former one up to the furthest of these pasts whose view it knows (why that loses
no message: below). The driver may need several turns to take that rest. The new instance waits for it (``agreed``).

No message is lost between instances: with each member a proposal names the last view its process had delivered at preack and how
much after it, which is final, since it has left that instance. A station that starts the proposal first delivers the former
instance up to the furthest of these whose view it knows. Every member of that view holds all of it, and all stations that come
from there deliver the same:

- identical proposals have the same content, however late they are started;
- a station that has issued P brings to every other proposal what it knows from P of how far others have delivered, since they may
  have started P;
- a member may have started P, ended it, and bring it as its past to a later P', while another one, which has issued P too, has
  not learnt of the start. As soon as the latter learns of that past, from any station, and before it can issue P' or start it, it
  starts P after all (``test_flush_*``);
- likewise with a view that the members had agreed on by votes, all of which another one has without having known that they were
  enough: it applies the view after all (the engine does).

What ``reached`` means on the wire depends on the medium: ``switched.py`` and ``bus.py`` each have a subclass. Sans-I/O.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Protocol

from .core import Fence
from .effects import Opened
from .openpdu import NO_PAST, Past, Pasts
from .timers import Deadline, Timers
from .votes import ChangeProposal

VIEWS_KEPT: Final = 16
"""Own views remembered, to relate the pasts of stations that come from them."""


class Order(Protocol):
    """What the hand-over asks of the core."""

    @property
    def flushed(self) -> bool: ...

    def fence(self) -> Fence | None: ...

    def reached(self) -> tuple[int, int]: ...

    def secured(self) -> int: ...

    def flush(self, view: int, count: int) -> None: ...


class LateChanges(Protocol):
    """What it asks of the agreement of the instance that has ended (``membership.Membership``)."""

    def late_change(self, view: int) -> ChangeProposal | None: ...

    def late_commit(self, now: int, proposal: ChangeProposal) -> bool: ...


class Handover(ABC):
    """One per engine. A subclass defines what ``reached`` of a past means on its medium."""

    def __init__(self, core: Order, changes: LateChanges, timers: Timers[Deadline]) -> None:
        self._core = core
        self._changes = changes
        self._timers = timers
        self.agreed: Opened | None = None
        """The next instance, which waits until the driver has taken the rest of the last one."""
        self._brought = NO_PAST  # to the agreed instance
        self._opened_view = 0  # of the instance that this lineage was opened with; 0: joined
        self._views: dict[int, int] = {}  # view hash: instance; of the lineage this process is in

    # ---- what the medium decides
    @abstractmethod
    def _told(self, view: int, count: int) -> int:
        """``reached`` of a past in an OPEN: ``count`` PDUs at level preack after that view."""

    @abstractmethod
    def _flush(self, now: int, pasts: Pasts) -> None:
        """Have the core deliver the last instance up to the position that the pasts of all members of the next one give."""

    @abstractmethod
    def bind(self, past: Past, pasts: Pasts) -> Past:
        """What this station brings from now on, after it has issued a proposal with these pasts: others may have started it.
        ``past``: what it has brought so far."""

    # ---- inputs
    def agree(self, now: int, opened: Opened, pasts: Pasts, brought: Past) -> bool:
        """An instance is agreed by OPEN, with these pasts, of which this station has brought one: deliver the rest of the last
        one, as far as any of its members has released it. True if nothing is left, so that the instance can begin at once."""
        self._flush(now, pasts)
        if self._core.flushed:
            return True
        self.agreed = opened
        self._brought = brought
        self._timers.set(Deadline.FLUSH, now)
        return False

    def postpone(self, at_ns: int) -> None:
        """The rest cannot be taken yet: there is no need to look before that."""
        self._timers.set(Deadline.FLUSH, at_ns)

    def begin(self, view: int, instance: int, *, opened: bool) -> None:
        """An instance begins here, by an OPEN agreement (``opened``) or because its members have admitted this station."""
        self._forget_agreed()
        self._views = {view: instance}
        self._opened_view = view if opened else 0

    def change(self, view: int, instance: int) -> None:
        """The members have agreed on the next instance."""
        self._views[view] = instance
        while len(self._views) > VIEWS_KEPT:
            del self._views[next(iter(self._views))]

    def end(self, *, expelled: bool = False) -> None:
        """The instance has ended here, or this station leaves. ``expelled``: what the other members have released since does not
        count here."""
        self._forget_agreed()
        if expelled:
            self._views.clear()

    def _forget_agreed(self) -> None:
        self.agreed = None
        self._timers.stop(Deadline.FLUSH)

    # ---- reads
    def reached(self) -> Past | None:
        """How far every member has the instance that ends here; None if its order has diverged and is not to be trusted. Who
        cannot deliver the rest that was agreed on brings to the next one what it has brought to that."""
        if self._core.fence():
            return None
        if self.agreed is not None:
            return self._brought
        view, count = self._core.reached()
        return Past(view, self._told(view, count)) if view else NO_PAST
