"""The cost model of the paper on replicated databases (section 4): ``zenjun evaluate dona4``.

A directory says where data lie. n nodes are in m zones; the directory is kept centrally in each zone, and fully redundantly among
the zones. Of a node's requests the share p are updates. The share d concerns the node itself, the others are spread evenly over
the other nodes; so alpha (``dona.Setting``) concern the own zone. All results are messages per request, and exact if the
arguments are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from .dona import Setting, Update

MESSAGES: Final = 5
"""k: messages per further site and update: request, acknowledgement, data, acknowledgement, release."""
NODES: Final = 10
"""n of figure 4.2."""
LOCALITIES: Final = (Fraction(0), Fraction(1, 2), Fraction(9, 10))
"""d of its curves; the paper's formula of alpha has d printed as a."""
ZONES: Final = (2, 5, 10)
RETRIEVE_OWN: Final = 2
RETRIEVE_OTHER: Final = 4
UPDATE_OWN: Final = 4
"""Request, grant, data, done: the paper shows them in a figure that is lost, and uses their number."""


def update_other(m: int) -> int:
    """Messages of an update that concerns another zone: those of the own zone, and those among all primary sites."""
    return MESSAGES * (m - 1) + UPDATE_OWN


def distributed(n: int, p: Fraction) -> Fraction:
    """T_d, every node keeps the whole directory: k(n - 1)p. Printed k(m - 1)p, with which the paper's claim would fail."""
    return MESSAGES * (n - 1) * p


def integrated(s: Setting) -> Fraction:
    """T_i, in zones: {4 alpha + (k(m - 1) + 4)(1 - alpha)}p + (4 - 2 alpha)(1 - p). Of the setting k, the calls, is no matter."""
    outside = 1 - s.alpha
    return (UPDATE_OWN * s.alpha + update_other(s.m) * outside) * s.p + (RETRIEVE_OTHER - 2 * s.alpha) * (1 - s.p)


def ordered(sites: int) -> int:
    """Messages of an update in one order, for x sites: 2(x - 1) + 3, as with the seven steps on a broadcast medium."""
    return Update.BROADCAST.messages(sites)


def break_even(s: Setting) -> Fraction | None:
    """The share of updates from which zones cost less than full distribution; None: never. Of the setting p is no matter."""
    zero, one = (integrated(Setting(s.n, s.m, s.d, Fraction(p))) for p in (0, 1))
    slope = distributed(s.n, Fraction(1)) - (one - zero)
    found = zero / slope if slope > 0 else Fraction(2)
    return found if found <= 1 else None


def break_even_ordered(s: Setting) -> Fraction | None:
    """The same if updates go in one order, in zones among the m primary sites and in full distribution among all."""
    outside = 1 - s.alpha
    slope = ordered(s.n) - (UPDATE_OWN + outside * ordered(s.m)) + (RETRIEVE_OTHER - 2 * s.alpha)
    found = (RETRIEVE_OTHER - 2 * s.alpha) / slope if slope > 0 else Fraction(2)
    return found if found <= 1 else None


class Drawn(NamedTuple):
    """How many requests of each kind a run has made. full: every node keeps the whole directory."""

    setting: Setting
    retrieve_own: int
    retrieve_other: int
    update_own: int
    update_other: int
    full: bool = False

    @property
    def requests(self) -> int:
        return self.retrieve_own + self.retrieve_other + self.update_own + self.update_other

    @property
    def expected(self) -> float:
        """The formula at the shares that were drawn: messages per request, on average."""
        if self.full:
            return float(distributed(self.setting.n, Fraction(self.update_own + self.update_other, self.requests)))
        total = (
            RETRIEVE_OWN * self.retrieve_own
            + RETRIEVE_OTHER * self.retrieve_other
            + UPDATE_OWN * self.update_own
            + update_other(self.setting.m) * self.update_other
        )
        return total / self.requests


@dataclass(frozen=True, slots=True)
class Point:
    """What captures of one phase show. mean: messages per request. exact: each single request cost what its kind costs."""

    drawn: Drawn
    mean: float
    exact: bool


def curve(m: int, d: Fraction) -> tuple[Sequence[float], list[float]]:
    """A line of figure 4.2: (shares of updates, T_i)."""
    shares = [Fraction(k, 20) for k in range(21)]
    return [float(p) for p in shares], [float(integrated(Setting(NODES, m, d, p))) for p in shares]
