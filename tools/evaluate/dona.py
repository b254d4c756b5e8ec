"""The cost model of the DONA paper on terminal management (section 3): ``zenjun evaluate dona``.

The network has n nodes in m zones. Each zone has one manager, and n/m - 1 terminals. A node makes k calls in a unit of time. The
share p of them are updates, the others are look-ups. Whether a zone can answer a call itself depends on the locality: the share d
of a node's calls concerns the node itself, the others are spread evenly over the other nodes. All results are messages in a unit
of time, and exact if the arguments are.

The paper counts point-to-point messages. Two variants differ in what an update of the common directory costs among the managers:
``BROADCAST``, the seven steps on a broadcast medium, and ``ORDERED``, one message of the total order. No formula counts retries,
refused locks, heartbeats or confirmations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final, NamedTuple

CALLS: Final = Fraction(1)
UPDATES: Final = Fraction(1, 100)
"""k and p of figures 3.1 and 3.2."""
LOCALITIES: Final = (Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(9, 10))
"""d of their curves. The paper names no values: it says only that m and alpha are the parameters."""
SIZES: Final = (10, 20)
"""n of the drawings. The paper does not state it (``peak``)."""


class Update(Enum):
    """How the managers change the common directory."""

    UNICAST = "unicast"
    """The paper: REQ, GRANT, DATA, DONE and CONF between the source and each other manager."""
    BROADCAST = "broadcast"
    """The same, but REQ, DATA and CONF reach all managers at once."""
    ORDERED = "ordered"
    """One message of the total order, without locks."""

    def messages(self, m: int) -> int:
        """U: messages in the network for one update of the common directory, at m managers."""
        return {Update.UNICAST: 5 * (m - 1), Update.BROADCAST: 2 * (m - 1) + 3, Update.ORDERED: 1}[self]

    def handled(self, m: int) -> int:
        """Messages that one manager sends or receives while each of the m managers does one update. Of the others' updates it
        handles REQ, GRANT, DATA, DONE and CONF, on either medium; in order, the one message of each."""
        return m if self is Update.ORDERED else self.messages(m) + 5 * (m - 1)


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the model. ValueError if the network cannot be so.

    n: nodes, from 2. m: zones, 1..n; a zone has n/m nodes, on average if m does not divide n. d: the share of a node's calls that
    concerns the node itself, 0..1. p: the share of calls that are updates, 0..1. k: calls of a node in a unit of time, above 0.
    """

    n: int
    m: int
    d: Fraction = Fraction(0)
    p: Fraction = UPDATES
    k: Fraction = CALLS

    def __post_init__(self) -> None:
        if not 1 <= self.m <= self.n or self.n < 2 or not 0 <= self.d <= 1 or not 0 <= self.p <= 1 or self.k <= 0:
            raise ValueError(f"no network is like {self}")

    @property
    def zone(self) -> Fraction:
        """Nodes of a zone, n/m."""
        return Fraction(self.n, self.m)

    @property
    def alpha(self) -> Fraction:
        """The share of a node's calls that concern its own zone: alpha = 1 - (n - n/m)(1 - d)/(n - 1)."""
        return 1 - (self.n - self.zone) * (1 - self.d) / (self.n - 1)


def central(n: int, k: Fraction = CALLS) -> Fraction:
    """Equation (1): messages of one manager for all n nodes, which are those of the network: 2k(n - 1)."""
    return 2 * k * (n - 1)


def manager(s: Setting, update: Update = Update.UNICAST) -> Fraction:
    """Equation (2): messages that one of the m managers sends or receives,
    (n/m)k[p{2 + 10(m - 1)(1 - alpha)} + (1 - p)(6 - 4 alpha)] - 2k. For the variants, ``Update.handled`` takes the place of
    10(m - 1)."""
    outside = 1 - s.alpha
    return s.zone * s.k * (s.p * (2 + update.handled(s.m) * outside) + (1 - s.p) * (6 - 4 * s.alpha)) - 2 * s.k


