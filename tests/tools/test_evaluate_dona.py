"""The DONA paper's cost formulas, its table, its claims, and the figures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path

import pytest
from zenjun.tools.cli.evaluate import PAGE
from zenjun.tools.evaluate import dona, dona_counts, dona_lab, dona_page
from zenjun.tools.evaluate.dona import Point, Setting, Update
from zenjun.tools.evaluate.dona_counts import ASK, COMMON, Asked
from zenjun.tools.pcap.report import plots

HALF, NINE = Fraction(1, 2), Fraction(9, 10)
VECTORS = [
    ((10, 2, Fraction(0)), "0.444444", "19.277778", ("27.277778", "27.277778", "27.055556")),
    ((10, 5, HALF), "0.555556", "5.875556", ("19.688889", "19.288889", "18.844444")),
    ((10, 10, NINE), "0.900000", "0.486000", ("2.430000", "2.190000", "1.990000")),
    ((20, 4, HALF), "0.605263", "16.407895", ("48.815789", "48.342105", "47.710526")),
]
"""k = 1, p = 0.01: (n, m, d), alpha, equation (2), equation (3) with each kind of update."""
SETTINGS = [
    Setting(n, m, d, p, k)
    for n in (2, 3, 7, 10, 24)
    for m in range(1, n + 1)
    for d in (Fraction(0), Fraction(1, 3), NINE, Fraction(1))
    for p in (Fraction(0), Fraction(1, 100), HALF, Fraction(1))
    for k in (Fraction(1), Fraction(7, 2))
]


@pytest.mark.parametrize(("point", "alpha", "manager", "network"), VECTORS)
def test_vectors(point: tuple[int, int, Fraction], alpha: str, manager: str, network: tuple[str, ...]) -> None:
    s = Setting(*point)
    assert f"{float(s.alpha):.6f}" == alpha
    assert f"{float(dona.manager(s)):.6f}" == manager
    assert tuple(f"{float(dona.network(s, update)):.6f}" for update in Update) == network


def test_one_zone_is_the_central_manager() -> None:
    """Equations (2) and (3) are (1) at m = 1, whatever an update among managers would cost."""
    for s in SETTINGS:
        if s.m == 1:
            for update in Update:
                assert dona.manager(s, update) == dona.network(s, update) == dona.central(s.n, s.k)


def test_table_sums_to_the_formulas() -> None:
    """Table 3.1: all rows are equation (2), the rows of the own zone times m are equation (3)."""
    for s in SETTINGS:
        rows = dona.table(s)
        assert dona.total(rows) == dona.manager(s)
        assert s.m * dona.total(row for row in rows if row.own) == dona.network(s)


def test_variants_by_their_steps() -> None:
    """U and the load of a manager, counted step by step instead of by formula."""
    for m in range(2, 12):
        broadcast = 0
        handled = dict.fromkeys(range(m), 0)
        for source in range(m):
            for step in ("REQ", "GRANT", "DATA", "DONE", "CONF"):
                answers = step in ("GRANT", "DONE")
                for other in [j for j in range(m) if j != source] if answers else [source]:
                    broadcast += 1
                    handled[other] += 1  # its sender
                    for receiver in [source] if answers else [j for j in range(m) if j != source]:
                        handled[receiver] += 1
        assert broadcast == m * Update.BROADCAST.messages(m) == m * (2 * m + 1)
        assert set(handled.values()) == {Update.BROADCAST.handled(m)}
        assert (Update.UNICAST.messages(m), Update.UNICAST.handled(m)) == (5 * (m - 1), 10 * (m - 1))
        assert (Update.ORDERED.messages(m), Update.ORDERED.handled(m)) == (1, m)


def test_the_load_of_a_manager_need_not_fall_with_the_zones() -> None:
    """The paper calls it obvious. False from one zone to two, without much locality; true from two zones on."""
    assert dona.manager(Setting(10, 2)) > dona.manager(Setting(10, 1))
    for n, below in ((10, "0.1133"), (20, "0.0640")):
        d = dona.manager_rises_below(n)
        assert f"{float(d):.4f}" == below
        assert dona.manager(Setting(n, 2, d)) == dona.central(n)
        step = Fraction(1, 1000)
        assert dona.manager(Setting(n, 2, d - step)) > dona.central(n) > dona.manager(Setting(n, 2, d + step))
        for locality in dona.LOCALITIES:
            loads = [dona.manager(Setting(n, m, locality)) for m in range(2, n + 1)]
            assert loads == sorted(loads, reverse=True)


def test_rise_and_fall_need_a_small_network() -> None:
    """Without locality the network's messages have a peak inside up to n = 37; above, they only rise with the zones."""
    for n in range(3, 60):
        curve = [dona.network(Setting(n, m)) for m in range(1, n + 1)]
        top = dona.peak(n, Fraction(0))
        assert curve[:top] == sorted(curve[:top]) and curve[top - 1 :] == sorted(curve[top - 1 :], reverse=True)
        assert (top < n) == (n <= 37) or n == 3
    assert [dona.peak(n, Fraction(0)) for n in (10, 20, 37, 38)] == [4, 7, 27, 38]


