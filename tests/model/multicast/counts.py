"""How many records a multicast takes, in the model: the paper's only table.

The paper counts, for a message "from some host to another group" of N hosts, n of them with a token: 3N with ABCAST, and
2N + n - 2 with its own ordering. Here group 1 is at stations 1..N. If n > 1, stations 1..n are also alone in a group of their
own: their sets of groups are incomparable, so each has a token. The sender is station N + 1, or N from inside. Every record
counts as one message, as in a network where each has a frame of its own. HELD and STABLE are not counted: the paper has no
such level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from zenjun.proto.multicast.records import Data, Decide, Deliver, Effect, Joined, Record, Report
from zenjun.proto.multicast.tables import Program

from .net import MS, Host, Net

SIZES: Final = range(2, 9)
KINDS: Final = (Data, Report, Decide)


class Count(NamedTuple):
    """Records of one message."""

    data: int
    reports: int
    decisions: int

    @property
    def total(self) -> int:
        return sum(self)


class _Counting(Net):
    """A lossless network that counts what is sent, and where it is delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[type[Record]] = Counter()
        self.reached: set[int] = set()

    def transmit(self, host: Host, to: int, record: Record) -> None:
        self.counted[type(record)] += record.count if isinstance(record, Report | Decide) else 1
        super().transmit(host, to, record)

    def apply(self, host: Host, effects: list[Effect]) -> None:
        self.reached |= {host.station for e in effects if isinstance(e, Deliver)}
        super().apply(host, effects)


def count(order: str, stations: int, tokens: int, inside: bool) -> Count:
    """One message to a group of ``stations``. Raises RuntimeError if it does not reach each of them."""
    net = _Counting()
    joins = [Joined(Program(z, 1, 1), 1, order) for z in range(1, stations + 1)]
    if tokens > 1:
        joins += [Joined(Program(z, 1, 1), 1 + z, order) for z in range(1, tokens + 1)]
    net.start(dict.fromkeys(range(1, stations + 2), 1), joins)
    net.run_until(5 * MS)
    net.send(stations if inside else stations + 1, [1])
    net.run_until(100 * MS)
    if net.reached != set(range(1, stations + 1)):
        raise RuntimeError(f"delivered at {net.reached} only")
    net.checks.at_end()
    return Count(*(net.counted[kind] for kind in KINDS))


def printed(order: str, stations: int, tokens: int, inside: bool) -> int:
    """The numbers of the paper's table; for a sender inside the group those that its rules give: a host sends nothing to
    itself."""
    if order == "abcast":
        return 3 * stations - (3 if inside else 0)
    return 2 * stations + tokens - (3 if inside else 2)


def table(inside: bool) -> Iterator[str]:
    """Rows of Markdown: N, ABCAST, then token ordering for n = 1..N. A number that is not the paper's is marked with "!"."""
    yield f"| N | abcast | token, n = 1 | {' | '.join(str(n) for n in SIZES)} |"
    yield "|---" * (2 + SIZES[-1]) + "|"
    for stations in SIZES:
        cells = [_cell("abcast", stations, 1, inside)]
        cells += [_cell("token", stations, n, inside) for n in range(1, stations + 1)]
        cells += [""] * (1 + SIZES[-1] - len(cells))
        yield f"| {stations} | {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _cell(order: str, stations: int, tokens: int, inside: bool) -> str:
    total = count(order, stations, tokens, inside).total
    return f"{total}{'' if total == printed(order, stations, tokens, inside) else '!'}"