def network(s: Setting, update: Update = Update.UNICAST) -> Fraction:
    """Equation (3): messages in the whole network, kn[4 - 2 alpha + p(1 - alpha){U - 2}] - 2km, where U = 5(m - 1) in the paper
    and ``Update.messages`` for the variants."""
    common = s.p * (1 - s.alpha) * (update.messages(s.m) - 2)
    return s.k * s.n * (4 - 2 * s.alpha + common) - 2 * s.k * s.m


def everywhere(s: Setting) -> Fraction:
    """Messages if every node keeps the whole directory and an update is one message of the total order: knp. The paper rejects
    this placement, for memory and for n messages an update."""
    return s.k * s.n * s.p


class Row(NamedTuple):
    """A row of table 3.1. messages: of one call. calls: a node's in a unit of time. nodes: number of such nodes. own: the calling
    node belongs to the manager's zone."""

    what: str
    messages: int
    calls: Fraction
    nodes: Fraction
    own: bool = True


def table(s: Setting) -> list[Row]:
    """Table 3.1: what makes up the messages of one manager.

    The printed table leaves the numbers of nodes of the own zone out; they are n/m - 1 terminals and 1 manager. All rows together
    are equation (2). The rows of the own zone, times m, are equation (3), as they count each message between zones once.
    """
    look, change = s.k * (1 - s.p), s.k * s.p
    inside, outside = s.alpha, 1 - s.alpha
    common = Update.UNICAST.messages(s.m)
    terminals, one = s.zone - 1, Fraction(1)
    rows = [
        Row("look-up, terminal, own zone", 2, look * inside, terminals),
        Row("look-up, terminal, other zone", 4, look * outside, terminals),
        Row("look-up, manager, own zone", 0, look * inside, one),
        Row("look-up, manager, other zone", 2, look * outside, one),
        Row("update, terminal, own zone", 2, change * inside, terminals),
        Row("update, terminal, other zone", common + 2, change * outside, terminals),
        Row("update, manager, own zone", 0, change * inside, one),
        Row("update, manager, other zone", common, change * outside, one),
    ]
    if s.m > 1:
        others = Fraction(s.m - 1)
        rows.append(Row("look-up from another zone", 2, look * outside / others * s.zone, others, own=False))
        rows.append(Row("update of another zone", 5, change * outside * s.zone, others, own=False))
    return rows


def total(rows: Iterable[Row]) -> Fraction:
    """Messages of these rows together."""
    return sum((row.messages * row.calls * row.nodes for row in rows), Fraction(0))


def peak(n: int, d: Fraction, p: Fraction = UPDATES) -> int:
    """The number of zones at which the network has most messages (equation 3); 1 or n: the curve only falls or only rises."""
    return max(range(1, n + 1), key=lambda m: network(Setting(n, m, d, p)))


def manager_rises_below(n: int, p: Fraction = UPDATES) -> Fraction:
    """The locality d below which a manager has *more* messages in two zones than in one, although the paper has its load fall
    with m "obviously". Look-ups of the other zone are counted at both managers. Equation (2) is linear in d, so two points give
    the place where it crosses equation (1)."""
    low, high = (manager(Setting(n, 2, d, p)) - central(n) for d in (Fraction(0), Fraction(1)))
    return low / (low - high)


@dataclass(frozen=True, slots=True)
class Point:
    """What captures of one run show, in the model's units; ``dona_counts.points`` makes it. Nothing else does: what has not been
    measured is not drawn."""

    setting: Setting
    update: Update
    network: float
    manager: float
    """Mean over the managers."""


def curve(n: int, d: Fraction, what: str, update: Update = Update.UNICAST) -> tuple[Sequence[int], list[float]]:
    """A line of figure 3.1 (``what`` is "network") or 3.2 ("manager"): (zones from 1 to n, messages)."""
    formula = {"network": network, "manager": manager}[what]
    zones = range(1, n + 1)
    return zones, [float(formula(Setting(n, m, d), update)) for m in zones]
