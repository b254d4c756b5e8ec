"""The directory for programs: ``connect_directory`` and ``connect_directory_sync`` (docs/directory-service.md).

Programs import it as ``zenjun.names``. Nothing of asyncio is imported before an async name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    DirectoryError,
    Exists,
    Malformed,
    NoAddress,
    NoName,
    NoQuorum,
    NotPermitted,
    NotReachable,
    Timeout,
    Undecided,
    VersionMismatch,
    ZoneDown,
)
from .sync import SyncDirectory, SyncLease, SyncMirror, connect_directory_sync
from .types import Answer, Done, NameChange

if TYPE_CHECKING:
    from .aio import Directory, DirectoryLease, Mirror, connect_directory

__all__ = [
    "Answer",
    "Directory",
    "DirectoryError",
    "DirectoryLease",
    "Done",
    "Exists",
    "Malformed",
    "Mirror",
    "NameChange",
    "NoAddress",
    "NoName",
    "NoQuorum",
    "NotPermitted",
    "NotReachable",
    "SyncDirectory",
    "SyncLease",
    "SyncMirror",
    "Timeout",
    "Undecided",
    "VersionMismatch",
    "ZoneDown",
    "connect_directory",
    "connect_directory_sync",
]

_ASYNC = ("Directory", "DirectoryLease", "Mirror", "connect_directory")


def __getattr__(name: str) -> Any:
    if name not in _ASYNC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import aio

    return getattr(aio, name)


def __dir__() -> list[str]:
    return sorted(__all__)
