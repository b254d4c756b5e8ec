"""What can go wrong between a program and its daemon, each with its own type.

Everything is a ``ClientError``; those that the standard library has a name for are that as well (``TimeoutError``,
``ConnectionError``, ``ValueError``), so that code which knows nothing of zenjun handles them sensibly.
"""

from __future__ import annotations


class ClientError(Exception):
    """Base of all errors of this library.

    completed: from ``send_many`` and pipelines, how many messages of that call are known to have reached the level; else 0.
    """

    completed: int = 0


class Timeout(ClientError, TimeoutError):
    """The call's time is over. The connection stays usable; a message that was being sent may still be delivered.

    not_open: True if the cluster was not open, as far as this connection knew.
    """

    not_open: bool = False


class ConnectionClosed(ClientError, ConnectionError):
    """The connection to the daemon has ended (or was closed here); ``reason`` tells why."""

    def __init__(self, reason: str = "the connection to the daemon is closed") -> None:
        super().__init__(reason)
        self.reason = reason


class NotReachable(ConnectionClosed):
    """No daemon answers at the socket. final: waiting for one would not help (for example, permission is denied)."""

    final: bool = False


class SlowReceiver(ConnectionClosed):
    """The daemon cut us off because we did not take our messages in time."""


class DaemonClosing(ConnectionClosed):
    """The daemon is stopping."""


class Busy(ConnectionClosed):
    """The daemon serves as many clients as it is configured for."""


class TooManyConnections(Busy):
    """The programs of this user have as many connections as they may (``clients.connections_per_user``)."""


class TooManyBytes(SlowReceiver):
    """The programs of this user, or of all, have more unread, or half sent, than they may (``clients.queue_bytes_per_user``,
    ``queue_bytes_users``, ``input_bytes_per_user``)."""


class VersionMismatch(ConnectionClosed):
    """Library and daemon speak no common version of the client protocol."""


class ProtocolError(ConnectionClosed):
    """One side sent what the protocol does not allow: a bug in this library or in the daemon."""


class Fenced(ClientError):
    """The daemon saw that its order differs from another station's and delivers nothing any more."""


class Undecided(ClientError):
    """This station's instance ended while the message was under way: it may or may not have been delivered.

    reached: highest level it is known to have reached (``"ordered"`` or ``"preack"``), or None.
    """

    reached: str | None = None


class InboxFull(ClientError):
    """So much is unread in the groups that reading has stopped, and with it every answer; read, or join with
    ``receive=False``."""


class TooLarge(ClientError, ValueError):
    """The message is larger than ``message_max``. Found before anything is sent."""


class BadName(ClientError, ValueError):
    """A group name must be 1..128 bytes of UTF-8 and be accepted by the daemon."""


class NameCollision(BadName):
    """Another group in use has the same 32-bit number on the wire; choose another name."""


class OrderMismatch(ClientError, ValueError):
    """The group's first member asked for the other order of delivery (``join(order=...)``)."""


class UnknownOrder(ClientError, ValueError):
    """The daemon is older than this library and has no such order of delivery."""


class BadLevel(ClientError, ValueError):
    """The level of delivery and the group's order do not go together, or the cluster's medium does not have that level."""


class NotPermitted(ClientError, PermissionError):
    """The user of this program may not do that; the message says what is missing (``[[access]]``, ``station.operators``)."""


class StateFailed(ClientError):
    """The group's state cannot be had, or the program could not restore it: ``join(..., state=...)``; the group has been left."""


class NotMember(ClientError):
    """The group has been left, or was never joined."""


class ClosedGroup(NotMember):
    """Only members may send to this group; join it without ``send_only``."""


class Refused(ClientError):
    """The daemon refused for another reason; ``code`` is the protocol's word for it."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


BY_CODE: dict[str, type[ClientError]] = {
    "version": VersionMismatch,
    "protocol": ProtocolError,
    "too-large": TooLarge,
    "bad-handle": NotMember,
    "not-member": NotMember,
    "closed-group": ClosedGroup,
    "name": BadName,
    "name-collision": NameCollision,
    "order-mismatch": OrderMismatch,
    "unknown-order": UnknownOrder,
    "level": BadLevel,
    "bus-level": BadLevel,
    "not-permitted": NotPermitted,
    "slow-receiver": SlowReceiver,
    "busy": Busy,
    "too-many-connections": TooManyConnections,
    "too-many-bytes": TooManyBytes,
    "closing": DaemonClosing,
    "fenced": Fenced,
}


def from_code(code: str, message: str) -> ClientError:
    """The error for an ERROR frame; a code this library does not know gives ``Refused``."""
    kind = BY_CODE.get(code)
    return Refused(message, code) if kind is None else kind(message)
