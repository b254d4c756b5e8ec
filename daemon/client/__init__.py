"""Programs talk to their local daemon with this package: ``connect`` for asyncio, ``connect_sync`` without.

It imports only the standard library: neither the daemon nor the protocol core, and no particular event loop (asyncio itself only
when an async name is used).
"""

from typing import TYPE_CHECKING, Any

from .common import DEFAULT
from .errors import (
    BadName,
    Busy,
    ClientError,
    ClosedGroup,
    ConnectionClosed,
    DaemonClosing,
    Fenced,
    InboxFull,
    NameCollision,
    NotMember,
    NotReachable,
    ProtocolError,
    Refused,
    SlowReceiver,
    Timeout,
    TooLarge,
    Undecided,
    VersionMismatch,
)
from .sync import SyncConnection, SyncGroup, SyncPipeline, connect_sync, sessions_sync
from .types import LEVELS, Event, Item, Level, Member, Message, Place, SendLevel, View, Welcome

if TYPE_CHECKING:
    from .aio import Connection, Group, Pipeline, connect, sessions

__all__ = [
    "DEFAULT",
    "LEVELS",
    "BadName",
    "Busy",
    "ClientError",
    "ClosedGroup",
    "Connection",
    "ConnectionClosed",
    "DaemonClosing",
    "Event",
    "Fenced",
    "Group",
    "InboxFull",
    "Item",
    "Level",
    "Member",
    "Message",
    "NameCollision",
    "NotMember",
    "NotReachable",
    "Pipeline",
    "Place",
    "ProtocolError",
    "Refused",
    "SendLevel",
    "SlowReceiver",
    "SyncConnection",
    "SyncGroup",
    "SyncPipeline",
    "Timeout",
    "TooLarge",
    "Undecided",
    "VersionMismatch",
    "View",
    "Welcome",
    "connect",
    "connect_sync",
    "sessions",
    "sessions_sync",
]


def __getattr__(name: str) -> Any:
    # asyncio takes longer to import than everything else here together; command-line tools do without it.
    if name in ("Connection", "Group", "Pipeline", "connect", "sessions"):
        from . import aio

        return getattr(aio, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
