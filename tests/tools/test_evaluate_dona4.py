"""The cost formulas of the paper on replicated databases, its table and figure, and the play that is measured."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from zenjun.daemon.client import Member, Message, View
from zenjun.tools.cli.evaluate import PAGE
from zenjun.tools.evaluate import dona4, dona4_lab, dona4_page
from zenjun.tools.evaluate.dona import Setting
from zenjun.tools.evaluate.dona4 import LOCALITIES, ZONES
from zenjun.tools.pcap.report import plots

ROWS = [
    (2, (".4444", ".7222", ".9444"), ("3.478", "2.839", "2.328"), ("4.944", "3.972", "3.194"), (".075", ".061", ".049")),
    (5, (".1111", ".5556", ".9111"), ("5.578", "3.889", "2.538"), ("12.778", "7.889", "3.978"), (".140", ".083", ".053")),
    (10, ("0", ".5", ".9"), ("8.5", "5.35", "2.83"), ("26.5", "14.75", "5.35"), ("never", ".140", ".057")),
]
"""n = 10, k = 5: m; alpha, T_i at p = 0.1 and 0.5, and the break-even, each at d = 0, 0.5, 0.9."""


@pytest.mark.parametrize("row", ROWS)
def test_table(row: tuple[int, tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]) -> None:
    m, alphas, low, high, breaks = row
    for i, d in enumerate(LOCALITIES):
        at = [Setting(10, m, d, Fraction(p, 10)) for p in (1, 5)]
        assert float(at[0].alpha) == pytest.approx(float(alphas[i]), abs=5e-5)
        for s, wanted in zip(at, (low[i], high[i]), strict=True):
            assert float(dona4.integrated(s)) == pytest.approx(float(wanted), abs=5e-4)
        found = dona4.break_even(at[0])
        assert breaks[i] == "never" if found is None else float(found) == pytest.approx(float(breaks[i]), abs=5e-4)
    assert [float(dona4.distributed(10, Fraction(p, 10))) for p in (1, 5)] == [4.5, 22.5]


def test_the_paper_s_claim() -> None:
    """Zones win from 10 to 20 % of updates on: true with half of the requests at home, and without locality up to six zones. In
    one order they win later. With the formula as it is printed they would not win at all where the paper says so."""
    for m in range(2, 11):
        for d in (Fraction(1, 2), Fraction(9, 10)):
            found = dona4.break_even(Setting(10, m, d))
            assert found is not None and found < Fraction(1, 5)
    alone = {m: dona4.break_even(Setting(10, m)) for m in range(2, 11)}
    assert [m for m, found in alone.items() if found is not None and found < Fraction(1, 5)] == [2, 3, 4, 5, 6]
    later = [dona4.break_even_ordered(Setting(10, m, d)) for d in (LOCALITIES[0], LOCALITIES[-1]) for m in range(2, 7)]
    shares = [round(float(found), 2) for found in later if found is not None]
    assert (min(shares[:5]), max(shares[:5]), min(shares[5:]), max(shares[5:])) == (0.18, 0.44, 0.11, 0.12)
    s = Setting(10, 2, p=Fraction(1, 5))
    assert dona4.integrated(s) > dona4.MESSAGES * (s.m - 1) * s.p


class Wire:
    """A broadcast medium in memory, in place of a lab; with the messages that were sent, by size."""

    def __init__(self) -> None:
        self.sizes: Counter[int] = Counter()
        self.groups: dict[str, list[Group]] = {}


class Group:
    def __init__(self, wire: Wire, name: str, station: int) -> None:
        self.wire, self.station, self.calls = wire, station, 0
        self.items: asyncio.Queue[Any] = asyncio.Queue()
        self.others = wire.groups.setdefault(name, [])
        self.others.append(self)

    def send_nowait(self, data: bytes) -> bool:
        """Now and then it does not take the message, as zenjund if it has much to do."""
        self.calls += 1
        if self.calls % 7 == 0:
            return False
        self.put(data)
        return True

    async def send(self, data: bytes, level: str, timeout: float) -> None:
        await asyncio.sleep(0)
        self.put(data)

    def put(self, data: bytes) -> None:
        self.wire.sizes[len(data)] += 1
        for other in self.others:
            if other is not self:
                other.items.put_nowait(Message(data, "", self.station, 1, (1, 1, 0), False))

    async def recv_items(self, timeout: None) -> list[Any]:
        return [await self.items.get()]

    async def leave(self) -> None:
        self.others.remove(self)


class Welcomed:
    """A station's connection."""

    def __init__(self, wire: Wire, station: int) -> None:
        self.wire = wire
        self.welcome = self
        self.station, self.client = station, 1

    async def join(self, name: str, **_: Any) -> Group:
        group = Group(self.wire, name, self.station)
        members = tuple(Member(each.station, 1, "") for each in group.others)
        for each in group.others:
            place = (1 << 32, self.station, 65535)
            each.items.put_nowait(View("", members, (members[-1],), (), "", place, 1))
        return group


