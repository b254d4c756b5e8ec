"""``zenjun status``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ...daemon.terminal import json_text, printable
from .common import daemon, socket_option

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH: Final = 200
COLOURS: Final = {
    "open": "green", "up": "green", "self": "green",
    "blocked": "yellow", "silent": "yellow", "deaf": "yellow", "opening": "yellow", "draining": "yellow", "left": "yellow",
    "never seen": "yellow", "fenced": "red", "no link": "red", "down": "red", "absent": "red",
    "restarted": "yellow", "expelled": "yellow", "told": "yellow", "joining": "cyan", "out": "red",
    "A": "green", "AAS": "yellow", "AS": "yellow", "S": "red", "SSA": "cyan", "SA": "cyan",
}  # fmt: skip
PEER_STATES: Final = {
    "A": "operational",
    "AAS": "others report its stop",
    "AS": "its stop is being agreed",
    "S": "stopped",
    "SSA": "others vote to admit it",
    "SA": "its recovery is being agreed",
}
"""The peer states (docs/membership.md), from start to recovery."""
REPAIR: Final = (
    ("retransmissions sent", "core", "tx_retransmit"),
    ("of them for others", "core", "tx_relay"),
    ("requests sent (NAK)", "core", "tx_nak"),
    ("requests received", "core", "rx_nak"),
    ("losses noticed", "core", "lost_noticed"),
    ("PDUs repaired", "core", "rx_repaired"),
    ("duplicates received", "core", "rx_duplicate"),
    ("received out of order", "core", "rx_out_of_order"),
    ("polls sent", "core", "tx_poll"),
    ("window closed", "core", "window_closed"),
    ("send queue of the interface full", "datapath", "tx_busy"),
    ("slow clients disconnected", "datapath", "slow_disconnects"),
)
TRAFFIC: Final = (
    ("frames received", "core", "rx_frames"),
    ("frames sent", "datapath", "tx_frames"),
    ("data PDUs sent", "core", "tx_data"),
    ("confirmations sent", "core", "tx_confirm"),
    ("heartbeats sent", "core", "tx_heartbeat"),
    ("messages sent", "core", "messages_sent"),
    ("messages delivered", "core", "messages_delivered"),
)


@click.command(
    short_help="Show what the local daemon knows: peers, positions, drops.",
    epilog="Members: docs/status.md. Exit codes: docs/cli.md.",
)
@click.option("--json", "as_json", is_flag=True, help="The daemon's answer as it came (docs/status.md).")
@click.option("--matrix", is_flag=True, help="Show the ack-list matrix as well.")
@click.option(
    "-t", "--timeout", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Seconds to wait for an answer."
)
@socket_option
def status(as_json: bool, matrix: bool, timeout: float, path: str | None) -> None:
    """Show the state of the cluster as the local daemon sees it: stations, positions of the order, windows, losses, clients.

    \b
    Examples:
      zenjun status
      zenjun status --matrix
      zenjun status --json | jq -r .state
      zenjun status --socket /run/zenjun/other.sock
    """
    with daemon(path, "status", timeout) as connection:
        reply = connection.status()
    if as_json:
        click.echo(json_text(reply, indent=2))
        return
    from .output import Output

    # In a pipe there is no width to fit into.
    render(reply, Output(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH), matrix)


def render(s: Mapping[str, Any], console: Console, matrix: bool = False) -> None:
    """Print a status object for people. Members that are missing are shown as a dash: daemon and tool may differ in version."""
    for line in _heading(s, console.width):
        console.print(line, soft_wrap=True)
    for line in _peer_states(s, console.width):
        console.print(line, soft_wrap=True)
    for table in (
        _stations(s, console.width), _streams(s, console.width), _matrix(s) if matrix else None, _counters("Traffic", TRAFFIC, s),
        _counters("Loss and repair", REPAIR, s, _drops(s)), _clients(s, console.width), _groups(s),
    ):  # fmt: skip
        if table is not None:
            console.print(table)


def _heading(s: Mapping[str, Any], width: int) -> Iterable[str]:
    yield (
        f"[bold]{_text(s.get('cluster'))}[/bold]  station {_text(s.get('station'))} of {_text(s.get('stations'))}"
        f"  {_state(str(s.get('state', '-')))}  instance {_text(s.get('instance'))}"
    )
    if _object(s, "configuration").get("in_roster", True):
        for parts in _waits(s):
            yield from _folded("", parts, width, "  ", "yellow")
    else:
        away = f"is not in the roster: zenjun cluster add {_text(s.get('station'))} at a member takes it in"
        yield from _folded("", [f"this station {away}; else its daemon can be stopped"], width, "  ", "yellow")
    if fence := s.get("fence"):
        where = f"station {_text(fence.get('station'))}'s at position {_text(fence.get('position'))}"
        yield f"  [red]order differs from {where}[/red]"
    r = s.get("rights") or {}
    if r.get("realtime_wanted") and not r.get("realtime"):
        yield "  [yellow]real-time priority was asked for but not granted (CAP_SYS_NICE)[/yellow]"
    for label, parts in _facts(s):
        yield from _folded(label, parts, width)


def _waits(s: Mapping[str, Any]) -> Iterable[list[str]]:
    """The stations that each station waits for, one line each as its parts: this station first, without its name."""
    own = s.get("station")
    waits = [(w.get("station"), w.get("for"), w) for w in _objects(_object(s, "membership").get("waiting"))]
    # What delivery here waits for is in both lists if it is a removal under way as well.
    told = {about for by, about, _ in waits if by == own}
    waits += [(own, b.get("station"), b) for b in _objects(s.get("blocked")) if b.get("station") not in told]
    for by, about, w in sorted(waits, key=lambda wait: (wait[0] != own, str(wait[0]), str(wait[1]))):
        who = "" if by == own else f"station {_text(by)} "
        yield [f"{who}waits for station {_text(about)}: {_text(w.get('reason'))} for {_duration(w.get('since_ms'))}"]


def _membership(s: Mapping[str, Any]) -> Iterable[tuple[str, list[str]]]:
    hosts = {p.get("station"): p.get("host") for p in _objects(s.get("peers"))}
    members = [m for m in s.get("members") or () if isinstance(m, Sequence) and len(m) >= 2]
    if "members" in s:
        named = [f"{_text(k)} {_text(hosts.get(k))} (incarnation {_text(life)})" for k, life, *_ in members]
        yield "members", named or ["none: in no instance"]
    if q := _object(s, "quorum"):
        parts = [f"{len(members)} of {_text(s.get('stations'))} are members", f"{_text(q.get('needed'))} needed"]
        if required := q.get("required"):
            parts.append(f"required: {', '.join(map(_text, required))}")
        have = q.get("have")
        parts.append("-" if have is None else "[green]reached[/green]" if have else "[red]not reached[/red]")
        yield "quorum", parts
    if m := _object(s, "membership"):
        changes = m.get("changes")
        parts = ["no change yet" if changes == 0 else f"{_text(changes)} changes" if changes != 1 else "1 change"]
        if changes:
            parts.append(f"last {_duration(m.get('last_change_ms'))} ago")
        if proposed := m.get("proposed"):
            parts.append(f"[yellow]instance {_text(proposed)} is being agreed[/yellow]")
        yield "membership", parts


def _peer_states(s: Mapping[str, Any], width: int) -> Iterable[str]:
    """The n × n table of peer states: row k has the states that station k keeps for the others. Columns that the width does not
    take follow below."""
    table = _object(_object(s, "membership"), "letters")
    numbers = sorted({int(k) for k in (*table, *(k for row in table.values() for k in row or ())) if str(k).isdigit()})
    if not numbers:
        return
    cells = {(by, of): _peer_state(table, by, of) for by in numbers for of in numbers}
    wide = max(len(text) for text in (*cells.values(), *map(str, numbers)))
    first = max(len("by"), len(str(numbers[-1])))
    room = max(1, (width - 2 - first - 1) // (wide + 1))
    yield ""
    yield "[bold]States of the stations, as each sees them[/bold]"
    for at in range(0, len(numbers), room):
        some = numbers[at : at + room]
        yield f"  {'by':<{first}} " + "".join(f" {of:<{wide}}" for of in some).rstrip()
        for by in numbers:
            yield f"  {by:>{first}} " + "".join(f" {_padded(cells[by, of], wide)}" for of in some).rstrip()
    seen = [f"{_state(text)} {words}" for text, words in PEER_STATES.items() if text in cells.values() and text != "A"]
    if "-" in cells.values():
        seen.append("- not known")
    yield from _folded("", seen, width, "  ")


def _peer_state(table: Mapping[str, Any], by: int, of: int) -> str:
    row = table.get(str(by))
    value = row.get(str(of)) if isinstance(row, Mapping) else None
    return str(value) if value else "-"


def _padded(text: str, width: int) -> str:
    return _state(text) + " " * (width - len(text))


def _facts(s: Mapping[str, Any]) -> Iterable[tuple[str, list[str]]]:
    yield from _membership(s)
    i, w, p, d = (s.get(name) or {} for name in ("interface", "window", "positions", "digest"))
    started = f"zenjund {_text(s.get('version'))}, process {_text(s.get('pid'))}"
    yield "daemon", [started, f"up {_duration(s.get('uptime_ms'))}", f"incarnation {_text(s.get('incarnation'))}"]
    link = f"{_text(i.get('name'))} (index {_text(i.get('index'))}, {_text(i.get('mac'))})"
    yield "interface", [f"{link} {_state(str(i.get('state', '-')))}"]
    yield from _links(s)
    sizes = (
        ("MTU", "mtu"),
        ("headers", "header_bytes"),
        ("largest PDU", "frame_max"),
        ("largest message in one frame", "payload_max"),
    )
    yield "sizes", [f"{label} {_sized(i.get(name))}" for label, name in sizes]
    yield (
        "window",
        [f"{_text(w.get('in_flight'))} of {_text(w.get('frames'))} frames under way", f"room for {_text(w.get('room'))}"],
    )
    yield "positions", [f"{name} {_text(p.get(name))}" for name in ("ordered", "preack", "ack", "clock")]
    yield "digest", [f"{_text(d.get('value'))} {_text(d.get('position'))} PDUs into instance {_text(d.get('instance'))}"]
    if isinstance(memory := s.get("memory_bytes"), Mapping):
        yield "memory", [f"{k} {_bytes(v)}" for k, v in memory.items()]


def _links(s: Mapping[str, Any]) -> Iterable[tuple[str, list[str]]]:
    """One line for each link, where there are several."""
    rows = _objects(s.get("links"))
    for row in rows if len(rows) > 1 else ():
        bad = [r for r in _objects(row.get("stations")) if r.get("state") != "up"]
        reach = [f"station {_text(r.get('station'))} [red]{_text(r.get('state'))}[/]" for r in bad] or ["up to all stations"]
        parts = [f"{_text(row.get('name'))} {_state(str(row.get('state', '-')))}", *reach, f"data: {_text(row.get('data'))}"]
        yield f"link {_text(row.get('link'))}", [*parts, *(["[yellow]doubtful[/]"] if row.get("doubtful") else [])]


def _folded(label: str, parts: Iterable[str], width: int, indent: str = "", colour: str = "") -> Iterable[str]:
    """A label and its parts, on the number of lines that the width needs; no part is broken. Without a label the parts follow the
    indent; without parts the result is empty."""
    from rich.text import Text

    begin = f"  {label:<11}" if label else indent
    line, room = begin, width - len(begin)
    used = 0
    for part in parts:
        size = Text.from_markup(part).cell_len
        if used and used + 3 + size > room:
            yield line
            line, used = " " * len(begin), 0
        part = f"[{colour}]{part}[/{colour}]" if colour else part
        line += f" · {part}" if used else part
        used += size + 3 * bool(used)
    if used:
        yield line


def _stations(s: Mapping[str, Any], width: int) -> Table:
    table = _Columns("Stations", width, (
        ("station", 0), ("state", 0), ("heard", 0), ("host", 0), ("address", 72), ("buffers", 56), ("largest", 56),
    ), left=("state", "host", "address"))  # fmt: skip
    for p in s.get("peers") or ():
        table.add_row(
            _text(p.get("station")), _state(str(p.get("state", "-"))), _duration(p.get("heard_ms")), _text(p.get("host")),
            _text(p.get("mac")), _text(p.get("free_buffers")), _text(p.get("frame_max")),
        )  # fmt: skip
    return table.table


def _streams(s: Mapping[str, Any], width: int) -> Table:
    table = _Columns("Their PDUs", width, (
        ("of", 0), ("next", 0), ("top", 60), ("gaps", 0), ("all have", 60), ("all know", 60), ("ordered", 0),
    ))  # fmt: skip
    for p in s.get("peers") or ():
        table.add_row(
            _text(p.get("station")), _text(p.get("req")), _text(p.get("top")), _warn(p.get("gaps")), _text(p.get("min_al")),
            _text(p.get("acked")), _text(p.get("ordered")),
        )  # fmt: skip
    return table.table


def _matrix(s: Mapping[str, Any]) -> Table | str:
    rows: Sequence[Sequence[Any]] = s.get("matrix") or ()
    if not rows:
        return "  no ack-list matrix: the cluster is not open"
    table = _table("What each station next expects", ("of station", *(f"by {j + 1}" for j in range(len(rows)))))
    for h, row in enumerate(rows):
        table.add_row(str(h + 1), *map(_text, row))
    return table


def _counters(
    title: str, names: Iterable[tuple[str, str, str]], s: Mapping[str, Any], more: Iterable[tuple[str, Any]] = ()
) -> Table | None:
    counters = s.get("counters") or {}
    rows = [(label, (counters.get(part) or {}).get(name)) for label, part, name in names]
    rows = [(label, value) for label, value in rows if value] + list(more)
    if not rows:
        return None
    table = _table(title, ("what", "count"), left=("what",), header=False)
    for label, value in rows:
        table.add_row(label, _count(value))
    return table


def _drops(s: Mapping[str, Any]) -> list[tuple[str, Any]]:
    rows = [(f"dropped: {reason}", n) for reason, n in (s.get("drops") or {}).items() if n]
    lost = (s.get("kernel") or {}).get("drops")
    return [*rows, ("lost by the kernel (receive ring full)", lost)] if lost else rows


def _clients(s: Mapping[str, Any], width: int) -> Table | None:
    clients = s.get("clients") or ()
    if not clients:
        return None
    table = _Columns("Programs here", width, (
        ("client", 0), ("name", 0), ("groups", 60), ("queued", 0), ("unsent", 72), ("sent", 72), ("delivered", 72), ("held", 0),
    ), left=("name", "groups", "held"))  # fmt: skip
    for c in clients:
        table.add_row(
            _text(c.get("client")), _text(c.get("name")), _escape(", ".join(c.get("groups") or ())),
            _bytes(c.get("queued_bytes")), _bytes(c.get("unsent_bytes")), _count(c.get("sent")),
            _count(c.get("delivered")), "yes" if c.get("paused") else "rate" if c.get("throttled") else "",
        )  # fmt: skip
    return table.table


def _groups(s: Mapping[str, Any]) -> Table | None:
    groups = s.get("groups") or ()
    if not groups:
        return None
    table = _table("Groups", ("name", "open", "members"), left=("name", "open", "members"))
    for g in groups:
        who = ", ".join(f"{m[0]}/{m[1]} {m[2]}".strip() for m in g.get("members") or ())
        table.add_row(_text(g.get("name")), "yes" if g.get("open") else "", _escape(who))
    return table


class _Columns:
    """A table that leaves columns out where it gets narrow: each is given with the least width at which it is shown."""

    def __init__(self, title: str, width: int, columns: Sequence[tuple[str, int]], left: Iterable[str] = ()) -> None:
        self._shown = [least <= width for _, least in columns]
        self.table = _table(title, [name for name, least in columns if least <= width], left)

    def add_row(self, *cells: str) -> None:
        self.table.add_row(*(c for c, shown in zip(cells, self._shown, strict=True) if shown))


def _table(title: str, columns: Iterable[str], left: Iterable[str] = (), header: bool = True) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=header, pad_edge=False,
        collapse_padding=True,
    )  # fmt: skip
    for column in columns:
        # Where it gets narrow, names are folded; numbers are cut only when that is not enough, and it is seen.
        text = column in left
        table.add_column(column, justify="left" if text else "right", overflow="fold" if text else "ellipsis", no_wrap=not text)
    return table


def _object(s: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A member that is an object; an empty one if it is missing or something else."""
    value = s.get(name)
    return value if isinstance(value, Mapping) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, (list, tuple)) else []


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))


def _text(value: object) -> str:
    return "-" if value is None or value == "" else _escape(str(value))


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else _text(value)


def _warn(value: object) -> str:
    return f"[yellow]{_text(value)}[/yellow]" if value else _text(value)


def _state(state: str) -> str:
    colour = COLOURS.get(state)
    return f"[{colour}]{_escape(state)}[/{colour}]" if colour else _escape(state)


def _sized(value: object) -> str:
    if not isinstance(value, Mapping):
        return _text(value)
    source = value.get("source")
    return f"{_text(value.get('bytes'))} ({_text(source)})" if source else _text(value.get("bytes"))


def _duration(ms: object) -> str:
    if not isinstance(ms, (int, float)):
        return "-"
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"


def _bytes(n: object) -> str:
    if not isinstance(n, (int, float)):
        return "-"
    value, units = float(n), ("B", "KiB", "MiB", "GiB")
    for unit in units:
        if value < 1024 or unit == units[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return "-"
