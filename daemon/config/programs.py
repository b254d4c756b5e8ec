"""The options about programs on this machine: what each may have, and who may use which groups (docs/access.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...proto.wire import GROUP_NAME_MAX, GROUPS_PER_USER
from .option import GIB, KIB, MIB, check_pattern, check_rate_bytes, check_user_bytes, option
from .principals import ALL, WRITTEN, check_principals

ACCESS_MAX: Final = 64
"""Tables [[access]], and users and groups that a list may name."""


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """[clients]: programs connected to this daemon."""

    max: int = option(
        64, low=1, high=256, live=True,
        help="programs connected at once",
        reason="bounds the memory for their queues",
    )  # fmt: skip
    queue_bytes_max: int = option(
        64 * MIB, unit="bytes", low=64 * KIB, high=1024 * MIB,
        help="bytes that may wait for one slow program before it is disconnected; from half of it on, its own sends are held",
        reason="memory against patience",
    )  # fmt: skip
    closed: bool = option(
        False, live=True,
        help="true: only groups that an [[access]] names may be used; false: who may connect may use the others",
        reason="what is not allowed is forbidden, or the other way round",
    )  # fmt: skip
    connections_per_user: int = option(
        0, low=0, high=256, live=True, note="0: as many as max",
        help="programs of one user that may be connected at once",
        reason="one user's programs shall not take the places of all others'",
    )  # fmt: skip
    groups_per_user: int = option(
        GROUPS_PER_USER, low=1, high=GROUPS_PER_USER, live=True,
        help="groups that the programs of one user may hold at a time, joined or to send to",
        reason="each join is a message, and costs an entry at every station",
    )  # fmt: skip
    queue_bytes_per_user: int = option(
        0, unit="bytes", low=0, high=1024 * GIB, live=True, check=check_user_bytes, note="0: no limit, or at least 1 MiB",
        help="memory for what the programs of one user have not read; the one that needs more is disconnected",
        reason="one user's slow programs shall not take the machine's memory",
    )  # fmt: skip
    input_bytes_per_user: int = option(
        0, unit="bytes", low=0, high=1024 * GIB, live=True, check=check_user_bytes, note="0: no limit, or at least 1 MiB",
        help="memory for messages that the programs of one user have begun to send; the one that needs more is disconnected",
        reason="64 halves of the largest message are half a gigabyte",
    )  # fmt: skip
    queue_bytes_users: int = option(
        0, unit="bytes", low=0, high=1024 * GIB, live=True, check=check_user_bytes, note="0: no limit, or at least 1 MiB",
        help="as queue_bytes_per_user, for the programs of all users but root and the daemon's together",
        reason="many users have many times what one may have",
    )  # fmt: skip
    rate_per_user: int = option(
        0, unit="messages/s", low=0, high=1_000_000, live=True, note="0: no limit",
        help="messages that the programs of one user may send in a second; above it they are not read for a while",
        reason="one user's programs shall not fill the network and everybody's queues",
    )  # fmt: skip
    rate_bytes_per_user: int = option(
        0, unit="bytes/s", low=0, high=100 * GIB, live=True, check=check_rate_bytes, note="0: no limit, or at least 1 KiB",
        help="as rate_per_user, in bytes of messages",
        reason="few large messages fill the network as well",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """[[access]]: who may use which groups, in a table of its own for each pattern; the first that has a group's name counts."""

    groups: str = option(
        low=1, high=GROUP_NAME_MAX, check=check_pattern, example="orders.*",
        help="names of groups, with * for any characters, ? for one, [abc] for one of these",
        reason="groups are made by their first member: their names are all that there is before",
    )  # fmt: skip
    send: tuple[str, ...] = option(
        (ALL,), low=0, high=ACCESS_MAX, check=check_principals, note=WRITTEN,
        help="users who may send to them",
        reason="a program that only reads cannot disturb those that decide by what is sent",
    )  # fmt: skip
    receive: tuple[str, ...] = option(
        (ALL,), low=0, high=ACCESS_MAX, check=check_principals, note=WRITTEN,
        help="users who may receive their messages and see their names and members",
        reason="programs of several users share a machine",
    )  # fmt: skip
