"""Generated blocks of the pages under docs/: frames from the field table in ``proto/wire.py``, the states of a station from the
table of moves in ``proto/membership.py``.

A block is between ``<!-- generated: NAME -->`` and ``<!-- end -->``; the prose around it is written by hand. ``generate.py``
writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ..proto import envelope, links, wire
from ..proto.configmessages import CONFIG_CHANGE
from ..proto.peerstate import MOVES, Cause, PeerState
from ..proto.service.keys import KEY_CHANGE

PAGES: Final = ("protocol.md", "glossary.md", "membership.md")
_BLOCK: Final = re.compile(r"(<!-- generated: (?P<name>[a-z_-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table with its columns aligned, so that it reads well as plain text too."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _layout(layout: wire.Layout) -> str:
    rows = ((layout.offset(f.name), f.width, f"`{f.name}`", f.symbol, f.help) for f in layout.fields)
    fields = table(("offset", "bytes", "field", "paper", "meaning"), rows)
    each = f" Repeated `{layout.repeat}` times." if layout.repeat else ""
    return f"{layout.help}{each} {layout.size} bytes.\n\n{fields}"


def _kinds() -> str:
    def row(kind: wire.Kind) -> tuple[object, ...]:
        payload = " ".join(layout.name for layout in wire.PAYLOAD.get(kind, ()))
        return (
            int(kind),
            kind.name,
            "yes" if kind in wire.SEQUENCED else "no",
            payload or "-",
            "" if kind in wire.IMPLEMENTED else "reserved: dropped on receipt",
        )

    return table(("number", "kind", "in the stream", "payload", "state"), map(row, wire.Kind))


_FLAG_HELP: Final = {
    "PACK": "a pack vector (P) follows the ack vector (A); every CONFIRM has one",
    "POLL": "the sender lacks information: a station that has it answers (rule C3)",
    "NEED_ACK": "a program waits for level *ack* of this PDU: confirm P as well (rule C2)",
    "BYE": "the sender leaves on purpose; nothing more comes from this incarnation",
    "FENCED": "the sender has received a different order digest and delivers nothing any more",
    "OP": "delivered on acceptance, in its source's order only (groups with order `op`)",
    "RELAYED": "a CONFIRM sent again by another station, for one that does not receive from its source",
    "PAIR": "of a link of two stations, sent to one address; the vectors have two entries, the lower station's first",
    "REPORT": "PAIR: the time at which a proposer has received messages ([multicast.md](multicast.md))",
    "DECIDE": "PAIR: the time that was decided",
    "HELD": "PAIR: messages are delivered at this station and at its followers",
    "STABLE": "PAIR: messages are delivered at all destinations",
    "RELAY": "PAIR: a message whose originator is gone",
    "VIEW": "a view event, as the core delivers it; never on the wire",
    "USER": "a program's message",
    "GROUP": "process-group control (join, leave), handled by the daemons at its position in the order",
    "SERVICE": "of a service inside the daemon",
    "FRAGMENT": "a fragment header follows the message header",
    "LAST": "this fragment completes its message; here is the message's position in the order",
    "OUTDATED": "no proposal: lists the highest incarnation of a station that asks to join with one that is not new",
    "CONFIGURED": "a configuration header follows the host name, with the options that it counts",
    "STARTED": "the sender has started the instance it names; nothing later can have been agreed without it",
}


def _values(*enums: type[wire.Flag] | type[wire.MessageFlag] | type[wire.OpenFlag] | type[wire.MessageType]) -> str:
    where = {wire.Flag: "`flags`", wire.MessageFlag: "`mflags`", wire.OpenFlag: "`oflags`", wire.MessageType: "`type`"}
    rows = [(where[enum], f"0x{int(item):02x}", item.name, _FLAG_HELP[item.name or ""]) for enum in enums for item in enum]
    return table(("field", "value", "name", "meaning"), rows)


def stations_fitting(size: Callable[[int], int], mtu: int = wire.MTU_MIN) -> int:
    """Most stations for which a PDU of the given size function fits the MTU."""
    return max(n for n in range(1, wire.STATIONS_MAX + 1) if size(n) <= mtu)


def _sizes() -> str:
    rows = (
        (
            n,
            wire.confirm_bytes(n),
            wire.nak_bytes(n),
            wire.open_bytes(n),
            wire.proposal_bytes(n),
            1500 - wire.data_bytes(n, 0),
            wire.mtu_needed(n),
        )
        for n in sorted(
            {3, 8, 16, 32, stations_fitting(wire.open_bytes), stations_fitting(wire.confirm_bytes), wire.STATIONS_MAX}
        )
    )
    head = (
        "stations",
        "CONFIRM",
        "NAK, 1 range",
        "OPEN, longest name",
        "largest vote",
        "largest whole message at MTU 1500",
        "MTU needed",
    )
    return table(head, rows)


def _symbols() -> str:
    rows = [
        (field.symbol, f"`{field.name}`", layout.name, field.help)
        for layout in wire.LAYOUTS
        for field in layout.fields
        if field.symbol
    ]
    return table(("paper", "field", "in", "meaning"), rows)


def _numbers() -> str:
    rows = (
        ("EtherType", f"{wire.ETHERTYPE:#06x}", "IEEE 802 local experimental 1; configurable"),
        ("group address", f"`{wire.GROUP_MAC}`", "locally administered; outside the range that bridges keep to themselves"),
        ("protocol version", wire.VERSION, "another version is dropped and counted"),
        ("stations", f"1..{wire.STATIONS_MAX}", "of the roster"),
        ("largest message", f"{wire.MESSAGE_MAX} bytes", "of a program; fragmented over PDUs"),
        ("smallest MTU", f"{wire.MTU_MIN} bytes", "see the table of sizes for what fits"),
        ("ranges in a NAK", f"1..{wire.NAK_RANGES_MAX}", ""),
        ("host name in an OPEN", f"0..{wire.OPEN_NAME_MAX} bytes", "UTF-8"),
        ("group name", f"1..{wire.GROUP_NAME_MAX} bytes", "UTF-8; its CRC-32 is on the wire"),
    )
    return table(("what", "value", "note"), rows)


_CAUSE_HELP: Final = {
    Cause.STOP_SEEN: "silent for `fail_timeout`, not receiving, left, restarted, expelled; or reported for `adopt_timeout`",
    Cause.STOP_REPORTED: "a vote of an operational station removes it",
    Cause.WITHDRAWN: "heard again, and no other station votes to remove it; or there is no quorum without it",
    Cause.REMOVED: "the removal is decided",
    Cause.RECOVERY_SEEN: "its RCV; or reported for `adopt_timeout`",
    Cause.RECOVERY_REPORTED: "a vote of an operational station admits it",
    Cause.STOP_WINS: "a stop is being agreed: it must ask again, but votes already sent stay valid",
    Cause.ADMITTED: "the admission is decided",
}
_STATE_HELP: Final = {
    PeerState.A: "operational",
    PeerState.AAS: "operational; others report that it has stopped",
    PeerState.AS: "stop seen, being agreed",
    PeerState.S: "stopped: not a member",
    PeerState.SSA: "stopped; others vote to admit it",
    PeerState.SA: "recovery seen, being agreed",
}


def _peer_states() -> str:
    def bit(value: bool) -> str:
        return "1" if value else "0"

    rows = ((x.name, bit(x.state), bit(x.trans), _STATE_HELP[x]) for x in PeerState)
    return table(("peer state", "state", "trans", "as one station sees another"), rows)


def _moves() -> str:
    moves = sorted(((a, c, b) for (a, c), b in MOVES.items() if a is not b), key=lambda m: (m[0].value, list(Cause).index(m[1])))
    return table(
        ("from", "to", "because", "in `moves`", "that is"),
        ((a.name, b.name, c.name, f"`{a.name.lower()} {c.value}`", _CAUSE_HELP[c]) for a, c, b in moves),
    )


def _diagram() -> str:
    """The moves for Mermaid: causes with the same ends on one arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (a, cause), b in MOVES.items():
        if a is not b:
            arrows.setdefault((a.name, b.name), []).append(cause.name.lower().replace("_", " "))
    lines = [f"    {a} --> {b}: {', '.join(causes)}" for (a, b), causes in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    direction LR", *lines, "```"])


def blocks() -> dict[str, str]:
    """Text of every generated block by name."""
    out = {
        "numbers": _numbers(),
        "kinds": _kinds(),
        "flags": _values(wire.Flag),
        "message-values": _values(wire.MessageType, wire.MessageFlag),
        "open-flags": _values(wire.OpenFlag),
        "sizes": _sizes(),
        "symbols": _symbols(),
        "peer-states": _peer_states(),
        "moves": _moves(),
        "moves-diagram": _diagram(),
    }
    return out | {
        layout.name: _layout(layout)
        for layout in (*wire.LAYOUTS, *envelope.LAYOUTS, links.LINKS, links.REPORT, KEY_CHANGE, CONFIG_CHANGE)
    }


def fill(text: str, made: Mapping[str, str]) -> str:
    """A page with its generated blocks replaced by those of these names. Raises KeyError for a block that is not among them."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{made[match['name']]}\n\n{match[3]}", text)


def refresh(text: str) -> str:
    """The page with its blocks up to date. Raises KeyError for a block that nothing here generates."""
    return fill(text, blocks())
