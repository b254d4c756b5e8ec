"""What of libzenjun (``daemon/client/c``) is generated from the table in ``daemon/clientwire.py``: the constants in ``zenjun.h``
and the texts of errors in ``codes.h``. ``generate.py`` writes them.

The numbers in ``zenjun.h`` are part of an ABI: existing ones never change, and a new constant gets a new number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ..daemon.clientwire import CODES, HANDLES_MAX, LEVELS, JoinFlag
from ..proto.wire import GROUP_NAME_MAX, ORDER_NAMES

OWN: Final = {
    "again": (-1, "no room now, or no welcome from the daemon yet: step, and try again"),
    "timeout": (-2, "the time is over"),
    "interrupted": (-3, "a signal handler has run"),
    "invalid": (-4, "an argument is out of bounds"),
    "no-memory": (-5, "there is no memory"),
    "system": (-6, "the operating system reports an error"),
    "not-reachable": (-7, "no daemon answers at the socket"),
    "permission": (-8, "the socket may not be used by this user"),
    "disconnected": (-9, "the daemon has closed the connection"),
    "forked": (-10, "the connection belongs to the process that made it"),
    "undecided": (-11, "the instance has ended: the message may or may not have been delivered"),
    "inbox-full": (-12, "so much is unread that no answer can come before some of it is taken"),
    "handles": (-13, "all handles of this connection are in use"),
    "other": (-14, "the daemon reports an error that this version of the library does not know"),
}
"""Errors of the library itself: number, meaning."""
NUMBERS: Final = {
    "version": -101,
    "protocol": -102,
    "too-large": -103,
    "bad-handle": -104,
    "not-member": -105,
    "closed-group": -106,
    "name": -107,
    "name-collision": -108,
    "order-mismatch": -109,
    "too-many-groups": -110,
    "unknown-order": -111,
    "level": -112,
    "bus-level": -113,
    "slow-receiver": -114,
    "busy": -115,
    "closing": -116,
    "fenced": -117,
    "not-permitted": -118,
    "unknown-request": -119,
    "too-many-requests": -120,
    "refused": -121,
    "groups": -122,
    "too-many-connections": -123,
    "too-many-bytes": -124,
}
"""Numbers of the protocol's error codes."""
DISCARD: Final = 256
"""A flag of joins for the library alone; those of the protocol are below it."""
_BLOCK: Final = re.compile(r"(?<=/\* generated: constants \*/\n).*?(?=/\* end \*/)", re.DOTALL)


def _errors() -> Iterator[tuple[str, int, str]]:
    """Code, number, meaning. Raises KeyError for a code of the protocol that has no number here."""
    for code, (number, text) in OWN.items():
        yield code, number, text
    for code, text in CODES.items():
        yield code, NUMBERS[code], text.replace("`", "").replace("–", "-")


def _enum(name: str, rows: list[tuple[str, int, str]]) -> str:
    values = [
        (f"ZENJUN_{row} = {number}" + ("," if at < len(rows) - 1 else ""), text) for at, (row, number, text) in enumerate(rows)
    ]
    width = max(len(value) for value, _ in values)
    return f"enum {name} {{\n" + "".join(f"    {value:{width}} /* {text} */\n" for value, text in values) + "};\n"


def header(text: str) -> str:
    """``zenjun.h`` with its constants. Raises KeyError if it has no place for them."""
    joining = {
        JoinFlag.OPEN: "programs that are not members may send to the group",
        JoinFlag.SEND_ONLY: "no membership, only a handle to send to an open group",
        JoinFlag.NO_SELF: "own messages are not delivered",
    }
    meaning = ("the order is fixed", "every station has it and its place is final", "every station knows that")
    levels = [("SENT", -1, "handed to the daemon"), *((name.upper(), n, meaning[n]) for n, name in enumerate(LEVELS))]
    orders = [
        ("TOTAL", "one order for all"),
        ("OP", "each sender's order, delivered on acceptance"),
        ("ABCAST", "only members' stations receive; one order wherever groups meet"),
        ("TOKEN", "the same, ordered by token hosts"),
    ]
    assert [name.lower() for name, _ in orders] == list(ORDER_NAMES.values())
    errors = [(f"E_{code.upper().replace('-', '_')}", number, said) for code, number, said in _errors()]
    block = "\n".join(
        (
            f"#define ZENJUN_GROUP_NAME_MAX {GROUP_NAME_MAX} /* bytes */\n"
            f"#define ZENJUN_HANDLES_MAX {HANDLES_MAX - 1} /* of one connection */\n"
            f"#define ZENJUN_LEVELS {len(LEVELS)}\n"
            "#define ZENJUN_DEFAULT (-1) /* level of delivery */\n",
            _enum("zenjun_level", levels),
            _enum("zenjun_order", [(f"ORDER_{name}", at, said) for at, (name, said) in enumerate(orders)]),
            _enum(
                "zenjun_join_flag",
                [
                    *((str(flag.name), int(flag), said) for flag, said in joining.items()),
                    ("DISCARD", DISCARD, "nothing of the group is delivered here: a member that only sends"),
                ],
            ),
            _enum("zenjun_error", errors),
        )
    )
    fresh, count = _BLOCK.subn(lambda _match: block, text)
    if count != 1:
        raise KeyError("constants")
    return fresh


def codes() -> str:
    """``codes.h``: number, code and meaning of every error."""
    rows = "".join(f'    {{{number}, "{code}", "{text}"}},\n' for code, number, text in _errors())
    return (
        "/* Generated from tools/clientlibrary.py by `python -m zenjun.tools.generate`; a test fails when it is stale. */\n"
        "#ifndef ZENJUN_CODES_H\n#define ZENJUN_CODES_H\n\n"
        "struct code { int number; const char *name, *text; };\n\n"
        f"static const struct code codes[] = {{\n{rows}}};\n\n#endif\n"
    )
