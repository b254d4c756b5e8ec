"""What ``zenjun top`` shows: rates from two status objects, latencies of probes, and the picture of both. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from .status import PEER_STATES, _bytes, _count, _duration, _escape, _membership, _object, _peer_state, _state, _text, _waits

HISTORY: Final = 40
"""Points of a curve, one per look."""
LATENCIES: Final = 120
BAR: Final = 30
CUT: Final = 12
"""Characters of a long cell that are enough to keep its column."""
TABLE_MAX: Final = 16
"""Stations up to which their states as each sees them are shown."""
BLOCKS: Final = " ▁▂▃▄▅▆▇█"
RATES: Final = (
    ("messages sent", "core.messages_sent", False),
    ("bytes of messages sent", "core.message_bytes_sent", True),
    ("messages delivered", "core.messages_delivered", False),
    ("bytes of messages delivered", "core.message_bytes_delivered", True),
    ("frames sent", "datapath.tx_frames", False),
    ("frames received", "datapath.rx_frames", False),
    ("losses noticed", "core.lost_noticed", False),
    ("requests sent (NAK)", "core.tx_nak", False),
    ("retransmissions", "core.tx_retransmit", False),
    ("window closed", "core.window_closed", False),
)
"""Label, counter, whether it counts bytes."""


def counters(s: Mapping[str, Any]) -> dict[str, int]:
    """Everything in a status object that only grows, by a name."""
    out: dict[str, int] = {}
    for part, values in (s.get("counters") or {}).items():
        out.update({f"{part}.{name}": value for name, value in values.items()})
    out.update({f"drop.{reason}": n for reason, n in (s.get("drops") or {}).items()})
    if (lost := (s.get("kernel") or {}).get("drops")) is not None:
        out["drop.receive ring full"] = lost
    for p in s.get("peers") or ():
        out[f"peer.{p.get('station')}.ordered"] = p.get("ordered") or 0
    for c in s.get("clients") or ():
        for name in ("sent", "delivered"):
            out[f"client.{c.get('client')}.{name}"] = c.get(name) or 0
    return out


class Rates:
    """Growth per second between the last two looks, and the curve of each over the last looks."""

    def __init__(self) -> None:
        self._life: object = None
        self._last: dict[str, int] = {}
        self._last_s = 0.0
        self._now: dict[str, float] = {}
        self._curves: dict[str, deque[float]] = {}

    def feed(self, now_s: float, s: Mapping[str, Any]) -> None:
        """Take one status object. After a restart of the daemon start again: its counters have, too."""
        life = (s.get("pid"), s.get("incarnation"))
        if life != self._life:
            self.__init__()  # type: ignore[misc]
            self._life = life
        fresh = counters(s)
        span = now_s - self._last_s
        if self._last and span > 0:
            self._now = {
                name: (value - self._last[name]) / span
                for name, value in fresh.items()
                if name in self._last and value >= self._last[name]
            }
            for name, rate in self._now.items():
                self._curves.setdefault(name, deque(maxlen=HISTORY)).append(rate)
            for gone in self._curves.keys() - fresh.keys():
                del self._curves[gone]
        self._last, self._last_s = fresh, now_s

    def total(self, name: str) -> int | None:
        return self._last.get(name)

    def rate(self, name: str) -> float | None:
        """Per second; None before the second look, or when it went back (a new instance)."""
        return self._now.get(name)

    def curve(self, name: str) -> Sequence[float]:
        return tuple(self._curves.get(name, ()))


class Latencies:
    """How long probes took until every station had them, the last LATENCIES of them, seconds."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=LATENCIES)
        self.missed = 0
        """Probes that were not everywhere in time, since the start."""

    def add(self, seconds: float) -> None:
        self._seen.append(seconds)

    def quantile(self, q: float) -> float | None:
        """0 ≤ q ≤ 1; None without any."""
        ordered = sorted(self._seen)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else None

    def curve(self) -> Sequence[float]:
        return tuple(self._seen)[-HISTORY:]

    def __len__(self) -> int:
        return len(self._seen)


