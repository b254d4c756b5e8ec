"""Programs talk to their local daemon with this package: ``connect`` for asyncio, ``connect_sync`` without.

It imports only the standard library: neither the daemon nor the protocol core, and no particular event loop (asyncio itself only
when an async name is used).
"""

from typing import TYPE_CHECKING, Any

from .common import DEFAULT
from .errors import (
    BadLevel,
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
    NotPermitted,
    NotReachable,
    OrderMismatch,
    ProtocolError,
    Refused,
    SlowReceiver,
    StateFailed,
    Timeout,
    TooLarge,
    TooManyBytes,
    TooManyConnections,
    Undecided,
    UnknownOrder,
    VersionMismatch,
)
from .sync import SyncConnection, SyncGroup, SyncPipeline, connect_sync, sessions_sync
from .types import (
    LEVELS,
    Blocked,
    Closed,
    ClusterView,
    Event,
    Expelled,
    Item,
    JoinLevel,
    Level,
    Member,
    Message,
    Opened,
    Order,
    Place,
    Reopened,
    SendLevel,
    Station,
    Tokens,
    Unblocked,
    View,
    Welcome,
)

if TYPE_CHECKING:
    from .aio import Connection, Group, Pipeline, connect, sessions

__all__ = [
    "DEFAULT",
    "LEVELS",
    "BadLevel",
    "BadName",
    "Blocked",
    "Busy",
    "ClientError",
    "Closed",
    "ClosedGroup",
    "ClusterView",
    "Connection",
    "ConnectionClosed",
    "DaemonClosing",
    "Event",
    "Expelled",
    "Fenced",
    "Group",
    "InboxFull",
    "Item",
    "JoinLevel",
    "Level",
    "Member",
    "Message",
    "NameCollision",
    "NotMember",
    "NotPermitted",
    "NotReachable",
    "Opened",
    "Order",
    "OrderMismatch",
    "Pipeline",
    "Place",
    "ProtocolError",
    "Refused",
    "Reopened",
    "SendLevel",
    "SlowReceiver",
    "StateFailed",
    "Station",
    "SyncConnection",
    "SyncGroup",
    "SyncPipeline",
    "Timeout",
    "Tokens",
    "TooLarge",
    "TooManyBytes",
    "TooManyConnections",
    "Unblocked",
    "Undecided",
    "UnknownOrder",
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
