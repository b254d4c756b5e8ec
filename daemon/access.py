"""Rights of the programs on this machine: who is at the other end of a connection, and what it may do (docs/access.md).

A program is its user and groups as the kernel has recorded them when it connected, never what it says of itself. Root and the
user that the daemon runs as may do everything: they could change the configuration, and the services of this project run as the
latter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

from ..proto.service.transferwire import companion_of
from ..proto.wire import GROUPS_PER_USER
from .clientwire import RESERVED_PREFIX, STATE_PREFIX
from .config import AccessOptions, Config
from .config.principals import Principals, principals
from .listening import peer

What = Literal["send", "receive"]
SO_PEERGROUPS: Final = 59
"""Of Linux; Python's module does not name it."""
GROUPS_MAX: Final = 65536
"""Groups that a process of Linux can have."""
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """The process at the other end of a Unix socket, as it connected."""

    pid: int
    uid: int
    groups: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        """The user, for people."""
        try:
            return f"user {pwd.getpwuid(self.uid).pw_name}"
        except KeyError:
            return f"uid {self.uid}"


def identity(sock: socket.socket) -> Identity:
    """The other end of a connected Unix socket. Raises OSError."""
    pid, uid, gid = peer(sock)
    return Identity(pid, uid, frozenset((gid, *_peer_groups(sock))))