def picture(s: Mapping[str, Any], rates: Rates, latencies: Latencies | None, note: str = "") -> RenderableType:
    """The whole screen: the most important comes first, so that a small terminal cuts the rest. note: what is wrong now."""
    parts: list[RenderableType] = list(_heading(s, note))
    parts.append(_stations(s, rates))
    if (states := _peer_states(s)) is not None:
        parts.append(states)
    parts.append(_window(s, latencies))
    parts.append(_rates(rates))
    parts += [table for table in (_drops(rates), _programs(s, rates)) if table is not None]
    return Group(*parts)


def curve(values: Sequence[float]) -> str:
    """A line of blocks, the highest value as the highest block."""
    top = max(values, default=0.0)
    if top <= 0:
        return BLOCKS[1] * len(values)
    return "".join(BLOCKS[1 + min(7, int(8 * v / top))] if v > 0 else BLOCKS[1] for v in values)


def _heading(s: Mapping[str, Any], note: str) -> Iterator[RenderableType]:
    yield Text.from_markup(
        f"[bold]{_text(s.get('cluster'))}[/bold]  station {_text(s.get('station'))} of {_text(s.get('stations'))}  "
        f"{_state(str(s.get('state', '-')))}  instance {_text(s.get('instance'))}  up {_duration(s.get('uptime_ms'))}"
    )
    if note:
        yield Text(note, style="red")
    for parts in _waits(s):
        yield Text.from_markup(f"[yellow]{' · '.join(parts)}[/yellow]")
    if fence := s.get("fence"):
        yield Text.from_markup(f"[red]the order differs from station {_text(fence.get('station'))}'s[/red]")
    if "members" in s:
        members = ", ".join(_text(m[0]) for m in s["members"] or ()) or "none"
        facts = [" · ".join(parts) for label, parts in _membership(s) if label != "members"]
        yield Text.from_markup(" · ".join([f"members {members}", *facts]))


def _stations(s: Mapping[str, Any], rates: Rates) -> RenderableType:
    table = _table(
        ("station", "state", "heard", "host", "PDUs/s", "missing", "behind", "buffers"),
        left=("state", "host"),
        spare=(7, 6, 4, 3),
    )
    for p in s.get("peers") or ():
        missing, behind = p.get("gaps"), _difference(p.get("top"), p.get("ordered"))
        table.add_row(
            _text(p.get("station")), _state(str(p.get("state", "-"))), _duration(p.get("heard_ms")), _text(p.get("host")),
            _rate(rates.rate(f"peer.{p.get('station')}.ordered")),
            f"[yellow]{missing}[/yellow]" if missing else _text(missing), _text(behind), _text(p.get("free_buffers")),
        )  # fmt: skip
    return table


def _peer_states(s: Mapping[str, Any]) -> RenderableType | None:
    """The peer states at each station, unless every member regards every member as operational."""
    states = _object(_object(s, "membership"), "letters")
    members = {str(m[0]) for m in s.get("members") or ()}
    seen = {row.get(of) for by, row in states.items() if by in members and isinstance(row, Mapping) for of in members}
    if seen <= {"A", None} or len(states) > TABLE_MAX:
        return None
    numbers = sorted(int(k) for k in states if str(k).isdigit())
    table = _table(("sees", *map(str, numbers)), left=map(str, numbers))
    for by in numbers:
        table.add_row(str(by), *(_state(_peer_state(states, by, of)) for of in numbers))
    return Group(
        table, Text.from_markup("  " + " · ".join(f"{_state(k)} {w}" for k, w in PEER_STATES.items() if k in seen and k != "A"))
    )


