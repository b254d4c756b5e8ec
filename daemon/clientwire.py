"""The one table of the client protocol: frame types, versions, flags, fields, limits, error codes.

Both ends take their numbers from here: the daemon's Python, the client library (through the structs below), and the C of the data
path and of libzenjun (``c_header``: ``datapath/dp_client.h``). The tables of docs/client-protocol.md are generated from it
as well, so that no number of a client frame is written twice. It imports data modules only, for the client library imports it.

All integers are unsigned and little-endian: both ends are on one machine.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias

from ..proto.wire import GROUP_NAME_MAX, GROUPS_PER_USER, MESSAGE_MAX

VERSION: Final = 3
"""Newest version spoken, by the daemon and by the library of this release."""
VERSION_MIN: Final = 1
"""Oldest version that the daemon serves."""
VERSION_VIEWS: Final = 2
"""First version with ADMIN and with the events ``view``, ``closed`` and ``expelled``."""
VERSION_REQUESTS: Final = 3
"""First version with REQUEST and REPLY in place of the pairs STATUS, MEMBERS and ADMIN, and with the order in JOIN's body."""
MAGIC: Final = b"ZENJ"
"""First bytes of HELLO."""
PROGRAM_NAME_MAX: Final = 64
"""Bytes of a program's name."""
HANDLES_MAX: Final = 1024
"""Handles are 1..HANDLES_MAX - 1. The field holds more: the daemon keeps a table for each client."""
CONTROL_MAX: Final = 64 * 1024
"""Body of any frame of a client except SEND, bytes."""
BODY_MAX: Final = MESSAGE_MAX + CONTROL_MAX
"""Body of any frame, bytes."""


class Frame(IntEnum):
    """Frame types; those of the client are below 64."""

    HELLO = 1
    JOIN = 2
    LEAVE = 3
    SEND = 4
    STATUS = 5
    BYE = 6
    MEMBERS = 7
    ADMIN = 8
    REQUEST = 9
    SEND_TO = 10
    WELCOME = 65
    MESSAGE = 66
    VIEW = 67
    EVENT = 68
    DONE = 69
    ERROR = 70
    STATUS_REPLY = 71
    MEMBERS_REPLY = 72
    ADMIN_REPLY = 73
    REPLY = 74


class Kind(IntEnum):
    """What a REQUEST asks for."""

    STATUS = 1
    MEMBERS = 2
    ADMIN = 3


class ReplyStatus(IntEnum):
    """How a REQUEST went."""

    OK = 0
    ERROR = 1


REQUESTS_MAX: Final = 64
"""Requests of one connection that have no answer yet. The library holds back what is above that, the daemon refuses it."""
Level: TypeAlias = Literal["ordered", "preack", "ack"]
"""Level of receipt: the order is fixed · every station has it and its place is final · every station knows that."""
LEVELS: Final[tuple[Level, ...]] = ("ordered", "preack", "ack")
"""Levels of delivery and of a send, by number."""
LEVEL_MASK: Final = 3
"""Bits of the level in the flags of JOIN and SEND."""
LEVEL_MAX: Final = len(LEVELS) - 1


class JoinFlag(IntFlag):
    """Flags of JOIN, besides the level."""

    OPEN = 4
    SEND_ONLY = 8
    NO_SELF = 16
    OP = 32


class SendFlag(IntFlag):
    """Flags of SEND, besides the level."""

    NOTIFY = 4


class MessageFlag(IntFlag):
    """Flags of MESSAGE."""

    OWN = 1


class ErrorFlag(IntFlag):
    """Flags of ERROR."""

    CLOSES = 1


JOIN_FLAGS: Final = LEVEL_MASK | int(JoinFlag.OPEN | JoinFlag.SEND_ONLY | JoinFlag.NO_SELF)
"""Every bit that a JOIN may have; in versions 1 and 2 also ``JoinFlag.OP``."""


class Field(NamedTuple):
    """One field; ``code`` is its format in ``struct``."""

    name: str
    code: str
    help: str

    @property
    def size(self) -> int:
        return struct.calcsize("<" + self.code)

    @property
    def kind(self) -> str:
        """The type as docs and C name it."""
        return {"B": "u8", "H": "u16", "I": "u32", "Q": "u64"}.get(self.code, f"{self.size} bytes")


