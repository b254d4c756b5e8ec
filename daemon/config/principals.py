"""Users and groups as the configuration names them: ``user:NAME``, ``group:NAME`` (or a number for the name), ``all``."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

ALL: Final = "all"
NUMBER_MAX: Final = (1 << 32) - 2
"""The largest uid and gid; the number above means none."""
WRITTEN: Final = f'"user:NAME", "group:NAME" or "{ALL}"'


@dataclass(frozen=True, slots=True)
class Principals:
    """A set of users. ``all``: every one."""

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    all: bool = False

    def has(self, uid: int, groups: frozenset[int]) -> bool:
        """Whether a process of this user, in these groups, is meant."""
        return self.all or uid in self.users or not self.groups.isdisjoint(groups)


def principals(texts: Iterable[str]) -> Principals:
    """The set that a list means. Raises ValueError, with a text for people, for what is none or not on this machine."""
    users, groups, everybody = set(), set(), False
    for text in texts:
        kind, _, name = text.partition(":")
        if text == ALL:
            everybody = True
        elif kind == "user" and name:
            users.add(_user(name))
        elif kind == "group" and name:
            groups.add(_group(name))
        else:
            shown = text if text.isprintable() else ascii(text)
            raise ValueError(f"{shown!r} names no user: expected {WRITTEN}")
    return Principals(frozenset(users), frozenset(groups), everybody)


def _user(name: str) -> int:
    try:
        return _number(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise ValueError(f"there is no user {name!r} on this machine") from None


def _group(name: str) -> int:
    try:
        return _number(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise ValueError(f"there is no group {name!r} on this machine") from None


def _number(text: str) -> int:
    if not text.isascii() or len(text) > 10 or int(text) > NUMBER_MAX:
        raise ValueError(text)
    return int(text)


def check_principals(value: list[str]) -> str:
    """What is wrong with a list of users, or an empty string."""
    try:
        principals(value)
    except ValueError as error:
        return str(error)
    return ""