def _window(s: Mapping[str, Any], latencies: Latencies | None) -> Table:
    w = s.get("window") or {}
    full, used = w.get("frames") or 0, w.get("in_flight") or 0
    filled = round(BAR * min(used, full) / full) if full else 0
    colour = "yellow" if full and used >= full else "green"
    table = Table.grid(padding=(0, 2))
    table.add_row("window", f"[{colour}]{'█' * filled}[/{colour}]{'░' * (BAR - filled)}", f"{used} of {full} frames under way")
    if latencies is None:
        return table
    words = "no probe has come through yet"
    if len(latencies):
        p50, p99, most = (_seconds(latencies.quantile(q)) for q in (0.5, 0.99, 1))
        words = f"median {p50} · 99 % {p99} · worst {most} of {len(latencies)}"
    table.add_row("latency", curve(latencies.curve()[-BAR:]), words)
    if latencies.missed:
        table.add_row("", "", f"[yellow]{latencies.missed} not in time[/yellow]")
    return table


def _rates(rates: Rates) -> RenderableType:
    table = _table(("", "per second", "", "total"), left=("",), spare=(2,))
    for label, name, size in RATES:
        if rates.total(name) is None:
            continue
        rate, total = rates.rate(name), rates.total(name)
        table.add_row(
            label, _bytes(rate) if size else _rate(rate), curve(rates.curve(name)), _bytes(total) if size else _count(total)
        )
    return table


def _drops(rates: Rates) -> RenderableType | None:
    names = [n for n in rates._last if n.startswith("drop.") and rates.total(n)]
    if not names:
        return None
    table = _table(("dropped frames", "per second", "", "total"), left=("dropped frames", ""), spare=(2,))
    for name in names:
        table.add_row(
            _escape(name.removeprefix("drop.")), _rate(rates.rate(name)), curve(rates.curve(name)), _count(rates.total(name))
        )
    return table


def _programs(s: Mapping[str, Any], rates: Rates) -> RenderableType | None:
    clients = s.get("clients") or ()
    if not clients:
        return None
    table = _table(
        ("program", "groups", "sent/s", "delivered/s", "queued", "unsent", ""),
        left=("program", "groups", ""),
        spare=(5, 2, 3, 1),
    )
    for c in clients:
        key = f"client.{c.get('client')}"
        table.add_row(
            _text(c.get("name")), _escape(", ".join(c.get("groups") or ())), _rate(rates.rate(f"{key}.sent")),
            _rate(rates.rate(f"{key}.delivered")), _bytes(c.get("queued_bytes")), _bytes(c.get("unsent_bytes")),
            "[yellow]held[/yellow]" if c.get("paused") or c.get("throttled") else "",
        )  # fmt: skip
    return table


class _Fitting:
    """A table that leaves columns out where the terminal is too narrow for all of them: nothing can be read in cut ones."""

    def __init__(self, columns: Iterable[str], left: Iterable[str] = (), spare: Sequence[int] = ()) -> None:
        """left: names of columns that are aligned there. spare: indices of those that can go, the least important first."""
        self._columns = tuple(columns)
        self._left = frozenset(left)
        self._spare = spare
        self._rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        self._rows.append(cells)

    def _table(self, gone: Container[int], longest: int | None = None) -> Table:
        """longest: characters of a cell at most."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        kept = [k for k in range(len(self._columns)) if k not in gone]
        for name in (self._columns[k] for k in kept):
            justify: JustifyMethod = "left" if name in self._left else "right"
            table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", max_width=longest)
        for row in self._rows:
            table.add_row(*(row[k] for k in kept))
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        most = options.update(max_width=10_000)
        fits = (
            k
            for k in range(len(self._spare) + 1)
            if self._table(self._spare[:k], CUT).__rich_measure__(console, most).maximum <= options.max_width
        )
        yield self._table(self._spare[: next(fits, len(self._spare))])


def _table(columns: Iterable[str], left: Iterable[str] = (), spare: Sequence[int] = ()) -> _Fitting:
    return _Fitting(columns, left, spare)


def _difference(a: object, b: object) -> int | None:
    return a - b if isinstance(a, int) and isinstance(b, int) else None


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1e6:.0f} µs" if value < 1e-3 else f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.1f} s"