@dataclass(frozen=True)
class Layout:
    """Fields one after the other without padding."""

    name: str
    fields: tuple[Field, ...]
    help: str

    @property
    def code(self) -> str:
        """Format of all fields, without the byte order."""
        return "".join(f.code for f in self.fields)

    @cached_property
    def struct(self) -> struct.Struct:
        return struct.Struct("<" + self.code)

    @property
    def size(self) -> int:
        return self.struct.size

    def offset(self, name: str) -> int:
        """Bytes before a field. Raises KeyError for an unknown one."""
        at = 0
        for f in self.fields:
            if f.name == name:
                return at
            at += f.size
        raise KeyError(name)


HEADER: Final = Layout(
    "header",
    (
        Field("size", "I", f"bytes of the body that follows this header; at most {BODY_MAX}"),
        Field("type", "B", "frame type"),
        Field("flags", "B", "per type"),
        Field("handle", "H", "the connection's number for a group, 0 where no group is meant"),
    ),
    "The header of every frame.",
)
HELLO: Final = Layout(
    "hello",
    (
        Field("magic", f"{len(MAGIC)}s", f"`{MAGIC.decode()}`"),
        Field("lowest", "H", "lowest version that the client speaks"),
        Field("highest", "H", "highest version that it speaks"),
    ),
    f"The body of HELLO. The program's name follows: UTF-8, at most {PROGRAM_NAME_MAX} bytes, printable.",
)
JOIN: Final = Layout(
    "join",
    (Field("ordering", "B", "order of delivery, table below"), Field("pad", "3x", "0")),
    "The body of JOIN begins with this from version 3 on; the group's name follows.",
)
SEND_TO: Final = Layout(
    "send_to",
    (Field("count", "H", "handles that follow, 1..16"),),
    "The body of SEND_TO begins with this.",
)
REQUEST: Final = Layout(
    "request",
    (
        Field("id", "I", "chosen by the client; not that of a request of this connection that has no answer yet"),
        Field("kind", "H", "what is asked, table below"),
        Field("pad", "2x", "0"),
    ),
    "The body of REQUEST begins with this; what follows depends on the kind.",
)
REPLY: Final = Layout(
    "reply",
    (
        Field("id", "I", "of the request"),
        Field("status", "H", "0 it succeeded; 1 it failed, and the JSON has `code` and `message` as in ERROR"),
        Field("pad", "2x", "0"),
    ),
    "The body of REPLY begins with this; a JSON object follows.",
)
MESSAGE: Final = Layout(
    "message",
    (
        Field("clock", "Q", "order key: logical clock"),
        Field("index", "H", "order key: number of the message in its PDU"),
        Field("client", "H", "number of the sending client at its station"),
        Field("station", "B", "order key: sending station, 1..n"),
        Field("pad", "3x", "0"),
    ),
    "The body of MESSAGE begins with this; the message follows. (`clock`, `station`, `index`) is its order key, its place in the "
    "total order.",
)
DONE: Final = Layout(
    "done",
    tuple(Field(level, "Q", f"own messages that have reached {level}") for level in LEVELS),
    "The body of DONE: how many of this client's messages (all groups, in order of sending) have reached each level since it "
    "connected.",
)
LAYOUTS: Final = (HEADER, HELLO, JOIN, SEND_TO, REQUEST, REPLY, MESSAGE, DONE)
MESSAGE_FRAME: Final = struct.Struct("<" + HEADER.code + MESSAGE.code)
"""Header of a MESSAGE frame and of its body in one: what the library reads once per message."""


class Row(NamedTuple):
    """The text about a frame in docs/client-protocol.md."""

    frame: Frame
    since: int
    """First version that has it."""
    body: str
    until: int = VERSION
    """Last one."""


