"""What goes wrong with names."""

from __future__ import annotations

from typing import TypeAlias

from ..client.errors import ClientError, NotReachable, Timeout


class DirectoryError(ClientError):
    """A request that the directory refused. code: one word (docs/directory.md)."""

    code = "failed"


class NoName(DirectoryError):
    """The name, or one that an alias on the way leads to, does not exist."""


class NoAddress(DirectoryError):
    """The name is there; none of its addresses is up."""


class Exists(DirectoryError):
    """The name is there already (condition *new*)."""


class VersionMismatch(DirectoryError):
    """The name has another version than the one named."""


class NotPermitted(DirectoryError):
    """The zone's row does not allow it to this user."""


class NoQuorum(DirectoryError):
    """This station's copy is not in the order, or too few have it on their disks."""


class ZoneDown(NoQuorum):
    """No holder of the name's zone is active; names of other zones are not concerned."""


UpdateId: TypeAlias = tuple[str, int]


class Undecided(DirectoryError):
    """Not decided in time: the update may have taken effect, or may still do so. ``outcome(error.update)`` tells later, at any
    station."""

    update: UpdateId = ("", 0)
    """Id of the update."""


class Malformed(DirectoryError):
    """A name, an address or something else is out of bounds. Nothing was sent."""


CLASSES: dict[str, type[DirectoryError]] = {
    "no-name": NoName,
    "no-address": NoAddress,
    "exists": Exists,
    "version": VersionMismatch,
    "not-permitted": NotPermitted,
    "no-quorum": NoQuorum,
    "no-disk-quorum": NoQuorum,
    "stale": NoQuorum,
    "zone-down": ZoneDown,
    "undecided": Undecided,
    "malformed": Malformed,
    "name": Malformed,
    "address": Malformed,
    "zone": Malformed,
    "meta": Malformed,
    "too-large": Malformed,
}


def error_of(code: str, text: str) -> ClientError:
    """The exception for an answer of the process."""
    if code == "timeout":
        return Timeout(text)
    error = CLASSES.get(code, DirectoryError)(text if text != code else code)
    error.code = code
    return error


__all__ = [
    "DirectoryError",
    "Exists",
    "Malformed",
    "NoAddress",
    "NoName",
    "NoQuorum",
    "NotPermitted",
    "NotReachable",
    "Timeout",
    "Undecided",
    "VersionMismatch",
    "ZoneDown",
    "error_of",
]
