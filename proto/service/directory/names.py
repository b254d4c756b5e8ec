"""Names, zones' names, roles: their syntax (rule E1).

No Unicode: its tables differ between Python versions, so two stations would disagree on which names are equal.
"""

from __future__ import annotations

import re
from typing import Final

NAME_MAX: Final = 253
"""Bytes of a name; a label has 1 to 63."""
STATIONS_MAX: Final = 64
ROLE_MAX: Final = 64
"""Bytes of a role."""
OPERATOR: Final = "operator"
"""Role of root and of the daemon's user: all operations on all names, zones, and addresses out of use."""
ANYBODY: Final = "*"
"""As a writer of a zone: every program."""

_LABEL: Final = r"[a-z0-9_-]{1,63}"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_ZONE: Final = re.compile(_LABEL, re.ASCII)
_ROLE: Final = re.compile(r"(?:user|group):[!-~]{1,58}|station:[1-9][0-9]?", re.ASCII)
_PATTERN: Final = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_LOWER: Final = {ord(c): ord(c) + 32 for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_STATION_NAMES: Final = {f"s{k}.station": k for k in range(1, STATIONS_MAX + 1)}


def lower(name: str) -> str:
    """A–Z lowered, everything else as it is; for what people type."""
    return name.translate(_LOWER)


def is_name(name: object) -> bool:
    return type(name) is str and len(name) <= NAME_MAX and _NAME.fullmatch(name) is not None


def is_zone_name(name: object) -> bool:
    return type(name) is str and _ZONE.fullmatch(name) is not None


def is_role(role: object) -> bool:
    """``user:NAME``, ``group:NAME`` or ``station:K``, as zone rows name them."""
    if type(role) is not str or _ROLE.fullmatch(role) is None:
        return False
    return not role.startswith("station:") or int(role[8:]) <= STATIONS_MAX


def is_stamp(role: object) -> bool:
    """A role that an update may be stamped with. ``station:K`` is none: every station knows where an update comes from."""
    return role == OPERATOR or (is_role(role) and not str(role).startswith("station:"))


def is_user(role: object) -> bool:
    """A role that can own names."""
    return is_role(role) and str(role).startswith("user:")


def is_pattern(pattern: object) -> bool:
    """A name, or ``*.`` and a name: all names that end in it."""
    return type(pattern) is str and len(pattern) <= NAME_MAX and _PATTERN.fullmatch(pattern) is not None


def station_of_name(name: str) -> int:
    """k for ``sk.station``, which exists of itself; 0 for every other name."""
    return _STATION_NAMES.get(name, 0)


def patterns_of(name: str) -> list[str]:
    """The patterns that a name matches, the most specific first."""
    labels = name.split(".")
    return [name, *("*." + ".".join(labels[i:]) for i in range(1, len(labels)))]