FRAMES: Final = (
    Row(Frame.HELLO, 1, "layout *hello*, then the program's name"),
    Row(
        Frame.JOIN,
        1,
        f"from version 3 on layout *join*; then the group's name (UTF-8, 1–{GROUP_NAME_MAX} bytes). `handle` is chosen by the "
        f"client, 1..{HANDLES_MAX - 1}, not in use",
    ),
    Row(Frame.LEAVE, 1, "empty"),
    Row(Frame.SEND, 1, "the message, 0 B – `message_max`"),
    Row(Frame.STATUS, 1, "empty; answered by STATUS_REPLY, in the order of the requests", 2),
    Row(
        Frame.BYE,
        1,
        "empty; the daemon first sends the messages before it, then DONE with final counts, then closes the connection",
    ),
    Row(Frame.MEMBERS, 1, "group name, or empty for the stations; answered by MEMBERS_REPLY", 2),
    Row(
        Frame.ADMIN,
        2,
        'JSON, an operator\'s command: `{"command": "expel", "station": k}` or `{"command": "leave"}`; answered by ADMIN_REPLY, '
        'or by an ERROR with `"admin": true`',
        2,
    ),
    Row(Frame.REQUEST, 3, "layout *request*, then what its kind needs; answered by REPLY"),
    Row(
        Frame.SEND_TO,
        3,
        "layout *send_to*, that many handles (u16 each), then the message: one message to several groups of order `abcast` or "
        "`token`, only if WELCOME has `orders`. Flags as SEND; `handle` is 0",
    ),
    Row(
        Frame.WELCOME,
        1,
        "JSON: `version`, `station`, `stations`, `cluster`, `client` (own number), `message_max`, `queue_bytes_max`, `instance` "
        "(0: not open), `mtu`, `payload_max`, `medium` (`switched` or `bus`), `orders` (those that this daemon has)",
    ),
    Row(Frame.MESSAGE, 1, "layout *message*, then the message"),
    Row(
        Frame.VIEW,
        1,
        "JSON: `group`, `clock`, `station`, `index` (place in the order), `instance`, `members` (list of `[station, client, "
        "name]`, sorted), `joined`, `left` (same), `reason` (`join`, `leave`, or `death` of a program or its station)",
    ),
    Row(Frame.EVENT, 1, "JSON: `event`, and the members listed below"),
    Row(Frame.DONE, 1, "layout *done*"),
    Row(
        Frame.ERROR,
        1,
        "JSON: `code`, `message`, optionally `handle`. For a refused SEND also `send`: the number of SEND frames of this "
        "connection, up to and including that one. For a refused ADMIN (versions 1 and 2) also `admin`: true",
    ),
    Row(Frame.STATUS_REPLY, 1, "JSON, docs/status.md", 2),
    Row(
        Frame.MEMBERS_REPLY,
        1,
        "JSON: `members`. For the stations (docs/status.md) also `detail`: for each station of the roster `station`, "
        "`incarnation` (0: not known), `host`, `letter` (the peer state that this daemon keeps for it, or null), `state`, "
        "`member`. For a group of order token also `tokens`: `hosts` (stations that have one), `super` (the one that decides), "
        "`follows` (lists of a station and the token host that it follows)",
        2,
    ),
    Row(Frame.ADMIN_REPLY, 2, "JSON: `ok` (true), `message` (a human-readable line): the command has been started", 2),
    Row(Frame.REPLY, 3, "layout *reply*, then JSON"),
)

LEVEL_HELP: Final = "bits 0–1: " + ", ".join(f"{number} {level}" for number, level in enumerate(LEVELS))
FLAGS: Final[tuple[tuple[Frame, int, str, str], ...]] = (
    (Frame.JOIN, LEVEL_MASK, "", f"level of delivery, {LEVEL_HELP}"),
    (Frame.JOIN, JoinFlag.OPEN, "OPEN", "programs that are not members may send to the group"),
    (Frame.JOIN, JoinFlag.SEND_ONLY, "SEND_ONLY", "no membership, only a handle to send to an open group"),
    (Frame.JOIN, JoinFlag.NO_SELF, "NO_SELF", "own messages are not delivered"),
    (Frame.JOIN, JoinFlag.OP, "OP", "versions 1 and 2: order of delivery `op`, level 0 only"),
    (Frame.SEND, LEVEL_MASK, "", f"level at which the message counts as done, {LEVEL_HELP}"),
    (Frame.SEND, SendFlag.NOTIFY, "NOTIFY", "report progress by DONE"),
    (Frame.SEND_TO, LEVEL_MASK | SendFlag.NOTIFY, "", "as SEND"),
    (Frame.MESSAGE, MessageFlag.OWN, "OWN", "the client's own message"),
    (Frame.ERROR, ErrorFlag.CLOSES, "CLOSES", "the connection is closed after this"),
)
"""(frame, bits, name, meaning)"""
KINDS: Final[tuple[tuple[Kind, str, str], ...]] = (
    (Kind.STATUS, "empty", "as STATUS_REPLY"),
    (Kind.MEMBERS, "group's name; empty: the stations", "as MEMBERS_REPLY"),
    (Kind.ADMIN, "JSON, as ADMIN", "as ADMIN_REPLY"),
)
"""(kind, body behind the layout, JSON of the reply)"""