@pytest.mark.parametrize(
    "bad",
    [
        (1, 1, HALF, HALF, 1), (10, 0, HALF, HALF, 1), (10, 11, HALF, HALF, 1), (10, 2, -HALF, HALF, 1),
        (10, 2, 4 * HALF, HALF, 1), (10, 2, HALF, 4 * HALF, 1), (10, 2, HALF, -HALF, 1), (10, 2, HALF, HALF, 0),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(bad: tuple[int, int, Fraction, Fraction, int]) -> None:
    n, m, d, p, k = bad
    with pytest.raises(ValueError, match="no network"):
        Setting(n, m, d, p, Fraction(k))


# ---- measured points


def _counts(asked: Asked, calls: int) -> dict[tuple[str, int], int]:
    """What a run by quota would send: every node makes ``calls`` calls; n stations in m zones, the managers 1..m."""
    s = asked.setting
    inside, updates = int(calls * s.alpha), int(calls * s.p)
    assert inside == calls * s.alpha and updates == calls * s.p and inside * s.p == int(inside * s.p)
    out: dict[tuple[str, int], int] = {}

    def send(group: str, station: int, n: int) -> None:
        out[group, station] = out.get((group, station), 0) + n

    for node in range(1, s.n + 1):
        manager = (node - 1) % s.m + 1
        if node != manager:
            send(ASK, node, calls)
            send(ASK, manager, calls)
        outside = int((calls - inside) * (1 - s.p))
        send(ASK, manager, outside)
        send(ASK, manager % s.m + 1, outside)
        change = int((calls - inside) * s.p)
        common = COMMON[asked.update]
        if asked.update is Update.ORDERED:
            send(common, manager, change)
        else:
            send(common, manager, change * (3 if asked.update is Update.BROADCAST else 3 * (s.m - 1)))
            for other in set(asked.managers) - {manager}:
                send(common, other, 2 * change)
    return out


@pytest.mark.parametrize("update", Update)
@pytest.mark.parametrize(("m", "d"), [(2, Fraction(0)), (5, HALF), (10, NINE), (1, HALF)])
def test_counts_by_quota_lie_on_the_lines(update: Update, m: int, d: Fraction) -> None:
    asked = Asked(Setting(10, m, d), update, frozenset(range(1, m + 1)), 10 * 9000)
    point = dona_counts.point(asked, _counts(asked, 9000))
    assert point.network == pytest.approx(float(dona.network(asked.setting, update)), abs=1e-9)
    assert point.manager == pytest.approx(float(dona.manager(asked.setting, update)), abs=1e-9)


@pytest.mark.parametrize(("s", "update"), dona_lab.POINTS)
def test_calls_are_dealt_without_a_rest(s: Setting, update: Update) -> None:
    """Each node's shares of the own zone, other zones and updates are the model's, exactly; and the same again."""
    calls = dona_lab.calls_of(s)
    for station in range(1, s.n + 1):
        wanted = dona_lab.deal(s, station)
        own = sum(what == 0 for what in wanted)
        updates = sum(what == 1000 for what in wanted)
        assert len(wanted) == calls and Fraction(own, calls) == s.alpha
        assert Fraction(updates, calls) == (1 - s.alpha) * s.p
        assert (station - 1) % s.m + 1 not in wanted, "nobody asks another manager for the own zone"
        assert wanted == dona_lab.deal(s, station)


def test_counts_of_another_run_are_refused() -> None:
    s = Setting(10, 2)
    for asked in (Asked(s, Update.ORDERED, frozenset({1}), 10), Asked(s, Update.ORDERED, frozenset({1, 2}), 0)):
        with pytest.raises(ValueError, match="managers and"):
            dona_counts.point(asked, {})
    with pytest.raises(ValueError, match="a terminal"):
        dona_counts.point(Asked(s, Update.ORDERED, frozenset({1, 2}), 10), {("zenjun.dir", 3): 1})


# ---- page and figures


def _drawn(points: tuple[Point, ...] = ()) -> dict[str, str]:
    made = dona_page.drawings(points).items()
    return {name: plots.standalone(draw, name, title, text, height) for name, (draw, title, text, height) in made}


def test_only_what_is_measured_is_drawn() -> None:
    assert all('measured"' not in svg for svg in _drawn().values())
    assert "measured" not in dona_page.table()
    ordered = Point(Setting(10, 2), Update.ORDERED, 27.0, 19.0)
    unicast = Point(Setting(10, 5, HALF), Update.UNICAST, 19.7, 5.9)
    other = Point(Setting(10, 5, HALF, Fraction(1, 10)), Update.UNICAST, 20.0, 6.0)
    found = {name: len(re.findall(r'id="[a-z-]*measured"', svg)) for name, svg in _drawn((ordered, unicast, other)).items()}
    assert found == {"dona-network": 1, "dona-manager": 1, "dona-variants": 1}
    rows = dona_page.table((ordered, unicast, other)).splitlines()
    assert rows[0].endswith("measured: update, network, a manager |") and len(rows) == 2 + len(dona_page.SETTINGS) + 1
    assert sum("ordered, 27.000, 19.000" in row for row in rows) == sum("unicast, 20.000, 6.000" in row for row in rows) == 1


def test_measured_points_are_on_the_lines() -> None:
    """What the page draws was measured, and is what the formulas say."""
    points = dona_page.stored(PAGE)
    assert {(p.setting, p.update) for p in points} == set(dona_lab.POINTS)
    for p in points:
        assert p.network == pytest.approx(float(dona.network(p.setting, p.update)), abs=1e-6), p
        assert p.manager == pytest.approx(float(dona.manager(p.setting, p.update)), abs=1e-6), p


def test_points_come_back_as_they_were(tmp_path: Path) -> None:
    page = tmp_path / "evaluation.md"
    assert dona_page.stored(page) == []
    (tmp_path / "evaluation").mkdir()
    points = [Point(Setting(10, 5, HALF), Update.UNICAST, 19.7, 5.9), Point(Setting(10, 2), Update.ORDERED, 27.0, 19.0)]
    dona_page.store(page, points)
    assert dona_page.stored(page) == points


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    """``zenjun evaluate dona --write`` would change nothing."""
    text = PAGE.read_text()
    page = tmp_path / PAGE.name
    page.write_text(text)
    points = dona_page.stored(PAGE)
    dona_page.write(page, points)
    assert page.read_text() == text
    for name, svg in _drawn(tuple(points)).items():
        assert f"](evaluation/{name}.svg)" in text
        ET.fromstring(svg)
        lines = re.findall(r'id="[a-z-]*wide-line2d_\d+"', (PAGE.parent / "evaluation" / f"{name}.svg").read_text())
        assert len(lines) >= 2 * 5