@pytest.mark.parametrize(("m", "full"), [(2, False), (5, False), (1, False), (5, True)])
def test_each_request_costs_what_its_kind_costs(m: int, *, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zenjun.tools.evaluate.dona_lab.SETTLE_S", 0.05)
    s = Setting(5, m, Fraction(1, 4), Fraction(1, 3))
    wanted = dona4_lab.draw(s, 60, 7)
    kinds = dona4_lab.kinds_of(s, wanted)
    wire = Wire()
    connections = [Welcomed(wire, k) for k in range(1, 6)]
    groups = [Group(wire, "ask", k) for k in range(1, 6)]
    wire.sizes.clear()
    asyncio.run(dona4_lab.play(connections, groups, s, wanted, full=full))
    sizes = {size: n for size, n in wire.sizes.items() if size >= dona4_lab.SIZE_MIN}
    asked = dona4_lab.Asked(dona4_lab.drawn_of(s, kinds, full=full), kinds)
    point = dona4_page.point(asked, sizes)
    assert point.exact and point.mean == pytest.approx(point.drawn.expected)
    sizes[dona4_lab.SIZE_MIN + 3] = sizes.get(dona4_lab.SIZE_MIN + 3, 0) + 1
    assert not dona4_page.point(asked, sizes).exact, "one message more of one request"


def test_requests_are_drawn_the_same_again() -> None:
    s = Setting(10, 5, Fraction(1, 2), Fraction(1, 10))
    wanted = dona4_lab.draw(s, 2000, 1)
    assert wanted == dona4_lab.draw(s, 2000, 1)
    drawn = dona4_lab.drawn_of(s, dona4_lab.kinds_of(s, wanted), full=False)
    assert drawn.requests == 2000
    assert (drawn.retrieve_own + drawn.update_own) / 2000 == pytest.approx(float(s.alpha), abs=0.05)
    assert drawn.expected == pytest.approx(float(dona4.integrated(s)), rel=0.1)


def test_only_what_is_measured_is_drawn() -> None:
    s = Setting(10, 5, Fraction(9, 10), Fraction(1, 10))
    drawn = dona4.Drawn(s, 50, 30, 15, 5)
    points = [dona4.Point(drawn, 3.3, exact=True), dona4.Point(drawn._replace(full=True), 9.0, exact=False)]
    assert [len(re.findall('id="[a-z0-9-]*measured"', _drawn(each))) for each in ([], points[:1], points)] == [0, 1, 4]
    assert "measured" not in dona4_page.table()
    rows = dona4_page.table(points).splitlines()
    assert len(dona4_page.table().splitlines()) == 2 + len(ZONES) * len(LOCALITIES) + 1
    assert rows[-2:] == [
        "| 5 | 0.9 | 0.1 | 50, 30; 15, 5 | 4.0000 | 3.3000 | yes |",
        "| full | – | 0.1 | 50, 30; 15, 5 | 9.0000 | 9.0000 | **no** |",
    ]


def test_points_come_back_as_they_were(tmp_path: Path) -> None:
    page = tmp_path / "evaluation.md"
    assert dona4_page.stored(page) == []
    (tmp_path / "evaluation").mkdir()
    points = [dona4.Point(dona4.Drawn(Setting(10, 5, Fraction(9, 10)), 50, 30, 15, 5, full=True), 3.25, exact=True)]
    dona4_page.store(page, points)
    assert dona4_page.stored(page) == points


def _drawn(points: Sequence[dona4.Point]) -> str:
    ((name, (draw, title, words, height)),) = dona4_page.drawings(points).items()
    return plots.standalone(draw, name, title, words, height)


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    """``zenjun evaluate dona4 --write`` would change nothing."""
    text = PAGE.read_text()
    page = tmp_path / PAGE.name
    page.write_text(text)
    dona4_page.write(page, dona4_page.stored(PAGE))
    assert page.read_text() == text and "](evaluation/dona4.svg)" in text


def test_the_stored_points_are_exact() -> None:
    """What the captures of a lab show, request by request: 2 or 4 messages for a retrieve, 4 or k(m - 1) + 4 for an update,
    k(n - 1) in full distribution. They are the requests that their seeds draw."""
    points = dona4_page.stored(PAGE)
    assert [(point.drawn.setting, point.drawn.full) for point in points] == list(dona4_lab.POINTS)
    for seed, point in enumerate(points):
        s, full = point.drawn.setting, point.drawn.full
        wanted = dona4_lab.draw(s, dona4_lab.REQUESTS, seed)
        assert point.drawn == dona4_lab.drawn_of(s, dona4_lab.kinds_of(s, wanted), full=full)
        assert point.exact and point.mean == pytest.approx(point.drawn.expected, abs=1e-6)
        formula = dona4.distributed(s.n, s.p) if full else dona4.integrated(s)
        assert point.mean == pytest.approx(float(formula), rel=0.12), "the shares drawn are about those asked for"
