"""Generated blocks of docs/client-protocol.md, from the table in ``daemon/clientwire.py``. ``generate.py`` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ..daemon import clientwire
from ..daemon.clientwire import CODES, FLAGS, FRAMES, KINDS, LAYOUTS, VERSION, Frame, Row
from ..proto.wire import GROUP_NAME_MAX, GROUPS_PER_USER, ORDER_NAMES
from .frametables import fill, table

_DAEMON_FIRST: Final = Frame.WELCOME
"""Types from this one on are the daemon's."""


def _plain(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table without padding: for cells of many words, which padding would make unreadable as text."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    lines.insert(1, "|" + "---|" * len(cells[0]))
    return "\n".join(lines)


def _layout(layout: clientwire.Layout) -> str:
    rows = ((layout.offset(f.name), f.kind, f"`{f.name}`", f.help) for f in layout.fields)
    return f"{layout.help} {layout.size} bytes.\n\n" + table(("offset", "type", "field", "meaning"), rows)


def _frames(daemon: bool) -> str:
    rows = [(int(r.frame), r.frame.name, _versions(r), r.body) for r in FRAMES if (r.frame >= _DAEMON_FIRST) is daemon]
    return _plain(("type", "name", "versions", "body"), rows)


def _versions(row: Row) -> str:
    last = "" if row.until == VERSION else str(row.until)
    return str(row.since) if last == str(row.since) else f"{row.since}–{last}"


def _flags() -> str:
    return table(("frame", "bits", "name", "meaning"), ((f.name, f"{int(bits):#x}", name, text) for f, bits, name, text in FLAGS))


def _limits() -> Iterator[tuple[object, ...]]:
    yield "versions served", f"{clientwire.VERSION_MIN}..{clientwire.VERSION}", ""
    yield "body of a frame", f"{clientwire.BODY_MAX} bytes", "16 MiB + 64 KiB"
    yield "body of a client's frame except SEND", f"{clientwire.CONTROL_MAX} bytes", "64 KiB"
    yield "program's name", f"0..{clientwire.PROGRAM_NAME_MAX} bytes", "UTF-8, printable"
    yield "group's name", f"1..{GROUP_NAME_MAX} bytes", "UTF-8"
    yield (
        "group's name, reserved",
        f"`{clientwire.RESERVED_PREFIX}*` but `{clientwire.STATE_PREFIX}*`",
        "for root and the user that the daemon runs as",
    )
    yield "handle", f"1..{clientwire.HANDLES_MAX - 1}", "of one connection"
    yield "requests without an answer", clientwire.REQUESTS_MAX, "of one connection"
    yield "handles", GROUPS_PER_USER, "of all programs of one user at a station"


def blocks() -> dict[str, str]:
    """Text of every generated block by name."""
    out = {
        "client-limits": table(("what", "bound", "note"), _limits()),
        "client-frames": _frames(daemon=False),
        "daemon-frames": _frames(daemon=True),
        "client-flags": _flags(),
        "client-kinds": table(("kind", "name", "body", "reply"), ((int(k), k.name, body, reply) for k, body, reply in KINDS)),
        "client-orders": table(("ordering", "order"), ((int(ordering), f"`{name}`") for ordering, name in ORDER_NAMES.items())),
        "client-codes": table(("code", "meaning"), ((f"`{code}`", text) for code, text in CODES.items())),
    }
    return out | {f"client-{layout.name}": _layout(layout) for layout in LAYOUTS}


def refresh(text: str) -> str:
    """The page with its blocks up to date. Raises KeyError for a block that nothing here generates."""
    return fill(text, blocks())