def _peer_groups(sock: socket.socket) -> tuple[int, ...]:
    """Supplementary groups of the other end; none from a kernel before 4.13, which does not tell. Raises OSError."""
    for count in (64, GROUPS_MAX):
        groups = (ctypes.c_uint32 * count)()
        size = ctypes.c_uint32(ctypes.sizeof(groups))
        if _libc.getsockopt(sock.fileno(), socket.SOL_SOCKET, SO_PEERGROUPS, groups, ctypes.byref(size)) == 0:
            return tuple(groups[: size.value // 4])
        if (code := ctypes.get_errno()) != errno.ERANGE:
            break
    if code in (errno.ENOPROTOOPT, errno.ENODATA):
        return ()
    raise OSError(code, os.strerror(code))


def privileged(uid: int) -> bool:
    """Whether a user may do everything: root, and the user that the daemon runs as."""
    return uid in (0, os.geteuid())


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may send to groups whose names match a pattern, and who may receive of them."""

    groups: str
    send: Principals
    receive: Principals


def rules_of(rows: Iterable[AccessOptions]) -> tuple[Rule, ...]:
    """The tables [[access]]. Raises ValueError for a user that is not on this machine."""
    return tuple(Rule(row.groups, principals(row.send), principals(row.receive)) for row in rows)


@dataclass(slots=True)
class Quota:
    """What the programs of one user may have at a station; for root and the daemon's own user only ``GROUPS_PER_USER`` counts."""

    connections: int = 0
    """0: as many as there may be."""
    groups: int = GROUPS_PER_USER
    queue_bytes: int = 0
    """Memory for what its programs have not read; 0: no limit,"""
    input_bytes: int = 0
    """and for what they have not written whole."""
    queue_bytes_users: int = 0
    """As ``queue_bytes``, for the programs of all users together."""
    rate: int = 0
    """Messages that its programs may send in a second; 0: no limit,"""
    rate_bytes: int = 0
    """and bytes of them."""


class Access:
    """Decides what programs may do. The rules may change while programs are connected (``change``)."""

    def __init__(
        self,
        rules: tuple[Rule, ...] = (),
        *,
        closed: bool = False,
        operators: Principals | None = None,
        quota: Quota | None = None,
    ) -> None:
        """closed: nobody may use a group that no rule names; else whoever may connect may."""
        self._rules = rules
        self._closed = closed
        self._operators = operators or Principals()
        self.quota = quota or Quota()
        self.names_shown = "auto"
        """``metrics.names``."""

    @classmethod
    def of(cls, config: Config) -> Access:
        """Of a checked configuration. Raises ValueError for a user that has gone from this machine since."""
        c = config.clients
        operators = principals(config.station.operators)
        quota = Quota(
            c.connections_per_user, c.groups_per_user, c.queue_bytes_per_user, c.input_bytes_per_user, c.queue_bytes_users,
            c.rate_per_user, c.rate_bytes_per_user,
        )  # fmt: skip
        access = cls(rules_of(config.access), closed=c.closed, operators=operators, quota=quota)
        access.names_shown = config.metrics.names
        return access

    def change(self, other: Access) -> None:
        """Take another configuration over."""
        self._rules, self._closed, self._operators = other._rules, other._closed, other._operators
        self.quota, self.names_shown = other.quota, other.names_shown

    @property
    def is_limited(self) -> bool:
        """Whether there is anything that not everybody may do."""
        return self._closed or bool(self._rules)

    @property
    def shows_names(self) -> bool:
        """Whether those who read the metrics learn the names of groups and programs."""
        return self.names_shown == "yes" or (self.names_shown == "auto" and not self.is_limited)

    def is_operator(self, who: Identity) -> bool:
        """Whether a program may give the daemon commands, and see the whole status."""
        return privileged(who.uid) or self._operators.has(who.uid, who.groups)

    def may(self, who: Identity, what: What, group: str) -> bool:
        """Whether a program may send to a group, or receive of it. Groups that transfer state: see ``may_transfer``."""
        if privileged(who.uid):
            return True
        if group.startswith(RESERVED_PREFIX):
            return group.startswith(STATE_PREFIX)
        if (found := self._rule_of(group)) is None:
            return not self._closed
        _, rule = found
        return (rule.send if what == "send" else rule.receive).has(who.uid, who.groups)

    def _rule_of(self, group: str) -> tuple[int, Rule] | None:
        """The first rule that names a group, and its number, from 1."""
        return next((found for found in enumerate(self._rules, 1) if fnmatchcase(group, found[1].groups)), None)

    def why_not(self, who: Identity, what: What, group: str) -> str:
        """The text of the refusal, naming what is missing."""
        if group.startswith(RESERVED_PREFIX):
            return f"groups named {RESERVED_PREFIX}* are for root and the daemon's own user; {group!r} cannot be had"
        to = "send to" if what == "send" else "receive of"
        return f"{who.name} may not {to} group {group!r}: {self._where(what, group)} (docs/access.md)"

    def _where(self, what: What, group: str) -> str:
        if (found := self._rule_of(group)) is not None:
            return f"table {found[0]} of [[access]], for groups {found[1].groups!r}, does not name it under {what}"
        return "no [[access]] names the group, and clients.closed = true"

    def sees(self, who: Identity, group: str, known: Iterable[str]) -> bool:
        """Whether a program may learn the name and the members of a group; ``known``: all groups."""
        if group.startswith(STATE_PREFIX):
            return self.may_transfer(who, group, known)
        return group.startswith(RESERVED_PREFIX) or self.may(who, "receive", group)

    def may_connect(self, who: Identity, connections: int) -> str:
        """Why a user who has so many connections already cannot have another one, or an empty string."""
        most = self.quota.connections
        if not most or connections < most or privileged(who.uid):
            return ""
        return f"{who.name} has {connections} connections to this station already: clients.connections_per_user is {most}"

    def may_hold(self, who: Identity, handles: int) -> str:
        """Why a user who holds so many groups already cannot have another one, or an empty string."""
        most = GROUPS_PER_USER if privileged(who.uid) else self.quota.groups
        if handles < most:
            return ""
        return f"the programs of {who.name} hold {handles} groups at this station already, of {most}: leave some first"

    def may_transfer(self, who: Identity, companion: str, known: Iterable[str]) -> bool:
        """Whether a program may be in a group that transfers the state of one of the known groups."""
        base = ".".join(companion.split(".")[:3])  # without the joiner that a mailbox names
        return all(self.may(who, "receive", group) for group in known if companion_of(group) == base)