RESERVED_PREFIX: Final = "zenjun."
"""Groups with such names belong to the services of this project: only root and the daemon's own user may join them or send to
them, ``STATE_PREFIX`` left out."""
STATE_PREFIX: Final = "zenjun.state."
"""Groups by which members of any program's group transfer its state: as open to all as the groups that they belong to."""
CODES: Final = {
    "version": "no common version; the connection is closed",
    "protocol": "a malformed or unexpected frame; the connection is closed",
    "too-large": "a message above `message_max`, or one that cannot be sent",
    "bad-handle": "the handle is not joined, or in use, or out of bounds",
    "not-member": "the handle is not for sending",
    "groups": "SEND_TO without handles, with more than 16, or with groups of another order than `abcast` or `token`",
    "closed-group": "the group is not open to programs that are not in it",
    "name": f"no group name (1–{GROUP_NAME_MAX} bytes of UTF-8), or joined already",
    "name-collision": "another group with members, or another one of this station, has the same number",
    "order-mismatch": "the group's first member requested another order",
    "too-many-groups": f"the programs of one user may hold at most {GROUPS_PER_USER:,} groups at a station, or "
    "`clients.groups_per_user`; the cluster may have `cluster.groups_max`",
    "unknown-order": "the daemon has no order of delivery with this number",
    "level": "the group's order has no such level",
    "bus-level": "medium *bus*: JOIN with another level than ack, or order op",
    "slow-receiver": "the client's queue exceeds `clients.queue_bytes_max`; the connection is closed",
    "busy": "the daemon serves `clients.max` programs already, or lacks memory; the connection is closed",
    "too-many-connections": "the programs of one user may have `clients.connections_per_user` connections; the connection is "
    "closed",
    "too-many-bytes": "the programs of one user, or of all users, take more memory than `clients.queue_bytes_per_user`, "
    "`queue_bytes_users` or `input_bytes_per_user` allows; the connection is closed",
    "closing": "the daemon is stopping; the connection is closed",
    "fenced": "the order at this station differs from another station's",
    "not-permitted": "the user of this program may not do that: commands are for operators, groups named "
    f"`{RESERVED_PREFIX}*` for root and the user that the daemon runs as, others as `[[access]]` says",
    "unknown-request": "the daemon has no request of this kind",
    "too-many-requests": f"{REQUESTS_MAX} requests of this connection have no answer yet, or the id is one of theirs",
    "refused": "the operator's command cannot be executed; `message` gives the reason",
}
"""Codes of ERROR, with what each means."""


def c_header() -> str:
    """Text of ``datapath/dp_client.h``: every number of the client protocol that C needs."""
    out = [
        "/* Generated from daemon/clientwire.py by `python -m zenjun.tools.generate`; a test fails when it is stale. */",
        "#ifndef DP_CLIENT_H",
        "#define DP_CLIENT_H",
        "",
    ]

    def define(name: str, value: int, text: str = "") -> None:
        out.append(f"#define {name} {value}u" + (f" /* {text} */" if text else ""))

    define("DP_VERSION", VERSION)
    define("DP_VERSION_MIN", VERSION_MIN)
    out.append(f'#define DP_MAGIC "{MAGIC.decode()}"')
    define("DP_HANDLES_MAX", HANDLES_MAX, "per client: handles 1..DP_HANDLES_MAX - 1")
    define("DP_GROUP_NAME_MAX", GROUP_NAME_MAX, "bytes")
    define("DP_PROGRAM_NAME_MAX", PROGRAM_NAME_MAX, "bytes")
    define("DP_REQUESTS_MAX", REQUESTS_MAX, "of one connection without an answer")
    define("DP_CONTROL_MAX", CONTROL_MAX, "body of any frame of a client except SEND")
    define("DP_FRAME_MAX", BODY_MAX, "body of any frame")
    out.append("")
    for frame in Frame:
        define(f"DP_F_{frame.name}", int(frame))
    out.append("")
    for kind in Kind:
        define(f"DP_K_{kind.name}", int(kind))
    out.append("")
    define("DP_LEVEL", LEVEL_MASK, "the level in the flags of JOIN and SEND")
    for prefix, enum in (("JOIN", JoinFlag), ("SEND", SendFlag), ("MESSAGE", MessageFlag), ("ERROR", ErrorFlag)):
        for flag in enum:
            define(f"DP_{prefix}_{flag.name}", int(flag))
    for layout in LAYOUTS:
        out.append(f"\n/* {layout.help} */")
        define(f"DP_{layout.name}".upper(), layout.size, "bytes")
        for f in layout.fields:
            define(f"DP_{layout.name}_{f.name}".upper(), layout.offset(f.name), f"{f.kind}: {f.help}")
    out += ["", "#endif", ""]
    return "\n".join(out)
